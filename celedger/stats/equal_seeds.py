"""Weigh readings of equal seeds, under two assumptions. Arrays in, arrays out; must not know
commits or what is done with the factors. The caller compares bits.

Shared noise: how much likelier readings are if trials of one seed share a part of their noise. A
reading is level + shift (on the bad side) + u + v (on the bad side) + e, normal, with variances of
rho s² (u, the seed's), kappa s² (v, by how much the change differs from seed to seed) and
(1 - rho) s² (e, the trial's own). Only the ratio to rho = kappa = 0 is used: the bare normal would
win against noise with tails wherever tails are not needed.

Exact values: which splits of a range are possible, and how likely, if a value is a function of code
and seed, bit by bit. Equal bits of a seed locate a change; further seeds show whether it moved the
level. Where the bits of a seed have more than two values along a line, the question becomes where
the largest step is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from celedger.stats import Bools, Floats, Ints
from celedger.stats.levels import SHIFT_SPREAD, SHIFTS, Fit, chance_to_differ
from celedger.stats.likelihood import ROUNDED, log_sum

SHARES = np.array((0.3, 0.6, 0.8, 0.92, 0.98, 0.9995))
SHARE_PRIOR = np.array((0.17, 0.22, 0.22, 0.17, 0.14, 0.08))
"""Nodes and prior of rho."""
INTERACTION_PRIOR = np.array((0.4, 0.25, 0.2, 0.15))
"""Of kappa = 0, 0.05 (1 - rho), 0.3 and 1."""
RHO = np.concatenate(([0.0], np.repeat(SHARES, len(INTERACTION_PRIOR))))
KAPPA = np.concatenate(([0.0], *((0.0, 0.05 * (1 - rho), 0.3, 1.0) for rho in SHARES)))
LOG_PRIOR = np.log(np.outer(SHARE_PRIOR, INTERACTION_PRIOR)).ravel()
LOG_PRIOR_ALIKE = np.where(KAPPA[1:] > 0, -np.inf, LOG_PRIOR)
"""The same where a change is the same in every group: sessions."""
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
    floor: float = 0.0
    """The smallest shift worth naming."""


@dataclass(frozen=True)
class Pairs:
    """What equal seeds say. M models, those of RHO and KAPPA; the first has no pairs."""

    log_factor: Floats
    """(G,) log evidence of pairs over that of none, for each split"""
    log_none: float
    """The same where nothing changed"""
    log_plain: Floats
    """(G + 1,) log evidence of none, of each split and where nothing changed"""
    log_above: Floats
    """(G,) log of the part of the former in which the shift is beyond the floor"""
    model: Floats
    """(G, M - 1) belief in each model with pairs given the split; each sums to one, or to nothing
    where none of them is likely"""
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


def compare(
    readings: Readings, bad: Bools, used: Bools, selected: tuple[int, int],
    log_prior: Floats = LOG_PRIOR,
) -> Pairs:  # fmt: skip
    """Return how pairs explain those readings that are `used` (R,), for every row of `bad`
    (G, R). `log_prior` (M - 1,) is that of the models with pairs."""
    sides = (~bad & used).astype(float), (bad & used).astype(float)
    log, above, level, shift, scale = _fits(readings, *sides, selected, log_prior)
    every = used[None].astype(float)
    none = _fits(readings, every, 0 * every, (0, 0), log_prior)[0]
    paired = log[:, 1:] + log_prior
    top = log_sum(paired.T)
    return Pairs(
        top - log[:, 0],
        float(log_sum(none[0, 1:] + log_prior) - none[0, 0]),
        np.append(log[:, 0], none[0, 0]),
        np.minimum(log_sum((above[:, 1:] + log_prior).T) - finite(top), 0.0),
        np.exp(paired - finite(top)[:, None]),  # none may be likely
        level[:, 1:],
        shift[:, 1:],
        scale[:, 1:],
        _means(readings, *sides),
    )


def densities(
    readings: Readings, good: Floats, bad: Floats, selected: tuple[int, int]
) -> tuple[Floats, Floats]:
    """(G, M) log densities of the readings that are 1 in a row of `good` or `bad` (G, R), under
    flat priors of the level and of log s; and of them with a shift beyond the floor."""
    return _fits(readings, good, bad, selected)[:2]


def _means(readings: Readings, good: Floats, bad: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    own = np.zeros((len(readings.values), int(readings.seeds.max()) + 1))
    own[np.arange(len(own)), readings.seeds] = 1.0
    x = own * readings.values[:, None]
    n0, n1 = good @ own, bad @ own
    return n0, n1, (good @ x) / np.maximum(n0, 1), (bad @ x) / np.maximum(n1, 1)


def _fits(
    readings: Readings, good: Floats, bad: Floats, selected: tuple[int, int],
    log_prior: Floats = LOG_PRIOR,
) -> tuple[Floats, Floats, Floats, Floats, Floats]:  # fmt: skip
    """(G, M) log densities, those beyond the floor, and the likeliest level, shift and s; of models
    that the prior rules out none, nor are others unlikely beside them."""
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
    least = np.maximum(readings.finest, ROUNDED * readings.resolution / np.sqrt(rest))
    freedom = np.maximum(n - 1, 1)[:, None]
    below = np.where(shift < 0, curvature * shift**2, 0.0)
    scale = np.maximum(np.sqrt((square + below) / freedom), least)
    rough = constant - freedom * np.log(scale) - (square + below) / (2 * scale**2)
    rough[:, 1:][:, np.isneginf(log_prior)] = -np.inf
    likely = rough > rough.max(axis=1, keepdims=True) - LEAST_LIKELY
    likely[:, 0] = True
    row, model = np.nonzero(likely)
    log, above = np.full((2, *rough.shape), -np.inf)
    log[likely], above[likely] = constant[likely] + _integrated(
        square[likely], curvature[likely], shift[likely], freedom[row, 0], scale[likely],
        least[model], rest[model], selected, readings.floor,
    )  # fmt: skip
    return log, above, (b0 + b1 - (a01 + a11) * shift) / weight, shift, scale


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
    least: Floats,
    rest: Floats,
    selected: tuple[int, int],
    floor: float,
) -> Floats:
    """(2, K) log of the integral over log s and a positive shift, and over one beyond the floor."""
    reach = REACH / np.sqrt(2 * freedom) + 0.3
    low = np.maximum(np.log(scale) - reach, np.log(least))
    high = np.maximum(np.log(scale) + reach, low + reach)
    log_s = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, SCALE_NODES)
    s = np.exp(log_s)
    log = -freedom[:, None] * log_s - square[:, None] / (2 * s**2)
    log += np.log((high - low) / (SCALE_NODES - 1))[:, None]
    log, some = np.stack([log, log]), curvature > 0
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
        cells = (log_shift - np.log(max(floor, 1e-300))) / step[..., None] + 0.5
        for part, share in enumerate((1.0, np.clip(cells, 0.0, 1.0))):
            sums = (mass * share).sum(axis=-1) * step
            log[part, some] += np.log(np.maximum(sums, 1e-300))
    return log_sum(np.moveaxis(log, -1, 0))


def _prior(log_z: Floats, rest: Floats) -> Floats:
    """Density of the log of the shift: in s or, as likely, in sd of the trial's own noise."""
    units = 0.0, 0.5 * np.log(rest)[:, None, None]
    total = sum(
        weight * np.exp(-0.5 * ((log_z - np.log(median) - unit) / SHIFT_SPREAD) ** 2)
        for weight, median in SHIFTS
        for unit in units
    )
    return np.asarray(total / (2 * SHIFT_SPREAD * np.sqrt(2 * np.pi)))


# --- values that are a function of code and seed

FINE = 2.0**-50
"""Resolution of a value in floating point, over the largest one."""
NONE_ODDS = 0.26
"""The prior odds that nothing changed are so many times those of noisy values, .1 for .3, where a
seed's bits did change: that the level stayed is left."""
UNTOUCHED = 0.3
"""Of t seeds that a change touches and z that it spares: the ratio B(t + 1, z + .3) / B(1, .3)."""
SPARED = 0.01
"""Chance that bits that are drawn anew come out as before for one seed, at least: counts do more
often."""
PARTLY = 0.3
"""Chance that what draws bits anew spares seeds as a change does: what acts in some trainings only,
such as a bound that a particle meets. At 0 every seed that is spared proves a change of the level,
and one of none was named at 98 % after three of sixteen."""
FURTHER = 0.05
"""Prior odds of each level beyond two."""
SEVERAL = 0.1
"""Prior odds that these moved the level, where no pairs are seen; else their bits are new draws.
Where a fifth of the commits only draws anew 5 of 140 searches were wrong at .3, 2 at .1."""
NEARLY = 0.5
"""A step of this part of the largest is as good an answer, and the others are told beside it. Of
such the one is asked that is located best: which of two nearly equal ones is larger is not worth a
trial."""
DRAWS = 2048
"""The same normal numbers each time."""


@dataclass(frozen=True)
class Bits:
    """All readings, each a row: repeats of equal bits, too."""

    site: Ints
    """(R,) index of the position; the positions are sorted, the good end first"""
    seed: Ints
    """(R,) from 0"""
    key: Ints
    """(R,) equal for equal bits of one seed, and only then"""
    value: Floats
    """(R,) in units of their range"""
    repeat: float
    """Log odds of one repeat: 1 over the resolution"""
    alone: bool
    """The metric does not depend on the seed."""

    @cached_property
    def first(self) -> Ints:
        """(C,) the first reading with each key."""
        return np.unique(self.key, return_index=True)[1]

    @cached_property
    def of_seed(self) -> Floats:
        """(C, S) which seed has which key."""
        table = np.zeros((len(self.first), int(self.seed.max()) + 1))
        table[np.arange(len(table)), self.seed[self.first]] = 1.0
        return table

    @cached_property
    def present(self) -> Bools:
        """(T, C) which position has which key."""
        table = np.zeros((int(self.site.max()) + 1, len(self.first)), dtype=bool)
        table[self.site, self.key] = True
        return table

    @property
    def ends(self) -> tuple[dict[int, float], dict[int, float]]:
        """Return the value of each seed at the good and at the bad end."""
        return self.by_seed(self.site == 0), self.by_seed(self.site == self.site.max())

    @property
    def asked(self) -> Bools:
        """(S,) the seeds that an end has."""
        ends = (self.site == 0) | (self.site == self.site.max())
        return np.isin(np.arange(self.of_seed.shape[1]), self.seed[ends])

    def by_seed(self, rows: Bools | Ints) -> dict[int, float]:
        return dict(zip(self.seed[rows].tolist(), self.value[rows].tolist(), strict=True))


def differences(before: dict[int, float], after: dict[int, float]) -> Floats:
    """Return by how much the values of the seeds that both sides have differ."""
    return np.array([after[seed] - before[seed] for seed in after.keys() & before.keys()])


@dataclass(frozen=True)
class Steps:
    """Where bits that take more than two values change."""

    level: Ints
    """(T,) the level of each position, from 0: only other levels have other bits of a seed"""
    pairs: list[tuple[int, int]]
    """The levels before and after each step"""
    held: Ints
    """(G,) which of these a group may hold, -1 for none"""
    known: Bools
    """(L, C) which bits each level has, those that are equal before and after it among them"""

    @classmethod
    def of(cls, bits: Bits, splits: Bools, order: Bools) -> Steps:
        """Return them, where `order` (T, T) says which position is an ancestor of which, or it."""
        strict = order & ~np.eye(len(order), dtype=bool)
        nearest = strict & ~(strict @ strict)
        # What is equal on both sides of a position was not changed twice.
        between = (order.T @ bits.present) & (order @ bits.present)
        known = bits.present | (between & ~(bits.present @ bits.of_seed @ bits.of_seed.T > 0))
        shared = known.astype(float) @ known.T
        level, keys = np.arange(len(order)), dict(enumerate(known))
        joined = np.triu(nearest | (~strict & ~strict.T & (shared > 0)), 1)
        places = np.argwhere(joined)
        for one, other in places[np.argsort(-shared[joined], kind="stable")].tolist():
            k, j = sorted((int(level[one]), int(level[other])))
            if k != j and not ((keys[k] | keys[j]) @ bits.of_seed > 1).any():
                keys[k] = keys[k] | keys[j]
                level[level == j] = k
        kept, level = np.unique(level, return_inverse=True)
        known = np.array([keys[k] for k in kept.tolist()])
        values = [bits.by_seed(bits.first[row]) for row in known]
        numbers: dict[tuple[int, int] | None, int] = {None: -1}
        held = np.full(len(splits), -1)
        for g, bad in enumerate(splits):
            first = bad & ~(bad @ strict)
            before = ~bad & order[:, first].any(axis=1)
            last = before & ~(strict @ before)
            elsewhere = ~bad & ~order[:, first].all(axis=1)
            after = set(level[first].tolist())
            pairs = [(k, j) for k in set(level[last].tolist()) for j in after]
            if after & set(level[last | elsewhere].tolist()):
                pairs = []  # these bits are there without it
            sizes = [abs(_step(values[k], values[j])[0]) for k, j in pairs]
            pair = pairs[int(np.argmin(sizes))] if pairs else None
            held[g] = numbers.setdefault(pair, len(numbers) - 1)
        return cls(level, [pair for pair in numbers if pair], held, known)


@dataclass(frozen=True)
class Exact:
    """The evidence of the exact world, priors of the candidates left out."""

    log_change: Floats
    """(G,) of a change; -inf where the bits rule it out"""
    log_none: Floats
    """(G,) that the bits were drawn anew there, and the level stayed"""
    log_small: Floats
    """(G,) of a change below the floor"""
    steps: Steps | None = None
    """Where there are more than two levels"""
    several: float = 1.0
    """Probability that these moved the level, and so the largest step is asked"""

    @property
    def possible(self) -> bool:
        every = np.array([self.log_change, self.log_small, self.log_none])
        return bool((every > -np.inf).any())


def weigh(bits: Bits, splits: Bools, readings: Readings, selected: tuple[int, int]) -> Exact:
    """Return how well one change explains the bits, for every row of `splits` (G, T); of the
    `readings` only the scales count."""
    on_bad = splits.astype(float) @ bits.present > 0
    on_good = (~splits).astype(float) @ bits.present > 0
    seeds_good, seeds_bad = on_good @ bits.of_seed, on_bad @ bits.of_seed
    possible = (seeds_good <= 1).all(axis=1) & (seeds_bad <= 1).all(axis=1)
    spared = (on_good & on_bad).sum(axis=1)
    touched = np.maximum(((seeds_good > 0) & (seeds_bad > 0)).sum(axis=1) - spared, 0)
    repeats = len(bits.site) - on_good.sum(axis=1) - on_bad.sum(axis=1) + spared
    log = np.where(possible, repeats * bits.repeat, -np.inf)
    moved, alike = possible, (spared > 0) & (touched == 0)
    log_touched, log_every = (
        np.array([_log_touched(*pair) for pair in zip(touched, of, strict=True)])
        for of in (spared, np.zeros_like(spared))
    )
    chance = max(SPARED, math.exp(-bits.repeat) / 2)
    anew = np.logaddexp(
        np.log1p(-PARTLY) + log_every + spared * np.log(chance), np.log(PARTLY) + log_touched
    )
    anew = np.where(alike, -np.log(NONE_ODDS), anew)
    change, small, none = np.full((3, len(log)), -np.inf)
    if bits.alone:  # its values differ, whatever noise in general does
        ends = bits.value[bits.site == 0], bits.value[bits.site == splits.shape[1] - 1]
        apart = ends[1][0] - ends[0][0]
        (none if apart <= 0 else change if apart >= readings.floor else small)[:] = 0.0
    else:
        rows = bits.first
        readings = replace(readings, values=bits.value[rows], seeds=bits.seed[rows], resolution=0.0)
        again = on_bad & ~(on_good & on_bad)
        change, small = _density(readings, on_good.astype(float), again.astype(float), selected)
        none, _ = _density(readings, (on_good | again).astype(float), np.zeros(again.shape), (0, 0))
    with np.errstate(invalid="ignore"):
        return Exact(
            np.where(moved, log + log_touched + change, -np.inf),
            np.where(possible, log + anew + none, -np.inf),
            np.where(moved, log + log_touched + small, -np.inf),
        )


def _log_touched(touched: int, spared: int) -> float:
    gamma = math.lgamma
    log = gamma(touched + 1) + gamma(spared + UNTOUCHED) - gamma(touched + 1 + spared + UNTOUCHED)
    return log + math.log(UNTOUCHED)


def _density(
    readings: Readings, good: Floats, bad: Floats, selected: tuple[int, int]
) -> tuple[Floats, Floats]:
    """(G,) log density of a shift beyond the floor, and below it, seeds paired or not with equal
    odds."""
    every, above = (
        np.logaddexp(log[:, 0], log_sum((log[:, 1:] + LOG_PRIOR).T)) - np.log(2)
        for log in densities(readings, good, bad, selected)
    )
    return above, every + log_rest(above - finite(every))


def finite(log: Floats) -> Floats:
    return np.maximum(log, -np.finfo(float).max)


def log_rest(log_part: Floats) -> Floats:
    """Return the log of what a part, given by its log, leaves of 1."""
    return np.asarray(np.log(np.maximum(-np.expm1(np.minimum(log_part, 0.0)), 1e-300)))


def weigh_many(
    bits: Bits, splits: Bools, order: Bools, log_prior: Floats, fitted: Fit, pairs: Pairs | None,
    readings: Readings, selected: tuple[int, int],
) -> Exact:  # fmt: skip
    """Return the same where bits take more than two values; `order` as for `Steps.of`.

    Either one change moved the level and others only drew the bits anew, which `fitted` weighs;
    or there are several steps, the largest is asked, and the ends tell whether the level stayed.
    Seeds that agree on what each level is speak for the latter."""
    steps = Steps.of(bits, splits, order)
    cut = (steps.held >= 0) & (log_prior > -np.inf)
    nothing = np.full(len(cut), -np.inf)
    if not cut.any():
        return Exact(nothing, nothing, nothing)
    log = float(steps.level.max() - 1) * np.log(FURTHER)
    log += (len(bits.site) - len(bits.first)) * bits.repeat
    free = np.where(cut, fitted.log_evidence, -np.inf)
    total = np.logaddexp.reduce(log_prior + free)
    one, many, none, above, below = -np.inf, total, -np.inf, 0.0, -np.inf
    if not bits.alone:
        one = -np.log1p(SEVERAL)
        floor = max(readings.finest, ROUNDED * readings.resolution)
        sites, weight = bits.site[bits.first], log_prior[cut]
        sides = [_of_means(bits, bad[sites], floor) for bad in splits[cut]]
        two = np.logaddexp.reduce(weight + sides) - np.logaddexp.reduce(weight)
        means = total + _of_means(bits, steps.level[sites], floor) - two
        factor = pairs.log_factor if pairs is not None else np.zeros(len(free))
        many = np.logaddexp(means, np.logaddexp.reduce(log_prior + free + factor))
        many += one + np.log(SEVERAL)
        same, above, below = _of_ends(bits, readings, selected)
        none = np.logaddexp(one + fitted.log_none, many + same)
    mass = np.bincount(steps.held[cut], np.exp(log_prior[cut]), len(steps.pairs)).astype(float)
    share = np.where(mass > 0, _largest(bits, steps, mass), 0.0)
    share /= np.maximum(share.sum() * mass, 1e-300)
    with np.errstate(divide="ignore"):
        largest = many + np.where(cut, np.log(share[steps.held]), -np.inf)
    either = np.logaddexp(one + total, many)
    several = float(np.exp(many - either)) if np.isfinite(either) else 0.0
    return Exact(
        log + np.logaddexp(one + free, largest + above),
        np.where(cut, log + none, -np.inf),
        log + np.logaddexp(one + np.where(cut, fitted.log_small, -np.inf), largest + below),
        steps,
        several,
    )


def _of_means(bits: Bits, level: Ints | Bools, finest: float) -> float:
    """Return the log density of the first readings with their bits, where each `level` (C,) has a
    mean, and as likely each seed one beside; means and the log of the noise are flat."""
    value, logs = bits.value[bits.first], []
    log_s = np.linspace(np.log(finest), 0.0, SCALE_NODES)
    levels = level[:, None] == np.unique(level)
    for columns in (levels, np.hstack([levels, bits.of_seed])):
        vectors, lengths, _ = np.linalg.svd(columns, full_matrices=False)
        vectors, lengths = vectors[:, lengths > 1e-9], lengths[lengths > 1e-9]
        square = value @ value - ((value @ vectors) ** 2).sum()
        log = -(len(value) - len(lengths)) * (log_s + 0.5 * np.log(2 * np.pi))
        log -= max(square, 0.0) / (2 * np.exp(2 * log_s))
        logs.append(float(np.logaddexp.reduce(log)) - float(np.log(lengths).sum()))
    return float(np.logaddexp.reduce(logs)) - math.log(2 * SCALE_NODES)


def _of_ends(
    bits: Bits, readings: Readings, selected: tuple[int, int]
) -> tuple[float, float, float]:
    """Return the log odds that the level is that of the other end, by the readings of both, and
    how likely a change of it is beyond the floor and below it."""
    last = bits.site.max()
    rows = np.flatnonzero(np.isin(bits.site, (0, last)))
    rows = rows[np.unique([bits.site[rows], bits.key[rows]], axis=1, return_index=True)[1]]
    bad = (bits.site[rows] == last)[None].astype(float)
    readings = replace(readings, values=bits.value[rows], seeds=bits.seed[rows])
    more, less = (float(part[0]) for part in _density(readings, 1 - bad, bad, selected))
    same = float(_density(readings, np.ones_like(bad), 0 * bad, (0, 0))[0][0])
    change = float(np.logaddexp(more, less))
    return same - change, more - change, less - change


def _step(
    before: dict[int, float], after: dict[int, float], error: float = 0.0, seeds: int = 1
) -> tuple[float, float]:
    """Return by how much one level is above another, by equal seeds where both have any, and the
    standard error, where `error` is that of one seed and so many `seeds` are asked about."""
    apart = differences(before, after)
    if len(apart):
        return float(apart.mean()), error * math.sqrt(max(1 / len(apart) - 1 / seeds, 0.0))
    size = float(np.mean([*after.values()]) - np.mean([*before.values()]))
    return size, math.hypot(error, 0.5)


def _largest(bits: Bits, steps: Steps, mass: Floats) -> Floats:
    """Return the probability of each step that it is the one to be named: of those that reach
    NEARLY of the largest, for the seeds that the ends have, the one with the least `mass`, the
    prior of the commits that may have made it."""
    ends = differences(*bits.ends)
    error = 0.0
    if not bits.alone:
        error = float(ends.std(ddof=1)) if len(ends) > 1 else 0.5
    of_ends, seeds = bits.asked[bits.seed], int(bits.asked.sum())
    levels = [bits.first[row] for row in steps.known]
    values = [bits.by_seed(rows[of_ends[rows]]) or bits.by_seed(rows) for rows in levels]
    sizes = [_step(values[k], values[j], error, seeds) for k, j in steps.pairs]
    size, sd = (np.array(column) for column in zip(*sizes, strict=True))
    drawn = size + sd * np.random.default_rng(0).standard_normal((DRAWS, len(size)))
    top = drawn.max(axis=1, keepdims=True)
    order = np.argsort(mass, kind="stable")
    best = order[(drawn >= np.minimum(top, NEARLY * top))[:, order].argmax(axis=1)]
    return np.asarray(np.bincount(best, minlength=len(size)) / DRAWS)
