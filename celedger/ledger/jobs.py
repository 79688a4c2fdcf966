"""The queue: work that waits for the worker. The only rows of a ledger that change.

Lives here: enqueue, claim under a lease, heartbeat, finish. It must not know what a job means,
nor keep a clock: `now` is handed in, in seconds since the epoch.
"""

from __future__ import annotations

from celedger.ledger.store import Store, encoded
from celedger.model import Job, JobState, NewJob

_COLUMNS = (
    "id, kind, sha, suite, created, key, payload, state, owner, lease_until, attempts, message, "
    "ended"
)
_OPEN = (JobState.QUEUED, JobState.WAITING)


class Jobs(Store):
    def enqueue(self, job: NewJob) -> Job:
        """Queue a job. Queued and waiting jobs of the same kind, suite and (non-empty) key are
        superseded; the same commit queued twice is one job."""
        with self.transaction() as connection:
            if job.key:
                same = "state IN ('queued', 'waiting') AND (kind, suite, key) = (?, ?, ?)"
                queue = (job.kind, job.suite, job.key)
                queued = self._jobs(f"WHERE {same} ORDER BY id DESC", *queue)
                if queued and queued[0].commit == job.commit:
                    return queued[0]
                connection.execute(
                    f"UPDATE jobs SET state = 'superseded', ended = ?, message = ? WHERE {same}",
                    (job.created, f"superseded by {job.commit}", *queue),
                )
            cursor = connection.execute(
                "INSERT INTO jobs (kind, sha, suite, created, key, payload, state, owner, "
                "lease_until, attempts, message) VALUES (?, ?, ?, ?, ?, ?, 'queued', '', 0, 0, '')",
                (job.kind, job.commit, job.suite, job.created, job.key, encoded(job.payload)),
            )
            return self._jobs("WHERE id = ?", cursor.lastrowid)[0]

    def claim(self, owner: str, now: float, lease: float) -> Job | None:
        """Return the oldest job that is queued, or whose owner let its lease of so many seconds run
        out (a worker that was killed): it is `owner`'s until `now + lease`."""
        with self.transaction() as connection:
            waiting = self._jobs(
                "WHERE state = 'queued' OR (state = 'running' AND lease_until <= ?) "
                "ORDER BY id LIMIT 1",
                now,
            )
            if not waiting:
                return None
            connection.execute(
                "UPDATE jobs SET state = 'running', owner = ?, lease_until = ?, "
                "attempts = attempts + 1, message = '' WHERE id = ?",
                (owner, now + lease, waiting[0].id),
            )
            return self._jobs("WHERE id = ?", waiting[0].id)[0]

    def heartbeat(self, job: int, owner: str, now: float, lease: float) -> bool:
        """Extend the lease. Returns False when the job is no longer `owner`'s."""
        return self._update(job, owner, lease_until=now + lease)

    def finish_job(
        self, job: int, owner: str, state: JobState, now: float, message: str = ""
    ) -> bool:
        """Record how a job ended; `queued` hands it back, `waiting` keeps it until `wake`. Returns
        False when it was no longer `owner`'s."""
        ended = None if state in _OPEN else now
        return self._update(
            job, owner, state=state.value, message=encoded(message), ended=ended, lease_until=0
        )

    def _update(self, job: int, owner: str, **row: object) -> bool:
        with self.transaction() as connection:
            updated = connection.execute(
                f"UPDATE jobs SET {', '.join(f'{column} = ?' for column in row)} "
                "WHERE id = ? AND owner = ? AND state = 'running'",
                (*row.values(), job, owner),
            )
            return updated.rowcount > 0

    def wake(self) -> None:
        """Queue all waiting jobs again, as if nobody had tried them."""
        with self.transaction() as connection:
            connection.execute(
                "UPDATE jobs SET state = 'queued', attempts = 0, ended = NULL "
                "WHERE state = 'waiting'"
            )

    def jobs(self, *, state: JobState | None = None) -> list[Job]:
        """Return the jobs, the oldest first."""
        if state is None:
            return self._jobs("ORDER BY id")
        return self._jobs("WHERE state = ? ORDER BY id", state.value)

    def _jobs(self, where: str, *values: object) -> list[Job]:
        return self._nouns(Job, f"SELECT {_COLUMNS} FROM jobs {where}", values)
