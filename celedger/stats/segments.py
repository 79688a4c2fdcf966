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

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import lgamma, log, pi

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
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
CELLS = 32_768
"""Levels that are worked on side by side: with fewer, the calls cost more than the work."""
TIE = 1e-9
"""A difference of cost that is rounding: of equally cheap segments the longer one is taken."""
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
        a, b, c = (x[:-2], x[1:-1], x[2:]) if x.size >= 3 else (x, x, x)
        smooth = np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))
        low, high = float(smooth.min()), float(smooth.max())
        unit = float(np.median(scale))
        step = max(step * unit, (high - low) / MOST_LEVELS)
        size = int(np.ceil((high - low) / step)) + 1
        reach = size + int(np.ceil(20 * unit / step))  # beyond it every loss is capped or equal
        places = np.rint(np.clip((x - low) / step, -reach, size + reach)).astype(np.int64)
        rounded = np.rint(np.log2(scale / unit) * SCALE_STEPS).astype(np.int64)
        least = int(rounded.min())
        occurs = np.bincount(rounded - least) > 0
        kinds = np.flatnonzero(occurs) + least
        classes = (np.cumsum(occurs) - 1)[rounded - least]
        distance = np.arange(-(size + reach), size + reach + 1) * step
        scales = unit * 2.0 ** (kinds / SCALE_STEPS)
        tables = np.ascontiguousarray(loss.capped(distance[None, :] / scales[:, None]))
        return cls(size, places, classes, tables)

    def starts(self) -> Ints:
        """Where in the tables, one after another, each value's losses begin: the distance of
        level 0 to the value."""
        width = self.tables.shape[1]
        starts: Ints = self.classes * width + width // 2 - self.places
        return starts

    def near(self, first: int, end: int) -> tuple[int, int]:
        """Return the range of levels that holds all that are near one of the values from `first`
        to before `end`. At the others each of these values is an outlier, at the same price."""
        reach = (self.tables < self.tables[:, -1:]).sum(axis=1)[self.classes[first:end]] // 2
        places = self.places[first:end]
        low, high = int((places - reach).min()), int((places + reach).max()) + 1
        return min(max(0, low), self.size - 1), max(1, min(self.size, high))


def segment(grids: Sequence[Grid], penalties: Sequence[float]) -> list[list[int]]:
    """For each series the first indices of all segments but the first, of its cheapest
    segmentation. Series of similar size are worked on side by side."""
    paths = [_Path.of(grid, penalty) for grid, penalty in zip(grids, penalties, strict=True)]
    pending = sorted(paths, key=lambda path: -path.grid.size)
    while pending:
        together = max(1, CELLS // pending[0].grid.size)
        batch, pending = pending[:together], pending[together:]
        _advance(sorted(batch, key=lambda path: -path.best.size))
    return [path.changes() for path in paths]


@dataclass(frozen=True, slots=True, eq=False)
class _Path:
    """The segmentation of one series. `best[t]`: the level that ends the cheapest segmentation of
    the values up to t; `limit[t]`: what it costs to start anew after t."""

    grid: Grid
    starts: Ints
    penalty: float
    best: Ints
    limit: Floats

    @classmethod
    def of(cls, grid: Grid, penalty: float) -> _Path:
        n = grid.places.size
        return cls(grid, grid.starts(), penalty, np.zeros(n, dtype=np.int64), np.zeros(n))

    def changes(self) -> list[int]:
        """Return where the cheapest segmentation of the whole series changes its level."""
        found = []
        end = self._began(self.best.size)
        while end > 0:
            found.append(end)
            end = self._began(end)
        return found[::-1]

    def _began(self, end: int) -> int:
        """Return where the last segment begins in the cheapest segmentation that ends before `end`:
        where it last was cheaper to start anew with its level than to go on."""
        losses = self.grid.tables.ravel()[self.starts[: end - 1] + self.best[end - 1]]
        anew = self.limit[: end - 1] - np.cumsum(losses)  # less what going on would have cost
        least = np.minimum.accumulate(np.concatenate(([0.0], anew)))
        starts = np.flatnonzero(least[1:] < least[:-1] - TIE)
        return int(starts[-1]) + 1 if starts.size else 0


def _advance(paths: Sequence[_Path]) -> None:
    """Find `best` and `limit` of several series, the longest first. `cost[i, g]`: of the cheapest
    segmentation so far of series i whose last level is g."""
    sizes = [path.grid.size for path in paths]
    rows, offsets = _rows([path.grid.tables for path in paths], max(sizes))
    lengths = [path.best.size for path in paths]
    begins = _columns([p.starts + at for p, at in zip(paths, offsets, strict=True)])
    penalty = np.array([path.penalty for path in paths])
    best, limit = np.zeros(begins.shape, dtype=np.int64), np.zeros(begins.shape)
    cost = np.where(np.arange(max(sizes)) < np.array(sizes)[:, None], 0.0, np.inf)
    outside = cost.copy()  # of the grids of the smaller ones
    begin = 0
    for count in range(len(paths), 0, -1):  # so many series are that long
        own, numbers = cost[:count], np.arange(count)
        for t in range(begin, lengths[count - 1]):
            if t:
                np.minimum(own, limit[t - 1, :count, None], out=own)
            own += rows[begins[t, :count]]
            own += outside[:count]
            best[t, :count] = cheapest = own.argmin(axis=1)
            limit[t, :count] = own[numbers, cheapest] + penalty[:count]
        begin = max(begin, lengths[count - 1])
    for i, path in enumerate(paths):
        path.best[:] = best[: lengths[i], i]
        path.limit[:] = limit[: lengths[i], i]


def _rows(tables: Sequence[Floats], width: int) -> tuple[Floats, list[int]]:
    """(a view: row i of it are the `width` numbers from number i on of all tables, one after
    another; where each of these begins)"""
    sizes = [table.size for table in tables]
    flat = np.concatenate([*(table.ravel() for table in tables), np.zeros(width)])
    begins = [end - size for end, size in zip(accumulate(sizes), sizes, strict=True)]
    return sliding_window_view(flat, width), begins


def _columns(parts: Sequence[Ints]) -> Ints:
    """A matrix with these columns, zeros below the shorter ones."""
    matrix = np.zeros((max(part.size for part in parts), len(parts)), dtype=np.int64)
    for i, part in enumerate(parts):
        matrix[: part.size, i] = part
    return matrix


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


def change_mass(
    grids: Sequence[Grid], centres: Sequence[Sequence[int]]
) -> list[list[tuple[int, Floats]]]:
    """For each candidate of each series, (first index, posterior probability that the level changed
    at each index from there on), up to the middle between it and its neighbours. What is within
    REACH of a candidate counts. All candidates are worked on side by side.

    A hidden Markov model on the levels: stay with probability 1 - HAZARD, else jump to any level
    alike. A jump makes what comes after independent of what was before, so that its probability is
    HAZARD * P(values before) * P(values after) / P(all values).
    """
    likelihoods = [np.exp(-0.5 * grid.tables) for grid in grids]
    windows = []
    for series, (grid, own) in enumerate(zip(grids, centres, strict=True)):
        starts = grid.starts()
        edges = [1, *((a + b + 1) // 2 for a, b in pairwise(own)), starts.size]
        windows += [
            _Window.of(series, grid, starts, centre, low, high)
            for centre, (low, high) in zip(own, pairwise(edges), strict=True)
        ]
    masses: list[Floats] = [np.empty(0)] * len(windows)
    pending = sorted(range(len(windows)), key=lambda i: -windows[i].weights.size)
    while pending:
        together = max(1, CELLS // windows[pending[0]].weights.size)
        batch, pending = pending[:together], pending[together:]
        some = [windows[i] for i in batch]
        before = _evidence([window.before() for window in some], likelihoods)
        after = _evidence([window.after() for window in some], likelihoods)
        for i, window, left, right in zip(batch, some, before, after, strict=True):
            masses[i] = window.mass(left, right)
    answers = iter(zip((window.low for window in windows), masses, strict=True))
    return [[next(answers) for _ in own] for own in centres]


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """Values to be seen one after another, by where their likelihoods begin. `weights`: what each
    level counts before. The state is asked for after `pause` values."""

    series: int
    begins: Ints
    weights: Floats
    pause: int


@dataclass(frozen=True, slots=True, eq=False)
class _Evidence:
    """`logs[t]`: log probability of the first t values of a run. `state`: what is believed of the
    levels after `pause` of them, its sum is 1."""

    logs: Floats
    state: Floats


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """The surroundings of a candidate that may lie from `low` to before `high`: the values of one
    series from number `first` on. Of the levels all that are near none of these values are alike:
    one of them stands for all."""

    series: int
    first: int
    low: int
    high: int
    begins: Ints
    weights: Floats

    @classmethod
    def of(cls, series: int, grid: Grid, starts: Ints, centre: int, low: int, high: int) -> _Window:
        first, end = max(0, centre - REACH), min(starts.size, centre + REACH)
        lowest, highest = grid.near(first, end)
        far = grid.size - (highest - lowest)
        weights = np.ones(highest - lowest)
        if far and lowest:
            lowest, weights = lowest - 1, np.concatenate(([far], weights))
        elif far:
            weights = np.concatenate((weights, [far]))
        low, high = max(low, first), min(high, end)
        return cls(series, first, low, high, starts[first:end] + lowest, weights / grid.size)

    def before(self) -> _Run:
        """Return the values before `high`, in their order."""
        count = self.high - self.first
        return _Run(self.series, self.begins[:count], self.weights, count)

    def after(self) -> _Run:
        """Return the values from `low` on, the last one first."""
        begins = self.begins[self.low - self.first :][::-1]
        return _Run(self.series, begins, self.weights, begins.size - (self.high - self.low))

    def mass(self, before: _Evidence, after: _Evidence) -> Floats:
        """Return the probability of a change at each index from `low` on."""
        stay = (1 - HAZARD) * float((before.state * after.state / self.weights).sum())
        every = before.logs[-1] + after.logs[after.logs.size - 1 - (self.high - self.low)]
        every += log(stay + HAZARD)
        left = before.logs[self.low - self.first : -1]
        right = after.logs[: -(self.high - self.low) - 1 : -1]
        mass: Floats = HAZARD * np.exp(left + right - every)
        return mass


def _evidence(runs: Sequence[_Run], likelihoods: Sequence[Floats]) -> list[_Evidence]:
    """The evidence of several runs, side by side. `belief[i, g]`: in the level g of run i, before
    its next value is seen, and after."""
    order = sorted(range(len(runs)), key=lambda i: -runs[i].begins.size)
    longest_first = [runs[i] for i in order]
    series = sorted({run.series for run in runs})
    sizes = [run.weights.size for run in longest_first]
    rows, offsets = _rows([likelihoods[i] for i in series], max(sizes))
    offset = dict(zip(series, offsets, strict=True))
    begins = _columns([run.begins + offset[run.series] for run in longest_first])
    lengths = [run.begins.size for run in longest_first]
    belief = np.zeros((len(runs), max(sizes)))
    for i, run in enumerate(longest_first):
        belief[i, : sizes[i]] = run.weights
    jump = HAZARD * belief
    states = [run.weights for run in longest_first]
    pauses: dict[int, list[int]] = {}
    for i, run in enumerate(longest_first):
        pauses.setdefault(run.pause, []).append(i)
    totals = np.ones((lengths[0] + 1, len(runs)))
    begin = 0
    for count in range(len(runs), 0, -1):  # so many runs are that long
        own, jumps = belief[:count], jump[:count]
        for t in range(begin, lengths[count - 1]):
            own *= ((1 - HAZARD) / totals[t, :count])[:, None]
            own += jumps
            own *= rows[begins[t, :count]]
            totals[t + 1, :count] = own.sum(axis=1)
            for i in pauses.get(t + 1, ()):
                states[i] = own[i, : sizes[i]] / totals[t + 1, i]
        begin = max(begin, lengths[count - 1])
    logs = np.cumsum(np.log(totals), axis=0)
    found = {
        i: _Evidence(logs[: lengths[place] + 1, place], states[place])
        for place, i in enumerate(order)
    }
    return [found[i] for i in range(len(runs))]
