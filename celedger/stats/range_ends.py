"""Is the bad end of a range worse than its good end? The question with which a bisect begins, asked
of the two ends as of a range of one commit. What is worse over time is decided in `incidents.py`;
this must not know of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from statistics import fmean

from celedger.stats.firstbad import NONE_PRIOR, Evidence, Question, Reading, posterior
from celedger.stats.lineage import GOOD, Lineage
from celedger.stats.noise import NoisePrior, Trials


@dataclass(frozen=True, slots=True)
class EndsQuestion:
    """One metric of one task at both ends; larger is worse. `floor` is the smallest change worth
    naming, in the values' unit; `noise` what the ledger knows."""

    good: Trials
    bad: Trials
    floor: float
    noise: NoisePrior | None


def not_worse(question: EndsQuestion, metrics: int) -> float:
    """Return the probability that BAD is not worse, where it is asked because one of so many
    metrics may be: of a dozen one always looks worse. 0 where BAD alone is not finite."""
    good = [(seed, value) for seed, value in question.good if isfinite(value)]
    if not all(isfinite(value) for _, value in question.bad):
        return 0.0
    if not good:
        return 1.0
    ends = ((GOOD, good), (0, question.bad))
    readings = [Reading(at, value, seed) for at, end in ends for seed, value in end]
    asked = Question(
        Lineage(((),)), noise=question.noise, floor=question.floor,
        none_prior=1 - (1 - NONE_PRIOR) / metrics,
    )  # fmt: skip
    return posterior(asked, Evidence(tuple(readings))).no_change


def is_better(question: EndsQuestion, confidence: float) -> bool:
    """Return True if BAD is surely better. It is not where it seems worse: the posterior of two or
    three readings that lie hundreds of standard deviations apart is rough."""
    if fmean(v for _, v in question.bad) >= fmean(v for _, v in question.good):
        return False
    good, bad = ([(seed, -value) for seed, value in end] for end in (question.good, question.bad))
    if not all(isfinite(value) for _, value in (*good, *bad)):
        return False
    return not_worse(EndsQuestion(good, bad, 0.0, question.noise), 1) <= 1 - confidence
