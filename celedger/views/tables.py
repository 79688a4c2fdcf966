"""Columns of text, aligned by hand. What lives here knows widths, not what the cells mean."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from celedger.views.format import cells, clip

GAP = 2  # columns between two columns
_LEAST = 8  # a column that may shrink keeps this many
_READABLE = 16  # one that wraps keeps this many


@dataclass(frozen=True)
class Column:
    """`right` aligns numbers. Where the table is too wide, `shrink` lets the column be cut, and
    `wrap`, which only the last may have, continues its text on the next line."""

    head: str = ""
    right: bool = False
    shrink: bool = False
    wrap: bool = False


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    width: int = 100,
    indent: int = 0,
) -> str:
    """The rows as aligned lines, with a line of heads when any column has one. Columns without
    a single entry are left out. Where the table is wider than `width`, columns that may shrink
    are cut, the widest first; the last one is never padded, so lines have no trailing blanks."""
    used = [i for i, _ in enumerate(columns) if any(row[i] for row in rows)]
    if not used:
        return ""
    heads = [columns[i].head for i in used]
    lines = [[row[i] for i in used] for row in rows]
    if any(heads):
        lines.insert(0, heads)
    widths = [max(cells(line[i]) for line in lines) for i in range(len(used))]
    if columns[used[-1]].wrap:
        room = max(_READABLE, width - indent - sum(widths[:-1]) - GAP * (len(used) - 1))
        lines = [part for line in lines for part in _wrapped(line, room)]
        widths[-1] = min(widths[-1], room)
    excess = indent + sum(widths) + GAP * (len(used) - 1) - width
    while excess > 0:
        widest = max(
            (i for i, at in enumerate(used) if columns[at].shrink and widths[i] > _LEAST),
            key=lambda i: widths[i],
            default=None,
        )
        if widest is None:
            break  # Numbers are never cut: a long line is better than a wrong one.
        widths[widest] -= 1
        excess -= 1
    return "\n".join(
        (" " * indent + _line(line, widths, [columns[i].right for i in used])).rstrip()
        for line in lines
    )


def _wrapped(line: Sequence[str], room: int) -> list[list[str]]:
    """Return the line, and those on which its last cell goes on. A number stays with its unit."""
    joined = re.sub(r"(?<=\d) (?=[^\W\d]|%)", "\0", line[-1])
    parts = textwrap.wrap(joined, room, break_long_words=False) or [""]
    before = [list(line[:-1]), *([""] * (len(line) - 1) for _ in parts[1:])]
    return [[*row, part.replace("\0", " ")] for row, part in zip(before, parts, strict=True)]


def _line(line: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    shown = []
    for text, room, flush in zip(line, widths, right, strict=True):
        cut = clip(text, room)
        blank = " " * (room - cells(cut))
        shown.append(blank + cut if flush else cut + blank)
    return (" " * GAP).join(shown)
