"""How much a metric varies when nothing changed: one pooled figure per metric × task ×
environment, from every repeat there is. Knows arrays only: no ledger, no clock, no verdict.

Three kinds of spread are kept apart. Repeats with the *same* seed that agree exactly make a
metric `deterministic`. Its spread over *different* seeds is then still noise, because a commit
that only reorders additions draws a new value for every seed. And commits may differ by more
than their repeats do (`between`: a machine that drifts from one run to the next).

Values come in groups, one group a commit, in flat arrays: a history of thousands of commits is
summed in a few calls.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from celedger.stats.arrays import Bools, Floats, Ints
from celedger.stats.tails import chi_square_quantile, f_tail, t_quantile


class Layout:
    """Which of a row of values belong together: `sizes` of successive groups, and the `seeds` of
    the values, None where they are not known. Metrics of the same trials share one, and what is
    worked out of it."""

    def __init__(self, sizes: Ints, seeds: Ints | None = None) -> None:
        self.sizes, self.seeds = sizes, seeds
        self._parts: dict[bytes, tuple[Bools, Layout]] = {}

    def part(self, groups: Bools) -> tuple[Bools, Layout]:
        """Return which values are in some of the groups, and the layout of those."""
        key = groups.tobytes()
        if key not in self._parts:
            chosen = groups[self.group]
            seeds = None if self.seeds is None else self.seeds[chosen]
            self._parts[key] = chosen, Layout(self.sizes[groups], seeds)
        return self._parts[key]

    @cached_property
    def starts(self) -> Ints:
        """Return where each group begins."""
        return np.asarray(np.cumsum(self.sizes) - self.sizes)

    @cached_property
    def group(self) -> Ints:
        """Return the number of each value's group."""
        return np.repeat(np.arange(self.sizes.size), self.sizes)

    @cached_property
    def firsts(self) -> Ints:
        """For each value the place of the first one of its seed in its group; where seeds are not
        known, of the first one in its group."""
        if self.seeds is None:
            return self.starts[self.group]
        places = np.arange(self.seeds.size)
        order = np.lexsort((self.group, self.seeds))  # stable: the first of a seed stays the first
        seed, group = self.seeds[order], self.group[order]
        first = np.ones(seed.size, dtype=bool)
        first[1:] = (seed[1:] != seed[:-1]) | (group[1:] != group[:-1])
        places[order] = order[first][np.cumsum(first) - 1]
        return places

    @cached_property
    def by_size(self) -> list[tuple[Ints, Ints]]:
        """Return the numbers of the groups of each size but 0, and the places of their values, a
        row for each group."""
        groups = []
        for size in np.flatnonzero(np.bincount(self.sizes)).tolist():
            if size:
                numbers = np.flatnonzero(self.sizes == size)
                groups.append((numbers, self.starts[numbers][:, None] + np.arange(size)))
        return groups


@dataclass(frozen=True, slots=True, eq=False)
class Grouped:
    """The values, group by group, oldest first."""

    values: Floats
    layout: Layout

    @classmethod
    def of(
        cls,
        groups: Sequence[Sequence[float]] | Sequence[Floats] | Floats,
        seeds: Sequence[Sequence[int]] | Sequence[Ints] | None = None,
    ) -> Grouped:
        """Join groups; in a plain array each value is a group, in a matrix each row."""
        labels = None if seeds is None else _joined(seeds, np.int64)
        if isinstance(groups, np.ndarray):
            width = groups.shape[1] if groups.ndim == 2 else 1
            sizes = np.full(len(groups), width, dtype=np.int64)
            return cls(groups.astype(float).ravel(), Layout(sizes, labels))
        sizes = np.array([len(group) for group in groups], dtype=np.int64)
        return cls(_joined(groups, np.float64), Layout(sizes, labels))

    def __len__(self) -> int:
        return self.sizes.size

    @property
    def sizes(self) -> Ints:
        return self.layout.sizes

    @property
    def seeds(self) -> Ints | None:
        return self.layout.seeds

    def scaled(self, factor: float) -> Grouped:
        """Return the values times a factor."""
        return Grouped(self.values * factor, self.layout)

    def followed_by(self, other: Grouped) -> Grouped:
        """Return the groups of both; seeds are known where they are in both."""
        seeds = None
        if self.seeds is not None and other.seeds is not None:
            seeds = np.concatenate((self.seeds, other.seeds))
        sizes = np.concatenate((self.sizes, other.sizes))
        return Grouped(np.concatenate((self.values, other.values)), Layout(sizes, seeds))

    def where(self, keep: Bools) -> Grouped:
        """Return the values chosen by a mask; groups may become empty, none is dropped."""
        sizes = np.bincount(self.layout.group[keep], minlength=self.sizes.size)
        seeds = None if self.seeds is None else self.seeds[keep]
        return Grouped(self.values[keep], Layout(sizes, seeds))

    def groups_where(self, keep: Bools) -> Grouped:
        """Return the groups chosen by a mask."""
        if keep.all():
            return self
        chosen, layout = self.layout.part(keep)
        return Grouped(self.values[chosen], layout)

    def finite(self) -> Grouped:
        """Return the finite values; a group without any is empty."""
        keep = np.isfinite(self.values)
        return self if keep.all() else self.where(keep)

    def means(self) -> Floats:
        """Return the mean of each group; NaN of an empty one."""
        means = np.full(self.sizes.size, np.nan)
        for numbers, places in self.layout.by_size:
            means[numbers] = self.values[places].mean(axis=1)
        return means

    def squares(self) -> Floats:
        """Return each group's sum of squares around its mean.

        Values count from the first of their group on: the mean of equal values may differ from
        them in the last bit, and then an exact metric would have a noise.
        """
        squares = np.zeros(self.sizes.size)
        for numbers, places in self.layout.by_size:
            rest = self.values[places]
            rest -= rest[:, :1].copy()
            squares[numbers] = ((rest - rest.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
        return squares

    def split(self) -> list[Floats]:
        """Return the values of each group."""
        return _parts(self.values, self.sizes)


def _joined(parts: Iterable[Iterable[float]], kind: type) -> NDArray[Any]:
    return np.fromiter(chain.from_iterable(parts), dtype=kind)


def _parts(flat: NDArray[Any], sizes: Ints) -> list[NDArray[Any]]:
    ends = np.cumsum(sizes).tolist()
    return [flat[end - size : end] for end, size in zip(ends, sizes.tolist(), strict=True)]


Groups = Sequence[Sequence[float]] | Sequence[NDArray[np.float64]]
Seeds = Sequence[Sequence[int]] | Sequence[NDArray[np.int64]]

TRIM = 0.75
"""Share of the differences between neighbours that is trusted: a step touches only one."""
TRIMMED_DOF = 0.4
"""Degrees of freedom of `of_differences` squared, per difference: simulated on normal noise for
3 to 100 differences (2 mean²/var), where it is 0.39 to 0.66."""
REJECTED_ABOVE = 1e-3
"""A commit's repeats are left out as outliers when their spread has at most this probability,
divided by the number of commits, under the noise of the others."""
BETWEEN_ABOVE = 1e-3
"""p-value of the F test below which commits are said to differ beyond their repeats: a false
"yes" turns three seeds into one observation."""
RUNS_FOR_NOISE = 8
"""A deterministic metric that has been redrawn so often shows its noise; with fewer distinct
values in a row every change counts as exact."""
AGREEING = 3
"""So many neighbours with equal values are no chance."""
COARSE = 6
"""Significant digits that a share of a few hundred samples may have."""
POOLED = 500
"""Commits whose repeats make the noise of a history: more change no digit that is shown."""


@dataclass(frozen=True, slots=True)
class Noise:
    """`sd`: of one trial around its commit's level, in the metric's unit (NaN: nothing known,
    0: exact). `dof`: degrees of freedom of `sd` squared. `between`: sd of the commits beyond what
    their repeats explain (0 unless evident). `deterministic`: the same seed gives the same value.
    `n`: values used."""

    sd: float
    dof: float
    deterministic: bool
    n: int
    between: float = 0.0

    @property
    def exact(self) -> bool:
        """Any difference at all is a real one."""
        return self.deterministic and self.sd == 0.0

    @property
    def known(self) -> bool:
        return self.exact or (self.dof > 0 and math.isfinite(self.sd))


UNKNOWN = Noise(math.nan, 0.0, False, 0)


def pool(groups: Groups | Grouped, *, seeds: Seeds | None = None) -> Noise:
    """Return the noise of values grouped by commit, oldest first. `seeds`, of the same shape, tells
    repeats of one seed from different seeds. Values that are not finite are left out.

    Repeats within commits carry the estimate (sum of squares over degrees of freedom, outlying
    commits left out); with few or none, it is the trimmed differences between successive commits,
    which a few real steps do not inflate.
    """
    grouped = _finite(groups, seeds)
    n = grouped.values.size
    if n == 0:
        return UNKNOWN
    if _repeats_exactly(grouped):
        return _deterministic(grouped)
    within, dof, keep = _within(grouped)
    if dof < TRIMMED_DOF * (len(grouped) - 1):  # the neighbours know more than the few repeats
        differences = np.diff(grouped.means())
        if np.any(differences != 0):
            single = of_differences(differences) / math.sqrt(np.mean(1 / grouped.sizes))
            return Noise(single, TRIMMED_DOF * differences.size, False, n)
    if dof == 0 or within == 0:  # one value, or ties too few to call it deterministic
        return Noise(math.nan, 0.0, False, n)
    between, dof = _between(grouped.groups_where(keep), within, dof)
    return Noise(within, dof, False, n, between)


def pool_newest(commits: Grouped, left_out: int = -1) -> Noise:
    """Return the noise of the newest POOLED commits, without the one of a number."""
    chosen = np.arange(len(commits)) != left_out
    chosen[np.flatnonzero(chosen)[:-POOLED]] = False
    return pool(commits.groups_where(chosen))


def pool_beside(commits: Grouped, own: int, trials: int) -> Noise:
    """Return the noise that a commit with so many trials is tested against, `own` being its number
    (-1: it has no value): its own step is no part of it, its repeats are."""
    others = pool_newest(commits, own)
    if trials > 1 and not others.between and not others.exact:
        return replace(pool_newest(commits), between=0.0)
    return others


def deterministic(groups: Groups | Grouped, *, seeds: Seeds | None = None) -> bool:
    """Return what `pool` says of this, without the rest."""
    grouped = _finite(groups, seeds)
    return bool(grouped.values.size) and _repeats_exactly(grouped)


def of_differences(differences: NDArray[np.float64]) -> float:
    """sd of single values from the differences between neighbours: the mean of the smaller
    three quarters of them, scaled to the normal law, so that a few steps do not count. Of a
    metric with few possible values (some differences are 0), half their distance at least."""
    size = np.sort(np.abs(differences))
    inliers = size[: max(1, math.ceil(TRIM * size.size))]
    share = inliers.size / size.size
    # E(|z| given |z| < its `share` quantile) for z ~ N(0, 1)
    cut = NormalDist().inv_cdf((1 + share) / 2) if share < 1 else math.inf
    mean = 2 * (1 - math.exp(-(cut**2) / 2)) / math.sqrt(2 * math.pi) / share
    sd = float(inliers.mean()) / mean / math.sqrt(2.0)
    if size[0] == 0 and size[-1] > 0:
        return max(sd, 0.5 * float(size[size > 0][0]))
    return sd


def collapse(grouped: Grouped) -> Grouped:
    """Successive commits that repeat each other exactly become one: ten commits with the same
    three values are three observations, not thirty. Repeats of one seed count once, too."""
    values = grouped.values.tolist()
    seeds = None if grouped.seeds is None else grouped.seeds.tolist()
    runs: list[dict[int, float]] = []
    before: dict[int, float] = {}
    end = 0
    for size in grouped.sizes.tolist():
        start, end = end, end + size
        if seeds is None:
            own = dict(enumerate(sorted(set(values[start:end]))))
        else:
            own = dict(zip(seeds[start:end], values[start:end], strict=True))
        if own == before:
            continue
        before = own
        common = runs[-1].keys() & own.keys() if runs else ()
        if common and all(runs[-1][s] == own[s] for s in common):
            runs[-1] |= own
        else:
            runs.append(dict(own))
    order = [sorted(run) for run in runs]
    merged = [[run[s] for s in own] for run, own in zip(runs, order, strict=True)]
    return Grouped.of(merged, None if seeds is None else order)


def smallest_change(
    noise: Noise,
    trials: int,
    baseline_trials: int,
    confidence: float = 0.95,
    power: float = 0.8,
    *,
    baseline_commits: int = 1,
) -> float:
    """Return the smallest change, in the metric's unit, that `trials` at one commit against
    `baseline_trials` before it tell with the given power at the given confidence (two-sided t-test;
    the usual normal-theory formula with t quantiles, slightly conservative). 0 where the metric is
    exact, infinity where nothing can be told."""
    if noise.exact and trials >= 1 and baseline_trials >= 1:
        return 0.0
    if not noise.known or trials < 1 or baseline_trials < 1:
        return math.inf
    variance = noise.sd**2 * (1 / trials + 1 / baseline_trials)
    variance += noise.between**2 * (1 + 1 / max(1, baseline_commits))
    quantiles = t_quantile(1 - (1 - confidence) / 2, noise.dof) + t_quantile(power, noise.dof)
    return quantiles * math.sqrt(variance)


def _finite(groups: Groups | Grouped, seeds: Seeds | None) -> Grouped:
    """Return the finite values, without the groups that have none."""
    every = groups if isinstance(groups, Grouped) else Grouped.of(groups, seeds)
    finite = every.finite()
    return finite if finite.sizes.all() else finite.groups_where(finite.sizes > 0)


def _repeats_exactly(grouped: Grouped) -> bool:
    """Same seed, same value. Repeats within a commit decide where there are any; otherwise
    most successive commits must agree with each other, three of them at least. And values hardly
    ever come back after others: that is how a noisy metric of few possible values looks."""
    own = _Own.of(grouped)
    several = grouped.sizes > 1
    first = grouped.values[grouped.layout.starts]
    if grouped.seeds is not None and several.any():
        equal = grouped.values == first[grouped.layout.group]
        if not np.any(several & ~np.logical_and.reduceat(equal, grouped.layout.starts)) and all(
            fine(value) for value in first[several].tolist()
        ):
            return not own.come_back()  # no seed has a say in it
    if own.repeats:
        # Without seeds two equal values may be those of two seeds, on a metric of few values.
        sure = own.equal_repeats == own.repeats >= (2 if grouped.seeds is None else 1)
    else:
        sure = own.agreeing >= AGREEING and own.agreeing > own.neighbours / 2
    return sure and not own.come_back()


@dataclass(frozen=True, slots=True)
class _Own:
    """The first value of every seed at every commit, sorted by seed and then by commit. `same`:
    it is that of the commit before. `repeats`: further values of a seed at its commit;
    `neighbours`: successive commits that have a seed in common, for each such seed."""

    seed: Ints
    commit: Ints
    value: Floats
    same: Bools
    repeats: int
    equal_repeats: int
    neighbours: int

    @classmethod
    def of(cls, grouped: Grouped) -> _Own:
        firsts = grouped.layout.firsts
        again = firsts != np.arange(firsts.size)
        equal_repeats = int((grouped.values == grouped.values[firsts])[again].sum())
        seed = grouped.seeds if grouped.seeds is not None else np.zeros_like(firsts)
        seed, commit, value = seed[~again], grouped.layout.group[~again], grouped.values[~again]
        order = np.argsort(seed, kind="stable")
        seed, commit, value = seed[order], commit[order], value[order]
        after = np.zeros(seed.size, dtype=bool)
        after[1:] = (seed[1:] == seed[:-1]) & (commit[1:] == commit[:-1] + 1)
        same = after.copy()
        same[1:] &= value[1:] == value[:-1]
        return cls(seed, commit, value, same, int(again.sum()), equal_repeats, int(after.sum()))

    @property
    def agreeing(self) -> int:
        """Return how many of the neighbours have equal values."""
        return int(self.same.sum())

    def agrees_finely(self) -> bool:
        """Return True if neighbours agree in so many digits that chance cannot be the cause."""
        return sum(map(fine, self.value[self.same].tolist())) >= AGREEING

    def come_back(self) -> bool:
        """Return True if values of a seed come back after others too often."""
        order = np.lexsort((self.commit, self.value, self.seed))
        seed, value = self.seed[order], self.value[order]
        again = np.zeros(seed.size, dtype=bool)
        again[1:] = (seed[1:] == seed[:-1]) & (value[1:] == value[:-1])
        return int((again & ~self.same[order]).sum()) > self.neighbours / 20


def fine(value: float) -> bool:
    """Return True if different draws of the noise hardly ever agree in so many digits."""
    return float(f"{value:.{COARSE}g}") != value


def _deterministic(grouped: Grouped) -> Noise:
    """Return what a deterministic metric varies by when its numbers are drawn anew: its spread over
    seeds, or over commits where those have drawn anew often, or most of the time."""
    n = grouped.values.size
    runs = collapse(grouped)
    within, dof, _ = _within(runs)
    if dof > 0:
        sure = dof if within > 0 else math.inf
        return Noise(within, sure, True, n)
    means = runs.means()
    often = means.size >= 3 and 2 * (means.size - 1) > len(grouped) - 1
    if often or means.size >= RUNS_FOR_NOISE:
        return Noise(of_differences(np.diff(means)), TRIMMED_DOF * (means.size - 1), True, n)
    return Noise(0.0, math.inf, True, n)


def _within(grouped: Grouped) -> tuple[float, float, Bools]:
    """(sd, degrees of freedom, which commits are no outliers) from the repeats within commits."""
    dof = (grouped.sizes - 1).astype(float)
    keep = np.ones(dof.size, dtype=bool)
    if not dof.any():
        return math.nan, 0.0, keep
    squares = grouped.squares()
    repeated = dof > 0
    if repeated.sum() >= 4:  # with fewer commits nothing says which of them is the odd one
        half, limit = np.full(dof.size, np.nan), np.full(dof.size, np.inf)
        for numbers, places in grouped.layout.by_size:
            if (own := places.shape[1] - 1) > 0:
                half[numbers] = chi_square_quantile(0.5, own)
                limit[numbers] = chi_square_quantile(REJECTED_ABOVE / dof.size, own)
        typical = np.median(squares[repeated] / half[repeated])
        for _ in range(10):
            inliers = squares <= limit * typical if typical > 0 else keep
            if (inliers == keep).all():
                break
            keep = inliers
            typical = squares[keep].sum() / dof[keep].sum()
    variance = squares[keep].sum() / dof[keep].sum()
    return math.sqrt(variance), float(dof[keep].sum()), keep


def _between(grouped: Grouped, within: float, dof: float) -> tuple[float, float]:
    """(sd of commits beyond their repeats, degrees of freedom of the whole). 0 unless the
    neighbours differ by clearly more than their repeats explain (F test), and where neighbours
    agree in every digit: what varied from commit to commit would vary there, too."""
    if len(grouped) < 5 or within == 0 or _Own.of(grouped).agrees_finely():
        return 0.0, dof
    of_repeats = within**2 * float(np.mean(1 / grouped.sizes))
    steps = np.diff(grouped.means())
    # Less their middle: a slow drift is what the pinned baseline is for, not noise to hide it.
    of_commits = of_differences(steps - np.median(steps)) ** 2
    commits_dof = TRIMMED_DOF * steps.size
    if f_tail(of_commits / of_repeats, commits_dof, dof) > BETWEEN_ABOVE:
        return 0.0, dof
    return math.sqrt(of_commits - of_repeats), min(dof, commits_dof)
