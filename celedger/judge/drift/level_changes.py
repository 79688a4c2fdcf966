"""Where in the history a metric changed: the change points of every task × metric, per
environment, so that a change of environment is never taken for one of code.

What was derived of long histories is cached in a file that may be deleted at any time. The name of
an item is a hash of all that it was derived from and of the rules' version, so that a stale one is
never read."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from functools import cached_property
from itertools import chain, groupby, repeat, starmap
from pathlib import Path
from typing import Any

import numpy as np

from celedger.base import files
from celedger.base.model import (
    BaselineAct,
    BaselineRecord,
    Commit,
    Direction,
    Metric,
    TaskRecord,
    VerdictKind,
)
from celedger.judge.values import Coverage, TaskValues
from celedger.ledger.read import Reader
from celedger.repo.commits import Ancestry
from celedger.stats import changepoints
from celedger.stats.grouped_values import Grouped
from celedger.stats.long_history import ChangePoint, Settled
from celedger.stats.noise import deterministic, pool
from celedger.stats.segments import Loss

RECENT = 5  # commits that are held to the pinned one: enough for a mean, few enough to be now


@dataclass(frozen=True, slots=True)
class LevelStep:
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
    the ids of those that gave one of their own.
    """

    suite: str
    task: str
    metric: Metric
    environment: str
    commits: tuple[Commit, ...]
    values: Grouped  # of the trials at each commit
    steps: tuple[LevelStep, ...]
    sd: float
    exact: bool
    away: Away | None
    valued: frozenset[str]
    trials: frozenset[int]


def courses(
    ledger: Reader,
    commits: Sequence[Commit],
    *,
    lineage: Sequence[Commit] | None = None,
    suite: str | None = None,
    task: str | None = None,
    metric: str | None = None,
    cache: MutableMapping[str, Settled] | None = None,
    read: MutableMapping[str, TaskValues] | None = None,
) -> list[Course]:
    """Return the courses of all judged metrics over `commits`, of each task's newest recipe.

    Args:
        commits: The series to segment, oldest first; those without a value are skipped.
        lineage: Every commit that may have made a change, measured or not, oldest first
            [default: `commits`].
        cache: As in `changepoints.detect`.
        read: Filled with the values of each task, by recipe.

    Environments come in the order in which they were first used.
    """
    newest: dict[tuple[str, str], TaskRecord] = {}
    for record in ledger.tasks():
        if suite in (None, record.suite) and task in (None, record.name):
            newest[record.suite, record.name] = record
    order = {commit.sha: index for index, commit in enumerate(commits)}
    gaps = _Gaps(commits, order, Ancestry(commits if lineage is None else lineage))
    measured: dict[tuple[str, ...], tuple[Commit, ...]] = {}  # metrics of a task mostly share one
    series = []
    for record in newest.values():
        values = TaskValues(ledger, record.recipe, order)
        if read is not None:
            read[record.recipe] = values
        for each in ledger.metrics(record.recipe):
            if each.direction is Direction.INFO or metric not in (None, each.name):
                continue
            for environment, own in values.by_environment(each).items():
                if not own.commits:
                    continue
                if own.commits not in measured:
                    measured[own.commits] = tuple(commits[order[sha]] for sha in own.commits)
                here, coverage = measured[own.commits], values.coverage(own)
                series.append(_Series(record, each, environment, here, own.grouped, coverage))
    changes = [changepoints.detect(each.values, cache) for each in series]
    pins = [r for r in ledger.baselines() if r.act is BaselineAct.PIN]
    return [_course(each, own, pins, gaps) for each, own in zip(series, changes, strict=True)]


@dataclass(frozen=True, eq=False)
class _Series:
    """What a course is found in: `every` value by commit, and which commits have some."""

    record: TaskRecord
    metric: Metric
    environment: str
    commits: tuple[Commit, ...]
    every: Grouped
    coverage: Coverage

    @cached_property
    def values(self) -> Grouped:
        """Return the values that may be compared."""
        return comparable(self.every)

    @cached_property
    def places(self) -> dict[str, int]:
        return {commit.sha: index for index, commit in enumerate(self.commits)}

    @cached_property
    def finite(self) -> list[int]:
        """Return the places of the commits with a finite value."""
        return np.flatnonzero(self.every.finite().sizes).tolist()


def _course(
    series: _Series,
    changes: changepoints.Changes,
    pins: Sequence[BaselineRecord],
    gaps: _Gaps,
) -> Course:
    record, metric, coverage = series.record, series.metric, series.coverage
    steps = tuple(
        gaps.step(series, changes.points, number, better=p.effect * metric.direction.sign < 0)
        for number, p in enumerate(changes.points)
        if abs(p.effect) >= metric.floor.at(p.before)
    )
    own = [r for r in pins if r.suite == record.suite and r.covers(record.name, metric.name)]
    return Course(
        record.suite, record.name, metric, series.environment, series.commits, series.values, steps,
        changes.sd, changes.deterministic, _away(series, own) if own else None,
        coverage.valued, coverage.trials,
    )  # fmt: skip


class _Gaps:
    """Widens the 95 % sets of change points by the commits without a value.

    A change point knows measured commits only, but what it saw may have happened at any commit
    since the last one before it. A commit whose trial was derived repeats the commit in its
    evidence, so it narrows the set.
    """

    def __init__(
        self, commits: Sequence[Commit], order: Mapping[str, int], ancestry: Ancestry
    ) -> None:
        self._commits, self._order, self._ancestry = commits, order, ancestry

    def step(
        self,
        series: _Series,
        points: Sequence[changepoints.Change],
        number: int,
        *,
        better: bool,
    ) -> LevelStep:
        """Return the change point of this number as a step between commits."""
        point, measured = points[number], series.commits
        old_level = points[number - 1].index if number else 0
        next_level = points[number + 1].index if number + 1 < len(points) else len(measured)
        ranges = [self._range(series, place, old_level, next_level) for place in point.commits]
        start, end = ranges[0][0], ranges[-1][1]
        between = self._ancestry.between
        members = {c.sha for old, new in ranges for c in between(old.sha, new.sha)}
        whole = between(start.sha, end.sha)
        among = tuple(c for c in whole if c.sha in members)
        with_value = series.coverage.measured
        return LevelStep(
            measured[point.index], among, sum(c.sha not in with_value for c in among),
            start if any(start.sha in c.parents for c in whole) else None, end, len(whole),
            point.probability, point.before, point.after, better,
        )  # fmt: skip

    def _range(
        self, series: _Series, place: int, old_level: int, next_level: int
    ) -> tuple[Commit, Commit]:
        """Return the last commit known to have the old level, and the first known to have the
        new one, if `place` is the first measured commit of the new one.

        The measured commits of the old level begin at `old_level`; those of the new one end
        before `next_level`.
        """
        old = series.commits[series.finite[bisect_left(series.finite, place) - 1]]
        new = series.commits[place]
        reused = series.coverage.reused
        derived = []
        for commit in self._commits[self._order[old.sha] + 1 : self._order[new.sha]]:
            source = series.places.get(reused[commit.sha], -1) if commit.sha in reused else -1
            if old_level <= source < next_level:
                derived.append((commit, source >= place))
        with_new = [is_new for _, is_new in derived]
        if with_new == sorted(with_new):  # otherwise the level came and went: nothing is narrowed
            old = next((c for c, is_new in reversed(derived) if not is_new), old)
            new = next((c for c, is_new in derived if is_new), new)
        return old, new


def _away(series: _Series, pins: Sequence[BaselineRecord]) -> Away | None:
    """Return the distance from the newest pin among these commits; None where there is none, or
    where it cannot be told from no distance at all."""
    from celedger.stats import verdict as rules  # scipy, for those who pin

    commits, metric, values, places = series.commits, series.metric, series.values, series.places
    at = next((places[r.commit] for r in reversed(pins) if r.commit in places), len(commits) - 1)
    if at == len(commits) - 1:
        return None
    ends = np.cumsum(values.sizes)
    first = max(at + 1, len(commits) - RECENT)
    told = rules.judge(
        values.values[ends[first - 1] :].tolist(),
        [values.values[ends[at] - values.sizes[at] : ends[at]].tolist()],
        sign=metric.direction.sign, floor=metric.floor, noise=pool(values),
    )  # fmt: skip
    if told.kind not in (VerdictKind.REGRESSED, VerdictKind.IMPROVED):
        return None
    better = told.kind is VerdictKind.IMPROVED
    return Away(commits[at], told.level, told.effect, told.low, told.high, better)


def comparable(values: Grouped) -> Grouped:
    """Return the values of each commit that may be compared.

    Where the metric repeats exactly, seeds are not noise but offsets: a commit that was measured
    with one seed more than its neighbours has another mean though nothing changed. Then only the
    seeds that all commits have in common count, if there are any.
    """
    seeds = values.seeds
    if seeds is None:
        return values
    firsts = values.layout.firsts == np.arange(seeds.size)
    commits = Counter(seeds[firsts].tolist())
    common = np.zeros(seeds.size, dtype=bool)
    for seed, count in commits.items():
        if count == len(values):
            common |= seeds == seed
    if common.all() or not common.any() or not deterministic(values):
        return values
    return values.where(common)


MOST = 1000
"""Items that stay beyond those of the last answer: of other ranges, and of the last hundredth
commit."""


class SegmentCache(dict[str, Settled]):
    """Items by name; records which of them were asked for."""

    def __init__(self, items: dict[str, Settled]) -> None:
        super().__init__(items)
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> Settled:
        self.used.add(name)
        return super().__getitem__(name)


@contextmanager
def segment_cache(path: Path) -> Iterator[SegmentCache]:
    """Open the cache in a file; what is added inside is written to it, where it can be."""
    items = _read_items(path)
    segments = SegmentCache(items)
    yield segments
    if segments.keys() - items.keys():
        others = [name for name in segments if name not in segments.used][-MOST:]
        chosen = {name: segments[name] for name in (*others, *sorted(segments.used))}
        packed = {name: _packed(item) for name, item in chosen.items()}
        with suppress(OSError):  # a disk that is full or read-only
            files.replace(path, json.dumps(packed).encode())


def _packed(item: Settled) -> dict[str, Any]:
    return {
        "points": [[p.index, p.probability, p.members] for p in item.points],
        "noise": [item.sd, item.rho, *astuple(item.loss)],
        "scale": [[value, len(list(run))] for value, run in groupby(item.scale)],
    }


def _read_items(path: Path) -> dict[str, Settled]:
    try:
        return {name: _settled(item) for name, item in json.loads(path.read_bytes()).items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # another version's
        return {}


def _settled(item: dict[str, Any]) -> Settled:
    points = tuple(
        ChangePoint(index, probability, tuple(members))
        for index, probability, members in item["points"]
    )
    sd, rho, *loss = item["noise"]
    scale = tuple(chain.from_iterable(starmap(repeat, item["scale"])))
    return Settled(points, sd, Loss(*loss), rho, scale)
