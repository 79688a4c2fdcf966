"""Trainings that cannot agree bit by bit. Of two sides on another device, precision or library: the
first place whose error is more than its arithmetic explains. Of one that does not repeat itself:
the first difference in the statistics of several seeds. Every tensor gives two numbers, the
logarithm of its root mean square and its mean in units of that; a place counts where Welch's t-test
of either, over the seeds, survives Bonferroni's correction for all places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy import stats

from celedger.diagnose.blame import blame
from celedger.diagnose.causes import judge
from celedger.diagnose.desk import Desk, Explanation
from celedger.diagnose.difference import Front, Pair, TraceComparison, relative_error
from celedger.diagnose.distance import EPSILON
from celedger.diagnose.finding import (
    CodePlace,
    ExplainFinding,
    FindingPhase,
    Sureness,
    became,
    call,
    changed,
    code_of,
    figure,
    named,
    novel,
)
from celedger.diagnose.scene import first_distance
from celedger.diagnose.trace import Event, Trace
from celedger.repo.hunks import Hunk

LEVEL = 0.01  # chance of naming a place where nothing changed, over all places together
_STEPS = (0, 1, 2)
_PHASES = {
    "init": FindingPhase.INIT, "leave": FindingPhase.FORWARD, "loss": FindingPhase.LOSS,
    "grad": FindingPhase.BACKWARD, "pgrad": FindingPhase.BACKWARD, "param": FindingPhase.UPDATE,
}  # fmt: skip

Place_ = tuple[str, int, str | None, int, str, int]  # kind, step, path, call, name, evaluation
# A module may amplify the error it is given: a normalisation of nearly constant values, or a
# softmax of large ones, by the condition of its function. Modules of the suites stay below 8 at
# float32 against bfloat16; ten times is another matter.
_AMPLIFIES = 10.0
# Rounding of one module from exact inputs: some units of its type (docs/explain.md).
_UNITS = 8.0


def by_statistics(
    desk: Desk, whole: Explanation, change: Sequence[Hunk], parted: Front | None
) -> Explanation:
    """The explanation from `limits.seeds` runs of each side. `parted`: where two runs of side a
    with one seed first differ."""
    sides: tuple[list[Trace], list[Trace]] = ([], [])
    for number in range(desk.limits.seeds):
        seed = whole.seed + number
        desk.say(f"{whole.task}: it does not repeat itself; seed {seed} of both sides")
        for side, traces in zip((whole.a, whole.b), sides, strict=True):
            traces.extend(desk.run(side, _STEPS, seed=seed)[1][:1])
    note = (
        f"{whole.a.name} does not repeat itself bit by bit with one seed{_where(parted)}: "
        f"statistics over {desk.limits.seeds} seeds"
    )
    whole = replace(whole, notes=(*whole.notes, note), growth=None, layers=())
    if min(len(traces) for traces in sides) < 3:
        return replace(whole, verdict="noise")
    finding = first_shift(*sides)
    if finding is None:
        return replace(whole, verdict="noise")
    finding, blamed = blame(finding, change, desk.bench.tree, sides[0][0].files | sides[1][0].files)
    return replace(whole, verdict="difference", finding=finding, blamed=blamed)


def _where(parted: Front | None) -> str:
    if parted is None:
        return ""
    event = parted.pair.one
    what = {"enter": "input", "leave": "output", "init": "weights"}.get(event.kind, event.kind)
    return f" (from step {event.step} on: {what} of {named(event.path)})"


def first_shift(left: Sequence[Trace], right: Sequence[Trace]) -> ExplainFinding | None:
    """The first place in the order of a's time whose statistics differ between two sets of runs."""
    comparison = TraceComparison(left[0], right[0])
    a = [_features(trace, None) for trace in left]
    b = [_features(trace, comparison) for trace in right]
    places = [
        place for place in a[0]
        if all(place in one for one in a) and all(place in one for one in b)
    ]  # fmt: skip
    bound = LEVEL / max(1, 2 * len(places))
    for place in places:
        for number, what in ((0, "size"), (1, "mean")):
            x = np.array([one[place][1][number] for one in a])
            y = np.array([one[place][1][number] for one in b])
            p = _welch(x, y)
            if p < bound:
                return _found(comparison, place, a[0][place][0], what, x, y, p)
    return None


def _features(
    trace: Trace, comparison: TraceComparison | None
) -> dict[Place_, tuple[Event, tuple[float, float]]]:
    found: dict[Place_, tuple[Event, tuple[float, float]]] = {}
    for event in trace.of(*_PHASES):
        if event.step not in _STEPS or not event.tensors:
            continue
        values = event.tensors[0].values
        values = values[np.isfinite(values)]
        if not len(values):
            continue
        size = float(np.sqrt(np.mean(values**2)))
        path = event.path if comparison is None else comparison.path(event)
        key = (event.kind, event.step, path, event.number, event.name, event.evaluation)
        mean = float(values.mean()) / size if size else 0.0
        found.setdefault(key, (event, (math.log10(size) if size else -40.0, mean)))
    return found


def _welch(x: np.ndarray, y: np.ndarray) -> float:
    """Two-sided p; where both repeat exactly, 0 or 1 by whether they are equal."""
    spread = math.hypot(float(x.std()), float(y.std()))
    gap = abs(float(x.mean() - y.mean()))
    if spread <= 1e-9 * max(1.0, abs(float(x.mean()))):
        return 0.0 if gap > 1e-6 else 1.0
    return float(stats.ttest_ind(x, y, equal_var=False).pvalue)


def _found(
    c: TraceComparison,
    place: Place_,
    event: Event,
    what: str,
    x: np.ndarray,
    y: np.ndarray,
    p: float,
) -> ExplainFinding:
    kind, step, path, _, _name, evaluation = place
    new = next((n for n, o in c.alignment.modules.items() if o == path), path)
    module = c.b.modules.get(new or "") if kind in ("leave", "grad") else None
    old = c.a.modules.get(path or "") if module is not None else None
    tensor = {
        "init": f"`{path}`", "leave": f"output of {named(new)}", "loss": "loss",
        "grad": f"gradient of the output of {named(new)}", "pgrad": f"gradient of `{path}`",
        "param": f"`{path}`",
    }[kind]  # fmt: skip
    if what == "size":
        shift = f"is {figure(10 ** float(y.mean() - x.mean()))} times as large"
    else:
        shift = f"has its mean moved from {figure(float(x.mean()))} to {figure(float(y.mean()))}"
        shift += " times its root mean square"
    said = f"the {tensor} {shift}, over {len(x)} seeds (p = {p:.1g})"
    changes = changed(old.settings, module.settings) if old and module else []
    if changes:
        said += f"; settings changed: {became(changes)}"
    places: list[CodePlace] = code_of(c.b, "b", module)
    owner = (path or "").rpartition(".")[0] if kind in ("init", "pgrad", "param") else new
    if kind in ("init", "pgrad", "param"):
        places = code_of(c.b, "b", c.b.modules.get(owner or ""))
        initial = next((e for e in c.b.of("init") if c.path(e) == path), None)
        if initial is not None and (frames := c.b.frames(initial.site)):
            places = [CodePlace("b", "initialised", frames), *places]
    phase = FindingPhase.EVALUATION if evaluation else _PHASES[kind]
    return ExplainFinding(
        phase, step, owner, module.short if module else "", tensor, "statistics", said,
        None, "", (), tuple(places), Sureness.SURE if changes else Sureness.LIKELY, evaluation,
    )  # fmt: skip


def unexplained(c: TraceComparison, dtype: str | None) -> ExplainFinding | None:
    """The first tensor of step 0 whose error jumps beyond what its type explains, or None.
    `dtype`: that of an autocast, which is wider in error than the types that meet the eye."""
    begins = [p for p in c.pairs if p.one.kind == "init" and c.differs(p)]
    if begins:
        return judge(c, Front(begins[0], "init", ()))
    worst = 0.0
    for pair in c.pairs:
        event = pair.one
        if event.kind not in ("enter", "leave", "loss", "grad") or event.step or event.evaluation:
            continue
        if pair.a is None or pair.b is None or not pair.a.tensors:
            continue
        if event.kind == "enter" and event.raw.get("u") is None and not worst and c.differs(pair):
            return judge(c, Front(pair, "enter", ()))
        error = relative_error(pair)
        if math.isnan(error):
            continue
        eps = max(
            [EPSILON.get(t.dtype, 0.0) for e in (pair.a, pair.b) for t in e.tensors]
            + ([EPSILON[dtype]] if dtype else [])
        )
        bound = _AMPLIFIES * max(worst, _UNITS * eps / _AMPLIFIES)
        if error > bound:
            return _jump(c, pair, error, worst)
        worst = max(worst, error)
    return None


def _jump(c: TraceComparison, pair: Pair, error: float, before: float) -> ExplainFinding:
    a, b = pair.a, pair.b
    assert a is not None and b is not None
    module = c.b.modules.get(b.path or "")
    what = {"enter": "input", "leave": "output", "loss": "loss", "grad": "gradient"}[b.kind]
    where = f"{what} of {named(b.path)}" if b.kind != "loss" else "loss"
    said = (
        f"the {where} differs by {figure(error)} of its size, where all before it differs by "
        f"{figure(before)} at most"
    )
    mine, theirs = c.calls(a.path, a.number, a)
    _x, y = novel(mine, theirs)
    random = any(e.drew for e in (*mine, *theirs)) or a.drew or b.drew
    if random:
        said += ": it draws random numbers, and the two sides draw different ones"
    far = first_distance(a, b)
    finite = far.finite if far is not None else (True, True)
    if finite[0] and not finite[1]:
        said += "; it is not finite any more"
    phase = FindingPhase.BACKWARD if b.kind == "grad" else FindingPhase.FORWARD
    return ExplainFinding(
        phase, pair.step, b.path, module.short if module else "", where,
        "random" if random else "precision", said, far,
        call(y) if y is not None else "", (), tuple(code_of(c.b, "b", module)), Sureness.LIKELY,
    )  # fmt: skip


def largest(c: TraceComparison) -> float:
    """The largest relative error of a module's output in step 0."""
    errors = [
        relative_error(p) for p in c.pairs if p.one.kind == "leave" and not p.step and p.a and p.b
    ]
    return max((e for e in errors if not math.isnan(e)), default=0.0)
