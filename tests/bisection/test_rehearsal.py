"""How much of an effect a revert takes back, and when that proves or refutes a name."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from celedger.judge.bisection.bisect_report import Rehearsal
from celedger.judge.bisection.rehearsal import share_restored
from celedger.judge.incident import MetricNoise

EFFECT = (0.4, 0.36, 0.44)
NOISE = MetricNoise("s", "t", "m", 0.02, 12, is_exact=False, session=0.0)
EXACT = MetricNoise("s", "t", "m", 0.0, 0, is_exact=True, session=0.0)
BAD = {0: 1.41, 1: 1.38, 2: 1.40}


def rehearsal(share: tuple[float, float, float]) -> Rehearsal:
    return Rehearsal("c", "b", *share)


def test_a_revert_that_brings_all_back_proves_the_name() -> None:
    done = rehearsal(share_restored(BAD, {0: 1.01, 1: 0.97, 2: 1.01}, EFFECT, NOISE))
    assert done.share == pytest.approx(1.0, abs=0.03)
    assert (done.restores, done.refutes) == (True, False)


def test_a_revert_that_brings_nothing_back_refutes_it() -> None:
    done = rehearsal(share_restored(BAD, {0: 1.40, 1: 1.39, 2: 1.41}, EFFECT, NOISE))
    assert (done.restores, done.refutes) == (False, True)


def test_half_of_it_is_neither() -> None:
    done = rehearsal(share_restored(BAD, {0: 1.20, 1: 1.18, 2: 1.19}, EFFECT, NOISE))
    assert (done.restores, done.refutes) == (False, False)


@pytest.mark.parametrize(
    ("share", "low", "high"),
    [
        ((-0.05, -0.65, 0.56), 0.08, 0.15),  # a busy machine: a comment was 48 % slower, 98 % sure
        ((0.45, 0.05, 0.85), 0.8, 0.975),
        ((0.9, 0.3, 1.5), 0.975, 0.975),  # the search was as sure as it may be
        ((math.nan, math.nan, math.nan), 0.975, 0.975),
    ],
)
def test_what_comes_back_may_leave_a_name_less_sure(
    share: tuple[float, float, float], low: float, high: float
) -> None:
    assert low <= rehearsal(share).believed(0.975) <= high


def test_equal_bits_need_one_seed_and_unknown_noise_three() -> None:
    assert share_restored({0: 1.4}, {0: 1.0}, (0.4, 0.4, 0.4), EXACT) == pytest.approx((1, 1, 1))
    assert math.isnan(share_restored({0: 1.4, 1: 1.4}, {0: 1.0, 1: 1.1}, EFFECT, None)[0])
    share, low, high = share_restored(BAD, {0: 1.0, 1: 0.98, 2: 1.02}, EFFECT, None)
    assert low < share < high


@pytest.mark.parametrize(
    ("bad", "reverted", "effect"),
    [({}, {0: 1.0}, EFFECT), ({0: 1.0}, {1: 1.0}, EFFECT), ({0: 1.0}, {0: math.inf}, EFFECT),
     ({0: 1.0}, {0: 1.0}, (0.0, 0.0, 0.0))],
)  # fmt: skip
def test_without_a_common_finite_value_nothing_is_told(
    bad: dict[int, float], reverted: dict[int, float], effect: tuple[float, float, float]
) -> None:
    assert math.isnan(share_restored(bad, reverted, effect, NOISE)[0])


@pytest.mark.parametrize("truth", [1.0, 0.6, 0.0])
def test_the_interval_holds_the_truth_in_95_of_100(truth: float) -> None:
    draw = random.Random(5)
    held = 0
    for _ in range(500):
        estimate = draw.gauss(0.4, 0.02)
        effect = (estimate, estimate - 0.04, estimate + 0.04)  # two standard errors
        bad = {seed: 1.4 + draw.gauss(0, 0.02) for seed in range(4)}
        back = {seed: 1.4 - 0.4 * truth + draw.gauss(0, 0.02) for seed in range(4)}
        _, low, high = share_restored(bad, back, effect, NOISE)
        held += low <= truth <= high
    assert 0.93 <= held / 500 <= 0.99
    assert statistics.fmean([low, high]) == pytest.approx(truth, abs=0.2)
