"""Tails and quantiles against scipy's."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import special

from celedger.stats import tails

DOFS = (1.0, 2.0, 3.7, 12.0, 150.0, 450.0, 30_000.0)


@pytest.mark.parametrize(("d1", "d2"), list(itertools.product(DOFS, DOFS)))
def test_f(d1: float, d2: float) -> None:
    for x in (1e-6, 0.1, 0.9, 1.0, 1.3, 5.0, 80.0, 1e4):
        expected = special.fdtrc(d1, d2, x)
        if expected > 1e-290:
            assert tails.f_tail(x, d1, d2) == pytest.approx(expected, rel=1e-8)
    for p in (1e-6, 0.025, 0.5, 0.9):
        assert special.fdtrc(d1, d2, tails.f_quantile(p, d1, d2)) == pytest.approx(p, rel=1e-7)


@pytest.mark.parametrize("dof", [*DOFS, 1e9])
def test_t_and_chi_square(dof: float) -> None:
    for t in (0.0, 0.3, 2.0, 7.0, 25.0):
        assert tails.t_tail(t, dof) == pytest.approx(special.stdtr(dof, -t), rel=2e-6)
    for p in (0.5, 0.75, 0.975, 1 - 1e-6):
        assert tails.t_quantile(p, dof) == pytest.approx(special.stdtrit(dof, p), rel=1e-7)
    for p in (1e-5, 0.5, 0.99) if dof <= 150 else ():
        assert tails.chi_square_quantile(p, dof) == pytest.approx(special.chdtri(dof, p), rel=1e-5)


def test_the_normal_distribution() -> None:
    z = np.concatenate([np.linspace(-12.0, 12.0, 4001), [-1e300, 1e300]])
    assert tails.normal_cumulative(z) == pytest.approx(special.ndtr(z), abs=1e-12)


@pytest.mark.parametrize(("a", "b"), [(0.05, 5.0), (0.5, 0.5), (2.0, 2.0), (40.0, 0.3)])
def test_the_beta_distribution(a: float, b: float) -> None:
    for x in (0.0, 1e-4, 0.3, 0.9, 0.9999, 1.0):
        assert tails.beta_cumulative(x, a, b) == pytest.approx(special.betainc(a, b, x), rel=1e-9)


def test_the_gamma_function() -> None:
    x = np.array([[0.5, 2.5], [2.5, 700.0]])
    assert tails.log_gamma(x) == pytest.approx(special.gammaln(x), rel=1e-13)
