"""What equal bits say. Trials of one seed that computed the same to the last bit are one draw of
the noise, and the commits that made them lie on one side of the change: bits locate it, and only
further draws tell whether it is real. Knows positions and draws; how bits are compared is the
caller's matter.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from celedger.stats.arrays import Bools, Floats
from celedger.stats.lineage import GOOD, Lineage

DOUBT = 0.01
"""Weight of the suspicion that equal bits mislead (the change spared the very seed that was
compared) against any single candidate that agrees with them. One for all equalities, because they
would be wrong together."""


@dataclass(frozen=True)
class Reading:
    """One trial's summary at a position (GOOD is -1); worse is larger, +inf not finite.

    Equal values of one seed at one position count once, so a repeat needs a fresh seed to tell
    anything. Without seeds equal repeats mean that the metric repeats exactly."""

    position: int
    value: float
    seed: int | None = None
    draw: int | None = None
    """Readings that share it computed the same to the last bit: one draw of the noise, however
    many commits repeated it."""


def located(
    lineage: Lineage, readings: Sequence[Reading], sides: Mapping[int, str], prior: Floats
) -> Floats:
    """(n,) the prior given which commits repeat which: all candidates that would part commits of
    equal bits weigh DOUBT together, measured by one of the others.

    Not DOUBT each: of a thousand commits that repeat the good end a few would then always stay
    in doubt, and no reading could clear them, for they have no draws of their own. `prior` sums
    to one."""
    if not sides and all(r.draw is None for r in readings):
        return prior
    apart = contradicted(lineage, readings, sides)
    left, lost = prior[~apart].sum(), prior[apart].sum()
    if left <= 0 or lost <= 0:
        return prior
    one = (prior[~apart] ** 2).sum() / left
    weighed = np.where(apart, prior * min(DOUBT * one / lost, 1.0), prior)
    return np.asarray(weighed / weighed.sum())


def contradicted(lineage: Lineage, readings: Sequence[Reading], sides: Mapping[int, str]) -> Bools:
    """(n,) which candidates would part commits of equal bits: put one on the other side than the
    end it repeats, or two that repeat each other on different sides."""
    ends = {GOOD, lineage.bad}
    own = [places for places in _places(readings).values() if len(places) > 1 and not places & ends]
    apart = parted(lineage, own)
    for side in ("good", "bad"):
        positions = sorted(p for p, end in sides.items() if end == side and p != GOOD)
        if positions:
            split = lineage.split(positions)
            wrong: Bools = np.any(split.bad != (side == "bad"), axis=1)
            apart |= wrong[split.group]
    return apart


def sides(readings: Sequence[Reading], bad: int) -> dict[int, str]:
    """Return the positions that repeat the bits of one of the ends, and only one."""
    ends: dict[int, set[str]] = {}
    for places in _places(readings).values():
        repeated = {name for end, name in ((GOOD, "good"), (bad, "bad")) if end in places}
        for position in places - {GOOD, bad}:
            ends.setdefault(position, set()).update(repeated)
    return {position: names.pop() for position, names in ends.items() if len(names) == 1}


def drawn_once(readings: Sequence[Reading], bad: int) -> list[Reading]:
    """Return the readings, of those between the ends only one for each draw, and none that an end
    has."""
    drawn = {r.draw for r in readings if r.position in (GOOD, bad) and r.draw is not None}
    once = []
    for reading in sorted(readings, key=lambda r: r.position):
        if reading.position not in (GOOD, bad) and reading.draw is not None:
            if reading.draw in drawn:
                continue
            drawn.add(reading.draw)
        once.append(reading)
    return once


def alike(
    readings: Sequence[Reading], position: int, others: Sequence[frozenset[int]] = ()
) -> frozenset[int]:
    """Return the positions whose bits are known to be those of `position`, itself among them: a
    trial there tells something new only with a seed that none of them had. `others` are further
    sets of positions that computed the same."""
    groups = [places for places in (*_places(readings).values(), *others) if len(places) > 1]
    positions = {position}
    while joined := [places for places in groups if places & positions and not places <= positions]:
        positions.update(*joined)
    return frozenset(positions)


def ends_repeat(readings: Sequence[Reading], bad: int) -> bool:
    """Return True if both ends computed the same to the last bit with some seed: then a change
    between them must have spared that very seed, which DOUBT is the chance of."""
    return any({GOOD, bad} <= places for places in _places(readings).values())


def spare(readings: Sequence[Reading], bad: int) -> frozenset[int]:
    """Tested positions that another one stands for: an end, or the oldest of equal bits."""
    positions: set[int] = set()
    if all(r.draw is None for r in readings):
        return frozenset()
    for position in {r.position for r in readings} - {GOOD, bad}:
        others = alike(readings, position)
        if others & {GOOD, bad} or min(others) < position:
            positions.add(position)
    return frozenset(positions)


def repeating(readings: Sequence[Reading], bad: int) -> float:
    """Chance that an untested commit repeats the bits of another: the share of the tested ones
    that did, by Laplace's rule; 0 where bits are not compared."""
    if all(r.draw is None for r in readings):
        return 0.0
    inner = {r.position for r in readings} - {GOOD, bad}
    again = sum(len(alike(readings, position)) > 1 for position in inner)
    return (again + 1) / (len(inner) + 2)


def _places(readings: Sequence[Reading]) -> dict[int, set[int]]:
    places: dict[int, set[int]] = {}
    for reading in readings:
        if reading.draw is not None:
            places.setdefault(reading.draw, set()).add(reading.position)
    return places


def parted(lineage: Lineage, groups: Iterable[Collection[int]]) -> Bools:
    """Return (n,) True where a candidate puts the members of one group on different sides."""
    apart = np.zeros(len(lineage), dtype=bool)
    for places in groups:
        split = lineage.split(sorted(places))
        all_bad: Bools = np.all(split.bad, axis=1)
        any_bad: Bools = np.any(split.bad, axis=1)
        both: Bools = any_bad & ~all_bad
        apart |= both[split.group]
    return apart
