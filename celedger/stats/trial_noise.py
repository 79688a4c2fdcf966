"""The noise of a task's metrics, from repeats of the same code only.

Lives here: standard deviation, outliers, second mode, effect of a session and of a trial's place
in it. Differences between commits never enter: they are what is in question.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from celedger.stats import repeat_tables, trial_density
from celedger.stats.arrays import Bools, Floats, Ints
from celedger.stats.commit_nodes import CommitNodes
from celedger.stats.value_resolution import written_resolution

LEARNS_FROM_REPEATS = True  # the tests switch each part off, and see what it is for
HAS_SECOND_MODE = True
HAS_SESSION_EFFECT = True

RELATIVE_SD = 0.005
"""Centre of the prior of deviation / level; `LOG_SD_PRIOR` is the spread of its logarithm."""
LOG_SD_PRIOR = 1.5
METRICS_THAT_POOL = 4
"""From so many metrics with repeats on, centre and spread come from their own posteriors."""
LEAST_SPREAD = 0.7
LEAST_LOG_SD_ERROR = 0.03
TIE_SHARE = 0.4
"""Where values tie across repeats, the deviation is at least this share of their distance."""
ROUNDING = 1e-6  # two distances that differ by no more are equal
LOG_RATIOS: Floats = np.log(2.0 ** np.arange(-3, 18))
"""Of a session's deviation over a trial's; peak memory reaches 100 and more."""
LOG_RATIO_PRIOR = 1.7
LEAST_LOG_RATIO_ERROR = 0.05
OWN_SHARE = 0.8  # of the pooled posterior in the prior of a session's ratio; the rest is flat
LARGEST_RATIO = 64.0
"""A trial is taken to be no more exact than this share of its session's effect: levels finer than
that are known of no session."""
NO_RATIO = 0.05
WARM_UP = 3.0
"""A session's first trials are slower: by A exp(-rank / 3)."""
WARM_UP_PRECISION = 0.25  # the prior of A is two deviations wide


@dataclass(frozen=True, slots=True, eq=False)
class NoisePosterior:
    """What is known of the noise of several metrics of one kind: a value a metric.

    Attributes:
        log_sd, log_sd_error: Of a trial's deviation.
        outliers: Share of outliers.
        modes: Rate of the second mode, by shape: [metrics, shapes].
        log_ratio, log_ratio_error: Of a session's deviation over a trial's.
        freedom: Degrees of freedom of the repeats.
    """

    log_sd: Floats
    log_sd_error: Floats
    outliers: Floats
    modes: Floats
    log_ratio: Floats
    log_ratio_error: Floats
    freedom: Ints


def scale_of(values: Floats) -> float:
    """Return the typical size of the values, 1 if all are 0."""
    sizes = np.abs(values[values != 0])
    return float(np.median(sizes)) if len(sizes) else 1.0


def least_sd(nodes: CommitNodes, values: Floats) -> float:
    """Return the least deviation of a metric of few possible values, 0 for any other.

    The smallest distance of two values is that of possible ones where trials of one commit differ
    by it. Else a commit or a session may have made it, and how values are written tells.
    """
    order = np.lexsort((values, nodes.cell))
    own = np.diff(values[order])[np.diff(nodes.cell[order]) == 0]
    distinct = np.unique(values)
    if len(distinct) < 2 or own.all():
        return 0.0
    smallest = float(np.diff(distinct).min())
    if own[own > 0].min(initial=math.inf) > smallest * (1 + ROUNDING):
        smallest = min(smallest, written_resolution(distinct))
    return TIE_SHARE * smallest


def warmth(nodes: CommitNodes) -> Floats:
    """Return how cold each draw's session still was: 1 for its first trial, fading."""
    result: Floats = np.exp(-nodes.rank / WARM_UP)
    return result


def warm_up(nodes: CommitNodes, values: Floats) -> float:
    """Return by how much a session's first trial is slower, from repeats within sessions."""
    cold = warmth(nodes)
    own = cold - (np.bincount(nodes.cell, cold) / np.bincount(nodes.cell))[nodes.cell]
    return float(own @ values / (own @ own + WARM_UP_PRECISION))


def session_differences(nodes: CommitNodes, values: Floats) -> tuple[Floats, Floats]:
    """Return differences of one commit between sessions, and 1/n + 1/m of each.

    Sessions that follow one another find the machine in a similar state. Each is compared with the
    one half of the commit's sessions later, so that what is learned is how far levels may lie.
    """
    begins = np.flatnonzero(np.append(True, np.diff(nodes.cell) != 0))
    size = np.diff(np.append(begins, len(values)))
    mean = np.add.reduceat(values, begins) / size
    node = nodes.node[begins]
    count = np.bincount(node)[node]
    rank = np.arange(len(node)) - np.searchsorted(node, node)
    later = np.maximum(1, count // 2)
    i = np.flatnonzero(rank + later < count)
    j = i + later[i]
    return mean[j] - mean[i], 1 / size[i] + 1 / size[j]


def _posterior_of_sd(
    tables: Floats, log_level: Floats, has_repeats: Bools
) -> tuple[Floats, Floats, Floats]:
    """Return mean and error of log(sd / scale), and the weight of each shape, of each metric."""
    prior = trial_density.shape_prior(tables.shape[2] > repeat_tables.PLAIN)
    centre, spread = log_level + math.log(RELATIVE_SD), LOG_SD_PRIOR
    for _ in range(2):
        z = (repeat_tables.LOG_SDS - centre[:, None]) / spread
        log = tables - 0.5 * (z**2)[..., None] + prior
        weight = np.exp(log - log.max((1, 2), keepdims=True))
        weight /= weight.sum((1, 2), keepdims=True)
        by_sd = weight.sum(2)
        mean = by_sd @ repeat_tables.LOG_SDS
        variance = by_sd @ repeat_tables.LOG_SDS**2 - mean**2
        if has_repeats.sum() < METRICS_THAT_POOL:
            break
        relative = (mean - log_level)[has_repeats]
        centre = log_level + float(np.median(relative))
        spread = max(LEAST_SPREAD, float(relative.std()))
    return mean, np.sqrt(np.maximum(variance, LEAST_LOG_SD_ERROR**2)), weight.sum(1)


def _posterior_of_ratio(
    sd: Floats, differences: Sequence[tuple[Floats, Floats]]
) -> tuple[Floats, Floats]:
    """Return mean and error of log(session's deviation / trial's), pooled over the metrics."""
    log = np.tile(-0.5 * (LOG_RATIOS / LOG_RATIO_PRIOR) ** 2, (len(sd), 1))
    for m, (difference, inverse) in enumerate(differences):
        scale = sd[m] * np.sqrt(inverse[:, None] + 2 * np.exp(2 * LOG_RATIOS))
        log[m] += np.log(trial_density.session_core(difference[:, None] / scale) / scale).sum(0)
    own = np.exp(log - log.max(1, keepdims=True))
    own /= own.sum(1, keepdims=True)
    if len(sd) > 1:
        own = own * (own.mean(0) * OWN_SHARE + (1 - OWN_SHARE) / len(LOG_RATIOS))
        own /= own.sum(1, keepdims=True)
    mean = own @ LOG_RATIOS
    variance = own @ LOG_RATIOS**2 - mean**2
    return mean, np.sqrt(np.maximum(variance, LEAST_LOG_RATIO_ERROR**2))


def posterior(
    tables: Floats,
    log_level: Floats,
    log_scale: Floats,
    least: Floats,
    freedom: Ints,
    differences: Sequence[tuple[Floats, Floats]] | None,
) -> NoisePosterior:
    """Return the noise of metrics of one kind: a row or a value of each argument a metric.

    Args:
        tables: Of `repeat_tables`, summed over the groups of each metric.
        log_level: Of the metric's typical size over its scale.
        log_scale: Of the scale to which its table relates.
        least: Of `least_sd`.
        freedom: Degrees of freedom of the repeats.
        differences: Of `session_differences`; None for quality.
    """
    if not LEARNS_FROM_REPEATS:
        tables = np.zeros_like(tables)
    mean, error, shapes = _posterior_of_sd(tables, log_level, freedom > 0)
    log_sd = np.maximum(mean + log_scale, np.log(np.maximum(least, 1e-300)))
    log_ratio = np.full(len(tables), math.log(NO_RATIO))
    ratio_error = np.full(len(tables), LEAST_LOG_RATIO_ERROR)
    if differences is not None and HAS_SESSION_EFFECT:
        log_ratio, ratio_error = _posterior_of_ratio(np.exp(log_sd), differences)
        excess = np.maximum(log_ratio - math.log(LARGEST_RATIO), 0.0)
        log_sd, log_ratio = log_sd + excess, log_ratio - excess
    known = trial_density.SHAPES[: shapes.shape[1]]
    return NoisePosterior(
        log_sd=log_sd,
        log_sd_error=error,
        outliers=shapes @ known[:, 0],
        modes=shapes * known[:, 1],
        log_ratio=log_ratio,
        log_ratio_error=ratio_error,
        freedom=freedom,
    )
