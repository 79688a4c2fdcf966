"""Trainings in styles that no rule was written for: two sparse optimisers, a replay buffer and a
target network, functional and scripted code. `explain` names the planted hunk first, with a true
sentence, and no probe breaks them."""

from __future__ import annotations

import pytest
from lab.edited import START, TrainingServer, edited

from celedger.lab.diagnose.memory_growth import load
from celedger.lab.diagnose.probe_records import records
from celedger.lab.diagnose.watch import judge
from celedger.lab.diagnose.watch_records import read

pytest.importorskip("torch")

pytestmark = pytest.mark.matrix

RECOMMENDER = (
    START
    + """\
bag, out = nn.EmbeddingBag(20, 4, sparse=True), nn.Linear(4, 1)
sparse = torch.optim.SparseAdam(bag.parameters(), lr=0.01)
plain = torch.optim.Adam(out.parameters(), lr=0.01)
for step in range(5):
    loss = out(bag(torch.randint(20, (8, 3)))).square().mean()
    sparse.zero_grad()
    plain.zero_grad()
    loss.backward()
    sparse.step()
    plain.step()
"""
)
WORLD = (
    START
    + """\
import copy
import numpy as np

class Replay:
    def __init__(self):
        self.obs, self.size = np.zeros((64, 4), dtype="float32"), 0

    def add(self, obs):
        self.obs[self.size] = obs
        self.size += 1

def collect(replay, rng):
    obs = rng.normal(size=4)
    for _ in range(32):
        after = 0.9 * obs + rng.normal(size=4)
        replay.add(obs)
        obs = after

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))

def follow(slow, fast):
    for p, q in zip(slow.parameters(), fast.parameters()):
        p.data.mul_(0.9).add_(q.data, alpha=0.1)

replay, rng = Replay(), np.random.default_rng(0)
collect(replay, rng)
start, net = nn.Linear(4, 4), Net()
slow = copy.deepcopy(net)
for p in slow.parameters():
    p.requires_grad_(False)
optimiser = torch.optim.SGD([*start.parameters(), *net.parameters()], lr=0.1)
for step in range(5):
    state = start(torch.zeros(8, 4))
    obs = torch.from_numpy(replay.obs[rng.integers(0, 31, 8)])
    with torch.no_grad():
        wanted = 1 + 0.9 * slow(obs).squeeze(1)
    loss = F.mse_loss(net(obs).squeeze(1), wanted) + F.mse_loss(state, obs)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    follow(slow, net)
"""
)
MODES = (
    START
    + """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop = nn.Linear(4, 8), nn.Dropout(0.2)

    def forward(self, x):
        return self.drop(torch.relu(self.first(x)))

def standardizer(x):
    return lambda rows: rows - x.mean(0)

def evaluate(net, x):
    net.eval()
    with torch.no_grad():
        net(x)
    net.train()

net, x = Net(), torch.randn(32, 4)
x = standardizer(x)(x)
net.first.weight.no_decay = True
decayed = [p for p in net.parameters() if not getattr(p, "no_decay", False)]
plain = [p for p in net.parameters() if getattr(p, "no_decay", False)]
scale = [1.0, 2.0]
optimiser = torch.optim.SGD(
    [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}], lr=0.1
)
for step in range(5):
    loss = net(x[8 * (step % 4) :][:8]).square().mean()
    optimiser.zero_grad()
    loss.backward()
    for p in net.parameters():
        p.grad = p.grad * scale[0]
    optimiser.step()
    evaluate(net, x)
"""
)
FUNCTIONAL = (
    START
    + """\
from torch.func import functional_call, grad, vmap

net, x, y = nn.Linear(4, 2), torch.randn(64, 4), torch.randint(2, (64,))
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)

def one(params, x, y):
    return F.cross_entropy(functional_call(net, params, (x[None],)), y[None])

each = vmap(grad(one), in_dims=(None, 0, 0))
for step in range(24):
    rows = torch.randperm(64)[:16]
    grads = each({k: p.detach() for k, p in net.named_parameters()}, x[rows], y[rows])
    for name, p in net.named_parameters():
        p.grad = grads[name].mean(0)
    optimiser.step()
"""
)
SCRIPTED = (
    START
    + """\
@torch.jit.script
def scan(x: torch.Tensor, state: torch.Tensor):
    out = []
    for t in range(x.size(1)):
        state = 0.9 * state + x[:, t]
        out.append(state)
    return torch.stack(out, 1), state

class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.gate = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, state):
        y, state = scan(self.inp(x), self.gate(state))
        return y, state

cell, first = Cell(), nn.Linear(4, 4)
optimiser = torch.optim.SGD([*cell.parameters(), *first.parameters()], lr=0.1)
for step in range(12):
    x, state = torch.randn(8, 5, 4), first(torch.zeros(8, 4))
    y, state = cell(x, state + first(x[:, 0]))
    loss = y.square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)


BALANCE = (
    START
    + """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.prior, self.post = nn.Linear(4, 4), nn.Linear(4, 4)

    def ones(self, x):
        ones = torch.ones(8, 4, dtype=torch.int64)
        return ones.to(torch.float32)

    def forward(self, x):
        x = x * self.ones(x)
        prior, post = self.prior(x), self.post(x)
        dynamics = (post.detach() - prior).square().mean()
        closeness = (post - prior.detach()).square().mean()
        return 0.8 * dynamics + 0.2 * closeness

net = Net()
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    loss = net(torch.randn(8, 4))
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)


def first_hunk(server: TrainingServer, text: str, *changes: tuple[str, str]) -> tuple[str, str]:
    """Return the sentence, and the lines of the hunk that is blamed first."""
    finding, blamed, _ = server.explain(text, edited(text, *changes))
    assert finding is not None
    return finding.sentence, "\n".join(blamed[0].hunk.lines)


def test_where_a_sparse_gradient_was_cleared_is_blamed(server: TrainingServer) -> None:
    loop = "    for one in (sparse, plain):\n        one.step()\n"
    sentence, hunk = first_hunk(
        server, RECOMMENDER, ("    sparse.zero_grad()\n", ""),
        ("    sparse.step()\n    plain.step()\n", loop),
    )  # fmt: skip
    assert sentence.startswith("gradients are not cleared between steps")
    assert hunk == "-    sparse.zero_grad()"


FREEZE = (
    "for p in slow.parameters():\n    p.requires_grad_(False)\n", "slow.requires_grad_(False)\n"
)  # fmt: skip
SPELT = (
    "    for p, q in zip(slow.parameters(), fast.parameters()):\n",
    "    pairs = zip(slow.parameters(), fast.parameters())\n    for p, q in pairs:\n",
)


def test_rows_that_are_stored_otherwise_are_data_and_no_labels(server: TrainingServer) -> None:
    sentence, hunk = first_hunk(
        server, WORLD, ("replay.add(obs)", "replay.add(after)"), FREEZE, SPELT
    )
    assert "label" not in sentence
    assert "replay.add(after)" in hunk
    moved = "        obs = after\n        replay.add(obs)\n"
    _, hunk = first_hunk(
        server, WORLD, ("        replay.add(obs)\n        obs = after\n", moved), FREEZE, SPELT
    )
    assert "obs = after" in hunk  # what stands around the moved line


def test_targets_that_a_network_computes_are_no_labels(server: TrainingServer) -> None:
    for edit in (("    follow(slow, net)\n", ""), ("1 + 0.9 * slow", "1 + 0.8 * slow")):
        sentence, _ = first_hunk(server, WORLD, edit, FREEZE)
        assert "label" not in sentence
    # More passes come before than are looked at.
    acts = "        [net(torch.zeros(1, 4)) for _ in range(5)]\n        wanted = 1"
    acting = edited(WORLD, ("        wanted = 1", acts))
    # Here the first of them come before anything that a trace begins with.
    alone = edited(
        acting, ("    state = start(torch.zeros(8, 4))\n", ""), (" + F.mse_loss(state, obs)", "")
    )
    for text in (acting, alone):
        sentence, _ = first_hunk(server, text, ("1 + 0.9 * slow", "1 + 0.8 * slow"), FREEZE)
        assert "label" not in sentence


def test_a_name_of_an_attribute_is_no_value_of_its_object(server: TrainingServer) -> None:
    """The hunk that makes a buffer was blamed, after a commit that renamed its attribute."""
    filled = ("replay.add(obs)", "replay.add(obs * 1.5)")
    renamed = WORLD.replace("self.size", "self.count").replace("class Replay", "class Memory")
    renamed = renamed.replace("Replay()", "Memory()")
    _, blamed, _ = server.explain(WORLD, edited(renamed, filled))
    assert "obs * 1.5" in "".join(blamed[0].hunk.lines)


def test_a_mode_that_stays_is_given_to_the_hunks_that_call_the_module(
    server: TrainingServer,
) -> None:
    start, end = MODES.index("        return self.drop("), MODES.index("def evaluate")
    both = """\
        h = torch.relu(self.first(x))
        return self.drop(h)

def standardizer(x):

    def apply(rows):
        return rows - x.mean(0)

    return apply

"""
    forward = MODES[start:end], both
    sentence, hunk = first_hunk(server, MODES, ("    net.train()\n", ""), forward)
    assert "now runs in evaluation mode during training" in sentence
    assert hunk == "-    net.train()"


def test_a_parameter_s_own_attributes_are_values_of_it(server: TrainingServer) -> None:
    near = ("scale = [1.0, 2.0]\n", "scale, other = [1.0, 2.0], 0\n")
    sentence, hunk = first_hunk(server, MODES, ("net.first.weight.no_decay = True\n", ""), near)
    assert sentence.startswith("optimiser settings differ at step 0: weight_decay 0 → 0.1")
    assert "no_decay" in hunk


def test_a_line_at_the_start_of_a_loop_is_compared_within_it(server: TrainingServer) -> None:
    spelt = ("    optimiser.step()\n", "    stepped = optimiser.step()\n")
    line = "        scale = [float(p.numel())]\n"
    inserted = ("        p.grad = p.grad", f"{line}        p.grad = p.grad")
    _, hunk = first_hunk(server, MODES, inserted, spelt)
    assert "p.numel()" in hunk


def test_functional_trainings_are_no_leak_and_not_repeated(server: TrainingServer) -> None:
    (event,) = records(server.train(FUNCTIONAL, "preflight", steps=200) / "0", "preflight")
    status = {check["check"]: check["status"] for check in event["checks"]}
    assert status["overfits one batch"] == "n/a"
    assert status["memory stays flat"] == "pass"


def test_a_gradient_that_a_scripted_function_leaves_out_is_none(server: TrainingServer) -> None:
    """Its state reaches no loss. And the first state, all zeros, is no batch that comes again."""
    (training,) = read(server.train(SCRIPTED, "watch"))
    assert judge(training, {}).findings == ()


def test_a_gradient_that_differs_for_equal_values_is_blamed_around_its_module(
    server: TrainingServer,
) -> None:
    sentence, hunk = first_hunk(
        server, BALANCE,
        ("0.8 * dynamics + 0.2 * closeness", "0.2 * dynamics + 0.8 * closeness"),
        ("ones.to(torch.float32)", "ones.type_as(x)"),
    )  # fmt: skip
    assert sentence.startswith("the gradient that reaches `p")
    assert "type_as" not in sentence  # the same cast, in other words
    assert "0.2 * dynamics" in hunk


def test_hooks_that_pile_up_after_another_training_are_seen(server: TrainingServer) -> None:
    text = (
        START
        + """\
teacher, net = nn.Linear(4, 4), nn.Linear(4, 4)
def look(module, args, output):
    pass
for model in (teacher, net):
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(64):
        if model is net:
            net.register_forward_hook(look)
        loss = model(torch.randn(8, 4)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
"""
    )
    (event,) = records(server.train(text, "memory") / "0", "memory")
    assert any(leak["kind"] == "hooks" for leak in load(event, {})["leaks"])
