"""Preflight judges losses written by hand, rows with several labels, and what is minimised."""

from __future__ import annotations

import pytest
from lab.edited import START, TrainingServer, edited
from lab.test_preflight_cases import SHORT, TWO_PARTS, checked, failed

pytest.importorskip("torch")

pytestmark = pytest.mark.matrix

BY_HAND = (
    START
    + """\
torch.manual_seed(0)
x = torch.randn(400, 8)
y = x[:, :3].sum(1) + 0.1 * torch.randn(400)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
for epoch in range(3):
    for rows in torch.randperm(320).split(32):
        loss = (y[rows] - net(x[rows])[:, 0]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        net(x[320:])
"""
)
SEVERAL = edited(
    BY_HAND,
    ("y = x[:, :3].sum(1) + 0.1 * torch.randn(400)", "y = (x[:, :3] > 0).float()"),
    ("nn.Linear(16, 1)", "nn.Linear(16, 3)"),
    ("(y[rows] - net(x[rows])[:, 0]).square().mean()",
     "F.binary_cross_entropy_with_logits(net(x[rows]), y[rows])"),
)  # fmt: skip
NEXT_TOKEN = edited(
    SHORT,
    ("nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)", "nn.Embedding(40, 16), nn.Linear(16, 40)"),
    ("x, y = draw(32)", "text = torch.randint(40, (32, 9)); x, y = text[:, :-1], text[:, 1:]"),
    ("F.cross_entropy(net(x), y)", "F.cross_entropy(net(x).transpose(1, 2), y)"),
)


@pytest.mark.parametrize("text", [BY_HAND, SEVERAL], ids=["a difference", "several labels"])
def test_labels_of_any_loss_follow_their_inputs(text: str, server: TrainingServer) -> None:
    found = checked(server, text)
    assert failed(found) == {}
    assert found["labels follow inputs"][0] == "pass", found
    permuted = edited(text, ("net = ", "y = y[torch.randperm(400)]\nnet = "))
    status, said = checked(server, permuted)["labels follow inputs"]
    assert (status, "permuted ones" in said) == ("warn", True)


def test_a_difference_that_broadcasts_and_a_leak_are_told(server: TrainingServer) -> None:
    squared = edited(BY_HAND, ("net(x[rows])[:, 0]", "net(x[rows])"))
    assert checked(server, squared)["output fits the loss"] == (
        "fail", "a difference broadcasts (32, 1) with (32,)",
    )  # fmt: skip
    leaking = edited(BY_HAND, ("net = ", "x[:, 5] = 2 * y\nnet = "))
    status, said = checked(server, leaking)["labels follow inputs"]
    assert (status, said[:21]) == ("warn", "column 5 of input 0 a")


def test_noise_is_no_label(server: TrainingServer) -> None:
    noise = edited(
        BY_HAND,
        ("        loss = ", "        noise = torch.randn(len(rows))\n        loss = "),
        ("(y[rows] - ", "(noise - "),
    )
    assert checked(server, noise)["labels follow inputs"][0] == "n/a"


def test_a_label_that_is_never_set_is_named(server: TrainingServer) -> None:
    idle = edited(SEVERAL, ("net = ", "y[:, 1] = 0\nnet = "))
    status, said = checked(server, idle)["labels balanced"]
    assert (status, said) == ("warn", "column 1 of the target never changes in 960 rows")


def test_a_target_that_was_not_shifted_is_the_input(server: TrainingServer) -> None:
    assert checked(server, NEXT_TOKEN)["labels follow inputs"][0] == "n/a"
    copied = edited(NEXT_TOKEN, ("text[:, 1:]", "text[:, :-1].clone()"))
    status, said = checked(server, copied)["labels follow inputs"]
    assert (status, "equals the input" in said) == ("warn", True)


def test_a_loss_of_the_wrong_sign_overfits_nothing(server: TrainingServer) -> None:
    status, said = checked(server, edited(SHORT, ("loss.backward()", "(-loss).backward()")))[
        "overfits one batch"
    ]
    assert (status, "sign is wrong" in said) == ("warn", True)


@pytest.mark.parametrize(
    ("loss", "check", "sentence"),
    [
        ("F.nll_loss((99 * net(x)).log_softmax(1), y)", "loss at the start", "nll_loss "),
        ("F.binary_cross_entropy((net(x)[:, 0] + 9).sigmoid(), (y > 1).float())",
         "loss at the start", "binary_cross_entropy "),
        ("F.kl_div(net(x).softmax(1), F.one_hot(y, 4).float())",
         "output fits the loss", "kl_div is given values above 0"),
        ("F.poisson_nll_loss(net(x)[:, 0].exp(), y.float())",
         "output fits the loss", "poisson_nll_loss is given a rate"),
        ("F.poisson_nll_loss(net(x)[:, :1], y.float())",
         "output fits the loss", "poisson_nll_loss broadcasts"),
    ],
)  # fmt: skip
def test_losses_of_probabilities_and_rates_are_judged(
    loss: str, check: str, sentence: str, server: TrainingServer
) -> None:
    status, said = checked(server, edited(SHORT, ("F.cross_entropy(net(x), y)", loss)))[check]
    assert (status, said.startswith(sentence)) == ("fail", True), said


def test_a_student_of_labels_and_a_teacher_is_judged_by_its_labels(server: TrainingServer) -> None:
    taught = (
        "F.cross_entropy(net(x), y) + F.kl_div(net(x).log_softmax(1), torch.full((32, 4), .25))"
    )
    found = checked(server, edited(SHORT, ("F.cross_entropy(net(x), y)", taught)))
    assert found["loss at the start"][0] == "pass", found
    assert found["labels follow inputs"][0] == "pass", found


def test_a_second_module_that_no_optimiser_holds_fails(server: TrainingServer) -> None:
    text = edited(TWO_PARTS, ("[*encoder.parameters(), *decoder.parameters()]",
                              "encoder.parameters()"))  # fmt: skip
    assert failed(checked(server, text)).keys() >= {"every parameter learns"}


def test_a_score_of_the_training_rows_is_no_overlap(server: TrainingServer) -> None:
    scored = edited(BY_HAND, ("        net(x[320:])", "        net(x[:320]), net(x[320:])"))
    status, said = checked(server, scored)["train and validation apart"]
    assert (status, "calls of their own" in said) == ("warn", True)
    mixed = edited(BY_HAND, ("net(x[320:])", "net(x[200:])"))
    assert checked(server, mixed)["train and validation apart"][0] == "fail"


def test_an_optimiser_of_another_model_overfits_nothing(server: TrainingServer) -> None:
    text = edited(SHORT, ("SGD(net.parameters()", "SGD(nn.Linear(8, 4).parameters()"))
    status, said = checked(server, text)["overfits one batch"]
    assert (status, said.endswith("it does not fall")) == ("fail", True), said


def test_frozen_weights_and_a_penalty_leave_the_sign_alone(server: TrainingServer) -> None:
    text = edited(
        SHORT,
        (
            "optimiser = ",
            "net[0].weight.requires_grad_(False)\nother = nn.Linear(8, 1)\noptimiser = ",
        ),
        ("SGD(net.parameters()", "SGD([*net.parameters(), *other.parameters()]"),
        ("F.cross_entropy(net(x), y)", "F.cross_entropy(net(x), y) + other(x).square().mean()"),
    )
    assert checked(server, text)["overfits one batch"][0] == "pass"


CHOSEN = edited(
    BY_HAND,
    ("y = x[:, :3].sum(1) + 0.1 * torch.randn(400)",
     "y = (x[:, :3] > 0).long() @ torch.tensor([2, 1, 1])"),
    ("nn.Linear(16, 1)", "nn.Linear(16, 5)"),
    ("(y[rows] - net(x[rows])[:, 0]).square().mean()",
     "-net(x[rows]).log_softmax(1).gather(1, y[rows, None]).mean()"),
)  # fmt: skip
TWO_LOSSES = edited(
    CHOSEN,
    ("nn.Linear(16, 5)", "nn.Linear(16, 6)"),
    ("-net(x[rows]).log_softmax(1).gather(1, y[rows, None]).mean()",
     """F.cross_entropy((out := net(x[rows]))[:, :5], y[rows])
        loss = loss + F.smooth_l1_loss(out[:, 5], size[rows])"""),
    ("net = ", "size = x[:, 3:5].sum(1)\nnet = "),
)  # fmt: skip
FUNCTIONAL = edited(
    CHOSEN,
    ("net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 5))", """\
def loss_of(params, x, y):
    hidden = torch.tanh(x @ params["in"])
    return -(hidden @ params["out"]).log_softmax(1)[torch.arange(len(y)), y].mean()
net = {"in": torch.randn(8, 16) / 3, "out": torch.randn(16, 5) / 4}"""),
    ("optimiser = torch.optim.Adam(net.parameters(), lr=0.01)\n", ""),
    ("        loss = -net(x[rows]).log_softmax(1).gather(1, y[rows, None]).mean()\n",
     "        gradients = torch.func.grad(loss_of)(net, x[rows], y[rows])\n"),
    ("        optimiser.zero_grad()\n        loss.backward()\n        optimiser.step()\n",
     "        net.update((name, value - gradients[name]) for name, value in net.items())\n"),
    ("        net(x[320:])\n", "        loss_of(net, x[320:], y[320:])\n"),
)  # fmt: skip


@pytest.mark.parametrize("text", [CHOSEN, TWO_LOSSES, FUNCTIONAL], ids=["gather", "two", "func"])
def test_labels_of_losses_by_hand_and_of_several_follow(text: str, server: TrainingServer) -> None:
    sound = checked(server, text)
    assert failed(sound) == {}
    assert sound["labels follow inputs"][0] == "pass", sound
    permuted = edited(text, ("net = ", "y = y[torch.randperm(400)]\nnet = "))
    assert checked(server, permuted)["labels follow inputs"][0] == "warn"


def test_a_softmax_of_probabilities_comes_twice_by_hand(server: TrainingServer) -> None:
    twice = edited(CHOSEN, (".log_softmax(1)", ".softmax(1).log_softmax(1)"))
    status, said = checked(server, twice)["output fits the loss"]
    assert (status, said.endswith("softmax comes twice")) == ("warn", True)
    assert checked(server, CHOSEN)["loss at the start"][0] == "pass"


def test_the_target_of_one_kind_of_row_is_no_label(server: TrainingServer) -> None:
    """What is real, and which rows are a pair, is the same in every step."""
    pairs = edited(
        TWO_LOSSES,
        ("F.cross_entropy((out := net(x[rows]))[:, :5], y[rows])",
         "F.cross_entropy((out := net(x[rows]))[:, :5] @ out[:, :5].T, which)"),
        ("net = ", "which = torch.arange(32)\nnet = "),
    )  # fmt: skip
    assert checked(server, pairs)["labels follow inputs"][0] == "pass"


TWO_TASKS = edited(
    SHORT,
    ("nn.Linear(16, 4)", "nn.Linear(16, 5)"),
    ("    loss = F.cross_entropy(net(x), y)",
     ("    out = net(x)\n"
     "    loss = F.cross_entropy(out[:, :4], y) + F.mse_loss(out[:, 4], x[:, 0])")),
)  # fmt: skip


def test_the_sign_of_each_of_several_losses_is_judged(server: TrainingServer) -> None:
    assert checked(server, TWO_TASKS)["overfits one batch"][0] != "warn"
    status, said = checked(server, edited(TWO_TASKS, (" + F.mse", " - F.mse")))[
        "overfits one batch"
    ]
    assert (status, said) == ("warn", "the training makes mse_loss 1 larger: its sign is wrong")


def test_who_works_against_a_loss_of_the_same_labels_has_no_wrong_sign(
    server: TrainingServer,
) -> None:
    debiased = edited(
        TWO_TASKS,
        ("optimiser = ", "spy = nn.Linear(16, 2)\noptimiser = "),
        ("    loss = ", ("    group = (x[:, 1] > 0).long()\n"
         "    F.cross_entropy(spy(net[0](x).detach()), group).backward()\n    loss = ")),
        (" + F.mse_loss(out[:, 4], x[:, 0])", " - 0.1 * F.cross_entropy(spy(net[0](x)), group)"),
    )  # fmt: skip
    assert checked(server, debiased)["overfits one batch"][0] != "warn"


def test_a_loss_that_diverges_later_fails(server: TrainingServer) -> None:
    assert checked(server, BY_HAND)["loss stays finite"] == ("pass", "in 30 steps")
    summed = edited(
        BY_HAND, ("square().mean()", "square().sum()"), ("Adam", "SGD"), ("lr=0.01", "lr=1.0")
    )
    status, said = checked(server, summed)["loss stays finite"]
    assert (status, said.startswith("the loss of step ")) == ("fail", True)


def test_the_axis_of_a_softmax_is_named(server: TrainingServer) -> None:
    along = edited(SHORT, ("F.cross_entropy(net(x), y)", "F.nll_loss(net(x).log_softmax(0), y)"))
    status, said = checked(server, along)["output fits the loss"]
    assert (status, said) == (
        "fail", "nll_loss needs log_softmax over the classes, not over axis 0",
    )  # fmt: skip


CHOSEN = edited(
    SHORT,
    ("    loss = F.cross_entropy(net(x), y)",
     ("    logp = net(x).log_softmax(1)[:, :, None]\n"
     "    loss = -logp.gather(dim=1, index=y[:, None, None]).mean()")),
    ("x, y = draw(32)", "x, y = draw(8)"),
)  # fmt: skip


def test_labels_choose_by_keyword_and_along_an_inner_axis(server: TrainingServer) -> None:
    found = checked(server, CHOSEN)
    assert found["loss at the start"][0] == "pass", found
    assert found["labels balanced"][0] == "pass"
    assert found["overfits one batch"][0] == "pass"


def test_a_sampled_action_is_no_label(server: TrainingServer) -> None:
    drawn = edited(
        CHOSEN,
        ("index=y[:, None, None]", "index=action[:, None, None]"),
        ("    loss =", "    action = logp.exp()[:, :, 0].multinomial(1)[:, 0]\n    loss ="),
    )
    found = checked(server, drawn)
    assert found["labels follow inputs"][0] == "n/a", found
    assert "computes its targets itself" in found["labels balanced"][1]
