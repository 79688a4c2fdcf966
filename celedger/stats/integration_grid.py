"""Nodes of levels and scales on which two unknown sides are integrated out, in two passes: a coarse
one finds where the mass lies, the second sums there. All follow the readings' own location and
scale, so units never matter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from celedger.stats.arrays import Bools, Floats
from celedger.stats.likelihood import (
    OUTLYING_PRIOR,
    Background,
    NoiseKind,
    Sites,
    middle,
    tables,
)

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
