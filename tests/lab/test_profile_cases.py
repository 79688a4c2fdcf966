"""`profile` gives the time of a step to the part of a training that took it."""

from __future__ import annotations

from typing import Any

import pytest
from lab.edited import START, TrainingServer, edited

from celedger.lab.diagnose.profile import load
from celedger.lab.diagnose.trace import records

pytest.importorskip("torch")

pytestmark = pytest.mark.matrix

TWO_OPTIMISERS = (
    START
    + """\
class Mine(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                for _ in range(30):
                    p.add_(p.grad, alpha=-0.001)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 128), nn.Linear(128, 2)
    def forward(self, x):
        return self.last(self.first(x).relu())
net = Net()
first, second = Mine(net.first.parameters()), Mine(net.last.parameters())
for step in range(60):
    x = torch.randn(16, 64)
    loss = net(x).square().mean()
    first.zero_grad()
    second.zero_grad()
    loss.backward()
    first.step()
    second.step()
    # here
"""
)


def profiled(server: TrainingServer, text: str) -> dict[str, Any]:
    (event,) = records(server.train(text, "profile") / "0", "profile")
    return load(event, {})


def test_the_steps_of_two_optimisers_are_one_tail(server: TrainingServer) -> None:
    """The second's operators were counted as the next step's, and every step as two."""
    document = profiled(server, TWO_OPTIMISERS)
    rows = {(row["name"], row["phase"]): row for row in document["operators"]["rows"]}
    assert rows["Optimizer.step#Mine.step", "tail"]["calls"] == 2
    assert rows["Optimizer.step#Mine.step", "tail"]["module"] == "(optimiser)"
    assert rows["aten::add_", "tail"]["calls"] >= 120  # of four parameters
    (tail,) = [advice for advice in document["advice"] if advice["rule"] == "optimiser tail"]
    assert "fused" not in tail["try"]  # it is the script's own
    assert tail["switches"] == []


def test_an_evaluation_that_records_a_graph_is_no_step(server: TrainingServer) -> None:
    """It was a step's forward pass, and `profile A..B` told that evaluation takes no time."""
    line = "net.eval(); step % 10 == 9 and net(torch.randn(2048, 64)).sum(); net.train()"
    document = profiled(server, edited(TWO_OPTIMISERS, ("# here", line)))
    assert document["evaluation"]["times"] == 6


def with_operators(line: str) -> str:
    """Return a line of a script that changes the module which runs torch.profiler."""
    return f"""import sys
for name, module in list(sys.modules.items()):
    if name.endswith("probes.operators"):
        {line}
net = Net()
"""


def test_a_window_of_many_operators_is_short(server: TrainingServer) -> None:
    """Ten steps of a loop over samples took 22 GB when their events were read."""
    line = "[row.mean() for row in torch.zeros(300, 4)]"
    small = with_operators("module.MOST_MEMORY = 4e6")
    document = profiled(server, edited(TWO_OPTIMISERS, ("# here", line), ("net = Net()\n", small)))
    operators = document["operators"]
    assert 1 <= 1 + operators["last_step"] - operators["first_step"] < 9
    assert max(row["calls"] for row in operators["rows"] if row["name"] == "aten::mean") == 300


def test_waits_are_counted_for_as_many_steps_where_the_profiler_is_in_use(
    server: TrainingServer,
) -> None:
    taken = "def taken(**_):\n    raise RuntimeError('in use')\n"
    taken += with_operators("module.profile = taken")
    script = edited(TWO_OPTIMISERS, ("net = Net()\n", taken), ("# here", "loss.item()"))
    document = profiled(server, script)
    assert document["operators"]["problem"] == "in use"
    assert [row["times"] for row in document["waits"]] == [pytest.approx(1, abs=0.1)]


def test_operators_are_read_without_torch_s_list_of_events(server: TrainingServer) -> None:
    """A step of 60,000 operators took 70 s, 97 % of them in making that list. And what autocast
    dispatches once more is one call."""
    dear = (
        "import torch.autograd.profiler as t\nt.profile._parse_kineto_results = None\nnet = Net()\n"
    )
    half = (
        'with torch.autocast("cpu", torch.bfloat16):\n        loss = net(x).float().square().mean()'
    )
    script = edited(
        TWO_OPTIMISERS, ("net = Net()\n", dear), ("loss = net(x).square().mean()", half)
    )
    rows = profiled(server, script)["operators"]["rows"]
    calls = {row["module"]: row["calls"] for row in rows if row["name"] == "aten::linear"}
    assert calls == {"first": 1, "last": 1}
