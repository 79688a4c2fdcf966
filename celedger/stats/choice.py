"""Choose the next commit to measure: the one whose trial tells most about the first bad commit per
second of cost. Pure: reads a question, its evidence and their posterior; measures nothing.

The gain of a trial is the mutual information, in bits, between its value and the answer (which
group of commits, or that nothing changed), with levels and noise integrated out. Only positions
that divide the posterior differently are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from celedger.stats import Floats, Ints, seed_choice
from celedger.stats.firstbad import (
    FEWEST_BAD,
    FEWEST_GOOD,
    MOST_SPARED,
    Evidence,
    Phase,
    Posterior,
    Question,
    equal_pairs,
    inseparable,
)
from celedger.stats.lineage import GOOD, Lineage, unpack
from celedger.stats.seed_choice import binary, entropy
from celedger.stats.worlds import EXACT, FREE

SAMPLES = 1024
"""On a history with merges at most so many candidates, spread evenly over the posterior, stand
for all when positions are compared."""
MARKS = 32
"""Positions that divide the posterior most evenly are compared, so many."""


def _sampled(lineage: Lineage, posterior: Posterior) -> tuple[Ints, Floats, list[int]]:
    """Return candidates standing for all, their weights, and for every position which of them make
    it bad."""
    n = len(lineage)
    if n <= SAMPLES:
        members = np.flatnonzero(posterior.probability > 0)
        weight = posterior.probability[members]
    else:
        cumulated = np.cumsum(posterior.probability)
        marks = (np.arange(SAMPLES) + 0.5) / SAMPLES * cumulated[-1]
        members = np.searchsorted(cumulated, marks)  # a likely candidate has many samples
        weight = np.ones(SAMPLES)
    return members, weight, lineage.reach([int(m) for m in members])


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
        members, weight, masks = _sampled(lineage, posterior)
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
        _, weight, masks = _sampled(lineage, posterior)
        parts = (masks[at : at + SAMPLES] for at in range(0, len(masks), SAMPLES))
        reached = [unpack(part, len(weight)) @ weight for part in parts]
        chance = np.concatenate(reached) / weight.sum()
    shut = shut | {lineage.bad}
    chance[[p for p in shut if p != GOOD]] = np.inf
    if not np.isfinite(chance).any():
        return []
    return sorted({int(np.argmin(np.abs(chance - mark))) for mark in marks})


# --- trials under way

NOTHING = 1e-9
"""Bits that are rounding."""


@dataclass(frozen=True)
class UnderWay:
    """The trials that run beside the next one."""

    positions: tuple[int, ...] = ()
    """One for each trial."""
    workers: int = 1
    """So many run at once."""


# --- the choice

DOUBTED = 0.3
"""Probability of "nothing changed" beyond which a trial is chosen for what it tells of that alone:
the evidence then speaks for it (NONE_PRIOR), and where a change is not even likely its place is not
worth a trial. Such trials go to the ends, which differ most."""
UNSETTLED = 0.5
"""Probability of the exact world from which its own rules hold."""
SMALLEST_GAIN = 1e-5
"""Bits below which a trial is not worth running: more of the same tells nothing."""
ASSUMED_SHIFT, SURE_SHIFT, NO_SHIFT = 2.0, 8.0, 1e-6
"""Shifts in sd: what is expected before anything was read, where one reading decides, and where no
number of them does."""
CONFIRMING = 4.0
"""Readings to be sure of the last neighbours, in units of log odds over d²/2."""
NAMED_ANYWAY = 0.5
"""Probability that a commit is named, or a parent of that, from which its trial is not stopped: a
stopped one takes half of a whole one, about."""
ALONE = UnderWay()


@dataclass(frozen=True)
class Cost:
    """The cost of a trial: seconds per trial, plus the build of a commit that is not built."""

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
    """Expected information in bits; 0 where the whole trial is wanted: at an end of the range, and
    of a commit that is named or its parent."""
    seed: int | None = None
    """None for any that no trial of the commit has."""

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
    """Return the next position beside the trials under way; None when the answer stands or no trial
    could tell more."""
    cost = cost or Cost()
    needed = _needed(question, evidence, posterior, cost, beside)
    if needed is not None or posterior.state is not Phase.SEARCHING or posterior.belief is None:
        return needed
    positions, seeds, gain, rate = _alone(question, evidence, posterior, cost, beside)
    if beside.positions:
        gain = gain * _left(question, posterior, positions, beside.positions)[:, None]
    worth = gain * rate[:, None]
    best = int(np.argmax(np.round(worth / max(worth.max(), 1e-300), 9)))
    row, column = divmod(best, gain.shape[1])
    if gain[row, column] < SMALLEST_GAIN:
        return None
    position, bits = positions[row], float(gain[row, column])
    # A commit that is likely named, or a parent of one, needs a whole trial in the end.
    parents = question.lineage.parents
    likely = [p for p in posterior.candidates if p == position or position in parents[p]]
    if posterior.probability[likely].sum() >= NAMED_ANYWAY:
        bits = 0.0
    return Choice(position, bits, seeds[column])


def _alone(
    question: Question, evidence: Evidence, posterior: Posterior, cost: Cost, beside: UnderWay
) -> tuple[list[int], list[int | None], Floats, Floats]:
    """Return the P positions and the S seeds that are compared; (P, S) bits of a trial if no other
    one runs; and (P,) the chance to get them per second of cost."""
    lineage, belief = question.lineage, posterior.belief
    assert belief is not None
    bad, doubted = lineage.bad, posterior.no_change > DOUBTED
    if belief.world[FREE] < UNSETTLED:  # only pairs at the ends tell whether anything changed
        doubted = posterior.no_change > min(DOUBTED, 1 - float(posterior.probability.max()))
    tested, hidden = question.tested(evidence), question.hidden(evidence)
    # Where another position has the same bits, that one stands for it; unless one change may have
    # spared the seeds that repeat.
    exact = belief.worlds.exact
    spares = belief.world[EXACT] > UNSETTLED and exact is not None and exact.steps is None
    stands = belief.table.alone or not spares
    useful = tested - {p for p, n in belief.table.readings.items() if not n and stands}
    useful -= evidence.spent - {GOOD, bad}
    built = {p for p in cost.built if p <= bad and p not in tested | hidden}
    marks = (np.arange(MARKS) + 0.5) / MARKS
    between = quantiles(lineage, posterior, marks, tested | hidden)
    positions = sorted({*useful, *built, *between})
    share = shares(lineage, posterior, positions)
    predictions = belief.fit.predictions(belief.group)
    gain = _gains(posterior, positions, share, predictions)
    if doubted:
        of_change = _gains(posterior, positions, share, predictions, of_change=True)
        of_change *= [p in (GOOD, bad) for p in positions]
        gain = of_change if of_change.max() >= SMALLEST_GAIN else gain
    seeds, by_seed, located = seed_choice.weigh_seeds(posterior, positions, share, gain)
    if doubted:
        by_seed = _of_doubt(posterior, positions, seeds, located, gain)
    chance = _testable(positions, tested, hidden)
    return positions, seeds, by_seed, chance / np.array([cost.at(p) for p in positions])


def _of_doubt(
    posterior: Posterior,
    positions: list[int],
    seeds: list[int | None],
    located: Floats,
    of_change: Floats,
) -> Floats:
    """(P, S) bits of the trials that are chosen while "nothing changed" is not unlikely: halving
    while bits may repeat, for one trial shows it; else seeds at both ends, which the answer needs
    wherever the change is."""
    belief = posterior.belief
    assert belief is not None
    world = belief.world
    places = np.where([seed in belief.table.telling_seeds[:1] for seed in seeds], located, 0.0)
    suspected = seed_choice.SUSPECTED < world[EXACT] <= UNSETTLED
    if suspected and places.max() > seed_choice.WORTH_HALVING:
        return places
    paired = 1 - world[FREE] > world[FREE]
    lacking = seed_choice.lacking_partner(belief) if paired else None
    result = np.zeros_like(located)
    if lacking is not None and lacking[0] in positions and lacking[1] in seeds:
        result[positions.index(lacking[0]), seeds.index(lacking[1])] = 1.0
    elif paired:
        result[positions.index(GOOD), -1] = 1.0
    else:
        result[:, -1] = of_change
    return result


def _needed(
    question: Question, evidence: Evidence, posterior: Posterior, cost: Cost, beside: UnderWay
) -> Choice | None:
    """Return the trial that is run whatever others would tell: of an end, of a commit that is named
    or its parents, and the first ones of several workers."""
    lineage, bad, running = question.lineage, question.lineage.bad, beside.positions
    readings = question.comparable(evidence.readings)
    places = [reading.position for reading in readings]
    lacking = question.lacking_ends(readings, running)
    if lacking and question.session is None:
        return Choice(lacking[0])
    if posterior.state is not Phase.SEARCHING:
        return None
    belief = posterior.belief
    exact = belief is not None and not belief.table.alone and belief.world[EXACT] > UNSETTLED
    unsettled = exact and not running and 0 < equal_pairs(evidence, bad) < MOST_SPARED
    if belief is not None and unsettled:
        at, seed = seed_choice.lacking_partner(belief) or (GOOD, None)
        return Choice(at, seed=seed)
    if posterior.belief is None:  # every reading is the same so far
        ends = [*places, *running]
        return Choice(GOOD if ends.count(GOOD) <= ends.count(bad) else bad)
    tested, hidden = question.tested(evidence), question.hidden(evidence)
    classes = inseparable(lineage, hidden)
    mass = np.bincount(classes, weights=posterior.probability)
    if mass.max() * (1 - posterior.no_change) >= question.confidence:
        members = np.flatnonzero(classes == int(np.argmax(mass)))
        # The culprit and its parents are always measured, with seeds of their levels.
        missing, seed = question.lacking(evidence, members, posterior.belief.confirming_seeds)
        if seed is None:
            seed = next(iter(posterior.belief.table.telling_seeds), None)
        unconfirmed = posterior.belief.unconfirmed(lineage.around(members))
        for position, seed in [(at, seed) for at in missing] or unconfirmed:
            if question.at(position) not in running:
                return Choice(position, seed=seed)
        if running.count(posterior.leader) < question.unproven:
            return Choice(posterior.leader)
    if lacking:  # what other sessions measured compares through the ends
        return Choice(lacking[0])
    untouched = not {*places, *hidden, *cost.built} - {GOOD, bad}
    if beside.workers > 1 and untouched and posterior.no_change <= DOUBTED:
        mark = (len(running) + 1) / (beside.workers + 1)
        first = quantiles(lineage, posterior, [mark], tested | set(running))
        by_seed = posterior.belief.world[FREE] < UNSETTLED
        seeds = posterior.belief.table.telling_seeds if by_seed else []
        return Choice(first[0], SMALLEST_GAIN, *seeds[:1]) if first else None
    return None


def gains(
    question: Question, posterior: Posterior, positions: list[int], beside: UnderWay = ALONE
) -> Floats:
    """(P,) bits that one trial at each position tells about this answer beyond those under way; 0
    while the ends do not differ. What several metrics learn of one trial is compared by it."""
    belief = posterior.belief
    if belief is None:
        return np.zeros(len(positions))
    share = shares(question.lineage, posterior, positions)
    gain = _gains(posterior, positions, share, belief.fit.predictions(belief.group))
    gain = np.asarray(seed_choice.weigh_seeds(posterior, positions, share, gain)[1].max(axis=1))
    if beside.positions:
        gain = gain * _left(question, posterior, positions, beside.positions)
    return gain


def expected_trials(question: Question, evidence: Evidence, posterior: Posterior) -> float:
    """Trials still needed, on average, at the levels and the noise believed now.

    Uncertainty left over the capacity of the channel, plus what it takes to be sure of the last
    two neighbours: fitted to benchmarks/bisect_simulator.py, within a third from 0.5 to 8 sd.
    Before the ends are read a shift of ASSUMED_SHIFT sd stands in. inf where nothing is left to
    tell good from bad.
    """
    if posterior.state is not Phase.SEARCHING:
        return 0.0
    places = [reading.position for reading in question.comparable(evidence.readings)]
    ends = max(FEWEST_GOOD - places.count(GOOD), 0)
    ends += max(FEWEST_BAD - places.count(question.lineage.bad), 0)
    hidden = question.hidden(evidence)
    mass = np.bincount(inseparable(question.lineage, hidden), weights=posterior.probability)
    bits = float(entropy(np.asarray(mass, dtype=np.float64))) / np.log(2)
    odds = np.log(question.confidence / (1 - question.confidence))
    belief = posterior.belief
    exact = belief is not None and belief.world[EXACT] > UNSETTLED  # bits tell the place
    sure = mass.max() * (1 - posterior.no_change)
    # Of places that all were read the levels alone tell which it is, and whether any is.
    is_read = question.tested(evidence).issuperset(posterior.candidates)
    missing = odds - np.log(max(sure, 1e-300) / max(1 - sure, 1e-300))
    if belief is None or not np.isfinite(posterior.noise):
        shift = SURE_SHIFT if belief is not None or question.binary else ASSUMED_SHIFT
    elif exact and mass.max() < question.confidence and not is_read:
        shift = SURE_SHIFT
    else:  # of exact values whether the level changed, if nothing else is in doubt
        shift = posterior.effect / max(posterior.noise, 1e-300)
    if not shift > NO_SHIFT:
        return float(np.inf)
    shift = min(shift, SURE_SHIFT)
    last = CONFIRMING * 2 / shift**2 * min(max(missing, 0.0), odds)
    return float(ends + max(bits / capacity(SURE_SHIFT if exact else shift) + last, 1.0))


def capacity(shift: float) -> float:
    """Bits one reading tells, levels `shift` sd of normal noise apart and equally likely."""
    x = np.linspace(-8, 8 + shift, 512)
    good, bad = (np.exp(-0.5 * (x - level) ** 2) / np.sqrt(2 * np.pi) for level in (0, shift))
    information = entropy((good + bad) / 2) - (entropy(good) + entropy(bad)) / 2
    return float(information * (x[1] - x[0]) / np.log(2))


def _left(
    question: Question, posterior: Posterior, positions: list[int], running: Sequence[int]
) -> Floats:
    """(P,) the part of a trial's gain that those under way leave. They cut the candidates into
    cells; as far as they tell the cell, only what parts that cell is left to tell. At an end, and
    where only a level is to be learned, they count as so many readings more: of n readings the next
    one takes about 1/n² of the mean's variance."""
    lineage, belief = question.lineage, posterior.belief
    assert belief is not None
    read = np.array([max(belief.table.readings.get(p, 0), 1) for p in positions], dtype=float)
    beside = np.array([running.count(p) for p in positions])
    again: Floats = (read / (read + beside)) ** 2
    inner = [p for p in running if p not in (GOOD, lineage.bad)]
    if not inner:
        return again
    cuts = sorted(set(inner))
    split = lineage.split(cuts)
    weight = np.bincount(split.group, posterior.probability, len(split.bad)).astype(float)
    share = shares(lineage, posterior, positions, split.group, len(weight))
    alone, within = binary(share @ weight), binary(share) @ weight
    each = min(_bits(posterior, float(belief.world[EXACT])), 1.0)
    settled = 1 - (1 - each) ** (len(inner) / len(cuts))
    left = 1 - settled + settled * within / np.maximum(alone, NOTHING)
    return np.where(alone > NOTHING, left, again)


def _bits(posterior: Posterior, repeats: float) -> float:
    """Return what one trial at the median tells, levels integrated out, if it repeats the bits of
    another one with this chance."""
    belief = posterior.belief
    assert belief is not None
    if belief.table.alone:
        return 1.0
    good, bad, _, step = belief.fit.predictions(belief.group)
    each = entropy((good + bad) / 2) - (entropy(good) + entropy(bad)) / 2
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
        inner = (1 - none) * entropy(changed) + none * entropy(same)
    else:
        inner = is_bad @ entropy(bad) + is_good @ entropy(good)
        inner = (1 - none) * inner + none * entropy(same)
    gain = (entropy(mixed) - inner) * step / np.log(2)
    m = np.array([belief.table.readings.get(p, 0) for p in positions], dtype=float)
    if belief.table.alone:
        return np.where(m > 0, 0.0, gain)
    # d/dm of the independent trials that m repeats are worth
    common = belief.fit.common(belief.group)
    return np.asarray(gain / (1 + m * common) ** 2)


def _testable(positions: list[int], tested: set[int], hidden: frozenset[int]) -> Floats:
    """(P,) chance that a commit can be tested: neighbours of broken commits are often broken, and
    more so the more of them are broken with none between that runs."""
    if not hidden:
        return np.ones(len(positions))
    broken, places = np.array(sorted(hidden)), np.array(positions)
    distance = np.abs(broken - places[:, None])
    nearest = distance.min(axis=1)
    stretch = np.searchsorted(sorted(tested), broken)
    near = np.bincount(stretch)[stretch[distance.argmin(axis=1)]]
    near = np.maximum(near, (distance <= 8 * nearest[:, None]).sum(axis=1))
    return np.where(np.isin(places, list(tested)), 1.0, nearest / (nearest + 0.5 * near))
