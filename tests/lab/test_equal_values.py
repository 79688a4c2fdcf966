"""Edits that leave every value equal come after the fault beside them, however they are written."""

from __future__ import annotations

import pytest
from lab.edited import START, TrainingServer, edited

pytest.importorskip("torch")

pytestmark = pytest.mark.matrix

TWO_VIEWS = (
    START
    + """\
import numpy as np
from functools import partial
from torch.utils.checkpoint import checkpoint

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Sequential(nn.Dropout(0.1), nn.Linear(4, 4))
        self.scale = 1 / 24**0.5

    def forward(self, x):
        return self.head(x + checkpoint(self.body, x * self.scale, use_reentrant=False))

def augment(x):
    kept = torch.rand_like(x) > 0.2
    return x * kept

def rows_of(x, size):
    for rows in torch.randperm(len(x)).split(size):
        yield x[rows]

def distance(weight, one, two):
    return weight * F.mse_loss(one, two)

def negatives(rng, taken):
    drawn = rng.integers(0, 9, 4)
    for n in range(4):
        while drawn[n] in taken:
            drawn[n] = rng.integers(0, 9)
    return torch.from_numpy(drawn)

net, x = Net(), torch.randn(16, 4)
for part in (net.body, net.head[1]):
    nn.init.normal_(part.weight)
rng = np.random.default_rng(0)
loss_of = partial(distance, 0.7)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(2):
    for number, batch in enumerate(rows_of(x, 4)):
        loss = loss_of(net(augment(batch)), net(augment(batch)))
        loss = loss + 0.1 * net(x[negatives(rng, {1, 2, 3, 4, 5})]).mean()
        loss.backward()
        if number % 2:
            optimiser.step()
            optimiser.zero_grad()
    net.eval()
    with torch.no_grad():
        print(net(x).mean())
    net.train()
"""
)
LAST_BIT = ("1 / 24**0.5", "24**-0.5")
SIGNED_ZERO = ("return x * kept", "return x.masked_fill(~kept, 0)")
ITS_OWN_VIEW = (
    "for rows in torch.randperm(len(x)).split(size):\n",
    (
        "order = torch.randperm(len(x))\n    for first in range(0, len(x), size):\n"
        "        rows = order[first : first + size]\n"
    ),
)
IN_PARTS = (
    "for part in (net.body, net.head[1]):\n    nn.init.normal_(part.weight)\n",
    "nn.init.normal_(net.body.weight)\nnn.init.normal_(net.head[1].weight)\n",
)


@pytest.mark.parametrize(
    ("fault", "harmless", "sentence"),
    [
        (("partial(distance, 0.7)", "partial(distance, 0.3)"), LAST_BIT, "`mul(_, 0.3)`"),
        (("(batch)), net(augment(batch)", "(batch)), net(batch"), SIGNED_ZERO, "the input differs"),
        (("    net.eval()\n", "    pass\n"), ITS_OWN_VIEW, "training mode"),
        (("lr=0.1", "lr=0.2"), IN_PARTS, "lr 0.1 → 0.2"),
        (
            ("            drawn[n] = rng.integers(0, 9)\n    r", "            break\n    r"),
            IN_PARTS,
            "other rows are drawn",
        ),
        (("rows_of(x, 4)", "rows_of(x.flip(0), 4)"), LAST_BIT, "other rows are drawn"),
    ],
    ids=["partial", "one view", "mode", "draws", "break", "checkpoint"],
)
def test_the_fault_comes_before_what_is_only_written_otherwise(
    server: TrainingServer, fault: tuple[str, str], harmless: tuple[str, str], sentence: str
) -> None:
    finding, blamed, _ = server.explain(TWO_VIEWS, edited(TWO_VIEWS, fault, harmless))
    assert finding is not None
    assert sentence in finding.sentence
    assert "_[" not in finding.sentence, "a row that is looked up"
    assert fault[1].split("\n")[0] in "\n".join(blamed[0].hunk.lines), finding.sentence


def test_a_gradient_that_no_longer_arrives_is_told(server: TrainingServer) -> None:
    fault = ("use_reentrant=False))", "use_reentrant=False).detach())")
    finding, blamed, _ = server.explain(TWO_VIEWS, edited(TWO_VIEWS, fault, IN_PARTS))
    assert finding is not None
    assert "no longer arrives: detached by `detach(_)`" in finding.sentence
    assert ".detach()" in blamed[0].hunk.lines[-1]


STORED_GRADIENTS = (
    START
    + """\
import copy

def clip_(grads, most):
    norm = sum(g.square().sum() for g in grads).sqrt()
    for g in grads:
        g.mul_(most / norm)

def error(out, y):
    return (out - y) ** 2

net, x, y = nn.Linear(4, 3), torch.randn(16, 4), torch.randn(16, 3)
slow = copy.deepcopy(net)
moments = {name: torch.zeros_like(p) for name, p in net.named_parameters()}
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    with torch.no_grad():
        goal = slow(x).flip(0) + y
    out = net(x)
    loss = error(out, goal).mean()
    optimiser.zero_grad()
    loss.backward()
    clip_([p.grad for p in net.parameters()], 1.0)
    for name, p in net.named_parameters():
        g = p.grad + 0.01 * p.detach()
        moments[name].mul_(0.9).add_(g)
        p.grad = moments[name].clone()
    optimiser.step()
"""
)
SQUARED = ("    return (out - y) ** 2", "    apart = out - y\n    return apart.square()")


@pytest.mark.parametrize(
    ("fault", "harmless"),
    [
        (("p.grad = moments[name].clone()", "p.grad = g"), SQUARED),
        (("p.grad for p in net", "p.grad.clone() for p in net"), SQUARED),
        (("copy.deepcopy(net)", "net"), ("    out = net(x)", "    out = net.forward(x)")),
    ],
    ids=["moment", "clone", "alias"],
)
def test_a_fault_of_shared_memory_comes_before_equal_values(
    server: TrainingServer, fault: tuple[str, str], harmless: tuple[str, str]
) -> None:
    finding, blamed, _ = server.explain(STORED_GRADIENTS, edited(STORED_GRADIENTS, fault, harmless))
    assert finding is not None
    assert fault[1] in blamed[0].hunk.lines[-1], finding.sentence
    assert "square" not in finding.sentence


BROADCAST = (
    START
    + """class Weighting(nn.Module):
    def __init__(self):
        super().__init__()
        self.s = nn.Parameter(torch.zeros(()))

    def forward(self, losses):
        return (-self.s).exp() * losses["size"]

net, weighting = nn.Linear(4, 1), Weighting()
x, y = torch.randn(32, 4), torch.randn(32)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    error = (net(x).squeeze(-1) - y).abs()
    loss = weighting({"size": error.mean()})
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)


def test_a_squeeze_that_is_gone_is_told(server: TrainingServer) -> None:
    finding, _, _ = server.explain(BROADCAST, edited(BROADCAST, (".squeeze(-1)", "")))
    assert finding is not None
    assert finding.sentence.endswith("something else: `squeeze(_, -1)` is gone")
