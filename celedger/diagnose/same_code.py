"""What of a change means the same on both sides: comments, docstrings, definitions that only moved,
consistent renaming, new functions that nothing names. By Python's syntax tree; a file that is no
Python has only its lines. Pure: texts in, lines out."""

from __future__ import annotations

import ast
import contextlib
import io
import keyword
import tokenize
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

from celedger.diagnose.slicing import backward_slice, header, setting_slice, span
from celedger.repo.hunks import Hunk

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_PLAIN = ast.Constant | ast.Name | ast.Attribute  # whose order of evaluation means nothing
_EMPTY = range(0)


class SourceText:
    """A file on one side of a change."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def tree(self) -> ast.Module | None:
        """The syntax tree without docstrings; None of what is no Python."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(self.text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
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
    def names(self) -> Counter[str]:
        return Counter(
            token for line in self.text.splitlines() for token in _tokens(line) or ()
            if _is_name(token)
        )  # fmt: skip

    @cached_property
    def bound(self) -> frozenset[str]:
        """The names that the file gives to something: only these can be renamed in it."""
        names = set()
        for node in ast.walk(self.tree) if self.tree is not None else ():
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    names.add(name)
                case ast.ClassDef(name=name) | ast.arg(arg=name):
                    names.add(name)
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                    names.add(name)
        return frozenset(names)

    @cached_property
    def code_lines(self) -> frozenset[int]:
        """The lines that belong to a statement; of what is no Python, those that are not blank."""
        if self.tree is None:
            lines = enumerate(self.text.splitlines(), 1)
            return frozenset(number for number, line in lines if line.split("#")[0].strip())
        spans = [node for node in ast.walk(self.tree) if isinstance(node, ast.stmt | ast.expr)]
        return frozenset(line for node in spans for line in header(node))

    @cached_property
    def units(self) -> Sequence[tuple[str, range]]:
        """Definitions, at any depth, and other statements of a module, with their lines."""
        if self.tree is None:
            return ()
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, _Definition)]
        plain = [node for node in self.tree.body if not isinstance(node, _Definition)]
        return [(ast.dump(node), span(node)) for node in (*nodes, *plain)]

    @cached_property
    def functions(self) -> Mapping[str, range]:
        """The functions of the module itself, by name."""
        body = self.tree.body if self.tree is not None else []
        return {node.name: span(node) for node in body if isinstance(node, ast.FunctionDef)}

    def function_at(self, line: int) -> range:
        """Return the lines of the innermost function there; none outside of all."""
        nodes = ast.walk(self.tree) if self.tree is not None else ()
        spans = [
            span(node) for node in nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and line in span(node)
        ]  # fmt: skip
        return min(spans, key=len, default=_EMPTY)


class CodeChange:
    """Hunks, and the texts of the files that they are in, by path: `before` and `after`."""

    def __init__(
        self,
        hunks: Sequence[Hunk] = (),
        before: Mapping[str, str] | None = None,
        after: Mapping[str, str] | None = None,
    ) -> None:
        self.hunks = hunks
        self._sides = {
            side: {path: SourceText(text) for path, text in (texts or {}).items()}
            for side, texts in (("a", before), ("b", after))
        }

    def changed_lines(self, hunk: Hunk, side: str) -> set[int]:
        """Return the lines of a hunk on one side that mean something else on the other."""
        if hunk in self._renaming:
            return set()
        path, start, count = (
            (hunk.old, hunk.old_start, hunk.old_count) if side == "a"
            else (hunk.new, hunk.new_start, hunk.new_count)
        )  # fmt: skip
        lines = set(range(start, start + count))
        source = self._sides[side].get(path)
        return lines & source.code_lines - self._same_lines[side][path] if source else lines

    def same(self, hunk: Hunk) -> bool:
        """Return True if a hunk means the same on both sides."""
        return not self.changed_lines(hunk, "a") and not self.changed_lines(hunk, "b")

    def slice_at(self, path: str, line: int, *, side: str) -> Mapping[int, int]:
        """Return the lines that what is called there may be given from, with their distance."""
        source = self._sides[side].get(path)
        return backward_slice(source.tree, line) if source and source.tree else {}

    def setting_at(self, path: str, key: str, *, side: str) -> Mapping[int, int]:
        """Return the lines that write a setting of this name, and its sources' with distance."""
        source = self._sides[side].get(path)
        return setting_slice(source.tree, key) if source and source.tree else {}

    def function_at(self, path: str, line: int, *, side: str) -> range:
        source = self._sides[side].get(path)
        return source.function_at(line) if source is not None else _EMPTY

    @cached_property
    def _names(self) -> tuple[Counter[str], Counter[str]]:
        """How often each name stands on either side."""
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

    @cached_property
    def _renaming(self) -> set[Hunk]:
        """The hunks that differ in nothing but names that one side alone has and binds, each for
        another."""
        before, after = self._names
        bound = {
            side: {name for source in sources.values() for name in source.bound}
            for side, sources in self._sides.items()
        }
        renamed: dict[str, set[str]] = {}
        pairs: dict[Hunk, set[tuple[str, str]]] = {}
        for hunk in self.hunks:
            sides = ([x[1:] for x in hunk.lines if x[0] == sign] for sign in "-+")
            changes = _other_names("\n".join(next(sides)), "\n".join(next(sides)))
            if changes and all(
                x not in after and y not in before and x in bound["a"] and y in bound["b"]
                for x, y in changes
            ):
                pairs[hunk] = changes
                for x, y in changes:
                    renamed.setdefault(x, set()).add(y)
                    renamed.setdefault(y, set()).add(x)
        return {
            hunk for hunk, changes in pairs.items()
            if all(len(renamed[x]) == len(renamed[y]) == 1 for x, y in changes)
        }  # fmt: skip


def _other_names(old: str, new: str) -> set[tuple[str, str]] | None:
    """Return the names that differ between two texts; None where more differs than names."""
    left, right = _tokens(old), _tokens(new)
    if left is None or right is None or len(left) != len(right):
        return None
    pairs = {(x, y) for x, y in zip(left, right, strict=True) if x != y}
    names = {text for row in pairs for text in row}
    return pairs if all(map(_is_name, names)) else None


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)


def _tokens(text: str) -> list[str] | None:
    """Return the tokens of a piece of Python, without comments and layout; None of what is none."""
    layout = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    # Within brackets indentation means nothing, so a piece of a block can be read.
    lines = io.StringIO(f"({text}\n)").readline
    tokens: list[tokenize.TokenInfo] = []
    with contextlib.suppress(tokenize.TokenError):  # it ends within brackets of its own
        try:
            tokens.extend(tokenize.generate_tokens(lines))
        except SyntaxError:
            return None
    return [token.string for token in tokens if token.type not in layout and token.string]
