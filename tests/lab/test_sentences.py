"""`explain` says nothing that is false: each edit here had a sentence of another cause."""

from __future__ import annotations

import pytest
from lab.edited import START, TrainingServer, edited

from celedger.lab.diagnose.finding import FindingPhase

pytest.importorskip("torch")

pytestmark = pytest.mark.matrix

GRAPHS = (
    START
    + """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x, edges, batch):
        h = self.first(x).relu()
        h = h.index_add(0, edges[1], h[edges[0]])
        return self.last(torch.zeros(int(batch.max()) + 1, 8).index_add(0, batch, h))

def collate(graphs):
    edges, start = [], 0
    for x, e, _ in graphs:
        edges.append(e + start)
        start += len(x)
    batch = torch.arange(len(graphs)).repeat_interleave(6)
    y = torch.tensor([g[2] for g in graphs])
    return torch.cat([g[0] for g in graphs]), torch.cat(edges, 1), batch, y

data = [(torch.randn(6, 4), torch.randint(6, (2, 10)), i % 2) for i in range(64)]
net = Net()
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for at in range(0, 64, 8):
    x, edges, batch, y = collate(data[at : at + 8])
    loss = F.cross_entropy(net(x, edges, batch), y)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)
ACCUMULATED = (
    START
    + """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.classify = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.classify(self.body(x).relu())

ACCUMULATE = 4
net = Net()
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
x, y = torch.randn(256, 8), torch.randint(4, (256,))
for number, rows in enumerate(torch.arange(256).split(8)):
    loss = F.cross_entropy(net(x[rows]), y[rows])
    loss.backward()
    if (number + 1) % ACCUMULATE == 0:
        optimiser.step()
        optimiser.zero_grad()
"""
)
TASKS = (
    START
    + """\
net = nn.Linear(8, 6)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(6):
    x = torch.randn(16, 8)
    y, z = (x[:, 0] > 0).long(), x.sum(1)[:1]
    out = net(x)
    loss = F.cross_entropy(out[:, :5], y) + F.mse_loss(out[:1, 5], z)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)
AVERAGED = (
    START
    + """\
import copy
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.time, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.last(self.time(x).relu())

class EMA(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.ema_model = copy.deepcopy(net).requires_grad_(False)

    @torch.no_grad()
    def update(self, net):
        for a, b in zip(self.ema_model.parameters(), net.parameters()):
            a.lerp_(b, 0.1)

net = Net()
ema = EMA(net)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(6):
    x = torch.randn(16, 4)
    loss = F.cross_entropy(net(x), (x[:, 0] > 0).long())
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    ema.update(net)
    if step % 3 == 2:
        with torch.no_grad():
            print(ema.ema_model(x).sum())
"""
)
BY_HAND = (
    START
    + """\
class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        s = x.sigmoid()
        return g * (s + x * s * (1 - s))

@torch.library.custom_op("mine::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x

def double_back(ctx, g):
    return 2 * g

double.register_autograd(double_back)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.last(double(Swish.apply(self.first(x))))

net = Net()
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(6):
    x = torch.randn(16, 4)
    loss = F.cross_entropy(net(x), (x[:, 0] > 0).long())
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)


def test_offsets_that_are_lost_are_no_other_order_of_rows(server: TrainingServer) -> None:
    new = edited(GRAPHS, ("edges.append(e + start)", "edges.append(e)"))
    finding, blamed, _ = server.explain(GRAPHS, new)
    assert finding is not None
    assert "order" not in finding.sentence
    assert "rows" not in finding.sentence
    assert "edges" in finding.sentence + finding.tensor
    assert blamed[0].hunk.lines[1].endswith("edges.append(e)")


def test_accumulation_that_is_dropped_detaches_nothing(server: TrainingServer) -> None:
    new = edited(ACCUMULATED, ("% ACCUMULATE == 0", "% 1 == 0"))
    finding, blamed, _ = server.explain(ACCUMULATED, new)
    assert finding is not None
    assert finding.cause == "passes"
    assert "1 backward pass instead of 4" in finding.sentence
    assert "% 1" in blamed[0].hunk.lines[1]


def test_a_loss_that_is_dropped_takes_no_targets_away(server: TrainingServer) -> None:
    new = edited(TASKS, ("F.cross_entropy(out[:, :5], y) + ", ""))
    finding, blamed, _ = server.explain(TASKS, new)
    assert finding is not None
    assert "targets" not in finding.sentence
    assert "cross_entropy" in finding.sentence
    assert "mse_loss" in blamed[0].hunk.lines[1]


def test_weights_of_a_module_inside_another_root_have_its_whole_path(
    server: TrainingServer,
) -> None:
    new = edited(AVERAGED, ("lerp_(b, 0.1)", "lerp_(b, 0.2)"))
    finding, _, comparison = server.explain(AVERAGED, new)
    names = {e.path for e in comparison.b.of("init") if e.path and "time" in e.path}
    assert names == {"time.weight", "time.bias", "EMA:ema_model.time.weight",
                     "EMA:ema_model.time.bias"}  # fmt: skip
    assert finding is not None
    assert "EMA:ema_model.time.weight" in finding.sentence
    assert "0.2" in finding.sentence


@pytest.mark.parametrize(
    ("old", "new"),
    [("g * (s + x * s * (1 - s))", "g * (s + s * (1 - s))"), ("return 2 * g", "return 1 * g")],
)
def test_a_backward_pass_by_hand_is_a_place(server: TrainingServer, old: str, new: str) -> None:
    changes = [
        (old, new),
        ("step in range(6)", "at in range(6)"),
        (
            "self.first, self.last =",
            "self.last, self.first = None, None\n        self.first, self.last =",
        ),
    ]
    finding, blamed, _ = server.explain(BY_HAND, edited(BY_HAND, *changes))
    assert finding is not None
    assert "backward" in {place.what for place in finding.places}
    assert new in blamed[0].hunk.lines[1]


KEYS = (
    START
    + """\
class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(4, 4), nn.Linear(4, 4)
        self.key.load_state_dict(self.query.state_dict())

    def forward(self, x, y):
        q = self.query(x)
        with torch.no_grad():
            self.key.weight.lerp_(self.query.weight, 0.1)
            k = self.key(y)
        return (q * k).sum(1)

net = Pair()
optimiser = torch.optim.SGD(net.query.parameters(), lr=0.1)
for step in range(3):
    loss = net(torch.randn(8, 4), torch.randn(8, 4)).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)


def test_a_module_that_is_called_in_place_of_another_is_named(server: TrainingServer) -> None:
    finding, blamed, _ = server.explain(
        KEYS,
        edited(
            KEYS,
            ("self.key(y)", "self.query(y)"),
            ("nn.Linear(4, 4)\n", "nn.Linear(4, out_features=4)\n"),
        ),
    )
    assert finding is not None
    assert finding.sentence == "the model itself calls `query` where it called `key`"
    assert "self.query(y)" in blamed[0].hunk.lines[-1]


BEST = (
    START
    + """\
import copy
from celedger.child import log

def keep(net):
    return copy.deepcopy(net.state_dict())

def penalty(net):
    return net.weight.square().sum() * 0.1

net, x = nn.Linear(4, 2), torch.randn(8, 4)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    loss = net(x).square().mean() + penalty(net)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    if step == 1:
        best = keep(net)
with torch.no_grad():
    for rows in x.split(2):
        net(rows)
    net.load_state_dict(best)
    log(epoch=0, score=net(x).square().mean().item())
"""
)


def test_weights_that_were_kept_without_a_copy_are_those_of_the_end(server: TrainingServer) -> None:
    fault = "copy.deepcopy(net.state_dict())", "net.state_dict()"
    harmless = "nn.Linear(4, 2), torch", "nn.Linear(4, out_features=2), torch"
    finding, blamed, _ = server.explain(BEST, edited(BEST, fault, harmless))
    assert finding is not None
    said = "the model itself has other weights or buffers in the evaluation, though"
    assert finding.sentence == f"{said} the training agrees"
    assert "state_dict()" in blamed[0].hunk.lines[-1]


QUANTILES = (
    START
    + """\
LEVELS = torch.tensor([0.1, 0.5, 0.9])

def pinball(pred, target):
    gap = target - pred
    q = LEVELS[None]
    return torch.maximum(q * gap, (q - 1) * gap).mean()

net, x = nn.Linear(4, 3), torch.randn(40, 4)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for number, rows in enumerate(x.split(8)):
    with torch.no_grad():
        mask = 1 - torch.eye(8)[:, :1]
    loss = pinball(net(rows * mask), rows[:, :1])
    if number == 9:
        continue
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)
AS_MAX = (
    ("LEVELS[None]", "LEVELS.view(1, -1)"),
    ("torch.maximum(", "torch.max("),
)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ((("[0.1, 0.5", "[0.2, 0.5"), *AS_MAX), "`mul` in the loss is given other values"),
        ((("number == 9", "number == 2"),), "the training loop calls the model itself more often"),
        ((("mask = 1 - torch", "mask = torch"),), "`sub(1, _)` is gone"),
    ],
    ids=["constant", "skipped", "reversed"],
)
def test_what_is_only_written_otherwise_is_no_cause(
    server: TrainingServer, changes: tuple[tuple[str, str], ...], sentence: str
) -> None:
    """A constant of another value was told as `max` in place of `maximum`, a batch that is left out
    as another loss, and `1 - x` as `sub(x, 1)`."""
    finding, *_ = server.explain(QUANTILES, edited(QUANTILES, *changes))
    assert finding is not None
    assert sentence in finding.sentence


RESIDUAL = (
    START
    + """\
net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    at = torch.rand(16, 2).requires_grad_()
    slope = torch.autograd.grad(net(at).sum(), at, create_graph=True)[0]
    along, across = slope[:, :1], slope[:, 1:]
    bend = torch.autograd.grad(along.sum(), at, create_graph=True)[0][:, :1]
    loss = (across - bend).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)
SPHERE = (
    START
    + """\
centre = torch.tensor([0.0, 0.0, 3.0], requires_grad=True)
radius = torch.tensor(1.0, requires_grad=True)
optimiser = torch.optim.SGD([centre, radius], lr=0.01)
for step in range(4):
    ways = F.normalize(torch.randn(16, 3), dim=1)
    depth = (ways * centre).sum(1) ** 2 - centre.square().sum() + radius**2
    loss = (depth - 1).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)


def test_a_gradient_within_the_loss_is_no_other_backward_pass(server: TrainingServer) -> None:
    """A layer was blamed for the gradient that a physics-informed loss is made of."""
    new = edited(RESIDUAL, ("slope[:, :1], slope[:, 1:]", "slope[:, 1:], slope[:, :1]"))
    finding, blamed, _ = server.explain(RESIDUAL, new)
    assert finding is not None
    assert (finding.sentence, finding.phase) == (
        "`sum` in the loss is given other values", FindingPhase.LOSS,
    )  # fmt: skip
    assert finding.module is None
    assert blamed[0].closeness <= 1


def test_a_backward_pass_that_nobody_saw_does_not_agree(server: TrainingServer) -> None:
    """A radius of 1 is its own square: only the gradient differs, and no module has one."""
    finding, *_ = server.explain(SPHERE, edited(SPHERE, ("radius**2", "radius")))
    assert finding is not None
    assert finding.sentence == (
        "the gradient of `radius` differs, though all forward values agree; `pow(_, 2)` is gone"
    )


TEACHER = (
    START
    + """\
torch.manual_seed(0)
student, teacher = (nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 4)) for _ in "ab")
optimiser = torch.optim.SGD(student.parameters(), lr=0.1)
teacher.train()
draws = torch.Generator().manual_seed(1)
for step in range(24):
    x = torch.randn(16, 8, generator=draws)
    out = student(x)
    with torch.no_grad():
        seen = teacher(x)
    loss = F.mse_loss(out, seen)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    if step % 8 == 7:
        student.eval()
        with torch.no_grad():
            print(student(torch.arange(8.0)[None]))
        student.train()
"""
)


@pytest.mark.parametrize(
    ("old", "new", "sentence", "phase"),
    [
        ("teacher(x)", "teacher(x + 1)",
         "the input of a pass without gradients is scaled by 1 and shifted by 1",
         FindingPhase.DATA),
        ("teacher.train()", "teacher.eval()",
         "`Sequential` with 3 of its modules now runs in evaluation mode during training",
         FindingPhase.FORWARD),
    ],
    ids=["input", "mode"],
)  # fmt: skip
def test_the_pass_of_a_teacher_is_no_evaluation(
    server: TrainingServer, old: str, new: str, sentence: str, phase: FindingPhase
) -> None:
    finding, _, _ = server.explain(TEACHER, edited(TEACHER, (old, new)))
    assert finding is not None
    assert (finding.sentence, finding.phase) == (sentence, phase)


def test_an_input_in_reverse_is_scaled_by_minus_one(server: TrainingServer) -> None:
    alone = edited(
        TEACHER,
        ("    with torch.no_grad():\n        seen = teacher(x)\n", ""),
        ("F.mse_loss(out, seen)", "out.square().mean()"),
    )
    finding, _, _ = server.explain(alone, edited(alone, ("arange(8.0)", "arange(8.0).flip(0)")))
    assert finding is not None
    assert finding.sentence == "the input of an evaluation is scaled by -1 and shifted by 7"
