"""A job of the queue, as views and the worker see it. Has nothing to write with."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"  # until a person allows what it would start
    DONE = "done"
    FAILED = "failed"
    SUPERSEDED = "superseded"  # a newer commit of the same key took its place


@dataclass(frozen=True)
class Job:
    """A job as the queue holds it. Queued jobs of one kind and `key` become one: the newest."""

    id: int
    kind: str
    commit: str
    suite: str
    created: float
    key: str
    state: JobState
    owner: str = ""
    attempts: int = 0
    message: str = ""
    ended: float | None = None
