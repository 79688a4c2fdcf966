"""The worker signs what a merge brings before it trains; every view tells of it. Real trainings."""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Project, make_project
from lab.classifier import FIT

from celedger.system.warm import LAUNCHERS, end_kept

pytestmark = pytest.mark.matrix

SUITE = """\
[suite]
name = "tiny"
preload = ["torch"]
seeds = [0]
[metrics.val_loss]
direction = "lower"
kind = "quality"
floor = "5%"
[[task]]
name = "fit"
command = "{python} fit.py {seed}"
[[task]]
name = "plain"
command = "{python} plain.py"
"""
PLAIN = "import pathlib, sys\nfrom celedger.child import log\nlog(epoch=0, val_loss=1.0)\n"
SLOW = FIT.replace(
    "        optimiser.step()\n",
    "        optimiser.step()\n        total = [number + 1 for number in rows[:40]]\n",
)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = make_project(tmp_path / "project", SUITE, {"none.py": ""})
    own = Path(os.environ["XDG_CONFIG_HOME"], "celedger", "config.toml")
    own.parent.mkdir(parents=True)
    own.write_text("max_reruns = 0\n")
    made.commit("one", {"fit.py": FIT, "plain.py": PLAIN})
    made.allow()
    yield made
    end_kept(made.root / ".git" / "celedger" / LAUNCHERS)


def merged(project: Project, subject: str, text: str) -> tuple[str, str]:
    """Commit, leave the note of the hook and run the worker as the hook does; the commit and what
    the worker says."""
    sha = project.commit(subject, {"fit.py": text})
    queue = project.root / ".git" / "celedger" / "queue"
    queue.mkdir(parents=True, exist_ok=True)
    (queue / "1.moved").write_text(str(project.root))
    done = project.run("worker", "--from-hook")
    assert done.status == 0, done.err
    return sha, done.err


def row(project: Project) -> Any:
    (incident,) = json.loads(project.run("status", "--json").out)["incidents"]
    return incident


def test_merges_are_signed_and_a_rise_of_work_is_told_until_it_is_back(project: Project) -> None:
    project.run("run", "HEAD")
    sha, said = merged(project, "a comment", FIT + "# done\n")
    assert f"{sha[:10]} bits: =\n" in said
    slow, said = merged(project, "slow", SLOW)
    assert f"{slow[:10]} bits: =\n" in said

    incident = row(project)
    assert (incident["kind"], incident["state"], incident["declared"]) == ("work", "open", False)
    assert incident["first_bad"] == [slow]
    names = [metric["name"] for metric in incident["metrics"]]
    assert "operators" in names
    text = project.run("status").out
    assert re.search(r"fit operators; also lines, allocated +\d+ → \d+ a step", text)
    assert "`celedger profile" in text
    assert project.run("check", "HEAD").status in (0, 125)  # 125: the noise of one seed is unknown
    assert "regressed" not in project.run("check", "HEAD").out
    logged = " ".join(project.run("log").out.split())
    assert logged.count("bits: =") == 2
    assert re.search(r"operators \d+ → \d+ a step \(\+2 more\)", logged)
    shown = project.run("show", "HEAD").out
    assert re.search(r"\n  lines 6 → \d+ a step", shown) and "\n  bits: =\n" in shown

    project.run("report", "--output", str(project.root / "page.html"))
    page = (project.root / "page.html").read_text()
    packed = re.search(r'<script[^>]*data-task="tiny/fit"[^>]*>([^<]+)<', page)
    assert packed is not None
    task = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    assert [(at, bits) for at, bits, _ in task["signed"]] == [
        (0, "first"),
        (1, "same"),
        (2, "same"),
    ]
    assert "a step" in task["signed"][2][2]
    assert "<title>" in page and "made something worse" not in page

    back, said = merged(project, "back, faster", FIT.replace("lr=0.5", "lr=0.4"))
    assert f"{back[:10]} bits: new\n" in said
    incident = row(project)
    assert (incident["state"], incident["closed_at"]) == ("recovered", back)

    other = project.commit("other", {"fit.py": FIT.replace("lr=0.5", "lr=0.3")})
    last, said = merged(project, "a comment", FIT.replace("lr=0.5", "lr=0.3") + "# so\n")
    assert f"{last[:10]} bits: new at {other[:10]}\n" in said


def test_a_declared_count_is_a_regression_and_can_be_accepted(project: Project) -> None:
    suite = project.root / "suites" / "tiny" / "suite.toml"
    declared = '[metrics.operators]\nkind = "work"\ndirection = "lower"\nfloor = "10%"\n[[task]]\n'
    suite.write_text(suite.read_text().replace("[[task]]\n", declared, 1))
    project.allow()
    assert project.run("run", "HEAD").status == 0  # no training reports it, and none lacks it
    merged(project, "slow", SLOW)
    incident = row(project)
    assert incident["declared"]
    assert incident["metrics"][0]["name"] == "operators"
    assert project.run("check", "HEAD").status == 1
    done = project.run("baseline", "accept", incident["id"], "--why", "wanted")
    assert done.status == 0, done.err
    assert row(project)["state"] == "accepted"
    assert project.run("check", "HEAD").status != 1


def test_a_training_without_torch_runs_once_to_say_so(project: Project) -> None:
    project.commit("two", {"other.py": "1\n"})
    first = project.run("same", "HEAD~1..HEAD", "plain")
    assert (first.status, "no training step of torch" in first.out) == (125, True), first.err
    (mark,) = (project.root / ".git" / "celedger" / "unsigned").iterdir()
    written = mark.stat().st_mtime_ns
    again = project.run("same", "HEAD~1..HEAD", "plain", "--json")
    (task,) = json.loads(again.out)["tasks"]
    assert task["commits"][0]["problem"] == "no training step of torch was seen"
    assert mark.stat().st_mtime_ns == written


def test_bits_that_do_not_repeat_are_not_tried_again_until_the_script_changes(
    project: Project,
) -> None:
    """Two signatures at each merge of a training that draws its weights anew told nothing."""
    seed = "torch.manual_seed("
    unseeded = FIT.replace(seed, "int(")
    assert unseeded != FIT
    first = project.commit("unseeded", {"fit.py": unseeded})
    second = project.commit("other", {"other.py": "1\n"})

    def logged(old: str, new: str) -> Any:
        done = project.run("same", f"{old}..{new}", "fit", "--json")
        return json.loads(done.out)["tasks"][0]["commits"]

    problem = "does not repeat its own bits"
    assert [each["problem"] for each in logged(first, second)] == [problem]
    (mark,) = (project.root / ".git" / "celedger" / "unsigned").iterdir()
    mark.write_text("told, not tried")
    assert [each["problem"] for each in logged(first, second)] == ["told, not tried"]
    seeded = project.commit("seeded", {"fit.py": FIT})
    last = project.commit("another", {"other.py": "2\n"})
    assert [each["bits"] for each in logged(seeded, last)] == ["equal", "equal"]
