"""Same bits, same side; what only looks like it; and when a running trial is the same as one that
ended."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from celedger.base.model import (
    Command,
    Direction,
    Kind,
    Mark,
    Metric,
    Outcome,
    OutcomeKind,
    Purpose,
    Task,
    Trial,
    TrialRecord,
)
from celedger.judge.bisection.one_metric import Epoch, Placed, Trace, Traces, agrees
from celedger.judge.bisection.symptom import Symptom
from celedger.stats.firstbad import Reading
from celedger.stats.levels import SURE, SURE_EXACT, SURE_REPEATED, lacking_failures

LOSS = Metric("loss", direction=Direction.LOWER, kind=Kind.QUALITY)
SCORE = Metric("score", direction=Direction.HIGHER, kind=Kind.QUALITY)
TASK = Task("s", "t", (Command("main", ("true",)),), metrics=(LOSS, SCORE))
GOOD, BAD = -1, 9

A = (0.912345678901, 0.512345678902, 0.312345678903, 0.212345678904)
B = (0.912345678901, 0.522345678902, 0.332345678903, 0.242345678904)  # parts from A at epoch 1
LATE = (*A[:3], 0.412345678904)  # parts from A at the last epoch only
COARSE, OTHER_COARSE = (0.9, 0.5, 0.25, 0.2), (0.9, 0.5, 0.3, 0.2)


class Ledger:
    """Series of trials, as the ledger gives them. Those of fewer than four epochs were stopped."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, Sequence[float]]] = {}
        self.prints: dict[str, Sequence[str]] = {}

    def series(self, ulid: str) -> dict[str, list[tuple[int, float]]]:
        return {name: list(enumerate(values)) for name, values in self.values[ulid].items()}

    def fingerprints(self, ulid: str) -> dict[int, str]:
        return dict(enumerate(self.prints[ulid]))

    def trial(
        self,
        position: int,
        losses: Sequence[float],
        prints: Sequence[str] = (),
        scores: Sequence[float] = (),
        seed: int = 0,
        crash: str = "",
    ) -> tuple[int, TrialRecord]:
        ulid = f"{len(self.values):04d}"
        self.values[ulid] = {"loss": losses} | ({"score": scores} if scores else {})
        self.prints[ulid] = prints
        marks = () if crash or len(losses) == 4 else (Mark.EARLY_STOPPED,)
        trial = Trial(ulid, str(position), TASK.recipe, "e", seed, Purpose.BISECT, 1.0, "here")
        kind = OutcomeKind.FAILED if crash else OutcomeKind.OK
        outcome = Outcome(kind, 2.0, crash, marks=marks)
        summaries = {} if crash else {"loss": losses[-1]}
        return position, TrialRecord(trial, "s", "t", outcome, summaries, len(losses))

    def traces(self, metric: Metric | None = LOSS) -> Traces:
        return Traces(self, Symptom(TASK, metric, "failed ValueError"), BAD)  # type: ignore[arg-type]

    def sides(self, placed: Placed, metric: Metric = LOSS) -> dict[int, str]:
        traces = self.traces(metric)
        readings = [Reading(p, 0.0, r.trial.seed, traces.draw(r)) for p, r in placed]
        classes: dict[int | None, set[int]] = {}
        for reading in readings:
            classes.setdefault(reading.draw, set()).add(reading.position)
        classes.pop(None, None)
        sides: dict[int, set[str]] = {}
        for places in classes.values():
            for position in places - {GOOD, BAD}:
                ends = {name for end, name in ((GOOD, "good"), (BAD, "bad")) if end in places}
                sides.setdefault(position, set()).update(ends)
        return {position: ends.pop() for position, ends in sides.items() if len(ends) == 1}


def test_a_commit_that_repeats_an_end_is_on_its_side() -> None:
    ledger = Ledger()
    ends = ledger.trial(GOOD, A), ledger.trial(BAD, B)
    assert ledger.sides([*ends, ledger.trial(4, A), ledger.trial(5, B)]) == {4: "good", 5: "bad"}


def test_another_seed_and_what_repeats_both_ends_say_nothing() -> None:
    ledger = Ledger()
    ends = ledger.trial(GOOD, A), ledger.trial(BAD, B)
    assert ledger.sides([*ends, ledger.trial(4, A, seed=1)]) == {}
    assert ledger.sides([ends[0], ledger.trial(BAD, A), ledger.trial(4, A)]) == {}


def test_coarse_values_agree_by_chance_unless_fingerprints_make_them_sure() -> None:
    ledger = Ledger()
    ends = ledger.trial(GOOD, COARSE), ledger.trial(BAD, OTHER_COARSE)
    assert ledger.sides([*ends, ledger.trial(4, COARSE)]) == {}
    ends = ledger.trial(GOOD, COARSE, "abcd"), ledger.trial(BAD, OTHER_COARSE, "abef")
    assert ledger.sides([*ends, ledger.trial(4, COARSE, "abcd")]) == {4: "good"}


def test_a_broken_evaluation_leaves_the_parameters_as_they_were_and_is_not_good() -> None:
    ledger = Ledger()
    ends = ledger.trial(GOOD, A, "abcd"), ledger.trial(BAD, B, "abcd")
    inside = ledger.trial(4, B, "abcd"), ledger.trial(5, LATE, "abcd")
    assert ledger.sides([*ends, *inside]) == {4: "bad"}


def test_a_metric_is_compared_by_its_own_values_where_they_are_fine() -> None:
    ledger = Ledger()
    ends = (
        ledger.trial(GOOD, A, scores=COARSE),
        ledger.trial(BAD, A, scores=OTHER_COARSE),
    )
    inside = ledger.trial(4, A, scores=OTHER_COARSE)
    assert ledger.sides([*ends, inside], SCORE) == {4: "bad"}
    assert ledger.sides([*ends, inside]) == {}, "both ends have this loss"
    assert ledger.sides([ends[0], ledger.trial(BAD, B), inside]) == {4: "good"}


def trace(losses: Sequence[float], prints: Sequence[str] = ()) -> Trace:
    return tuple(
        Epoch(e, prints[e] if prints else None, {"loss": v, "other": v / 3, "third": v / 7})
        for e, v in enumerate(losses)
    )


def test_a_beginning_agrees_only_when_it_is_sure() -> None:
    assert agrees(trace(A[:1]), trace(A))
    assert not agrees(trace(A), trace(A[:2])), "it has gone further already"
    assert not agrees((), trace(A))
    coarse = tuple(Epoch(e, None, {"loss": v}) for e, v in enumerate((0.5, 0.25)))
    assert not agrees(coarse[:1], coarse), "coarse values agree by chance"
    assert agrees(trace(A[:1], "abcd"), trace(A, "abcd"))
    assert not agrees(trace(A[:1], "xbcd"), trace(A, "abcd"))


def test_an_epoch_half_reported_may_still_become_the_same() -> None:
    half = (*trace(A[:2]), Epoch(2, None, {"loss": A[2]}))
    assert agrees(half, trace(A))
    assert not agrees((*trace(A[:2]), Epoch(2, None, {"loss": 0.3})), trace(A))


def enough(ledger: Ledger, placed: Placed, losses: Sequence[float], metric: Metric = LOSS) -> bool:
    """Return whether a running trial with these losses, and a fingerprint each, has told enough."""
    _, running = ledger.trial(0, losses, [str(v) for v in losses], [1.0] * len(losses))
    traces = ledger.traces(metric)
    return traces.enough(placed, 0)(traces.read(running.trial.ulid))


def printed(ledger: Ledger, *trials: tuple[int, Sequence[float]]) -> Placed:
    return [ledger.trial(p, v, [str(x) for x in v], [1.0] * len(v)) for p, v in trials]


def test_a_trial_ends_once_it_repeats_another_past_the_parting() -> None:
    ledger = Ledger()
    placed = printed(ledger, (GOOD, A), (BAD, B))
    assert not enough(ledger, placed, A[:1]), "the ends have not parted yet"
    assert enough(ledger, placed, A[:2])
    assert enough(ledger, placed, B[:2])
    assert not enough(ledger, placed, (A[0], 0.7, 0.6)), "it repeats nothing and goes on"
    assert not enough(ledger, placed, A[:2], SCORE), "in the score the ends never part"


def test_a_change_that_acts_late_takes_the_proof_from_all_that_began_like_it() -> None:
    ledger = Ledger()
    placed = printed(ledger, (GOOD, A), (BAD, B), (5, LATE))
    assert not enough(ledger, placed, A[:2])


def test_a_trial_is_not_stopped_in_its_last_epoch() -> None:
    ledger = Ledger()
    placed = printed(ledger, (GOOD, A), (BAD, LATE))
    assert not enough(ledger, placed, A)
    assert not enough(ledger, placed, LATE)


def test_stopped_trials_lie_with_what_they_repeat() -> None:
    ledger = Ledger()
    own = (0.9, 0.61, 0.5, 0.4)
    placed = printed(
        ledger, (GOOD, A), (BAD, B), (2, A[:2]), (7, B[:3]), (4, own[:2]), (5, own[:3])
    )
    alike = ledger.traces().alike(placed)
    assert set(alike) == {frozenset({GOOD, 2}), frozenset({BAD, 7}), frozenset({4, 5})}


def test_a_late_change_found_by_a_whole_trial_sets_the_stopped_ones_free() -> None:
    ledger = Ledger()
    placed = printed(ledger, (GOOD, A), (BAD, B), (2, A[:2]), (6, A[:2]), (6, LATE))
    assert not any(GOOD in positions for positions in ledger.traces().alike(placed))


NAN = float("nan")


def test_failures_that_come_again_where_bits_repeat_are_sure() -> None:
    ledger = Ledger()
    crash = "exit status 1: ValueError: x"
    # Of the three crashes of BAD one is why somebody asks.
    fails = [ledger.trial(p, A[:1], crash=crash) for p in (BAD, BAD, BAD, 7)]
    # They part after the epoch in which the bad ones crash.
    passes = [ledger.trial(p, values) for p, values in ((GOOD, A), (2, A), (3, A))]
    assert ledger.traces(None).sure([*fails, *passes]) == (SURE_REPEATED, 1)
    again = ledger.trial(7, A[:1], seed=1, crash=crash)
    assert ledger.traces(None).sure([*fails, again, *passes]) == (SURE_EXACT, 0)
    elsewhere = ledger.trial(7, A[:2], seed=1, crash=crash)
    assert ledger.traces(None).sure([*fails, elsewhere, *passes]) == (SURE_EXACT, 0)
    alone = [ledger.trial(p, A[:i], seed=i, crash=crash) for i, p in enumerate((BAD, 7, 7, 7))]
    assert ledger.traces(None).sure([*alone, *passes]) == (SURE, 0), "no seed failed twice"
    fails.append(again)
    assert ledger.traces(None).sure([*fails, *passes[:2]]) == (SURE, 0)
    ran = ledger.trial(7, B)
    assert ledger.traces(None).sure([*fails, ran, *passes]) == (SURE, 0)
    other = ledger.trial(8, A[:1], crash="exit status 1: ValueError: y")
    assert ledger.traces(None).sure([*fails, other, *passes]) == (SURE, 0)
    later = ledger.trial(8, A[:2], crash=crash)
    assert ledger.traces(None).sure([*fails, later, *passes]) == (SURE, 0)
    parted = [ledger.trial(4 + i, A[:2] + B[2:], seed=i) for i in range(3)]
    assert ledger.traces(None).sure([*fails, *parted]) == (SURE, 0)


def test_a_loss_that_is_not_finite_again_where_bits_repeat_is_sure() -> None:
    ledger = Ledger()
    fails = [ledger.trial(p, (*A[:1], NAN, NAN, NAN)) for p in (BAD, BAD, BAD, 7, 7)]
    passes = [ledger.trial(GOOD, A), ledger.trial(2, A), ledger.trial(3, A[:3])]
    assert ledger.traces().sure([*fails, *passes]) == (SURE_EXACT, 0)
    assert ledger.traces().sure([fails[0], *passes]) == (SURE_REPEATED, 4)
    finite = ledger.trial(5, (*A[:2], NAN, NAN))
    assert ledger.traces().sure([*fails, finite, *passes]) == (SURE, 0)


@pytest.mark.parametrize(
    ("failed", "asked", "lacking"),
    [
        ([63, 63, 63], 3, 5),  # those of BAD are why somebody asks
        ([63, 63, 63, 40, 30, 20], 3, 2),  # halving tells where, not how often
        ([63, 63, 63, 40, 30, 20, 20], 3, 1),
        ([63, 63, 63, 40, 30, 20, 20, 20], 3, 0),
        ([63, 63, 63, 63, 63], 1, 1),
    ],
)
def test_trials_of_a_commit_that_failed_prove_that_it_always_does(
    failed: list[int], asked: int, lacking: int
) -> None:
    assert lacking_failures(failed, 63, asked) == lacking
