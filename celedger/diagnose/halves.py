"""What half precision does to a training's gradients, and the loss scale that keeps them.

Scaling the loss multiplies every gradient before it is rounded (Micikevicius et al. 2018,
arXiv:1710.03740, section 3.2), so it saves gradients that float16 would make zero. It cures nothing
that the forward pass loses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from celedger.diagnose.watched import LOWEST, Watched

LARGEST = 65504.0  # of float16: (2 - 2^-10) * 2^15
ENOUGH = 100  # values, before a share of them says anything
# float16 keeps multiples of 2^-24 and bfloat16 of 2^-133; half of that or less is rounded to zero.
ZERO = {"float16": -25, "bfloat16": -134}


@dataclass(frozen=True, slots=True)
class Scale:
    """`best`: the largest power of two that keeps every gradient seen finite in float16; None
    where no gradient was seen. `in_use`: what the training's gradient scaler had last (1: none).
    Shares are of non-zero gradients that float16 makes zero at scale 1, in use and at the best."""

    best: float | None
    in_use: float
    largest: float  # gradient seen, of the unscaled loss
    flushed: float
    flushed_in_use: float
    flushed_at_best: float
    flushed_bfloat16: float


def loss_scale(training: Watched) -> Scale:
    """From all gradients of activations and of parameters in the steps looked at."""
    largest = 0.0
    in_use = 1.0
    for step in training.steps:
        in_use = step.scale
        if step.skipped and step.scale > 1:
            continue
        rows = [r for r in step.gradients() if math.isfinite(r.size)]
        for row in rows:
            # A scaler unscales the parameters' gradients where it steps; those of activations stay.
            largest = max(largest, row.size / (step.scale if row.kind == "gradient" else 1.0))
        if step.loss_dtype == "float16":
            largest = max(
                largest, 1.0
            )  # the loss's own gradient, which is the scale, must be finite
    best = 2.0 ** math.floor(math.log2(LARGEST / largest)) if largest > 0 else None
    counts = _gradients(training, in_use)
    return Scale(
        best, in_use, largest, _below(counts, ZERO["float16"]),
        _below(counts, ZERO["float16"] - _log2(in_use)),
        _below(counts, ZERO["float16"] - _log2(best or 1.0)), _below(counts, ZERO["bfloat16"]),
    )  # fmt: skip


def _gradients(training: Watched, in_use: float) -> list[int]:
    """The histogram of all gradients of the unscaled loss."""
    parameters = list(training.counts.get("parameter", ()))
    shift = _log2(in_use)
    activations = list(training.counts.get("gradient", ()))
    moved = activations[shift:] + [0] * shift if activations else []
    if not parameters or not moved:
        return parameters or moved
    return [a + b for a, b in zip(parameters, moved, strict=True)]


def _below(counts: Sequence[int], exponent: int) -> float:
    total = sum(counts)
    return sum(counts[: max(0, exponent - LOWEST)]) / total if total else math.nan


def _log2(scale: float) -> int:
    return max(0, round(math.log2(scale)))
