"""Which part of a commit's change touches the code that a finding names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from celedger.diagnose.finding import CodePlace, ExplainFinding, FindingPhase, Sureness
from celedger.diagnose.trace import Frame
from celedger.repo.hunks import Hunk

_NEAR = 3  # lines: a call that spans several is reported at its first or last


@dataclass(frozen=True, slots=True)
class Blamed:
    """A hunk, and how it was found: a line of it ran there (0), its function did (1), its file
    (2), or it is in a file that was loaded (3); it is of comments and blanks alone (4)."""

    hunk: Hunk
    closeness: int
    place: CodePlace | None


def inside(tree: Path, frame: Frame) -> str | None:
    """The frame's file as git names it, None outside of the tree."""
    try:
        return Path(frame.file).relative_to(tree).as_posix()
    except ValueError:
        return None


def blame(
    finding: ExplainFinding, hunks: Sequence[Hunk], tree: Path, loaded: Iterable[str]
) -> tuple[ExplainFinding, tuple[Blamed, ...]]:
    """The hunks that have to do with it, the closest first, and the finding with its sureness in
    their light: a place that the change does not touch is no proof."""
    best: dict[int, Blamed] = {}
    for place in finding.places:
        for frame in place.frames:
            path = inside(tree, frame)
            if path is None:
                continue
            first, last = _extent(frame)
            for number, hunk in enumerate(hunks):
                closeness = _closeness(hunk, path, first, last, place.side, frame)
                known = best.get(number)
                if closeness is not None and (known is None or closeness < known.closeness):
                    best[number] = Blamed(hunk, closeness, place)
    files = {Path(name).relative_to(tree).as_posix() for name in loaded
             if Path(name).is_relative_to(tree)}  # fmt: skip
    rest = [
        Blamed(hunk, 3, None) for number, hunk in enumerate(hunks)
        if number not in best and (hunk.new in files or hunk.old in files)
    ]  # fmt: skip
    found = [
        replace(one, closeness=4) if cosmetic(one.hunk) else one for one in [*best.values(), *rest]
    ]
    found.sort(key=lambda one: one.closeness)
    sure = finding.sureness
    close = bool(found) and found[0].closeness <= 1
    if sure is Sureness.LIKELY and not close and finding.phase is not FindingPhase.CRASH:
        sure = Sureness.LIKELY if len(found) == 1 else Sureness.UNSURE
    elif sure is Sureness.UNSURE and found and found[0].closeness == 0:
        sure = Sureness.LIKELY
    return replace(finding, sureness=sure), tuple(found)


def cosmetic(hunk: Hunk) -> bool:
    """Whether only comments and blank lines differ. A `#` in a string may hide a change of the
    string behind it: such a hunk is ranked lower, never left out."""
    code: dict[str, list[str]] = {"-": [], "+": []}
    for line in hunk.lines:
        text = line[1:].split("#")[0].strip()
        if text:
            code[line[0]].append(text)
    return code["-"] == code["+"]


def _extent(frame: Frame) -> tuple[int, int]:
    """A frame's line, or of a whole function (`forward …41`) all its lines."""
    match = re.fullmatch(r"\w+ …(\d+)", frame.function)
    return (frame.line, int(match[1])) if match else (frame.line, frame.line)


def _closeness(hunk: Hunk, path: str, first: int, last: int, side: str, frame: Frame) -> int | None:
    if hunk.touches(path, first, last, side=side):
        return 0 if first == last else 1
    if hunk.touches(path, first - _NEAR, last + _NEAR, side=side):
        return 1
    if path in (hunk.old, hunk.new):
        return 1 if re.search(rf"\b{re.escape(frame.function)}\b", hunk.around) else 2
    return None
