"""What the histories of a line, and what people and bisects said, tell of single steps: whether a
step opens an incident, which commits may have made it, whether it was accepted. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from celedger.stats.causes import NEAR, CommitSet, commit_set, distinct_steps
from celedger.stats.controls import Contrast, RiseVerdict
from celedger.stats.course import Acts, MetricHistory, MetricKey, Node, Step, StepKind
from celedger.stats.incident_state import FEWEST_REPEATS
from celedger.stats.mends import KEPT, ONE_SIDED, OPEN, Fall

DOUBT = 0.03
"""P(step) from which it is worth another trial: a Bayes factor of 12 over one place's prior."""
STILL_LARGE = 2.5
"""Standard deviations of a value, as known now, above which a rise that was sure is no noise."""

Floors = Mapping[MetricKey, Callable[[float], float]]


class LineSteps:
    """The steps of all metrics of a line.

    Attributes:
        steps: By metric, each once, ordered by their last place.
        kept: Those that more probably exist than not.
        false, real: The controls that were asked for a rise, and decided.
    """

    def __init__(
        self,
        histories: Mapping[MetricKey, MetricHistory],
        floors: Floors,
        acts: Acts,
        contrasts: Sequence[Contrast],
    ) -> None:
        self.histories, self.acts = histories, acts
        self._floors = floors
        self.contrasts = [c for c in contrasts if c.key in histories]
        asked = [c for c in self.contrasts if c.is_asked]
        self.false = [c for c in asked if c.verdict() is RiseVerdict.FALSE]
        self.real = [c for c in asked if c.verdict() is RiseVerdict.REAL]
        self.steps = {key: distinct_steps(h.steps) for key, h in sorted(histories.items())}
        self._named = {key: self._bisected(key) for key in self.steps}
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
            and self.noise_is_known(key)
        )

    def suspects(self, key: MetricKey, step: Step) -> bool:
        """Return True if a rise that opens nothing is worth a line."""
        large = step.size > max(self.floor(key, step.before), 0.0)
        return step.probability >= DOUBT and large and not self.opens(key, step)

    def noise_is_known(self, key: MetricKey) -> bool:
        history = self.histories[key]
        return history.by_seeds or history.noise.freedom >= FEWEST_REPEATS

    def floor(self, key: MetricKey, level: float) -> float:
        return self._floors[key](level) if key in self._floors else 0.0

    def is_false(self, key: MetricKey, step: Step) -> bool:
        """Return True if a control showed that a rise was a disturbed session."""
        return any(
            c.key == key and step.first <= c.old <= max(step.last, step.likeliest)
            for c in self.false
        )

    def is_accepted(self, key: MetricKey, first: int, last: int, *, was: bool) -> bool:
        """Return True if a person accepted a commit of a set; `was`: the set was accepted when
        it was last told, and may have moved since."""
        slack = NEAR if was else 0
        return any(
            all(not part or part == own for part, own in zip(of, key, strict=True))
            and any(first - slack <= place <= last + slack for place in places)
            for of, places in self.acts.accepted.items()
        )

    def commit_set(self, key: MetricKey, step: Step) -> CommitSet:
        return commit_set(step, self._named[key].get(step, {}))

    def is_named(self, key: MetricKey, step: Step) -> bool:
        return step in self._named[key]

    def rank(self, key: MetricKey, step: Step) -> tuple[bool, float]:
        """Return an order of steps: named ones first, then by size in units of the floor."""
        unit = self.floor(key, step.before) or step.error or step.unit
        return not self.is_named(key, step), -abs(step.size) / max(unit, 1e-300)

    def improvements(self, fall: Fall) -> list[tuple[MetricKey, Step]]:
        """Return the steps of a fall that are sure, and larger than the floor."""
        return [
            (k, s)
            for k, s in sorted(fall.steps.items())
            if s.probability >= OPEN
            and -s.size > self.floor(k, s.before)
            and self.noise_is_known(k)
        ]

    def is_large_still(self, key: MetricKey, size: float) -> bool:
        """Return True if a size is more than noise, by what repeats tell of the noise now."""
        noise = self.histories[key].noise
        return size > STILL_LARGE * noise.sd * math.hypot(1.0, noise.session)

    def risen_node(self, key: MetricKey, first: int, last: int) -> Node | None:
        """Return the node at which a rise of a set shows; None if none of it is measured."""
        nodes = self.histories[key].nodes
        there = [n for n in nodes if n.last >= last] or [n for n in nodes if n.last >= first]
        return min(there, key=lambda n: (n.last, -n.chain), default=None)

    def next_measured(self, key: MetricKey, place: int) -> int | None:
        """Return the oldest commit after `place` that was measured."""
        return min((n.first for n in self.histories[key].nodes if n.first > place), default=None)

    def vanished(
        self, key: MetricKey, first: int, last: int, size: tuple[float, float], probability: float
    ) -> Step:
        """Return a step that the history does not have any more, as it was told or controlled."""
        near = [s for s in self.steps[key] if s.size > 0 and s.first <= last and first <= s.last]
        if near and probability < OPEN:
            return max(near, key=lambda s: s.probability)
        node = self.risen_node(key, first, last)
        nodes, noise = self.histories[key].nodes, self.histories[key].noise
        before = [n for n in nodes if node is not None and n.chain == node.chain and n.last < first]
        level, error = (before[-1].level, before[-1].error) if before else (0.0, 0.0)
        return Step(
            first=first,
            last=last,
            likeliest=max(last, node.first) if node is not None else last,
            probability=probability,
            size=size[0],
            error=size[1],
            before=level,
            before_error=error,
            after=level + size[0],
            after_error=math.hypot(error, size[1]),
            chain=node.chain if node is not None else 0,
            known=before[-1].last if before else first - 1,
            unit=noise.sd,
            is_newest=False,
            node=nodes.index(node) if node is not None else 0,
        )

    def newest_rises(self, key: MetricKey) -> list[Step]:
        """Return the rises that the next commits may leave in doubt."""
        return [
            s
            for s in self.steps[key]
            if s.is_newest and s.kind is StepKind.STEP and s.probability >= KEPT
            if s.size > ONE_SIDED * s.error and not self.is_false(key, s)
        ]

    def _bisected(self, key: MetricKey) -> dict[Step, dict[int, float]]:
        """Return the commits that bisects named, by the rise whose set is nearest."""
        rises = [s for s in self.steps[key] if s.size > 0 and s.probability >= DOUBT]
        named: dict[Step, dict[int, float]] = {}
        for place, probability in sorted(self.acts.named.get(key, {}).items()):
            near = [s for s in rises if s.first - NEAR <= place <= s.last + NEAR]
            if near:
                nearest = min(near, key=lambda s: (_distance(s, place), -s.probability))
                named.setdefault(nearest, {})[place] = probability
        return named


def _distance(step: Step, place: int) -> int:
    return max(step.first - place, place - step.last, 0)
