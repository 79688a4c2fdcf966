"""What the probe `celedger.child.probes.watch` wrote of one training, as typed rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celedger.diagnose.trace import processes, records

LOWEST = -150  # exponent of the first bin of a histogram of magnitudes, as in the probe
FUNCTION = "-"  # where an operator ran that belongs to no module: most often the loss function


@dataclass(frozen=True, slots=True)
class Row:
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
class Change:
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
class Step:
    """A step that was looked at. `skipped`: the weights were left alone, or the training died."""

    number: int
    skipped: bool
    half: str  # the half precision in use, if any
    scale: float  # of the loss, by a gradient scaler
    rates: tuple[float, ...]
    rows: tuple[Row, ...]
    changes: tuple[Change, ...]
    alike: Mapping[str, float]  # of matrices constant at first: the greatest gap between units
    units: tuple[tuple[str, int, int, int], ...]  # rectifier, since step, units, dead ones
    lost: tuple[Lost, ...]
    broke: tuple[str, str, str] | None  # phase, module, operator: the first to give no number
    batch: Mapping[str, Any] | None
    orphans: tuple[str, ...]  # parameters with a gradient that no optimiser holds
    loss_dtype: str

    def gradients(self) -> Iterator[Row]:
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
    steps: tuple[Step, ...]
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


def _step(raw: Mapping[str, Any]) -> Step:
    operators = raw.get("operators") or {}
    broke = operators.get("broke")
    return Step(
        number=raw["step"], skipped=raw["skipped"], half=raw["half"], scale=raw["scale"] or 1.0,
        rates=tuple(raw.get("rates", ())), rows=tuple(Row(*row) for row in raw["rows"]),
        changes=tuple(Change(*row) for row in raw["weights"]), alike=dict(raw["alike"]),
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
