"""The schema of the ledger: its version, and how an older ledger is brought to it. docs/ledger.md
is its published contract.

Lives here: the migrations (tables, triggers and views as literal SQL), and the transaction that
applies them. It must not know where the file is, who holds it, or what is read from it.

A migration that has shipped is never edited or renamed. A new one stands at the end of
`MIGRATIONS` and adds a line to docs/ledger.md. It calls nothing of today's code but the checksums
of its own version: what other code does tomorrow must not change what a ledger of an older schema
becomes.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from celedger.ledger import tables

if TYPE_CHECKING:
    from sqlite_utils import Database

APPLICATION_ID = 0x63656C65  # "cele": marks a file as a ledger

# Every table, `sqlite-utils`' own among them.
TABLES = (*sorted(re.findall(r"CREATE TABLE (\w+)", tables.TABLES)), "_sqlite_migrations")


def version() -> int:
    """Return the version (PRAGMA user_version) of today's schema."""
    return max(map(_number, MIGRATIONS))


def is_unreleased(connection: sqlite3.Connection) -> bool:
    """Return True for a ledger of before the first release: no migration of today's made it."""
    names = connection.execute("SELECT name FROM _sqlite_migrations").fetchall()
    return not any(name in MIGRATIONS for (name,) in names)


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


# --- the migrations, each frozen as it shipped. Schemas 1 to 4 were never released


def _fifth(db: Database) -> None:
    """Make the tables and views."""
    # Not `executescript`, which would commit the migration's transaction.
    for statement in (tables.TABLES + tables.VIEWS).split(";\n"):
        db.conn.execute(statement)
        table = re.search(r"CREATE TABLE (\w+)", statement)
        if table is not None and table[1] != "jobs":
            _append_only(db, table[1])
    db.conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _append_only(db: Database, table: str) -> None:
    for verb, done in (("UPDATE", "changed"), ("DELETE", "deleted")):
        db.conn.execute(
            f"CREATE TRIGGER {table}_never_{done} BEFORE {verb} ON {table} BEGIN "
            f"SELECT RAISE(ABORT, 'the ledger is append-only: a row of {table} is never "
            f"{done}'); END"
        )


MIGRATIONS: Mapping[str, Callable[[Database], None]] = {"5_trial_facts": _fifth}
