"""Which failures are alike, and what an end must be."""

from __future__ import annotations

import pytest

from celedger.base.model import Floor, Outcome, OutcomeKind, Purpose, Trial, TrialRecord
from celedger.judge.bisection.symptom import _weight, at_one_place, signature
from celedger.stats.range_ends import EndsQuestion, EndVerdict, compare_ends


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


def test_telemetry_that_only_seems_worse_is_searched_where_it_is_named() -> None:
    """Durations of short trials: 117 trials were spent on them, and nothing had changed."""
    bad, good = (list(enumerate(own)) for own in ((0.231, 0.229, 0.236), (0.2, 0.204, 0.216)))
    question = EndsQuestion(bad, good, 1, Floor.parse("1%"), None)
    (answer, *_) = compare_ends([question] * 6)
    assert answer.verdict is EndVerdict.UNDECIDED
    for named, telemetry in ((True, True), (True, False), (False, False)):
        assert _weight(question, answer, named=named, telemetry=telemetry) < 4
    assert _weight(question, answer, named=False, telemetry=True) == float("inf")
