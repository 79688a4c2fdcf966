"""ULIDs sort by time, do not repeat, and come out the same from the same seed."""

from __future__ import annotations

import multiprocessing
import re
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
    assert all(re.fullmatch("[0-7][0-9A-HJKMNP-TV-Z]{25}", one) for one in made)
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def test_the_same_seed_makes_the_same_ulids() -> None:
    def three() -> list[str]:
        random = Random(7)
        return [ulid.new(moment, random) for moment in (5.0, 6.0, 7.0)]

    assert three() == three()


def test_processes_that_are_forked_do_not_make_the_same() -> None:
    ulid.new(5.0, Random(1))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        made = pool.starmap(ulid.new, [(5.0, Random(seed)) for seed in (2, 3)], chunksize=1)
    assert len(set(made)) == 2
