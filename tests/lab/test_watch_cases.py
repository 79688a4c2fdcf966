"""Watchpoints name the cause of what is sick in trainings as people write them, and no more."""

from __future__ import annotations

import math
from typing import Any

import pytest
from lab.edited import START, TrainingServer, edited

from celedger.lab.diagnose.watch import WatchpointFinding, judge
from celedger.lab.diagnose.watch_records import read

pytest.importorskip("torch")

pytestmark = pytest.mark.matrix

SUMMED = """\
    x = torch.randn(16, 8)
    loss = F.mse_loss(net(x), x.sum(1, keepdim=True))
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
DIVERGED = (
    START
    + """\
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 1))
optimiser = torch.optim.SGD(net.parameters(), lr=30.0, momentum=0.9)
for step in range(40):
"""
    + SUMMED
)
DATA = (
    START
    + """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 1)
    def forward(self, parts):
        return self.last(torch.cat(parts, 1).mul(1.0).tanh() @ self.first.weight.T)
net = Net()
optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(8):
    parts = [torch.randn(16, 4), torch.randn(16, 4)]
    if step == 5:
        parts[1][3, 2] = float("nan")
    loss = net(parts).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)
FUNCTIONAL = (
    START
    + """\
w = (torch.randn(8, 4) / 3).requires_grad_()
optimiser = torch.optim.SGD([w], lr=0.01)
rows = torch.randn(64, 8)
rows[37, 1] = float("nan")
for step in range(8):
    x = torch.stack([rows[at] for at in range(8 * step, 8 * step + 8)])
    loss = (x @ w).tanh().square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)
DIVIDED = (
    START
    + """\
net = nn.Linear(8, 4)
optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(4):
    out = net(torch.randn(16, 8))
    norm = (out * 0).square().sum().sqrt()
    loss = out.square().mean() + norm
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)
PPO = (
    START
    + """\
def layer(i, o, std=2 ** 0.5):
    made = nn.Linear(i, o)
    nn.init.orthogonal_(made.weight, std)
    return made
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = layer(4, 64)
        self.actor, self.critic = layer(64, 2, 0.01), layer(64, 1, 1.0)
        self.scale = nn.Parameter(torch.ones(3, 2))
    def forward(self, x):
        h = self.trunk(x).tanh()
        return self.actor(h) * self.scale.sum(0), self.critic(h)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 16), nn.Linear(16, 4)
        nn.init.normal_(self.down.weight, std=2e-3)
    def forward(self, x):
        return x + self.down(self.up(x).relu())
net = nn.Sequential(Block(), Block(), Agent())
optimiser = torch.optim.Adam(net.parameters(), lr=2.5e-4)
for step in range(12):
    x = torch.randn(32, 4)
    action, value = net(x)
    loss = F.cross_entropy(action, (x[:, 0] > 0).long()) + (value[:, 0] - x[:, 1]).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    if step == 5:
        head = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
        head.load_state_dict({k: v * 2e-2 for k, v in head.state_dict().items()})
        net = nn.Sequential(*net, )
        net.insert(0, head)
        optimiser = torch.optim.Adam(net.parameters(), lr=2.5e-4)
"""
)
TWO_OPTIMISERS = (
    START
    + """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
    def forward(self, x):
        return self.scale * self.last(self.first(x).relu())
net = Net()
first = torch.optim.SGD([net.scale, *net.first.parameters()], lr=0.01)
second = torch.optim.Adam(net.last.parameters(), lr=0.01)
for step in range(16):
    loss = net(torch.randn(16, 8)).square().mean()
    first.zero_grad()
    second.zero_grad()
    loss.backward()
    first.step()
    second.step()
"""
)


def watched(server: TrainingServer, text: str, **options: Any) -> list[WatchpointFinding]:
    (training,) = read(server.train(text, "watch", **options))
    return list(judge(training, {}).findings)


def test_a_divergence_is_told_before_the_operator_that_overflows(server: TrainingServer) -> None:
    first, *rest = watched(server, DIVERGED)
    assert first.watchpoint.name == "weight-change-large"
    (overflow,) = [one for one in rest if one.watchpoint.name == "overflow"]
    assert overflow.first.note.startswith("the training diverged from step 0 on")


def test_what_is_not_finite_in_the_data_is_told_as_data(server: TrainingServer) -> None:
    first, *_ = watched(server, DATA, closely=[4, 5])
    assert (first.watchpoint.name, first.first.step) == ("overflow", 5)
    assert first.first.tensor.endswith("(the data)")
    first, *_ = watched(server, FUNCTIONAL, closely=[3, 4])
    assert first.first.step == 4
    assert "the data" in first.first.note
    assert "fit.py:9" in first.first.note  # the line that stacks them


def test_a_failing_node_of_the_backward_pass_names_its_forward_line(server: TrainingServer) -> None:
    first, *_ = watched(server, DIVIDED, closely=[0])
    assert first.first.tensor.endswith("backward")
    line = next(n for n, text in enumerate(DIVIDED.splitlines(), 1) if "sqrt()" in text)
    assert first.first.note.endswith(f"made by fit.py:{line}")


def test_the_value_that_an_operator_made_is_told_with_it(server: TrainingServer) -> None:
    """`log, forward` of zero was told with the NaN of a later gradient."""
    text = DIVIDED.replace("(out * 0).square().sum().sqrt()", "(out * 0).sum().square().log()")
    first, *_ = watched(server, text, closely=[0])
    assert (first.first.tensor, first.first.figure) == ("log, forward", math.inf)


DECAYED = (
    START
    + """\
net = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))
optimiser = torch.optim.AdamW(net.parameters(), lr=5e-3, weight_decay=DECAY)
net.train(TRAINS)
for step in range(160):
"""
    + SUMMED
)


def test_weights_that_decay_outweighs_are_told(server: TrainingServer) -> None:
    (found,) = watched(server, DECAYED.replace("DECAY", "25.0").replace("TRAINS", "True"))
    assert (found.watchpoint.name, found.first.module) == ("weight-shrunk", "0")
    assert watched(server, DECAYED.replace("DECAY", "0.1").replace("TRAINS", "True")) == []


def test_a_norm_that_trains_with_its_first_statistics_is_told(server: TrainingServer) -> None:
    (found,) = watched(server, DECAYED.replace("DECAY", "0.1").replace("TRAINS", "False"))
    assert (found.watchpoint.name, found.first.module) == ("norm-not-updated", "1")


def test_heads_ends_of_branches_and_loaded_weights_are_no_false_start(
    server: TrainingServer,
) -> None:
    assert [one.watchpoint.name for one in watched(server, PPO)] == []


def test_hidden_units_of_one_constant_are_told_though_their_biases_part_them(
    server: TrainingServer,
) -> None:
    constant = DIVERGED.replace("lr=30.0, momentum=0.9", "lr=0.01")
    made = "optimiser = "
    constant = constant.replace(made, f"nn.init.constant_(net[2].weight, 0.1)\n{made}")
    (found,) = watched(server, constant)
    assert (found.watchpoint.name, found.first.module) == ("weight-symmetric", "2")
    assert watched(server, constant.replace("net[2].weight, 0.1", "net[3].weight, 0.1")) == []
    # A hidden matrix of one block feeds one of another.
    blocks = constant.replace("nn.Linear(16, 16)", "nn.Sequential(nn.Linear(16, 16))")
    blocks = blocks.replace("net[2].weight", "net[2][0].weight")
    (found,) = watched(server, blocks)
    assert (found.watchpoint.name, found.first.module) == ("weight-symmetric", "2.0")


def test_what_a_second_optimiser_trains_from_the_first_step_on_has_first_weights(
    server: TrainingServer,
) -> None:
    made = "first = torch.optim"
    large = edited(TWO_OPTIMISERS, (made, f"nn.init.normal_(net.last.weight, std=3.0)\n{made}"))
    found, *_ = watched(server, large)
    assert (found.watchpoint.name, found.first.module) == ("weight-init-large", "last")


def test_zeros_that_no_gradient_reaches_are_unchanged_and_not_alike(server: TrainingServer) -> None:
    cut = edited(
        TWO_OPTIMISERS,
        ("net = Net()\n", "net = Net()\nnn.init.zeros_(net.last.weight)\n"),
        ("self.last(self.first(x).relu())", "self.first(x).mean() + self.last(x[:, :2]).detach()"),
        ("nn.Linear(16, 4)", "nn.Linear(2, 4)"),
        ("[net.scale, *net.first.parameters()]", "net.parameters()"),
        ("second = torch.optim.Adam(net.last.parameters(), lr=0.01)\n", ""),
        ("    second.zero_grad()\n", ""),
        ("    second.step()\n", ""),
    )
    (found,) = [one for one in watched(server, cut) if one.first.module == "last"]
    assert (found.watchpoint.name, found.first.note) == (
        "weight-unchanged", "no gradient reaches it",
    )  # fmt: skip


def test_a_number_among_the_parameters_has_no_units(server: TrainingServer) -> None:
    """A temperature, as CLIP's, ended the verb with an IndexError."""
    (training,) = read(server.train(TWO_OPTIMISERS, "watch"))
    assert judge(training, {}).findings == ()
    assert training.length == 32  # 31 were told: the second optimiser's steps have no loss


HALF = (
    START
    + """\
net = nn.Linear(8, 16)
optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(4):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = net(torch.randn(32, 8))
        scores = out.float().masked_fill(torch.ones(16).bool(), -float("inf"))
        chances = scores.softmax(1) if step == MASKED else out
        small = (0.01 * out.half()).pow(4).float().mean()
    loss = chances.square().mean() + small
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)


def test_a_row_that_is_masked_whole_came_from_within_the_step(server: TrainingServer) -> None:
    """It was said to come from the data, or from a weight."""
    first, *_ = watched(server, HALF.replace("MASKED", "1"), closely=[0, 1])
    assert first.first.tensor == "_softmax, forward"
    assert "it was given minus infinity, as a mask makes it" in first.first.note


ENCODED = (
    START
    + """\
class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.MultiheadAttention(8, 2, batch_first=True)
        self.pool = nn.Linear(8, 8)
    def forward(self, x, padding):
        x = self.mix(x, x, x, key_padding_mask=padding)[0]
        return torch.tanh(GAIN * self.pool(x.sum(1) / NUMBER))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.base, self.drop, self.head = Encoder(), nn.Dropout(0.1), nn.Linear(8, 2)
    def forward(self, x, padding):
        return self.head(self.drop(self.base(x, padding)))
net = Net()
optimiser = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(8):
    padding = torch.arange(5) > torch.randint(1, 5, (16, 1))
    loss = F.cross_entropy(net(torch.randn(16, 5, 8), padding), torch.randint(2, (16,)))
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)


def test_a_mask_within_attention_is_no_broken_value(server: TrainingServer) -> None:
    """A view of the mask was named in place of the division."""
    number = "(padding.shape[1] - (step > 2) * 5)"
    text = ENCODED.replace("GAIN", "1").replace("NUMBER", number)
    (first, *_) = watched(server, text, closely=[2, 3])
    assert (first.first.step, first.first.tensor) == (3, "div, forward")


def test_a_tanh_that_a_function_computes_is_seen(server: TrainingServer) -> None:
    text = ENCODED.replace("NUMBER", "5")
    assert watched(server, text.replace("GAIN", "1")) == []
    (first, *_) = watched(server, text.replace("GAIN", "1e4"))
    assert (first.watchpoint.name, first.first.module) == ("saturated", "base")


def test_underflow_is_told_in_the_type_of_its_operator(server: TrainingServer) -> None:
    (underflow, *_) = watched(server, HALF.replace("MASKED", "-1"))
    assert underflow.watchpoint.name == "underflow"
    assert underflow.first.note.endswith("in float16")  # autocast uses bfloat16


ONE_BATCH = (
    START
    + """\
data = torch.randn(400, 6)
words = torch.randint(0, 50, (2000,))
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
x = BATCH
for step in range(30):
    loss = (net(x.float()) - x.float().sum(1, True)).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)


@pytest.mark.parametrize(
    ("batch", "stale"),
    [
        ("data[torch.randperm(400)[:32]]", True),
        ("torch.stack([words[at : at + 6] for at in range(32)])", True),
        ("data[:32]", True),
        ("data", False),
        ("data[torch.randperm(400)[:300]]", False),
        ("data[:300]", False),
        ("slice(300)", False),
        ("slice(100)", True),
        ("torch.linspace(0, 1, 60)[:, None].expand(60, 6).clone()", False),
    ],
)
def test_a_batch_drawn_once_is_a_part_of_other_data(
    server: TrainingServer, batch: str, stale: bool
) -> None:
    text = ONE_BATCH.replace("BATCH", batch)
    if batch.startswith("slice"):  # of the whole set in each step, as for L-BFGS
        text = text.replace("net(x.float()) - x.f", "net(data[x]) - data[x].f")
    names = [one.watchpoint.name for one in watched(server, text)]
    assert ("stale-batch" in names) == stale


STAGES = (
    START
    + """\
teacher = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
student = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
w = (torch.randn(8, 4) / 3).requires_grad_()
def fit(model, rate, steps, target):
    optimiser = torch.optim.SGD(model.parameters(), lr=rate)
    for step in range(steps):
        x = torch.randn(32, 8)
        loss = F.mse_loss(model(x), target(x))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
fit(teacher, 0.1, 60, lambda x: x @ w.detach())
teacher.requires_grad_(False)
fit(student, 0.1, 30, teacher)
"""
)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ((", 30,", ", 30,"), set()),
        (("student, 0.1", "student, 1e-12"), {"weight-unchanged"}),
        (("student, 0.1", "student, 90.0"), {"weight-change-large"}),
        (("SGD(model.p", "SGD(teacher.p"), {"weight-unchanged"}),
    ],
    ids=["healthy", "rate tiny", "rate large", "another's weights"],
)
def test_a_second_stage_has_first_steps(
    server: TrainingServer, change: tuple[str, str], names: set[str]
) -> None:
    fired = {one.watchpoint.name for one in watched(server, edited(STAGES, change))}
    assert fired >= names
    assert bool(fired) is bool(names)


def test_a_matrix_of_no_module_changes_too_much(server: TrainingServer) -> None:
    text = edited(FUNCTIONAL, ("lr=0.01", "lr=1000.0"), ('rows[37, 1] = float("nan")\n', ""))
    assert "weight-change-large" in {one.watchpoint.name for one in watched(server, text)}


BRANCHES = (
    START
    + """\
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(8, 8)
        self.share = nn.Parameter(torch.tensor(SHARE))
    def forward(self, x):
        return x + self.share * torch.relu(self.mix(x))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.blocks = nn.Embedding(40, 8), nn.Sequential(Block(), Block(), Block())
    def forward(self, x):
        return self.blocks(self.words(x)) @ self.words.weight.T
net = Net()
nn.init.constant_(net.blocks[1].mix.bias, BIAS)
optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
for step in range(40):
    optimiser.param_groups[0]["lr"] = RATE
    x = torch.randint(40, (32,))
    loss = F.cross_entropy(net(x), (x + 1) % 40)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)


def test_a_rectifier_that_adds_to_its_input_is_seen_dead(server: TrainingServer) -> None:
    """No module is given what `torch.relu` returns: only its weights' zero gradients were told."""
    text = edited(BRANCHES, ("SHARE", "1.0"), ("BIAS", "-30.0"), ("RATE", "0.01"))
    first, *_ = watched(server, text)
    assert (first.watchpoint.name, first.first.module) == ("dead-units", "blocks.1.mix")
    assert watched(server, edited(text, ("-30.0", "0.0"))) == []
    # Where a loss has nothing left to ask for, no layer gets a gradient, and none is dead.
    text = edited(text, ("loss = F.cross_entropy(net(x), (x + 1) % 40)", "loss = net(x).sum() * 0"))
    assert "dead-units" not in {one.watchpoint.name for one in watched(server, text)}


def test_branches_that_a_warm_up_opens_do_not_explode(server: TrainingServer) -> None:
    """Matrices behind a share of 1e-7 have no gradient until the share grows (ReZero)."""
    text = edited(
        BRANCHES, ("SHARE", "1e-7"), ("BIAS", "0.0"), ("RATE", "0.0 if step < 3 else 0.01")
    )
    assert watched(server, text) == []


CUT = (
    START
    + """\
weights = {name: (torch.randn(8, 8) / 3).requires_grad_() for name in ("first", "second", "last")}
turn, attack = torch.zeros(8, 8, requires_grad=True), torch.zeros(8, requires_grad=True)
for step in range(12):
    x = torch.randn(32, 8)
    h = torch.relu(x @ weights["first"])CUT
    h = torch.relu(h @ weights["second"])
    loss = (h @ (weights["last"] if step % 5 == 4 else weights["last"].detach())).square().mean()
    loss.backward()
    with torch.no_grad():
        for weight in weights.values():
            if weight.grad is not None:
                weight -= 0.1 * weight.grad
                weight.grad = None
"""
)


def test_a_weight_beside_others_that_no_pass_reaches_is_told(server: TrainingServer) -> None:
    """A script without an optimiser of torch's names no list of what it trains."""
    (found,) = watched(server, edited(CUT, ("CUT", ".detach()")))
    assert (found.watchpoint.name, found.first.tensor) == ("weight-unchanged", 'weights["first"]')
    assert found.first.note == "no gradient reaches it"
    (training,) = read(server.train(edited(CUT, ("CUT", "")), "watch"))
    assert judge(training, {}).findings == ()  # one of them is reached at times
    assert training.parameters['weights["last"]'].fan_in == 8  # and stays a matrix
