"""Which trial tells most about what is in doubt: at the start of a job, and after its own trials.

Pure: reads histories and derived incidents; runs nothing. One budget holds for all metrics of a
job: one trial often serves several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from celedger.base.model import IN_FORCE, IncidentState
from celedger.stats.course import MetricHistory, MetricKey, Node, Step, StepIncident, StepKind
from celedger.stats.incidents import Derived
from celedger.stats.line_steps import DOUBT, Floors, overlap
from celedger.stats.mends import CLOSED, KEPT, ONE_SIDED, OPEN

EXACT_DOUBT = 0.01
"""P(step) from which a metric whose bits repeat is run again: bits seldom change by themselves.
At .003, 20 simulated lives spent 1.0 extra trials a job, at .01 .8; shifts alike for all seeds and
with parts of their own are told within three and six pairs at either."""
FAR, FAR_DOUBT = 4.0, 0.01
"""Where HEAD has one trial or two, it runs again for a rise of so many deviations down to this
P(step): outliers explain it so well that P is seldom higher, and one trial more tells."""
RECENT = 20
"""Measured commits within which a chain was seen, so that it needs no anchor."""
ANCHOR_TRIALS = 2
"""Fewest trials of the anchor and of HEAD beside it in a new chain."""
FIRST_JOBS = 4
"""Jobs in which HEAD runs at least twice: they tell the noise of a trial."""
FIRST_TRIALS = 3
"""Trials of HEAD in the very first job, where it has one of its own."""
FIRST_SESSIONS = 5
"""Jobs after the first in which the commit before runs once more: they tell that of a session."""
PAIRS = 2.0
"""Session sd over trial sd above which HEAD always runs beside the commit before: no number of
HEAD's own trials tells a step below three session sd."""
FEWEST, MOST = 2, 4
"""Trials of the commit of a doubted step from which they may say that there is none, and of it and
of HEAD after which no more are asked."""
COULD_BE = 0.3
"""P(an incident is mended) from which a sure fall asks for a control of it."""
CONTROLS_A_JOB, CONTROLS_AN_INCIDENT = 4, 8
"""Most trials that ask whose mend a fall is."""


class Why(StrEnum):
    AGAIN = "again"  # HEAD, since its own level is in doubt
    BESIDE = "beside"  # the commit before the doubtful place, or before HEAD
    ANCHOR = "anchor"  # the last commit measured before, in a new chain; or HEAD beside it
    CONTROL = "control"  # a commit before an incident
    REPEAT = "repeat"  # HEAD, since the noise is not known
    CLOCK = "clock"  # HEAD, whose re-used results have no speed and no memory
    RISEN = "risen"  # the commit of a step that is doubted now, or HEAD beside it


@dataclass(frozen=True, slots=True)
class Wanted:
    """One trial to run.

    Attributes:
        key: The metric that asked, None where none did.
        beside: The commit that it is compared with. Choose a seed that this one has in the
            present session and `place` has not, where there is one.
        incident: Id of the incident that the trial is about, "" without one.
        seed: The seed to run, where equal seeds tell what is in doubt: what `beside` has and
            `place` lacks. None: any; where they tell it, one that neither's node has.
    """

    place: int
    key: MetricKey | None
    why: Why
    beside: int | None = None
    incident: str = ""
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A job as far as it went.

    Attributes:
        head: Place that the job measures; `chain` is that of the present environment.
        run: The places of this session's trials so far, in their order.
        own: How many trials HEAD had before any extra one.
        previous: The newest place that was measured before this job, None for the first job.
        earlier: How many jobs were before this one.
        left: Extra trials that may still run.
        anchor: What `anchor` said before this job's trials.
        has_sessions: The metrics whose values of one session share an effect.
        asked: How many trials each incident had that asked whose mend a fall is, in all jobs; and
            under "" in this one.
        newest: `Derived.newest` as it was before this job's trials.
    """

    head: int
    chain: int
    run: Sequence[int]
    own: int
    previous: int | None
    earlier: int
    left: int
    anchor: int | None = None
    has_sessions: Collection[MetricKey] = ()
    asked: Mapping[str, int] = field(default_factory=dict)
    newest: Sequence[tuple[MetricKey, Step]] = ()


def anchor(
    histories: Mapping[MetricKey, MetricHistory],
    head: int,
    chain: int,
    incidents: Sequence[StepIncident] = (),
) -> int | None:
    """Return the newest place before HEAD that tells a chain from the others: it was not seen
    within the last measured commits, or no commit of it was measured in one of these, as where an
    earlier job's extra trials ended before; or it never saw what became worse since it was left,
    and could not see it mended. None where it needs none."""
    seen = {
        (place, node.chain)
        for history in histories.values()
        for node in history.nodes
        for place in (node.first, node.last)
        if place < head
    }
    recent = sorted({place for place, _ in seen})[-RECENT:]
    there = {c for place, c in seen if place in recent}
    others = {(place, c) for place, c in seen if c in there - {chain}}
    is_tied = any((place, chain) in seen for place, _ in others)
    left = max((place for place, c in seen if c == chain), default=-1)
    is_behind = any(left < i.last < head for i in incidents if i.state in IN_FORCE)
    if is_tied and chain in there and not is_behind:
        return None
    return max((place for place, _ in others), default=None)


def next_trial(
    histories: Mapping[MetricKey, MetricHistory],
    derived: Derived,
    job: Job,
    floors: Floors | None = None,
) -> Wanted | None:
    """Return the trial that tells most, None if nothing that one could settle is in doubt. A step
    that is within its floor is in no doubt that matters.

    Call it after each trial with what is known then.
    """
    if job.left <= 0:
        return None
    asking: Sequence[Callable[[], Wanted | None]] = (
        lambda: _at_start(histories, job),
        lambda: _risen(histories, derived, job),
        lambda: _doubt(histories, derived, job, floors or {}),
        lambda: _claimed(histories, derived, job),
        lambda: _whose_mend(histories, derived, job),
    )
    return next((wanted for ask in asking if (wanted := ask()) is not None), None)


def _at_start(histories: Mapping[MetricKey, MetricHistory], job: Job) -> Wanted | None:
    """Return what a job needs whatever its trials say."""
    at_head, previous = job.run.count(job.head), job.previous
    if previous is None or previous == job.head:
        first = job.earlier == 0 and job.own == 1
        return Wanted(job.head, None, Why.REPEAT) if first and at_head < FIRST_TRIALS else None
    if job.anchor is not None:
        if job.run.count(job.anchor) < max(ANCHOR_TRIALS, job.own):
            return Wanted(job.anchor, None, Why.ANCHOR, job.head)
        if at_head < ANCHOR_TRIALS:
            return Wanted(job.head, None, Why.ANCHOR, job.anchor)
        return None
    if not job.own:  # the ledger held HEAD's trials
        return None
    if job.earlier < FIRST_JOBS and at_head < ANCHOR_TRIALS:
        return Wanted(job.head, None, Why.REPEAT)
    sessions = {k: histories[k].noise.session for k in sorted(job.has_sessions) if k in histories}
    if not sessions:
        return None
    loudest = max(sessions, key=lambda k: sessions[k])
    typical = sorted(sessions.values())[len(sessions) // 2]
    if not job.run.count(previous) and (1 <= job.earlier <= FIRST_SESSIONS or typical > PAIRS):
        return Wanted(previous, loudest, Why.BESIDE, job.head)
    return None


def _risen(
    histories: Mapping[MetricKey, MetricHistory], derived: Derived, job: Job
) -> Wanted | None:
    """Return the commit of a step, or HEAD beside it, where HEAD takes back what its step does not
    explain any more: a rise, or a fall, which may have mended what was told."""
    for key, step in job.newest:
        place, way = step.likeliest, math.copysign(1.0, step.size)
        history = histories.get(key)
        if history is None or history.by_seeds:  # more seeds of one side tell nothing
            continue
        if place >= job.head or step.chain != job.chain:
            continue
        at_step, at_head = job.run.count(place), job.run.count(job.head)
        similar = (
            s.probability
            for s in history.steps
            if overlap(s, step) and way * s.size > max(way * step.size / 2, ONE_SIDED * s.error)
        )
        likeliest = max(similar, default=0.0)
        if likeliest >= OPEN or (likeliest < DOUBT and at_step >= FEWEST):
            continue
        if not _is_back(history, job, step):
            continue
        if way > 0 and _is_told(histories, derived, key, step):
            continue
        if at_step >= MOST and at_head >= MOST:
            continue
        if at_step <= at_head and at_step < MOST:
            return Wanted(place, key, Why.RISEN, job.head)
        return Wanted(job.head, key, Why.RISEN, place)
    return None


def _is_back(history: MetricHistory, job: Job, step: Step) -> bool:
    """Return True if HEAD may be beyond half of a step, towards the level before."""
    way = math.copysign(1.0, step.size)
    head = _node_of(history, job.chain, job.head)
    return head is not None and way * (head.level - step.before - step.size / 2) <= 0


def _doubt(
    histories: Mapping[MetricKey, MetricHistory], derived: Derived, job: Job, floors: Floors
) -> Wanted | None:
    """Return the trial for the step of this chain that is the most in doubt: the newest one of a
    metric, or an older rise that is likelier than not."""
    probable = [(key, step) for key, step in derived.suspected if step.probability >= KEPT]
    is_open = {key for key, _ in probable}
    is_open |= {key for i in derived.incidents if i.state in IN_FORCE for key in i.shares}
    older = [
        (key, step)
        for key, step in probable
        if not step.is_newest and step.chain == job.chain and step.kind is StepKind.STEP
    ]
    doubts = [
        (abs(step.probability - 0.5), key, step)
        for key, history in sorted(histories.items())
        for step in (
            *_doubted(history, job, is_open=key in is_open),
            *(step for other, step in older if other == key),
        )
        if not _is_told(histories, derived, key, step)
        if step.size < 0 or not any(k == key and overlap(s, step) for k, s in derived.decided)
        if not (history.knows_noise and key in floors)
        or abs(step.size) + ONE_SIDED * step.error > floors[key](step.before)
    ]
    if not doubts:
        return None
    _, key, step = min(doubts, key=lambda d: (d[0], d[1]))
    history = histories[key]
    incident = next((i.id for i in derived.incidents if _is_about(i, key, step)), "")
    if not history.knows_noise:
        return Wanted(job.head, key, Why.REPEAT, incident=incident)
    old, new = _sides(history.nodes, step)
    side = job.head if step.is_newest else new
    again = Wanted(side, key, Why.AGAIN, old, incident)
    if old is None:
        return again
    beside = Wanted(old, key, Why.BESIDE, side, incident)
    if key in job.has_sessions:
        if job.run.count(old) < job.run.count(new):
            return Wanted(old, key, Why.BESIDE, new, incident)
        return Wanted(new, key, Why.AGAIN, old, incident)
    if history.by_seeds:  # a seed tells what it was measured with on both sides
        of_old, of_new = step.unpaired
        if job.head <= history.nodes[step.node].last:  # its bits are those of HEAD
            new = job.head
        if of_new:
            return Wanted(old, key, Why.BESIDE, new, incident, of_new[0])
        return Wanted(new, key, Why.AGAIN, old, incident, of_old[0] if of_old else None)
    before, after = _trials(history, step)
    return beside if before < after else again


def _doubted(history: MetricHistory, job: Job, *, is_open: bool) -> Iterator[Step]:
    """Yield the newest step of the chain if another trial could settle it.

    Args:
        is_open: True if an incident of the metric is open, or probable.
    """
    usual = EXACT_DOUBT if history.by_seeds and history.noise.is_exact else DOUBT
    for step in history.steps:
        if step.is_newest and step.chain == job.chain and step.kind is StepKind.STEP:
            is_few = step.last == job.head and len(history.nodes[step.node].rows) <= 2
            is_far = is_few and step.size > FAR * step.unit
            doubt = min(usual, FAR_DOUBT) if is_far else usual
            sure = OPEN if step.size > 0 else CLOSED if is_open else doubt
            if doubt <= step.probability and (step.probability < sure or not history.knows_noise):
                yield step


def _sides(nodes: Sequence[Node], step: Step) -> tuple[int | None, int]:
    """Return the measured commits before and after a step; None if another chain measured one."""
    new = nodes[step.node]
    old = nodes[step.node - 1] if step.node > 0 else None
    return (old.last if old is not None and old.chain == new.chain else None), new.first


def _trials(history: MetricHistory, step: Step) -> tuple[int, int]:
    """Return how many trials tell the level before a step, and how many that after it."""
    earlier = [s.node for s in history.steps if s.probability > KEPT and s.node < step.node]
    own = [(i, len(n.rows)) for i, n in enumerate(history.nodes) if n.chain == step.chain]
    start = max(earlier, default=0)
    return (
        sum(count for i, count in own if start <= i < step.node),
        sum(count for i, count in own if i >= step.node),
    )


def _claimed(
    histories: Mapping[MetricKey, MetricHistory], derived: Derived, job: Job
) -> Wanted | None:
    """Return HEAD, or the commit measured before it, in turns, where it says that it reverts what
    made a metric worse, and the metric did not fall for sure: a session of its own may hide it."""
    previous = job.previous
    if previous is None:
        return None
    for key, place, probability in derived.claims:
        history = histories.get(key)  # None: of telemetry, which asks for nothing
        if history is None or key not in job.has_sessions or probability >= CLOSED:
            continue
        is_new = previous < place <= job.head
        if not is_new or _node_of(history, job.chain, previous) is None:
            continue
        at_head, at_previous = job.run.count(job.head), job.run.count(previous)
        if min(at_head, at_previous) < (MOST if probability >= DOUBT else FEWEST):
            if at_previous < at_head:
                return Wanted(previous, key, Why.BESIDE, job.head)
            return Wanted(job.head, key, Why.AGAIN, previous)
    return None


def _whose_mend(
    histories: Mapping[MetricKey, MetricHistory], derived: Derived, job: Job
) -> Wanted | None:
    """Return HEAD, or the last commit before an incident, in turns, where HEAD fell for sure and it
    is not clear whether that incident is over."""
    fall = derived.last_fall
    if fall is None or job.asked.get("", 0) >= CONTROLS_A_JOB:
        return None
    fell = any(
        s.is_newest
        and s.chain == job.chain
        and s.probability >= CLOSED
        and -s.size > ONE_SIDED * s.error
        for s in fall.steps.values()
    )
    could = [
        i
        for i in derived.incidents
        if i.state in IN_FORCE and i.mended >= COULD_BE
        if job.asked.get(i.id, 0) < CONTROLS_AN_INCIDENT and not i.in_doubt
    ]
    if not fell or not could:
        return None
    incident = max(could, key=lambda i: (i.mended, -i.first))
    for key, share in incident.shares.items():
        old = share.step.known
        history = histories.get(key)  # None: of telemetry, which asks for nothing
        if history is None or share.step.chain != job.chain:
            continue
        if _node_of(history, job.chain, old) is not None:
            if job.run.count(old) < job.run.count(job.head):
                return Wanted(old, key, Why.CONTROL, job.head, incident.id)
            return Wanted(job.head, key, Why.CONTROL, old, incident.id)
    return None


def _is_about(incident: StepIncident, key: MetricKey, step: Step) -> bool:
    return key in incident.shares and incident.first <= step.last and step.first <= incident.last


def _is_told(
    histories: Mapping[MetricKey, MetricHistory], derived: Derived, key: MetricKey, step: Step
) -> bool:
    """Return True if another trial would change no line: another metric that may ask is sure
    already of what this one doubts, or the rise is inside of a slow drift of the metric. A slow
    drift has no commit, and tells nothing of other metrics."""
    if step.size < 0:
        fall = derived.last_fall
        if fall is None or key not in fall.steps or not overlap(fall.steps[key], step):
            return False
        return any(s.probability >= CLOSED for s in fall.steps.values())
    return any(
        share.step.probability >= OPEN
        for i in derived.incidents
        if i.state is not IncidentState.WITHDRAWN
        if i.first <= step.last and step.first <= i.last
        for k, share in i.shares.items()
        if k in histories and (k == key) == (i.kind is StepKind.DRIFT)
    )


def _node_of(history: MetricHistory, chain: int, place: int) -> Node | None:
    return next((n for n in history.nodes_at(place) if n.chain == chain), None)
