"""What two commits of one session tell of one another."""

from __future__ import annotations

import numpy as np

from celedger.stats.course import Measurements
from celedger.stats.sessions import RiseVerdict, contrasts
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


RISEN = [(20, 1, 120.0), (20, 1, 121.0)]
BEFORE = [(19, 0, 100.0), (19, 0, 100.5)]


def test_a_risen_commit_that_is_high_again_beside_a_low_head_was_real() -> None:
    control = [(21, 2, 100.0), (20, 2, 119.5), (21, 2, 100.4), (20, 2, 120.0)]
    (pair,) = contrasts(LOSS, measured(*BEFORE, *RISEN, *control), HISTORY, {(20, 2)})
    assert (pair.old, pair.new, pair.session, pair.trials, pair.is_asked) == (20, 21, 2, 2, True)
    assert pair.verdict() is RiseVerdict.REAL and pair.is_over()
    assert pair.high_sessions == ()


def test_a_risen_commit_that_is_low_now_was_a_disturbed_session() -> None:
    control = [(21, 2, 100.0), (20, 2, 99.5), (21, 2, 100.4), (20, 2, 101.0)]
    (pair,) = contrasts(LOSS, measured(*BEFORE, *RISEN, *control), HISTORY, {(20, 2)})
    assert pair.verdict() is RiseVerdict.FALSE
    assert pair.high_sessions == (1,)
    # Once the disturbed trials are left out, what was told of the rise is still refuted.
    (left,) = contrasts(LOSS, measured(*BEFORE, *control), HISTORY, {(20, 2)})
    assert left.verdict() is RiseVerdict.UNSETTLED
    assert left.verdict(20.0, 1.0) is RiseVerdict.FALSE


def test_one_trial_each_or_a_small_rise_needs_more() -> None:
    one = [(21, 2, 100.0), (20, 2, 120.0)]
    (pair,) = contrasts(LOSS, measured(*BEFORE, *RISEN, *one), HISTORY)
    assert pair.verdict() is RiseVerdict.UNSETTLED and not pair.is_asked
    small = [(20, 1, 105.0), (20, 1, 105.0)]
    for count, verdict in ((3, RiseVerdict.UNSETTLED), (4, RiseVerdict.REAL)):
        control = [(21, 2, 100.0), (20, 2, 105.0)] * count
        (pair,) = contrasts(LOSS, measured(*BEFORE, *small, *control), HISTORY)
        assert pair.verdict() is verdict


def test_nothing_is_decided_while_head_is_as_high_as_the_risen_commit() -> None:
    control = [(21, 2, 120.0), (20, 2, 120.0)] * 2
    (pair,) = contrasts(LOSS, measured(*BEFORE, *RISEN, *control), HISTORY, {(20, 2)})
    assert pair.verdict() is RiseVerdict.UNSETTLED
