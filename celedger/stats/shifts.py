"""What a change may be, before the readings are looked at: the joint prior of the two sides' levels
and scales, and of their shares of outliers.

The shift bad - good is positive and, in scales of the good side, a mixture of lognormals; the bad
side's scale is the good one's or lognormal around it; the shares of outliers are equal or
independent. Where a second mode was seen, a change may also be one of its share alone
(docs/statistics.md, "Bisects").
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from celedger.stats.arrays import Floats
from celedger.stats.integration_grid import SideNodes
from celedger.stats.likelihood import OUTLYING, OUTLYING_PRIOR, NoiseKind
from celedger.stats.tails import normal_cumulative, t_tail

SHIFTS = (0.9, 2.0), (0.1, 20.0)
"""Prior of the shift, a mixture of lognormals (weight, median in scales of the good side): who
bisects has seen it, and where a training hardly depends on its seed it is huge."""
SHIFT_SPREAD = 1.0
"""Log-sd of both."""
SAME = 0.6
"""Prior probability that both sides have the same scale, and the same share of outliers."""
SCALE_SPREAD = 0.8
"""Log-sd of the ratio of the two scales, where they differ."""
SHARE_ALONE, SHARE_SPREAD = 0.15, 0.3
"""Prior probability, where a second mode was seen, that only its share grew, and how far the levels
then differ, in scales."""
SHARE_SELECTED = 0.5
"""Chance that ends of which only the share of outliers differs look different by SELECTING_T."""
DOF_CAP = 30.0
"""The ledger's noise counts as at most so many degrees of freedom: this range may differ."""
SELECTING_T = 2.0
"""Ends whose stored readings differ by this t statistic are what makes a person ask."""


@dataclass(frozen=True)
class NoisePrior:
    """What is known of one trial's sd beside the readings of the range; `dof` 0 means nothing, sd 0
    exact repeats."""

    sd: float
    dof: float


def selected(good: Floats, bad: Floats) -> tuple[int, int]:
    """Return how many readings of either end made somebody ask: all of these, or none where they
    do not differ by SELECTING_T."""
    m, n = len(good), len(bad)
    if m + n < 3 or not m or not n:
        return 0, 0
    step, error = difference(good, bad)
    return (m, n) if step > SELECTING_T * error else (0, 0)


def difference(good: Floats, bad: Floats) -> tuple[float, float]:
    """Return by how much the mean of `bad` is larger, and the standard error of that: Student's,
    with the noise pooled of both. They have three readings at least, and each one."""
    m, n = len(good), len(bad)
    unit = float(max(np.abs(good).max(), np.abs(bad).max())) or 1.0
    good, bad = good / unit, bad / unit
    within = float(((good - good.mean()) ** 2).sum() + ((bad - bad.mean()) ** 2).sum())
    error = np.sqrt(within / (m + n - 2) * (1 / m + 1 / n))
    return float(bad.mean() - good.mean()) * unit, float(error) * unit


def chance_to_differ(shift: Floats, good: int, bad: int) -> Floats:
    """(...) probability that the means of so many readings of ends `shift` scales apart differ by
    SELECTING_T; 1 where nothing was selected. Readings that made somebody ask tell no more than
    what is left when they had to look so."""
    if not good + bad:
        return np.ones_like(shift)
    limit = -NormalDist().inv_cdf(t_tail(SELECTING_T, good + bad - 2))
    root = np.sqrt(good * bad / (good + bad))
    return normal_cumulative(np.maximum(shift, 0.0) * root - limit)


class ChangePrior:
    """The joint prior of both sides' nodes, A = L x C of either."""

    def __init__(
        self,
        good: SideNodes,
        bad: SideNodes,
        noise: NoisePrior,
        *,
        floor: float,
        selected: tuple[int, int],
    ) -> None:
        scale = good.scale
        logs = np.log(scale)
        of_scale = np.full(len(scale), np.log(logs[1] - logs[0]))
        dof = min(noise.dof, DOF_CAP)
        if dof > 0 and noise.sd > 0:  # scaled inverse chi-square on the variance, in d log sd
            of_scale -= dof * np.log(scale / noise.sd) + dof / 2 * (noise.sd / scale) ** 2
        self.log_scale = of_scale
        """(C,)"""
        ratio = np.exp(-0.5 * ((logs[None, :] - logs[:, None]) / SCALE_SPREAD) ** 2)
        scales = SAME * np.eye(len(scale)) + (1 - SAME) * ratio / ratio.sum(axis=1, keepdims=True)
        difference = bad.level[None, None] - good.level[:, :, None, None]  # (L, C, L, C)
        cells = good.log_cell[:, :, None, None] + bad.log_cell[None, None]
        base = of_scale[:, None, None] + np.log(scales)[:, None, :] + cells
        sd = scale[:, None, None]
        shift = difference / sd
        size = good.level.size
        log_pair = np.where(shift > 0, base + _log_shift(shift) - np.log(sd), -np.inf)
        log_pair = log_pair.reshape(size, size)
        self.top = float(log_pair.max() if (shift > 0).any() else base.max())
        self._floor = floor
        above = (difference >= floor).reshape(size, size)
        pair = np.exp(log_pair - self.top)
        pair /= chance_to_differ(shift, *selected).reshape(size, size)
        self._pair = np.where(above, pair, 0.0)
        self.small = np.where(above, 0.0, pair) if floor > 0 else None
        """(A, A) changes below the floor; None without one. Of outliers as `outlying`."""
        still = base - 0.5 * (shift / SHARE_SPREAD) ** 2
        still = still - np.log(SHARE_SPREAD * np.sqrt(2 * np.pi)) - np.log(sd)
        still = np.exp(still.reshape(size, size) - self.top)
        self._still = still / SHARE_SELECTED if any(selected) else still
        self.log_none_chance = float(np.log(chance_to_differ(np.zeros(1), *selected)[0]))
        free = np.outer(OUTLYING_PRIOR, OUTLYING_PRIOR)
        self.outlying = SAME * np.eye(len(OUTLYING)) * OUTLYING_PRIOR + (1 - SAME) * free
        """(W, W)"""
        more = np.triu(free, 1)
        self._more = more / more.sum()

    def changes(self, noise: NoiseKind) -> list[tuple[float, Floats, Floats]]:
        """Return what a change may be under one kind of noise: weight, (A, A), (W, W)."""
        if np.isnan(noise.offset):
            return [(1.0, self._pair, self.outlying)]
        growth = OUTLYING[None, :] - OUTLYING[:, None]
        seen = np.where(0.9 * noise.offset * growth >= self._floor, self._more, 0.0)
        return [(1 - SHARE_ALONE, self._pair, self.outlying), (SHARE_ALONE, self._still, seen)]


def _log_shift(shift: Floats) -> Floats:
    """(...) log density of positive shifts, in scales of the good side; 0 for others."""
    logs = np.log(np.where(shift > 0, shift, 1.0))
    density = sum(
        weight * np.exp(-0.5 * ((logs - np.log(median)) / SHIFT_SPREAD) ** 2)
        for weight, median in SHIFTS
    )
    return np.asarray(
        np.log(np.maximum(density, 1e-300)) - logs - np.log(SHIFT_SPREAD * np.sqrt(2 * np.pi))
    )
