"""A document, the plain structure of one answer, and how a number, a date, a hash or foreign text
is formatted for a person.

Each function turns one value into a few characters. It knows units and significance, not the
ledger, columns or pictures. Dates are UTC, so that the same ledger reads the same everywhere.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from celedger.base.text import MULTIPLE
from celedger.base.text import not_finite as not_finite
from celedger.base.text import percent as percent
from celedger.base.text import plain as plain
from celedger.base.text import probability as probability
from celedger.base.text import relative as relative

SCHEMA = 1

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


class Document:
    """The answer of a verb. A subclass is built once, from the ledger, and then printed. `SCHEMA`
    is the number of its JSON."""

    SCHEMA: int = SCHEMA

    def text(self, width: int = 100) -> str:
        """Return the text for a person, in lines of `width` columns if they can be cut. It may have
        colours, which `colourless` removes."""
        raise NotImplementedError

    def json(self) -> Mapping[str, object]:
        """Return the fields for a program, without the schema number."""
        raise NotImplementedError


class Listing(Document):
    """An answer of rows alone: their fields for a program, and what prints them in so many
    columns."""

    def __init__(
        self, fields: Mapping[str, object], printed: Callable[[int], str], schema: int = SCHEMA
    ) -> None:
        self._fields, self._printed, self.SCHEMA = fields, printed, schema

    def text(self, width: int = 100) -> str:
        return self._printed(width)

    def json(self) -> Mapping[str, object]:
        return self._fields


def pick(record: object, names: str) -> dict[str, object]:
    """Return the named attributes of a record, in this order."""
    return {name: getattr(record, name) for name in names.split()}


def strict(value: object) -> Json:
    """Return the value as JSON can hold it, except for numbers that are not finite. Raises
    TypeError for a value without a JSON form.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if hasattr(value, "json"):
        return strict(value.json())
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return strict(asdict(value))
    raise TypeError(f"no JSON for {type(value).__name__}")


def document(**content: object) -> dict[str, Json]:
    """Return an answer: the schema number first, then the content, which may have another."""
    return {"schema": SCHEMA, **{key: strict(item) for key, item in content.items()}}


def dumps(answer: Mapping[str, Json]) -> str:
    """Return the text that `--json` prints."""
    return json.dumps(finite(answer), indent=2, allow_nan=False, ensure_ascii=False)


def finite(answer: Mapping[str, Json]) -> dict[str, Json]:
    """Return the answer as JSON can hold it: its numbers that are not finite in a field of their
    own."""
    lost: dict[str, Json] = {}
    content = {key: _finite(item, f"/{_pointer(key)}", lost) for key, item in answer.items()}
    return {**content, "not_finite": lost} if lost else content


def _finite(value: Json, pointer: str, lost: dict[str, Json]) -> Json:
    """Return the value with `null` for each number that is not finite, and add those to `lost`."""
    if isinstance(value, float) and not math.isfinite(value):
        lost[pointer] = not_finite(value)
        return None
    if isinstance(value, dict):
        return {k: _finite(v, f"{pointer}/{_pointer(k)}", lost) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v, f"{pointer}/{i}", lost) for i, v in enumerate(value)]
    return value


def _pointer(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


PLUS_MINUS = "±"
NONE = "–"  # an absent value: never 0, never an empty cell

_SHORT = 8
_SYNONYMS = {"bytes": "B", "byte": "B", "seconds": "s"}
_SCALES = {
    "B": ((1024.0**4, "TiB"), (1024.0**3, "GiB"), (1024.0**2, "MiB"), (1024.0, "KiB")),
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
}


def short(sha: str) -> str:
    """Return the first characters of a hash."""
    return sha[:_SHORT]


def ordinal(number: int) -> str:
    """Return `1st`, `2nd`, `11th`."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if number % 100 in (11, 12, 13) else ending}"


def iso_date(time: float) -> str:
    """Return `2026-03-02`, UTC, of seconds since the epoch."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d")


def iso_time(time: float) -> str:
    """Return `2026-03-02 14:10`, UTC, of seconds since the epoch."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M")


def duration(seconds: float) -> str:
    """Return `840 ms`, `12.3 s`, `3 m 05 s` or `76 h 02 m`."""
    if not math.isfinite(seconds):
        return not_finite(seconds)
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 59.95:
        return measure(seconds, unit="s", significant=3)
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} m {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} m"


class UnitScale(NamedTuple):
    """The display of a stored value: `value / divisor`, in `unit`."""

    divisor: float = 1.0
    unit: str = ""

    @classmethod
    def of(cls, unit: str, magnitude: float) -> UnitScale:
        """Return the scale for values of this size: bytes as B … TiB, seconds as ns … s; every
        other unit as stored."""
        unit = _SYNONYMS.get(unit, unit)
        for divisor, name in _SCALES.get(unit, ()):
            if divisor <= abs(magnitude) < math.inf:
                return cls(divisor, name)
        return cls(1.0, unit)

    def show(self, value: float) -> float:
        return value / self.divisor


_MOST_DECIMALS = 9


def decimals(noise: float) -> int:
    """Return the decimals that leave two significant digits of the noise: more would be false
    precision."""
    if not math.isfinite(noise) or noise <= 0:
        return _MOST_DECIMALS
    exponent = math.floor(math.log10(noise))
    # 0.0996 rounds up to 0.10: its second digit moves one decimal to the left.
    if round(noise / 10.0 ** (exponent - 1)) >= 100:
        exponent += 1
    return max(0, min(_MOST_DECIMALS, 1 - exponent))


def number(value: float, noise: float = math.nan, *, significant: int = 4) -> str:
    """Return a value with as many digits as its noise justifies; without noise, `significant`
    digits."""
    if not math.isfinite(value):
        return not_finite(value)
    if value == 0:
        return "0"
    size = abs(value)
    if noise > 0 and math.isfinite(noise):
        if 1e-4 <= max(size, noise) < 1e9:
            return f"{value:z.{decimals(noise)}f}"  # z: no "-0"
        orders = math.floor(math.log10(size)) - math.floor(math.log10(noise))
        significant = max(2, min(orders + 2, 9))
    if size >= 1e9 or size < 1e-4:
        return f"{value:.{significant - 1}e}".replace("e+0", "e").replace("e-0", "e-")
    if value == round(value) and size < 1e7:
        return f"{value:.0f}"
    return f"{value:.{max(0, significant - 1 - math.floor(math.log10(size)))}f}"


def measure(
    value: float,
    noise: float = math.nan,
    *,
    unit: str = "",
    spread: bool = False,
    signed: bool = False,
    scale_of: float | None = None,
    significant: int = 4,
) -> str:
    """Return `0.4132`, `0.4132 ± 0.0021` (with `spread`), `312.4 ± 0.3 MiB` or `-3.1 ms` (signed:
    `+3.1`). `noise` decides the digits: a standard deviation in the value's own unit. `scale_of`
    is a value whose scale a change uses."""
    scale = UnitScale.of(unit, value if scale_of is None else scale_of)
    scaled, noise = scale.show(value), scale.show(noise)
    text = number(scaled, noise, significant=significant)
    if signed and scaled > 0:
        text = f"+{text}"
    if spread and math.isfinite(noise) and math.isfinite(value):
        text += f" {PLUS_MINUS} {number(noise, noise, significant=2)}"
    return f"{text} {scale.unit}" if scale.unit else text


def change(
    value: float,
    noise: float = math.nan,
    *,
    unit: str,
    scale_of: float,
    signed: bool = True,
    significant: int = 3,
) -> str:
    """Return a difference in the scale of its two values: `-0.38 s` of 12 s. Between two
    percentages it is in points, so that it is not read as relative."""
    text = measure(
        value, noise, unit=unit, scale_of=scale_of, signed=signed, significant=significant
    )
    return f"{text[:-1]}pp" if unit == "%" else text


def amount(size: float, before: float, *, unit: str) -> str:
    """Return a change over the level before, or in the metric's own unit: see `amounts`."""
    return amounts([size], before, unit=unit)[0]


def amounts(sizes: Sequence[float], before: float, *, unit: str) -> list[str]:
    """Return changes over the level before, all of them in the metric's unit where one has no
    multiple, or is one of bytes: a leak's is the noise of what was next to nothing before."""
    texts = [relative(size, before) for size in sizes]
    is_leak = unit == "B" and any(abs(size) > MULTIPLE * abs(before) for size in sizes)
    if all(texts) and not is_leak:
        return texts
    return [change(size, unit=unit, scale_of=before + size) for size in sizes]


def clip(text: str, width: int) -> str:
    """Return the text in at most `width` letters, its end replaced by `…` where it does not
    fit."""
    return text if len(text) <= width else text[: max(width, 1) - 1].rstrip() + "…"


def sure(probability: float) -> str:
    """Return a probability, never printed as a certainty."""
    return "> 99.9 %" if probability > 0.999 else f"{probability * 100:.1f} %"


def count(n: int, noun: str) -> str:
    """Return `1 trial` or `3 trials`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


# --- colour


RED, GREEN, YELLOW, CYAN = "31", "32", "33", "36"  # SGR parameters (ECMA-48)
_SGR = re.compile(r"\x1b\[[0-9;]*m")


def painted(text: str, colour: str) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if text and colour else text


def colourless(text: str) -> str:
    return _SGR.sub("", text)


# --- columns of text


GAP = 2  # columns between two columns
_NO_BREAK = "\u00a0"
_READABLE = 16  # a column that wraps keeps this many


class Column(NamedTuple):
    """One column. `right` aligns numbers. If the table is too wide, `shrink` lets the column be
    cut, and `wrap`, allowed only for the last, continues its text on the next line. `colour` gives
    the colour of a cell, "" for none."""

    head: str = ""
    right: bool = False
    shrink: bool = False
    wrap: bool = False
    colour: Callable[[str], str] = lambda _: ""
    least: int = 8  # a column that may shrink keeps this many


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
    least = [min(w, c.least) if c.shrink else w for c, w in zip(columns, widths, strict=True)]
    if columns[-1].wrap:
        least[-1] = min(widths[-1], _READABLE)
    if sum(least) > room and len(columns) > 1:
        return _folded(columns, lines, widths, width, indent)
    if columns[-1].wrap:
        widths[-1] = min(widths[-1], max(_READABLE, room - sum(widths[:-1])))
        lines = [p for line in lines for p in _wrapped(line, widths[-1], columns[-1].colour)]
    while sum(widths) > room:
        shrinking = [i for i, c in enumerate(columns) if c.shrink and widths[i] > c.least]
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
        pad = " " * (size - len(cell))
        if text != column.head and not column.wrap:
            cell = painted(cell, column.colour(text))
        aligned.append(pad + cell if column.right else cell + pad)
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


def _wrapped(line: Sequence[str], room: int, colour: Callable[[str], str]) -> list[list[str]]:
    """Return the line, and those on which its last cell goes on, in the colour of all of it."""
    first, *more = textwrap.wrap(
        line[-1], room, break_long_words=False, break_on_hyphens=False
    ) or [""]
    first, *more = (painted(part, colour(line[-1])) for part in (first, *more))
    return [[*line[:-1], first], *([""] * (len(line) - 1) + [part] for part in more)]
