"""Levels along a chain of nodes: their grid, the likelihood of a node's trials, and both passes.

Lives here: the grid, in standard deviations of a trial, which depends on the nodes' means alone and
moves in blocks, so that a cached message stays valid while new commits come; the likelihood of
independent draws, and of trials whose session shares an effect; recursions over likelihoods on the
grid. They know no metric and no commit. Arrays are [nodes, rows, points]; a row is a metric under
one assumption about its noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from celedger.stats import trial_noise
from celedger.stats.arrays import Floats, Ints, begins_run
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
        effect: Variance of a session's effect: [rows].
        beside: Index of the cell of the node before in the same session, -1 if there is none.
    """

    node: Ints
    session: Ints
    trials: Ints
    mean: Floats
    variance: Floats
    effect: Floats
    beside: Ints


@dataclass(frozen=True, slots=True, eq=False)
class NodeLikelihood:
    """`fresh` and `same` of `level_chain.passes`, [rows, nodes, points], each node's scaled so that
    the largest is 1; `scale` has the logarithm of what was divided by."""

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
        logs = np.add.reduceat(np.log(density), offset[begin:end] - offset[begin], axis=1)
        scale[:, begin:end] = logs.max(2)
        fresh[:, begin:end] = np.exp(logs - logs.max(2, keepdims=True))
    return NodeLikelihood(fresh, fresh, scale)


def session_means(values: Floats, nodes: CommitNodes, rows: NoiseRows) -> SessionMeans:
    """Return the means of all cells, outliers clipped."""
    begins = np.flatnonzero(begins_run(nodes.cell))
    sizes = np.diff(np.append(begins, len(values)))
    mean = np.empty((len(rows.sd), len(begins)))
    for size in np.unique(sizes).tolist():
        cells = np.flatnonzero(sizes == size)
        trials = values[begins[cells][:, None] + np.arange(size)]
        middle = (np.median(trials, 1) if size > 2 else trials.mean(1))[:, None]
        reach = CLIP * rows.sd[:, None, None]
        mean[:, cells] = np.clip(trials, middle - reach, middle + reach).mean(2)
    return SessionMeans(
        node=nodes.node[begins],
        session=nodes.session[begins],
        trials=sizes,
        mean=mean,
        variance=rows.sd[:, None] ** 2 / sizes,
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


def mean_density(z: Floats, sd: Floats, outliers: float, trials: Ints) -> Floats:
    """Return the log density of a session's mean, or of a contrast, at z deviations.

    Args:
        trials: As many as a mean of trials rests on, of each cell, to be broadcast against `z`; 1
            where a session's effect is part of it, which no number of its trials averages out.
    """
    far = trial_noise.mean_outliers(outliers, trials)
    core = np.exp(trial_noise.log_mean_core(z, trials))
    result: Floats = np.log((1 - far) * core + far * trial_noise.outlier(z)) - np.log(sd)
    return result


@lru_cache(maxsize=64)
def density_table(outliers: float, trials: tuple[int, ...]) -> Floats:
    """Return the log density of a mean of so many trials at each distance, in deviations."""
    z = np.arange(0.0, TABLE_REACH + TABLE_STEP, TABLE_STEP)
    numbers = np.array(trials)[:, None]
    return mean_density(z, np.ones(1), outliers, numbers)


ONE = np.ones(1, dtype=np.int64)


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
        alone = mean_density((points - cells.mean[:, j, None]) / sd, sd, rows.outliers, ONE)
        beside = alone.copy()
        i = cells.beside[j]
        linked = np.flatnonzero(i >= 0)
        kappa, variance = contrast_terms(cells, i[linked], j[linked])
        sd = np.sqrt(variance)[..., None]
        level = cells.mean[:, j[linked]] - kappa * cells.mean[:, i[linked]]
        z = (level[..., None] - (1 - kappa)[..., None] * points) / sd
        trials = np.minimum(cells.trials[i[linked]], cells.trials[j[linked]])
        beside[:, linked] = mean_density(z, sd, rows.outliers, trials[:, None])
        at = offset[begin:end] - offset[begin]
        one, two = (np.add.reduceat(x, at, axis=1) for x in (alone, beside))
        top = np.maximum(one.max(2), two.max(2))
        scale[:, begin:end] = top
        fresh[:, begin:end] = np.exp(one - top[..., None])
        same[:, begin:end] = np.exp(two - top[..., None])
    return NodeLikelihood(fresh, same, scale)


def contrasts(cells: SessionMeans, count: int, weight: Floats) -> tuple[Floats, Floats]:
    """Return, of each node, its difference to the node before within sessions, and the precision of
    that; 0 where no session ran both. Sessions that differ by more than their noise, as those of a
    busy machine do, leave it by as much less precise (Birge, Phys. Rev. 40, 1932, 207)."""
    j = np.flatnonzero(cells.beside >= 0)
    i, k = cells.beside[j], cells.node[j]
    each = 1 / (weight @ (cells.variance[:, j] + cells.variance[:, i]))
    apart = weight @ (cells.mean[:, j] - cells.mean[:, i])
    precision: Floats = np.bincount(k, each, count).astype(np.float64)
    difference: Floats = np.bincount(k, each * apart, count) / np.maximum(precision, 1e-300)
    spread = np.bincount(k, each * (apart - difference[k]) ** 2, count)
    free = np.maximum(np.bincount(k, minlength=count) - 1, 1)
    return difference, precision / np.maximum(1.0, spread / free)


# --- the passes

_TINY = 1e-300


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """What the two passes leave.

    Attributes:
        forward: Probability of each level given the nodes up to this one.
        backward: Likelihood of the later nodes given the level here, over that of all of them.
        evidence: Likelihood of each node given the earlier ones: [nodes, rows].
        step: P(the level steps just before the node): [nodes, rows].
    """

    forward: Floats
    backward: Floats
    evidence: Floats
    step: Floats


def passes(
    fresh: Floats,
    same: Floats,
    prior: Floats,
    hazard: Floats,
    earlier: Floats | None,
) -> Messages:
    """Run both passes.

    Args:
        fresh: Likelihood of each node's values given its level.
        same: The same, given also that the level is that of the node before. `fresh` itself where
            nothing was measured side by side.
        prior: Of a level after a step: [rows, points].
        hazard: Prior probability of a step before the node.
        earlier: The forward message of the node before the first one. None: a chain starts anew,
            without a step.
    """
    count = len(fresh)
    forward, evidence = np.empty_like(fresh), np.empty(fresh.shape[:2])
    before = earlier
    for k in range(count):
        if before is None:
            x = prior * fresh[k]
        else:
            h = hazard[k]
            x = before * (1 - h) * same[k] + prior * h * fresh[k]
        evidence[k] = x.sum(1) + _TINY
        before = np.divide(x, evidence[k][:, None], out=forward[k])
    backward, step = np.empty_like(fresh), np.zeros(fresh.shape[:2])
    after = np.ones_like(prior)
    for k in range(count - 1, -1, -1):
        backward[k] = after
        scaled = after / evidence[k][:, None]
        anew = (fresh[k] * scaled * prior).sum(1)
        if k == 0 and earlier is None:
            break
        step[k] = hazard[k] * anew
        if k == 0:
            break
        after = same[k] * scaled * (1 - hazard[k]) + step[k][:, None]
    return Messages(forward, backward, evidence, step)


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
