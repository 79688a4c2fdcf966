"""How well two levels, a good and a bad one, explain the readings, for every way to split them.

The levels, the noise and the weight of its tails are unknown: they are integrated out on small
grids that are moved, in a few rounds, to where the readings put them. Nothing here knows what a
commit is: positions arrive as a table of splits, answers leave as evidences and predictions.
All grids follow the readings' own location and scale, so units never matter.

Model: value = level(side) + noise. Noise is normal or Student with 3 degrees of freedom (which,
the readings say), of unknown scale; the shift bad - good is positive and, in standard
deviations, lognormal a priori. `no change` is one level for all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from celedger.stats.likelihood import (
    NOISES,
    TAIL_SCALE,
    Floats,
    Grid,
    Kinds,
    Sites,
    density,
    middle,
    tables,
    tamed,
)

Bools = NDArray[np.bool_]

SHIFT_MEDIAN = 2.0
"""Median of the prior on the shift in standard deviations of one trial: who bisects has seen it."""
SHIFT_SPREAD = 1.0
"""Log-sd of that prior: 0.5 to 8 sd within its central 83 %."""
SHARP_MEDIAN = 20.0
"""The same median for a metric that repeats exactly: what is left between commits is jitter."""
FINEST = 50.0
"""The noise is never believed smaller than gap / FINEST: sides are certain then, and a commit
that moves a deterministic metric in its last digits is not taken for the change."""
DOF_CAP = 30.0
"""The ledger's noise counts as at most so many degrees of freedom: this range may differ."""
FIRST_NODES, COARSE_NODES, NODES = (9, 9), (11, 7), (15, 7)
"""Nodes of levels and of scales, round by round: the first two only find where the mass lies."""
REACH, SCALE_REACH = 5.0, 4.0
"""Half-width of the grids in posterior standard deviations: sums on them are good to 1e-3 of a
probability (tests/stats/test_levels.py)."""
PREDICTION_NODES = 32, 160
RATE_NODES = 41
GOOD_RATE = ((0.9, 0.05, 5.0), (0.1, 0.5, 5.0))
BAD_RATE = ((0.15, 5.0, 0.05), (0.85, 2.0, 1.0))
SAME_RATE = ((1.0, 0.5, 0.5),)
"""Mixtures (weight, a, b) of beta distributions: how often a good commit fails (mean 1 %), a
bad one (always, or rather more often than not), and either where nothing changed. Of 400 crashes
that come every other time 3.5 % were laid on another commit (6 % of 200 at weights of 0.3 and 0.7);
a sure one takes 10.7 trials, 9.0 where nearly all are believed to be sure and 24 % of the flaky
ones are laid on another commit (64 commits, cells `crash` of benchmarks/bisect_simulator.py)."""
NEGLIGIBLE = 1e-5
"""A kind of noise with less belief is left out of the finer grids."""
IMPOSSIBLE = -1e6
"""A log evidence that stands for zero."""


@dataclass(frozen=True)
class Fit:
    """Evidence of every split, and what is believed of the levels under each."""

    grid: Grid
    log_evidence: Floats
    """(G,) log evidence of a change at each group, prior of the group left out"""
    log_none: float
    """log evidence that nothing changed at all"""
    log_small: Floats | None
    """(G,) log evidence of a change below the floor at each group; None without a floor"""
    good: Floats
    """(G, Z, K) beliefs about scale, tail and good level given the group; each sums to one"""
    bad: Floats
    """(G, Z, K)"""
    same: Floats
    """(Z, K)"""
    pair_left: Floats
    """(Z, G, K) factors of the joint belief in both levels, see `effect`"""
    pair_right: Floats
    pair: Floats

    @property
    def rates(self) -> bool:
        """Whether the levels are rates of failure."""
        return not self.grid.tail.any()

    def predictions(self) -> tuple[Floats, Floats, Floats, float]:
        """Densities of the next value: (G, X) if good, (G, X) if bad, (X,) if nothing changed,
        on a grid of X values, and that grid's step."""
        grid = self.grid
        levels = (self.good, grid.good), (self.bad, grid.bad), (self.same[None], grid.same)
        if self.rates:  # the next value is 0 or 1
            rates = [np.einsum("gzk,zk->g", belief, level) for belief, level in levels]
            good, bad, same = (np.stack([1 - rate, rate], axis=1) for rate in rates)
            return good, bad, same[0], 1.0
        low, high, finest = np.inf, -np.inf, np.inf
        for belief, level in levels[:2]:
            weight = belief.max(axis=0)
            row, place = np.nonzero(weight > 1e-4 * weight.max())
            low = min(low, float((level[row, place] - 4 * grid.scale[row]).min()))
            high = max(high, float((level[row, place] + 4 * grid.scale[row]).max()))
            finest = min(finest, float(grid.scale[row].min()))
        fewest, most = PREDICTION_NODES
        x = np.linspace(low, high, int(np.clip((high - low) / finest, fewest, most)))

        def mix(belief: Floats, level: Floats) -> Floats:
            table = density(x, level, grid)
            mixed = belief.reshape(-1, level.size) @ table.reshape(len(x), -1).T
            return np.asarray(mixed, dtype=np.float64)

        good, bad, same = (mix(belief, level) for belief, level in levels)
        return good, bad, same[0], float(x[1] - x[0])

    def common(self, weight: Floats) -> float:
        """Expected share of the variance that repeats at one commit have in common."""
        belief = np.einsum("g,gzk->z", weight, self.good)
        return float(belief @ self.grid.share / belief.sum())

    def effect(self, weight: Floats, mass: float) -> tuple[float, float, float]:
        """Median and central interval holding `mass` of bad level - good level, groups mixed
        by `weight`."""
        joint = (
            np.einsum("g,zgk,zgl->zkl", weight, self.pair_left, self.pair_right, optimize=True)
            * self.pair
        )
        shift = (self.grid.bad[:, None, :] - self.grid.good[:, :, None]).ravel()
        order = np.argsort(shift, kind="stable")
        cumulated = np.cumsum(joint.ravel()[order])
        marks = np.array([0.5, (1 - mass) / 2, (1 + mass) / 2]) * cumulated[-1]
        middle, low, high = np.interp(marks, cumulated, shift[order])
        return float(middle), float(low), float(high)

    def spread(self, weight: Floats) -> float:
        """Expected noise: the sd of one trial, groups mixed by `weight`."""
        belief = np.einsum("g,gzk->z", weight, self.good)
        sd = np.where(np.isinf(self.grid.tail), 1.0, 1 / TAIL_SCALE) * self.grid.scale
        return float(np.exp(belief @ np.log(sd) / belief.sum()))


def fit(
    sites: Sites,
    splits: Bools,
    log_prior: Floats,
    *,
    noise: tuple[float, float],
    sharp: bool,
    floor: float,
    none_prior: float,
) -> Fit:
    """Integrate levels and noise out for every row of `splits` (G, T), True where bad.

    `noise` is (sd, degrees of freedom) of one trial from the ledger; `sharp` says the metric
    repeats exactly.
    Both ends must have been read (ValueError). Grids are focused on what `log_prior` (G,) and
    `none_prior` make of the evidence.
    """
    if sites.good < 0 or sites.bad < 0:
        raise ValueError("both ends must have been read")
    sites = tamed(sites, noise[0])
    grid = _first_grid(sites, noise, sharp, floor)
    for nodes in (COARSE_NODES, NODES):
        likelihood = tables(sites, grid, [grid.good, grid.bad, grid.same])
        seen = _integrate(splits, grid, likelihood)
        grid = _focus(seen, log_prior, none_prior, noise, sharp, floor, nodes)
    return _integrate(splits, grid, tables(sites, grid, [grid.good, grid.bad, grid.same]))


def _integrate(splits: Bools, grid: Grid, likelihood: list[Floats]) -> Fit:
    on_good, on_bad, on_same = likelihood
    is_bad = splits.astype(float)
    T = splits.shape[1]

    def gathered(table: Floats, rows: Floats) -> tuple[Floats, Floats]:
        total = (rows @ table.reshape(T, -1)).reshape(len(rows), *table.shape[1:])
        total = np.swapaxes(total, 0, 1)  # (Z, G, K)
        top = total.max(axis=2)
        return np.exp(total - top[:, :, None]), top

    left, left_top = gathered(on_good, 1 - is_bad)
    right, right_top = gathered(on_bad, is_bad)
    top = left_top + right_top  # (Z, G)

    pair_top = max(grid.log_pair.max(), IMPOSSIBLE)
    pair = np.exp(grid.log_pair - pair_top)
    forward = left @ pair
    mass = (forward * right).sum(axis=2)
    with np.errstate(divide="ignore"):
        log_mass = np.log(mass) + top + pair_top
    log_evidence = _log_sum(log_mass)
    share = np.exp(top + pair_top - log_evidence)[:, :, None]
    bad = np.swapaxes(forward * right * share, 0, 1)
    good = np.swapaxes(left * (right @ np.swapaxes(pair, 1, 2)) * share, 0, 1)

    same = on_same.sum(axis=0) + grid.log_same
    same_top = same.max()
    same_mass = np.exp(same - same_top)
    log_none = float(same_top + np.log(same_mass.sum()))
    log_small = None
    if grid.log_small is not None:
        small = (left @ np.exp(grid.log_small - pair_top) * right).sum(axis=2)
        with np.errstate(divide="ignore"):
            log_small = _log_sum(np.log(small) + top + pair_top)
    return Fit(
        grid,
        log_evidence,
        log_none,
        log_small,
        good,
        bad,
        same_mass / same_mass.sum(),
        left * np.exp(top - log_evidence)[:, :, None],
        right,
        np.exp(grid.log_pair),
    )


def _log_sum(rows: Floats) -> Floats:
    """log of the sum of exp over the first axis; IMPOSSIBLE where nothing is left."""
    peak = np.maximum(rows.max(axis=0), IMPOSSIBLE)
    with np.errstate(divide="ignore"):
        return np.asarray(np.maximum(peak + np.log(np.exp(rows - peak).sum(axis=0)), IMPOSSIBLE))


def _first_grid(sites: Sites, noise: tuple[float, float], sharp: bool, floor: float) -> Grid:
    """Wide enough for anything the readings and the ledger allow."""
    good, bad = sites.at(sites.good), sites.at(sites.bad)
    centre = middle(good), middle(bad), middle(np.sort(sites.values))
    gap = centre[1] - centre[0]
    inner = sites.values[sites.starts + sites.counts // 2]  # values are sorted by position
    own = sites.values - np.repeat(inner, sites.counts)
    free = len(own) - len(sites.counts)
    guesses = [abs(gap) / 2, float(np.ptp(sites.values)) / 4]
    if free > 0:
        guesses += [float(np.sqrt((own**2).sum() / free))]
        guesses += [middle(np.sort(np.abs(own[np.repeat(sites.counts, sites.counts) > 1])))]
    if noise[1] > 0:
        guesses += [noise[0]]
    known = [guess for guess in guesses if guess > 0]
    finest = max(gap, max(known) * 1e-3) / FINEST
    low, high = max(min(known) / 6, finest), max(known) * 4
    step = np.log(high / low) / (2 * SCALE_REACH)
    widths = (1.4 / np.sqrt(len(good)), 1.4 / np.sqrt(len(bad)), 1.0)
    log_scale = float(np.log(low) + np.log(high)) / 2
    return _grid(centre, widths, log_scale, step, finest, noise, sharp, floor, FIRST_NODES, NOISES)


def _focus(
    fitted: Fit,
    log_prior: Floats,
    none_prior: float,
    noise: tuple[float, float],
    sharp: bool,
    floor: float,
    nodes: tuple[int, int],
) -> Grid:
    """A grid around what is believed now: mean and spread of each unknown."""
    grid = fitted.grid
    log_weight = log_prior + fitted.log_evidence
    top = log_weight.max()
    weight = np.exp(log_weight - top)
    log_none = np.log(none_prior / (1 - none_prior)) + fitted.log_none
    none = float(1 / (1 + np.exp(np.clip(top + np.log(weight.sum()) - log_none, -700, 700))))
    weight /= weight.sum()
    good = np.einsum("g,gzk->zk", weight, fitted.good)
    bad = np.einsum("g,gzk->zk", weight, fitted.bad)

    def moments(belief: Floats, level: Floats) -> tuple[float, float]:
        total = max(belief.sum(), 1e-300)
        mean = float((belief * level).sum() / total)
        spread = (belief * ((level - mean) / grid.scale[:, None]) ** 2).sum() / total
        # never narrower than the grid it was seen on could show
        cell = float(((level[:, 1] - level[:, 0]) / grid.scale).min())
        return mean, float(np.sqrt(spread + (0.3 * cell) ** 2))

    places = [
        moments(good, grid.good),
        moments(bad, grid.bad),
        moments(fitted.same, grid.same),
    ]
    log_scale = np.log(grid.scale)
    by_scale = (1 - none) * good.sum(axis=1) / max(good.sum(), 1e-300) + none * fitted.same.sum(
        axis=1
    )
    mean = float(by_scale @ log_scale)
    cell = float(np.diff(np.unique(log_scale)).min()) if len(log_scale) > 1 else 0.1
    spread = float(np.sqrt(by_scale @ (log_scale - mean) ** 2 + (0.3 * cell) ** 2))
    centre = (places[0][0], places[1][0], places[2][0])
    widths = (places[0][1], places[1][1], places[2][1])
    finest = float(grid.scale.min()) if spread == 0 else 0.0
    gap = max(centre[1] - centre[0], 0.0)
    finest = max(finest, gap / FINEST)
    by_kind = by_scale.reshape(len(grid.kinds), -1).sum(axis=1)
    kept = tuple(k for k, held in zip(grid.kinds, by_kind, strict=True) if held > NEGLIGIBLE)
    kinds = kept or grid.kinds
    return _grid(centre, widths, mean, spread, finest, noise, sharp, floor, nodes, kinds)


def _grid(
    centre: tuple[float, float, float],
    width: tuple[float, float, float],
    log_scale: float,
    log_spread: float,
    finest: float,
    noise: tuple[float, float],
    sharp: bool,
    floor: float,
    nodes: tuple[int, int],
    kinds: Kinds,
) -> Grid:
    u = np.linspace(-REACH, REACH, nodes[0])
    du = u[1] - u[0]
    low = max(log_scale - SCALE_REACH * log_spread, np.log(finest) if finest > 0 else -np.inf)
    high = max(log_scale + SCALE_REACH * log_spread, low + 0.2)
    logs = np.linspace(low, high, nodes[1])
    tail, share, weight = (np.repeat(column, nodes[1]) for column in zip(*kinds, strict=True))
    log_weight = np.log(weight)
    scale = np.exp(np.tile(logs, len(kinds)))
    sd = scale / np.where(np.isinf(tail), 1.0, TAIL_SCALE)
    log_weight = log_weight + np.log(logs[1] - logs[0])
    dof = min(noise[1], DOF_CAP)
    if dof > 0 and noise[0] > 0:  # scaled inverse chi-square on the variance, in d log sd
        log_weight = log_weight - dof * np.log(sd / noise[0]) - dof / 2 * (noise[0] / sd) ** 2
    good, bad, same = (
        c + w * scale[:, None] * u[None, :] for c, w in zip(centre, width, strict=True)
    )
    difference = bad[:, None, :] - good[:, :, None]
    shift = difference / sd[:, None, None]
    positive = shift > 0
    log_shift = np.log(np.where(positive, shift, 1.0))
    median = SHARP_MEDIAN if sharp else SHIFT_MEDIAN
    # lognormal density of the shift, per unit of the bad level
    log_density_of_shift = (
        -0.5 * ((log_shift - np.log(median)) / SHIFT_SPREAD) ** 2
        - log_shift
        - np.log(SHIFT_SPREAD * np.sqrt(2 * np.pi))
        - np.log(sd)[:, None, None]
    )
    cells = np.log(width[0] * scale * du) + np.log(width[1] * scale * du)
    log_pair = np.where(
        positive, log_density_of_shift + (log_weight + cells)[:, None, None], -np.inf
    )
    log_small = None
    if floor > 0:
        log_small = np.where(difference < floor, log_pair, -np.inf)
        log_pair = np.where(difference < floor, -np.inf, log_pair)
    log_same = np.broadcast_to((log_weight + np.log(width[2] * scale * du))[:, None], same.shape)
    return Grid(tuple(kinds), scale, tail, share, good, bad, same, log_pair, log_small, log_same)


def fit_rates(sites: Sites, splits: Bools, asked: int) -> Fit:
    """The same for readings of 0 and 1: the two levels are rates of failure.

    A crash is mostly sure and a sound commit mostly never crashes, but either may be flaky:
    the priors are mixtures of beta distributions, cut to good < bad. `asked` crashes of the bad
    end are why the question is asked."""
    edges = np.concatenate(([0.0], special.expit(np.linspace(-9, 9, RATE_NODES - 1)), [1.0]))
    rate = special.expit(np.linspace(-9.0, 9.0, RATE_NODES))

    def prior(parts: tuple[tuple[float, float, float], ...]) -> Floats:
        return np.asarray(
            sum(w * np.diff(special.betainc(a, b, edges)) for w, a, b in parts), dtype=float
        )

    good, bad, same = prior(GOOD_RATE), prior(BAD_RATE), prior(SAME_RATE)
    pair = np.triu(good[:, None] * bad[None, :], 1)
    with np.errstate(divide="ignore"):
        grid = Grid(
            ((0.0, 0.0, 1.0),),
            np.ones(1),
            np.zeros(1),
            np.zeros(1),
            rate[None],
            rate[None],
            rate[None],
            np.log(pair / pair.sum())[None],
            None,
            np.log(same / same.sum())[None],
        )
    failed = np.add.reduceat(sites.values, sites.starts)
    table = failed[:, None] * np.log(rate) + (sites.counts - failed)[:, None] * np.log1p(-rate)
    # Nobody would have asked had they not crashed: that tells nothing of how often it happens.
    # Taken as evidence, three crashes of one that comes every other time passed for a sure one,
    # and 23 % of 200 were blamed on another commit.
    on_bad = table.copy()
    on_bad[sites.bad] -= min(asked, failed[sites.bad]) * np.log(rate)
    return _integrate(splits, grid, [t[:, None, :] for t in (table, on_bad, table)])
