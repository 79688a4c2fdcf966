"""What was said about incidents, and to whom: whether an incident is new, and whether somebody was
told of it, depends on it.

Lives here: the record, its INSERT and its SELECT, and an incident as it was said last. It must not
know what makes an incident, nor when something is to be said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from celedger.ledger.store import Store, columns_of
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


@dataclass(frozen=True, slots=True)
class SaidMetric:
    """A metric of an incident: its state, and how much worse it got, in its own unit."""

    suite: str
    task: str
    name: str
    state: str
    change: float | None = None  # None: nobody said it
    error: float | None = None  # the standard error of `change`


@dataclass(frozen=True, slots=True)
class SaidIncident:
    """An incident as it was said last: one cause that made something worse. Commits are full
    hashes, "" where there is none. Only git knows which commits lie from `first` to `last`."""

    id: str
    kind: str
    state: str
    metrics: tuple[SaidMetric, ...]
    first: str  # of the commits that may be the first bad one
    last: str
    likeliest: str
    probability: float | None  # of `likeliest`, when this was said
    bisect: str  # the bisect that named it
    closed_at: str  # the commit that mended it
    revision: str  # HEAD then
    at: float  # seconds since the epoch, UTC


class SaidRows(Store):
    def said(self) -> list[SaidRecord]:
        """Return what was said, in the order in which it was recorded."""
        return self._nouns(
            SaidRecord,
            "SELECT ulid, incident, state, event, kind, suite, task, metric, oldest, revision, "
            "job, address, at, details FROM said ORDER BY id",
        )

    def said_last(self) -> list[SaidRecord]:
        """Return the latest record of each incident, the oldest incident first. What was sent to an
        address is none."""
        return list({row.incident: row for row in self.said() if not row.address}.values())

    def incidents(self) -> list[SaidIncident]:
        """Return each incident as it was said last, the oldest first."""
        return [_incident(row) for row in self.said_last()]


class Said(SaidRows, Writer):
    def record_said(self, rows: Iterable[SaidRecord]) -> None:
        """Record rows; one that is there already (by its ulid) adds nothing."""
        with self.transaction():
            for row in rows:
                self._record("said", **columns_of(row))


def _incident(row: SaidRecord) -> SaidIncident:
    details: Mapping[str, Any] = row.details
    sizes = {tuple(size[:3]): size[3:5] for size in details.get("sizes", ())}
    named = details.get("metrics") or [(row.suite, row.task, row.metric, row.state)]
    metrics = tuple(SaidMetric(*each, *sizes.get(tuple(each[:3]), ())) for each in named)
    return SaidIncident(
        row.incident, row.kind, row.state, metrics, details.get("first", row.oldest),
        details.get("last", row.oldest), details.get("likeliest", ""), details.get("probability"),
        details.get("bisect", ""), details.get("closed", ""), row.revision, row.at,
    )  # fmt: skip
