"""Rows of the ledger's `said`: what was reported of incidents. Their identity and hysteresis rest
on them.

Reads and makes these rows; a row without an address is a job's record. Decides nothing: `state.py`
derives what is reported."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from celedger.base.model import IN_FORCE, IncidentState, SaidRecord
from celedger.judge.incident import Incident
from celedger.judge.line import Line
from celedger.ledger import Ledger
from celedger.stats.course import MetricKey, StepKind, ToldIncident


class Whereabouts(StrEnum):
    """Where the commits of an incident are, as seen from a line."""

    LINE = "line"
    MERGED = "merged"  # on a branch that was merged: the merge is its place
    REBASED = "rebased"  # the line has commits that make the same changes, in other trees
    SQUASHED = "squashed"  # the line has their tree, by another change
    BRANCH = "branch"  # on a branch that was not merged: no matter of this line
    GONE = "gone"  # on no branch


@dataclass(frozen=True, slots=True)
class Told:
    """An incident as it was last recorded. `steps` has its places and the states of its metrics;
    `failing` the keys that failed."""

    id: str
    kind: str
    steps: ToldIncident
    failing: tuple[MetricKey, ...]
    record: SaidRecord
    where: Whereabouts = Whereabouts.LINE

    @property
    def is_here(self) -> bool:
        """Return True if its commits have places on the line."""
        return self.steps.first >= 0


def identity(suite: str, task: str, metric: str, kind: str, oldest: str) -> str:
    """Return the name of a new incident: 8 hex digits. `oldest` is the hash of
    the oldest commit that may be the first bad one."""
    text = "\0".join((suite, task, metric, kind, oldest))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def told(ledger: Ledger, line: Line) -> list[Told]:
    """Return each incident as it was last recorded, the oldest first; one that is another name of
    an older incident comes with that."""
    rows = [row for row in ledger.said() if not row.address]
    last = {row.incident: row for row in rows}
    since: dict[str, tuple[float, str]] = {}
    for row in rows:
        own = (row.at, row.incident)
        since[row.incident] = min(own, since.get(row.incident, own))
    joined: dict[str, str] = {}
    for row in rows:
        into = str(row.details.get("joined", ""))
        if into in since and since[into] < since[row.incident]:
            joined[row.incident] = into
    also: dict[str, list[str]] = {name: [] for name in last}
    for name in sorted(joined, key=since.__getitem__):
        into = joined[name]
        while into in joined:  # each is older than the one before
            into = joined[into]
        also[into].append(name)
    names = sorted(last.keys() - joined.keys(), key=since.__getitem__)
    return [_told(last[name], line, since[name][0], tuple(also[name])) for name in names]


def _told(row: SaidRecord, line: Line, since: float, also: tuple[str, ...]) -> Told:
    details: Mapping[str, Any] = row.details
    ends = [str(details.get(end, "")) for end in ("first", "last")]
    # Said of this line, which has the merge, though the oldest of its commits is on the branch.
    is_of_line = bool(details.get("bisect")) or ends[-1] in line.places
    is_over = IncidentState(row.state) not in IN_FORCE
    first, last, where = _whereabouts(line, ends, row.revision, is_over=is_over)
    if where is Whereabouts.MERGED and is_of_line:
        where = Whereabouts.LINE
    elif (where is Whereabouts.MERGED and is_over) or (
        where is Whereabouts.SQUASHED and row.state == IncidentState.RECOVERED.value
    ):  # on the branch: no matter of this line
        first, last, where = -1, -1, Whereabouts.BRANCH
    states, failing = {}, []
    for suite, task, metric, state in details.get("metrics", ()):
        if details.get("failure"):
            failing.append((suite, task, metric))
        else:
            states[suite, task, metric] = IncidentState(state)
    sizes = {
        (suite, task, metric): (size, error)
        for suite, task, metric, size, error, *_ in details.get("sizes", ())
    }
    kind = StepKind.DRIFT if row.kind == StepKind.DRIFT.value else StepKind.STEP
    steps = ToldIncident(
        row.incident, first, last, IncidentState(row.state), states, kind,
        bool(details.get("sure")) and where is not Whereabouts.SQUASHED, sizes, since, also,
    )  # fmt: skip
    return Told(row.incident, row.kind, steps, tuple(failing), row, where)


def _whereabouts(
    line: Line, ends: Sequence[str], revision: str, *, is_over: bool
) -> tuple[int, int, Whereabouts]:
    """Return the places of the oldest and the newest commit of an incident's set, -1 where the line
    has none, and where these commits are. It was said at `revision`: where a rebase took that away,
    the line may have such commits anew that a branch has still, which matters while it lasts."""
    here = [line.places.get(sha, -1) for sha in ends]
    begins_here = here[0] >= 0 and not line.is_another_change(ends[0])
    if not begins_here and line.is_another_change(ends[1]):
        return here[1], here[1], Whereabouts.SQUASHED
    if min(here) >= 0:
        return here[0], here[1], Whereabouts.LINE
    merged = [line.holding(sha) for sha in ends]
    gone = any(line.has_lost(sha) for sha in ends)
    if gone or (None in merged and line.has_lost(revision)):
        if is_over:
            return -1, -1, Whereabouts.BRANCH
        moved = [p if p >= 0 else line.remade(sha) for p, sha in zip(here, ends, strict=True)]
        if moved[0] is not None and moved[1] is not None:
            return min(moved[0], moved[1]), max(moved[0], moved[1]), Whereabouts.REBASED
        return -1, -1, Whereabouts.GONE if gone else Whereabouts.BRANCH
    if merged[0] is None or merged[1] is None:
        return -1, -1, Whereabouts.BRANCH
    return merged[0], merged[1], Whereabouts.MERGED


def new_rows(
    incidents: Sequence[Incident],
    before: Iterable[SaidRecord],
    sizes: Mapping[str, list[list[object]]],
    *,
    revision: str,
    job: str,
    now: float,
    name: Callable[[], str],
) -> list[SaidRecord]:
    """Return the rows that record what is not recorded yet: what became of each incident, and which
    names are another's. `before` are the last rows; `sizes` are those of the steps of each
    incident, by its id; `name` makes a ULID."""
    known = {row.incident: row for row in before}
    rows = []
    for incident in incidents:
        main = incident.main
        details: dict[str, object] = {
            "first": incident.first_bad[0], "last": incident.first_bad[-1],
            "metrics": [[m.suite, m.task, m.name, m.state] for m in incident.metrics],
            "failure": incident.is_failure, "sure": incident.was_sure,
            "bisect": incident.bisect, "closed": incident.closed_at,
        }  # fmt: skip
        finite = [row for row in sizes.get(incident.id, []) if all(map(_is_finite, row[3:]))]
        numbers: dict[str, object] = {
            "sizes": finite, "likeliest": incident.likeliest,
            "probability": incident.probability,
        }  # fmt: skip
        old = known.get(incident.id)
        same = old is not None and details.items() <= old.details.items()
        if same and old is not None and (old.state, old.kind) == (incident.state, incident.kind):
            continue
        oldest = old.oldest if old is not None else incident.first_bad[0]
        rows.append(SaidRecord(
            name(), incident.id, incident.state, "state", incident.kind, *main.key, oldest,
            revision, job, "", now, details | numbers,
        ))  # fmt: skip
    for incident in incidents:
        for old in (known[other] for other in incident.also if other in known):
            if old.details.get("joined") != incident.id:
                joined = {**old.details, "joined": incident.id}
                rows.append(old._replace(
                    ulid=name(), state=IncidentState.WITHDRAWN.value, revision=revision,
                    job=job, at=now, details=joined,
                ))  # fmt: skip
    return rows


def _is_finite(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)
