"""What each series and task of the page is: crashed, worse, undecided, better, steady or not
measured. It combines what `celedger drift` and `celedger check` concluded, and what people
accepted; it computes no statistics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from celedger.base.model import (
    BaselineAct,
    BaselineRecord,
    OutcomeKind,
    TrialRecord,
    Verdict,
    VerdictKind,
)
from celedger.judge.drift.level_changes import Away, Course, LevelStep
from celedger.stats.changepoints import CONFIRMED
from celedger.views.report.series import Measured, Series, Stretch, TaskSeries

RECENT = 200
"""Commits at the end of the axis in which an improvement is news, and that sparklines show."""
_REMAINING = 0.5
"""Share of a step that must still be there for it to count as open: half mended is not mended."""
_FEWEST = 3
"""Commits with a value from which `celedger drift` can see a change."""
_UNDECIDED = (VerdictKind.UNDECIDED, VerdictKind.TOO_NOISY, VerdictKind.ENVIRONMENT_CHANGED)


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
class Finding:
    """The state of a series, and what decided it: the first of these that is there. `step` is a
    change of its course, `lost` says that the newest value is not finite, `few` that too few
    commits were measured in the newest environment to tell a change."""

    series: Series
    state: Health
    course: Course | None = None
    step: LevelStep | None = None
    lost: bool = False
    verdict: Verdict | None = None
    away: Away | None = None
    few: bool = False

    @property
    def relative(self) -> float:
        """By how much it changed, relative to the level before; 0 where that is not known."""
        if self.step is not None:
            before, effect = self.step.before, self.step.after - self.step.before
        elif self.lost or (self.verdict is None and self.away is None):
            return 0.0
        else:
            decided = self.verdict or self.away
            assert decided is not None
            before, effect = decided.level, decided.effect
        relative = effect / abs(before) if before else 0.0
        return relative if math.isfinite(relative) else 0.0


@dataclass(frozen=True, slots=True)
class Crash:
    """A task that does not run at its newest commit. `since` are the positions of the commits in a
    row, oldest first, at which it failed; `good` is that of the last one at which it ran; `some`
    says that other trials of the newest commit ran."""

    since: tuple[int, ...]
    good: int | None
    last: TrialRecord
    some: bool


@dataclass(frozen=True, slots=True)
class TaskState:
    task: TaskSeries
    state: Health
    findings: tuple[Finding, ...]
    crash: Crash | None
    whole: Verdict | None  # on the task as a whole, where it is bad or undecided and no crash
    is_live: bool  # measured among the newest commits; else it may not exist any more


def judge(history: Measured) -> tuple[TaskState, ...]:
    """Return the state of every task."""
    return tuple(_task_state(history, task) for task in history.tasks)


def _task_state(history: Measured, task: TaskSeries) -> TaskState:
    findings = tuple(_finding(history, series) for series in task.series)
    crash = _crash(task)
    newest = task.tried[-1] if task.tried else 0
    whole = next((v for v in reversed(task.verdicts) if not v.metric), None)
    if crash or (whole and (history.position[whole.commit] < newest or not _alarming(whole))):
        whole = None
    states = [f.state for f in findings if not f.series.is_telemetry]
    if crash:
        states = [Health.CRASHED]
    elif whole is not None:
        states.append(Health.WORSE if whole.kind.bad else Health.UNDECIDED)
    state = min(states, key=lambda each: each.rank, default=Health.UNMEASURED)
    is_live = len(history.scope.axis) - newest <= RECENT or not _measured_since(history, newest)
    return TaskState(task, state, findings, crash, whole, is_live)


def _alarming(verdict: Verdict) -> bool:
    return verdict.kind.bad or verdict.kind in _UNDECIDED


def _measured_since(history: Measured, position: int) -> bool:
    """Return True if another task was measured at a good many later commits."""
    later = sum(history.position[c.sha] > position for c in history.scope.measured)
    return later > RECENT // 10


def _finding(history: Measured, series: Series) -> Finding:
    stretch = series.latest
    if not series.metric.direction.sign:
        return Finding(series, Health.UNJUDGED)
    if stretch is None:
        return Finding(series, Health.UNMEASURED)
    course, verdict = stretch.course, _current(history, series, stretch)
    if not math.isfinite(stretch.means[-1]):
        return Finding(series, Health.WORSE, course, lost=True)
    accepted = _accepted(history, series)
    step = _open_step(course, accepted, history) if course is not None else None
    if verdict is not None and verdict.kind.bad:
        return Finding(series, Health.WORSE, course, step, verdict=verdict)
    if step is not None:
        state = Health.WORSE if step.probability >= CONFIRMED else Health.UNDECIDED
        return Finding(series, state, course, step)
    if course is not None and course.away is not None and not course.away.better:
        return Finding(series, Health.WORSE, course, away=course.away)
    if verdict is not None and verdict.kind in _UNDECIDED:
        return Finding(series, Health.UNDECIDED, course, verdict=verdict)
    last = course.steps[-1] if course is not None and course.steps else None
    if last is not None and last.better and _is_recent(history, last):
        return Finding(series, Health.BETTER, course, last)
    if verdict is not None and verdict.kind is VerdictKind.IMPROVED:
        return Finding(series, Health.BETTER, course, verdict=verdict)
    if verdict is None and np.isfinite(stretch.means).sum() < _FEWEST:
        return Finding(series, Health.UNDECIDED, course, few=True)
    return Finding(series, Health.STEADY, course)


def _current(history: Measured, series: Series, stretch: Stretch) -> Verdict | None:
    """Return the newest verdict, unless it is of an environment in which nothing was measured
    since, or of a level that a change for the better has left."""
    verdict = series.verdict
    if verdict is None or verdict.environment != stretch.environment:
        return None
    steps = stretch.course.steps if stretch.course is not None else ()
    judged = history.position[verdict.commit]
    mended = steps and steps[-1].better and history.position[steps[-1].seen_at.sha] > judged
    return None if mended else verdict


def _is_recent(history: Measured, step: LevelStep) -> bool:
    return len(history.scope.axis) - history.position[step.seen_at.sha] <= RECENT


def _open_step(course: Course, accepted: Sequence[int], history: Measured) -> LevelStep | None:
    """Return the newest change for the worse that nobody accepted and later changes did not mend;
    None where there is none."""
    level = course.steps[-1].after if course.steps else math.nan
    for step in reversed(course.steps):
        if any(position >= history.position[step.seen_at.sha] for position in accepted):
            return None
        effect = step.after - step.before
        if not step.better and effect and (level - step.before) / effect >= _REMAINING:
            return step
    return None


def _accepted(history: Measured, series: Series) -> list[int]:
    """Return the positions of the commits whose level a person accepted for this series."""
    return [
        history.position[record.commit]
        for record in history.baselines
        if record.act is BaselineAct.ACCEPT
        and record.commit in history.position
        and _covers(record, series)
    ]


def _covers(record: BaselineRecord, series: Series) -> bool:
    return record.suite == series.suite and record.covers(series.task, series.metric.name)


def _crash(task: TaskSeries) -> Crash | None:
    since: list[int] = []
    good = None
    for position in reversed(task.tried):
        crashed = [
            r for r in task.failures.get(position, ()) if r.outcome and r.outcome.kind.crashed
        ]
        if position in task.ran and (since or not crashed):
            good = position
            break
        if crashed:
            since.append(position)
            if position in task.ran:
                break
    if not since:
        return None
    last = next(
        r for r in reversed(task.failures[since[0]]) if r.outcome and r.outcome.kind.crashed
    )
    return Crash(tuple(reversed(since)), good, last, since[0] in task.ran)


def crashes(task: TaskSeries) -> list[int]:
    """Return the positions of the commits at which a trial of the task failed by itself."""
    return [
        position
        for position, records in task.failures.items()
        if any(r.outcome and r.outcome.kind.crashed for r in records)
    ]


def untestable(task: TaskSeries) -> list[int]:
    """Return the positions of the commits whose build failed, and that no trial ran at."""
    return [
        position
        for position, records in task.failures.items()
        if position not in task.ran
        and all(r.outcome and r.outcome.kind is OutcomeKind.UNTESTABLE for r in records)
    ]
