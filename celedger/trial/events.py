"""What a runner tells whoever watches: plain facts, in order. The CLI renders them; a test
records them; the worker ignores them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from celedger.model import Commit, Seconds, Task, TrialRecord


@dataclass(frozen=True, slots=True)
class Waiting:
    """Another celedger holds the device: the process `pid`, described in `holder`."""

    device: str
    holder: str
    pid: int


@dataclass(frozen=True, slots=True)
class Building:
    commit: Commit
    task: Task


@dataclass(frozen=True, slots=True)
class Installing:
    """The virtual environment of a commit (a hash) is being made."""

    commit: str
    task: Task


@dataclass(frozen=True, slots=True)
class Started:
    commit: Commit
    task: Task
    seed: int


@dataclass(frozen=True, slots=True)
class StartedCold:
    """The suite preloads modules, and this training starts without."""

    task: Task
    reason: str


@dataclass(frozen=True, slots=True)
class Epoch:
    number: int


@dataclass(frozen=True, slots=True)
class Strayed:
    """A trial opened `file` (from there) of the user's work tree, which git tracks: it measured
    that and not its commit. `root` is the repository's."""

    commit: Commit
    task: Task
    root: Path
    file: str


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Git cannot check this commit out; whoever searches goes on without it."""

    commit: Commit
    problem: str


@dataclass(frozen=True, slots=True)
class Finished:
    commit: Commit
    record: TrialRecord
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class Reused:
    """It did not run: it re-uses the result of `record.derived`."""

    commit: Commit
    record: TrialRecord


Event = (
    Waiting
    | Building
    | Installing
    | Started
    | StartedCold
    | Epoch
    | Strayed
    | Unreachable
    | Finished
    | Reused
)
Listener = Callable[[Event], None]
Until = Callable[[str], str]
"""Told a trial's ulid after new epochs: why no more are needed, or "" to go on."""


def ignore(event: Event) -> None:
    """A listener for those who do not watch."""
