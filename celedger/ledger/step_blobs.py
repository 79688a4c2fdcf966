"""Series per step: how they are packed into blobs.

Lives here: the layout that docs/ledger.md publishes. A row holds successive values of one epoch as
IEEE 754 numbers, little-endian, without a header: `numpy.frombuffer(series, f"<f{width}")`. It must
not know what a series means.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence

_CODES = {4: "f", 8: "d"}  # bytes a value -> what `array` calls it


def pack(values: Sequence[float]) -> tuple[int, bytes]:
    """Return (bytes a value, blob). In single precision where that loses nothing, as what torch
    computes in float32 is; in double otherwise. Lossless, NaN and infinities included."""
    for width, code in _CODES.items():
        packed = array(code, values)  # beyond float32: infinity
        if width == 8 or all(a == b or a != a for a, b in zip(packed, values, strict=True)):
            break
    if sys.byteorder == "big":
        packed.byteswap()
    return width, packed.tobytes()


def unpack(width: int, series: bytes) -> tuple[float, ...]:
    """Return the values of a blob."""
    return struct.unpack(f"<{len(series) // width}{_CODES[width]}", series)
