"""The metrics a suite declares: tables that a task may override or add to.

Knows how a metric is written in suite.toml; what it means is celedger.model's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum

from celedger.config import closest
from celedger.errors import SuiteError
from celedger.model import Direction, Floor, Kind, Metric
from celedger.suite import toml_table
from celedger.suite.toml_table import Table

Tables = Mapping[str, Mapping[str, object]]  # metric name -> what is said of it

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,63}")


def tables(where: str, value: object) -> Tables:
    """The `[metrics.NAME]` tables at a place, names and keys checked, values not yet."""
    if not isinstance(value, dict):
        raise SuiteError(f"{where} metrics is not a table", "write [metrics.NAME]")
    by_name = {}
    for name, entry in value.items():
        body = Table(f"{where} metric {name!r}", entry, _READERS)
        if not _NAME.fullmatch(name):
            body.fail("has no good name", "up to 64 letters, digits, and any of _ . / -")
        by_name[name] = body.values
    return by_name


def read(body: Table, shared: Tables) -> tuple[Metric, ...]:
    """A task's metrics: the suite's, with what the task says of them or adds to them."""
    own = tables(body.where, body.raw("metrics", {}))
    return tuple(
        _metric(body.where, name, {**shared.get(name, {}), **own.get(name, {})})
        for name in dict.fromkeys([*shared, *own])
    )


def _metric(where: str, name: str, values: Mapping[str, object]) -> Metric:
    body = Table(f"{where} metric {name!r}", values, _READERS)
    if "direction" not in body:
        body.fail("has no direction", 'direction = "lower", "higher" or "info"')
    try:
        return Metric(name, **{"kind": Kind.QUALITY, **body.read(_READERS)})
    except ValueError as error:
        body.fail(f"has no good {error}")


def _unit(value: object) -> str:
    return "" if value == "" else toml_table.string(value)


def _one_of(kind: type[StrEnum]) -> Callable[[object], StrEnum]:
    def reader(value: object) -> StrEnum:
        names = [str(each) for each in kind]
        if not isinstance(value, str) or value not in names:
            close = closest(value, names) if isinstance(value, str) else ", ".join(names)
            raise ValueError(f"is {toml_table.shown(value)}; {close}")
        return kind(value)

    return reader


def _floor(value: object) -> Floor:
    wanted = f'is {toml_table.shown(value)}, not a number >= 0 or a percentage such as "0.5%"'
    if not isinstance(value, (str, int, float)) or isinstance(value, bool):
        raise ValueError(wanted)
    try:
        return Floor.parse(value)
    except (ValueError, OverflowError) as error:
        raise ValueError(wanted) from error


_READERS: dict[str, Callable[[object], object]] = {
    "unit": _unit,
    "direction": _one_of(Direction),
    "kind": _one_of(Kind),
    "floor": _floor,
    "summary": toml_table.string,
}
