"""Where a metric's level moved over the history: change points with the probability of each and
the set of commits that holds it at 95 %. Knows values by commit and nothing else; environments,
baselines and directions are the caller's.

Long histories (25 commits and more) go through an exact robust segmentation (`segments`), a
posterior for each candidate, and a Welch test that prunes what its neighbours do not support.
Short ones are scanned for the strongest split (`scan`). Values that repeat exactly from commit to
commit are worked on as runs; with few runs every change is simply a fact. Every constant is from
drift.md, section 4, where alternatives were measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import percentile_filter
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from celedger.stats import scan, segments
from celedger.stats.noise import RUNS_FOR_NOISE, of_differences

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SHORT = 25
"""Commits below which the scan of splits serves."""
LIKELY = 0.5
CONFIRMED = 0.9
"""Posterior probabilities from which a change is reported, and from which it counts."""
SET_MASS = 0.95
PRUNED_ABOVE = 1e-4
SIDE = 120
"""Commits a side that the pruning test looks at."""
SIDE_DOF = 8.0
"""Weight, in degrees of freedom, of the general scale in a side's variance."""
WINSOR = 4.0
"""Scaled median absolute deviations at which a side's values are cut for the pruning test."""
WINDOW = 101
"""Commits over which the noise may be larger or smaller than elsewhere."""
QUANTILES = (40, 55, 70)
DEAD_ZONE = 0.25
"""Relative (log) change of the noise that is taken for chance, at least."""
PASSES = 3
SEED = 12345  # of the shuffle that shows the local scale's own chance


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


@dataclass(frozen=True, slots=True)
class _Found:
    """A change by position among the values at hand, not yet among the commits."""

    index: int
    probability: float
    members: Ints  # the 95 % set


def detect(groups: Sequence[Sequence[float]] | Floats) -> Changes:
    """The change points of one metric: `groups[i]` are the values (over seeds and repeats) of
    commit i, oldest first; a plain array holds one value a commit, a matrix one row a commit.
    Values that are not finite are left out; commits with none are `failed`."""
    means, counts, spread, by_commit = _summaries(groups)
    present = np.flatnonzero(counts > 0)
    failed = tuple(np.flatnonzero(counts == 0).tolist())
    x = means[present]
    steps = np.diff(x)
    starts = np.arange(x.size)
    repeats = bool(steps.size and np.count_nonzero(steps == 0) > steps.size / 2)
    if repeats:
        starts = np.flatnonzero(np.concatenate(([True], steps != 0)))
        if starts.size < RUNS_FOR_NOISE:
            facts = [_Found(int(i), 1.0, np.array([i])) for i in range(1, starts.size)]
            return Changes(_report(facts, x[starts], present[starts]), 0.0, True, failed)
    if starts.size < 3:
        return Changes((), math.nan, False, failed)
    values = x[starts]
    if values.size < SHORT:
        parts = [by_commit[present[i]] for i in starts] if not repeats else None
        found, sd = _short(values, parts)
    else:
        found, sd = _long(values, counts[present][starts], spread)
    return Changes(_report(found, values, present[starts]), sd, False, failed)


def _summaries(
    groups: Sequence[Sequence[float]] | Floats,
) -> tuple[Floats, Ints, float, list[Floats]]:
    """(mean by commit, finite values by commit, variance within commits, the finite values)"""
    if isinstance(groups, np.ndarray) and groups.ndim == 1:
        finite = np.isfinite(groups)
        few = [groups[i : i + 1][finite[i : i + 1]] for i in range(groups.size)]
        return (
            groups.astype(float),
            finite.astype(np.int64),
            0.0,
            few if groups.size < SHORT else [],
        )
    kept = []
    for group in groups:
        array = np.asarray(group, dtype=float)
        kept.append(array[np.isfinite(array)])
    counts = np.array([g.size for g in kept], dtype=np.int64)
    means = np.array([g.mean() if g.size else math.nan for g in kept])
    dof = int((counts[counts > 1] - 1).sum())
    squares = sum(float(((g - g.mean()) ** 2).sum()) for g in kept if g.size > 1)
    return means, counts, squares / dof if dof else 0.0, kept


def _report(found: list[_Found], values: Floats, commits: Ints) -> tuple[Change, ...]:
    """Levels of the segments, and positions turned into commits."""
    cuts = [0, *(f.index for f in found), values.size]
    medians = [float(np.median(values[a:b])) for a, b in pairwise(cuts)]
    points = []
    for i, f in enumerate(found):
        members = tuple(commits[f.members].tolist())
        points.append(
            Change(
                int(commits[f.index]), f.probability, min(members), max(members), members,
                medians[i], medians[i + 1],
            )
        )  # fmt: skip
    return tuple(points)


# Short histories ----------------------------------------------------------------------------


def _short(means: Floats, parts: list[Floats] | None) -> tuple[list[_Found], float]:
    """Splits by the strongest t, recursively. All the seeds' values count, unless commits differ
    by more than their seeds explain; then their means do."""
    if parts is None or min(p.size for p in parts) < 2 or _noisy_commits(means, parts):
        parts = [np.array([m]) for m in means]
    counts = np.array([p.size for p in parts], dtype=np.int64)
    centre = float(np.median(means))
    sums = np.array([float((p - centre).sum()) for p in parts])
    squares = np.array([float(((p - centre) ** 2).sum()) for p in parts])
    found: list[_Found] = []
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
        found.append(_Found(a + at, sure, a + _smallest_set(mass / mass.sum())))
        pending += [(a, a + at), (a + at, b)]
    found.sort(key=lambda f: f.index)
    cuts = np.split(np.concatenate(parts), np.cumsum(counts)[[f.index - 1 for f in found]])
    dof = sum(c.size - 1 for c in cuts)
    variance = sum(float(((c - c.mean()) ** 2).sum()) for c in cuts) / dof if dof > 0 else math.nan
    return found, math.sqrt(variance)


def _noisy_commits(means: Floats, parts: list[Floats]) -> bool:
    within = float(np.mean([p.var(ddof=1) / p.size for p in parts]))
    across = 1.4826 * float(np.median(np.abs(np.diff(means)))) / math.sqrt(2)
    return across > 2 * math.sqrt(within)


# Long histories -----------------------------------------------------------------------------


def _long(x: Floats, counts: Ints, within: float) -> tuple[list[_Found], float]:
    """Segmentation, posterior, pruning."""
    sd, scale, rho = _scales(x, counts, within)
    if sd == 0:
        return [], 0.0
    loss, changes = segments.Loss(), list[int]()
    for number in range(PASSES):
        before = changes
        grid = segments.Grid.of(x, scale, loss, segments.FINE)
        changes = segments.segment(grid, _penalty(x.size, loss.nu, rho))
        if number == PASSES - 1 or (number > 0 and changes == before):
            break
        residuals = (x - segments.level_of(x, scale, changes, loss)) / scale
        fresh, factor = segments.refit(residuals)
        if fresh == loss and abs(factor - 1) < 0.01:
            break
        loss, scale, sd = fresh, scale * factor, sd * factor
    found = _believed(x, scale, loss, changes)
    # The Student scale as the sd of the normal law with the same interquartile range.
    return _pruned(x, scale, found), sd * float(stdtrit(loss.nu, 0.75) / ndtri(0.75))


def _penalty(n: int, nu: float, rho: float, extra: float = 1.0) -> float:
    """What a change costs: 2 log n + extra on normal noise; its quantile carried over to the
    Student loss, whose tails the noise may have; more where neighbours resemble each other."""
    beta = 2 * math.log(n) + extra
    tail = float(stdtrit(0.4 * n, ndtr(-math.sqrt(beta))))
    return tail**2 * (1 + rho) / (1 - rho)


def _scales(x: Floats, counts: Ints, within: float) -> tuple[float, Floats, float]:
    """(general sd, sd of each commit's value, first autocorrelation of the noise)"""
    n = x.size
    differences = np.abs(np.diff(x))
    sd = of_differences(differences)
    if sd == 0:
        return 0.0, np.zeros(n), 0.0
    random = np.random.default_rng(SEED)
    local = _local_logs(differences, sd)
    chance = float(np.std(_local_logs(random.permutation(differences), sd)))
    zone = max(DEAD_ZONE, 3 * chance)
    local = np.sign(local) * np.maximum(np.abs(local) - zone, 0)
    padded = np.concatenate((local[:1], local))  # a difference belongs to its later commit
    half = WINDOW // 2
    earlier = np.concatenate((np.repeat(padded[0], min(half, n)), padded))[:n]
    later = np.concatenate((padded, np.repeat(padded[-1], min(half, n))))[-n:]
    scale = sd * np.exp(np.maximum(padded, np.maximum(earlier, later)))
    rho = _autocorrelation(x)
    scale /= math.sqrt(1 - rho)
    if counts.min() != counts.max() and within > 0:  # more trials, less noise
        extra = within * (1 / counts - float(np.median(1 / counts)))
        scale = np.sqrt(np.maximum(scale**2 + extra, (scale / 3) ** 2))
    return sd / math.sqrt(1 - rho), scale, rho


def _autocorrelation(x: Floats) -> float:
    """First autocorrelation of the noise as differences at several lags show it, less its chance;
    0 where it is not evident. var(x[t+k] - x[t]) is 2 (1 - rho^k). Long lags are sharper, short
    ones cross fewer steps: the smaller answer counts, or a history of many steps would look
    like one of noise that remembers."""
    one, two = (float(np.median(np.abs(x[k:] - x[:-k]))) for k in (1, 2))
    far = float(np.median(np.concatenate([np.abs(x[k:] - x[:-k]) for k in (3, 4, 5, 6)])))
    if one == 0 or far == 0:
        return 0.0
    rho = min(1 - (one / far) ** 2, (two / one) ** 2 - 1) - 2 / math.sqrt(x.size)
    return min(0.9, max(0.0, rho))


def _local_logs(differences: Floats, sd: float) -> Floats:
    """log of the rolling scale over the general one."""
    size = min(WINDOW, differences.size)
    normal = np.mean([ndtri((1 + q / 100) / 2) for q in QUANTILES]) * math.sqrt(2)
    rolling = np.mean(
        [percentile_filter(differences, q, size=size, mode="reflect") for q in QUANTILES], axis=0
    )
    logs: Floats = np.log(np.maximum(rolling / normal / sd, 1e-3))
    return logs


def _believed(x: Floats, scale: Floats, loss: segments.Loss, changes: list[int]) -> list[_Found]:
    """The candidates whose posterior probability is LIKELY at least, at their most probable
    commit, with the 95 % set."""
    if not changes:
        return []
    grid = segments.Grid.of(x, scale, loss, segments.COARSE)
    found = []
    edges = [0, *((a + b + 1) // 2 for a, b in pairwise(changes)), x.size]
    for i, (start, mass) in enumerate(segments.change_mass(grid, changes)):
        a, b = max(edges[i], start), min(edges[i + 1], start + mass.size)
        own = mass[a - start : b - start]
        probability = min(1.0, float(own.sum()))
        if probability >= LIKELY:
            share = own / own.sum()
            found.append(_Found(a + int(own.argmax()), probability, a + _smallest_set(share)))
    return found


def _smallest_set(share: Floats) -> Ints:
    """The fewest positions that hold SET_MASS of a probability distribution."""
    order = np.argsort(-share, kind="stable")
    needed = int(np.searchsorted(np.cumsum(share[order]), SET_MASS * (1 - 1e-12))) + 1
    return np.sort(order[:needed])


def _pruned(x: Floats, scale: Floats, found: list[_Found]) -> list[_Found]:
    """Without the changes that the values next to them do not support, the weakest first."""
    kept = list(found)

    def strength(i: int) -> float:
        a = kept[i - 1].index if i > 0 else 0
        b = kept[i + 1].index if i + 1 < len(kept) else x.size
        return _welch(x, scale, a, kept[i].index, b)

    p_values = [strength(i) for i in range(len(kept))]
    while kept:
        weakest = int(np.argmax(p_values))
        if p_values[weakest] < PRUNED_ABOVE:
            break
        del kept[weakest], p_values[weakest]
        for i in (weakest - 1, weakest):
            if 0 <= i < len(kept):
                p_values[i] = strength(i)
    return kept


def _welch(x: Floats, scale: Floats, a: int, at: int, b: int) -> float:
    """p-value of a change at `at` from the values of its two segments."""
    means, errors, dofs = [], [], []
    for part in (slice(max(a, at - SIDE), at), slice(at, min(b, at + SIDE))):
        side, general = x[part], float(np.median(scale[part]))
        middle = float(np.median(side))
        reach = WINSOR * max(1.4826 * float(np.median(np.abs(side - middle))), 0.5 * general)
        side = np.clip(side, middle - reach, middle + reach)
        squares = float(((side - side.mean()) ** 2).sum()) + SIDE_DOF * general**2
        dof = side.size - 1 + SIDE_DOF
        means.append(float(side.mean()))
        errors.append(squares / dof / side.size)
        dofs.append(dof)
    error = sum(errors)
    dof = error**2 / sum(e * e / d for e, d in zip(errors, dofs, strict=True))
    return 2 * float(stdtr(dof, -abs(means[1] - means[0]) / math.sqrt(error)))
