"""Two sides that cannot agree bit by bit (another device, precision or library): the first place
whose error is more than its arithmetic explains."""

from __future__ import annotations

import math

from celedger.diagnose.depth import relative
from celedger.diagnose.difference import Comparison, Front, Pair
from celedger.diagnose.distance import EPSILON
from celedger.diagnose.finding import Finding, Phase, Sureness, call, code_of, figure, named, novel
from celedger.diagnose.forward import first_distance
from celedger.diagnose.judge import judge

# A module may amplify the error it is given: a normalisation of nearly constant values, or a
# softmax of large ones, by the condition of its function. Modules of the suites stay below 8 at
# float32 against bfloat16; ten times is another matter.
_AMPLIFIES = 10.0
# Rounding of one module from exact inputs: some units of its type (docs/explain.md).
_UNITS = 8.0


def unexplained(c: Comparison, dtype: str | None) -> Finding | None:
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
        error = relative(pair)
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


def _jump(c: Comparison, pair: Pair, error: float, before: float) -> Finding:
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
    found = first_distance(a, b)
    finite = found[1].finite if found is not None else (True, True)
    if finite[0] and not finite[1]:
        said += "; it is not finite any more"
    phase = Phase.BACKWARD if b.kind == "grad" else Phase.FORWARD
    return Finding(
        phase, pair.step, b.path, module.short if module else "", where,
        "random" if random else "precision", said, found[1] if found else None,
        call(y) if y is not None else "", (), tuple(code_of(c.b, "b", module)), Sureness.LIKELY,
    )  # fmt: skip


def largest(c: Comparison) -> float:
    """The largest relative error of a module's output in step 0."""
    errors = [relative(p) for p in c.pairs if p.one.kind == "leave" and not p.step and p.a and p.b]
    return max((e for e in errors if not math.isnan(e)), default=0.0)
