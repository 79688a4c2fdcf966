"""What is wrong with a ledger: facts that are not as they were written, rows that no celedger
wrote, and SQLite's own structure.

Lives here: each check, as a sentence for each thing that is wrong. It must not know who asks.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from celedger.ledger.facts import TABLES, checksum
from celedger.text import plain

# What reading a damaged file can raise, besides what SQLite says: text that is no UTF-8, sizes
# beyond all memory.
ERRORS = (sqlite3.Error, ValueError, OverflowError, MemoryError)


def examine(connection: sqlite3.Connection) -> tuple[list[str], list[str]]:
    """Return what is damaged in a ledger, and which rows no celedger wrote."""
    with snapshot(connection):
        return list(damage(connection)), list(foreign(connection))


def examine_file(path: Path) -> tuple[list[str], list[str]]:
    """Examine a ledger that cannot be opened as one."""
    try:
        with closing(readonly(path)) as connection:
            return examine(connection)
    except ERRORS as error:
        return [plain(str(error))], []


def readonly(path: Path) -> sqlite3.Connection:
    """Return a connection to a file that may be damaged."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, isolation_level=None)


def damage(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield what is damaged, the facts first: they have names that a person knows."""
    with snapshot(connection):
        for check in (_facts, _structure, _schema):
            try:
                yield from map(plain, check(connection))
            except ERRORS as error:
                yield plain(str(error))


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Iterator[None]:
    """Read the ledger as it is now, whatever others add meanwhile."""
    begun = not connection.in_transaction
    if begun:
        connection.execute("BEGIN")
    try:
        yield
    finally:
        if begun and connection.in_transaction:
            connection.execute("ROLLBACK")


def foreign(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield the rows that no celedger wrote, as far as they can be read."""
    with suppress(*ERRORS):
        yield from _unsealed(connection)


def _unsealed(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield the rows without a checksum. A trial that runs has none yet."""
    sealed = checksums(connection)
    for table in TABLES:
        ended = "WHERE rowid IN (SELECT trial FROM outcomes)" if table == "trials" else ""
        for (row,) in connection.execute(f"SELECT rowid FROM {table} {ended}").fetchall():
            if (table, row) not in sealed:
                yield describe(connection, table, row)
    for part in ("points", "summaries"):
        for (row,) in connection.execute(
            f"SELECT DISTINCT trial FROM {part} EXCEPT SELECT id FROM trials"
        ).fetchall():
            yield f"{part} of a trial {row} that there is not"


def checksums(connection: sqlite3.Connection) -> dict[tuple[str, int], int]:
    """Return the checksum that was written with each fact, by its table and row: the latest."""
    rows = connection.execute("SELECT fact, row, value FROM checksums ORDER BY id")
    return {(table, row): value for table, row, value in rows}


def describe(connection: sqlite3.Connection, table: str, row: int) -> str:
    """Return a fact's name for a person: as much of it as can be read."""
    try:
        if table in ("trials", "closures"):
            for ulid, task, sha in connection.execute(
                "SELECT r.ulid, t.name, c.sha FROM trials r LEFT JOIN tasks t ON t.id = r.task "
                "LEFT JOIN commits c ON c.id = r.revision WHERE r.id = ?",
                (row,),
            ):
                return f"trial {ulid} of {task} at {str(sha)[:10]}"
        if table == "commits":
            for (sha,) in connection.execute("SELECT sha FROM commits WHERE id = ?", (row,)):
                return f"commit {str(sha)[:10]}"
    except ERRORS:
        pass
    return f"row {row} of {table}"


def _facts(connection: sqlite3.Connection) -> Iterator[str]:
    number, last = connection.execute("SELECT count(*), max(id) FROM checksums").fetchone()
    if number != (last or 0):
        yield "rows of checksums are missing"
    for (table, row), value in checksums(connection).items():
        if table not in TABLES:
            yield "rows of checksums are changed"
            continue
        try:
            if checksum(connection, table, row) != value:
                yield describe(connection, table, row)
        except ERRORS:
            yield describe(connection, table, row)


def _structure(connection: sqlite3.Connection) -> Iterator[str]:
    connection.execute("PRAGMA cell_size_check = ON")
    for (line,) in connection.execute("PRAGMA integrity_check").fetchall():
        if line != "ok":
            yield line
    for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check").fetchall():
        yield f"row {row} of {table} refers to a row of {parent} that there is not"


def _schema(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield the tables, indexes, triggers and views that differ from today's schema."""
    from celedger.ledger import schema  # 0.1 s, and only needed here

    listing = "SELECT type || ' ' || name, sql FROM sqlite_schema WHERE sql IS NOT NULL"
    with_all = sqlite3.connect(":memory:")
    try:
        schema.migrate(with_all)
        expected = dict(with_all.execute(listing).fetchall())
    finally:
        with_all.close()
    actual = dict(connection.execute(listing).fetchall())
    for name, sql in expected.items():
        if not name.endswith("_sqlite_migrations") and actual.get(name) != sql:
            yield f"{name} is {'changed' if name in actual else 'missing'}"
