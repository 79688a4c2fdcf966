"""Whether several commits in a row, one or two made a metric worse."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from celedger.stats.choice import choose
from celedger.stats.firstbad import Evidence, Phase, Posterior, Question, Reading, posterior, slope
from celedger.stats.lineage import GOOD, Lineage

AT = np.repeat(np.array([-1, 5, 10, 15, 18, 20, 22, 24, 26, 28, 30, 35, 45, 63]), 3)
ALL = np.zeros(len(AT), dtype=np.int64)
PRIOR = np.ones(64)


def read(levels: np.ndarray, number: int, sd: float = 1.0) -> np.ndarray:
    return levels + sd * np.random.default_rng([number, 21]).standard_normal(len(AT))


@pytest.mark.parametrize("number", range(4))
def test_an_even_rise_is_told_from_one_step_and_from_two(number: int) -> None:
    rise = slope(AT, read(6 * np.clip((AT - 16) / 12, 0, 1), number, 0.4), ALL, PRIOR, 0.95)
    assert rise is not None and rise.probability > 0.9
    assert rise.after <= 16 and rise.by >= 28
    for steps in (6.0 * (AT >= 22), 3.0 * (AT >= 15) + 3.0 * (AT >= 28)):
        other = slope(AT, read(steps, number, 0.4), ALL, PRIOR, 0.95)
        assert other is not None and other.probability < 0.5


def test_readings_of_one_seed_share_a_level() -> None:
    seeds = np.tile(np.arange(3), len(AT) // 3)
    values = read(3 * np.clip((AT - 16) / 12, 0, 1), 1, sd=0.3) + np.array([0.0, 8.0, -8.0])[seeds]
    paired, free = (slope(AT, values, groups, PRIOR, 0.95) for groups in (seeds, ALL))
    assert paired is not None and paired.probability > 0.9
    assert free is not None and free.probability < 0.5


@pytest.mark.parametrize("values", [np.ones(len(AT)), 1e300 * (AT > 3), 1e-310 * AT])
def test_odd_values_break_nothing(values: np.ndarray) -> None:
    rise = slope(AT, values.astype(float), ALL, PRIOR, 0.95)
    assert rise is None or 0 <= rise.probability <= 1


def test_no_slope_is_told_where_none_rises() -> None:
    at = np.arange(-1, 8)
    values = np.array([5.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0])
    assert slope(at, values, np.zeros(9, dtype=np.int64), np.ones(8), 0.95) is None


def bisected(level: np.ndarray, number: int) -> tuple[Posterior, int]:
    """Search a line with five stored trials at the ends; return the answer and its trials."""
    random = np.random.default_rng([number, 22])
    n = len(level)

    def reading(at: int, seed: int) -> Reading:
        mean = 0.0 if at == GOOD else float(level[at])
        return Reading(at, mean + float(random.standard_normal()), seed)

    readings = [reading(p, s) for p in (GOOD, n - 1) for s in range(5)]
    question = Question(Lineage.line(n))
    for trials in range(100):
        evidence = Evidence(tuple(readings))
        answer = posterior(question, evidence)
        choice = choose(question, evidence, answer)
        if choice is None:
            return answer, trials
        used = {r.seed for r in readings if r.position == choice.position}
        seed = next(s for s in count() if s not in used)
        readings.append(reading(choice.position, seed))
    return answer, 100


def test_a_search_ends_at_a_slope_and_names_a_step() -> None:
    level = 8 * np.clip((np.arange(64) - 19) / 12, 0, 1)
    answer, trials = bisected(level, 0)
    assert answer.state is Phase.GRADUAL and trials < 40
    assert answer.candidates[0] <= 20 and answer.candidates[-1] >= 30
    answer, _ = bisected(4.0 * (np.arange(64) >= 25), 0)
    assert (answer.state, answer.leader) == (Phase.FOUND, 25)
