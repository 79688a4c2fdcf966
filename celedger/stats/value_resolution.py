"""How fine the values of a metric are: counts and shares of a small data set are coarse."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from celedger.stats.arrays import Floats

DIGITS = 6
"""Significant digits that a rounded value, or a share of a data set, may have."""
MOST_SAMPLES = 20_000
"""Size of a data set up to which a share of it is recognised."""
TIES = 0.75
"""With fewer distinct values than this share of the draws, the smallest gap is their resolution."""


def resolution(nodes: Sequence[Mapping[int, tuple[float, int]]]) -> float:
    """Return the distance of possible values; 0 where they are as fine as floating point.

    Where values are coarse (counts, shares of a small data set), two seeds move alike by chance.

    Args:
        nodes: Value of each seed at each node.
    """
    distinct = np.unique([value for node in nodes for value, _ in node.values()])
    if written := written_resolution(distinct):
        return written
    seen: set[tuple[int, float]] = set()
    drawn = 0  # a seed that returns to a value is no new draw, nor are seeds of no effect
    for node in nodes:
        new = {(seed, value) for seed, (value, _) in node.items()} - seen
        drawn += len({value for _, value in new})
        seen |= new
    tied = 1 < len(distinct) <= TIES * drawn
    return float(np.diff(distinct).min()) if tied else 0.0


def written_resolution(distinct: Floats) -> float:
    """Return the distance of possible values that the digits of some tell, or a small data set of
    which they are shares; 0 where neither does."""
    with np.errstate(over="ignore"):
        is_single = bool(np.all(distinct == distinct.astype(np.float32)))
    some = distinct[:: max(1, len(distinct) // 8)].tolist()
    digits = [np.format_float_positional(np.float32(y) if is_single else y) for y in some]
    if max(len(text.replace(".", "").strip("-0")) for text in digits) <= DIGITS:
        return float(10.0 ** -max(len(text.partition(".")[2]) for text in digits))
    shares = [Fraction(y).limit_denominator(MOST_SAMPLES) for y in some]
    tolerance = 1e-7 if is_single else 1e-12
    if all(abs(float(s) - y) <= tolerance * abs(y) for s, y in zip(shares, some, strict=True)):
        samples = math.lcm(*(share.denominator for share in shares))
        if samples <= MOST_SAMPLES:
            return 1 / samples
    return 0.0
