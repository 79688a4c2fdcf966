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
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from celedger.base.text import plain
from celedger.ledger import ulid as ulids
from celedger.ledger import validation

# The columns of a fact's own row, by its table, each table after those that its rows refer to.
COLUMNS = {
    "commits": "id, sha, tree, author, author_time, commit_time, subject",
    "metrics": "id, name",
    "tasks": "id, recipe, suite, name, definition",
    "definitions": "id, metric, task, unit, direction, kind, floor, floor_is_relative, summary, "
    "recorded",
    "environments": "id, fingerprint, details",
    "footprints": "id, digest, paths, inputs",
    "trial_sets": "id, digest, ulids",
    "trials": "id, ulid, revision, task, environment, seed, why, started, host, device",
    "trial_facts": "id, trial, name, value",
    "closures": "trial, footprint, content, unknown",
    "verdicts": "id, revision, suite, task, metric, recipe, environment, kind, level, value, "
    "effect, low, high, p_value, trials, baseline, rule, note, recorded",
    "bisects": "id, ulid, suite, task, metric, good, bad, culprits, probability, status, ended, "
    "report",
    "baselines": "id, ulid, act, revision, suite, task, metric, who, why, at",
    "findings": "id, ulid, verb, suite, task, revision, before, command, started, headline, "
    "document",
    "said": "id, ulid, incident, state, event, kind, suite, task, metric, oldest, revision, job, "
    "address, details, at",
}  # fmt: skip
TABLES = tuple(COLUMNS)
# The columns that name a row in every ledger. Rows of other tables are equal if all columns are.
NAMES = {
    "commits": ("sha",), "metrics": ("name",), "tasks": ("recipe",),
    "environments": ("fingerprint",), "footprints": ("digest",), "trial_sets": ("digest",),
    "trials": ("ulid",), "trial_facts": ("trial", "name"), "closures": ("trial",),
    "bisects": ("ulid",), "baselines": ("ulid",), "findings": ("ulid",), "said": ("ulid",),
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
        "summaries": "SELECT metric, task, value, definition FROM summaries "
        "WHERE trial = ? ORDER BY metric",
    },
}
# What reading a damaged file can raise, besides what SQLite says: text that is no UTF-8, sizes
# beyond all memory.
ERRORS = (sqlite3.Error, ValueError, OverflowError, MemoryError)


# The rows that the checksum of a fact covers, its own first, since a version of the schema. A
# version that changes the columns or parts of a fact adds its own entry and leaves the others.
COVERED: dict[int, dict[str, tuple[str, ...]]] = {
    5: {
        table: (f"SELECT {columns} FROM {table} WHERE rowid = ?", *PARTS.get(table, {}).values())
        for table, columns in COLUMNS.items()
    }
}


def checksum(connection: sqlite3.Connection, table: str, row: int, schema: int) -> int:
    """Return the CRC-32 of a fact: of the columns that a version of the schema knows, as Python's
    marshal (version 2) writes them."""
    queries = COVERED[max(v for v, facts in COVERED.items() if v <= schema and table in facts)]
    rows = [connection.execute(sql, (row,)).fetchall() for sql in queries[table]]
    return zlib.crc32(marshal.dumps(rows, 2))


def seal(connection: sqlite3.Connection, table: str, row: int) -> None:
    """Write the checksum of a fact that was just added or completed; the latest one counts."""
    schema = max(COVERED)
    connection.execute(
        "INSERT INTO checksums (fact, row, value, schema) VALUES (?, ?, ?, ?)",
        (table, row, checksum(connection, table, row, schema), schema),
    )


def is_sound(connection: sqlite3.Connection, table: str, row: int) -> bool:
    """Return True if a fact is what it was when its checksum was written."""
    sql = "SELECT value, schema FROM checksums WHERE (fact, row) = (?, ?) ORDER BY id DESC LIMIT 1"
    written = connection.execute(sql, (table, row)).fetchone()
    return written is not None and checksum(connection, table, row, written[1]) == written[0]


def checksums(connection: sqlite3.Connection) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the latest checksum that was written with each fact, and the schema whose columns it
    covers, by the fact's table and row."""
    rows = connection.execute("SELECT fact, row, value, schema FROM checksums ORDER BY id")
    return {(table, row): (value, schema) for table, row, value, schema in rows}


def facts(
    connection: sqlite3.Connection, written: Collection[tuple[str, int]]
) -> Iterator[tuple[str, int]]:
    """Yield the table and row of each fact: those with a checksum in the order in which they were
    completed, then the others."""
    yield from (key for key in written if key[0] in COLUMNS)
    for table in COLUMNS:
        for (row,) in connection.execute(f"SELECT rowid FROM {table} ORDER BY 1").fetchall():
            if (table, row) not in written:
                yield table, row


def has_ended(connection: sqlite3.Connection, table: str, row: int) -> bool:
    """Return False for a trial without an outcome. Every other fact is complete."""
    sql = "SELECT 1 FROM outcomes WHERE trial = ?"
    return table != "trials" or connection.execute(sql, (row,)).fetchone() is not None


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
        for check in (_changed_facts, _broken_structure, _broken_rules):
            try:
                yield from map(plain, check(connection))
            except ERRORS as error:
                yield plain(str(error))


def _changed_facts(connection: sqlite3.Connection) -> Iterator[str]:
    number, last = connection.execute("SELECT count(*), max(id) FROM checksums").fetchone()
    if number != (last or 0):
        yield "rows of checksums are missing"
    written = checksums(connection)
    if any(table not in COLUMNS for table, _ in written):
        yield "rows of checksums are changed"
    for table, row in facts(connection, written):
        try:
            sealed = written.get((table, row))
            if sealed is None:
                if has_ended(connection, table, row):
                    yield f"{described(connection, table, row)} has no checksum"
                continue
            value, schema = sealed
            same = value == checksum(connection, table, row, schema)
        except sqlite3.OperationalError:  # no damage: interrupted, say
            raise
        except ERRORS:
            same = False
        if not same:
            yield described(connection, table, row)


def _broken_structure(connection: sqlite3.Connection) -> Iterator[str]:
    connection.execute("PRAGMA cell_size_check = ON")
    for (line,) in connection.execute("PRAGMA integrity_check").fetchall():
        if line != "ok":
            yield line
    for table, row, parent, _ in connection.execute("PRAGMA foreign_key_check").fetchall():
        yield f"row {row} of {table} refers to a missing row of {parent}"


def _broken_rules(connection: sqlite3.Connection) -> Iterator[str]:
    """Yield the facts that no celedger writes: an older one took them in from another ledger."""
    return validation.described(connection, validation.broken(connection))


def described(connection: sqlite3.Connection, table: str, row: int) -> str:
    """Return a fact's name for a person; its row's number where that cannot be read."""
    return name_of(connection, table, row) or f"row {row} of {table}"


def name_of(connection: sqlite3.Connection, table: str, row: int) -> str | None:
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
    return None


# --- the union of two ledgers


class Union:
    """Carries facts of one ledger into another, with names for keys. The caller begins and commits
    the transaction.

    Args:
        written: The checksums of the source, where it may be damaged: only what is as it was
            written is carried. None trusts the source.
    """

    def __init__(
        self,
        source: sqlite3.Connection,
        target: sqlite3.Connection,
        written: Mapping[tuple[str, int], tuple[int, int]] | None = None,
    ) -> None:
        self._source = source
        self._target = target
        self._written = written
        self._keys: dict[tuple[str, int], int] = {}  # of rows of the source, in the target
        self._begun: set[tuple[str, int]] = set()

    def add_all(self) -> list[tuple[str, int]]:
        """Add every fact, and the trials that have not ended. Return those that are damaged, or
        refer to one that is: they are left out."""
        left_out = []
        try:
            for table, row in facts(self._source, self._written or {}):
                try:
                    self.carry(table, row)
                except (LookupError, *ERRORS):
                    left_out.append((table, row))
        except ERRORS:  # those without a checksum cannot be listed: trials that have not ended
            left_out.append(("trials", 0))
        return left_out

    def add(self, table: str, row: int) -> int:
        """Add a fact that the target lacks, or has without all its parts, after what it refers to.
        Return its key in the target."""
        if self._written is not None:
            self._verify(table, row, self._written.get((table, row)))
        columns, (values,) = self._rows(
            table, f"SELECT {COLUMNS[table]} FROM {table} WHERE rowid = ?", row
        )
        columns, values = _without_id(columns, values)
        if table == "trials" and self._went_on(values[columns.index("ulid")], row):
            values[columns.index("ulid")] = ulids.second(values[columns.index("ulid")])
        key = self._find(table, columns, values)
        parts = {} if key and self._is_complete(table, key) else PARTS.get(table, {})
        contents = {part: self._rows(part, sql, row) for part, sql in parts.items()}
        changes = self._target.total_changes
        if key is None:
            key = self._insert(table, columns, [values])
        for part, (names, rows) in contents.items():
            self._insert(
                part, [validation.PART_OF[part][0], *names], [[key, *values] for values in rows]
            )
        if self._target.total_changes > changes and (
            table != "trials" or self._is_complete(table, key)
        ):
            seal(self._target, table, key)
        self._keys[table, row] = key
        return key

    def _went_on(self, ulid: str, row: int) -> bool:
        """Return True if the target has a trial as interrupted of which the source has more: its
        node was cut off. What the source has comes as a second trial."""
        sql = (
            "SELECT coalesce(kind, 'interrupted') != 'interrupted', coalesce(epochs, "
            "(SELECT count(DISTINCT epoch) FROM points p WHERE p.trial = r.id)) "
            "FROM trials r LEFT JOIN outcomes o ON o.trial = r.id WHERE r."
        )
        ended = self._target.execute(f"{sql}ulid = ? AND o.trial NOTNULL", (ulid,)).fetchone()
        if ended is None or ended[0]:
            return False
        return bool(self._source.execute(f"{sql}id = ?", (row,)).fetchone() > ended)

    def _is_complete(self, table: str, key: int) -> bool:
        """Return True for a trial with its outcome, and for a commit with its parents."""
        sql = next(iter(PARTS[table].values())) if table in PARTS else "SELECT ?"
        return self._target.execute(sql, (key,)).fetchone() is not None

    def _verify(self, table: str, row: int, written: tuple[int, int] | None) -> None:
        """Raise LookupError for a fact that is not as it was written, or not there."""
        if written is not None:
            value, schema = written
            same = value == checksum(self._source, table, row, schema)
        else:
            same = not has_ended(self._source, table, row)
        if not same:
            raise LookupError(f"{described(self._source, table, row)} is damaged")
        if why := validation.problem(self._source, table, row):
            raise LookupError(f"{described(self._source, table, row)}: {why}")

    def _rows(self, table: str, sql: str, row: int) -> tuple[list[str], list[list[Any]]]:
        """Return the columns and rows of a fact's part, with the target's keys."""
        references = validation.REFERENCES.get(table, {})
        cursor = self._source.execute(sql, (row,))
        columns = [name for name, *_ in cursor.description]
        tables = [references.get(name) for name in columns]
        return columns, [
            [
                self.carry(to, value) if to and value is not None else value
                for to, value in zip(tables, values, strict=True)
            ]
            for values in cursor.fetchall()
        ]

    def carry(self, table: str, row: int) -> int:
        """Return the key in the target of a fact, which is added where the target lacks it. Raises
        LookupError where it is damaged, or refers to one that is."""
        if (table, row) in self._keys:
            return self._keys[table, row]
        if (table, row) in self._begun:
            raise LookupError(f"row {row} of {table} refers to itself")
        if key := self._already_there(table, row):
            self._keys[table, row] = key
            return key
        self._begun.add((table, row))
        try:
            return self.add(table, row)
        finally:
            self._begun.remove((table, row))

    def name(self, table: str, row: int) -> str | None:
        """Return the name of a fact of the source for a person, where it can be read."""
        return name_of(self._source, table, row)

    def _already_there(self, table: str, row: int) -> int | None:
        """Return the key in the target of a fact that is complete there, by its name."""
        if table == "closures" or len(NAMES.get(table, ())) != 1:
            return None
        (name,) = NAMES[table]
        sql = f"SELECT {name} FROM {table} WHERE rowid = ?"
        with suppress(TypeError, *ERRORS):
            (value,) = self._source.execute(sql, (row,)).fetchone()
            key = self._find(table, [name], [value])
            goes_on = table == "trials" and self._went_on(value, row)
            return key if key and self._is_complete(table, key) and not goes_on else None
        return None

    def holds(self, table: str, row: int) -> bool:
        """Return True if the target has a fact of this name, whatever the source has of it."""
        sql = f"SELECT {COLUMNS[table]} FROM {table} WHERE rowid = ?"
        with suppress(LookupError, *ERRORS):
            columns, (values,) = self._rows(table, sql, row)
            return self._find(table, *_without_id(columns, values)) is not None
        return False

    def _find(self, table: str, columns: list[str], values: list[Any]) -> int | None:
        """Return the key of the row of this name, or of an equal row where rows have no name."""
        named = {
            name: value
            for name, value in zip(columns, values, strict=True)
            if name in NAMES.get(table, columns)
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


def _without_id(columns: list[str], values: list[Any]) -> tuple[list[str], list[Any]]:
    """Return a row without its own key, which another ledger has otherwise."""
    start = int(columns[0] == "id")
    return columns[start:], values[start:]
