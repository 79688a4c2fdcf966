"""The values of every task × metric over the commits of the page, chain by chain, beside the levels
of the state. Knows no HTML, and judges nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from celedger.base.model import (
    BaselineRecord,
    Commit,
    Environment,
    Kind,
    Metric,
    TrialRecord,
)
from celedger.judge.derivation import Derivation
from celedger.judge.incident import State
from celedger.ledger.read import Reader
from celedger.page.metric_values import ChainValues, TaskOnLine
from celedger.stats import Floats, Ints
from celedger.trial.protocol import TELEMETRY
from celedger.views import samples

_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Scope:
    """The subject of the page, as the repository tells it; a view opens none.

    Attributes:
        axis: The commits of the line, oldest first, measured or not.
        tags: Their names, by commit (a hash).
        remote: The address of the remote, "" where there is none.
        built: When, in seconds since the epoch.
    """

    name: str
    revision: str
    axis: Sequence[Commit]
    tags: Mapping[str, Sequence[str]]
    remote: str
    built: float


@dataclass(frozen=True, slots=True, eq=False)
class ChartStretch:
    """The values of a metric in one chain: of each commit its position on the axis, mean (adjusted
    for seeds), standard deviation (NaN with fewer than two trials) and number of trials; and the
    levels: the positions at which each begins, and its value."""

    environment: str
    recipe: str
    positions: Ints
    means: Floats
    sds: Floats
    counts: Ints
    levels: Sequence[tuple[int, float]]

    @property
    def noise(self) -> float:
        """Return the standard deviation that decides how many digits are shown; NaN if not
        known."""
        least = _ROUNDING * np.abs(self.means)  # equal values may differ in the last bit
        sds = self.sds[np.isfinite(self.sds) & (self.sds > least)]
        return float(np.median(sds)) if sds.size else math.nan


@dataclass(frozen=True, eq=False)
class ChartSeries:
    """One metric of a task. The stretch that was measured last comes last. `is_exact` says that a
    seed repeats bit by bit."""

    suite: str
    task: str
    metric: Metric
    stretches: tuple[ChartStretch, ...]
    is_exact: bool

    @property
    def key(self) -> tuple[str, str, str]:
        return self.suite, self.task, self.metric.name

    @property
    def is_telemetry(self) -> bool:
        """True for what celedger measures by itself: it never decides."""
        return self.metric in TELEMETRY

    @cached_property
    def latest(self) -> ChartStretch | None:
        return self.stretches[-1] if self.stretches else None


@dataclass(frozen=True, slots=True, eq=False)
class TaskSeries:
    """A task. `tried` are the positions of the commits with a trial that ended, `crashed` of those
    where one failed by itself, `untestable` of those whose build failed; `failures` are the failed
    trials, by position. `is_live` is False for a task that is measured no more; `recipes` are its
    definitions, the newest last."""

    suite: str
    name: str
    recipes: Sequence[str]
    series: tuple[ChartSeries, ...]
    tried: tuple[int, ...]
    crashed: Sequence[int]
    untestable: Sequence[int]
    failures: Mapping[int, Sequence[TrialRecord]]
    is_live: bool

    @property
    def title(self) -> str:
        return f"{self.suite}/{self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """All that the page shows: the values, and the state that says what they mean."""

    scope: Scope
    state: State
    tasks: tuple[TaskSeries, ...]
    position: Mapping[str, int]  # on the axis, by commit (a hash), of merged branches too
    environments: Mapping[str, Environment]
    baselines: Sequence[BaselineRecord]
    running: Sequence[TrialRecord]

    def commit(self, position: int) -> Commit:
        return self.scope.axis[position]

    def at(self, sha: str) -> int:
        """Return the position of a commit, -1 where the axis has none."""
        return self.position.get(sha, -1)


def read(ledger: Reader, derivation: Derivation, state: State, scope: Scope) -> Measured:
    """Read what the ledger holds of the commits in scope; `derivation` is of their line."""
    places = derivation.line.places
    start = places[scope.axis[0].sha] if scope.axis else 0
    tasks = []
    for suite, name in dict.fromkeys((t.suite, t.name) for t in ledger.tasks()):
        task_on_line = TaskOnLine(derivation, suite, name)
        tried = [position - start for position in task_on_line.tried() if position >= start]
        if not tried:
            continue
        metrics = samples.in_order(ledger.metrics(task_on_line.recipe))
        series = (_series(task_on_line, metric, start) for metric in metrics)
        tasks.append(TaskSeries(
            suite, name, task_on_line.recipes, _telemetry_last(series), tuple(tried),
            [p - start for p in task_on_line.crashed() if p >= start],
            [p - start for p in task_on_line.untestable() if p >= start],
            {p - start: records for p, records in task_on_line.failures.items() if p >= start},
            derivation.is_measured(suite, name),
        ))  # fmt: skip
    position = {sha: place - start for sha, place in places.items() if place >= start}
    for sha in _named(state):
        if sha not in position and (place := derivation.place(sha)) >= start:
            position[sha] = place - start
    return Measured(
        scope, state, tuple(tasks), position, ledger.environments(), ledger.baselines(),
        ledger.trials(open_only=True),
    )  # fmt: skip


def _named(state: State) -> set[str]:
    """Return the first bad commits, of which a bisect may have named one of a merged branch."""
    return {incident.likeliest for incident in state.incidents}


def _telemetry_last(series: Iterable[ChartSeries]) -> tuple[ChartSeries, ...]:
    """Sort, without the telemetry that this machine does not have, or an older celedger had."""
    measured = [
        s for s in series
        if s.stretches or not (s.is_telemetry or s.metric.kind is Kind.WORK)
    ]  # fmt: skip
    return tuple(sorted(measured, key=lambda s: s.is_telemetry))


def _series(task: TaskOnLine, metric: Metric, start: int) -> ChartSeries:
    chains = task.chains(metric)
    stretches = [s for s in (_stretch(chain, start) for chain in chains) if s.positions.size]
    stretches.sort(key=lambda s: int(s.positions[-1]))
    exact = any(chain.is_exact for chain in chains)
    return ChartSeries(task.suite, task.name, metric, tuple(stretches), exact)


def _stretch(chain: ChainValues, start: int) -> ChartStretch:
    places, groups, means = chain.by_place()
    inside = places >= start
    sizes = np.array([group.size for group in groups], dtype=np.int64)
    with np.errstate(invalid="ignore"):
        sds = np.array([g.std(ddof=1) if g.size > 1 else math.nan for g in groups])
    levels = [
        (max(0, first - start), level) for first, last, level in chain.levels() if last >= start
    ]
    return ChartStretch(
        chain.chain.environment, chain.chain.recipe,
        places[inside] - start, means[inside], sds[inside],
        sizes[inside], levels,
    )  # fmt: skip
