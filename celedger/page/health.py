"""The health of each series and task of the page, read from the state: an incident in force, a
doubt, an improvement. Nothing is decided here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from celedger.base.model import IN_FORCE
from celedger.judge.incident import Incident, LevelChange, Standing, State
from celedger.page.series import ChartSeries, Measured, TaskSeries
from celedger.views import incidents as words
from celedger.views.document import amount

RECENT = 200
"""Commits at the end of the axis in which an improvement is news, and that sparklines show."""
FIRST, NOISY = "nothing to compare with", "too noisy"
_UNCLEAR = (Standing.UNDECIDED, Standing.FIRST, Standing.TOO_NOISY)


class Health(StrEnum):
    """Worst first."""

    CRASHED = "crashed"
    WORSE = "worse"
    UNDECIDED = "undecided"
    BETTER = "better"
    STEADY = "steady"
    UNMEASURED = "unmeasured"
    UNJUDGED = "unjudged"  # a metric that says of itself that it is never judged

    @property
    def rank(self) -> int:
        return list(Health).index(self)


@dataclass(frozen=True, slots=True)
class SeriesHealth:
    """The health of a series, and in a few words why: `+8.4 % worse`."""

    series: ChartSeries
    health: Health
    tag: str = ""


@dataclass(frozen=True, slots=True)
class TaskHealth:
    task: TaskSeries
    health: Health
    series: tuple[SeriesHealth, ...]
    failing: Incident | None  # in force, of the task as a whole

    @property
    def changed(self) -> bool:
        """Return True if the state knows or suspects a change: noise alone is none."""
        unclear = (FIRST, NOISY, "undecided")
        return bool(self.failing) or any(
            s.health.rank <= Health.BETTER.rank and s.tag not in unclear for s in self.series
        )


def of_tasks(history: Measured) -> tuple[TaskHealth, ...]:
    """Return how every task stands."""
    return tuple(_of_task(history, task) for task in history.tasks)


def improvements(history: Measured) -> list[LevelChange]:
    """Return what got better at the newest commits, the newest first."""
    first = len(history.scope.axis) - RECENT
    improvements = [c for c in history.state.changes if c.kind == "improvement"]
    recent = [c for c in improvements if history.at(c.seen_at) >= max(first, 0)]
    return sorted(recent, key=lambda c: -history.at(c.seen_at))


def _of_task(history: Measured, task: TaskSeries) -> TaskHealth:
    series = tuple(_of_series(history, one_series) for one_series in task.series)
    whole = (task.suite, task.name, "")
    failing = next(
        (
            i
            for i in history.state.in_force
            if any(m.key == whole and m.state in IN_FORCE for m in i.metrics)
        ),
        None,
    )
    healths = [item.health for item in series if not item.series.is_telemetry]
    health = min(
        healths, key=lambda health_of_series: health_of_series.rank, default=Health.UNMEASURED
    )
    return TaskHealth(task, Health.CRASHED if failing else health, series, failing)


def _of_series(history: Measured, series: ChartSeries) -> SeriesHealth:
    state = history.state
    if not series.metric.direction.sign:
        return SeriesHealth(series, Health.UNJUDGED)
    for incident in state.in_force:
        for metric in incident.metrics:
            if metric.key == series.key and metric.state in IN_FORCE:
                tag = words.moved(metric) or words.KINDS.get(incident.kind, "")
                worse = "" if incident.is_failure and not words.moved(metric) else " worse"
                return SeriesHealth(series, Health.WORSE, f"{tag}{worse}".strip())
    if series.latest is None:
        return SeriesHealth(series, Health.UNMEASURED)
    if any((d.suite, d.task, d.metric) == series.key for d in state.doubts):
        return SeriesHealth(series, Health.UNDECIDED, "suspected")
    if not series.is_telemetry and (unclear := _unclear(state, series)):
        return SeriesHealth(series, Health.UNDECIDED, unclear)
    for change in improvements(history):
        if (change.suite, change.task, change.metric) == series.key:
            size = amount(change.size, change.before, unit=change.unit)
            return SeriesHealth(series, Health.BETTER, f"{size} better")
    return SeriesHealth(series, Health.STEADY)


def _unclear(state: State, series: ChartSeries) -> str:
    """Return why a metric is not clear at the newest measured commit; "" where it is."""
    for standing in state.standings:
        if (
            standing.suite,
            standing.task,
            standing.metric,
        ) == series.key and standing.standing in _UNCLEAR:
            return {
                Standing.FIRST: FIRST,
                Standing.TOO_NOISY: NOISY,
            }.get(standing.standing, "undecided")
    return ""
