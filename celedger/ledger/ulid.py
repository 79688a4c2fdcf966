"""ULIDs: 26 letters and digits that sort by time, so that two ledgers merge by union.

Lives here: making and reading them (https://github.com/ulid/spec). It must not know what is named
by one.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32
_ULID = re.compile(f"[0-7][{_ALPHABET}]{{25}}")
_LAST_MILLISECOND = (1 << 48) - 1  # in the year 10889

_last = 0, 0  # of a process (its id), as a number


def new(now: float, random: Random) -> str:
    """Return a ULID for `now` (seconds since the epoch). Within one process and millisecond each
    is larger than the one before, as the specification asks."""
    global _last
    process, number = os.getpid(), _last[1]
    millisecond = _millisecond(now)
    # One that was forked would go on as its siblings do.
    same = _last[0] == process and number >> 80 == millisecond
    number = number + 1 if same else millisecond << 80 | random.getrandbits(80)
    _last = process, number
    return _digits(number, 26)


def second(ulid: str) -> str:
    """Return the name of a trial's second record, always the same one."""
    return ulid[:10] + _hashed(ulid)


def named(now: float, text: str) -> str:
    """Return the ULID for `now` that this text always has."""
    return _digits(_millisecond(now), 10) + _hashed(text)


def _millisecond(now: float) -> int:
    return min(max(int(now * 1000), 0), _LAST_MILLISECOND)


def _hashed(text: str) -> str:
    return _digits(int.from_bytes(hashlib.sha256(text.encode()).digest()[:10]), 16)


def _digits(number: int, count: int) -> str:
    return "".join(_ALPHABET[number >> shift & 31] for shift in range(5 * count - 5, -1, -5))


def is_valid(ulid: object) -> bool:
    """Return True for what `new` can have made."""
    return isinstance(ulid, str) and _ULID.fullmatch(ulid) is not None
