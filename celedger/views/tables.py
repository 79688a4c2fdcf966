"""Align columns of text. This module knows widths, not the meaning of cells."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from celedger.views.format import clip

GAP = 2  # columns between two columns
_LEAST = 8  # a column that may shrink keeps this many
_READABLE = 16  # a column that wraps keeps this many


@dataclass(frozen=True)
class Column:
    """One column. `right` aligns numbers. If the table is too wide, `shrink` lets the column be
    cut, and `wrap`, allowed only for the last, continues its text on the next line."""

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
    """Return the rows as aligned lines, under a line of heads when any column has one. Columns
    without an entry are left out. Numbers are never cut: a long line is better than a wrong one."""
    used = [i for i, _ in enumerate(columns) if any(row[i] for row in rows)]
    if not used:
        return ""
    columns = [columns[i] for i in used]
    lines = [[row[i] for i in used] for row in rows]
    if any(column.head for column in columns):
        lines.insert(0, [column.head for column in columns])
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    room = width - indent - GAP * (len(used) - 1)
    if columns[-1].wrap:
        widths[-1] = min(widths[-1], max(_READABLE, room - sum(widths[:-1])))
        lines = [part for line in lines for part in _wrapped(line, widths[-1])]
    while sum(widths) > room:
        shrinking = [i for i, c in enumerate(columns) if c.shrink and widths[i] > _LEAST]
        if not shrinking:
            break
        widths[max(shrinking, key=widths.__getitem__)] -= 1
    aligned_lines = []
    for line in lines:
        aligned = []
        for text, size, column in zip(line, widths, columns, strict=True):
            cell = clip(text, size) if column.shrink else text
            aligned.append(cell.rjust(size) if column.right else cell.ljust(size))
        aligned_lines.append((" " * indent + (" " * GAP).join(aligned)).rstrip())
    return "\n".join(aligned_lines)


def wrap(text: str, width: int, indent: int = 0) -> list[str]:
    """Return a text in lines of this width, those after the first indented. A word is never cut."""
    return textwrap.wrap(
        text, max(_READABLE, width), subsequent_indent=" " * indent, drop_whitespace=True,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _wrapped(line: Sequence[str], room: int) -> list[list[str]]:
    """Return the line, and those on which its last cell goes on."""
    first, *more = textwrap.wrap(
        line[-1], room, break_long_words=False, break_on_hyphens=False
    ) or [""]
    return [[*line[:-1], first], *([""] * (len(line) - 1) + [part] for part in more)]
