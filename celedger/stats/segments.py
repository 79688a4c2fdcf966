"""Piecewise constant levels under robust noise: the exact segmentation on a grid of levels, and
the posterior probability of a change at each place. Arrays in, arrays out; which changes are
reported and what they mean is `changepoints`' business.

The model: x_t = level_t + scale_t * noise, level constant but for rare jumps. The loss of a
residual u is that of Student's t, capped at the price of calling the value an outlier:

    l(u) = min((nu + 1) log(1 + u² / nu), cap)        (twice a negative log-likelihood)

A second mode of the noise (seeds that collapse now and then) is a second minimum of the loss,
higher by 2 log((1 - share) / share): otherwise a few collapses in a row would be two changes.

Segmentation minimises sum l + penalty * changes by functional pruning on a grid (Rigaill 2015;
Fearnhead & Rigaill 2019 for capped losses), which is exact up to the grid's step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import lgamma, log, pi

import numpy as np

from celedger.stats.arrays import Bools, Floats

FINE = 1 / 20
"""Grid step of the segmentation, in noise sds: the loss from rounding is below 0.001 a point."""
COARSE = 1 / 8
"""Grid step of the posterior, in noise sds."""
MOST_LEVELS = 4096
SCALE_STEPS = 8.0
"""Scales are rounded to 2^(1/8), so that a handful of loss tables serve every point."""
HAZARD = 1 / 2000
"""Prior probability of a change at a commit."""
SMALLEST = 1e-200
"""Probability below which the posterior's sums are scaled anew."""
TIE = 1e-9
"""A difference of cost that is rounding: of equally cheap segments the longer one is taken."""
FAR = 14.0
"""Loss above which a value counts as an outlier when the cap is set (about 5 sd at nu = 6)."""
MODE_FROM = 4.0
"""Scales from the level at which a second mode of the noise may begin."""
MODE_GAIN = 20.0
"""Twice the log-likelihood that it must gain over a single one."""
NUS = (2.0, 2.5, 3.0, 4.0, 6.0, 10.0, 30.0)
MOST_FITTED = 20_000
"""Newest values that the noise's distribution is fitted to."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The robust loss: degrees of freedom of its Student core, and its cap. Where noise has
    a second mode (seeds that collapse), its share, and its offset from the level in scales."""

    nu: float = 6.0
    cap: float = 9.0
    offset: float = 0.0
    share: float = 0.0

    def of(self, residuals: Floats) -> Floats:
        """Return the loss of residuals in units of the scale, not capped."""
        loss: Floats = (self.nu + 1) * np.log1p(residuals**2 / self.nu)
        if self.share:
            shifted = (self.nu + 1) * np.log1p((residuals - self.offset) ** 2 / self.nu)
            loss = np.minimum(loss, shifted + 2 * log(1 / self.share - 1))
        return loss

    def in_second_mode(self, residuals: Floats) -> Bools:
        """Return which residuals are nearer to the second mode than to the level."""
        return residuals * self.offset > self.offset**2 / 2


@dataclass(frozen=True, slots=True)
class Grid:
    """The losses of values on a grid of `size` levels: those of value t are the `size` numbers of
    `losses` from `starts[t]` on."""

    size: int
    starts: Sequence[int]
    losses: Floats

    @classmethod
    def of(cls, x: Floats, scale: Floats, loss: Loss, step: float) -> Grid:
        # Levels last: the range of medians of three leaves out single far values.
        a, b, c = (x[:-2], x[1:-1], x[2:]) if x.size >= 3 else (x, x, x)
        smooth = np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))
        low, high = float(smooth.min()), float(smooth.max())
        unit = float(np.median(scale))
        step = max(step * unit, (high - low) / MOST_LEVELS)
        size = int(np.ceil((high - low) / step)) + 1
        reach = size + int(np.ceil(20 * unit / step))  # beyond it every loss is capped or equal
        places = np.rint(np.clip((x - low) / step, -reach, size + reach)).astype(np.int64)
        # One table of losses by distance for each class of scales, one after another.
        kinds, classes = np.unique(
            np.rint(np.log2(scale / unit) * SCALE_STEPS), return_inverse=True
        )
        distance = np.arange(size + reach, -(size + reach) - 1, -1) * step  # of value from level
        scales = unit * 2.0 ** (kinds / SCALE_STEPS)
        tables = np.minimum(loss.of(distance / scales[:, None]), loss.cap)
        starts = classes * distance.size + distance.size // 2 - places
        return cls(size, starts.tolist(), tables.ravel())


def segment(grid: Grid, penalty: float) -> list[int]:
    """Return the first indices of all segments but the first, of the cheapest segmentation."""
    size, losses = grid.size, grid.losses
    cost = np.zeros(size)  # of the cheapest segmentation so far that ends at each level
    best: list[np.intp] = []  # the cheapest level after each value
    anew: list[float] = []  # what it costs to start anew after each value
    for start in grid.starts:
        if anew:
            np.minimum(cost, anew[-1], out=cost)
        cost += losses[start : start + size]
        level = cost.argmin()
        best.append(level)
        anew.append(cost.item(level) + penalty)
    starts, limits = np.array(grid.starts), np.array(anew)
    changes = []
    end = len(best)
    while end > 0:
        # The last segment began where it last was cheaper to start anew with its level.
        going_on = np.cumsum(losses[starts[: end - 1] + best[end - 1]])
        least = np.minimum.accumulate(np.concatenate(([0.0], limits[: end - 1] - going_on)))
        began = np.flatnonzero(least[1:] < least[:-1] - TIE)
        end = int(began[-1]) + 1 if began.size else 0
        changes.append(end)
    return changes[-2::-1]


def change_probabilities(grid: Grid) -> Floats:
    """Return for each value the posterior probability that the level changed before it.

    A hidden Markov model on the levels: stay with probability 1 - HAZARD, else jump to any level
    alike. A jump makes what comes after independent of what was before, so that its probability is
    HAZARD * P(values before) * P(values after) / P(all values).
    """
    likelihoods = (1 - HAZARD) * np.exp(-0.5 * grid.losses)
    before = _log_evidence(likelihoods, grid.size, grid.starts)
    after = _log_evidence(likelihoods, grid.size, reversed(grid.starts))[::-1]
    probabilities: Floats = HAZARD * np.exp(before[:-1] + after[:-1] - before[-1])
    probabilities[0] = 0.0
    return probabilities


def _log_evidence(likelihoods: Floats, size: int, starts: Iterable[int]) -> Floats:
    """Return the log probability of the first t values, for t = 0, 1, …; `likelihoods` have the
    probability to stay in them."""
    belief, ones = np.full(size, 1 / size), np.ones(size)
    total, jump = 1.0, HAZARD / (1 - HAZARD) / size
    totals, logs, shift = [1.0], [0.0], 0.0
    for start in starts:
        belief += jump * total
        belief *= likelihoods[start : start + size]
        total = belief.dot(ones)
        if total < SMALLEST:
            belief /= total
            shift += log(total)
            total = 1.0
        totals.append(total)
        logs.append(shift)
    return np.log(totals) + logs


def level_of(x: Floats, scale: Floats, changes: list[int], loss: Loss) -> Floats:
    """Return the level of each point: per segment the robust mean, reweighted from its median."""
    starts = np.array([0, *changes])
    sizes = np.diff([*starts, x.size])
    medians = np.array([np.median(part) for part in np.split(x, changes)])
    level = np.repeat(medians, sizes)
    for _ in range(5):
        residuals = (x - level) / scale
        weights = (loss.nu + 1) / (loss.nu + residuals**2) / scale**2
        weights[(loss.of(residuals) > loss.cap) | loss.in_second_mode(residuals)] = 0
        total = np.add.reduceat(weights, starts)
        moved = np.add.reduceat(weights * x, starts)
        means = np.where(total > 0, moved / np.where(total > 0, total, 1), medians)
        level = np.repeat(means, sizes)
    return level


def refit(residuals: Floats) -> tuple[Loss, float]:
    """Return the loss, and the factor for the scale, that fit residuals best: maximum likelihood
    with a weak prior on nu = 6, a cap of -2 log of the share of outliers, and a second mode where
    that is far more likely than none."""
    unit = max(float(np.median(np.abs(residuals))) / 0.7, 1e-300)  # 0.7: that of a t with 6 dof
    some = residuals / unit
    loss, width, cost = _fitted(some, 0.0)
    far = some[np.abs(some) > MODE_FROM]
    if far.size:
        side = 1.0 if 2 * np.count_nonzero(far > 0) >= far.size else -1.0
        other, its_width, its_cost = _fitted(some, float(np.median(far[far * side > 0])))
        if its_cost < cost - MODE_GAIN:
            loss, width = other, its_width
    return loss, width * unit


def _fitted(values: Floats, offset: float) -> tuple[Loss, float, float]:
    """Return the loss, its scale, and twice the negative log-likelihood; with a second mode near
    an offset that is not 0."""
    second = values * offset > offset**2 / 2
    squares = values[~second & (Loss().of(values) <= FAR)] ** 2
    best, nu, width = -np.inf, 6.0, 1.0
    for each in NUS:
        fitted, before = 1.0, 0.0
        for _ in range(30):  # EM for the scale of a Student distribution
            before = fitted
            fitted = float(np.mean((each + 1) * squares / (each + squares / before)))
            if abs(fitted - before) < 1e-4 * before:
                break
        likelihood = squares.size * (_log_constant(each) - 0.5 * log(fitted))
        likelihood -= 0.5 * (each + 1) * float(np.log1p(squares / fitted / each).sum())
        likelihood -= 0.5 * log(each / 6) ** 2
        if likelihood > best:
            best, nu, width = likelihood, each, fitted**0.5
    loss, share = Loss(nu), 0.0
    if second.any():
        share = min(float(second.mean()), 0.5)
        loss = Loss(nu, loss.cap, float(np.median(values[second])) / width, share)
    losses = loss.of(values / width)
    outliers = (int((losses > FAR).sum()) + 0.05) / (values.size + 50)
    loss = replace(loss, cap=max(-2 * log(outliers), 4.0))
    cost = 2 * values.size * (log(width) - _log_constant(nu) - log(1 - share))
    return loss, width, cost + float(np.minimum(losses, loss.cap).sum())


def _log_constant(nu: float) -> float:
    return lgamma((nu + 1) / 2) - lgamma(nu / 2) - 0.5 * log(pi * nu)
