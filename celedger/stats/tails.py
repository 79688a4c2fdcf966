"""Tails and quantiles of the F distribution, and so of Student's t and of chi-square; the normal
and the beta distribution.

scipy has them, too; but it is 139 MB of an installation, and importing `scipy.special` costs as
much processor time as all the rest of `celedger show` on a ledger of thousands of commits. Relative
errors are below 1e-7; those of chi-square, which only cuts off outliers, below 1e-5 up to 150
degrees of freedom (tests/stats/test_tails.py compares with scipy).
"""

from __future__ import annotations

import math
from functools import cache, lru_cache
from statistics import NormalDist

import numpy as np

from celedger.stats import Floats

NORMAL = 1e7
"""Degrees of freedom from which a variance counts as known."""
EXPANDED = 200
"""Degrees of freedom from which five terms around the normal quantile are exact to 1e-8."""
HUGE = 1e290
"""Values beyond it have no probability left."""
_TINY = 1e-300
_STEP, _REACH = 1 / 256, 10.0
"""Of the table of the normal distribution. A cubic through values and slopes errs by at most
h^4 / 384 of the largest fourth derivative (1.4): 1e-12. Beyond ±10 lies less than 1e-23."""


def f_tail(x: float, d1: float, d2: float) -> float:
    """Return P(F > x) for `d1` and `d2` degrees of freedom."""
    return _beta(d2, d1 * min(x, HUGE), d2 / 2, d1 / 2) if x > 0 else 1.0


@lru_cache(maxsize=4096)  # the metrics of a task are mostly measured by the same trials
def f_quantile(p: float, d1: float, d2: float) -> float:
    """Return the x with P(F > x) = p.

    Newton's method on the logarithms of p and x, in a bracket.
    """
    a, b = d1 / 2, d2 / 2
    constant = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(d1 / d2)
    low, high, log_x = -300.0, 300.0, 0.0
    while True:
        x = math.exp(log_x)
        tail = f_tail(x, d1, d2)
        if tail > p:
            low = log_x
        else:
            high = log_x
        log_density = constant + a * log_x - (a + b) * math.log1p(d1 / d2 * x)  # of log x
        step = 0.0
        if tail > _TINY:
            step = math.log(tail / p) * tail / math.exp(max(log_density, -650.0))
        following = log_x + min(max(step, -2.0), 2.0)
        if not low < following < high:
            following = (low + high) / 2
        if abs(following - log_x) < 1e-11:
            return math.exp(following)
        log_x = following


def t_tail(t: float, dof: float) -> float:
    """Return P(T > t) for t >= 0."""
    return f_tail(t * t, 1.0, min(dof, NORMAL)) / 2


def t_quantile(p: float, dof: float) -> float:
    """Return the t with P(T < t) = p, for p >= 1/2."""
    if p <= 0.5:
        return 0.0
    if dof < EXPANDED:
        return math.sqrt(f_quantile(2 * (1 - p), 1.0, dof))
    z = NormalDist().inv_cdf(p)
    terms = (  # Abramowitz & Stegun 26.7.5
        z,
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum(term / dof**power for power, term in enumerate(terms))


def chi_square_quantile(p: float, dof: float) -> float:
    """Return the x that a chi-square value exceeds with probability p."""
    return dof * f_quantile(p, dof, NORMAL)


def beta_cumulative(x: float, a: float, b: float) -> float:
    """Return P(X < x) of the beta distribution, for 0 <= x <= 1."""
    return float(x) if x in (0.0, 1.0) else _beta(x, 1 - x, a, b)


def normal_cumulative(z: Floats) -> Floats:
    """Return P(Z < z) of the normal distribution, to 1e-12."""
    values, slopes = _normal_table()
    place = np.clip((z + _REACH) / _STEP, 0.0, len(values) - 1.0)
    left = np.minimum(place.astype(np.int64), len(values) - 2)
    t = place - left
    rise = values[left + 1] - values[left]
    enters, leaves = slopes[left] * _STEP - rise, rise - slopes[left + 1] * _STEP
    result: Floats = values[left] + t * (rise + (1 - t) * (enters * (1 - t) + leaves * t))
    return result


@cache
def _normal_table() -> tuple[Floats, Floats]:
    """Return the cumulative distribution and its density, from -_REACH to _REACH."""
    points = np.arange(-_REACH, _REACH + _STEP / 2, _STEP)
    values = np.array([math.erfc(-x / math.sqrt(2)) / 2 for x in points.tolist()])
    return values, np.exp(-0.5 * points**2) / math.sqrt(2 * math.pi)


def log_gamma(x: Floats) -> Floats:
    """Return the logarithm of the gamma function, of few distinct values."""
    distinct, index = np.unique(x, return_inverse=True)
    values = np.array([math.lgamma(value) for value in distinct.tolist()])
    result: Floats = values[index].reshape(np.shape(x))
    return result


def _beta(u: float, v: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function at x = u / (u + v): given as a ratio, an x
    near 1 keeps its digits. The continued fraction is DLMF 8.17.22, evaluated by Lentz's method.
    """
    if u * (b + 1) > v * (a + 1):  # x > (a + 1) / (a + b + 2): the fraction converges slowly
        return 1 - _beta(v, u, b, a)
    x = u / (u + v)
    front = a * math.log(x) + b * (math.log(v) - math.log(u + v))
    front += math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        d = 1 / _away(1 + even * d)
        c = _away(1 + even / c)
        value *= c * d
        d = 1 / _away(1 + odd * d)
        c = _away(1 + odd / c)
        value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value * math.exp(front) / a


def _away(x: float) -> float:
    """Return x, kept away from 0 by as little as matters nowhere."""
    return x if abs(x) > _TINY else _TINY


def t_test(effect: float, error: float, dof: float) -> float:
    """Return the two-sided p-value of an effect with its standard error."""
    if error == 0:
        return 1.0 if effect == 0 else 0.0
    return min(1.0, 2 * t_tail(abs(effect) / error, min(dof, 1e6)))
