"""The search finds the parts that matter, and asks for few sets."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from celedger.judge.bisection.rehearsal import smallest_set


def asked(count: int, wanted: set[int], **more: object) -> tuple[frozenset[int], int]:
    tests = []

    def has_effect(parts: frozenset[int]) -> bool:
        tests.append(parts)
        return wanted <= parts

    return smallest_set(count, has_effect, **more), len(tests)  # type: ignore[arg-type]


@given(st.integers(2, 12).flatmap(
    lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1, max_size=3))
))  # fmt: skip
def test_what_matters_together_is_the_answer(case: tuple[int, set[int]]) -> None:
    count, wanted = case
    found, tests = asked(count, wanted)
    assert found == wanted
    assert tests <= len(wanted) * (math.ceil(math.log2(count)) + 1)


def test_one_part_is_all_there_is() -> None:
    assert asked(1, {0}) == ({0}, 0)


def test_a_right_guess_takes_one_test_and_a_wrong_one_costs_one() -> None:
    assert asked(12, {7}, guesses=[7, 3]) == ({7}, 1)
    found, tests = asked(12, {7}, guesses=[3, 4])
    assert (found, tests <= 2 + 5) == ({7}, True)


def test_what_cannot_be_tested_has_no_effect() -> None:
    found = smallest_set(4, lambda parts: None if 0 not in parts else 2 in parts)
    assert found == {0, 2}
