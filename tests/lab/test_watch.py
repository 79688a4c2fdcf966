"""`celedger watch` through the real program."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import UNCOMPILED, Project, make_project, matrix_after, record_of
from lab.conftest import Answered

HERE = Path(__file__).parent
SUITE = """\
[suite]
name = "tiny"
[metrics.val_loss]
direction = "lower"
kind = "quality"
[[task]]
name = "half"
command = "{python} {suite}/half.py float16 1 {seed}"
[[task]]
name = "scaled"
command = "{python} {suite}/half.py float16 1e12 {seed}"
[[task]]
name = "low"
command = "{python} {suite}/half.py float16 256 {seed}"
[[task]]
name = "broken"
command = "{python} {suite}/broken.py {seed}"
[[task]]
name = "functional"
command = "{python} {suite}/functional.py {seed}"
[[task]]
name = "bare"
command = "{python} {suite}/bare.py {seed}"
[[task]]
name = "rows"
command = "{python} {suite}/rows.py {seed} {workers}"
grid = { workers = [0, 2] }
[[task]]
name = "plain"
command = "{python} {suite}/plain.py {seed}"
"""
BROKEN = (
    UNCOMPILED
    + """\
import torch
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
optimiser = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(60):
    y = net(torch.randn(8, 3))
    loss = (y - (y * 0).log() * 0 if step == 39 else y).square().mean()  # a step not looked at
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
)
BARE = """\
import torch
weight = torch.ones(3)
for step in range(8):  # without a backward pass
    weight = weight - 0.1 * 2 * weight
"""
FUNCTIONAL = """\
import torch
weight = torch.ones(3, requires_grad=True)
optimiser = torch.optim.SGD([weight], lr=0.1)
for step in range(12):  # no module is ever called
    loss = ((weight * 0).log() * 0 if step == 7 else weight).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
"""
ROWS = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(64, 2)
y = (x[:, 0] > 0).long()
x[13], y[13] = torch.tensor([4.0, 0.0]), 0  # a wrong label
net = torch.nn.Linear(2, 2)
optimiser = torch.optim.SGD(net.parameters(), lr=0.5)
for epoch in range(6):
    data = TensorDataset(x, y)
    for rows, labels in DataLoader(data, 16, shuffle=True, num_workers=int(sys.argv[2])):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(rows), labels).backward()
        optimiser.step()
"""
SCRIPTS = {
    "rows.py": UNCOMPILED + ROWS,
    "functional.py": UNCOMPILED + FUNCTIONAL,
    "bare.py": UNCOMPILED + BARE,
    "half.py": UNCOMPILED + (HERE / "half.py").read_text().replace("range(24)", "range(8)"),
    "broken.py": BROKEN,
    "plain.py": "print('no torch here')\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = make_project(tmp_path / "project", SUITE, SCRIPTS)
    project.commit("one")
    return project


@pytest.mark.matrix
def test_a_log_loss_that_underflows_is_named(project: Project, answered: Answered) -> None:
    wrong = project.run("watch", "half", "--set", "nothing=1")
    assert (wrong.status, wrong.out) == (129, "")
    before = record_of(project.root / "ledger.db")
    done = project.run("watch", "half", "--json")
    assert done.status == 1, done.err
    (training,) = answered("watch", done.out)["trainings"]
    underflow = next(f for f in training["findings"] if f["watchpoint"] == "underflow")
    assert underflow["tensor"] == "log(1 + x), forward"
    assert underflow["module"] is None  # the loss function's
    assert training["half_precision"] == "float16"
    assert record_of(project.root / "ledger.db") == before


@pytest.mark.matrix
def test_the_loss_scale_is_followed_with_the_steps_that_it_skips(project: Project) -> None:
    """A scale of 1e12 makes the half-precision gradients infinite until it was halved often."""
    done = project.run("watch", "scaled", "--json")
    (training,) = json.loads(done.out)["trainings"]
    series = training["loss_scale"]
    scales = [row["scale"] for row in series]
    skipped = [row["step"] for row in series if row["skipped"]]
    assert [row["step"] for row in series] == list(range(64))
    assert scales[0] == pytest.approx(1e12)
    assert skipped == list(range(len(skipped)))
    assert 5 < len(skipped) < 30
    halved = [1e12 * 0.5**at for at in range(len(skipped) + 1)]
    assert scales[: len(halved)] == pytest.approx(halved)
    assert set(scales[len(skipped) :]) == {scales[len(skipped)]}
    text = project.run("watch", "scaled", "-o", str(project.root / "scale.svg")).out
    assert f"; {len(skipped)} steps skipped: 0, 1, 2, " in " ".join(text.split())
    assert "loss scale" in (project.root / "scale.svg").read_text()


@pytest.mark.matrix
def test_gradients_below_the_smallest_normal_number_are_told_by_layer_and_step(
    project: Project,
) -> None:
    done = project.run("watch", "low", "--json", "-o", str(project.root / "low.svg"))
    (training,) = json.loads(done.out)["trainings"]
    shares = training["subnormal_gradients"]["2.weight"]
    assert set(shares) <= {str(step) for step in training["looked_at"]}
    assert max(shares.values()) > 0.5
    assert "share of gradients below the smallest" in (project.root / "low.svg").read_text()
    (high,) = json.loads(project.run("watch", "scaled", "--json").out)["trainings"]
    least = high["subnormal_gradients"].get("2.weight", {"0": 0.0})
    assert max(least.values()) < 0.2


@pytest.mark.matrix
def test_any_tensor_is_printed_by_slice_and_written(project: Project, tmp_path: Path) -> None:
    words = ("watch", "rows[workers=0]", "--tensor")
    folder = tmp_path / "dumped"
    done = project.run(*words, "weight[:, 0]", "--dump", str(folder), "--json")
    values = json.loads(done.out)["trainings"][0]["tensor"]
    assert [one["part"] for one in values[:2]] == ["weight", "gradient"]
    assert (values[0]["shape"], values[0]["of"], values[0]["dtype"]) == ([2], [2, 2], "float32")
    for one in values:
        kept = np.load(folder / f"{one['step']:06d}-{one['part']}.npy")
        assert kept.dtype == np.float32
        assert kept.tolist() == pytest.approx(one["values"])
    assert len(list(folder.iterdir())) == len(values)
    text = project.run("watch", "half", "--tensor", "1[0, :3]").out
    assert "step 0 output (float16, 3)\n  " in text
    assert "step 0 gradient (float16, 3)\n  " in text
    wrong = project.run(*words, "nothing")
    assert (wrong.status, wrong.out) == (129, "")
    assert "no tensor 'nothing' was seen (parameters are weight, bias)" in wrong.err
    alone = project.run("watch", "half", "--dump", "there")
    assert "name it with --tensor" in alone.err


@pytest.mark.matrix
def test_an_overflow_between_two_looks_is_followed_to_its_operator(project: Project) -> None:
    done = project.run("watch", "broken", "-o", str(project.root / "seen.png"))
    assert done.status == 1, done.err
    assert "overflow  step 39, outside the modules: log, forward" in done.out
    assert (project.root / "seen.png").stat().st_size > 10_000


@pytest.mark.matrix
def test_an_overflow_in_functional_code_is_followed_to_its_operator(project: Project) -> None:
    done = project.run("watch", "functional")
    assert done.status == 1, done.err
    assert "overflow  step 7, outside the modules: log, forward" in done.out


@pytest.mark.parametrize(
    ("verb", "task", "reason"),
    matrix_after(1, [
        ("watch", "plain", "no process of it took an optimiser's step"),
        ("watch", "bare", "no process of it took an optimiser's step"),
    ]),
)  # fmt: skip
def test_what_cannot_be_judged_says_why_and_keeps_its_log(
    project: Project, verb: str, task: str, reason: str
) -> None:
    done = project.run(verb, task)
    assert (done.status, done.out) == (125, "")
    assert reason in done.err and "Traceback" not in done.err
    folder = Path(done.err.partition("are kept in ")[2].splitlines()[0])
    assert list(folder.rglob("log.txt"))
    shutil.rmtree(folder)


@pytest.mark.matrix
@pytest.mark.parametrize("workers", [0, 2])
def test_the_rows_with_the_largest_losses_are_named(
    project: Project, answered: Answered, workers: int
) -> None:
    done = project.run("watch", f"rows[workers={workers}]", "--samples", "--json")
    assert done.out, done.err
    (training,) = answered("watch", done.out)["trainings"]
    worst = training["samples"]
    assert worst[0]["index"] == 13
    assert worst[0]["loss"] > 2 * worst[1]["loss"]
    assert {row["step"] for row in worst} <= {20, 21, 22, 23}
    if not workers:
        text = project.run("watch", "rows[workers=0]", "--samples").out
        assert "rows with the largest loss: 13 (" in text
