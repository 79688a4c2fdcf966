"""Where a metric's level moved over the history: change points with the probability of each and
the set of commits that holds it at 95 %. Knows values by commit and nothing else; environments,
baselines and directions are the caller's.

Long histories (25 commits and more) are those of `long_history`. Short ones are scanned for the
strongest split (`scan`). Values that repeat exactly from commit to commit are worked on as runs;
with few runs every change is simply a fact.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from celedger.stats import scan
from celedger.stats.grouped import Floats, Grouped, Ints
from celedger.stats.long_history import (
    ChangePoint,
    LongHistory,
    Settled,
    long_changes,
    median,
    smallest_set,
)
from celedger.stats.noise import RUNS_FOR_NOISE

SHORT = 25
"""Commits below which the scan of splits serves."""
CONFIRMED = 0.9
"""Posterior probability from which a change counts."""


@dataclass(frozen=True, slots=True)
class Change:
    """`index`: the first commit of the new level (most probable one); `low` and `high`: the first
    and last commit of the 95 % set; `commits`: that set. `before`, `after`: the levels;
    `effect` = after - before."""

    index: int
    probability: float
    low: int
    high: int
    commits: tuple[int, ...]
    before: float
    after: float

    @property
    def effect(self) -> float:
        return self.after - self.before

    @property
    def confirmed(self) -> bool:
        return self.probability >= CONFIRMED


@dataclass(frozen=True, slots=True)
class Changes:
    """`points` in order; `sd` of a commit's value around its level, tails and outliers
    aside (0: exact); `deterministic`:
    every change of value is a fact. `failed`: commits without a finite value."""

    points: tuple[Change, ...]
    sd: float
    deterministic: bool
    failed: tuple[int, ...]


def detect(groups: Sequence[Sequence[float]] | Floats | Grouped) -> Changes:
    """The change points of one metric: `groups[i]` are the values (over seeds and repeats) of
    commit i, oldest first; a plain array holds one value a commit, a matrix one row a commit.
    Values that are not finite are left out; commits with none are `failed`."""
    return detect_many([groups if isinstance(groups, Grouped) else Grouped.of(groups)])[0]


def detect_many(
    series: Sequence[Grouped], cache: MutableMapping[str, Settled] | None = None
) -> list[Changes]:
    """`detect` for each of several metrics, side by side. `cache`: what earlier answers derived,
    by a hash of what it was derived from; what is derived now is added."""
    looks = [_Look(groups) for groups in series]
    long = [look for look in looks if look.long]
    answers = long_changes([look.series() for look in long], {} if cache is None else cache)
    by_look = dict(zip(map(id, long), answers, strict=True))
    return [look.changes(by_look.get(id(look))) for look in looks]


class _Look:
    """One metric's history as its kind wants it: what it is worked on with, and the answer."""

    def __init__(self, groups: Grouped) -> None:
        finite = groups.finite()
        counts, means = finite.sizes, finite.means()
        self._failed = tuple(np.flatnonzero(counts == 0).tolist())
        self._present = np.flatnonzero(counts > 0)
        self._groups = finite.groups_where(counts > 0)
        means = means[self._present]
        steps = np.diff(means)
        self._starts = np.arange(means.size)
        self._repeats = bool(steps.size and np.count_nonzero(steps == 0) > steps.size / 2)
        if self._repeats:
            self._starts = np.flatnonzero(np.concatenate(([True], steps != 0)))
        self._values = means[self._starts]

    @property
    def long(self) -> bool:
        return self._values.size >= SHORT

    def series(self) -> LongHistory:
        counts = self._groups.sizes
        dof = np.cumsum(counts - 1)
        within = np.cumsum(self._groups.squares()) / np.maximum(dof, 1)
        lasts = np.append(self._starts[1:], counts.size) - 1
        return LongHistory(self._values, counts[self._starts], within[lasts])

    def changes(self, answer: tuple[tuple[ChangePoint, ...], float] | None) -> Changes:
        """Return the answer, given that of a long history."""
        x, places = self._values, self._present[self._starts]
        if answer is not None:
            points, sd = answer
        elif self._repeats and x.size < RUNS_FOR_NOISE:
            facts = tuple(ChangePoint(i, 1.0, (i,)) for i in range(1, x.size))
            return Changes(_report(facts, x, places), 0.0, True, self._failed)
        elif x.size < 3:
            return Changes((), math.nan, False, self._failed)
        else:
            points, sd = _short(x, None if self._repeats else self._groups.split())
        return Changes(_report(points, x, places), sd, False, self._failed)


def _report(at: Sequence[ChangePoint], values: Floats, commits: Ints) -> tuple[Change, ...]:
    """Levels of the segments, and positions turned into commits."""
    cuts = [0, *(p.index for p in at), values.size]
    medians = [median(values[a:b]) for a, b in pairwise(cuts)]
    points = []
    for i, p in enumerate(at):
        members = tuple(commits[list(p.members)].tolist())
        points.append(
            Change(
                int(commits[p.index]), p.probability, min(members), max(members), members,
                medians[i], medians[i + 1],
            )
        )  # fmt: skip
    return tuple(points)


# Short histories ----------------------------------------------------------------------------


def _short(means: Floats, parts: list[Floats] | None) -> tuple[tuple[ChangePoint, ...], float]:
    """Splits by the strongest t, recursively. All the seeds' values count, unless commits differ
    by more than their seeds explain; then their means do."""
    if parts is None or min(p.size for p in parts) < 2 or _noisy_commits(means, parts):
        parts = [np.array([m]) for m in means]
    counts = np.array([p.size for p in parts], dtype=np.int64)
    centre = float(np.median(means))
    sums = np.array([float((p - centre).sum()) for p in parts])
    squares = np.array([float(((p - centre) ** 2).sum()) for p in parts])
    points: list[ChangePoint] = []
    pending = [(0, means.size)]
    while pending:
        a, b = pending.pop()
        if b - a < 2:
            continue
        at, t, logs = scan.strongest_split(sums[a:b], squares[a:b], counts[a:b])
        trials = max(1, int(np.median(counts[a:b])))
        if at == 0 or t <= scan.limit(b - a, trials):
            continue
        mass = np.exp(logs - logs.max())
        sure = scan.probability(scan.p_value(t, b - a, trials))
        members = a + smallest_set(mass / mass.sum())
        points.append(ChangePoint(a + at, sure, tuple(members.tolist())))
        pending += [(a, a + at), (a + at, b)]
    points.sort(key=lambda f: f.index)
    cuts = np.split(np.concatenate(parts), np.cumsum(counts)[[f.index - 1 for f in points]])
    dof = sum(c.size - 1 for c in cuts)
    variance = sum(float(((c - c.mean()) ** 2).sum()) for c in cuts) / dof if dof > 0 else math.nan
    return tuple(points), math.sqrt(variance)


def _noisy_commits(means: Floats, parts: list[Floats]) -> bool:
    within = float(np.mean([p.var(ddof=1) / p.size for p in parts]))
    across = 1.4826 * float(np.median(np.abs(np.diff(means)))) / math.sqrt(2)
    return across > 2 * math.sqrt(within)
