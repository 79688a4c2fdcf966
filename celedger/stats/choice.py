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
from celedger.stats.divisions import cells, quantiles, shares, worth_comparing
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
from celedger.stats.lineage import GOOD, Lineage
from celedger.stats.parallel import NOTHING, UnderWay, beyond, likeness, told

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

DOUBTED = 0.3
"""Probability of "nothing changed" beyond which a trial is chosen for what it tells of that alone:
the evidence then speaks for it (NONE_PRIOR), and where a change is not even likely its place is not
worth a trial. Such trials go to the ends, which differ most."""
SMALLEST_GAIN = 1e-5
"""Bits below which a trial is not worth running: more of the same tells nothing."""
ASSUMED_SHIFT, SURE_SHIFT = 2.0, 8.0
"""Shifts in sd: what is expected before anything was read, and where one reading decides."""
CONFIRMING = 4.0
"""Readings to be sure of the last neighbours, in units of log odds over d²/2."""


CLEAR = 0.6
"""Bits of one trial at the median from which a trial under way may be ended: a shift of 4 sd whose
levels are known from ten readings each. At 2 sd ending saves nothing (parallel.md)."""
USELESS = 0.2
"""A trial under way is ended if it tells less than this part of what the best other one would."""
CHEAP = 0.1
"""Only where a start costs at most this part of a trial."""
ALONE = UnderWay()


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
    question: Question,
    evidence: Evidence,
    posterior: Posterior,
    cost: Cost | None = None,
    beside: UnderWay = ALONE,
) -> Choice | None:
    """The next position beside the trials under way; None when the answer stands or no trial could
    tell more."""
    cost = cost or Cost()
    lineage, running, belief = question.lineage, beside.positions, posterior.belief
    needed = _needed(question, evidence, posterior, cost, beside)
    if needed is not None or posterior.state is not State.SEARCHING or belief is None:
        return needed
    bad, doubted = lineage.bad, posterior.no_change > DOUBTED
    tested = question.tested(evidence)
    hidden = evidence.untestable - tested
    useful = tested - draws.spare(evidence.readings, bad)
    positions = worth_comparing(lineage, posterior, useful, frozenset(tested | hidden), cost.built)
    if running:
        marks = np.arange(1, 2 * beside.workers) / (2 * beside.workers)
        between = quantiles(lineage, posterior, marks, tested | hidden)
        positions = sorted({*positions, *between})
    share = shares(lineage, posterior, positions)
    predictions = belief.fit.predictions()
    gain = _gains(posterior, positions, share, predictions)
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
        equal = np.array([p != GOOD and bool(apart[p]) for p in positions])
        expected = np.where(equal, 0.0, repeats * located + (1 - repeats) * gain)
        gain = np.where(new, expected, gain)
    gain = gain * _beyond(lineage, posterior, positions, beside, repeats)
    chance = _testable(lineage, positions, tested, hidden)
    worth = gain * chance / np.array([cost.at(p) for p in positions])
    best = int(np.argmax(np.round(worth / max(worth.max(), 1e-300), 9)))
    if gain[best] < SMALLEST_GAIN:
        return None
    return Choice(positions[best], float(gain[best]))


def _needed(
    question: Question, evidence: Evidence, posterior: Posterior, cost: Cost, beside: UnderWay
) -> Choice | None:
    """Return the trial that is run whatever others would tell: of an end, of a commit that is named
    or its parents, and the first ones of several workers."""
    lineage, bad, running = question.lineage, question.lineage.bad, beside.positions
    places = [reading.position for reading in evidence.readings]
    for end, fewest in ((GOOD, FEWEST_GOOD), (bad, FEWEST_BAD)):
        if places.count(end) + running.count(end) < fewest:
            return Choice(end)
    if posterior.state is not State.SEARCHING:
        return None
    if posterior.belief is None:  # every reading is the same so far
        ends = [*places, *running]
        return Choice(GOOD if ends.count(GOOD) <= ends.count(bad) else bad)
    tested = question.tested(evidence)
    hidden = evidence.untestable - tested
    classes = inseparable(lineage, hidden)
    mass = np.bincount(classes, weights=posterior.probability)
    if mass.max() * (1 - posterior.no_change) >= question.confidence:
        members = np.flatnonzero(classes == int(np.argmax(mass)))
        # The culprit and its parents are always measured.
        for position in unconfirmed(lineage, members, hidden, tested):
            if question.at(position) not in running:
                return Choice(position)
    untouched = not {*places, *hidden, *cost.built} - {GOOD, bad}
    if beside.workers > 1 and untouched and posterior.no_change <= DOUBTED:
        mark = (len(running) + 1) / (beside.workers + 1)
        first = quantiles(lineage, posterior, [mark], tested | set(running))
        return Choice(first[0], SMALLEST_GAIN) if first else None
    return None


def useless(
    question: Question, evidence: Evidence, posterior: Posterior, cost: Cost, beside: UnderWay
) -> list[int]:
    """Return which trials under way, as indices into their positions, tell so little by now that
    the next choice should run in their place. None of an end, where the shift is not clear or where
    a start costs much."""
    lineage, places = question.lineage, beside.positions
    doubted = posterior.no_change > DOUBTED or posterior.state is not State.SEARCHING
    if posterior.belief is None or doubted or cost.build > CHEAP * cost.seconds:
        return []
    bits = _bits(posterior, draws.repeating(evidence.readings, lineage.bad))
    left, ended, r = list(range(len(places))), list[int](), likeness(bits)
    while inner := [i for i in left if bits >= CLEAR and places[i] not in (GOOD, lineage.bad)]:
        without = {
            i: cells(lineage, posterior, [places[j] for j in inner if j != i]) for i in inner
        }
        kept = {i: told(weight, bad, r) for i, (_, weight, bad) in without.items()}
        least = max(inner, key=kept.__getitem__)
        rest = UnderWay(tuple(places[i] for i in left if i != least), beside.workers)
        better = choose(question, evidence, posterior, cost, rest)
        if better is None:
            break
        group, weight, bad = without[least]
        both = [places[least], better.position]
        share = shares(lineage, posterior, both, group, len(weight))
        own, others = beyond(weight, bad, share, r)[0]
        if own >= USELESS * others:
            break
        ended.append(least)
        left.remove(least)
    return ended


def gains(
    lineage: Lineage, posterior: Posterior, positions: list[int], beside: UnderWay = ALONE
) -> Floats:
    """(P,) bits that one trial at each position tells about this answer beyond those under way; 0
    while the ends do not differ. What several metrics learn of one trial is compared by it."""
    if posterior.belief is None:
        return np.zeros(len(positions))
    share = shares(lineage, posterior, positions)
    gain = _gains(posterior, positions, share, posterior.belief.fit.predictions())
    return gain * _beyond(lineage, posterior, positions, beside)


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


def _beyond(
    lineage: Lineage,
    posterior: Posterior,
    positions: list[int],
    beside: UnderWay,
    repeats: float = 0.0,
) -> Floats:
    """(P,) the part of a trial's gain that the trials under way leave. At an end, and where only a
    level is to be learned, they count as so many readings more: of n readings the next one takes
    about 1/n² of the mean's variance."""
    belief = posterior.belief
    assert belief is not None
    if not beside.positions:
        return np.ones(len(positions))
    counts = dict(zip(belief.positions.tolist(), belief.counts.tolist(), strict=True))
    read = np.array([max(counts.get(p, 0), 1) for p in positions], dtype=float)
    left = (read / (read + [beside.positions.count(p) for p in positions])) ** 2
    inner = [p for p in beside.positions if p not in (GOOD, lineage.bad)]
    if inner:
        group, weight, bad = cells(lineage, posterior, inner)
        share = shares(lineage, posterior, positions, group, len(weight))
        r = likeness(_bits(posterior, repeats))
        more, alone = beyond(weight, bad, share, r)
        left = np.where(alone > NOTHING, more / np.maximum(alone, NOTHING), left)
    return np.asarray(left)


def _bits(posterior: Posterior, repeats: float) -> float:
    """Return what one trial at the median tells, levels integrated out, if it repeats the bits of
    another one with this chance."""
    belief = posterior.belief
    assert belief is not None
    if belief.exact:
        return 1.0
    good, bad, _, step = belief.fit.predictions()
    each = _entropy((good + bad) / 2) - (_entropy(good) + _entropy(bad)) / 2
    return float(repeats + (1 - repeats) * (belief.group @ each) * step / np.log(2))


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
