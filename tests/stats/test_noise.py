"""The pooled noise of a metric: right on simulated values, and exact where values repeat."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from celedger.stats import noise as noises
from celedger.stats.noise import Noise, of_differences, smallest_change

RNG_SEED = 20240
Values = Sequence[Sequence[float]] | NDArray[np.float64]


def pool(commits: Values, seeds: Sequence[Sequence[int]] | None = None) -> Noise:
    """Pool values by commit; the seeds are 0, 1, 2 … at each where they are not given."""
    labels = seeds or [range(len(values)) for values in commits]
    pairs = zip(labels, commits, strict=True)
    return noises.pool([list(zip(own, map(float, values), strict=True)) for own, values in pairs])


def root_mean_square(noises: list[Noise]) -> float:
    return math.sqrt(sum(noise.sd**2 for noise in noises) / len(noises))


@pytest.mark.parametrize(("repeats", "commits"), [(2, 4), (3, 10), (5, 3)])
def test_the_pooled_variance_of_repeats_is_unbiased_and_knows_its_degrees_of_freedom(
    repeats: int, commits: int
) -> None:
    random = np.random.default_rng(RNG_SEED)
    levels = np.where(np.arange(commits) < commits // 2, 0, 50)[:, None]  # a step is no noise
    noises = [pool(random.normal(size=(commits, repeats)) + levels) for _ in range(400)]
    assert root_mean_square(noises) == pytest.approx(1, abs=0.06)
    assert np.mean([noise.dof for noise in noises]) == pytest.approx(
        commits * (repeats - 1), rel=0.06
    )


def test_an_outlier_does_not_swell_the_noise() -> None:
    random = np.random.default_rng(RNG_SEED)
    values = random.normal(size=(20, 3))
    values[7, 1] = 400.0
    noise = pool(values)
    assert noise.sd < 1.3


def test_values_that_are_not_finite_are_left_out() -> None:
    clean = [[1.0, 2.0], [1.5, 2.5]]
    dirty = [[1.0, math.nan, 2.0], [math.inf, math.nan], [1.5, 2.5, -math.inf]]
    assert pool(dirty) == pool(clean)
    assert not pool([[math.nan]]).known
    assert not pool([]).known


def test_equal_repeats_make_a_metric_deterministic() -> None:
    noise = pool([[3.0, 3.0], [4.0]], seeds=[[5, 5], [5]])
    assert noise.deterministic
    assert noise.exact
    assert not pool([[3.0, 3.0], [4.0, 4.1]], seeds=[[5, 5], [5, 5]]).deterministic


def test_a_deterministic_metric_that_most_commits_draw_anew_is_not_exact() -> None:
    noise = pool([[1.0, 1.0], [1.2, 1.2], [0.9, 0.9], [1.1, 1.1]], seeds=[[0, 0]] * 4)
    assert noise.deterministic
    assert not noise.exact
    assert noise.sd == pytest.approx(0.15, abs=0.1)


def test_one_tie_of_two_seeds_is_no_proof() -> None:
    """Two seeds of a metric with few values, such as an accuracy, agree by chance."""
    assert not pool([[3.0, 3.0], [4.0]]).known


def test_a_single_tie_between_commits_does_not_make_a_metric_deterministic() -> None:
    assert not pool([[3.0], [3.0]]).deterministic
    assert pool([[3.0], [3.0], [3.0], [3.0], [4.0]]).exact


def test_pinned_seeds_keep_the_spread_over_seeds_and_count_it_once() -> None:
    same = [[1.0, 2.0, 3.0]] * 10
    noise = pool(same, seeds=[[0, 1, 2]] * 10)
    assert noise.deterministic
    assert not noise.exact
    assert noise.sd == pytest.approx(1.0)
    assert noise.dof == 2  # thirty values, but three observations


def test_different_seeds_that_differ_are_noise_not_determinism() -> None:
    random = np.random.default_rng(RNG_SEED)
    noise = pool(random.normal(size=(5, 3)), seeds=[[0, 1, 2]] * 5)
    assert not noise.deterministic
    assert noise.dof == 10


def test_without_repeats_neighbouring_commits_tell_the_noise_despite_steps() -> None:
    random = np.random.default_rng(RNG_SEED)
    noises = []
    for _ in range(200):
        values = random.normal(size=60)
        values[20:] += 9
        values[41:] -= 30
        noises.append(pool(values[:, None]))
    assert root_mean_square(noises) == pytest.approx(1.06, abs=0.06)
    assert noises[0].dof == pytest.approx(0.4 * 59)
    assert not pool([[1.0]]).known


def test_a_single_repeat_does_not_outweigh_a_long_history() -> None:
    random = np.random.default_rng(RNG_SEED)
    groups = [[v] for v in random.normal(size=40)]
    groups[20] = [0.1, 0.1001]
    noise = pool(groups)
    assert noise.sd == pytest.approx(1, abs=0.4)
    assert noise.dof > 10


def test_differences_are_unbiased_for_every_length() -> None:
    random = np.random.default_rng(RNG_SEED)
    for n in (2, 5, 30):
        sds = [of_differences(np.diff(random.normal(size=n))) for _ in range(1500)]
        assert 0.95 < np.mean(sds) < 1.2


def test_commits_that_differ_beyond_their_repeats_are_noticed() -> None:
    random = np.random.default_rng(RNG_SEED)
    machine = random.normal(size=(20, 1)) * 3
    noise = pool(random.normal(size=(20, 3)) * 0.2 + machine)
    assert noise.between == pytest.approx(3, rel=0.5)
    assert noise.dof < 19
    quiet = [pool(random.normal(size=(20, 3))).between for _ in range(200)]
    assert np.mean(np.array(quiet) > 0) < 0.05


def test_the_smallest_change_shrinks_with_trials_and_is_told_as_often_as_promised() -> None:
    noise = Noise(1.0, 30.0, False, 40)
    changes = [smallest_change(noise, k, 10) for k in (1, 2, 5)]
    assert changes == sorted(changes, reverse=True)
    random = np.random.default_rng(RNG_SEED)
    head = random.normal(size=(4000, 5)).mean(axis=1) + changes[2]
    before = random.normal(size=(4000, 10)).mean(axis=1)
    sd = np.sqrt(random.chisquare(30, 4000) / 30)
    told = np.abs(head - before) / sd / math.sqrt(1 / 5 + 1 / 10) > 2.042  # t, 30 dof, 5 %
    assert np.mean(told) == pytest.approx(0.8, abs=0.03)


def test_nothing_can_be_told_without_noise_and_anything_of_an_exact_metric() -> None:
    assert smallest_change(pool([[1.0]]), 3, 3) == math.inf
    assert smallest_change(pool([[2.0, 2.0, 2.0]], seeds=[[0, 0, 0]]), 1, 1) == 0.0


def test_what_no_seed_has_a_say_in_is_exact_unless_it_is_coarse() -> None:
    seeds = [[0, 1, 2]]
    assert pool([[1.2734501234] * 3], seeds=seeds).exact
    assert not pool([[1.0] * 3], seeds=seeds).exact, "every seed may well be right on all samples"
    assert not pool([[1.2734501234, 1.2734501234, 1.3]], seeds=seeds).exact


def test_steps_are_no_noise_where_neighbours_agree_in_every_digit() -> None:
    seeds = [[0, 1, 2]] * 7
    own = np.array([0.0011324816, -0.0047815927, 0.0035142853])
    levels = [1.0, 1.0, 1.0, 1.5, 1.0, 1.5, 1.5]
    assert pool([level + own for level in levels], seeds=seeds).between == 0
    random = np.random.default_rng(3)  # and the same steps, where every commit varies
    assert pool([x + own + random.normal(0, 0.2) for x in levels], seeds=seeds).between > 0.1
