"""A script that changes its weights itself has steps like one with an optimiser of torch's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lab.edited import START, TrainingServer, edited
from lab.test_preflight_cases import checked, failed

from celedger.lab.diagnose.probe_records import records
from celedger.lab.diagnose.watch import judge
from celedger.lab.diagnose.watch_records import read

pytest.importorskip("torch")

pytestmark = pytest.mark.matrix

IN_PLACE = (
    START
    + """\
torch.manual_seed(0)
lr = 0.1
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

def update(parameters):
    with torch.no_grad():
        for p in parameters:
            p -= lr * p.grad
            p.grad.zero_()

x = torch.randn(60, 16, 8)
for step in range(60):
    loss = F.mse_loss(net(x[step]), x[step].sum(1, keepdim=True))
    loss.backward()
    update(net.parameters())
    with torch.no_grad():
        net(x[0])
"""
)
BY_DATA = edited(
    IN_PLACE,
    ("p -= lr * p.grad", "p.data -= lr * p.grad.data"),
    ("p.grad.zero_()", "p.grad.data.zero_()"),
)
GIVEN = edited(
    IN_PLACE,
    ("    loss.backward()\n    update(net.parameters())\n", "    update(loss)\n"),
    ("def update(parameters):\n", "def update(loss):\n"),
    ("    with torch.no_grad():\n        for p in parameters:\n",
     """\
    gradients = torch.autograd.grad(loss, list(net.parameters()))
    with torch.no_grad():
        for p, g in zip(net.parameters(), gradients):
"""),
    ("p -= lr * p.grad\n            p.grad.zero_()", "p -= lr * g"),
)  # fmt: skip
ACCUMULATED = edited(
    IN_PLACE,
    ("    update(net.parameters())\n", "    if step % 2:\n        update(net.parameters())\n"),
)
REPLACED = (
    START
    + """\
torch.manual_seed(0)
lr = 0.1
w = torch.randn(8, 1).requires_grad_()
for step in range(30):
    x = torch.randn(16, 8)
    loss = F.mse_loss(x @ w, x.sum(1, keepdim=True))
    loss.backward()
    w = (w - lr * w.grad).detach().requires_grad_()
"""
)
FUNCTIONAL = (
    START
    + """\
def loss_of(params, x):
    hidden = torch.tanh(x @ params["in"])
    return F.mse_loss(hidden @ params["out"], x.sum(1, keepdim=True))

def update(params, gradients, rate):
    return {name: value - rate * gradients[name] for name, value in params.items()}

torch.manual_seed(0)
params = {"in": torch.randn(8, 16) / 3, "out": torch.randn(16, 1) / 4}
for step in range(30):
    gradients = torch.func.grad(loss_of)(params, torch.randn(16, 8))
    params = update(params, gradients, 0.1)
"""
)
DOUBLED = "the weights' own update: the training loop calls `mul(_, 0.2)` instead of `mul(_, 0.1)`"


def steps(out: Path) -> int:
    lines = (out / "0" / "events.jsonl").read_text().splitlines()
    return sum(json.loads(line)["k"] == "step" for line in lines)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (IN_PLACE, 60), (BY_DATA, 60), (GIVEN, 60), (ACCUMULATED, 30), (REPLACED, 29),
        (FUNCTIONAL, 29),
    ],
    ids=["in place", "by data", "gradients given", "accumulated", "replaced", "functional"],
)  # fmt: skip
def test_a_step_ends_where_the_next_pass_begins(
    server: TrainingServer, text: str, count: int
) -> None:
    assert steps(server.train(text, "signature", steps=100)) == count


def test_its_update_is_a_place_of_the_difference(server: TrainingServer) -> None:
    new = edited(
        IN_PLACE,
        ("p -= lr * p.grad", "p -= lr * p.grad.clamp(-0.01, 0.01)"),
        ("step in range(60)", "step in range(0, 60)"),
    )
    finding, blamed, _ = server.explain(IN_PLACE, new)
    assert finding is not None
    assert finding.sentence.startswith("the weights' own update computes something else: `clamp(")
    assert "clamp" in blamed[0].hunk.lines[1]


@pytest.mark.parametrize(
    ("text", "old", "new", "sentence"),
    [
        (FUNCTIONAL, "gradients, 0.1)", "gradients, 0.2)", DOUBLED),
        (FUNCTIONAL, "torch.tanh(", "torch.relu(",
         "the loss computes something else: `relu(_)` where `tanh(_)` was"),
        (REPLACED, "lr = 0.1", "lr = 0.2", DOUBLED),
    ],
    ids=["update", "loss", "replaced"],
)  # fmt: skip
def test_weights_that_are_replaced_stay_the_same_parameters(
    server: TrainingServer, text: str, old: str, new: str, sentence: str
) -> None:
    finding, blamed, _ = server.explain(text, edited(text, (old, new)))
    assert finding is not None
    assert finding.sentence == sentence
    assert new.strip("(") in blamed[0].hunk.lines[1]


def test_gradients_that_it_does_not_clear_are_told(server: TrainingServer) -> None:
    new = edited(IN_PLACE, ("            p.grad.zero_()\n", ""))
    finding, blamed, _ = server.explain(IN_PLACE, new)
    assert finding is not None
    assert "not cleared" in finding.sentence
    assert "zero_" in blamed[0].hunk.lines[0]


@pytest.mark.parametrize("text", [IN_PLACE, BY_DATA], ids=["in place", "by data"])
def test_watchpoints_see_it(server: TrainingServer, text: str) -> None:
    def fired(text: str) -> set[str]:
        training = read(server.train(text, "watch"))[0]
        return {one.watchpoint.name for one in judge(training, {}).findings}

    assert fired(text) == set()
    assert "weight-unchanged" in fired(edited(text, ("lr = 0.1", "lr = 0.0")))
    assert "weight-change-large" in fired(edited(text, ("lr = 0.1", "lr = 50.0")))


def test_preflight_checks_it(server: TrainingServer) -> None:
    good = checked(server, IN_PLACE)
    assert failed(good) == {}
    assert good["every parameter learns"][0] == "pass"
    assert good["overfits one batch"][0] == "pass"
    uncleared = checked(server, edited(IN_PLACE, ("            p.grad.zero_()\n", "")))
    assert "gradients cleared" in failed(uncleared)


EVALUATING = edited(
    FUNCTIONAL,
    ("torch.manual_seed(0)\n", "torch.manual_seed(0)\nrows = torch.randn(400, 8)\n"),
    ("(params, torch.randn(16, 8))", "(params, rows[torch.randperm(360)[:16]])"),
    ("    params = update(params, gradients, 0.1)\n",
     ("    params = update(params, gradients, 0.1)\n"
     "    if step % 10 == 9:\n        loss_of(params, rows[360:])\n")),
)  # fmt: skip


def test_preflight_finds_the_evaluation_of_functions(server: TrainingServer) -> None:
    found = checked(server, EVALUATING)["train and validation apart"]
    assert found == ("pass", "0 of 40 validation rows were met in training before")
    found = checked(server, edited(EVALUATING, ("rows[360:]", "rows[320:]")))
    assert found["train and validation apart"][0] == "fail"


def test_preflight_takes_no_weight_for_the_data(server: TrainingServer) -> None:
    """As many units as rows, and first moments as long."""
    biased = edited(
        EVALUATING,
        ('torch.tanh(x @ params["in"])', 'torch.tanh(x @ params["in"] + params["bias"])'),
        ('{"in": ', '{"bias": torch.zeros(16), "in": '),
    )
    assert checked(server, biased)["inputs in range"][1].startswith("from -3.")


def test_a_gradient_that_was_not_seen_is_not_called_equal(server: TrainingServer) -> None:
    biased = edited(
        FUNCTIONAL,
        ('torch.tanh(x @ params["in"])', 'torch.tanh(x @ params["in"] + params["bias"])'),
        ('{"in": ', '{"bias": torch.zeros(16), "in": '),
    )
    after = edited(biased, ('@ params["in"] + params["bias"])', '@ params["in"]) + params["bias"]'))
    finding, blamed, _ = server.explain(biased, after)
    assert finding is not None
    assert finding.sentence == 'the weights differ after the step, first for `params["bias"]`'
    assert "tanh" in blamed[0].hunk.lines[0]


def test_the_phases_of_its_steps_are_timed(server: TrainingServer) -> None:
    out = server.train(IN_PLACE, "profile", steps=40)
    (event,) = records(out / "0", "profile")
    assert max(event["edges"]["step"]) == 40
