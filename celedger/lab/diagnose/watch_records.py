"""Read what the probe `celedger.lab.probes.watch` wrote of one training."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from celedger.lab.diagnose.probe_records import processes, rank_of, records
from celedger.lab.diagnose.trace import owner_of

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
    subnormal: float = 0.0  # of what is not zero, the share below the type's smallest normal number

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
    dtype: str
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
    # known), the worst that it was given ("", masked for minus infinity, or not finite), and the
    # largest absolute value of its result.
    broke: tuple[str, str, str, str, str, float] | None
    units: Sequence[tuple[str, int, int, int]]  # rectifier, since step, units, dead ones
    alike: Mapping[str, float]  # of matrices constant at first: largest difference of units
    rates: Sequence[float] = ()
    orphans: Sequence[str] = ()  # parameters with a gradient but without an optimiser
    batch: Mapping[str, Any] | None = None
    loss_dtype: str = ""
    idle_norms: Sequence[str] = ()  # in eval mode, with the statistics that they began with

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
class TensorValues:
    """The tensor that was asked for, in one step: `part` is weight, output or gradient. `values`
    are the first elements of the slice, whose shape is `shape`; `of` is the tensor's."""

    step: int
    part: str
    dtype: str
    shape: Sequence[int]
    of: Sequence[int]
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Watched:
    """One training, as far as it ran. `scales`: of each step with a gradient scaler its number, the
    loss scale, and whether the step was skipped."""

    length: int  # in steps
    parameters: Mapping[str, Parameter]
    optimisers: int
    losses: Sequence[tuple[int, float]]
    steps: Sequence[WatchedStep]
    scales: Sequence[tuple[int, float, bool]] = ()
    rank: str = ""  # `rank 1 of 2` of a distributed training
    # The rows of the data with the largest last losses: index, loss, step.
    samples: Sequence[tuple[int, float, int]] = ()
    values: Sequence[TensorValues] = ()
    dumped: Path | None = None  # the folder with .npy files of them

    def place_of(self, parameter: str, tensor: str = "") -> tuple[str, str]:
        """Return a parameter's module, and the name of the tensor within it."""
        about = self.parameters.get(parameter)
        module = owner_of(parameter)
        attribute = parameter.removeprefix(module).removeprefix(".")
        if about is not None and not about.in_module:
            module, attribute = FUNCTION, parameter
        return module, f"{tensor} of {attribute}" if tensor else attribute

    @property
    def half(self) -> str:
        return next((step.half for step in self.steps if step.half), "")


def read(out: Path) -> list[Watched]:
    """Return the trainings of a diagnostic run that made a step, by their start or rank."""
    trainings = []
    for folder in processes(out):
        steps = [_step(raw) for raw in records(folder, "look")]
        parts = list(records(folder, "watch"))
        rows = [row for part in parts for row in part["losses"]]
        losses = [(int(step), float(loss)) for step, loss, *_ in rows]
        if steps or losses:
            last = parts[-1]
            parameters = {n: Parameter(n, **about) for n, about in last["parameters"].items()}
            trainings.append(Watched(
                last["steps"], parameters, last["optimisers"], losses, steps,
                [(step, scale, skipped) for step, _, scale, skipped in rows if scale is not None],
                rank_of(folder),
                [(int(i), float(loss), int(step)) for i, loss, step in last.get("samples", ())],
                [_values(raw) for raw in records(folder, "tensor")], folder / "dump",
            ))  # fmt: skip
    return trainings


def _step(look: dict[str, Any]) -> WatchedStep:
    del look["k"]
    for key, row in (("rows", TensorFigures), ("changes", WeightChange), ("lost", Lost)):
        look[key] = [row(*values) for values in look[key]]
    return WatchedStep(**look)


def _values(raw: dict[str, Any]) -> TensorValues:
    del raw["k"]
    return TensorValues(**raw)
