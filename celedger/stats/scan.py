"""Change points of a short history (fewer than 25 commits): the largest two-sample t over all
commit boundaries, against limits simulated for exactly that many commits and trials. Knows no
grid, no ledger; every number it needs comes in as an array.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from celedger.stats.tails import t_tail

Floats = NDArray[np.float64]

LEVEL = 0.003
"""Share of histories without a change in which the scan sees one. A young history is looked at
anew with every commit, in every metric: one in a hundred would be one a week."""
SIMULATED = 20_000


def strongest_split(
    sums: Floats, squares: Floats, counts: NDArray[np.int64]
) -> tuple[int, float, Floats]:
    """(commits before the split, |t| there, log-likelihood of each split) of a history given as
    the sum, sum of squares and number of its values by commit. Values are to be centred by the
    caller. A side needs two values at least. (0, 0, empty) when there is no such split."""
    n = np.cumsum(counts)
    total = int(n[-1])
    inner = np.flatnonzero((n >= 2) & (total - n >= 2))
    if inner.size == 0 or total < 4:
        return 0, 0.0, np.empty(0)
    gain, within = _gain(np.cumsum(sums), n, float(squares.sum()), inner)
    t = np.sqrt(np.maximum(gain, 0) * (total - 2) / np.maximum(within, 1e-300))
    logs = np.full(counts.size, -np.inf)
    logs[inner + 1] = -(total - 2) / 2 * np.log(np.maximum(within, 1e-300))
    best = int(np.argmax(t))
    return int(inner[best]) + 1, float(t[best]), logs


def _gain(
    cumulated: Floats, n: NDArray[np.int64], squares: float, inner: NDArray[np.int64]
) -> tuple[Floats, Floats]:
    total, all_ = int(n[-1]), float(cumulated[-1])
    a, left = n[inner], cumulated[inner]
    gain = left**2 / a + (all_ - left) ** 2 / (total - a) - all_**2 / total
    return gain, squares - all_**2 / total - gain


@lru_cache(maxsize=512)
def limit(commits: int, trials: int) -> float:
    """The |t| that the strongest split of `commits` commits with `trials` values each exceeds in
    LEVEL of the histories without a change (normal noise, simulated once per process, always
    with the same seed)."""
    random = np.random.default_rng([commits, trials])
    rounds = SIMULATED
    x = random.standard_normal((rounds, commits * trials))
    squares = (x**2).sum(axis=1)
    sums = np.cumsum(x.reshape(rounds, commits, trials).sum(axis=2), axis=1)
    total = commits * trials
    a = np.arange(1, commits) * trials
    keep = (a >= 2) & (total - a >= 2)
    if not keep.any():
        return math.inf
    left, all_ = sums[:, :-1][:, keep], sums[:, -1:]
    gain = left**2 / a[keep] + (all_ - left) ** 2 / (total - a[keep]) - all_**2 / total
    within = squares[:, None] - all_**2 / total - gain
    t2 = (gain / np.maximum(within, 1e-300)).max(axis=1) * (total - 2)
    return float(np.sqrt(np.quantile(t2, 1 - LEVEL)))


def p_value(t: float, commits: int, trials: int) -> float:
    """At most the probability of so strong a split without a change (Bonferroni over splits)."""
    return min(1.0, (commits - 1) * 2 * t_tail(t, commits * trials - 2))


def probability(p: float) -> float:
    """Of a change, from a p-value: the bound of Sellke, Bayarri and Berger (2001) on the Bayes
    factor, -e p log p, at even odds before."""
    if p <= 0:
        return 1.0
    if p >= 1 / math.e:
        return 0.5
    factor = -math.e * p * math.log(p)
    return 1 / (1 + factor)
