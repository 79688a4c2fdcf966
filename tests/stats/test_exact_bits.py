"""Searches where a value is a function of code and seed, bit by bit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
from conftest import matrix_after

from celedger.stats import equal_bits
from celedger.stats.choice import choose, expected_trials
from celedger.stats.firstbad import Evidence, Phase, Posterior, Question, Reading, posterior
from celedger.stats.lineage import GOOD, Lineage

Value = Callable[[int, int], float]
"""Of a position and a seed."""


def search(
    value: Value, lineage: Lineage, stored: int, *, floor: float = 0.0, most: int = 60
) -> tuple[Posterior, list[tuple[int, int]]]:
    """Search with so many stored seeds at both ends; return answer and path."""
    places = (GOOD, lineage.bad)
    readings = [Reading(p, value(p, s), s) for p in places for s in range(stored)]
    path: list[tuple[int, int]] = []
    question = Question(lineage, floor=floor)
    while True:
        evidence = Evidence(tuple(readings))
        answer = posterior(question, evidence)
        choice = choose(question, evidence, answer)
        if choice is None or len(path) == most:
            return answer, path
        seed = choice.seed
        if seed is None:
            used = {r.seed for r in readings if r.position == choice.position}
            seed = next(s for s in count() if s not in used)
        path.append((choice.position, seed))
        readings.append(Reading(choice.position, value(choice.position, seed), seed))


@pytest.mark.parametrize("number", range(4))
def test_a_change_that_spares_most_seeds_is_found_by_one_that_it_touches(number: int) -> None:
    random = np.random.default_rng([number, 1])
    first_bad = int(random.integers(64))
    level, step = random.standard_normal((2, 60))
    touched = random.random(60) < 0.4
    touched[3] = True

    def value(position: int, seed: int) -> float:
        return float(level[seed] + (position >= first_bad) * touched[seed] * (2 + step[seed] / 2))

    answer, path = search(value, Lineage.line(64), 5)
    assert (answer.state, answer.candidates) == (Phase.FOUND, (first_bad,))
    assert len(path) <= 7


def test_what_draws_bits_anew_may_spare_seeds_and_leave_the_level() -> None:
    """pyswarms: bounds are handled anew where a particle meets one. Three seeds in sixteen were
    spared, and the commit was named at 98 %, though the cost fell by 6 %."""
    random = np.random.default_rng(0)
    level = random.standard_normal(16)
    other = np.append(np.roll(level[:13], 1), level[13:])  # with the same mean
    readings = [Reading(GOOD, float(x), s) for s, x in enumerate(level)]
    readings += [Reading(9, float(x), s) for s, x in enumerate(other)]
    readings += [Reading(4, float(level[0]), 0), Reading(5, float(other[0]), 0)]
    question, evidence = Question(Lineage.line(10)), Evidence(tuple(readings))
    answer = posterior(question, evidence)
    assert (answer.state, answer.candidates) == (Phase.SEARCHING, (5,))
    assert answer.no_change > 0.2
    assert expected_trials(question, evidence, answer) > 5, "the place is sure, and not the level"


@pytest.mark.parametrize("number", [0, 3, 20, 29, 36])
def test_a_named_commit_and_its_parent_share_a_seed_that_it_moves(number: int) -> None:
    """Two commits of which each moves half of the seeds: what one seed says of a commit and another
    one of its parent is explained by a single change that is none, and was named at 97 to 99.99 %
    in five of sixty searches."""
    random = np.random.default_rng([number, 3])
    places = np.sort(random.choice(64, 2, replace=False))
    drawn = random.standard_normal((3, 60)).round()
    moved = random.random((2, 60)) < 0.5

    def value(position: int, seed: int) -> float:
        steps = [k for k in (0, 1) if position >= places[k] and moved[k, seed]]
        return float(sum((4.0, 2.0)[k] for k in steps) + drawn[max(steps, default=-1) + 1, seed])

    answer, path = search(value, Lineage.line(64), 5)
    assert answer.state is Phase.FOUND
    assert answer.candidates[0] in places
    assert len(path) <= 20


def test_a_commit_is_named_after_others_of_its_level_share_seeds_with_its_parent() -> None:
    """Commits 20 and 40 draw all seeds anew. A change at 38 that spares seed 0 looks the same, and
    11 of 36 such searches named a wrong commit at 95 to 99 %."""
    first, second, third = np.random.default_rng(0).standard_normal((3, 5))
    third = third + 6.0
    measured = {
        GOOD: first[:4], 19: first[:2], 20: second[:4], 39: second[:1], 40: third[:4], 63: third,
    }  # fmt: skip
    readings = [
        Reading(position, float(value), seed)
        for position, values in measured.items()
        for seed, value in enumerate(values)
    ]
    question, evidence = Question(Lineage.line(64)), Evidence(tuple(readings))
    answer = posterior(question, evidence)
    choice = choose(question, evidence, answer)
    assert (answer.state, answer.leader) == (Phase.SEARCHING, 40)
    assert choice is not None and (choice.position, choice.seed) == (39, 1)
    spared = Evidence((*readings, Reading(39, float(second[1]), 1)))
    assert posterior(question, spared).state is Phase.FOUND
    moved = Evidence((*readings, Reading(39, float(third[4]), 1)))
    assert 40 not in posterior(question, moved).candidates[:1]


def test_counts_of_iterations_are_read_by_seed() -> None:
    """liblinear: 6, 5, 5, 5 iterations became 11, 5, 8, 5, with no noise at all."""
    counts = (6, 5, 5, 5), (11, 5, 8, 5)

    def value(position: int, seed: int) -> float:
        return float(counts[position >= 40][seed % 4])

    answer, path = search(value, Lineage.line(64), 4)
    assert (answer.state, answer.candidates) == (Phase.FOUND, (40,))
    assert len(path) <= 8


@pytest.mark.parametrize("n", [8, 64])
@pytest.mark.parametrize("steps", [(1.0, 0.49), (0.49, 1.0)])
def test_of_two_exact_levels_the_larger_step_is_named(n: int, steps: tuple[float, float]) -> None:
    places = n // 4, 3 * n // 4
    level = lambda p: sum(s for s, at in zip(steps, places, strict=True) if p >= at)  # noqa: E731
    random = np.random.default_rng(5)
    of_seed = 0.2 * random.standard_normal(80)
    for spread in (0.0, 1.0):
        answer, path = search(
            lambda p, s, w=spread: 1.0 + level(p) + w * float(of_seed[s]), Lineage.line(n), 3
        )  # fmt: skip
        assert answer.state is Phase.FOUND
        assert answer.candidates == (places[int(steps[1] > steps[0])],)
        assert len(path) <= 16


def test_merges_are_searched_by_bits_too() -> None:
    # 0 - 1 - 2 ------- 7 - 8
    #       \\ 3-4-5-6 /          the first bad commit is 4
    lineage = Lineage(((), (0,), (1,), (1,), (3,), (4,), (5,), (2, 6), (7,)))
    reached = lineage.reach([4])
    of_seed = np.random.default_rng(2).standard_normal(40)

    def value(position: int, seed: int) -> float:
        bad = position != GOOD and reached[position] > 0 and seed != 0
        return float(of_seed[seed] + 3.0 * bad)

    answer, path = search(value, lineage, 3)
    assert (answer.state, answer.candidates) == (Phase.FOUND, (4,))
    assert len(path) <= 7


def merged(n: int, number: int) -> Lineage:
    """Return a history whose branches leave a main line and join it again."""
    random = np.random.default_rng([number, 2])
    parents: list[tuple[int, ...]] = [()]
    main, branch = 0, -1
    for p in range(1, n):
        if branch >= 0 and (random.random() < 0.2 or p == n - 1):
            parents.append((main, branch))
            main, branch = p, -1
        elif random.random() < 0.4:
            parents.append((main if branch < 0 else branch,))
            branch = p
        else:
            parents.append((main,))
            main = p
    return Lineage(tuple(parents))


@pytest.mark.parametrize("number", matrix_after(2, range(10)))
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_of_two_exact_levels_in_a_merged_history_the_larger_step_is_named(
    number: int, spread: float
) -> None:
    lineage = merged(48, number)
    assert not lineage.linear
    random = np.random.default_rng(number)
    large, small = sorted(
        random.choice(48, 2, replace=False).tolist(), key=lambda _: random.random()
    )
    reached = np.array(lineage.reach([large, small]))
    of_seed = spread * random.standard_normal(80)

    def value(position: int, seed: int) -> float:
        bits = 0 if position == GOOD else reached[position]
        return 1.0 + (bits & 1) + 0.49 * (bits >> 1) + float(of_seed[seed])

    answer, path = search(value, lineage, 3)
    assert (answer.state, answer.candidates) == (Phase.FOUND, (large,))
    assert len(path) <= (21 if spread else 6)


def test_of_two_equal_steps_that_move_each_seed_differently_one_is_named() -> None:
    """The largest was asked for, which a thousand seeds would not have told; then the first."""
    of_seed = np.random.default_rng(1).standard_normal((3, 80))

    def value(position: int, seed: int) -> float:
        moves = (1.0 + 0.1 * of_seed[i, seed] for i, at in enumerate((20, 44)) if position >= at)
        return float(of_seed[2, seed] + sum(moves))

    answer, path = search(value, Lineage.line(64), 3)
    assert answer.state is Phase.FOUND
    assert answer.leader in (20, 44)
    assert len(path) <= 20


@pytest.mark.parametrize("number", range(4))
def test_a_rise_of_which_half_falls_again_is_named_by_seeds_that_agree(number: int) -> None:
    """ema-pytorch: .12, 2.30, 1.27, and all bits anew at each. It took three times this."""
    first = int(np.random.default_rng(number).integers(8, 56))

    def value(position: int, seed: int) -> float:
        level = (position >= first) + (position > first)
        noise = np.random.default_rng([number, level, seed]).standard_normal()
        return (0.12, 2.3, 1.27)[level] + 0.02 * float(noise)

    answer, path = search(value, Lineage.line(64), 0)
    assert (answer.state, answer.leader) == (Phase.FOUND, first)
    assert len(path) <= 14


def test_four_more_seeds_are_tried_in_pairs_before_nothing_is_said_to_have_changed() -> None:
    of_seed = np.random.default_rng(3).standard_normal(40)
    answer, path = search(lambda p, s: float(of_seed[s]), Lineage.line(64), 2)
    assert answer.state is Phase.NOTHING_CHANGED
    assert sorted(path) == [(p, s) for p in (GOOD, 63) for s in range(2, 6)]
    # Of changes 7 : 3, which touch a share of the seeds ~ Beta(1, 0.3): so often they spare six.
    spared = (1 - np.random.default_rng(0).beta(1, 0.3, 200_000)) ** 6
    assert answer.no_change == pytest.approx(0.3 / (0.3 + 0.7 * spared.mean()), abs=0.005)
    touched = lambda p, s: float(of_seed[s] + 5.0 * (s == 4 and p >= 30))  # noqa: E731
    answer, path = search(touched, Lineage.line(64), 2)
    assert (answer.state, answer.candidates) == (Phase.FOUND, (30,))


def test_a_seed_of_one_end_is_not_preferred_to_one_that_differs_between_them() -> None:
    """The value of a seed that one end has was counted beside its bits, and the search walked
    from commit to commit with a seed that the change spares."""
    good, spared, rise = np.random.default_rng(0).standard_normal(3).tolist()
    rows = [(GOOD, good, 0), (GOOD, spared, 1), (63, good + 1 + abs(rise), 0), (31, spared, 1)]
    question, evidence = Question(Lineage.line(64)), Evidence(tuple(Reading(*r) for r in rows))
    choice = choose(question, evidence, posterior(question, evidence))
    assert choice is not None and choice.seed == 0


def test_a_commit_that_was_read_with_a_spared_seed_is_read_with_another() -> None:
    """It counted as read, and nothing else parts the last two candidates: left open."""
    spared, good, bad = np.random.default_rng(0).standard_normal(3).tolist()
    rows = [(p, spared, 0) for p in (GOOD, 37, 63)]
    rows += [(p, good if p < 37 else good + 2 + abs(bad), 2) for p in (GOOD, 36, 38, 63)]
    question, evidence = Question(Lineage.line(64)), Evidence(tuple(Reading(*r) for r in rows))
    choice = choose(question, evidence, posterior(question, evidence))
    assert choice is not None and (choice.position, choice.seed) == (37, 2)


@pytest.mark.matrix
def test_a_new_draw_of_all_bits_is_located_and_then_settled_by_further_seeds() -> None:
    """Of twelve draws of no shift two are named: bits that change once mostly move the level."""
    drawn = np.random.default_rng(0).standard_normal((2, 400))
    for shift in (3.0, 0.0):
        answer, path = search(
            lambda p, s, d=shift: float(drawn[int(p >= 20), s] + d * (p >= 20)),
            Lineage.line(32), 3, most=40,
        )  # fmt: skip
        assert (answer.state is Phase.FOUND) == bool(shift)
        assert answer.leader == 20
        inner = [position for position, _ in path if position not in (GOOD, 31)]
        assert len(inner) == len(set(inner)) <= 6  # one look each: their bits say the rest


def test_an_exact_change_below_the_floor_is_not_named() -> None:
    of_seed = np.random.default_rng(3).standard_normal(40)
    answer, _ = search(
        lambda p, s: float(of_seed[s] + 0.1 * (p >= 9)), Lineage.line(16), 3, floor=1.0
    )
    assert answer.state is not Phase.FOUND


def test_the_seeds_of_a_class_are_those_of_all_that_repeat_each_other() -> None:
    readings = [
        Reading(GOOD, 0.0, 0, 1),
        Reading(3, 0.0, 0, 1),
        Reading(3, 0.4, 1, 2),
        Reading(5, 0.4, 1, 2),
        Reading(7, 0.9, 0, 3),
    ]
    assert equal_bits.alike(readings, 5) == {GOOD, 3, 5}
    assert equal_bits.alike(readings, 7) == {7}


def test_counts_that_no_two_seeds_share_are_rounded_all_the_same() -> None:
    """liblinear: one value of one seed at five commits was taken for five draws of one level, as
    sure as no rounded value is, and "nothing changed" went from 28 to 100 % by the last of them."""
    rows = [(GOOD, 23, 0), (GOOD, 22, 1), (GOOD, 25, 2), (GOOD, 30, 3), (113, 26, 0), (113, 22, 1)]
    rows += [(27, 22, 1), *((at, 26, 0) for at in (56, 27, 13, 6))]
    evidence = Evidence(tuple(Reading(at, float(count), seed) for at, count, seed in rows))
    answer = posterior(Question(Lineage.line(114), floor=1.15), evidence)
    assert answer.state is Phase.SEARCHING and answer.no_change < 0.7


def test_positions_that_share_bits_are_of_one_level_before_those_that_share_none() -> None:
    """cmaes: commit 20 was read with another seed than those around it, and counted among the
    level before it. So the small step at 8 seemed to be the large one, and was named."""
    good, bad, small = (0.2, -0.5), (0.5, 0.1), 1e-5
    rows = [(GOOD, good[0], 0), (GOOD, good[1], 1), (29, bad[0], 0), (29, bad[1], 1)]
    rows += [(5, good[0] - small, 0), (5, good[1] - small, 1), (20, bad[1], 1), (22, bad[0], 0)]
    rows += [(p, good[0] + small, 0) for p in (8, 15)]
    evidence = Evidence(tuple(Reading(*row) for row in rows))
    answer = posterior(Question(Lineage.line(30)), evidence)
    assert answer.is_exact
    assert answer.probability[16:21].sum() > 0.5  # it was 0.000


def test_seeds_that_rounding_moved_by_far_less_than_the_floor_say_that_nothing_changed() -> None:
    """liblinear: two seeds in four computed other bits, 2e-15 apart. It was open after 60 trials:
    a normal distribution of so few pairs does not rule out the floor."""
    values = np.random.default_rng(5).uniform(5, 10, 4).tolist()
    moved = [0.0, 0.0, 2e-15, -2e-15]
    rows = [(GOOD, value, seed) for seed, value in enumerate(values)]
    rows += [
        (10, value + by, seed) for seed, (value, by) in enumerate(zip(values, moved, strict=True))
    ]
    evidence = Evidence(tuple(Reading(*row) for row in rows))
    answer = posterior(Question(Lineage.line(11), floor=0.03), evidence)
    assert answer.is_exact and answer.no_change > 0.95
    assert posterior(Question(Lineage.line(11)), evidence).no_change < 0.95


@pytest.mark.matrix
def test_that_a_commit_changes_the_bits_of_every_seed_does_not_speak_against_it() -> None:
    """Six searches took 56 trials: a change that touches all counted as an unlikely one, and new
    draws of all bits did not."""
    trials = 0
    for number in range(6):
        of_seed, apart = np.random.default_rng(number).standard_normal((2, 400))
        answer, path = search(
            lambda p, s, one=of_seed, by=apart: float(one[s] + (p >= 20) * (0.5 + 0.2 * by[s])),
            Lineage.line(32), 2,
        )  # fmt: skip
        assert (answer.state, answer.leader) == (Phase.FOUND, 20)
        trials += len(path)
    assert trials <= 50


@pytest.mark.matrix
def test_a_seed_that_is_equal_at_both_ends_needs_no_trial_at_the_levels_between() -> None:
    """Two steps that moved one seed took up to 27 trials: that no other seed moved at them was not
    taken from the ends."""
    counts, trials = (17, 15, 28, 13, 21, 19), 0
    for first, last, size in ((20, 90, 16), (50, 60, 12), (70, 100, 9)):
        answer, path = search(
            lambda p, s, at=(first, last), by=size: float(
                counts[s % 6] + (s % 6 == 2) * (by * (p >= at[0]) + 8 * (p >= at[1]))
            ),
            Lineage.line(128), 4,
        )  # fmt: skip
        assert (answer.state, answer.leader in (first, last)) == (Phase.FOUND, True)
        trials += len(path)
    assert trials <= 34  # they were 47


def test_where_bits_repeat_a_doubt_is_settled_at_the_ends_before_the_place() -> None:
    """liblinear: rounding below the floor was located first, for 8 trials of 16 before "nothing
    changed"."""
    random = np.random.default_rng(2)
    of_seed, moved = random.uniform(5, 8, 40), 5e-3 * random.standard_normal(40)
    answer, path = search(
        lambda p, s: float(of_seed[s] + (p >= 77) * moved[s]), Lineage.line(128), 2, floor=0.03
    )
    assert answer.state is Phase.NOTHING_CHANGED
    assert len(path) <= 5  # they were 9


def test_places_that_all_were_read_are_told_apart_by_levels_alone() -> None:
    """After 203 trials "about 1 trial more" was expected: two commits had drawn every value anew,
    and which of them moved the level, if one did, took as many again."""
    drawn = np.random.default_rng(2).standard_normal((3, 40))
    readings = [
        Reading(place, float(drawn[(place >= 5) + (place >= 9), seed] + 0.3 * (place >= 5)), seed)
        for seed in range(30)
        for place in (GOOD, 15, *(4, 5, 8, 9) * (seed < 4))
    ]
    question, evidence = Question(Lineage.line(16), floor=0.1), Evidence(tuple(readings))
    answer = posterior(question, evidence)
    assert answer.state is Phase.SEARCHING and answer.is_exact
    assert set(answer.candidates) <= {5, 9}
    assert expected_trials(question, evidence, answer) > 20
