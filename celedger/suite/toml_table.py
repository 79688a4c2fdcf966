"""Reads one table of suite.toml strictly: every key known, every value of its type.

Knows where it is, so that each error names the file and the place. Knows no meaning.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, NoReturn

from celedger.config import closest
from celedger.errors import SuiteError
from celedger.model import parse_size

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


class Table:
    """A table at a place such as `suites/core/suite.toml: task 'mlp'`. Raises SuiteError."""

    def __init__(self, where: str, values: object, keys: Collection[str]) -> None:
        self.where = where
        if not isinstance(values, dict):
            self.fail(f"is {_kind(values)}, not a table")
        self.values: Mapping[str, object] = values
        for key in values:
            if key not in keys:
                self.fail(f"has an unknown key {key!r}", closest(key, keys))

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def fail(self, what: str, hint: str = "") -> NoReturn:
        raise SuiteError(f"{self.where} {what}", hint)

    def raw(self, key: str, default: object = None) -> object:
        return self.values.get(key, default)

    def read(self, readers: Mapping[str, Callable[[object], Any]]) -> dict[str, Any]:
        """Return the values that are there, each as the reader of its key gives it. A reader raises
        ValueError saying what is wrong, as the end of a sentence that begins with the key."""
        values = {}
        for key, reader in readers.items():
            if key in self.values:
                try:
                    values[key] = reader(self.values[key])
                except ValueError as error:
                    self.fail(f"{key} {error}")
        return values


def _kind(value: object) -> str:
    kinds = {
        bool: "true or false", str: "a string", int: "an integer", float: "a number",
        list: "a list", dict: "a table",
    }  # fmt: skip
    return kinds.get(type(value), "a date or time")


# --- readers


def string(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"is {_kind(value)}, not a string")
    if not value or "\0" in value:
        raise ValueError("is empty" if not value else "holds a NUL character")
    return value


def truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"is {_kind(value)}, not true or false")
    return value


def strings(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise ValueError(f"is {_kind(value)}, not a list of strings")
    return tuple(string(item) for item in value)


def inside(value: object) -> tuple[str, ...]:
    """Relative paths or patterns that stay in the tree."""
    paths = strings(value)
    for path in paths:
        if path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"names {path!r}, which is outside the commit's tree")
    return paths


def integer(low: int, high: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"is {_kind(value)}, not an integer")
        if not low <= value <= high:
            raise ValueError(f"is {value}, not from {low} to {high}")
        return value

    return read


def seconds(value: object) -> float:
    """`30`, `"90s"`, `"10m"`, `"1h30m"`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        total = float(value) if abs(value) < 1e300 else math.inf
    elif isinstance(value, str) and re.fullmatch(f"(?:{_DURATION.pattern})+", value):
        total = sum(float(n) * _SECONDS[unit] for n, unit in _DURATION.findall(value))
    else:
        raise ValueError(f'is {shown(value)}, not a duration such as 30, "90s" or "10m"')
    if not 0 < total <= 366 * _SECONDS["d"]:
        raise ValueError(f"is {shown(value)}, not a duration from 0 seconds to a year")
    return total


def size(value: object) -> int:
    """`4000000000`, `"4GB"`, `"512MiB"`."""
    total = parse_size(value)
    if total is not None:
        return total
    if isinstance(value, int) and not isinstance(value, bool):
        raise ValueError(f"is {shown(value)}, not a size from 1 byte to 1 EiB")
    raise ValueError(f'is {shown(value)}, not a size such as "4GB" or "512MiB"')


def shown(value: object) -> str:
    """A value in an error, never longer than a line."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = _kind(value)
    return text if len(text) <= 60 else text[:59] + "…"
