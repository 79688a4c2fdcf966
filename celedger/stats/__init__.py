"""Pure statistics: arrays in, frozen dataclasses out. No clock, no file, no process, no randomness.

The state of a line: `course` (its nouns), `history` (noise, levels and steps of a metric),
`incidents` (what is open, since which commit, whether it is over), `next_trial`. Bisect:
`two_sides` (is the bad end worse?), `lineage` (which commit a first bad commit makes bad),
`likelihood` and `levels` (two unknown levels in unknown noise), `firstbad` (the posterior),
`worlds` and `equal_seeds` (what equal seeds say), `choice` (what to measure next).

Here are the types of the arrays that statistics take and return, and runs of equal items in them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


def begins_run(*columns: NDArray[Any]) -> Bools:
    """Return True for each item that differs from the one before in some column."""
    result = np.ones(len(columns[0]), dtype=bool)
    result[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return result
