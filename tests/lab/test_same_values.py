"""Hunks of other names, or of other modules by one name, are told from hunks of other values."""

from __future__ import annotations

import pytest
from lab.edited import START, TrainingServer, edited

pytest.importorskip("torch")

pytestmark = pytest.mark.matrix

FUNCTIONAL = (
    START
    + """\
NAMES = ("rows", "targets")
def batch(step):
    x = torch.randn(16, 4)
    targets = x.sum(1, keepdim=True)
    values = x, targets
    names = NAMES
    return dict(zip(names, values))
def grouped(weights):
    groups = [
        {"params": [weights["inner"]]},
        {"params": [weights["outer"]], "lr": 0.1},
    ]
    return groups
def predict(weights, x):
    hidden = x @ weights["inner"]
    return hidden.tanh() @ weights["outer"]
STEPS = 6
weights = {"inner": torch.randn(4, 8) / 2, "outer": torch.randn(8, 1) / 3}
for weight in weights.values():
    weight.requires_grad_()
optimiser = torch.optim.SGD(grouped(weights), lr=0.05)
for step in range(STEPS):
    data = batch(step)
    loss = F.mse_loss(predict(weights, data["rows"]), data["targets"])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)


def test_a_name_of_a_tensor_is_no_value_of_its_container(server: TrainingServer) -> None:
    """The hunk that renamed a key was blamed, and the culprit excused by what it was given."""
    renamed = FUNCTIONAL.replace('"inner"', '"first"')
    _, blamed, _ = server.explain(FUNCTIONAL, edited(renamed, ("hidden.tanh()", "hidden.sin()")))
    assert "hidden.sin()" in blamed[0].hunk.lines[-1]


def test_a_part_of_a_statement_is_blamed_before_names_in_a_text(server: TrainingServer) -> None:
    renamed = FUNCTIONAL.replace("targets", "labels")
    gone = '        {"params": [weights["outer"]], "lr": 0.1},\n'
    _, blamed, _ = server.explain(FUNCTIONAL, edited(renamed, (gone, "")))
    assert blamed[0].hunk.lines[0] == f"-{gone.rstrip()}"
    # A word that stands in one place may be a setting.
    named = edited(
        FUNCTIONAL,
        ("STEPS = 6", 'KIND = "mean"\nSTEPS = 6'),
        ('["targets"])\n', '["targets"], reduction=KIND)\n'),
    )
    _, blamed, _ = server.explain(
        named, edited(named.replace("predict", "model"), ('"mean"', '"sum"'))
    )
    assert "sum" in blamed[0].hunk.lines[-1]


TEACHER = (
    START
    + """\
class Net(nn.Module):
    def __init__(self, scale=0.1):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.register_buffer("shift", torch.ones(8) * scale)
    def hidden(self, x):
        x = self.first(x) + self.shift
        return x.relu()
    def forward(self, x):
        return self.last(self.hidden(x))
student, teacher = Net(), Net()
teacher.load_state_dict(student.state_dict())
optimiser = torch.optim.SGD(student.parameters(), lr=0.1)
student(torch.ones(1, 4)), teacher(torch.ones(1, 4))
for step in range(6):
    x = torch.randn(16, 4)
    out = student(x + 1)
    with torch.no_grad():
        goal = teacher(x)
    loss = F.mse_loss(out, goal)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)
SPELT = (
    "        x = self.first(x) + self.shift\n        return x.relu()\n",
    "        return F.relu(self.first(x) + self.shift)\n",
)


def test_a_module_in_place_of_another_is_another_value(server: TrainingServer) -> None:
    """The sentence was 'calls `Net` where it called `Net`', and a refactor of the method that both
    have was blamed: it was the first to return something else."""
    change = ("goal = teacher(x)", "goal = student(x)")
    finding, blamed, _ = server.explain(TEACHER, edited(TEACHER, change, SPELT))
    assert finding is not None
    assert finding.sentence == "the training loop calls the model itself where it called `Net`"
    assert "goal = student(x)" in blamed[0].hunk.lines[-1]


def test_what_runs_when_first_weights_are_read_made_none_of_them(server: TrainingServer) -> None:
    other = ("Net(), Net()", "Net(0.5), Net()")
    joined = ("out = student(x + 1)", "out = student(1 + x)")
    for change in (joined, ("goal = teacher(x)", "goal = teacher(x.clone())")):
        _, blamed, _ = server.explain(TEACHER, edited(TEACHER, other, change))
        assert "Net(0.5)" in blamed[0].hunk.lines[-1]
