"""The one memory: what is worse on a line, since which commit, and whether it is over.

Derived anew from trials, bisects and people's acts whenever they change (docs/statistics.md).
Stored are only rows of what was said, on which identity and hysteresis rest, and a cache that may
be deleted at any time. Every view prints rows of this state; none judges.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from celedger.base.model import (
    BY_ID,
    ENVIRONMENTS,
    BaselineAct,
    BaselineRecord,
    BisectRecord,
    Metric,
    TaskRecord,
)
from celedger.judge import incident_list, standings
from celedger.judge import told as tellings
from celedger.judge.failures import Failure, failures
from celedger.judge.incident import Doubt, LevelChange, MetricNoise, PinnedDistance, State
from celedger.judge.line import Line
from celedger.judge.measured import TaskMeasurements, measurements
from celedger.ledger import Ledger
from celedger.stats import incidents as step_incidents
from celedger.stats.controls import Contrast, contrasts
from celedger.stats.course import Acts, MetricHistory, MetricKey, Node, StepKind
from celedger.stats.history import trace
from celedger.stats.incidents import CommitEvidence, Derived

_A_STEP = 0.5
"""Probability of a step from which it is taken for one (an incident below it is withdrawn)."""
_95 = 1.959964  # standard errors at each side of a 95 % interval


@dataclass(frozen=True, eq=False)
class Derivation:
    """All that was derived along a line: what the state is read from, and what the planner of extra
    trials asks."""

    ledger: Ledger
    line: Line
    tasks: Mapping[tuple[str, str], TaskMeasurements]
    histories: Mapping[MetricKey, MetricHistory]
    failures: Sequence[Failure]
    derived: Derived
    acts: Sequence[BaselineRecord]
    acts_by_place: Acts
    bisects: Sequence[BisectRecord]
    told: Sequence[tellings.Told]
    equal: Mapping[str, str]  # environments that a person declared equal

    def sizes(self) -> dict[str, list[list[object]]]:
        """Return the sizes of the steps of each incident, by its id, as `told` stores them."""
        return incident_list.build(self).sizes

    def metric(self, key: MetricKey) -> Metric:
        return self.tasks[key[:2]].metrics[key]

    def place(self, sha: str) -> int:
        """Return the place of a commit, of one of a merged branch that of the merge; else -1."""
        place = self.line.holding(sha) if sha else None
        return -1 if place is None else place

    def sha(self, place: int) -> str:
        return self.line.commits[place].sha

    def among(self, first: int, last: int) -> tuple[str, ...]:
        return tuple(c.sha for c in self.line.commits[max(0, first) : last + 1])

    def state(self, at: str | None = None) -> State:
        """Return the state; with `at`, how the metrics stand at that commit instead of the tip."""
        place = len(self.line.commits) - 1 if at is None else self.place(at)
        listed = incident_list.build(self)
        measured = {p for task in self.tasks.values() for p in task.ended_well[1].tolist()}
        everywhere = set(self.ledger.commits_with_trials())
        return State(
            tip=self.line.tip.sha,
            incidents=listed.incidents,
            changes=tuple(self._changes()),
            doubts=tuple(self._doubts()),
            pinned=tuple(self._pinned()),
            standings=tuple(standings.at(self, place, listed.incidents)),
            noise=tuple(self._noise()),
            gone=listed.gone,
            metrics=len(self.histories),
            commits=len(measured),
            trials=sum(task.ended_well.shape[1] for task in self.tasks.values()),
            aside=len(everywhere - self.line.places.keys()),
            environments=len({c.environment for t in self.tasks.values() for c in t.chains}),
        )

    def _changes(self) -> Iterable[LevelChange]:
        """Yield improvements, and the offset of each change of environment or definition."""
        for key, step in self.derived.changes:
            metric, sign = self.metric(key), self.metric(key).direction.sign
            low, high = sorted(sign * (step.size + way * _95 * step.error) for way in (-1, 1))
            yield LevelChange(
                "improvement", *key, sign * step.before, sign * step.after, low, high, metric.unit,
                step.probability, self.among(step.first, step.last), self.sha(step.likeliest),
                better=step.size < 0, known=self.sha(step.known) if step.known >= 0 else "",
            )  # fmt: skip
        for key, history in self.histories.items():
            yield from self._offsets(key, history)

    def _offsets(self, key: MetricKey, history: MetricHistory) -> Iterable[LevelChange]:
        task, metric = self.tasks[key[:2]], self.metric(key)
        by_chain: dict[int, list[int]] = {}
        for index, node in enumerate(history.nodes):
            by_chain.setdefault(node.chain, []).append(index)
        numbers = sorted(by_chain)
        for old, new in pairwise(numbers):
            found = _newest_of_both(history.nodes, by_chain[old], by_chain[new])
            if found is None:
                continue
            place, one, other = found
            sign = metric.direction.sign
            size, error = sign * (other.level - one.level), (one.error**2 + other.error**2) ** 0.5
            chains = task.chains[old], task.chains[new]
            same = chains[0].environment == chains[1].environment
            yield LevelChange(
                "definition" if same else "environment", *key, sign * one.level,
                sign * other.level, size - _95 * error, size + _95 * error, metric.unit, 1.0,
                (self.sha(place),), self.sha(place), better=size * sign < 0,
                environments=(chains[0].environment, chains[1].environment),
            )  # fmt: skip

    def _noise(self) -> Iterable[MetricNoise]:
        for key, history in self.histories.items():
            noise = history.noise
            yield MetricNoise(*key, noise.sd, noise.freedom, noise.is_exact, noise.session)

    def _doubts(self) -> Iterable[Doubt]:
        for key, step in self.derived.suspected:
            metric, sign = self.metric(key), self.metric(key).direction.sign
            yield Doubt(
                *key, self.among(step.first, step.last), self.sha(step.likeliest),
                step.probability, sign * step.size, metric.unit, sign * step.before,
            )  # fmt: skip

    def _pinned(self) -> Iterable[PinnedDistance]:
        """Yield how far each metric lies from its newest pin by now, in the same chain."""
        pins = [act for act in self.acts if act.act is BaselineAct.PIN]
        for key, history in self.histories.items():
            metric = self.metric(key)
            places = [
                self.place(pin.commit)
                for pin in pins
                if pin.suite == key[0] and pin.covers(key[1], key[2])
            ]
            pin = next((p for p in reversed(places) if p >= 0), -1)
            if pin < 0 or not history.nodes:
                continue
            newest = max(history.nodes, key=lambda node: (node.chain, node.last))
            at = [n for n in history.nodes if n.chain == newest.chain and n.first <= pin <= n.last]
            if not at or at[0] is newest:
                continue
            sign = metric.direction.sign
            size, error = newest.level - at[0].level, (newest.error**2 + at[0].error ** 2) ** 0.5
            low, high = sorted(sign * (size + way * _95 * error) for way in (-1, 1))
            level = sign * at[0].level
            clear = low * high > 0 and abs(size) >= metric.floor.at(level)
            yield PinnedDistance(
                *key, self.sha(pin), level, sign * size, low, high, metric.unit, size < 0, clear
            )

    def told_failure(self, failure: Failure) -> tellings.Told | None:
        return incident_list.match(self.told, failure)

    def is_measured(self, suite: str, task: str) -> bool:
        """Return True if a task is measured still: other tasks of the suite were not measured at
        many later commits."""
        newest = {name: own.ended_well[1].max(initial=-1) for name, own in self._suite(suite)}
        later = {
            place
            for name, own in self._suite(suite)
            if name != task
            for place in own.ended_well[1].tolist()
            if place > newest.get(task, -1)
        }
        return task in newest and len(later) <= incident_list.NO_LONGER

    def _suite(self, suite: str) -> list[tuple[str, TaskMeasurements]]:
        return [(name, own) for (its, name), own in self.tasks.items() if its == suite]


def _newest_of_both(
    nodes: Sequence[Node], old: Sequence[int], new: Sequence[int]
) -> tuple[int, Node, Node] | None:
    """Return the newest place that nodes of two chains share, and these nodes."""
    firsts, lasts = [nodes[a].first for a in old], [nodes[a].last for a in old]
    for b in reversed(new):
        at = bisect_left(lasts, nodes[b].first)
        if at < bisect_right(firsts, nodes[b].last):
            return nodes[b].last, nodes[old[at]], nodes[b]
    return None


def derive(
    ledger: Ledger,
    line: Line,
    *,
    suite: str | None = None,
    task: str | None = None,
    cache: MutableMapping[str, Any] | None = None,
) -> Derivation:
    """Derive everything that is known along a line, of all tasks or of some."""
    by_task: dict[tuple[str, str], list[TaskRecord]] = {}
    for record in ledger.tasks():
        if suite in (None, record.suite) and task in (None, record.name):
            by_task.setdefault((record.suite, record.name), []).append(record)
    acts = ledger.baselines()
    bisects = [b for b in ledger.bisects() if b.status == "found" and not b.report.get("improved")]
    equal = _equal_environments(ledger, acts)
    void = ledger.trial_ids(voided(acts))
    told = tellings.told(ledger, line)
    tasks = {
        name: own
        for name, records in by_task.items()
        if (own := measurements(ledger, line, records, equal=equal, void=void)).chains
    }
    failed = [failure for own in tasks.values() for failure in failures(ledger, line, own)]
    by_place = _acts(line, acts, bisects, told, tasks)
    histories: dict[MetricKey, MetricHistory] = {}
    for own in tasks.values():
        histories |= _traced(own, told, cache)
    derived = _incidents(line, tasks, histories, told, by_place)
    if derived.disturbed:
        tasks = {name: _without(own, derived.disturbed) for name, own in tasks.items()}
        for key in {contrast.key for contrast in derived.disturbed}:
            histories |= _traced(tasks[key[:2]], told, cache)
        derived = _incidents(line, tasks, histories, told, by_place)
    return Derivation(
        ledger, line, tasks, histories, failed, derived, acts, by_place, bisects, told, equal
    )


def _traced(
    own: TaskMeasurements,
    told: Sequence[tellings.Told],
    cache: MutableMapping[str, Any] | None,
) -> dict[MetricKey, MetricHistory]:
    """Return the histories of a task's metrics."""
    drifts: dict[MetricKey, list[tuple[int, int]]] = {}
    for each in told:
        if each.steps.kind is StepKind.DRIFT:
            for key in each.steps.states:
                drifts.setdefault(key, []).append((each.steps.first, each.steps.last))
    return trace(own.measured, told_drifts=drifts, pinned=_controls(own), cache=cache)


def _incidents(
    line: Line,
    tasks: Mapping[tuple[str, str], TaskMeasurements],
    histories: Mapping[MetricKey, MetricHistory],
    told: Sequence[tellings.Told],
    acts: Acts,
) -> Derived:
    metrics = {key: metric for own in tasks.values() for key, metric in own.metrics.items()}
    asked = {key for each in told for key in each.steps.states}
    beside: list[Contrast] = []
    for key, history in histories.items():
        own = tasks[key[:2]]
        if key in asked or any(s.probability >= _A_STEP for s in history.steps):
            beside += contrasts(key, own.measured[key], history, own.controls[key])
    return step_incidents.derive(
        histories,
        [each.steps for each in told if each.steps.states.keys() & histories.keys()],
        floors={key: metric.floor.at for key, metric in metrics.items()},
        acts=acts,
        evidence=_evidence(line, histories),
        contrasts=beside,
    )


def _without(own: TaskMeasurements, disturbed: Sequence[Contrast]) -> TaskMeasurements:
    """Return a task's measurements without the sessions in which controls showed a commit to have
    been disturbed."""
    measured = dict(own.measured)
    for each in disturbed:
        values = measured.get(each.key)
        if values is not None:
            bad = (values.place == each.old) & np.isin(values.session, each.high_sessions)
            measured[each.key] = values.where(~bad)
    return replace(own, measured=measured)


def voided(acts: Iterable[BaselineRecord]) -> frozenset[str]:
    """Return the trials (ulids) that people declared void, and did not take back."""
    void: set[str] = set()
    for act in acts:
        if act.act is BaselineAct.VOID:
            void.add(act.metric.removeprefix(BY_ID))
        elif act.act is BaselineAct.RESTORE:
            void.discard(act.metric.removeprefix(BY_ID))
    return frozenset(void)


def _controls(task: TaskMeasurements) -> dict[int, int]:
    """Return the place of each chain's control, by chain: the oldest measured commit there."""
    controls: dict[int, int] = {}
    for _, place, chain, *_ in task.ended_well.T.tolist():
        controls[chain] = min(place, controls.get(chain, place))
    return controls


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
            own = next((t for t in told if t.id == act.metric.removeprefix(BY_ID)), None)
            is_past = act.act is BaselineAct.DISMISS and own and _is_measured_since(own, act, tasks)
            if not is_past:
                by_id[act.act].add(act.metric.removeprefix(BY_ID))
        elif act.act is BaselineAct.ACCEPT and act.metric != ENVIRONMENTS:
            place = line.places.get(act.commit)
            if place is not None:
                accepted.setdefault((act.suite, act.task, act.metric), set()).add(place)
    named: dict[MetricKey, dict[int, float]] = {}
    for bisect in bisects:
        place = line.holding(bisect.culprits[0])
        if place is not None:
            key = (bisect.suite, bisect.task, bisect.metric)
            named.setdefault(key, {})[place] = bisect.probability
    return Acts(
        {key: frozenset(places) for key, places in accepted.items()},
        frozenset(by_id[BaselineAct.ACCEPT]), frozenset(by_id[BaselineAct.DISMISS]), named,
    )  # fmt: skip


def _is_measured_since(
    own: tellings.Told, act: BaselineRecord, tasks: Mapping[tuple[str, str], TaskMeasurements]
) -> bool:
    """Return True if one of an incident's tasks was trained after an act at a commit that may have
    it: what was dismissed may open again."""
    for key in own.steps.states:
        task = tasks.get(key[:2])
        if task is not None:
            _, place, _, _, started = task.ended_well
            if (started[place >= own.steps.first] > act.at).any():
                return True
    return False


def _evidence(line: Line, histories: Mapping[MetricKey, MetricHistory]) -> CommitEvidence | None:
    """Return what commits say of each other; None where nothing fell that they could have mended,
    since git is asked for it."""
    falls = any(
        step.size < 0 and step.probability >= _A_STEP
        for history in histories.values()
        for step in history.steps
    )
    if not falls:
        return None
    names = {
        place: named
        for place in range(len(line.commits))
        if (named := line.names(place)) is not None
    }
    return CommitEvidence(names, line.touches, line.foreign())
