"""Which commit to measure next: the one whose trial tells most about the first bad commit per
second of cost. Pure: reads a question, its evidence and their posterior; measures nothing.

The gain of a trial is the mutual information, in bits, between its value and the answer (which
group of commits, or that nothing changed), with levels and noise integrated out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from celedger.stats import draws
from celedger.stats.firstbad import (
    FEWEST_BAD,
    FEWEST_GOOD,
    Evidence,
    Posterior,
    Question,
    State,
    inseparable,
    unconfirmed,
)
from celedger.stats.lineage import GOOD, Lineage, unpack

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

DOUBTED = 0.3
"""Probability of "nothing changed" beyond which a trial is chosen for what it tells of that alone:
the evidence then speaks for it (NONE_PRIOR), and where a change is not even likely its place is not
worth a trial. Such trials go to the ends, which differ most."""
SMALLEST_GAIN = 1e-5
"""Bits below which a trial is not worth running: more of the same tells nothing."""
SAMPLES = 1024
"""On a history with merges at most so many candidates, spread evenly over the posterior, stand
for all when positions are compared."""
SPLIT_GROUPS = 12
"""Groups, heaviest first, in which untested positions are considered."""

ASSUMED_SHIFT, SURE_SHIFT = 2.0, 8.0
"""Shifts in sd: what is expected before anything was read, and where one reading decides."""
CONFIRMING = 4.0
"""Readings to be sure of the last neighbours, in units of log odds over d²/2."""


@dataclass(frozen=True)
class Cost:
    """What a trial takes: seconds per trial, plus the build where it has not been built."""

    seconds: float = 1.0
    build: float = 0.0
    built: frozenset[int] = field(default_factory=frozenset)

    def at(self, position: int) -> float:
        return self.seconds + (0.0 if position in self.built else self.build)


@dataclass(frozen=True)
class Choice:
    """The next commit to measure, and what it should tell."""

    position: int
    gain: float = 0.0
    """Expected information in bits; 0 at an end of the range, or to confirm."""

    @property
    def whole(self) -> bool:
        """Return True if the end of the trial is asked, and not only its first epochs."""
        return self.gain == 0


def choose(
    question: Question, evidence: Evidence, posterior: Posterior, cost: Cost | None = None
) -> Choice | None:
    """The next position; None when the answer stands or no trial could tell more."""
    cost = cost or Cost()
    lineage = question.lineage
    bad = lineage.bad
    places = [reading.position for reading in evidence.readings]
    if places.count(GOOD) < FEWEST_GOOD:
        return Choice(GOOD)
    if places.count(bad) < FEWEST_BAD:
        return Choice(bad)
    if posterior.state is not State.SEARCHING:
        return None
    tested = question.tested(evidence)
    hidden = evidence.untestable - tested
    belief = posterior.belief
    if belief is None:  # every reading is the same so far
        return Choice(GOOD if places.count(GOOD) <= places.count(bad) else bad)
    classes = inseparable(lineage, hidden)
    mass = np.bincount(classes, weights=posterior.probability)
    members = np.flatnonzero(classes == int(np.argmax(mass)))
    if mass.max() * (1 - posterior.no_change) >= question.confidence:
        missing = unconfirmed(lineage, members, hidden, tested)
        if missing:
            return Choice(missing[0])  # the culprit and its parents are always measured

    useful = tested - draws.spare(evidence.readings, bad)
    positions = _positions(lineage, posterior, useful, frozenset(tested | hidden), cost)
    share = _shares(lineage, posterior, positions)
    predictions = belief.fit.predictions()
    gain = _gains(posterior, positions, share, predictions)
    doubted = posterior.no_change > DOUBTED
    if doubted:
        of_change = _gains(posterior, positions, share, predictions, of_change=True)
        of_change *= [p in (GOOD, bad) for p in positions]
        gain = of_change if of_change.max() >= SMALLEST_GAIN else gain
    repeats = draws.repeating(evidence.readings, bad)
    if repeats:
        # A commit that repeats a tested neighbour shows by its bits which part of its group holds
        # the change; between two that are equal it will only repeat them.
        apart = draws.contradicted(lineage, evidence.readings, evidence.sides)
        open_groups = np.zeros(len(belief.group))
        open_groups[belief.split.group[~apart]] = 1.0
        located = (1 - posterior.no_change) * (_sided(share) @ (belief.group * open_groups))
        located *= not doubted
        new = np.array([p not in tested for p in positions])
        between = np.array([p != GOOD and bool(apart[p]) for p in positions])
        expected = np.where(between, 0.0, repeats * located + (1 - repeats) * gain)
        gain = np.where(new, expected, gain)
    chance = _testable(lineage, positions, tested, hidden)
    worth = gain * chance / np.array([cost.at(p) for p in positions])
    best = int(np.argmax(np.round(worth / max(worth.max(), 1e-300), 9)))
    if gain[best] < SMALLEST_GAIN:
        return None
    return Choice(positions[best], float(gain[best]))


def gains(lineage: Lineage, posterior: Posterior, positions: list[int]) -> Floats:
    """(P,) bits that one trial at each position tells about this answer; 0 while the ends do not
    differ. What several metrics learn of one trial is compared by it."""
    if posterior.belief is None:
        return np.zeros(len(positions))
    share = _shares(lineage, posterior, positions)
    return _gains(posterior, positions, share, posterior.belief.fit.predictions())


def expected_trials(question: Question, evidence: Evidence, posterior: Posterior) -> float:
    """Trials still needed, on average, at the levels and the noise believed now.

    Uncertainty left over the capacity of the channel, plus what it takes to be sure of the last
    two neighbours: fitted to benchmarks/bisect_simulator.py, within a third from 0.5 to 8 sd.
    Before the ends are read a shift of ASSUMED_SHIFT sd stands in. inf where nothing is left to
    tell good from bad.
    """
    if posterior.state is not State.SEARCHING:
        return 0.0
    places = [reading.position for reading in evidence.readings]
    ends = max(FEWEST_GOOD - places.count(GOOD), 0)
    ends += max(FEWEST_BAD - places.count(question.lineage.bad), 0)
    hidden = evidence.untestable - set(places)
    mass = np.bincount(inseparable(question.lineage, hidden), weights=posterior.probability)
    bits = float(_entropy(np.asarray(mass, dtype=np.float64))) / np.log(2)
    odds = np.log(question.confidence / (1 - question.confidence))
    sure = mass.max() * (1 - posterior.no_change)
    missing = odds - np.log(max(sure, 1e-300) / max(1 - sure, 1e-300))
    if posterior.belief is None or not np.isfinite(posterior.noise):
        shift = SURE_SHIFT if posterior.belief is not None or question.binary else ASSUMED_SHIFT
    else:
        shift = posterior.effect / max(posterior.noise, 1e-300)
    if not shift > 0:
        return float(np.inf)
    shift = min(shift, SURE_SHIFT)
    last = CONFIRMING * 2 / shift**2 * min(max(missing, 0.0), odds)
    return float(ends + max(bits / capacity(shift) + last, 1.0))


def capacity(shift: float) -> float:
    """Bits one reading tells, levels `shift` sd of normal noise apart and equally likely."""
    x = np.linspace(-8, 8 + shift, 512)
    good, bad = (np.exp(-0.5 * (x - level) ** 2) / np.sqrt(2 * np.pi) for level in (0, shift))
    information = _entropy((good + bad) / 2) - (_entropy(good) + _entropy(bad)) / 2
    return float(information * (x[1] - x[0]) / np.log(2))


def _positions(
    lineage: Lineage, posterior: Posterior, tested: set[int], shut: frozenset[int], cost: Cost
) -> list[int]:
    """Positions worth comparing: what is `tested` and may tell more, what is built, and in every
    heavy group the commits (not `shut`) that split it most evenly."""
    belief = posterior.belief
    assert belief is not None
    n = len(lineage)
    wanted = set(tested) | {p for p in cost.built if p < n and p not in shut}
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
        inside = 0
        for bit in np.flatnonzero(group_of == group):
            inside |= 1 << int(bit)
        total = inside.bit_count()
        if total < 2:
            wanted.update(int(m) for m in members[group_of == group] if not closed[m])
            continue
        below = np.array([(mask & inside).bit_count() for mask in masks], dtype=float)
        below[closed | (below == 0) | (below == total)] = 0.0
        useful = np.flatnonzero(below)
        if len(useful):
            order = np.argsort(np.abs(below[useful] - total / 2), kind="stable")
            wanted.update(int(p) for p in useful[order[:8]])
    return sorted(wanted)


def _evenest(members: NDArray[np.int64], cumulated: Floats, closed: Bools) -> list[int]:
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


def _sampled(lineage: Lineage, posterior: Posterior) -> tuple[NDArray[np.int64], list[int]]:
    """Candidates standing for all, and for every position which of them make it bad."""
    n = len(lineage)
    if n <= SAMPLES:
        members = np.flatnonzero(posterior.probability > 0)
    else:
        cumulated = np.cumsum(posterior.probability)
        marks = (np.arange(SAMPLES) + 0.5) / SAMPLES * cumulated[-1]
        members = np.unique(np.searchsorted(cumulated, marks))
    return members, lineage.reach([int(m) for m in members])


def _shares(lineage: Lineage, posterior: Posterior, positions: list[int]) -> Floats:
    """(P, G) how much of each group's probability makes each position bad."""
    belief = posterior.belief
    assert belief is not None
    G = len(belief.group)
    group_of = belief.split.group
    if lineage.linear:
        cumulated = np.concatenate(([0.0], np.cumsum(posterior.probability)))
        sizes = np.bincount(group_of, minlength=G)
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
        part = np.zeros((len(positions), G))
        for row, reached in enumerate(bits):
            part[row] = np.bincount(group_of[members], weights=weight * reached, minlength=G)
        whole = np.bincount(group_of[members], weights=weight, minlength=G)
    return np.where(whole > 0, part / np.where(whole > 0, whole, 1.0), 0.0)


def _gains(
    posterior: Posterior,
    positions: list[int],
    share: Floats,
    predictions: tuple[Floats, Floats, Floats, float],
    *,
    of_change: bool = False,
) -> Floats:
    """(P,) bits that one trial at each position tells about the answer; `of_change` only about
    whether anything changed."""
    belief = posterior.belief
    assert belief is not None
    good, bad, same, step = predictions
    none = posterior.no_change
    is_bad, is_good = share * belief.group, (1 - share) * belief.group
    changed = is_bad @ bad + is_good @ good
    mixed = (1 - none) * changed + none * same
    if of_change:
        inner = (1 - none) * _entropy(changed) + none * _entropy(same)
    else:
        inner = is_bad @ _entropy(bad) + is_good @ _entropy(good)
        inner = (1 - none) * inner + none * _entropy(same)
    gain = (_entropy(mixed) - inner) * step / np.log(2)
    counts = dict(zip(belief.positions.tolist(), belief.counts.tolist(), strict=True))
    m = np.array([counts.get(p, 0) for p in positions], dtype=float)
    if belief.exact:
        return np.where(m > 0, 0.0, gain)
    # d/dm of the independent trials that m repeats are worth
    common = belief.fit.common(belief.group)
    return np.asarray(gain / (1 + m * common) ** 2)


def _sided(chance: Floats) -> Floats:
    """Bits told by learning for sure what has this chance."""
    return np.asarray(_entropy(np.stack([chance, 1 - chance], axis=-1)) / np.log(2))


def _entropy(density: Floats) -> Floats:
    return -np.asarray((density * np.log(np.maximum(density, 1e-300))).sum(axis=-1))


def _testable(
    lineage: Lineage, positions: list[int], tested: set[int], hidden: frozenset[int]
) -> Floats:
    """(P,) chance that a commit can be tested: neighbours of broken commits are often broken,
    so that each failure moves the next attempt further away."""
    if not hidden:
        return np.ones(len(positions))
    broken = np.array(sorted(hidden))
    chance = np.ones(len(positions))
    for row, position in enumerate(positions):
        if position in tested:
            continue
        distance = np.abs(broken - position)
        near = int((distance <= 8 * distance.min()).sum())
        chance[row] = distance.min() / (distance.min() + 0.5 * near)
    return chance
