"""Where in the history a metric changed: the change points of every task × metric, per
environment, so that a change of environment is never taken for one of code."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from celedger.drift.baseline import usable
from celedger.ledger.read import Reader
from celedger.model import (
    BaselineAct,
    Commit,
    Direction,
    Metric,
    SummaryRow,
    TaskRecord,
    VerdictKind,
)
from celedger.repo import Ancestry
from celedger.stats import changepoints
from celedger.stats import verdict as rules
from celedger.stats.noise import Noise, pool

RECENT = 5  # commits that are held to the pinned one: enough for a mean, few enough to be now
Pairs = Sequence[tuple[int, float]]  # (seed, value)


@dataclass(frozen=True, slots=True)
class Step:
    """A change point: the level changed at one of `among`, the 95 % set of commits, oldest first.

    `seen_at` is the measured commit at which the new level most probably shows first. All of
    `among` are reachable from `end` and not from `start`, the ends of a range to bisect;
    `between` counts that range. `start` is None where no measured commit with the old level is
    an ancestor of `end`.
    """

    seen_at: Commit
    among: tuple[Commit, ...]
    unmeasured: int  # of `among`
    start: Commit | None
    end: Commit
    between: int
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
    """A metric of a task over the measured commits in one environment, oldest first.

    `valued` are the hashes of the commits with a finite value, re-used results included; `trials`
    the trials that gave one of their own.
    """

    suite: str
    task: str
    metric: Metric
    environment: str
    commits: tuple[Commit, ...]
    values: tuple[tuple[float, ...], ...]  # of the trials at each commit
    steps: tuple[Step, ...]
    sd: float
    exact: bool
    away: Away | None
    valued: frozenset[str]
    trials: frozenset[str]


def courses(
    ledger: Reader,
    commits: Sequence[Commit],
    *,
    lineage: Sequence[Commit] | None = None,
    suite: str | None = None,
    task: str | None = None,
    metric: str | None = None,
) -> list[Course]:
    """Return the courses of all judged metrics over `commits`, of each task's newest recipe.

    Args:
        commits: The series to segment, oldest first; those without a value are skipped.
        lineage: Every commit that may have made a change, measured or not, oldest first
            [default: `commits`].

    Environments come in the order in which they were first used.
    """
    newest: dict[tuple[str, str], TaskRecord] = {}
    for record in ledger.tasks():
        if suite in (None, record.suite) and task in (None, record.name):
            newest[record.suite, record.name] = record
    ancestry = Ancestry(commits if lineage is None else lineage)
    found = []
    for record in newest.values():
        for known in ledger.metrics(record.recipe):
            if known.direction is not Direction.INFO and metric in (None, known.name):
                found += _of(ledger, record, known, commits, ancestry)
    return found


def _of(
    ledger: Reader,
    record: TaskRecord,
    metric: Metric,
    commits: Sequence[Commit],
    ancestry: Ancestry,
) -> list[Course]:
    rows = ledger.summaries(record.name, metric.name, suite=record.suite, recipe=record.recipe)
    by_environment: dict[str, list[SummaryRow]] = {}
    for row in rows:
        if usable(row, metric):
            by_environment.setdefault(row.environment, []).append(row)
    found = []
    for environment, own in by_environment.items():
        by_commit: dict[str, list[tuple[int, float]]] = {}
        for row in own:
            if not row.derived:
                by_commit.setdefault(row.commit, []).append((row.seed, row.value))
        here = tuple(c for c in commits if c.sha in by_commit)
        if not here:
            continue
        pairs = comparable([by_commit[c.sha] for c in here])
        groups = tuple(tuple(value for _, value in pair) for pair in pairs)
        changes = changepoints.detect(groups)
        gaps = _Gaps(commits, here, by_commit, _evidence(own), ancestry)
        steps = tuple(
            gaps.step(changes.points, number, better=p.effect * metric.direction.sign < 0)
            for number, p in enumerate(changes.points)
            if abs(p.effect) >= metric.floor.at(p.before)
        )
        series = {c.sha for c in commits}
        finite = [r for r in own if math.isfinite(r.value) and r.commit in series]
        found.append(
            Course(
                record.suite, record.name, metric, environment, here, groups, steps, changes.sd,
                changes.deterministic, _away(ledger, record, metric, here, pairs),
                frozenset(r.commit for r in finite),
                frozenset(r.ulid for r in finite if not r.derived),
            )
        )  # fmt: skip
    return found


def _evidence(rows: Sequence[SummaryRow]) -> dict[str, str]:
    """Return the commits whose trials are all derived, each with the commit it repeats."""
    commit_of = {row.ulid: row.commit for row in rows}
    ran = {row.commit for row in rows if not row.derived}
    return {
        row.commit: commit_of[row.derived]
        for row in rows
        if row.derived in commit_of and row.commit not in ran
    }


class _Gaps:
    """Widens the 95 % sets of change points by the commits without a value.

    A change point knows measured commits only, but what it saw may have happened at any commit
    since the last one before it. A commit whose trial was derived repeats the commit in its
    evidence, so it narrows the set.
    """

    def __init__(
        self,
        commits: Sequence[Commit],
        measured: Sequence[Commit],
        values: Mapping[str, Pairs],
        evidence: Mapping[str, str],
        ancestry: Ancestry,
    ) -> None:
        finite = {sha for sha, pair in values.items() if any(math.isfinite(v) for _, v in pair)}
        self._commits = commits
        self._measured = measured
        self._known = finite | evidence.keys()
        self._finite = [i for i, c in enumerate(measured) if c.sha in finite]
        self._order = {c.sha: i for i, c in enumerate(commits)}
        place = {c.sha: i for i, c in enumerate(measured)}
        self._repeats = {sha: place[of] for sha, of in evidence.items() if of in place}
        self._ancestry = ancestry

    def step(self, points: Sequence[changepoints.Change], number: int, *, better: bool) -> Step:
        """Return the change point of this number as a step between commits."""
        point = points[number]
        old_level = points[number - 1].index if number else 0
        next_level = points[number + 1].index if number + 1 < len(points) else len(self._measured)
        ranges = [self._range(place, old_level, next_level) for place in point.commits]
        start, end = ranges[0][0], ranges[-1][1]
        between = self._ancestry.between
        members = {c.sha for old, new in ranges for c in between(old.sha, new.sha)}
        whole = between(start.sha, end.sha)
        among = tuple(c for c in whole if c.sha in members)
        return Step(
            self._measured[point.index], among, sum(c.sha not in self._known for c in among),
            start if self._ancestry.descends(end.sha, start.sha) else None, end, len(whole),
            point.probability, point.before, point.after, better,
        )  # fmt: skip

    def _range(self, place: int, old_level: int, next_level: int) -> tuple[Commit, Commit]:
        """Return the last commit known to have the old level, and the first known to have the
        new one, if `place` is the first measured commit of the new one.

        The measured commits of the old level begin at `old_level`; those of the new one end
        before `next_level`.
        """
        old = self._measured[self._finite[bisect_left(self._finite, place) - 1]]
        new = self._measured[place]
        derived = [
            (commit, self._repeats[commit.sha] >= place)
            for commit in self._commits[self._order[old.sha] + 1 : self._order[new.sha]]
            if old_level <= self._repeats.get(commit.sha, -1) < next_level
        ]
        with_new = [is_new for _, is_new in derived]
        if with_new == sorted(with_new):  # otherwise the level came and went: nothing is narrowed
            old = next((c for c, is_new in reversed(derived) if not is_new), old)
            new = next((c for c, is_new in derived if is_new), new)
        return old, new


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
