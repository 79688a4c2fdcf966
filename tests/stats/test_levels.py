"""The grids that follow the readings give what a plain sum over a huge fixed grid gives."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from celedger.stats.firstbad import (
    NONE_PRIOR,
    Evidence,
    NoisePrior,
    Question,
    Reading,
    posterior,
)
from celedger.stats.levels import SHIFT_MEDIAN, SHIFT_SPREAD
from celedger.stats.likelihood import NOISES, TAIL_SCALE
from celedger.stats.lineage import GOOD, Lineage


def plainly(values: dict[int, list[float]], n: int, noise: NoisePrior) -> tuple[np.ndarray, float]:
    """(n,) posterior given a change, and of no change: an independent, slow sum."""
    level = np.linspace(-5, 8, 200)
    step = level[1] - level[0]
    evidence, none = np.zeros(n), 0.0
    for nu, share, weight in NOISES:
        for sd in np.exp(np.linspace(np.log(0.15), np.log(8), 70)):
            scale = sd if np.isinf(nu) else sd * TAIL_SCALE
            # scaled inverse chi-square on the variance; the grid is even in log sd
            known = sd**-noise.dof * np.exp(-noise.dof / 2 * (noise.sd / sd) ** 2)
            site = {}
            for position, some in values.items():
                x = np.array(some)[:, None]
                if np.isinf(nu):
                    cover = scale**2 * ((1 - share) * np.eye(len(x)) + share)
                    site[position] = stats.multivariate_normal(cov=cover).pdf((x - level).T)
                else:
                    site[position] = stats.t(nu, scale=scale).pdf(x - level).prod(axis=0)
                site[position] = np.reshape(site[position], -1)
            shift = (level[None, :] - level[:, None]) / sd
            prior = stats.lognorm(SHIFT_SPREAD, scale=SHIFT_MEDIAN).pdf(shift) / sd
            for b in range(n):
                good = np.prod([f for p, f in site.items() if p < b], axis=0)
                bad = np.prod([f for p, f in site.items() if p >= b], axis=0)
                evidence[b] += weight * known * (good @ prior @ bad) * step**2
            none += weight * known * np.prod(list(site.values()), axis=0).sum() * step
    total = evidence.mean() * (1 - NONE_PRIOR) + none * NONE_PRIOR
    return evidence / evidence.sum(), none * NONE_PRIOR / total


@pytest.mark.parametrize(
    "values",
    [
        {GOOD: [0.1, -0.4, 0.3], 2: [1.0], 3: [2.4, 1.6], 5: [2.2, 1.9]},
        {GOOD: [0.1, -0.4], 1: [0.5], 4: [0.2], 5: [0.9, 0.4]},
        {GOOD: [0.0, 0.6, -0.5, 0.2], 1: [3.9], 3: [0.1, 0.3], 5: [1.4, 0.8, 1.1]},
    ],
)
def test_the_moving_grids_agree_with_a_plain_sum(values: dict[int, list[float]]) -> None:
    noise = NoisePrior(0.6, 4.0)
    expected, none = plainly(values, 6, noise)
    readings = tuple(Reading(p, v) for p, some in values.items() for v in some)
    answer = posterior(Question(Lineage.line(6), noise=noise), Evidence(readings))
    assert answer.probability == pytest.approx(expected, abs=0.01)
    assert answer.no_change == pytest.approx(none, abs=0.01)
