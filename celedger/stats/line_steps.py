"""The steps of all metrics of a line, given histories, people's acts and bisects.

Lives here: which steps belong together (one step in two chains, steps of a recorded incident,
metrics whose sets share a commit), whether a step opens an incident, which commits may have made
it, and whether it was accepted. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from celedger.base.model import IncidentState
from celedger.stats import Floats
from celedger.stats.commit_evidence import CommitEvidence, MendRatios
from celedger.stats.course import (
    Acts,
    MetricHistory,
    MetricKey,
    Node,
    Step,
    StepKind,
    ToldIncident,
)
from celedger.stats.history import HAZARD
from celedger.stats.mends import CLOSED, KEPT, ONE_SIDED, OPEN, Fall
from celedger.stats.sessions import Contrast

NEAR = 2
"""Commits by which a set may miss what it was: a bisect's commit, an act's, its own set of before.
A 95 % set moves that far when trials are added."""
APART = 3.0
"""Standard errors by which a step must differ from what another chain saw in parts."""
MOST_LEFT = 0.5
"""Share of a step that such parts leave at most, if they are it: chosen. Large errors hide any."""
HELD = 0.95
"""Probability that a set holds the first bad commit."""
PREFERRED = 1e6
"""Gain of pairing a step with an incident whose set it overlaps: as many pairs as can be, first."""
NEIGHBOUR = 1e4
"""Gain where the sets only lie within NEAR commits."""
INACTIVE = 5e5
"""What an incident that was withdrawn loses against one that was not."""


@dataclass(frozen=True, slots=True, eq=False)
class CommitSet:
    """The commits that may be the first bad one.

    Attributes:
        first, last: Places of the 95 % set.
        start: Place of the first of `weights`, which reach beyond the set: a set may be wrong.
        named: The probability that a bisect gave to the only commit, None without a bisect.
    """

    first: int
    last: int
    start: int
    weights: Floats
    named: float | None = None

    def meets(self, other: CommitSet) -> bool:
        """Return True if both may have one commit. A commit that a bisect named is none of a set
        that thinks it no likelier than those outside, though measured ones lie around it."""
        if self.first > other.last or other.first > self.last:
            return False
        if (self.named is None) == (other.named is None):
            return True
        one, stretch = (other, self) if self.named is None else (self, other)
        outside = (1 - HELD) / 2 / (stretch.last - stretch.first + 1)
        return stretch.within(one) > outside

    def within(self, other: CommitSet) -> float:
        """Return the probability that its first bad commit lies in another set."""
        first, last = other.first - self.start, other.last + 1 - self.start
        return float(self.weights[max(first, 0) : max(last, 0)].sum() / self.weights.sum())

    def both(self, other: CommitSet) -> CommitSet:
        """Return the joint posterior of two sets that meet, with its own 95 % set."""
        start, weights = self._product(other)
        total = float(weights.sum())
        if not total:  # they overlap only where one of them has no commit
            return self.either(other)
        weights = weights / total
        order = np.argsort(-weights, kind="stable")
        count = int(np.searchsorted(np.cumsum(weights[order]), HELD - 1e-12)) + 1
        first, last = start + int(order[:count].min()), start + int(order[:count].max())
        named = self.named if self.named is not None else other.named
        return CommitSet(first, last, start, weights, named)

    def either(self, other: CommitSet) -> CommitSet:
        """Return the commits of two sets of one incident that do not meet: one of them is wrong."""
        start = min(self.start, other.start)
        end = max(self.start + len(self.weights), other.start + len(other.weights))
        weights = np.zeros(end - start)
        for one in (self, other):
            weights[one.start - start :][: len(one.weights)] += one.weights / 2
        ends = min(self.first, other.first), max(self.last, other.last)
        return CommitSet(*ends, start, weights)

    def shared(self, other: CommitSet) -> float:
        """Return the probability that two independent sets have the same first bad commit."""
        return float(self._product(other)[1].sum()) if self.meets(other) else 0.0

    def likeliest(self) -> tuple[int, float]:
        """Return the likeliest place and its probability."""
        at = int(self.weights.argmax())
        return self.start + at, self.named if self.named is not None else float(self.weights[at])

    def _product(self, other: CommitSet) -> tuple[int, Floats]:
        start = max(self.start, other.start)
        end = min(self.start + len(self.weights), other.start + len(other.weights))
        own = self.weights[start - self.start : end - self.start]
        return start, own * other.weights[start - other.start : end - other.start]


def commit_set(step: Step, named: Mapping[int, float]) -> CommitSet:
    """Return a step's set: the commit that a bisect named, else that of the step's posterior."""
    if named:
        place, probability = max(named.items(), key=lambda item: (item[1], item[0]))
        return CommitSet(place, place, place, np.ones(1), probability)
    length = step.last - step.first + 1
    weights = np.ones(length)
    if len(step.posterior) == length:
        weights = np.array(step.posterior)
    elif step.first <= step.likeliest <= step.last:
        weights[step.likeliest - step.first] += 1e-6  # breaks ties alone
    weights = HELD * weights / weights.sum()
    start = max(0, step.first - length)
    before = np.full(step.first - start, (1 - HELD) / 2 / length)
    after = np.full(length, (1 - HELD) / 2 / length)
    weights = np.concatenate([before, weights, after])
    return CommitSet(step.first, step.last, start, weights / weights.sum())


def distinct_steps(steps: Sequence[Step]) -> list[Step]:
    """Return the steps, those that two chains both saw once, ordered by their last place. Of one
    that spans several of another chain, as one does that comes back after an upgrade, only what
    these leave."""
    distinct: list[Step] = []
    by_chain: dict[int, list[Step]] = {}
    for step in steps:
        if step.kind is StepKind.STEP and step.probability >= KEPT:
            by_chain.setdefault(step.chain, []).append(step)
    rests = [rest for step in steps if (rest := _rest(step, by_chain)) is not None]
    for step in sorted(rests, key=lambda s: (s.last, s.first)):
        for i in range(len(distinct) - 1, -1, -1):
            other = distinct[i]
            same = other.chain != step.chain and other.kind is step.kind
            if same and overlap(other, step) and other.size * step.size > 0:
                distinct[i] = _clearer(other, step)
                break
        else:
            distinct.append(step)
    return sorted(distinct, key=lambda s: (s.last, s.first))


def _rest(step: Step, by_chain: Mapping[int, Sequence[Step]]) -> Step | None:
    """Return a step without those of another chain that it spans: all of it where it spans fewer
    than two, or where their errors hide how much is left; None where they are most of it, as sums
    or as factors, and perhaps all."""
    if step.kind is not StepKind.STEP:
        return step
    for others in (own for chain, own in by_chain.items() if chain != step.chain):
        parts = [s for s in others if step.first <= s.first and s.last <= step.last]
        if len(parts) < 2:
            continue
        whole = [step.size - math.fsum(s.size for s in parts)]
        if all(s.before * (s.before + s.size) > 0 for s in (step, *parts)):
            factor = math.prod(1 + s.size / s.before for s in parts)
            whole.append(step.size - step.before * (factor - 1))
        size = min(whole, key=abs)
        if abs(size) <= APART * math.hypot(step.error, *(s.error for s in parts)):
            return None if abs(size) < MOST_LEFT * abs(step.size) else step
        first = min(max(s.last for s in parts) + 1, step.last)
        return step._replace(
            first=first, likeliest=max(first, step.likeliest), size=size, posterior=(),
            before=step.after - size,
        )  # fmt: skip
    return step


class Places(Protocol):
    """What lies at the places from `first` to `last`."""

    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...


def overlap(a: Places, b: Places) -> bool:
    return a.first <= b.last and b.first <= a.last


def _clearer(earlier: Step, later: Step) -> Step:
    """Return the clearer of one step in two chains; of two sure ones the same at each job."""
    sure = later.probability >= HELD
    narrower = later.last - later.first < earlier.last - earlier.first
    surer = later.probability > earlier.probability and earlier.probability < HELD
    return later if surer or (sure and narrower) else earlier


def paired(
    steps: Sequence[Step], told: Sequence[ToldIncident], is_active: Sequence[bool]
) -> dict[int, int]:
    """Return step -> told incident, by index: as many pairs as overlap, then the nearest ones, in
    the order of both. (One after another steps would rob one another of their incidents when sets
    widen.) A slow drift takes the oldest incident inside of it.

    Args:
        steps, told: Oldest first.
        is_active: Whether each of `told` stood for the metric in question.
    """
    gain = np.array([[_gain(s, t, is_active[j], j) for j, t in enumerate(told)] for s in steps])
    best = np.zeros((len(steps) + 1, len(told) + 1))  # of the first i steps and j incidents
    for i in range(len(steps)):
        for j in range(len(told)):
            both = best[i, j] + gain[i, j]
            best[i + 1, j + 1] = max(best[i, j + 1], best[i + 1, j], both)
    pairs: dict[int, int] = {}
    i, j = len(steps), len(told)
    while i and j:
        if best[i, j] == best[i - 1, j]:
            i -= 1
        elif best[i, j] == best[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            pairs[i] = j
    return pairs


def _gain(step: Step, incident: ToldIncident, is_active: bool, age: int) -> float:
    gap = max(step.first - incident.last, incident.first - step.last)
    if gap > (NEAR if is_active else 0):
        return 0.0
    apart = min(5e3, abs(incident.first + incident.last - step.first - step.last))
    if gap > 0:
        return NEIGHBOUR - apart
    gain = PREFERRED - apart - (0.0 if is_active else INACTIVE)
    if step.kind is StepKind.DRIFT:
        gain -= (0.0 if incident.kind is StepKind.DRIFT else 1e5) + 1e4 * min(9, age)
    return gain


# --- which steps open an incident

DOUBT = 0.03
"""P(step) from which it is worth another trial: a Bayes factor of 12 over one place's prior."""
COMPANY = 0.3
"""P(a commit lowers a metric) where it surely lowered another one of the suite: a loss seldom falls
without its accuracy, a task without others of the same code."""
STILL_LARGE = 2.5
"""Standard deviations of a value, as known now, above which a rise that was sure is no noise."""

Floors = Mapping[MetricKey, Callable[[float], float]]


class LineSteps:
    """The steps of all metrics of a line.

    Attributes:
        steps: By metric, each once, ordered by their last place.
        kept: Those that more probably exist than not.
    """

    def __init__(
        self,
        histories: Mapping[MetricKey, MetricHistory],
        floors: Floors,
        acts: Acts,
        contrasts: Sequence[Contrast],
        told: Sequence[ToldIncident] = (),
        evidence: CommitEvidence | None = None,
    ) -> None:
        self.histories, self.acts = histories, acts
        names = acts.accepted_ids | acts.dismissed_ids
        self._decided = [t for t in told if not t.names.isdisjoint(names)]
        self._floors = floors
        self.contrasts = [c for c in contrasts if c.key in histories]
        self._named = {key: self._bisected(key, h.steps) for key, h in histories.items()}
        self._same_code = evidence.same_code if evidence is not None else {}
        self._ratios = MendRatios(evidence)
        self._newest: dict[MetricKey, tuple[int, int]] = {}  # places since the one before the last
        # Before chains are joined: what one saw mended is none of what another sees later.
        steps = _in_company({key: self._with_returns(key) for key in sorted(histories)})
        self.steps = {
            key: self._with_slow_rises(key, distinct_steps(own), told) for key, own in steps.items()
        }
        self._named = {key: self._bisected(key, own) for key, own in self.steps.items()}
        for key, own in self._named.items():
            self._take_effects(key, own)
        kept = {
            k: [s for s in own if self.probability(k, s) >= KEPT] for k, own in self.steps.items()
        }
        self.kept = {k: own for k, own in kept.items() if own}

    def probability(self, key: MetricKey, step: Step) -> float:
        """Return P(step): the history's, or that of a bisect that named a commit of its set."""
        return max(step.probability, *self._named[key].get(step, {}).values(), 0.0)

    def opens(self, key: MetricKey, step: Step) -> bool:
        """Return True if a rise opens an incident."""
        return (
            self.probability(key, step) >= OPEN
            and step.size > max(self.floor(key, step.before), ONE_SIDED * step.error)
            and self.histories[key].knows_noise
            and not self.acts.is_cleared(key, step.first, step.last)
        )

    def suspects(self, key: MetricKey, step: Step) -> bool:
        """Return True if a rise that opens nothing is worth a line: extra trials ask for it. They
        ask for the newest step of a metric, and for an older one that is likelier than not."""
        large = step.size > max(self.floor(key, step.before), 0.0)
        enough = DOUBT if step.is_newest else KEPT
        doubted = step.probability >= enough and large and not self.opens(key, step)
        is_over = self._is_back(key, step) or self.acts.is_cleared(key, step.first, step.last)
        return doubted and not is_over and not self.is_decided(key, step)

    def is_decided(self, key: MetricKey, step: Step) -> bool:
        """Return True if a person accepted or dismissed what rose at a commit of the step, and that
        is no other rise there."""
        by_name = any(key in t.states and overlap(t, step) for t in self._decided)
        if step.size < 0 or not (
            by_name or self.is_accepted(key, step.first, step.last, was=False)
        ):
            return False
        rises = (s for s in self.steps[key] if s.size > 0 and s is not step and overlap(s, step))
        return all(self.probability(key, other) < KEPT for other in rises)

    def _is_back(self, key: MetricKey, step: Step) -> bool:
        """Return True if a later fall ends no floor above the level before a rise."""
        limit = step.before + self.floor(key, step.before)
        return any(
            fall.size < 0 and fall.first > step.last and fall.probability >= KEPT
            and fall.chain == step.chain
            and fall.after + ONE_SIDED * math.hypot(fall.after_error, step.before_error) < limit
            for fall in self.steps[key]
        )  # fmt: skip

    def floor(self, key: MetricKey, level: float) -> float:
        return self._floors[key](level) if key in self._floors else 0.0

    def is_accepted(self, key: MetricKey, first: int, last: int, *, was: bool) -> bool:
        """Return True if a person accepted a commit of a set; `was`: the set was accepted when
        it was last told, and may have moved since."""
        slack = NEAR if was else 0
        return any(first - slack <= place <= last + slack for place in self.acts.accepted_at(key))

    def commit_set(self, key: MetricKey, step: Step) -> CommitSet:
        return commit_set(step, self._named[key].get(step, {}))

    def rank(self, key: MetricKey, step: Step) -> tuple[bool, float]:
        """Return an order of steps: named ones first, then by size in units of the floor."""
        unit = self.floor(key, step.before) or step.error or step.unit
        return step not in self._named[key], -abs(step.size) / max(unit, 1e-300)

    def taken_back(self, key: MetricKey, rise: Step) -> list[Step]:
        """Return the falls of a metric that a rise takes back bit by bit."""
        return [fall for fall in self.steps[key] if rise.undoes(fall)]

    def improvements(self, fall: Fall) -> list[tuple[MetricKey, Step]]:
        """Return the steps of a fall that are sure, and larger than the floor."""
        return [
            (k, s)
            for k, s in sorted(fall.steps.items())
            if s.probability >= OPEN
            and -s.size > self.floor(k, s.before)
            and self.histories[k].knows_noise
            and not (fall.taken and self._is_return(k, s))
        ]

    def _is_return(self, key: MetricKey, fall: Step) -> bool:
        """Return True if a fall ends no floor below the level before a rise in doubt. A fall gains
        by the company of a mend, and what rose in doubt with the incident does not."""
        return any(
            rise.size > 0 and rise.last < fall.first and rise.chain == fall.chain
            and self.probability(key, rise) < KEPT
            and fall.after > rise.before - self.floor(key, rise.before)
            for rise in self.steps[key]
        )  # fmt: skip

    def is_large_still(self, key: MetricKey, step: Step) -> bool:
        """Return True if a rise is still more than noise, by the noise as known now."""
        noise = self.histories[key].noise
        return step.size > STILL_LARGE * noise.at(step.after) * math.hypot(1.0, noise.session)

    def risen_node(self, key: MetricKey, first: int, last: int) -> Node | None:
        """Return the node at which a rise of a set shows; None if none of it is measured."""
        nodes = self.histories[key].nodes
        there = [n for n in nodes if n.last >= last] or [n for n in nodes if n.last >= first]
        return min(there, key=lambda n: (n.last, -n.chain), default=None)

    def vanished(self, key: MetricKey, first: int, last: int, size: tuple[float, float]) -> Step:
        """Return a step that the history no longer has, as it was reported."""
        near = [s for s in self.steps[key] if s.size > 0 and s.first <= last and first <= s.last]
        if near:
            return max(near, key=lambda s: s.probability)
        node = self.risen_node(key, first, last)
        nodes, noise = self.histories[key].nodes, self.histories[key].noise
        before = [n for n in nodes if node is not None and n.chain == node.chain and n.last < first]
        level, error = (before[-1].level, before[-1].error) if before else (0.0, 0.0)
        return Step(
            first=first,
            last=last,
            likeliest=max(last, node.first) if node is not None else last,
            probability=0.0,
            size=size[0],
            error=size[1],
            before=level,
            before_error=error,
            after=level + size[0],
            after_error=math.hypot(error, size[1]),
            chain=node.chain if node is not None else 0,
            known=before[-1].last if before else first - 1,
            unit=noise.at(level + size[0]),
            is_newest=False,
            node=nodes.index(node) if node is not None else 0,
        )

    def claim(self, key: MetricKey, culprits: Places) -> tuple[int, float] | None:
        """Return the commit, among those since the measured one before the newest, that says it
        reverts one of the culprits, and P(the metric fell there); None where none does."""
        if key not in self._newest:
            places = sorted({0, *(node.last for node in self.histories[key].nodes)})[-2:]
            self._newest[key] = places[0] + 1, places[-1]
        place = self._ratios.naming((culprits.first, culprits.last), self._newest[key])
        if place is None:
            return None
        falls = [s for s in self.steps[key] if s.size < 0 and s.first <= place <= s.last]
        return place, max((s.probability for s in falls), default=0.0)

    def newest_steps(self, key: MetricKey) -> list[Step]:
        """Return the steps that the next commits may leave in doubt."""
        return [
            s
            for s in self.steps[key]
            if s.is_newest and s.kind is StepKind.STEP and s.probability >= KEPT
            if abs(s.size) > max(self.floor(key, s.before), ONE_SIDED * s.error)
        ]

    def _with_slow_rises(
        self, key: MetricKey, steps: Sequence[Step], told: Sequence[ToldIncident]
    ) -> list[Step]:
        """Return the steps, rises within the floor that together exceed it joined to a slow drift.

        Rises are added up, each by its probability, and falls within the floor are taken off, from
        where the sum was last zero. A step beyond the floor has a name of its own, or is an
        improvement: nothing is added up across it, nor across a level that a person accepted. What
        was told as a drift stays one, however its commits are parted by now.
        """
        over = IncidentState.WITHDRAWN
        own = [t for t in told if t.states.get(key, over) is not over]
        drifting = [s for s in steps if s.kind is StepKind.DRIFT and s.probability >= KEPT]
        drifts = [
            t for t in own
            if t.kind is StepKind.DRIFT and not any(overlap(t, s) for s in drifting)
        ]  # fmt: skip
        accepted = [t.last for t in own if t.states[key] is IncidentState.ACCEPTED]
        accepted += self.acts.accepted_at(key)
        result, run, total = [], list[Step](), 0.0

        def is_told(step: Step) -> bool:
            return any(overlap(t, step) for t in drifts)

        def close() -> None:
            nonlocal run, total
            is_beyond = len(run) > 1 and total > self.floor(key, run[0].before)
            result.extend([_joined(run, total)] if is_beyond or any(map(is_told, run)) else run)
            run, total = [], 0.0

        for step in steps:
            if step.probability < KEPT or step.kind is StepKind.DRIFT:
                result.append(step)
                continue
            floor = self.floor(key, run[0].before if run else step.before)
            if run and any(run[-1].first <= place < step.first for place in accepted):
                close()
            if step.size > 0 and (step.size <= floor or is_told(step)):
                run.append(step)
                total += step.probability * step.size
                continue
            if abs(step.size) > floor or total > floor or total + step.size <= 0:
                close()
            elif run:
                total += step.probability * step.size
            result.append(step)
        close()
        return sorted(result, key=lambda s: (s.last, s.first))

    def _with_returns(self, key: MetricKey) -> list[Step]:
        """Return a history's steps, a fall to the very bits or code of before a rise as probable as
        that rise: it is a fall exactly if there was anything to fall from. Where a commit of a fall
        says it reverts a rise, there is one more often than at other commits."""
        steps, code = self.histories[key].steps, self._same_code.get(key[:2], {})
        rises = [s for s in steps if s.size > 0 and self.probability(key, s) >= KEPT]
        sets = [(r.last, (c.first, c.last)) for r in rises for c in [self.commit_set(key, r)]]

        def weighed(fall: Step) -> Step:
            fall = fall._replace(returns=max(fall.returns, code.get(fall.likeliest, -1)))
            if fall.size >= 0:
                return fall
            undone = [self.probability(key, rise) for rise in steps if fall.undoes(rise)]
            probability, menders = max([fall.probability, *undone]), (fall.first, fall.last)
            named = [
                self._ratios.of(culprits, menders)[0] for last, culprits in sets
                if last < fall.first and self._ratios.naming(culprits, menders) is not None
            ]  # fmt: skip
            odds = probability * max([1.0, *named])
            return fall._replace(probability=odds / (1 - probability + odds))

        return [weighed(step) for step in steps]

    def _take_effects(self, key: MetricKey, named: dict[Step, dict[int, float]]) -> None:
        """Let a rise that a bisect named, and the history by itself does not tell, be of the size
        that the bisect measured."""
        for step in [s for s in named if s.probability < OPEN]:
            place = max(named[step], key=named[step].__getitem__)
            if effect := self.acts.effects.get(key, {}).get(place):
                before, size, error = effect
                moved = step._replace(before=before, size=size, error=error, after=before + size)
                self.steps[key][self.steps[key].index(step)] = moved
                named[moved] = named.pop(step)

    def _bisected(self, key: MetricKey, steps: Sequence[Step]) -> dict[Step, dict[int, float]]:
        """Return the commits that bisects named, by the rise whose set is nearest; one that is not
        even doubted only where no other is near."""
        rises = [s for s in steps if s.size > 0]
        named: dict[Step, dict[int, float]] = {}
        for place, probability in sorted(self.acts.named.get(key, {}).items()):
            near = [s for s in rises if s.first - NEAR <= place <= s.last + NEAR]
            if near:
                nearest = min(
                    near,
                    key=lambda s: (s.probability < DOUBT, _distance(s, place), -s.probability),
                )
                named.setdefault(nearest, {})[place] = probability
        return named


def _in_company(steps: Mapping[MetricKey, Sequence[Step]]) -> dict[MetricKey, list[Step]]:
    """Return the steps, falls in doubt as probable as they are beside a sure one of another metric
    of the suite: a mend is of all that it mends. (A rise opens an incident by itself alone.)"""
    sure = [
        (k, s) for k, own in steps.items() for s in own if s.size < 0 if s.probability >= CLOSED
    ]
    firsts, lasts = np.array([(s.first, s.last) for _, s in sure], np.int64).reshape(-1, 2).T
    sets = [commit_set(s, {}) for _, s in sure]

    def weighed(key: MetricKey, step: Step) -> Step:
        if step.size >= 0 or not DOUBT <= step.probability < CLOSED or step.kind is StepKind.DRIFT:
            return step
        commits = commit_set(step, {})
        near = np.flatnonzero((firsts <= step.last) & (step.first <= lasts)).tolist()
        others = [sets[i] for i in near if sure[i][0] != key and sure[i][0][0] == key[0]]
        shared = max((other.shared(commits) for other in others), default=0.0)
        odds = step.probability / (1 - step.probability) * max(1.0, COMPANY * shared / HAZARD)
        return step._replace(probability=odds / (1 + odds))

    return {key: [weighed(key, step) for step in own] for key, own in steps.items()}


def _joined(rises: Sequence[Step], size: float) -> Step:
    """Return rises as one slow drift, which is as probable as that there is any of them."""
    error = math.hypot(*(s.error for s in rises))
    first = rises[0]
    return rises[-1]._replace(
        first=first.first,
        known=first.known,
        probability=1 - math.prod(1 - s.probability for s in rises),
        size=size,
        error=error,
        before=first.before,
        before_error=first.before_error,
        after=first.before + size,
        after_error=math.hypot(first.before_error, error),
        kind=StepKind.DRIFT,
        posterior=(),
    )


def _distance(step: Step, place: int) -> int:
    return max(step.first - place, place - step.last, 0)
