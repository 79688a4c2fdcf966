"""Improvements that are looked for again and again: when does a chain of tries hold a real one?

A person edits, asks, edits and asks again, and stops when the answer is "better". Of twenty edits
that change nothing one looks better at 5 %. So the evidence that is asked for grows with the number
of the try, such that all claims of a chain together, however long it gets, are wrong with at most
ERROR.
"""

from __future__ import annotations

import math

from celedger.stats.tails import t_tail

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
