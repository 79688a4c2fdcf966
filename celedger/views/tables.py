"""Align columns of text. This module knows widths, not the meaning of cells."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from celedger.views.format import clip

GAP = 2  # columns between two columns
_LEAST = 8  # a column that may shrink keeps this many
_NO_BREAK = "\u00a0"
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
    without an entry are left out. Where the others do not fit, the last ones follow each row with
    their heads: a number is never cut."""
    used = [i for i, _ in enumerate(columns) if any(row[i] for row in rows)]
    if not used:
        return ""
    columns = [columns[i] for i in used]
    lines = [[row[i] for i in used] for row in rows]
    if any(column.head for column in columns):
        lines.insert(0, [column.head for column in columns])
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    room = width - indent - GAP * (len(used) - 1)
    least = [min(w, _LEAST) if c.shrink else w for c, w in zip(columns, widths, strict=True)]
    if columns[-1].wrap:
        least[-1] = min(widths[-1], _READABLE)
    if sum(least) > room and len(columns) > 1:
        return _folded(columns, lines, widths, width, indent)
    if columns[-1].wrap:
        widths[-1] = min(widths[-1], max(_READABLE, room - sum(widths[:-1])))
        lines = [part for line in lines for part in _wrapped(line, widths[-1])]
    while sum(widths) > room:
        shrinking = [i for i, c in enumerate(columns) if c.shrink and widths[i] > _LEAST]
        if not shrinking:
            break
        widths[max(shrinking, key=widths.__getitem__)] -= 1
    return "\n".join(_aligned(columns, line, widths, indent) for line in lines)


def _aligned(
    columns: Sequence[Column], line: Sequence[str], widths: Sequence[int], indent: int
) -> str:
    aligned = []
    for text, size, column in zip(line, widths, columns, strict=False):
        cell = clip(text, size) if column.shrink else text
        aligned.append(cell.rjust(size) if column.right else cell.ljust(size))
    return (" " * indent + (" " * GAP).join(aligned)).rstrip()


def _folded(
    columns: Sequence[Column],
    lines: Sequence[Sequence[str]],
    widths: Sequence[int],
    width: int,
    indent: int,
) -> str:
    """Return the columns that fit as a table, and below each row the others with their heads."""
    number = 1
    while sum(widths[: number + 1]) + GAP * number + indent <= width:
        number += 1
    has_heads = any(column.head for column in columns)
    text = []
    for position, line in enumerate(lines):
        text.append(_aligned(columns[:number], line, widths, indent))
        if position or not has_heads:
            rest = zip(columns[number:], line[number:], strict=True)
            parts = ", ".join(_kept(column, cell) for column, cell in rest if cell)
            below = wrap(" " * (indent + 4) + parts, width, indent + 4)
            text += [line.replace(_NO_BREAK, " ") for line in below]
    return "\n".join(text)


def _kept(column: Column, cell: str) -> str:
    """Keep head, number and unit in one line; a text may be wrapped."""
    text = f"{column.head} {cell}".strip()
    return text if column.shrink or column.wrap else text.replace(" ", _NO_BREAK)


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
