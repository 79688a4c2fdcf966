"""`celedger profile` on real trainings: it names what was planted, and leaves the record alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import (
    SUITE,
    UNCOMPILED,
    Done,
    Project,
    celedger,
    make_project,
    matrix_after,
    record_of,
)
from lab.conftest import Answered

from celedger.ledger import Ledger

# The repository under test holds the model, and what is planted in it.
TRAINING = (
    UNCOMPILED
    + """\
import torch
from celedger.child import log
from model import Net, spoil

torch.manual_seed(int(sys.argv[2]))
torch.set_num_threads(1)
net = Net()
optimiser = torch.optim.SGD(net.parameters(), lr=0.01)
rows = torch.utils.data.TensorDataset(torch.randn(320, 8))
kept = []
for epoch in range(3):
    for (batch,) in torch.utils.data.DataLoader(rows, batch_size=10):
        loss = net(batch).square().mean()
        spoil(loss)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        log(epoch=epoch, val_loss=net(torch.ones(4, 8)).mean().item())
"""
)
MODEL = """\
import time
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(8, 16)
        self.head = torch.nn.Linear(16, 1)
    def forward(self, x):
        return self.head(torch.relu(self.body(x)))

steps, kept = 0, []
def spoil(loss):
    global steps
    steps += 1
"""
STALLING = MODEL + "    loss.item()\n    if steps % 5 == 0:\n        time.sleep(0.03)\n"
LEAKING = MODEL + "    kept.append(torch.ones(1000) * loss.detach())\n"
SLOWER = MODEL.replace("(x)))", "(x)) + 0 * (big @ big).mean())") + "big = torch.ones(600, 600)\n"


@pytest.fixture
def trained(tmp_path: Path) -> Project:
    project = make_project(tmp_path / "project", SUITE, {"fit.py": TRAINING})
    for name, text in (
        ("plain", MODEL), ("stalling", STALLING), ("leaking", LEAKING), ("slower", SLOWER),
    ):  # fmt: skip
        project.commit(name, {"model.py": text})
    return project


def run(project: Project, *words: str) -> Done:
    return celedger(project.root, "profile", *words, timeout=900)


@pytest.mark.matrix
def test_a_profile_names_phases_waits_and_a_stall_outside_the_record(
    trained: Project, tmp_path: Path, answered: Answered
) -> None:
    with Ledger.open(trained.root / "ledger.db", create=True):
        pass
    picture = tmp_path / "steps.png"
    before = record_of(trained.root / "ledger.db")
    done = run(trained, "HEAD~2", "fit", "--json", "-o", str(picture))
    assert done.status == 0, done.err
    found = answered("profile", done.out)
    assert found["schema"] == 1
    phases = {phase["name"]: phase["share"] for phase in found["phases"]}
    assert set(phases) == {"step", "data", "other", "forward", "backward", "tail"}
    assert sum(share for name, share in phases.items() if name != "step") == pytest.approx(1.0)
    assert found["steps"]["count"] == 96
    assert found["evaluation"]["times"] == 3

    (stall,) = found["stalls"]["found"]
    assert (stall["file"], stall["line"], stall["phase"]) == ("model.py", 18, "forward")
    assert stall["every"] == 5
    assert stall["computing"] < 0.3
    sync = next(advice for advice in found["advice"] if advice["rule"] == "synchronisation")
    assert "1 × .item() a step at model.py:16 in spoil" in sync["figure"]

    rows = {(row["name"], row["phase"], row["module"]): row for row in found["operators"]["rows"]}
    assert rows["aten::addmm", "forward", "body"]["calls"] == 1
    assert ("aten::mm", "backward", "head") in rows  # asked for by autograd, owned by the module
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert record_of(trained.root / "ledger.db") == before


@pytest.mark.matrix
def test_memory_of_two_commits_names_the_line_that_keeps(
    trained: Project, answered: Answered
) -> None:
    done = run(trained, "HEAD~3..HEAD~1", "fit", "--memory", "--json")
    assert done.status == 1, done.err
    found = answered("profile", done.out)
    (leak,) = found["new_leaks"]
    assert (leak["kind"], leak["file"], leak["line"]) == ("tensors", "model.py", 16)
    assert (leak["number"], leak["bytes"]) == (1.0, 4000.0)
    peak = found["peaks"]["step"]
    assert peak["after"] - peak["before"] == sum(p["after"] - p["before"] for p in peak["parts"])


@pytest.mark.matrix
def test_an_added_operator_is_named_between_two_commits(
    trained: Project, answered: Answered
) -> None:
    done = run(trained, "HEAD~3..HEAD", "fit", "--turns", "1", "--json")
    assert done.status in (0, 1), done.err
    found = answered("profile", done.out)
    # With two runs a side, a busy machine may leave it within noise: status and words agree.
    assert (found["verdict"] == "slower") == (done.status == 1)
    added = [row for row in found["operators"] if row["change"] == "added"]
    assert added[0]["name"] == "aten::mm"
    assert added[0]["where"] == "forward the model"
    for table in ("phases", "operators", "functions"):
        total = sum(row["difference"] for row in found[table])
        assert total == pytest.approx(found["whole"]["difference"], abs=1e-9)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    matrix_after(1, [
        (("HEAD", "nothing"), 129, "no task 'nothing'"),
        (("nowhere", "fit"), 129, "unknown revision"),
        (("HEAD", "fit", "-o", "steps.pdf"), 129, "PNG or SVG"),
        (("HEAD~1..HEAD", "fit", "-o", "steps.png"), 129, "steps of one commit"),
        (("HEAD", "fit", "--steps", "20"), 129, "give --steps 28 or more"),
        (("HEAD~1...HEAD", "fit"), 129, "three dots"),
        (("HEAD", "fit"), 125, "trains nothing that a probe can see"),
    ]),
)  # fmt: skip
def test_what_cannot_be_profiled_is_said_in_a_line(
    project: Project, words: tuple[str, ...], status: int, said: str
) -> None:
    project.history([1.0, 1.5])
    done = project.run("profile", *words)
    assert (done.status, done.out) == (status, "")
    assert said in done.err
    assert "Traceback" not in done.err
