"""What may judge a life. Whatever does gets the jobs one by one, runs trials through the session,
and says after each what its list of incidents is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from lives.life import Life, Session

PARTS = ("repeats", "anchors", "sessions", "reruns", "recovered")
"""What `--without` can switch off."""


@dataclass(frozen=True)
class Row:
    """An incident, as a judge lists it after a job. `sizes`: metric -> size, low, high."""

    id: str
    kind: str
    state: str
    first: int
    last: int
    sizes: Mapping[int, tuple[float, float, float]]


class Judge(Protocol):
    def start(self, life: Life) -> None:
        """Forget everything; a new life begins."""

    def job(self, session: Session) -> list[Row]:
        """Run a job's trials through the session; return all incidents there ever were."""
        ...

    def accept(self, commit: int, incident: str) -> None:
        """Take note that a person accepted an incident, whose true first bad commit is given."""
