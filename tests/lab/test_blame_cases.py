"""The first hunk is the planted one, beside a hunk that means the same in code which ran, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from lab.edited import START, TrainingServer, edited
from lab.made_traces import Writer

from celedger.lab.diagnose.difference_context import novel_calls

pytest.importorskip("torch")

pytestmark = pytest.mark.matrix

NET = (
    START
    + """\
import numpy as np
from celedger.child import log

def grid(size):
    at = torch.arange(size).float()
    y, x = torch.meshgrid(at, at, indexing="ij")
    both = torch.stack([x, y], dim=-1)
    return both.reshape(-1, 2)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 2)
        corners = grid(2).flatten() / 4
        self.register_buffer("grid", corners)
        self.register_buffer("average", corners.clone())

    def forward(self, x):
        h = self.body(x + self.grid[:4])
        self.average.lerp_(self.average + 1, 0.1)
        h = torch.relu(h)
        return self.head(h)

def freeze(net):
    for name, p in net.named_parameters():
        p.requires_grad = name != "body.bias"

def table(rng):
    x = rng.normal(size=(64, 4))
    y = np.where(x[:, 0] > 0, 1, 0)
    return torch.from_numpy(x).float(), torch.from_numpy(y)

def ramp(optimiser):
    return torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: (step + 1) / 8)

def evaluate(net, rows):
    net.eval()
    with torch.no_grad():
        out = net(rows)
        a, b = out.unbind(1)
        score = (a - 2 * b).abs().mean()
    net.train()
    return score.item()

net = Net()
freeze(net)
x, y = table(np.random.default_rng(0))
x_val, _ = table(np.random.default_rng(1))
optimiser = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
plan = ramp(optimiser)
kept = torch.zeros(8)
for step in range(8):
    rows = slice(8 * step, 8 * step + 8)
    weight = torch.linspace(0.5, 1.0, 8)
    kept[step] = weight[step]
    losses = F.cross_entropy(net(x[rows]), y[rows], reduction="none") * (kept.mean() + weight)
    optimiser.zero_grad()
    losses.mean().backward()
    optimiser.step()
    plan.step()
log(epoch=0, score=evaluate(net, x_val))
"""
)
# What is planted, and what means the same.
CASES = {
    "buffer": (("torch.stack([x, y], dim=-1)", "torch.stack([y, x], dim=-1)"),
               ("h = torch.relu(h)", "h = h.relu()")),
    "shared": (("corners.clone())", "corners)"), ("h = torch.relu(h)", "h = h.relu()")),
    "average": (("self.average.lerp_(self.average + 1, 0.1)", "self.average = self.average + 0.2"),
                ("net = Net()\n", "net: nn.Module = Net()\n")),
    "array": (("size=(64, 4))\n", "size=(64, 4)) + 1\n"), ("h = torch.relu(h)", "h = h.relu()")),
    "frozen": (('name != "body.bias"', 'name != "body.weight"'),
               ("h = torch.relu(h)", "h = h.relu()")),
    "ramp": (("(step + 1) / 8)", "step / 8)"),
             ("weight = torch.linspace(0.5, 1.0, 8)", "weight = torch.linspace(0.5, 1, 8)")),
    "store": (("kept[step] = weight[step]", "kept[step] = weight[0]"),
              ("h = torch.relu(h)", "h = h.relu()")),
    "validation": (("x_val, _ = table(np.random.default_rng(1))",
                    "x_val, _ = table(np.random.default_rng(2))"),
                   ("a, b = out.unbind(1)", "a, b = out[:, 0], out[:, 1]")),
}  # fmt: skip
SENTENCES = {
    "validation": "of an evaluation differs",
    "frozen": "body.weight",
    "average": "buffers differ after equal forward passes: `average`",
    "shared": "`average` is now in the memory of `grid`",
}
CLOSURE = (
    START
    + """\
net = nn.Linear(4, 2)
x, y = torch.randn(32, 4), torch.randn(32, 2)
optimiser = torch.optim.LBFGS(net.parameters(), lr=0.5, max_iter=3)
calls = 0

def closure():
    global calls
    if calls >= 0:
        optimiser.zero_grad()
    loss = F.mse_loss(net(x), y)
    loss.backward()
    calls += 1
    return loss

for step in range(3):
    optimiser.step(closure)
"""
)


SPARSE = (
    START
    + """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 4, sparse=True)
        nn.init.zeros_(self.words.weight)

    def forward(self, ids, weight):
        return (self.words(ids) * weight).sum()

net = Net()
optimiser = torch.optim.SparseAdam(list(net.parameters()), lr=0.1)
for step in range(4):
    ids = torch.arange(8) + step
    loss = net(ids, torch.ones(4))
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)


SECOND = (
    START
    + """\
net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)

def derivatives(t):
    t = t.clone().requires_grad_(True)
    u = net(t)
    (du,) = torch.autograd.grad(u.sum(), t, create_graph=True)
    (ddu,) = torch.autograd.grad(du.sum(), t, create_graph=True)
    return u, ddu

for step in range(3):
    points = torch.linspace(0, 1, 6)[:, None]
    u, ddu = derivatives(points)
    loss = (u + ddu).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)


PER_SAMPLE = (
    START
    + """\
from torch.func import functional_call, grad, vmap
net = nn.Linear(4, 2)
x, y = torch.randn(32, 4), torch.randint(2, (32,))
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)

def one(params, x, y):
    return F.cross_entropy(functional_call(net, params, (x[None],)), y[None])

each = vmap(grad(one), in_dims=(None, 0, 0))
for step in range(4):
    rows = slice(8 * step, 8 * step + 8)
    grads = each({k: p.detach() for k, p in net.named_parameters()}, x[rows], y[rows])
    total = {}
    for name, g in grads.items():
        total[name] = g.sum(0)
    for name, p in net.named_parameters():
        p.grad = total[name] / 8
    optimiser.step()
"""
)
SLOW = (
    START
    + """\
net, slow = nn.Linear(4, 2), nn.Linear(4, 2)
x = torch.randn(8, 4)

def follow():
    for p, q in zip(slow.parameters(), net.parameters()):
        p.lerp_(q, 0.5)

optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    with torch.no_grad():
        wanted = slow(x)
    loss = F.mse_loss(net(x), wanted)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    torch.set_grad_enabled(False)
    follow()
    torch.set_grad_enabled(True)
"""
)
THREE_STEPS = """\
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    loss = net(x).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
BEAMS = (
    START
    + """\

def search(width):
    beams = [([], 0.0, {})]
    for position in range(4):
        grown = []
        for tokens, score, cache in beams:
            own = dict(cache)
            own[position] = len(own) + score
            for i in range(width):
                grown.append((tokens + [i], score + sum(own.values()) + (i - 1) ** 2, own))
        grown.sort(key=lambda beam: beam[1], reverse=True)
        beams = grown[:width]
    return beams[0][1]

net, x = nn.Linear(4, 2), torch.randn(8, 4)
"""
    + THREE_STEPS
    + """\
with torch.no_grad():
    net(torch.full((1, 4), search(3)))
"""
)


BLOCKS = (
    START
    + """\
def block(a, b, p=0.0):
    layers = [nn.Linear(a, b), nn.Dropout(p)]
    return nn.Sequential(*layers)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList()
        for width in (4, 4):
            self.parts.append(block(width, 4))

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x

net, x = Net(), torch.randn(8, 4)
"""
    + THREE_STEPS
)


def test_a_setting_is_blamed_where_the_module_is_made(server: TrainingServer) -> None:
    spelt = ("    loss = net(x).square().mean()", "    y = net(x)\n    loss = y.square().mean()")
    finding, blamed, _ = server.explain(
        BLOCKS, edited(BLOCKS, ("block(width, 4)", "block(width, 4, 0.1)"), spelt)
    )
    assert finding is not None
    assert finding.sentence == "settings of `parts.0.1` (Dropout) changed: p 0 → 0.1"
    assert "block(width, 4, 0.1)" in blamed[0].hunk.lines[-1]


def test_gradients_by_vmap_are_followed(server: TrainingServer) -> None:
    harmless = (
        "    for name, g in grads.items():\n",
        "    for name in grads:\n        g = grads[name]\n",
    )
    changed = edited(PER_SAMPLE, ("total[name] / 8", "total[name] / 4"), harmless)
    finding, blamed, _ = server.explain(PER_SAMPLE, changed)
    assert finding is not None
    assert finding.sentence.startswith("all gradients are 2 times what they were")
    assert finding.sentence.endswith("`div(_, 4)` where `div(_, 8)` was")
    assert ["/ 4" in one.hunk.lines[-1] for one in blamed] == [True, False]
    assert blamed[1].closeness == 4
    finding, blamed, _ = server.explain(
        PER_SAMPLE, edited(PER_SAMPLE, ("y[None])", "y[None], label_smoothing=0.1)"), harmless)
    )
    assert finding is not None
    assert "the training loop calls `cross_entropy" in finding.sentence
    assert "label_smoothing" in blamed[0].hunk.lines[-1]


def test_what_shares_memory_comes_before_what_is_given_other_values(server: TrainingServer) -> None:
    harmless = (
        "grown.sort(key=lambda beam: beam[1], reverse=True)",
        "grown = sorted(grown, key=lambda beam: -beam[1])",
    )
    _, blamed, _ = server.explain(
        BEAMS, edited(BEAMS, ("own = dict(cache)", "own = cache"), harmless)
    )
    assert "own = cache" in blamed[0].hunk.lines[-1]


def test_the_hunk_that_runs_when_a_gradient_differs_is_first(server: TrainingServer) -> None:
    harmless = ("torch.linspace(0, 1, 6)[:, None]", "torch.linspace(0, 1, 6).unsqueeze(1)")
    fault = ("grad(du.sum(), t, create", "grad(u.sum(), t, create")
    _, blamed, _ = server.explain(SECOND, edited(SECOND, fault, harmless))
    assert "(ddu,)" in blamed[0].hunk.lines[-1]


def test_a_call_that_is_dropped_comes_before_what_it_called(server: TrainingServer) -> None:
    harmless = ("p.lerp_(q, 0.5)", "p.mul_(0.5).add_(q, alpha=0.5)")
    _, blamed, _ = server.explain(SLOW, edited(SLOW, ("    follow()\n", ""), harmless))
    assert blamed[0].hunk.lines == ("-    follow()",)


def test_sparse_gradients_are_compared(server: TrainingServer) -> None:
    finding, blamed, _ = server.explain(SPARSE, edited(SPARSE, ("arange(8) + step", "arange(8)")))
    assert finding is not None
    assert (finding.step, finding.phase) == (1, "data")
    assert "arange(8)" in blamed[0].hunk.lines[-1]


def test_the_planted_hunk_is_first(server: TrainingServer) -> None:
    for name, (planted, harmless) in CASES.items():
        finding, blamed, _ = server.explain(NET, edited(NET, planted, harmless))
        assert finding is not None, name
        assert planted[1].strip() in blamed[0].hunk.lines[-1], (name, finding.sentence)
        assert SENTENCES.get(name, "") in finding.sentence


def test_a_closure_that_clears_once_is_named(server: TrainingServer) -> None:
    finding, blamed, _ = server.explain(CLOSURE, edited(CLOSURE, ("calls >= 0", "calls == 0")))
    assert finding is not None
    assert finding.cause == "not-cleared"
    assert "between the passes of a step" in finding.sentence
    assert "calls == 0" in blamed[0].hunk.lines[-1]


def test_a_result_that_only_leads_to_equal_ones_is_not_novel(tmp_path: Path) -> None:
    sides = []
    for side in "ab":
        told = Writer(tmp_path / side)
        x, width, area = (told.tensor([value])["h"] for value in (1.0, 2.0, 3.0))
        if side == "a":
            told.call("__getitem__", None, [2.0], i=[x])
            told.call("mul", None, [3.0], i=[x, width])
        else:
            told.call("prod", None, [3.0], i=[x])
        told.call("add", None, [4.0 if side == "a" else 5.0], i=[area])
        sides.append([*told.done().of("call")])
    assert [[e.name for e in novel_calls(a, b)] for a, b in (sides, sides[::-1])] == [["add"]] * 2


TWO_OPTIMISERS = (
    START
    + """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
    def forward(self, x):
        return self.last(self.first(x).relu())
net = Net()
slow = torch.optim.SGD(net.first.parameters(), lr=0.1, momentum=0.9)
fast = torch.optim.Adam(net.last.parameters(), lr=0.01)
for step in range(8):
    loss = net(torch.randn(16, 4)).square().mean()
    slow.zero_grad()
    fast.zero_grad()
    loss.backward()
    slow.step()
    fast.step()
"""
)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("momentum=0.9", "momentum=0.8", "momentum 0.9 → 0.8 for 2 parameters (`first.weight`"),
        ("SGD(", "RMSprop(", "the optimiser of `first.weight`, `first.bias` is RMSprop"),
    ],
)
def test_of_two_optimisers_the_one_that_differs_is_named(
    old: str, new: str, sentence: str, server: TrainingServer
) -> None:
    finding, (first, *_), _ = server.explain(
        TWO_OPTIMISERS, edited(TWO_OPTIMISERS, (old, new)), full=(0, 1, 2)
    )
    assert finding is not None
    assert sentence in finding.sentence
    assert new in "\n".join(first.hunk.lines)


ALIASES = (
    START
    + """\
class Noise(nn.Module):
    def __init__(self):
        super().__init__()
        self.raw = nn.Parameter(torch.zeros(2))

class Net(nn.Module):
    def __init__(self, noise):
        super().__init__()
        self.noise, self.first = noise, nn.Linear(4, 2)
    def forward(self, x):
        return self.first(x)

class Likelihood(nn.Module):
    def __init__(self, noise, net):
        super().__init__()
        self.noise, self.net = noise, net
    def forward(self, out, y):
        return ((out - y).square() / self.noise.raw.exp() + self.noise.raw).mean()

def groups(net):
    plain, decayed = [], []
    for name, p in net.named_parameters():
        (plain if p.dim() == 1 else decayed).append(p)
    return [{"params": decayed, "weight_decay": 0.1}, {"params": plain}]

def noisy(x):
    return torch.tanh(x + torch.randn(x.shape))

noise = Noise()
net = Net(noise)
loss_of = Likelihood(noise, net)
optimiser = torch.optim.SGD(groups(net), lr=0.1)
for step in range(6):
    x = noisy(torch.ones(8, 4))
    loss = loss_of(net(x), x[:, :2]) * 2 * 2 * 0.7
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)
LATER = (
    "return torch.tanh(x + torch.randn(x.shape))",
    "x = x + torch.randn(x.shape)\n    return x.tanh()",
)


def test_one_module_under_two_names_is_told_once(server: TrainingServer) -> None:
    finding, _, _ = server.explain(ALIASES, edited(ALIASES, ("torch.zeros(2)", "torch.ones(2)")))
    assert finding is not None
    assert finding.module == "net.noise"
    assert finding.sentence == "initialisation of `net.noise.raw` differs: mean 0 → 1"


def test_a_hunk_that_draws_after_another_draw_was_given_other_numbers(
    server: TrainingServer,
) -> None:
    made = "        self.noise, self.first = noise, nn.Linear(4, 2)\n"
    old = edited(ALIASES, (made, f"{made}        nn.init.orthogonal_(self.first.weight)\n"))
    new = edited(old, ("nn.init.orthogonal_(self", "nn.init.zeros_(self"), LATER)
    for before, after in ((old, new), (new, old)):
        _, blamed, _ = server.explain(before, after)
        assert "nn.init" in blamed[0].hunk.lines[-1]


def test_what_a_lone_call_changes_is_compared(server: TrainingServer) -> None:
    """The function is another expression on either side."""
    fault = ("(plain if p.dim() == 1 else decayed)", "(plain if p.dim() != 1 else decayed)")
    harmless = ("net = Net(noise)\nloss_of", "net = Net(noise=noise)\nloss_of")
    _, blamed, _ = server.explain(ALIASES, edited(ALIASES, fault, harmless))
    assert "!= 1" in blamed[0].hunk.lines[-1]


def test_a_call_that_is_left_out_has_not_become_the_next_one(server: TrainingServer) -> None:
    finding, _, _ = server.explain(ALIASES, edited(ALIASES, ("* 2 * 2 * 0.7", "* 2 * 0.7")))
    assert finding is not None
    assert finding.sentence == "the loss computes something else: `mul(_, 2)` is gone"


def test_a_call_that_is_written_otherwise_is_not_named(server: TrainingServer) -> None:
    """Equal values by `exp(0)` and `exp(-0)`: only the backward pass differs."""
    harmless = (".mean()\n\ndef groups", ".mean(dim=(0, 1))\n\ndef groups")
    finding, blamed, _ = server.explain(
        ALIASES, edited(ALIASES, ("self.noise.raw.exp()", "(-self.noise.raw).exp()"), harmless)
    )
    assert finding is not None
    assert "mean" not in finding.sentence
    assert "(-self" in blamed[0].hunk.lines[-1]
    last = "    losses.mean().backward()\n"
    plain = edited(NET, (last, "    torch.relu(losses).unsqueeze(0).mean(0).sum().backward()\n"))
    spelt = ("torch.relu(losses).unsqueeze(0)", "F.relu(losses).unsqueeze(dim=0)")
    changed = edited(plain, ("kept.mean() + weight", "kept.mean() - weight"), spelt)
    finding, _, _ = server.explain(plain, changed)
    assert finding is not None
    assert finding.sentence == "the loss computes something else: `sub(_, _)` where `add(_, _)` was"
    assert finding.facts == ["no longer called: add(_, _)", "newly called: sub(_, _)"]


def test_scaled_gradients_of_one_of_two_optimisers_are_named(server: TrainingServer) -> None:
    scaled = (
        "    fast.step()\n",
        "    for p in net.last.parameters(): p.grad *= 3\n    fast.step()\n",
    )
    finding, _, _ = server.explain(TWO_OPTIMISERS, edited(TWO_OPTIMISERS, scaled))
    assert finding is not None
    assert finding.sentence.startswith("the gradients of `last.weight`, `last.bias` are 3 times")


DECODED = (
    START
    + """\
body, head = nn.Linear(4, 4), nn.Linear(4, 3)
optimiser = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)

def hinge(scores, y):
    own = scores.gather(-1, y.unsqueeze(-1))
    return 5 * (1 - own + scores).relu().mean()

@torch.no_grad()
def decode(x):
    scores = head(body(x).relu())
    best = scores.max(1).indices
    return nn.Identity()(best)

x, y = torch.randn(64, 4), torch.randint(3, (64,))
for step in range(8):
    rows = slice(8 * step, 8 * step + 8)
    loss = hinge(head(body(x[rows]).relu()), y[rows])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
decode(x)
"""
)


def test_a_function_that_was_renamed_is_no_cause_at_its_call(server: TrainingServer) -> None:
    new = edited(
        DECODED,
        ("    loss = hinge(", "    loss = margin("),
        ("def hinge(", "def margin("),
        ("    own = scores.gather(-1, y.unsqueeze(-1))\n    return 5 * (1",
         "    own = scores.gather(-1, y.unsqueeze(-1))\n    return 4 * (1"),
    )  # fmt: skip
    _, blamed, _ = server.explain(DECODED, new)
    assert "4 * (1" in blamed[0].hunk.lines[-1]


def test_an_argument_that_is_named_is_no_other_argument(server: TrainingServer) -> None:
    old = edited(
        DECODED,
        ("8 * step + 8)\n", "8 * step + 8)\n    labels = y[rows]\n"),
        ("relu()), y[rows])", "relu()), labels)"),
    )
    new = edited(
        old,
        ("scores.gather(-1, y.unsqueeze(-1))", "scores.gather(dim=-1, index=y.unsqueeze(-1))"),
        ("torch.randint(3, (64,))", "torch.randint(3, (64,)).flip(0)"),
    )
    finding, blamed, _ = server.explain(old, new)
    assert finding is not None
    assert finding.sentence == "`gather` in the loss is given other values"
    assert "flip" in blamed[0].hunk.lines[-1]


def test_an_evaluation_by_parts_is_seen_to_its_end(server: TrainingServer) -> None:
    new = edited(DECODED, ("scores.max(1)", "scores.min(1)"))
    finding, _, _ = server.explain(DECODED, new)
    assert finding is not None
    assert finding.operator.startswith("min(")


def test_a_teacher_does_not_use_up_the_evaluations(server: TrainingServer) -> None:
    taught = edited(
        DECODED,
        ("optimiser = ", "teacher = nn.Linear(4, 3)\noptimiser = "),
        ("    loss = hinge(",
         "    with torch.no_grad():\n        teacher(x[rows])\n    loss = hinge("),
    )  # fmt: skip
    new = edited(taught, ("scores.max(1)", "scores.min(1)"))
    finding, _, _ = server.explain(taught, new)
    assert finding is not None
    assert finding.operator.startswith("min(")
