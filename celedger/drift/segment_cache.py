"""What drift derived of long histories, cached from one answer to the next in a file that may be
deleted at any time. An item's name is a hash of all that it was derived from and of the rules'
version, so that a stale one is never read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from itertools import chain, groupby, repeat, starmap
from pathlib import Path
from typing import Any

from celedger.stats.long_history import ChangePoint, Settled
from celedger.stats.segments import Loss
from celedger.system import cache_file

MOST = 1000
"""Items that stay beyond those of the last answer: of other ranges, and of the last hundredth
commit."""


class SegmentCache(dict[str, Settled]):
    """Items by name; records which of them were asked for."""

    def __init__(self, items: dict[str, Settled]) -> None:
        super().__init__(items)
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> Settled:
        self.used.add(name)
        return super().__getitem__(name)


@contextmanager
def segment_cache(path: Path) -> Iterator[SegmentCache]:
    """Open the cache in a file; what is added inside is written to it, where it can be."""
    items = _unpacked(cache_file.read(path))
    cache = SegmentCache(items)
    yield cache
    if cache.keys() - items.keys():
        others = [name for name in cache if name not in cache.used][-MOST:]
        chosen = {name: cache[name] for name in (*others, *sorted(cache.used))}
        packed = {name: _packed(item) for name, item in chosen.items()}
        cache_file.write(path, json.dumps(packed).encode())


def _packed(item: Settled) -> dict[str, Any]:
    return {
        "points": [[p.index, p.probability, p.members] for p in item.points],
        "noise": [item.sd, item.rho, *astuple(item.loss)],
        "scale": [[value, len(list(run))] for value, run in groupby(item.scale)],
    }


def _unpacked(text: bytes) -> dict[str, Settled]:
    try:
        return {name: _settled(item) for name, item in json.loads(text or b"{}").items()}
    except (ValueError, TypeError, KeyError, AttributeError):  # another version's
        return {}


def _settled(item: dict[str, Any]) -> Settled:
    points = tuple(
        ChangePoint(index, probability, tuple(members))
        for index, probability, members in item["points"]
    )
    sd, rho, *loss = item["noise"]
    scale = tuple(chain.from_iterable(starmap(repeat, item["scale"])))
    return Settled(points, sd, Loss(*loss), rho, scale)
