"""Same bits, same side: trials of one seed that agree to the last bit computed the same thing.

Two trials agree when the metric in question does at every epoch and, to rule out chance, so do
their fingerprints, or enough values too fine to agree by chance. A fingerprint alone proves
nothing of a metric: a commit that breaks the evaluation leaves every parameter as it was. And the
values alone see through a commit that only renames a parameter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from celedger.bisection.symptom import Symptom
from celedger.ledger import Ledger
from celedger.model import Direction, Kind, TrialRecord

# A loss in full precision agrees by chance about never; an accuracy over a few hundred samples
# does. Values with more than six significant digits are fine, and three of them suffice:
# independent trials would agree in all with a probability under 10^-18.
_DIGITS = 6
_ENOUGH = 3

Key = tuple[object, ...]


class Bits:
    """Remembers what each trial's bits are; the ledger is asked once a trial."""

    def __init__(self, ledger: Ledger, symptom: Symptom) -> None:
        self._ledger = ledger
        self._metric = symptom.name
        self._metrics = [
            m.name
            for m in symptom.task.metrics
            if m.kind is Kind.QUALITY and m.direction is not Direction.INFO
        ]
        self._keys: dict[str, tuple[Key, ...]] = {}
        self._draws: dict[Key, int] = {}

    def sides(
        self, records: Iterable[tuple[int, TrialRecord]], good: int, bad: int
    ) -> dict[int, str]:
        """Of (position, trial) pairs, the positions that repeat one of the ends, and only one."""
        ends: dict[Key, set[str]] = {}
        whole = [(position, r) for position, r in records if r.ok and not r.early_stopped]
        seen = [(position, key) for position, r in whole for key in self.keys(r)]
        for position, key in seen:
            if position in (good, bad):
                ends.setdefault(key, set()).add("good" if position == good else "bad")
        found: dict[int, set[str]] = {}
        for position, key in seen:
            if position not in (good, bad):
                found.setdefault(position, set()).update(ends.get(key, ()))
        return {position: next(iter(s)) for position, s in found.items() if len(s) == 1}

    def draw(self, record: TrialRecord) -> int | None:
        """A number that the trials share which computed the same; None where nothing is sure."""
        keys = self.keys(record) if record.ok else ()
        return self._draws.setdefault(keys[-1], len(self._draws)) if keys else None

    def keys(self, record: TrialRecord) -> tuple[Key, ...]:
        """What a trial must share with another to have computed the same."""
        ulid = record.trial.ulid
        if ulid not in self._keys:
            seed = record.trial.seed
            prints = tuple(sorted(self._ledger.fingerprints(ulid).items()))
            every = self._ledger.series(ulid)
            values = tuple(
                (name, *point) for name in self._metrics for point in every.get(name, ())
            )
            own = tuple(every.get(self._metric, ()))
            keys: list[Key] = [("fingerprint", seed, *prints, *own)] if prints and own else []
            if own and fine([value for _, _, value in values]):
                keys.append(("values", seed, *own, *values))
            self._keys[ulid] = tuple(keys)
        return self._keys[ulid]


def fine(values: Sequence[float], enough: int = _ENOUGH) -> bool:
    """Whether independent trials would not agree in so many digits by chance."""
    exact = {v for v in values if math.isfinite(v) and float(f"{v:.{_DIGITS}g}") != v}
    return len(exact) >= enough
