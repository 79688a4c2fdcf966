"""Which steps are which incident: steps of two chains that are one, steps and the incidents that
they were, metrics whose sets share a commit. Pure; knows sets of commits, not states."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from celedger.stats.arrays import Floats
from celedger.stats.course import Step, StepKind

NEAR = 2
"""Commits by which a set may miss what it was: a bisect's commit, an act's, its own set of before.
A 95 % set moves that far when trials are added."""
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
        return self.first <= other.last and other.first <= self.last

    def both(self, other: CommitSet) -> CommitSet:
        """Return the joint posterior of two sets that meet, with its own 95 % set."""
        start, weights = self._product(other)
        weights = weights / weights.sum()
        order = np.argsort(-weights, kind="stable")
        count = int(np.searchsorted(np.cumsum(weights[order]), HELD - 1e-12)) + 1
        first, last = start + int(order[:count].min()), start + int(order[:count].max())
        named = self.named if self.named is not None else other.named
        return CommitSet(first, last, start, weights, named)

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
    """Return the steps, those that two chains both saw once, ordered by their last place."""
    distinct: list[Step] = []
    for step in sorted(steps, key=lambda s: (s.last, s.first)):
        for i in range(len(distinct) - 1, -1, -1):
            other = distinct[i]
            same = other.chain != step.chain and other.kind is step.kind
            if same and overlap(other, step) and other.size * step.size > 0:
                distinct[i] = _clearer(other, step)
                break
        else:
            distinct.append(step)
    return sorted(distinct, key=lambda s: (s.last, s.first))


def overlap(a: Step, b: Step) -> bool:
    return a.first <= b.last and b.first <= a.last


def _clearer(earlier: Step, later: Step) -> Step:
    sure = later.probability >= HELD
    narrower = later.last - later.first < earlier.last - earlier.first
    return later if later.probability > earlier.probability or (sure and narrower) else earlier


@dataclass(frozen=True, slots=True)
class Before:
    """What pairing needs of an incident that was told before: its set, and whether it stood for
    the metric in question."""

    first: int
    last: int
    is_active: bool
    is_drift: bool


def paired(steps: Sequence[Step], told: Sequence[Before]) -> dict[int, int]:
    """Return step -> told incident, by index: as many pairs as overlap, then the nearest ones.

    One after another they would rob one another of their incidents when sets widen. A slow drift
    takes the oldest incident inside of it.

    Args:
        told: Oldest first.
    """
    gain = np.zeros((len(steps), len(told)))
    for i, step in enumerate(steps):
        for j, incident in enumerate(told):
            gain[i, j] = _gain(step, incident, j)
    return {i: j for i, j in enumerate(_best_pairs(gain)) if j < len(told) and gain[i, j] > 0}


def _gain(step: Step, incident: Before, age: int) -> float:
    gap = max(step.first - incident.last, incident.first - step.last)
    if gap > (NEAR if incident.is_active else 0):
        return 0.0
    apart = min(5e3, abs(incident.first + incident.last - step.first - step.last))
    if gap > 0:
        return NEIGHBOUR - apart
    gain = PREFERRED - apart - (0.0 if incident.is_active else INACTIVE)
    if step.kind is StepKind.DRIFT:
        gain -= (0.0 if incident.is_drift else 1e5) + 1e4 * min(9, age)
    return gain


def _best_pairs(gain: Floats) -> list[int]:
    """Return a column for each row, their summed gain the largest (Kuhn 1955, Munkres 1957).

    A row may stay alone: it then gets a column beyond the last.
    """
    rows, columns = gain.shape
    if not rows:
        return []
    cost = np.hstack([-gain, np.zeros((rows, rows))])
    width = columns + rows
    row_price, column_price = np.zeros(rows + 1), np.zeros(width + 1)
    owner = np.full(width + 1, rows)  # of a column; `rows` is none; the last column is the start
    for row in range(rows):
        owner[width] = row
        at, slack = width, np.full(width + 1, math.inf)
        way, visited = np.full(width + 1, width), np.zeros(width + 1, bool)
        while owner[at] != rows:
            visited[at] = True
            i = owner[at]
            reduced = cost[i] - row_price[i] - column_price[:width]
            better = ~visited[:width] & (reduced < slack[:width])
            slack[:width][better], way[:width][better] = reduced[better], at
            free = np.where(visited[:width], math.inf, slack[:width])
            nearest = int(free.argmin())
            delta = free[nearest]
            row_price[owner[visited]] += delta
            column_price[visited] -= delta
            slack[~visited] -= delta
            at = nearest
        while at != width:
            owner[at] = owner[way[at]]
            at = int(way[at])
    column_of = {int(owner[j]): j for j in range(width) if owner[j] != rows}
    return [column_of[i] for i in range(rows)]
