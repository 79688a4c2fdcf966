"""How far the named commit itself moved a metric, where other commits of the range moved it, too.

Runs nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from celedger.judge.bisection.other_steps import Rest
from celedger.stats import firstbad
from celedger.stats.arrays import Bools
from celedger.stats.lineage import GOOD, Lineage
from celedger.stats.tails import t_quantile

Readings = list[firstbad.Reading]
FEWEST_SEEDS = 3
"""From which the spread between seeds says how sure their mean is: the 95 % quantile of Student's
t is 4.3 then, and 12.7 with two."""


def neighbours(
    question: firstbad.Question,
    evidence: firstbad.Evidence,
    leader: int,
    steps: Sequence[Rest],
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
    good: Readings, bad: Readings, confidence: float
) -> tuple[float, float, float] | None:
    """Return the mean difference, bad - good, of the seeds that both groups have, and its interval
    by Student's t; None for fewer than FEWEST_SEEDS."""
    sides: tuple[dict[int, list[float]], ...] = ({}, {})
    for side, group in zip(sides, (good, bad), strict=True):
        for reading in group:
            if reading.seed is not None and np.isfinite(reading.value):
                side.setdefault(reading.seed, []).append(reading.value)
    seeds = sorted(sides[0].keys() & sides[1].keys())
    if len(seeds) < FEWEST_SEEDS:
        return None
    differences = [float(np.mean(sides[1][s]) - np.mean(sides[0][s])) for s in seeds]
    mean, error = float(np.mean(differences)), float(np.std(differences, ddof=1))
    width = t_quantile((1 + confidence) / 2, len(seeds) - 1) * error / math.sqrt(len(seeds))
    return mean, mean - width, mean + width


def effect_between(
    question: firstbad.Question, answer: firstbad.Posterior, good: Readings, bad: Readings
) -> tuple[float, float, float]:
    """Return the difference of two groups of readings, bad - good, and its interval at the asked
    confidence. `answer` is to the whole range, whose readings tell the noise of one."""
    spread = answer.noise
    noise = question.noise
    if (noise is None or not noise.dof) and np.isfinite(spread):
        noise = firstbad.NoisePrior(spread, float(max(len(good) + len(bad) - 2, 1)))
    alone = firstbad.Question(Lineage(((),)), question.confidence, noise)
    readings = [
        firstbad.Reading(at, r.value, r.seed)
        for at, group in ((GOOD, good), (0, bad))
        for r in group
    ]
    local = firstbad.posterior(alone, firstbad.Evidence(tuple(readings)))
    return local.effect, local.effect_low, local.effect_high
