"""The schema of the ledger: its version, and how an older ledger is brought to it. docs/ledger.md
is its published contract.

Lives here: the list of migrations and the transaction that applies them. It must not know where
the file is, who holds it, or what is read from it.

A migration that has shipped is never edited or renamed. A new one stands at the end of
`MIGRATIONS` and adds a line to docs/ledger.md; see `migrations.py` for what it may contain.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from celedger.ledger import migrations

if TYPE_CHECKING:
    from sqlite_utils import Database

APPLICATION_ID = migrations.APPLICATION_ID

MIGRATIONS: Mapping[str, Callable[[Database], None]] = {
    "1_first": migrations.first,
    "2_sources": migrations.sources,
    "3_checksums": migrations.add_checksums,
    "4_findings": migrations.findings,
    "5_trial_facts": migrations.trial_facts,
}

# Every table, `sqlite-utils`' own among them.
TABLES = (
    "baselines", "bisects", "checksums", "closures", "commits", "definitions", "derived",
    "environments", "findings", "fingerprints", "footprints", "jobs", "metrics", "outcomes",
    "parents", "points", "said", "steps", "summaries", "tasks", "trial_facts", "trial_sets",
    "trials", "verdicts", "_sqlite_migrations",
)  # fmt: skip


def version() -> int:
    """Return the version (PRAGMA user_version) of today's schema."""
    return len(MIGRATIONS)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a ledger to today's schema in one transaction. The caller holds the file lock. Raises
    ValueError where the ledger's version is not the number of its migrations."""
    from sqlite_utils import Database, Migrations  # 0.3 s of a process

    known = Migrations("celedger")
    for name, migration in MIGRATIONS.items():
        known(name=name)(migration)
    db = Database(connection, execute_plugins=False)
    (before,) = connection.execute("PRAGMA user_version").fetchone()
    with db.atomic():
        connection.execute(f"PRAGMA user_version = {version()}")  # first: it waits for the lock
        if len(known.pending(db)) != version() - before:
            raise ValueError("the version in its header")
        known.apply(db)


APPEND_ONLY = re.compile(
    r"CREATE TRIGGER (\w+)_never_\w+ BEFORE (UPDATE|DELETE) ON \1 BEGIN "
    r"SELECT RAISE\(ABORT, '[\w :-]+'\); END"
)
"""The triggers that the migrations make: they refuse, and do nothing else."""
