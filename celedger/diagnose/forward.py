"""Judges a difference that arises in a forward pass, in training or in evaluation."""

from __future__ import annotations

import re
from collections.abc import Sequence

from celedger.diagnose.difference import Comparison, Front
from celedger.diagnose.distance import Distance, distance
from celedger.diagnose.finding import (
    VIEWS,
    Finding,
    Phase,
    Sureness,
    became,
    call,
    calls_changed,
    changed,
    code_of,
    named,
    novel,
    places_of,
)
from celedger.diagnose.trace import Event, Module

_CASTS = {"half", "float", "double", "bfloat16", "to", "type", "type_as"}


def first_distance(a: Event | None, b: Event | None) -> tuple[str, Distance] | None:
    """The first tensor of an event that differs: its place among several, and how far."""
    if a is None or b is None:
        return None
    for number, (x, y) in enumerate(zip(a.tensors, b.tensors, strict=False)):
        if not x.same(y):
            return (str(number) if len(a.tensors) > 1 else "", distance(x, y))
    return None


def judge_forward(c: Comparison, front: Front) -> Finding:
    """`enter`: what a module is given differs, so its caller's own code is at fault, between the
    calls of its children. `leave`: given the same, it returns something else."""
    pair = front.pair
    a, b = pair.a, pair.b
    assert a is not None and b is not None
    if front.kind == "enter":
        owner, number = _caller(c, a)
        tensor = f"input of {named(b.path)}"
    else:
        owner, number = a.path, a.number
        tensor = f"output of {named(b.path)}"
    window = _since_equal(c, front)
    x, y = novel(*window)
    if (source := y or x) is not None and front.kind == "enter":
        # What lies between two modules may be another's code, called from outside of it.
        there = c.path(source) if source is y else source.path
        if there is None or there in c.a.modules:
            owner, number = there, source.number
    mine, theirs = c.calls(owner, number, a)
    mine, theirs = _upto(mine, a), _upto(theirs, b)
    if source is None:
        x, y = novel(mine, theirs)
    phase = Phase.EVALUATION if a.evaluation else Phase.FORWARD
    old, new = c.a.modules.get(owner or ""), _counterpart(c, owner)
    if owner is None:
        old = new = None
    found = first_distance(a, b)
    places = [*code_of(c.b, "b", new), *code_of(c.a, "a", old)]
    gone, fresh = calls_changed(mine, theirs)
    places = [
        *places_of(c.b, "b", y, "call"), *places_of(c.a, "a", x, "call"), *places,
        *(p for event in fresh[:3] for p in places_of(c.b, "b", event, "new call")),
        *(p for event in gone[:3] for p in places_of(c.a, "a", event, "call that is gone")),
        *places_of(c.b, "b", b, "caller"), *places_of(c.a, "a", a, "caller"),
    ]  # fmt: skip
    facts = _facts(c, owner, a, b, old, new, gone, fresh)
    cause, sentence, sureness = _explain(c, front, owner, old, new, (x, y), (gone, fresh))
    module = new.path if new is not None else (None if owner is None else owner)
    kind = new.short if new else ""
    if cause in ("added", "removed") and (child := _children(c, owner, a)):
        module = child[0].path
        kind = child[0].short
        side, trace = ("b", c.b) if cause == "added" else ("a", c.a)
        places = [*code_of(trace, side, child[0]), *places]
    operator = call(y) if y is not None else ""
    return Finding(
        phase, pair.step, module, kind, tensor, cause, sentence,
        found[1] if found else None, operator, tuple(facts), tuple(places), sureness,
        a.evaluation,
    )  # fmt: skip


def _explain(
    c: Comparison,
    front: Front,
    owner: str | None,
    old: Module | None,
    new: Module | None,
    first: tuple[Event | None, Event | None],
    calls: tuple[list[Event], list[Event]],
) -> tuple[str, str, Sureness]:
    a, b = front.pair.a, front.pair.b
    assert a is not None and b is not None
    where = named(new.path if new is not None else owner)
    x, y = first
    gone, fresh = calls
    if (mode := _mode(c, owner, a)) is not None:
        path, flag, several = mode
        state = "training" if flag else "evaluation"
        during = "evaluation" if a.evaluation else "training"
        more = f" (and so do {several - 1} others)" if several > 1 else ""
        said = f"{named(path)}{more} runs in {state} mode during {during}, as it did not before"
        return "mode", said, Sureness.SURE
    if old is not None and new is not None and old.short != new.short and (
        old.of_torch or new.of_torch
    ):  # fmt: skip
        return "class", f"{where} is a {new.short} where it was a {old.short}", Sureness.SURE
    if old is not None and new is not None and (changes := changed(old.settings, new.settings)):
        return (
            "settings",
            f"settings of {where} ({new.short}) changed: {became(changes)}",
            (Sureness.SURE),
        )
    if child := _children(c, owner, a):
        module = child[0]
        here = module.path in c.alignment.added
        verb = "was added" if here else "was removed"
        said = f"{named(module.path)} ({module.short}) {verb}"
        if any(event.drew for event in (c.b if here else c.a).events if event.path == module.path):
            said += "; it draws random numbers, so later ones are drawn in another order"
        return ("added" if here else "removed"), said, Sureness.SURE
    if x is not None and y is not None and x.tensors and y.tensors:
        kinds = (x.tensors[0].dtype, y.tensors[0].dtype)
        if kinds[0] != kinds[1] and (x.name == y.name or y.name in _CASTS):
            return (
                "dtype",
                f"{where} computes `{y.name}` in {kinds[1]} instead of {kinds[0]}",
                (Sureness.SURE),
            )
        if x.drew and y.drew and x.raw["z"] != y.raw["z"]:
            return (
                "random",
                f"random numbers in {where} are drawn in another order",
                (Sureness.LIKELY),
            )
        if x.name == y.name and x.literals != y.literals:
            cause = "value" if _floats(x.literals) != _floats(y.literals) else "argument"
            return cause, f"{where} calls `{call(y)}` instead of `{call(x)}`", Sureness.SURE
    if gone or fresh:
        return "calls", f"{where} computes something else: {_calls(gone, fresh)}", Sureness.SURE
    if x is not None and y is not None and x.name == y.name:
        if x.raw["i"] != y.raw["i"]:
            return "operands", f"`{y.name}` in {where} is given other operands", Sureness.LIKELY
        return "result", (
            f"`{call(y)}` in {where} gives another result for the same arguments"
        ), Sureness.UNSURE  # fmt: skip
    return "code", f"the code of {where} computes something else", Sureness.LIKELY


def _floats(literals: str) -> list[str]:
    return re.findall(r"\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+", literals)


def _calls(gone: Sequence[Event], fresh: Sequence[Event]) -> str:
    def telling(events: Sequence[Event]) -> Event:
        return next((event for event in events if event.name not in VIEWS), events[0])

    if gone and fresh:
        return f"`{call(telling(fresh))}` where `{call(telling(gone))}` was"
    if gone:
        return f"`{call(telling(gone))}` is gone"
    return f"`{call(telling(fresh))}` is new"


def _facts(
    c: Comparison, owner: str | None, a: Event, b: Event, old: Module | None, new: Module | None,
    gone: Sequence[Event], fresh: Sequence[Event],
) -> list[str]:  # fmt: skip
    facts = []
    if a.raw.get("ac") != b.raw.get("ac"):
        facts.append(f"autocast {a.raw.get('ac') or 'off'} → {b.raw.get('ac') or 'off'}")
    facts += [f"no longer called: {call(event)}" for event in gone[:4]]
    facts += [f"newly called: {call(event)}" for event in fresh[:4]]
    return facts


def flags_differ(c: Comparison, step: int) -> Event | None:
    """The first output of equal value that requires a gradient on one side alone (b's event)."""
    for pair in c.pairs:
        if pair.one.kind == "leave" and pair.step == step and pair.a and pair.b:
            flags = zip(pair.a.tensors, pair.b.tensors, strict=False)
            if not pair.b.evaluation and any(x.gradient != y.gradient for x, y in flags):
                return pair.b
    return None


def _mode(c: Comparison, owner: str | None, at: Event) -> tuple[str, bool, int] | None:
    """Where the module at the front runs in another mode: the outermost module that does (its
    path in b), its flag there, and how many do."""
    found = [
        (pair.a.path, pair.b.path or "", bool(pair.b.raw["tr"]))
        for pair in c.pairs
        if pair.one.kind == "enter" and pair.a and pair.b and pair.step == at.step
        and pair.a.evaluation == at.evaluation and pair.a.raw["tr"] != pair.b.raw["tr"]
    ]  # fmt: skip
    if owner not in {path for path, _, _ in found}:
        return None
    _, path, flag = found[0]
    return path, flag, len({path for path, _, _ in found})


def _children(c: Comparison, owner: str | None, front: Event) -> list[Module]:
    """Modules that only one side has and that are called from the owner (in a's words) before the
    front, b's first."""
    there = _counterpart(c, owner)
    found = []
    for trace, only, parent in (
        (c.b, c.alignment.added, there.path if there is not None else None),
        (c.a, c.alignment.removed, owner),
    ):
        called = [
            event.path for event in trace.of("enter")
            if event.path in only and event.raw["u"] == parent and event.step == front.step
            and event.evaluation == front.evaluation
        ]  # fmt: skip
        found += [trace.modules[path] for path in dict.fromkeys(called) if path is not None]
    return found


def _counterpart(c: Comparison, owner: str | None) -> Module | None:
    for new, old in c.alignment.modules.items():
        if old == owner:
            return c.b.modules[new]
    return None


def _caller(c: Comparison, event: Event) -> tuple[str | None, int]:
    """The module that was running when this one was called, and which of its calls that was."""
    path = event.raw.get("u")
    number = 0
    for other in c.a.of("enter"):
        if other.order >= event.order:
            break
        same = other.step == event.step and other.evaluation == event.evaluation
        if other.path == path and same:
            number = other.number
    return path, number


def _since_equal(c: Comparison, front: Front) -> tuple[list[Event], list[Event]]:
    """The calls on both sides between the last tensors of a module that agree and the front."""
    a, b = front.pair.a, front.pair.b
    assert a is not None and b is not None
    low = [-1, -1]
    for pair in c.pairs:
        if (
            pair.one.kind in ("enter", "leave") and pair.a and pair.b and pair.a.tensors
            and pair.a.step == a.step and pair.a.evaluation == a.evaluation
            and pair.a.order < a.order and pair.b.order < b.order and not c.differs(pair)
        ):  # fmt: skip
            low = [max(low[0], pair.a.order), max(low[1], pair.b.order)]
    return tuple(  # type: ignore[return-value]
        [
            e for e in trace.of("call")
            if start < e.order < end.order and e.step == a.step and e.evaluation == a.evaluation
        ]
        for trace, start, end in ((c.a, low[0], a), (c.b, low[1], b))
    )  # fmt: skip


def _upto(calls: Sequence[Event], event: Event) -> list[Event]:
    return [one for one in calls if one.order < event.order]
