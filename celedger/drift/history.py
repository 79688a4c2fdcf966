"""Where in the history a metric changed: the change points of every task × metric, per
environment, so that a change of environment is never taken for one of code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from celedger.drift.baseline import usable
from celedger.ledger.read import Reader
from celedger.model import (
    BaselineAct,
    Commit,
    Direction,
    Metric,
    TaskRecord,
    VerdictKind,
)
from celedger.stats import changepoints
from celedger.stats import verdict as rules
from celedger.stats.noise import Noise, pool

RECENT = 5  # commits that are held to the pinned one: enough for a mean, few enough to be now
Pairs = Sequence[tuple[int, float]]  # (seed, value)


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
class Away:
    """How far the newest RECENT commits lie from the `pinned` one: a drift may be too slow for
    any step of it to show. In the metric's unit, between `low` and `high` at 95 %."""

    pinned: Commit
    level: float
    effect: float
    low: float
    high: float
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
    away: Away | None = None


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
    values: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for row in rows:
        if usable(row, metric) and not row.derived:
            of_commit = values.setdefault(row.environment, {}).setdefault(row.commit, [])
            of_commit.append((row.seed, row.value))
    found = []
    for environment, by_commit in values.items():
        here = tuple(c for c in commits if c.sha in by_commit)
        if not here:
            continue
        pairs = comparable([by_commit[c.sha] for c in here])
        groups = tuple(tuple(value for _, value in pair) for pair in pairs)
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
                   changes.sd, changes.deterministic, _away(ledger, record, metric, here, pairs))
        )  # fmt: skip
    return found


def _away(
    ledger: Reader,
    record: TaskRecord,
    metric: Metric,
    commits: Sequence[Commit],
    pairs: Sequence[Pairs],
) -> Away | None:
    """The distance from the newest pin among these commits; None where there is none, or where
    it cannot be told from no distance at all."""
    place = {c.sha: i for i, c in enumerate(commits)}
    pins = [
        place[r.commit]
        for r in ledger.baselines(suite=record.suite)
        if r.act is BaselineAct.PIN and r.covers(record.name, metric.name) and r.commit in place
    ]
    if not pins or pins[-1] == len(commits) - 1:
        return None
    at = pins[-1]
    recent = [pair for pairs_ in pairs[max(at + 1, len(pairs) - RECENT) :] for pair in pairs_]
    told = rules.judge(
        [v for _, v in recent], [[v for _, v in pairs[at]]], sign=metric.direction.sign,
        floor=metric.floor, noise=_pooled(pairs),
    )  # fmt: skip
    if told.kind not in (VerdictKind.REGRESSED, VerdictKind.IMPROVED):
        return None
    better = told.kind is VerdictKind.IMPROVED
    return Away(commits[at], told.level, told.effect, told.low, told.high, better)


def _pooled(pairs: Sequence[Pairs]) -> Noise:
    return pool([[v for _, v in p] for p in pairs], seeds=[[s for s, _ in p] for p in pairs])


def comparable(pairs: Sequence[Pairs]) -> list[Pairs]:
    """The (seed, value) pairs of each commit that may be compared.

    Where the metric repeats exactly, seeds are not noise but offsets: a commit that was measured
    with one seed more than its neighbours has another mean though nothing changed. Then only the
    seeds that all commits have in common count, if there are any.
    """
    common = set.intersection(*({seed for seed, _ in pair} for pair in pairs))
    if not common or not _pooled(pairs).deterministic:
        return list(pairs)
    return [[(seed, value) for seed, value in pair if seed in common] for pair in pairs]
