"""Text of strangers (subjects, names, messages, files), made safe to store and to show. How a
probability, a share and a relative change are written."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence

# Colours, cursor movements (CSI), window titles (OSC) and two-character sequences (ECMA-48).
_SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
# Controls, formats (among them what turns text around: UAX #9), separators, unassigned ones.
_UNSEEN = frozenset({"Cc", "Cf", "Cn", "Co", "Zl", "Zp"})
MULTIPLE = 10.0
"""A change beyond ten times the level is a multiple: "× 28" can be read, "+2700 %" cannot."""
_NOTHING = 1e-3  # of the level after: one before that is smaller says nothing about the size
_JOINERS = "\u200c\u200d"  # of letters in Persian, of parts in an emoji


def plain(text: str) -> str:
    """Return one line without terminal sequences, and with what is left to obey written out."""
    return escaped(" ".join(without_sequences(text).split()))


def without_sequences(text: str) -> str:
    """Return the text without colours and what else a terminal takes for a command."""
    return _SEQUENCES.sub("", text)


def escaped(text: str) -> str:
    """Return the text with what a terminal obeys, or does not show, written out: `\\x1b`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c.encode("unicode_escape").decode()
        if unicodedata.category(c) in _UNSEEN and c not in _JOINERS
        else c
        for c in text
    )


def some(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """Return the first names and how many more there are: `a, b, c and 4 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def probability(p: float) -> str:
    """`97 %`, `< 1 %`, `> 99 %`: nothing that was estimated is certain."""
    if p != p:
        return "nan"
    if p >= 0.995:
        return "> 99 %"
    return f"{p * 100:.0f} %" if p >= 0.01 else "< 1 %"


def whole_percent(share: float) -> str:
    """Return `97 %` for 0.968."""
    return f"{share * 100:.0f} %"


def not_finite(value: float) -> str:
    """Return `nan`, `inf` or `-inf`: the spelling used in text and in a document's `not_finite`."""
    if math.isnan(value):
        return "nan"
    return "inf" if value > 0 else "-inf"


def percent(share: float) -> str:
    """Return `8.1 %` for 0.081, `× 12` for 12: three digits below 1 %, never more than needed
    above."""
    if not math.isfinite(share):
        return not_finite(share)
    if abs(share) > MULTIPLE:
        return _multiple(share)
    value = share * 100.0
    size = abs(value)
    decimal_places = 0 if size >= 99.5 else 1 if size >= 0.95 else 2
    text = f"{value:.{decimal_places}f}"
    return "0 %" if float(text) == 0.0 else f"{text} %"


def relative(change: float, before: float) -> str:
    """Return a change over the level before: `+3.0 %`, or `× 12`, the level after over it; ""
    where that level is next to nothing, or that multiple would be negative."""
    if abs(before) <= _NOTHING * abs(change):
        return ""
    ratio = change / abs(before)
    if MULTIPLE < abs(ratio) < math.inf:
        factor = 1 + change / before
        return _multiple(factor) if factor > 0 else ""
    text = percent(ratio)
    return f"+{text}" if ratio > 0 and text != "0 %" else text


def _multiple(factor: float) -> str:
    return f"× {factor:{'.0f' if 100 <= abs(factor) < 1e6 else '.3g'}}".replace("e+", "e")
