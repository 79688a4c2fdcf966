"""The rules of a valid ledger: one rule a column, for every fact that another ledger, an archive or
a node hands over, and for the rows of our own that an older celedger took in without a look.

Lives here: the rules and the search for rows that break them. A rule holds for all that celedger
ever writes itself. It must not know who asks.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import sqlite3
import unicodedata
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

from celedger.base.model import (
    BaselineAct,
    Direction,
    Kind,
    Mark,
    OutcomeKind,
    Purpose,
    is_summary,
)
from celedger.base.text import plain
from celedger.ledger import ulid as ulids

LAST_SECOND = 253_402_214_400  # the year 9999 ends a day later, in every time zone
LAST_EPOCH = 2**53 - 1  # a float holds each
_LAST_STEP = 2**24  # values before the first one of a row are filled up with NaN
_LARGEST_FOOTPRINT = 1 << 26  # bytes of its paths, unpacked
_DEEPEST = 32  # levels of JSON; a report of ours has 5
_LONGEST_NAME = 1000
_UNSAFE = frozenset({"Cc", "Zl", "Zp", "Cs"})

Rows = dict[tuple[str, int], str]
"""Facts (table, row), and what is wrong with each."""


class Rule(NamedTuple):
    """`why` completes "its subject is no …"."""

    why: str
    allows: Callable[[Any], bool]


def _matches(pattern: str) -> Callable[[Any], bool]:
    matched = re.compile(pattern).fullmatch
    return lambda value: isinstance(value, str) and matched(value) is not None


def _between(low: float, high: float, *kinds: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in (kinds or (int,)) and low <= value <= high


def _word(words: type[StrEnum]) -> Rule:
    return Rule("word that this celedger knows", frozenset(map(str, words)).__contains__)


def _is_name(value: Any) -> bool:
    if not isinstance(value, str) or len(value) > _LONGEST_NAME:
        return False
    return value.isprintable() or _UNSAFE.isdisjoint(map(unicodedata.category, value))


def _is_date(value: Any) -> bool:
    try:
        return datetime.strptime(value, "%Y-%m-%dT%H:%M:%SZ") is not None
    except (TypeError, ValueError):
        return False


def _is_inside(value: Any) -> bool:
    """Return True for the path of a file in the ledger's folder."""
    if not _is_name(value):
        return False
    return not value.startswith(("/", "~")) and ".." not in re.split(r"[/\\]", value)


def _is_command(value: Any) -> bool:
    """Return True for a single command: views print it for a person to type into a shell."""
    if not _is_name(value) or re.search(r"[`$]", value):
        return False
    lexer = shlex.shlex(value, posix=True, punctuation_chars=True)
    lexer.commenters = ""
    try:
        return not any(set(word) <= set(lexer.punctuation_chars) for word in lexer)
    except ValueError:
        return False


def _are_paths(value: Any) -> bool:
    try:
        unpack = zlib.decompressobj()
        unpack.decompress(value, _LARGEST_FOOTPRINT)
        return unpack.eof and not unpack.unused_data
    except (TypeError, zlib.error):
        return False


# --- JSON


def _json(shape: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return whether a text is JSON of this shape, and not deeper than celedger writes it."""

    @lru_cache(maxsize=64)
    def allows(text: Any) -> bool:
        try:
            value = json.loads(text)
        except (TypeError, ValueError, RecursionError):
            return False
        return _is_flat(value) and shape(value)

    return allows


def _is_flat(value: Any, left: int = _DEEPEST) -> bool:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return True
    return left > 0 and all(_is_flat(item, left - 1) for item in value)


def _some(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in kinds


def _list(rule: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(rule, value))


def _object(**fields: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return whether a value is an object; these fields, where it has them, are of their shape."""
    return lambda value: (
        isinstance(value, dict)
        and all(shape(value[name]) for name, shape in fields.items() if name in value)
    )


def _number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and abs(value) <= LAST_EPOCH)


def _pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_number, value))


def _told_metric(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 4 and all(type(x) is str for x in value)


def _told_size(value: Any) -> bool:
    is_row = isinstance(value, list) and len(value) in (5, 6)
    return is_row and all(type(x) is str for x in value[:3]) and all(map(_number, value[3:]))


_text, _count = _some(str), _between(0, LAST_EPOCH)
_texts, _mapping = _list(_text), _some(dict)
_sha = _matches("[0-9a-f]{40}([0-9a-f]{24})?")
_DEFINITION = _object(
    suite=_text, name=_text, commands=_list(_texts), params=_mapping, files=_text, python=_text,
    pythonpath=_texts, build=_list(_texts), inputs=_texts, threads=_count, steps=_some(bool),
    pattern=_texts, tensorboard=_text, cwd=_text, whole=_text, venv=_texts, pass_env=_texts,
)  # fmt: skip
_DETAILS = _object(packages=_some(dict, str), beside=_object(imported=_texts))
_REPORT = _object(
    commits=_list(_sha), posterior=_list(_number), narrowing=_list(_list(_pair)),
    readings=_list(_pair), others=_list(_object(after=_sha, by=_sha)), trials=_count,
    stored=_count, between=lambda value: value is None or _object(commit=_sha)(value),
)  # fmt: skip

_TOLD = _object(
    first=_sha, last=_sha, metrics=_list(_told_metric), sizes=_list(_told_size),
    failure=_some(bool), sure=_some(bool), bisect=_text, closed=_text,
    likeliest=_text, probability=_number, joined=_text,
)  # fmt: skip

# --- the rules

NAME = Rule("name", _is_name)
TEXT = Rule("text", lambda value: isinstance(value, str) and "\0" not in value)
ULID = Rule("ULID", ulids.is_valid)
HASH = Rule("hash of 40 or 64 hex digits", _sha)
DIGEST = Rule("digest of 64 hex digits", _matches("[0-9a-f]{64}"))
DIGEST_OR_NONE = Rule(DIGEST.why, _matches("([0-9a-f]{64})?"))
TIME = Rule("time before the year 9999", _between(0, LAST_SECOND, int, float))
COUNT = Rule("number from 0 to 2^53", _count)
NUMBER = Rule("number", _some(int, float, type(None)))
INTEGER = Rule("whole number", _some(int))
DATE = Rule("date", _is_date)

RULES: Mapping[str, Mapping[str, Rule]] = {
    "commits": {
        "sha": HASH, "tree": HASH, "author": TEXT, "author_time": TIME, "commit_time": TIME,
        "subject": TEXT,
    },
    "parents": {"place": COUNT, "sha": HASH},
    "metrics": {"name": NAME},
    "tasks": {
        "recipe": DIGEST, "suite": NAME, "name": NAME,
        "definition": Rule("JSON as a task is written", _json(_DEFINITION)),
    },
    "definitions": {
        "unit": NAME, "direction": _word(Direction), "kind": _word(Kind),
        "floor": Rule("size from 0", lambda x: type(x) in (int, float) and 0 <= x < math.inf),
        "floor_is_relative": Rule("0 or 1", (0, 1).__contains__),
        "summary": Rule("rule of a summary", lambda x: isinstance(x, str) and len(x) < 100
                        and is_summary(x)), "recorded": DATE,
    },
    "environments": {
        "fingerprint": NAME, "details": Rule("JSON as it is written", _json(_DETAILS)),
    },
    "footprints": {
        "digest": DIGEST, "paths": Rule("compressed list of paths", _are_paths),
        "inputs": Rule("JSON list of patterns", _json(_texts)),
    },
    "trial_sets": {
        "digest": Rule("digest of 32 bytes", lambda x: isinstance(x, bytes) and len(x) == 32),
        "ulids": Rule("JSON list of ULIDs", _json(_list(ulids.is_valid))),
    },
    "trials": {
        "ulid": ULID, "seed": INTEGER, "why": _word(Purpose), "started": TIME, "host": NAME,
        "device": NAME,
    },
    "outcomes": {
        "kind": _word(OutcomeKind), "ended": TIME, "message": TEXT,
        "returncode": Rule("exit status", lambda x: x is None or _between(-(2**31), 2**32)(x)),
        "log": Rule("path in the ledger's folder", _is_inside),
        "marks": Rule("marks that this celedger knows", lambda x: isinstance(x, str)
                      and set(x.split()) <= set(map(str, Mark))),
        "epochs": COUNT,
    },
    "points": {},
    "fingerprints": {"epoch": COUNT, "value": NAME},
    "steps": {
        "epoch": COUNT, "first": Rule("number of a step", _between(0, _LAST_STEP)),
        "width": Rule("4 or 8 bytes", (4, 8).__contains__),
        "series": Rule("packed series", lambda x: isinstance(x, bytes) and len(x) % 4 == 0),
    },
    "summaries": {"value": NUMBER},
    "closures": {"content": NAME, "unknown": TEXT},
    "trial_facts": {"name": NAME, "value": TEXT},
    "verdicts": {
        "suite": NAME, "task": NAME, "metric": NAME, "recipe": DIGEST_OR_NONE,
        "environment": NAME, "kind": NAME, "level": NUMBER,
        "value": NUMBER, "effect": NUMBER, "low": NUMBER, "high": NUMBER, "p_value": NUMBER,
        "rule": NAME, "note": TEXT, "recorded": DATE,
    },
    "bisects": {
        "ulid": ULID, "suite": NAME, "task": NAME, "metric": NAME, "good": HASH, "bad": HASH,
        "culprits": Rule("JSON list of hashes", _json(_list(_sha))), "probability": NUMBER,
        "status": NAME, "ended": TIME, "report": Rule("JSON as it is written", _json(_REPORT)),
    },
    "baselines": {
        "ulid": ULID, "act": _word(BaselineAct), "suite": NAME, "task": NAME, "metric": NAME,
        "who": TEXT, "why": TEXT, "at": TIME,
    },
    "findings": {
        "ulid": ULID, "verb": NAME, "suite": NAME, "task": NAME,
        "command": Rule("single command", _is_command), "started": TIME,
        "headline": TEXT, "document": Rule("JSON object", _json(_mapping)),
    },
    "said": {
        "ulid": ULID, "incident": Rule("id of 8 hex digits", _matches("[0-9a-f]{8}")),
        "state": NAME, "event": NAME, "kind": NAME, "suite": NAME, "task": NAME, "metric": NAME,
        "oldest": HASH, "revision": HASH, "job": NAME, "address": NAME,
        "details": Rule("JSON as it is written", _json(_TOLD)), "at": TIME,
    },
}  # fmt: skip
"""The rule of each column that is no key. No code reads a column without one."""

# Of a table whose rows belong to a fact: the column with the fact's row, and the fact's table.
PART_OF = {
    "parents": ("revision", "commits"),
    **dict.fromkeys(
        ("outcomes", "derived", "points", "fingerprints", "steps", "summaries"),
        ("trial", "trials"),
    ),
}  # fmt: skip
# What a row refers to: columns, and the tables of facts that they name. After those come the rows
# that refer to these.
REFERENCES: Mapping[str, Mapping[str, str]] = {
    "parents": {"revision": "commits"},
    "definitions": {"metric": "metrics", "task": "tasks"},
    "trials": {"revision": "commits", "task": "tasks", "environment": "environments"},
    "outcomes": {"trial": "trials"},
    "derived": {"trial": "trials", "evidence": "trials"},
    "points": {"trial": "trials", "metric": "metrics"},
    "fingerprints": {"trial": "trials"},
    "steps": {"trial": "trials", "metric": "metrics"},
    "summaries": {"trial": "trials", "metric": "metrics", "task": "tasks",
                  "definition": "definitions"},
    "closures": {"trial": "trials", "footprint": "footprints"},
    "verdicts": {"revision": "commits", "trials": "trial_sets", "baseline": "trial_sets"},
    "baselines": {"revision": "commits"},
    "trial_facts": {"trial": "trials"},
    "findings": {"revision": "commits", "before": "commits"},
}  # fmt: skip
# Rows that are broken though each column is sound; and those of points, too many to look at one by
# one.
CONDITIONS = {
    "points": (
        f"typeof(epoch) != 'integer' OR epoch NOT BETWEEN 0 AND {LAST_EPOCH} OR "  # noqa: ISC004
        "typeof(value) NOT IN ('real', 'null')", "it has no epoch or no number",
    ),
    "steps": ("length(series) % width", "its series is cut off"),
    "derived": ("evidence IN (SELECT trial FROM derived)",
                "it is derived from a trial that is derived itself"),
    "bisects": ("status IN ('found', 'set', 'gradual') AND culprits = '[]'", "it names no commit"),
}  # fmt: skip


def mismatch(table: str, row: Mapping[str, Any]) -> str:
    """Return which column of a row that is not in a ledger yet breaks its rule; "" for none."""
    for name, rule in RULES[table].items():
        if name in row and not rule.allows(row[name]):
            return f"its {name.replace('_', ' ')} is no {rule.why}"
    return ""


def problem(connection: sqlite3.Connection, table: str, row: int) -> str:
    """Return what is wrong with one fact and with what belongs to it; "" for nothing. What it
    refers to is another fact."""
    parts = [part for part, (_, fact) in PART_OF.items() if fact == table]
    whys = (why for name in (table, *parts) for _, why in _broken(connection, name, row))
    return next(whys, "")


def broken(connection: sqlite3.Connection) -> Rows:
    """Return every fact that breaks a rule, or refers to one that does, or to a missing one."""
    rows: Rows = {}
    for table in (*RULES, "derived"):
        fact = PART_OF.get(table, ("", table))[1]
        for key, why in _broken(connection, table):
            rows.setdefault((fact, key), why)
    number = -1
    while number != len(rows):  # until nothing refers to what is left out
        number = len(rows)
        for table, references in REFERENCES.items():
            owner, fact = PART_OF.get(table, ("rowid", table))
            for column, parent in references.items():
                for key in _orphans(connection, table, owner, column, parent, rows):
                    why = (
                        f"its {parent.removesuffix('s').replace('_', ' ')} is not there, or damaged"
                    )
                    if column != owner or fact == table:
                        rows.setdefault((fact, key), why)
    return rows


def _broken(
    connection: sqlite3.Connection, table: str, row: int | None = None
) -> Iterator[tuple[int, str]]:
    """Yield the fact's row, and why, of each row of a table, or of one fact, that breaks a rule."""
    owner, rules = PART_OF.get(table, ("rowid", ""))[0], RULES.get(table, {})
    of_row, values = ("", ()) if row is None else (f"AND {owner} = ?", (row,))
    if table in CONDITIONS:
        condition, why = CONDITIONS[table]
        sql = f"SELECT {owner} FROM {table} WHERE ({condition}) {of_row}"
        yield from ((key, why) for (key,) in connection.execute(sql, values))
    if rules:
        sql = f"SELECT {owner}, {', '.join(rules)} FROM {table} WHERE TRUE {of_row}"
        for key, *columns in connection.execute(sql, values):
            if why := mismatch(table, dict(zip(rules, columns, strict=True))):
                yield key, why


def _orphans(
    connection: sqlite3.Connection, table: str, owner: str, column: str, parent: str, rows: Rows
) -> list[int]:
    """Return the facts of which a row refers to a fact that is broken or absent."""
    out = json.dumps([row for fact, row in rows if fact == parent])
    return [
        key
        for (key,) in connection.execute(
            f"SELECT DISTINCT {owner} FROM {table} WHERE {column} IS NOT NULL AND ({column} NOT IN "
            f"(SELECT rowid FROM {parent}) OR {column} IN (SELECT value FROM json_each(?)))",
            (out,),
        )
    ]


def described(connection: sqlite3.Connection, rows: Rows) -> Iterator[str]:
    """Yield a line a fact, each by a name that a person knows."""
    for (table, row), why in rows.items():
        column = "ulid" if table == "trials" else "sha" if table == "commits" else ""
        name = ""
        if column:
            sql = f"SELECT {column} FROM {table} WHERE rowid = ?"
            (value,) = connection.execute(sql, (row,)).fetchone() or ("",)
            name = f" ({value[:26]})" if isinstance(value, str) and value.isalnum() else ""
        yield plain(f"row {row} of {table}{name}: {why}")
