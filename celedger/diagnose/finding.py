"""What a diagnosis says, and the small phrases it is made of."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from celedger.diagnose.distance import Distance
from celedger.diagnose.trace import Event, Frame, Module, Trace


class FindingPhase(StrEnum):
    INIT = "initialisation"
    DATA = "data"
    FORWARD = "forward"
    LOSS = "loss"
    BACKWARD = "backward"
    UPDATE = "update"
    EVALUATION = "evaluation"
    REPORT = "report"
    CRASH = "crash"


class Sureness(StrEnum):
    SURE = "sure"  # a setting, an argument or a call at the very place differs and explains it
    LIKELY = "likely"  # the place is known, and the change touches it
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True)
class CodePlace:
    """A line of code that has to do with it, on one side ("a" or "b"), innermost frame first."""

    side: str
    what: str
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class ExplainFinding:
    phase: FindingPhase
    step: int
    module: str | None  # its path on side b, "" for the whole model; None outside of all
    kind: str  # the module's class, short
    tensor: str  # what differs first
    cause: str  # a stable word for programs: "settings", "order-of-data", …
    sentence: str
    distance: Distance | None = None
    operator: str = ""
    facts: tuple[str, ...] = ()
    places: tuple[CodePlace, ...] = ()
    sureness: Sureness = Sureness.UNSURE
    evaluation: int = 0
    hints: tuple[str, ...] = field(default=())


# Calls that seldom are what matters where others are new, too.
VIEWS = {
    "detach", "view", "reshape", "flatten", "contiguous", "to", "clone", "unsqueeze", "__getitem__",
}  # fmt: skip


def named(path: str | None) -> str:
    """`blocks.1` in backticks; words for the model itself and for what is in no module."""
    if path is None:
        return "the training loop"
    return f"`{path}`" if path else "the model itself"


def some(names: Sequence[str], shown: int = 3) -> str:
    said = ", ".join(f"`{name}`" for name in names[:shown])
    return said + (f" and {len(names) - shown} more" if len(names) > shown else "")


def figure(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    return f"{value:.4g}"


def share(value: float) -> str:
    percent = 100 * value
    return f"{percent:.0f} %" if percent >= 9.95 or percent == 0 else f"{percent:.2g} %"


def changed(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Settings that differ: name, old, new; None for one that is not there."""
    return [
        (name, a.get(name), b.get(name))
        for name in dict.fromkeys([*a, *b])
        if a.get(name) != b.get(name)
    ]


def became(changes: Iterable[tuple[str, Any, Any]]) -> str:
    return ", ".join(f"{name} {_shown(old)} → {_shown(new)}" for name, old, new in changes)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None else str(value)


def call(event: Event) -> str:
    return f"{event.name}({event.literals})"


def calls_changed(a: Sequence[Event], b: Sequence[Event]) -> tuple[list[Event], list[Event]]:
    """The calls that only one side makes, by function and arguments: gone, and new."""

    def left(mine: Sequence[Event], theirs: Sequence[Event]) -> list[Event]:
        spare = Counter(call(event) for event in theirs)
        found = []
        for event in mine:
            if spare[call(event)]:
                spare[call(event)] -= 1
            else:
                found.append(event)
        return found

    return left(a, b), left(b, a)


def novel(a: Sequence[Event], b: Sequence[Event]) -> tuple[Event | None, Event | None]:
    """The first call of either side with a result that the other side never has."""

    def first(mine: Sequence[Event], theirs: Sequence[Event]) -> Event | None:
        known = {tensor.hash for event in theirs for tensor in event.tensors}
        for event in mine:
            if any(tensor.hash not in known for tensor in event.tensors):
                return event
        return None

    return first(a, b), first(b, a)


def owner_of(path: str) -> str:
    """The module that holds a parameter or buffer."""
    head, dot, _ = path.rpartition(".")
    if dot:
        return head
    return path.partition(":")[0] + ":" if ":" in path else ""


def places_of(trace: Trace, side: str, event: Event | None, what: str) -> list[CodePlace]:
    frames = trace.frames(event.site) if event is not None else ()
    return [CodePlace(side, what, frames)] if frames else []


def code_of(trace: Trace, side: str, module: Module | None) -> list[CodePlace]:
    """Where a module is constructed, and where its forward is written."""
    if module is None:
        return []
    found = []
    if frames := trace.frames(module.created):
        found.append(CodePlace(side, "constructed", frames))
    if module.code is not None and not module.of_torch:
        file, first, last = module.code
        found.append(CodePlace(side, "forward", (Frame(file, first, f"forward …{last}"),)))
    return found
