"""Probes in trainings of unusual shape: they see what is there, and never get in the way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from celedger.child.attach import FAILED
from celedger.lab.diagnose.trace import read
from celedger.lab.diagnose.watch_records import read as read_watched
from celedger.trial import diagnostic

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """\
import copy, dataclasses, importlib, json, os
import torch
from torch import nn
from celedger.lab.probes import observe

options = json.loads(os.environ["CELEDGER_PROBE"])
kind = options["kind"]
probes = importlib.import_module("celedger.lab.probes." + kind)
observe.attach(getattr(probes, kind.capitalize() + "Probe")(options))
torch.set_num_threads(1)
torch.manual_seed(0)


@dataclasses.dataclass
class Out:
    y: object
    more: object = dataclasses.field(init=False)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.body = nn.Sequential(*list(nn.Sequential(nn.Linear(8, 8), nn.ReLU()).children())[:1])
        self.head = nn.LazyLinear(2)
        self.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))
        self.queries = nn.Parameter(torch.ones(2))
        self.register_buffer("adjacent", torch.eye(8).to_sparse())

    def forward(self, x, adjacent):
        y = self.body(self.encoder(x)).flatten(0, 1)
        y = torch.sparse.mm(self.adjacent, torch.sparse.mm(adjacent, y.T)).T
        return Out(self.head(y) * self.queries + self.phase.abs())


traced = torch.jit.trace(nn.Linear(3, 3), torch.randn(2, 3), check_trace=False)
net = Net()
x, adjacent = torch.randn(4, 5, 8), torch.eye(8).to_sparse()
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
total = None
for _ in range(3):
    loss = net(x, adjacent).y.square().mean()
    optimiser.zero_grad()
    loss.backward()
    total = loss.detach() if total is None else total.add_(loss.detach())
    optimiser.step()


def closure():
    optimiser.zero_grad()
    loss = net(x, adjacent).y.square().mean() + 100
    loss.backward()
    return loss


optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
optimiser.step(closure)
optimiser.step(closure)

line = nn.Linear(8, 1)
torch.func.vmap(line)(x)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
fused = torch.optim.Adam(line.parameters(), fused=True)
for factor in (1.0, 1e36, 1.0):
    fused.zero_grad()
    scaler.scale(line(x).mean() * factor).backward()
    scaler.step(fused)
    scaler.update()
"""


def look(folder: Path, kind: str, script: str = SCRIPT) -> Path:
    out = folder / "out"
    out.mkdir()
    (folder / "fit.py").write_text(script)
    probe = {"kind": kind, "full": list(range(9)), "steps": 200}
    env = {
        **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
        "CELEDGER_PROBE": json.dumps(probe), "CELEDGER_PROBE_OUT": str(out),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(folder / "fit.py")], env=env, capture_output=True, text=True
    )
    failed = out / FAILED
    assert not failed.exists(), failed.read_text()
    assert done.returncode == 0, done.stderr
    return out / "0"


def test_both_ends_of_a_probe_know_one_name_for_its_failure() -> None:
    assert diagnostic.FAILED == FAILED


@pytest.mark.matrix
def test_watchpoints_read_unusual_trainings(tmp_path: Path) -> None:
    (training,) = read_watched(look(tmp_path, "watch").parent)
    names = set(training.parameters)
    assert {"encoder.layers.1.linear1.weight", "body.0.weight", "head.weight"} <= names
    assert not any("#" in name for name in names)
    losses = [value for _, value in training.losses]
    assert len(losses) == 8
    assert losses[0] > losses[1] > losses[2] > 0  # not the sum that the script made of them
    assert all(100 < loss < 200 for loss in losses[3:5])
    (step,) = [step for step in training.steps if step.number == 5]
    assert step.skipped is False
    assert [number for number, _, was in training.scales if was] == [6]
    (scaled,) = [row for row in step.rows if row[:3] == ("parameter", "dense", "Linear:weight")]
    assert scaled.size < 10  # as the optimiser sees it


@pytest.mark.matrix
def test_preflight_reads_unusual_trainings(tmp_path: Path) -> None:
    (event,) = map(json.loads, (look(tmp_path, "preflight") / "events.jsonl").open())
    assert event["steps"] == 8
    assert "fail" not in {check["status"] for check in event["checks"]}, event["checks"]


@pytest.mark.matrix
def test_a_trace_reads_unusual_trainings(tmp_path: Path) -> None:
    folder = look(tmp_path, "trace")
    assert read(folder).steps == 8
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    found = {event["p"] for event in events if event["k"] == "enter"}
    assert {"", "encoder.layers.0.linear1", "body.0", "head"} <= found
    assert len([event for event in events if event["k"] == "pulse"]) == 8
    assert {event["t"] for event in events if event["k"] == "pgrad"} == set(range(8))


FUNCTIONAL = """\
import json, os
import torch
from celedger.lab.probes import observe, trace

observe.attach(trace.TraceProbe(json.loads(os.environ["CELEDGER_PROBE"])))
weight = torch.ones(3, requires_grad=True)
optimiser = torch.optim.SGD([weight], lr=0.1)
for _ in range(2):  # no module is ever called
    loss = sum((weight * 2).split([1, 2])[1]).square()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""


GRADIENTS = """\
    (weight.grad,) = torch.autograd.grad(loss, [weight])
    weight.grad.add_(0.0 * torch.autograd.grad(weight.exp().sum(), [weight], create_graph=True)[0])
"""


@pytest.mark.matrix
@pytest.mark.parametrize("backward", ["    loss.backward()\n", GRADIENTS])
def test_the_first_step_of_functional_code_has_its_calls(tmp_path: Path, backward: str) -> None:
    script = FUNCTIONAL.replace("    loss.backward()\n", backward)
    trace = read(look(tmp_path, "trace", script))
    assert [len(pulse.losses) for pulse in trace.pulses] == [1, 1]
    calls = {step: [e.call for e in trace.of("call") if e.step == step] for step in (0, 1)}
    assert "mul(_, 2)" in calls[0]
    assert calls[0] == [call for call in calls[1] if call != "grad()"]
    first = next(e for e in trace.of("call") if e.step == 0 and e.name == "mul")
    assert first.tensors[0].shape == (3,)
