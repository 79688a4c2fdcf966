"""What people declare, and how commits stand then."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from conftest import Project
from scripted import scripted

SUITE = """\
[suite]
name = "tiny"
[metrics.val_loss]
direction = "lower"
kind = "quality"
floor = "3%"
[[task]]
name = "fit"
command = "{python} {suite}/fit.py --seed {seed}"
seeds = [0, 1, 2]
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return scripted(tmp_path / "project")


def standing(project: Project, revision: str) -> dict[str, object]:
    done = project.run("check", revision, "--json")
    assert done.out, done.err
    found = {s["metric"]: s for s in json.loads(done.out)["standings"]}
    return {"status": done.status, **found["val_loss"]}


@pytest.mark.matrix
def test_a_regression_stays_one_until_it_is_accepted(project: Project) -> None:
    shas = project.history([1.0, 1.0, 1.3, 1.3, 1.3])
    for sha in shas[:2]:
        project.run("check", sha)
    assert standing(project, shas[2])["standing"] == "worse"
    assert standing(project, shas[3])["standing"] == "worse"
    done = project.run(
        "baseline", "accept", shas[2], "--metric", "val_loss", "--why", "the label fix is right"
    )
    assert done.status == 0, done.err
    assert re.search(r"(?m)^  [0-9a-f]{8} fit val_loss$", done.out)
    again = project.run("baseline", "accept", shas[1], "--why", "it changed nothing")
    assert (
        again.err == f"celedger: no open incident can begin at {shas[1][:8]}: none was accepted\n"
    )
    assert standing(project, shas[2])["standing"] == "same"
    assert "accepted" in str(standing(project, shas[2])["note"])
    assert standing(project, shas[4])["standing"] == "same"
    shown = project.run("baseline", "show")
    assert shas[2][:7] in shown.out
    assert "the label fix is right" in shown.out


def test_an_improvement_is_what_later_commits_are_held_to(project: Project) -> None:
    shas = project.history([1.3, 1.3, 1.0, 1.3])
    for sha in shas[:2]:
        project.run("check", sha)
    assert standing(project, shas[2])["standing"] == "better"
    assert standing(project, shas[3])["standing"] == "worse"


@pytest.mark.matrix
def test_the_distance_from_a_pinned_commit_is_shown_however_slow_the_drift(
    tmp_path: Path,
) -> None:
    project = scripted(tmp_path / "slow", SUITE.replace("3%", "4%"))
    shas = project.history([1.0 + 0.02 * i for i in range(6)])
    project.run("run", shas[0], "--repeat", "2")
    assert project.run("baseline", "pin", shas[0], "--why", "release").status == 0
    for sha in shas[1:]:
        project.run("check", sha)
    rows = json.loads(project.run("status", "--json").out)["pinned"]
    (pinned,) = [row for row in rows if row["metric"] == "val_loss"]
    assert pinned["pinned"] == shas[0]
    assert pinned["low"] < 0.1 < pinned["high"]
    assert f"(worse) from the pinned {shas[0][:8]}" in project.run("drift").out


def test_a_baseline_needs_a_reason_and_a_metric_that_exists(project: Project) -> None:
    (sha,) = project.history([1.0])
    assert project.run("baseline", "pin", sha).status == 129
    assert project.run("baseline", "pin", sha, "--why", " ").status == 129
    wrong = project.run("baseline", "pin", sha, "--why", "x", "--metric", "val_los")
    assert wrong.status == 129
    assert "val_loss" in wrong.err


def test_speed_is_believed_in_a_second_session(tmp_path: Path) -> None:
    """A machine drifts more than code does: what one `run` sees is a suspicion."""
    suite = SUITE.replace(
        'direction = "lower"\nkind = "quality"', 'direction = "lower"\nkind = "speed"'
    )
    project = scripted(tmp_path / "project", suite)
    for sha in project.history([1.0, 1.0, 2.0]):
        project.run("run", sha)
    project.run("check")
    assert standing(project, "HEAD")["standing"] == "worse"
    ran = project.run("log", "--json").out.count('"ulid"')
    assert project.run("check").status == 1
    assert project.run("log", "--json").out.count('"ulid"') == ran, "it is remembered"
