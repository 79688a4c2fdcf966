"""Compare two commits of a line: by the incidents between them, else by their own trials and the
noise that the state knows.

Pure: a view that shows one or two commits asks here and judges nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

from celedger.base.model import Metric
from celedger.judge.incident import TWO_SIDED_95, Incident, MetricNoise, State
from celedger.judge.line import Line

_FOUR_IN_FIVE = 0.841621
"""Standard errors more, so that four cases of five are detected."""


def smallest_change(noise: MetricNoise | None, a: int, b: int) -> float:
    """Return the smallest change that `a` and `b` trials of two commits detect at 95 %, in four
    cases of five: 0 if any change is detected, infinity if the noise is not known."""
    if noise is None or not a or not b:
        return math.inf
    return (TWO_SIDED_95 + _FOUR_IN_FIVE) * noise.error(a, b)


def between(state: State, line: Line, key: tuple[str, str, str], a: str, b: str) -> list[Incident]:
    """Return the incidents of a metric that came between two commits of the line and are in force
    at the later one; the newest first. A commit of a merged branch has the place of the merge;
    what came inside the branch is known of what a bisect named alone."""
    old, new = line.place(a), line.place(b)
    own = [i for i in reversed(state.of(*key)) if i.state != "withdrawn"]
    if 0 <= old == new:
        return [i for i in own if i.bisect and (i.parent, i.likeliest) == (a, b)]
    if not 0 <= old < new:
        return []
    end = new + 1 if b in line.places else new
    return [
        incident
        for incident in own
        if old < line.place(incident.first_bad[0])
        and (line.place(incident.first_bad[-1]) < end or incident.shown_at == b)
        and not (incident.state == "recovered" and 0 <= line.place(incident.closed_at) <= new)
    ]


def knows_change(state: State, line: Line, key: tuple[str, str, str], a: str, b: str) -> bool:
    """Return True if the state has a change of a metric, for the worse or the better, between two
    commits of the line."""
    old, new = sorted((line.place(a), line.place(b)))
    incidents = [i for i in state.of(*key) if i.state != "withdrawn"]
    changed = [i.first_bad[-1] for i in incidents] + [i.closed_at for i in incidents if i.closed_at]
    changed += [
        each.seen_at
        for each in state.changes
        if each.kind == "improvement" and (each.suite, each.task, each.metric) == key
    ]
    return any(0 <= old < line.place(sha) <= new for sha in changed)


def compare(
    metric: Metric,
    noise: MetricNoise | None,
    incidents: Sequence[Incident],
    a: tuple[float, int],
    b: tuple[float, int],
    *,
    is_known: bool = False,
) -> str:
    """Return what a metric's change from A to B is, each a mean and its number of trials;
    `is_known` where the state has a change between them.

    Returns:
        `worse` or `better`, where the state says so; `seems worse` or `seems better`, where only
        these trials do (one time in twenty by chance); `same` (equal values), `within noise`,
        `small` (below the metric's floor), `unknown` (no repeats to judge by), `not finite`.
    """
    delta = b[0] - a[0]
    if not math.isfinite(delta):
        return "not finite"
    if incidents:
        return "worse"
    if delta == 0:
        return "same"
    limit = noise.reach(a[1], b[1]) if noise is not None and a[1] and b[1] else math.inf
    if math.isinf(limit):
        return "unknown"
    if abs(delta) < limit:
        return "within noise"
    if abs(delta) < metric.floor_at(a[0]):
        return "small"
    seems = "" if is_known else "seems "
    return seems + ("worse" if delta * metric.direction.sign > 0 else "better")
