"""Progress while trials run: by a clock that the test turns."""

from __future__ import annotations

import pytest

from celedger.base.model import Commit, Task
from celedger.cli.progress import Progress, TimeLeft
from celedger.trial.engine import EpochReported, Need, Preparing, Started

COMMIT = Commit("c" * 40, "", (), "", 0, 0, "")
LONG, SHORT = Task("s", "long", (), {"epochs": 10}), Task("s", "short", ())


def needs(*tasks: Task) -> list[Need]:
    return [Need(COMMIT, task, 0, None) for task in tasks]


def test_a_long_trial_says_once_a_minute_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    now = 100.0
    with Progress(None, needs(LONG), clock=lambda: now) as progress:
        progress(Started(COMMIT, LONG, 0))
        for epoch in range(10):
            now += 25.0
            progress(EpochReported(COMMIT, LONG, 0, epoch))
    lines = capsys.readouterr().err.splitlines()
    start = "long cccccccccc seed 0 epoch "
    assert lines == [start + "2, 2 m 55 s left", start + "5, 1 m 40 s left", start + "8, 25 s left"]


def test_a_wait_for_imports_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(None, needs(SHORT)) as progress:
        progress(Preparing("importing torch once for all trainings"))
        progress(Preparing("importing torch once for all trainings"))
    line = "importing torch once for all trainings"
    assert capsys.readouterr().err.splitlines() == [line]


def test_a_short_trial_says_nothing_before_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(None, needs(SHORT), clock=iter(range(1000)).__next__) as progress:
        progress(Started(COMMIT, SHORT, 0))
        for epoch in range(3):
            progress(EpochReported(COMMIT, SHORT, 0, epoch))
    assert capsys.readouterr().err == ""


def test_the_time_left_is_that_of_all_trials_and_goes_by_epochs_first() -> None:
    usual = {"long": 100.0, "short": 7.0}
    left = TimeLeft([LONG, SHORT, SHORT], lambda task: usual[task.name])
    assert left.seconds(0.0) is None
    left.start(1, LONG, 0.0)
    assert left.seconds(10.0) == 90 + 14
    left.epoch(1, 20.0)  # with the start-up in it: not enough to go by
    assert left.seconds(20.0) == 80 + 14
    left.epoch(1, 25.0)
    assert left.seconds(27.0) == 8 * 5 - 2 + 14
    left.end(1, "long")
    assert left.seconds(50.0) is None
    left.start(2, SHORT, 50.0)
    assert left.seconds(51.0) == 6 + 7
    assert left.seconds(60.0) is None  # longer than ever: nobody knows


def test_several_workers_share_what_waits_and_no_trial() -> None:
    usual = {"long": 100.0, "short": 10.0}
    left = TimeLeft([LONG, SHORT, SHORT, SHORT], lambda task: usual[task.name], workers=2)
    left.start(1, LONG, 0.0)
    left.start(2, SHORT, 0.0)
    assert left.seconds(0.0) == 100  # of the long one: the other worker has ended before
    left.end(2, "short")
    left.end(3, "short")  # it re-used a result
    left.start(4, SHORT, 95.0)
    assert left.seconds(95.0) == 10


def test_what_is_not_known_is_not_said() -> None:
    left = TimeLeft([LONG, SHORT], lambda _: None)
    left.start(1, LONG, 0.0)
    left.epoch(1, 5.0)
    left.epoch(1, 6.0)
    assert left.seconds(6.0) is None  # of the other task
    alike = TimeLeft([LONG, LONG], lambda _: None)
    alike.start(1, LONG, 0.0)
    alike.epoch(1, 5.0)
    alike.epoch(1, 6.0)
    assert alike.seconds(6.0) == 8 + 14
