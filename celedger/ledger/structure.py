"""The tables of a file that anybody can have made: are they the tables of a ledger?

Lives here: the comparison with today's schema. It reads no row, and must not know what rows mean.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import lru_cache

from celedger.ledger import schema

_Structure = tuple[set[tuple[str, str, int]], set[tuple[str, str, str]]]


def foreign_tables(connection: sqlite3.Connection, *, whole: bool) -> Iterator[str]:
    """Yield what of the tables that celedger reads is none: a view in the place of a table would
    run a program of whoever made the file. `whole` yields, too, what today's schema has and the
    file has otherwise."""
    kinds = {
        str(name).lower(): (kind, root)
        for kind, name, root in connection.execute(
            "SELECT type, name, rootpage FROM sqlite_master WHERE type IN ('table', 'view')"
        )
    }
    expected = _expected() if whole else dict.fromkeys(schema.TABLES)
    for table, own in expected.items():
        kind, root = kinds.get(table, ("", 0))
        if not whole and not kind:
            continue
        if kind != "table" or not root:
            yield f"{table} is no table"
            continue
        columns, keys = _structure(connection, table)
        if not all(_COLUMN(name) and not hidden for name, _, hidden in columns):
            yield f"{table} has columns that are none of celedger's"
        elif own is not None and not (own[0] <= columns and own[1] == keys):
            yield f"the columns of {table} are not those of its schema"


_COLUMN = re.compile("[a-z_]+").fullmatch


def _structure(connection: sqlite3.Connection, table: str) -> _Structure:
    columns = connection.execute(f"PRAGMA main.table_xinfo({table})").fetchall()
    keys = connection.execute(f"PRAGMA main.foreign_key_list({table})").fetchall()
    return {(c[1], c[2], c[6]) for c in columns}, {k[2:5] for k in keys}


@lru_cache(maxsize=1)
def _expected() -> dict[str, _Structure]:
    """Return the structure of each table of today's schema."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        schema.migrate(connection)
        tables = [name for name in schema.TABLES if not name.startswith("_")]
        return {table: _structure(connection, table) for table in tables}


def foreign_triggers(connection: sqlite3.Connection) -> list[str]:
    """Return the names of the triggers that do anything but refuse a change."""
    triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
    return [name for name, sql in triggers if not schema.APPEND_ONLY.fullmatch(sql)]
