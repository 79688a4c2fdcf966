"""Equal bits: which trials of one metric computed the same, and when a running trial has told
enough. Reads series and fingerprints from the ledger, once for each trial; runs nothing.

Trials of one seed agree when the metric does at every epoch and, to rule out chance, the values
are too fine to agree by chance, or the fingerprints agree, too. A fingerprint alone proves nothing
of a metric: a commit that breaks the evaluation leaves every parameter as it was.

A running trial that agrees so far, past the epoch at which the two ends part, is taken for the
same trial and need not go on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from celedger.base.model import Direction, Kind, TrialRecord
from celedger.judge.bisection.symptom import Symptom, at_one_place
from celedger.ledger import Ledger
from celedger.stats import noise
from celedger.stats.failure_rates import SURE, SURE_EXACT, SURE_REPEATED, lacking_failures
from celedger.stats.lineage import GOOD

# A loss in full precision agrees by chance about never; an accuracy over a few hundred samples
# does. Three fine values suffice: independent trials would agree in all with a probability under
# 10^-18.
_ENOUGH = 3
_PASSING = 2
"""Repeats of passing trials from which failures that come again prove a sure one."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """What was computed in one epoch, to the last bit."""

    number: int
    fingerprint: str | None
    values: Mapping[str, float]

    def continues(self, whole: Epoch) -> bool:
        """Return True if it may be the same epoch, of which not all has been reported yet."""
        return (
            self.number == whole.number
            and self.fingerprint in (None, whole.fingerprint)
            and self.values.items() <= whole.values.items()
        )


Trace = tuple[Epoch, ...]
_Class = tuple[Trace, set[int]]
"""A trace, and the positions that have it."""
Placed = Sequence[tuple[int, TrialRecord]]
"""The trials of a range with their positions."""


def fine(values: Iterable[float]) -> bool:
    """Return True if independent trials would not agree in so many digits by chance."""
    exact = {v for v in values if math.isfinite(v) and noise.fine(v)}
    return len(exact) >= _ENOUGH


def agrees(part: Trace, whole: Trace) -> bool:
    """Return True if `part` is how `whole` began, and that for sure. Its last epoch may be half
    reported."""
    if not part or len(part) > len(whole) or part[:-1] != whole[: len(part) - 1]:
        return False
    if not part[-1].continues(whole[len(part) - 1]):
        return False
    sure = any(epoch.fingerprint for epoch in part)
    return sure or fine(v for epoch in part for v in epoch.values.values())


class Traces:
    """The traces of a task's trials, and what they say of one metric. `bad` is the position of
    the bad end."""

    def __init__(self, ledger: Ledger, symptom: Symptom, bad: int) -> None:
        self._ledger, self._symptom, self._bad = ledger, symptom, bad
        self._metric = symptom.name
        self._names = {symptom.name} | {
            m.name
            for m in symptom.task.metrics
            if m.kind is Kind.QUALITY and m.direction is not Direction.INFO
        }
        self._traces: dict[str, Trace] = {}
        self._draws: dict[tuple[object, ...], int] = {}

    def read(self, ulid: str) -> Trace:
        """Return the trace of a trial as far as it is in the ledger now."""
        prints = self._ledger.fingerprints(ulid)
        values: dict[int, dict[str, float]] = {}
        for name, points in self._ledger.series(ulid).items():
            if name in self._names:
                for number, value in points:
                    values.setdefault(number, {})[name] = value
        numbers = sorted(values.keys() | prints.keys())
        return tuple(Epoch(n, prints.get(n), values.get(n, {})) for n in numbers)

    def trace(self, record: TrialRecord) -> Trace:
        """Return the trace of a trial that has ended."""
        ulid = record.trial.ulid
        if ulid not in self._traces:
            self._traces[ulid] = self.read(ulid)
        return self._traces[ulid]

    def draw(self, record: TrialRecord) -> int | None:
        """Return a number that the trials share which computed the same; None where nothing is
        sure."""
        trace = self.trace(record) if record.ok else ()
        own = tuple((e.number, e.values[self._metric]) for e in trace if self._metric in e.values)
        every = tuple((e.number, *sorted(e.values.items())) for e in trace)
        prints = tuple(e.fingerprint for e in trace)
        key: tuple[object, ...] = (record.trial.seed, own)
        if not own:
            return None
        if not fine(value for _, value in own):
            if fine(value for epoch in trace for value in epoch.values.values()):
                key += every
            elif any(prints):
                key += prints
            else:
                return None
        return self._draws.setdefault(key, len(self._draws))

    def sure(self, placed: Placed) -> tuple[float, int]:
        """Return the prior probability that a bad commit always fails (crashes, or is not finite),
        and how many more failures would prove it; 0 of these where no number does, or no more is
        lacking."""
        symptom = self._symptom
        bad = 1.0 if symptom.metric is None else math.inf
        told = [(position, symptom.reads(r), r) for position, r in placed if not r.derived]
        failed = [(position, record) for position, value, record in told if value == bad]
        crashes, at = [record for _, record in failed], [position for position, _ in failed]
        passed = [(p, r) for p, value, r in told if value not in (None, bad) or r.early_stopped]
        places = {(r.outcome and r.outcome.message, self._finite(r)) for r in crashes}
        if len(places) == 1 and {p for p, _ in passed}.isdisjoint(at):
            repeats = self._repeats([r for _, r in passed], places.pop()[1] + 1)
            if repeats >= _PASSING:
                lacking = lacking_failures(at, self._bad, symptom.asked)
                return (SURE_REPEATED, lacking) if lacking else (SURE_EXACT, 0)
        return SURE_REPEATED if at_one_place(crashes) else SURE, 0

    def _finite(self, record: TrialRecord) -> int:
        """Return after how many epochs a trial failed."""
        trace = self.trace(record)
        finite = (all(map(math.isfinite, epoch.values.values())) for epoch in trace)
        return sum(1 for _ in itertools.takewhile(bool, finite))

    def _repeats(self, trials: Sequence[TrialRecord], epochs: int) -> int:
        """Return how many trials repeat the bits of an earlier one of their seed, for so many
        epochs or to their end."""
        earlier: dict[int, list[Trace]] = {}
        number = 0
        for record in trials:
            trace, others = self.trace(record), earlier.setdefault(record.trial.seed, [])
            number += any(agrees(trace, o) or agrees(trace[:epochs], o) for o in others)
            others.append(trace)
        return number

    def enough(self, placed: Placed, seed: int) -> Callable[[Trace], bool]:
        """Return a test of a running trial of this seed: True once it is past the epoch at which
        the ends part and agrees with one ended trial alone."""
        classes, past = self._classes(placed, seed)
        return lambda part: past(part) and sum(agrees(part, trace) for trace, _ in classes) == 1

    def alike(self, placed: Placed) -> tuple[frozenset[int], ...]:
        """Return the sets of positions that lie on one side because a trial that was stopped
        early computed the same there as another."""
        groups: list[frozenset[int]] = []
        for seed in sorted({r.trial.seed for _, r in placed if r.early_stopped}):
            wholes, past = self._classes(placed, seed)
            classes: list[_Class] = []
            stopped = [
                (self.trace(r), position)
                for position, r in placed
                if r.early_stopped and r.trial.seed == seed
            ]
            # The longest first: it stands for those that began like it.
            for part, position in sorted(stopped, key=lambda pair: -len(pair[0])):
                for candidates in (wholes, classes):
                    same = [each for each in candidates if agrees(part, each[0])]
                    if len(same) == 1 and past(part):
                        break
                else:
                    same = [(part, set())]
                same[0][1].add(position)
                classes += [each for each in same if each not in classes]
            groups += [frozenset(positions) for _, positions in classes]
        return tuple(group for group in dict.fromkeys(groups) if len(group) > 1)

    def _classes(self, placed: Placed, seed: int) -> tuple[list[_Class], Callable[[Trace], bool]]:
        """Return the different traces of the whole trials of a seed with their positions, and a
        test whether a trace went past the epoch at which the ends part."""
        classes: list[_Class] = []
        ends: dict[int, Trace] = {}
        for position, record in placed:
            if not record.ok or record.early_stopped or record.trial.seed != seed:
                continue
            trace = self.trace(record)
            positions = next((p for other, p in classes if other == trace), None)
            if positions is None:
                positions = set()
                classes.append((trace, positions))
            positions.add(position)
            ends[position] = trace
        good, bad = ends.get(GOOD, ()), ends.get(self._bad, ())
        at_bad = {epoch.number: epoch.values.get(self._metric) for epoch in bad}
        parted = next(
            (
                e.number
                for e in good
                if bad and e.values.get(self._metric, at_bad.get(e.number)) != at_bad.get(e.number)
            ),
            math.inf,
        )
        return classes, lambda part: any(
            epoch.number >= parted and self._metric in epoch.values for epoch in part
        )
