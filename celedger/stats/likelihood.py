"""How likely readings are: the kinds of noise, and tables of log likelihoods over grids of levels.

Readings come grouped by position (`Sites`), unknowns as nodes (`Grid`). Knows neither commits
nor what is done with the likelihoods.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Kinds = tuple[tuple[float, float, float], ...]

NOISES: Kinds = ((np.inf, 0.0, 0.5), (3.0, 0.0, 0.28), (np.inf, 0.02, 0.22))
"""Kinds of noise: degrees of freedom, share of a trial's variance that belongs to its commit, and
prior weight. With a share r, m repeats at one commit count as m / (1 + (m - 1) r), so that a
commit with a small effect of its own is not blamed. Measured at one sd and 64 commits (cells
`rough` of benchmarks/bisect_simulator.py): without the third kind 7 % fewer trials, and 7 to 9 %
wrong answers instead of 5 % where commits have effects of 0.1 to 0.2 sd of their own."""
TAIL_SCALE = 0.75
"""Scale of Student-3 noise over its sd as a pooled estimate reads it (0.58 by moments, 0.90 by
the median deviation; a real estimate lies between)."""
BLOCK = 16
FAR, HUGE = 1e3, 1e150
"""Where readings are cut off, in robust scales and absolutely (their squares must be finite)."""


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
        """Whether the bad end's readings are lower than the good end's."""
        return bool(self.at(self.bad).mean() < self.at(self.good).mean())

    def swapped(self) -> Sites:
        """The same readings with the ends' roles exchanged."""
        return Sites(self.values, self.counts, good=self.bad, bad=self.good)

    def at(self, site: int) -> Floats:
        start = int(self.starts[site])
        return self.values[start : start + int(self.counts[site])]


@dataclass(frozen=True)
class Grid:
    """Nodes of the unknowns. Z enumerates (tail, scale), K the places of one level."""

    kinds: Kinds
    """Those of NOISES that are looked at"""
    scale: Floats
    """(Z,)"""
    tail: Floats
    """(Z,) degrees of freedom; 0 where readings are rates"""
    share: Floats
    """(Z,) share of the variance that repeats at one commit have in common"""
    good: Floats
    """(Z, K)"""
    bad: Floats
    """(Z, K)"""
    same: Floats
    """(Z, K)"""
    log_pair: Floats
    """(Z, K, K) log prior mass of scale, tail, good and bad level; shifts above the floor"""
    log_small: Floats | None
    """(Z, K, K) the same for shifts too small to be worth naming; None without a floor"""
    log_same: Floats
    """(Z, K) log prior mass of scale, tail and the one level"""


def density(x: Floats, level: Floats, grid: Grid) -> Floats:
    """(X, Z, K) density of a single reading `x` at (Z, K) levels."""
    out = (x[:, None, None] - level) / grid.scale[:, None]
    out *= out
    for nu, _, rows in _kinds(grid):
        part = out[:, rows]
        part = -0.5 * part if np.isinf(nu) else -0.5 * (nu + 1) * np.log1p(part / nu)
        out[:, rows] = part + _log_constant(nu, grid.scale[rows])[:, None]
    return np.asarray(np.exp(out))


def tables(sites: Sites, grid: Grid, levels: list[Floats]) -> list[Floats]:
    """(T, Z, K) log likelihood of each position's readings, for each of the (Z, K) `levels`."""
    joined = np.concatenate(levels, axis=1)
    table = np.empty((len(sites.counts), *joined.shape))
    for nu, share, rows in _kinds(grid):
        if np.isinf(nu):
            table[:, rows] = _normal_table(sites, joined[rows], grid.scale[rows], share)
        else:
            table[:, rows] = _student_table(sites, joined[rows], grid.scale[rows], nu, share)
    return np.split(table, np.cumsum([level.shape[1] for level in levels])[:-1], axis=2)


def _kinds(grid: Grid) -> list[tuple[float, float, slice]]:
    """Every kind of noise and its rows of Z, which lie together."""
    kind = grid.tail, grid.share
    change = (kind[0][1:] != kind[0][:-1]) | (kind[1][1:] != kind[1][:-1])
    edges = [0, *(np.flatnonzero(change) + 1).tolist(), len(change) + 1]
    return [(float(kind[0][a]), float(kind[1][a]), slice(a, b)) for a, b in pairwise(edges)]


def _normal_table(sites: Sites, level: Floats, scale: Floats, share: float) -> Floats:
    """Normal noise: a position's readings are their number, mean and sum of squares.

    The mean of m has variance s² (r + (1 - r) / m), what is left around it s² (1 - r)."""
    m, starts, values = sites.counts, sites.starts, sites.values
    mean = np.add.reduceat(values, starts) / m
    squares = np.add.reduceat((values - np.repeat(mean, m)) ** 2, starts)
    alone, shared = 1 - share, 1 - share + m * share
    off = (mean[:, None, None] - level) / scale[:, None]
    off *= off
    off *= (-0.5 * m / shared)[:, None, None]
    own = -0.5 * (squares / alone)[:, None] / scale**2 + m[:, None] * _log_constant(np.inf, scale)
    own -= 0.5 * ((m - 1) * np.log(alone) + np.log(shared))[:, None]
    return np.asarray(off + own[:, :, None])


def _student_table(sites: Sites, level: Floats, scale: Floats, nu: float, share: float) -> Floats:
    """Student noise: every reading by itself. What repeats have in common flattens what they say
    of the level, as it does with normal noise (Laplace's method around the best level)."""
    off = (sites.values[:, None, None] - level) / scale[:, None]
    off *= off
    off /= nu
    off += 1
    # One logarithm for up to BLOCK readings: their product is finite, for readings are tamed.
    inside = np.arange(len(sites.values)) - np.repeat(sites.starts, sites.counts)
    blocks = np.flatnonzero(inside % BLOCK == 0)
    table = np.log(np.multiply.reduceat(off, blocks, axis=0))
    table = np.add.reduceat(table, np.searchsorted(blocks, sites.starts), axis=0)
    constant = sites.counts[:, None] * _log_constant(nu, scale)
    table = -0.5 * (nu + 1) * table + constant[:, :, None]
    if share > 0:
        shared = (1 + (sites.counts - 1) * share)[:, None, None]
        best = table.max(axis=2, keepdims=True)
        table = best + (table - best) / shared - 0.5 * np.log(shared)
    return np.asarray(table)


def _log_constant(nu: float, scale: Floats) -> Floats:
    """(Z,) log of the density at its own level."""
    if np.isinf(nu):
        return np.asarray(-0.5 * np.log(2 * np.pi) - np.log(scale))
    top = special.gammaln((nu + 1) / 2) - special.gammaln(nu / 2) - 0.5 * np.log(nu * np.pi)
    return np.asarray(top - np.log(scale))


def middle(ordered: Floats) -> float:
    """The median of sorted values: np.median costs ten times as much on so few."""
    n = len(ordered)
    return float(ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def tamed(sites: Sites, sd: float) -> Sites:
    """Readings beyond FAR robust scales of both ends are moved there: an outlier is an outlier,
    and grids that must reach it would be too coarse for the rest."""
    values = np.clip(sites.values, -HUGE, HUGE)
    sites = replace(sites, values=values)
    ends = middle(sites.at(sites.good)), middle(sites.at(sites.bad))
    own = np.abs(values - np.repeat(values[sites.starts + sites.counts // 2], sites.counts))
    repeated = np.repeat(sites.counts, sites.counts) > 1
    typical = middle(np.sort(own[repeated])) if repeated.any() else 0.0
    scale = max(abs(ends[1] - ends[0]), sd, typical)
    if not scale > 0:
        return sites
    return replace(sites, values=np.clip(values, min(ends) - FAR * scale, max(ends) + FAR * scale))
