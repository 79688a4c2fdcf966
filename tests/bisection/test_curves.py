"""When a trial that is still running is the same as one that ended."""

from __future__ import annotations

from collections.abc import Sequence

from celedger.bisection.curves import Curves, Epoch, Placed, Trace, agrees, twin
from celedger.bisection.symptom import Symptom
from celedger.model import (
    Command,
    Direction,
    Kind,
    Mark,
    Metric,
    Outcome,
    OutcomeKind,
    Task,
    Trial,
    TrialRecord,
    Why,
)

LOSS = Metric("loss", direction=Direction.LOWER, kind=Kind.QUALITY)
TASK = Task("s", "t", (Command("main", ("true",)),), metrics=(LOSS,))
GOOD, BAD = -1, 9

A = (0.912345678901, 0.512345678902, 0.312345678903, 0.212345678904)
B = (0.912345678901, 0.522345678902, 0.332345678903, 0.242345678904)  # parts from A at epoch 1
LATE = (*A[:3], 0.412345678904)  # parts from A at the last epoch only


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


def test_nothing_is_sure_before_the_ends_part() -> None:
    def ask(part: Trace) -> Trace | None:
        return twin(part, [trace(A), trace(B)], trace(A), trace(B), ["loss"])

    assert ask(trace(A[:1])) is None
    assert ask(trace(A[:2])) == trace(A)
    assert ask(trace(B[:2])) == trace(B)
    assert ask(trace((*A[:1], 0.7))) is None


def test_ends_that_never_part_tell_nothing() -> None:
    assert twin(trace(A), [trace(A)], trace(A), trace(A), ["loss"]) is None


def test_a_change_that_acts_late_takes_the_proof_from_all_that_began_like_it() -> None:
    wholes = [trace(A), trace(B), trace(LATE)]
    assert twin(trace(A[:2]), wholes, trace(A), trace(B), ["loss"]) is None
    assert twin(trace(A[:4]), wholes, trace(A), trace(B), ["loss"]) == trace(A)


def test_every_metric_searched_must_have_parted() -> None:
    def two(losses: Sequence[float], scores: Sequence[float]) -> Trace:
        return tuple(
            Epoch(e, "p", {"loss": v, "score": s})
            for e, (v, s) in enumerate(zip(losses, scores, strict=True))
        )

    good, bad = two(A, (1, 1, 1, 1)), two(B, (1, 1, 1, 0))
    assert twin(good[:2], [good, bad], good, bad, ["loss"]) == good
    assert twin(good[:2], [good, bad], good, bad, ["loss", "score"]) is None


class Kept:
    """Series of trials, as the ledger gives them."""

    def __init__(self) -> None:
        self.kept: dict[str, Sequence[float]] = {}

    def series(self, ulid: str) -> dict[str, list[tuple[int, float]]]:
        points = list(enumerate(self.kept[ulid]))
        return {"loss": points}

    def fingerprints(self, ulid: str) -> dict[int, str]:
        return {e: f"print of {v}" for e, v in enumerate(self.kept[ulid])}


def placed(kept: Kept, *trials: tuple[int, Sequence[float]]) -> Placed:
    records = []
    for number, (position, losses) in enumerate(trials):
        ulid = f"{number:04d}"
        kept.kept[ulid] = losses
        marks = () if len(losses) == 4 else (Mark.EARLY_STOPPED,)
        trial = Trial(ulid, str(position), TASK.recipe, "e", 0, Why.BISECT, 1.0, "here")
        values = {"loss": losses[-1]} if not marks else {}
        outcome = Outcome(OutcomeKind.OK, 2.0, marks=marks)
        records.append((position, TrialRecord(trial, "s", "t", outcome, values, len(losses))))
    return Placed(BAD, tuple(records))


def curves(kept: Kept) -> Curves:
    return Curves(kept, [Symptom(TASK, LOSS)])  # type: ignore[arg-type]


def test_stopped_trials_lie_with_what_they_repeat() -> None:
    kept = Kept()
    own = (0.9, 0.61, 0.5, 0.4)
    known = placed(
        kept, (GOOD, A), (BAD, B), (2, A[:2]), (7, B[:3]), (4, own[:2]), (5, own[:3])
    )  # fmt: skip
    alike = curves(kept).alike(known)
    assert set(alike) == {frozenset({GOOD, 2}), frozenset({BAD, 7}), frozenset({4, 5})}


def test_a_late_change_found_by_a_whole_trial_sets_the_stopped_ones_free() -> None:
    kept = Kept()
    known = placed(kept, (GOOD, A), (BAD, B), (2, A[:2]), (6, A[:2]), (6, LATE))
    alike = curves(kept).alike(known)
    assert not any(GOOD in places for places in alike)


def test_a_trial_ends_once_it_repeats_another_past_the_parting() -> None:
    kept = Kept()
    known = placed(kept, (GOOD, A), (BAD, B))
    enough = curves(kept).enough(known, 0)

    def after(losses: Sequence[float]) -> str:
        kept.kept["running"] = losses
        return enough(curves(kept).read("running"))

    assert not after(A[:1]), "the ends have not parted yet"
    assert "up to epoch 1" in after(B[:2])
    assert not after((A[0], 0.7, 0.6)), "it repeats nothing and goes on to its end"
