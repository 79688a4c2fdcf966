"""The world in which a value is a function of code and seed, bit by bit: which splits are possible
there, and how likely each is. Arrays in, arrays out; how bits are compared is the caller's matter.

Equal bits of a seed locate a change; that it moved the level is for further seeds to tell. Where
the bits of a seed have more than two values along a line, the question becomes where the largest
step is (docs/statistics.md, "Equal bits").
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from celedger.stats import pairing
from celedger.stats.arrays import Bools, Floats, Ints
from celedger.stats.integration_grid import log_sum
from celedger.stats.tails import normal_cumulative

FINE = 2.0**-50
"""Resolution of a value in floating point, over the largest one."""
NONE_ODDS = 0.26
"""The prior odds that nothing changed are so many times those of noisy values: .1 for .3. Bits did
change; that the level stayed is left."""
UNTOUCHED = 0.3
"""Of t seeds that a change touches and z that it spares: the ratio B(t + 1, z + .3) / B(1, .3)."""
SPARED = 0.01
"""Chance that bits that are drawn anew come out as before for one seed."""
FURTHER = 0.05
"""Prior odds of each level beyond two."""
SEVERAL = 0.1
"""Prior odds that these moved the level, where no pairs are seen; else their bits are new draws."""
MARKS = 201


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

    @cached_property
    def stretches(self) -> Ints:
        """(T,) the stretch of each position of a line: cut only where the bits of a seed differ."""
        number, here, result = 0, np.zeros(len(self.first), dtype=bool), []
        for row in self.present:
            if ((here | row) @ self.of_seed > 1).any():
                number, here = number + 1, np.zeros_like(here)
            here = here | row
            result.append(number)
        return np.array(result)

    @property
    def ends(self) -> tuple[dict[int, float], dict[int, float]]:
        """Return the value of each seed at the good and at the bad end."""
        return self.by_seed(self.site == 0), self.by_seed(self.site == self.site.max())

    def by_seed(self, rows: Bools) -> dict[int, float]:
        return dict(zip(self.seed[rows].tolist(), self.value[rows].tolist(), strict=True))


def differences(before: dict[int, float], after: dict[int, float]) -> Floats:
    """Return by how much the values of the seeds that both sides have differ."""
    return np.array([after[seed] - before[seed] for seed in after.keys() & before.keys()])


@dataclass(frozen=True)
class Exact:
    """The evidence of the exact world, priors of the candidates left out."""

    log_change: Floats
    """(G,) of a change; -inf where the bits rule it out"""
    log_none: Floats
    """(G,) that the bits were drawn anew there, and the level stayed"""
    touched: bool
    """Some seed's bits differ between the ends, or no seed is known at both."""
    largest: Floats | None = None
    """(G,) where there are more than two levels: P(the group holds the largest step)"""

    @property
    def possible(self) -> bool:
        return bool((np.maximum(self.log_change, self.log_none) > -np.inf).any())

    def beyond(self, floor: float, bits: Bits) -> Exact:
        """Return the same where a change below the floor counts as none: by the mean difference of
        the seeds that both ends have."""
        ends = differences(*bits.ends)
        if not floor or bits.alone or len(ends) < 2:
            return self
        error = max(float(ends.std(ddof=1)) / math.sqrt(len(ends)), 1e-12)
        off = np.clip((float(ends.mean()) - floor) / error, -8.0, 8.0) / math.sqrt(2)
        above, below = math.erfc(-off) / 2, math.erfc(off) / 2
        none = np.logaddexp(self.log_none, self.log_change + math.log(below))
        return replace(self, log_change=self.log_change + math.log(above), log_none=none)


def weigh(
    bits: Bits, splits: Bools, finest: float, floor: float, selected: tuple[int, int]
) -> Exact:
    """Return how well one change explains the bits, for every row of `splits` (G, T)."""
    on_bad = splits.astype(float) @ bits.present > 0
    on_good = (~splits).astype(float) @ bits.present > 0
    seeds_good, seeds_bad = on_good @ bits.of_seed, on_bad @ bits.of_seed
    possible = (seeds_good <= 1).all(axis=1) & (seeds_bad <= 1).all(axis=1)
    spared = (on_good & on_bad).sum(axis=1)
    touched = np.maximum(((seeds_good > 0) & (seeds_bad > 0)).sum(axis=1) - spared, 0)
    repeats = len(bits.site) - on_good.sum(axis=1) - on_bad.sum(axis=1) + spared
    log = np.where(possible, repeats * bits.repeat, -np.inf)
    apart = ~((spared > 0) & (touched == 0))
    log_touched = np.array([_log_touched(*pair) for pair in zip(touched, spared, strict=True)])
    anew = np.where(touched > 0, spared * np.log(SPARED), 0.0)
    change, none = np.zeros(len(log)), np.zeros(len(log))
    if bits.alone:  # its values differ, whatever noise in general does
        ends = bits.value[bits.site == 0], bits.value[bits.site == splits.shape[1] - 1]
        worse = ends[1][0] - ends[0][0] >= max(floor, np.finfo(float).tiny)
        apart &= worse
        none = none if not worse else np.full(len(log), -np.inf)
    else:
        rows = bits.first
        readings = pairing.Readings(bits.value[rows], bits.seed[rows], finest)
        again = on_bad & ~(on_good & on_bad)
        density = _density(readings, on_good.astype(float), again.astype(float), selected)
        both = _density(readings, (on_good | again).astype(float), np.zeros(again.shape), (0, 0))
        change, none = density, both
    with np.errstate(invalid="ignore"):
        return Exact(
            np.where(apart & possible, log + log_touched + change, -np.inf),
            np.where(possible, log + anew + none, -np.inf),
            bool((apart & possible).any()),
        )


def _log_touched(touched: int, spared: int) -> float:
    gamma = math.lgamma
    log = gamma(touched + 1) + gamma(spared + UNTOUCHED) - gamma(touched + 1 + spared + UNTOUCHED)
    return log + math.log(UNTOUCHED)


def _density(
    readings: pairing.Readings, good: Floats, bad: Floats, selected: tuple[int, int]
) -> Floats:
    """(G,) log density, seeds paired or not with equal odds."""
    log = pairing.densities(readings, good, bad, selected)
    paired = log_sum((log[:, 1:] + pairing.LOG_PRIOR).T)
    return np.asarray(np.logaddexp(log[:, 0], paired) - np.log(2))


def weigh_many(
    bits: Bits, splits: Bools, log_prior: Floats, log_free: Floats, log_none: float,
    pairs: pairing.Pairs | None,
) -> Exact:  # fmt: skip
    """Return the same on a line where bits take more than two values.

    Either one change moved the level and others only drew the bits anew, which `log_free` (G,)
    and `log_none` weigh; or there are several steps, and the largest is asked. Seeds that stay
    paired speak for the latter."""
    stretch = bits.stretches
    count = int(stretch[-1]) + 1
    after = splits.argmax(axis=1)  # the first bad position of each group
    boundary = stretch[after] - stretch[after - 1]
    log = (count - 2) * np.log(FURTHER)
    log += (len(bits.site) - len(bits.first)) * bits.repeat
    free = np.where(boundary > 0, log_free, -np.inf)
    total = np.logaddexp.reduce(log_prior + free)
    paired, none = 1.0, -np.inf
    if not bits.alone:
        factor = pairs.log_factor if pairs is not None else np.zeros(len(free))
        mean = np.logaddexp.reduce(log_prior + free + factor) - max(total, -1e300)
        paired = float(1 / (1 + np.exp(-np.clip(mean + np.log(SEVERAL), -30, 30))))
        of_none = pairs.log_none if pairs is not None else 0.0
        none = log_none + float(np.logaddexp(np.log1p(-paired), np.log(paired) + of_none))
    share = _largest(bits, count)
    inner = np.where(boundary > 0, np.exp(log_prior), 0.0)
    mass = np.bincount(np.maximum(stretch[after] - 1, 0), weights=inner, minlength=count - 1)
    inside = np.where(boundary > 0, stretch[after] - 1, 0)
    share = np.where(mass > 0, share, 0.0)
    share = share / share.sum() if share.sum() > 0 else share
    with np.errstate(divide="ignore"):
        largest = np.where(boundary > 0, share[inside] / np.maximum(mass[inside], 1e-300), 0.0)
        one = np.log1p(-paired) + free if paired < 1 else np.full(len(free), -np.inf)
        change = np.logaddexp(one, np.log(paired) + total + np.log(largest))
    return Exact(
        log + change, np.where(boundary > 0, log + none, -np.inf), True, largest * np.exp(log_prior)
    )


def _largest(bits: Bits, count: int) -> Floats:
    """(count - 1,) probability that each boundary of stretches holds the largest step up."""
    ends, stretch = differences(*bits.ends), bits.stretches[bits.site]
    error = 0.0
    if not bits.alone:
        error = float(ends.std(ddof=1)) if len(ends) > 1 else 0.5
    steps, errors = [], []
    for k in range(count - 1):
        rows = stretch == k, stretch == k + 1
        apart = differences(*map(bits.by_seed, rows))
        if len(apart):
            steps.append(float(apart.mean()))
            errors.append(error / np.sqrt(len(apart)))
        else:
            steps.append(float(bits.value[rows[1]].mean() - bits.value[rows[0]].mean()))
            errors.append(float(np.hypot(error, 0.5)))
    step, sd = np.array(steps), np.maximum(np.array(errors), 1e-9)
    x = np.linspace((step - 5 * sd).min(), (step + 5 * sd).max(), MARKS)
    x = np.unique(np.concatenate([x, *(step + u * sd for u in np.linspace(-5, 5, 21))]))
    off = (x[:, None] - step) / sd
    below = np.log(normal_cumulative(off))
    density = np.exp(-0.5 * off**2) / sd * np.exp(below.sum(axis=1, keepdims=True) - below)
    share = np.trapezoid(density, x, axis=0)
    return np.asarray(share / share.sum())
