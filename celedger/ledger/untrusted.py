"""A file that anybody can have made: what reading it may cost, and whether it is a ledger.

Lives here: SQLite's limits, the time that it has (with signals let in meanwhile), and the
comparison with today's schema. It must not know what rows mean.
"""

from __future__ import annotations

import re
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import lru_cache
from pathlib import Path

from celedger.base.errors import LedgerDamaged
from celedger.ledger import schema

SECONDS, SECONDS_A_MIB = 3.0, 1.0  # of processor time to read a ledger: three times what it takes
_OPCODES = 100_000  # of SQLite between two looks at the time and at signals: a millisecond
_exhausted: set[Path] = set()  # ledgers whose time is up
# What a ledger of ours never needs more of.
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1 << 28, sqlite3.SQLITE_LIMIT_SQL_LENGTH: 1 << 20,
    sqlite3.SQLITE_LIMIT_COLUMN: 100, sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0, sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
}  # fmt: skip


def limit(connection: sqlite3.Connection, path: Path) -> None:
    """Limit what reading a file of others can cost. Signals are let in meanwhile."""
    for kind, most in _LIMITS.items():
        connection.setlimit(kind, most)
    if sys.version_info >= (3, 12):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_TRIGGER, False)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_VIEW, False)
    limit_time(connection, path)


def limit_time(connection: sqlite3.Connection, path: Path) -> None:
    """Let signals in while SQLite reads, and end what takes longer than the size of a file
    explains."""
    files = (path, Path(f"{path}-wal"))
    size = sum(file.stat().st_size for file in files if file.exists())
    end = time.thread_time() + SECONDS + SECONDS_A_MIB * size / (1 << 20)

    def is_over() -> bool:
        if time.thread_time() > end:
            _exhausted.add(path)
        return path in _exhausted

    connection.set_progress_handler(is_over, _OPCODES)


def ended() -> LedgerDamaged:
    """Return why SQLite was interrupted. Raises KeyboardInterrupt where the handler of a signal
    did it: SQLite takes no exception."""
    if not _exhausted:
        raise KeyboardInterrupt
    path = _exhausted.pop()
    return LedgerDamaged(
        f"{path} takes longer to read than its size explains", "nothing of it was used"
    )


def is_exhausted() -> bool:
    """Return True if a ledger took too long, and nobody was told."""
    return bool(_exhausted)


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
    for table, structure in expected.items():
        kind, root = kinds.get(table, ("", 0))
        if not whole and not kind:
            continue
        if kind != "table" or not root:
            yield f"{table} is no table"
            continue
        columns, keys = _structure(connection, table)
        if not all(_COLUMN(name) and not hidden for name, _, hidden in columns):
            yield f"{table} has columns that are none of celedger's"
        elif structure is not None and not (structure[0] <= columns and structure[1] == keys):
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
