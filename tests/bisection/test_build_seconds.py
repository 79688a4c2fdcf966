"""What a build takes, from trials that are stored."""

from __future__ import annotations

from celedger.base.model import Outcome, OutcomeKind, Purpose, Task, Trial, TrialRecord
from celedger.judge.bisection.planner import build_seconds


def ran(number: int, commit: str, total: float, commands: float) -> TrialRecord:
    started = 100.0 * number
    trial = Trial(f"{number:026d}", commit, "r", "e", number, Purpose.BISECT, started, "here")
    return TrialRecord(
        trial, "s", "t", Outcome(OutcomeKind.OK, started + total), summaries={"duration": commands}
    )


def test_a_build_is_what_the_first_trial_of_a_commit_takes_beyond_its_commands() -> None:
    records = [
        ran(1, "a", 11.0, 10.0),  # kept from the trial before
        ran(0, "a", 41.0, 10.0),
        ran(2, "b", 39.0, 10.0),
        ran(3, "a", 11.0, 10.0),
    ]
    task = Task("s", "t", (), build=(("make",),))
    assert build_seconds(task, records) == 30.0
    assert build_seconds(task, []) == 0.0
    # The first trial of a command also waits for the import of `preload`: measured commits seemed
    # cheaper than others, and a bisect repeated them.
    assert build_seconds(Task("s", "t", ()), records) == 0.0
