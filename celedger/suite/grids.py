"""The parameters of a task: single values, grids that make a task of every combination, and
aliases, where one name stands for several parameters. Knows no command.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from celedger.base.config import closest
from celedger.suite import commands
from celedger.suite.toml_table import Table

_PARAM = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_TASKS = 1000  # of one grid: more is a mistake in the file, or a week of training

Aliases = Mapping[str, Mapping[str, Mapping[str, object]]]  # name -> value -> what it sets


@dataclass(frozen=True, slots=True)
class Point:
    """One combination: what stands behind the task's name, and all its parameters."""

    label: str
    params: Mapping[str, object]


def points(body: Table) -> list[Point]:
    """Return the combinations of a task, one where it has no grid. An alias sets what it stands
    for, in the place of `params`, and stays a parameter of its own. Raises SuiteError."""
    params = _values(body, "params", body.raw("params", {}))
    grid, alias = _grid(body), aliases(body)
    for key in grid:
        if key in params:
            body.fail(f"has {key!r} in params and in grid")
    for key in alias:
        if key not in params and key not in grid:
            body.fail(f"has an alias {key!r} that neither params nor grid gives a value")
    combinations = []
    for values in itertools.product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        chosen = {**params, **point}
        for key, meanings in alias.items():
            word = commands.text(chosen[key])
            if word not in meanings:
                body.fail(f"alias {key!r} has no {word!r}", closest(word, list(meanings)))
            chosen |= meanings[word]
        text = ",".join(f"{key}={_in_name(value)}" for key, value in point.items())
        combinations.append(Point(f"[{text}]" if text else "", chosen))
    return combinations


def aliases(body: Table) -> Aliases:
    """Return what each value of each alias sets. Nothing may get its value from two sides."""
    tables = _params(body, "alias", body.raw("alias", {}))
    owners = {**dict.fromkeys(_grid(body), "grid"), **dict.fromkeys(tables, "alias")}
    alias: dict[str, dict[str, Mapping[str, object]]] = {}
    for key, meanings in tables.items():
        if not isinstance(meanings, dict) or not meanings:
            body.fail(f"alias {key!r} is not a table of values")
        where = f"alias {key!r}"
        alias[key] = {word: _values(body, where, sets) for word, sets in meanings.items()}
        names, *others = map(set, alias[key].values())
        if any(other != names for other in others):
            body.fail(f"{where} does not set the same parameters with each of its values")
        for name in sorted(names):
            if name in owners:
                body.fail(f"has {name!r} in {where} and in {owners[name]}")
            owners[name] = where
    return alias


def _values(body: Table, where: str, values: object) -> Mapping[str, object]:
    """Return a table's parameters, each one value."""
    return {name: _param(body, name, value) for name, value in _params(body, where, values).items()}


def _params(body: Table, where: str, values: object) -> Mapping[str, object]:
    if not isinstance(values, dict):
        body.fail(f"{where} is not a table of parameters")
    for name in values:
        if name in commands.PLACEHOLDERS:
            body.fail(f"{where} has {name!r}, which celedger fills in itself")
        if not _PARAM.fullmatch(name):
            body.fail(f"{where} has {name!r}: a name is made of letters, digits and _")
    return values


def _param(body: Table, name: str, value: object) -> object:
    """Return a value that JSON can hold and a command line can carry."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if not isinstance(value, (str, int, float)):
        hint = "a list of values goes into grid, a date into quotes"
        body.fail(f"parameter {name!r} is no string, number or boolean", hint)
    if "\0" in commands.text(value):
        body.fail(f"parameter {name!r} holds a NUL character")
    return value


def _grid(body: Table) -> dict[str, list[object]]:
    grid: dict[str, list[object]] = {}
    for key, values in _params(body, "grid", body.raw("grid", {})).items():
        if not isinstance(values, list) or not values:
            body.fail(f"grid {key!r} is not a list of values")
        distinct: dict[str, object] = {}
        for value in values:
            checked = _param(body, key, value)
            distinct.setdefault(commands.text(checked), checked)
        grid[key] = list(distinct.values())
    if math.prod(len(values) for values in grid.values()) > _MOST_TASKS:
        body.fail(f"grid has more than {_MOST_TASKS} combinations")
    return grid


def _in_name(value: object) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", commands.text(value))
