"""Steps beside the named commit: a further step before or after it, a commit between the ends that
is worse than both (which a search from end to end cannot find), and the effect of the named commit
itself.

Each side is a range of its own, with its own trials, and is searched like the whole range
(docs/statistics.md, "Bisects"). Runs nothing."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from celedger.base.model import Commit
from celedger.repo import History
from celedger.stats import Bools, firstbad
from celedger.stats.levels import difference
from celedger.stats.likelihood import FINEST
from celedger.stats.lineage import GOOD, Lineage
from celedger.stats.tails import t_quantile

NO_STEP_PRIOR = 0.8
"""Prior probability that a side of the named commit holds no further step: most regressions are
one commit's."""
NO_FALL_PRIOR = 0.95
"""The same for a step of the opposite sign: it hides a part of what was seen."""
OPEN = 0.15
"""Probability of a further step from which it is mentioned."""


@dataclass(frozen=True, slots=True)
class Rest:
    """A further step, at a commit that is not an ancestor of position `after` and is one of `by`,
    or `by` itself. `effect` is its size in the readings' unit, negative where it moves back a part
    of the whole difference between the ends; `low` and `high` bound it with the asked confidence;
    `share` is its part of that difference."""

    after: int
    by: int
    probability: float
    effect: float
    low: float
    high: float
    share: float


def part(history: History, after: int, by: int) -> History:
    """Return the range from one position to another."""
    lineage = Lineage(history.parents)
    inside = np.flatnonzero(lineage.ancestors(by) & ~lineage.ancestors(after)).tolist()
    parents, _ = _renumbered(lineage, inside)
    return History(history.at(after), tuple(history.commits[i] for i in inside), parents)


def rests(
    question: firstbad.Question, evidence: firstbad.Evidence, answer: firstbad.Posterior
) -> tuple[Rest, ...]:
    """Return the further steps that the sides of the leader may hold, oldest first. None for a
    crash, and where readings of an end are not finite."""
    lineage, leader = question.lineage, answer.leader
    if answer.belief is None or answer.belief.fit.rates:
        return ()
    readings = question.comparable(evidence.readings)
    ends = [[r.value for r in readings if r.position == p] for p in (GOOD, lineage.bad)]
    if not all(ends):
        return ()
    whole = statistics.mean(ends[1]) - statistics.mean(ends[0])
    if not (math.isfinite(whole) and whole > 0):
        return ()
    before = np.flatnonzero(lineage.ancestors(leader)).tolist()[:-1]
    after = [p for p, reached in enumerate(lineage.reach([leader])) if reached and p != leader]
    sides = [(GOOD, before), (leader, after)]
    steps = [_step(question, evidence, start, inside) for start, inside in sides if len(inside)]
    return tuple(replace(step, share=step.effect / whole) for step in steps if step is not None)


def _renumbered(
    lineage: Lineage, inside: Sequence[int]
) -> tuple[tuple[tuple[int, ...], ...], dict[int, int]]:
    """Return the parents of the positions `inside` among themselves, and their new numbers."""
    number = {p: i for i, p in enumerate(inside)}
    parents = (tuple(number[q] for q in lineage.parents[p] if q in number) for p in number)
    return tuple(parents), number


def _among(
    question: firstbad.Question,
    evidence: firstbad.Evidence,
    inside: Sequence[int],
    good: Sequence[int],
    none_prior: float,
) -> firstbad.Posterior:
    """Return the answer to the question among the positions `inside`; readings of the positions
    `good` are of its good end."""
    parents, number = _renumbered(question.lineage, inside)
    number |= dict.fromkeys(good, GOOD)
    part = firstbad.Question(
        Lineage(parents), question.confidence, question.noise,
        floor=question.floor, none_prior=none_prior, session=question.session,
    )  # fmt: skip
    readings = tuple(
        replace(reading, position=number[reading.position])
        for reading in evidence.readings
        if reading.position in number
    )
    return firstbad.posterior(part, firstbad.Evidence(readings))


def _step(
    question: firstbad.Question, evidence: firstbad.Evidence, start: int, inside: Sequence[int]
) -> Rest | None:
    """Return the likeliest step of either sign among the positions `inside`, of which `start` is
    the good end; its share left open."""
    falling = replace(
        evidence, readings=tuple(replace(r, value=-r.value) for r in evidence.readings)
    )
    answers = [
        (_among(question, seen, inside, [start], none_prior), sign)
        for seen, none_prior, sign in ((evidence, NO_STEP_PRIOR, 1), (falling, NO_FALL_PRIOR, -1))
    ]
    answer, sign = min(answers, key=lambda pair: pair[0].no_change)
    probability = 1 - answer.no_change
    if answer.belief is None or probability < OPEN or not answer.effect > 0:
        return None
    before = question.lineage.parents[inside[min(answer.candidates)]]
    after = max((p for p in before if p in inside), default=start)
    by = inside[max(answer.candidates)]
    low, high = sorted(sign * end for end in answer.effect_range[1:])
    return Rest(after, by, probability, sign * answer.effect, low, high, 0.0)


_TRIED = 3  # commits, the worst first


@dataclass(frozen=True, slots=True)
class Between:
    """A commit that is worse than both ends, and the mean values there, in the metric's unit."""

    commit: Commit
    value: float
    good: float
    bad: float


def worse_between(
    history: History,
    question: firstbad.Question,
    evidence: firstbad.Evidence,
    sign: int,
) -> Between | None:
    """Return a commit after GOOD that is surely worse than both ends, where these are alike.
    `sign` turns a reading, of which larger is worse, into the metric's value.

    Surely: as a bisect from GOOD to it would start from these trials. The ends' are taken
    together, and the chance of an error is shared by all commits that could have been chosen.
    """
    bad = question.lineage.bad
    values: dict[int, list[float]] = {}
    for reading in evidence.readings:
        values.setdefault(reading.position, []).append(reading.value)
    if question.binary or not {GOOD, bad} <= values.keys():
        return None
    means = {position: statistics.mean(these) for position, these in values.items()}
    after: set[int] = set()
    for position, commit in enumerate(history.commits):
        if history.good.sha in commit.parents or not after.isdisjoint(history.parents[position]):
            after.add(position)
    inside = sorted(means.keys() & after - {bad}, key=lambda p: (-means[p], p))
    for position in inside[:_TRIED]:
        if means[position] <= max(means[GOOD], means[bad]) + question.floor:
            break
        up_to = np.flatnonzero(question.lineage.ancestors(position)).tolist()
        ends = [GOOD, bad]
        none = _among(question, evidence, up_to, ends, firstbad.NONE_PRIOR).no_change
        if none <= (1 - question.confidence) / len(inside):
            at = [sign * means[p] for p in (position, GOOD, bad)]
            return Between(history.commits[position], *at)
    return None


Readings = list[firstbad.Reading]
FEWEST_SEEDS = 3
"""From which the spread between seeds says how sure their mean is: the 95 % quantile of Student's
t is 4.3 then, and 12.7 with two."""


def neighbours(
    question: firstbad.Question, evidence: firstbad.Evidence, leader: int, steps: Sequence[Rest]
) -> tuple[Readings, Readings]:
    """Return the readings just before and just after the leader: those that no further step parts
    from it."""
    lineage = question.lineage

    def descendants(position: int) -> Bools:
        return np.array(lineage.reach([position]), dtype=bool)

    before, after = lineage.ancestors(leader), descendants(leader)
    before, from_good = before & ~after, True
    for step in steps:
        if before[step.by]:
            before, from_good = before & descendants(step.by), False
        else:
            after = after & lineage.ancestors(step.after)
    good = [
        r for r in evidence.readings if (from_good if r.position == GOOD else before[r.position])
    ]
    bad = [r for r in evidence.readings if r.position != GOOD and after[r.position]]
    return good, bad


def effect_by_seed(
    good: Readings, bad: Readings, confidence: float, *, is_exact: bool
) -> tuple[float, float, float] | None:
    """Return the mean difference, bad - good, of the seeds that both groups have, and its interval
    by Student's t. Fewer than FEWEST_SEEDS tell no interval: it is NaN where values are exact, and
    None is returned where they are not."""
    sides: tuple[dict[int, list[float]], ...] = ({}, {})
    for side, group in zip(sides, (good, bad), strict=True):
        for reading in group:
            if reading.seed is not None and math.isfinite(reading.value):
                side.setdefault(reading.seed, []).append(reading.value)
    seeds = sorted(sides[0].keys() & sides[1].keys())
    differences = [statistics.mean(sides[1][s]) - statistics.mean(sides[0][s]) for s in seeds]
    few = len(seeds) < FEWEST_SEEDS
    if not seeds or (few and not is_exact) or not all(map(math.isfinite, differences)):
        return None
    mean = statistics.mean(differences)
    if few:
        return mean, math.nan, math.nan
    error = statistics.stdev(differences) / math.sqrt(len(seeds))
    width = t_quantile((1 + confidence) / 2, len(seeds) - 1) * error
    return mean, mean - width, mean + width


def clear_effect(
    good: Readings, bad: Readings, confidence: float
) -> tuple[float, float, float] | None:
    """Return the difference of two groups of readings, bad - good, and its interval by Student's t,
    where their noise is below what the model believes at least: a leak of so many bytes. None
    where it is not."""
    sides = [np.array([r.value for r in side if np.isfinite(r.value)]) for side in (good, bad)]
    freedom, fewest = sum(map(len, sides)) - 2, min(map(len, sides))
    if freedom < 1 or not fewest:
        return None
    effect, error = difference(*sides)
    noise = error / np.sqrt(sum(1 / len(side) for side in sides))
    if not 0 < FINEST * noise < abs(effect):  # coarse values show none
        return None
    reach = t_quantile((1 + confidence) / 2, freedom) * error
    return effect, effect - reach, effect + reach


def effect_between(
    question: firstbad.Question, answer: firstbad.Posterior, good: Readings, bad: Readings
) -> tuple[float, float, float]:
    """Return the difference of two groups of readings, bad - good, and its interval at the asked
    confidence. `answer` is to the whole range, whose readings tell the noise of one."""
    spread = answer.noise
    noise = question.noise
    if (noise is None or not noise.dof) and np.isfinite(spread):
        noise = firstbad.NoisePrior(spread, float(max(len(good) + len(bad) - 2, 1)))
    alone = firstbad.Question(Lineage(((),)), question.confidence, noise, session=question.session)
    readings = [
        firstbad.Reading(at, r.value, r.seed)
        for at, group in ((GOOD, good), (0, bad))
        for r in group
    ]
    local = firstbad.posterior(alone, firstbad.Evidence(tuple(readings)))
    return local.effect_range
