"""What the probe `celedger.child.probes.watch` wrote of one training, as typed rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celedger.diagnose.trace import processes, records

LOWEST = -150  # exponent of the first bin of a histogram of magnitudes, as in the probe
FUNCTION = "-"  # where an operator ran that belongs to no module: most often the loss function


@dataclass(frozen=True, slots=True)
class TensorFigures:
    """Figures of one tensor in one step, in the order in which the training made them."""

    kind: str  # activation, gradient (of an activation) or parameter (its gradient)
    what: str  # in, out, grad; dense or sparse of a parameter
    name: str  # of the module, or of the parameter
    type: str  # the module's class
    place: str  # of the tensor in what the module took or gave
    dtype: str
    trainable: bool  # requires a gradient
    parent: str | None
    operator: str  # autograd's name of what made it
    low: float
    high: float
    zeros: float
    tiny: float
    mean: float
    rms: float
    above: float
    below: float
    mark: float

    @property
    def size(self) -> float:
        """The greatest absolute value; NaN where one is NaN."""
        if math.isnan(self.low) or math.isnan(self.high):
            return math.nan
        return max(abs(self.low), abs(self.high))

    @property
    def tensor(self) -> str:
        """`output`, `input 1`, `gradient of its output`, `gradient`."""
        said = {"in": "input", "out": "output", "grad": "gradient of its output"}
        name = said.get(self.what, "gradient")
        return f"{name} {self.place}" if self.place not in ("", "0") else name


@dataclass(frozen=True, slots=True)
class WeightChange:
    """Of a parameter in one step: L2 norm before, L2 norm and largest element of the change."""

    name: str
    before: float
    change: float
    largest: float


@dataclass(frozen=True, slots=True)
class Lost:
    """What an operator made zero in half precision, of the values that were not zero."""

    phase: str
    module: str
    operator: str
    lost: int
    at_risk: int


@dataclass(frozen=True, slots=True)
class WatchedStep:
    """A step that was looked at. `skipped`: the weights were left alone, or the training died."""

    number: int
    skipped: bool
    half: str  # the half precision in use, if any
    scale: float  # of the loss, by a gradient scaler
    rates: tuple[float, ...]
    rows: tuple[TensorFigures, ...]
    changes: tuple[WeightChange, ...]
    alike: Mapping[str, float]  # of matrices constant at first: the greatest gap between units
    units: tuple[tuple[str, int, int, int], ...]  # rectifier, since step, units, dead ones
    lost: tuple[Lost, ...]
    broke: tuple[str, str, str] | None  # phase, module, operator: the first to give no number
    batch: Mapping[str, Any] | None
    orphans: tuple[str, ...]  # parameters with a gradient that no optimiser holds
    loss_dtype: str

    def gradients(self) -> Iterator[TensorFigures]:
        return (row for row in self.rows if row.kind != "activation")


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    type: str
    shape: tuple[int, ...]
    trained: bool
    fan_in: int  # 0: not a matrix
    low: float = math.nan
    high: float = math.nan
    std: float = math.nan


@dataclass(frozen=True, slots=True)
class Watched:
    """One training, as far as it went. `counts` are histograms of magnitudes by kind of row:
    values v in bin floor(log2 |v|) - LOWEST."""

    parameters: Mapping[str, Parameter]
    optimisers: int
    losses: tuple[tuple[int, float], ...]
    steps: tuple[WatchedStep, ...]
    counts: Mapping[str, tuple[int, ...]]

    @property
    def length(self) -> int:
        return 1 + max([s for s, _ in self.losses] + [step.number for step in self.steps])

    @property
    def half(self) -> str:
        return next((step.half for step in self.steps if step.half), "")


def read(out: Path) -> list[Watched]:
    """The trainings of a diagnostic run, in the order in which they began."""
    trainings = [watched(folder) for folder in processes(out)]
    return [training for training in trainings if training is not None]


def watched(folder: Path) -> Watched | None:
    """None where no step was taken."""
    parts = list(records(folder, "watch"))
    steps = [_step(step) for part in parts for step in part["steps"]]
    losses = [(int(step), float(loss)) for part in parts for step, loss in part["losses"]]
    if not steps and not losses:
        return None
    last = parts[-1]
    return Watched(
        {name: _parameter(name, about) for name, about in last["parameters"].items()},
        last["optimisers"], tuple(losses), tuple(steps),
        {kind: tuple(counts) for kind, counts in last["counts"].items()},
    )  # fmt: skip


def _step(raw: Mapping[str, Any]) -> WatchedStep:
    operators = raw.get("operators") or {}
    broke = operators.get("broke")
    return WatchedStep(
        number=raw["step"], skipped=raw["skipped"], half=raw["half"], scale=raw["scale"] or 1.0,
        rates=tuple(raw.get("rates", ())), rows=tuple(TensorFigures(*row) for row in raw["rows"]),
        changes=tuple(WeightChange(*row) for row in raw["weights"]), alike=dict(raw["alike"]),
        units=tuple((key, since, units, dead) for key, since, units, dead in raw["units"]),
        lost=tuple(Lost(*row) for row in operators.get("lost", ())),
        broke=(broke[0], broke[1], broke[2]) if broke else None,
        batch=raw.get("batch"), orphans=tuple(raw.get("orphans", ())),
        loss_dtype=raw.get("loss_dtype", "").rpartition(".")[2],
    )  # fmt: skip


def _parameter(name: str, raw: Mapping[str, Any]) -> Parameter:
    return Parameter(
        name, raw["kind"], tuple(raw["shape"]), bool(raw.get("trained")), raw.get("fan_in", 0),
        raw.get("min", math.nan), raw.get("max", math.nan), raw.get("std", math.nan),
    )  # fmt: skip


# --- half precision
#
# Scaling the loss multiplies every gradient before it is rounded (Micikevicius et al. 2018,
# arXiv:1710.03740, section 3.2), so it saves gradients that float16 would make zero. It cures
# nothing that the forward pass loses.

LARGEST = 65504.0  # of float16: (2 - 2^-10) * 2^15
ENOUGH = 100  # values, before a share of them says anything
# float16 keeps multiples of 2^-24 and bfloat16 of 2^-133; half of that or less is rounded to zero.
ZERO = {"float16": -25, "bfloat16": -134}


@dataclass(frozen=True, slots=True)
class LossScale:
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


def loss_scale(training: Watched) -> LossScale:
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
    return LossScale(
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
