"""Is the bad end of a range worse than its good end? The question with which a bisect begins.

A metric that repeats exactly is compared exactly. Else a t-test on the noise of the ledger, with
means that one outlier cannot move, under one budget over all metrics that are compared: of a dozen
one always looks worse. What is worse over time is decided in `incidents.py`; this must not know of
it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from celedger.base.model import Floor
from celedger.stats.arrays import Floats
from celedger.stats.noise import Noise, Trials, collapse, fine, pool, smallest_change
from celedger.stats.tails import t_quantile, t_test

ALPHA = 0.025
"""Chance of a false answer, over the metrics of a comparison."""
BLIND = 20.0
"""A test that could not tell a change of 20 noise sds tells nothing: undecided, not the same."""
UNSETTLED = 5
"""Not told, but a budget so many times larger (that of one metric at most) would have: undecided,
in at most one comparison of eight in which nothing changed."""
ROUNDING = 1e-12
"""Relative difference that another order of additions makes, where a training forgets it. One
that amplifies rounding ends elsewhere: then the difference is noise, and far larger."""
CLIP = 2.0
"""Noise sds beyond the middle value at which a single value's pull on a mean ends."""
HEAVY_DOF = 3.0
"""Degrees of freedom, at most, for one value on its own: nothing but a second trial shows that it
is no outlier."""
LONE_DOF = 1.0
"""The same for the only value of the good end."""
CONFIDENCE = 0.95


class EndVerdict(StrEnum):
    SAME = "same"
    WORSE = "worse"
    BETTER = "better"
    UNDECIDED = "undecided"
    TOO_NOISY = "too-noisy"
    NOT_FINITE = "not-finite"


@dataclass(frozen=True, slots=True)
class EndsQuestion:
    """One metric of one task at both ends. `sign` is +1 where larger is worse, -1 where larger is
    better; `noise` is what the ledger knows (pooled from these values when None)."""

    bad: Trials
    good: Trials
    sign: int
    floor: Floor
    noise: Noise | None


@dataclass(frozen=True, slots=True)
class EndsAnswer:
    """`effect` = bad - good, in the metric's unit."""

    verdict: EndVerdict
    effect: float = math.nan
    p_value: float = math.nan


@dataclass(frozen=True, slots=True)
class _Tested:
    """A question after its test and before the budget: larger is worse."""

    level: float
    effect: float
    half: float  # width of the 95 % interval of the effect
    p_value: float
    noise: Noise
    sizes: tuple[int, int]  # trials of the bad end, of the good end


def compare_ends(questions: Sequence[EndsQuestion]) -> list[EndsAnswer]:
    """Return the answers, under one budget."""
    tested = [_test(question) for question in questions]
    metrics = max(sum(isinstance(case, _Tested) for case in tested), 1)
    return [
        _conclude(case, question, metrics) if isinstance(case, _Tested) else case
        for case, question in zip(tested, questions, strict=True)
    ]


def _test(question: EndsQuestion) -> EndsAnswer | _Tested:
    bad, good = (
        [(seed, question.sign * value) for seed, value in end]
        for end in (question.bad, question.good)
    )
    if not all(math.isfinite(value) for _, value in bad):
        return EndsAnswer(EndVerdict.NOT_FINITE)
    good = [(seed, value) for seed, value in good if math.isfinite(value)]
    if not good:
        return EndsAnswer(EndVerdict.UNDECIDED)
    noise = question.noise
    if noise is None or not noise.known:
        noise = _own_noise(bad, good)
    exact = _exact(bad, good, noise, question)
    if exact is not None:
        return exact
    if noise.deterministic:
        if noise.exact:  # its repeats disagree here: it is exact no more
            noise = replace(_own_noise(bad, good), deterministic=False)
        else:
            bad, good = (list(collapse([end])[0]) for end in (bad, good))
    values = [np.array([value for _, value in end]) for end in (bad, good)]
    return _weigh(values[0], values[1], noise)


def _own_noise(bad: Trials, good: Trials) -> Noise:
    """Return the noise as these values show it: repeats of the bad end count, the step to it does
    not."""
    return replace(pool([good] if len(bad) == 1 else [good, bad]), between=0.0)


def _exact(bad: Trials, good: Trials, noise: Noise, question: EndsQuestion) -> EndsAnswer | None:
    """Return the answer that needs no statistics: equal seed for seed, or different where any
    difference is real. None where neither holds."""
    if not noise.deterministic and not all(fine(value) for _, value in bad):
        return None  # values may agree by chance
    sign, own, last = question.sign, dict(bad), dict(good)  # the newest value of each seed
    if len(set(bad)) > len(own):
        return None  # repeats of a seed differ
    common = sorted(own.keys() & last.keys())
    tolerance = 0.0 if noise.exact else ROUNDING
    equal = bool(common) and all(
        math.isclose(own[s], last[s], rel_tol=tolerance, abs_tol=0.0) for s in common
    )
    if not noise.exact and not (equal and 2 * len(common) >= len(own)):
        return None
    if not common:  # an exact metric does not depend on the seed as far as anyone has seen
        common, last = sorted(own), dict.fromkeys(own, float(np.mean([value for _, value in good])))
    if equal:
        return EndsAnswer(EndVerdict.SAME, 0.0, 1.0)
    level = float(np.mean([last[s] for s in common])) * sign
    effect = float(np.mean([own[s] for s in common])) * sign - level
    if effect == 0 or abs(effect) < question.floor.at(level):
        return EndsAnswer(EndVerdict.SAME, effect, 0.0)
    verdict = EndVerdict.WORSE if effect * sign > 0 else EndVerdict.BETTER
    return EndsAnswer(verdict, effect, 0.0)


def _weigh(bad: Floats, good: Floats, noise: Noise) -> _Tested:
    """Return the evidence against "nothing changed" in the values of the bad end."""
    sd = noise.sd if noise.known else math.nan
    level = robust_mean(good, math.hypot(sd, noise.between))
    effect = robust_mean(bad, sd, toward=level) - level
    sizes = bad.size, good.size
    half = p_value = math.nan
    if noise.known:
        of_trials = noise.sd**2 * (1 / sizes[0] + 1 / sizes[1])
        error = math.sqrt(of_trials + 2 * noise.between**2)
        half = t_quantile(0.5 + CONFIDENCE / 2, min(noise.dof, 1e6)) * error
        # One value carries a side by itself.
        alone = min(sizes) == 1 or noise.between > 0
        heavy = HEAVY_DOF if sizes[1] > 1 else LONE_DOF
        p_value = t_test(effect, error, min(noise.dof, heavy) if alone else noise.dof)
    return _Tested(level, effect, half, p_value, noise, sizes)


def _conclude(case: _Tested, question: EndsQuestion, metrics: int) -> EndsAnswer:
    """Return the answer from the test, its part of the budget and the floor."""
    answer = EndsAnswer(EndVerdict.UNDECIDED, case.effect * question.sign, case.p_value)
    changed = case.p_value <= ALPHA / metrics
    if not math.isfinite(case.p_value):
        return answer
    floor = question.floor.at(case.level)
    small = abs(case.effect) < floor
    if changed and small:
        return replace(answer, verdict=EndVerdict.SAME)
    if changed:
        verdict = EndVerdict.WORSE if case.effect > 0 else EndVerdict.BETTER
        return replace(answer, verdict=verdict)
    confidence = 1 - 2 * ALPHA / metrics
    smallest = smallest_change(case.noise, *case.sizes, confidence)
    if smallest > BLIND * math.hypot(case.noise.sd, case.noise.between):
        return answer
    # At a budget a few times larger the test would have told the ends apart; or an interval of
    # twice the half-width, since nothing here is held to the budget, excludes the floor.
    almost = case.p_value <= ALPHA * min(1.0, UNSETTLED / metrics)
    beyond = abs(case.effect) - 3 * case.half / 2 > floor
    if (almost or beyond) and not small:
        return answer
    hides = smallest > question.floor.visible_at(case.level)
    return replace(answer, verdict=EndVerdict.TOO_NOISY if hides else EndVerdict.SAME)


def robust_mean(values: Floats, sd: float, toward: float | None = None) -> float:
    """Return the mean, where a value's pull ends `CLIP` sds beyond the middle one. With an even
    number of values the middle is the one of the two nearer to `toward`: doubt favours no
    change."""
    if values.size == 1 or not math.isfinite(sd):
        return float(values.mean())
    ordered = np.sort(values)
    low, high = float(ordered[(values.size - 1) // 2]), float(ordered[values.size // 2])
    if low == high or toward is None:
        middle = (low + high) / 2
    else:
        middle = low if abs(low - toward) < abs(high - toward) else high
    return float(np.clip(values, middle - CLIP * sd, middle + CLIP * sd).mean())
