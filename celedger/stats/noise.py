"""How much a metric varies when nothing changed: one pooled figure per metric × task ×
environment, as a bisect weighs the ends of a range with. Knows values only: no ledger, no clock.

Three kinds of spread are kept apart. Repeats with the *same* seed that agree exactly make a
metric `deterministic`. Its spread over *different* seeds is then still noise, because a commit
that only reorders additions draws a new value for every seed. And commits may differ by more
than their repeats do (`between`: a machine that drifts from one run to the next).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import NormalDist

import numpy as np

from celedger.stats.arrays import Floats
from celedger.stats.tails import chi_square_quantile, f_tail, t_quantile

Trials = Sequence[tuple[int, float]]
"""Seed and value of each trial of one commit, in their order."""

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


def pool(commits: Sequence[Trials]) -> Noise:
    """Return the noise of the trials of commits, the oldest first. Values that are not finite are
    left out.

    Repeats within commits carry the estimate (sum of squares over degrees of freedom, outlying
    commits left out); with few or none, it is the trimmed differences between successive commits,
    which a few real steps do not inflate.
    """
    finite = [[(seed, y) for seed, y in trials if math.isfinite(y)] for trials in commits]
    own = [trials for trials in finite if trials]
    n = sum(map(len, own))
    if n == 0:
        return UNKNOWN
    if _repeats_exactly(own):
        return _deterministic(own)
    within, dof, inliers = _within(own)
    if dof < TRIMMED_DOF * (len(own) - 1):  # the neighbours know more than the few repeats
        differences = np.diff(_means(own))
        if np.any(differences != 0):
            single = of_differences(differences) / math.sqrt(_mean_inverse(own))
            return Noise(single, TRIMMED_DOF * differences.size, False, n)
    if dof == 0 or within == 0:  # one value, or ties too few to call it deterministic
        return Noise(math.nan, 0.0, False, n)
    between, dof = _between(inliers, within, dof)
    return Noise(within, dof, False, n, between)


def pool_newest(commits: Sequence[Trials]) -> Noise:
    """Return the noise of the newest POOLED commits."""
    return pool(commits[-POOLED:])


def pool_beside(commits: Sequence[Trials], own: int, trials: int) -> Noise:
    """Return the noise that a commit with so many trials is tested against, `own` being its number
    (-1: it has no value): its own step is no part of it, its repeats are."""
    others = pool_newest([each for number, each in enumerate(commits) if number != own])
    if trials > 1 and not others.between and not others.exact:
        return replace(pool_newest(commits), between=0.0)
    return others


def of_differences(differences: Floats) -> float:
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


def collapse(commits: Sequence[Trials]) -> list[Trials]:
    """Successive commits that repeat each other exactly become one: ten commits with the same
    three values are three observations, not thirty. Repeats of one seed count once, too."""
    runs: list[dict[int, float]] = []
    before: dict[int, float] = {}
    for trials in commits:
        own = dict(trials)
        if own == before:
            continue
        before = own
        common = runs[-1].keys() & own.keys() if runs else ()
        if common and all(runs[-1][s] == own[s] for s in common):
            runs[-1] |= own
        else:
            runs.append(dict(own))
    return [sorted(run.items()) for run in runs]


def smallest_change(
    noise: Noise, trials: int, baseline_trials: int, confidence: float = 0.95, power: float = 0.8
) -> float:
    """Return the smallest change, in the metric's unit, that `trials` at one commit against
    `baseline_trials` at another tell with the given power at the given confidence (two-sided
    t-test; the usual normal-theory formula with t quantiles, slightly conservative). 0 where the
    metric is exact, infinity where nothing can be told."""
    if noise.exact and trials >= 1 and baseline_trials >= 1:
        return 0.0
    if not noise.known or trials < 1 or baseline_trials < 1:
        return math.inf
    variance = noise.sd**2 * (1 / trials + 1 / baseline_trials) + 2 * noise.between**2
    quantiles = t_quantile(1 - (1 - confidence) / 2, noise.dof) + t_quantile(power, noise.dof)
    return quantiles * math.sqrt(variance)


def fine(value: float) -> bool:
    """Return True if different draws of the noise hardly ever agree in so many digits."""
    return float(f"{value:.{COARSE}g}") != value


def _values(trials: Trials) -> Floats:
    return np.array([value for _, value in trials])


def _means(commits: Sequence[Trials]) -> Floats:
    return np.array([_values(trials).mean() for trials in commits])


def _mean_inverse(commits: Sequence[Trials]) -> float:
    """Return the mean of one over the number of a commit's trials."""
    return float(np.mean([1 / len(trials) for trials in commits]))


def _squares(trials: Trials) -> float:
    """Return the sum of squares around the mean.

    Values count from the first one on: the mean of equal values may differ from them in the last
    bit, and then an exact metric would have a noise.
    """
    rest = _values(trials) - trials[0][1]
    return float(((rest - rest.mean()) ** 2).sum())


def _firsts(trials: Trials) -> dict[int, float]:
    """Return the first value of each seed."""
    return dict(reversed(trials))


def _repeats_exactly(commits: Sequence[Trials]) -> bool:
    """Same seed, same value. Repeats within a commit decide where there are any; otherwise
    most successive commits must agree with each other, three of them at least. And values hardly
    ever come back after others: that is how a noisy metric of few possible values looks."""
    several = [trials for trials in commits if len(trials) > 1]
    if several and all(
        fine(trials[0][1]) and all(value == trials[0][1] for _, value in trials)
        for trials in several
    ):
        return not _come_back(commits)  # no seed has a say in it
    repeats = sum(len(trials) - len(_firsts(trials)) for trials in several)
    if repeats:
        sure = all(_firsts(trials)[seed] == value for trials in several for seed, value in trials)
    else:
        agreeing, neighbours = _agreeing(commits)
        sure = len(agreeing) >= AGREEING and len(agreeing) > neighbours / 2
    return sure and not _come_back(commits)


def _agreeing(commits: Sequence[Trials]) -> tuple[list[float], int]:
    """Return the values that seeds have at two successive commits, and how many could be: a seed
    that both commits have counts once."""
    agreeing, neighbours = [], 0
    for old, new in pairwise(map(_firsts, commits)):
        common = old.keys() & new.keys()
        neighbours += len(common)
        agreeing += [new[seed] for seed in common if old[seed] == new[seed]]
    return agreeing, neighbours


def _come_back(commits: Sequence[Trials]) -> bool:
    """Return True if values of a seed come back after others too often."""
    seen: set[tuple[int, float]] = set()
    before: set[tuple[int, float]] = set()
    returned = 0
    for trials in commits:
        own = set(_firsts(trials).items())
        returned += len((own & seen) - before)
        seen |= own
        before = own
    return returned > _agreeing(commits)[1] / 20


def _deterministic(commits: Sequence[Trials]) -> Noise:
    """Return what a deterministic metric varies by when its numbers are drawn anew: its spread over
    seeds, or over commits where those have drawn anew often, or most of the time."""
    n = sum(map(len, commits))
    runs = collapse(commits)
    within, dof, _ = _within(runs)
    if dof > 0:
        sure = dof if within > 0 else math.inf
        return Noise(within, sure, True, n)
    means = _means(runs)
    often = means.size >= 3 and 2 * (means.size - 1) > len(commits) - 1
    if often or means.size >= RUNS_FOR_NOISE:
        return Noise(of_differences(np.diff(means)), TRIMMED_DOF * (means.size - 1), True, n)
    return Noise(0.0, math.inf, True, n)


def _within(commits: Sequence[Trials]) -> tuple[float, float, Sequence[Trials]]:
    """(sd, degrees of freedom, the commits that are no outliers) from the repeats within them."""
    dof = np.array([len(trials) - 1.0 for trials in commits])
    keep = np.ones(dof.size, dtype=bool)
    if not dof.any():
        return math.nan, 0.0, commits
    squares = np.array([_squares(trials) for trials in commits])
    repeated = dof > 0
    if repeated.sum() >= 4:  # with fewer commits nothing says which of them is the odd one
        half, limit = np.ones(dof.size), np.full(dof.size, np.inf)
        for own in np.unique(dof[repeated]).tolist():
            half[dof == own] = chi_square_quantile(0.5, own)
            limit[dof == own] = chi_square_quantile(REJECTED_ABOVE / dof.size, own)
        typical = np.median((squares / half)[repeated])
        for _ in range(10):
            inliers = squares <= limit * typical if typical > 0 else keep
            if (inliers == keep).all():
                break
            keep = inliers
            typical = squares[keep].sum() / dof[keep].sum()
    variance = squares[keep].sum() / dof[keep].sum()
    kept = [trials for trials, is_kept in zip(commits, keep.tolist(), strict=True) if is_kept]
    return math.sqrt(variance), float(dof[keep].sum()), kept


def _between(commits: Sequence[Trials], within: float, dof: float) -> tuple[float, float]:
    """(sd of commits beyond their repeats, degrees of freedom of the whole). 0 unless the
    neighbours differ by clearly more than their repeats explain (F test), and where neighbours
    agree in every digit: what varied from commit to commit would vary there, too."""
    if len(commits) < 5 or within == 0 or sum(map(fine, _agreeing(commits)[0])) >= AGREEING:
        return 0.0, dof
    of_repeats = within**2 * _mean_inverse(commits)
    steps = np.diff(_means(commits))
    # Less their middle: a slow drift is what the pinned baseline is for, not noise to hide it.
    of_commits = of_differences(steps - np.median(steps)) ** 2
    commits_dof = TRIMMED_DOF * steps.size
    if f_tail(of_commits / of_repeats, commits_dof, dof) > BETWEEN_ABOVE:
        return 0.0, dof
    return math.sqrt(of_commits - of_repeats), min(dof, commits_dof)
