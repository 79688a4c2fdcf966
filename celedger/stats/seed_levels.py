"""The levels of one history of `seed_histories.py`, by least squares.

Lives here: what the values say of each level, what seeds add integrated out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from celedger.stats.arrays import Floats, Ints
from celedger.stats.seed_histories import DRAWN, OWN_VARIANCES, Beam, SeedTable, scale_of


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """The levels of one history: mean and covariance, which of them each node from the beam's first
    on has, and the sd of a trial."""

    mean: Floats
    covariance: Floats
    of_node: Ints
    sd: float


def levels(table: SeedTable, beam: Beam, which: int, spread: int = 0) -> Levels:
    """Return the levels that the values have under one history of the beam, by least squares, from
    the nodes from its first on.

    Args:
        spread: Degrees of freedom of the spreads that the beam was started with.
    """
    structure = _structure(table, beam, which)
    gram = _gram(table, structure, float(beam.share[which]))
    of_node, size = structure.of_node, len(gram) - 1
    covariance = np.linalg.inv(gram[:-1, :-1])
    nodes = slice(beam.first, beam.stop)
    at_node = np.repeat(np.arange(len(of_node)), [len(ys) for ys in table.tamed[nodes]])
    values = np.concatenate(table.tamed[nodes])
    count = spread - 1 + sum(map(len, table.tamed[: beam.stop]))
    sd = math.exp(float(scale_of(table).mode(beam.square[which : which + 1], count)[0]))
    mean = table.centre + covariance @ gram[:-1, -1]
    beyond = np.concatenate(table.values[nodes]) - values
    if beyond.any():
        mean += [float(np.median(beyond[of_node[at_node] == level])) for level in range(size)]
    return Levels(mean, np.asarray(covariance * sd**2, dtype=np.float64), of_node, sd)


@dataclass(frozen=True, slots=True, eq=False)
class _Structure:
    """What a history says of each node from `first` on, counted from it: which level it has, from
    which node its seeds come (-1: drawn anew), and the variance of their own moves, and of all
    moves since they were drawn, in that of a trial."""

    first: int
    of_node: Ints
    source: list[int]
    moved: Floats
    spread: Floats


def _structure(table: SeedTable, beam: Beam, which: int) -> _Structure:
    steps = set(beam.paths[beam.path[which]])
    share, first = float(beam.share[which]), beam.first
    kinds = beam.kinds[which].tolist()
    of_node, source, number = [0], [-1], 1
    for k in range(first + 1, beam.stop):
        to = table.returns[k]
        before = (to if to >= 0 else k - 1) - first
        if to < 0 and k in steps:
            level, number = number, number + 1
        else:
            level = of_node[before]
        of_node.append(level)
        source.append(-1 if kinds[k - first] == DRAWN else before)
    moved = np.where(np.array(source) < 0, share, np.append(OWN_VARIANCES, share)[kinds])
    spread = moved.copy()
    for k, before in enumerate(source):
        spread[k] += spread[before] if before >= 0 else 0.0
    return _Structure(first, np.array(of_node), source, moved, spread)


def _gram(table: SeedTable, structure: _Structure, share: float) -> Floats:
    """Return the products, weighted by the inverse of the values' covariance, of the columns of the
    levels (which values have each) and of the values less the centre.

    What a seed adds is integrated out from the newest node to the oldest: a node's is that of the
    node it comes from, and its own move.
    """
    of_node, size = structure.of_node, int(structure.of_node.max()) + 1
    weight = np.zeros((len(of_node), table.width))
    value = np.zeros_like(weight)
    for k in range(len(of_node)):
        node = structure.first + k
        columns = table.columns[node]
        weight[k, columns] = table.counts[node] / (1 - share)
        value[k, columns] = table.tamed[node] - table.centre
    every = np.zeros((len(of_node), table.width, size + 1))
    every[np.arange(len(of_node)), :, of_node] = weight
    every[:, :, -1] = weight * value
    gram = np.zeros((size + 1, size + 1))
    gram[np.arange(size), np.arange(size)] = np.bincount(of_node, weight.sum(1), size)
    gram[:-1, -1] = gram[-1, :-1] = np.bincount(of_node, every[:, :, -1].sum(1), size)
    passing = slice(table.passing, table.width)  # of no other node, wherever its seeds come from
    factor = np.zeros_like(weight)
    spread = structure.spread[:, None]
    factor[:, passing] = spread / (1 + spread * weight[:, passing])
    followed = slice(0, table.passing)
    for k in range(len(of_node) - 1, -1, -1):
        own, before = structure.moved[k], structure.source[k]
        shrunk = 1 / (1 + own * weight[k, followed])
        factor[k, followed] = own * shrunk
        if before >= 0:
            weight[before, followed] += weight[k, followed] * shrunk
            every[before, followed] += every[k, followed] * shrunk[:, None]
    flat = every.reshape(-1, size + 1)
    gram -= (flat * factor.reshape(-1, 1)).T @ flat
    return gram
