"""The findings of a diagnosis, the small phrases it is made of, and the places in the code that it
names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from celedger.base import text
from celedger.lab.diagnose.tensor_distance import Distance
from celedger.lab.diagnose.trace import Event, Frame, Module, Trace


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
    SURE = "sure"  # a setting, argument or call at the place differs and explains it
    LIKELY = "likely"  # the place is known, and the change touches it
    UNSURE = "unsure"


class CodePlace(NamedTuple):
    """A line of code related to the finding, on one side ("a" or "b"), innermost frame first."""

    side: str
    what: str
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class ExplainFinding:
    phase: FindingPhase
    step: int
    module: str | None  # its path on side b, "" for the whole model; None outside of all modules
    kind: str  # the module's class, short
    tensor: str  # what differs first
    cause: str  # a stable word for programs: "settings", "order-of-data", …
    sentence: str
    distance: Distance | None = None
    operator: str = ""
    facts: Sequence[str] = ()
    places: Sequence[CodePlace] = ()
    sureness: Sureness = Sureness.UNSURE


# --- phrases


def named(path: str | None) -> str:
    """Return `blocks.1` in backticks, or words for the model itself and for code outside
    modules."""
    if path is None:
        return "the training loop"
    return f"`{path.removesuffix(':')}`" if path else "the model itself"


def some(names: Sequence[str], limit: int = 3) -> str:
    return text.some([f"`{name}`" for name in names], limit)


def ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")


def figure(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def share(value: float) -> str:
    percent = 100 * value
    return f"{percent:.0f} %" if percent >= 9.95 or percent == 0 else f"{percent:.2g} %"


def became(changes: Iterable[tuple[str, Any, Any]]) -> str:
    """Return `eps 1e-05 → 0.001`."""
    return ", ".join(
        f"{name} {_text(old)} → {_text(new)}" if _text(old) != _text(new)
        else f"{name} {old!r} → {new!r}" for name, old, new in changes
    )  # fmt: skip


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return "none" if value is None else str(value)


# --- places in the code


def path_in_tree(tree: Path, file: str) -> str | None:
    """Return a file's path as git names it, None outside of the tree."""
    try:
        return Path(file).relative_to(tree).as_posix()
    except ValueError:
        return None


def places_of(trace: Trace, event: Event | None, what: str, key: str = "w") -> list[CodePlace]:
    """Return the place of an event. `key`: of its raw fields, the one with the site."""
    return places_of_site(trace, event.raw.get(key, -1), what) if event is not None else []


def places_of_site(trace: Trace, site: int, what: str) -> list[CodePlace]:
    """Return the place of a site; none of one that was not seen."""
    frames = trace.frames(site)
    return [CodePlace(trace.side, what, frames)] if frames else []


def code_of(trace: Trace, module: Module | None) -> list[CodePlace]:
    """Return where a module is constructed, and where its forward method is defined."""
    if module is None:
        return []
    places = places_of_site(trace, module.created, "constructed")
    if module.code is not None and not module.of_torch:
        places.append(function_place(trace, "forward", module.code))
    return places


def function_place(trace: Trace, name: str, code: Sequence[Any]) -> CodePlace:
    """Return the place of a whole function: its file, first and last line."""
    return CodePlace(trace.side, name, (Frame(code[0], code[1], f"{name} …{code[2]}"),))
