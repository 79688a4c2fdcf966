"""What stopped trials may say, and how much."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celedger.stats import partial
from celedger.stats.choice import Cost
from celedger.stats.firstbad import Evidence, Question, Reading, State, posterior
from celedger.stats.lineage import GOOD, Lineage
from celedger.stats.partial import ALIKE_DOUBT, RUNG_DOUBT, Partial, Rung

N = 16
QUESTION = Question(Lineage.line(N))


def readings(
    places: dict[int, float], each: int = 3, sd: float = 1.0, seed: int = 0
) -> tuple[Reading, ...]:
    random = np.random.default_rng(seed)
    return tuple(
        Reading(p, level + sd * float(random.standard_normal()), s)
        for p, level in places.items()
        for s in range(each)
    )


ENDS = Evidence(readings({GOOD: 0.0, N - 1: 6.0}, each=8))


def test_without_stopped_trials_it_is_the_posterior() -> None:
    seen = partial.view(QUESTION, ENDS, Partial())
    assert np.array_equal(seen.posterior.probability, posterior(QUESTION, ENDS).probability)


def test_another_prior_on_the_same_evidence_needs_no_second_fit() -> None:
    some = Evidence((*ENDS.readings, *readings({3: 0.0, 7: 6.0, 11: 6.0}, each=1, sd=2.0)))
    prior = np.linspace(1, 3, N)
    other = Question(Lineage.line(N), prior=tuple(prior))
    anew = posterior(other, some)
    taken_over = posterior(other, some, like=posterior(QUESTION, some))
    assert taken_over.probability == pytest.approx(anew.probability, abs=2e-3)
    assert taken_over.no_change == pytest.approx(anew.no_change, abs=2e-3)


@given(st.lists(st.integers(0, N - 2), min_size=1, max_size=8))
def test_equal_bits_rule_out_but_for_their_doubt(places: list[int]) -> None:
    alike = frozenset(places) | {GOOD}
    seen = partial.view(QUESTION, ENDS, Partial(alike=(alike,)))
    last = max(places)
    out = seen.posterior.probability[: last + 1].sum()
    assert out == pytest.approx(ALIKE_DOUBT * (last + 1) / N, rel=1e-6)
    assert seen.trusting.probability[: last + 1].sum() == pytest.approx(0, abs=1e-12)


def test_however_many_stopped_trials_agree_whole_ones_have_the_last_word() -> None:
    whole = readings({GOOD: 0.0, N - 1: 6.0}, each=8)
    stopped = readings({4: 0.0, 5: 6.0}, each=40)
    rung = Rung(2, 0.2, whole, stopped)
    seen = partial.view(QUESTION, ENDS, Partial(rungs=(rung,)))
    assert seen.posterior.leader == 5
    assert seen.posterior.state is State.SEARCHING
    assert seen.posterior.probability[5] < 1 - RUNG_DOUBT * (1 - 1 / N) + 1e-6
    assert seen.trusting.probability[5] > 0.999
    # whole trials on either side of it say that it changed elsewhere
    contrary = Evidence((*ENDS.readings, *readings({4: 6.0, 5: 6.0}, each=3, seed=1)))
    overruled = partial.view(QUESTION, contrary, Partial(rungs=(rung,)))
    assert overruled.posterior.leader <= 4
    assert overruled.posterior.probability[5] < 0.05


def test_a_commit_is_named_only_after_whole_trials_of_it_and_its_parent() -> None:
    part = Partial(alike=(frozenset({GOOD, 3, 7}), frozenset({8, 12, N - 1})))
    evidence = ENDS
    for position, level in ((7, 0.0), (8, 6.0)):
        seen = partial.view(QUESTION, evidence, part)
        assert seen.posterior.state is State.SEARCHING
        pick = partial.pick(QUESTION, evidence, part, seen)
        assert pick is not None and pick.whole
        assert pick.position == position
        more = readings({position: level}, each=1, seed=position)
        evidence = Evidence((*evidence.readings, *more))
    seen = partial.view(QUESTION, evidence, part)
    assert seen.posterior.state is State.FOUND
    assert seen.posterior.candidates == (8,)
    assert partial.pick(QUESTION, evidence, part, seen) is None


def test_a_cheap_rung_that_tells_the_sides_apart_is_used() -> None:
    rung = Rung(2, 0.2, readings({GOOD: 0.0, N - 1: 6.0}, each=8, seed=3))
    part = Partial(rungs=(rung,))
    pick = partial.pick(QUESTION, ENDS, part, partial.view(QUESTION, ENDS, part))
    assert pick is not None and not pick.whole and pick.epochs == 2


@pytest.mark.parametrize(
    "rung",
    [
        Rung(2, 0.2, readings({GOOD: 0.0, N - 1: 0.0}, each=8, seed=3)),
        Rung(2, 0.2, readings({GOOD: 6.0, N - 1: 0.0}, each=8, seed=3)),
        Rung(2, 1.0, readings({GOOD: 0.0, N - 1: 6.0}, each=8, seed=3)),
        Rung(2, 0.2, readings({GOOD: 0.0}, each=8, seed=3)),
    ],
    ids=["no difference yet", "the other way round", "saves nothing", "an end is missing"],
)
def test_a_rung_that_tells_nothing_is_left(rung: Rung) -> None:
    part = Partial(rungs=(rung,))
    pick = partial.pick(QUESTION, ENDS, part, partial.view(QUESTION, ENDS, part), Cost())
    assert pick is not None and pick.epochs is None


def test_contradicting_bits_leave_a_posterior() -> None:
    alike = (frozenset({GOOD, 9}), frozenset({3, N - 1}))
    seen = partial.view(QUESTION, ENDS, Partial(alike=alike))
    assert seen.posterior.probability.sum() == pytest.approx(1)
    assert np.isfinite(seen.trusting.probability).all()


def test_rungs_of_short_trainings_are_distinct() -> None:
    assert partial.rungs(1) == ()
    assert partial.rungs(2) == (1,)
    assert partial.rungs(16) == (1, 2, 4, 8, 12)
