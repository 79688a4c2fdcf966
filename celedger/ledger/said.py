"""What was said about incidents, and to whom: whether an incident is new, and whether somebody was
told of it, depends on it.

Lives here: the record, its INSERT and its SELECT. It must not know what an incident is, nor when
something is to be said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from celedger.ledger.store import columns_of
from celedger.ledger.write import Writer


@dataclass(frozen=True, slots=True)
class SaidRecord:
    """One event of one incident, as it was recorded by a job or sent to an address. Commits are
    full hashes. `suite`, `task`, `metric`, `kind` and `oldest` are of the incident as it was then.
    """

    ulid: str
    incident: str  # 8 hexadecimal digits
    state: str  # "open", "partly", "recovered", "accepted", "withdrawn"
    event: str
    kind: str
    suite: str
    task: str
    metric: str
    oldest: str  # the oldest commit that may be the first bad one
    revision: str  # HEAD then
    job: str
    address: str  # to whom an alert went; "" is the record of a job
    at: float  # seconds since the epoch, UTC
    details: Mapping[str, object] = field(default_factory=dict)


class Said(Writer):
    def record_said(self, rows: Iterable[SaidRecord]) -> None:
        """Record rows; one that is there already (by its ulid) adds nothing."""
        with self.transaction():
            for row in rows:
                self._record("said", **columns_of(row))

    def said(self) -> list[SaidRecord]:
        """Return what was said, in the order in which it was recorded."""
        return self._nouns(
            SaidRecord,
            "SELECT ulid, incident, state, event, kind, suite, task, metric, oldest, revision, "
            "job, address, at, details FROM said ORDER BY id",
        )
