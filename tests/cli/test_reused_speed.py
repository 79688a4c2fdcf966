"""Results that are re-used have no speed and no memory of their own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from conftest import Project, git, make_project

pytestmark = pytest.mark.matrix

SUITE = """\
[suite]
name = "tiny"
[metrics.val_loss]
direction = "lower"
kind = "quality"
floor = "1%"
[metrics.step_ms]
direction = "lower"
kind = "speed"
floor = "3%"
[metrics.peak_mb]
direction = "lower"
kind = "memory"
floor = "2%"
[[task]]
name = "fit"
command = "{python} {suite}/fit.py {seed}"
seeds = [0, 1, 2]
"""
FIT = """\
import sys
from celedger.child import log
from model import MS
seed = int(sys.argv[1])
for epoch in range(2):
    log(epoch=epoch, val_loss=1 + seed / 5, step_ms=MS + seed / 97, peak_mb=300 + seed / 9)
"""


def standings(project: Project) -> tuple[int, dict[str, str]]:
    done = project.run("check", "HEAD", "--json")
    declared = [each for each in json.loads(done.out)["standings"] if each["declared"]]
    return done.status, {each["metric"]: each["standing"] for each in declared}


def test_a_change_that_nothing_reads_is_the_same_and_a_revert_is_measured(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project", SUITE, {"fit.py": FIT})
    project.commit("readme", {"README.md": ""})
    for number in range(3):
        project.commit(f"number {number}", {"model.py": f"MS = 10.0\nN = {number}\n"})
        project.run("check", "HEAD")
    project.commit("docs", {"README.md": "one\n"})
    assert "re-used" in project.run("run", "HEAD").err
    same = dict.fromkeys(("val_loss", "step_ms", "peak_mb"), "same")
    assert standings(project) == (0, same)

    slow = project.commit("slow", {"model.py": "MS = 12.0\nN = 2\n"})
    assert standings(project) == (1, same | {"step_ms": "worse"})
    (incident,) = json.loads(project.run("status", "--json").out)["incidents"]
    assert incident["first_bad"] == [slow]  # and not the docs, which nothing reads

    git(project.root, "revert", "--no-edit", slow)
    reverted = git(project.root, "rev-parse", "HEAD")
    checked = project.run("check", "HEAD")
    assert "to time the re-used results, fit at" in checked.err
    assert checked.status != 1, checked.out
    assert re.search(r"re-used +val_loss 1.20 ± 0.20", project.run("log", "-n", "1").out)
    assert re.search(r"val_loss +same", checked.out), checked.out  # a new seed alone hid its bits
    (incident,) = json.loads(project.run("status", "--json").out)["incidents"]
    assert (incident["state"], incident["closed_at"]) == ("recovered", reverted)


def test_a_bisect_from_a_commit_whose_first_results_were_re_used(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project", SUITE, {"fit.py": FIT})
    project.commit("first", {"README.md": "", "model.py": "MS = 10.0\n"})
    project.run("run", "HEAD")
    good = project.commit("docs", {"README.md": "one\n"})
    assert "re-used" in project.run("run", good).err  # three results without a speed
    other = {"TZ": "Asia/Tokyo"}  # another terminal, where nothing proves what was re-used
    project.run("run", good, "--force", env=other)
    slow = project.commit("slow", {"model.py": "MS = 12.0\n"})
    project.run("run", slow, env=other)
    done = project.run("bisect", f"{good}..{slow}", "--metric", "step_ms", env=other)
    assert f"first bad commit of fit step_ms: {slow}" in done.out, done.err
