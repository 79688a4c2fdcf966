"""Evidence against "nothing changed", from numbers whose law is unknown or only roughly known:
rank-based e-values of HEAD and over time, the exact rank-sum test, and a t-test that one outlier
cannot decide. Larger is worse throughout: the caller orients. Knows nothing of metrics and floors.

An e-value E has mean <= 1 when nothing changed, so P(E >= 1/alpha) <= alpha whenever one chooses
to stop (Vovk & Wang 2021). Sequential ranks of exchangeable values are independent and uniform
whatever the law of the values (Rényi), which is what makes E free of assumptions on the noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from celedger.stats.tails import t_tail

STARTS = 30
"""Commits at which a change may have begun: the last 30."""
HISTORY = 400
"""Baseline values ranked against: the last 400."""
SHIFTS = np.array([0.25, 1.0, 4.0, 16.0])
"""Variances of the prior over the shift in normal scores: half a sd to four sd."""
ODDS = np.array([1.8, 3.2, 11.7, 426.0])
"""Odds that a value of HEAD exceeds one of its baseline: those of half a sd to four sd."""
LEAST_BEFORE = 10
"""Values that must lie before the first ranked one: ranks among fewer say nothing."""
CLIP = 2.0
"""Noise sds beyond the middle value at which a single value's pull on a mean ends."""
HEAVY_DOF = 3.0
"""The law of one value on its own: Student's t with 3 degrees of freedom at most, since nothing
but a second trial shows that it is no outlier."""
LONE_DOF = 1.0
"""The same for the only value of a baseline: no trial of HEAD shows that it is no outlier."""


@dataclass(frozen=True, slots=True)
class Shift:
    """Evidence of a shift that began within the last commits and lasts: the e-value, how many
    commits ago it most likely began (0: HEAD), and its sign (+1: values grew)."""

    e_value: float
    age: int
    sign: int


def rank_e_value(values: NDArray[np.float64], sizes: NDArray[np.int64], seed: int = 0) -> Shift:
    """Return the rank-based e-value of drift.md, section 5, over the values of all commits, oldest
    first and HEAD last, `sizes` of them a commit. The order within a commit must not depend on the
    values. `seed` breaks ties; a value's tie-breaker depends on its place only.

        E = sum_a w_a mean_g (1 + m_a g)^-1/2 exp(g S_a^2 / (2 (1 + m_a g))),  w_a ~ 1/(age + 1)

    with S_a and m_a the sum and number of the normal scores since commit a.
    """
    window = _window(tuple(sizes.tolist()))
    if window is None:
        return Shift(1.0, 0, 0)
    from scipy.special import ndtri  # not where few values are judged, by their t

    tail, past = values[window.start :, None], values[None, window.skip :]
    below = np.count_nonzero((past < tail) & window.earlier, axis=1)
    equal = np.count_nonzero((past == tail) & window.earlier, axis=1)
    ranks = (below + uniform(window.start, values.size, seed) * (equal + 1)) / window.ranked
    scores = ndtri(np.clip(ranks, 1e-9, 1 - 1e-9))
    by_commit = np.add.reduceat(scores, window.cuts)
    S = np.cumsum(by_commit[::-1])  # index = age of the start
    parts = np.exp(np.minimum(window.gain * (S**2)[:, None], 700)) * window.scale
    by_start = window.weights * parts.mean(axis=1)
    age = int(np.argmax(by_start))
    return Shift(float(by_start.sum()), age, 1 if S[age] > 0 else -1)


@dataclass(frozen=True, slots=True)
class _Window:
    """What `rank_e_value` needs of the numbers of values a commit: n values from `start` on are
    ranked among those from `skip` on (`earlier`: n x past; `ranked`: how many, with its own), and
    summed by the commits that begin at `cuts`. By age and shift: `gain` = g / (2 (1 + m g)) and
    `scale` = (1 + m g)^-1/2; by age: `weights`, of sum 1."""

    skip: int
    start: int
    earlier: NDArray[np.bool_]
    ranked: NDArray[np.int64]
    cuts: NDArray[np.int64]
    gain: NDArray[np.float64]
    scale: NDArray[np.float64]
    weights: NDArray[np.float64]


@lru_cache(maxsize=64)  # the metrics of a run mostly have one
def _window(counts: tuple[int, ...]) -> _Window | None:
    """None where too few values lie before any commit that could be ranked."""
    sizes = np.array(counts)
    ends = np.cumsum(sizes)
    total = int(ends[-1])
    skip = max(0, total - counts[-1] - HISTORY)
    first = max(sizes.size - STARTS, int(np.searchsorted(ends - sizes, skip + LEAST_BEFORE)))
    if first >= sizes.size:
        return None
    start = int(ends[first] - sizes[first])
    places = np.arange(start, total)
    m = np.cumsum(sizes[first:][::-1])
    spread = 1 + m[:, None] * SHIFTS
    weights = 1 / np.arange(1, m.size + 1)
    return _Window(
        skip=skip,
        start=start,
        earlier=np.arange(skip, total)[None, :] < places[:, None],
        ranked=places - skip + 1,
        cuts=ends[first:] - sizes[first:] - start,
        gain=SHIFTS / (2 * spread),
        scale=1 / np.sqrt(spread),
        weights=weights / weights.sum(),
    )


def rank_sum(values: NDArray[np.float64], baseline: NDArray[np.float64]) -> float:
    """Two-sided p-value of the exact rank-sum (Mann-Whitney) test, ties counted against it."""
    above = np.count_nonzero(values[:, None] > baseline[None, :])
    below = np.count_nonzero(values[:, None] < baseline[None, :])
    statistic = values.size * baseline.size - max(above, below)
    return min(1.0, 2 * float(_rank_sum_tail(values.size, baseline.size)[statistic]))


@lru_cache(maxsize=256)
def _rank_sum_tail(k: int, n: int) -> NDArray[np.float64]:
    """P(U <= u) for u = 0 … kn when all C(n + k, k) arrangements are alike: the coefficients of
    the q-binomial, product over i of (1 - q^(n+i)) / (1 - q^i). Counts below 2^53 are exact,
    and those are the tail that matters."""
    counts = np.zeros(k * n + 1)
    counts[0] = 1.0
    for i in range(1, k + 1):
        if n + i <= k * n:
            counts[n + i :] = counts[n + i :] - counts[: counts.size - n - i]
        for offset in range(i):
            counts[offset::i] = np.cumsum(counts[offset::i])
    # Far from the tail the differences round; a distribution is symmetric and grows to 1.
    tail = np.cumsum(counts) / math.comb(n + k, k)
    return np.minimum(1.0, np.maximum.accumulate(tail))


def robust_mean(values: NDArray[np.float64], sd: float, toward: float | None = None) -> float:
    """Return the mean, where a value's pull ends `CLIP` sds beyond the middle one. With an even
    number of values the middle is the one of the two nearer to `toward`: doubt favours no
    change."""
    if values.size == 1 or not math.isfinite(sd):
        return float(values.mean())
    ordered = np.sort(values)
    low, high = float(ordered[(values.size - 1) // 2]), float(ordered[values.size // 2])
    if low == high or toward is None:
        middle = (low + high) / 2
    else:
        middle = low if abs(low - toward) < abs(high - toward) else high
    return float(np.clip(values, middle - CLIP * sd, middle + CLIP * sd).mean())


def t_test(effect: float, error: float, dof: float) -> float:
    """Return the two-sided p-value of an effect with its standard error."""
    if error == 0:
        return 1.0 if effect == 0 else 0.0
    return min(1.0, 2 * t_tail(abs(effect) / error, min(dof, 1e6)))


def lehmann_e_value(
    values: NDArray[np.float64], baseline: NDArray[np.float64], seed: int = 0
) -> float:
    """Return the e-value of HEAD's ranks among its baseline: the ratio of their probabilities under
    the distributions F^odds and 1 - (1 - F)^odds, and under the baseline's own F, whatever F is
    (Savage & Sethuraman 1966). Valid at any number of trials; `seed` breaks ties."""
    every = np.concatenate((baseline, values))
    of_head = np.arange(every.size) >= baseline.size
    of_head = of_head[np.lexsort((uniform(0, every.size, seed), every))]
    below = np.cumsum([of_head, of_head[::-1]], axis=1)
    places = np.arange(1, every.size + 1)
    logs = values.size * np.log(ODDS)
    logs = logs - np.log1p((ODDS[:, None, None] - 1) * below / places).sum(axis=2).T
    return float(np.exp(np.minimum(logs, 700)).mean())


def e_bh(e_values: NDArray[np.float64], alpha: float) -> NDArray[np.bool_]:
    """Return which of M e-values are discoveries at false-discovery rate `alpha`, under any
    dependence: the r largest, for the largest r with E_(r) >= M / (alpha r) (Wang & Ramdas
    2022)."""
    order = np.sort(e_values)[::-1]
    enough = order * alpha * np.arange(1, order.size + 1) >= order.size
    if not enough.any():
        return np.zeros(e_values.shape, dtype=bool)
    discoveries: NDArray[np.bool_] = e_values >= order[np.flatnonzero(enough)[-1]]
    return discoveries


@lru_cache(maxsize=256)  # the metrics of a run ask for the same ones
def uniform(first: int, end: int, seed: int) -> NDArray[np.float64]:
    """Return a uniform number in (0, 1) for each of the places from `first` to before `end`:
    splitmix64 of place and seed. Read-only."""
    with np.errstate(over="ignore"):
        x = np.arange(first, end, dtype=np.uint64)
        x = x + np.uint64(seed % 2**64) * np.uint64(0xD1342543DE82EF95)
        x = (x + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    numbers = (x >> np.uint64(11)).astype(float) * 2.0**-53 + 2.0**-54
    numbers.flags.writeable = False
    return numbers
