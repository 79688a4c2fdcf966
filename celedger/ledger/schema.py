"""The schema of the ledger: its version, and how an older ledger is brought to it. docs/ledger.md
is its published contract.

Lives here: the migrations (tables, triggers and views as literal SQL), and the transaction that
applies them. It must not know where the file is, who holds it, or what is read from it.

A migration that has shipped is never edited or renamed. A new one stands at the end of
`MIGRATIONS` and adds a line to docs/ledger.md. It calls nothing of today's code but the checksums
of its own version: what other code does tomorrow must not change what a ledger of an older schema
becomes. One file of each older schema lies in tests/ledgers/.
"""

from __future__ import annotations

import hashlib
import json
import marshal
import re
import sqlite3
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from celedger.ledger import checksums, tables

if TYPE_CHECKING:
    from sqlite_utils import Database

APPLICATION_ID = 0x63656C65  # "cele": marks a file as a ledger

# Every table, `sqlite-utils`' own among them.
TABLES = (*sorted(re.findall(r"CREATE TABLE (\w+)", tables.TABLES)), "_sqlite_migrations")


def version() -> int:
    """Return the version (PRAGMA user_version) of today's schema."""
    return max(map(_number, MIGRATIONS))


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a ledger to today's schema in one transaction. The caller holds the file lock. Raises
    ValueError where the ledger's version is not that of its latest migration."""
    from sqlite_utils import Database, Migrations  # 0.3 s of a process

    migrations = Migrations("celedger")
    for name, migration in MIGRATIONS.items():
        migrations(name=name)(migration)
    db = Database(connection, execute_plugins=False)
    (before,) = connection.execute("PRAGMA user_version").fetchone()
    with db.atomic():
        connection.execute(f"PRAGMA user_version = {version()}")  # first: it waits for the lock
        if before != max((_number(each.name) for each in migrations.applied(db)), default=0):
            raise ValueError("the version in its header")
        migrations.apply(db)


def _number(migration: str) -> int:
    return int(migration.partition("_")[0])


APPEND_ONLY = re.compile(
    r"CREATE TRIGGER (\w+)_never_\w+ BEFORE (UPDATE|DELETE) ON \1 BEGIN "
    r"SELECT RAISE\(ABORT, '[\w :-]+'\); END"
)
"""The triggers that the migrations make: they refuse, and do nothing else."""


# --- the migrations, each frozen as it shipped. Schemas 1 to 4 were never released: one step brings
# a ledger of theirs to schema 5


def _append_only(db: Database, table: str) -> None:
    for verb, done in (("UPDATE", "changed"), ("DELETE", "deleted")):
        db.conn.execute(
            f"CREATE TRIGGER {table}_never_{done} BEFORE {verb} ON {table} BEGIN "
            f"SELECT RAISE(ABORT, 'the ledger is append-only: a row of {table} is never "
            f"{done}'); END"
        )


def _fifth(db: Database) -> None:
    """Make the tables and views that are not there. Those of an older schema keep their rows, and
    lose the columns that nothing reads; facts without a checksum get one, of what they are now."""
    before = _names(db)
    sound = _sound_footprints(db) if "checksums" in before else []
    verdicts = [] if "trial_sets" in before else _taken(db, "verdicts", before)
    acts = _taken(db, "baselines", before)  # it had a list of the acts: the code knows them
    for view in ("drift", "latest"):
        db.conn.execute(f"DROP VIEW IF EXISTS {view}")
    columns = "SELECT name FROM pragma_table_info(?)"
    for table, column in _DROPPED:
        if (column,) in db.conn.execute(columns, (table,)).fetchall():
            db.conn.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    if "checksums" in before:
        db.conn.execute("ALTER TABLE checksums ADD COLUMN schema INTEGER NOT NULL DEFAULT 5")
    there = _names(db)
    # Not `executescript`, which would commit the migration's transaction.
    for statement in (tables.TABLES + tables.VIEWS).split(";\n"):
        _, kind, name, *_ = statement.split() or ("", "", "")
        if name and name not in there:
            db.conn.execute(statement)
            if kind == "TABLE" and name != "jobs":
                _append_only(db, name)
    for row in verdicts:  # they held their trials
        sets = [_trial_set(db, text) for text in row[14:16]]  # trials, baseline
        _insert(db, "verdicts", (*row[:14], *sets, *row[16:]))
    for row in acts:
        _insert(db, "baselines", row)
    for table in checksums.COVERED[5] if "checksums" not in before else ():
        ended = "WHERE id IN (SELECT trial FROM outcomes)" if table == "trials" else ""
        for (key,) in db.conn.execute(f"SELECT rowid FROM {table} {ended} ORDER BY 1").fetchall():
            _seal(db, table, key)
    for key in sound:  # what is damaged keeps a checksum that does not fit
        _seal(db, "footprints", key)
    db.conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")


# Columns that older schemas had.
_DROPPED = (
    ("footprints", "code"), ("footprints", "modules"), ("jobs", "payload"), ("jobs", "lease_until"),
)  # fmt: skip


def _names(db: Database) -> set[str]:
    return {name for (name,) in db.conn.execute("SELECT name FROM sqlite_schema").fetchall()}


def _taken(db: Database, table: str, names: set[str]) -> list[tuple[Any, ...]]:
    """Return the rows of a table, which is dropped; none where it is not there."""
    if table not in names:
        return []
    rows: list[tuple[Any, ...]] = db.conn.execute(f"SELECT * FROM {table} ORDER BY id").fetchall()
    db.conn.execute(f"DROP TABLE {table}")
    return rows


def _insert(db: Database, table: str, row: tuple[Any, ...]) -> None:
    db.conn.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)


def _trial_set(db: Database, ulids: str) -> int:
    text = json.dumps(json.loads(ulids), separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).digest()
    db.conn.execute(
        "INSERT INTO trial_sets (digest, ulids) VALUES (?, ?) ON CONFLICT DO NOTHING",
        (digest, text),
    )
    (key,) = db.conn.execute("SELECT id FROM trial_sets WHERE digest = ?", (digest,)).fetchone()
    return int(key)


def _sound_footprints(db: Database) -> list[int]:
    """Return the footprints that are as they were written: their checksums covered all columns."""
    latest = (
        "SELECT row, value FROM checksums WHERE id IN "
        "(SELECT max(id) FROM checksums WHERE fact = 'footprints' GROUP BY row)"
    )
    own = "SELECT * FROM footprints WHERE rowid = ?"
    return [
        row for row, value in db.conn.execute(latest).fetchall()
        if zlib.crc32(marshal.dumps([db.conn.execute(own, (row,)).fetchall()], 2)) == value
    ]  # fmt: skip


def _seal(db: Database, table: str, row: int) -> None:
    db.conn.execute(
        "INSERT INTO checksums (fact, row, value, schema) VALUES (?, ?, ?, 5)",
        (table, row, checksums.checksum(db.conn, table, row, 5)),
    )


MIGRATIONS: Mapping[str, Callable[[Database], None]] = {"5_trial_facts": _fifth}
