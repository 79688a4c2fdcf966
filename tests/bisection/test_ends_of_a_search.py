"""Searches that went on for ever, or tried every commit: a change about as large as the metric's
floor, and a stretch of commits that cannot be tested."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from celedger.base.model import Metric
from celedger.judge.bisection import Answer, Limits
from celedger.judge.bisection.bisect_report import Report
from celedger.views.bisect import BisectAnswer
from celedger.views.document import measure

COMMITS = 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, battery: ModuleType) -> Path:
    folder: Path = tmp_path_factory.mktemp("ranges")
    for shape in ("line", "merges"):
        battery.create(folder / shape, battery.commits(shape, COMMITS), checkout=False)
    return folder


def searched(
    battery: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, world: Any, number: int
) -> tuple[Report, set[str]]:
    """Return the report of a case of the battery, and the hashes of its steps."""
    monkeypatch.setattr(battery, "judge", lambda case, answer, *_: (case, answer))
    case, answer = battery.run_case(world, folder / world.shape, Limits(budget=100), 1, number)
    return answer.reports[0], {case.range.history.commits[step].sha for step in case.steps}


def text(report: Report) -> str:
    metrics = {report.metric: Metric(report.metric, unit="nats")}
    return BisectAnswer(Answer((report,)), metrics, "celedger", "git").text()


@pytest.mark.matrix
@pytest.mark.parametrize("world", ["floor-same", "floor-same-bits", "floor-same-pairs"])
def test_a_change_as_large_as_the_floor_ends_the_search(
    battery: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, world: str
) -> None:
    """It ran to any budget: no trial settles on which side of the floor the change is."""
    report, steps = searched(battery, monkeypatch, folder, battery.WORLDS[world], 13)
    assert report.trials <= 40
    floor = battery.WORLDS[world].floor
    if report.named:
        assert {report.culprits[0].sha} == steps
        assert report.low < floor < report.high or not report.floor
    else:
        assert report.status == "nothing-changed"
    if report.floor and report.named:
        assert report.floor == floor
        assert f"{measure(floor, unit='nats')}: the change is about as large" in text(report)
        assert "give [metrics.val_loss] a smaller floor" in text(report)
        assert "(by about the metric's floor)" in report.sentence()


def test_a_change_that_is_surely_within_the_floor_is_told_as_that(
    battery: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    world = battery.World(steps=(3.0,), floor=8.0)
    report, steps = searched(battery, monkeypatch, folder, world, 11)
    assert report.status == "nothing-changed" and report.floor == 8.0
    more = f"by more than its floor of {measure(8.0, unit='nats')}"
    assert f"fit val_loss got no worse {more} between" in text(report)
    assert "new values" not in text(report)  # it was not searched whose they are
    posterior = tuple(float(commit.sha in steps) for commit in report.commits)
    _, whose, effect, *_ = text(replace(report, posterior=posterior)).splitlines()
    assert whose.startswith(f"  new values  since {min(steps)[:8]}  ")
    assert effect.startswith("  effect      val_loss ")
    assert report.sentence() == "fit val_loss: nothing changed in the range by more than its floor"
    doubted = replace(report, status="undecided", probability=0.99, still=3.0)
    assert "whether fit val_loss got worse is not sure yet; about 3 trials more" in text(doubted)
    assert "that it did not; if it did, by:" in text(doubted)


@pytest.mark.parametrize("world", ["stretch-20", "stretch-20-merges"])
def test_a_stretch_that_ends_alike_is_not_tried_commit_by_commit(
    battery: ModuleType, monkeypatch: pytest.MonkeyPatch, folder: Path, world: str
) -> None:
    """It trained all twenty; in a merged history it had no answer then."""
    report, steps = searched(battery, monkeypatch, folder, battery.WORLDS[world], 11)
    assert report.status == "set"
    assert steps <= {commit.sha for commit in report.culprits}
    assert len(report.untestable) + report.untried == 20
    assert len(report.untestable) <= 14
    assert f"{report.untried} commits between them not tried" in text(report)
