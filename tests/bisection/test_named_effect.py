"""Steps of either sign beside the named one, and how far the named commit itself moved a metric."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from celedger.judge.bisection.bisect_report import _effect, floor_in_doubt
from celedger.judge.bisection.other_steps import (
    Rest,
    effect_between,
    effect_by_seed,
    neighbours,
    rests,
)
from celedger.stats import firstbad
from celedger.stats.lineage import GOOD, Lineage

Levels = dict[int, float]
FIRST, SECOND, LAST = 20, 45, 63


def readings(levels: Levels, case: int) -> firstbad.Evidence:
    """Read each level once, those of the ends five times; the noise is 1."""
    rng = np.random.default_rng([case, 31])
    return firstbad.Evidence(tuple(
        firstbad.Reading(p, level + rng.standard_normal(), seed)
        for p, level in levels.items()
        for seed in range(5 if p in (GOOD, LAST) else 1)
    ))  # fmt: skip


def two_steps(first: float, second: float) -> Levels:
    at = (GOOD, 5, 10, 15, 18, 19, 20, 21, 25, 30, 35, 44, 45, 48, 52, 58, LAST)
    return {p: first * (p >= FIRST) + second * (p >= SECOND) for p in at}


@pytest.mark.matrix
@pytest.mark.parametrize(("second", "told"), [(-2.5, 8), (3.0, 8), (0.0, 0)])
def test_a_step_of_either_sign_is_told_and_the_named_commits_effect_leaves_it_out(
    second: float, told: int
) -> None:
    question = firstbad.Question(Lineage.line(LAST + 1))
    held = seen = false = 0
    for case in range(10):
        evidence = readings(two_steps(5.0, second), case)
        answer = firstbad.posterior(question, evidence)
        steps = rests(question, evidence, answer)
        good, bad = neighbours(question, evidence, answer.leader, steps)
        _, low, high = effect_between(question, answer, good, bad)
        held += low <= 5.0 <= high
        seen += any(s.effect * second > 0 and s.after < SECOND <= s.by for s in steps)
        false += any(s.probability > 0.95 for s in steps) and not second
    assert held >= 8  # at 95 %, fewer of 10 have probability 1.2 %
    assert seen >= told
    assert not false


def test_the_neighbours_end_where_a_further_step_may_begin() -> None:
    question = firstbad.Question(Lineage.line(LAST + 1))
    evidence = readings(two_steps(5.0, -4.0), 1)
    before, after = (Rest(a, b, 0.9, 1.0, 0.0, 2.0, 0.2) for a, b in ((5, 15), (44, 45)))

    def positions(*steps: Rest) -> tuple[set[int], set[int]]:
        good, bad = neighbours(question, evidence, FIRST, steps)
        return {r.position for r in good}, {r.position for r in bad}

    assert positions(after) == ({GOOD, 5, 10, 15, 18, 19}, {20, 21, 25, 30, 35, 44})
    assert positions(before) == ({15, 18, 19}, {20, 21, 25, 30, 35, 44, 45, 48, 52, 58, LAST})
    assert positions(before, after) == ({15, 18, 19}, {20, 21, 25, 30, 35, 44})


def test_equal_seeds_tell_the_effect_side_by_side() -> None:
    """Of the noise 95 % is the seed's: over all readings the interval is many times as wide."""
    rng = np.random.default_rng(5)
    own = 10 * rng.standard_normal(6)
    rows = [
        firstbad.Reading(p, (p != GOOD) + own[seed] + 0.1 * rng.standard_normal(), seed)
        for p in (GOOD, 0)
        for seed in range(6)
    ]
    answer = firstbad.posterior(firstbad.Question(Lineage.line(1)), firstbad.Evidence(tuple(rows)))
    assert answer.by_seed
    found = effect_by_seed(rows[:6], rows[6:], 0.95, is_exact=False)
    assert found is not None
    mean, low, high = found
    assert low < 1.0 < high
    assert high - low < 0.5
    assert mean == pytest.approx(1.0, abs=0.2)
    assert effect_by_seed(rows[:2], rows[6:], 0.95, is_exact=False) is None


def test_an_exact_effect_of_one_seed_has_no_interval() -> None:
    """Once "+75 % (95 %: +15 … +822)" was told of values that repeat bit by bit."""
    values = {(GOOD, 0): 4.1234567, (GOOD, 1): 4.3987654, (0, 0): 7.2345678, (0, 2): 7.1876543}
    rows = [firstbad.Reading(p, y, seed) for (p, seed), y in values.items()]
    effect = effect_by_seed(rows[:2], rows[2:], 0.95, is_exact=True)
    assert effect is not None
    assert effect[0] == pytest.approx(7.2345678 - 4.1234567)
    assert np.isnan(effect[1:]).all()


def test_what_is_named_made_it_worse_in_all_of_its_interval() -> None:
    """The interval of a commit that had moved few seeds' values held 0 beside "> 99.9 %"."""
    good, bad = (0.0, 1.0, 0.4, 3.0, 0.1), (1.2, 4.1, 0.9)
    rows = [firstbad.Reading(p, v) for p, own in ((GOOD, good), (0, bad)) for v in own]
    answer = firstbad.posterior(firstbad.Question(Lineage.line(1)), firstbad.Evidence(tuple(rows)))
    _, low, high = answer.effect_range
    assert 0 < low < answer.effect < high


def test_the_level_before_the_named_commit_is_its_neighbours() -> None:
    """Over all that is good it would lie between the two levels before."""
    question = firstbad.Question(Lineage.line(LAST + 1))
    evidence = readings(two_steps(3.0, 6.0), 2)
    answer = firstbad.posterior(question, evidence)
    assert answer.leader == SECOND
    track: Any = SimpleNamespace(
        question=question, evidence=evidence, posterior=answer,
        symptom=SimpleNamespace(metric=object()),
    )  # fmt: skip
    steps = rests(question, evidence, answer)
    assert steps
    level, *_ = _effect(track, 1, steps)
    assert level == pytest.approx(3.0, abs=0.7)


def test_an_unlikely_further_step_takes_no_reading_from_the_effect() -> None:
    """A leak of 8,900 bytes was told as "+73.6 %": of one reading that was left beside two."""
    values = ((GOOD, 146.0), (GOOD, 255.0), (0, 9051.0), (2, 9091.0))
    evidence = firstbad.Evidence(tuple(firstbad.Reading(p, v) for p, v in values))
    question = firstbad.Question(Lineage.line(3), noise=firstbad.NoisePrior(45.0, 4.0))
    answer = firstbad.posterior(question, evidence)
    track: Any = SimpleNamespace(
        question=question, evidence=evidence, posterior=answer,
        symptom=SimpleNamespace(metric=object()),
    )  # fmt: skip
    level, effect, *_ = _effect(track, 1, [Rest(0, 2, 0.48, 40.0, 0.0, 3400.0, 0.38)])
    assert (level, effect) == (200.5, pytest.approx(8870, rel=0.05))


def test_the_effect_of_a_leak_is_known_to_its_noise() -> None:
    """It was told as +128 KiB, 95 %: +81.6 KiB … +178 KiB, though trials differ by 40 bytes."""
    good, bad = (140.0, 190.0, 210.0, 166.0), (131_387.0, 131_347.0, 131_319.0)
    rows = [(GOOD, value) for value in good] + [(2, value) for value in bad]
    evidence = firstbad.Evidence(tuple(firstbad.Reading(p, v) for p, v in (*rows, (1, 131_444.0))))
    question = firstbad.Question(Lineage.line(3), noise=firstbad.NoisePrior(23.0, 6.0))
    track: Any = SimpleNamespace(
        question=question, evidence=evidence, posterior=firstbad.posterior(question, evidence),
        symptom=SimpleNamespace(metric=object()),
    )  # fmt: skip
    _, effect, low, high = _effect(track, 1, [])
    assert effect == pytest.approx(131_198, abs=1)
    assert 131_000 < low < effect < high < 131_400


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("unit", [1e300, 1.7e308, 1e-310])
def test_values_at_the_limits_of_floats_have_an_effect(unit: float) -> None:
    levels = {GOOD: -unit, 19: -unit, 20: unit, LAST: unit}
    rows = [(p, s, level) for p, level in levels.items() for s in range(3)]
    seen = firstbad.Evidence(tuple(firstbad.Reading(p, value, s) for p, s, value in rows))
    question = firstbad.Question(Lineage.line(LAST + 1))
    answer = firstbad.posterior(question, seen)
    steps = rests(question, seen, answer)
    good, bad = neighbours(question, seen, FIRST, steps)
    told = effect_by_seed(good, bad, 0.95, is_exact=False)
    assert not steps
    assert told == (2 * unit,) * 3 if unit < 1e308 else told is None


@pytest.mark.parametrize(
    ("effect", "low", "high", "is_in_doubt"),
    [
        (0.1131, np.nan, np.nan, False),  # one exact pair of a Lightning module: "about as large"
        (2.4, 0.72, 2.4, False),
        (0.05, np.nan, np.nan, True),
        (0.06, 0.03, 0.09, True),
        (-0.3, -0.7, 0.1, True),
        (-0.3, -0.5, -0.1, False),
    ],
)
def test_a_change_that_is_clearly_larger_than_the_floor_is_not_called_about_as_large(
    effect: float, low: float, high: float, is_in_doubt: bool
) -> None:
    assert floor_in_doubt(0.0346, effect, low, high) == (0.0346 if is_in_doubt else 0.0)
