"""The incidents of a line: which steps are one cause, and whether it is open, partly or wholly
mended, accepted or a false alarm. Views, `check` and alerts read them from here.

Pure: derived anew from histories, earlier records, people's acts and bisects. `line_steps.py` has
the sets of commits, `mends.py` the filter of mends, `sessions.py` the doubts of short rises."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from celedger.base.model import IN_FORCE, IncidentState
from celedger.stats.commit_evidence import CommitEvidence
from celedger.stats.course import (
    Acts,
    MetricHistory,
    MetricKey,
    Share,
    Step,
    StepIncident,
    StepKind,
    ToldIncident,
)
from celedger.stats.line_steps import CommitSet, Floors, LineSteps, Places, paired
from celedger.stats.mends import CLOSED, KEPT, OPEN, Fall, Mend, Rise, follow
from celedger.stats.sessions import Contrast

SAME_METRIC = 10.0
"""How much oftener a commit moves one metric of two tasks than two different ones: chosen. It
decides between causes whose commits a step's wide set holds alike."""


@dataclass(frozen=True, slots=True)
class Derived:
    """The incidents, changes and doubts of a line.

    Attributes:
        incidents: All told ones and the new ones, oldest first.
        suspected: Steps up that are not sure enough to open; larger than the floor.
        changes: Steps down that mend nothing: improvements.
        newest: The newest rises of P >= .5 that no person decided, falls that mended an incident,
            and rises that were sure once and are doubted now: if HEAD takes one back, a control of
            its commit decides.
        last_fall: The newest fall of the line, None without one.
        claims: Where the newest commits say that they revert what is open: the metric, the place of
            that commit, and P(it fell there).
        decided: The newest rises that a person accepted or dismissed: no trial is worth them.
        reverted: Rises that take back, bit by bit, what a commit improved that made something else
            worse: who reverts that commit wants both.
    """

    incidents: tuple[StepIncident, ...]
    suspected: tuple[tuple[MetricKey, Step], ...]
    changes: tuple[tuple[MetricKey, Step], ...]
    newest: tuple[tuple[MetricKey, Step], ...]
    last_fall: Fall | None
    claims: tuple[tuple[MetricKey, int, float], ...] = ()
    decided: tuple[tuple[MetricKey, Step], ...] = ()
    reverted: tuple[tuple[MetricKey, Step], ...] = ()


@dataclass(slots=True)
class _Cause:
    """An incident while it is built: `told` is None for a new one."""

    told: ToldIncident | None
    members: dict[MetricKey, Step] = field(default_factory=dict)
    commits: CommitSet | None = None

    def add(self, key: MetricKey, step: Step, commits: CommitSet) -> None:
        self.members[key] = step
        assert self.commits is not None  # no step is added to what has no set
        meets = self.commits.meets(commits)
        self.commits = self.commits.both(commits) if meets else self.commits.either(commits)

    def affinity(self, key: MetricKey, commits: CommitSet) -> float:
        """Return by how much the first bad commit of a step is likelier to be this one's than
        another's."""
        assert self.commits is not None  # no step is added to what has no set
        same = any(own[2] == key[2] for own in self.members)
        return self.commits.shared(commits) * (SAME_METRIC if same else 1.0)

    def kind(self) -> StepKind:
        drifts = [s.kind is StepKind.DRIFT for s in self.members.values()]
        return StepKind.DRIFT if drifts and all(drifts) else StepKind.STEP


def derive(
    histories: Mapping[MetricKey, MetricHistory],
    told: Sequence[ToldIncident],
    *,
    floors: Floors,
    acts: Acts | None = None,
    evidence: CommitEvidence | None = None,
    contrasts: Sequence[Contrast] = (),
    undeclared: Collection[MetricKey] = (),
    failed: Mapping[MetricKey, Sequence[tuple[int, int]]] | None = None,
) -> Derived:
    """Derive every incident of a line from what was measured and said.

    Args:
        histories: By metric, of all tasks of the line.
        told: What was last said of each incident.
        floors: By metric: the smallest change that counts, at a level.
        acts: Only those that still hold: an incident that was dismissed opens again on newer
            trials if the caller leaves the act out.
        evidence: What commits say of one another; None where it is not known.
        contrasts: Two commits in one session (`controls.contrasts`).
        undeclared: The metrics that decide nothing: whether an incident of others is over is not
            up to them.
        failed: By metric, stretches in which it had no value: the first place that may have failed,
            and that at which it had one again, by a mend that may have moved it as well.
    """
    line = LineSteps(histories, floors, acts or Acts(), contrasts, told, evidence)
    put = _Assembly(line, told, undeclared, failed or {})
    loose = [(key, s) for key in line.steps for s in put.assign(key)]
    put.unite()
    put.part()
    opened = [(k, s) for k, s in loose if line.opens(k, s)]
    put.join([(k, s) for k, s in opened if not line.taken_back(k, s)])
    reverted = [(k, s) for k, s in opened if put.is_reverted(k, line.taken_back(k, s))]
    put.join([(k, s) for k, s in opened if line.taken_back(k, s) and (k, s) not in reverted])
    filtered = [(c, r) for c in put.causes for r in [put.as_rise(c)] if r is not None]
    by_sessions = [c for c in line.contrasts if histories[c.key].noise.session > 0]
    mends, falls = follow([r for _, r in filtered], line.kept, evidence, by_sessions)
    became = {id(c): mend for (c, _), mend in zip(filtered, mends, strict=True)}
    incidents = [
        put.incident(c, became.get(id(c))) if c.members else put.unseen(c) for c in put.causes
    ]
    return Derived(
        tuple(sorted(incidents, key=lambda i: (i.first, i.last, i.id))),
        tuple((k, s) for k, s in loose if line.suspects(k, s) and not put.is_known(k, s)),
        tuple(
            (k, s) for f in falls for k, s in line.improvements(f)
            if k not in f.taken and not any(s in line.taken_back(*each) for each in reverted)
        ),
        tuple(put.newest(incidents)),
        falls[-1] if falls else None,
        tuple(
            (key, *claim)
            for incident in incidents
            if incident.state in IN_FORCE
            for key in incident.shares
            if (claim := line.claim(key, incident)) is not None
        ),
        tuple(
            (k, s)
            for k, own in line.steps.items()
            for s in own
            if s.is_newest and line.is_decided(k, s)
        ),
        tuple(reverted),
    )  # fmt: skip


def _left(key: MetricKey, step: Step, mend: Mend | None) -> float | None:
    if mend is None or mend.state is not IncidentState.PARTLY or key not in mend.falls:
        return None
    return step.size + sum(fall.size for fall in mend.falls[key])


class _Assembly:
    """The causes of a line while they are put together of steps."""

    def __init__(
        self,
        line: LineSteps,
        told: Sequence[ToldIncident],
        undeclared: Collection[MetricKey],
        failed: Mapping[MetricKey, Sequence[tuple[int, int]]],
    ) -> None:
        self.line, self.failed = line, failed
        self.undeclared = frozenset(undeclared)
        self.causes = [_Cause(t) for t in sorted(told, key=lambda t: (t.first, t.last, t.id))]

    def assign(self, key: MetricKey) -> list[Step]:
        """Assign the metric's rises to the reported incidents; return the other rises."""
        drifts = [s for s in self.line.steps[key] if self._is_drift(s)]
        rising = [
            s
            for s in self.line.steps[key]
            if s.size > 0
            if s in drifts
            or (s.kind is StepKind.STEP and not any(_inside(s.first, s.last, d) for d in drifts))
        ]
        sure = [s for s in rising if self.line.probability(key, s) >= KEPT]
        told = [(c, c.told) for c in self.causes if c.told is not None and key in c.told.states]
        dismissed = [self._is_dismissed(t) for _, t in told]
        gone = [
            d or t.states[key] is IncidentState.WITHDRAWN
            for d, (_, t) in zip(dismissed, told, strict=True)
        ]
        taken = set()
        for i, j in paired(sure, [t for _, t in told], [not each for each in gone]).items():
            cause = told[j][0]
            if not gone[j] or dismissed[j] or self.line.opens(key, sure[i]):
                cause.members[key] = sure[i]
                taken.add(sure[i])
        return [s for s in rising if s not in taken]

    def unite(self) -> None:
        """Unite incidents that are one step under two names, as after a merge of two ledgers. The
        older name stays."""
        for lost in list(self.causes):
            mates = [c for c in self.causes if c is not lost and self._is_told_twice(lost, c)]
            if mates:
                mates[0].told = _united(mates[0].told, lost.told)
                mates[0].members |= lost.members
                self.causes = [c for c in self.causes if c is not lost]

    def part(self) -> None:
        """Part the incidents whose metrics cannot have one cause, as a bisect showed or since one
        of them drifts. A drift keeps the identity, else the largest part."""
        for cause in list(self.causes):
            parts: list[_Cause] = []
            for key, step in sorted(cause.members.items(), key=lambda m: self.line.rank(*m)):
                own = self.line.commit_set(key, step)
                into = [
                    p
                    for p in parts
                    if p.commits is not None and _may_be_one(p.commits, own)
                    if p.kind() is step.kind and not self._are_apart(p, key, own)
                ]
                if into:
                    max(into, key=lambda p: p.affinity(key, own)).add(key, step, own)
                else:
                    parts.append(_Cause(None, {key: step}, own))
            if parts:
                largest = min(parts, key=self._smallness)
                cause.members, cause.commits = largest.members, largest.commits
                self.causes += [p for p in parts if p is not largest]

    def join(self, opened: Iterable[tuple[MetricKey, Step]]) -> None:
        """Join new steps to the incidents whose commits they share; open incidents for the rest.
        What is recovered takes no more: it would not be over. What is accepted by name takes only
        what probably is of its commits: a new one would be hidden there."""
        for key, step in sorted(opened, key=lambda o: (self.line.rank(*o), o[0], o[1].first)):
            own = self.line.commit_set(key, step)
            fitting = [
                c
                for c in self.causes
                if c.commits is not None and c.commits.meets(own) and key not in c.members
                if c.kind() is step.kind and not self._is_dismissed(c.told)
                if not self._are_apart(c, key, own)
                if not self._is_recovered(c.told)
                if not self._is_accepted_by_name(c.told) or own.within(c.commits) >= KEPT
            ]
            if fitting:
                max(fitting, key=lambda c: c.affinity(key, own)).add(key, step, own)
            else:
                self.causes.append(_Cause(None, {key: step}, own))

    def is_reverted(self, key: MetricKey, falls: Iterable[Step]) -> bool:
        """Return True if a commit of these falls of a metric made another one worse."""
        return any(
            c.commits is not None and key not in c.members and c.kind() is StepKind.STEP
            and c.commits.meets(self.line.commit_set(key, fall))
            for fall in falls
            for c in self.causes
        )  # fmt: skip

    def as_rise(self, cause: _Cause) -> Rise | None:
        """Return a cause as the filter of mends sees it, accepted ones too: they may be mended
        all the same. None if a person dismissed it, or the history has none of its steps.
        Undeclared metrics decide nothing where declared ones rose."""
        steps = {k: s for k, s in cause.members.items() if s in self.line.kept.get(k, ())}
        if not steps or cause.commits is None or self._is_dismissed(cause.told):
            return None
        recovered = cause.told is not None and cause.told.state is IncidentState.RECOVERED
        accepted = all(self._is_accepted(k, cause) for k in steps)
        ends = cause.commits.first, cause.commits.last
        deciding = {k: s for k, s in steps.items() if k not in self.undeclared} or steps
        return Rise(deciding, *ends, recovered, accepted)

    def incident(self, cause: _Cause, mend: Mend | None) -> StepIncident:
        """Return the incident of a cause whose steps stand."""
        assert cause.commits is not None
        commits = cause.commits
        likeliest, probability = commits.likeliest()
        state, closed, gone = IncidentState.OPEN, None, 0.0
        accepted = {k for k in cause.members if self._is_accepted(k, cause)}
        if self._is_dismissed(cause.told):
            state = IncidentState.WITHDRAWN
        elif len(accepted) == len(cause.members):
            state = IncidentState.ACCEPTED
        elif mend is not None:
            state, closed, gone = mend.state, mend.closed, mend.gone
        alone = dict.fromkeys(accepted, IncidentState.ACCEPTED)
        if mend is not None and state is IncidentState.PARTLY:
            alone = dict.fromkeys(mend.over, IncidentState.RECOVERED) | alone
        enough = OPEN if self._ran_again(cause.members, commits) else CLOSED
        sure = any(self.line.probability(k, s) >= enough for k, s in cause.members.items())
        told = cause.told
        shares = {
            k: Share(s, alone.get(k, state), _left(k, s, mend))
            for k, s in sorted(cause.members.items())
        }
        return StepIncident(
            told.id if told is not None else "", cause.kind(), state, commits.first, commits.last,
            likeliest, probability, shares, closed, gone,
            was_sure=sure or commits.named is not None or (told is not None and told.was_sure),
            is_named=commits.named is not None, also=told.also if told is not None else (),
            parts=mend.parts if mend is not None else (),
        )  # fmt: skip

    def unseen(self, cause: _Cause) -> StepIncident:
        """Return a reported incident of which the history has no step any more."""
        told = cause.told
        assert told is not None
        measured = {k: self._as_told(k, told) for k in told.states if k in self.line.histories}
        state, doubted, joined = told.state, False, ""
        if state is IncidentState.ACCEPTED:  # unless the act still holds, below
            state = IncidentState.OPEN
        drift = next((c for c in self.causes if _holds(c, told)), None)
        if self._is_dismissed(told):
            state = IncidentState.WITHDRAWN
        elif told.states and all(self._is_accepted(k, cause) for k in told.states):
            state = IncidentState.ACCEPTED
        elif not measured:
            pass  # no longer measured: as it was
        elif drift is not None:
            state, joined = IncidentState.WITHDRAWN, drift.told.id if drift.told else ""
        elif state is not IncidentState.RECOVERED and not self._may_be_short(told, measured):
            state = IncidentState.WITHDRAWN
        elif state in IN_FORCE:
            doubted = not self._ran_again(measured, told)
            state = state if doubted else IncidentState.WITHDRAWN
        return StepIncident(
            told.id, told.kind, state, told.first, told.last,
            max((s.likeliest for s in measured.values()), default=told.last),
            1 / (told.last - told.first + 1),
            {k: Share(s, state) for k, s in sorted(measured.items())},
            was_sure=told.was_sure, joined=joined, in_doubt=doubted, also=told.also,
        )  # fmt: skip

    def is_known(self, key: MetricKey, step: Step) -> bool:
        """Return True if an incident of other metrics probably has a rise's commit. A slow rise has
        no commit; telemetry alone explains no metric that a suite declares."""
        own = self.line.commit_set(key, step)
        return any(
            c.commits is not None and key not in c.members and c.kind() is StepKind.STEP
            and (key in self.undeclared or not self.undeclared.issuperset(c.members))
            and own.within(c.commits) >= KEPT
            for c in self.causes
        )  # fmt: skip

    def newest(self, incidents: Sequence[StepIncident]) -> Iterator[tuple[MetricKey, Step]]:
        """Yield the steps for which a control runs if HEAD takes them back."""
        for key in self.line.steps:
            mended = [i.closed for i in incidents if i.closed is not None and key in i.shares]
            for step in self.line.newest_steps(key):
                is_rise = step.size > 0 and not self.line.is_decided(key, step)
                if is_rise or any(step.first <= at <= step.last for at in mended):
                    yield key, step
        for incident in incidents:
            if incident.in_doubt:
                yield from ((k, share.step) for k, share in incident.shares.items())

    def _are_apart(self, cause: _Cause, key: MetricKey, own: CommitSet) -> bool:
        """Return True if a bisect named the commit of one, which did not move the other; or if one
        was next measured where a failure ended, and another metric moved while it lasted: that
        tells nothing of the first, which the mend may have moved."""
        assert cause.commits is not None  # no step meets what has no set
        sets: list[tuple[CommitSet, Collection[MetricKey]]]
        sets = [(cause.commits, [key]), (own, cause.members)]
        if any(s.named is not None and self.line.acts.are_apart(k, s.first) for s, k in sets):
            return True
        if any(k[2] == key[2] for k in cause.members):
            return False  # what moves a metric of one task moves that of another
        for k in (key, *cause.members):
            mine = own if k == key else self.line.commit_set(k, cause.members[k])
            other = cause.commits if k == key else own
            for first, again in self.failed.get(k, ()):
                if mine.first < again <= mine.last and first <= other.first and other.last < again:
                    return True
        return False

    def _as_told(self, key: MetricKey, told: ToldIncident) -> Step:
        size = told.sizes.get(key, (0.0, 0.0))
        step = self.line.vanished(key, told.first, told.last, size)
        return step._replace(size=size[0], error=size[1]) if key in told.sizes else step

    def _ran_again(self, keys: Collection[MetricKey], places: Places) -> bool:
        """Return True if a later session ran a commit of a set again, beside a newer one."""
        own = (c for c in self.line.contrasts if c.key in keys)
        return any(places.first <= c.old <= places.last for c in own)

    def _may_be_short(self, told: ToldIncident, measured: Mapping[MetricKey, Step]) -> bool:
        """Return True if an incident that was sure may be a rise of one commit, and not noise."""
        return told.was_sure and any(
            self.line.risen_node(k, told.first, told.last) is not None
            and self.line.is_large_still(k, s)
            for k, s in measured.items()
        )

    def _is_drift(self, step: Step) -> bool:
        """Return True for a slow rise that is sure, or was told before and is probable still."""
        if step.kind is not StepKind.DRIFT or step.size <= 0:
            return False
        told = [c.told for c in self.causes if c.told is not None]
        was = any(t.kind is StepKind.DRIFT and _inside(t.first, t.last, step) for t in told)
        return step.probability >= (KEPT if was else OPEN)

    def _is_told_twice(self, lost: _Cause, other: _Cause) -> bool:
        """Return True if the history has one step where two incidents were told of a metric, and
        the other one has it."""
        a, b = lost.told, other.told
        if a is None or b is None or a.states.keys().isdisjoint(other.members):
            return False
        if a.kind is not b.kind or lost.members.keys() & other.members.keys():
            return False
        over = () if self._is_dismissed(a) else (IncidentState.WITHDRAWN,)
        return any(
            key in a.states
            and a.states[key] not in over
            and key in b.states
            and a.first <= step.likeliest <= a.last
            for key, step in other.members.items()
        )

    def _is_dismissed(self, told: ToldIncident | None) -> bool:
        return told is not None and not told.names.isdisjoint(self.line.acts.dismissed_ids)

    def _is_accepted_by_name(self, told: ToldIncident | None) -> bool:
        return told is not None and not told.names.isdisjoint(self.line.acts.accepted_ids)

    def _is_recovered(self, told: ToldIncident | None) -> bool:
        return told is not None and told.state is IncidentState.RECOVERED

    def _is_accepted(self, key: MetricKey, cause: _Cause) -> bool:
        told = cause.told
        if self._is_accepted_by_name(told):
            return True
        was = told is not None and told.states.get(key) is IncidentState.ACCEPTED
        where = cause.commits or told
        return where is not None and self.line.is_accepted(key, where.first, where.last, was=was)

    def _smallness(self, part: _Cause) -> tuple[bool, int, tuple[bool, float]]:
        drifts = part.kind() is StepKind.DRIFT
        largest = min(self.line.rank(k, s) for k, s in part.members.items())
        return not drifts, -len(part.members), largest


def _inside(first: int, last: int, drift: Step) -> bool:
    return drift.first - 1 <= last and first <= drift.last + 1


def _holds(cause: _Cause, told: ToldIncident) -> bool:
    """Return True if the cause is a slow drift of a told incident's metric, around its commits."""
    return any(
        step.kind is StepKind.DRIFT and key in told.states and _inside(told.first, told.last, step)
        for key, step in cause.members.items()
    )


def _united(a: ToldIncident | None, b: ToldIncident | None) -> ToldIncident:
    assert a is not None and b is not None
    old, new = sorted((a, b), key=lambda told: (told.since, told.id))
    over = IncidentState.RECOVERED
    return replace(
        old,
        state=over if over in (a.state, b.state) else old.state,
        states={**new.states, **old.states},
        was_sure=a.was_sure or b.was_sure,
        sizes={**new.sizes, **old.sizes},
        also=(*old.also, new.id, *new.also),
    )


def _may_be_one(a: CommitSet, b: CommitSet) -> bool:
    """Return True if two sets that were told as one incident may still be: they share a commit,
    or no bisect named one, and they miss one another by no more than their lengths."""
    if a.named is not None or b.named is not None:
        return a.meets(b)
    gap = max(a.first - b.last, b.first - a.last)
    return gap <= (a.last - a.first + 1) + (b.last - b.first + 1)
