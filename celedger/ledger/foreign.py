"""Read SQLite files of other programs, which may be writing them. Knows nothing of their tables."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from celedger.ledger import opening


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    """Return what a query finds. Raises ValueError for a file that does not answer it."""
    try:
        with closing(opening.readonly(path)) as connection:
            opening.limit(connection)
            return connection.execute(sql).fetchall()
    except sqlite3.Error as error:
        raise ValueError(str(error)) from error
