"""What equal and other bits of a training's first steps say of the first bad commit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celedger.stats.choice import choose
from celedger.stats.equal_bits import MOST_SHOWN, SignedRange, shows
from celedger.stats.firstbad import Evidence, Phase, Question, Reading, posterior
from celedger.stats.lineage import GOOD, Lineage

N = 32


def signed(
    digests: dict[int, str], lineage: Lineage | None = None, *, chance: float = 0.8, n: int = N
) -> SignedRange:
    return SignedRange(lineage or Lineage.line(n), digests, np.ones(n), chance)


def test_nothing_signed_says_nothing() -> None:
    assert signed({}).prior() == pytest.approx(np.ones(N))


def test_neighbours_that_differ_are_likely_and_a_quiet_stretch_is_not() -> None:
    prior = signed({GOOD: "a", 9: "a", 10: "b", N - 1: "b"}).prior()
    assert prior[10] / N == pytest.approx(0.8)
    others = np.delete(prior, 10)
    assert others == pytest.approx(others[0])
    assert prior.mean() == pytest.approx(1)


def test_equal_ends_leave_every_commit_as_likely_as_before() -> None:
    assert signed({GOOD: "a", N - 1: "a"}).prior() == pytest.approx(np.ones(N))


def test_bits_of_a_good_commit_return_with_the_revert_of_another() -> None:
    """What lies between two commits of equal bits is not it, whatever lay between them."""
    prior = signed({GOOD: "a", 4: "b", 9: "a", 10: "c", N - 1: "c"}).prior()
    assert prior[10] > 20 * prior[4]


def test_one_who_was_often_wrong_is_trusted_less() -> None:
    assert shows(0, 0) == pytest.approx(0.65)
    assert shows(0, 10) == pytest.approx(0.325)
    assert shows(1000, 0) == MOST_SHOWN


def test_a_commit_that_cannot_be_the_first_bad_one_has_no_part() -> None:
    weights = np.ones(N)
    weights[10] = 0.0
    prior = SignedRange(
        Lineage.line(N), {GOOD: "a", 9: "a", 11: "b", N - 1: "b"}, weights, 0.8
    ).prior()
    assert prior[11] / (weights @ prior) == pytest.approx(0.8, abs=0.01)


def test_the_ends_come_first_and_then_what_halves_the_range() -> None:
    flat = np.full(N, 1 / N)
    assert signed({}).next(flat) is not None
    assert (signed({}).next(flat) or ())[0] == GOOD
    assert (signed({GOOD: "a"}).next(flat) or ())[0] == N - 1
    middle, bits = signed({GOOD: "a", N - 1: "b"}).next(flat) or (0, 0.0)
    assert abs(middle - N / 2) <= 2
    assert 0 < bits < 1
    assert signed({GOOD: "a", N - 1: "a"}).next(flat) is None


def test_after_trainings_the_ends_of_what_is_left_are_signed() -> None:
    left = np.zeros(N)
    left[20:24] = 0.25
    asked: dict[int, str] = {}
    for _ in range(2):
        position, _ = signed(asked).next(left) or (0, 0.0)
        asked[position] = str(position)
    assert set(asked) == {19, 23}


def test_where_most_commits_change_bits_no_more_are_signed() -> None:
    digests = {p: str(p) for p in range(GOOD, 20)}
    digests[N - 1] = "end"
    flat = np.full(N, 1 / N)
    _, bits = signed({GOOD: "a", N - 1: "b"}).next(flat) or (0, 0.0)
    _, few = signed(digests).next(flat) or (0, 0.0)
    assert few < bits / 4


@given(
    st.lists(st.booleans(), min_size=3, max_size=24),
    st.sets(st.integers(0, 23), max_size=8),
    st.integers(0, 10**6),
)
@settings(max_examples=60, deadline=None)
def test_signing_ends_on_any_history(moved: list[bool], closed: set[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    n = len(moved)
    merged = [
        tuple(sorted({i - 1, int(random.integers(i))})) if i and random.random() < 0.3
        else (() if i == 0 else (i - 1,))
        for i in range(n)
    ]  # fmt: skip
    lineage = Lineage(tuple(merged))
    digest = {GOOD: "0"} | {i: str(sum(moved[: i + 1])) for i in range(n)}
    q = random.dirichlet(np.ones(n))
    shut = {c for c in closed if c < n}
    asked: dict[int, str] = {}
    for _ in range(n + 2):
        range_ = SignedRange(lineage, asked, np.ones(n), 0.8, shut)
        prior = range_.prior()
        assert np.isfinite(prior).all()
        assert (prior >= 0).all()
        step = range_.next(q)
        if step is None:
            break
        assert step[0] not in asked
        assert step[0] not in shut
        asked = {**asked, step[0]: digest[step[0]]}
    else:
        raise AssertionError("it signs without end")


@pytest.mark.matrix
@pytest.mark.parametrize(("shown", "most"), [(True, 4.5), (False, 12.0)])
def test_a_search_trains_less_where_it_shows_and_is_right_where_it_does_not(
    shown: bool, most: float
) -> None:
    """64 commits of which one in fifty changes bits, 4 sd; 7.5 trainings without signatures."""
    n, lineage, trained, wrong = 64, Lineage.line(64), [], 0
    for case in range(12):
        random = np.random.default_rng(case)
        bad = int(random.integers(n))
        moved = random.random(n) < 0.02
        moved[bad] = shown
        digests = np.append(np.cumsum(moved), 0).astype(str)
        readings = [
            Reading(p, level + float(random.standard_normal()))
            for p, level in ((GOOD, 0.0), (n - 1, 4.0)) for _ in range(6)
        ]  # fmt: skip
        asked: dict[int, str] = {}
        for _ in range(100):
            range_ = SignedRange(lineage, asked, np.ones(n), 0.8)
            question = Question(lineage, prior=range_.prior().tolist())
            belief = posterior(question, Evidence(tuple(readings)))
            choice = choose(question, Evidence(tuple(readings)), belief)
            if choice is None:
                break
            step = range_.next(belief.probability) if choice.gain else None
            if step is not None and step[1] / 3 > choice.gain / 100:
                asked = {**asked, step[0]: digests[step[0]]}
            else:
                level = 4.0 if choice.position >= bad else 0.0
                reading = Reading(choice.position, level + float(random.standard_normal()))
                readings.append(reading)
        assert belief.state is Phase.FOUND
        wrong += belief.leader != bad
        trained.append(len(readings) - 12)
    assert np.mean(trained) <= most
    assert wrong <= 1
