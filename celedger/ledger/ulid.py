"""ULIDs: 26 letters and digits that sort by time, so that two ledgers merge by union.

Lives here: making and checking them (https://github.com/ulid/spec). It must not know what is
named by one.
"""

from __future__ import annotations

import re
import threading
from random import Random

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford's base 32
_RANDOM_BITS = 80
_LAST_MILLISECOND = (1 << 48) - 1  # in the year 10889
_VALID = re.compile(r"^[0-7][0-9A-HJKMNP-TV-Z]{25}$")

_lock = threading.Lock()
_last: tuple[int, int] = (-1, 0)  # millisecond and random part of this process's latest ULID


def new(now: float, random: Random) -> str:
    """A ULID for `now` (seconds since the epoch). Within one process and millisecond each is
    larger than the one before, as the specification asks."""
    global _last
    millisecond = min(max(int(now * 1000), 0), _LAST_MILLISECOND)
    with _lock:
        last_millisecond, last_random = _last
        if millisecond == last_millisecond:
            entropy = (last_random + 1) % (1 << _RANDOM_BITS)
        else:
            entropy = random.getrandbits(_RANDOM_BITS)
        _last = (millisecond, entropy)
    return _encode(millisecond << _RANDOM_BITS | entropy)


def time(ulid: str) -> float:
    """When it was made, in seconds since the epoch. Raises ValueError for what is no ULID."""
    if not is_valid(ulid):
        raise ValueError(f"{ulid!r} is no ULID")
    millisecond = 0
    for letter in ulid[:10]:
        millisecond = millisecond * 32 + _ALPHABET.index(letter)
    return millisecond / 1000


def is_valid(text: str) -> bool:
    return bool(_VALID.match(text))


def _encode(number: int) -> str:
    letters = []
    for _ in range(26):
        number, rest = divmod(number, 32)
        letters.append(_ALPHABET[rest])
    return "".join(reversed(letters))
