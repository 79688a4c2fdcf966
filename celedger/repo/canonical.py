"""Python source as far as who imports it can tell: without comments, formatting and the
annotations of local variables, and where asked without the texts of docstrings and the bodies of
functions that were never entered. Knows neither git nor trials.

Two sources with the same form do the same in whoever imports them, as long as nobody looks at
what the form leaves out:

- Without positions, a syntax tree is all that Python compiles; what compiling adds from outside
  (warnings, errors, a newer grammar) makes the form unknown.
- A name's annotation inside a function is neither evaluated nor stored (language reference,
  "Annotated assignment statements"). The names in it are still looked for in the functions around.
- A string alone as a statement is dropped by the compiler unless it is a docstring. That a class
  has one is kept: `dataclasses` and a class's own namespace show it.
- Of a function that was not entered remains what its `def` does: name, signature, decorators, that
  it is a generator, and its free names: for these the functions around it make cells, and classes
  `__class__`. A step-by-step comparison of two runs
  whose trees differ only in such bodies never comes to one: the next function entered is the
  same in both. The one thing that runs between the steps is the collector of cycles: its time
  depends on how many objects there are, constants of such bodies among them. (Docstrings, comments
  and local annotations change none that it counts: measured with CPython 3.11 to 3.13.)

What looks at what is left out (source, line numbers, docstrings, code, what was collected) is
`trial/looking.py`'s.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import CodeType

Function = ast.FunctionDef | ast.AsyncFunctionDef

# What one Python compiles without a warning, the next two do as well (PEP 387: two releases of
# deprecation). What an older one would refuse (a newer grammar, other parentheses) looks the same
# in the tree of a newer.
_AHEAD = 2
# Inside an annotation these bind names, are functions of their own, or (up to Python 3.12) make
# the function around a generator.
_BINDING = (
    ast.NamedExpr, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
    ast.Yield, ast.YieldFrom, ast.Await,
)  # fmt: skip
_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR
_INSIDE = ".<locals>."
_UNCLEAR = (SyntaxError, ValueError, RecursionError, MemoryError, Warning)


def understands(python: tuple[int, int]) -> bool:
    """Whether this interpreter's trees tell what another version does with a source."""
    major, minor = sys.version_info[:2]
    return python[0] == major and minor <= python[1] <= minor + _AHEAD


def form(source: bytes, *, docs: bool, entered: Collection[str] | None) -> bytes | None:
    """A hash of the form (32 bytes); None where it is not known. `docs`: docstrings count.
    `entered`: the functions that do, by their `keys`; None: all."""
    try:
        tree, code = _parsed(source)
        _Stripped(docs, entered, _shapes(code)).block(tree, "", "")
        return hashlib.sha256(ast.dump(tree).encode(errors="surrogatepass")).digest()
    except _UNCLEAR:
        return None


def keys(source: bytes, events: Iterable[tuple[str, int]]) -> tuple[str, ...] | None:
    """The functions that were entered, from the qualified names and first lines of code objects.
    None where one of these is of no function of the source."""
    walk = _Stripped(True, None, {})
    try:
        walk.block(_parsed(source)[0], "", "")
    except _UNCLEAR:
        return None
    found: set[str] = set()
    for name, line in events:
        own, exact = walk.places.get((name, line)), True
        while own is None and name:
            outer, _, inner = name.rpartition(".")
            # What has no `def` belongs to the code around it: lambdas, comprehensions, classes.
            if not inner.startswith("<") and not walk.has_class(name, line, exact):
                return None
            # What is around was made by the last function before it of that name.
            name, exact = outer, False
            before = [(at, key) for (n, at), key in walk.places.items() if n == name and at <= line]
            own = max(before)[1] if before else None
        # A function's key says which ones are around it.
        parts = (own or "").split(_INSIDE)
        found.update(_INSIDE.join(parts[: i + 1]) for i in range(len(parts)) if own)
    return tuple(sorted(found))


def _parsed(source: bytes) -> tuple[ast.Module, CodeType]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a warning may be an error in the trial: unknown, too
        tree = ast.parse(source)
        code = compile(tree, "", "exec", dont_inherit=True)
    return tree, code


@dataclass
class _Shape:
    """What Python makes of a function beyond its body and its `def`."""

    free: set[str] = field(default_factory=set)
    generator: bool = False


def _shapes(code: CodeType) -> dict[tuple[str, int], _Shape]:
    """By qualified name and first line, of all code in a module's."""
    found: dict[tuple[str, int], _Shape] = {}
    pending = [code]
    while pending:
        code = pending.pop()
        shape = found.setdefault((code.co_qualname, code.co_firstlineno), _Shape())
        shape.free.update(code.co_freevars)
        shape.generator |= bool(code.co_flags & _GENERATOR)
        pending += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return found


@dataclass
class _Stripped:
    """A walk over the statements of a tree that leaves its form."""

    docs: bool
    entered: Collection[str] | None
    shapes: Mapping[tuple[str, int], _Shape]
    # Qualified name and first line -> the key of the function that begins there: its number among
    # those of its name that stand beside it, behind the key of the function around it. So a key is
    # the same whether or not other bodies are walked.
    places: dict[tuple[str, int], str] = field(default_factory=dict)
    classes: set[tuple[str, int]] = field(default_factory=set)
    _count: Counter[str] = field(default_factory=Counter)

    def has_class(self, name: str, line: int, exact: bool) -> bool:
        """Whether a class of that name begins there, or at or before it."""
        return any(
            n == name and (at == line or (at < line and not exact)) for n, at in self.classes
        )

    def block(self, node: ast.Module | ast.ClassDef | Function, prefix: str, key: str) -> None:
        """A module's, class's or function's body; qualified names in it begin with `prefix`, keys
        with `key`."""
        has_doc = ast.get_docstring(node, clean=False) is not None
        doc = node.body[0] if has_doc else None
        if not self.docs and isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant):
            if isinstance(node, ast.ClassDef):
                doc.value.value = ""
            else:
                doc = None
        inside = not isinstance(node, (ast.Module, ast.ClassDef))
        self._statements(node, prefix, key, inside)
        if doc is not None:
            node.body.insert(0, doc)

    def _statements(self, node: ast.AST, prefix: str, key: str, inside: bool) -> None:
        """All statements directly or deeper in `node`; `inside` a function and no class of it."""
        for part in ("body", "orelse", "finalbody"):
            body = getattr(node, part, None)
            if isinstance(body, list):
                kept = [self._statement(s, prefix, key, inside) for s in body if not _is_text(s)]
                setattr(node, part, kept)
        for part in ("handlers", "cases"):
            for child in getattr(node, part, ()):
                self._statements(child, prefix, key, inside)

    def _statement(self, node: ast.stmt, prefix: str, key: str, inside: bool) -> ast.stmt:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._function(node, prefix, key)
            case ast.ClassDef():
                self.classes.add((prefix + node.name, _first_line(node)))
                self.block(node, f"{prefix}{node.name}.", f"{key}{node.name}.")
            case ast.AnnAssign() if inside and any(
                isinstance(part, _BINDING) for part in ast.walk(node.annotation)
            ):
                pass
            case ast.AnnAssign() if inside and node.value is not None:
                return ast.Assign([node.target], node.value)
            case ast.AnnAssign() if inside:  # it makes the name local
                node.annotation = ast.Constant(None)
            case _:
                self._statements(node, prefix, key, inside)
        return node

    def _function(self, node: Function, prefix: str, key: str) -> None:
        name, key = prefix + node.name, key + node.name
        self._count[key] += 1
        key = f"{key}#{self._count[key]}"
        line = _first_line(node)
        self.places[name, line] = key
        shape = self.shapes.get((name, line))
        if shape is None and self.shapes:
            raise ValueError("Python knows it by another name, that of a `global`")
        if self.entered is None or key in self.entered or shape is None:
            self.block(node, name + _INSIDE, key + _INSIDE)
            if shape is not None and shape.free:
                free = tuple(sorted(shape.free))
                node.body.append(ast.Expr(ast.Constant(free)))  # type: ignore[arg-type]
            return
        doc = ast.get_docstring(node, clean=False) if self.docs else None
        # No source has a tuple for a constant: these are operations there.
        left = (shape.generator, tuple(sorted(shape.free)), doc)
        node.body = [ast.Expr(ast.Constant(left))]  # type: ignore[arg-type]


def _first_line(node: Function | ast.ClassDef) -> int:
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
