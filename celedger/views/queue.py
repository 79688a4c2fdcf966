"""The queue as text and JSON: what waits, what runs, how the last jobs ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from celedger.model import Job, JobState
from celedger.views import export
from celedger.views.format import ago, count, plain, short

_OPEN = (JobState.QUEUED, JobState.RUNNING, JobState.WAITING)
_RECENT = 5  # ended jobs shown without being asked for


@dataclass(frozen=True, slots=True)
class Queue:
    jobs: Sequence[Job]  # the oldest first
    notes: int  # merges that hooks have noted and no worker has taken in yet
    worker: bool  # whether a worker lives
    waits: str = ""  # why no worker may take the notes in


def _chosen(jobs: Sequence[Job], every: bool) -> list[Job]:
    ended = [j for j in jobs if j.state not in _OPEN]
    hidden = set() if every else {j.id for j in ended[:-_RECENT]}
    return [j for j in jobs if j.id not in hidden]


def _state(job: Job, queue: Queue) -> tuple[str, str]:
    """Return the state of a job and its message. One that runs without a worker is lost."""
    if job.state is JobState.RUNNING and not queue.worker:
        return "lost", "its worker died"
    return job.state.value, job.message


def queue_text(queue: Queue, *, now: float, every: bool = False) -> str:
    """One line a job, the oldest first, and what to type where no worker is at it."""
    lines = []
    for job in _chosen(queue.jobs, every):
        when = ago(job.ended or job.created, now)
        state, message = _state(job, queue)
        lines.append(f"{short(job.commit)}  {state:<10}  {when:<14}  {plain(message)}".rstrip())
    if queue.notes:
        why = f"; waits: {plain(queue.waits)}" if queue.waits else ""
        lines.append(f"{count(queue.notes, 'merge')} noted, not yet in the queue{why}")
    going = any(j.state in (JobState.QUEUED, JobState.RUNNING) for j in queue.jobs)
    if (going or (queue.notes and not queue.waits)) and not queue.worker:
        lines.append("no worker runs: `celedger worker` goes on")
    return "\n".join(lines) or "the queue is empty"


def queue_json(queue: Queue) -> dict[str, export.Json]:
    """Every job, with full hashes and times in seconds since the epoch."""
    return export.document(
        notes=queue.notes,
        waits=queue.waits,
        worker=queue.worker,
        jobs=[
            {
                "id": job.id, "commit": job.commit, "suite": job.suite, "state": state,
                "created": job.created, "ended": job.ended, "attempts": job.attempts,
                "message": message, "worktree": job.key,
            }
            for job in queue.jobs
            for state, message in [_state(job, queue)]
        ],
    )  # fmt: skip
