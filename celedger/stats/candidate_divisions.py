"""How positions divide a posterior: which are worth comparing, and how much of each group of
candidates makes a position bad. Pure; knows no levels and no noise."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from celedger.stats.arrays import Bools, Floats, Ints
from celedger.stats.firstbad import Posterior
from celedger.stats.lineage import GOOD, Lineage, unpack

SAMPLES = 1024
"""On a history with merges at most so many candidates, spread evenly over the posterior, stand
for all when positions are compared."""
SPLIT_GROUPS = 12
"""Groups, heaviest first, in which untested positions are considered."""
_ROUNDING = 1e-9


def worth_comparing(
    lineage: Lineage,
    posterior: Posterior,
    tested: set[int],
    shut: frozenset[int],
    built: Collection[int],
) -> list[int]:
    """Positions worth comparing: what is `tested` and may tell more, what is built, and in every
    heavy group the commits (not `shut`) that split it most evenly."""
    belief = posterior.belief
    assert belief is not None
    n = len(lineage)
    wanted = set(tested) | {p for p in built if p < n and p not in shut}
    heavy = np.argsort(-belief.group, kind="stable")[:SPLIT_GROUPS]
    heavy = heavy[belief.group[heavy] > 1e-4]
    closed = np.zeros(n, dtype=bool)
    closed[[p for p in shut if p != GOOD]] = True
    if lineage.linear:
        for group in heavy:
            members = np.flatnonzero(belief.split.group == group)
            wanted.update(_evenest(members, np.cumsum(posterior.probability[members]), closed))
        return sorted(wanted)
    members, masks = _sampled(lineage, posterior)
    group_of = belief.split.group[members]
    for group in heavy:
        inside = np.flatnonzero(group_of == group)
        if len(set(members[inside].tolist())) < 2:
            wanted.update(int(m) for m in members[inside] if not closed[m])
            continue
        below, total = _reached(posterior, members, masks, inside)
        useful = np.flatnonzero(~closed & (below > 0) & (below < total * (1 - _ROUNDING)))
        order = np.argsort(np.abs(below[useful] - total / 2), kind="stable")
        wanted.update(int(p) for p in useful[order[:8]])
    return sorted(wanted)


def _reached(
    posterior: Posterior, members: Ints, masks: Sequence[int], inside: Ints
) -> tuple[Floats, float]:
    """Return (n,) how much of the members at the places `inside` makes each position bad, and how
    much they are together: probability, or the number of samples where there are samples."""
    if len(masks) <= SAMPLES:
        weight = posterior.probability[members[inside]]
        return unpack(masks, len(members))[:, inside] @ weight, float(weight.sum())
    bits = sum(1 << int(place) for place in inside)
    return np.array([(mask & bits).bit_count() for mask in masks], dtype=float), float(len(inside))


def _evenest(members: Ints, cumulated: Floats, closed: Bools) -> list[int]:
    """Of one stretch of a line: the open commits nearest its middle, ever further apart."""
    total = cumulated[-1]
    middle = int(np.searchsorted(cumulated, total / 2))
    nearest = []
    for start, step in ((middle, 1), (middle - 1, -1)):
        at, jump = start, 1
        while 0 <= at < len(members):
            if not closed[members[at]]:
                nearest.append(int(members[at]))
                jump *= 2
                at += step * jump
            else:
                at += step
            if len(nearest) > 40:
                break
    return nearest


def _sampled(lineage: Lineage, posterior: Posterior) -> tuple[Ints, list[int]]:
    """Return candidates standing for all, and for every position which of them make it bad."""
    n = len(lineage)
    if n <= SAMPLES:
        members = np.flatnonzero(posterior.probability > 0)
    else:
        cumulated = np.cumsum(posterior.probability)
        marks = (np.arange(SAMPLES) + 0.5) / SAMPLES * cumulated[-1]
        members = np.searchsorted(cumulated, marks)  # a likely candidate has many samples
    return members, lineage.reach([int(m) for m in members])


def shares(
    lineage: Lineage,
    posterior: Posterior,
    positions: list[int],
    group_of: Ints | None = None,
    groups: int = 0,
) -> Floats:
    """(P, G) how much of each group's probability makes each position bad; of the posterior's own
    groups if none are given."""
    if group_of is None:
        belief = posterior.belief
        assert belief is not None
        group_of, groups = belief.split.group, len(belief.group)
    if lineage.linear:
        cumulated = np.concatenate(([0.0], np.cumsum(posterior.probability)))
        sizes = np.bincount(group_of, minlength=groups)
        last = np.cumsum(sizes)
        first = last - sizes
        upto = np.array(positions)[:, None] + 1
        part = cumulated[np.clip(upto, first, last)] - cumulated[first]
        whole = cumulated[last] - cumulated[first]
    else:
        members, masks = _sampled(lineage, posterior)
        weight = posterior.probability[members]
        if len(lineage) > SAMPLES:
            weight = np.ones(len(members))
        bits = unpack([0 if p == GOOD else masks[p] for p in positions], len(members))
        part = np.zeros((len(positions), groups))
        for row, reached in enumerate(bits):
            part[row] = np.bincount(group_of[members], weights=weight * reached, minlength=groups)
        whole = np.bincount(group_of[members], weights=weight, minlength=groups)
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), 0.0)


def quantiles(
    lineage: Lineage, posterior: Posterior, marks: Sequence[float] | Floats, shut: set[int]
) -> list[int]:
    """Return the open positions that divide the posterior most nearly at the marks."""
    if lineage.linear:
        chance = np.cumsum(posterior.probability)
    else:
        members, masks = _sampled(lineage, posterior)
        reached, total = _reached(posterior, members, masks, np.arange(len(members)))
        chance = reached / total
    shut = shut | {lineage.bad}
    chance[[p for p in shut if p != GOOD]] = np.inf
    if not np.isfinite(chance).any():
        return []
    return sorted({int(np.argmin(np.abs(chance - mark))) for mark in marks})


def cells(
    lineage: Lineage, posterior: Posterior, positions: Sequence[int]
) -> tuple[Ints, Floats, Bools]:
    """Return the cell of each candidate, the cells' weights, and which of the trials at these
    positions, repeats among them, each makes bad: as `parallel` wants it."""
    distinct = sorted(set(positions))
    split = lineage.split(distinct)
    weight: Floats = np.bincount(
        split.group, weights=posterior.probability, minlength=len(split.bad)
    ).astype(float)
    return split.group, weight, split.bad[:, [distinct.index(p) for p in positions]]
