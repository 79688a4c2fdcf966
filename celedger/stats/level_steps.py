"""Steps of one metric, from the probability of a step before each node.

Lives here: which neighbouring places are one step, its set of commits, its size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from celedger.stats.arrays import Floats
from celedger.stats.commit_nodes import CommitNodes
from celedger.stats.course import Step

LEAST_PROBABILITY = 0.01
"""Steps that are less probable are left out: a third of what makes a doubt."""
LEAST_MASS = 0.004
"""Places with less are not part of a step's set."""
SET = 0.95
MOST_WIDENING = 2.0
"""Where a step is just seen, its size is more often too large. Its variance is widened to that of
the two levels, at most so many times."""
SIDE_BY_SIDE = 1.25  # variance of t with 5 degrees of freedom near its centre, over the normal's
CERTAIN_DIRECTION = 4.0
"""From so many standard errors on, a difference side by side has the direction of the step."""
LEAST_LEVEL_ERROR = 0.05  # in deviations: a quarter of the grid's spacing
LEAST_SIZE_ERROR = 0.07


@dataclass(frozen=True, slots=True, eq=False)
class StepEvidence:
    """What the passes say about one metric, in deviations of a trial.

    Attributes:
        moments: Of `level_chain.step_moments`, averaged over rows: [nodes, 2, 6]. 0 where no step
            is likely.
        level, variance: Of each node's level.
        contrast, contrast_precision: Difference to the node before that was measured side by side
            in a session; a precision of 0 where there is none.
        unit: A deviation, in the metric's unit.
        origin: The metric's value at level 0.
    """

    moments: Floats
    level: Floats
    variance: Floats
    contrast: Floats
    contrast_precision: Floats
    unit: float
    origin: float


def _clusters(mass: Floats) -> Iterator[tuple[int, int]]:
    """Yield first and last index of each run of places; a gap of one place does not end it."""
    likely = np.flatnonzero(mass >= LEAST_MASS)
    if not len(likely):
        return
    breaks = np.flatnonzero(np.diff(likely) > 2)
    for i, j in zip(np.append(0, breaks + 1), np.append(breaks, len(likely) - 1), strict=True):
        yield int(likely[i]), int(likely[j])


def _parts(mass: Floats) -> list[Floats]:
    """Return the probability that each of the cluster's steps takes, in their order.

    What is left beside whole steps is a step of its own: a doubt beside a certain step is worth a
    trial. It is the oldest or the newest, whichever leaves the others in fewer places.
    """
    total = float(mass.sum())
    count = max(1, math.ceil(total - LEAST_PROBABILITY))
    if count == 1:
        return [mass]
    edges = np.concatenate([[0.0], np.cumsum(mass)])
    ways = []
    for least in (0.0, total - count):
        cuts = [np.clip(edges, least + i, least + i + 1) for i in range(count)]
        parts = [cut[1:] - cut[:-1] for cut in cuts]
        # A neighbour's rest has the neighbour's size.
        ways.append([np.where(own >= LEAST_MASS, own, 0.0) for own in parts])
    return max(ways, key=lambda parts: sum(float(own @ own) for own in parts))


def _step(
    evidence: StepEvidence, nodes: CommitNodes, begin: int, own: Floats, moments: Floats
) -> Step:
    """Return one step. `own` and `moments` are of the places from node `begin` on."""
    order = np.argsort(-own, kind="stable")
    inside = order[: int(np.searchsorted(np.cumsum(own[order]), SET * own.sum())) + 1]
    first, last = begin + int(inside.min()), begin + int(inside.max())
    at = begin + int(own.argmax())
    scaled = moments[:, 1:] / np.maximum(moments[:, :1], 1e-300) * (own / own.sum())[:, None]
    before, before2, after, after2, product = scaled.sum(0).tolist()
    size = after - before
    variance = max(before2 + after2 - 2 * product - size * size, LEAST_SIZE_ERROR**2)
    marginal = float(evidence.variance[first - 1] + evidence.variance[last])
    variance = max(variance, min(marginal, MOST_WIDENING * variance))
    precision = float(evidence.contrast_precision[first])
    if first == last and precision > 0 and SIDE_BY_SIDE / precision < variance:
        contrast = float(evidence.contrast[first])
        if (contrast > 0) == (size > 0):
            size, variance = contrast, SIDE_BY_SIDE / precision
    unit, origin = evidence.unit, evidence.origin
    return Step(
        first=int(nodes.last[first - 1]) + 1,
        last=int(nodes.first[last]),
        likeliest=int(nodes.first[at]),
        probability=min(1.0, float(own.sum())),
        size=size * unit,
        error=variance**0.5 * unit,
        before=before * unit + origin,
        before_error=max(before2 - before**2, LEAST_LEVEL_ERROR**2) ** 0.5 * unit,
        after=after * unit + origin,
        after_error=max(after2 - after**2, LEAST_LEVEL_ERROR**2) ** 0.5 * unit,
        chain=int(nodes.chain[at]),
        known=int(nodes.last[first - 1]),
        unit=unit,
        is_newest=False,
        node=at,
        posterior=_by_commit(nodes, begin, own, first, last),
    )


def _by_commit(
    nodes: CommitNodes, begin: int, own: Floats, first: int, last: int
) -> tuple[float, ...]:
    """Return the probability of every commit of the nodes `first` to `last`. Those of a gap share
    that of the node after it; the later ones of a node have none."""
    result: list[float] = []
    for node in range(first, last + 1):
        gap = int(nodes.first[node]) - int(nodes.last[node - 1])
        result += [float(own[node - begin]) / gap] * gap
        if node < last:
            result += [0.0] * (int(nodes.last[node]) - int(nodes.first[node]))
    return tuple(result)


def _signed(evidence: StepEvidence) -> Floats:
    """Return the moments, the direction of a step that was measured side by side being certain.

    Levels are known to the deviation of a session only; a difference within one is known to that of
    a trial. Its direction is the step's.
    """
    moments = evidence.moments.copy()
    moments[moments[:, :, 0] <= 0] = 0.0  # a rounding error, by which nothing can be divided
    z = evidence.contrast * np.sqrt(evidence.contrast_precision)
    for k in np.flatnonzero((np.abs(z) >= CERTAIN_DIRECTION) & moments[:, :, 0].any(1)).tolist():
        way, other = (0, 1) if z[k] > 0 else (1, 0)
        mass = moments[k, way, 0]
        if mass > 0:
            moments[k, way] *= (mass + moments[k, other, 0]) / mass
            moments[k, other] = 0.0
    return moments


def steps_of(evidence: StepEvidence, nodes: CommitNodes) -> list[Step]:
    """Return the steps of some probability, rises and falls apart, in the order of nodes."""
    steps, signed = [], _signed(evidence)
    for way in (0, 1):
        moments = signed[:, way]
        for begin, end in _clusters(moments[:, 0]):
            place = slice(begin, end + 1)
            steps += [
                _step(evidence, nodes, begin, own, moments[place])
                for own in _parts(moments[place, 0])
                if own.sum() >= LEAST_PROBABILITY
            ]
    return sorted(steps, key=lambda step: step.node)
