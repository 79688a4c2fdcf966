"""Piecewise constant levels under robust noise: the exact segmentation on a grid of levels, and
the posterior probability of a change at each place. Arrays in, arrays out; which changes are
believed and what they mean is `changepoints`' business.

The model: x_t = level_t + scale_t * noise, level constant but for rare jumps. The loss of a
residual u is that of Student's t, capped at the price of calling the value an outlier:

    l(u) = min((nu + 1) log(1 + u² / nu), cap)        (twice a negative log-likelihood)

Segmentation minimises sum l + penalty * changes by functional pruning on a grid (Rigaill 2015;
Fearnhead & Rigaill 2019 for capped losses), which is exact up to the grid's step.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lgamma, log, pi

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FINE = 1 / 20
"""Grid step of the segmentation, in noise sds: the loss from rounding is below 0.001 a point."""
COARSE = 1 / 8
"""Grid step of the posterior, in noise sds."""
MOST_LEVELS = 4096
SCALE_STEPS = 8.0
"""Scales are rounded to 2^(1/8), so that a handful of loss tables serve every point."""
HAZARD = 1 / 2000
"""Prior probability of a change at a commit."""
REACH = 300
"""Commits before and after a candidate that its posterior looks at."""
BATCH = 10_000_000
"""Numbers kept for candidates whose posteriors are computed side by side: 80 MB."""
FAR = 14.0
"""Loss above which a value counts as an outlier when the cap is set (about 5 sd at nu = 6)."""
NUS = (2.0, 2.5, 3.0, 4.0, 6.0, 10.0, 30.0)
MOST_FITTED = 20_000
"""Residuals that the fit of the noise's law looks at."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The robust loss: degrees of freedom of its Student core, and its cap."""

    nu: float = 6.0
    cap: float = 9.0

    def of(self, residuals: Floats) -> Floats:
        """Loss of residuals in units of the scale, not capped."""
        loss: Floats = (self.nu + 1) * np.log1p(residuals * residuals / self.nu)
        return loss

    def capped(self, residuals: Floats) -> Floats:
        return np.minimum(self.of(residuals), self.cap)


@dataclass(frozen=True, slots=True)
class Grid:
    """Values snapped to a grid of `size` levels, and the loss of each level for each value.

    `places[t]` is the grid position of x_t (it may lie outside the levels); `tables[k]` the loss
    by distance in grid steps for scale class k, so that a value's losses over all levels are one
    slice of one table, without copying."""

    size: int
    places: Ints
    classes: Ints
    tables: Floats

    @classmethod
    def of(cls, x: Floats, scale: Floats, loss: Loss, step: float) -> Grid:
        # Levels last: the range of medians of three leaves out single far values.
        smooth = np.median(np.stack([x[:-2], x[1:-1], x[2:]]), axis=0) if x.size >= 3 else x
        low, high = float(smooth.min()), float(smooth.max())
        unit = float(np.median(scale))
        step = max(step * unit, (high - low) / MOST_LEVELS)
        size = int(np.ceil((high - low) / step)) + 1
        reach = size + int(np.ceil(20 * unit / step))  # beyond it every loss is capped or equal
        places = np.rint(np.clip((x - low) / step, -reach, size + reach)).astype(np.int64)
        rounded = np.rint(np.log2(scale / unit) * SCALE_STEPS).astype(np.int64)
        kinds, classes = np.unique(rounded, return_inverse=True)
        distance = np.arange(-(size + reach), size + reach + 1) * step
        scales = unit * 2.0 ** (kinds / SCALE_STEPS)
        tables = np.ascontiguousarray(loss.capped(distance[None, :] / scales[:, None]))
        return cls(size, places, classes.astype(np.int64), tables)

    def starts(self) -> Ints:
        """Where in its table each value's losses begin: the distance of level 0 to the value."""
        starts: Ints = self.tables.shape[1] // 2 - self.places
        return starts


def segment(grid: Grid, penalty: float) -> list[int]:
    """First indices of all segments but the first, of the cheapest segmentation.

    `cost[g]`: of the best segmentation so far whose last level is g; `began[g]`: where its last
    segment starts. The pair is all the state there is."""
    n, size = grid.places.size, grid.size
    starts, classes, tables = grid.starts().tolist(), grid.classes.tolist(), list(grid.tables)
    cost = np.zeros(size)
    began = np.zeros(size, dtype=np.int64)
    dear = np.empty(size, dtype=bool)
    last = [0] * n
    best = 0
    minimum, greater, copyto, argmin = np.minimum, np.greater, np.copyto, cost.argmin
    for t in range(n):
        at = starts[t]
        cost -= cost[best]
        greater(cost, penalty, dear)
        copyto(began, t, where=dear)
        minimum(cost, penalty, out=cost)
        cost += tables[classes[t]][at : at + size]
        best = int(argmin())
        last[t] = began[best]
    found = []
    t = int(last[n - 1])
    while t > 0:
        found.append(t)
        t = int(last[t - 1])
    return found[::-1]


def level_of(x: Floats, scale: Floats, changes: list[int], loss: Loss) -> Floats:
    """The level of each point: per segment the robust mean, from its median by reweighting."""
    starts = np.array([0, *changes])
    sizes = np.diff([*starts, x.size])
    medians = np.array([np.median(part) for part in np.split(x, changes)])
    level = np.repeat(medians, sizes)
    for _ in range(5):
        residuals = (x - level) / scale
        weights = (loss.nu + 1) / (loss.nu + residuals**2) / scale**2
        weights[loss.of(residuals) > loss.cap] = 0
        total = np.add.reduceat(weights, starts)
        moved = np.add.reduceat(weights * x, starts)
        level = np.repeat(
            np.where(total > 0, moved / np.where(total > 0, total, 1), medians), sizes
        )
    return level


def refit(residuals: Floats) -> tuple[Loss, float]:
    """(the loss, the factor for the scale) that fit residuals best: maximum likelihood with a weak
    prior on nu = 6, and a cap of -2 log of the share of outliers."""
    some = residuals[:: 1 + residuals.size // MOST_FITTED]
    typical = max(float(np.median(np.abs(some))) / 0.7, 1e-300)  # 0.7: that of a t with 6 dof
    squares = some[Loss().of(some / typical) <= FAR] ** 2
    best, nu, width = -np.inf, 6.0, 1.0
    for each in NUS:
        fitted = typical**2
        for _ in range(30):  # EM for the scale of a Student law
            before, fitted = (
                fitted,
                float(np.mean((each + 1) * squares / (each + squares / fitted))),
            )
            if abs(fitted - before) < 1e-4 * before:
                break
        likelihood = squares.size * (_log_constant(each) - 0.5 * log(fitted))
        likelihood -= 0.5 * (each + 1) * float(np.log1p(squares / fitted / each).sum())
        likelihood -= 0.5 * log(each / 6) ** 2
        if likelihood > best:
            best, nu, width = likelihood, each, fitted**0.5
    far = int((Loss(nu).of(residuals / width) > FAR).sum())
    share = (far + 0.05) / (residuals.size + 50)
    return Loss(nu, max(-2 * log(share), 4.0)), width


def _log_constant(nu: float) -> float:
    return lgamma((nu + 1) / 2) - lgamma(nu / 2) - 0.5 * log(pi * nu)


def change_mass(grid: Grid, centres: list[int]) -> list[tuple[int, Floats]]:
    """For each candidate, (first index, posterior probability that the level changed at each
    index from there on), within REACH of it. A hidden Markov model on the levels: stay with
    probability 1 - HAZARD, else jump to any level alike; forward-backward, all candidates of a
    batch in step."""
    n = grid.places.size
    windows = [(max(0, c - REACH), min(n, c + REACH)) for c in centres]
    masses: list[tuple[int, Floats]] = []
    likelihoods = np.exp(-0.5 * grid.tables)
    together = max(1, BATCH // (2 * REACH * grid.size))
    for first in range(0, len(windows), together):
        masses += _masses(grid, likelihoods, windows[first : first + together])
    return masses


def _masses(
    grid: Grid, likelihoods: Floats, windows: list[tuple[int, int]]
) -> list[tuple[int, Floats]]:
    """One batch of `change_mass`. Windows cut short by an end of the series are padded with a
    flat likelihood, which says nothing."""
    count, size = len(windows), grid.size
    length = max(end - start for start, end in windows)
    stays, jumps = 1 - HAZARD, HAZARD / size
    first, end = np.array(windows).T
    begins = grid.classes * likelihoods.shape[1] + grid.starts()
    columns = np.arange(size)
    flat = likelihoods.ravel()
    rows = np.empty((length, count, size), dtype=np.float32)
    forward = np.empty((length, count, size), dtype=np.float32)
    alpha = np.full((count, size), 1 / size)
    for i in range(length):
        at = np.minimum(first + i, end - 1)
        rows[i] = flat[begins[at][:, None] + columns]
        rows[i][first + i >= end] = 1.0
        forward[i] = alpha = alpha * stays + jumps  # what is believed before x_i is seen
        alpha = alpha * rows[i]
        alpha /= alpha.sum(axis=1, keepdims=True)
    mass = np.zeros((length, count))
    beta = np.ones((count, size))
    for i in range(length - 1, 0, -1):
        beta = beta * rows[i]
        total = beta.sum(axis=1)
        # a jump to i, over any way from i - 1 to i
        mass[i] = jumps * total / np.einsum("cg,cg->c", forward[i], beta)
        beta *= (stays / total)[:, None]
        beta += jumps
    return [(a, mass[: b - a, i].copy()) for i, (a, b) in enumerate(windows)]
