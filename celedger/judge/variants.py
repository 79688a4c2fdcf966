"""Which variant of a grid is surely better than the others, by equal seeds. Reads their trials and
the noise that the state knows; knows no commits and no files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from celedger.base.model import CLOCKED, Metric, TrialRecord
from celedger.judge.edit import values_by_seed
from celedger.judge.incident import MetricNoise

ERROR = 0.05
"""Probability that a variant is called surely the best of a grid and another one is as good."""


@dataclass(frozen=True, slots=True)
class Lead:
    """The variant with the best mean of a metric, by its number: of `number` that have values.

    Attributes:
        close: Variants that may be as good: these seeds do not tell.
        second: The variant with the next mean.
        change, level: Of the second's mean to the best's, and the second's mean.
    """

    metric: Metric
    number: int
    best: int
    close: tuple[int, ...]
    second: int
    change: float
    level: float


def lead(
    metric: Metric,
    variants: Sequence[Sequence[TrialRecord]],
    noises: Sequence[MetricNoise | None],
) -> Lead | None:
    """Return the best variant of a metric, each given by its trials and what is known of its noise;
    None where fewer than two have finite values."""
    by_seed = [values_by_seed(records, metric) for records in variants]
    means = {
        number: metric.direction.sign * sum(values.values()) / len(values)
        for number, values in enumerate(by_seed)
        if values and all(map(math.isfinite, values.values()))
    }
    if len(means) < 2:
        return None
    best, second, *_ = sorted(means, key=means.__getitem__)
    # Each variant may be the best by chance: all claims together keep to ERROR.
    limit = ERROR / len(means)
    close = tuple(
        other for other in means if other != best
        and _chance(metric, by_seed[best], by_seed[other], (noises[best], noises[other])) > limit
    )  # fmt: skip
    level = metric.direction.sign * means[second]
    change = metric.direction.sign * means[best] - level
    return Lead(metric, len(means), best, close, second, change, level)


def _chance(
    metric: Metric,
    best: Mapping[int, float],
    other: Mapping[int, float],
    noises: Sequence[MetricNoise | None],
) -> float:
    """Return the probability of such a lead, or a larger one, between equals.

    Differences at equal seeds are Student's t around the true one. What a clock or a meter of
    memory shows, shares a session's noise besides, which no pair tells.
    """
    import numpy as np

    from celedger.stats.tails import t_tail
    from celedger.stats.trial_noise import written_resolution

    shared = sorted(best.keys() & other.keys())
    count = len(shared)
    if count < 2:
        return 1.0
    values = np.array([(best[seed], other[seed]) for seed in shared])
    differences = metric.direction.sign * (values[:, 1] - values[:, 0])
    mean = float(differences.mean())
    if mean <= 0:
        return 1.0
    # Two rounded values differ by an error of this deviation, however alike the differences are.
    rounding = written_resolution(np.unique(values)) / math.sqrt(6)
    error = max(float(differences.std(ddof=1)), rounding) / math.sqrt(count)
    if metric.kind in CLOCKED:
        known = [noise.error(count, count) for noise in noises if noise is not None]
        error = max([error, *known]) if len(known) == len(noises) else math.inf
    return t_tail(mean / error, count - 1) if error else 0.0
