"""Which commit is the first bad one: a posterior over the candidates of a range, from noisy
readings. Arrays in, frozen dataclasses out: no clock, no randomness, no git; the same readings
in any order give the same answer.

`worse is larger` everywhere. A reading that is not finite counts as worst by rank and never as
a number: where the bad end itself is not finite the question is whether a commit's readings
are, otherwise such a reading is worth the worst finite one.

Also whether a metric got worse gradually, over several commits, rather than at one or two of them:
three models of the same readings, by least squares. Every model is level + shift x h(position),
with normal noise: h is 0 before the change and 1 after it. One step has nothing between, two have a
share of the shift there, a slope rises from one mark to another by steps at random places: evenly,
and astray as a Brownian bridge. Level, shift and noise have flat priors and are integrated out;
they are the same in all models, so their units cancel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from math import isfinite

import numpy as np

from celedger.stats import Bools, Floats, Ints, levels
from celedger.stats.levels import SURE, Fit, fit, fit_rates
from celedger.stats.likelihood import FAR
from celedger.stats.likelihood import NoisePrior as NoisePrior
from celedger.stats.lineage import GOOD, Lineage, Split, unpack
from celedger.stats.tails import t_test
from celedger.stats.worlds import (
    EXACT,
    PAIRED,
    Table,
    Worlds,
    failures,
    of_sessions,
    tabulate,
    weigh,
    without_sessions,
)
from celedger.stats.worlds import Reading as Reading

PRIOR = {"one": 0.85, "two": 0.1, "slope": 0.05}
"""Of the models: most regressions are one commit's."""
MARKS = 24
"""Places on a range where a slope may begin or end, denser where more was tested."""
NARROWEST = 4
"""Commits of a slope at least: fewer are told as steps."""
RISE = 6.0
"""Steps at random places that a slope is made of: how far it strays from an even rise."""
MOST_SPREAD = 1e4
"""Of a shift, squared, over the noise's variance."""
SHARES = np.linspace(0.1, 0.9, 9)
"""Of the shift that the first of two steps may make."""
FINEST = 1e-6
"""Noise that is believed at least, in ranges of the readings."""


@dataclass(frozen=True)
class Slope:
    """A change that began after one position and ended at another."""

    probability: float
    """That it is gradual."""
    after: int
    by: int


def slope(
    positions: Ints, values: Floats, groups: Ints, prior: Floats, confidence: float
) -> Slope | None:
    """Return the interval that holds a slope with the asked confidence, if there is one; None where
    too few positions were tested to tell.

    Args:
        positions: (R,) of the readings, -1 for the good end.
        values: (R,) larger is worse.
        groups: (R,) readings that share a level: all, or those of one seed.
        prior: (n,) of the candidates.
    """
    n = len(prior)
    tested, site = np.unique(positions, return_inverse=True)
    values = values / max(float(np.abs(values).max(initial=0.0)), 5e-324)
    if len(tested) < 4 or np.ptp(values) == 0:
        return None
    marks = np.union1d(tested, np.linspace(-1, n - 1, min(MARKS, n)).round().astype(np.int64))
    marks = marks[np.linspace(0, len(marks) - 1, min(MARKS, len(marks))).round().astype(np.int64)]
    begin, end = np.triu_indices(len(marks), 1)
    wide = marks[end] - marks[begin] >= NARROWEST
    if not wide.any():
        return None
    around = np.gradient(marks.astype(float))  # commits for which a mark stands
    begin, end = begin[wide], end[wide]
    near, outer = around[begin] * around[end], (around[begin] / 2, around[end] / 2)
    begin, end = marks[begin], marks[end]
    rise = np.clip((tested - begin[:, None]) / (end - begin)[:, None], 0.0, 1.0)
    below = np.concatenate(([0.0], np.cumsum(prior / prior.sum())))
    cell = np.diff(below[tested + 1])  # between tested positions
    step = (tested >= tested[1:, None]).astype(float)
    first, second = np.triu_indices(len(cell), 1)
    pair = cell[first] * cell[second]
    two = SHARES[:, None, None] * step[first] + (1 - SHARES[:, None, None]) * step[second]
    sums = _Sums.of(site, values, groups)
    logs = {
        "one": sums.evidence(step, cell),
        "two": sums.evidence(two.reshape(-1, len(tested)), np.tile(pair, len(SHARES))),
        "slope": sums.evidence(rise, near, RISE),
    }
    logs = {name: np.log(PRIOR[name]) + log for name, log in logs.items()}
    top = max(float(log.max(initial=-np.inf)) for log in logs.values())
    if not np.isfinite(top):
        return None
    mass = {name: np.exp(log - top) for name, log in logs.items()}
    total, sloping = sum(float(part.sum()) for part in mass.values()), float(mass["slope"].sum())
    if not sloping:
        return None
    share, tail = mass["slope"] / sloping, (1 - confidence) / 2
    after = _quantile(begin - outer[0], share, tail)
    by = -_quantile(-end - outer[1], share, tail)
    return Slope(sloping / total, max(after, -1), min(by, n - 1))


@dataclass(frozen=True)
class _Sums:
    """Sums over readings, each less the mean of its group."""

    within: Floats
    """(T, T) of products of the positions' indicators"""
    along: Floats
    """(T,) of values"""
    square: float
    """of squared values"""
    freedom: int
    least: float
    """A sum of squares that is believed at least"""

    @classmethod
    def of(cls, site: Ints, values: Floats, groups: Ints) -> _Sums:
        table = np.zeros((int(site.max()) + 1, int(groups.max()) + 1))
        np.add.at(table, (site, groups), 1.0)
        sizes, counts = table.sum(axis=0), table.sum(axis=1)
        x = values - (np.bincount(groups, values) / sizes)[groups]
        least = len(values) * (FINEST * np.ptp(values)) ** 2
        return cls(
            np.diag(counts) - (table / sizes) @ table.T,
            np.bincount(site, x).astype(np.float64), float(x @ x),
            len(values) - len(sizes) - 1, least,
        )  # fmt: skip

    def evidence(self, shape: Floats, weight: Floats, steps: float = np.inf) -> Floats:
        """(K,) log of the prior `weight` of each shape (K, T) and of its evidence, up to a constant
        that all share. It is the mean of so many `steps` at random places."""
        moved = shape @ self.within
        across, along = (moved * shape).sum(axis=1), shape @ self.along
        log, size, rest = self._integrated(across, along, np.full(len(shape), self.square))
        if np.isfinite(steps):  # their share of the shift strays as a bridge does
            bridge = np.minimum(shape[:, :, None], shape[:, None])
            bridge -= shape[:, :, None] * shape[:, None]
            variance = np.minimum(size**2 * self.freedom / rest, MOST_SPREAD) / steps
            bridge *= variance[:, None, None]
            whole = np.eye(len(self.along)) + self.within @ bridge
            both = np.stack([np.broadcast_to(self.along, moved.shape), moved], axis=-1)
            of_values, of_shape = np.moveaxis(bridge @ np.linalg.solve(whole, both), -1, 0)
            log, _, _ = self._integrated(
                across - (moved * of_shape).sum(axis=1), along - (moved * of_values).sum(axis=1),
                self.square - of_values @ self.along,
            )  # fmt: skip
            log -= 0.5 * np.linalg.slogdet(whole)[1]
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(weight / max(float(weight.sum()), 1e-300)) + log)

    def _integrated(
        self, across: Floats, along: Floats, square: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """(K,) log evidence with shift and noise integrated out, the shift, and what it leaves."""
        size = along / np.maximum(across, 1e-12)
        rest = np.maximum(square - size * along, 0.0) + self.least
        log = -0.5 * np.log(np.maximum(across, 1e-12)) - 0.5 * self.freedom * np.log(rest)
        return np.where((along > 0) & (across > 1e-9), log, -np.inf), size, rest


def _quantile(at: Floats, share: Floats, part: float) -> int:
    order = np.argsort(at, kind="stable")
    return int(np.floor(at[order][np.searchsorted(np.cumsum(share[order]), part)]))


# --- the posterior

CONTRADICTING = 1e-4
"""p-value of the ends' own difference below which "nothing changed" is not said: of ends that are
alike one pair in ten thousand then costs a few more trials."""
NONE_PRIOR = 0.3
"""Prior probability that nothing changed: who bisects has seen a difference, but of noisy readings.
Two ends with 10 readings each and no difference need a median of 54 more at this prior before
nothing changed is believed at 95 % (100 at 0.2, 390 at 0.05), which is then said wrongly of a
shift of half a sd in 3.6 % (0.9 and 0 %), of one of 1 sd in less than 0.1 %."""
BETTER_PRIOR = 0.02
"""Prior probability that the bad end is the better one: weighed where its readings are."""
FLAKY_CONFIDENCE = 0.85
"""What a crash's answer must have if bad commits crash only now and then: with 64 commits a crash
that comes three times in ten is then laid on another commit in 5 % (7 % at 0), and a sure one takes
10.4 trials (8.9 at 0)."""
GRADUAL = 0.9
"""Probability of a slope from which it is told in place of a search for one commit."""
MOST_RANGES = FAR
"""The ledger's noise and the floor count as at most so many ranges of the readings, and the noise
as at least one in so many."""
MOST_SPARED = 6
"""Seeds that are tried at both ends before nothing is said to have changed because none differs,
unless so many repeats of other commits did not depend on theirs. That is .9 sure: a change may
spare them all (equal_seeds.UNTOUCHED), and .95 would take 13."""
SHARED = 3
"""Seeds that a named commit, and its parent, share with others of their levels, or as many as there
are changes of bits if fewer. Of changes that spare half of the seeds one in 8 spares three."""
HALVED = 2
"""So many trials beyond those that halve a stretch presume that none of its commits can be tested.
Of scattered ones, three in ten, the five for a stretch of eight all fail one time in 400."""
FEWEST_GOOD, FEWEST_BAD = 2, 1
"""Readings at the ends before anything else is asked."""


def comparable(readings: Sequence[Reading], session: int | None) -> list[Reading]:
    """Return the readings of a session; all of them for None, where sessions have no effect."""
    return [reading for reading in readings if session in (None, reading.seed)]


@dataclass(frozen=True)
class Question:
    """The question of a bisect: a range, a confidence, and what is known beforehand."""

    lineage: Lineage
    confidence: float = 0.95
    noise: NoisePrior | None = None
    prior: Sequence[float] | None = None
    """A weight for every candidate, None for equal ones."""
    binary: bool = False
    """Values are 0 (ran) or 1 (crashed); how often either lies is learned."""
    asked: int = FEWEST_BAD
    """So many crashes of the bad end are why somebody asks, and so no evidence of their rate."""
    sure: float = SURE
    """Prior probability that a bad commit always fails, by what its failures have in common."""
    unproven: int = 0
    """So many failures more of the leader would prove that a bad commit always fails."""
    selected: tuple[int, int] = (0, 0)
    """So many readings of GOOD and BAD were seen to differ (levels.selected) before anybody
    asked; those that fresh seeds confirmed since do not count."""
    none_prior: float = NONE_PRIOR
    """Prior probability that nothing changed."""
    floor: float = 0.0
    """The smallest shift worth naming, in the values' unit."""
    place: Sequence[int] | None = None
    """Where the readings of each candidate are put: those that cannot differ share a place."""
    session: int | None = None
    """That of the next trial, where the trials of a session share an effect: the readings' seeds
    then are sessions."""

    def comparable(self, readings: Sequence[Reading]) -> list[Reading]:
        """Return the readings that compare with that of the next trial, as they are."""
        return comparable(readings, self.session)

    def lacking_ends(self, readings: Sequence[Reading], running: Sequence[int] = ()) -> list[int]:
        """Return the ends that these readings and trials at the `running` positions leave without
        the fewest that are asked."""
        places = [*(reading.position for reading in readings), *running]
        fewest = ((GOOD, FEWEST_GOOD), (self.lineage.bad, FEWEST_BAD))
        return [end for end, number in fewest if places.count(end) < number]

    def lacking(
        self, evidence: Evidence, members: Ints, seeds: Sequence[int] = ()
    ) -> tuple[list[int], int | None]:
        """Return what must still be measured, by the next trials, before `members` may be named:
        themselves and their parents, in one session; and with one of the `seeds`, if there are any,
        whose bits are not equal at all of them: that of which least is lacking."""
        wanted = self.lineage.around(members) - self.hidden(evidence)
        missing: list[tuple[list[int], int | None]] = []
        for seed in seeds or (None,):
            bits = {
                r.position: r.value if r.draw is None else r.draw
                for r in self.comparable(evidence.readings)
                if seed in (None, r.seed)
            }
            read = {p: bits.get(p, bits.get(self.at(p))) for p in wanted}
            lacks = sorted(p for p in wanted if read[p] is None)
            if lacks or seed is None or len({*read.values()}) > 1:
                missing.append((lacks, seed))
        return min(missing, key=lambda each: len(each[0]), default=([], None))

    def tested(self, evidence: Evidence) -> set[int]:
        """Return the positions with a reading, their own or of one that cannot differ."""
        places = {reading.position for reading in evidence.readings}
        return places | {p for p, at in enumerate(self.place or ()) if at in places}

    def hidden(self, evidence: Evidence) -> frozenset[int]:
        """Return the positions that no trial can read: untestable ones, and all that share a place
        with one."""
        closed = evidence.untestable
        alike = {p for p, at in enumerate(self.place or ()) if at in closed}
        return (closed | alike) - self.tested(evidence)

    def at(self, position: int) -> int:
        """Return where the readings of a position are put."""
        return position if position == GOOD or self.place is None else self.place[position]


@dataclass(frozen=True)
class Evidence:
    """The evidence so far."""

    readings: tuple[Reading, ...] = ()
    untestable: frozenset[int] = frozenset()
    spent: frozenset[int] = frozenset()
    """Positions of which no other seed tells anything."""


class Phase(Enum):
    """Where a bisect stands."""

    SEARCHING = "searching"
    FOUND = "found"
    SET = "set"
    """Only commits that cannot be tested separate what is left."""
    NOTHING_CHANGED = "nothing-changed"
    GRADUAL = "gradual"
    """Several commits in a row each moved the level a little."""


@dataclass(frozen=True)
class Belief:
    """What `choice` needs of the computation behind a posterior."""

    split: Split
    group: Floats
    """(G,) probability of each group given a change"""
    table: Table
    worlds: Worlds
    world: Floats
    """(3,) probability of each world"""
    located: Floats
    """(G,) probability of each group given a change and the exact world"""

    @property
    def fit(self) -> Fit:
        return self.worlds.fit

    @property
    def is_exact(self) -> bool:
        """A value is more likely than not a function of code and seed."""
        return bool(self.world[EXACT] > 0.5)

    @property
    def confirming_seeds(self) -> list[int]:
        """Return the seeds one of which a named commit and its parents must share: if values are
        exact, one seed may have changed at another commit than the next."""
        return self.table.telling_seeds if self.is_exact else []

    def unconfirmed(self, positions: Iterable[int]) -> list[tuple[int, int]]:
        """Return positions and seeds to read before a step between `positions` is named: one commit
        may spare the seeds that place these on their levels."""
        bits, exact, known = self.table.bits, self.worlds.exact, np.array(self.table.known)
        if not self.is_exact or bits is None or exact is None or exact.steps is None:
            return []
        has, trials = (bits.present @ bits.of_seed > 0) & (known >= 0), list[tuple[int, int]]()
        fewest = min(SHARED, int(exact.steps.level.max()))
        for row in np.flatnonzero(np.isin(self.table.positions, list(positions))):
            level = np.flatnonzero(exact.steps.level == exact.steps.level[row])
            far = level[np.argmax(np.abs(level - row))]
            others = has[level[level != row]].any(axis=0)
            for at, lacking in ((row, others & ~has[row]), (far, has[row] & ~others)):
                if far != row and lacking.any() and (has[row] & others).sum() < fewest:
                    trials.append((int(self.table.positions[at]), int(known[lacking].min())))
        return trials


@dataclass(frozen=True)
class Posterior:
    """The answer so far."""

    probability: Floats
    """(n,) probability of each candidate, given that something changed."""
    no_change: float
    """Probability that nothing (above the floor) changed."""
    leader: int
    candidates: tuple[int, ...]
    """The smallest credible set at the asked confidence, oldest first."""
    confidence: float
    """The one asked."""
    state: Phase
    belief: Belief | None = field(default=None, repr=False, compare=False)
    gradual: float = 0.0
    """Probability that the candidates moved the level together, where that is the answer."""
    within: float = 0.0
    """Of `no_change`, the probability of a change within the floor."""

    @property
    def effect(self) -> float:
        """Bad level - good level, in the values' unit (a rate of failures where binary), nan
        while every reading is the same."""
        return self.effect_range[0]

    @property
    def by_seed(self) -> bool:
        """Return True if equal seeds more likely than not show the change side by side."""
        return self.belief is not None and bool(self.belief.world[[PAIRED, EXACT]].sum() > 0.5)

    @property
    def is_exact(self) -> bool:
        """A value is more likely than not a function of code and seed."""
        return self.belief is not None and self.belief.is_exact

    @cached_property
    def noise(self) -> float:
        """Standard deviation of one trial; nan where binary."""
        if self.belief is None or self.belief.fit.rates:
            return float(np.nan)
        return self.belief.fit.spread(self.belief.group)

    @cached_property
    def effect_range(self) -> tuple[float, float, float]:
        """The effect and the ends of its interval."""
        if self.belief is None:
            return float(np.nan), float(np.nan), float(np.nan)
        return self.belief.fit.effect(self.belief.group, self.confidence)


def posterior(question: Question, evidence: Evidence, like: Posterior | None = None) -> Posterior:
    """Return what the evidence says of every candidate. `like` is a posterior of the same evidence
    for a question that differs in its prior alone: most of the work is then done.

    Where nothing proves that a bad commit always crashes, an answer must also hold at
    FLAKY_CONFIDENCE if it does not; until it does, the posterior is that of such commits, unless
    more crashes of the leader would prove it.

    Cost: see benchmarks/bisect_simulator.py.
    """
    answer = _posterior(question, evidence, like, question.sure)
    named = answer.state in (Phase.FOUND, Phase.SET)
    belief = answer.belief
    rates = belief is not None and belief.fit.rates
    if named and rates and (question.sure == SURE or question.unproven):
        flaky = _posterior(question, evidence, None, 0.0)
        certain = flaky.probability[list(answer.candidates)].sum() * (1 - flaky.no_change)
        if certain < FLAKY_CONFIDENCE:
            return replace(answer if question.unproven else flaky, state=Phase.SEARCHING)
    rise = _slope(question, evidence, answer) if answer.state is not Phase.NOTHING_CHANGED else None
    if rise is not None and rise.probability >= GRADUAL:
        candidates = tuple(range(rise.after + 1, rise.by + 1))
        return replace(answer, state=Phase.GRADUAL, candidates=candidates, gradual=rise.probability)
    return answer


def only_floor_doubted(question: Question, answer: Posterior) -> bool:
    """Return True if something changed for sure, and only its size keeps a search from its end."""
    doubt = 1 - question.confidence
    sure = answer.no_change - answer.within <= doubt < answer.within
    return sure and question.floor > 0 and answer.state is Phase.SEARCHING


def _slope(question: Question, evidence: Evidence, answer: Posterior) -> Slope | None:
    """Return where a line of commits rises gradually. Where seeds share noise, equal ones tell it;
    where bits repeat, the largest step is asked for instead."""
    belief, lineage = answer.belief, question.lineage
    if belief is None or belief.fit.rates or not lineage.linear or answer.no_change > NONE_PRIOR:
        return None
    if answer.is_exact:
        return None
    rows = [(r.position, r.value, r.seed) for r in evidence.readings if isfinite(r.value)]
    group = {seed: 0 for _, _, seed in rows}
    if belief.world[PAIRED] > 0.5 or question.session is not None:
        seeds = Counter(seed for _, _, seed in rows)
        rows = [row for row in rows if seeds[row[2]] > 1]
        group = {seed: i for i, seed in enumerate(dict.fromkeys(seed for _, _, seed in rows))}
    prior = np.ones(len(lineage)) if question.prior is None else np.asarray(question.prior)
    positions, values = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
    groups = np.array([group[seed] for _, _, seed in rows])
    return slope(positions, values, groups, prior, question.confidence)


def _posterior(
    question: Question, evidence: Evidence, like: Posterior | None, sure: float
) -> Posterior:
    lineage = question.lineage
    n = len(lineage)
    prior = np.ones(n) if question.prior is None else np.asarray(question.prior, dtype=float)
    prior = prior / prior.sum()

    table, binary = _table(question, evidence)
    if table is None:
        return _answer(question, evidence, prior, question.none_prior, None)
    if table.constant:
        # Not one reading differs: half the doubt with every further one.
        none = 1.0 - 0.1 * 0.5 ** (table.constant - 2)
        return _answer(question, evidence, prior, none, None)

    known = None if like is None else like.belief
    split = known.split if known else lineage.split([int(p) for p in table.positions])
    group_prior = np.bincount(split.group, prior, len(split.bad)).astype(np.float64)
    with np.errstate(divide="ignore"):
        log_prior = np.log(group_prior)
    read = split.bad[:, table.counts > 0]
    floor = min(question.floor / table.unit, MOST_RANGES)
    if table.shared is not None:
        table = without_sessions(table, read, log_prior, question.selected)
    if known:
        explained = known.worlds
    else:
        fitted = _fit(question, table, read, log_prior, sure if binary else None)
        order = split.bad[split.group[table.positions]] | (table.positions == GOOD)[:, None]
        explained = weigh(table, split.bad, fitted, log_prior, floor, question.selected, order)
    changes, smalls, nones = explained.evidence(question.none_prior)
    of_world = np.logaddexp.reduce(log_prior + changes, axis=1)
    log_change = np.logaddexp.reduce(log_prior + changes, axis=0)
    change = np.logaddexp.reduce(log_change)
    small = np.logaddexp.reduce((log_prior + smalls).ravel())
    none = np.logaddexp(np.logaddexp.reduce((log_prior + nones).ravel()), small)
    if table.sites.falls:  # the opposite of what was asked is no change for the worse
        other = replace(table, sites=table.sites.swapped())
        turned = _fit(question, other, ~read, log_prior, sure if binary else None)
        reverse = weigh(other, ~split.bad, turned, log_prior, 0.0, question.selected, None)
        falls, *_ = reverse.evidence(question.none_prior)
        better = np.logaddexp.reduce((log_prior + falls[:EXACT]).ravel())
        none = np.logaddexp(none, better + np.log(BETTER_PRIOR))
    no_change = float(np.exp(none - np.logaddexp(change, none)))
    # Where no split explains the readings as a change, the prior is left.
    group = group_prior if change == -np.inf else np.exp(log_change - change)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(group_prior > 0, group / group_prior, 0.0)
    probability = prior * share[split.group]
    probability /= probability.sum()
    unchanged = np.logaddexp(smalls, nones)
    every = np.logaddexp(of_world, np.logaddexp.reduce(log_prior + unchanged, axis=1))
    world = np.exp(every - np.logaddexp.reduce(every))
    belief = Belief(
        split, group, table, explained, world,
        np.asarray(np.exp(log_prior + changes[EXACT] - max(of_world[EXACT], -1e300))),
    )  # fmt: skip
    within = float(np.exp(small - np.logaddexp(change, none)))
    return replace(_answer(question, evidence, probability, no_change, belief), within=within)


def _fit(
    question: Question, table: Table, bad: Bools, log_prior: Floats, sure: float | None
) -> Fit:
    if sure is not None:
        return fit_rates(table.sites, bad, question.asked, sure)
    noise, unit = question.noise or NoisePrior(0.0, 0.0), table.unit
    if noise.sd > 0:
        noise = NoisePrior(min(max(noise.sd / unit, 1 / MOST_RANGES), MOST_RANGES), noise.dof)
    floor = min(question.floor / unit, MOST_RANGES)
    fitted = fit(
        table.sites, bad, log_prior, noise=noise, resolution=table.resolution, floor=floor,
        selected=question.selected,
    )  # fmt: skip
    if table.shared is not None:
        fitted = of_sessions(fitted, table, bad, log_prior, floor, question.selected)
    return replace(fitted, unit=unit)


def _table(question: Question, evidence: Evidence) -> tuple[Table | None, bool]:
    """Return the readings as arrays, and whether they say only what failed."""
    bad, readings = question.lineage.bad, evidence.readings
    at_bad = [r.value for r in readings if r.position == bad]
    broken = sum(not isfinite(value) for value in at_bad)
    if question.binary or 2 * broken > len(at_bad):
        return failures(readings, bad, crashed=question.binary), True
    known = question.noise is not None and question.noise.dof > 0
    exact = question.noise.sd == 0 if known and question.noise is not None else None
    if question.session is not None:  # a value may repeat in its session alone
        return tabulate(readings, bad, exact=False, by_session=True), False
    return tabulate(readings, bad, exact=exact), False


def _answer(
    question: Question, evidence: Evidence, probability: Floats, no_change: float,
    belief: Belief | None,
) -> Posterior:  # fmt: skip
    """Name the leader, the credible set and the state."""
    hidden = question.hidden(evidence)
    classes = inseparable(question.lineage, hidden)
    mass = np.bincount(classes, weights=probability)
    order = np.argsort(-mass, kind="stable")
    needed = int(np.searchsorted(np.cumsum(mass[order]), question.confidence - 1e-12)) + 1
    chosen = np.isin(classes, order[:needed]) & (probability > 0)
    candidates = tuple(int(i) for i in np.flatnonzero(chosen))
    first = np.flatnonzero(classes == order[0])
    leader = int(first[::-1][np.argmax(probability[first][::-1])])

    bad, by_session = question.lineage.bad, _of_each_session(question, evidence)
    enough = not question.lacking_ends(evidence.readings)
    compared = any(not each.lacking_ends(each.comparable(evidence.readings)) for each in by_session)
    state, seeds = Phase.SEARCHING, belief.confirming_seeds if belief else []
    noise = question.noise
    alone = noise is not None and noise.sd == 0 and noise.dof >= MOST_SPARED
    pairs = 0 if question.session is not None else equal_pairs(evidence, bad)
    doubted = _ends_differ(question, evidence) or (
        not (question.binary or alone) and 0 < pairs < MOST_SPARED
    )
    all_alike = pairs >= MOST_SPARED and belief is not None and belief.is_exact
    if compared and not doubted and (no_change >= question.confidence or all_alike):
        state = Phase.NOTHING_CHANGED
    elif (
        enough
        and mass[order[0]] * (1 - no_change) >= question.confidence
        and not all(each.lacking(evidence, first, seeds)[0] for each in by_session)
        and not (belief and belief.unconfirmed(question.lineage.around(first)))
    ):
        # Of commits that no trial can part the prior may leave only one.
        alone = probability[leader] * (1 - no_change) >= question.confidence
        state = Phase.FOUND if alone else Phase.SET
        candidates = (leader,) if alone else tuple(int(i) for i in first if probability[i] > 0)
    return Posterior(probability, no_change, leader, candidates, question.confidence, state, belief)


def _of_each_session(question: Question, evidence: Evidence) -> list[Question]:
    """Return the question as of each session that has readings."""
    if question.session is None:
        return [question]
    sessions = dict.fromkeys(reading.seed for reading in evidence.readings)
    return [replace(question, session=session) for session in sessions]


def equal_pairs(evidence: Evidence, bad: int) -> int:
    """Return how many seeds both ends have, if all of them repeat there; else 0."""
    at: dict[int, dict[int, set[object]]] = {GOOD: {}, bad: {}}
    for r in evidence.readings:
        if r.position in at and r.seed is not None:
            at[r.position].setdefault(r.seed, set()).add(r.value if r.draw is None else r.draw)
    pairs = [at[GOOD][seed] == at[bad][seed] for seed in at[GOOD].keys() & at[bad].keys()]
    return len(pairs) if all(pairs) else 0


def _ends_differ(question: Question, evidence: Evidence) -> bool:
    """Return True if repeats at the ends contradict that nothing changed, whatever lies between: a
    range of three levels looks to two sides as if its noise were as large as its steps."""
    readings = question.comparable(evidence.readings)
    values = [
        np.array([r.value for r in readings if r.position == end and isfinite(r.value)])
        for end in (GOOD, question.lineage.bad)
    ]
    if question.binary or min(map(len, values)) < 2:
        return False
    step, error = levels.difference(*values)
    dof = sum(map(len, values)) - 2
    return step > question.floor and t_test(step, error, dof) < CONTRADICTING


def inseparable(lineage: Lineage, untestable: frozenset[int]) -> Ints:
    """(n,) class of each candidate: members of a class make the same testable commits bad.

    An untestable commit is seen only through its children: where all of them descend from the
    first (a branch and the merge that ends it), through that one alone."""
    n = len(lineage)
    if not untestable:
        return np.arange(n)
    if lineage.linear:
        testable = np.ones(n, dtype=bool)
        testable[[p for p in untestable if p != GOOD]] = False
        testable[n - 1] = True
        return np.asarray(np.cumsum(testable[::-1])[::-1].max() - np.cumsum(testable[::-1])[::-1])
    children: list[list[int]] = [[] for _ in range(n)]
    for position, parents in enumerate(lineage.parents):
        for parent in parents:
            children[parent].append(position)
    numbers: dict[frozenset[int], int] = {}
    classes = np.zeros(n, dtype=np.int64)
    for position in range(n - 1, -1, -1):
        key = frozenset({-1 - position})  # a class of its own
        if position in untestable and children[position]:
            first, *others = children[position]
            key = frozenset(int(classes[child]) for child in children[position])
            if len(key) == 1 or all(lineage.descends(other, first) for other in others):
                classes[position] = classes[first]
                continue
        classes[position] = numbers.setdefault(key, len(numbers))
    return classes


def presumed(
    lineage: Lineage, endings: Mapping[int, str], tested: Collection[int]
) -> frozenset[int]:
    """Return the positions between commits that cannot be tested and all ended alike, if those are
    so many that halving the stretch would have met one that runs. `endings`: how they did."""
    failed, runs = sorted(endings), np.zeros(len(lineage), dtype=bool)
    runs[[p for p in tested if p != GOOD]] = True
    below, closed = unpack(lineage.reach(failed), len(failed)), np.zeros_like(runs)
    for last in failed:
        above = lineage.ancestors(last)
        for i in range(failed.index(last) + 1):
            inside = above & below[:, i]
            tries = [ending for p, ending in endings.items() if inside[p]]
            enough = len(tries) >= HALVED + np.log2(max(inside.sum(), 1))
            if enough and len({*tries}) == 1 and not (inside & runs).any():
                closed |= inside
    return frozenset(np.flatnonzero(closed).tolist()) - endings.keys()
