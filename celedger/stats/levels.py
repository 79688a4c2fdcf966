"""How well two levels, a good and a bad one, explain the readings, for every way to split them.

Each side has a level, a scale and a share of outliers of its own, integrated out on small grids
(`nodes`). `No change` is one level, scale and share for all. Nothing here knows what a commit is:
positions arrive as a table of splits, answers leave as evidences and predictions.

The prior of a change joins the two sides' levels and scales, and their shares of outliers. The
shift bad - good is positive and, in scales of the good side, a mixture of lognormals; the bad
side's scale is the good one's or lognormal around it; the shares of outliers are equal or
independent. Where a second mode was seen, a change may also be one of its share alone
(docs/statistics.md, "Bisects").

Two rates of failure, of good and of bad commits, explain readings of 0 and 1 in the same way. A
crash is mostly sure and a sound commit mostly never crashes, but either may be flaky: the priors
are mixtures of beta distributions, cut to good < bad.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np

from celedger.stats import Bools, Floats
from celedger.stats import likelihood as grids
from celedger.stats.likelihood import (
    OUTLYING,
    OUTLYING_PRIOR,
    ROUNDED,
    Background,
    NoiseKind,
    NoisePrior,
    SideNodes,
    Sides,
    Sites,
    core_density,
    kinds,
    log_sum,
    middle,
    tables,
    tail_density,
)
from celedger.stats.tails import beta_cumulative, normal_cumulative, t_tail

SHIFTS = (0.9, 2.0), (0.1, 20.0)
"""Prior of the shift, a mixture of lognormals (weight, median in scales of the good side): who
bisects has seen it, and where a training hardly depends on its seed it is huge."""
SHIFT_SPREAD = 1.0
"""Log-sd of both."""
SAME = 0.6
"""Prior probability that both sides have the same scale, and the same share of outliers."""
SCALE_SPREAD = 0.8
"""Log-sd of the ratio of the two scales, where they differ."""
SHARE_ALONE, SHARE_SPREAD = 0.15, 0.3
"""Prior probability, where a second mode was seen, that only its share grew, and how far the levels
then differ, in scales."""
SHARE_SELECTED = 0.5
"""Chance that ends of which only the share of outliers differs look different by SELECTING_T."""
DOF_CAP = 30.0
"""The ledger's noise counts as at most so many degrees of freedom: this range may differ."""
SELECTING_T = 2.0
"""Ends whose stored readings differ by this t statistic are what makes a person ask."""


def selected(good: Floats, bad: Floats) -> tuple[int, int]:
    """Return how many readings of either end made somebody ask: all of these, or none where they
    do not differ by SELECTING_T."""
    m, n = len(good), len(bad)
    if m + n < 3 or not m or not n:
        return 0, 0
    step, error = difference(good, bad)
    return (m, n) if step > SELECTING_T * error else (0, 0)


def difference(good: Floats, bad: Floats) -> tuple[float, float]:
    """Return by how much the mean of `bad` is larger, and the standard error of that: Student's,
    with the noise pooled of both. They have three readings at least, and each one."""
    m, n = len(good), len(bad)
    unit = float(max(np.abs(good).max(), np.abs(bad).max())) or 1.0
    good, bad = good / unit, bad / unit
    within = float(((good - good.mean()) ** 2).sum() + ((bad - bad.mean()) ** 2).sum())
    error = np.sqrt(within / (m + n - 2) * (1 / m + 1 / n))
    return float(bad.mean() - good.mean()) * unit, float(error) * unit


def chance_to_differ(shift: Floats, good: int, bad: int) -> Floats:
    """(...) probability that the means of so many readings of ends `shift` scales apart differ by
    SELECTING_T; 1 where nothing was selected. Readings that made somebody ask tell no more than
    what is left when they had to look so."""
    if not good + bad:
        return np.ones_like(shift)
    limit = -NormalDist().inv_cdf(t_tail(SELECTING_T, good + bad - 2))
    root = np.sqrt(good * bad / (good + bad))
    return normal_cumulative(np.maximum(shift, 0.0) * root - limit)


class ChangePrior:
    """The joint prior of both sides' nodes, A = L x C of either."""

    def __init__(
        self,
        good: SideNodes,
        bad: SideNodes,
        noise: NoisePrior,
        *,
        floor: float,
        selected: tuple[int, int],
    ) -> None:
        scale = good.scale
        logs = np.log(scale)
        of_scale = np.full(len(scale), np.log(logs[1] - logs[0]))
        dof = min(noise.dof, DOF_CAP)
        if dof > 0 and noise.sd > 0:  # scaled inverse chi-square on the variance, in d log sd
            of_scale -= dof * np.log(scale / noise.sd) + dof / 2 * (noise.sd / scale) ** 2
        self.log_scale = of_scale
        """(C,)"""
        ratio = np.exp(-0.5 * ((logs[None, :] - logs[:, None]) / SCALE_SPREAD) ** 2)
        scales = SAME * np.eye(len(scale)) + (1 - SAME) * ratio / ratio.sum(axis=1, keepdims=True)
        difference = bad.level[None, None] - good.level[:, :, None, None]  # (L, C, L, C)
        cells = good.log_cell[:, :, None, None] + bad.log_cell[None, None]
        base = of_scale[:, None, None] + np.log(scales)[:, None, :] + cells
        sd = scale[:, None, None]
        shift = difference / sd
        size = good.level.size
        log_pair = np.where(shift > 0, base + _log_shift(shift) - np.log(sd), -np.inf)
        log_pair = log_pair.reshape(size, size)
        self.top = float(log_pair.max() if (shift > 0).any() else base.max())
        self._floor = floor
        above = (difference >= floor).reshape(size, size)
        pair = np.exp(log_pair - self.top)
        pair /= chance_to_differ(shift, *selected).reshape(size, size)
        self._pair = np.where(above, pair, 0.0)
        self.small = np.where(above, 0.0, pair) if floor > 0 else None
        """(A, A) changes below the floor; None without one. Of outliers as `outlying`."""
        still = base - 0.5 * (shift / SHARE_SPREAD) ** 2
        still = still - np.log(SHARE_SPREAD * np.sqrt(2 * np.pi)) - np.log(sd)
        still = np.exp(still.reshape(size, size) - self.top)
        self._still = still / SHARE_SELECTED if any(selected) else still
        self.log_none_chance = float(np.log(chance_to_differ(np.zeros(1), *selected)[0]))
        free = np.outer(OUTLYING_PRIOR, OUTLYING_PRIOR)
        self.outlying = SAME * np.eye(len(OUTLYING)) * OUTLYING_PRIOR + (1 - SAME) * free
        """(W, W)"""
        more = np.triu(free, 1)
        self._more = more / more.sum()

    def changes(self, noise: NoiseKind) -> list[tuple[float, Floats, Floats]]:
        """Return what a change may be under one kind of noise: weight, (A, A), (W, W)."""
        if np.isnan(noise.offset):
            return [(1.0, self._pair, self.outlying)]
        growth = OUTLYING[None, :] - OUTLYING[:, None]
        seen = np.where(0.9 * noise.offset * growth >= self._floor, self._more, 0.0)
        return [(1 - SHARE_ALONE, self._pair, self.outlying), (SHARE_ALONE, self._still, seen)]


def _log_shift(shift: Floats) -> Floats:
    """(...) log density of positive shifts, in scales of the good side; 0 for others."""
    logs = np.log(np.where(shift > 0, shift, 1.0))
    density = sum(
        weight * np.exp(-0.5 * ((logs - np.log(median)) / SHIFT_SPREAD) ** 2)
        for weight, median in SHIFTS
    )
    return np.asarray(
        np.log(np.maximum(density, 1e-300)) - logs - np.log(SHIFT_SPREAD * np.sqrt(2 * np.pi))
    )


# --- how well the levels fit

PREDICTION_NODES = 32, 120
NEGLIGIBLE = 1e-4
"""Nodes with less belief than this share of the best one predict nothing."""
FAR_OUT = 0.01
"""Nodes with less belief than this share of the best one, groups mixed, widen no grid: a group of
.001 that wants noise of a thousand times the usual one would leave no value between the levels."""
QUANTILES = 200
"""By so many a belief in a side's mean is described."""
SMALLEST = 1e-300


@dataclass(frozen=True)
class Fit:
    """Evidence of every split, and what is believed of the levels under each.

    G groups; K kinds of noise; A = L x C nodes of level and scale; W nodes of the share of
    outliers. Rates of failure are K = 1, W = 1 and nodes of the rate.
    """

    log_evidence: Floats
    """(G,) log evidence of a change at each group, prior of the group left out"""
    log_none: float
    """log evidence that nothing changed at all"""
    log_small: Floats
    """(G,) log evidence of a change below the floor at each group"""
    noises: tuple[NoiseKind, ...]
    good: Floats
    """(G, K, A, W) beliefs given the group; each sums to one"""
    bad: Floats
    same: Floats
    """(K, A, W)"""
    nodes: tuple[tuple[Floats, Floats], ...]
    """(A,) levels and scales of the good side, the bad side and the one of no change"""
    background: Background | None
    """None for rates"""
    unit: float = 1.0
    """What the levels are in, in the values' unit"""

    @property
    def rates(self) -> bool:
        """Return True if the levels are rates of failure."""
        return self.background is None

    def predictions(self, weight: Floats) -> tuple[Floats, Floats, Floats, float]:
        """Densities of the next value: (G, X) if good, (G, X) if bad, (X,) if nothing changed,
        on a grid of X values, and that grid's step; the grid is that of groups mixed by
        `weight`."""
        beliefs = self.good, self.bad, self.same[None]
        if self.background is None:  # the next value is 0 or 1
            rates = [
                belief[:, 0, :, 0] @ level
                for belief, (level, _) in zip(beliefs, self.nodes, strict=True)
            ]
            good, bad, same = (np.stack([1 - rate, rate], axis=1) for rate in rates)
            return good, bad, same[0], 1.0
        low, high, finest = np.inf, -np.inf, np.inf
        for belief, (level, scale) in zip(beliefs[:2], self.nodes[:2], strict=True):
            mass = np.einsum("g,gkaw->ka", weight, belief)
            for noise, row in zip(self.noises, mass, strict=True):
                node = np.flatnonzero(row > FAR_OUT * mass.max())
                offset = 0.0 if np.isnan(noise.offset) else noise.offset
                for mode in {0.0, offset}:
                    if len(node):
                        low = min(low, float((level + mode - 4 * scale)[node].min()))
                        high = max(high, float((level + mode + 4 * scale)[node].max()))
                        finest = min(finest, float(scale[node].min()))
        if low > high:  # no split explains the readings
            level, scale = self.nodes[2]
            low, high, finest = float(level.min()), float(level.max()), float(scale.min())
        fewest, most = PREDICTION_NODES
        x = np.linspace(low, high, int(np.clip((high - low) / finest, fewest, most)))
        step = float(x[1] - x[0])
        # Densities narrower than the step would lie between values: blurred ones tell the sides.
        good, bad, same = (
            self._mixed(x, belief, level, np.maximum(scale, step))
            for belief, (level, scale) in zip(beliefs, self.nodes, strict=True)
        )
        return good, bad, same[0], step

    def _mixed(self, x: Floats, belief: Floats, level: Floats, scale: Floats) -> Floats:
        """(G, X) density of the next value under a belief (G, K, A, W)."""
        assert self.background is not None
        back = self.background.at(x)
        total = np.zeros((len(belief), len(x)))
        weight = belief.max(axis=0)
        for k, noise in enumerate(self.noises):
            node = np.flatnonzero(weight[k].max(axis=1) > NEGLIGIBLE * weight.max())
            if not len(node):
                continue
            core = core_density(x, level[node], scale[node])
            tail = tail_density(
                x, level[node], scale[node], noise.offset, self.background.scale, back
            )
            part = belief[:, k, node]
            total += (part @ (1 - OUTLYING)) @ core.T + (part @ OUTLYING) @ tail.T
        return total

    def common(self, weight: Floats) -> float:
        """Expected share of the variance that repeats at one commit have in common."""
        belief = np.einsum("g,gkaw->k", weight, self.good)
        return float(belief @ [noise.share for noise in self.noises] / max(belief.sum(), SMALLEST))

    def effect(self, weight: Floats, mass: float) -> tuple[float, float, float]:
        """Median and central interval holding `mass` of bad level - good level, given that this is
        positive; groups mixed by `weight`, a second mode counts by its share."""
        groups = np.flatnonzero(weight > NEGLIGIBLE * weight.max())
        good = self._means(self.good[groups], 0)
        bad = self._means(self.bad[groups], 1)
        shift = (bad[:, None, :] - good[:, :, None]).ravel()
        order = np.argsort(shift, kind="stable")
        each = np.repeat(weight[groups], good.shape[1] * bad.shape[1])
        cumulated = np.cumsum(np.where(shift > 0, each, 0.0)[order])
        marks = np.array([0.5, (1 - mass) / 2, (1 + mass) / 2]) * cumulated[-1]
        if not cumulated[-1] > 0:  # no split explains the readings
            return float(np.nan), float(np.nan), float(np.nan)
        centre, low, high = np.interp(marks, cumulated, shift[order])
        return float(centre) * self.unit, float(low) * self.unit, float(high) * self.unit

    def _means(self, belief: Floats, side: int) -> Floats:
        """(G, QUANTILES) of the mean values that are believed of one side."""
        offsets = np.array([0.0 if np.isnan(n.offset) else 0.9 * n.offset for n in self.noises])
        share = np.zeros(1) if self.rates else OUTLYING
        mean = (self.nodes[side][0][None, :, None] + offsets[:, None, None] * share).ravel()
        order = np.argsort(mean, kind="stable")
        cumulated = np.cumsum(belief.reshape(len(belief), -1)[:, order], axis=1)
        marks = (np.arange(QUANTILES) + 0.5) / QUANTILES
        return np.array([np.interp(marks * row[-1], row, mean[order]) for row in cumulated])

    def spread(self, weight: Floats) -> float:
        """Expected noise: the sd of one trial, groups mixed by `weight`, sides by halves."""
        logs = [
            np.einsum("g,gkaw->a", weight, belief) @ np.log(scale) / weight.sum()
            for belief, (_, scale) in zip((self.good, self.bad), self.nodes, strict=False)
        ]
        return float(np.exp(sum(logs) / 2)) * self.unit


def fit(
    sites: Sites,
    splits: Bools,
    log_prior: Floats,
    *,
    noise: NoisePrior,
    floor: float,
    selected: tuple[int, int] = (0, 0),
    resolution: float = 0.0,
) -> Fit:
    """Integrate levels and noise out for every row of `splits` (G, T), True where bad.

    All lengths are in the unit of `likelihood.standardised`; values that are `resolution` apart
    show no noise below that of rounding. Both ends must have been read. The grid is focused on
    what `log_prior` (G,) makes of the evidence. `selected` counts the readings of the good and the
    bad end that made somebody ask.
    """
    ends = middle(sites.at(sites.good)), middle(sites.at(sites.bad))
    lowest, highest, usual = grids.scale_range(
        sites, ends[1] - ends[0], noise.sd if noise.dof > 0 else 0.0
    )
    lowest, usual = (max(scale, ROUNDED * resolution) for scale in (lowest, usual))
    background = Background(sites.values, usual)
    noises = kinds(sites)
    # Where the mass lies is found with one kind of noise of each shape.
    plain, *modes = [kind for kind in noises if not kind.share]
    shapes = [plain, *modes[len(modes) // 2 :][:1]]
    wide = grids.coarse(sites, ends, lowest, highest)
    sides = grids.focused(sites, splits, wide, shapes, background, log_prior, lowest)
    prior = ChangePrior(*sides[:2], noise, floor=floor, selected=selected)
    return _integrated(sites, splits, sides, noises, prior, background)


def _integrated(
    sites: Sites,
    splits: Bools,
    sides: Sides,
    noises: Sequence[NoiseKind],
    prior: ChangePrior,
    background: Background,
) -> Fit:
    is_bad = splits.astype(float)
    shape = len(splits), -1, len(OUTLYING)

    def gathered(rows: Floats, logs: Floats) -> tuple[Floats, Floats]:
        total = np.tensordot(rows, logs, 1).reshape(shape)
        top = total.max(axis=(1, 2))
        return np.exp(total - top[:, None, None]), top

    tabled = (tables(sites, side.level, side.scale, noises, background) for side in sides)
    log_change, log_small, log_same, parts = [], [], [], []
    for noise, on_good, on_bad, on_all in zip(noises, *tabled, strict=True):
        left, left_top = gathered(1 - is_bad, on_good)
        right, right_top = gathered(is_bad, on_bad)
        top = left_top + right_top + prior.top + np.log(noise.weight)
        good, bad = np.zeros_like(left), np.zeros_like(right)
        for weight, pair, outlying in prior.changes(noise):
            good += weight * left * _through(right, pair.T, outlying.T)
            bad += weight * right * _through(left, pair, outlying)
        with np.errstate(divide="ignore"):
            log_change.append(np.log(good.sum(axis=(1, 2))) + top)
            if prior.small is not None:
                small = (_through(left, prior.small, prior.outlying) * right).sum(axis=(1, 2))
                log_small.append(np.log(small) + top)
        parts.append((good, bad))
        one = on_all.sum(axis=0) + np.log(OUTLYING_PRIOR) + np.log(noise.weight)
        log_same.append(
            (one + (sides[2].log_cell + prior.log_scale)[:, :, None]).reshape(shape[1:])
        )
    log_evidence = log_sum(np.stack(log_change))
    share = [np.exp(log - np.where(log > -np.inf, log_evidence, 0.0)) for log in log_change]

    def belief(side: int) -> Floats:
        rows = [part[side] for part in parts]
        sums = [np.maximum(row.sum(axis=(1, 2), keepdims=True), SMALLEST) for row in rows]
        each = zip(rows, sums, share, strict=True)
        return np.stack([row / total * s[:, None, None] for row, total, s in each], axis=1)

    good_belief, bad_belief = belief(0), belief(1)
    same = np.stack(log_same)
    same_top = float(same.max())
    same = np.exp(same - same_top)
    return Fit(
        log_evidence,
        float(same_top + np.log(same.sum())) - prior.log_none_chance,
        log_sum(np.stack(log_small)) if log_small else np.full(len(splits), -np.inf),
        tuple(noises),
        good_belief,
        bad_belief,
        same / same.sum(),
        tuple(side.flat for side in sides),
        background,
    )


def _through(left: Floats, pair: Floats, outlying: Floats) -> Floats:
    """(G, B, W) sums over one side's nodes (G, A, W) of the joint prior (A, B), (W, W)."""
    return np.swapaxes(np.swapaxes(left @ outlying, 1, 2) @ pair, 1, 2)


RATE_NODES = 41
SURE = 0.5
"""Prior probability that a bad commit always fails."""
SURE_REPEATED = 0.85
"""The same where all crashes came at one step in one frame: one that comes only now and then does
so by chance, or for a reason of its own, about once in six."""
SURE_EXACT = 0.98
"""The same where trainings repeat bit by bit up to where they fail, and the failure came again as
often as `lacking_failures` asks: it is then a function of commit and seed."""
AGAIN, AT_LEAST = 2, 2
"""Failures that must come again where one was seen, and how many there must be beyond half of the
halvings of a range. A search halves to a wrong commit as easily as to the right one if a failure
comes now and then: only trials of a commit that failed tell. One that comes three times in ten does
so in 1.3 % of searches of 64 commits; a sure one takes 2.5 trials for it on average."""
GOOD_RATE = ((0.9, 0.05, 5.0), (0.1, 0.5, 5.0))
BAD_RATE = ((1.0, 2.0, 2.0),)
SAME_RATE = ((1.0, 0.5, 0.5),)
"""Mixtures (weight, a, b) of beta distributions: how often a good commit fails (mean 1 %), a
bad one where it does not always, and either where nothing changed."""


def _logistic(nodes: int) -> Floats:
    result: Floats = 1 / (1 + np.exp(-np.linspace(-9.0, 9.0, nodes)))
    return result


@cache
def _prior(parts: tuple[tuple[float, float, float], ...]) -> Floats:
    """(RATE_NODES,) probability of each rate under a mixture (weight, a, b) of betas."""
    edges = [0.0, *_logistic(RATE_NODES - 1).tolist(), 1.0]
    below = [[w * beta_cumulative(x, a, b) for x in edges] for w, a, b in parts]
    return np.diff(np.sum(below, axis=0))


def lacking_failures(failed: Sequence[int], bad: int, asked: int) -> int:
    """Return how many failures more would prove that a bad commit always fails.

    Args:
        failed: The position of each failure.
        bad: The last position, the bad end.
        asked: So many failures there are why somebody asks."""
    counts = Counter(failed)
    asked = min(asked, counts[bad])
    again = len(failed) - asked - len(counts.keys() - {bad})
    enough = math.ceil(math.log2(bad + 1) / 2) + AT_LEAST
    return max(AGAIN - again, enough - (len(failed) - asked), 0)


def fit_rates(sites: Sites, splits: Bools, asked: int, sure: float = SURE) -> Fit:
    """Integrate the two rates out for every row of `splits` (G, T), True where bad.

    `asked` crashes of the bad end are why the question is asked; `sure` is the prior probability
    that a bad commit always fails."""
    rate = _logistic(RATE_NODES)
    good, bad, same = _prior(GOOD_RATE), _prior(BAD_RATE), _prior(SAME_RATE)
    pair = np.triu(good[:, None] * bad[None, :], 1)
    pair *= (1 - sure) / pair.sum()
    pair[:-1, -1] += sure * good[:-1] / good[:-1].sum()
    failed = np.add.reduceat(sites.values, sites.starts)
    logs = failed[:, None] * np.log(rate) + (sites.counts - failed)[:, None] * np.log1p(-rate)
    # Nobody would have asked had they not crashed: that tells nothing of how often it happens.
    # Taken as evidence, three crashes of one that comes every other time passed for a sure one,
    # and 23 % of 200 were blamed on another commit.
    on_bad = logs.copy()
    on_bad[sites.bad] -= min(asked, failed[sites.bad]) * np.log(rate)
    is_bad = splits.astype(float)
    left, right = (1 - is_bad) @ logs, is_bad @ on_bad
    top = left.max(axis=1) + right.max(axis=1)
    left = np.exp(left - left.max(axis=1, keepdims=True))
    right = np.exp(right - right.max(axis=1, keepdims=True))
    mass = ((left @ pair) * right).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_evidence = np.log(mass) + top
        on_left = left * (right @ pair.T) / mass[:, None]
        on_right = right * (left @ pair) / mass[:, None]
    one = logs.sum(axis=0) + np.log(same / same.sum())
    one_top = one.max()
    belief = np.exp(one - one_top)
    shape = (len(splits), 1, RATE_NODES, 1)
    ones = np.ones(RATE_NODES)
    return Fit(
        log_evidence,
        float(one_top + np.log(belief.sum())),
        np.full(len(splits), -np.inf),
        (NoiseKind(np.nan, 0.0, 1.0),),
        np.nan_to_num(on_left).reshape(shape),
        np.nan_to_num(on_right).reshape(shape),
        (belief / belief.sum()).reshape(shape[1:]),
        ((rate, ones), (rate, ones), (rate, ones)),
        None,
    )
