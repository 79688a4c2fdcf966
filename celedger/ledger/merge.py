"""The union of this ledger with another one: a colleague's, CI's, another machine's.

Lives here: which facts of the other come, and in what order they count afterwards. How a fact is
carried is `facts.Union`'s business.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Sequence

from celedger.ledger import checksums
from celedger.ledger.checksums import Union
from celedger.ledger.store import Store

# What a person counts, and its table. A trial without an outcome is counted by itself.
_COUNTED = {
    "trials": "outcomes", "commits": "commits", "tasks": "tasks", "environments": "environments",
    "verdicts": "verdicts", "bisects": "bisects", "baselines": "baselines",
    "findings": "findings",
}  # fmt: skip
# Of these the latest row on a subject counts, whichever ledger it comes from.
_LATEST = {
    "verdicts": ("revision", "suite", "task", "metric"),
    "definitions": ("metric", "task"),
}


class _DryRun(Exception):
    """Ends a transaction that nobody wants to keep."""


class Merger(Store):
    def merge(self, other: Store, *, dry_run: bool = False) -> dict[str, int]:
        """Add every fact of another ledger that this one lacks; its queue stays out. A trial that
        has not ended comes with its epochs, and with its end when it is merged again. Return how
        many rows of each kind are new; a dry run keeps none."""
        added: dict[str, int] = {}
        try:
            with self.transaction() as target, checksums.snapshot(other._connection):
                before, changes = _counts(target), target.total_changes
                written = checksums.checksums(other._connection)
                union = Union(other._connection, target, written)
                for table, row in checksums.facts(other._connection, written):
                    key = union.carry(table, row)
                    if not checksums.has_ended(target, table, key):
                        self._started.append(key)
                # A trial that was unfinished here may have ended there.
                added = {name: max(0, n - before[name]) for name, n in _counts(target).items()}
                if dry_run:
                    raise _DryRun
                if target.total_changes > changes:
                    for table, subject in _LATEST.items():
                        _repeat_latest(target, table, subject)
                    self._completed = True
        except _DryRun:
            pass
        except LookupError as error:
            raise self._explained(ValueError(str(error))) from error
        return added

    def take_trials(self, other: Store, commits: Collection[str]) -> None:
        """Add the trials of some commits (hashes) of another ledger of this machine, with what
        tells whether their results may be re-used."""
        chosen = (
            "SELECT r.id FROM trials r JOIN commits c ON c.id = r.revision "
            "WHERE c.sha IN (SELECT value FROM json_each(?))"
        )
        asked = (json.dumps(list(commits)),)
        source = other._connection
        with self.transaction() as target, checksums.snapshot(source):
            union = Union(source, target)
            for (row,) in source.execute(chosen, asked).fetchall():
                union.carry("trials", row)
            for table in ("trial_facts", "closures"):
                sql = f"SELECT rowid FROM {table} WHERE trial IN ({chosen})"
                for (row,) in source.execute(sql, asked).fetchall():
                    union.carry(table, row)
            sql = f"SELECT evidence FROM derived WHERE trial IN ({chosen})"
            for (evidence,) in source.execute(sql, asked).fetchall():
                union.carry("closures", evidence)


def _counts(connection: sqlite3.Connection) -> dict[str, int]:
    number = {
        name: int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
        for name, table in _COUNTED.items()
    }
    ((begun,),) = connection.execute("SELECT count(*) FROM trials").fetchall()
    return {**number, "unfinished_trials": begun - number["trials"]}


def _repeat_latest(connection: sqlite3.Connection, table: str, subject: Sequence[str]) -> None:
    """Repeat the latest row on each subject after those that were recorded earlier and came later:
    the last row counts."""
    own = f"PARTITION BY {', '.join(subject)}"
    stale = connection.execute(
        f"SELECT id FROM (SELECT id, max(id) OVER ({own}) AS last, "
        f"row_number() OVER ({own} ORDER BY recorded DESC, id DESC) AS number FROM {table}) "
        "WHERE number = 1 AND id != last"
    ).fetchall()
    names = checksums.COLUMNS[table].removeprefix("id, ")
    for (row,) in stale:
        key = connection.execute(
            f"INSERT INTO {table} ({names}) SELECT {names} FROM {table} WHERE id = ?", (row,)
        ).lastrowid
        checksums.seal(connection, table, key or 0)
