"""Derive what holds along a line: noise, levels and steps of every metric, failures, incidents.

Reads trials, bisects, people's acts and earlier records, and calls the models of `stats`. The state
(`state.py`) and the planner of extra trials (`extra_trials.py`) read the result."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from statistics import median

from celedger.base.model import (
    ALLOCATOR,
    BY_ID,
    ENVIRONMENTS,
    BaselineAct,
    BaselineRecord,
    BisectRecord,
    IncidentState,
    Kind,
    Metric,
    TaskRecord,
)
from celedger.judge import told as tellings
from celedger.judge.failures import Failure, failures
from celedger.judge.incident import TWO_SIDED_95, WORK
from celedger.judge.line import Line
from celedger.judge.measured import TaskMeasurements, measurements
from celedger.judge.work import SignedLine
from celedger.ledger import Ledger
from celedger.stats import incidents as step_incidents
from celedger.stats.commit_evidence import CommitEvidence
from celedger.stats.course import Acts, MetricHistory, MetricKey, StepKind
from celedger.stats.history import trace
from celedger.stats.incidents import Derived
from celedger.stats.mends import KEPT
from celedger.stats.sessions import Contrast, contrasts
from celedger.stats.settled import Cache
from celedger.trial.protocol import TELEMETRY

NO_LONGER = 20
"""Commits at which other tasks of the suite were measured since, from which a task counts as
measured no more."""
FEWEST_CHANGES, USUAL_CHANGES = 6, 4.0
"""Moves of the level, commit to commit, that tell their median, and the medians from which one is
unusual: two uniform draws differ by 3.4 at most, normal ones by 4 in 7 of 1,000 pairs."""


@dataclass(frozen=True, eq=False)
class Derivation:
    """The result of deriving a line: the state and the planner of extra trials read it."""

    ledger: Ledger
    line: Line
    tasks: Mapping[tuple[str, str], TaskMeasurements]
    histories: Mapping[MetricKey, MetricHistory]
    failures: Sequence[Failure]
    derived: Derived
    acts: Sequence[BaselineRecord]
    acts_by_place: Acts
    bisects: Sequence[BisectRecord]
    sets: Sequence[BisectRecord]
    told: Sequence[tellings.Told]
    told_work: Sequence[tellings.Told]
    equal: Mapping[str, str]  # environments that a person declared equal
    signed: SignedLine

    def metric(self, key: MetricKey) -> Metric:
        return self.tasks[key[:2]].metrics[key]

    def find_metric(self, key: MetricKey) -> Metric | None:
        task = self.tasks.get(key[:2])
        return None if task is None else task.metrics.get(key)

    def rebased(self) -> list[tellings.Told]:
        """Return the incidents that a rebase moved to commits that were not measured yet."""
        return [
            each for each in self.told
            if each.where is tellings.Whereabouts.REBASED
            and is_as_recorded(each, self.histories)
            and not any(matching([each], failure) for failure in self.failures)
        ]  # fmt: skip

    @cached_property
    def moved_mends(self) -> Mapping[str, int]:
        """Return where a rebase moved the mends of incidents, by their names, as long as nothing
        was measured there or later."""
        places: dict[str, int] = {}
        for each in (*self.told, *self.told_work):
            is_over = each.record.state == IncidentState.RECOVERED.value
            mend = str(each.record.details.get("closed") or "") if is_over else ""
            own = {key[:2] for key in (*each.steps.states, *each.failing)} & self.tasks.keys()
            newest = max((self._newest[name] for name in own), default=-1)
            # One off the line has no place, or that of an equal tree: before what it mended.
            is_off = mend and each.is_here and self.line.place(mend) <= each.steps.last
            if not is_off or newest == len(self.line.commits) - 1:  # git compares many patches
                continue
            place = self.line.remade(mend)
            if place is not None and newest < place:
                places[each.id] = place
        return places

    def place(self, sha: str) -> int:
        return self.line.place(sha)

    def sha(self, place: int) -> str:
        return self.line.commits[place].sha

    def among(self, first: int, last: int) -> tuple[str, ...]:
        return self.line.among(first, last)

    def is_measured(self, suite: str, task: str) -> bool:
        """Return True if a task is measured still: other tasks of the suite were not measured at
        many later commits."""
        return (suite, task) in self._measured_still

    @cached_property
    def _newest(self) -> Mapping[tuple[str, str], int]:
        """Return where each task was tried last."""
        return {key: max(own.tried, default=-1) for key, own in self.tasks.items()}

    @cached_property
    def _measured_still(self) -> frozenset[tuple[str, str]]:
        places: dict[str, list[int]] = {}  # of each suite, where any task was measured
        for suite in {suite for suite, _ in self.tasks}:
            every = (own.tried for key, own in self.tasks.items() if key[0] == suite)
            places[suite] = sorted(frozenset().union(*every))
        return frozenset(
            key
            for key, place in self._newest.items()
            if len(places[key[0]]) - bisect_right(places[key[0]], place) <= NO_LONGER
        )


def derive(
    ledger: Ledger,
    line: Line,
    *,
    suite: str | None = None,
    task: str | None = None,
    cache: Cache | None = None,
) -> Derivation:
    """Derive everything that is known along a line, of all tasks or of some."""
    by_task: dict[tuple[str, str], list[TaskRecord]] = {}
    for record in ledger.tasks():
        if suite in (None, record.suite) and task in (None, record.name):
            by_task.setdefault((record.suite, record.name), []).append(record)
    acts = ledger.baselines()
    answers = [bisect for bisect in ledger.last_bisects() if bisect.direction == "bad"]
    bisects = [bisect for bisect in answers if bisect.status == "found"]
    sets = [bisect for bisect in answers if bisect.status == "set"]
    equal = _equal_environments(ledger, acts)
    void = ledger.trial_ids(voided(acts))
    every_told = tellings.told(ledger, line)
    told = [each for each in every_told if each.kind != WORK]
    told_work = [each for each in every_told if each.kind == WORK]
    tasks = {
        name: own
        for name, records in by_task.items()
        if (own := measurements(ledger, line, records, equal=equal, void=void)).chains
    }
    failed = [failure for own in tasks.values() for failure in failures(ledger, line, own)]
    by_place = _acts(line, acts, answers, told, tasks)
    histories: dict[MetricKey, MetricHistory] = {}
    for own in tasks.values():
        histories |= _traced(own, told, cache)
    derived = _incidents(line, tasks, histories, told, by_place, failed)
    signatures = ledger.signatures(suite=suite, task=task)
    return Derivation(
        ledger, line, tasks, histories, failed, derived, acts, by_place, bisects, sets, told,
        told_work, equal, SignedLine.of(signatures, line.commits),
    )  # fmt: skip


def _traced(
    own: TaskMeasurements,
    told: Sequence[tellings.Told],
    cache: Cache | None,
) -> dict[MetricKey, MetricHistory]:
    """Return the histories of a task's metrics."""
    drifts: dict[MetricKey, list[tuple[int, int]]] = {}
    for each in told:
        if each.steps.kind is StepKind.DRIFT:
            for key in each.steps.states:
                drifts.setdefault(key, []).append((each.steps.first, each.steps.last))
    return trace(own.measured, told_drifts=drifts, cache=cache)


def _incidents(
    line: Line,
    tasks: Mapping[tuple[str, str], TaskMeasurements],
    histories: Mapping[MetricKey, MetricHistory],
    told: Sequence[tellings.Told],
    acts: Acts,
    failed: Sequence[Failure],
) -> Derived:
    metrics = {key: metric for own in tasks.values() for key, metric in own.metrics.items()}
    asked = {key for each in told for key in each.steps.states}
    beside: list[Contrast] = []
    for key, history in histories.items():
        own = tasks[key[:2]]
        if key in asked or any(s.probability >= KEPT for s in history.steps):
            beside += contrasts(key, own.measured[key], history)
    over: dict[MetricKey, list[tuple[int, int]]] = {}
    for failure in failed:
        if failure.closed is not None:
            keys = [failure.key] if failure.key[2] else tasks[failure.key[:2]].metrics
            for key in keys:
                over.setdefault(key, []).append((failure.first, failure.closed))
    return step_incidents.derive(
        histories,
        [each.steps for each in told if each.is_here and not is_as_recorded(each, histories)],
        floors={key: floor_of(metrics[key], history) for key, history in histories.items()},
        acts=acts,
        evidence=_evidence(line, tasks, histories, acts),
        contrasts=beside,
        undeclared={key for key, metric in metrics.items() if metric in TELEMETRY},
        failed=over,
    )


def floor_of(metric: Metric, history: MetricHistory) -> Callable[[float], float]:
    """Return the smallest change that counts, by level. Every commit may lay out the heap
    differently, and repeats of one commit do not show it: memory that no suite declares must move
    by more than commits usually move it."""
    is_share = metric.kind is Kind.MEMORY and metric.floor.relative
    if not is_share or metric not in TELEMETRY:
        return metric.floor_at
    pairs = pairwise(history.nodes)
    moves = [abs(new.level - old.level) for old, new in pairs if old.chain == new.chain]
    usual = median(moves) if len(moves) >= FEWEST_CHANGES else 0.0
    return lambda level: max(metric.floor_at(level), ALLOCATOR, USUAL_CHANGES * usual)


def is_as_recorded(each: tellings.Told, histories: Mapping[MetricKey, MetricHistory]) -> bool:
    """Return True if an incident is what was recorded of it: a rebase moved it, and nothing was
    measured there or later."""
    if each.where is not tellings.Whereabouts.REBASED:
        return not each.steps.states.keys() & histories.keys()
    return not any(
        node.last >= each.steps.first
        for key in each.steps.states.keys() & histories.keys()
        for node in histories[key].nodes
    )


def voided(acts: Iterable[BaselineRecord]) -> frozenset[str]:
    """Return the trials (ulids) that people declared void, and did not take back."""
    void: set[str] = set()
    for act in acts:
        if act.act is BaselineAct.VOID:
            void.add(act.metric.removeprefix(BY_ID))
        elif act.act is BaselineAct.RESTORE:
            void.discard(act.metric.removeprefix(BY_ID))
    return frozenset(void)


def _equal_environments(ledger: Ledger, acts: Sequence[BaselineRecord]) -> dict[str, str]:
    """Return the environments that a person declared equal, each with the one that stands for
    them: those in which the act's commit was measured."""
    equal: dict[str, str] = {}
    for act in acts:
        if act.metric == ENVIRONMENTS:
            trials = ledger.trials(commit=act.commit, suite=act.suite, task=act.task or None)
            group = list(dict.fromkeys(r.trial.environment for r in trials if r.ok))
            stands = next((equal[e] for e in group if e in equal), group[0] if group else "")
            equal |= dict.fromkeys(group, stands)
    return equal


def _acts(
    line: Line,
    acts: Sequence[BaselineRecord],
    bisects: Sequence[BisectRecord],
    told: Sequence[tellings.Told],
    tasks: Mapping[tuple[str, str], TaskMeasurements],
) -> Acts:
    """Return what people and bisects said that still holds, by place."""
    accepted: dict[MetricKey, set[int]] = {}
    by_id: dict[BaselineAct, set[str]] = {BaselineAct.ACCEPT: set(), BaselineAct.DISMISS: set()}
    for act in acts:
        if act.metric.startswith(BY_ID) and act.act in by_id and act.metric != ENVIRONMENTS:
            name = act.metric.removeprefix(BY_ID)
            own = next((t for t in told if name in t.steps.names), None)
            is_past = (
                act.act is BaselineAct.DISMISS
                and own
                and _is_trained_since(act.at, own.steps.first, math.inf, own.steps.states, tasks)
            )
            if not is_past:
                by_id[act.act].add(name)
        elif act.act is BaselineAct.ACCEPT and act.metric != ENVIRONMENTS:
            place = line.places.get(act.commit)
            if place is not None:
                accepted.setdefault((act.suite, act.task, act.metric), set()).add(place)
    named: dict[MetricKey, dict[int, float]] = {}
    failed: dict[MetricKey, dict[int, float]] = {}
    effects: dict[MetricKey, dict[int, tuple[float, float, float]]] = {}
    apart: dict[tuple[str, str], set[int]] = {}
    cleared: dict[MetricKey, list[tuple[int, int]]] = {}
    for bisect in bisects:
        if bisect.status == "nothing-changed":
            good, bad = (line.holding(sha) for sha in (bisect.good, bisect.bad))
            if good is not None and bad is not None and not _is_trained_since(
                bisect.ended, good + 1, bad, [bisect.key], tasks
            ):  # fmt: skip
                cleared.setdefault(bisect.key, []).append((good, bad))
        if bisect.status != "found":
            continue
        place = line.holding(bisect.culprits[0])
        if place is not None:
            commits = failed if bisect.is_of_failure else named
            commits.setdefault(bisect.key, {})[place] = bisect.probability
            if effect := _effect(bisect):
                effects.setdefault(bisect.key, {})[place] = effect
            for task in bisect.disagreeing():
                apart.setdefault((bisect.suite, task), set()).add(place)
    by_place = Acts(
        {key: frozenset(places) for key, places in accepted.items()},
        frozenset(by_id[BaselineAct.ACCEPT]), frozenset(by_id[BaselineAct.DISMISS]), named, apart,
        cleared, failed, effects,
    )  # fmt: skip
    in_vain = [
        each.steps.names for each in told
        if each.steps.states and all(
            by_place.is_cleared(key, each.steps.first, each.steps.last) for key in each.steps.states
        )
    ]  # fmt: skip
    return replace(by_place, dismissed_ids=by_place.dismissed_ids.union(*in_vain))


def _is_trained_since(
    time: float,
    first: int,
    last: float,
    keys: Iterable[MetricKey],
    tasks: Mapping[tuple[str, str], TaskMeasurements],
) -> bool:
    """Return True if a task of some metrics was trained after a moment at the places `first` to
    `last`: what was dismissed or cleared then may open again. Re-used results tell nothing new."""
    for task in filter(None, (tasks.get(key[:2]) for key in keys)):
        _, place, _, _, started = task.ended_well
        newer = (first <= place) & (place <= last) & (started > 1e6 * time)
        if not task.same_code.keys() >= {*place[newer].tolist()}:
            return True
    return False


def _evidence(
    line: Line,
    tasks: Mapping[tuple[str, str], TaskMeasurements],
    histories: Mapping[MetricKey, MetricHistory],
    acts: Acts,
) -> CommitEvidence | None:
    """Return what commits say of each other; None where nothing fell that they could have mended,
    and none says that it reverts what rose, since git is asked for it."""
    steps = [s for h in histories.values() for s in h.steps if s.probability >= KEPT]
    bisected = {place for own in acts.named.values() for place in own}
    if not steps and not bisected:
        return None
    risen = {p for s in steps if s.size > 0 for p in range(s.first, s.last + 1)}
    names = line.inverses(risen | bisected) | {
        place: named
        for place in range(len(line.commits))
        if (named := line.names(place)) is not None
    }
    reverted = {*names.values()}
    is_named = reverted & bisected or any(s.first <= p <= s.last for s in steps for p in reverted)
    if not is_named and all(s.size > 0 for s in steps):
        return None
    same_code = {name: own.same_code for name, own in tasks.items() if own.same_code}
    return CommitEvidence(names, line.touches, line.foreign(), same_code=same_code)


def _effect(bisect: BisectRecord) -> tuple[float, float, float] | None:
    """Return the level before, the rise and its standard error that a bisect measured, of values
    that are worse when they are higher; None of an improvement or without numbers."""
    level, effect, low, high = (
        float(each) if isinstance(each := bisect.report.get(name), int | float) else math.nan
        for name in ("level", "effect", "low", "high")
    )
    error = (high - low) / (2 * TWO_SIDED_95)
    if bisect.direction == "better" or not math.isfinite(level + effect + error):
        return None
    return math.copysign(1.0, effect) * level, abs(effect), error


def matching(told: Iterable[tellings.Told], failure: Failure) -> list[tellings.Told]:
    """Return what was said of a failure before, the oldest first: of its key, at commits that it
    may be."""
    return [
        each for each in told
        if failure.key in each.failing and each.is_here
        and each.steps.first <= failure.last and failure.first <= each.steps.last
    ]  # fmt: skip
