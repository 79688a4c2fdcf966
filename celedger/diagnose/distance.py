"""How far two tensors are from each other, and what rounding alone would explain."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from celedger.diagnose.trace import Tensor

# The distance from 1 to the next number (IEEE 754; bfloat16 has 8 bits of significand).
EPSILON = {
    "float64": 2.0**-52, "complex128": 2.0**-52, "float32": 2.0**-23, "complex64": 2.0**-23,
    "float16": 2.0**-10, "bfloat16": 2.0**-7, "float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2,
}  # fmt: skip
# A sum of n terms in another order differs by up to n units of its last place, in the root mean
# square by about √n (Higham, "Accuracy and Stability", 2nd ed., §4.2): 64 units is n = 4096.
ROUNDING_UNITS = 64.0


@dataclass(frozen=True, slots=True)
class Distance:
    """Of b from a, over the elements that were kept: `relative` and `units` are of the norm."""

    largest: float  # |b - a|, inf where one is finite and the other is not
    relative: float  # ‖b - a‖ / ‖a‖
    cosine: float  # 1: the same direction
    share: float  # of the elements that differ, 0..1
    units: float  # relative, in the distance from 1 to the next number of the wider type's
    compared: int  # elements
    ratio: float  # the one factor between them, NaN where there is none
    dtypes: tuple[str, str]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    finite: tuple[bool, bool]

    @property
    def rounding(self) -> bool:
        """Whether another order of the same additions would explain it."""
        return self.dtypes[0] == self.dtypes[1] and self.units <= ROUNDING_UNITS


def distance(a: Tensor, b: Tensor) -> Distance:
    """Between tensors of whatever shape; of different sizes only type, shape and norm count."""
    finite = (a.finite, b.finite)
    kinds, shapes = (a.dtype, b.dtype), (a.shape, b.shape)
    left, right = a.values, b.values
    if len(left) != len(right) or not len(left) or a.size != b.size:
        return Distance(
            math.inf, math.inf, math.nan, 1.0, math.inf, 0, math.nan, kinds, shapes, finite
        )
    unequal = (left != right) & ~(np.isnan(left) & np.isnan(right))
    share = float(unequal.mean())
    both = np.isfinite(left) & np.isfinite(right)
    x, y = left[both], right[both]
    gap = np.abs(y - x)
    broken = bool((np.isfinite(left) != np.isfinite(right)).any()) or finite[0] != finite[1]
    largest = math.inf if broken else float(gap.max(initial=0.0))
    size_x, size_y = float(np.linalg.norm(x)), float(np.linalg.norm(y))
    far = float(np.linalg.norm(y - x))
    relative = math.inf if broken or (far and not size_x) else far / size_x if size_x else 0.0
    cosine = float(x @ y) / (size_x * size_y) if size_x and size_y else math.nan
    eps = max(EPSILON.get(a.dtype, 0.0), EPSILON.get(b.dtype, 0.0))
    units = relative / eps if eps else (math.inf if share else 0.0)
    return Distance(
        largest, relative, cosine, share, units, len(left), _factor(x, y), kinds, shapes, finite
    )


def _factor(x: np.ndarray, y: np.ndarray) -> float:
    """The number c with y = c x to the last digits of single precision, if there is one."""
    if not len(x) or not x.any():
        return math.nan
    c = float(x @ y) / float(x @ x)
    return c if np.allclose(y, c * x, rtol=1e-5, atol=1e-6 * float(np.abs(y).max())) else math.nan


@dataclass(frozen=True, slots=True)
class Spread:
    mean: float
    deviation: float
    count: int


def spread(tensor: Tensor) -> Spread:
    values = tensor.values[np.isfinite(tensor.values)]
    if not len(values):
        return Spread(math.nan, math.nan, 0)
    return Spread(float(values.mean()), float(values.std()), len(values))


# Of a thousand comparisons of equal laws one exceeds 4.5 standard errors twice in 150 runs.
_SURPRISE = 4.5


def same_law(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors may be draws of one law: their means and standard deviations agree
    within sampling error (the deviation's relative error is √((κ-1)/4n), κ the kurtosis)."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    left, right = spread(a), spread(b)
    n = min(left.count, right.count)
    if n < 2 or not left.deviation or not right.deviation:
        return left.deviation == right.deviation and left.mean == right.mean
    pooled = math.hypot(left.deviation, right.deviation)
    if abs(left.mean - right.mean) > _SURPRISE * pooled / math.sqrt(n):
        return False
    values = np.concatenate([a.values / left.deviation, b.values / right.deviation])
    kurtosis = float(
        np.mean((values - values.mean()) ** 4) / np.mean((values - values.mean()) ** 2) ** 2
    )
    error = math.sqrt(max(kurtosis - 1.0, 0.2) / (2 * n))
    return abs(math.log(right.deviation / left.deviation)) <= _SURPRISE * error
