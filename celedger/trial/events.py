"""Events that a runner sends to its listener: plain facts, in order. The CLI renders them; a test
records them; the worker ignores them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from celedger.base.model import Commit, Seconds, Task, TrialRecord


class Waiting(NamedTuple):
    """Another celedger holds the device: the process `pid`, described in `holder`."""

    device: str
    holder: str
    pid: int


class Building(NamedTuple):
    commit: Commit
    task: Task


class Installing(NamedTuple):
    """The virtual environment of a commit (a hash) is being made."""

    commit: str
    task: Task


class Started(NamedTuple):
    commit: Commit
    task: Task
    seed: int


class StartedCold(NamedTuple):
    """The suite preloads modules, and this training starts cold."""

    task: Task
    reason: str


class EpochReported(NamedTuple):
    commit: Commit
    task: Task
    seed: int
    number: int


class Strayed(NamedTuple):
    """A trial opened `file` (at that path) of the user's work tree, which git tracks: it measured
    that file and not its commit. `root` is the repository's."""

    commit: Commit
    task: Task
    root: Path
    file: str


class ReadNothing(NamedTuple):
    """A trial ended well, and opened no file of its commit: no commit can change its numbers."""

    task: Task


class Unsatisfied(NamedTuple):
    """A trial ran with other versions of packages than its commit wants: `wanted` says which."""

    commit: Commit
    task: Task
    wanted: tuple[str, ...]


class Unreachable(NamedTuple):
    """Git cannot check this commit out; a search continues without it."""

    commit: Commit
    problem: str


class Restarted(NamedTuple):
    """A trial runs again on another node, for a reason."""

    commit: Commit
    task: Task
    reason: str


class Finished(NamedTuple):
    commit: Commit
    record: TrialRecord
    seconds: Seconds


class Reused(NamedTuple):
    """The trial did not run: it re-uses the result of `record.derived`."""

    commit: Commit
    record: TrialRecord


Event = (
    Waiting | Building | Installing | Started | StartedCold | EpochReported | Strayed
    | ReadNothing | Unsatisfied | Unreachable | Restarted | Finished | Reused
)  # fmt: skip
Listener = Callable[[Event], None]
Until = Callable[[str], str]
"""Told a trial's ulid after new epochs: why no more are needed, or "" to go on."""


def ignore(event: Event) -> None:
    """Ignore all events."""
