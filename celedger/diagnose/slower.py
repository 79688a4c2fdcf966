"""What got slower between two commits, and by how much: profiles of both, run in turns, compared
phase by phase and operator by operator. Every table's rows add up to the whole difference; what
the rows do not account for is a row of its own. The noise is that of the repeats of one side.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy.stats import t as student

from celedger.diagnose.profile import PHASES, PYTHON, WAITS, Profile, Wait
from celedger.diagnose.stalls import Stall

# A difference counts beyond Student's limit for this confidence, two-sided. It is as strict as it
# is because the whole and everything that was added are both tested, for every pair of commits
# that anybody ever asks about.
CONFIDENCE = 0.999
FLOOR = 0.03  # of a step: the suites' own floor for step times; less is not worth knowing
ROW_FLOOR = 0.01  # of a step: of one row
TURNS = "ABBA"  # drift of the machine that is linear in time cancels
REMAINDER, STALLS, EVALUATION = "remainder", "stalls", "evaluation"

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class SpeedRow:
    """One part of the difference, seconds a step. `before` and `after` are means over the runs of
    a side, `noise` the standard error of their difference; `beyond`: noise does not explain it.
    `calls`: how often a step the operator ran on either side, where every run agreed."""

    name: str
    where: str
    before: float
    after: float
    noise: float
    beyond: bool
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
    """`phases`, `operators` and `functions` each add up to `whole`. `added`: the rows of operators
    that only one side runs, or one runs more often, together."""

    whole: SpeedRow
    added: SpeedRow
    phases: tuple[SpeedRow, ...]
    operators: tuple[SpeedRow, ...]
    functions: tuple[SpeedRow, ...]
    stalls: tuple[Stall, ...]  # of the second side, none of whose cause is on the first
    waits: tuple[Wait, ...]  # the same of lines that ask a tensor for a plain value
    runs: int  # a side

    @property
    def slower(self) -> bool:
        return self._told.beyond and self._told.difference > 0

    @property
    def faster(self) -> bool:
        return self._told.beyond and self._told.difference < 0

    @property
    def _told(self) -> SpeedRow:
        """What the verdict rests on: the whole, else what was added where that is within noise."""
        return self.whole if self.whole.beyond else self.added


def compare(before: Sequence[Profile], after: Sequence[Profile]) -> SpeedComparison:
    """The same number of profiles, at least two, of either side."""
    step = float(np.mean([_whole(profile) for profile in before]))
    whole = _row("step", "", [_whole(p) for p in before], [_whole(p) for p in after], FLOOR * step)
    phases = _rows(before, after, _phases, step, lambda key: (key, ""))
    operators = _rows(before, after, _operators, step, lambda key: (key[0], key[1]), _calls)
    functions = _rows(before, after, _functions, step, lambda key: (key[1], key[0]))
    changed = [row for row in operators if row.change and row.name != PYTHON]
    ours = {_cause(stall) for profile in before for stall in profile.stalls.found}
    seen: dict[object, list[Stall]] = defaultdict(list)
    for profile in after:
        for stall in profile.stalls.found:
            seen[_cause(stall)].append(stall)
    return SpeedComparison(
        whole=whole,
        added=_sum("added or removed", changed, FLOOR * step, len(before)),
        phases=_complete(phases, whole),
        operators=_complete(operators, whole),
        functions=_complete(functions, whole),
        stalls=tuple(
            stalls[0]
            for cause, stalls in seen.items()
            if cause not in ours and len(stalls) > len(after) / 2
        ),
        waits=_new_waits(before, after),
        runs=len(before),
    )


def _new_waits(before: Sequence[Profile], after: Sequence[Profile]) -> tuple[Wait, ...]:
    sides = [
        [{_asked(wait): wait for wait in run.waits if wait.times >= WAITS} for run in side]
        for side in (before, after)
    ]
    known = {key for run in sides[0] for key in run}
    return tuple(
        wait
        for key, wait in sides[1][0].items()
        if key not in known and all(key in run for run in sides[1])
    )


def limit(runs: int) -> float:
    """Standard errors beyond which a difference of two means of so many runs counts."""
    return float(student.ppf(0.5 + CONFIDENCE / 2, 2 * (runs - 1)))


def _whole(profile: Profile) -> float:
    """Seconds of a usual step, with its part of stalls and evaluations."""
    return profile.step.median + _stalled(profile) + profile.evaluation / profile.count


def _stalled(profile: Profile) -> float:
    return sum(stall.excess for stall in profile.stalls.found) / len(profile.steps)


def _phases(profile: Profile) -> dict[str, float]:
    found = {name: float(np.median(profile.times[name])) for name in PHASES}
    found[EVALUATION] = profile.evaluation / profile.count
    found[STALLS] = _stalled(profile)
    return found


def _operators(profile: Profile) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = defaultdict(float)
    for row in profile.operators:
        found[row.name, _where(row.phase, row.module)] += row.seconds
    return found


def _calls(profile: Profile) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = defaultdict(float)
    for row in profile.operators:
        found[row.name, _where(row.phase, row.module)] += row.calls
    return found


def _where(phase: str, module: str | None) -> str:
    return phase if module is None else f"{phase} {module or 'the model'}"


def _functions(profile: Profile) -> dict[tuple[str, str], float]:
    """Seconds a step in each function of the user's, by the samples' shares."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for line in profile.lines:
        found[line.place.file, line.place.function] += line.share * float(profile.own.mean())
    return found


def _rows(
    before: Sequence[Profile],
    after: Sequence[Profile],
    read: Callable[[Profile], Mapping[Key, float]],
    step: float,
    name: Callable[[Key], tuple[str, str]],
    count: Callable[[Profile], Mapping[Key, float]] | None = None,
) -> list[SpeedRow]:
    sides = [[read(profile) for profile in side] for side in (before, after)]
    counts = [[count(profile) for profile in side] for side in (before, after)] if count else None
    keys = dict.fromkeys(key for side in sides for run in side for key in run)
    rows = []
    for key in keys:
        values = [[run.get(key, 0.0) for run in side] for side in sides]
        what, where = name(key)
        calls = None
        if counts is not None:
            called = [{run.get(key, 0.0) for run in side} for side in counts]
            if all(len(one) == 1 for one in called):
                calls = called[0].pop(), called[1].pop()
        rows.append(_row(what, where, values[0], values[1], ROW_FLOOR * step, calls))
    return sorted(rows, key=lambda row: -abs(row.difference))


def _row(
    name: str,
    where: str,
    before: Sequence[float],
    after: Sequence[float],
    floor: float,
    calls: tuple[float, float] | None = None,
) -> SpeedRow:
    a, b = np.asarray(before), np.asarray(after)
    noise = math.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
    difference = float(b.mean() - a.mean())
    beyond = abs(difference) > max(limit(len(a)) * noise, floor)
    return SpeedRow(name, where, float(a.mean()), float(b.mean()), noise, beyond, calls)


def _sum(name: str, rows: Sequence[SpeedRow], floor: float, runs: int) -> SpeedRow:
    """Rows together; their errors as if independent."""
    noise = math.sqrt(sum(row.noise**2 for row in rows))
    before, after = sum(row.before for row in rows), sum(row.after for row in rows)
    beyond = abs(after - before) > max(limit(runs) * noise, floor)
    return SpeedRow(name, "", before, after, noise, beyond)


def _complete(rows: Sequence[SpeedRow], whole: SpeedRow) -> tuple[SpeedRow, ...]:
    """The rows, and last what makes them add up to the whole."""
    before = whole.before - sum(row.before for row in rows)
    after = whole.after - sum(row.after for row in rows)
    return (*rows, SpeedRow(REMAINDER, "", before, after, whole.noise, beyond=False))


def _asked(wait: Wait) -> tuple[str, str, str]:
    return wait.method, wait.place.file, wait.place.function


def _cause(stall: Stall) -> object:
    place = stall.place
    return stall.collector, stall.phase, place and (place.file, place.function)
