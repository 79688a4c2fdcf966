"""How likely readings are: the kinds of noise, and tables of log likelihoods over nodes.

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

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from celedger.stats.arrays import Floats, Ints

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
    """What outliers may be anywhere: all readings, smoothed. `scale` is s0."""

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
