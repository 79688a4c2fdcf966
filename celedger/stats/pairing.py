"""How much likelier readings are if equal seeds share part of their noise. Arrays in, arrays out;
knows neither commits nor what is done with the factors.

A reading is level + shift (on the bad side) + u + v (on the bad side) + e, normal, with variances
of rho s² (u, the seed's), kappa s² (v, by how much the change differs from seed to seed) and
(1 - rho) s² (e, the trial's own). Only the ratio to rho = kappa = 0 is used: the bare normal would
win against noise with tails wherever tails are not needed. Derivation: docs/statistics.md,
"Equal seeds".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from celedger.stats.arrays import Bools, Floats, Ints
from celedger.stats.integration_grid import FINEST, log_sum
from celedger.stats.likelihood import ROUNDED
from celedger.stats.shifts import SHIFT_SPREAD, SHIFTS, chance_to_differ

SHARES = np.array((0.3, 0.6, 0.8, 0.92, 0.98, 0.9995))
SHARE_PRIOR = np.array((0.17, 0.22, 0.22, 0.17, 0.14, 0.08))
"""Nodes and prior of rho."""
INTERACTION_PRIOR = np.array((0.4, 0.25, 0.2, 0.15))
"""Of kappa = 0, 0.05 (1 - rho), 0.3 and 1."""
RHO = np.concatenate(([0.0], np.repeat(SHARES, len(INTERACTION_PRIOR))))
KAPPA = np.concatenate(([0.0], *((0.0, 0.05 * (1 - rho), 0.3, 1.0) for rho in SHARES)))
LOG_PRIOR = np.log(np.outer(SHARE_PRIOR, INTERACTION_PRIOR)).ravel()
SCALE_NODES, SHIFT_NODES, REACH = 12, 13, 4.5
LEAST_LIKELY = 15.0
"""Models that are less likely than the best one by so many nats, before the shift is integrated,
are left out."""


@dataclass(frozen=True)
class Readings:
    """Readings with their seeds as numbers from 0, in units of their range."""

    values: Floats
    seeds: Ints
    finest: float
    """The smallest sd that is believed, in the same unit."""
    resolution: float = 0.0
    """Distance of possible values, 0 for fine ones."""

    @classmethod
    def of(cls, values: Floats, seeds: Ints, gap: float, resolution: float) -> Readings:
        return cls(values, seeds, max(abs(gap), 1e-3) / FINEST, resolution)


@dataclass(frozen=True)
class Pairs:
    """What equal seeds say. M models, those of RHO and KAPPA; the first has no pairs."""

    log_factor: Floats
    """(G,) log evidence of pairs over that of none, for each split"""
    log_none: float
    """The same where nothing changed"""
    model: Floats
    """(G, M - 1) belief in each model with pairs given the split; each sums to one"""
    level: Floats
    """(G, M - 1) the level of the good side that each expects"""
    shift: Floats
    scale: Floats
    """(G, M - 1) its s"""
    means: tuple[Floats, Floats, Floats, Floats]
    """(G, S) numbers of readings of each seed on the good and the bad side, and their means"""

    def predict(self, weight: Floats, seeds: Sequence[int]) -> tuple[Floats, Floats]:
        """(2, G, S + 1) mean and sd of the next reading of each of these seeds, last of a new one,
        on the good and on the bad side; under the likeliest model, splits mixed by `weight`."""
        best = int(np.argmax(weight @ self.model))
        rho, kappa = float(RHO[best + 1]), float(KAPPA[best + 1])
        n0, n1, m0, m1 = (
            np.concatenate([part[:, seeds], np.zeros((len(part), 1))], axis=1)
            for part in self.means
        )
        _, p00, p01, p11 = _precision(n0, n1, rho, kappa)
        level, scale = self.level[:, best, None], self.scale[:, best, None]
        bad = level + np.maximum(self.shift[:, best, None], 0.0)
        off0, off1, own = m0 - level, m1 - bad, rho + kappa
        mean = np.stack([
            level + rho * ((p00 + p01) * off0 + (p01 + p11) * off1),
            bad + (rho * p00 + own * p01) * off0 + (rho * p01 + own * p11) * off1,
        ])  # fmt: skip
        variance = np.stack([
            1 - rho**2 * (p00 + 2 * p01 + p11),
            1 + kappa - (rho**2 * p00 + 2 * rho * own * p01 + own**2 * p11),
        ])  # fmt: skip
        return mean, scale * np.sqrt(np.maximum(variance, 1e-9))


def compare(readings: Readings, bad: Bools, used: Bools, selected: tuple[int, int]) -> Pairs:
    """Return how pairs explain those readings that are `used` (R,), for every row of `bad`
    (G, R)."""
    sides = (~bad & used).astype(float), (bad & used).astype(float)
    log, level, shift, scale = _fits(readings, *sides, selected)
    every = used[None].astype(float)
    none = densities(readings, every, 0 * every, (0, 0))
    paired = log[:, 1:] + LOG_PRIOR
    top = log_sum(paired.T)
    return Pairs(
        top - log[:, 0],
        float(log_sum(none[0, 1:] + LOG_PRIOR) - none[0, 0]),
        np.exp(paired - top[:, None]),
        level[:, 1:],
        shift[:, 1:],
        scale[:, 1:],
        _means(readings, *sides),
    )


def densities(readings: Readings, good: Floats, bad: Floats, selected: tuple[int, int]) -> Floats:
    """(G, M) log densities of the readings that are 1 in a row of `good` or `bad` (G, R), under
    flat priors of the level and of log s."""
    return _fits(readings, good, bad, selected)[0]


def _means(readings: Readings, good: Floats, bad: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    own = np.zeros((len(readings.values), int(readings.seeds.max()) + 1))
    own[np.arange(len(own)), readings.seeds] = 1.0
    x = own * readings.values[:, None]
    n0, n1 = good @ own, bad @ own
    return n0, n1, (good @ x) / np.maximum(n0, 1), (bad @ x) / np.maximum(n1, 1)


def _fits(
    readings: Readings, good: Floats, bad: Floats, selected: tuple[int, int]
) -> tuple[Floats, Floats, Floats, Floats]:
    """(G, M) log densities, and the likeliest level, shift and s."""
    n0, n1, m0, m1 = _means(readings, good, bad)
    squares = (good + bad) @ readings.values**2
    within = np.maximum(squares - (n0 * m0**2 + n1 * m1**2).sum(axis=1), 0.0)
    n = (good + bad).sum(axis=1)
    rest = 1 - RHO
    columns = [_sums(n0, n1, m0, m1, rho, kappa) for rho, kappa in zip(RHO, KAPPA, strict=True)]
    log_volume, a00, a01, a11, b0, b1, square = np.moveaxis(np.array(columns), 0, 2)  # (G, M)
    weight = a00 + 2 * a01 + a11
    curvature = np.maximum((a00 * a11 - a01**2) / weight, 0.0)
    shift = (b1 - (b0 + b1) * (a01 + a11) / weight) / np.maximum(curvature, 1e-12)
    square -= (b0 + b1) ** 2 / weight + curvature * shift**2
    square = np.maximum(square, 0.0) + within[:, None] / rest
    constant = -0.5 * (log_volume + np.log(weight) + n[:, None] * np.log(rest))
    constant -= 0.5 * (n[:, None] - 1) * np.log(2 * np.pi)
    floor = np.maximum(readings.finest, ROUNDED * readings.resolution / np.sqrt(rest))
    freedom = np.maximum(n - 1, 1)[:, None]
    below = np.where(shift < 0, curvature * shift**2, 0.0)
    scale = np.maximum(np.sqrt((square + below) / freedom), floor)
    rough = constant - freedom * np.log(scale) - (square + below) / (2 * scale**2)
    likely = rough > rough.max(axis=1, keepdims=True) - LEAST_LIKELY
    likely[:, 0] = True
    row, model = np.nonzero(likely)
    log = np.full(rough.shape, -np.inf)
    log[likely] = constant[likely] + _integrated(
        square[likely], curvature[likely], shift[likely], freedom[row, 0], scale[likely],
        floor[model], rest[model], selected,
    )  # fmt: skip
    return log, (b0 + b1 - (a01 + a11) * shift) / weight, shift, scale


def _precision(n0: Floats, n1: Floats, rho: float, kappa: float) -> tuple[Floats, ...]:
    """(G, S) log volume of the two means of each seed, and the entries 00, 01 and 11 of the inverse
    of their covariance over s²."""
    rest = 1 - rho
    of_good, of_bad = rho * n0 + rest, (rho + kappa) * n1 + rest
    volume = of_good * of_bad - rho**2 * n0 * n1
    return (
        np.log(volume / rest**2), n0 * of_bad / volume, -rho * n0 * n1 / volume,
        n1 * of_good / volume,
    )  # fmt: skip


def _sums(n0: Floats, n1: Floats, m0: Floats, m1: Floats, rho: float, kappa: float) -> Floats:
    """(7, G) sums over seeds of log volumes, of precisions P, of P m and of m P m."""
    log_volume, p00, p01, p11 = _precision(n0, n1, rho, kappa)
    parts = (
        log_volume, p00, p01, p11, p00 * m0 + p01 * m1, p01 * m0 + p11 * m1,
        p00 * m0**2 + 2 * p01 * m0 * m1 + p11 * m1**2,
    )  # fmt: skip
    return np.array([part.sum(axis=1) for part in parts])


def _integrated(
    square: Floats,
    curvature: Floats,
    shift: Floats,
    freedom: Floats,
    scale: Floats,
    floor: Floats,
    rest: Floats,
    selected: tuple[int, int],
) -> Floats:
    """(K,) log of the integral over log s and a positive shift."""
    reach = REACH / np.sqrt(2 * freedom) + 0.3
    low = np.maximum(np.log(scale) - reach, np.log(floor))
    high = np.maximum(np.log(scale) + reach, low + reach)
    log_s = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, SCALE_NODES)
    s = np.exp(log_s)
    log = -freedom[:, None] * log_s - square[:, None] / (2 * s**2)
    log += np.log((high - low) / (SCALE_NODES - 1))[:, None]
    some = curvature > 0
    if some.any():  # the shift, spaced evenly in its logarithm
        error = s[some] / np.sqrt(curvature[some, None])
        middle = shift[some, None]
        top = np.maximum(middle, 0) + REACH * error
        first = np.log(np.maximum(middle - REACH * error, 1e-3 * top))
        step = (np.log(top) - first) / (SHIFT_NODES - 1)
        log_shift = first[..., None] + step[..., None] * np.arange(SHIFT_NODES)
        off = (np.exp(log_shift) - middle[..., None]) / error[..., None]
        log_z = log_shift - log_s[some][..., None]
        mass = np.exp(-0.5 * off**2) * _prior(log_z, rest[some])
        if any(selected):
            mass /= chance_to_differ(np.exp(log_z), *selected)
        log[some] += np.log(np.maximum(mass.sum(axis=-1) * step, 1e-300))
    return log_sum(log.T)


def _prior(log_z: Floats, rest: Floats) -> Floats:
    """Density of the log of the shift: in s or, as likely, in sd of the trial's own noise."""
    units = 0.0, 0.5 * np.log(rest)[:, None, None]
    total = sum(
        weight * np.exp(-0.5 * ((log_z - np.log(median) - unit) / SHIFT_SPREAD) ** 2)
        for weight, median in SHIFTS
        for unit in units
    )
    return np.asarray(total / (2 * SHIFT_SPREAD * np.sqrt(2 * np.pi)))
