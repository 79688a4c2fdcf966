"""What two commits of one session tell of one another."""

from __future__ import annotations

import numpy as np
import pytest

from celedger.stats.course import Measurements
from celedger.stats.sessions import contrasts
from tests.stats.made_steps import LOSS, history

HISTORY = history(commits=30, level=100.0)


def measured(*trials: tuple[int, int, float]) -> Measurements:
    """Return measurements of (place, session, value)."""
    place, session, value = (np.array(column) for column in zip(*trials, strict=True))
    count = len(trials)
    zeros, unknown = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    own = np.ones(count, bool)
    return Measurements(
        place, zeros, session, zeros, zeros, value.astype(float), own, unknown, False
    )


def test_the_newest_commit_of_a_session_is_compared_with_those_that_ran_before() -> None:
    before = [(19, 0, 100.0), (20, 1, 120.0)]
    control = [(21, 2, 100.0), (20, 2, 119.0), (21, 2, 100.4), (20, 2, 120.0)]
    (pair,) = contrasts(LOSS, measured(*before, *control), HISTORY)
    assert (pair.old, pair.new) == (20, 21)
    assert pair.difference == pytest.approx(100.2 - 119.5)
    assert pair.error == pytest.approx((1.25 * (1 / 2 + 1 / 2)) ** 0.5)
    assert not list(contrasts(LOSS, measured(*before), HISTORY))
