"""The first operator that torch dispatched with another result, in a trace with operators."""

from __future__ import annotations

from celedger.diagnose.difference import Comparison, Front
from celedger.diagnose.finding import call, named, novel
from celedger.diagnose.trace import Event, Trace


def first_operator(c: Comparison, front: Front) -> str:
    """Of the front's step, up to the front; empty where none was seen."""
    a, b = front.pair.a, front.pair.b
    if a is None or b is None:
        return ""

    def before(trace: Trace, end: Event) -> list[Event]:
        return [
            e for e in trace.of("operator")
            if e.step == end.step and e.evaluation == end.evaluation and e.order < end.order
        ]  # fmt: skip

    x, y = novel(before(c.a, a), before(c.b, b))
    found = y or x
    if found is None:
        return ""
    place = "in the backward pass" if front.kind in ("grad", "pgrad") else f"in {named(found.path)}"
    return f"{call(found)} {place}"
