"""What reading a file that anybody can have made may cost.

Lives here: SQLite's limits and the time that it has, with signals let in meanwhile. It must not
know what is read.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from pathlib import Path

from celedger.base.errors import LedgerDamaged

SECONDS, SECONDS_A_MIB = 3.0, 1.0  # of processor time to read a ledger: three times what it takes
_OPCODES = 100_000  # of SQLite between two looks at the time and at signals: a millisecond
_exhausted: set[Path] = set()  # ledgers whose time is up
# What a ledger of ours never needs more of.
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1 << 28, sqlite3.SQLITE_LIMIT_SQL_LENGTH: 1 << 20,
    sqlite3.SQLITE_LIMIT_COLUMN: 100, sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0, sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
}  # fmt: skip


def distrust(connection: sqlite3.Connection, path: Path) -> None:
    """Limit what reading a file of others can cost. Signals are let in meanwhile."""
    for limit, most in _LIMITS.items():
        connection.setlimit(limit, most)
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
