"""Acquit hunks of a change: what their lines computed before the first difference had equal bits on
both sides, or they ran only after it. Pure: a comparison of two traces and a change in, hunks
out."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from celedger.lab.diagnose.changed_values import hunk_values
from celedger.lab.diagnose.code_change import CodeChange, span
from celedger.lab.diagnose.difference import Front, TraceComparison
from celedger.lab.diagnose.trace import Event, Trace
from celedger.repo.hunks import Hunk

_BACKWARD = frozenset({"grad", "missing", "pgrad"})
"""Kinds of a first difference that equal values do not acquit, since `detach` keeps every value:
only equal calls of equal operands do."""


def path_in_tree(tree: Path, file: str) -> str | None:
    """Return a file's path as git names it, None outside of the tree."""
    try:
        return Path(file).relative_to(tree).as_posix()
    except ValueError:
        return None


class Acquitted(NamedTuple):
    """`equal`: hunks whose statements all called torch before the first difference, and whose
    results, as far as others read them, were the same set of tensors on both sides; and those of
    which all values that leave them were equal. `later`: hunks whose calls were all seen after it.
    `first`: the hunk with the first value that differs."""

    equal: frozenset[Hunk] = frozenset()
    later: frozenset[Hunk] = frozenset()
    first: Hunk | None = None


def acquitted(
    comparison: TraceComparison, front: Front, change: CodeChange, tree: Path
) -> Acquitted:
    """Return the hunks that are not the cause of the first difference."""
    sides = [
        (side, _Calls(trace, event, tree))
        for side, trace, event in (
            ("a", comparison.a, front.pair.a), ("b", comparison.b, front.pair.b),
        )
    ]  # fmt: skip
    equal = frozenset(
        hunk for hunk in change.hunks
        if (left := _results(change, hunk, *sides[0], calls=front.kind in _BACKWARD))
        and left == _results(change, hunk, *sides[1], calls=front.kind in _BACKWARD)
    )  # fmt: skip
    later = frozenset(
        hunk
        for hunk in change.hunks
        if not change.same(hunk)
        and all(_runs_later(change, hunk, side, calls) for side, calls in sides)
    )
    values = hunk_values(
        change, comparison.a, comparison.b, (front.pair.a, front.pair.b),
        backward=front.kind in _BACKWARD,
    )  # fmt: skip
    return Acquitted(equal | values.equal, later | values.later, values.first)


def _runs_later(change: CodeChange, hunk: Hunk, side: str, calls: _Calls) -> bool:
    """Return True if the changed statements of one side, where it has some, called torch after the
    difference and never before it."""
    path = hunk.path(side)
    changed = change.changed_lines(hunk, side)
    statements = list(_statements(change.source(side, path).tree, changed))
    return all(calls.only_later(path, lines) for lines in statements)


class _Calls:
    """The calls of a trace up to an event, by the innermost line of the tree that makes each."""

    def __init__(self, trace: Trace, until: Event | None, tree: Path) -> None:
        end = len(trace.events) if until is None else until.order + 1
        outputs = {
            _key(event): [tensor.hash for tensor in event.tensors]
            for event in trace.of("leave") if event.order < end
        }  # fmt: skip
        self.rows: list[tuple[str | None, int, Event, list[str], list[str]]] = []
        self.later: set[tuple[str | None, int]] = set()
        early = next((event.raw["s"] for event in trace.of("early")), None)
        self.early = None if early is None else {_line(trace, site, tree) for site in early}
        for event in trace.events:
            if event.kind not in ("call", "enter", "loss"):
                continue
            path, line = _line(trace, event.site, tree)
            if event.order >= end:
                self.later.add((path, line))
                continue
            hashes = [tensor.hash for tensor in event.tensors]
            given = list(filter(None, event.raw.get("i", ()))) if event.kind == "call" else hashes
            made = hashes if event.kind == "call" else outputs.get(_key(event), [])
            self.rows.append((path, line, event, given, made))

    def leaving(self, path: str, lines: Collection[int]) -> set[str]:
        """Return what these lines made and others read."""
        made: set[str] = set()
        read: set[str] = set()
        for at, line, _, given, results in self.rows:
            if at == path and line in lines:
                made.update(results)
            else:
                read.update(given)
        return made & read

    def calls(self, path: str, lines: Collection[int]) -> list[object]:
        """Return the calls of these lines, with their operands and what each flags for gradients;
        where a module is called, what it is given."""
        return [
            (event.kind, event.name, event.raw.get("l"), event.raw.get("g"), given, made)
            for at, line, event, given, made in self.rows if at == path and line in lines
        ]  # fmt: skip

    def has(self, path: str, lines: Collection[int]) -> bool:
        return any(at == path and line in lines for at, line, *_ in self.rows)

    def only_later(self, path: str, lines: Collection[int]) -> bool:
        """Return True if these lines called torch, and none of them before the event."""
        at = {(path, line) for line in lines}
        before = self.early is None or not at.isdisjoint(self.early) or self.has(path, lines)
        return not before and not at.isdisjoint(self.later)


def _line(trace: Trace, site: int, tree: Path) -> tuple[str | None, int]:
    """Return the innermost line of the tree at a site."""
    for frame in trace.frames(site):
        if (path := path_in_tree(tree, frame.file)) is not None:
            return path, frame.line
    return None, 0


def _key(event: Event) -> tuple[object, ...]:
    return event.step, event.evaluation, event.path, event.number


def _results(
    change: CodeChange, hunk: Hunk, side: str, seen: _Calls, *, calls: bool
) -> Collection[object]:
    """Return what leaves the changed statements of one side, or their `calls`; nothing where one of
    them made no call that was seen."""
    path = hunk.path(side)
    changed = change.changed_lines(hunk, side)
    statements = list(_statements(change.source(side, path).tree, changed))
    if not statements or not all(seen.has(path, lines) for lines in statements):
        return set()
    lines = {line for lines in statements for line in lines}
    return seen.calls(path, lines) if calls else seen.leaving(path, lines)


def _statements(tree: ast.Module, changed: Collection[int]) -> Iterator[range]:
    """Yield the lines of the statements that have a changed line; a line that is in no simple
    statement by itself, so that nothing is proved of a loop or a condition."""
    spans = [
        span(node) for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and not hasattr(node, "body")
    ]  # fmt: skip
    for line in sorted(changed):
        yield next((lines for lines in spans if line in lines), range(line, line))
