"""A probe sees what any training does, whoever wrote it, and changes nothing of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import UNCOMPILED

import celedger
from celedger.child import attach
from celedger.lab.diagnose.probe_records import rank_of
from celedger.lab.probes import observe
from celedger.trial.training_variables import child_copy

RECORDER = """\
import json
from celedger_probes import observe, tensors

class RecorderProbe(observe.Probe):
    def starts(self):
        self.heard = [["starts"]]
        self.step = 0
    def wants(self, step):
        return step in self.options.get("steps", range(100))
    def forward_begins(self, module, args):
        self.heard.append(["in", self.names.of(module)])
    def forward_ends(self, module, args, kwargs, output):
        shapes = [[where, list(t.shape)] for where, t in tensors.tensors(output)]
        self.heard.append(["out", self.names.of(module), shapes])
    def backward_begins(self, losses):
        self.heard.append(["loss", [round(float(loss), 4) for loss in losses]])
    def backward_ends(self):
        self.heard.append(["backward"])
    def step_begins(self, step, optimiser):
        self.heard.append(["stepping", step, [n for n, _ in self.names.parameters(optimiser)]])
    def step_ends(self, step, optimiser, *, skipped):
        self.heard.append(["stepped", step, skipped])
    def reported(self, epoch, values):
        self.heard.append(["reported", epoch, sorted(values)])
    def ends(self):
        (self.out / "heard.json").write_text(json.dumps(self.heard))

def attach(options):
    observe.attach(RecorderProbe(options))
"""
PLAIN = """\
import torch
from celedger.child import log
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
        self.head = torch.nn.Linear(4, 1)
    def forward(self, x):
        return self.head(self.body(x))
net, extra = Net(), torch.zeros(1, requires_grad=True)
optimiser = torch.optim.SGD([*net.parameters(), extra], lr=0.1)
criterion = torch.nn.MSELoss()
with torch.no_grad():
    net(torch.zeros(2, 3))  # a look at the shapes, not yet the training
for epoch in range(2):
    loss = criterion(net(torch.ones(2, 3)) + extra, torch.ones(2, 1))
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    log(epoch=epoch, loss=loss.item())
print(loss.item())
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = child_copy(tmp_path / "child", Path(observe.__file__).parent)
    (home / "celedger_probes" / "recorder.py").write_text(RECORDER)
    (tmp_path / "site").mkdir()
    source = home / "sitecustomize.py"
    (tmp_path / "site" / "sitecustomize.py").write_text(source.read_text())
    (tmp_path / "out").mkdir()
    return home


def run(home: Path, tmp_path: Path, script: str, probe: dict[str, object] | None) -> str:
    (tmp_path / "fit.py").write_text(UNCOMPILED + script)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(home)])}
    if probe is not None:
        env |= {"CELEDGER_PROBE": json.dumps(probe), "CELEDGER_PROBE_OUT": str(tmp_path / "out")}
    done = subprocess.run(
        [sys.executable, "fit.py"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def heard(tmp_path: Path, training: int = 0) -> list[list[object]]:
    path = tmp_path / "out" / str(training) / "heard.json"
    found: list[list[object]] = json.loads(path.read_text())
    return found


@pytest.mark.matrix
def test_a_plain_script_is_seen_in_full_and_trains_as_without_a_probe(
    home: Path, tmp_path: Path
) -> None:
    bare = run(home, tmp_path, PLAIN, None)
    assert run(home, tmp_path, PLAIN, {"kind": "recorder"}) == bare
    seen = heard(tmp_path)
    assert seen[:10] == [
        ["starts"],
        ["in", ""],
        ["in", "body"],
        ["in", "body.0"],
        ["out", "body.0", [["", [2, 4]]]],
        ["in", "body.1"],
        ["out", "body.1", [["", [2, 4]]]],
        ["out", "body", [["", [2, 4]]]],
        ["in", "head"],
        ["out", "head", [["", [2, 1]]]],
    ]
    assert seen[11:13] == [["in", "MSELoss:"], ["out", "MSELoss:", [["", []]]]]
    names = ["body.0.weight", "body.0.bias", "head.weight", "head.bias", "extra"]
    assert next(event for event in seen if event[0] == "stepping") == ["stepping", 0, names]
    assert [event[0] for event in seen[13:18]] == [
        "loss", "backward", "stepping", "stepped", "reported",
    ]  # fmt: skip
    assert [event for event in seen if event[0] == "stepped"] == [
        ["stepped", 0, False],
        ["stepped", 1, False],
    ]


@pytest.mark.matrix
def test_a_checkout_of_celedger_itself_has_the_probes_too(home: Path, tmp_path: Path) -> None:
    shutil.copytree(Path(celedger.__file__).parent, tmp_path / "celedger", symlinks=True)
    run(home, tmp_path, PLAIN, {"kind": "recorder"})
    assert heard(tmp_path)[0] == ["starts"]


@pytest.mark.matrix
def test_modules_are_followed_in_the_steps_that_are_wanted(home: Path, tmp_path: Path) -> None:
    run(home, tmp_path, PLAIN, {"kind": "recorder", "steps": [1]})
    seen = heard(tmp_path)
    first = seen.index(["stepped", 0, False])
    assert not [event for event in seen[:first] if event[0] in ("in", "out")]
    assert ["in", "body.0"] in seen[first:]


@pytest.mark.matrix
def test_a_step_that_the_scaler_skips_ends_too(home: Path, tmp_path: Path) -> None:
    script = """\
import torch
weight = torch.nn.Parameter(torch.ones(1))
optimiser = torch.optim.SGD([weight], lr=0.1)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
for factor in (1.0, float("inf"), 1.0):
    optimiser.zero_grad()
    scaler.scale((weight * factor).sum()).backward()
    scaler.step(optimiser)
    scaler.update()
"""
    run(home, tmp_path, script, {"kind": "recorder"})
    stepped = [event for event in heard(tmp_path) if event[0] == "stepped"]
    assert stepped == [["stepped", 0, False], ["stepped", 1, True], ["stepped", 2, False]]


@pytest.mark.matrix
def test_a_first_step_with_a_closure_begins_after_its_first_evaluation(
    home: Path, tmp_path: Path
) -> None:
    script = """\
import torch
net = torch.nn.Linear(2, 1)
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
def closure():
    optimiser.zero_grad()
    loss = net(torch.ones(3, 2)).square().mean()
    loss.backward()
    return loss
for _ in range(2):
    optimiser.step(closure)
"""
    run(home, tmp_path, script, {"kind": "recorder"})
    steps = [event[:2] for event in heard(tmp_path) if str(event[0]).startswith("step")]
    assert steps == [["stepping", 0], ["stepped", 0], ["stepping", 1], ["stepped", 1]]


@pytest.mark.matrix
def test_a_script_that_asks_whether_torch_is_there_before_it_imports_it_is_seen_too(
    home: Path, tmp_path: Path
) -> None:
    """As transformers does: of a script with a Trainer nothing was seen."""
    asks = 'from importlib.util import find_spec\nassert find_spec("torch")\n'
    run(home, tmp_path, asks + PLAIN, {"kind": "recorder"})
    assert heard(tmp_path)[0] == ["starts"]


def test_a_fault_of_the_probe_is_noted_and_the_patched_call_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELEDGER_PROBE_OUT", str(tmp_path))
    monkeypatch.setattr(observe, "_observer", observe.Observer(observe.Probe({})))
    calls: list[object] = []

    class Owner:
        def double(self, x: int) -> int:
            return 2 * x

    observe.patch(Owner, "double", before=lambda *_: 1 / 0, after=lambda *a: calls.append(a))
    assert [Owner().double(3), Owner().double(4)] == [6, 8]
    assert "ZeroDivisionError" in (tmp_path / attach.FAILED).read_text()
    assert calls == []  # a probe that failed looks no further


def test_ranks_of_one_training_keep_their_order_whichever_starts_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELEDGER_PROBE_OUT", str(tmp_path))
    monkeypatch.setenv("WORLD_SIZE", "2")
    folders = []
    for rank in ("1", "0", "0", "1"):  # two launches
        monkeypatch.setenv("RANK", rank)
        folders.append(observe._own_folder(*observe._rank()).name)
    assert folders == ["1", "0", "2", "3"]


def test_a_process_of_a_distributed_training_records_its_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("CELEDGER_PROBE_OUT", str(tmp_path)), ("RANK", "1"), ("WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    probe = observe.Probe({})
    observer = observe.Observer(probe)
    monkeypatch.setattr(observe, "_observer", observer)
    observer._start()
    observer.unhook()
    probe.flush()
    assert rank_of(tmp_path / "1") == "rank 1 of 2"


@pytest.mark.matrix
def test_workers_that_load_and_scripts_that_only_evaluate_leave_nothing(
    home: Path, tmp_path: Path
) -> None:
    script = """\
import torch
net = torch.nn.Linear(1, 1)
class Rows(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, i):
        torch.nn.Linear(1, 1)(torch.ones(1))  # a model in a worker is no training
        return torch.ones(1)
if {train}:
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
    for batch in torch.utils.data.DataLoader(Rows(), batch_size=2, num_workers=2):
        net(batch).sum().backward()
        optimiser.step()
with torch.no_grad():
    net(torch.ones(1, 1))
"""
    run(home, tmp_path, script.replace("{train}", "True"), {"kind": "recorder"})
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["0"]
    assert [event for event in heard(tmp_path) if event[0] == "stepped"][-1][1] == 1
    run(home, tmp_path, script.replace("{train}", "False"), {"kind": "recorder"})
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["0"]


def test_a_program_without_torch_is_left_alone_and_its_own_sitecustomize_runs(
    home: Path, tmp_path: Path
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("print('mine')\n")
    script = "import sys, celedger.child\nprint('torch' in sys.modules)\n"
    (tmp_path / "fit.py").write_text(script)
    paths = [str(tmp_path / "site"), str(home), str(tmp_path / "own")]
    env = {
        **os.environ, "PYTHONPATH": os.pathsep.join(paths),
        "CELEDGER_PROBE": '{"kind": "recorder"}', "CELEDGER_PROBE_OUT": str(tmp_path / "out"),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "fit.py"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert (done.stdout.split(), done.stderr) == (["mine", "False"], "")
