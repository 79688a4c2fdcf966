"""How much a metric varies when nothing changed, as far as stored repeats of the same code tell it
to a bisect. Differences between commits never enter. Knows values only: no ledger, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from celedger.stats.tails import chi_square_quantile

Trials = Sequence[tuple[int, float]]
"""Seed and value of each trial of one commit."""

REJECTED_ABOVE = 1e-3
"""A commit's repeats are left out as outliers when their spread has at most this probability,
divided by the number of commits, under the usual noise."""
FEWEST_COMMITS = 4
"""With fewer nothing says which commit is the odd one."""
COARSE = 6
"""Significant digits that a share of a few hundred samples may have."""


@dataclass(frozen=True)
class NoisePrior:
    """What is known of one trial's sd beside the readings of the range; `dof` 0 means nothing, sd 0
    that a value does not depend on the seed."""

    sd: float
    dof: float


def pool(commits: Sequence[Trials]) -> NoisePrior | None:
    """Return the noise of the repeats within commits; None where there are none, or too coarse
    values to tell that a metric is exact. A seed's value that comes again, at the same or another
    commit, is the same draw of the noise."""
    seen: set[tuple[int, float]] = set()
    groups, repeats = [], 0
    for trials in commits:
        own = {(seed, y) for seed, y in trials if math.isfinite(y)}
        repeats += max(len(own) - 1, 0)
        new = own - seen
        seen |= new
        if len(new) > 1:
            groups.append(np.array([y for _, y in sorted(new)]))
    if not groups:
        return None
    dof = np.array([len(group) - 1.0 for group in groups])
    # The mean of equal values may differ from them in the last bit.
    squares = np.array([((group - group[0]).var() * len(group)) for group in groups])
    if not squares.any():
        is_exact = all(fine(group[0]) for group in groups)
        return NoisePrior(0.0, float(repeats)) if is_exact else None
    if len(groups) >= FEWEST_COMMITS:
        half = np.array([chi_square_quantile(0.5, own) for own in dof.tolist()])
        limit = [chi_square_quantile(REJECTED_ABOVE / len(groups), own) for own in dof.tolist()]
        usual = np.median(squares / half)
        if usual > 0:
            keep = squares <= np.array(limit) * usual
            squares, dof = squares[keep], dof[keep]
    return NoisePrior(math.sqrt(squares.sum() / dof.sum()), float(dof.sum()))


def fine(value: float) -> bool:
    """Return True if different draws of the noise hardly ever agree in so many digits."""
    return float(f"{value:.{COARSE}g}") != value
