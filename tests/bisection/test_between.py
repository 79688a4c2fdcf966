"""A commit between the ends that is worse than both, while BAD is as GOOD is."""

from __future__ import annotations

import numpy as np
import pytest

from celedger.base.model import Commit
from celedger.judge.bisection.other_steps import Between, worse_between
from celedger.repo import History
from celedger.stats import firstbad
from celedger.stats.lineage import GOOD, Lineage


def commit(number: int, *parents: int) -> Commit:
    return Commit(str(number), "", tuple(map(str, parents)), "Ada", 0, 0, f"number {number}")


def line(n: int) -> History:
    commits = tuple(commit(i, i - 1) for i in range(n))
    return History(commit(GOOD), commits, ((), *((i,) for i in range(n - 1))))


def ask(history: History, levels: dict[int, float], rng: np.random.Generator) -> Between | None:
    """One trial of every level but the ends', of which there are three; the noise is 1."""
    readings = [
        firstbad.Reading(position, level + rng.standard_t(5) / 1.3, seed)
        for position, level in levels.items()
        for seed in range(3 if position in (GOOD, len(history.commits) - 1) else 1)
    ]
    question = firstbad.Question(Lineage(history.parents), noise=firstbad.NoisePrior(1.0, 20.0))
    evidence = firstbad.Evidence(tuple(readings))
    return worse_between(history, question, evidence, 1)


@pytest.mark.matrix
def test_a_stretch_that_is_worse_than_both_ends_is_found() -> None:
    history, rng = line(10), np.random.default_rng(4)
    found = [
        ask(history, {p: 16.0 if 3 <= p < 6 else 10.0 for p in range(GOOD, 10)}, rng)
        for _ in range(25)
    ]
    inside = [b for b in found if b is not None and int(b.commit.sha) in (3, 4, 5)]
    assert len(inside) >= 24
    assert all(b.value > b.good + 3 and b.value > b.bad + 3 for b in inside)


@pytest.mark.matrix
def test_noise_alone_is_seldom_taken_for_one() -> None:
    history, rng = line(10), np.random.default_rng(5)
    alarms = [ask(history, dict.fromkeys(range(GOOD, 10), 10.0), rng) for _ in range(100)]
    assert sum(alarm is not None for alarm in alarms) <= 5


def test_a_branch_that_left_before_good_cannot_be_searched_up_to() -> None:
    #  good ── 1 ── 2 (bad)      0, the parent of 2 beside 1, is not after good
    commits = (commit(0, 7), commit(1, GOOD), commit(2, 1, 0))
    history, rng = History(commit(GOOD), commits, ((), (), (1, 0))), np.random.default_rng(6)
    level = {GOOD: 10.0, 0: 30.0, 1: 10.0, 2: 10.0}
    assert ask(history, level, rng) is None
    found = ask(history, {**level, 0: 10.0, 1: 30.0}, rng)
    assert found is not None
    assert found.commit.sha == "1"
