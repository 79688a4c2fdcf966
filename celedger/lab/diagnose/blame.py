"""Which hunks of a commit's change explain a finding, the likeliest first. Pure: the places of a
finding and the change in, hunks in their order out."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from celedger.lab.diagnose.changed_values import Verdict
from celedger.lab.diagnose.code_change import CodeChange
from celedger.lab.diagnose.finding import ExplainFinding, FindingPhase, Sureness, path_in_tree
from celedger.lab.diagnose.trace import Frame
from celedger.repo.hunks import Hunk

_NEAR = 3  # lines: a call that spans several is reported at its first or last
# What a hunk costs that does not touch the innermost frame of the first kind of place: the caller
# of a line may do anything else, too; another kind of place is a later guess.
_CALLER = 2.0  # for each frame
_LATER = 0.5  # for each kind
_COST = {"line": 0.0, "near": 1.0, "called": 1.25, "function": 1.5, "file": 100.0}
_LOADED = 200.0  # of a hunk in a file without frames
_NEARLY = 0.8  # of the most that a hunk's lines take longer
LineSeconds = Mapping[tuple[str, str, int], float]  # seconds a step, by file, function and line
_WORDS = re.compile(r"\d+(?:\.\d*)?(?:e[-+]?\d+)?|[^\W\d]\w*")
_CLOSENESS = {"line": 0, "near": 1, "called": 1, "function": 1, "file": 2}


class Blamed(NamedTuple):
    """A hunk, and how it was found: a line of it ran there (0), its function did, or it is the
    first to compute another value (1), its file did (2), or it is in a file that was loaded (3); it
    means the same on both sides, or computed the same before the first difference (4)."""

    hunk: Hunk
    closeness: int


def blame(
    finding: ExplainFinding,
    change: CodeChange,
    tree: Path,
    loaded: Iterable[str],
    values: Mapping[Hunk, Verdict] = MappingProxyType({}),
) -> tuple[ExplainFinding, tuple[Blamed, ...]]:
    """Return the hunks that have to do with it, the likeliest first and the acquitted last, and
    the finding with its sureness in their light: a place that the change does not touch is no
    proof."""
    files = {path_in_tree(tree, name) for name in loaded}
    frames = list(_frames(finding, tree))
    ranked = []
    for hunk in change.hunks:
        reached = [
            (start + _COST[at], at)
            for side, path, frame, start in frames
            if (at := _reach(change, hunk, side, path, frame)) is not None
        ]
        is_loaded = bool(files & {hunk.new, hunk.old})
        is_read = is_loaded and not hunk.path("b").endswith(".py")  # without a frame of it
        if is_read:
            reached.append((_COST["function"], "file"))
        cost, at = min(reached, default=(_LOADED, ""))
        verdict = Verdict.EQUAL if change.same(hunk) else values.get(hunk, Verdict.UNKNOWN)
        if verdict is Verdict.UNKNOWN and change.renames(hunk):
            verdict = Verdict.RENAMED
        if finding.cause == "called" and at == "line" and verdict is not Verdict.EQUAL:
            verdict = Verdict.FIRST  # what is inside of a module is another's
        if verdict is not Verdict.EQUAL and is_read and _sets(hunk, finding):
            verdict = Verdict.FIRST
        closeness = min(_CLOSENESS.get(at, 3), 1 if verdict is Verdict.FIRST else 3)
        if closeness < 3 or is_loaded:
            blamed_hunk = Blamed(hunk, 4 if verdict is Verdict.EQUAL else closeness)
            ranked.append((verdict, cost, blamed_hunk))
    ranked.sort(key=lambda row: row[:2])
    blamed = tuple(row[-1] for row in ranked)
    sure = finding.sureness
    close = bool(blamed) and blamed[0].closeness <= 1
    if sure is Sureness.LIKELY and not close and finding.phase is not FindingPhase.CRASH:
        sure = Sureness.LIKELY if len(blamed) == 1 else Sureness.UNSURE
    elif sure is Sureness.UNSURE and blamed and blamed[0].closeness == 0:
        sure = Sureness.LIKELY
    return replace(finding, sureness=sure), blamed


def _sets(hunk: Hunk, finding: ExplainFinding) -> bool:
    """Return True if it changes a setting that differs, by its name, or words or numbers that the
    sentence has of both sides."""
    old, new = ({w for x in hunk.lines if x[0] == sign for w in _words(x[1:])} for sign in "-+")
    if finding.cause == "settings" and finding.tensor in old | new:
        return True
    sentence = {*_words(finding.sentence)}
    return bool(sentence & (old - new)) and bool(sentence & (new - old))


def _words(text: str) -> Iterator[str]:
    """Yield words and numbers, however these are written."""
    for word in _WORDS.findall(text):
        yield f"{float(word):.6g}" if word[0].isdigit() else word


def blame_lines(before: LineSeconds, after: LineSeconds, change: CodeChange) -> list[Blamed]:
    """Return the hunks that change lines which take longer, with what they call, by at least half
    of the most, closeness 1: of those with nearly all of it, what is called before its callers.
    Where none takes longer, every hunk may make others run more often."""
    changed = [hunk for hunk in change.hunks if not change.same(hunk)]
    spent = [[_spent(change, hunk, *side) for hunk in changed]
             for side in (("a", before), ("b", after))]  # fmt: skip
    ranked = [(new - old, new, hunk) for old, new, hunk in zip(*spent, changed, strict=True)]
    most = max((longer for longer, *_ in ranked), default=0.0)
    if most <= 0:
        return [Blamed(hunk, 1 if len(changed) == 1 else 3) for hunk in changed]
    ranked.sort(key=lambda row: (row[1],) if row[0] >= _NEARLY * most else (math.inf, -row[0]))
    return [Blamed(hunk, 1 if longer >= most / 2 else 3) for longer, _, hunk in ranked]


def _spent(change: CodeChange, hunk: Hunk, side: str, seconds: LineSeconds) -> float:
    """Return the seconds at the statements that a hunk changes, in one function."""
    path, lines = hunk.path(side), change.running_lines(hunk, side)
    functions: dict[str, float] = defaultdict(float)
    for (file, function, line), spent in seconds.items():
        functions[function] += spent if file == path and line in lines else 0.0
    return max(functions.values(), default=0.0)


def _frames(finding: ExplainFinding, tree: Path) -> Iterator[tuple[str, str, Frame, float]]:
    """Yield the frames of a finding's places that are in the tree: side, path, frame and cost."""
    kinds = list(dict.fromkeys(location.what for location in finding.places))
    for place in finding.places:
        later = _LATER * kinds.index(place.what)
        inside = [(path_in_tree(tree, frame.file), frame) for frame in place.frames]
        frames_in_tree = [(path, frame) for path, frame in inside if path is not None]
        for depth, (path, frame) in enumerate(frames_in_tree):
            yield place.side, path, frame, later + _CALLER * depth


def _reach(change: CodeChange, hunk: Hunk, side: str, path: str, frame: Frame) -> str | None:
    """Return how near a hunk comes to a frame, as a key of `_COST`; None in another file.
    `called`: it is in a function that the frame's line calls, as a compiled one without frames."""
    source, its_file = change.source(side, path), change.source(side, hunk.path(side))
    function = re.fullmatch(r"\w+ …(\d+)", frame.function)  # a place may be a whole function
    first, last = frame.line, int(function[1]) if function else frame.line
    lines = change.changed_lines(hunk, side)
    if any(lines & its_file.lines_of(name) for name in source.called_in(range(first, last + 1))):
        return "called"
    if path not in (hunk.old, hunk.new):
        return None
    if any(first <= line <= last for line in lines):
        return "near" if function else "line"
    at = hunk.new_start if side == "b" else hunk.old_start
    ends = lines or {at, at + 1}  # it stands between two lines
    around = source.function_at(first)
    close = [line for line in ends if first - _NEAR <= line <= last + _NEAR]
    if close and (not around or any(n in around or first in source.function_at(n) for n in close)):
        return "near"
    return "function" if any(line in around for line in ends) else "file"
