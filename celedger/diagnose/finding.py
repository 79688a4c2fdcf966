"""The finding of a diagnosis, the phrases that describe it, and the hunks of the change that touch
the code it names."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from celedger.diagnose.distance import Distance
from celedger.diagnose.trace import Event, Frame, Module, Trace
from celedger.repo.hunks import Hunk

_NEAR = 3  # lines: a call that spans several is reported at its first or last


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
    return f"`{path}`" if path else "the model itself"


def some(names: Sequence[str], limit: int = 3) -> str:
    listed = ", ".join(f"`{name}`" for name in names[:limit])
    return listed + (f" and {len(names) - limit} more" if len(names) > limit else "")


def figure(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def share(value: float) -> str:
    percent = 100 * value
    return f"{percent:.0f} %" if percent >= 9.95 or percent == 0 else f"{percent:.2g} %"


def became(changes: Iterable[tuple[str, Any, Any]]) -> str:
    """Return `eps 1e-05 → 0.001`."""
    return ", ".join(f"{name} {_text(old)} → {_text(new)}" for name, old, new in changes)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None else str(value)


# --- places in the code


def places_of(trace: Trace, side: str, event: Event | None, what: str) -> list[CodePlace]:
    return site_of(trace, side, event.site, what) if event is not None else []


def site_of(trace: Trace, side: str, site: int, what: str) -> list[CodePlace]:
    frames = trace.frames(site)
    return [CodePlace(side, what, frames)] if frames else []


def code_of(trace: Trace, side: str, module: Module | None) -> list[CodePlace]:
    """Return where a module is constructed, and where its forward method is defined."""
    if module is None:
        return []
    places = site_of(trace, side, module.created, "constructed")
    if module.code is not None and not module.of_torch:
        places.append(function_place(side, "forward", module.code))
    return places


def function_place(side: str, name: str, code: Sequence[Any]) -> CodePlace:
    """Return the place of a whole function: its file, first and last line."""
    return CodePlace(side, name, (Frame(code[0], code[1], f"{name} …{code[2]}"),))


# --- blame


class Blamed(NamedTuple):
    """A hunk, and how close it is: a line of it ran there (0), its function did (1), its file (2),
    or its file was loaded (3); or it changes only comments and blank lines (4)."""

    hunk: Hunk
    closeness: int


def path_in_tree(tree: Path, file: str) -> str | None:
    """Return a file's path as git names it; None outside of the tree."""
    try:
        return Path(file).relative_to(tree).as_posix()
    except ValueError:
        return None


def blame(
    finding: ExplainFinding, hunks: Sequence[Hunk], tree: Path, loaded: Iterable[str]
) -> tuple[ExplainFinding, tuple[Blamed, ...]]:
    """Return the hunks related to the finding, the closest first, and the finding with its
    sureness: a place that the change does not touch lowers it."""
    files = {path_in_tree(tree, name) for name in loaded}
    frames = [(place.side, frame) for place in finding.places for frame in place.frames]
    ranked = []
    for hunk in hunks:
        ranks = [_closeness(hunk, tree, side, frame) for side, frame in frames]
        closeness = min((rank for rank in ranks if rank is not None), default=3)
        if closeness < 3 or files & {hunk.new, hunk.old}:
            at = ranks.index(closeness) if closeness < 3 else len(ranks)
            ranked.append((at, Blamed(hunk, 4 if cosmetic(hunk) else closeness)))
    ranked.sort(key=lambda row: (row[1].closeness, row[0]))
    blamed = tuple(one for _, one in ranked)
    sure = finding.sureness
    close = bool(blamed) and blamed[0].closeness <= 1
    if sure is Sureness.LIKELY and not close and finding.phase is not FindingPhase.CRASH:
        sure = Sureness.LIKELY if len(blamed) == 1 else Sureness.UNSURE
    elif sure is Sureness.UNSURE and blamed and blamed[0].closeness == 0:
        sure = Sureness.LIKELY
    return replace(finding, sureness=sure), blamed


def cosmetic(hunk: Hunk) -> bool:
    """Return True if only comments and blank lines differ. A `#` inside a string may hide a change
    after it, so such a hunk is only ranked lower, never dropped."""
    code: dict[str, list[str]] = {"-": [], "+": []}
    for line in hunk.lines:
        if text := line[1:].split("#")[0].strip():
            code[line[0]].append(text)
    return code["-"] == code["+"]


def _closeness(hunk: Hunk, tree: Path, side: str, frame: Frame) -> int | None:
    path = path_in_tree(tree, frame.file)
    if path is None:
        return None
    function = re.fullmatch(r"\w+ …(\d+)", frame.function)  # a place may be a whole function
    first, last = frame.line, int(function[1]) if function else frame.line
    if hunk.touches(path, first, last, side=side):
        return 0 if first == last else 1
    if hunk.touches(path, first - _NEAR, last + _NEAR, side=side):
        return 1
    if path in (hunk.old, hunk.new):
        return 1 if re.search(rf"\b{re.escape(frame.function)}\b", hunk.around) else 2
    return None
