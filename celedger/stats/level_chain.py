"""Levels along a chain of nodes: the forward and the backward pass, and what they say of steps.

Lives here: recursions over likelihoods on a grid. They know no metric, commit or session.
Arrays are [nodes, rows, points]; a row is a metric under one assumption about its noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from celedger.stats.arrays import Floats, Ints

_TINY = 1e-300
_TAPS = ((1, 0.24), (2, 0.06))
"""Shares of a level's probability that move by one and two steps of the machine's drift, to either
side: variance .96 steps squared."""


@dataclass(frozen=True, slots=True, eq=False)
class Drift:
    """How a level moves from node to node without a step: by the machine, in all rows.

    Attributes:
        source: For each way to move, which point of the flat message each point takes from.
        share: How much of it: 0 where the grid has a gap, or ends.
        stays: How much of each point stays.
    """

    source: Ints
    share: Floats
    stays: Floats

    def __call__(self, message: Floats) -> Floats:
        flat = message.ravel()
        moved = flat[self.source]
        moved *= self.share
        result: Floats = (self.stays * flat + moved.sum(0)).reshape(message.shape)
        return result


def drift_of(points: Floats, spacing: Floats, distances: Floats) -> Drift | None:
    """Return the drift of rows by the given distances, None if no row moves.

    Args:
        points: Of each row's grid: [rows, points]; `spacing` likewise.
    """
    steps = np.rint(distances / spacing).astype(np.int64)[:, None]
    if not (steps > 0).any():
        return None
    count = points.shape[1]
    sources, shares = [], []
    for times, share in _TAPS:
        for distance in (-times * steps, times * steps):
            wanted = np.arange(count) + distance
            source = np.clip(wanted, 0, count - 1)
            apart = np.take_along_axis(points, source, 1) - points - distance * spacing[:, None]
            is_there = (source == wanted) & (np.abs(apart) < spacing[:, None] / 2)
            is_there &= distance != 0
            sources.append((source + count * np.arange(len(points))[:, None]).ravel())
            shares.append((share * is_there).ravel())
    every = np.array(shares)
    return Drift(np.array(sources), every, 1 - every.sum(0))


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """What the two passes leave.

    Attributes:
        forward: Probability of each level given the nodes up to this one.
        backward: Likelihood of the later nodes given the level here, over that of all of them.
        evidence: Likelihood of each node given the earlier ones: [nodes, rows].
        step: P(the level steps just before the node): [nodes, rows].
    """

    forward: Floats
    backward: Floats
    evidence: Floats
    step: Floats


def passes(
    fresh: Floats,
    same: Floats,
    prior: Floats,
    hazard: Floats,
    drift: Drift | None,
    earlier: Floats | None,
) -> Messages:
    """Run both passes.

    Args:
        fresh: Likelihood of each node's values given its level.
        same: The same, given also that the level is that of the node before. `fresh` itself where
            nothing was measured side by side.
        prior: Of a level after a step: [rows, points].
        hazard: Prior probability of a step before the node.
        earlier: The forward message of the node before the first one. None: a chain starts anew,
            without a step.
    """
    count = len(fresh)
    forward, evidence = np.empty_like(fresh), np.empty(fresh.shape[:2])
    before = earlier
    for k in range(count):
        if before is None:
            x = prior * fresh[k]
        else:
            stays = before if drift is None else drift(before)
            h = hazard[k]
            x = stays * (1 - h) * same[k] + prior * h * fresh[k]
        evidence[k] = x.sum(1) + _TINY
        before = np.divide(x, evidence[k][:, None], out=forward[k])
    backward, step = np.empty_like(fresh), np.zeros(fresh.shape[:2])
    after = np.ones_like(prior)
    for k in range(count - 1, -1, -1):
        backward[k] = after
        scaled = after / evidence[k][:, None]
        anew = (fresh[k] * scaled * prior).sum(1)
        if k == 0 and earlier is None:
            break
        step[k] = hazard[k] * anew
        if k == 0:
            break
        stays = same[k] * scaled
        after = (stays if drift is None else drift(stays)) * (1 - hazard[k]) + step[k][:, None]
    return Messages(forward, backward, evidence, step)


def step_moments(before: Floats, after: Floats, points: Floats) -> Floats:
    """Return what is known of a step at one place, by its direction: [rows, 2 (up, down), 6].

    The six: probability of the step, and its sums of before, before squared, after, after squared,
    before times after, all exact given that there is a step in that direction.

    Args:
        before: Forward message of the node before: [rows, points].
        after: Joint probability of a step and of the level after it.
        points: Levels: [rows, points].
    """
    first, second = before * points, before * points**2
    up = []
    for weight in (before, first, second):
        below = np.cumsum(weight, 1) - 0.5 * weight  # an equal level counts half each way
        up.append((below, weight.sum(1, keepdims=True) - below))
    result = np.empty((len(before), 2, 6))
    for way in (0, 1):
        w0, w1, w2 = (pair[way] for pair in up)
        mass = after * w0
        products = (
            mass,
            after * w1,
            after * w2,
            mass * points,
            mass * points**2,
            after * w1 * points,
        )
        for i, product in enumerate(products):
            result[:, way, i] = product.sum(1)
    return result
