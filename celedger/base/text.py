"""What strangers wrote (subjects, names, messages, files), made safe to store and to show. How a
probability is written."""

from __future__ import annotations

import re
import unicodedata

# Colours, cursor movements (CSI), window titles (OSC) and two-character sequences (ECMA-48).
_SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]")
# Controls, formats (among them what turns text around: UAX #9), separators, unassigned ones.
_UNSEEN = frozenset({"Cc", "Cf", "Cn", "Co", "Zl", "Zp"})
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


def probability(p: float) -> str:
    """`97 %`, `< 1 %`, `> 99 %`: nothing that was estimated is certain."""
    if p != p:
        return "nan"
    if p >= 0.995:
        return "> 99 %"
    return f"{p * 100:.0f} %" if p >= 0.01 else "< 1 %"
