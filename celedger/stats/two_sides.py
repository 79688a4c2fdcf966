"""Decide whether one of two sides is worse, or better: the two ends of a range, with which a bisect
begins, or an edit beside its commit.

A person edits, asks, edits and asks again, and stops when the answer is "better". Of twenty edits
that change nothing one looks better at 5 %. So the evidence that a claim needs grows with the
number of the try: all claims of a chain of tries together are wrong with at most ERROR.
`incidents.py` decides what is worse over time; this must not know of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from math import isfinite
from statistics import fmean

from celedger.stats.firstbad import NONE_PRIOR, Evidence, Question, Reading, posterior
from celedger.stats.likelihood import NoisePrior, Trials
from celedger.stats.lineage import GOOD, Lineage
from celedger.stats.tails import t_tail


@dataclass(frozen=True, slots=True)
class EndsQuestion:
    """One metric of one task at both ends; larger is worse. `floor` is the smallest change worth
    naming, in the values' unit; `noise` what the ledger knows. With `by_session` the seeds are
    sessions, whose trials share an effect."""

    good: Trials
    bad: Trials
    floor: float
    noise: NoisePrior | None
    by_session: bool = False


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
        none_prior=1 - (1 - NONE_PRIOR) / metrics, session=-1 if question.by_session else None,
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
    return not_worse(replace(question, good=good, bad=bad, floor=0.0), 1) <= 1 - confidence


ERROR = 0.05
"""Probability that a chain of null edits ever holds a claim, over all its tries and metrics."""
SPREAD = 4.0
"""Standard deviation of real effects, in those of a trial: the middle of the sizes, 1.5 to 10, by
which the model of histories was measured. It decides which effects are seen soonest, never how
often a claim is wrong."""


def evidence(effect: float, variance: float, sd: float, freedom: float) -> float:
    """Return the Bayes factor of a positive effect against none.

    Under no effect, or a negative one, its expectation is at most 1, whatever the noise is.

    Args:
        effect: Difference of two means; positive is better.
        variance: Variance of such a difference over that of a trial: 1/a + 1/b for a and b trials.
        sd: Standard deviation of a trial, from repeats that are not among these trials.
        freedom: Degrees of freedom of `sd`.

    The effect over the noise's standard deviation is half-normal with SPREAD, and the latter has
    the right Haar prior 1/sd; then the factor depends on effect/sd alone and is exact for every sd
    (Jeffreys, Theory of Probability, 5.2; Perez-Ortiz et al., Annals of Statistics 52 (2024)). With
    x = effect/sd, v = variance, w = v + SPREAD^2 and f = freedom it is
    2 P(effect > 0 | x) sqrt(v/w) ((f + x^2/v) / (f + x^2/w))^((f + 1)/2).
    """
    if sd <= 0 or freedom <= 0 or not math.isfinite(effect):
        return 0.0
    x, v, f = effect / sd, variance, freedom
    w = v + SPREAD**2
    ratio = (f + x * x / v) / (f + x * x / w)
    # The posterior of the effect is Student's t around x SPREAD^2/w, in standard deviations.
    scale = math.sqrt((f + x * x / w) / (f + 1) * v * SPREAD**2 / w)
    tail = t_tail(abs(x) * SPREAD**2 / w / scale, f + 1)
    is_positive = 1 - tail if x > 0 else tail
    return 2 * is_positive * math.sqrt(v / w) * math.exp((f + 1) / 2 * math.log(ratio))


def needed(number: int, metrics: int) -> float:
    """Return the evidence that a claim needs at a try (from 1) that looks at some metrics.

    By Markov's inequality a null claim passes c with probability 1/c at most; over metrics and
    tries these sum to ERROR, since 1/(k (k + 1)) sums to 1.
    """
    return number * (number + 1) * metrics / ERROR
