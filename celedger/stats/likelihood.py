"""How likely readings are: the kinds of noise, what stored repeats of the same code tell of it,
tables of log likelihoods over nodes, and the nodes of levels and scales.

Two unknown sides are integrated out in two passes: a coarse one finds where the mass lies, the
second sums there. All nodes follow the readings' own location and scale, so units never matter.
Differences between commits never enter the noise.

Readings come grouped by position (`Sites`), unknowns as nodes of level, scale and share of
outliers. Knows neither commits nor what is done with the likelihoods.

Model of a reading x at a side with level m, scale s and share of outliers w:

    (1 - w) N(x; m, s) + w q(x)
    plain      q = 1/2 N(x; m, 3 s) + 1/4 Cauchy(x; median, 4 s0) + 1/4 K(x)
    collapse   q = 9/10 N(x; m + D, sqrt(s² + (0.3 s0)²)) + 1/20 Cauchy + 1/20 K

K is the kernel estimate of all other readings, with width 0.8 s0, and s0 their robust scale. A
collapse is weighed only where a position's readings were seen to fall into two modes. It is always
for the worse: where most seeds of a side collapse, the rest is still its level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from celedger.stats import Bools, Floats, Ints
from celedger.stats.tails import chi_square_quantile

Trials = Sequence[tuple[int, float]]
"""Seed and value of each trial of one commit."""

REJECTED_ABOVE = 1e-3
"""A commit's repeats are left out as outliers when their spread has at most this probability,
divided by the number of commits, under the usual noise."""
FEWEST_COMMITS = 4
"""With fewer nothing says which commit is the odd one."""
COARSE = 6
"""Significant digits that a share of a few hundred samples may have."""


@dataclass(frozen=True)
class NoisePrior:
    """Knowledge of one trial's sd besides the readings of the range. `dof` 0: there is none; sd 0:
    a value does not depend on the seed."""

    sd: float
    dof: float


def pool(commits: Sequence[Trials]) -> NoisePrior | None:
    """Return the noise of the repeats within commits; None where there are none, or too coarse
    values to tell that a metric is exact. A seed's value that comes again, at the same or another
    commit, is the same draw of the noise."""
    seen: set[tuple[int, float]] = set()
    groups, repeats = [], 0
    for trials in commits:
        own = {(seed, y) for seed, y in trials if math.isfinite(y)}
        repeats += max(len(own) - 1, 0)
        new = own - seen
        seen |= new
        if len(new) > 1:
            groups.append(np.array([y for _, y in sorted(new)]))
    if not groups:
        return None
    dof = np.array([len(group) - 1.0 for group in groups])
    # The mean of equal values may differ from them in the last bit.
    squares = np.array([((group - group[0]).var() * len(group)) for group in groups])
    if not squares.any():
        is_exact = all(fine(group[0]) for group in groups)
        return NoisePrior(0.0, float(repeats)) if is_exact else None
    if len(groups) >= FEWEST_COMMITS:
        half = np.array([chi_square_quantile(0.5, own) for own in dof.tolist()])
        limit = [chi_square_quantile(REJECTED_ABOVE / len(groups), own) for own in dof.tolist()]
        usual = np.median(squares / half)
        if usual > 0:
            keep = squares <= np.array(limit) * usual
            squares, dof = squares[keep], dof[keep]
    return NoisePrior(math.sqrt(squares.sum() / dof.sum()), float(dof.sum()))


def fine(value: float) -> bool:
    """Return True if different draws of the noise hardly ever agree in so many digits."""
    return float(f"{value:.{COARSE}g}") != value


OUTLYING = np.array((0.004, 0.05, 0.2, 0.5, 0.85))
OUTLYING_PRIOR = np.array((0.40, 0.20, 0.16, 0.14, 0.10))
"""Nodes and prior of the share of outliers at a side: chosen on simulated ranges of 64 commits."""
COLLAPSE_PRIOR = 0.4
"""Prior probability that outliers lie in a second mode, where one of them was seen."""
ROUNDING = 1e-9
"""Relative difference of two lengths that are equal but for rounding: units must not matter."""
GAP = 5.0 * (1 + ROUNDING)
"""A position's readings are of two modes where they leave a gap wider than so many scales of one.
Ten normal readings of two positions look so in one of ten cases, thirty in none of a thousand."""
OFFSETS = 0.8, 1.0, 1.2
"""Nodes of the second mode's distance, in the median of the distances seen."""
OWN_SHARE, OWN_PRIOR = 0.02, 0.22
"""Share of a trial's variance that belongs to its commit, and the prior that it does: m repeats
count as m / (1 + (m - 1) r), so that a commit with a small effect of its own is not blamed.
Measured at one sd and 64 commits (cells `rough` of benchmarks/bisect_simulator.py): without it
7 % fewer trials, and 7 to 9 % wrong answers instead of 5 %."""
ROUNDED = 0.29
"""Noise of rounding, in distances of possible values: 1 / sqrt(12)."""
BLOCK = 16
FAR = 1e3
"""Where readings are cut off, in robust scales."""
_ROOT = np.sqrt(2 * np.pi)


@dataclass(frozen=True)
class Sites:
    """Readings grouped by tested position; `values` is sorted by position, then by value."""

    values: Floats
    counts: Ints
    good: int
    """Index of the good end among the positions, -1 without one."""
    bad: int

    @cached_property
    def starts(self) -> Ints:
        return np.cumsum(self.counts) - self.counts

    @property
    def falls(self) -> bool:
        """Return True if the bad end's readings are lower than the good end's."""
        return bool(self.at(self.bad).mean() < self.at(self.good).mean())

    def swapped(self) -> Sites:
        """Return the same readings with the ends' roles exchanged."""
        return Sites(self.values, self.counts, good=self.bad, bad=self.good)

    def at(self, site: int) -> Floats:
        start = int(self.starts[site])
        return self.values[start : start + int(self.counts[site])]

    @cached_property
    def modes(self) -> list[tuple[Floats, ...]]:
        """Return the readings of each position that has several, as one mode or as two: those that
        leave a gap wider than GAP scales of what lies on either side of such gaps."""
        sites = [self.at(int(site)) for site in np.flatnonzero(self.counts > 1)]
        split = [_at_widest_gap(values) for values in sites]
        parts = [part for pair in split for part in pair if len(part) > 1]
        freedom = max(sum(len(part) - 1 for part in parts), 1)
        scale = np.sqrt(sum(len(part) * part.var() for part in parts) / freedom)
        if scale <= ROUNDING * np.ptp(self.values):  # they repeat exactly
            return [(values,) for values in sites]
        return [
            (lower, upper) if upper[0] - lower[-1] > GAP * scale else (values,)
            for values, (lower, upper) in zip(sites, split, strict=True)
        ]

    @cached_property
    def offsets(self) -> list[float]:
        """Distances of the two modes where a position has them; sorted."""
        pairs = (parts for parts in self.modes if len(parts) == 2)
        return sorted(middle(upper) - middle(lower) for lower, upper in pairs)

    @cached_property
    def own(self) -> tuple[Floats, int]:
        """Distances of readings from the median of their mode at their position, where it has
        several; sorted. And how many medians were taken."""
        parts = [part for parts in self.modes for part in parts if len(part) > 1]
        distances = [np.abs(part - middle(part)) for part in parts]
        return np.sort(np.concatenate(distances)) if parts else np.empty(0), len(parts)


@dataclass(frozen=True)
class NoiseKind:
    """One kind of noise. `offset` is the second mode's distance in the values' unit, nan without
    one; `share` what repeats at one commit have in common; `weight` the prior."""

    offset: float
    share: float
    weight: float


@dataclass(frozen=True)
class Background:
    """Where outliers may be: all readings, smoothed. `scale` is s0."""

    values: Floats
    scale: float

    @cached_property
    def at_readings(self) -> tuple[Floats, Floats]:
        """(R,) densities of Cauchy and kernel at each reading, itself left out of the kernel."""
        kernel = self._kernel(self.values)
        itself = 1 / (0.8 * self.scale * _ROOT)
        n = len(self.values)
        others = (kernel * n - itself) / max(n - 1, 1)
        return self._cauchy(self.values), np.maximum(others, 0.0)

    def at(self, x: Floats) -> tuple[Floats, Floats]:
        """(X,) densities of Cauchy and kernel at new values."""
        return self._cauchy(x), self._kernel(x)

    def _cauchy(self, x: Floats) -> Floats:
        width = 4 * self.scale
        off = (x - middle(np.sort(self.values))) / width
        return np.asarray(1 / (np.pi * width * (1 + off * off)))

    def _kernel(self, x: Floats) -> Floats:
        width = 0.8 * self.scale
        off = (x[:, None] - self.values) / width
        return np.asarray(np.exp(-0.5 * off * off).mean(axis=1) / (width * _ROOT))


def kinds(sites: Sites) -> tuple[NoiseKind, ...]:
    """Return the kinds of noise to weigh: a second mode only where one was seen."""
    plain = 1.0 - COLLAPSE_PRIOR if sites.offsets else 1.0
    noises = [
        NoiseKind(np.nan, 0.0, plain * (1 - OWN_PRIOR)),
        NoiseKind(np.nan, OWN_SHARE, plain * OWN_PRIOR),
    ]
    if sites.offsets:
        usual = middle(sites.offsets)
        noises += [
            NoiseKind(factor * usual, 0.0, COLLAPSE_PRIOR / len(OFFSETS)) for factor in OFFSETS
        ]
    return tuple(noises)


def _at_widest_gap(values: Floats) -> tuple[Floats, Floats]:
    """Cut sorted values in two; of equal gaps at the first."""
    gaps = np.diff(values)
    cut = int(np.argmax(gaps >= gaps.max() * (1 - ROUNDING))) + 1
    return values[:cut], values[cut:]


def core_density(x: Floats, level: Floats, scale: Floats) -> Floats:
    """(X, *level.shape) densities of single readings that are no outliers."""
    off = (x.reshape(-1, *[1] * level.ndim) - level) / scale
    off *= off
    return np.asarray(np.exp(-0.5 * off) / (scale * _ROOT))


def tail_density(
    x: Floats, level: Floats, scale: Floats, offset: float, s0: float, back: tuple[Floats, Floats]
) -> Floats:
    """(X, *level.shape) densities of single outliers. `back` are the densities of the background
    at `x`; `offset` is that of the second mode, nan without one."""
    x = x.reshape(-1, *[1] * level.ndim)
    cauchy, kernel = (part.reshape(x.shape) for part in back)
    if np.isnan(offset):
        return core_density(x, level, 3 * scale) / 2 + (cauchy + kernel) / 4
    wide = np.sqrt(scale**2 + (0.3 * s0) ** 2)
    return 0.9 * core_density(x, level + offset, wide) + (cauchy + kernel) / 20


def tables(
    sites: Sites, level: Floats, scale: Floats, noises: Sequence[NoiseKind], back: Background
) -> list[Floats]:
    """(T, L, C, W) log likelihoods of each position's readings, one for each kind of noise, at
    (L, C) levels, (C,) scales and the nodes of OUTLYING."""
    s0 = back.scale
    core = core_density(sites.values, level, scale)[..., None] * (s0 * (1 - OUTLYING))
    # One logarithm for up to BLOCK readings: their product is finite, for readings are tamed.
    inside = np.arange(len(sites.values)) - np.repeat(sites.starts, sites.counts)
    blocks = np.flatnonzero(inside % BLOCK == 0)
    firsts = np.searchsorted(blocks, sites.starts)
    logs: dict[str, Floats] = {}
    rows = []
    for noise in noises:
        if str(noise.offset) not in logs:
            tail = tail_density(sites.values, level, scale, noise.offset, s0, back.at_readings)
            mixed = tail[..., None] * (s0 * OUTLYING)
            mixed += core
            products = np.maximum(np.multiply.reduceat(mixed, blocks, axis=0), 1e-300)
            logs[str(noise.offset)] = np.add.reduceat(np.log(products), firsts, axis=0)
        rows.append(_sharing(logs[str(noise.offset)], sites.counts, noise.share))
    return rows


def _sharing(logs: Floats, counts: Ints, share: float) -> Floats:
    """Flatten what repeats say of the level by what they have in common (Laplace's method around
    the best level)."""
    if not share:
        return logs
    shared = (1 + (counts - 1) * share)[:, None, None, None]
    best = logs.max(axis=1, keepdims=True)
    return np.asarray(best + (logs - best) / shared - 0.5 * np.log(shared))


def middle(ordered: Floats | Sequence[float]) -> float:
    """Return the median of sorted values: np.median costs ten times as much on so few."""
    n = len(ordered)
    return float(ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def standardised(sites: Sites) -> tuple[Sites, float]:
    """Return the readings about 0, their range 1, and the unit that this is.

    Readings beyond FAR robust scales of both ends are moved there: an outlier is an outlier, and
    grids that must reach it would be too coarse for the rest."""
    unit = float(np.abs(sites.values).max()) or 1.0
    sites = replace(sites, values=sites.values / unit)
    ends = middle(sites.at(sites.good)), middle(sites.at(sites.bad))
    own, _ = sites.own
    scale = max(abs(ends[1] - ends[0]), middle(own) if len(own) else 0.0)
    values = sites.values
    if scale > 0:
        values = np.clip(values, min(ends) - FAR * scale, max(ends) + FAR * scale)
    low, high = float(values.min()), float(values.max())
    size = high - low or 1.0
    unit = min(unit * size, float(np.finfo(float).max))
    return replace(sites, values=(values - (low + high) / 2) / size), unit


FINEST = 50.0
"""The noise is never believed smaller than gap / FINEST: sides are certain then, and a commit
that moves a deterministic metric in its last digits is not taken for the change."""
COARSE_NODES, LEVEL_NODES, SCALE_NODES = (11, 9), 15, (5, 12)
"""Nodes of levels and scales: of the first pass; of the second, where scales are as many as their
uncertainty asks for."""
REACH, SCALE_REACH = 5.0, 4.0
"""Half-width of the grids in posterior standard deviations."""
_FINE = 400  # points on which a density is drawn to lay nodes under it


@dataclass(frozen=True)
class SideNodes:
    """Nodes of one side: (L, C) levels, (C,) scales, (L, C) log sizes of the nodes' cells."""

    level: Floats
    scale: Floats
    log_cell: Floats

    @property
    def flat(self) -> tuple[Floats, Floats]:
        """(A,) levels and scales of all nodes, A = L x C."""
        return self.level.ravel(), np.broadcast_to(self.scale, self.level.shape).ravel()


Sides = tuple[SideNodes, SideNodes, SideNodes]
"""Nodes of the good side, of the bad one, and of no change."""


def scale_range(sites: Sites, gap: float, sd: float) -> tuple[float, float, float]:
    """Return the smallest and the largest scale possible, and a robust one. `gap` is the distance
    of the ends, `sd` what the ledger knows of the noise (0: nothing)."""
    guesses = [abs(gap) / 2, float(np.ptp(sites.values)) / 4, sd]
    robust = 0.0
    own, medians = sites.own
    if n := len(own):
        free = max(n - medians, 1)
        guesses += [float(np.sqrt((own**2).sum() / free)), middle(own)]
        robust = 1.4826 * middle(own) * np.sqrt(n / free)
    possible = [guess for guess in guesses if guess > 0]
    finest = max(gap, max(possible) * 1e-3) / FINEST
    lowest = max(min(possible) / 6, finest)
    return lowest, max(possible) * 4, max(robust or sd or abs(gap) / 4, finest)


def coarse(sites: Sites, ends: tuple[float, float], lowest: float, highest: float) -> Sides:
    """Return nodes wide enough for anything the readings and the ledger allow, in scales around
    the ends."""
    levels, scales = COARSE_NODES
    scale = np.exp(np.linspace(np.log(lowest), np.log(max(highest, 1.2 * lowest)), scales))
    u = np.linspace(-REACH, REACH, levels)
    step = u[1] - u[0]

    def side(centre: float, width: float) -> SideNodes:
        cell = np.broadcast_to(np.log(width * step * scale), (levels, scales))
        return SideNodes(centre + width * u[:, None] * scale, scale, cell)

    good, bad = (1.4 / np.sqrt(len(sites.at(end))) for end in (sites.good, sites.bad))
    return side(ends[0], good), side(ends[1], bad), side(middle(np.sort(sites.values)), 1.0)


def focused(
    sites: Sites,
    splits: Bools,
    wide: Sides,
    noises: Sequence[NoiseKind],
    background: Background,
    log_prior: Floats,
    lowest: float,
) -> Sides:
    """Return nodes where the mass lies. The two sides' scales lie on one lattice, so that equal
    ones are exactly equal; levels are the same at every scale."""
    beliefs = _alone(sites, splits, wide, noises, background, log_prior)
    edges, finest = [], np.inf
    for side, belief in zip(wide, beliefs, strict=True):
        logs = np.log(side.scale)
        marginal = belief.sum(axis=0)
        mean = float(marginal @ logs)
        cell = float(logs[1] - logs[0])
        spread = float(np.sqrt(marginal @ (logs - mean) ** 2 + (0.3 * cell) ** 2))
        edges += [mean - SCALE_REACH * spread, mean + SCALE_REACH * spread]
        finest = min(finest, spread)
    low, high = max(min(edges), np.log(lowest)), max(*edges, np.log(lowest) + 0.2)
    scales = int(np.clip(np.ceil((high - low) / (1.2 * finest)) + 1, *SCALE_NODES))
    scale = np.exp(np.linspace(low, high, scales))

    def narrow(side: SideNodes, belief: Floats) -> SideNodes:
        level = _equidistributed(side, belief)
        shape = len(level), scales
        cell = np.log(np.gradient(level))
        return SideNodes(
            np.broadcast_to(level[:, None], shape), scale, np.broadcast_to(cell[:, None], shape)
        )

    good, bad, same = (narrow(*pair) for pair in zip(wide, beliefs, strict=True))
    return good, bad, same


def _alone(
    sites: Sites,
    splits: Bools,
    sides: Sides,
    noises: Sequence[NoiseKind],
    background: Background,
    log_prior: Floats,
) -> list[Floats]:
    """Return the (L, C) beliefs in the nodes of each side, as if the sides had nothing to do with
    one another; that of no change as if nothing had changed."""
    bad = splits.astype(float)
    logs = []
    for rows, side in zip((1 - bad, bad, np.ones((1, bad.shape[1]))), sides, strict=True):
        sums = [
            np.tensordot(rows, one, 1) + np.log(OUTLYING_PRIOR)
            for one in tables(sites, side.level, side.scale, noises, background)
        ]
        outlying = np.stack(sums)
        logs.append(log_sum(np.moveaxis(outlying, -1, 0)) + side.log_cell)  # (K, G, L, C)
    tops = [np.logaddexp.reduce(part, axis=(2, 3)) for part in logs[:2]]
    weight = log_prior + tops[0] + tops[1]
    weight = np.exp(weight - weight.max())
    beliefs = [
        np.einsum("kg,kglc->lc", weight, np.exp(part - top[..., None, None]))
        for part, top in zip(logs, tops, strict=False)
    ]
    beliefs.append(np.exp(logs[2] - logs[2].max()).sum(axis=(0, 1)))
    return [belief / belief.sum() for belief in beliefs]


def _equidistributed(side: SideNodes, belief: Floats) -> Floats:
    """Return levels that equidistribute the cube root of their density, which follows two
    modes."""
    level, mass = side.level.ravel(), belief.ravel()
    seen = mass > 1e-7 * mass.max()
    width = np.broadcast_to(0.6 * (side.level[1] - side.level[0]), side.level.shape).ravel()[seen]
    level, mass = level[seen], mass[seen]
    x = np.linspace((level - 4 * width).min(), (level + 4 * width).max(), _FINE)
    density = (np.exp(-0.5 * ((x[:, None] - level) / width) ** 2) / width) @ mass
    root = (density / density.max()) ** (1 / 3)
    root[root < 1e-4] = 0.0
    cumulated = np.concatenate(([0.0], np.cumsum((root[1:] + root[:-1]) / 2)))
    marks = np.linspace(0, cumulated[-1], LEVEL_NODES)
    return np.asarray(np.interp(marks, cumulated + np.arange(len(x)) * 1e-12, x))


def log_sum(rows: Floats) -> Floats:
    """log of the sum of exp over the first axis; -inf where nothing is left."""
    peak = rows.max(axis=0)
    peak = np.where(peak > -np.inf, peak, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(peak + np.log(np.exp(rows - peak).sum(axis=0)))
