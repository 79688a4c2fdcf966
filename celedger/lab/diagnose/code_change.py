"""The parts of a change that mean the same on both sides: comments, docstrings, definitions that
only moved, new functions that nothing names.
By Python's syntax tree; a file that is no Python has only its lines. And what to record of the
lines that mean something else: statements and variables. Pure: texts in, lines out."""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from celedger.repo.hunks import Hunk

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Definition = _Function | ast.ClassDef
_Leaving = ast.Return | ast.Raise | ast.Continue | ast.Break
_WORDS = re.compile(r"\w+|[^\w\s]")
_VERSION = re.compile(r"(?<=^Assign\(targets=\[Name\(id='__version__', ).*", re.DOTALL)
"""What follows the name of a package's version, as `ast.dump` writes it: no number rests on it."""
_PLAIN = ast.Constant | ast.Name | ast.Attribute  # whose order of evaluation means nothing


class SourceText:
    """A file on one side of a change."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def tree(self) -> ast.Module:
        """Return the syntax tree without docstrings; an empty one of what is no Python."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(self.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return ast.Module([], [])
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | _Definition) and (
                ast.get_docstring(node, clean=False) is not None
            ):
                del node.body[0]
            if isinstance(node, ast.Call) and all(
                word.arg and isinstance(word.value, _PLAIN) for word in node.keywords
            ):
                node.keywords.sort(key=lambda word: word.arg or "")
        return tree

    @cached_property
    def nodes(self) -> Sequence[ast.AST]:
        return [*ast.walk(self.tree)]

    @cached_property
    def names(self) -> Counter[str]:
        """Return how often each name stands in the code."""
        return Counter(name for node in self.nodes if (name := _name(node)))

    @cached_property
    def code_lines(self) -> frozenset[int]:
        """Return the lines that belong to a statement; of what is no Python, those that are not
        blank."""
        if not self.tree.body:
            lines = enumerate(self.text.splitlines(), 1)
            return frozenset(number for number, line in lines if line.split("#")[0].strip())
        spans = [node for node in self.nodes if isinstance(node, ast.stmt | ast.expr)]
        return frozenset(line for node in spans for line in header(node))

    @cached_property
    def units(self) -> Sequence[tuple[str, range]]:
        """Definitions, at any depth, and other statements of a module, with their lines. Versions
        of a package are alike."""
        nodes = [node for node in self.nodes if isinstance(node, _Definition)]
        plain = [node for node in self.tree.body if not isinstance(node, _Definition)]
        dumps = ((ast.dump(node), span(node)) for node in (*nodes, *plain))
        return [(_VERSION.sub("", dump), lines) for dump, lines in dumps]

    @cached_property
    def functions(self) -> Mapping[str, range]:
        """Return the functions of the module itself, by name."""
        body = self.tree.body
        return {node.name: span(node) for node in body if isinstance(node, ast.FunctionDef)}

    @cached_property
    def definitions(self) -> Mapping[str, list[_Definition]]:
        """Return the functions and classes, at any depth, by name."""
        named: dict[str, list[_Definition]] = defaultdict(list)
        for node in self.nodes:
            if isinstance(node, _Definition):
                named[node.name].append(node)
        return named

    @cached_property
    def ways_out(self) -> Mapping[int, str]:
        """Return the innermost function around each statement that leaves a block, by its line."""
        functions = [node for node in self.nodes if isinstance(node, _Function)]
        lines = [node.lineno for node in self.nodes if isinstance(node, _Leaving)]
        around = {at: [node for node in functions if at in span(node)] for at in lines}
        return {
            at: min(f, key=lambda n: len(span(n))).name if f else "" for at, f in around.items()
        }

    @cached_property
    def comprehended(self) -> frozenset[int]:
        """Return the ids of the nodes that stand for the variables of comprehensions."""
        inner = set()
        for node in self.nodes:
            if generators := getattr(node, "generators", ()):
                parts = [part for one in generators for part in ast.walk(one.target)]
                names = {part.id for part in parts if isinstance(part, ast.Name)}
                every = (part for part in ast.walk(node) if isinstance(part, ast.Name))
                inner |= {id(part) for part in every if part.id in names}
        return frozenset(inner)

    def lines_of(self, name: str) -> set[int]:
        """Return the lines of the functions of this name, of methods and inner ones too."""
        named = (n for n in self.definitions.get(name, ()) if isinstance(n, _Function))
        return {line for node in named for line in span(node)}

    def called_in(self, lines: range) -> set[str]:
        """Return the names of the functions that some lines call, without methods."""
        calls = (n.func for n in self.nodes if isinstance(n, ast.Call) and n.lineno in lines)
        return {function.id for function in calls if isinstance(function, ast.Name)}

    def function_at(self, line: int) -> range:
        """Return the lines of the innermost function there; none outside of all."""
        spans = [span(node) for node in self.nodes if isinstance(node, _Function)]
        return min((lines for lines in spans if line in lines), key=len, default=range(0))


class CodeChange:
    """Hunks, and the texts of the files that they are in, by path: those before and after."""

    def __init__(
        self,
        hunks: Sequence[Hunk] = (),
        texts: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {}),
    ) -> None:
        self.hunks = hunks
        self._sides = {
            side: {path: SourceText(text) for path, text in files.items()}
            for side, files in zip("ab", texts, strict=True)
        }

    def source(self, side: str, path: str) -> SourceText:
        """Return a changed file; an empty one where it could not be read."""
        return self._sides[side].get(path) or SourceText("")

    def changed_lines(self, hunk: Hunk, side: str) -> set[int]:
        """Return the lines of a hunk on one side that mean something else on the other."""
        lines = _lines(hunk, side)
        path = hunk.path(side)
        source = self._sides[side].get(path)
        return lines & source.code_lines - self._same_lines[side][path] if source else lines

    def reads_elsewhere(self, hunk: Hunk, side: str, name: str) -> bool:
        """Return True if a variable that a hunk binds is read outside of the hunk, as far as its
        function goes; one of a module or class is, and one that it only writes to."""
        source = self.source(side, hunk.path(side))
        lines = _lines(hunk, side)
        around = source.function_at(min(lines, default=0))
        named = [n for n in source.nodes if isinstance(n, ast.Name) and n.id == name]
        binds = any(isinstance(n.ctx, ast.Store) and n.lineno in lines for n in named)
        return not (around and binds) or any(
            isinstance(node.ctx, ast.Load) and node.lineno in around and node.lineno not in lines
            for node in named if id(node) not in source.comprehended
        )  # fmt: skip

    def statements(self, hunk: Hunk, side: str) -> list[tuple[int, int, int]]:
        """Return the ranges of a hunk's changed lines: first, last and 0. Where one side has none,
        the statement after which (1) or before which (-1) those of the other side stand."""
        lines = sorted(self.changed_lines(hunk, side))
        starts = [n for n in lines if n - 1 not in lines]
        ends = [n for n in lines if n + 1 not in lines]
        if lines or self.same(hunk):
            return [(first, last, 0) for first, last in zip(starts, ends, strict=True)]
        other = "b" if side == "a" else "a"
        column = min((node.col_offset for node in self._heads(hunk, other)), default=0)
        at, _ = hunk.span(side)
        source = self.source(side, hunk.path(side))
        # The nearest lines of code: those of other blocks are not beside it.
        above = max((line for line in source.code_lines if line <= at), default=0)
        below = min((line for line in source.code_lines if line > at), default=0)
        statements = [node for node in source.nodes if isinstance(node, ast.stmt)]
        if any({above, below} <= {*header(node)} for node in statements):  # a part of one
            return [(above, above, 0)]
        beside = [node for node in statements if node.col_offset == column]
        if any(node.end_lineno == above for node in beside):
            return [(above, above, 1)]
        return [(below, below, -1)] if any(node.lineno == below for node in beside) else []

    def _heads(self, hunk: Hunk, side: str) -> list[ast.stmt]:
        """Return the statements with a changed line, in their head where they have a body."""
        lines = self.changed_lines(hunk, side)
        nodes = self.source(side, hunk.path(side)).nodes
        return [n for n in nodes if isinstance(n, ast.stmt) and not lines.isdisjoint(header(n))]

    def running_lines(self, hunk: Hunk, side: str) -> set[int]:
        """Return the lines of the statements that a hunk changes; of a function whose head it does,
        as a default, all of them."""
        heads = self._heads(hunk, side)
        spans = [span(n) if isinstance(n, _Function) else header(n) for n in heads]
        return {line for lines in spans for line in lines}

    def waits_for_a_call(self, hunk: Hunk, side: str) -> bool:
        """Return True if a hunk has statements on a side that run, and read variables, whenever
        their function gets to them."""
        heads = self._heads(hunk, side)
        around = self.source(side, hunk.path(side)).function_at(min(_lines(hunk, side), default=0))
        reads = (isinstance(getattr(p, "ctx", None), ast.Load) for n in heads for p in _own(n))
        return any(reads) and bool(around) and not any(isinstance(n, _Definition) for n in heads)

    def is_plain(self, hunk: Hunk) -> bool:
        """Return True if both sides of a hunk have statements without a body, in one block: how
        often they run is up to others."""
        heads = [node for side in "ab" for node in self._heads(hunk, side)]
        blocks = {node.col_offset for node in heads}
        return len(blocks) == 1 and not any(hasattr(node, "body") for node in heads)

    def variables(self, hunk: Hunk, side: str) -> set[str]:
        """Return the variables, and attributes of variables, that the hunk binds or writes to on a
        side; where one side has no lines, what the other binds, writes to or may change."""
        heads = {one: self._heads(hunk, one) for one in "ab"}
        one_sided = not all(heads.values())
        calls = {at: {name for node in heads[at] if (name := _called(node))} for at in "ab"}
        both = set() if one_sided else calls["a"] & calls["b"]  # what these are given is recorded
        written: set[str] = set()
        for at in "ab" if one_sided else side:
            source = self.source(at, hunk.path(at))
            nodes = [node for node in heads[at] if not isinstance(node, _Definition)]
            parts = [part for node in nodes for part in _own(node)]
            own = [part for part in parts if id(part) not in source.comprehended]
            written |= {name for part in own for name in _written_by(part)}
            changing = [node for node in nodes if _called(node) not in {"", *both}]
            written |= {name for node in changing for name in _changed_by(node)}
        return written

    def same(self, hunk: Hunk) -> bool:
        """Return True if a hunk means the same on both sides."""
        return not self.changed_lines(hunk, "a") and not self.changed_lines(hunk, "b")

    def renames(self, hunk: Hunk) -> bool:
        """Return True if a hunk only replaces names, or words of texts, by others, each as often as
        the whole change does, and more than once: a word that stands alone may be a setting."""
        sides = [[line[1:] for line in hunk.lines if line[0] == sign] for sign in "-+"]
        old, new = (_WORDS.findall(" ".join(lines)) for lines in sides)
        before, after = self._names
        return (
            old != new
            and len(old) == len(new)
            and all(
                x == y or before[x] == after[y] > 1 + after[x] == 1 + before[y] == 1
                for x, y in zip(old, new, strict=True)
            )
        )

    def redirects(self, hunk: Hunk) -> bool:
        """Return True if a hunk only moves its lines into another block, or leaves its own where
        the other side goes on: a function that both sides have has more or fewer ways out."""
        old, new = ([x[1:].strip() for x in hunk.lines if x[0] == sign] for sign in "-+")
        sources = [self.source(side, hunk.path(side)) for side in "ab"]
        touched = {
            source.ways_out[node.lineno]
            for source, side in zip(sources, "ab", strict=True)
            for node in self._heads(hunk, side) if node.lineno in source.ways_out
        }  # fmt: skip
        both = touched.intersection(*({"", *source.definitions} for source in sources))
        before, after = (Counter(source.ways_out.values()) for source in sources)
        return old == new or any(before[name] != after[name] for name in both)

    @cached_property
    def _names(self) -> tuple[Counter[str], Counter[str]]:
        """Return how often each name stands on either side."""
        left, right = (
            sum((source.names for source in self._sides[side].values()), Counter[str]())
            for side in "ab"
        )
        return left, right

    @cached_property
    def _same_lines(self) -> Mapping[str, Mapping[str, set[int]]]:
        """By side and path, the lines of what both sides have, wherever it stands, and of functions
        that nothing names."""
        units = {
            side: {dump for source in sources.values() for dump, _ in source.units}
            for side, sources in self._sides.items()
        }
        both = units["a"] & units["b"]
        before, after = self._names
        same: dict[str, dict[str, set[int]]] = {}
        for side, sources in self._sides.items():
            same[side] = {}
            for path, source in sources.items():
                spans = [span for dump, span in source.units if dump in both]
                spans += [
                    span for name, span in source.functions.items()
                    if side == "b" and name not in before and after[name] == 1
                ]  # fmt: skip
                same[side][path] = {line for span in spans for line in span}
        return same


def _written_by(node: ast.AST) -> Iterator[str]:
    """Yield the variable that a node stores or has written to, or the attribute of one."""
    if not isinstance(getattr(node, "ctx", None), ast.Store):
        return
    base: Any = node
    while isinstance(base, ast.Subscript) or (
        isinstance(base, ast.Attribute) and not isinstance(base.value, ast.Name)
    ):
        base = base.value
    if isinstance(base, ast.Name):
        yield base.id
    elif isinstance(base, ast.Attribute) and isinstance(base.value, ast.Name):
        yield f"{base.value.id}.{base.attr}"


def _lines(hunk: Hunk, side: str) -> set[int]:
    start, count = hunk.span(side)
    return set(range(start, start + count))


def _name(node: ast.AST) -> str:
    """Return the name that a node binds or reads; empty if it has none."""
    names = (getattr(node, field, None) for field in ("id", "attr", "name", "arg"))
    return next((name for name in names if isinstance(name, str)), "")


def _called(node: ast.stmt) -> str:
    """Return what a statement that binds nothing calls, else nothing."""
    value = node.value if isinstance(node, ast.Expr) else None
    return ast.unparse(getattr(value, "func", value)) if value is not None else ""


def _changed_by(node: ast.stmt) -> Iterator[str]:
    """Yield the variables that the calls of a statement which binds nothing may change."""
    value = getattr(node, "value", None)
    parts = [value] if isinstance(value, ast.Call) else ast.walk(node)
    for call in (part for part in parts if isinstance(part, ast.Call)):
        holders = ast.walk(call.func.value) if isinstance(call.func, ast.Attribute) else ()
        for one in (*holders, *call.args):
            if isinstance(one, ast.Name):
                yield one.id
            elif isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name):
                yield f"{one.value.id}.{one.attr}"


def _own(node: ast.AST) -> list[ast.AST]:
    """Return the nodes of a statement; of a loop or condition, without those of its body."""
    if isinstance(node, _Definition) or not isinstance(getattr(node, "body", None), list):
        return list(ast.walk(node))
    parts = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]
    return [one for part in parts for one in ast.walk(part)]


def span(node: ast.stmt | ast.expr) -> range:
    """Return the lines of a node, with those of its decorators."""
    decorators = [decorator.lineno for decorator in getattr(node, "decorator_list", ())]
    return range(min([node.lineno, *decorators]), (node.end_lineno or node.lineno) + 1)


def header(node: ast.stmt | ast.expr) -> range:
    """Return a node's own lines: of a block, without those of its body."""
    body = getattr(node, "body", None)
    if isinstance(body, list) and body:
        return range(span(node).start, max(node.lineno + 1, body[0].lineno))
    return span(node)
