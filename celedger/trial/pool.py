"""The seam behind which several trials run at once: a trial to run, who can run it, and what it is
told meanwhile. Must not know of threads or machines."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from celedger.model import Commit, Task, TrialRecord
from celedger.trial import events


class Need(NamedTuple):
    """One trial to run."""

    commit: Commit
    task: Task
    seed: int
    enough: int | None = 1  # stored trials that make it unnecessary; None: run it in any case
    reuse: bool = True  # the result of another commit's trial will do


@dataclass
class Signals:
    """What another thread tells a trial: to end early for a `reason`, or at once."""

    reason: str = ""
    interrupted: bool = False

    def check(self) -> None:
        """Raise KeyboardInterrupt if the trial must end at once."""
        if self.interrupted:
            raise KeyboardInterrupt


class Pool(Protocol):
    """Runs trials on its workers."""

    @property
    def workers(self) -> int:
        """Return how many trials run at once."""

    def submit(self, need: Need, until: events.Until | None = None) -> Future[TrialRecord]:
        """Run a trial on the next free worker (`until` as in `Bench.run`)."""

    def wait(self) -> None:
        """Report events to the listener, in this thread, until a trial under way has ended."""

    def end(self, future: Future[TrialRecord], reason: str) -> None:
        """End a trial early. Its epochs are kept."""

    def close(self) -> None:
        """Interrupt what is under way, and wait until everything is recorded."""
