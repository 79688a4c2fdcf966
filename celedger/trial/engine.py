"""The interface of engines, which run several trials at once: the trial that is needed, the engine
that runs it, and the events that its listener gets, in order. The CLI renders them; a test records
them; the worker ignores them. Must not know of threads or machines."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple, Protocol

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


def ignore_events(event: Event) -> None:
    """Ignore all events."""


class Need(NamedTuple):
    """One trial to run, as `Bench.run` takes it."""

    commit: Commit
    task: Task
    seed: int
    enough: int | None = 1  # stored trials that make it unnecessary; None: run it in any case
    reuse: bool = True  # the result of another commit's trial will do
    if_alike: bool = True  # run it although other seeds of the commit failed alike
    until: Until | None = None
    role: str = "head"  # what it is for: `head`, `again`, `beside`, `control`, `anchor`, `bisect`
    asked: str = ""  # the incident or the metric in doubt that asked for it
    ulid: str = ""  # of a trial that another machine ordered


@dataclass
class Signals:
    """The messages of another thread to a trial: to end early for a `reason`, or at once."""

    reason: str = ""
    interrupted: bool = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if the trial must end at once."""
        if self.interrupted:
            raise KeyboardInterrupt


class Ordered(Future[TrialRecord]):
    """The trial of a need that was submitted. Cancelled while it runs, it ends early."""

    def __init__(self, need: Need) -> None:
        super().__init__()
        self.need = need
        self.signals = Signals()

    def cancel(self) -> bool:
        self.signals.reason = self.signals.reason or "nothing more is expected of it"
        return super().cancel()


class Engine(Protocol):
    """Runs trials, several at once if it has several workers."""

    @property
    def workers(self) -> int:
        """Return how many trials run at once."""

    def submit(self, need: Need) -> Future[TrialRecord]:
        """Run a trial on the next free worker. The future's `cancel` ends one that runs early: it
        then has the record of a trial that was stopped early."""

    def wait(self) -> None:
        """Return once a trial has ended. The thread that opened the ledger calls it, and gets the
        events of the trials and the questions of `Need.until` meanwhile."""

    def close(self) -> None:
        """Interrupt what is under way, and wait until everything is recorded."""
