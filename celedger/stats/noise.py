"""How much a metric varies when nothing changed: one pooled figure per metric × task ×
environment, from every repeat there is. Knows arrays only: no ledger, no clock, no verdict.

Three kinds of spread are kept apart. Repeats with the *same* seed that agree exactly make a
metric `deterministic`. Its spread over *different* seeds is then still noise, because a commit
that only reorders additions draws a new value for every seed. And commits may differ by more
than their repeats do (`between`: a machine that drifts from one run to the next).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, fdtrc, ndtri, stdtrit

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
values in a row every change counts as exact (drift.md, step 0)."""
COARSE = 6
"""Significant digits that a share of a few hundred samples may have."""
MAX_TRIALS = 1_000_000
"""More are never counted: the answer to who asks is "no number of trials"."""


@dataclass(frozen=True, slots=True)
class Noise:
    """`sd`: of one trial around its commit's level, in the metric's unit (NaN: nothing known,
    0: exact). `dof`: degrees of freedom of `sd` squared. `between`: sd of the commits beyond what
    their repeats explain (0 unless evident). `deterministic`: the same seed gives the same value.
    `n`: values used. `outliers`: commits whose repeats were left out."""

    sd: float
    dof: float
    deterministic: bool
    n: int
    between: float = 0.0
    outliers: int = 0

    @property
    def exact(self) -> bool:
        """Any difference at all is a real one."""
        return self.deterministic and self.sd == 0.0

    @property
    def known(self) -> bool:
        return self.exact or (self.dof > 0 and math.isfinite(self.sd))


UNKNOWN = Noise(math.nan, 0.0, False, 0)


def pool(groups: Groups, *, seeds: Seeds | None = None) -> Noise:
    """The noise of values grouped by commit, oldest first. `seeds`, of the same shape, tells
    repeats of one seed from different seeds. Values that are not finite are left out.

    Repeats within commits carry the estimate (sum of squares over degrees of freedom, outlying
    commits left out); with few or none, it is the trimmed differences between successive commits,
    which a few real steps do not inflate.
    """
    values, labels = _finite(groups, seeds)
    n = sum(len(g) for g in values)
    if n == 0:
        return UNKNOWN
    if _repeats_exactly(values, labels):
        return _deterministic(values, labels, n)
    within, dof, kept = _within(values)
    outliers = len(values) - len(kept)
    if dof < TRIMMED_DOF * (len(values) - 1):  # the neighbours know more than the few repeats
        differences = np.diff([g.mean() for g in values])
        if np.any(differences != 0):
            single = of_differences(differences) / math.sqrt(np.mean([1 / g.size for g in values]))
            return Noise(single, TRIMMED_DOF * differences.size, False, n)
    if dof == 0 or within == 0:  # one value, or ties too few to call it deterministic
        return Noise(math.nan, 0.0, False, n)
    between, dof = _between(kept, within, dof)
    return Noise(within, dof, False, n, between, outliers)


def of_differences(differences: NDArray[np.float64]) -> float:
    """sd of single values from the differences between neighbours: the mean of the smaller
    three quarters of them, scaled to the normal law, so that a few steps do not count. Of a
    metric with few possible values (some differences are 0), half their distance at least."""
    size = np.sort(np.abs(differences))
    kept = size[: max(1, math.ceil(TRIM * size.size))]
    share = kept.size / size.size
    # E(|z| given |z| < its `share` quantile) for z ~ N(0, 1)
    cut = float(ndtri((1 + share) / 2))
    mean = 2 * (1 - math.exp(-(cut**2) / 2)) / math.sqrt(2 * math.pi) / share
    sd = float(kept.mean()) / mean / math.sqrt(2.0)
    if size[0] == 0 and size[-1] > 0:
        return max(sd, 0.5 * float(size[size > 0][0]))
    return sd


def collapse(
    groups: Sequence[NDArray[np.float64]], seeds: Sequence[NDArray[np.int64]] | None
) -> tuple[list[NDArray[np.float64]], list[NDArray[np.int64]] | None]:
    """Successive commits that repeat each other exactly become one: ten commits with the same
    three values are three observations, not thirty. Repeats of one seed count once, too."""
    kept: list[dict[int, float]] = []
    for i, group in enumerate(groups):
        if seeds is None:
            own = dict(enumerate(np.unique(group).tolist()))
        else:
            own = dict(zip(seeds[i].tolist(), group.tolist(), strict=True))
        common = kept[-1].keys() & own.keys() if kept else ()
        if common and all(kept[-1][s] == own[s] for s in common):
            kept[-1] |= own
        else:
            kept.append(own)
    values = [np.array([g[s] for s in sorted(g)]) for g in kept]
    return values, None if seeds is None else [np.array(sorted(g)) for g in kept]


def smallest_change(
    noise: Noise,
    trials: int,
    baseline_trials: int,
    confidence: float = 0.95,
    power: float = 0.8,
    *,
    baseline_commits: int = 1,
) -> float:
    """The smallest change, in the metric's unit, that `trials` at one commit against
    `baseline_trials` before it tell with the given power at the given confidence (two-sided
    t-test; the usual normal-theory formula with t quantiles, slightly conservative).
    0 where the metric is exact, infinity where nothing can be told."""
    if noise.exact and trials >= 1 and baseline_trials >= 1:
        return 0.0
    if not noise.known or trials < 1 or baseline_trials < 1:
        return math.inf
    variance = noise.sd**2 * (1 / trials + 1 / baseline_trials)
    variance += noise.between**2 * (1 + 1 / max(1, baseline_commits))
    quantiles = stdtrit(noise.dof, 1 - (1 - confidence) / 2) + stdtrit(noise.dof, power)
    return float(quantiles * math.sqrt(variance))


def trials_needed(
    noise: Noise,
    change: float,
    baseline_trials: int | None,
    confidence: float = 0.95,
    power: float = 0.8,
    *,
    baseline_commits: int = 1,
) -> int | None:
    """Return the fewest trials of a commit that tell `change` from so many of its baseline.

    With `baseline_trials` None, the baseline has as many trials as the commit. None where no
    number of trials does: the baseline is the limit, or commits differ beyond their repeats.
    """

    def tells(trials: int) -> bool:
        before = trials if baseline_trials is None else baseline_trials
        fresh = (trials - 1) * (2 if baseline_trials is None else 1)
        richer = replace(noise, dof=noise.dof + fresh)
        return smallest_change(
            richer, trials, before, confidence, power, baseline_commits=baseline_commits
        ) <= abs(change)

    if not tells(MAX_TRIALS):
        return None
    low, high = 0, MAX_TRIALS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if tells(middle) else (middle, high)
    return high


def _finite(
    groups: Groups, seeds: Seeds | None
) -> tuple[list[NDArray[np.float64]], list[NDArray[np.int64]] | None]:
    values: list[NDArray[np.float64]] = []
    labels: list[NDArray[np.int64]] = []
    for i, group in enumerate(groups):
        array = np.asarray(group, dtype=float)
        keep = np.isfinite(array)
        if keep.any():
            values.append(array[keep])
            if seeds is not None:
                labels.append(np.asarray(seeds[i], dtype=np.int64)[keep])
    return values, labels if seeds is not None else None


def _repeats_exactly(
    groups: Sequence[NDArray[np.float64]], seeds: Sequence[NDArray[np.int64]] | None
) -> bool:
    """Same seed, same value. Repeats within a commit decide where there are any; otherwise
    most successive commits must agree with each other, three of them at least. And values hardly
    ever come back after others: that is how a noisy metric of few possible values looks."""
    within: list[bool] = []
    across: list[bool] = []
    before: dict[int, float] = {}
    seen: set[tuple[int, float]] = set()
    returned = 0
    for i, group in enumerate(groups):
        labels = seeds[i].tolist() if seeds is not None else [0] * len(group)
        own: dict[int, float] = {}
        for label, value in zip(labels, group.tolist(), strict=True):
            if label in own:
                within.append(own[label] == value)
            own.setdefault(label, value)
        across += [before[s] == own[s] for s in before.keys() & own.keys()]
        returned += sum(before.get(s) != v and (s, v) in seen for s, v in own.items())
        seen |= own.items()
        before = own
    if returned > len(across) / 20:
        return False
    repeated = [g for g in groups if g.size > 1]
    if seeds is not None and repeated and all(_fine(g[0]) and np.all(g == g[0]) for g in repeated):
        return True  # no seed has a say in it
    if within:
        # Without seeds two equal values may be those of two seeds, on a metric of few values.
        return all(within) and len(within) >= (2 if seeds is None else 1)
    return sum(across) >= 3 and sum(across) > len(across) / 2


def _fine(value: float) -> bool:
    """Too many digits for different draws of the noise to agree by chance."""
    return float(f"{value:.{COARSE}g}") != value


def _deterministic(
    groups: list[NDArray[np.float64]], seeds: list[NDArray[np.int64]] | None, n: int
) -> Noise:
    """What a deterministic metric varies by when its numbers are drawn anew: its spread over
    seeds, or over commits where those have drawn anew often, or most of the time."""
    runs, _ = collapse(groups, seeds)
    within, dof, kept = _within(runs)
    if dof > 0:
        return Noise(within, dof if within > 0 else math.inf, True, n, 0.0, len(runs) - len(kept))
    means = np.array([g.mean() for g in runs])
    often = means.size >= 3 and 2 * (means.size - 1) > len(groups) - 1
    if often or means.size >= RUNS_FOR_NOISE:
        return Noise(of_differences(np.diff(means)), TRIMMED_DOF * (means.size - 1), True, n)
    return Noise(0.0, math.inf, True, n)


def _within(
    groups: list[NDArray[np.float64]],
) -> tuple[float, float, list[NDArray[np.float64]]]:
    """(sd, degrees of freedom, commits that are no outliers) from the repeats within commits."""
    dof = np.array([g.size - 1 for g in groups], dtype=float)
    if not dof.any():
        return math.nan, 0.0, groups
    squares = np.array([_squares(g) for g in groups])
    keep = np.ones(dof.size, dtype=bool)
    repeated = dof > 0
    if repeated.sum() >= 4:  # with fewer commits nothing says which of them is the odd one
        typical = np.median(squares[repeated] / chdtri(dof[repeated], 0.5))
        limit = np.where(repeated, chdtri(np.maximum(dof, 1), REJECTED_ABOVE / dof.size), np.inf)
        for _ in range(10):
            kept = squares <= limit * typical if typical > 0 else keep
            if (kept == keep).all():
                break
            keep = kept
            typical = squares[keep].sum() / dof[keep].sum()
    variance = squares[keep].sum() / dof[keep].sum()
    return math.sqrt(variance), float(dof[keep].sum()), [groups[i] for i in np.flatnonzero(keep)]


def _squares(values: NDArray[np.float64]) -> float:
    """Sum of squares around the mean. From the first value on, because the mean of equal values
    may differ from them in the last bit, and then an exact metric would have a noise."""
    rest = values - values[0]
    return float(((rest - rest.mean()) ** 2).sum())


def _between(
    groups: Sequence[NDArray[np.float64]], within: float, dof: float
) -> tuple[float, float]:
    """(sd of commits beyond their repeats, degrees of freedom of the whole). 0 unless the
    neighbours differ by clearly more than their repeats explain (F test)."""
    if len(groups) < 5 or within == 0:
        return 0.0, dof
    means = np.array([g.mean() for g in groups])
    of_repeats = within**2 * float(np.mean([1 / g.size for g in groups]))
    steps = np.diff(means)
    # Less their middle: a slow drift is what the pinned baseline is for, not noise to hide it.
    of_commits = of_differences(steps - np.median(steps)) ** 2
    commits_dof = TRIMMED_DOF * (means.size - 1)
    if fdtrc(commits_dof, dof, of_commits / of_repeats) > BETWEEN_ABOVE:
        return 0.0, dof
    return math.sqrt(of_commits - of_repeats), min(dof, commits_dof)
