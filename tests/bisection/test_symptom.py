"""Which failures are alike, and what an end must be."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from celedger.base.model import (
    Command,
    Direction,
    Kind,
    Metric,
    Outcome,
    OutcomeKind,
    Purpose,
    Task,
    Trial,
    TrialRecord,
)
from celedger.judge.bisection.symptom import (
    Symptom,
    _weight,
    at_one_place,
    most_telling,
    signature,
)
from celedger.judge.incident import IncidentMetric
from celedger.stats.likelihood import NoisePrior
from celedger.stats.two_sides import EndsQuestion
from celedger.trial.protocol import TELEMETRY


def crash(message: str, kind: OutcomeKind = OutcomeKind.FAILED, code: int = 1) -> TrialRecord:
    trial = Trial("u", "c", "r", "e", 0, Purpose.BISECT, 0.0, "here")
    return TrialRecord(trial, "s", "t", Outcome(kind, 1.0, message, code))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (
            crash("exit status 1: ValueError: cannot broadcast (3,4)"),
            crash("exit status 1: ValueError: cannot broadcast (5,4)"),
        ),
        (crash("timed out", OutcomeKind.TIMEOUT), crash("ran longer", OutcomeKind.TIMEOUT)),
        (crash("exit status 3: sorry", code=3), crash("exit status 3: oh", code=3)),
    ],
)
def test_the_same_fault_at_another_place_is_the_same_crash(a: TrialRecord, b: TrialRecord) -> None:
    assert signature(a) == signature(b) != ""


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (
            crash("exit status 1: ValueError: cannot broadcast"),
            crash("exit status 1: ImportError: cannot import name 'x'"),
        ),
        (crash("killed by SIGSEGV", code=-11), crash("exit status 1", code=1)),
        (crash("out of memory", OutcomeKind.OOM), crash("exit status 1: ValueError: x")),
    ],
)
def test_a_commit_that_fails_in_another_way_is_another_crash(
    a: TrialRecord, b: TrialRecord
) -> None:
    assert signature(a) != signature(b)


def test_what_ran_or_was_killed_from_outside_has_no_signature() -> None:
    assert signature(crash("", OutcomeKind.OK, 0)) == ""
    assert signature(crash("killed by SIGKILL", OutcomeKind.KILLED, -9)) == ""


def test_crashes_at_one_step_in_one_frame_are_at_one_place() -> None:
    always = crash("exit status 1: ValueError: x (in forward of model.py, step 7 of epoch 0)")
    later = crash("exit status 1: ValueError: x (in forward of model.py, step 9 of epoch 0)")
    unknown = crash("exit status 1: ValueError: x")
    assert at_one_place([always] * 3)
    hinted = crash("exit status 1: x (in fit of a.py, step 7 of epoch 0); submodules are empty")
    assert at_one_place([hinted] * 3)
    assert not at_one_place([always] * 2)
    assert not at_one_place([always, always, later])
    assert not at_one_place([unknown] * 3)


@pytest.mark.parametrize("kind", [Kind.QUALITY, Kind.WORK])
def test_what_is_computed_is_searched_before_what_a_clock_tells_as_well(kind: Kind) -> None:
    """A step time that was 90 % longer took 42 trials where a loss of its incident took 13. On a
    busy machine the time between steps went from 35 to 65 ms, processor time was the same."""
    lower = Direction.LOWER
    metrics = Metric("step_time", "s", lower, Kind.SPEED), Metric("other", "", lower, kind)
    task = Task("s", "t", (Command("run", ("true",)),), metrics=metrics)
    ledger = SimpleNamespace(usual_seconds=lambda _: 2.0, summaries=lambda *_, **__: [])
    bench: Any = SimpleNamespace(
        ledger=ledger, environments={"t": SimpleNamespace(fingerprint="e")}
    )
    moved = [
        IncidentMetric("s", "t", m.name, 1.0, 2.0, 1.0, 0.9, 1.1, "", m.kind.value, "open", True)
        for m in task.metrics
    ]
    assert [name for _, name in most_telling(bench, moved, [task])] == ["other"]


def test_telemetry_that_only_seems_worse_is_searched_where_it_is_named() -> None:
    """Durations of short trials: 117 trials were spent on them, and nothing had changed."""
    bad, good = (list(enumerate(own)) for own in ((0.231, 0.229, 0.236), (0.2, 0.204, 0.216)))
    question = EndsQuestion(good, bad, 0.002, None)
    task = Task("s", "t", (Command("c", ("c",)),))
    duration = next(metric for metric in TELEMETRY if metric.name == "duration")
    clock, loss = (Symptom(task, m) for m in (duration, Metric("loss", "", Direction.LOWER)))
    assert _weight(loss, question, 6, named=False) < 4
    assert _weight(clock, question, 6, named=True) < 4
    assert _weight(clock, question, 6, named=False) == math.inf


def test_a_metric_is_searched_unless_the_ends_prove_that_it_is_better() -> None:
    task = Task("s", "t", (Command("c", ("c",)),))
    loss = Symptom(task, Metric("loss", "", Direction.LOWER))
    noise = NoisePrior(0.1, 20.0)
    good = [(0, 1.0), (1, 1.1), (2, 0.9)]
    worse, same, better = ([(s + 3, y + by) for s, y in good] for by in (2.0, 0.0, -2.0))
    asked = [EndsQuestion(good, bad, 0.01, noise) for bad in (worse, same, better)]
    assert [_weight(loss, q, 1, named=False) < 1 for q in asked] == [True, False, False]
    assert [_weight(loss, q, 1, named=True) < math.inf for q in asked] == [True, True, False]
    assert _weight(loss, EndsQuestion(good, [(0, math.nan)], 0.01, noise), 1, named=False) == 0
    many = EndsQuestion(good, [(3, 1.2), (4, 1.3), (5, 1.15)], 0.01, noise)
    assert _weight(loss, many, 1, named=False) < _weight(loss, many, 12, named=False)


def test_a_leak_of_which_few_trials_tell_is_searched_where_it_is_named() -> None:
    """Two and one reading that lie 270 sd apart were taken for an improvement."""
    task = Task("s", "t", (Command("c", ("c",)),))
    leak = Symptom(task, Metric("memory_growth", "B", Direction.LOWER, Kind.MEMORY))
    noise = NoisePrior(33.0, 4.0)
    question = EndsQuestion([(0, 129.26), (1, 220.21)], [(0, 9015.35)], 1024.0, noise)
    assert _weight(leak, question, 1, named=True) < math.inf
