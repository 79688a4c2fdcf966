"""Which variant of a grid is the best: how often that is claimed of equals, and of what differs."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from celedger.base.model import Direction, Kind, Metric
from celedger.judge.incident import MetricNoise
from celedger.judge.variants import ERROR, lead

LOSS = Metric("loss", direction=Direction.LOWER)
TIME = Metric("step_time", "s", Direction.LOWER, Kind.SPEED)


def trials(metric: Metric, values: list[float]) -> Any:
    """Return trials with the seeds 0, 1, …"""
    return [
        SimpleNamespace(
            trial=SimpleNamespace(seed=seed), summaries={metric.name: value}, derived=None,
            may_be_judged=lambda _: True,
        )
        for seed, value in enumerate(values)
    ]  # fmt: skip


def grid(draw: Random, levels: list[float], seeds: int) -> list[Any]:
    """Return variants whose seeds share half of their variance."""
    shared = [draw.gauss(0, 0.01) for _ in range(seeds)]
    return [trials(LOSS, [at + s + draw.gauss(0, 0.01) for s in shared]) for at in levels]


@pytest.mark.parametrize(("variants", "seeds"), [(2, 2), (2, 5), (4, 3), (8, 3)])
def test_equals_are_seldom_told_apart(variants: int, seeds: int) -> None:
    draw = Random(100 * variants + seeds)
    claims = 0
    for _ in range(1000):
        own = lead(LOSS, grid(draw, [1.0] * variants, seeds), [None] * variants)
        assert own is not None
        claims += not own.close
    assert claims <= 1000 * ERROR + 3 * (1000 * ERROR * (1 - ERROR)) ** 0.5


def test_a_variant_that_is_clearly_better_is_named() -> None:
    draw = Random(7)
    leads = [lead(LOSS, grid(draw, [1.0, 0.9, 1.0, 1.1], 3), [None] * 4) for _ in range(200)]
    assert all(own is not None and own.best == 1 for own in leads)
    assert sum(own is not None and not own.close for own in leads) > 150
    two_best = lead(LOSS, grid(draw, [1.0, 0.9, 0.9, 1.1], 5), [None] * 4)
    assert two_best is not None
    assert {two_best.best, *two_best.close} == {1, 2}


def test_one_seed_or_one_variant_tells_nothing() -> None:
    one_seed = lead(LOSS, [trials(LOSS, [1.0]), trials(LOSS, [0.5])], [None] * 2)
    assert one_seed is not None
    assert (one_seed.best, one_seed.close, one_seed.change) == (1, (0,), -0.5)
    assert lead(LOSS, [trials(LOSS, [1.0]), trials(LOSS, [float("nan")])], [None] * 2) is None


def test_rounded_differences_that_agree_are_no_proof() -> None:
    rounded = [trials(LOSS, [0.93, 0.95]), trials(LOSS, [0.92, 0.94])]
    own = lead(LOSS, rounded, [None] * 2)
    assert own is not None and own.close == (0,)


def test_speed_is_told_by_the_noise_of_sessions() -> None:
    """A variant that ran while the machine was busy is slower at every seed."""
    both = [trials(TIME, [1.20, 1.21, 1.19]), trials(TIME, [1.00, 1.01, 0.99])]
    noisy = MetricNoise("s", "t", "step_time", 0.01, 20, False, 20.0)
    calm = MetricNoise("s", "t", "step_time", 0.01, 20, False, 0.5)
    for noises, close in (([None, None], (0,)), ([noisy, noisy], (0,)), ([calm, calm], ())):
        own = lead(TIME, both, noises)
        assert own is not None and own.close == close
