"""What the reading verbs and `check` claim, no more and no less, through the real program."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from conftest import PEOPLE, Project, git, make_project
from scripted import Report, scripted

# Every commit draws its own noise, of 0.75 % of the level.
NOISY = """\
import random, sys
from celedger.child import log
from model import LEVEL, NUMBER
noise = random.Random(2000 * NUMBER + int(sys.argv[2])).gauss(0, 0.01)
log(epoch=0, val_loss=LEVEL + noise)
"""
SUITE = """\
[suite]
name = "tiny"
[metrics.val_loss]
unit = "nats"
direction = "lower"
floor = "2%"
[[task]]
name = "fit"
command = "{python} {suite}/fit.py --seed {seed}"
seeds = [0, 1, 2]
"""


def wander(model: Mapping[str, Any], seed: int) -> Iterator[Report]:
    """Report a loss with noise as NOISY draws it."""
    noise = Random(2000 * (1 + model["NUMBER"]) + seed).gauss(0, 0.01)
    yield {"epoch": 0, "val_loss": model["LEVEL"] + noise}


def noisy(root: Path, suite: str = SUITE) -> Project:
    return scripted(root, suite, wander)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return scripted(tmp_path / "project")


def typed(project: Project, line: str) -> tuple[int, str]:
    """Type a command as it was printed."""
    program, *words = shlex.split(line)
    assert program == "celedger"
    done = project.run(*words)
    return done.status, done.out + done.err


def test_drift_over_gaps_names_the_range_and_its_command_finds_the_commit(
    project: Project,
) -> None:
    shas = project.history([1.0] * 8 + [1.4] * 8)
    for sha in shas[::5]:
        project.run("run", sha)
    wanted = ("drift", "--metric", "val_loss")
    done = project.run(*wanted, env={"COLUMNS": "80"})
    assert done.status == 0, done.err
    assert f"between {shas[5][:8]} and {shas[10][:8]}, 5 commits, 4 not measured" in done.out
    assert shas[7][:8] not in done.out
    (command,) = [line for line in done.out.splitlines() if "celedger bisect" in line]
    assert command.split()[2] == f"{shas[5][:12]}..{shas[10][:12]}"
    (course,) = json.loads(project.run(*wanted, "--json").out)["courses"]
    assert course["steps"][0]["among"] == shas[6:11]
    status, text = typed(project, command)
    assert status == 0, text
    assert f"first bad commit of fit val_loss: {shas[8]}" in text
    assert shas[8][:8] in project.run(*wanted, env={"COLUMNS": "200"}).out


def test_check_does_not_pass_what_it_could_not_see_and_says_what_would(tmp_path: Path) -> None:
    project = noisy(tmp_path / "project", SUITE.replace("2%", "0.8%"))
    shas = project.history([1.3, 1.3])
    first = project.run("check", shas[0])
    assert (first.status, "no baseline yet" in first.out) == (125, True)
    narrow = project.run("check", shas[1], env={"COLUMNS": "80"})
    assert narrow.status == 125, narrow.out + narrow.err
    assert max(map(len, narrow.out.splitlines())) <= 80
    assert "…" not in narrow.out
    said = " ".join(narrow.out.split())
    assert re.search(
        r"cannot tell less than 0\.\d+ nats \([\d.]+ %\); its floor of 0\.8% takes about "
        r"\d+ trials of this commit and as many of its baseline",
        said,
    ), narrow.out
    assert "1 metric of the suite too noisy to tell: undecided unless --lenient" in said
    (verdict,) = [
        v
        for v in json.loads(project.run("check", "--json").out)["verdicts"]
        if v["metric"] == "val_loss"
    ]
    assert verdict["verdict"] == "too-noisy"
    assert verdict["counts"]
    assert verdict["smallest_change"] > verdict["wanted_change"] == pytest.approx(0.0104, abs=0.001)
    assert verdict["trials_needed"] is None
    assert 3 < verdict["trials_needed_each"] < 50
    assert project.run("check", "--lenient").status == 0
    commands = [line.strip() for line in narrow.out.splitlines() if "celedger noise" in line]
    assert len(commands) == 2
    while True:  # with more trials the noise is known better, and so is what it takes
        for command in commands:
            status, text = typed(project, command)
            assert status == 0, text
        done = project.run("check", "--budget", "0")
        again = [line.strip() for line in done.out.splitlines() if "celedger noise" in line]
        if not again or again == commands:
            break
        commands = again
    assert done.status == 0, done.out
    assert re.search(r"same .* a change of 0\.\d+ nats \([\d.]+ %\) would have been", done.out)


def test_check_names_the_command_that_makes_unjudged_trials_of_the_parent_its_baseline(
    project: Project,
) -> None:
    shas = project.history([1.0, 1.0, 1.0])
    assert "never judged" not in project.run("check", shas[2]).out  # the parent has no trial
    project.run("noise", "--commit", shas[0])  # trains, and judges nothing
    first = project.run("check", shas[1])
    assert (first.status, "no baseline yet" in first.out) == (125, True)
    command = first.out.splitlines()[-1].split("`")[1]
    assert command == f"celedger run {shas[0][:12]} --task fit --suite tiny"
    trained = len(project.executor.ran)
    typed(project, command)
    assert len(project.executor.ran) == trained
    again = project.run("check", shas[1], "--lenient")
    assert (again.status, "no baseline yet" in again.out) == (0, False)


def test_telemetry_is_listed_and_never_decides(tmp_path: Path) -> None:
    project = scripted(tmp_path / "project", SUITE)
    project.history([1.0, 1.0])
    for sha in ("HEAD~1", "HEAD"):
        project.run("check", sha)
    project.commit("more", {"model.py": "LEVEL = 1.0\nPEAK_RSS = 3 * 2**27\n"})
    done = project.run("check")
    assert done.status == 0, done.out + done.err
    own, telemetry = done.out.split("\ntelemetry, which the suite does not declare")
    assert re.search(r"fit +val_loss +same", own)
    assert re.search(r"fit +peak_rss +regressed", telemetry)
    found = json.loads(project.run("check", "--json").out)["verdicts"]
    assert {v["metric"] for v in found if v["counts"]} == {"val_loss"}
    assert project.run("run").status == 0
    declared = SUITE.replace(
        "[[task]]", '[metrics.peak_rss]\nunit = "B"\ndirection = "lower"\nkind = "memory"\n'
        'floor = "3%"\nsummary = "max"\n[[task]]'
    )  # fmt: skip
    (project.root / "suites" / "tiny" / "suite.toml").write_text(declared)
    assert project.run("check").status == 1


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("options", "named"), [((), False), (("--lenient",), True)], ids=["strict", "lenient"]
)
def test_git_bisect_run_skips_what_is_too_noisy_and_blames_no_innocent(
    tmp_path: Path, options: tuple[str, ...], named: bool
) -> None:
    project = make_project(tmp_path / "project", SUITE.replace("2%", "0.1%"), {"fit.py": NOISY})
    shas = project.history([1.3] * 4 + [1.9] * 3)
    project.run("run", shas[0])
    git(project.root, "bisect", "start", shas[-1], shas[0])
    done = subprocess.run(
        ["git", "bisect", "run", sys.executable, "-m", "celedger", "check", *options],
        cwd=project.root, env={**os.environ, **PEOPLE}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    assert (f"{shas[4]} is the first bad commit" in said) is named, said
    if not named:
        assert "The first bad commit could be any of" in said
        assert set(re.findall(r"^[0-9a-f]{40}$", said, re.MULTILINE)) == set(shas[1:5])


def test_what_is_too_noisy_changes_nothing_of_what_the_worker_concludes(tmp_path: Path) -> None:
    project = noisy(tmp_path / "project", SUITE.replace("2%", "0.1%"))
    shas = project.history([1.3, 1.3])
    project.run("check", shas[0])
    note = project.root / ".git" / "celedger" / "queue" / "1.moved"
    note.parent.mkdir(exist_ok=True)
    note.write_bytes(os.fsencode(project.root))
    done = project.run("worker")
    assert done.status == 0, done.err
    (job,) = json.loads(project.run("queue", "--json").out)["jobs"]
    assert (job["commit"], job["state"], job["message"]) == (shas[1], "done", "nothing regressed")
    assert "too-noisy" in project.run("log").out
    done = project.run("check")
    assert "more trials:" not in done.out, "thousands are no advice"
    (advice,) = [line for line in done.out.splitlines() if line.startswith("  celedger")]
    assert "val_loss" in typed(project, advice)[1]
