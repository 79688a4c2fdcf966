"""Verdicts from what a ledger holds, and the exit status that they make."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from celedger.base.errors import Status
from celedger.base.model import (
    ENVIRONMENTS,
    BaselineAct,
    BaselineRecord,
    Command,
    Commit,
    Direction,
    Environment,
    Floor,
    Kind,
    Metric,
    Outcome,
    OutcomeKind,
    Task,
    Trial,
    Verdict,
    VerdictKind,
    Why,
)
from celedger.judge.drift import judge as drift
from celedger.judge.drift import recorded_verdicts
from celedger.ledger import Ledger

LOSS = Metric("val_loss", "nats", Direction.LOWER, Kind.QUALITY, Floor(0.01, relative=True))
TASK = Task("core", "mlp", (Command("train", ("true",)),), metrics=(LOSS,))
HERE = Environment("e" * 64, {})
DECLARED = {("mlp", "val_loss")}


@dataclass(frozen=True)
class Line:
    """A repository that is a line of commits."""

    commits: list[Commit]

    def log(self, sha: str, limit: int) -> list[Commit]:
        at = [c.sha for c in self.commits].index(sha)
        return self.commits[at::-1][:limit]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        yield ledger


def line(ledger: Ledger, n: int) -> list[Commit]:
    made = [
        Commit(f"{i:040x}", "0" * 40, (f"{i - 1:040x}",) if i else (), "", i, i, "")
        for i in range(n)
    ]
    ledger.record_commits(made)
    ledger.record_task(TASK)
    ledger.record_environment(HERE)
    return made


def test_the_noise_is_that_of_neighbours_in_history_not_in_time(ledger: Ledger) -> None:
    """An old commit is judged (as `git bisect run celedger check` does) after newer ones were
    measured by turns on either side of a large step."""
    made = line(ledger, 8)
    draw = random.Random(5)
    for number, i in enumerate((7, 0, 5, 2, 6, 3, 4, 1)):
        level = 1.0 + 0.1 * (i == 1) + 0.5 * (i >= 4)
        for seed in range(3):
            ulid = f"01K{number:010d}{seed:013d}"
            ledger.start_trial(
                Trial(ulid, made[i].sha, TASK.recipe, HERE.fingerprint, seed, Why.RUN, number, "")
            )
            ended = Outcome(OutcomeKind.OK, number)
            ledger.finish_trial(ulid, ended, {"val_loss": draw.gauss(level, 0.01)})
    judged = drift.judge(Line(made), ledger, made[1], [TASK], {"mlp": HERE})  # type: ignore[arg-type]
    assert [v.kind for v in judged.verdicts] == [VerdictKind.REGRESSED]
    assert judged.answers["mlp", "val_loss"].smallest < 0.1


def test_environments_that_do_not_matter_are_compared(ledger: Ledger) -> None:
    """A person measured a commit in both, and accepted that they tell no difference."""
    made, upgraded = line(ledger, 8), Environment("f" * 64, {})
    ledger.record_environment(upgraded)
    draw = random.Random(5)
    measured = [(i, HERE) for i in range(7)] + [(6, upgraded), (7, upgraded)]
    for number, (i, environment) in enumerate(measured):
        for seed in range(3):
            ulid = f"01K{number:010d}{seed:013d}"
            ledger.start_trial(
                Trial(ulid, made[i].sha, TASK.recipe, environment.fingerprint, seed, Why.RUN,
                      number, "")
            )  # fmt: skip
            loss = draw.gauss(1.0 + 0.5 * (i == 7), 0.01)
            ledger.finish_trial(ulid, Outcome(OutcomeKind.OK, number), {"val_loss": loss})

    def samples() -> set[str]:
        judged = drift.judge(Line(made), ledger, made[7], [TASK], {"mlp": upgraded})  # type: ignore[arg-type]
        (verdict,) = judged.verdicts
        return {record.trial.commit for ulid in verdict.baseline if (record := ledger.trial(ulid))}

    assert samples() == {made[6].sha}
    ledger.record_baseline(
        BaselineRecord(
            "01P", BaselineAct.ACCEPT, made[6].sha, "core", "", ENVIRONMENTS, "A", "torch", 1.0
        )
    )
    assert samples() == {commit.sha for commit in made[:7]}


def test_a_commit_is_judged_again_after_what_its_verdicts_rest_on_changed(ledger: Ledger) -> None:
    made = line(ledger, 4)
    here = {"mlp": HERE}

    def unjudged() -> set[str]:
        return recorded_verdicts.unjudged(ledger, made, [TASK], here)

    def train(number: int, commit: Commit) -> None:
        trial = Trial(
            f"{number:026d}", commit.sha, TASK.recipe, HERE.fingerprint, 0, Why.RUN, number, ""
        )
        ledger.start_trial(trial)
        outcome = Outcome(OutcomeKind.OK, number + 1.0)
        ledger.finish_trial(trial.ulid, outcome, {"val_loss": 1.0 + number / 100})

    for number, commit in enumerate(made):
        train(number, commit)
        drift.judge(Line(made), ledger, commit, [TASK], here)  # type: ignore[arg-type]
    assert unjudged() == set()
    assert [v.commit for v in recorded_verdicts.latest(ledger, made[3], [TASK], here)] == [
        made[3].sha
    ]
    elsewhere = {"mlp": Environment("f" * 64, {})}
    assert recorded_verdicts.latest(ledger, made[3], [TASK], elsewhere) == []
    train(9, made[1])
    assert unjudged() == {made[3].sha}, "the baseline of the newest commit has another trial"
    drift.judge(Line(made), ledger, made[3], [TASK], here)  # type: ignore[arg-type]
    assert unjudged() == set()
    ledger.record_baseline(
        BaselineRecord("01P", BaselineAct.PIN, made[0].sha, "core", "", "", "A", "good", 1.0)
    )
    assert unjudged() == {made[3].sha}


def status(*verdicts: Verdict, lenient: bool = False, gate: bool = True) -> Status:
    return recorded_verdicts.status(verdicts, DECLARED, gate=gate, lenient=lenient)


def of(metric: str, kind: VerdictKind) -> Verdict:
    return Verdict("0" * 40, "core", "mlp", metric, kind)


def test_only_what_the_suite_declares_decides_the_status() -> None:
    same = of("val_loss", VerdictKind.SAME)
    for kind in VerdictKind:
        assert status(same, of("duration", kind)) is Status.GOOD, kind
    assert status(of("val_loss", VerdictKind.REGRESSED)) is Status.BAD
    assert status(same, of("", VerdictKind.FAILED)) is Status.BAD
    assert status(same, of("", VerdictKind.UNDECIDED), gate=False) is Status.CANNOT_JUDGE


def test_too_noisy_is_undecided_unless_lenient() -> None:
    noisy = of("val_loss", VerdictKind.TOO_NOISY)
    assert status(noisy) is Status.CANNOT_JUDGE
    assert status(noisy, lenient=True) is Status.GOOD
    assert status(noisy, gate=False) is Status.GOOD
    for kind in (VerdictKind.UNDECIDED, VerdictKind.ENVIRONMENT_CHANGED):
        assert status(of("val_loss", kind), lenient=True) is Status.CANNOT_JUDGE


def test_a_gate_that_measured_nothing_of_the_suite_does_not_pass() -> None:
    telemetry = of("duration", VerdictKind.SAME)
    assert status() is Status.CANNOT_JUDGE
    assert status(telemetry, lenient=True) is Status.CANNOT_JUDGE
    assert recorded_verdicts.status([telemetry], set(), gate=True) is Status.GOOD, (
        "it asks only to run"
    )
