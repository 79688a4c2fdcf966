"""What reading and writing share: the connection, its transactions, and its errors.

Lives here: one place that begins transactions (immediately, so that a writer waits instead of
being told "locked") and one that turns SQLite's errors into sentences. It must not know a table.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from celedger.errors import LedgerError
from celedger.ledger import opening


class Store:
    """An open ledger file. For one thread of one process."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self.folder = path.parent
        self._connection = connection
        self._metric_ids: dict[str, int] = {}
        self._trial_ids: dict[str, int] = {}
        self._failed_parts = 0

    @classmethod
    def open(cls, path: Path, *, create: bool = False, readonly: bool = False) -> Self:
        """The ledger at `path`. `create` makes one where there is none (or an empty file).
        Raises LedgerError: absent, foreign, corrupt, from a newer celedger, not writable."""
        path = Path(path).absolute()
        try:
            if readonly:
                return cls(path, opening.open_for_reading(path))
            return cls(path, opening.open_for_writing(path, create=create))
        except sqlite3.Error as error:
            raise opening.explain(error, path) from error

    def close(self) -> None:
        """The last one to close folds the -wal into the file."""
        with contextlib.suppress(sqlite3.Error):  # a full disk: the -wal stays and is read later
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing of what is written inside. Within another one it is a part of that one,
        and when a part fails the whole does, even if the part's error was caught: a savepoint for
        each part was measured to cost a sixth of recording."""
        connection = self._connection
        try:
            nested = connection.in_transaction
            if nested:
                try:
                    yield connection
                except BaseException:
                    self._failed_parts += 1
                    raise
                return
            connection.execute("BEGIN IMMEDIATE")
            failed_parts = self._failed_parts
            try:
                yield connection
                if self._failed_parts != failed_parts:
                    raise LedgerError(f"a part of what was to be written to {self.path} failed")
                connection.execute("COMMIT")
            except BaseException:
                self._metric_ids.clear()  # rows made inside are gone, and so are their ids
                self._trial_ids.clear()
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise opening.explain(error, self.path) from error

    def _rows(self, sql: str, values: Sequence[object] = ()) -> list[Any]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise opening.explain(error, self.path) from error
