"""The choice of a trial beside others that are under way."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from celedger.stats.choice import UnderWay, choose
from celedger.stats.firstbad import Evidence, Question, Reading, posterior
from celedger.stats.lineage import GOOD, Lineage

LINE = Question(Lineage.line(256))


def ends(shift: float, n: int = 256, seed: int = 0, stored: int = 10) -> list[Reading]:
    random = np.random.default_rng(seed)
    return [
        Reading(p, shift * (p != GOOD) + float(random.standard_normal()))
        for p in (GOOD, n - 1)
        for _ in range(stored)
    ]


def next_ones(
    question: Question,
    readings: list[Reading],
    workers: int,
    untestable: frozenset[int] = frozenset(),
) -> list[int]:
    """Return the positions that fill all workers."""
    evidence = Evidence(tuple(readings), untestable)
    answer, running = posterior(question, evidence), list[int]()
    while len(running) < workers:
        beside = UnderWay(tuple(running), workers)
        choice = choose(question, evidence, answer, None, beside)
        if choice is None:
            break
        running.append(choice.position)
    return running


# --- the choice


def test_without_company_the_choice_is_that_of_one_worker() -> None:
    readings = [*ends(2.0), Reading(100, 1.1), Reading(40, -0.3)]
    evidence = Evidence(tuple(readings))
    answer = posterior(LINE, evidence)
    one = choose(LINE, evidence, answer)
    assert choose(LINE, evidence, answer, None, UnderWay((), 16)) == one


@pytest.mark.parametrize("workers", [2, 4, 16])
def test_the_first_trials_lie_at_the_quantiles(workers: int) -> None:
    marks = np.arange(1, workers + 1) / (workers + 1)
    positions = next_ones(LINE, ends(4.0), workers)
    assert np.abs(np.array(positions) / 256 - marks).max() < 1 / 128


def test_later_ones_lie_apart_and_not_at_what_is_known() -> None:
    readings = [*ends(4.0), Reading(127, 4.2), Reading(63, 0.1)]
    positions = next_ones(LINE, readings, 4)
    assert len(set(positions)) == 4
    assert all(60 < p < 130 for p in positions)
    assert min(b - a for a, b in pairwise(sorted(positions))) >= 6


def test_a_metric_without_noise_is_never_run_twice_at_a_commit() -> None:
    readings = [Reading(GOOD, 0.0), Reading(GOOD, 0.0), Reading(255, 1.0), Reading(127, 1.0)]
    positions = next_ones(LINE, readings, 12)
    assert len(set(positions)) == len(positions) == 12
    few = Question(Lineage.line(4))
    readings = [Reading(GOOD, 0.0), Reading(GOOD, 0.0), Reading(3, 1.0), Reading(1, 1.0)]
    assert next_ones(few, readings, 12) == [0]  # nothing else is left to tell


def test_faint_changes_get_repeats_of_one_commit() -> None:
    readings = [*ends(1.0, 8, stored=20), *(Reading(3, 0.5) for _ in range(2))]
    positions = next_ones(Question(Lineage.line(8)), readings, 8)
    assert len(positions) == 8 and len(set(positions)) < 8


def test_a_commit_that_cannot_be_tested_is_stepped_around() -> None:
    broken = frozenset(range(60, 70))
    readings = [*ends(4.0), Reading(127, 4.0)]
    positions = next_ones(LINE, readings, 8, broken)
    assert len(positions) == 8 and not broken & set(positions)


def test_where_a_change_is_doubted_all_workers_measure_the_ends() -> None:
    positions = next_ones(LINE, ends(0.0), 8)
    assert set(positions) == {GOOD, 255}


def test_branches_share_the_workers() -> None:
    """Two branches of 40 commits that a merge joins: one trial tells nothing of the other one's."""
    parents = [(), *((i,) for i in range(39)), (), *((i,) for i in range(40, 79)), (39, 79)]
    lineage = Lineage(tuple(parents))
    readings = [*ends(4.0, 81), Reading(79, 2.2)]
    positions = next_ones(Question(lineage), readings, 6)
    assert len(set(positions)) == 6
    assert {p < 40 for p in positions} == {True, False}


def test_on_a_history_with_merges_the_likely_commits_are_parted_however_many_others_there_are() -> (
    None
):
    """Two commits hold all but a thousandth of the weight, and their branch is not the longest."""
    parents = [(), (0,), (1,), (2,), (3,), (1,), (5,), (4, 6), *((p,) for p in range(7, 19))]
    weights = [0.0, 0.0, *[0.001] * 18]
    weights[5] = weights[6] = 1.0
    lineage = Lineage(tuple(parents))
    readings = [Reading(GOOD, value) for value in (0.0, 0.1, -0.1, 0.05)]
    readings += [Reading(lineage.bad, 9 + value) for value in (0.0, 0.1, -0.1, 0.05)]
    question = Question(lineage, prior=weights)
    evidence = Evidence(tuple(readings))
    best = choose(question, evidence, posterior(question, evidence))
    assert best is not None
    assert best.position == 5


def test_the_ends_are_measured_first_and_only_as_often_as_needed() -> None:
    assert next_ones(LINE, [], 2) == [GOOD, GOOD]
    assert next_ones(LINE, [Reading(GOOD, 0.0)], 2) == [GOOD, 255]


def test_the_leader_and_its_parent_are_measured_at_once() -> None:
    readings = [*ends(4.0), *(Reading(p, 4.0) for p in (100, 102) for _ in range(4))]
    readings += [Reading(p, 0.0) for p in (96, 99) for _ in range(4)]
    assert next_ones(LINE, readings, 1) != [99]
    question = Question(Lineage.line(256), prior=[float(p == 101) + 1e-9 for p in range(256)])
    assert next_ones(question, readings[:20], 2) == [100, 101]


def test_the_first_trials_of_all_workers_have_a_seed_that_the_change_touches() -> None:
    """Four workers took 51 trials where one took 8: seed 0 told them nothing."""
    noise = np.random.default_rng(5).standard_normal((2, 4))
    readings = [
        Reading(p, float(noise[side, s]) + 3.0 * side, s)
        for side, p in enumerate((GOOD, 255))
        for s in range(1, 4)
    ]
    readings += [Reading(p, float(noise[0, 0]), 0) for p in (GOOD, 255)]  # spared
    evidence, running = Evidence(tuple(readings)), list[int]()
    answer = posterior(LINE, evidence)
    for _ in range(4):
        choice = choose(LINE, evidence, answer, None, UnderWay(tuple(running), 4))
        assert choice is not None and choice.seed in (1, 2, 3)
        running.append(choice.position)
