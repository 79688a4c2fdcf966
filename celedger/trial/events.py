"""Events that a runner sends to its listener: plain facts, in order. The CLI renders them; a test
records them; the worker ignores them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from celedger.base.model import Commit, Seconds, Task, TrialRecord


class Waiting(NamedTuple):
    """Another celedger, the `holder`, has the device."""

    device: str
    holder: str


class Building(NamedTuple):
    commit: Commit
    task: Task


class Preparing(NamedTuple):
    """A trial waits for a step that may take long."""

    text: str


class Started(NamedTuple):
    commit: Commit
    task: Task
    seed: int


class EpochReported(NamedTuple):
    commit: Commit
    task: Task
    seed: int
    number: int


class Remark(NamedTuple):
    """A line for a person. One about what others were about is said once, for each of `about`."""

    text: str
    about: tuple[str, ...] = ()


class Finished(NamedTuple):
    """A trial has ended; `seconds` is None where it did not run, but re-uses the result of
    `record.derived`."""

    commit: Commit
    record: TrialRecord
    seconds: Seconds | None


Event = Waiting | Building | Preparing | Started | EpochReported | Remark | Finished
Listener = Callable[[Event], None]
Until = Callable[[str], str]
"""Told a trial's ulid after new epochs: why no more are needed, or "" to go on."""


def ignore(event: Event) -> None:
    """Ignore all events."""
