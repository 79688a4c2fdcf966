"""The state: what is worse on a line, since which commit, and whether it is over.

Lives here: the list of incidents, named and sorted, and the state that has it. Steps of numbers and
failures are one incident if one commit may have made both; a commit that a bisect named is the
first bad one.

The state is derived anew from trials, bisects and people's acts whenever they change
(docs/statistics.md). Stored are only the rows of `said`, on which identity and hysteresis rest, and
a cache. Views print rows of the state and judge nothing."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import pairwise
from typing import Any

from celedger.base.model import (
    BY_ID,
    CLOCKED,
    IN_FORCE,
    BaselineAct,
    BisectRecord,
    IncidentState,
    Kind,
)
from celedger.judge import standings
from celedger.judge.derivation import Derivation, matching
from celedger.judge.failures import Failure
from celedger.judge.incident import (
    FAILURES,
    PER_STEP,
    WORK,
    Doubt,
    Incident,
    IncidentMetric,
    LevelChange,
    MetricNoise,
    PinnedDistance,
    State,
    explanation,
    interval,
    uses_torch,
)
from celedger.judge.told import Told, Whereabouts, identity
from celedger.judge.work import ORDER, WorkRise
from celedger.stats.course import (
    Acts,
    MetricHistory,
    MetricKey,
    Node,
    StepIncident,
    StepKind,
)
from celedger.stats.line_steps import overlap
from celedger.trial.protocol import TELEMETRY

StepSizes = dict[str, list[list[object]]]
"""Sizes of the steps of each incident, by its id, as `told` stores them."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What has one cause so far: a set of places, and what moved there."""

    first: int
    last: int
    likeliest: int
    probability: float
    state: IncidentState
    kind: str
    metrics: tuple[IncidentMetric, ...]
    id: str = ""
    seen: int = -1
    known: int = -1
    closed: int | None = None
    failures: tuple[Failure, ...] = ()
    was_sure: bool = False
    why: str = ""
    sizes: list[list[object]] = field(default_factory=list)
    also: tuple[str, ...] = ()
    is_measured: bool | None = None  # None: as its tasks are
    partly: tuple[int, ...] = ()  # where it was mended in part


def _incidents(
    derivation: Derivation,
) -> tuple[tuple[Incident, ...], tuple[str, ...], StepSizes]:
    """Return all incidents of the line, sorted; the ids of those whose commits left it; and the
    sizes."""
    others = (Whereabouts.MERGED, Whereabouts.SQUASHED)
    elsewhere = {t.id for t in derivation.told if t.where in others}
    dismissed = derivation.acts_by_place.dismissed_ids
    parts = [
        _of_steps(derivation, each)
        for each in derivation.derived.incidents
        # What a branch mended before it was merged or squashed never was on the line.
        if each.state is not IncidentState.WITHDRAWN or each.id not in elsewhere - dismissed
    ]
    age = {each.id: (each.steps.since, each.id) for each in derivation.told}
    rises = derivation.signed.rises(derivation.ledger.metrics)
    taken: set[str] = set()
    for failure in derivation.failures:
        matches = matching(derivation.told, failure)
        new = _of_failure(derivation, failure, matches, taken)
        taken |= {each.id for each in matches}
        reported = {key for each in matches for key in each.failing}
        parts = _joined(parts, new, age, rises, derivation.acts_by_place, reported)
    parts += [_as_recorded(derivation, each) for each in derivation.rebased()]
    parts += [_of_rises(derivation, each) for each in _by_cause(rises)]
    incidents, sizes = list[Incident](), StepSizes()
    follows = cache(partial(uses_torch, derivation.ledger))
    names = {name for part in parts for name in (part.id, *part.also)} - {""}
    for part in parts:
        if part.id in derivation.moved_mends:
            part = _recovered(part, derivation.moved_mends[part.id])
        incident = _named(derivation, part, names)
        if incident.in_force and incident.is_named:
            findings = derivation.ledger.findings(incident.likeliest)
            explained = explanation(incident, findings) is not None
            has_torch = follows(incident.main.suite, incident.main.task)
            incident = incident._replace(is_explained=explained, has_torch=has_torch)
        names.add(incident.id)
        incidents.append(incident)
        sizes[incident.id] = part.sizes
    listed = {incident.id for incident in incidents}
    gone = tuple(
        each.id
        for each in derivation.told
        if each.where in (Whereabouts.GONE, Whereabouts.SQUASHED) and each.id not in listed
    )
    return tuple(sorted(with_work(incidents), key=_order)), gone, sizes


def _order(incident: Incident) -> tuple[object, ...]:
    floors = max((m.floors for m in incident.metrics if m.declared), default=0.0)
    return (not incident.in_force, incident.kind == WORK, not incident.is_measured,
            not incident.is_failure, not incident.declared, -floors, incident.id)  # fmt: skip


def with_work(incidents: Sequence[Incident]) -> list[Incident]:
    """Return the incidents with each undeclared rise of work at what shares its cause: one that
    slowed the task or took its memory at one of the same commits, or that has this one commit."""
    rises = [i for i in incidents if i.kind == WORK and not i.declared]
    others = [i for i in incidents if i not in rises]
    for rise in rises:
        hosts = [place for place, host in enumerate(others) if _may_have_raised(host, rise)]
        if hosts:
            place = min(hosts, key=lambda place: len(others[place].first_bad))
            host = others[place]
            others[place] = host._replace(
                work=(*host.work, *rise.metrics), work_ids=(*host.work_ids, *rise.names)
            )
        else:
            others.append(rise)
    return others


def _may_have_raised(host: Incident, rise: Incident) -> bool:
    tasks = {m.key[:2] for m in rise.metrics}
    own = [m for m in host.metrics if m.key[:2] in tasks and m.name]
    if not own or host.kind == WORK or host.state == IncidentState.WITHDRAWN:
        return False  # what was withdrawn was nothing, and counts are exact
    costs = any(Kind(m.kind) in CLOCKED for m in own)
    shared = set(rise.first_bad) & set(host.first_bad if costs or host.is_named else ())
    if host.state == IncidentState.ACCEPTED:  # with all that its commits do
        return shared == set(rise.first_bad)
    return host.in_force == rise.in_force and bool(shared)


def _by_cause(rises: Sequence[WorkRise]) -> list[list[WorkRise]]:
    """Group the rises of work whose sets share a commit."""
    causes: list[list[WorkRise]] = []
    for rise in rises:
        for cause in causes:
            first, last = max(r.first for r in cause), min(r.last for r in cause)
            if rise.first <= last and first <= rise.last and all(r.key != rise.key for r in cause):
                cause.append(rise)
                break
        else:
            causes.append([rise])
    return causes


def _of_rises(derivation: Derivation, rises: Sequence[WorkRise]) -> _Part:
    first, last = max(r.first for r in rises), min(r.last for r in rises)
    rises = sorted(rises, key=lambda r: (not r.is_declared, r.task, ORDER.index(r.count)))
    told = [
        each for each in derivation.told_work
        if each.is_here and each.steps.first <= last and first <= each.steps.last
        and any(rise.key in each.steps.states for rise in rises)
    ]  # fmt: skip
    names = [name for each in told for name in (each.id, *each.steps.also)]
    names = names or [identity(*rises[0].key, WORK, derivation.among(first, last)[0])]
    acts = derivation.acts_by_place
    metrics = []
    for rise in rises:
        change = rise.after - rise.before
        state = acts.state_of(names, rise.key, rise.first, rise.last)
        state = state or (IncidentState.OPEN if rise.closed is None else IncidentState.RECOVERED)
        metrics.append(IncidentMetric(
            *rise.key, rise.before, rise.after, change, change, change, PER_STEP, WORK,
            state.value, rise.is_declared, change / rise.floor,
        ))  # fmt: skip
    states = {IncidentState(metric.state) for metric in metrics}
    return _Part(
        first, last, last, 1 / (last - first + 1),
        next(iter(states)) if len(states) == 1 else IncidentState.PARTLY, WORK, tuple(metrics),
        names[0], last, first - 1,
        max((rise.closed for rise in rises if rise.closed is not None), default=None),
        was_sure=True, also=tuple(names[1:]), is_measured=any(rise.is_current for rise in rises),
    )  # fmt: skip


STAYS = 1.5
"""Times that another metric must have moved further to take the place of the one by which an
incident was told: its alerts are about one thing."""


def _of_steps(derivation: Derivation, incident: StepIncident) -> _Part:
    rows, sizes = [], []
    for key, share in incident.shares.items():
        metric = derivation.metric(key)
        sign, step = metric.direction.sign, share.step
        low, high = interval(sign, step.size, step.error)
        floor = metric.visible_at(step.before)
        row = IncidentMetric(
            *key,
            sign * step.before,
            sign * (step.before + step.size),
            sign * step.size,
            low,
            high,
            metric.unit,
            metric.kind.value,
            share.state.value,
            metric not in TELEMETRY,
            abs(step.size) / floor if floor else abs(step.size) / step.unit,
            None if share.left is None else sign * share.left,
        )
        rows.append(row)
        sizes.append([*key, step.size, step.error, step.before])
    record = next((t.record for t in derivation.told if t.id == incident.id), None)
    headline = (record.suite, record.task, record.metric) if record is not None else None
    closed = incident.closed
    if closed is None and incident.state is IncidentState.RECOVERED and record is not None:
        place = derivation.place(str(record.details.get("closed") or ""))
        closed = place if place > incident.last else None
    rows.sort(key=lambda row: (
        not row.declared, -row.floors * (STAYS if row.key == headline else 1),
    ))  # fmt: skip
    steps = [share.step for share in incident.shares.values()]
    return _Part(
        incident.first, incident.last, incident.likeliest, incident.probability, incident.state,
        "drift" if incident.kind is StepKind.DRIFT else "metric", tuple(rows), incident.id,
        _first_of((step.likeliest for step in steps), incident.first, incident.last),
        min((step.known for step in steps), default=-1), closed, (), incident.was_sure,
        f"a part of {incident.joined}" if incident.joined else "", sizes, incident.also,
        partly=incident.parts,
    )  # fmt: skip


def _first_of(places: Iterable[int], first: int, last: int) -> int:
    """Return the first of the places that lies in a set, else the set's last one: a bisect may have
    found the cause after the place where a metric by itself seemed to have moved."""
    return min((place for place in places if first <= place <= last), default=last)


def _as_recorded(derivation: Derivation, told: Told) -> _Part:
    """Return an incident whose commits a rebase moved, as long as nothing is measured there."""
    details: Mapping[str, Any] = told.record.details
    state = IncidentState(told.record.state)
    recorded: list[list[Any]] = details.get("sizes", [])
    sizes = {tuple(row[:3]): row[3:] for row in recorded}
    rows = []
    for suite, task, name, own in details["metrics"]:
        key = (suite, task, name)
        metric = derivation.find_metric(key)
        size, error, before = sizes.get(key, (math.nan,) * 3)
        sign = metric.direction.sign if metric is not None else 1
        low, high = interval(sign, size, error)
        rows.append(
            IncidentMetric(
                *key, sign * before, sign * (before + size), sign * size, low, high,
                metric.unit if metric is not None else "",
                metric.kind.value if metric is not None else Kind.QUALITY.value, own,
                metric not in TELEMETRY,
            )
        )  # fmt: skip
    first, last = told.steps.first, told.steps.last
    return _Part(
        first, last, last, 1 / (last - first + 1), state, told.kind, tuple(rows), told.id, last,
        first - 1, None, (), told.steps.was_sure, "", recorded,
    )  # fmt: skip


def _recovered(part: _Part, closed: int) -> _Part:
    over = IncidentState.RECOVERED
    metrics = tuple(metric._replace(state=over.value) for metric in part.metrics)
    return replace(part, state=over, metrics=metrics, closed=closed)


def _of_failure(
    derivation: Derivation, failure: Failure, told: Sequence[Told], taken: Collection[str]
) -> _Part:
    """Return a failure, of which something was `told` before, the oldest first: of several tasks
    together, whose name one of them has `taken`; what a person said of it holds for all of them."""
    first, last, likeliest = failure.first, failure.last, failure.last
    probability = 1 / (last - first + 1)
    named = derivation.acts_by_place.failed.get(failure.key, {})
    at = [place for place in named if first <= place <= last]
    if at:
        first = last = likeliest = at[-1]
        probability = named[likeliest]
    every_name = {name for each in told for name in each.steps.names}
    state = derivation.acts_by_place.state_of(every_name, failure.key, first, last)
    own = [each for each in told if each.id not in taken]
    names = tuple(dict.fromkeys(name for each in own for name in (each.id, *each.steps.also)))
    state = state or (IncidentState.OPEN if failure.closed is None else IncidentState.RECOVERED)
    row = IncidentMetric(*failure.key, *(math.nan,) * 5, state=state.value)
    return _Part(
        first, last, likeliest, probability, state, failure.kind, (row,), "".join(names[:1]),
        failure.last, failure.known, failure.closed, (failure,), True, also=names[1:],
    )  # fmt: skip


def _joined(
    parts: Sequence[_Part],
    new: _Part,
    age: Mapping[str, tuple[float, str]],
    rises: Sequence[WorkRise],
    acts: Acts,
    reported: Collection[MetricKey],
) -> list[_Part]:
    """Return the parts with one more, joined to one with which it shares a commit. A task that
    fails has no numbers: what is worse once it runs again is another cause, the mend's perhaps. So
    is what a rise of work at another of its commits slowed, and telemetry that stays worse when it
    runs again; and what is over of what is not, unless that was `reported` with the failure. Of
    two names the older one stays; `age` sorts them."""
    mates = [
        part for part in parts
        if overlap(part, new) and not _are_apart(part, new, acts)
        and part.state is not IncidentState.WITHDRAWN
        and new.state is not IncidentState.WITHDRAWN
        and not (part.last > new.last and any(_is_hidden(m, new) for m in part.metrics))
        and not _is_behind(part, new) and not _is_behind(new, part)
        and (part.seen == new.seen or not (_never_ran(part) or _never_ran(new)))
        and (part.state is new.state or any(m.declared for m in part.metrics))
        and not any(_is_slowed(part, rise) and not overlap(rise, new) for rise in rises)
        and (
            (part.state is IncidentState.RECOVERED) == (new.state is IncidentState.RECOVERED)
            or part.id == new.id or any(m.key in reported for m in part.metrics)
        )
    ]  # fmt: skip
    if not mates:  # of what parted the failure keeps the name
        parted = [p if p.id != new.id else replace(p, id="", also=()) for p in parts]
        return [*parted, new]
    mate = min(mates, key=lambda part: (part.last - part.first, part.first))
    first, last = max(mate.first, new.first), min(mate.last, new.last)
    surest = mate if first <= mate.likeliest <= last and not new.known < mate.known else new
    likeliest = min(max(surest.likeliest, first), last)
    states = {mate.state, new.state}
    state = next(iter(states))
    if len(states) > 1:
        over = IncidentState.RECOVERED in states or IncidentState.PARTLY in states
        state = IncidentState.PARTLY if over else IncidentState.OPEN
    failures = (*mate.failures, *new.failures)
    closed = None if mate.closed is None or new.closed is None else max(mate.closed, new.closed)
    ids = sorted(filter(None, (mate.id, new.id)), key=age.__getitem__)
    joined = replace(
        mate, first=first, last=last, likeliest=likeliest,
        probability=max(mate.probability, new.probability, 1 / (last - first + 1)),
        state=state, kind=min((each.kind for each in failures), key=FAILURES.index),
        metrics=(*new.metrics, *mate.metrics) if not mate.failures
        else (*mate.metrics, *new.metrics),
        id="".join(ids[:1]), also=(*mate.also, *new.also, *ids[1:]),
        seen=_first_of((mate.seen, new.seen), first, last), known=max(mate.known, new.known),
        closed=closed, failures=failures, was_sure=True,
    )  # fmt: skip
    return [joined if part is mate else part for part in parts]


def _are_apart(part: _Part, other: _Part, acts: Acts) -> bool:
    """Return True if a bisect named the commit of one, which did not move the other."""
    return any(
        own.first == own.last and acts.are_apart((m.key for m in beside.metrics), own.first)
        for own, beside in ((part, other), (other, part))
    )


def _never_ran(part: _Part) -> bool:
    """Return True if a task fails since it is measured: any commit before may be why, and that of
    another incident no more than others."""
    return bool(part.failures) and part.known < 0


def _is_slowed(part: _Part, rise: WorkRise) -> bool:
    """Return True if a rise of a task's work may be why it became slow, or took memory."""
    own = (Kind(m.kind) in CLOCKED and m.key[:2] == rise.key[:2] for m in part.metrics if m.name)
    return not part.failures and overlap(rise, part) and all(own)


def _is_behind(part: _Part, crash: _Part) -> bool:
    """Return True if a metric was first seen to fail once its task ran again."""
    return part.last > crash.last and any(
        each.key[2] and (*each.key[:2], "") == other.key
        for each in part.failures
        for other in crash.failures
    )


def _is_hidden(metric: IncidentMetric, failure: _Part) -> bool:
    """Return True if a metric that moved has no value where this fails."""
    return math.isfinite(metric.change) and any(
        metric.key[:2] == each.key[:2] and each.key[2] in ("", metric.name)
        for each in failure.failures
    )


def _named(derivation: Derivation, part: _Part, taken: Collection[str]) -> Incident:
    """Return a part as an incident. A new one gets a name that is not `taken`: of two that parted,
    one keeps the name, and the other may begin at the same commit."""
    main = part.metrics[0]
    metrics = tuple(sorted(part.metrics, key=lambda m: m.state not in IN_FORCE))
    among = derivation.among(part.first, part.last)
    oldest = among[0]
    likeliest, probability = derivation.sha(part.likeliest), part.probability
    bisect = _bisect(derivation, part, derivation.bisects)
    inseparable = None if bisect else _bisect(derivation, part, derivation.sets)
    if answer := bisect or inseparable:
        likeliest, probability = answer.culprits[0], answer.probability
        inside = [
            sha for sha in answer.culprits if part.first <= derivation.place(sha) <= part.last
        ]
        among = tuple(sorted(inside, key=derivation.place)) or (likeliest,)
    name = part.id
    while not name or (name in taken and not part.id):
        name = identity(main.suite, main.task, main.name, part.kind, oldest + name)
    failure = part.failures[0] if part.failures else None
    closed_at, mend_seen_at, mended_by = _mended(derivation, part)
    return Incident(
        name, part.kind, part.state.value, metrics, among, likeliest, probability,
        derivation.sha(part.seen), derivation.sha(part.known) if part.known >= 0 else "",
        derivation.line.parent(likeliest),
        closed_at,
        bisect.ulid if bisect is not None else "",
        failure.message if failure else "", failure.ulid if failure else "",
        failure.log if failure else "",
        any(derivation.is_measured(m.suite, m.task) for m in part.metrics)
        if part.is_measured is None else part.is_measured, part.was_sure,
        part.why or _reason(derivation, (name, *part.also), part), part.also,
        inseparable=inseparable is not None, mend_seen_at=mend_seen_at, mended_by=mended_by,
        partly_at=tuple(map(derivation.sha, part.partly)),
    )  # fmt: skip


def _mended(derivation: Derivation, part: _Part) -> tuple[str, str, tuple[str, ...]]:
    """Return the likeliest mend, the measured commit at which it shows, and the commits that may be
    it: all since the one that was tried before, of these the one that reverts a first bad commit,
    or those which alone changed the bits of what is computed."""
    if part.closed is None:
        return "", "", ()
    seen = []
    for key in {m.key for m in part.metrics} & derivation.histories.keys():
        nodes = derivation.histories[key].nodes
        for chain in _chains(nodes):
            # A revert has a node's bits from before the incident.
            at = bisect_left(nodes, part.closed, chain.start, chain.stop, key=lambda n: n.last)
            seen += [max(node.first, part.closed) for node in nodes[at : chain.stop][:1]]
    last = min(seen, default=part.closed)
    earliest = min(part.closed, last)
    tasks = {m.key[:2] for m in part.metrics} & derivation.tasks.keys()
    before = [p for task in tasks for p in derivation.tasks[task].tried if p < earliest]
    before = [failure.lasted for failure in part.failures] or before
    first = 1 + max(before, default=earliest - 1)
    for place in range(last, first - 1, -1):
        named = derivation.line.names(place)
        if named is not None and part.first <= named <= part.last:
            sha = derivation.sha(place)
            return sha, derivation.sha(last), (sha,)
    closed, seen_at = part.closed, derivation.sha(last)
    metrics = [derivation.find_metric(m.key) for m in part.metrics]
    if not any(metric and metric.kind in CLOCKED for metric in metrics):
        first, last = derivation.signed.news(part.metrics[0].key[:2], first, last)
        closed = min(max(closed, first), last)
    return derivation.sha(closed), seen_at, derivation.among(first, last)


def _chains(nodes: Sequence[Node]) -> list[range]:
    """Return the indices of the nodes of each chain."""
    ends = [0]
    while ends[-1] < len(nodes):
        ends.append(bisect_right(nodes, nodes[ends[-1]].chain, key=lambda n: n.chain))
    return list(map(range, ends, ends[1:]))


def _bisect(
    derivation: Derivation, part: _Part, answers: Sequence[BisectRecord]
) -> BisectRecord | None:
    """Return the newest answer of one of the metrics of which a commit of the set is the first."""
    keys = {m.key for m in part.metrics}
    own = [
        bisect for bisect in answers
        if bisect.key in keys and part.first <= derivation.place(bisect.culprits[0]) <= part.last
    ]  # fmt: skip
    return own[-1] if own else None


def _reason(derivation: Derivation, names: Sequence[str], part: _Part) -> str:
    """Return what a person wrote who accepted it, or dismissed it, although it opened again."""
    if part.state is IncidentState.RECOVERED:
        return ""
    keys = [m.key for m in part.metrics]
    for act in reversed(derivation.acts):
        by_name = act.metric.removeprefix(BY_ID) in names
        if part.state in IN_FORCE:
            holds = by_name and act.act is BaselineAct.DISMISS
        else:
            holds = by_name or (
                act.act is BaselineAct.ACCEPT
                and part.first <= derivation.place(act.commit) <= part.last
                and any(act.suite == suite and act.covers(*rest) for suite, *rest in keys)
            )
        if holds:
            return f"{act.act.value}ed by {act.who}: {act.why}"
    return ""


def state_of(derivation: Derivation, at: str | None = None) -> State:
    """Return the state; with `at`, how the metrics stand at that commit instead of the tip."""
    return state_and_sizes(derivation, at)[0]


def state_and_sizes(derivation: Derivation, at: str | None = None) -> tuple[State, StepSizes]:
    """Return `state_of`, and the sizes of the incidents."""
    place = len(derivation.line.commits) - 1 if at is None else derivation.place(at)
    incidents, gone, sizes = _incidents(derivation)
    measured = Counter(p for t in derivation.tasks.values() for p in t.ended_well[1].tolist())
    everywhere = set(derivation.ledger.commits_with_trials())
    state = State(
        tip=derivation.line.tip.sha,
        incidents=incidents,
        changes=tuple(_changes(derivation)),
        doubts=tuple(_doubts(derivation)),
        pinned=tuple(_pinned(derivation)),
        standings=tuple(standings.at(derivation, place, incidents)),
        noise=tuple(_noise(derivation)),
        gone=gone,
        begins="" if derivation.line.is_whole else derivation.line.commits[0].sha,
        signed=tuple(derivation.signed.commits()),
        metrics=len(derivation.histories),
        trials_at={derivation.sha(place): trials for place, trials in sorted(measured.items())},
        aside=len(everywhere - derivation.line.places.keys()),
        environments=len({c.environment for t in derivation.tasks.values() for c in t.chains}),
    )
    return state, sizes


def _changes(derivation: Derivation) -> Iterable[LevelChange]:
    """Yield improvements, and the offset of each change of environment or definition."""
    for key, step in derivation.derived.changes:
        metric = derivation.metric(key)
        sign = metric.direction.sign
        low, high = interval(sign, step.size, step.error)
        yield LevelChange(
            "improvement", *key, sign * step.before, sign * step.after, low, high, metric.unit,
            step.probability, derivation.among(step.first, step.last),
            derivation.sha(step.likeliest),
            better=step.size < 0, known=derivation.sha(step.known) if step.known >= 0 else "",
        )  # fmt: skip
    for key, history in derivation.histories.items():
        yield from _offsets(derivation, key, history)


def _offsets(
    derivation: Derivation, key: MetricKey, history: MetricHistory
) -> Iterable[LevelChange]:
    task, metric = derivation.tasks[key[:2]], derivation.metric(key)
    for old, new in pairwise(_chains(history.nodes)):
        shared = _newest_of_both(history.nodes, old, new)
        if shared is None:
            continue
        place, one, other = shared
        sign = metric.direction.sign
        size, error = sign * (other.level - one.level), (one.error**2 + other.error**2) ** 0.5
        chains = task.chains[one.chain], task.chains[other.chain]
        same = chains[0].environment == chains[1].environment
        yield LevelChange(
            "definition" if same else "environment", *key, sign * one.level,
            sign * other.level, *interval(1, size, error), metric.unit, 1.0,
            (derivation.sha(place),), derivation.sha(place), better=size * sign < 0,
            environments=(chains[0].environment, chains[1].environment),
            floor=metric.floor_at(sign * one.level),
            is_current=history.nodes[new[-1]].last == max(n.last for n in history.nodes),
            declared=metric not in TELEMETRY,
        )  # fmt: skip


def _noise(derivation: Derivation) -> Iterable[MetricNoise]:
    for key, history in derivation.histories.items():
        noise, newest = history.noise, history.nodes[-1].level if history.nodes else 0.0
        declared = derivation.metric(key) not in TELEMETRY
        yield MetricNoise(
            *key, noise.at(newest), noise.freedom, noise.is_exact, noise.session, declared
        )


def _doubts(derivation: Derivation) -> Iterable[Doubt]:
    """Yield the rises that are suspected: of a declared metric each one that `check` cannot judge
    for it, of telemetry, which decides nothing, those that are likelier than not."""
    for key, step in derivation.derived.suspected:
        metric = derivation.metric(key)
        sign, declared = metric.direction.sign, metric not in TELEMETRY
        if not declared and step.probability < 0.5:
            continue
        yield Doubt(
            *key, derivation.among(step.first, step.last), derivation.sha(step.likeliest),
            step.probability, sign * step.size, metric.unit, sign * step.before,
            derivation.sha(step.known) if step.known >= 0 else "", declared, metric.kind.value,
        )  # fmt: skip


def _pinned(derivation: Derivation) -> Iterable[PinnedDistance]:
    """Yield how far each metric lies from its newest pin by now, in the same chain."""
    pins = [act for act in derivation.acts if act.act is BaselineAct.PIN]
    for key, history in derivation.histories.items():
        metric = derivation.metric(key)
        places = [
            derivation.place(pin.commit)
            for pin in pins
            if pin.suite == key[0] and pin.covers(key[1], key[2])
        ]
        pin = next((p for p in reversed(places) if p >= 0), -1)
        if pin < 0 or not history.nodes:
            continue
        newest = max(history.nodes, key=lambda node: (node.chain, node.last))
        at = next((n for n in history.nodes_at(pin) if n.chain == newest.chain), newest)
        if at is newest:
            continue
        sign = metric.direction.sign
        size = newest.level - at.level
        low, high = interval(sign, size, math.hypot(at.error, newest.error))
        level = sign * at.level
        clear = low * high > 0 and abs(size) >= metric.floor_at(level)
        yield PinnedDistance(
            *key, derivation.sha(pin), level, sign * size, low, high, metric.unit, size < 0, clear
        )


def _newest_of_both(nodes: Sequence[Node], old: range, new: range) -> tuple[int, Node, Node] | None:
    """Return the newest place that nodes of two chains share, and these nodes."""
    newest = nodes[old[-1]].last
    stop = bisect_right(nodes, newest, new.start, new.stop, key=lambda n: n.first)
    for node in reversed(nodes[new.start : stop]):
        at = bisect_left(nodes, node.first, old.start, old.stop, key=lambda n: n.last)
        if nodes[at].first <= node.last:
            return node.last, nodes[at], node
    return None
