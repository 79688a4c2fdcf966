"""Whatever finite values a metric takes, a search gives an answer, and no warning."""

from __future__ import annotations

import numpy as np
import pytest

from celedger.stats.choice import choose, expected_trials
from celedger.stats.firstbad import Evidence, NoisePrior, Question, Reading, posterior
from celedger.stats.lineage import GOOD, Lineage
from celedger.stats.tails import t_tail

KINDS = {
    "usual": lambda x: x,
    "huge": lambda x: 1e300 * x,
    "largest": lambda x: np.where(x > 0, -1.7e308, 1.7e308),
    "denormal": lambda x: 1e-310 * np.round(8 * x),
    "constant": lambda x: np.full_like(x, 1.5),
    "cauchy": lambda x: 1e6 * np.tan(np.clip(x, -1.5, 1.5)),
    "rounding": lambda x: 1 + 2.0**-52 * np.round(4 * x),
    "counts": lambda x: np.round(2 * x),
    "diverged": lambda x: np.where(x > 1, 1e308, x),
    "zero": np.zeros_like,
    "exponential": lambda x: np.exp(40 * x),
    "two values": lambda x: np.arange(len(x)) % 2.0,
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by_session", [False, True])
def test_no_finite_reading_breaks_a_search(kind: str, by_session: bool) -> None:
    cases = (*range(4), 103) if by_session else (*range(12), 103)
    for case in cases:  # 103: the range of the largest values is no number
        random = np.random.default_rng([case, list(KINDS).index(kind)])
        n = int(random.choice([1, 2, 3, 8, 20, 64]))
        places = [GOOD] * int(random.integers(1, 5)) + [n - 1] * int(random.integers(1, 4))
        places += random.integers(-1, n, int(random.integers(0, 25))).tolist()
        values = KINDS[kind](random.standard_normal(len(places)))
        if random.random() < 0.3:  # both sides repeat exactly
            values = np.array([values[0] if p < n // 2 else values[-1] for p in places])
        seeds = random.integers(0, 4, len(places)).tolist()
        if random.random() < 0.4 and not by_session:
            seeds = [None] * len(places)
        sd, dof = random.choice([0, 1e-300, 1e-12, 0.3, 1e6, 1e300]), random.choice([2, 7, np.inf])
        noise = NoisePrior(float(sd), float(dof))
        question = Question(
            Lineage.line(n),
            noise=None if random.random() < 0.4 else noise,
            floor=float(random.choice([0, 0, 1e-300, 0.5, 1e300])),
            selected=(2, 2) if random.random() < 0.2 else (0, 0),
            session=0 if by_session else None,
        )
        rows = zip(places, values.tolist(), seeds, strict=True)
        evidence = Evidence(tuple(Reading(*row) for row in rows))
        answer = posterior(question, evidence)
        assert answer.probability.sum() == pytest.approx(1), case
        assert 0 <= answer.no_change <= 1, case
        choose(question, evidence, answer)
        assert not np.isnan(expected_trials(question, evidence, answer)), case
        _, low, high = answer.effect_range
        assert low <= high or np.isnan(answer.effect), case


def test_a_diverged_loss_has_a_p_value() -> None:
    assert t_tail(1e200, 5.0) == t_tail(float("inf"), 5.0) == 0


@pytest.mark.matrix
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("floor", [0.0, 6.0])
def test_many_readings_of_a_staircase_break_no_search(floor: float) -> None:
    random = np.random.default_rng(1)  # so many that no model of equal seeds is likely
    levels = {GOOD: 300, 0: 302, 1: 302, 2: 304, 3: 304, 4: 306, 7: 308}
    evidence = Evidence(
        tuple(
            Reading(place, level + random.normal(0, 0.6), seed)
            for place, level in levels.items()
            for seed in range(150 if place in (GOOD, 7) else 60)
        )
    )
    question = Question(Lineage.line(8), noise=NoisePrior(0.6, 40), floor=floor)
    answer = posterior(question, evidence)
    assert answer.probability.sum() == pytest.approx(1)
    choose(question, evidence, answer)
