"""Steps as lives of repositories had them: close to one another, in gaps, over equal bits."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from celedger.stats import history
from celedger.stats.course import Measurements, MetricHistory, Step

KEY = ("core", "task", "loss")


def traced(values: Sequence[Sequence[float]], *, equal_bits: bool = False) -> MetricHistory:
    """Return the history of a line whose commits have these values, each by a seed of its own.

    Args:
        equal_bits: Equal values are equal bits.
    """
    place = np.array([at for at, own in enumerate(values) for _ in own])
    seed = np.array([i for own in values for i in range(len(own))])
    nothing, count = np.zeros_like(place), np.arange(len(place))
    flat = np.array([y for own in values for y in own])
    bits = np.unique(flat, return_inverse=True)[1] if equal_bits else count
    measured = Measurements(
        place, nothing, place, seed, seed, flat, np.ones(len(place), bool), bits,
        has_sessions=False,
    )  # fmt: skip
    return history.trace({KEY: measured})[KEY]


def steps(values: Sequence[Sequence[float]]) -> list[Step]:
    return list(traced(values).steps)


def test_a_doubt_beside_a_certain_step_is_a_step_of_its_own() -> None:
    """One trial above a new level may be an outlier or a second step: only a trial can tell, and
    the planner asks for it where it sees the doubt."""
    random = np.random.default_rng(7)
    quiet = [(100 + random.normal(0, 1, 2)).tolist() for _ in range(12)]
    risen = [(106 + random.normal(0, 1, 4)).tolist()]
    rises = [s for s in steps([*quiet, *risen, [117.0]]) if s.size > 0]
    assert [s.probability > 0.9 for s in rises] == [True, False]
    assert rises[0].first == rises[0].last == 12
    assert rises[1].probability > 0.03 and rises[1].last == 13


def test_a_rise_of_a_hundred_sd_and_its_mend_are_two_steps() -> None:
    """The probability of a step beside such a one is a rounding error, below zero even."""
    draw = Random(55)
    values = [
        [level * (1 + 0.003 * draw.gauss()) for _ in range(count)]
        for level, count in ((1, 6), (1, 2), (1, 2), (1.4, 2), (1, 2))
    ]
    rise, fall = (s for s in steps(values) if s.probability > 0.5)
    assert (rise.first, rise.last, fall.first, fall.last) == (3, 3, 4, 4)
    assert rise.size == pytest.approx(-fall.size, rel=0.05)


def test_a_step_knows_the_probability_of_each_commit_of_a_gap() -> None:
    random = np.random.default_rng(3)
    before = [(100 + random.normal(0, 1, 2)).tolist() for _ in range(10)]
    after = [(110 + random.normal(0, 1, 2)).tolist() for _ in range(5)]
    (step,) = (s for s in steps([*before, [], [], [], *after]) if s.size > 0)
    assert (step.first, step.last) == (10, 13)
    assert step.posterior == (step.posterior[0],) * 4
    assert sum(step.posterior) == pytest.approx(step.probability)


def test_a_shift_alike_for_all_seeds_is_told_by_few_equal_ones() -> None:
    """It is a quarter of what seeds differ by: fresh seeds would need some sixty."""
    old = [100.0, 101.7, 99.1, 100.6]
    line = [old] * 20 + [[y + 0.4 for y in old]] * 2
    for equal_bits in (True, False):  # values that repeat tell it, too
        history_ = traced(line, equal_bits=equal_bits)
        assert history_.by_seeds and history_.noise.is_exact == equal_bits
        (rise,) = (s for s in history_.steps if s.size > 0)
        assert (rise.first, rise.last) == (20, 20) and rise.probability > 0.95
        assert rise.size == pytest.approx(0.4, abs=0.05)


def test_levels_are_those_that_equal_seeds_tell() -> None:
    """A revert that one seed has measured is as low as before: its own level knows no seeds."""
    old = [100.0, 101.7, 99.1, 100.6]
    history_ = traced([old] * 12 + [[y + 6 for y in old], old[:1]], equal_bits=True)
    before, risen, reverted = (history_.nodes[at] for at in (0, -2, -1))
    assert risen.level - before.level == pytest.approx(6, abs=0.3)
    assert reverted.level == pytest.approx(before.level, abs=0.3)
    assert reverted.error < 1.0


def test_a_new_seed_of_a_revert_takes_nothing_back() -> None:
    """It re-uses the other seeds' results, which prove that it is good again. Without them the new
    seed made P(rise) .4, of .996 before."""
    random = np.random.default_rng(4)
    old = {seed: 1 + random.normal(0, 0.01) for seed in range(5)}
    rows = [(place, seed, old[seed], place == 0) for place in range(5) for seed in range(3)]
    rows += [(1, 3, old[3], True), (1, 4, old[4], True), (0, 0, old[0], True)]
    rows += [(5, seed, 1.06 * old[seed], True) for seed in range(3)]
    rows += [(6, seed, old[seed], False) for seed in range(3)] + [(6, 9, 0.9999, True)]
    place, seed, value, own = (np.array(column) for column in zip(*sorted(rows), strict=True))
    bits = np.unique(value, return_inverse=True)[1]
    nothing = np.zeros_like(place)
    measured = Measurements(
        place, nothing, place, seed, seed, value, own, bits, has_sessions=False
    )  # fmt: skip
    history_ = history.trace({KEY: measured})[KEY]
    rise, fall = (step for step in history_.steps if step.probability > 0.5)
    assert (rise.first, rise.last, fall.first, fall.last) == (5, 5, 6, 6)
    assert rise.probability > 0.98 and fall.probability > 0.98
    assert history_.nodes[-1].level == pytest.approx(history_.nodes[0].level, abs=0.003)


def test_few_trials_side_by_side_tell_a_large_step() -> None:
    """Three of each in turns: that all of one side are outliers is no explanation. A mean was as
    often an outlier as a trial, however many it had: 9 deviations were a doubt (P = .6) after five
    pairs, and every doubt cost ten trials."""
    random = np.random.default_rng(11)
    rows: list[tuple[int, int, float]] = []  # place, session, value
    for job in range(12):
        state = random.normal(0, 1)
        level = 100.0 if job < 11 else 109.0
        commits = [job] * 2 + [job - 1] * (job > 0)
        if job == 11:
            commits = [11, 10] * 3
        for place in commits:
            own = level if place == job else 100.0
            rows.append((place, job, own + state + random.normal(0, 1)))
    place, session = (np.array([row[i] for row in rows]) for i in (0, 1))
    nothing, count = np.zeros_like(place), np.arange(len(place))
    measured = Measurements(
        place, nothing, session, nothing, count, np.array([row[2] for row in rows]),
        np.ones(len(place), bool), nothing - 1, has_sessions=True,
    )  # fmt: skip
    (rise,) = (s for s in history.trace({KEY: measured})[KEY].steps if s.size > 0)
    assert (rise.first, rise.last) == (11, 11)
    assert rise.probability > 0.95


def test_a_slow_machine_is_known_from_sessions_that_lie_apart() -> None:
    """Neighbouring sessions find it in the same state; by their differences it was still, and its
    wandering over weeks was a regression (2 false ones in 960 commits)."""
    random = np.random.default_rng(5)
    session = np.repeat(np.arange(24), 4)
    place = np.where(np.tile([True, True, False, False], 24), session, 0)
    value = 100 + 4 * np.sin(session / 24 * np.pi) + random.normal(0, 1, len(session))
    nothing = np.zeros_like(session)
    measured = Measurements(
        place, nothing, session, nothing, np.arange(len(session)), value,
        np.ones(len(session), bool), nothing - 1, has_sessions=True,
    )  # fmt: skip
    assert history.trace({KEY: measured})[KEY].noise.session > 1
