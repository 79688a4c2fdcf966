"""A trace holds what explain needs, and changes nothing of the training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import UNCOMPILED

from celedger.lab.diagnose.trace import Trace, read
from celedger.trial import diagnostic
from celedger.trial.training_variables import child_copy

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.xdist_group("trace"),  # what they share is trained once
]

SCRIPT = (
    UNCOMPILED
    + """\
import torch
from torch import nn
from celedger.child import log
torch.manual_seed(0)
torch.set_num_threads(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 1)
        self.scale = 2.0
    def forward(self, x):
        torch.tensor([])  # as a loader's worker sends, at any moment
        y = self.drop(torch.relu(self.body(x)) * self.scale)
        return self.head(y.detach() + y)
net = Net()
optimiser = torch.optim.Adam([
    {"params": [net.body.weight], "weight_decay": 0.1},
    {"params": [net.body.bias, *net.head.parameters()]},
], lr=0.1)
schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.5)
for step in range(4):
    loss = torch.nn.functional.mse_loss(net(torch.ones(2, 3)), torch.ones(2, 1))
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    schedule.step()
net.eval()
with torch.no_grad():
    value = torch.nn.functional.mse_loss(net(torch.zeros(2, 3)), torch.ones(2, 1)).item()
    log(epoch=0, val_loss=value)
print(value, torch.rand(1).item())
"""
)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    folder = tmp_path_factory.mktemp("traced")
    home = child_copy(folder / "child", diagnostic.folder_of("trace"))
    (folder / "site").mkdir()
    site = (home / "sitecustomize.py").read_text()
    (folder / "site" / "sitecustomize.py").write_text(site)
    (folder / "fit.py").write_text(SCRIPT)
    (folder / "out").mkdir()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(home)])}
    probe = {"kind": "trace", "full": [0, 1]}
    told = {"CELEDGER_PROBE": json.dumps(probe), "CELEDGER_PROBE_OUT": str(folder / "out")}
    said = [
        subprocess.run(
            [sys.executable, "fit.py"], cwd=folder, env=env | more, capture_output=True, text=True,
            check=True,
        )
        for more in ({}, told)
    ]  # fmt: skip
    assert said[0].stdout == said[1].stdout
    assert said[1].stderr == ""
    return read(folder / "out" / "0")


def test_every_step_has_a_pulse_and_the_wanted_ones_all_their_modules(traced: Trace) -> None:
    assert [pulse.step for pulse in traced.pulses] == [0, 1, 2, 3]
    assert traced.ended
    leaves = [e.path for e in traced.of("leave") if e.step == 0]
    assert leaves == ["body", "drop", "head", ""]
    assert not [e for e in traced.of("leave") if e.step == 2]
    assert {e.path for e in traced.of("grad") if e.step == 0} == set(leaves)
    assert {e.path for e in traced.of("pgrad") if e.step == 1} == {
        "body.weight", "body.bias", "head.weight", "head.bias",
    }  # fmt: skip


def test_modules_have_their_settings_and_the_lines_that_made_them(traced: Trace) -> None:
    lines = SCRIPT.splitlines()
    assert traced.modules["drop"].settings["p"] == 0.5
    assert traced.modules[""].settings == {"scale": 2.0}
    made = traced.frames(traced.modules["drop"].created)[0]
    assert "nn.Dropout" in lines[made.line - 1]
    assert traced.modules[""].code is not None
    assert "def forward" in lines[traced.modules[""].code[1] - 1]


def test_calls_have_arguments_lines_and_whether_they_drew(traced: Trace) -> None:
    calls = [e for e in traced.of("call") if e.step == 0 and not e.evaluation]
    by_name = {e.name: e for e in calls}
    assert not {"empty", "tensor"} & by_name.keys()
    assert by_name["dropout"].drew
    assert not by_name["relu"].drew
    assert by_name["mul"].call == "mul(_, 2)"
    assert not by_name["detach"].tensors[0].gradient
    where = traced.frames(by_name["detach"].site)[0]
    assert "y.detach()" in SCRIPT.splitlines()[where.line - 1]
    linear = next(e for e in calls if e.path == "body")
    leave = next(e for e in traced.of("leave") if e.path == "body")
    assert linear.tensors[0].same(leave.tensors[0])
    assert (len(linear.tensors[0].values), len(leave.tensors[0].values)) == (0, 8)
    assert not [e for e in calls if e.name in ("cpu", "contiguous", "double")]  # our own


def test_the_optimiser_is_told_by_parameter_and_only_when_it_changes(traced: Trace) -> None:
    settings = list(traced.of("hyper"))
    assert [e.raw["v"][0]["lr"] for e in settings] == [0.1, 0.05, 0.025, 0.0125]
    assert settings[0].raw["of"][0] == ["body.weight"]
    assert settings[0].raw["v"][0]["weight_decay"] == 0.1
    state = {(e.path, e.name) for e in traced.of("state") if e.step == 0}
    assert ("head.bias", "exp_avg") in state


def test_evaluation_is_looked_at_and_kept_apart(traced: Trace) -> None:
    evaluated = [e for e in traced.of("enter") if e.evaluation]
    assert [e.path for e in evaluated] == ["", "body", "drop", "head"]
    assert not any(e.raw["tr"] for e in evaluated)
    assert [e.path for e in traced.of("enter") if e.evaluation and e.drew] == []
    (report,) = traced.of("report")
    assert set(report.raw["v"]) == {"val_loss"}


PEOPLE = """\
import copy, json, os
import torch
from torch import nn
from celedger.lab.probes import observe, trace

observe.attach(trace.TraceProbe(json.loads(os.environ["CELEDGER_PROBE"])))
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        # The embedding writes a view without gradients; the norm runs a forward pass of its own.
        self.words = nn.Embedding(5, 4, padding_idx=0)
        self.body = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
        self.size = nn.Linear(4, 2)(torch.zeros(1, 4)).numel()
        self.head = nn.Linear(4, self.size)
    def forward(self, x, scale=None, shift=None):
        return self.head(self.body(self.words(x))) * scale + shift


net = Net()
average = copy.deepcopy(net)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(2):
    net.train()
    loss = net(torch.arange(5), shift=torch.zeros(2), scale=torch.ones(1)).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
average.eval()
with torch.no_grad():
    average.head.weight.zero_()
    average(torch.arange(5), torch.ones(1), shift=0.0)
"""


def test_a_model_as_people_write_it_is_followed_from_its_start(tmp_path: Path) -> None:
    (tmp_path / "fit.py").write_text(PEOPLE)
    (tmp_path / "out").mkdir()
    env = {
        **os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TORCHDYNAMO_DISABLE": "1",
        "CELEDGER_PROBE": json.dumps({"full": [0, 1]}),
        "CELEDGER_PROBE_OUT": str(tmp_path / "out"),
    }  # fmt: skip
    subprocess.run([sys.executable, str(tmp_path / "fit.py")], env=env, check=True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["0"]  # and no failure
    people = read(tmp_path / "out" / "0")
    assert people.modules[""].short == "Net"
    first = next(people.of("enter"))
    assert [tensor.shape for tensor in first.tensors] == [(5,), (1,), (2,)]  # as in the signature
    init = {event.path: event for event in people.of("init")}
    assert init["head.weight"].raw["o"] == "kaiming_uniform_"  # torch.nn.init names its tensor
    assert init["head.weight"].step == 0
    assert init["Net:head.weight"].step == 2  # as it was when it was first used
    lines = (tmp_path / "fit.py").read_text().splitlines()
    modes = {
        lines[people.frames(event.raw["m"])[0].line - 1].strip()
        for event in people.of("enter") if event.raw["u"] is None
    }  # fmt: skip
    assert modes == {"net.train()", "average.eval()"}
    assert [event.step for event in people.of("hyper")] == [0, 1]  # in full steps, always
