"""Series per step: how they are packed into blobs, written and read.

Lives here: the layout that docs/ledger.md publishes. A row holds successive values of one epoch as
IEEE 754 numbers, little-endian, without a header: `numpy.frombuffer(series, f"<f{width}")`. It must
not know what a series means.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence

from celedger.ledger.store import Store
from celedger.model import EpochReport

_CODES = {4: "f", 8: "d"}  # bytes a value -> what `array` calls it


def pack(values: Sequence[float]) -> tuple[int, bytes]:
    """(bytes a value, blob). In single precision where that loses nothing, as what torch
    computes in float32 is; in double otherwise. Lossless, NaN and infinities included."""
    for width, code in _CODES.items():
        packed = array(code, values)  # beyond float32: infinity
        if width == 8 or all(a == b or a != a for a, b in zip(packed, values, strict=True)):
            break
    if sys.byteorder == "big":
        packed.byteswap()
    return width, packed.tobytes()


def unpack(width: int, series: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(series) // width}{_CODES[width]}", series)


class StepReader(Store):
    def steps(self, ulid: str, metric: str | None = None) -> dict[str, dict[int, list[float]]]:
        """Metric -> epoch -> its values, one a step. Values that never came (a lost line between
        two others) are NaN. Empty for a trial that reported no series per step."""
        found: dict[str, dict[int, list[float]]] = {}
        for name, epoch, first, width, series in self._rows(
            "SELECT m.name, s.epoch, s.first, s.width, s.series FROM steps s "
            "JOIN trials r ON r.id = s.trial JOIN metrics m ON m.id = s.metric "
            "WHERE r.ulid = ? AND (? IS NULL OR m.name = ?) ORDER BY s.epoch, s.metric, s.first",
            (ulid, metric, metric),
        ):
            values = found.setdefault(name, {}).setdefault(epoch, [])
            values += [float("nan")] * (first - len(values))
            values += unpack(width, series)
        return found


def rows(
    trial: int, reports: Iterable[EpochReport], ids: dict[str, int]
) -> list[tuple[int, int, int, int, int, bytes]]:
    """What to insert of reports: (trial, epoch, metric, first, width, series)."""
    return [
        (trial, report.epoch, ids[name], part.first, *pack(part.values))
        for report in reports
        for name, part in report.steps.items()
    ]
