"""Measure how far two tensors are apart, and whether rounding alone would explain it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from celedger.lab.diagnose.trace import Tensor

# The distance from 1 to the next number (IEEE 754; bfloat16 has 8 bits of significand).
EPSILON = {
    "float64": 2.0**-52, "complex128": 2.0**-52, "float32": 2.0**-23, "complex64": 2.0**-23,
    "float16": 2.0**-10, "bfloat16": 2.0**-7, "float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2,
}  # fmt: skip
# A sum of n terms in another order differs by up to n units of its last place, in the root mean
# square by about √n (Higham, "Accuracy and Stability", 2nd ed., §4.2): 64 units is n = 4096.
ROUNDING_UNITS = 64.0
# Of a thousand comparisons of equal distributions one exceeds 4.5 standard errors twice in 150
# runs.
_SURPRISE = 4.5


@dataclass(frozen=True, slots=True)
class Distance:
    """The distance of b from a, over the recorded elements. `relative` and `units` are of the
    norm."""

    dtypes: tuple[str, str]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    finite: tuple[bool, bool]
    largest: float = math.inf  # |b - a|, inf where one is finite and the other is not
    relative: float = math.inf  # ‖b - a‖ / ‖a‖
    cosine: float = math.nan  # 1: the same direction
    share: float = 1.0  # of the elements that differ, 0..1
    units: float = math.inf  # relative, in the distance from 1 to the wider type's next number
    compared: int = 0  # elements
    ratio: float = math.nan  # the one factor between them, NaN if there is none

    @property
    def rounding(self) -> bool:
        """Return True if another order of the same additions would explain the distance."""
        return self.dtypes[0] == self.dtypes[1] and self.units <= ROUNDING_UNITS


def distance(a: Tensor, b: Tensor) -> Distance:
    """Compare tensors of any shape; if the sizes differ, only type and shape are compared."""
    finite = (a.finite, b.finite)
    kinds, shapes = (a.dtype, b.dtype), (a.shape, b.shape)
    values_a, values_b = a.values, b.values
    if len(values_a) != len(values_b) or not len(values_a) or a.size != b.size:
        return Distance(kinds, shapes, finite)
    share = float(((values_a != values_b) & ~(np.isnan(values_a) & np.isnan(values_b))).mean())
    both = np.isfinite(values_a) & np.isfinite(values_b)
    x, y = values_a[both], values_b[both]
    broken = bool((np.isfinite(values_a) != np.isfinite(values_b)).any()) or finite[0] != finite[1]
    size_x, size_y, far = (float(np.linalg.norm(part)) for part in (x, y, y - x))
    relative = math.inf if broken or (far and not size_x) else far / size_x if size_x else 0.0
    eps = max(EPSILON.get(a.dtype, 0.0), EPSILON.get(b.dtype, 0.0))
    return Distance(
        kinds, shapes, finite,
        largest=math.inf if broken else float(np.abs(y - x).max(initial=0.0)), relative=relative,
        cosine=float(x @ y) / (size_x * size_y) if size_x and size_y else math.nan, share=share,
        units=relative / eps if eps else (math.inf if share else 0.0), compared=len(values_a),
        ratio=_factor(x, y),
    )  # fmt: skip


def _factor(x: np.ndarray, y: np.ndarray) -> float:
    """Return the number c with y = c x to the last digits of single precision, if there is one
    other than 1."""
    if not len(x) or not x.any():
        return math.nan
    c = float(x @ y) / float(x @ x)
    if abs(c - 1.0) < 1e-5:
        return math.nan
    return c if np.allclose(y, c * x, rtol=1e-5, atol=1e-6 * float(np.abs(y).max())) else math.nan


def first_distance(a: Sequence[Tensor], b: Sequence[Tensor]) -> Distance | None:
    """Return the distance of the first two tensors that differ."""
    pairs = zip(a, b, strict=False)
    return next((distance(x, y) for x, y in pairs if not x.same(y)), None)


def relative_error(a: Sequence[Tensor], b: Sequence[Tensor]) -> float:
    """Return ‖b - a‖ / ‖a‖ of several tensors together; NaN where their sizes differ."""
    above = below = 0.0
    for x, y in zip(a, b, strict=False):
        if len(x.values) != len(y.values) or x.size != y.size:
            return math.nan
        below += float(np.nansum(x.values**2))
        if not x.same(y):
            with np.errstate(invalid="ignore", over="ignore"):
                gap = y.values - x.values
            if not np.isfinite(gap).all():
                return math.inf
            above += float(gap @ gap)
    return math.sqrt(above / below) if below else (math.inf if above else 0.0)


class Spread(NamedTuple):
    mean: float
    deviation: float
    values: int


def spread(tensor: Tensor) -> Spread:
    values = tensor.values[np.isfinite(tensor.values)]
    if not len(values):
        return Spread(math.nan, math.nan, 0)
    return Spread(float(values.mean()), float(values.std()), len(values))


def same_distribution(a: Tensor, b: Tensor) -> bool:
    """Return True if two tensors may be draws of one distribution: their means and standard
    deviations agree within sampling error (the deviation's relative error is √((κ-1)/4n), κ the
    kurtosis)."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    spread_a, spread_b = spread(a), spread(b)
    n = min(spread_a.values, spread_b.values)
    if n < 2 or not spread_a.deviation or not spread_b.deviation:
        return spread_a.deviation == spread_b.deviation and spread_a.mean == spread_b.mean
    pooled = math.hypot(spread_a.deviation, spread_b.deviation)
    if abs(spread_a.mean - spread_b.mean) > _SURPRISE * pooled / math.sqrt(n):
        return False
    values = np.concatenate([a.values / spread_a.deviation, b.values / spread_b.deviation])
    centred = values - values.mean()
    kurtosis = float(np.mean(centred**4) / np.mean(centred**2) ** 2)
    error = math.sqrt(max(kurtosis - 1.0, 0.2) / (2 * n))
    return abs(math.log(spread_b.deviation / spread_a.deviation)) <= _SURPRISE * error
