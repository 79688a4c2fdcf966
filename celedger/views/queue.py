"""`celedger queue`: waiting and running jobs, and how the last ones ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from celedger.base.model import JobState, QueuedJob
from celedger.views.document import Document, pick
from celedger.views.format import count, iso_time, plain, short

_OPEN = (JobState.QUEUED, JobState.RUNNING, JobState.WAITING)
_RECENT = 5  # ended jobs that are printed; JSON has all


@dataclass(frozen=True, slots=True)
class Queue(Document):
    jobs: Sequence[QueuedJob]  # the oldest first
    notes: int  # merges that hooks have noted and no worker has read yet
    worker: bool  # whether a worker runs
    waits: str  # why no worker may read the notes
    # Trials on nodes: commit, task, seed, where, and whether the command that sent them lives.
    orders: Sequence[tuple[str, str, int, str, bool]] = ()

    def text(self, width: int = 100) -> str:
        """Return one line a job, and the command to type if no worker runs."""
        ended = [job for job in self.jobs if job.state not in _OPEN]
        hidden = ended[:-_RECENT]
        lines = []
        for job in self.jobs:
            if job not in hidden:
                state, message = self._state(job)
                when = iso_time(job.ended or job.created)
                lines.append(f"{short(job.commit)}  {state:<10}  {when}  {plain(message)}".rstrip())
        if self.notes:
            why = f"; waits: {plain(self.waits)}" if self.waits else ""
            lines.append(f"{count(self.notes, 'merge')} noted, not yet in the queue{why}")
        unfinished = any(j.state in (JobState.QUEUED, JobState.RUNNING) for j in self.jobs)
        if (unfinished or (self.notes and not self.waits)) and not self.worker:
            lines.append("no worker runs: `celedger worker` goes on")
        for sha, task, seed, engine, attended in self.orders:
            left = "" if attended else "; its command died, the next one on that engine takes it in"
            lines.append(f"{short(sha)}  {plain(task)} seed {seed} runs on {plain(engine)}{left}")
        return "\n".join(lines) or "the queue is empty"

    def json(self) -> dict[str, object]:
        jobs = []
        for job in self.jobs:
            state, message = self._state(job)
            row = {**pick(job, "id commit suite created ended attempts"), "worktree": job.key}
            jobs.append({**row, "state": state, "message": message})
        keys = ("commit", "task", "seed", "engine", "attended")
        orders = [dict(zip(keys, each, strict=True)) for each in self.orders]
        return {**pick(self, "notes waits worker"), "jobs": jobs, "orders": orders}

    def _state(self, job: QueuedJob) -> tuple[str, str]:
        """Return the state of a job and its message. A running job without a worker is lost."""
        if job.state is JobState.RUNNING and not self.worker:
            return "lost", "its worker died"
        return job.state.value, job.message
