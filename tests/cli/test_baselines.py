"""Baselines, rolling, pinned and accepted, and the verdicts they lead to."""

from __future__ import annotations

import json
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


def verdict(project: Project, revision: str) -> dict[str, object]:
    done = project.run("check", revision, "--json")
    assert done.out, done.err
    found = {v["metric"]: v for v in json.loads(done.out)["verdicts"]}
    return {"status": done.status, **found["val_loss"]}


def test_a_regression_stays_one_until_it_is_accepted(project: Project) -> None:
    shas = project.history([1.0, 1.0, 1.3, 1.3, 1.3])
    for sha in shas[:2]:
        project.run("check", sha)
    assert verdict(project, shas[2])["verdict"] == "regressed"
    assert verdict(project, shas[3])["verdict"] == "regressed", "the baseline must not follow"
    done = project.run(
        "baseline", "accept", shas[2], "--metric", "val_loss", "--why", "the label fix is right"
    )
    assert done.status == 0, done.err
    assert verdict(project, shas[2])["verdict"] == "same"
    assert "label fix" in str(verdict(project, shas[2])["note"])
    assert verdict(project, shas[4])["verdict"] == "same"
    shown = project.run("baseline", "show")
    assert shas[2][:7] in shown.out
    assert "the label fix is right" in shown.out


def test_an_improvement_is_what_later_commits_are_held_to(project: Project) -> None:
    shas = project.history([1.3, 1.3, 1.0, 1.3])
    for sha in shas[:2]:
        project.run("check", sha)
    assert verdict(project, shas[2])["verdict"] == "improved"
    assert verdict(project, shas[3])["verdict"] == "regressed"


def test_slow_drift_is_told_by_the_pinned_baseline(tmp_path) -> None:
    project = scripted(tmp_path / "slow", SUITE.replace("3%", "6.5%"))
    levels = [1.0 + 0.02 * i for i in range(6)]
    shas = project.history(levels)
    project.run("run", shas[0])
    assert project.run("baseline", "pin", shas[0], "--why", "release").status == 0
    kinds = [verdict(project, sha)["verdict"] for sha in shas[1:]]
    assert kinds[0] == "same"
    last = verdict(project, shas[-1])
    assert last["verdict"] == "regressed"
    assert "pinned" in str(last["note"])


def test_a_baseline_needs_a_reason_and_a_metric_that_exists(project: Project) -> None:
    (sha,) = project.history([1.0])
    assert project.run("baseline", "pin", sha).status == 129
    assert project.run("baseline", "pin", sha, "--why", " ").status == 129
    wrong = project.run("baseline", "pin", sha, "--why", "x", "--metric", "val_los")
    assert wrong.status == 129
    assert "val_loss" in wrong.err


def test_speed_is_believed_once_it_was_measured_in_turns(tmp_path) -> None:
    """A machine drifts more than code does: what `run` alone sees is a suspicion."""
    suite = SUITE.replace(
        'direction = "lower"\nkind = "quality"', 'direction = "lower"\nkind = "speed"'
    )
    project = scripted(tmp_path / "project", suite)
    for sha in project.history([1.0, 1.0, 2.0]):
        seen = project.run("run", sha)
        assert seen.status == 0, seen.err
    assert "undecided" in project.run("show").out
    judged = project.run("check", "--json")
    assert judged.status == 1, judged.err
    (verdict,) = [v for v in json.loads(judged.out)["verdicts"] if v["metric"] == "val_loss"]
    assert verdict["verdict"] == "regressed"
    assert "in turns" in verdict["rule"]
    ran = project.run("log", "--json").out.count('"ulid"')
    again = project.run("check", "--json")
    assert again.status == 1
    assert project.run("log", "--json").out.count('"ulid"') == ran, "it is remembered"
