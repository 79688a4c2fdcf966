"""Equal curves: when the epochs of a running trial tell a bisect enough.

Two trials of one seed that agree in every bit so far, past the epoch at which the two ends part,
are taken for the same trial: the one that is still running need not go on. Reads series and
fingerprints from the ledger, once a trial; runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from celedger.bisection.bits import fine
from celedger.bisection.symptom import Symptom
from celedger.ledger import Ledger
from celedger.model import Direction, Kind, TrialRecord
from celedger.stats.lineage import GOOD


@dataclass(frozen=True, slots=True)
class Epoch:
    """What was computed in one epoch, to the last bit."""

    number: int
    fingerprint: str | None
    values: Mapping[str, float]

    def continues(self, whole: Epoch) -> bool:
        """Whether it may be the same epoch, of which not all has been reported yet."""
        return (
            self.number == whole.number
            and self.fingerprint in (None, whole.fingerprint)
            and self.values.items() <= whole.values.items()
        )


Trace = tuple[Epoch, ...]


def agrees(part: Trace, whole: Trace) -> bool:
    """Whether `part` is how `whole` began, and that for sure: by a fingerprint or by values too
    fine to agree by chance. Its last epoch may be half reported."""
    if not part or len(part) > len(whole) or part[:-1] != whole[: len(part) - 1]:
        return False
    if not part[-1].continues(whole[len(part) - 1]):
        return False
    known = any(epoch.fingerprint for epoch in part)
    return known or fine([v for epoch in part for v in epoch.values.values()])


def parted(good: Trace, bad: Trace, metric: str) -> int | None:
    """The first epoch at which the metric differs between two trials."""
    at_bad = {epoch.number: epoch.values.get(metric) for epoch in bad}
    return next(
        (e.number for e in good if metric in e.values and e.values[metric] != at_bad.get(e.number)),
        None,
    )


def twin(
    part: Trace, wholes: Sequence[Trace], good: Trace, bad: Trace, metrics: Sequence[str]
) -> Trace | None:
    """The whole trial of the same seed that `part` is taken for, None while that is not sure:
    the ends (`good`, `bad`) must have parted in every one of `metrics`, and all whole trials
    that began like it must have ended alike."""
    alike = [whole for whole in wholes if agrees(part, whole)]
    if not alike or any(other != alike[0] for other in alike):
        return None
    return alike[0] if past(part, good, bad, metrics) else None


def past(part: Trace, good: Trace, bad: Trace, metrics: Sequence[str]) -> bool:
    """Whether `part` went so far that the ends have parted in every one of `metrics`."""
    for metric in metrics:
        first = parted(good, bad, metric)
        if first is None or not any(e.number >= first and metric in e.values for e in part):
            return False
    return True


class Curves:
    """The traces of a task's trials, and what they say of one or several of its metrics."""

    def __init__(self, ledger: Ledger, symptoms: Sequence[Symptom]) -> None:
        self._ledger = ledger
        self._symptoms = symptoms
        watched = {s.name for s in symptoms}
        self._names = {
            m.name
            for m in symptoms[0].task.metrics
            if m.name in watched or (m.kind is Kind.QUALITY and m.direction is not Direction.INFO)
        }
        self._traces: dict[str, Trace] = {}

    @property
    def decide(self) -> bool:
        """Whether epochs can decide at all: speed, memory and crashes want whole trials."""
        return all(s.bits_decide for s in self._symptoms)

    def trace(self, record: TrialRecord) -> Trace:
        """Of a trial that has ended."""
        ulid = record.trial.ulid
        if ulid not in self._traces:
            self._traces[ulid] = self.read(ulid)
        return self._traces[ulid]

    def read(self, ulid: str) -> Trace:
        """Of a trial as far as it is in the ledger now."""
        prints = self._ledger.fingerprints(ulid)
        values: dict[int, dict[str, float]] = {}
        for name, points in self._ledger.series(ulid).items():
            if name in self._names:
                for number, value in points:
                    values.setdefault(number, {})[name] = value
        numbers = sorted(values.keys() | prints.keys())
        return tuple(Epoch(n, prints.get(n), values.get(n, {})) for n in numbers)

    def enough(self, placed: Placed, seed: int) -> Callable[[Trace], str]:
        """Return a test of a running trial of this seed: why it has told enough, or nothing."""
        same = self.twins(placed, seed)

        def enough(part: Trace) -> str:
            if same(part) is None:
                return ""
            return f"computed the same as another trial up to epoch {part[-1].number}"

        return enough

    def twins(self, placed: Placed, seed: int) -> Callable[[Trace], Trace | None]:
        """Finds the whole trial that one of this seed is taken for."""
        good, bad = self._ends(placed, seed)
        if good is None or bad is None:
            return lambda _: None
        traces = [self.trace(r) for _, r in placed.whole(seed)]
        names = [s.name for s in self._symptoms]
        return lambda part: twin(part, traces, good, bad, names)

    def fellows(self, placed: Placed, alike: Sequence[frozenset[int]], position: int) -> set[int]:
        """The positions known to compute the same as this one: a seed tried at any of them would
        tell nothing here."""
        found = {position}.union(*(places for places in alike if position in places))
        own = [(r.trial.seed, self.trace(r)) for p, r in placed.whole() if p == position]
        for other, record in placed.whole():
            if (record.trial.seed, self.trace(record)) in own:
                found.add(other)
        return found

    def alike(self, placed: Placed) -> tuple[frozenset[int], ...]:
        """Return the positions that lie on one side because they computed the same."""
        groups: list[frozenset[int]] = []
        for seed in sorted({r.trial.seed for _, r in placed.stopped}):
            classes: list[tuple[Trace, set[int]]] = []
            whole = [(p, self.trace(r)) for p, r in placed.whole(seed)]
            past_parting = self._past(placed, seed)
            same = self.twins(placed, seed)
            stopped = [(p, self.trace(r)) for p, r in placed.stopped if r.trial.seed == seed]
            # The longest first: it stands for those that began like it.
            for position, part in sorted(stopped, key=lambda pair: -len(pair[1])):
                trace = same(part)
                if trace is not None:
                    members = next((c for t, c in classes if t == trace), None)
                    equals = {p for p, other in whole if other == trace}
                else:
                    trace, equals = part, set()
                    alike = [c for t, c in classes if past_parting(part) and agrees(part, t)]
                    members = alike[0] if len(alike) == 1 else None
                if members is None:
                    members = set()
                    classes.append((trace, members))
                members.update(equals, {position})
            groups += [frozenset(members) for _, members in classes]
        return tuple(g for g in dict.fromkeys(groups) if len(g) > 1)

    def _past(self, placed: Placed, seed: int) -> Callable[[Trace], bool]:
        """Whether a trial of this seed went past the epoch at which the ends part."""
        good, bad = self._ends(placed, seed)
        names = [s.name for s in self._symptoms]
        if good is None or bad is None:
            return lambda _: False
        return lambda part: past(part, good, bad, names)

    def _ends(self, placed: Placed, seed: int) -> tuple[Trace | None, Trace | None]:
        at = {p: self.trace(r) for p, r in placed.whole(seed) if p in (GOOD, placed.bad)}
        return at.get(GOOD), at.get(placed.bad)


@dataclass(frozen=True, slots=True)
class Placed:
    """The trials of a range with their positions, whole ones and those that were stopped."""

    bad: int
    records: tuple[tuple[int, TrialRecord], ...]
    stopped: tuple[tuple[int, TrialRecord], ...] = field(init=False)

    def __post_init__(self) -> None:
        stopped = tuple((p, r) for p, r in self.records if r.early_stopped)
        object.__setattr__(self, "stopped", stopped)

    def whole(self, seed: int | None = None) -> list[tuple[int, TrialRecord]]:
        return [
            (p, r)
            for p, r in self.records
            if r.ok and not r.early_stopped and seed in (None, r.trial.seed)
        ]
