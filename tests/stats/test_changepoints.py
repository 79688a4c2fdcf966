"""Change points: found where they were planted, seldom where there are none, and honest about
how sure they are."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celedger.stats import changepoints, segments
from celedger.stats.changepoints import detect

RNG_SEED = 20242


def indices(values: np.ndarray) -> list[int]:
    return [point.index for point in detect(values).points]


def test_steps_are_found_with_their_levels_and_sets() -> None:
    random = np.random.default_rng(RNG_SEED)
    x = random.normal(size=300)
    x[100:] += 6
    x[220:] -= 9
    changes = detect(x)
    assert [p.index for p in changes.points] == [100, 220]
    assert changes.points[0].effect == pytest.approx(6, abs=0.6)
    assert changes.points[1].after == pytest.approx(-3, abs=0.5)
    assert all(p.confirmed and p.index in p.commits for p in changes.points)
    assert changes.sd == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("law", ["normal", "t3", "skewed", "outliers", "discrete", "bimodal"])
def test_noise_of_any_shape_raises_no_alarm(law: str) -> None:
    random = np.random.default_rng(RNG_SEED)
    alarms = 0
    for _ in range(6):
        x = random.normal(size=500)
        if law == "t3":
            x = random.standard_t(3, 500)
        elif law == "skewed":
            x = np.exp(0.5 * x)
        elif law == "outliers":
            x[random.random(500) < 0.03] += 15
        elif law == "discrete":
            x = np.round(x)
        elif law == "bimodal":
            x = 0.3 * x + 2 * (random.random(500) < 0.4)
        alarms += len(indices(x))
    assert alarms == 0


def test_a_single_far_value_is_no_change_and_an_excursion_is_two() -> None:
    random = np.random.default_rng(RNG_SEED)
    x = random.normal(size=200)
    x[80] += 50
    assert indices(x) == []
    x[120:130] += 6
    assert indices(x) == [120, 130]


def test_the_set_holds_the_commit_in_95_of_100_histories() -> None:
    random = np.random.default_rng(RNG_SEED)
    held = []
    for _ in range(80):
        x = random.normal(size=120)
        x[60:] += 2
        held += [60 in p.commits for p in detect(x).points if abs(p.index - 60) < 20]
    assert len(held) >= 75
    assert np.mean(held) >= 0.9


def test_few_exact_values_are_facts_and_many_are_noise() -> None:
    changes = detect(np.repeat([1.0, 1.0001, 7.0], [20, 30, 10]))
    assert changes.deterministic
    assert [p.index for p in changes.points] == [20, 50]
    assert all(p.commits == (p.index,) for p in changes.points)
    random = np.random.default_rng(RNG_SEED)
    redrawn = np.repeat(random.normal(size=60), random.integers(3, 9, 60))
    assert indices(redrawn) == []
    runs = random.integers(3, 9, 60)
    shifted = np.repeat(random.normal(size=60) + np.where(np.arange(60) < 30, 0, 8), runs)
    assert indices(shifted) == [int(runs[:30].sum())]


def test_a_change_of_exact_values_warns_of_no_overflow() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        detect([[1e7], [1e7], [1.2e7]])


def test_commits_without_a_finite_value_are_failed_and_not_in_the_way() -> None:
    random = np.random.default_rng(RNG_SEED)
    groups = [[*row] for row in random.normal(size=(60, 3))]
    for row in groups[30:]:
        row[:] = [v + 8 for v in row]
    groups[10] = [math.nan] * 3
    groups[29] = []
    groups[40][1] = math.inf
    changes = detect(groups)
    assert changes.failed == (10, 29)
    assert [p.index for p in changes.points] == [30]
    assert not detect([]).points
    assert not detect([[1.0], [math.nan]]).points


def test_a_short_history_with_several_seeds_shows_its_step() -> None:
    random = np.random.default_rng(RNG_SEED)
    alarms, found = 0, 0
    for _ in range(150):
        x = random.normal(size=(10, 4))
        alarms += bool(detect(x).points)
        x[6:] += 3
        found += indices(x) == [6]
    assert alarms <= 3
    assert found >= 140


def test_commits_noisier_than_their_seeds_are_not_taken_for_steps() -> None:
    random = np.random.default_rng(RNG_SEED)
    alarms = sum(
        bool(detect(0.05 * random.normal(size=(16, 3)) + random.normal(size=(16, 1))).points)
        for _ in range(60)
    )
    assert alarms <= 2


def test_neighbours_that_resemble_each_other_are_not_taken_for_steps() -> None:
    random = np.random.default_rng(RNG_SEED)
    x = np.zeros(1500)
    for i in range(1, x.size):
        x[i] = 0.3 * x[i - 1] + random.normal()
    assert len(indices(x)) <= 1


def test_more_trials_of_a_commit_count_for_more() -> None:
    random = np.random.default_rng(RNG_SEED)
    groups = [random.normal(size=(9 if 40 <= i < 60 else 1)) for i in range(80)]
    groups = [g + (1.5 if 46 <= i < 58 else 0) for i, g in enumerate(groups)]
    found = detect([g.tolist() for g in groups]).points
    assert [p.index for p in found] == [46, 58]


def test_the_simulated_limit_is_exceeded_as_rarely_as_it_says() -> None:
    random = np.random.default_rng(RNG_SEED)
    limit = changepoints.limit(9, 2)
    x = random.normal(size=(3000, 9, 2))
    t, _ = changepoints.split_t(x.sum(axis=2), (x**2).sum(axis=(1, 2)), np.full(9, 2))
    assert int((t.max(axis=1) > limit).sum()) <= 3000 * changepoints.LEVEL * 2.2


def test_the_segmentation_is_the_cheapest_there_is() -> None:
    """Against the quadratic dynamic programme over all segmentations on the same grid."""
    random = np.random.default_rng(RNG_SEED)
    x = random.standard_t(3, 60) + np.repeat([0, 3, -1], 20)
    loss = segments.Loss(4.0, 9.0)
    grid = segments.Grid.of(x, np.ones(60), loss, segments.FINE)
    rows = np.stack([grid.losses[s : s + grid.size] for s in grid.starts]).cumsum(axis=0)
    rows = np.vstack([np.zeros(grid.size), rows])
    best, back = [0.0], [0]
    for end in range(1, 61):
        costs = [
            best[start] + float((rows[end] - rows[start]).min()) + (11.0 if start else 0.0)
            for start in range(end)
        ]
        best.append(min(costs))
        back.append(int(np.argmin(costs)))
    expected, at = [], back[60]
    while at > 0:
        expected.append(at)
        at = back[at]
    assert segments.segment(grid, 11.0) == expected[::-1]


@given(
    power=st.integers(-30, 30),
    shift=st.integers(-4, 4),
    sign=st.sampled_from([1.0, -1.0]),
    seed=st.integers(0, 5),
)
def test_unit_zero_and_sign_do_not_matter(power: int, shift: int, sign: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    x = np.round(random.normal(size=80) * 1024) / 1024
    x[40:] += 3
    other = indices((x + shift) * 2.0**power * sign)
    # The grid starts at the lowest level: a flip may move a tie by one grid step, no more.
    assert len(other) == len(indices(x))
    assert all(abs(a - b) <= 1 for a, b in zip(other, indices(x), strict=True))


@pytest.mark.parametrize(("share", "offset"), [(0.1, 6.0), (0.2, 8.0)])
def test_seeds_that_collapse_a_few_times_in_a_row_are_no_change(
    share: float, offset: float
) -> None:
    random = np.random.default_rng(RNG_SEED)
    noise = random.normal(size=(8, 1000)) + offset * (random.random((8, 1000)) < share)
    assert [indices(x) for x in noise] == [[]] * 8
    noise[0][500:] += 4
    assert indices(noise[0]) == pytest.approx([500], abs=2)


def test_a_change_as_large_as_the_offset_of_the_second_mode_is_seen() -> None:
    random = np.random.default_rng(RNG_SEED)
    for sign in (1, -1):
        x = random.normal(size=400) + 8 * (random.random(400) < 0.2)
        x[200:] += 8 * sign
        assert indices(x) == pytest.approx([200], abs=2)
