"""The types of the arrays that statistics take and return, and runs of equal items in them."""

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
