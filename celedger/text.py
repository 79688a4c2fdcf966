"""What strangers wrote (subjects, names, messages), made safe to store and to show."""

from __future__ import annotations

import unicodedata

# Marks and overrides that turn the direction of a text around (Unicode UAX #9).
_BIDIRECTIONAL = frozenset(map(chr, (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F),
                                     *range(0x2066, 0x206A))))  # fmt: skip


def escaped(text: str) -> str:
    """A stranger's text with what a terminal would obey written out: `\\x1b`, `\\u202e`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c.encode("unicode_escape").decode()
        if c in _BIDIRECTIONAL or unicodedata.category(c) in ("Cc", "Zl", "Zp")
        else c
        for c in text
    )
