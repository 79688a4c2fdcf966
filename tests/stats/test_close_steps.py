"""Steps as lives of repositories had them: close to one another, in gaps, over equal bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from celedger.stats import history
from celedger.stats.course import Measurements, Step

KEY = ("core", "task", "loss")


def steps(values: Sequence[Sequence[float]]) -> list[Step]:
    """Return the steps of a line whose commits have these values, each by a seed of its own."""
    place = np.array([at for at, own in enumerate(values) for _ in own])
    seed = np.array([i for own in values for i in range(len(own))])
    nothing, count = np.zeros_like(place), np.arange(len(place))
    measured = Measurements(
        place, nothing, place, seed, seed, np.array([y for own in values for y in own]),
        np.ones(len(place), bool), count, has_sessions=False,
    )  # fmt: skip
    return list(history.trace({KEY: measured})[KEY].steps)


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


def test_a_step_knows_the_probability_of_each_commit_of_a_gap() -> None:
    random = np.random.default_rng(3)
    before = [(100 + random.normal(0, 1, 2)).tolist() for _ in range(10)]
    after = [(110 + random.normal(0, 1, 2)).tolist() for _ in range(5)]
    (step,) = (s for s in steps([*before, [], [], [], *after]) if s.size > 0)
    assert (step.first, step.last) == (10, 13)
    assert step.posterior == (step.posterior[0],) * 4
    assert sum(step.posterior) == pytest.approx(step.probability)
