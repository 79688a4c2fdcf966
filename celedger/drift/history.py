"""Where in the history a metric changed: the change points of every task × metric, per
environment, so that a change of environment is never taken for one of code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from celedger.drift.baseline import usable
from celedger.ledger.read import Reader
from celedger.model import Commit, Direction, Metric, TaskRecord
from celedger.stats import changepoints


@dataclass(frozen=True, slots=True)
class Step:
    """A change point: the level of `metric` changed at `commit`, or at one of `among` (the 95 %
    set, oldest first). `better` says which way."""

    commit: Commit
    among: tuple[Commit, ...]
    probability: float
    before: float
    after: float
    better: bool


@dataclass(frozen=True, slots=True)
class Course:
    """A metric of a task over the measured commits in one environment, oldest first."""

    suite: str
    task: str
    metric: Metric
    environment: str
    commits: tuple[Commit, ...]
    values: tuple[tuple[float, ...], ...]  # of the trials at each commit
    steps: tuple[Step, ...]
    sd: float
    exact: bool


def courses(
    ledger: Reader,
    commits: Sequence[Commit],
    *,
    suite: str | None = None,
    task: str | None = None,
    metric: str | None = None,
) -> list[Course]:
    """The courses of all judged metrics over `commits` (oldest first), of the newest recipe of
    each task; environments in the order in which they were first used."""
    newest: dict[tuple[str, str], TaskRecord] = {}
    for record in ledger.tasks():
        if suite in (None, record.suite) and task in (None, record.name):
            newest[record.suite, record.name] = record
    found = []
    for record in newest.values():
        for known in ledger.metrics(record.recipe):
            if known.direction is not Direction.INFO and metric in (None, known.name):
                found += _of(ledger, record, known, commits)
    return found


def _of(
    ledger: Reader, record: TaskRecord, metric: Metric, commits: Sequence[Commit]
) -> list[Course]:
    rows = ledger.summaries(record.name, metric.name, suite=record.suite, recipe=record.recipe)
    values: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if usable(row, metric):
            values.setdefault(row.environment, {}).setdefault(row.commit, []).append(row.value)
    found = []
    for environment, by_commit in values.items():
        here = tuple(c for c in commits if c.sha in by_commit)
        if not here:
            continue
        groups = tuple(tuple(by_commit[c.sha]) for c in here)
        changes = changepoints.detect(groups)
        steps = tuple(
            Step(
                here[p.index], tuple(here[i] for i in p.commits), p.probability, p.before, p.after,
                better=(p.after - p.before) * metric.direction.sign < 0,
            )
            for p in changes.points
            if abs(p.after - p.before) >= metric.floor.at(p.before)
        )  # fmt: skip
        found.append(
            Course(record.suite, record.name, metric, environment, here, groups, steps,
                   changes.sd, changes.deterministic)
        )  # fmt: skip
    return found
