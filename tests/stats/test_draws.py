"""What equal bits say of where a change is, and what they leave to further draws."""

from __future__ import annotations

import random

import numpy as np
import pytest

from celedger.stats import draws
from celedger.stats.choice import choose
from celedger.stats.firstbad import Evidence, Question, Reading, State, posterior
from celedger.stats.lineage import GOOD, Lineage


def test_what_contradicts_equal_bits_weighs_little_however_many_commits_it_is() -> None:
    line, even = Lineage.line(1000), np.full(1000, 1e-3)
    prior = draws.located(line, [], {900: "good", 902: "bad"}, even)
    assert prior[901] == pytest.approx(prior[902])
    assert prior[:901].sum() + prior[903:].sum() == pytest.approx(draws.DOUBT * prior[901])


def test_commits_that_repeat_one_another_are_not_parted() -> None:
    readings = [Reading(3, 0.1, 0, 7), Reading(6, 0.1, 0, 7)]
    prior = draws.located(Lineage.line(10), readings, {}, np.full(10, 0.1))
    assert prior[4:7].sum() == pytest.approx(draws.DOUBT * prior[3])


def test_weights_of_zero_stay_zero_and_bits_that_leave_none_are_not_believed() -> None:
    prior = np.array([0.5, 0.0, 0.5, 0.0])
    line = Lineage.line(4)
    assert draws.located(line, [], {1: "good"}, prior)[1] == 0
    assert draws.located(line, [], {2: "good"}, prior) == pytest.approx(prior)


def test_the_seeds_of_a_class_are_those_of_all_that_repeat_each_other() -> None:
    readings = [
        Reading(GOOD, 0.0, 0, 1),
        Reading(3, 0.0, 0, 1),
        Reading(3, 0.4, 1, 2),
        Reading(5, 0.4, 1, 2),
        Reading(7, 0.9, 0, 3),
    ]
    assert draws.alike(readings, 5) == {GOOD, 3, 5}
    assert draws.alike(readings, 7) == {7}
    assert draws.spare(readings, 9) == {3, 5}
    assert draws.repeating(readings, 9) == pytest.approx(3 / 5)
    assert draws.repeating([Reading(3, 0.0)], 9) == 0


@pytest.mark.parametrize("number", range(4))
def test_bits_locate_the_change_and_then_both_sides_are_measured_with_new_seeds(
    number: int,
) -> None:
    first_bad, n = 40, 64
    noise: dict[tuple[bool, int], float] = {}
    source = random.Random(number)
    readings: list[Reading] = []
    path: list[tuple[int, int]] = []

    def read(position: int) -> None:
        tried = {r.seed for r in readings if r.position in draws.alike(readings, position)}
        seed = next(s for s in range(1000) if s not in tried)
        bad = position >= first_bad
        value = 2.5 * bad + noise.setdefault((bad, seed), source.gauss(0, 1))
        readings.append(Reading(position, value, seed, 2 * seed + bad))
        path.append((position, seed))

    for position in (GOOD, GOOD, n - 1, n - 1):
        read(position)
    question = Question(Lineage.line(n))
    while len(path) < 80:
        places = {r.position for r in readings}
        sides = {p: "bad" if p >= first_bad else "good" for p in places - {GOOD, n - 1}}
        evidence = Evidence(tuple(readings), sides=sides)
        answer = posterior(question, evidence)
        choice = choose(question, evidence, answer)
        if choice is None:
            break
        read(choice.position)
    assert (answer.state, answer.candidates) == (State.FOUND, (first_bad,))
    inner = [position for position, _ in path if position not in (GOOD, n - 1)]
    assert len(inner) == len(set(inner)) <= 9  # one look each: their bits say the rest
    assert len({r.draw for r in readings}) == len(readings) - len(inner)
