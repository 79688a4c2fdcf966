"""The likelihood of each node's trials, given its level on a grid.

Lives here: independent draws of quality; speed and memory, whose trials of one session share an
effect. All is in deviations of a trial. One metric at a time; a row is one assumption about its
noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from celedger.stats import trial_density
from celedger.stats.arrays import Floats, Ints
from celedger.stats.commit_nodes import CommitNodes

SEES_SAME_SESSION = True  # a test switches it off
CLIP = 2.0
"""Trials further than two deviations from their session's middle count as at that distance."""
_CHUNK = 1_000_000  # floats in memory
TABLE_REACH, TABLE_STEP = 64.0, 0.01  # of `density_table`, in deviations


@dataclass(frozen=True, slots=True, eq=False)
class NoiseRows:
    """Assumptions about one metric's noise, a row each, and their weights.

    Attributes:
        weight: Of each row; they sum to 1.
        sd: A trial's deviation, over the metric's unit.
        session: A session's deviation, over the unit; 0 for quality.
        outliers: Share of outliers.
        modes: Density of the second modes on the points of `trial_density.mode_tables`, None if
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
        effect: Variance of what is not known of the session's effect: [rows, cells]. Infinite: the
            cell says nothing of its own.
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
        density = plain * trial_density.core(z) + rows.outliers * trial_density.outlier(z)
        if rows.modes is not None:
            density += rows.modes[trial_density.table_index(z)]
        logs = np.add.reduceat(np.log(density), offset[begin:end] - offset[begin], axis=1)
        scale[:, begin:end] = logs.max(2)
        fresh[:, begin:end] = np.exp(logs - logs.max(2, keepdims=True))
    return NodeLikelihood(fresh, fresh, scale)


def session_means(values: Floats, nodes: CommitNodes, rows: NoiseRows) -> SessionMeans:
    """Return the means of all cells, outliers clipped."""
    begins = np.flatnonzero(np.append(True, np.diff(nodes.cell) != 0))
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
        effect=np.repeat(rows.session[:, None] ** 2, len(begins), 1),
        beside=nodes.beside if SEES_SAME_SESSION else np.full_like(nodes.beside, -1),
    )


def contrast_terms(cells: SessionMeans, i: Ints, j: Ints) -> tuple[Floats, Floats]:
    """Return kappa and the variance of the mean of cell j given that of cell i, of the node before
    in the same session, and the common level.

    Given the level l, the session's effect is integrated exactly: the mean of j is
    l + kappa (mean of i - l), kappa = effect / (effect + variance of i).
    """
    kappa = cells.effect[:, j] / (cells.effect[:, j] + cells.variance[:, i])
    return kappa, cells.variance[:, j] + kappa * cells.variance[:, i]


def mean_density(z: Floats, sd: Floats, outliers: float, trials: Ints) -> Floats:
    """Return the log density of a session's mean, or of a contrast, at z deviations.

    Args:
        trials: As many as a mean of trials rests on, of each cell, to be broadcast against `z`; 1
            where a session's effect is part of it, which no number of its trials averages out.
    """
    far = trial_density.mean_outliers(outliers, trials)
    core = np.log1p(-far) + trial_density.log_mean_core(z, trials)
    result: Floats = np.logaddexp(core, np.log(far * trial_density.outlier(z))) - np.log(sd)
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
        speaks = np.isfinite(cells.effect[0, j])
        effect = np.where(np.isfinite(cells.effect[:, j]), cells.effect[:, j], 0.0)
        sd = np.sqrt(cells.variance[:, j] + effect)[..., None]
        alone = mean_density((points - cells.mean[:, j, None]) / sd, sd, rows.outliers, ONE)
        alone[:, ~speaks] = 0.0
        beside = alone.copy()
        i = cells.beside[j]
        linked = np.flatnonzero(speaks & (i >= 0) & np.isfinite(cells.effect[0, np.maximum(i, 0)]))
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
    that; 0 where no session ran both."""
    speaks = np.isfinite(cells.effect[0])
    j = np.flatnonzero((cells.beside >= 0) & speaks & speaks[cells.beside])
    i, k = cells.beside[j], cells.node[j]
    each = 1 / (weight @ (cells.variance[:, j] + cells.variance[:, i]))
    apart = weight @ (cells.mean[:, j] - cells.mean[:, i])
    precision: Floats = np.bincount(k, each, count).astype(np.float64)
    difference: Floats = np.bincount(k, each * apart, count) / np.maximum(precision, 1e-300)
    return difference, precision
