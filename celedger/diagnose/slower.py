"""What got slower between two commits, and by how much: profiles of both, run in turns, compared
phase by phase and operator by operator. Every table's rows add up to the whole difference; what
the rows do not account for is a row of its own. The noise is that of the repeats of one side.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np
from scipy.stats import t as student

from celedger.diagnose.profile import PYTHON, WAITS, Profile, Wait
from celedger.diagnose.stalls import Stall

# A difference counts beyond Student's limit for this confidence, two-sided. It is as strict as it
# is because the whole and everything that was added are both tested, for every pair of commits
# that anybody ever asks about.
CONFIDENCE = 0.999
FLOOR = 0.03  # of a step: the suites' own floor for step times; less is not worth knowing
ROW_FLOOR = 0.01  # of a step: of one row
TURNS = "ABBA"  # drift of the machine that is linear in time cancels
TABLES = ("phases", "operators", "functions")

Caused = TypeVar("Caused", Stall, Wait)


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """One part of the difference, seconds a step. `before` and `after` are means over the runs of
    a side, `noise` the standard error of their difference; `beyond_noise`: it does not explain it.
    `calls`: how often a step the operator ran on either side, where every run agreed."""

    name: str
    where: str
    before: float
    after: float
    noise: float
    beyond_noise: bool = False
    calls: tuple[float, float] | None = None

    @property
    def difference(self) -> float:
        return self.after - self.before

    @property
    def change(self) -> str:
        """Whether the operator is new, gone, called more or less often, or just slower."""
        if self.calls is None or self.calls[0] == self.calls[1]:
            return ""
        if self.calls[0] == 0:
            return "added"
        return "removed" if self.calls[1] == 0 else "calls"


@dataclass(frozen=True, slots=True)
class SpeedComparison:
    """`tables`: rows by phase, operator and function, each of which adds up to `whole`. `added`:
    the rows of operators that only one side runs, or one runs more often, together."""

    whole: SpeedRow
    added: SpeedRow
    tables: dict[str, list[SpeedRow]]
    stalls: list[Stall]  # of the second side, none of whose cause is on the first
    waits: list[Wait]  # the same of lines that ask a tensor for a plain value
    runs: int  # a side

    @property
    def verdict(self) -> str:
        """It rests on the whole, else on what was added where that is within noise."""
        row = self.whole if self.whole.beyond_noise else self.added
        if not row.beyond_noise:
            return "same"
        return "slower" if row.difference > 0 else "faster"


def compare(before: Sequence[Profile], after: Sequence[Profile]) -> SpeedComparison:
    """Compare the same number of profiles, at least two, of either side."""
    runs, sides = len(before), (before, after)
    wholes = [[_whole(run) for run in side] for side in sides]
    step = float(np.mean(wholes[0]))
    whole = _row("step", "", wholes, FLOOR * step)
    tables = {name: _table(name, before, after, ROW_FLOOR * step) for name in TABLES}
    changed = [row for row in tables["operators"] if row.change and row.name != PYTHON]
    added = total("added or removed", changed)
    beyond = abs(added.difference) > max(limit(runs) * added.noise, FLOOR * step)
    for rows in tables.values():  # last comes what makes them add up
        rest = total("", rows)
        rows.append(
            SpeedRow(
                "remainder", "", whole.before - rest.before, whole.after - rest.after, whole.noise
            )
        )
    return SpeedComparison(
        whole=whole,
        added=SpeedRow(added.name, "", added.before, added.after, added.noise, beyond),
        tables=tables,
        stalls=_new(*([run.stalls.caused for run in side] for side in sides)),
        waits=_new(
            *([[w for w in run.waits if w.times >= WAITS] for run in side] for side in sides)
        ),
        runs=runs,
    )


@cache
def limit(runs: int) -> float:
    """Standard errors beyond which a difference of two means of so many runs counts."""
    return float(student.ppf(0.5 + CONFIDENCE / 2, 2 * (runs - 1)))


def total(name: str, rows: Iterable[SpeedRow], where: str = "") -> SpeedRow:
    """Rows together; their errors as if independent."""
    rows = list(rows)
    calls = [row.calls for row in rows if row.calls is not None]
    return SpeedRow(
        name, where, sum(row.before for row in rows), sum(row.after for row in rows),
        math.sqrt(sum(row.noise**2 for row in rows)), any(row.beyond_noise for row in rows),
        (sum(a for a, _ in calls), sum(b for _, b in calls)) if len(calls) == len(rows) else None,
    )  # fmt: skip


def _stalled(profile: Profile) -> float:
    return sum(stall.seconds for stall in profile.stalls.caused) / len(profile.steps.own)


def _whole(profile: Profile) -> float:
    """Seconds of a usual step, with its part of stalls and evaluations."""
    usual = float(np.median(profile.steps.own))
    return usual + _stalled(profile) + sum(profile.evaluation) / profile.count


def _parts(table: str, profile: Profile) -> Iterator[tuple[str, str, float, float]]:
    """Name, place, seconds and calls a step of what a table is made of."""
    if table == "phases":
        for name, values in profile.steps.times.items():
            yield name, "", float(np.median(values)), 1.0
        yield "evaluation", "", sum(profile.evaluation) / profile.count, 1.0
        yield "stalls", "", _stalled(profile), 1.0
    elif table == "operators":
        for row in profile.operators:
            module = "" if row.module is None else f" {row.module or 'the model'}"
            yield row.name, f"{row.phase}{module}", row.seconds, row.calls
    else:
        mean = float(profile.steps.own.mean())
        for hot in profile.lines:
            yield hot.line.function, hot.line.file, hot.share * mean, 1.0


def _table(
    table: str, before: Sequence[Profile], after: Sequence[Profile], floor: float
) -> list[SpeedRow]:
    """The rows of both sides, those that differ most first."""
    runs = [*before, *after]
    seconds: dict[tuple[str, str], np.ndarray] = defaultdict(lambda: np.zeros(len(runs)))
    calls: dict[tuple[str, str], np.ndarray] = defaultdict(lambda: np.zeros(len(runs)))
    for number, run in enumerate(runs):
        for name, where, spent, times in _parts(table, run):
            seconds[name, where][number] += spent
            calls[name, where][number] += times
    rows = []
    for key, values in seconds.items():
        a, b = np.split(calls[key], [len(before)])
        agreed = table == "operators" and np.ptp(a) == 0 and np.ptp(b) == 0
        pair = (float(a[0]), float(b[0])) if agreed else None
        rows.append(_row(*key, np.split(values, [len(before)]), floor, pair))
    return sorted(rows, key=lambda row: -abs(row.difference))


def _row(
    name: str,
    where: str,
    sides: Sequence[Sequence[float] | np.ndarray],
    floor: float,
    calls: tuple[float, float] | None = None,
) -> SpeedRow:
    a, b = map(np.asarray, sides)
    noise = math.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
    beyond = bool(abs(b.mean() - a.mean()) > max(limit(len(a)) * noise, floor))
    return SpeedRow(name, where, float(a.mean()), float(b.mean()), noise, beyond, calls)


def _new(before: Sequence[Sequence[Caused]], after: Sequence[Sequence[Caused]]) -> list[Caused]:
    """Those of more than half of the runs after, by a cause that no run before has."""
    old = {one.cause for run in before for one in run}
    new: dict[object, list[Caused]] = defaultdict(list)
    for run in after:
        for cause, one in {one.cause: one for one in run}.items():
            new[cause].append(one)
    return [
        same[0] for cause, same in new.items() if cause not in old and len(same) > len(after) / 2
    ]
