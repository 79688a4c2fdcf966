"""The values of every task × metric over the commits of the page, by environment, beside what
`celedger drift` and `celedger check` concluded of them. Knows no HTML, and judges nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from celedger.base.model import BaselineRecord, Commit, Environment, Metric, TrialRecord, Verdict
from celedger.judge.drift.level_changes import Course, courses
from celedger.judge.values import CommitValues, TaskValues
from celedger.ledger.read import Reader
from celedger.stats.arrays import Floats, Ints
from celedger.stats.long_history import Settled
from celedger.trial.protocol import TELEMETRY
from celedger.views import samples


@dataclass(frozen=True, slots=True)
class Scope:
    """What the page is of, as the repository tells it; a view opens none.

    Attributes:
        axis: The commits of the main line, oldest first, measured or not.
        measured: Those of them that have trials.
        lineage: Every commit that may have made a change, oldest first.
        tags: Their names, by commit (a hash).
        remote: The address of the remote, "" where there is none.
        aside: How many measured commits of merged branches the axis leaves out.
        built: When, in seconds since the epoch.
    """

    name: str
    revision: str
    axis: Sequence[Commit]
    measured: Sequence[Commit]
    lineage: Sequence[Commit]
    tags: Mapping[str, Sequence[str]]
    remote: str
    aside: int
    built: float


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """The values of a metric in one environment: of each commit its position on the axis, mean,
    standard deviation (NaN with fewer than two trials) and number of trials. `course` is None
    where the metric is not judged."""

    environment: str
    positions: Ints
    means: Floats
    sds: Floats
    counts: Ints
    course: Course | None

    @property
    def noise(self) -> float:
        """Return the standard deviation that decides how many digits are shown; NaN if not
        known."""
        sds = self.sds[np.isfinite(self.sds) & (self.sds > 0)]
        return float(np.median(sds)) if sds.size else math.nan


@dataclass(frozen=True, eq=False)
class Series:
    """One metric of a task. The stretch that was measured last comes last; `verdict` is that of
    the newest judged commit."""

    suite: str
    task: str
    metric: Metric
    stretches: tuple[Stretch, ...]
    verdict: Verdict | None

    @property
    def is_telemetry(self) -> bool:
        """True for what celedger measures by itself: it never decides."""
        return self.metric in TELEMETRY

    @cached_property
    def latest(self) -> Stretch | None:
        return self.stretches[-1] if self.stretches else None


@dataclass(frozen=True, slots=True, eq=False)
class TaskSeries:
    """A task by its newest definition. `tried` are the positions of the commits with a trial that
    ended, `ran` of those where one ended well; `failures` the trials that did not, by position.
    `replaced` says if an earlier definition has values, which are left out."""

    suite: str
    name: str
    recipe: str
    series: tuple[Series, ...]
    tried: tuple[int, ...]
    ran: frozenset[int]
    failures: Mapping[int, Sequence[TrialRecord]]
    verdicts: Sequence[Verdict]
    replaced: bool

    @property
    def title(self) -> str:
        return f"{self.suite}/{self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """All that the page shows, before anything is derived from it."""

    scope: Scope
    tasks: tuple[TaskSeries, ...]
    position: Mapping[str, int]  # on the axis, by commit (a hash)
    environments: Mapping[str, Environment]
    baselines: Sequence[BaselineRecord]
    running: Sequence[TrialRecord]

    def commit(self, position: int) -> Commit:
        return self.scope.axis[position]


def read(
    ledger: Reader, scope: Scope, cache: MutableMapping[str, Settled] | None = None
) -> Measured:
    """Read what the ledger holds of the commits in scope. `cache` as in `celedger.judge.drift`."""
    position = {commit.sha: index for index, commit in enumerate(scope.axis)}
    values: dict[str, TaskValues] = {}
    by_series: dict[tuple[str, str, str], list[Course]] = defaultdict(list)
    for course in courses(ledger, scope.measured, lineage=scope.lineage, cache=cache, read=values):
        by_series[course.suite, course.task, course.metric.name].append(course)
    verdicts: dict[tuple[str, str], list[Verdict]] = defaultdict(list)
    for verdict in ledger.verdicts():
        if verdict.commit in position and verdict.recipe in values:
            verdicts[verdict.suite, verdict.task].append(verdict)
    records = ledger.tasks()
    tasks = []
    for record in records:
        if record.recipe not in values or not scope.measured:
            continue  # an earlier definition, or an empty ledger
        own = verdicts[record.suite, record.name]
        own.sort(key=lambda v: position[v.commit])
        newest = {verdict.metric: verdict for verdict in own}
        series = tuple(
            Series(
                record.suite, record.name, metric,
                _stretches(
                    values[record.recipe].by_environment(metric, reused=True), position,
                    by_series[record.suite, record.name, metric.name],
                ),
                newest.get(metric.name),
            )
            for metric in samples.in_order(ledger.metrics(record.recipe))
        )  # fmt: skip
        failures: dict[int, list[TrialRecord]] = defaultdict(list)
        for trial in ledger.trials(recipe=record.recipe, failed_only=True):
            if trial.trial.commit in position:
                failures[position[trial.trial.commit]].append(trial)
        tried, ran = (
            sorted(position[sha] for sha in shas if sha in position)
            for shas in (values[record.recipe].tried, values[record.recipe].ran)
        )
        replaced = any(
            (r.suite, r.name) == (record.suite, record.name) and r.recipe not in values
            for r in records
        )
        tasks.append(TaskSeries(
            record.suite, record.name, record.recipe, _telemetry_last(series), tuple(tried),
            frozenset(ran), failures, own, replaced,
        ))  # fmt: skip
    return Measured(
        scope, tuple(tasks), position, {e.fingerprint: e for e in ledger.environments()},
        ledger.baselines(), ledger.trials(open_only=True),
    )  # fmt: skip


def _telemetry_last(series: Sequence[Series]) -> tuple[Series, ...]:
    """Sort, without the telemetry that this machine does not have."""
    measured = [s for s in series if s.stretches or not s.is_telemetry]
    return tuple(sorted(measured, key=lambda s: s.is_telemetry))


def _stretches(
    by_environment: Mapping[str, CommitValues],
    position: Mapping[str, int],
    own: Sequence[Course],
) -> tuple[Stretch, ...]:
    of = {course.environment: course for course in own}
    stretches = [
        Stretch(
            environment,
            np.array([position[sha] for sha in values.commits], dtype=np.int64),
            values.grouped.means(),
            _deviations(values),
            values.grouped.sizes,
            of.get(environment),
        )
        for environment, values in by_environment.items()
        if values.commits
    ]
    return tuple(sorted(stretches, key=lambda s: int(s.positions[-1])))


def _deviations(values: CommitValues) -> Floats:
    """Return the standard deviation of each commit's values; NaN with fewer than two, or where one
    is not finite."""
    grouped = values.grouped
    dof = grouped.sizes - 1
    squares = np.where(dof > 0, grouped.squares(), math.nan)
    return np.asarray(np.sqrt(squares / np.maximum(dof, 1)))
