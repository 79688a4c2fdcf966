"""Read what the probe `celedger.lab.probes.watch` wrote of one training, and compute the loss
scale that its gradients need."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from celedger.lab.diagnose.trace import processes, rank_of, records

LOWEST = -150  # exponent of the first bin of a histogram of magnitudes, as in the probe
FUNCTION = "-"  # for an operator outside of modules: most often in the loss function


class TensorFigures(NamedTuple):
    """Figures of one tensor in one step, in the order in which the training computed them."""

    kind: str  # activation, gradient (of an activation) or parameter (its gradient)
    what: str  # in, out, grad; dense or sparse of a parameter
    name: str  # of the module, or of the parameter
    type: str  # the module's class
    place: str  # position of the tensor in the module's input or output
    trainable: bool  # requires a gradient
    parent: str | None
    operator: str  # autograd's name of what made it
    low: float
    high: float
    rms: float
    above: float  # the share of |x| > 0.99
    below: float  # the share of |x| < 0.01

    @property
    def size(self) -> float:
        """Return the largest absolute value; NaN if one is NaN."""
        if math.isnan(self.low) or math.isnan(self.high):
            return math.nan
        return max(abs(self.low), abs(self.high))

    @property
    def tensor(self) -> str:
        """Return `output`, `input 1`, `gradient of its output` or `gradient`."""
        names = {"in": "input", "out": "output", "grad": "gradient of its output"}
        name = names.get(self.what, "gradient")
        return f"{name} {self.place}" if self.place not in ("", "0") else name


class WeightChange(NamedTuple):
    """A parameter's change in one step: L2 norm before, L2 norm and largest element of the
    change."""

    name: str
    before: float
    change: float
    largest: float


class Lost(NamedTuple):
    """Underflow of an operator in half precision: how many of its non-zero values became zero."""

    phase: str
    module: str
    operator: str
    lost: int
    at_risk: int


@dataclass(frozen=True, slots=True)
class WatchedStep:
    """A sampled step. `skipped`: the optimiser did not step, or the training died."""

    number: int
    skipped: bool
    half: str  # the half precision in use, else empty
    scale: float  # of the loss, by a gradient scaler
    rows: Sequence[TensorFigures]
    changes: Sequence[WeightChange]
    lost: Sequence[Lost]
    # The first operator whose result is not finite: phase, module, operator, its line ("": not
    # known), and whether what it was given was not finite either.
    broke: tuple[str, str, str, str, bool] | None
    units: Sequence[tuple[str, int, int, int]]  # rectifier, since step, units, dead ones
    alike: Mapping[str, float]  # of matrices constant at first: largest difference of units
    rates: Sequence[float] = ()
    orphans: Sequence[str] = ()  # parameters with a gradient but without an optimiser
    batch: Mapping[str, Any] | None = None
    # Of each parameter, and of its gradient where it has one, the 5th, 25th, 50th, 75th and 95th
    # percentile before the step.
    spread: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    loss_dtype: str = ""

    def gradients(self) -> Iterator[TensorFigures]:
        return (row for row in self.rows if row.kind != "activation")


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    shape: Sequence[int]
    trained: bool
    fan_in: int  # 0: not a matrix
    low: float = math.nan
    high: float = math.nan
    std: float = math.nan
    met: int = 0  # the step in which an optimiser first held it
    in_module: bool = True  # else its name is an expression of the script: `params["w1"]`


@dataclass(frozen=True, slots=True)
class Watched:
    """One training, as far as it ran. `counts` are histograms of magnitudes by kind of row: values
    v in bin floor(log2 |v|) - LOWEST."""

    parameters: Mapping[str, Parameter]
    optimisers: int
    losses: Sequence[tuple[int, float]]
    steps: Sequence[WatchedStep]
    counts: Mapping[str, Sequence[int]]
    rank: str = ""  # `rank 1 of 2` of a distributed training
    # The rows of the data with the largest last losses: index, loss, step.
    samples: Sequence[tuple[int, float, int]] = ()

    def place_of(self, parameter: str, tensor: str = "") -> tuple[str, str]:
        """Return a parameter's module, and the name of the tensor within it."""
        about = self.parameters.get(parameter)
        module, _, attribute = parameter.rpartition(".")
        if about is not None and not about.in_module:
            module, attribute = FUNCTION, parameter
        return module, f"{tensor} of {attribute}" if tensor else attribute

    @property
    def length(self) -> int:
        return 1 + max([s for s, _ in self.losses] + [step.number for step in self.steps])

    @property
    def half(self) -> str:
        return next((step.half for step in self.steps if step.half), "")


def read(out: Path) -> list[Watched]:
    """Return the trainings of a diagnostic run that made a step, by their start or rank."""
    trainings = []
    for folder in processes(out):
        steps = [_step(raw) for raw in records(folder, "look")]
        parts = list(records(folder, "watch"))
        losses = [(int(step), float(loss)) for part in parts for step, loss in part["losses"]]
        if steps or losses:
            last = parts[-1]
            parameters = {n: Parameter(n, **about) for n, about in last["parameters"].items()}
            trainings.append(Watched(
                parameters, last["optimisers"], losses, steps, last["counts"], rank_of(folder),
                [(int(i), float(loss), int(step)) for i, loss, step in last.get("samples", ())],
            ))  # fmt: skip
    return trainings


def _step(look: dict[str, Any]) -> WatchedStep:
    del look["k"]
    for key, row in (("rows", TensorFigures), ("changes", WeightChange), ("lost", Lost)):
        look[key] = [row(*values) for values in look[key]]
    return WatchedStep(**look)


# --- half precision
#
# Scaling the loss multiplies every gradient before it is rounded (Micikevicius et al. 2018,
# arXiv:1710.03740, section 3.2), so it saves gradients that float16 would make zero. It does not
# help against underflow in the forward pass.

LARGEST = 65504.0  # of float16: (2 - 2^-10) * 2^15
# float16 keeps multiples of 2^-24 and bfloat16 of 2^-133; half of that or less is rounded to zero.
ZERO = {"float16": -25, "bfloat16": -134}


@dataclass(frozen=True, slots=True)
class LossScale:
    """The recommended loss scale. `recommended`: the largest power of two that keeps every recorded
    gradient finite in float16; None without gradients. `in_use`: the last scale of the training's
    gradient scaler (1: none). Shares are of non-zero gradients that float16 makes zero at scale 1,
    in use and recommended."""

    recommended: float | None
    in_use: float
    largest_gradient: float  # of the unscaled loss
    flushed: float
    flushed_in_use: float
    flushed_at_recommended: float
    flushed_bfloat16: float


def loss_scale(training: Watched) -> LossScale:
    """Recommend a scale from all recorded gradients of activations and parameters."""
    largest = 0.0
    in_use = 1.0
    for step in training.steps:
        in_use = step.scale
        if step.skipped and step.scale > 1:
            continue
        for row in step.gradients():
            if math.isfinite(row.size):
                # A scaler unscales the parameters' gradients as it steps; the others stay scaled.
                scale = step.scale if row.kind == "gradient" else 1.0
                largest = max(largest, row.size / scale)
        if step.loss_dtype == "float16":
            largest = max(largest, 1.0)  # the loss's own gradient, which is the scale
    best = 2.0 ** math.floor(math.log2(LARGEST / largest)) if largest > 0 else None
    parameters = training.counts.get("parameter", ())
    activations = training.counts.get("gradient", ())

    def flushed(dtype: str, scale: float) -> float:
        """Return the share of gradients that become zero in a type at a scale."""
        bins = ZERO[dtype] - LOWEST - _log2(scale)
        scaled = bins + _log2(in_use)
        lost = sum(parameters[: max(0, bins)]) + sum(activations[: max(0, scaled)])
        total = sum(parameters) + sum(activations)
        return lost / total if total else math.nan

    return LossScale(
        best, in_use, largest, flushed("float16", 1.0), flushed("float16", in_use),
        flushed("float16", best or 1.0), flushed("bfloat16", 1.0),
    )  # fmt: skip


def _log2(scale: float) -> int:
    return max(0, round(math.log2(scale)))
