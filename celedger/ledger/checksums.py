"""Facts: a row of the ledger with the rows that belong to it, its checksum, and how it is carried
into another ledger.

Lives here: which rows make a fact, the checksum that is written with it, the check of every row,
and the union of two ledgers. All read the same rows, so what is checked and what another ledger
receives cannot differ. It must not know what a fact means, nor which ledgers are united.
"""

from __future__ import annotations

import marshal
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celedger.base.text import plain
from celedger.ledger import ulid as ulids
from celedger.ledger import validation

# A fact's table, each after those that its rows refer to.
TABLES = (
    "commits", "metrics", "tasks", "definitions", "environments", "footprints", "trial_sets",
    "trials", "closures", "verdicts", "bisects", "baselines", "findings",
)  # fmt: skip
# The column that names a row in every ledger. Rows of other tables are equal if all columns are.
NAMES = {
    "commits": "sha", "metrics": "name", "tasks": "recipe", "environments": "fingerprint",
    "footprints": "digest", "trial_sets": "digest", "trials": "ulid", "closures": "trial",
    "bisects": "ulid", "baselines": "ulid", "findings": "ulid",
}  # fmt: skip
# The rows that belong to a fact. The first part is there once the fact is complete.
PARTS = {
    "commits": {"parents": "SELECT place, sha FROM parents WHERE revision = ? ORDER BY place"},
    "trials": {
        "outcomes": "SELECT kind, ended, message, returncode, log, marks, epochs FROM outcomes "
        "WHERE trial = ?",
        "derived": "SELECT evidence FROM derived WHERE trial = ?",
        "points": "SELECT epoch, metric, value FROM points WHERE trial = ? ORDER BY epoch, metric",
        "fingerprints": "SELECT epoch, value FROM fingerprints WHERE trial = ? ORDER BY epoch",
        "steps": "SELECT epoch, metric, first, width, series FROM steps WHERE trial = ? "
        "ORDER BY epoch, metric, first",
        # The key of summaries starts with the metric.
        "summaries": "SELECT s.metric, s.task, s.value, s.definition FROM trials r "
        "CROSS JOIN metrics m CROSS JOIN summaries s "
        "ON (s.metric, s.task, s.trial) = (m.id, r.task, r.id) WHERE r.id = ? ORDER BY m.id",
    },
}
# What reading a damaged file can raise, besides what SQLite says: text that is no UTF-8, sizes
# beyond all memory.
ERRORS = (sqlite3.Error, ValueError, OverflowError, MemoryError)


def checksum(connection: sqlite3.Connection, table: str, row: int) -> int:
    """Return the CRC-32 of a fact: of all its columns, as Python's marshal (version 2) writes
    them, its own row first."""
    rows = [
        connection.execute(sql, (row,)).fetchall()
        for sql in (f"SELECT * FROM {table} WHERE rowid = ?", *PARTS.get(table, {}).values())
    ]
    return zlib.crc32(marshal.dumps(rows, 2))


def seal(connection: sqlite3.Connection, table: str, row: int) -> None:
    """Write the checksum of a fact that was just added or completed; the latest one counts."""
    connection.execute(
        "INSERT INTO checksums (fact, row, value) VALUES (?, ?, ?)",
        (table, row, checksum(connection, table, row)),
    )


def checksums(connection: sqlite3.Connection) -> dict[tuple[str, int], int]:
    """Return the checksum that was written with each fact, by its table and row: the latest."""
    rows = connection.execute("SELECT fact, row, value FROM checksums ORDER BY id")
    return {(table, row): value for table, row, value in rows}


# --- the check of every row


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


def damage(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield what is damaged, the facts first: they have names that a person knows."""
    with snapshot(connection):
        for check in (_changed_facts, _broken_structure):
            try:
                yield from map(plain, check(connection))
            except ERRORS as error:
                yield plain(str(error))


def _changed_facts(connection: sqlite3.Connection) -> Iterator[str]:
    number, last = connection.execute("SELECT count(*), max(id) FROM checksums").fetchone()
    if number != (last or 0):
        yield "rows of checksums are missing"
    for (table, row), value in checksums(connection).items():
        if table not in TABLES:
            yield "rows of checksums are changed"
            continue
        try:
            same = checksum(connection, table, row) == value
        except sqlite3.OperationalError:  # no damage: interrupted, say
            raise
        except ERRORS:
            same = False
        if not same:
            yield _described(connection, table, row)


def _broken_structure(connection: sqlite3.Connection) -> Iterator[str]:
    connection.execute("PRAGMA cell_size_check = ON")
    for (line,) in connection.execute("PRAGMA integrity_check").fetchall():
        if line != "ok":
            yield line
    for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check").fetchall():
        yield f"row {row} of {table} refers to a row of {parent} that there is not"


def _described(connection: sqlite3.Connection, table: str, row: int) -> str:
    """Return a fact's name for a person, where it can be read."""
    try:
        if table in ("trials", "closures"):
            sql = "SELECT ulid FROM trials WHERE id = ?"
            return f"trial {connection.execute(sql, (row,)).fetchone()[0]}"
        if table == "commits":
            sql = "SELECT sha FROM commits WHERE id = ?"
            return f"commit {connection.execute(sql, (row,)).fetchone()[0][:10]}"
    except (TypeError, *ERRORS):
        pass
    return f"row {row} of {table}"


# --- the union of two ledgers


class Union:
    """Carries facts of one ledger into another, with names for keys, and only what is as it was
    written. The caller begins and commits the transaction."""

    def __init__(self, source: sqlite3.Connection, target: sqlite3.Connection) -> None:
        self._source = source
        self._target = target
        self._checksums: dict[tuple[str, int], int] | None = None  # where the source may be damaged
        self._keys: dict[tuple[str, int], int] = {}  # of rows of the source, in the target
        self._references: dict[str, dict[str, str]] = {}

    def add_all(self) -> int:
        """Add every fact, and the trials that have not ended. Return how many of the facts, or of
        what they refer to, are damaged: those are left out."""
        running = "SELECT 'trials', id FROM trials WHERE id NOT IN (SELECT trial FROM outcomes)"
        try:
            self._checksums = checksums(self._source)
            rows = [*self._checksums, *self._source.execute(running).fetchall()]
        except ERRORS:
            return 1
        left_out = 0
        for table, row in rows:
            try:
                self._key(table, row)
            except (LookupError, *ERRORS):
                left_out += 1
        return left_out

    def add(self, table: str, row: int) -> int:
        """Add a fact that the target lacks, or has without all its parts, after what it refers to.
        Return its key in the target. Raises LookupError where one of them is damaged."""
        if self._checksums is not None:
            self._verify(table, row, self._checksums.get((table, row)))
        columns, (values,) = self._rows(table, f"SELECT * FROM {table} WHERE rowid = ?", row)
        if "id" in columns:
            columns, values = columns[1:], values[1:]
        if table == "trials" and self._went_on(values[columns.index("ulid")], row):
            values[columns.index("ulid")] = ulids.second(values[columns.index("ulid")])
        key = self._find(table, columns, values)
        parts = {} if key and self._is_complete(table, key) else PARTS.get(table, {})
        contents = {part: self._rows(part, sql, row) for part, sql in parts.items()}
        changes = self._target.total_changes
        if key is None:
            key = self._insert(table, columns, [values])
        for part, (names, rows) in contents.items():
            owner = "revision" if part == "parents" else "trial"
            self._insert(part, [owner, *names], [[key, *each] for each in rows])
        if self._target.total_changes > changes and (
            table != "trials" or self._is_complete(table, key)
        ):
            seal(self._target, table, key)
        self._keys[table, row] = key
        return key

    def _went_on(self, ulid: str, row: int) -> bool:
        """Return True if the target has a trial as interrupted of which the source has more: its
        node was cut off. What the source has comes as a second trial."""
        sql = "SELECT kind != 'interrupted', epochs FROM outcomes WHERE trial = "
        named = "(SELECT id FROM trials WHERE ulid = ?)"
        here = self._target.execute(sql + named, (ulid,)).fetchone()
        there = self._source.execute(sql + "?", (row,)).fetchone()
        return bool(here and there and not here[0] and there > here)

    def _is_complete(self, table: str, key: int) -> bool:
        """Return True for a trial with its outcome, and for a commit with its parents."""
        sql = next(iter(PARTS[table].values())) if table in PARTS else "SELECT ?"
        return self._target.execute(sql, (key,)).fetchone() is not None

    def _verify(self, table: str, row: int, written: int | None) -> None:
        """Raise LookupError for a fact that is not as it was written, or not there."""
        is_running = table == "trials" and written is None
        if not is_running and written != checksum(self._source, table, row):
            raise LookupError(f"row {row} of {table} is damaged")
        if why := validation.problem(self._source, table, row):
            raise LookupError(f"row {row} of {table}: {why}")

    def _rows(self, table: str, sql: str, row: int) -> tuple[list[str], list[list[Any]]]:
        """Return the columns and rows of a fact's part, with the target's keys."""
        if table not in self._references:
            listed = self._source.execute(f"PRAGMA foreign_key_list({table})").fetchall()
            self._references[table] = {name: to for _, _, to, name, *_ in listed}
            if table == "points":  # without REFERENCES, which would cost most of recording
                self._references[table] = {"metric": "metrics"}
        cursor = self._source.execute(sql, (row,))
        columns = [name for name, *_ in cursor.description]
        tables = [self._references[table].get(name) for name in columns]
        return columns, [
            [
                self._key(to, value) if to and value is not None else value
                for to, value in zip(tables, values, strict=True)
            ]
            for values in cursor.fetchall()
        ]

    def _key(self, table: str, row: int) -> int:
        return self._keys.get((table, row)) or self.add(table, row)

    def _find(self, table: str, columns: list[str], values: list[Any]) -> int | None:
        """Return the key of the row of this name, or of an equal row where rows have no name."""
        named = {
            name: value
            for name, value in zip(columns, values, strict=True)
            if NAMES.get(table, name) == name
        }
        same = " AND ".join(f"{name} IS ?" for name in named)
        row = self._target.execute(
            f"SELECT rowid FROM {table} WHERE {same}", tuple(named.values())
        ).fetchone()
        return None if row is None else int(row[0])

    def _insert(self, table: str, columns: list[str], rows: list[list[Any]]) -> int:
        marks = ", ".join("?" * len(columns))
        sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}) ON CONFLICT DO NOTHING"
        key = 0
        for values in rows:
            key = self._target.execute(sql, values).lastrowid or 0
        return key
