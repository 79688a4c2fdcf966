"""The posterior of the first bad commit, and the bisects that follow from it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from conftest import matrix_after
from hypothesis import example, given
from hypothesis import strategies as st

from celedger.stats.choice import DOUBTED, Cost, choose, expected_trials
from celedger.stats.firstbad import (
    Evidence,
    NoisePrior,
    Phase,
    Posterior,
    Question,
    Reading,
    posterior,
    presumed,
)
from celedger.stats.levels import SURE_EXACT, SURE_REPEATED
from celedger.stats.lineage import GOOD, Lineage


def bisect(
    question: Question,
    read: Callable[[int], float],
    *,
    broken: frozenset[int] = frozenset(),
    readings: tuple[Reading, ...] = (),
    cost: Cost | None = None,
    most: int = 200,
) -> tuple[Posterior, list[int]]:
    """Drive a whole bisect; returns its answer and the positions that were asked for."""
    known, untestable, path = list(readings), set[int](), list[int]()
    while True:
        evidence = Evidence(tuple(known), frozenset(untestable))
        answer = posterior(question, evidence)
        choice = choose(question, evidence, answer, cost)
        if choice is None or len(path) >= most:
            return answer, path
        path.append(choice.position)
        at = question.at(choice.position)
        if at in broken:
            untestable.add(at)
        else:
            known.append(Reading(at, read(at)))


def noisy(first_bad: int, shift: float, seed: int) -> Callable[[int], float]:
    source = random.Random(seed)
    return lambda position: shift * (position >= first_bad) + source.gauss(0, 1)


# --- whole bisects -----------------------------------------------------------------------------


def test_the_ends_are_asked_for_first() -> None:
    _, path = bisect(Question(Lineage.line(64)), noisy(20, 8, 0))
    assert path[:3] == [GOOD, GOOD, 63]


@pytest.mark.parametrize("first_bad", [0, 1, 63, 700, 1022, 1023])
def test_a_sure_crash_takes_one_reading_a_halving_and_a_few_more(first_bad: int) -> None:
    question = Question(Lineage.line(1024), binary=True)
    answer, path = bisect(question, lambda position: float(position >= first_bad))
    assert (answer.state, answer.candidates) == (Phase.FOUND, (first_bad,))
    assert len(path) <= 3 + 10 + 9  # where only the last commit crashes, it may be by chance
    assert answer.effect > 0.9 and np.isnan(answer.noise)


def test_where_crashes_may_prove_themselves_the_leader_is_asked_for_them() -> None:
    """Once the place is clear, one prior says "always" at no cost, and one asks for two more."""
    stored = tuple(Reading(p, float(p == 7)) for p in (GOOD, GOOD, GOOD, 7, 7, 7))
    inside = (Reading(3, 0.0), Reading(5, 1.0), Reading(4, 1.0))
    question = Question(Lineage.line(8), binary=True, asked=3, sure=SURE_EXACT)
    evidence = Evidence(stored + inside)
    assert posterior(question, evidence).state is Phase.FOUND
    question = replace(question, sure=SURE_REPEATED, unproven=2)
    answer = posterior(question, Evidence((*evidence.readings, Reading(4, 1.0))))
    assert (answer.state, answer.leader) == (Phase.SEARCHING, 4)
    asked = choose(question, evidence, answer)
    assert asked is not None and asked.position == 4


def test_a_flaky_crash_is_found() -> None:
    source = random.Random(3)
    question = Question(Lineage.line(64), binary=True)
    answer, _ = bisect(question, lambda p: float(p >= 40 and source.random() < 0.5))
    assert answer.state is Phase.FOUND and 40 in answer.candidates


@pytest.mark.matrix
def test_a_crash_that_comes_every_other_time_is_not_laid_on_a_later_commit() -> None:
    """Three crashes of the bad end made somebody ask: they are no evidence that it is sure."""
    wrong = 0
    for case in range(30):
        source = np.random.default_rng([case, 5])
        first_bad = int(source.integers(32))

        def read(p: int, s: np.random.Generator = source, b: int = first_bad) -> float:
            return float(p >= b and s.random() < 0.5)

        stored = tuple(Reading(p, float(p == 31)) for p in (GOOD, 31) for _ in range(3))
        question = Question(Lineage.line(32), binary=True, asked=3)
        answer, _ = bisect(question, read, readings=stored)
        wrong += answer.state is Phase.FOUND and answer.leader != first_bad
    assert wrong <= 4  # at 5 % wrong, more than 4 of 30 has probability 1.6 %


def test_an_exact_metric_takes_one_reading_a_halving_and_none_twice() -> None:
    drift = np.cumsum(1e-7 * np.random.default_rng(1).standard_normal(1024))
    answer, path = bisect(
        Question(Lineage.line(1024)),
        lambda p: 3.0 + 0.5 * (p >= 300) + (0.0 if p == GOOD else float(drift[p])),
    )
    assert (answer.state, answer.candidates) == (Phase.FOUND, (300,))
    assert len(path) <= 3 + 10 + 1
    assert len(set(path)) == len(path) - 1  # only the good end is read twice


def test_a_jitter_in_the_last_digits_is_not_taken_for_the_change() -> None:
    def read(position: int) -> float:
        return 1.0 + (1e-9 if position >= 20 else 0.0) + (0.25 if position >= 40 else 0.0)

    answer, _ = bisect(Question(Lineage.line(64)), read)
    assert answer.candidates == (40,)
    assert answer.effect == pytest.approx(0.25, rel=0.05)


def test_an_infinite_metric_is_searched_as_a_crash() -> None:
    answer, path = bisect(
        Question(Lineage.line(256)), lambda p: np.inf if p >= 77 else 1 + 0.1 * np.sin(p)
    )
    assert (answer.state, answer.candidates) == (Phase.FOUND, (77,))
    assert len(path) <= 3 + 8 + 5  # two of its readings show that it is no flaky one


def test_a_commit_that_diverges_alone_is_not_blamed_for_a_finite_change() -> None:
    noise = noisy(40, 8, 5)
    answer, _ = bisect(Question(Lineage.line(64)), lambda p: np.nan if p == 31 else noise(p))
    assert answer.state is Phase.FOUND and answer.candidates == (40,)


@pytest.mark.parametrize("shift", [-30.0, -3.0])
def test_a_change_for_the_better_is_not_named(shift: float) -> None:
    answer, path = bisect(Question(Lineage.line(64)), noisy(20, shift, 1))
    assert answer.state is Phase.NOTHING_CHANGED
    assert len(path) < 30


def test_a_range_in_which_nothing_changed_is_said_to_be_so() -> None:
    known = tuple(Reading(p, random.Random(p).gauss(0, 1)) for p in (GOOD, 63) for _ in range(2))
    answer, _ = bisect(Question(Lineage.line(64)), noisy(0, 0, 2), readings=known, most=400)
    assert answer.state is Phase.NOTHING_CHANGED
    answer, path = bisect(Question(Lineage.line(64)), lambda _: 1.5)
    assert answer.state is Phase.NOTHING_CHANGED and len(path) <= 5


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_crash_that_never_or_always_happens_is_no_change(value: float) -> None:
    answer, path = bisect(Question(Lineage.line(64), binary=True), lambda _: value)
    assert answer.state is Phase.NOTHING_CHANGED and len(path) < 40


def test_of_two_changes_the_larger_is_named() -> None:
    noise = noisy(40, 6, 3)
    answer, _ = bisect(Question(Lineage.line(64)), lambda p: noise(p) + 2.0 * (p >= 15))
    assert answer.state is Phase.FOUND and answer.candidates == (40,)


def test_a_change_below_the_floor_is_nothing_worth_naming() -> None:
    read = noisy(20, 2, 4)
    answer, _ = bisect(Question(Lineage.line(32), floor=1.0), read)
    assert answer.state is Phase.FOUND
    answer, _ = bisect(Question(Lineage.line(32), floor=6.0), read)
    assert answer.state is Phase.NOTHING_CHANGED


def test_where_only_untestable_commits_separate_the_answer_is_the_set() -> None:
    broken = frozenset({30, 31, 32})
    for binary, shift in ((False, 8.0), (True, 1.0)):
        question = Question(Lineage.line(64), binary=binary)
        read = (lambda p: float(p >= 31)) if binary else noisy(31, shift, 1)
        answer, path = bisect(question, read, broken=broken)
        assert answer.state is Phase.SET
        assert answer.candidates == (30, 31, 32, 33)
        assert all(path.count(p) <= 1 for p in broken)


def test_untestable_commits_elsewhere_do_no_harm() -> None:
    broken = frozenset(range(5, 60, 7))
    answer, path = bisect(Question(Lineage.line(64)), noisy(30, 8, 1), broken=broken)
    assert answer.state is Phase.FOUND and answer.candidates == (30,)
    assert len(path) < 20


def test_commits_equal_to_an_untestable_one_are_untestable_too() -> None:
    place = [25 if 25 <= p < 40 else p for p in range(64)]  # of each only one trial is run
    prior = [float(at == p) for p, at in enumerate(place)]
    question = Question(Lineage.line(64), place=place, prior=prior)
    assert question.hidden(Evidence(untestable=frozenset({25, 50}))) == {*range(25, 40), 50}
    assert not question.hidden(Evidence((Reading(25, 1.0),), frozenset({25})))
    answer, path = bisect(question, noisy(45, 8, 1), broken=frozenset({25}))
    assert (answer.state, answer.candidates) == (Phase.FOUND, (45,))
    assert sum(25 <= p < 40 for p in path) <= 1
    assert len(path) < 20


def test_a_side_branch_is_searched_through_its_merge() -> None:
    # 0 - 1 - 2 ------- 7 - 8
    #       \\ 3-4-5-6 /          the first bad commit is 4
    lineage = Lineage(((), (0,), (1,), (1,), (3,), (4,), (5,), (2, 6), (7,)))
    source = random.Random(1)
    reached = lineage.reach([4])
    answer, path = bisect(
        Question(lineage), lambda p: 8.0 * (p != GOOD and reached[p] > 0) + source.gauss(0, 1)
    )
    assert answer.state is Phase.FOUND and answer.candidates == (4,)
    assert {3, 4} <= set(path)  # culprit and parent were measured


def test_untestable_merge_parents_make_a_set_on_a_history_with_merges() -> None:
    lineage = Lineage(((), (0,), (0,), (1, 2), (3,)))
    answer, _ = bisect(
        Question(lineage, binary=True), lambda p: float(p >= 3), broken=frozenset({1, 2})
    )
    assert answer.state is Phase.SET and answer.candidates == (1, 2, 3)


def test_an_untestable_fork_is_seen_through_its_branch() -> None:
    # 0 - 1 ----- 3 - 4      1 cannot be tested, and what it breaks 2 shows as well as 3
    #      \\ 2 /
    lineage = Lineage(((), (0,), (1,), (1, 2), (3,)))
    answer, _ = bisect(
        Question(lineage, binary=True), lambda p: float(p >= 1), broken=frozenset({1})
    )
    assert answer.state is Phase.SET and answer.candidates == (1, 2)


def test_stored_readings_are_used_and_cheap_commits_preferred() -> None:
    stored = tuple(Reading(p, 8.0 * (p == 63) + 0.3 * k) for p in (GOOD, 63) for k in range(5))
    question = Question(Lineage.line(64))
    evidence = Evidence(stored)
    answer = posterior(question, evidence)
    plain = choose(question, evidence, answer)
    built = choose(question, evidence, answer, Cost(1.0, 20.0, frozenset({22})))
    assert plain is not None and abs(plain.position - 31) <= 1
    assert built is not None and built.position == 22


def test_prior_weights_steer_the_search_but_do_not_decide_it() -> None:
    weights = [1.0] * 64
    weights[50] = 1000.0
    answer, path = bisect(Question(Lineage.line(64), prior=weights), noisy(50, 8, 0))
    assert answer.candidates == (50,) and {49, 50} <= set(path) and len(path) <= 8
    answer, path = bisect(Question(Lineage.line(64), prior=weights), noisy(12, 8, 0))
    assert answer.candidates == (12,)


def test_one_candidate_is_confirmed_by_the_ends() -> None:
    answer, path = bisect(Question(Lineage.line(1)), noisy(0, 8, 0))
    assert answer.state is Phase.FOUND and answer.candidates == (0,)
    assert {GOOD, 0} <= set(path)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", matrix_after(1, ["heavy", "normal"]))
def test_few_answers_are_wrong(kind: str) -> None:
    wrong, trials = 0, 0
    for case in range(20):
        source = np.random.default_rng(case)
        first_bad = int(source.integers(64))

        def read(p: int, s: np.random.Generator = source, b: int = first_bad) -> float:
            noise = s.standard_normal() if kind == "normal" else s.standard_t(3) / np.sqrt(3)
            return float(3.0 * (p >= b) + noise)

        stored = tuple(Reading(p, read(p)) for p in (GOOD, 63) for _ in range(5))
        answer, path = bisect(Question(Lineage.line(64)), read, readings=stored)
        wrong += answer.state is not Phase.FOUND or first_bad not in answer.candidates
        trials += len(path)
    assert wrong <= 3  # 95 % confidence: more than 3 of 20 has probability 1.6 %
    assert trials / 20 < 15


# --- the posterior itself ----------------------------------------------------------------------

values = st.floats(-3, 3, allow_nan=False).map(lambda v: round(v, 3))
readings = st.lists(st.builds(Reading, st.integers(GOOD, 15), values), max_size=12)
ENDS = (Reading(GOOD, 0.1), Reading(GOOD, -0.2), Reading(15, 2.2))
LINE = Lineage.line(16)


def known(sd: float) -> NoisePrior:
    return NoisePrior(sd, 12)


@given(readings, st.randoms(use_true_random=False))
def test_order_does_not_matter(some: list[Reading], shuffle: random.Random) -> None:
    mixed = [*ENDS, *some]
    question = Question(LINE)
    first = posterior(question, Evidence(tuple(mixed)))
    shuffle.shuffle(mixed)
    second = posterior(question, Evidence(tuple(mixed)))
    assert (first.probability == second.probability).all()
    assert first.no_change == second.no_change and first.state is second.state


@example(
    some=[*[Reading(0, 0.0)] * 4, Reading(1, 2.0), Reading(1, 0.75)], scale=0.37, shift=-5.0
).via("two readings as far above their median as below")
@given(readings, st.sampled_from([1e-6, 0.37, 40.0, 1e7]), st.sampled_from([-5.0, 0.0, 3.0]))
def test_units_do_not_matter(some: list[Reading], scale: float, shift: float) -> None:
    mixed = (*ENDS, *some)
    moved = tuple(Reading(r.position, scale * (r.value + shift)) for r in mixed)
    first = posterior(Question(LINE, noise=known(1.0)), Evidence(mixed))
    second = posterior(Question(LINE, noise=known(scale)), Evidence(moved))
    assert np.allclose(first.probability, second.probability, atol=1e-6)
    assert first.no_change == pytest.approx(second.no_change, abs=1e-6)
    assert second.effect == pytest.approx(scale * first.effect, rel=1e-5)


@given(
    st.lists(
        st.builds(
            Reading,
            st.integers(GOOD, 15),
            st.one_of(values, st.sampled_from([np.inf, np.nan, -np.inf, 0.0, 1e300, -1e300])),
            st.none() | st.integers(0, 2),
        ),
        max_size=12,
    ),
    st.booleans(),
    st.sets(st.integers(0, 14), max_size=5),
)
def test_whatever_is_read_the_answer_is_a_distribution(
    some: list[Reading], binary: bool, broken: set[int]
) -> None:
    question = Question(LINE, binary=binary, floor=0.1)
    evidence = Evidence(tuple(some), frozenset(broken))
    answer = posterior(question, evidence)
    assert answer.probability.sum() == pytest.approx(1.0)
    assert (answer.probability >= 0).all()
    assert 0 <= answer.no_change <= 1
    assert answer.leader in range(16) and answer.candidates
    choice = choose(question, evidence, answer)
    if choice is not None:
        assert choice.position == GOOD or choice.position not in broken - {r.position for r in some}
    assert expected_trials(question, evidence, answer) >= 0


def test_a_metric_that_repeats_exactly_settles_a_single_commit_by_its_ends() -> None:
    some = (Reading(GOOD, 2.0), Reading(GOOD, 2.0), Reading(0, 2.5), Reading(0, 2.5))
    assert posterior(Question(Lineage.line(1)), Evidence(some)).state is Phase.FOUND
    below = posterior(Question(Lineage.line(1), floor=1.0), Evidence(some))
    assert below.state is Phase.NOTHING_CHANGED
    assert below.within == 1  # it did, and `got no worse` was said of it without the floor


def test_more_of_the_same_evidence_for_a_commit_raises_it() -> None:
    """Direction: worse is larger, so a high reading speaks for commits at or before it."""
    question = Question(LINE, noise=known(1.0))
    low = posterior(question, Evidence((*ENDS, Reading(7, -0.5))))
    high = posterior(question, Evidence((*ENDS, Reading(7, 2.5))))
    assert low.probability[:8].sum() < 0.4 < 0.6 < high.probability[:8].sum()


def test_a_clear_effect_and_its_interval_are_told() -> None:
    source = random.Random(2)
    some = tuple(Reading(p, 5.0 * (p >= 8) + source.gauss(0, 1)) for p in range(-1, 16))
    answer = posterior(Question(LINE), Evidence(some))
    _, low, high = answer.effect_range
    assert low < 5 < high
    assert 4 < answer.effect < 6 and 0.6 < answer.noise < 1.6


def test_equal_values_of_one_seed_count_once() -> None:
    once = (*ENDS, Reading(7, 1.4, seed=3))
    often = (*once, *(Reading(7, 1.4, seed=3),) * 9)
    question = Question(LINE)
    first, second = posterior(question, Evidence(once)), posterior(question, Evidence(often))
    assert (first.probability == second.probability).all()


def test_expected_trials_grow_with_range_and_noise_and_end_at_nothing() -> None:
    def expect(n: int, shift: float) -> float:
        lineage = Lineage.line(n)
        some = tuple(
            Reading(p, shift * (p == n - 1) + q) for p in (GOOD, n - 1) for q in (-1.0, 0.0, 1.0)
        )
        evidence = Evidence(some * 3)
        question = Question(lineage)
        return expected_trials(question, evidence, posterior(question, evidence))

    assert 5 < expect(64, 8) < 10
    assert expect(64, 8) < expect(1024, 8) < expect(1024, 3) < expect(1024, 1)
    question = Question(Lineage.line(64))
    answer, _ = bisect(question, noisy(20, 8, 0))
    assert expected_trials(question, Evidence(), answer) == 0.0


def test_commits_that_repeat_one_draw_are_one_observation_on_one_side() -> None:
    """Four commits with one lucky draw are no four witnesses; and none of them parts the others."""
    ends = [Reading(GOOD, 0.0, 0, 1), Reading(GOOD, 0.3, 1, 2), Reading(9, 2.0, 0, 3)]
    lucky = [Reading(position, 0.2, 0, 4) for position in (3, 4, 5, 6)]
    question = Question(Lineage.line(10), noise=NoisePrior(1.0, 20.0))
    once = posterior(question, Evidence((*ends, lucky[0])))
    often = posterior(question, Evidence((*ends, *lucky)))
    fresh = [
        replace(r, draw=None, seed=10 + i, value=value)
        for i, (r, value) in enumerate(zip(lucky, (0.0, 0.3, 0.1, 0.4), strict=True))
    ]
    witnesses = posterior(question, Evidence((*ends, *fresh)))
    inside = sum(often.probability[4:7])
    assert inside < sum(once.probability[4:7])

    def later(answer: Posterior) -> float:
        """Odds that all of them are good, against all bad."""
        return float(answer.probability[7:].sum() / answer.probability[:4].sum())

    assert later(often) < later(witnesses)


# --- nothing changed ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_whether_anything_changed_is_asked_of_the_ends(seed: int) -> None:
    source = random.Random(seed)
    question = Question(Lineage.line(64))
    known = [Reading(p, source.gauss(0, 1)) for p in (GOOD, 63) for _ in range(10)]
    for _ in range(12):
        evidence = Evidence(tuple(known))
        answer = posterior(question, evidence)
        choice = choose(question, evidence, answer)
        if choice is None:
            break
        if answer.no_change > DOUBTED:
            assert choice.position in (GOOD, 63)
        known.append(Reading(choice.position, source.gauss(0, 1)))
    assert answer.state is not Phase.FOUND


# --- unequal priors ----------------------------------------------------------------------------


def test_of_commits_that_no_trial_can_part_the_prior_may_leave_one() -> None:
    prior = np.ones(16)
    prior[[7, 8]] = 0.0, 1e-9
    question = Question(Lineage.line(16), prior=tuple(prior))
    answer, _ = bisect(question, noisy(9, 8, 0), broken=frozenset({7, 8}))
    assert (answer.state, answer.candidates) == (Phase.FOUND, (9,))
    assert answer.probability[7] == 0


@pytest.mark.parametrize("weight", [0.0, 1e-300, 1e-12])
def test_where_only_one_commit_has_weight_it_is_measured_and_named(weight: float) -> None:
    prior = np.full(200, weight)
    prior[77] = 1.0
    answer, path = bisect(Question(Lineage.line(200), prior=tuple(prior)), noisy(77, 6, 1))
    assert (answer.state, answer.candidates) == (Phase.FOUND, (77,))
    assert len(path) < 12


def test_ends_that_surely_differ_are_never_said_to_be_alike() -> None:
    """Three levels, the middle one measured most: its spread was taken for noise."""
    middle = {
        2: (-98369, -98364, -97858), 7: (-97874, -96988), 11: (-96399, -95634), 12: (-96758,),
        13: (-98243, -97897),
    }  # fmt: skip
    ends = {GOOD: (-112239, -111667), 1: (-111830,), 19: (-44408, -44240, -43402)}
    evidence = Evidence(
        tuple(Reading(at, v) for at, values in (ends | middle).items() for v in values)
    )
    question = Question(Lineage.line(20), floor=11195.0, selected=(2, 3))
    answer = posterior(question, evidence)
    assert answer.no_change > question.confidence  # or this test asks nothing
    assert answer.state is Phase.SEARCHING
    best = choose(question, evidence, answer)
    assert best is not None
    assert best.position in (GOOD, 19)


def test_untestable_branches_of_one_merge_are_a_set_with_the_commit_before_them() -> None:
    """It was no answer at all: every trial failed, and none was left."""
    #     / 2 \\
    # 0 - 1    4 - 5      1 to 4 cannot be tested
    #     \\ 3 /
    lineage = Lineage(((), (0,), (1,), (1,), (2, 3), (4,)))
    answer, _ = bisect(
        Question(lineage, binary=True), lambda p: float(p >= 1), broken=frozenset({1, 2, 3, 4})
    )
    assert answer.state is Phase.SET and answer.candidates == (1, 2, 3, 4, 5)


def test_a_stretch_is_presumed_from_trials_that_end_alike() -> None:
    line, tried = Lineage.line(64), [30, 32, 34, 36, 42]
    endings = dict.fromkeys(tried, "make: exit status 2")
    assert presumed(line, endings, {GOOD, 20, 50, 63}) == frozenset()  # too few of 13
    endings |= {39: "make: exit status 2"}
    assert presumed(line, endings, {GOOD, 20, 50, 63}) == set(range(30, 43)) - endings.keys()
    assert not presumed(line, endings | {36: "make: exit status 1"}, {GOOD, 63})
    assert not presumed(line, endings, {GOOD, 35, 63})  # that one runs
    assert presumed(line, {}, {GOOD, 63}) == frozenset()


def test_a_group_that_wants_huge_noise_hides_no_trial_between_the_last_two_candidates() -> None:
    """Memory: 100 bytes a step before the leak, 45,000 after it. If the leak came earlier, noise is
    as large as the step: with a grid as wide as that noise no trial seemed to tell anything, and a
    commit that was known to be good ran fourteen times."""
    ends = [Reading(GOOD, v, seed) for seed, v in enumerate((100.2, 68.6, 68.6, 68.6, 68.6))]
    between = {0: 102.7, 2: 102.7, 6: 106.5, 7: 106.5, 8: 107.4, 14: 45774.6}
    evidence = Evidence((*ends, *(Reading(p, value, 0) for p, value in between.items())))
    prior = [0.02 if p in (1, 4, 5, 10, 11, 12, 13) else 1.0 for p in range(15)]
    question = Question(Lineage.line(15), noise=NoisePrior(0.0, 1.0), prior=prior, floor=1024.0)
    answer = posterior(question, evidence)
    choice = choose(question, evidence, answer)
    assert choice is not None and choice.position in range(9, 14)
    assert choice.gain > 0.5
