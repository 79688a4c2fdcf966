"""The distribution of one trial around its level, in units of its standard deviation.

Lives here: a t core, far outliers, and a one-sided second mode for trainings that sometimes
collapse. It knows no data. benchmarks/statistics.md, "The state", says what was measured.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from celedger.stats.arrays import Floats, Ints
from celedger.stats.tails import log_gamma

CORE_FREEDOM = 8.0
"""Of the core: noise of trainings has heavier tails than a normal distribution."""
SESSION_FREEDOM = 5.0
"""Of means of a session, which hold outliers of several trials."""
OUTLIER_SCALE = 6.0
"""Of the Cauchy distribution of outliers. A density that is uniform in standard deviations would
grow without bound as the deviation falls to 0, and everything would be an outlier."""
OUTLIER_SHARES = (0.005, 0.03, 0.10)
OUTLIER_PRIOR = (0.0, -0.5, -1.0)  # logarithm
MODE_RATES = (0.05, 0.12, 0.25)
MODE_DISTANCES = (5.0, 8.5, 14.0, 24.0)
MODE_WIDENING = 0.3  # a mode at distance d has the variance 1 + (.3 d)^2
MODE_PRIOR = 1 / 3
"""Prior probability that there is a second mode."""
TABLE_REACH = 64.0  # beyond, a mode's density is nothing beside that of outliers
TABLE_STEP = 0.02

SHAPES: Floats = np.array(
    [(share, 0.0, 0.0) for share in OUTLIER_SHARES]
    + [(OUTLIER_SHARES[0], rate, d) for rate in MODE_RATES for d in MODE_DISTANCES]
)
"""A row a shape: share of outliers, rate of the second mode, its distance."""


def shape_prior(has_modes: bool) -> Floats:
    """Return the logarithm of the prior of each shape; without modes, of the first three."""
    plain = np.array(OUTLIER_PRIOR)
    if not has_modes:
        return plain
    plain = np.exp(plain) / np.exp(plain).sum() * (1 - MODE_PRIOR)
    modes = len(SHAPES) - len(plain)
    prior: Floats = np.log(np.concatenate([plain, np.full(modes, MODE_PRIOR / modes)]))
    return prior


def core(z: Floats) -> Floats:
    """Return the density of Student's t with `CORE_FREEDOM`."""
    constant = math.gamma(4.5) / math.gamma(4.0) / math.sqrt(8.0 * math.pi)
    w = 1 + z * z / CORE_FREEDOM
    square = w * w
    result: Floats = constant / (square * square * np.sqrt(w))  # w ** 4.5
    return result


def session_core(z: Floats) -> Floats:
    """Return the density of Student's t with `SESSION_FREEDOM`."""
    constant = math.gamma(3.0) / math.gamma(2.5) / math.sqrt(5.0 * math.pi)
    w = 1 + z * z / SESSION_FREEDOM
    result: Floats = constant / (w * w * w)
    return result


def log_mean_core(z: Floats, trials: Ints) -> Floats:
    """Return the log density of a mean of so many trials, or of the difference of two: Student's t
    whose excess kurtosis, 6 / (freedom - 4), is a trial's divided by their number.

    Args:
        trials: One dimension less than `z` has, or a dimension of 1: broadcast against it.
    """
    freedom = SESSION_FREEDOM - 1.0 + trials
    constant = log_gamma((freedom + 1) / 2) - log_gamma(freedom / 2) - np.log(freedom * math.pi) / 2
    result: Floats = constant - (freedom + 1) / 2 * np.log1p(z * z / freedom)
    return result


def mean_outliers(share: float, trials: Ints) -> Floats:
    """Return the probability that a mean of so many trials is an outlier. Of three and more, the
    middle is one only if half of them are."""
    half = np.ceil(trials / 2)
    result: Floats = share / 2 * np.where(trials > 2, share ** (half - 1), 1.0)
    return result


def outlier(z: Floats) -> Floats:
    result: Floats = 1 / (OUTLIER_SCALE * math.pi * (1 + (z / OUTLIER_SCALE) ** 2))
    return result


@cache
def mode_tables() -> Floats:
    """Return the density of each second mode on the table's points: a row a distance."""
    z = np.arange(-TABLE_REACH, TABLE_REACH + TABLE_STEP / 2, TABLE_STEP)
    rows = []
    for distance in MODE_DISTANCES:
        width = math.sqrt(1 + (MODE_WIDENING * distance) ** 2)
        rows.append(np.exp(-0.5 * ((z - distance) / width) ** 2) / width / math.sqrt(2 * math.pi))
    tables = np.array(rows)
    tables[:, [0, -1]] = 0.0
    return tables


def table_index(z: Floats) -> Ints:
    """Return the table's point nearest to each `z`; its ends stand for what lies beyond."""
    last = mode_tables().shape[1] - 1
    points = np.clip(z * (1 / TABLE_STEP) + (TABLE_REACH / TABLE_STEP + 0.5), 0, last)
    return points.astype(np.int64)


def modes_of(rates: Floats) -> Floats:
    """Return, on the table's points, the density of the second modes together, given the rate of
    each shape."""
    total = np.zeros(mode_tables().shape[1])
    for (_, _, distance), rate in zip(SHAPES, rates, strict=True):
        if distance:
            total += rate * mode_tables()[MODE_DISTANCES.index(distance)]
    return total
