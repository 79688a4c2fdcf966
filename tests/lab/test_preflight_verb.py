"""`celedger preflight` through the real program, on a loop that a person wrote."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import UNCOMPILED, make_project
from lab.conftest import Answered

pytestmark = pytest.mark.matrix

SUITE = """\
[suite]
name = "tiny"
preload = ["torch"]
[metrics.val_loss]
direction = "lower"
kind = "quality"
[[task]]
name = "sound"
command = "{python} {suite}/fit.py {seed}"
[[task]]
name = "unseeded"
command = "{python} {suite}/fit.py {seed} unseeded"
[[task]]
name = "broken"
command = "{python} {suite}/broken.py {seed}"
[[task]]
name = "plain"
command = "{python} {suite}/plain.py {seed}"
"""
FIT = """\
import os
import torch
import torch.nn.functional as F
torch.manual_seed(int(sys.argv[1]) if len(sys.argv) < 3 else int.from_bytes(os.urandom(4), "big"))
rows = torch.randn(256, 8)
labels = (rows[:, 0] > 0).long() + 2 * (rows[:, 1] > 0).long()
validation = torch.randn(64, 8)
net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
for epoch in range(3):
    for at in torch.randperm(256).split(32):
        optimiser.zero_grad()
        F.cross_entropy(net(rows[at]), labels[at]).backward()
        optimiser.step()
    with torch.no_grad():
        net(validation)
"""


@pytest.mark.parametrize(
    ("task", "status"),
    [("sound", 0), ("unseeded", 1), ("plain", 125), ("broken", 125)],
)
def test_any_training_is_checked_and_run_twice(
    task: str, status: int, tmp_path: Path, answered: Answered
) -> None:
    scripts = {
        "fit.py": UNCOMPILED + FIT, "broken.py": UNCOMPILED + FIT + "1 / 0\n",
        "plain.py": "print('no torch here')\n",
    }  # fmt: skip
    project = make_project(tmp_path / "project", SUITE, scripts)
    project.commit("one")
    done = project.run("preflight", task, "--json")
    assert done.status == status, done.out + done.err
    if status == 125:
        reason = "ZeroDivisionError" if task == "broken" else "trains nothing that a probe can see"
        assert reason in done.err and not done.out
        return
    checks = {check["check"]: check for check in answered("preflight", done.out)["checks"]}
    failed = {name for name, check in checks.items() if check["status"] not in ("pass", "n/a")}
    assert failed == ({"same seed, same result"} if task == "unseeded" else set()), checks
    assert len(checks) == 18
    assert (
        not (project.root / "ledger.db").exists() or project.run("log").out.count("val_loss") == 0
    )


CHECKS = """\
def starts_below_two(seen):
    assert seen.first_loss < 2, f"{seen.first_loss:.2f} at the start"
    return f"{seen.first_loss:.2f} after no step, {tuple(seen.args[0].shape)} a batch"

def has_no_bias(seen):
    assert not [name for name, _ in seen.model.named_parameters() if "bias" in name]
"""


def test_a_team_adds_checks_and_waives_some_with_a_reason(
    tmp_path: Path, answered: Answered
) -> None:
    suite = SUITE.replace('name = "tiny"\n', 'name = "tiny"\npreflight = true\n', 1)
    own = '[preflight]\nchecks = ["checks.py:starts_below_two", "checks.py:has_no_bias"]\n'
    waiver = '[preflight.waivers]\n"checks.py:has_no_bias" = "the last layer needs one"\n'
    scripts = {"fit.py": UNCOMPILED + FIT, "checks.py": CHECKS, "broken.py": "", "plain.py": ""}
    project = make_project(tmp_path / "project", own + suite, scripts)
    project.commit("one")
    done = project.run("preflight", "sound", "--json")
    assert done.status == 1, done.out + done.err
    checks = {check["check"]: check for check in answered("preflight", done.out)["checks"]}
    assert "(32, 8) a batch" in checks["checks.py:starts_below_two"]["said"]
    assert checks["checks.py:has_no_bias"]["status"] == "fail"
    file = project.root / "suites" / "tiny" / "suite.toml"
    file.write_text(own + waiver + suite)
    project.commit("two")
    done = project.run("run", "--task", "sound")
    assert "1 waived" in done.err, done.out + done.err
    assert "waived" in project.run("show", "HEAD").out
    assert "waived" not in project.run("run", "--task", "sound", "--force").err
    file.write_text(own + waiver.replace("no_bias", "no_bia") + suite)
    done = project.run("preflight", "sound")
    assert (done.status, "which is not a check" in done.err) == (129, True)
    file.write_text(own.replace("checks.py:has", "checks.py has") + suite)
    assert "write FILE.py:FUNCTION" in project.run("preflight", "sound").err
