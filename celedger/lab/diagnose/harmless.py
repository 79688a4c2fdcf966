"""Prove hunks of a change harmless: what their lines computed before the first difference had equal
bits on both sides. Pure: a comparison of two traces and a change in, hunks out."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

from celedger.lab.diagnose.blame import path_in_tree
from celedger.lab.diagnose.code_change import CodeChange, span
from celedger.lab.diagnose.difference import Front, TraceComparison
from celedger.lab.diagnose.trace import Event, Trace
from celedger.repo.hunks import Hunk

_BACKWARD = frozenset({"grad", "missing", "pgrad"})
"""Kinds of a first difference that equal values do not acquit: `detach` keeps every value."""
_Lines = dict[str, set[int]]


def harmless_hunks(
    comparison: TraceComparison, front: Front, change: CodeChange, tree: Path
) -> frozenset[Hunk]:
    """Return the hunks whose statements all called torch before the first difference, and whose
    results, as far as others read them, were the same set of tensors on both sides."""
    if front.kind in _BACKWARD:
        return frozenset()
    sides = [
        (side, _Calls(trace, event, tree))
        for side, trace, event in (
            ("a", comparison.a, front.pair.a), ("b", comparison.b, front.pair.b),
        )
    ]  # fmt: skip
    return frozenset(
        hunk for hunk in change.hunks
        if (left := _results(change, hunk, *sides[0])) and left == _results(change, hunk, *sides[1])
    )  # fmt: skip


class _Calls:
    """The calls of a trace up to an event, by the innermost line of the tree that makes each."""

    def __init__(self, trace: Trace, until: Event | None, tree: Path) -> None:
        self.until = until
        end = len(trace.events) if until is None else until.order + 1
        outputs = {
            _key(event): [tensor.hash for tensor in event.tensors]
            for event in trace.of("leave") if event.order < end
        }  # fmt: skip
        self.rows: list[tuple[str | None, int, list[str], list[str]]] = []
        for event in trace.events[:end]:
            if event.kind not in ("call", "enter", "loss"):
                continue
            path, line = next(
                (
                    (path, frame.line) for frame in trace.frames(event.site)
                    if (path := path_in_tree(tree, frame.file)) is not None
                ), (None, 0),
            )  # fmt: skip
            hashes = [tensor.hash for tensor in event.tensors]
            given = list(filter(None, event.raw.get("i", ()))) if event.kind == "call" else hashes
            made = hashes if event.kind == "call" else outputs.get(_key(event), [])
            self.rows.append((path, line, given, made))

    def leaving(self, path: str, lines: Collection[int]) -> set[str]:
        """Return what these lines made and others read."""
        made: set[str] = set()
        read: set[str] = set()
        for at, line, given, results in self.rows:
            if at == path and line in lines:
                made.update(results)
            else:
                read.update(given)
        return made & read

    def has(self, path: str, lines: Collection[int]) -> bool:
        return any(at == path and line in lines for at, line, _, _ in self.rows)


def _key(event: Event) -> tuple[object, ...]:
    return event.step, event.evaluation, event.path, event.number


def _results(change: CodeChange, hunk: Hunk, side: str, calls: _Calls) -> set[str]:
    """Return what leaves the changed statements of one side; nothing where one of them made no
    call that was seen."""
    path = hunk.old if side == "a" else hunk.new
    changed = change.changed_lines(hunk, side)
    statements = list(_statements(change.source(side, path).tree, changed))
    if not statements or not all(calls.has(path, lines) for lines in statements):
        return set()
    return calls.leaving(path, {line for lines in statements for line in lines})


def _statements(tree: ast.Module, changed: Collection[int]) -> Iterator[range]:
    """Yield the lines of the statements that have a changed line; a line that is in no simple
    statement by itself, so that nothing is proved of a loop or a condition."""
    spans = [
        span(node) for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and not hasattr(node, "body")
    ]  # fmt: skip
    for line in sorted(changed):
        yield next((lines for lines in spans if line in lines), range(line, line))
