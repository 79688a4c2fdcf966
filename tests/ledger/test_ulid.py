"""ULIDs sort by time, do not repeat, and come out the same from the same seed."""

from __future__ import annotations

from random import Random, SystemRandom

from hypothesis import given
from hypothesis import strategies as st

from celedger.ledger import ulid


def test_the_published_example_of_the_time_part() -> None:
    # https://github.com/ulid/spec: 1469918176385 ms begins "01ARYZ6S41"
    assert ulid.new(1469918176.385, Random(1)).startswith("01ARYZ6S41")


@given(st.lists(st.floats(0, 2**38), min_size=2, max_size=30))
def test_a_later_one_sorts_after_an_earlier_one(moments: list[float]) -> None:
    made = [ulid.new(moment, SystemRandom()) for moment in sorted(moments)]
    assert all(ulid.is_valid(one) for one in made)
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_the_same_seed_makes_the_same_ulids() -> None:
    def three() -> list[str]:
        random = Random(7)
        return [ulid.new(moment, random) for moment in (5.0, 6.0, 7.0)]

    assert three() == three()


def test_what_is_no_ulid_is_told_apart() -> None:
    assert not ulid.is_valid("01ARYZ6S41")
    assert not ulid.is_valid("8" + "0" * 25)  # beyond 128 bits
    assert not ulid.is_valid("0" * 25 + "I")
