"""The pooled noise of a metric: right on simulated values, and exact where values repeat."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from celedger.stats import likelihood as noises
from celedger.stats.likelihood import NoisePrior

RNG_SEED = 20240
Values = Sequence[Sequence[float]] | NDArray[np.float64]


def pool(commits: Values, seeds: Sequence[Sequence[int]] | None = None) -> NoisePrior:
    """Pool values by commit; the seeds are 0, 1, 2 … at each where they are not given."""
    labels = seeds or [range(len(values)) for values in commits]
    pairs = zip(labels, commits, strict=True)
    noise = noises.pool([list(zip(own, map(float, values), strict=True)) for own, values in pairs])
    return noise or NoisePrior(math.nan, 0.0)


@pytest.mark.parametrize(("repeats", "commits"), [(2, 4), (3, 10), (5, 3)])
def test_the_pooled_variance_of_repeats_is_unbiased_and_knows_its_degrees_of_freedom(
    repeats: int, commits: int
) -> None:
    random = np.random.default_rng(RNG_SEED)
    levels = np.where(np.arange(commits) < commits // 2, 0, 50)[:, None]  # a step is no noise
    found = [pool(random.normal(size=(commits, repeats)) + levels) for _ in range(400)]
    assert np.mean([noise.sd**2 for noise in found]) == pytest.approx(1, abs=0.12)
    assert np.mean([noise.dof for noise in found]) == pytest.approx(
        commits * (repeats - 1), rel=0.06
    )


def test_an_outlier_does_not_swell_the_noise() -> None:
    random = np.random.default_rng(RNG_SEED)
    values = random.normal(size=(20, 3))
    values[7, 1] = 400.0
    assert pool(values).sd < 1.3


def test_values_that_are_not_finite_are_left_out() -> None:
    clean = [[1.0, 2.0], [1.5, 2.5]]
    seeds = [[0, 2], [5, 6]]
    dirty = [[1.0, math.nan, 2.0], [math.inf, math.nan], [1.5, 2.5, -math.inf]]
    assert pool(dirty, [[0, 1, 2], [3, 4], [5, 6, 7]]) == pool(clean, seeds)
    assert not pool([[math.nan]]).dof


def test_what_no_seed_has_a_say_in_is_exact_unless_it_is_coarse() -> None:
    assert pool([[1.2734501234] * 3]) == NoisePrior(0.0, 2.0)
    assert not pool([[1.0] * 3]).dof, "every seed may well be right on all samples"
    assert pool([[1.2734501234, 1.2734501234, 1.3]]).sd > 0
    assert not pool([[1.2734501234] * 3], seeds=[[5] * 3]).dof, "one seed may well repeat"


def test_pinned_seeds_keep_the_spread_over_seeds_and_count_it_once() -> None:
    noise = pool([[1.0, 2.0, 3.0]] * 10)
    assert noise.sd == pytest.approx(1.0)
    assert noise.dof == 2  # thirty values, but three draws


def test_differences_between_commits_tell_nothing() -> None:
    assert not pool([[1.0], [2.0], [4.0]]).dof
