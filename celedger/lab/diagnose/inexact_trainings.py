"""Judge trainings that cannot agree bit by bit.

For two sides on another device, precision or library: find the first place whose error exceeds what
its arithmetic explains. For a training that is not deterministic: find the first difference in the
statistics of several seeds. Every tensor gives two numbers, the logarithm of its root mean square
and its mean in units of that. A place counts if Welch's t-test of either, over the seeds, survives
Bonferroni's correction for all places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from celedger.lab.diagnose.causes import judge
from celedger.lab.diagnose.difference import Front, TraceComparison, changed, keyed
from celedger.lab.diagnose.difference_context import novel
from celedger.lab.diagnose.finding import (
    ExplainFinding,
    FindingPhase,
    Sureness,
    became,
    code_of,
    figure,
    named,
    places_of,
)
from celedger.lab.diagnose.tensor_distance import (
    EPSILON,
    ROUNDING_UNITS,
    first_distance,
    relative_error,
)
from celedger.lab.diagnose.trace import Event, Trace, owner_of
from celedger.stats.tails import t_test

LEVEL = 0.01  # probability of naming a place although nothing changed, over all places together
_STEPS = (0, 1, 2)
_PHASES = {
    "init": FindingPhase.INIT, "leave": FindingPhase.FORWARD, "loss": FindingPhase.LOSS,
    "grad": FindingPhase.BACKWARD, "pgrad": FindingPhase.BACKWARD, "param": FindingPhase.UPDATE,
}  # fmt: skip
# A module may amplify the error of its input: a normalisation of nearly constant values, or a
# softmax of large ones, by the condition number of its function. Modules of the suites stay below 8
# at float32 against bfloat16; ten times exceeds that.
_AMPLIFIES = 10.0
# Rounding of one module from exact inputs, in units of its type (docs/explain.md). Half precision
# adds up in float32 and rounds once or twice; what adds up in its own type has ROUNDING_UNITS: an
# LSTM over 64 characters differs by 38 units between a CPU and an H100.
_UNITS = 8.0
_COMPARED = ("init", "enter", "leave", "loss", "grad")


def first_shift(runs_a: Sequence[Trace], runs_b: Sequence[Trace]) -> ExplainFinding | None:
    """Find the first place in a's time whose statistics differ between two sets of runs."""
    c = TraceComparison(runs_a[0], runs_b[0])
    a = [_features(trace) for trace in runs_a]
    b = [_features(trace, c.path) for trace in runs_b]
    keys = [key for key in a[0] if all(key in run for run in (*a, *b))]
    bound = LEVEL / max(1, 2 * len(keys))
    for key in keys:
        for number, statistic in enumerate(("size", "mean")):
            x, y = (np.array([run[key][number] for run in runs]) for runs in (a, b))
            p = _welch(x, y)
            if p < bound:
                return _shift_finding(c, dict(keyed(c.a))[key], statistic, x, y, p)
    return None


def _features(
    trace: Trace, path: Callable[[Event], str | None] = lambda e: e.path
) -> dict[Hashable, tuple[float, float]]:
    """Return the statistics of each event's first tensor."""
    features: dict[Hashable, tuple[float, float]] = {}
    for key, event in keyed(trace, path):
        if event.kind not in _PHASES or event.step not in _STEPS or not event.tensors:
            continue
        values = event.tensors[0].values
        values = values[np.isfinite(values)]
        if len(values):
            size = float(np.sqrt(np.mean(values**2)))
            mean = float(values.mean()) / size if size else 0.0
            features[key] = (math.log10(size) if size else -40.0, mean)
    return features


def _welch(x: np.ndarray, y: np.ndarray) -> float:
    """Return the two-sided p-value; if both sets repeat exactly, 1 if they are equal, else 0."""
    spread = math.hypot(float(x.std()), float(y.std()))
    gap = abs(float(x.mean() - y.mean()))
    if spread <= 1e-9 * max(1.0, abs(float(x.mean()))):
        return 0.0 if gap > 1e-6 else 1.0
    # Welch's test: each side's squared error of the mean, and Satterthwaite's degrees of freedom.
    a, b = float(x.var(ddof=1)) / len(x), float(y.var(ddof=1)) / len(y)
    freedom = (a + b) ** 2 / (a**2 / (len(x) - 1) + b**2 / (len(y) - 1))
    return t_test(gap, math.sqrt(a + b), freedom)


def _shift_finding(
    c: TraceComparison, event: Event, statistic: str, x: np.ndarray, y: np.ndarray, p: float
) -> ExplainFinding:
    kind, path = event.kind, event.path
    new = c.path_in_b(path)
    module = c.b.modules.get(new or "") if kind in ("leave", "grad") else None
    old = c.a.modules.get(path or "") if module is not None else None
    tensor = {
        "leave": f"output of {named(new)}", "loss": "loss", "pgrad": f"gradient of `{path}`",
        "grad": f"gradient of the output of {named(new)}",
    }.get(kind, f"`{path}`")  # fmt: skip
    before, after = float(x.mean()), float(y.mean())
    shift = f"is {figure(10 ** (after - before))} times as large"
    if statistic == "mean":
        shift = f"has its mean moved from {figure(before)} to {figure(after)}"
        shift += " times its root mean square"
    sentence = f"the {tensor} {shift}, over {len(x)} seeds (p = {p:.1g})"
    changes = changed(old.settings, module.settings) if old and module else []
    sentence += f"; settings changed: {became(changes)}" if changes else ""
    owner, places = new, code_of(c.b, module)
    if kind in ("init", "pgrad", "param"):
        owner = owner_of(path or "")
        initial = next((e for e in c.b.of("init") if c.path(e) == path), None)
        places = places_of(c.b, initial, "initialised")
        places += code_of(c.b, c.b.modules.get(owner))
    return ExplainFinding(
        FindingPhase.EVALUATION if event.evaluation else _PHASES[kind], event.step, owner,
        module.short if module else "", tensor, "statistics", sentence, places=places,
        sureness=Sureness.SURE if changes else Sureness.LIKELY,
    )  # fmt: skip


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
        if error > max(_AMPLIFIES * worst, _rounding(a, b, dtype)):
            if given:
                return judge(c, Front(pair, a.kind, ()))
            random = _drawn(c.a, agreed[0], a) != _drawn(c.b, agreed[1], b)
            return _jump(c, a, b, error, worst, random=random)
        worst, computed = max(worst, error), computed or a.kind == "leave"
        agreed = a.order, b.order
    return None


def _rounding(a: Event, b: Event, dtype: str | None) -> float:
    """Return the relative error that the types of two events explain."""
    types = [tensor.dtype for event in (a, b) for tensor in event.tensors] + [dtype or ""]
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
        sentence += "; it is not finite any more"
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


def first_operator(c: TraceComparison, front: Front) -> str:
    """Name the first operator of the front's step, up to the front, with another result; empty if
    none differs."""
    a, b = front.pair.a, front.pair.b
    if a is None or b is None:
        return ""

    def before(trace: Trace, end: Event) -> list[Event]:
        return [
            e for e in trace.of("operator")
            if e.step == end.step and e.evaluation == end.evaluation and e.order < end.order
        ]  # fmt: skip

    x, y = novel(before(c.a, a), before(c.b, b))
    operator = y or x
    if operator is None:
        return ""
    backward = front.kind in ("grad", "pgrad")
    context = "in the backward pass" if backward else f"in {named(operator.path)}"
    return f"{operator.call} {context}"
