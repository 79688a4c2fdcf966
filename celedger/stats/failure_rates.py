"""How well two rates of failure, of good and of bad commits, explain readings of 0 and 1, for every
way to split them.

A crash is mostly sure and a sound commit mostly never crashes, but either may be flaky: the priors
are mixtures of beta distributions, cut to good < bad (docs/statistics.md, "Bisects")."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np

from celedger.stats.arrays import Bools, Floats
from celedger.stats.levels import Fit
from celedger.stats.likelihood import NoiseKind, Sites
from celedger.stats.tails import beta_cumulative

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
