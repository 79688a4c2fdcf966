"""Levels along a chain of nodes: their grid, the likelihood of a node's trials, and both passes.

Lives here: the grid, in standard deviations of a trial, which depends on the nodes' means alone and
moves in blocks, so that a cached message stays valid while new commits come; the likelihood of
independent draws, and of trials whose session shares an effect; recursions over likelihoods on the
grid. They know no metric and no commit. Arrays are [nodes, rows, points]; a row is a metric under
one assumption about its noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import numpy as np

from celedger.stats import Floats, Ints, begins_run, trial_noise
from celedger.stats.course import CommitNodes

BLOCK = 10.0
"""The grid is made of blocks of ten deviations."""
MARGIN = 3.0
"""A level lies within three deviations of the mean of some node."""
MOST_POINTS = 700
SPACINGS = (0.2, 0.4, 1.0)
"""The finest that fits is taken. At 1.0 the sum over the grid still equals the integral for the
mean of two trials: its deviation is .7."""
SESSION_SPACINGS = (0.2, 0.4, 0.5)
LEAST_WIDTH = 40.0
"""Width of the prior of a level after a step."""


@dataclass(frozen=True, slots=True, eq=False)
class LevelGrid:
    """Attributes:
    points: Levels, ascending.
    spacing: Between neighbours within a block.
    prior: Prior probability of each point after a step.
    has_gaps: True if some neighbours are further apart than `spacing`.
    """

    points: Floats
    spacing: float
    prior: Floats
    has_gaps: bool


def level_grid(means: Floats, has_sessions: bool) -> LevelGrid:
    """Return the grid for nodes of the given means.

    One stretch without gaps is taken if it fits. Else only the blocks near some mean are: stretches
    between far levels hold no probability, and a coarser grid would smear small steps. Where even
    these are too many, each mean is a point.
    """
    low, high = (np.floor((means + side) / BLOCK).astype(np.int64) for side in (-MARGIN, MARGIN))
    every = np.arange(low.min(), min(high.max(), low.min() + MOST_POINTS) + 1)
    is_short = every[-1] == high.max()
    near = np.unique(np.concatenate([low, high]))
    choices = [(every, d) for d in (SESSION_SPACINGS if has_sessions else SPACINGS[:1]) if is_short]
    for blocks, spacing in [*choices, *((near, d) for d in SPACINGS)]:
        size = round(BLOCK / spacing)
        if len(blocks) * size <= MOST_POINTS:
            points = (blocks[:, None] * BLOCK + (np.arange(size) + 0.5) * spacing).ravel()
            has_gaps = bool(len(blocks) != blocks[-1] - blocks[0] + 1)
            width = max(LEAST_WIDTH, len(blocks) * BLOCK)
            return LevelGrid(points, spacing, np.full(len(points), spacing / width), has_gaps)
    points = np.unique(np.rint(means / SPACINGS[-1]) * SPACINGS[-1])
    width = max(LEAST_WIDTH, len(points) * SPACINGS[-1])
    prior = np.full(len(points), SPACINGS[-1] / width)
    return LevelGrid(points, SPACINGS[-1], prior, True)


# --- the likelihood of a node's trials

SEES_SAME_SESSION = True  # a test switches it off
CLIP = 2.0
"""Trials further than two deviations from their session's middle count as at that distance."""
_CHUNK = 60_000  # floats at once: they stay in the processor's cache
_LEAST_PRODUCT = 1e-290  # of densities; a smaller one may have underflowed
TABLE_REACH, TABLE_STEP = 64.0, 0.01  # of `density_table`, in deviations


@dataclass(frozen=True, slots=True, eq=False)
class NoiseRows:
    """Assumptions about one metric's noise, a row each, and their weights.

    Attributes:
        weight: Of each row; they sum to 1.
        sd: A trial's deviation, over the metric's unit.
        session: A session's deviation, over the unit; 0 for quality.
        outliers: Share of outliers.
        modes: Density of the second modes on the points of `trial_noise.mode_tables`, None if
            there are none.
        mode_rate: Their rate.
    """

    weight: Floats
    sd: Floats
    session: Floats
    outliers: float
    modes: Floats | None
    mode_rate: float


@dataclass(frozen=True, slots=True, eq=False)
class SessionMeans:
    """The trials of each node in each session, in the order of nodes. A cell is one of them.

    Attributes:
        node, session: Of each cell.
        trials: How many trials it has.
        mean, variance: [rows, cells]; `variance` is that of the trials alone.
        discord: Times that the variance of a difference is larger, where most of a cell's trials
            lie beyond CLIP from its middle, as on a busy machine: [rows, cells].
        effect: Variance of a session's effect: [rows].
        beside: Index of the cell of the node before in the same session, -1 if there is none.
    """

    node: Ints
    session: Ints
    trials: Ints
    mean: Floats
    variance: Floats
    discord: Floats
    effect: Floats
    beside: Ints


@dataclass(frozen=True, slots=True, eq=False)
class NodeLikelihood:
    """Of the values of each node: `fresh` given its level, `same` given also that it is the level
    of the node before; `fresh` itself where nothing was measured side by side. [rows, nodes,
    points], scaled so that the largest is 1; `scale` has the logarithm of what was divided by."""

    fresh: Floats
    same: Floats
    scale: Floats


def _chunks(offset: Ints, each: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of nodes that have at most so many items together, one node at least."""
    begin = 0
    while begin < len(offset) - 1:
        end = int(np.searchsorted(offset, offset[begin] + each, side="right")) - 1
        end = max(begin + 1, end)
        yield begin, end
        begin = end


def of_draws(values: Floats, offset: Ints, rows: NoiseRows, points: Floats) -> NodeLikelihood:
    """Return the likelihood of independent draws.

    Args:
        offset: Index of each node's first draw, and the number of draws.
    """
    size = len(rows.sd) * len(points)
    fresh = np.empty((len(rows.sd), len(offset) - 1, len(points)))
    scale = np.empty(fresh.shape[:2])
    plain = 1 - rows.outliers - rows.mode_rate
    for begin, end in _chunks(offset, _CHUNK // size):
        part = values[offset[begin] : offset[end]]
        z = (part[:, None] - points)[None] / rows.sd[:, None, None]
        density = plain * trial_noise.core(z) + rows.outliers * trial_noise.outlier(z)
        if rows.modes is not None:
            density += rows.modes[trial_noise.table_index(z)]
        at = offset[begin:end] - offset[begin]
        fresh[:, begin:end], scale[:, begin:end] = _joint(density, at)
    return NodeLikelihood(fresh, fresh, scale)


def _joint(density: Floats, begins: Ints) -> tuple[Floats, Floats]:
    """Return the product of each node's densities over its largest, and the logarithm of that.

    Args:
        density: [rows, draws or cells, points].
        begins: Index of each node's first one.
    """
    sizes = np.diff(np.append(begins, density.shape[1]))
    product = density[:, begins]
    for more in range(1, int(sizes.max())):
        own = np.flatnonzero(sizes > more)
        product[:, own] *= density[:, begins[own] + more]
    if product.min() < _LEAST_PRODUCT:
        logs = np.add.reduceat(np.log(density), begins, axis=1)
        top = logs.max(2)
        return np.exp(logs - top[..., None]), top
    top = product.max(2)
    return product / top[..., None], np.log(top)


def session_means(values: Floats, nodes: CommitNodes, rows: NoiseRows) -> SessionMeans:
    """Return the means of all cells, outliers clipped."""
    begins = np.flatnonzero(begins_run(nodes.cell))
    sizes = np.diff(np.append(begins, len(values)))
    mean, discord = np.empty((2, len(rows.sd), len(begins)))
    for size in np.unique(sizes).tolist():
        cells = np.flatnonzero(sizes == size)
        trials = values[begins[cells][:, None] + np.arange(size)]
        middle = (np.median(trials, 1) if size > 2 else trials.mean(1))[:, None]
        reach = CLIP * rows.sd[:, None, None]
        mean[:, cells] = np.clip(trials, middle - reach, middle + reach).mean(2)
        far = np.median(abs(trials - middle), 1) / rows.sd[:, None]
        discord[:, cells] = np.where(far > CLIP, far**2, 1.0)
    return SessionMeans(
        node=nodes.node[begins],
        session=nodes.session[begins],
        trials=sizes,
        mean=mean,
        variance=rows.sd[:, None] ** 2 / sizes,
        discord=discord,
        effect=rows.session**2,
        beside=nodes.beside if SEES_SAME_SESSION else np.full_like(nodes.beside, -1),
    )


def contrast_terms(cells: SessionMeans, i: Ints, j: Ints) -> tuple[Floats, Floats]:
    """Return kappa and the variance of the mean of cell j given that of cell i, of the node before
    in the same session, and the common level.

    Given the level l, the session's effect is integrated exactly: the mean of j is
    l + kappa (mean of i - l), kappa = effect / (effect + variance of i).
    """
    effect = cells.effect[:, None]
    kappa = effect / (effect + cells.variance[:, i])
    return kappa, cells.variance[:, j] + kappa * cells.variance[:, i]


def mean_density(z: Floats, outliers: float, trials: Ints) -> Floats:
    """Return the density of a session's mean, or of a contrast, at z deviations.

    Args:
        trials: As many as a mean of trials rests on, of each cell, to be broadcast against `z`; 1
            where a session's effect is part of it, which no number of its trials averages out.
    """
    far = trial_noise.mean_outliers(outliers, trials)
    result: Floats = (1 - far) * trial_noise.mean_core(z, trials) + far * trial_noise.outlier(z)
    return result


@lru_cache(maxsize=64)
def density_table(outliers: float, trials: tuple[int, ...]) -> Floats:
    """Return the log density of a mean of so many trials at each distance, in deviations."""
    z = np.arange(0.0, TABLE_REACH + TABLE_STEP, TABLE_STEP)
    numbers = np.array(trials)[:, None]
    return np.log(mean_density(z, outliers, numbers))


def of_sessions(
    cells: SessionMeans, first: int, count: int, rows: NoiseRows, points: Floats
) -> NodeLikelihood:
    """Return the likelihood of the nodes from `first` on; each has a cell."""
    node = cells.node - first
    window = np.flatnonzero(node >= 0)
    offset = np.searchsorted(node[window], np.arange(count + 1))
    fresh = np.empty((len(rows.sd), count, len(points)))
    same, scale = np.empty_like(fresh), np.empty(fresh.shape[:2])
    for begin, end in _chunks(offset, _CHUNK // (len(rows.sd) * len(points))):
        j = window[offset[begin] : offset[end]]
        sd = np.sqrt(cells.variance[:, j] + cells.effect[:, None])[..., None]
        z = (points - cells.mean[:, j, None]) / sd
        alone = mean_density(z, rows.outliers, trial_noise.ONE) / sd
        beside = alone.copy()
        i = cells.beside[j]
        linked = np.flatnonzero(i >= 0)
        kappa, variance = contrast_terms(cells, i[linked], j[linked])
        sd = np.sqrt(variance)[..., None]
        level = cells.mean[:, j[linked]] - kappa * cells.mean[:, i[linked]]
        z = (level[..., None] - (1 - kappa)[..., None] * points) / sd
        trials = np.minimum(cells.trials[i[linked]], cells.trials[j[linked]])
        beside[:, linked] = mean_density(z, rows.outliers, trials[:, None]) / sd
        at = offset[begin:end] - offset[begin]
        (one, of_one), (two, of_two) = (_joint(density, at) for density in (alone, beside))
        scale[:, begin:end] = top = np.maximum(of_one, of_two)
        fresh[:, begin:end] = one * np.exp(of_one - top)[..., None]
        same[:, begin:end] = two * np.exp(of_two - top)[..., None]
    return NodeLikelihood(fresh, same, scale)


def contrasts(
    cells: SessionMeans, count: int, weight: Floats, zero: float | None = None
) -> tuple[Floats, Floats]:
    """Return, of each node, its difference to the node before within sessions, and the precision of
    that; 0 where no session ran both. Sessions that differ by more than their noise, as those of a
    busy machine do, leave it by as much less precise (Birge, Phys. Rev. 40, 1932, 207).

    Args:
        zero: Where the value 0 is, if a session's effect is a share of the level, and so of a
            difference.
    """
    j = np.flatnonzero(cells.beside >= 0)
    i, k = cells.beside[j], cells.node[j]
    variance = cells.variance * cells.discord
    each, apart = variance[:, j] + variance[:, i], cells.mean[:, j] - cells.mean[:, i]
    if zero is not None:
        level = np.maximum(abs(cells.mean[:, j] - zero), abs(cells.mean[:, i] - zero))
        each = each + cells.effect[:, None] * (apart / np.maximum(level, _TINY)) ** 2
    each, apart = 1 / (weight @ each), weight @ apart
    precision: Floats = np.bincount(k, each, count).astype(np.float64)
    difference: Floats = np.bincount(k, each * apart, count) / np.maximum(precision, 1e-300)
    spread = np.bincount(k, each * (apart - difference[k]) ** 2, count)
    free = np.maximum(np.bincount(k, minlength=count) - 1, 1)
    return difference, precision / np.maximum(1.0, spread / free)


# --- the passes

_TINY = 1e-300


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """The result of the two passes.

    Attributes:
        forward: Probability of each level given the nodes up to this one.
        backward: Likelihood of the later nodes given the level here, over that of all of them.
        evidence: Likelihood of each node given the earlier ones: [nodes, rows].
        step: P(the level steps just before the node): [nodes, rows].
        left: Of nodes that return to code of before, the probability of each level of the node
            before given a step: [rows, points]. For others that is its forward message.
    """

    forward: Floats
    backward: Floats
    evidence: Floats
    step: Floats
    left: Mapping[int, Floats]


def passes(
    anew: Floats, stays: Floats, earlier: Floats, returns: Mapping[int, int] = MappingProxyType({})
) -> Messages:
    """Run both passes.

    Args:
        anew: Probability of a step before each node and of the level after it, times the likelihood
            of the node's values. Of a chain's first node: of its level.
        stays: Probability of no step before the node, times the likelihood of its values given that
            the level is that of the node before.
        earlier: The forward message of the node before the first one; 0 where there is none.
        returns: Nodes with the node before whose code they have: exactly what stepped since then
            steps back. Of them, `anew` and `stays` are likelihoods only, and are completed here.
    """
    forward, evidence = np.empty_like(anew), np.empty(anew.shape[:2])
    before, left = earlier, {}
    for k, (x, new, same, sums) in enumerate(zip(forward, anew, stays, evidence, strict=True)):
        if k in returns:
            old = forward[returns[k]]
            kept = old.copy()  # and no step since
            for i in range(returns[k] + 1, k):
                kept *= stays[i] / evidence[i][:, None]
            moved = np.maximum(before - kept, 0.0)
            chance = moved.sum(1, keepdims=True)
            same *= kept / np.maximum(before, _TINY)
            new *= old * chance
            left[k] = moved / np.maximum(chance, _TINY)
        np.multiply(before, same, out=x)
        x += new
        np.add.reduce(x, 1, out=sums)
        sums += _TINY
        x /= sums[:, None]
        before = x
    backward, step = np.empty_like(anew), np.empty(anew.shape[:2])
    backward[-1] = 1.0
    for k in range(len(anew) - 1, -1, -1):
        scaled = backward[k] / evidence[k][:, None]
        np.add.reduce(anew[k] * scaled, 1, out=step[k])
        if k:
            np.multiply(stays[k], scaled, out=backward[k - 1])
            onward = left[k] / np.maximum(forward[k - 1], _TINY) if k in left else 1.0
            backward[k - 1] += step[k][:, None] * onward
    if not earlier.any():
        step[0] = 0.0
    return Messages(forward, backward, evidence, step, left)


def step_moments(before: Floats, after: Floats, points: Floats) -> Floats:
    """Return what is known of a step at each place, by its direction: [places, rows, 2 (up, down),
    6].

    The six: probability of the step, and its sums of before, before squared, after, after squared,
    before times after, all exact given that there is a step in that direction.

    Args:
        before: Forward message of the node before: [places, rows, points].
        after: Joint probability of a step and of the level after it.
        points: Levels.
    """
    first, second = before * points, before * points**2
    up = []
    for weight in (before, first, second):
        below = np.cumsum(weight, -1) - 0.5 * weight  # an equal level counts half each way
        up.append((below, weight.sum(-1, keepdims=True) - below))
    result = np.empty((*before.shape[:-1], 2, 6))
    for way in (0, 1):
        w0, w1, w2 = (pair[way] for pair in up)
        mass = after * w0
        products = (
            mass,
            after * w1,
            after * w2,
            mass * points,
            mass * points**2,
            after * w1 * points,
        )
        for i, product in enumerate(products):
            result[..., way, i] = product.sum(-1)
    return result
