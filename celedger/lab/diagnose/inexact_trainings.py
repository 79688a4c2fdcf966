"""Judge trainings that cannot agree bit by bit, since their device, precision or library differs:
find the first place whose error exceeds what its arithmetic explains, and the operators that differ
from themselves on another device or in another type."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from celedger.lab.diagnose.causes import judge
from celedger.lab.diagnose.difference import Front, TraceComparison
from celedger.lab.diagnose.difference_context import novel
from celedger.lab.diagnose.finding import (
    ExplainFinding,
    FindingPhase,
    Sureness,
    code_of,
    figure,
    named,
)
from celedger.lab.diagnose.tensor_distance import (
    EPSILON,
    ROUNDING_UNITS,
    Distance,
    distance,
    first_distance,
    relative_error,
)
from celedger.lab.diagnose.trace import Event, Frame, Trace

# A module may amplify the error of its input: a normalisation of nearly constant values, or a
# softmax of large ones, by the condition number of its function. Modules of the suites stay below 8
# at float32 against bfloat16; ten times exceeds that.
_AMPLIFIES = 10.0
# Rounding of one module from exact inputs, in units of its type (docs/explain.md). Half precision
# adds up in float32 and rounds once or twice; what adds up in its own type has ROUNDING_UNITS: an
# LSTM over 64 characters differs by 38 units between a CPU and an H100.
_UNITS = 8.0
_COMPARED = ("init", "enter", "leave", "loss", "grad")


def unexplained(c: TraceComparison, dtype: str | None) -> ExplainFinding | None:
    """Find the first tensor of step 0 whose error jumps beyond what its type explains. `dtype`: the
    autocast type, whose error is larger than that of the recorded types."""
    worst, computed, agreed = 0.0, False, (-1, -1)
    for pair in sorted(c.pairs, key=lambda pair: pair.one.kind != "init"):
        a, b = pair.a, pair.b
        if pair.one.step or pair.one.evaluation:
            continue
        if a is None or b is None or a.kind not in _COMPARED or not a.tensors:
            continue
        given = a.kind == "init" or (a.kind == "enter" and a.raw.get("u") is None and not computed)
        error = relative_error(a.tensors, b.tensors)
        types = [[tensor.dtype for tensor in event.tensors] for event in (a, b)]
        if given and (c.ties(pair) or math.isnan(error) or types[0] != types[1]):
            return judge(c, Front(pair, a.kind, ()))
        if math.isnan(error):
            continue
        if error > max(_AMPLIFIES * worst, _rounding([*types[0], *types[1], dtype or ""])):
            if given:
                return judge(c, Front(pair, a.kind, ()))
            random = _drawn(c.a, agreed[0], a) != _drawn(c.b, agreed[1], b)
            return _jump(c, a, b, error, worst, random=random)
        worst, computed = max(worst, error), computed or a.kind == "leave"
        agreed = a.order, b.order
    return None


def _rounding(types: Iterable[str]) -> float:
    """Return the relative error that types explain."""
    eps = max(EPSILON.get(name, 0.0) for name in types)
    return eps * (_UNITS if eps > EPSILON["float32"] else ROUNDING_UNITS)


def _drawn(trace: Trace, since: int, until: Event) -> list[str]:
    """Return the states of the generators after every draw between two events."""
    between = (event for event in trace.events if since < event.order <= until.order)
    return [event.raw["y"] for event in between if event.drew]


def _jump(
    c: TraceComparison, a: Event, b: Event, error: float, before: float, *, random: bool
) -> ExplainFinding:
    module = c.b.modules.get(b.path or "")
    what = {"enter": "input", "leave": "output", "loss": "loss", "grad": "gradient"}[b.kind]
    where = f"{what} of {named(b.path)}" if b.kind != "loss" else "loss"
    sentence = (
        f"the {where} differs by {figure(error)} of its size, where all before it differs by "
        f"{figure(before)} at most"
    )
    if random:
        sentence += ": random numbers are drawn before it, and the two sides draw different ones"
    far = first_distance(a.tensors, b.tensors)
    if far is not None and far.finite == (True, False):
        sentence += "; it is no longer finite"
    _, call = novel(*c.calls(a.path, a.number, a))
    return ExplainFinding(
        FindingPhase.BACKWARD if b.kind == "grad" else FindingPhase.FORWARD, b.step, b.path,
        module.short if module else "", where, "random" if random else "precision", sentence, far,
        call.call if call is not None else "", places=code_of(c.b, module),
        sureness=Sureness.LIKELY,
    )  # fmt: skip


def largest_error(c: TraceComparison) -> float:
    """Return the largest relative error of a module's output in step 0."""
    pairs = c.pairs_of("leave", step=0)
    errors = [relative_error(a.tensors, b.tensors) for a, b in pairs]
    return max((error for error in errors if not math.isnan(error)), default=0.0)


class ReplayedOperator(NamedTuple):
    """An operator of step 0, and its distance from itself, replayed from equal inputs."""

    call: str
    module: str | None
    phase: str
    frames: tuple[Frame, ...]
    distance: Distance
    beyond: bool  # what rounding explains


def replayed(trace: Trace) -> tuple[list[ReplayedOperator], list[str]]:
    """Return the replayed operators, the least explained first, and the names of those that the
    device or type does not have."""
    rows, lacking = [], []
    for event in trace.of("replayed"):
        if len(event.tensors) < 2:
            lacking.append(event.name)
            continue
        far = distance(*event.tensors)
        beyond = far.relative > _rounding(far.dtypes) or far.finite[0] != far.finite[1]
        phase = "backward" if event.raw["b"] else "forward"
        call, frames = event.call, trace.frames(event.site)
        rows.append(ReplayedOperator(call, event.path, phase, frames, far, beyond))
    rows.sort(key=lambda row: (not row.beyond, -row.distance.units))
    return rows, sorted(set(lacking))
