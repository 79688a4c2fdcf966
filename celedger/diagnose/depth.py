"""How an error travels through a network: by module, in the order of the calls."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from celedger.diagnose.difference import Comparison, Pair
from celedger.diagnose.distance import EPSILON


@dataclass(frozen=True, slots=True)
class Layer:
    """Relative error ‖b - a‖ / ‖a‖ of what a module returned and of the gradient that came back
    to it; 0 where they are equal, NaN where there is none. `rounding` is the unit of its type."""

    path: str
    kind: str
    step: int
    forward: float
    backward: float
    rounding: float


def depth(c: Comparison) -> tuple[Layer, ...]:
    """The layers of the first full step in which anything differs."""
    steps = [p.step for p in c.pairs if p.one.kind in ("leave", "grad") and c.differs(p)]
    if not steps:
        return ()
    step = min(steps)
    back: dict[tuple[str | None, int], float] = {}
    for pair in c.pairs:
        if pair.one.kind == "grad" and pair.step == step and pair.a is not None:
            back.setdefault((pair.a.path, pair.a.number), relative(pair))
    layers = []
    for pair in c.pairs:
        event = pair.a
        if event is None or pair.one.kind != "leave" or pair.step != step or event.evaluation:
            continue
        module = c.a.modules.get(event.path or "")
        eps = EPSILON.get(event.tensors[0].dtype, 0.0) if event.tensors else 0.0
        layers.append(Layer(
            event.path or "", module.short if module else "", step, relative(pair),
            back.get((event.path, event.number), math.nan), eps,
        ))  # fmt: skip
    return tuple(layers)


def relative(pair: Pair) -> float:
    """Of the tensors of both, taken together."""
    if pair.a is None or pair.b is None:
        return math.nan
    above = below = 0.0
    for x, y in zip(pair.a.tensors, pair.b.tensors, strict=False):
        if x.same(y):
            below += float(np.nansum(x.values**2))
            continue
        if len(x.values) != len(y.values) or x.size != y.size:
            return math.nan
        with np.errstate(invalid="ignore", over="ignore"):
            gap = y.values - x.values
        if not np.isfinite(gap).all():
            return math.inf
        above += float(gap @ gap)
        below += float(x.values @ x.values)
    return math.sqrt(above / below) if below else (math.inf if above else 0.0)
