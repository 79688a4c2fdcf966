"""Where a metric's level moved over the history: change points with the probability of each and
the set of commits that holds it at 95 %. Knows values by commit and nothing else; environments,
baselines and directions are the caller's.

Long histories (25 commits and more) are those of `long_history`. Short ones are scanned for the
strongest split, against limits simulated for that many commits and trials. Values that repeat
exactly from commit to commit are worked on as runs; with few runs every change is simply a fact.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from celedger.stats.arrays import Floats, Ints
from celedger.stats.grouped_values import Grouped
from celedger.stats.long_history import (
    ChangePoint,
    LongHistory,
    Settled,
    long_changes,
    smallest_set,
)
from celedger.stats.noise import RUNS_FOR_NOISE
from celedger.stats.tails import t_tail

SHORT = 25
"""Commits below which the scan of splits serves."""
CONFIRMED = 0.9
"""Posterior probability from which a change counts."""
LEVEL = 0.003
"""Share of short histories without a change in which the scan sees one. A young history is looked
at anew with every commit, in every metric: one in a hundred would be one a week."""
SIMULATED = 20_000


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
    """`points` in order; `sd` of a commit's value around its level, tails and outliers aside
    (0: exact); `deterministic`: every change of value is a fact. `failed`: commits without a
    finite value."""

    points: tuple[Change, ...]
    sd: float
    deterministic: bool
    failed: tuple[int, ...]


def detect(
    values: Sequence[Sequence[float]] | Floats | Grouped,
    cache: MutableMapping[str, Settled] | None = None,
) -> Changes:
    """Return the change points of one metric: a group of values (over seeds and repeats) for each
    commit, oldest first; a plain array holds one value a commit, a matrix one row a commit.

    Values that are not finite are left out; commits with none are `failed`. `cache`: what earlier
    answers derived, by a hash of what it was derived from; what is derived now is added.
    """
    finite = (values if isinstance(values, Grouped) else Grouped.of(values)).finite()
    present = np.flatnonzero(finite.sizes)
    failed = tuple(np.flatnonzero(finite.sizes == 0).tolist())
    groups = finite.groups_where(finite.sizes > 0)
    means = groups.means()
    steps = np.diff(means)
    starts = np.arange(means.size)
    repeats = bool(steps.size and np.count_nonzero(steps == 0) > steps.size / 2)
    if repeats:
        starts = np.flatnonzero(np.concatenate(([True], steps != 0)))
    x, exact = means[starts], False
    if x.size >= SHORT:
        points, sd = long_changes(_long(groups, x, starts), {} if cache is None else cache)
    elif repeats and x.size < RUNS_FOR_NOISE:
        points, sd = tuple(ChangePoint(i, 1.0, (i,)) for i in range(1, x.size)), 0.0
        exact = True
    elif x.size < 3:
        points, sd = (), math.nan
    else:
        points, sd = _short(x, None if repeats else groups.split())
    return Changes(_report(points, x, present[starts]), sd, exact, failed)


def _long(groups: Grouped, x: Floats, starts: Ints) -> LongHistory:
    counts = groups.sizes
    within = np.cumsum(groups.squares()) / np.maximum(np.cumsum(counts - 1), 1)
    lasts = np.append(starts[1:], counts.size) - 1
    return LongHistory(x, counts[starts], within[lasts])


def _report(at: Sequence[ChangePoint], values: Floats, commits: Ints) -> tuple[Change, ...]:
    """Return the changes with the levels of the segments, by commit."""
    cuts = [0, *(p.index for p in at), values.size]
    medians = [float(np.median(values[a:b])) for a, b in pairwise(cuts)] if at else []
    points = []
    for (before, after), p in zip(pairwise(medians), at, strict=True):
        among = tuple(commits[list(p.members)].tolist())
        index = int(commits[p.index])
        points.append(Change(index, p.probability, min(among), max(among), among, before, after))
    return tuple(points)


# Short histories ----------------------------------------------------------------------------


def _short(means: Floats, parts: list[Floats] | None) -> tuple[tuple[ChangePoint, ...], float]:
    """Split by the strongest t, recursively. All the seeds' values count, unless commits differ
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
        t, within = split_t(sums[a:b], squares[a:b].sum(), counts[a:b])
        trials = max(1, int(np.median(counts[a:b])))
        at = int(np.argmax(t))
        if t[at] <= limit(b - a, trials):
            continue
        total = int(counts[a:b].sum())
        logs = np.where(t > 0, -(total - 2) / 2 * np.log(np.maximum(within, 1e-300)), -np.inf)
        mass = np.exp(logs - logs.max())
        # At most the probability of so strong a split without a change (Bonferroni over splits).
        p_value = min(1.0, (b - a - 1) * 2 * t_tail(float(t[at]), (b - a) * trials - 2))
        members = a + 1 + smallest_set(mass / mass.sum())
        points.append(ChangePoint(a + at + 1, _probability(p_value), tuple(members.tolist())))
        pending += [(a, a + at + 1), (a + at + 1, b)]
    points.sort(key=lambda f: f.index)
    cuts = np.split(np.concatenate(parts), np.cumsum(counts)[[f.index - 1 for f in points]])
    dof = sum(c.size - 1 for c in cuts)
    variance = sum(float(((c - c.mean()) ** 2).sum()) for c in cuts) / dof if dof > 0 else math.nan
    return tuple(points), math.sqrt(variance)


def _noisy_commits(means: Floats, parts: list[Floats]) -> bool:
    within = float(np.mean([p.var(ddof=1) / p.size for p in parts]))
    across = 1.4826 * float(np.median(np.abs(np.diff(means)))) / math.sqrt(2)
    return across > 2 * math.sqrt(within)


def split_t(sums: Floats, squares: Floats | float, counts: Ints) -> tuple[Floats, Floats]:
    """Return |t| of a split after each commit but the last, and the sum of squares it leaves.

    Histories are given by the `sums` of each commit's values in the last axis, the sum of all
    `squares`, and the number of values of each commit. Values must be centred. A side needs two
    values at least; t is 0 where it has fewer.
    """
    left_n, n = np.cumsum(counts)[:-1], int(counts.sum())
    cumulated = np.cumsum(sums, axis=-1)
    left, every = cumulated[..., :-1], cumulated[..., -1:]
    gain = left**2 / left_n + (every - left) ** 2 / (n - left_n) - every**2 / n
    within = np.asarray(squares)[..., None] - every**2 / n - gain
    with np.errstate(over="ignore"):  # t is infinite where a split leaves nothing
        t = np.sqrt(np.maximum(gain, 0) * (n - 2) / np.maximum(within, 1e-300))
    return np.where((left_n >= 2) & (n - left_n >= 2), t, 0.0), within


@lru_cache(maxsize=512)
def limit(commits: int, trials: int) -> float:
    """Return the |t| that the strongest split of `commits` commits with `trials` values each
    exceeds in LEVEL of the histories without a change (normal noise, simulated once per process,
    always with the same seed)."""
    x = np.random.default_rng([commits, trials]).standard_normal((SIMULATED, commits, trials))
    t, _ = split_t(x.sum(axis=2), (x**2).sum(axis=(1, 2)), np.full(commits, trials))
    return float(np.quantile(t.max(axis=1), 1 - LEVEL)) or math.inf


def _probability(p: float) -> float:
    """Return the probability of a change, from a p-value: the bound of Sellke, Bayarri and Berger
    (2001) on the Bayes factor, -e p log p, at even odds before."""
    if p <= 0:
        return 1.0
    if p >= 1 / math.e:
        return 0.5
    return 1 / (1 - math.e * p * math.log(p))
