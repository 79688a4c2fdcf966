"""Same bits, same side; and what only looks like it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from celedger.bisection.bits import Bits
from celedger.bisection.symptom import Symptom
from celedger.ledger import Ledger
from celedger.model import (
    Command,
    Commit,
    Direction,
    Environment,
    Kind,
    Metric,
    Outcome,
    OutcomeKind,
    Task,
    Trial,
    TrialRecord,
    Why,
)

LOSS = Metric("val_loss", direction=Direction.LOWER, kind=Kind.QUALITY)
SCORE = Metric("val_accuracy", direction=Direction.HIGHER, kind=Kind.QUALITY)
TASK = Task("s", "t", (Command("main", ("true",)),), metrics=(LOSS, SCORE))
GOOD, BAD = -1, 9


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", create=True) as opened:
        opened.record_task(TASK)
        opened.record_environment(Environment("e" * 64, {}))
        yield opened


def trial(
    ledger: Ledger,
    number: int,
    losses: Sequence[float],
    prints: Sequence[str] = (),
    scores: Sequence[float] = (),
    seed: int = 0,
) -> TrialRecord:
    sha = f"{number + 1:040x}"
    ulid = f"{number + 1:04d}{seed:02d}".rjust(26, "0")
    ledger.record_commits([Commit(sha, sha, (), "Ada", 0, 0, "subject")])
    ledger.start_trial(Trial(ulid, sha, TASK.recipe, "e" * 64, seed, Why.BISECT, 1.0, "here"))
    for epoch, loss in enumerate(losses):
        values = {"val_loss": loss} | ({"val_accuracy": scores[epoch]} if scores else {})
        ledger.append(ulid, epoch, values, prints[epoch] if prints else None)
    ledger.finish_trial(ulid, Outcome(OutcomeKind.OK, 2.0), {"val_loss": losses[-1]})
    found = ledger.trial(ulid)
    assert found is not None
    return found


FINE = (0.912345678901, 0.512345678902, 0.312345678903)
OTHER = (0.912345678901, 0.522345678902, 0.332345678903)


def sides(
    ledger: Ledger, *trials: tuple[int, TrialRecord], metric: Metric = LOSS
) -> dict[int, str]:
    return Bits(ledger, Symptom(TASK, metric)).sides(trials, GOOD, BAD)


def test_a_commit_that_repeats_an_end_is_on_its_side(ledger: Ledger) -> None:
    ends = (GOOD, trial(ledger, 0, FINE)), (BAD, trial(ledger, 9, OTHER))
    middle = (4, trial(ledger, 4, FINE)), (5, trial(ledger, 5, OTHER))
    assert sides(ledger, *ends, *middle) == {4: "good", 5: "bad"}


def test_another_seed_says_nothing(ledger: Ledger) -> None:
    ends = (GOOD, trial(ledger, 0, FINE)), (BAD, trial(ledger, 9, OTHER))
    assert sides(ledger, *ends, (4, trial(ledger, 4, FINE, seed=1))) == {}


def test_what_repeats_both_ends_is_on_neither_side(ledger: Ledger) -> None:
    ends = (GOOD, trial(ledger, 0, FINE)), (BAD, trial(ledger, 9, FINE))
    assert sides(ledger, *ends, (4, trial(ledger, 4, FINE))) == {}


def test_coarse_values_may_agree_by_chance(ledger: Ledger) -> None:
    coarse, other = (0.9, 0.5, 0.25), (0.9, 0.5, 0.3)
    ends = (GOOD, trial(ledger, 0, coarse)), (BAD, trial(ledger, 9, other))
    assert sides(ledger, *ends, (4, trial(ledger, 4, coarse))) == {}


def test_fingerprints_make_coarse_values_sure(ledger: Ledger) -> None:
    coarse, other = (0.9, 0.5, 0.25), (0.9, 0.5, 0.3)
    ends = (
        (GOOD, trial(ledger, 0, coarse, ("a", "b", "c"))),
        (BAD, trial(ledger, 9, other, ("a", "d", "e"))),
    )
    same = (4, trial(ledger, 4, coarse, ("a", "b", "c")))
    assert sides(ledger, *ends, same) == {4: "good"}


def test_a_broken_evaluation_leaves_the_parameters_as_they_were_and_is_not_good(
    ledger: Ledger,
) -> None:
    prints = ("a", "b", "c")
    ends = (
        (GOOD, trial(ledger, 0, FINE, prints)),
        (BAD, trial(ledger, 9, OTHER, prints)),
    )
    third = (0.812345678901, 0.722345678902, 0.632345678903)
    middle = (
        (4, trial(ledger, 4, OTHER, prints)),
        (5, trial(ledger, 5, third, prints)),
    )
    assert sides(ledger, *ends, *middle) == {4: "bad"}


def test_a_metric_that_moved_alone_is_not_proven_by_the_others(ledger: Ledger) -> None:
    ends = (
        (GOOD, trial(ledger, 0, FINE, scores=(0.1, 0.2, 0.3))),
        (BAD, trial(ledger, 9, FINE, scores=(0.1, 0.2, 0.2))),
    )
    middle = (4, trial(ledger, 4, FINE, scores=(0.1, 0.2, 0.2)))
    assert sides(ledger, *ends, middle, metric=SCORE) == {4: "bad"}
