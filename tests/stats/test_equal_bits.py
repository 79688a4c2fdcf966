"""What trials that were stopped at equal bits may say, and how much."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celedger.stats import equal_bits
from celedger.stats.equal_bits import DOUBT
from celedger.stats.firstbad import Evidence, Phase, Question, Reading, posterior
from celedger.stats.lineage import GOOD, Lineage

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
    seen = equal_bits.view(QUESTION, ENDS)
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
    seen = equal_bits.view(QUESTION, ENDS, (alike,))
    last = max(places)
    out = seen.posterior.probability[: last + 1].sum()
    assert out == pytest.approx(DOUBT * (last + 1) / N, rel=1e-6)
    assert seen.trusting.probability[: last + 1].sum() == pytest.approx(0, abs=1e-12)


def test_however_many_stopped_trials_agree_whole_ones_have_the_last_word() -> None:
    alike = tuple(frozenset({GOOD, *range(5)}) for _ in range(40))
    seen = equal_bits.view(QUESTION, ENDS, alike)
    assert seen.posterior.leader > 4
    # whole trials say that it changed before
    contrary = Evidence((*ENDS.readings, *readings({3: 0.0, 4: 6.0}, each=3, seed=1)))
    overruled = equal_bits.view(QUESTION, contrary, alike)
    assert overruled.posterior.leader == 4
    assert overruled.posterior.probability[5:].sum() < 0.05


def test_a_commit_is_named_only_after_whole_trials_of_it_and_its_parent() -> None:
    alike = (frozenset({GOOD, 3, 7}), frozenset({8, 12, N - 1}))
    evidence = ENDS
    for position, level in ((7, 0.0), (8, 6.0)):
        seen = equal_bits.view(QUESTION, evidence, alike)
        assert seen.posterior.state is Phase.SEARCHING
        pick = equal_bits.pick(QUESTION, evidence, seen)
        assert pick is not None and pick.whole
        assert pick.position == position
        more = readings({position: level}, each=1, seed=position)
        evidence = Evidence((*evidence.readings, *more))
    seen = equal_bits.view(QUESTION, evidence, alike)
    assert seen.posterior.state is Phase.FOUND
    assert seen.posterior.candidates == (8,)
    assert equal_bits.pick(QUESTION, evidence, seen) is None


def test_the_last_trial_that_parts_two_commits_is_one_that_the_answer_needs() -> None:
    alike = (frozenset({GOOD, 3, 6}), frozenset({8, 12, N - 1}))
    pick = equal_bits.pick(QUESTION, ENDS, equal_bits.view(QUESTION, ENDS, alike))
    assert pick is not None and pick.position == 7 and pick.whole
    before = (frozenset({GOOD, 3, 4}), alike[1])  # of four it is needed every other time
    pick = equal_bits.pick(QUESTION, ENDS, equal_bits.view(QUESTION, ENDS, before))
    assert pick is not None and pick.position == 6 and pick.whole
    before = (frozenset({GOOD, 2}), alike[1])
    pick = equal_bits.pick(QUESTION, ENDS, equal_bits.view(QUESTION, ENDS, before))
    assert pick is not None and pick.position in (4, 5) and not pick.whole


def test_contradicting_bits_leave_a_posterior() -> None:
    alike = (frozenset({GOOD, 9}), frozenset({3, N - 1}))
    seen = equal_bits.view(QUESTION, ENDS, alike)
    assert seen.posterior.probability.sum() == pytest.approx(1)
    assert np.isfinite(seen.trusting.probability).all()


def test_values_that_rounding_parts_are_made_equal() -> None:
    values = {GOOD: (1.0, 5.0), 3: (1.0 + 1e-9, 5.0 - 1e-6), 5: (1.4, 5.2), 9: (1.4 - 1e-9, 5.2)}
    rows = [(p, v, s, 10 * p + s) for p, own in values.items() for s, v in enumerate(own)]
    readings = equal_bits.joined([Reading(*row) for row in rows], 9)
    place = {(r.position, r.seed): (r.value, r.draw) for r in readings}
    for seed in (0, 1):
        assert place[GOOD, seed] == place[3, seed] != place[5, seed] == place[9, seed]
    slope = [Reading(p, p * 1e-4, 0, p) for p in range(-1, 10)]  # no chain joins its ends
    assert equal_bits.joined(slope, 9) == tuple(slope)


def test_what_rounding_is_is_told_by_the_seed_that_moves_most() -> None:
    """One seed of two moved by 1 between the ends, the other by 5e-13: each rounding of the first
    was a level of its own, and a search was open after 60 trials."""
    rows = [(GOOD, 5.17, 0), (GOOD, 4.46, 1), (4, 4.46 + 4e-13, 1)]
    rows += [(9, 5.17 + 5e-13, 0), (9, 5.46, 1)]
    rows += [(GOOD, 4.1, 2), (9, np.inf, 2)]  # nothing is small beside what is not finite
    readings = equal_bits.joined([Reading(*row) for row in rows], 9)
    assert [r.value for r in readings] == [5.17, 4.46, 4.46, 5.17, 5.46, 4.1, np.inf]
