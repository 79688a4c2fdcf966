"""The evidence for an improvement, and the bound over a chain of tries."""

from __future__ import annotations

import numpy as np
import pytest

from celedger.stats import two_sides


@pytest.mark.parametrize("freedom", [4, 12])
@pytest.mark.parametrize("x", [-2.0, 3.0])
def test_the_evidence_is_the_ratio_of_the_marginal_densities(x: float, freedom: int) -> None:
    """By numerical integration over effect and noise, with the prior 1/sd. Constants cancel."""
    v = 2 / 3
    sd, effect = np.geomspace(0.02, 12, 1001), np.linspace(0, 24, 2401)[:, None]
    spread = sd ** -(freedom + 2.0) * np.exp(-freedom / (2 * sd**2))  # of a measured sd of 1

    def marginal(effect: float | np.ndarray) -> np.ndarray:
        normal = np.exp(-((x - effect * sd) ** 2) / (2 * v * sd**2))
        return np.asarray(np.trapezoid(normal * spread, sd, axis=-1))

    half_normal = (
        (2 / np.pi) ** 0.5 / two_sides.SPREAD * np.exp(-((effect / two_sides.SPREAD) ** 2) / 2)
    )
    over = np.trapezoid(marginal(effect) * half_normal[:, 0], effect[:, 0])
    assert two_sides.evidence(x, v, 1.0, freedom) == pytest.approx(over / marginal(0.0), rel=1e-3)


def test_no_evidence_without_noise_that_is_known() -> None:
    assert two_sides.evidence(1.0, 1.0, 0.0, 10) == 0
    assert two_sides.evidence(1.0, 1.0, 1.0, 0) == 0
    assert two_sides.evidence(float("nan"), 1.0, 1.0, 10) == 0


@pytest.mark.parametrize(("seeds", "freedom"), [(1, 4), (3, 8), (5, 30)])
def test_at_most_one_chain_of_null_edits_in_twenty_is_ever_accepted(
    seeds: int, freedom: int
) -> None:
    """Chains of twenty tries, each a new draw of all seeds, against one measurement of HEAD, at one
    estimate of the noise: what a chain shares. 400 chains; the bound is 5 %."""
    rng = np.random.default_rng(33)
    accepted, naive, chains = 0, 0, 400
    for _ in range(chains):
        sd = float(np.sqrt(rng.chisquare(freedom) / freedom))
        head = rng.normal(size=seeds).mean()
        effects = (head - rng.normal(size=(20, seeds)).mean(axis=1)).tolist()
        accepted += any(
            two_sides.evidence(effect, 2 / seeds, sd, freedom) >= two_sides.needed(number, 1)
            for number, effect in enumerate(effects, 1)
        )
        naive += any(effect > 1.96 * sd * (2 / seeds) ** 0.5 for effect in effects)
    assert accepted <= 0.05 * chains
    assert naive > 0.15 * chains  # what the bound is for


def test_a_real_improvement_is_seen_at_the_seventh_try() -> None:
    rng = np.random.default_rng(33)
    seen = sum(
        two_sides.evidence(6 + rng.normal() * (2 / 3) ** 0.5, 2 / 3, 1.0, 20)
        >= two_sides.needed(7, 3)
        for _ in range(200)
    )
    assert seen > 0.8 * 200
