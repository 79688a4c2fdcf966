"""The queue: work that waits for the worker. The only rows of a ledger that change.

Lives here: enqueue, claim, finish. It must not know what a job means, nor keep a clock: times are
handed in, in seconds since the epoch. Who claims jobs holds the lock of the one worker.
"""

from __future__ import annotations

from celedger.base.model import JobState, QueuedJob
from celedger.ledger.read import Reader
from celedger.ledger.store import encoded

_OPEN = (JobState.QUEUED, JobState.WAITING)


class Queue:
    """The queue of an open ledger."""

    def __init__(self, ledger: Reader) -> None:
        self._ledger = ledger

    def enqueue(
        self, kind: str, commit: str, suite: str, created: float, key: str = ""
    ) -> QueuedJob:
        """Queue a job. Queued and waiting jobs of the same kind, suite and (non-empty) key (a
        branch, say) are superseded; the same commit queued twice is one job."""
        with self._ledger.transaction() as connection:
            if key:
                same = "state IN ('queued', 'waiting') AND (kind, suite, key) = (?, ?, ?)"
                queue = (kind, suite, key)
                queued = self._ledger._jobs(f"WHERE {same} ORDER BY id DESC", *queue)
                if queued and queued[0].commit == commit:
                    return queued[0]
                connection.execute(
                    f"UPDATE jobs SET state = 'superseded', ended = ?, message = ? WHERE {same}",
                    (created, f"superseded by {commit}", *queue),
                )
            cursor = connection.execute(
                "INSERT INTO jobs (kind, sha, suite, created, key, state, owner, attempts, "
                "message) VALUES (?, ?, ?, ?, ?, 'queued', '', 0, '')",
                (kind, commit, suite, created, key),
            )
            return self._ledger._jobs("WHERE id = ?", cursor.lastrowid)[0]

    def claim(self, owner: str) -> QueuedJob | None:
        """Return the oldest job that is queued: it is `owner`'s now."""
        with self._ledger.transaction() as connection:
            queued = self._ledger._jobs("WHERE state = 'queued' ORDER BY id LIMIT 1")
            if not queued:
                return None
            connection.execute(
                "UPDATE jobs SET state = 'running', owner = ?, attempts = attempts + 1, "
                "message = '' WHERE id = ?",
                (owner, queued[0].id),
            )
            return self._ledger._jobs("WHERE id = ?", queued[0].id)[0]

    def finish(self, job: int, owner: str, state: JobState, now: float, message: str = "") -> bool:
        """Record how a job ended; `queued` hands it back, `waiting` keeps it until `wake`. Returns
        False when it was no longer `owner`'s."""
        with self._ledger.transaction() as connection:
            ended = connection.execute(
                "UPDATE jobs SET state = ?, message = ?, ended = ? "
                "WHERE id = ? AND owner = ? AND state = 'running'",
                (state.value, encoded(message), None if state in _OPEN else now, job, owner),
            )
            return ended.rowcount > 0

    def wake(self) -> None:
        """Queue all waiting jobs again, as if nobody had tried them."""
        with self._ledger.transaction() as connection:
            connection.execute(
                "UPDATE jobs SET state = 'queued', attempts = 0, ended = NULL "
                "WHERE state = 'waiting'"
            )
