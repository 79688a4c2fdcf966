"""Preflight's checks on trainings as people write them: sick ones are found, healthy ones pass."""

from __future__ import annotations

import pytest
from lab.edited import START, TrainingServer, edited

from celedger.lab.diagnose.probe_records import records

pytest.importorskip("torch")

pytestmark = pytest.mark.matrix

WITH_DATA = (
    START
    + """\
centres = 1.5 * torch.randn(4, 8)
def draw(count):
    y = torch.randint(4, (count,))
    return centres[y] + torch.randn(count, 8), y
"""
)
SHORT = (
    WITH_DATA
    + """\
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
kept = []
for step in range(24):
    x, y = draw(32)
    loss = F.cross_entropy(net(x), y)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)
AMP = (
    WITH_DATA
    + """\
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 5))
optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", enabled=True)
x, y = draw(64)
rows = torch.randperm(64)[:32]
for step in range(30):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = net(x)
        chosen = logits[rows]
        loss = F.cross_entropy(chosen[:, 1:].float(), y[rows])
    optimiser.zero_grad()
    scaler.scale(loss / 2).backward()
    scaler.unscale_(optimiser)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimiser)
    scaler.update()
"""
)
TWO_PARTS = (
    WITH_DATA
    + """\
encoder, decoder = nn.Linear(8, 32), nn.Linear(32, 8)
optimiser = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.01)
for step in range(30):
    x, _ = draw(32)
    loss = (decoder(encoder(x).relu()) - x).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)
PPO = (
    WITH_DATA
    + """\
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor, self.critic = nn.Linear(4, 2), nn.Linear(4, 1)
    def value(self, x):
        return self.critic(x)
    def act(self, x, action=None):
        chances = torch.distributions.Categorical(logits=self.actor(x))
        action = chances.sample() if action is None else action
        return action, chances.log_prob(action), chances.entropy(), self.critic(x)
agent = Agent()
optimiser = torch.optim.Adam(agent.parameters(), lr=1e-3)
obs = torch.randn(8, 4)
for update in range(6):
    seen, actions, logps, values, rewards = [], [], [], [], []
    for t in range(16):
        seen.append(obs)
        with torch.no_grad():
            action, logp, _, value = agent.act(obs)
        obs = 0.9 * obs + 0.1 * torch.randn(8, 4) + 0.1 * action[:, None]
        actions.append(action); logps.append(logp); values.append(value[:, 0])
        rewards.append(-obs.square().sum(1))
    seen, actions, logps, values, rewards = map(torch.cat, (seen, actions, logps, values, rewards))
    for epoch in range(2):
        for rows in torch.randperm(128).split(32):
            _, logp, entropy, value = agent.act(seen[rows], actions[rows])
            ratio = (logp - logps[rows]).exp()
            gain = rewards[rows] - values[rows]
            loss = -(ratio * gain).mean() + (value[:, 0] - rewards[rows]).square().mean()
            optimiser.zero_grad()
            (loss - 0.01 * entropy.mean()).backward()
            optimiser.step()
"""
)
NORMS = (
    WITH_DATA
    + """\
net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
validation = draw(100)
for epoch in range(3):
    net.train()
    for step in range(10):
        x, y = draw(32)
        loss = F.cross_entropy(net(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    net.eval()
    with torch.no_grad():
        F.cross_entropy(net(validation[0]), validation[1])
"""
)
LORA = (
    WITH_DATA
    + """\
class Lora(nn.Module):
    def __init__(self, base, rank=2):
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / 8)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))
    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T
base = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
for p in base.parameters():
    p.requires_grad_(False)
net = nn.Sequential(Lora(base[0]), nn.Tanh(), Lora(base[2]))
optimiser = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-2)
for step in range(40):
    x, y = draw(32)
    loss = F.cross_entropy(net(x), y)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)


TWO_LOSSES = (
    WITH_DATA
    + """\
class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(8, 1), nn.Linear(8, 1)
    def forward(self, x):
        return self.one(x)[:, 0], self.other(x)[:, 0]
net = Critic()
optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
for step in range(30):
    x, y = draw(32)
    goal = y.float()
    a, b = net(x)
    loss = F.mse_loss(a, goal) + F.mse_loss(b, goal)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)
WEIGHTED = (
    WITH_DATA
    + """\
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
weight = torch.tensor([1.0, 2.0, 1.0, 0.5])
for step in range(30):
    x, y = draw(32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(net(x), y, weight=weight)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)
FORCED = (
    START
    + """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 3)
    def forward(self, past, future=None):
        return self.body(past)
rows = torch.randn(128, 8)
net = Net()
optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
for epoch in range(3):
    for part in torch.randperm(64).split(16):
        past, future = rows[part, :5], rows[part, 5:]
        loss = F.mse_loss(net(past, future), future)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        net(rows[64:, :5])
"""
)
TABLES = (
    WITH_DATA
    + """\
net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
first = torch.optim.SGD(net[0].parameters(), lr=1e-6)
second = torch.optim.Adam(net[2].parameters(), lr=0.05)
for step in range(60):
    x, y = draw(32)
    y = (torch.rand(32) < 0.5).float()
    loss = F.binary_cross_entropy_with_logits(net(x)[:, 0], y)
    first.zero_grad()
    second.zero_grad()
    loss.backward()
    first.step()
    second.step()
"""
)
RETRIEVAL = (
    START
    + """\
users, items = nn.Embedding(40, 8), nn.Embedding(30, 8)
optimiser = torch.optim.Adam([*users.parameters(), *items.parameters()], lr=0.05)
for step in range(40):
    who = torch.randint(40, (32,))
    drawn = torch.cat([(who % 30)[:, None], torch.randint(30, (32, 4))], 1)
    scores = (users(who)[:, None] * items(drawn)).sum(-1)
    loss = F.cross_entropy(scores, torch.zeros(32, dtype=torch.long))
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    if step % 10 == 9:
        with torch.no_grad():
            (users(torch.arange(40)) @ items.weight.T).argmax(1)
"""
)


def checked(server: TrainingServer, text: str) -> dict[str, tuple[str, str]]:
    """Return status and sentence of each check."""
    out = server.train(text, "preflight", steps=60)
    (event,) = records(out / "0", "preflight")
    return {row["check"]: (row["status"], row["said"]) for row in event["checks"]}


def failed(found: dict[str, tuple[str, str]]) -> dict[str, str]:
    return {check: said for check, (status, said) in found.items() if status == "fail"}


def test_a_leak_shows_in_twenty_steps(server: TrainingServer) -> None:
    assert checked(server, SHORT)["memory stays flat"][0] == "pass"
    keeping = edited(
        SHORT, ("    optimiser.step()\n", "    optimiser.step()\n    kept.append(loss)\n")
    )
    status, said = checked(server, keeping)["memory stays flat"]
    assert status == "warn", said
    assert said.startswith("+1 tensors")


def test_a_graph_that_grows_within_short_epochs_is_told(server: TrainingServer) -> None:
    total = "    total = (total if step % 12 else 0) + loss\n"
    summed = edited(SHORT, ("    optimiser.step()\n", f"    optimiser.step()\n{total}"))
    status, said = checked(server, summed)["memory stays flat"]
    assert (status, said[:18]) == ("warn", "+0 tensors a step;")


def test_one_batch_is_overfitted_through_casts_views_and_rows(server: TrainingServer) -> None:
    for text in (AMP, TWO_PARTS):
        status, said = checked(server, text)["overfits one batch"]
        assert status in ("pass", "warn"), said
        assert "loss of" in said
    status, said = checked(server, edited(AMP, ("lr=0.01", "lr=0.0")))["overfits one batch"]
    assert status in ("fail", "warn")


PARTS = (
    WITH_DATA
    + """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.head = nn.Linear(16, 4)
    def forward(self, x):
        return self.head(self.body(x))
def fit():
    net = Net()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(24):
        x, y = draw(32)
        loss = F.cross_entropy(net(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 8 == 7:
            net.eval()
            with torch.no_grad():
                net.body(draw(32)[0])
            net.train()
fit()
"""
)
METHOD = PARTS.replace("def forward", "def score").replace("net(x)", "net.score(x)")


def test_the_evaluation_of_a_part_is_one(server: TrainingServer) -> None:
    for script in (PARTS, METHOD):  # METHOD's `forward` is never called
        found = checked(server, script)
        assert found["train and eval mode"][0] == "pass", found["train and eval mode"]
        assert found["every parameter learns"][1].startswith("all 6 get gradients")
    found = checked(server, edited(PARTS, ("            net.eval()\n", "")))
    assert found["train and eval mode"][0] == "fail"
    said = found["train and validation apart"][1]
    assert said == "of the model only a part was evaluated"


def test_rollouts_are_no_evaluation(server: TrainingServer) -> None:
    assert failed(checked(server, PPO)) == {}


def test_a_value_that_is_not_finite_is_the_input_s(server: TrainingServer) -> None:
    broken = edited(
        NORMS,
        (
            "        x, y = draw(32)\n",
            "        x, y = draw(32)\n        x[3] /= float((epoch, step) != (1, 2))\n",
        ),
    )
    found = failed(checked(server, broken))
    assert list(found) == ["loss stays finite", "inputs in range"], found
    assert "step 12" in found["inputs in range"]


def test_a_norm_in_eval_mode_during_training_is_seen(server: TrainingServer) -> None:
    assert checked(server, NORMS)["train and eval mode"][0] == "pass"
    status, said = checked(
        server, edited(NORMS, ("    net.train()\n", "    net.train()\n    net[1].eval()\n"))
    )["train and eval mode"]
    assert status == "warn", said
    assert "1 runs in eval mode" in said
    status, said = checked(server, edited(NORMS, ("    net.train()\n", "    net.eval()\n")))[
        "train and eval mode"
    ]
    assert status == "warn", said  # no norm was ever in training mode: "no batch norm" was told


def test_an_adapter_on_a_frozen_base_fails_nothing(server: TrainingServer) -> None:
    assert failed(checked(server, LORA)) == {}


def test_each_of_several_losses_is_compared_with_its_target(server: TrainingServer) -> None:
    assert checked(server, TWO_LOSSES)["output fits the loss"][0] == "pass"
    wrong = edited(TWO_LOSSES, ("F.mse_loss(b, goal)", "F.mse_loss(b, goal[:, None])"))
    status, said = checked(server, wrong)["output fits the loss"]
    assert (status, said) == ("fail", "mse_loss broadcasts (32,) with (32, 1)")


def test_a_loss_under_autocast_is_judged_in_its_precision(server: TrainingServer) -> None:
    found = checked(server, WEIGHTED)
    for name in ("loss at the start", "output fits the loss", "overfits one batch"):
        assert found[name][0] == "pass", found[name]
    twice = edited(WEIGHTED, ("(net(x), y, ", "(net(x).softmax(1), y, "))
    assert "softmax comes twice" in checked(server, twice)["output fits the loss"][1]


def test_rows_are_recognised_where_training_is_given_more(server: TrainingServer) -> None:
    assert checked(server, FORCED)["train and validation apart"][0] == "pass"
    shared = edited(FORCED, ("net(rows[64:, :5])", "net(rows[:64, :5])"))
    assert checked(server, shared)["train and validation apart"][0] == "fail"


def test_labels_of_two_classes_are_counted(server: TrainingServer) -> None:
    assert checked(server, TABLES)["labels balanced"][1].startswith("2 of 2 classes")
    rare = edited(TABLES, ("torch.rand(32) < 0.5", "torch.rand(32) < 0.02"))
    found = checked(server, rare)
    assert found["labels balanced"][0] == "warn"
    assert found["labels agree with near rows"][0] == "n/a"  # each rare one was contradicted


def test_all_optimisers_of_a_step_overfit_its_batch(server: TrainingServer) -> None:
    assert checked(server, TABLES)["overfits one batch"][0] == "pass"


def test_a_loss_that_begins_below_its_floor_passes_nothing(server: TrainingServer) -> None:
    for loss in ("-net(x).square().mean()", "net(x).square().mean() * float('nan')"):
        text = edited(SHORT, ("F.cross_entropy(net(x), y)", loss))
        status, said = checked(server, text)["overfits one batch"]
        assert status == "n/a", said


def test_a_place_is_no_label_and_who_comes_again_is_no_row(server: TrainingServer) -> None:
    """Of a sampled softmax every target is 0, and a recommender is evaluated on its users."""
    found = checked(server, RETRIEVAL)
    assert found["labels balanced"] == (
        "n/a", "the training computes its targets itself, so they are not labels",
    )  # fmt: skip
    assert found["train and validation apart"][0] == "n/a"


def test_steps_in_eval_mode_and_an_idle_channel_are_told(server: TrainingServer) -> None:
    text = edited(
        SHORT,
        ("nn.Sequential(", "nn.Sequential(nn.Conv2d(2, 8, 8), nn.Flatten(), nn.BatchNorm1d(8), "),
        ("loss = F.cross_entropy(net(x), y)", "loss = F.cross_entropy(net(images(x)), y)"),
        ("kept = []", "images = lambda x: x.view(-1, 1, 1, 8).expand(-1, 2, 8, 8).clone()"),
        ("    optimiser.step()\n", """\
    optimiser.step()
    if step % 8 == 7:
        net.eval()
        with torch.no_grad():
            net(images(draw(32)[0]))
        net.train()
"""),
    )  # fmt: skip
    good = checked(server, text)
    names = "train and eval mode", "inputs in range"
    assert [good[name][0] for name in names] == ["pass", "pass"], good
    bad = checked(server, edited(
        text, ("        net.train()\n", ""),
        ("net(images(x))", "net(images(x).mul_(torch.tensor([1, 0]).view(1, 2, 1, 1)))"),
    ))  # fmt: skip
    status, said = bad[names[0]]
    assert (status, said[:46]) == ("warn", "16 of 24 steps run in eval mode, unlike those ")
    status, said = bad[names[1]]
    assert (status, said.endswith("channel 1 of the images is constant")) == ("warn", True), said


def test_what_another_optimiser_trains_is_not_missed(server: TrainingServer) -> None:
    """As in a search of architectures: the first step is that of a part of the weights."""
    text = edited(
        SHORT,
        ("optimiser = torch.optim.SGD(net.parameters(), lr=0.1)",
         """optimiser = torch.optim.SGD([net[2].bias], lr=0.1)
other = torch.optim.SGD(net[:2].parameters(), lr=0.1)"""),
        ("    optimiser.step()\n", """\
    optimiser.step()
    other.zero_grad()
    F.cross_entropy(net(x), y).backward()
    other.step()
"""),
    )  # fmt: skip
    status, said = checked(server, text)["overfits one batch"]
    assert (status, said.endswith("another optimiser trains a part of it")) == ("n/a", True), said
