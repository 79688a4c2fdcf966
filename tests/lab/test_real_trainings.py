"""Trainings as people write them go on under every probe as without it, and are seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import FEW_SEARCHES, UNCOMPILED

from celedger.lab.diagnose.probe_records import records
from celedger.lab.diagnose.watch_records import read as read_watched
from celedger.trial import diagnostic
from celedger.trial.training_variables import child_copy

START = """\
import warnings
import torch
from torch import nn
torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
x, y = torch.randn(64, 8), torch.randint(2, (64,))
"""
LOOP = """\
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(12):
    loss = nn.functional.cross_entropy(model(x), y)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
with torch.no_grad():
    print(nn.functional.cross_entropy(model(x), y).item())
"""
LIGHTNING = """\
import lightning
class Fit(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net
    def training_step(self, batch, number):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)  # makes a metric, a module whose hash needs what it has not yet
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
rows = torch.utils.data.TensorDataset(x, y)
trainer = lightning.Trainer(
    max_epochs=2, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, accelerator="cpu",
)
trainer.fit(Fit(), torch.utils.data.DataLoader(rows, batch_size=16))
print(nn.functional.cross_entropy(net(x), y).item())
"""
ACCUMULATED = """\
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(24):
    optimiser.zero_grad()
    for rows in torch.arange(64).split(16):
        nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
    optimiser.step()
print(nn.functional.cross_entropy(net(x), y).item())
"""
CLOSURE = """\
optimiser = torch.optim.SGD(net.parameters(), lr=5.0)
def closure():
    optimiser.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    return loss
for step in range(3):
    optimiser.step(closure)
print(nn.functional.cross_entropy(net(x), y).item())
"""
SCRIPTS = {
    "closure": UNCOMPILED + START + CLOSURE,
    "accumulated": UNCOMPILED + START + ACCUMULATED,
    "strict": UNCOMPILED + START + 'warnings.simplefilter("error")\nmodel = net\n' + LOOP,
    "compiled": FEW_SEARCHES + START + 'model = torch.compile(net, backend="eager")\n' + LOOP,
    "lightning": FEW_SEARCHES + START + LIGHTNING,
}


def trained(folder: Path, name: str, kind: str = "") -> str:
    """Train in a new folder, under a probe of this kind, and return what was printed."""
    for place in (folder, folder / "site", folder / "out"):
        place.mkdir()
    home = child_copy(folder / "child", diagnostic.folder_of(kind or "trace"))
    (folder / "site" / "sitecustomize.py").write_text((home / "sitecustomize.py").read_text())
    (folder / "fit.py").write_text(SCRIPTS[name])
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / "site"), str(home)])}
    if kind:
        env["CELEDGER_PROBE"] = json.dumps({"kind": kind, "full": [0, 1], "steps": 200})
        env["CELEDGER_PROBE_OUT"] = str(folder / "out")
    done = subprocess.run(
        [sys.executable, "fit.py"], cwd=folder, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("strict", ["trace", "preflight"]), ("compiled", ["profile"]),
        ("lightning", ["trace"]), ("accumulated", ["profile", "preflight"]),
        ("closure", ["watch"]),
    ],
)  # fmt: skip
def test_a_training_goes_on_as_without_a_probe(name: str, kinds: list[str], tmp_path: Path) -> None:
    if name == "lightning":
        pytest.importorskip("lightning")
    bare = trained(tmp_path / "bare", name)
    for kind in kinds:
        assert trained(tmp_path / kind, name, kind) == bare
        out = tmp_path / kind / "out"
        assert [path.name for path in out.iterdir()] == ["0"]  # and no failure
        if kind == "watch":  # the first step, whose weights change, is looked at
            (training,) = read_watched(out)
            changed = {change.name for change in training.steps[0].changes}
            assert (training.steps[0].number, len(changed)) == (0, 4)
        elif (name, kind) == ("accumulated", "preflight"):
            (event,) = records(out / "0", "preflight")
            assert "fail" not in {check["status"] for check in event["checks"]}, event["checks"]
        elif name == "accumulated":
            (event,) = records(out / "0", "profile")
            phases = {row["phase"] for row in event["window"]["rows"] if row["module"] == "0"}
            assert phases == {"forward", "backward"}  # as the clock has it: none in the tail
