"""The parts of a change that mean the same on both sides: comments, docstrings, definitions that
only moved, consistent renaming, new functions that nothing names, variables that are written out.
By Python's syntax tree; a file that is no Python has only its lines. And the backward slice of a
file: the lines that what a call is given may come from, by names alone, without regard to the order
of statements: it ranks hunks and proves nothing. Pure: texts in, lines out."""

from __future__ import annotations

import ast
import copy
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from keyword import iskeyword
from typing import Any, NamedTuple

from celedger.repo.hunks import Hunk

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Definition = _Function | ast.ClassDef
_Operator = ast.operator | ast.unaryop | ast.cmpop | ast.boolop
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
    def bound(self) -> frozenset[str]:
        """Return the names that the file gives to something: only these can be renamed in it."""
        return frozenset(
            _name(node) for node in self.nodes
            if isinstance(node, _Definition | ast.arg)
            or isinstance(getattr(node, "ctx", None), ast.Store)
        )  # fmt: skip

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
        """Definitions, at any depth, and other statements of a module, with their lines."""
        nodes = [node for node in self.nodes if isinstance(node, _Definition)]
        plain = [node for node in self.tree.body if not isinstance(node, _Definition)]
        return [(ast.dump(_inlined(node)), span(node)) for node in (*nodes, *plain)]

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
    def attributes(self) -> Mapping[str, list[ast.stmt]]:
        """Return the statements that write an attribute (`.name`) of anything."""
        written: dict[str, list[ast.stmt]] = defaultdict(list)
        for node in self.nodes:
            if isinstance(node, ast.stmt) and not isinstance(node, _Definition):
                for name in _bound(node):
                    if name.startswith("."):
                        written[name].append(node)
        return written

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

    def function_at(self, line: int) -> range:
        """Return the lines of the innermost function there; none outside of all."""
        around = _around(self.tree, line)
        return next((span(node) for node in around if isinstance(node, _Function)), range(0))


class CodeChange:
    """Hunks, and the texts of the files that they are in, by path: those before and after. `read`
    returns that of another file, by side and path; empty where there is none."""

    def __init__(
        self,
        hunks: Sequence[Hunk] = (),
        texts: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {}),
        read: Callable[[str, str], str] = lambda side, path: "",
    ) -> None:
        self.hunks, self._read = hunks, read
        self._others: dict[tuple[str, str], SourceText] = {}
        self._slices: dict[tuple[str, str, int], Mapping[tuple[str, int], int]] = {}
        self._sides = {
            side: {path: SourceText(text) for path, text in files.items()}
            for side, files in zip("ab", texts, strict=True)
        }

    def source(self, side: str, path: str) -> SourceText:
        """Return a file; an empty one where it could not be read."""
        if (changed := self._sides[side].get(path)) is not None:
            return changed
        if (side, path) not in self._others:
            self._others[side, path] = SourceText(self._read(side, path))
        return self._others[side, path]

    def sources(self, side: str, path: str, line: int) -> Mapping[tuple[str, int], int]:
        """Return the lines, by path, from which the arguments of the calls in a line may come, each
        with the number of bindings on the way: in its file by names, and in the changed files the
        functions and classes that are named on the way."""
        key = (side, path, line)
        if key not in self._slices:
            lines, names = self._slice(side, path, line)
            found = {(path, number): distance for number, distance in lines.items()}
            reached = dict(names)
            waiting = sorted(names, key=lambda name: names[name])
            while waiting:
                name = waiting.pop(0)
                far = reached[name] + 1
                for other, source in self._sides[side].items():
                    defined = source.definitions.get(name.lstrip("."), ())
                    for node in (*defined, *source.attributes.get(name, ())):
                        for number in span(node) if isinstance(node, _Definition) else header(node):
                            found[other, number] = min(far, found.get((other, number), far))
                        inner = (
                            set(_loaded(ast.walk(node))) - reached.keys() if node in defined else ()
                        )
                        reached |= dict.fromkeys(inner, far)
                        waiting += inner
            self._slices[key] = found
        return self._slices[key]

    def from_caller(self, side: str, path: str, line: int) -> int | None:
        """Return after how many bindings the slice of a line reads an argument of the function
        there; None if it reads none."""
        source = self.source(side, path)
        functions = [node for node in _around(source.tree, line) if isinstance(node, _Function)][:1]
        lambdas = [n for n in source.nodes if isinstance(n, ast.Lambda) and line in span(n)]
        arguments = {
            node.arg for function in (*functions, *lambdas)
            for node in ast.walk(function.args) if isinstance(node, ast.arg)
        }  # fmt: skip
        names = self._slice(side, path, line).names
        return min((names[one] for one in arguments - {"self"} if one in names), default=None)

    def _slice(self, side: str, path: str, line: int) -> Slice:
        """Return the slice of what the calls in a line are given; then what else it reads."""
        tree = self.source(side, path).tree
        given, whole = (backward_slice(tree, line, called=called) for called in (False, True))
        lines = {at: far + 1 for at, far in whole.lines.items()}
        names = {name: far + 1 for name, far in whole.names.items()}
        return Slice({**lines, **given.lines}, {**names, **given.names})

    def changed_lines(self, hunk: Hunk, side: str) -> set[int]:
        """Return the lines of a hunk on one side that mean something else on the other."""
        if hunk in self._renaming:
            return set()
        lines = _lines(hunk, side)
        path = hunk.path(side)
        source = self._sides[side].get(path)
        return lines & source.code_lines - self._same_lines[side][path] if source else lines

    def reads_elsewhere(self, hunk: Hunk, side: str, name: str) -> bool:
        """Return True if a variable that a hunk binds is read outside of the hunk, as far as its
        function goes; one of a module or class is."""
        source = self.source(side, hunk.path(side))
        lines = _lines(hunk, side)
        around = source.function_at(min(lines, default=0))
        return not around or any(
            node.lineno in around and node.lineno not in lines
            for node in source.nodes if isinstance(node, ast.Name)
            if _reads(node, name) and id(node) not in source.comprehended
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
        beside = [
            (node.lineno, node.end_lineno or node.lineno)
            for node in self.source(side, hunk.path(side)).nodes
            if isinstance(node, ast.stmt) and node.col_offset == column
        ]
        if before := [last for _, last in beside if last <= at]:
            return [(max(before), max(before), 1)]
        after = [first for first, _ in beside if first > at]
        return [(min(after), min(after), -1)] if after else []

    def _heads(self, hunk: Hunk, side: str) -> list[ast.stmt]:
        """Return the statements with a changed line, in their head where they have a body."""
        lines = self.changed_lines(hunk, side)
        nodes = self.source(side, hunk.path(side)).nodes
        return [n for n in nodes if isinstance(n, ast.stmt) and not lines.isdisjoint(header(n))]

    def variables(self, hunk: Hunk, side: str) -> set[str]:
        """Return the variables, and attributes of variables, that the hunk binds or writes to on a
        side; where one side has no lines, what the other binds, writes to or may change."""
        heads = {one: self._heads(hunk, one) for one in "ab"}
        one_sided = not all(heads.values())
        written: set[str] = set()
        for at in "ab" if one_sided else side:
            source = self.source(at, hunk.path(at))
            nodes = [node for node in heads[at] if not isinstance(node, _Definition)]
            parts = [part for node in nodes for part in _own(node)]
            own = [part for part in parts if id(part) not in source.comprehended]
            written |= {name for part in own for name in _written_by(part)}
            written |= {name for node in nodes if one_sided for name in _bound(node)}
        return {name for name in written if not name.startswith(".")}

    def same(self, hunk: Hunk) -> bool:
        """Return True if a hunk means the same on both sides."""
        return not self.changed_lines(hunk, "a") and not self.changed_lines(hunk, "b")

    def tidied(self, hunk: Hunk) -> bool:
        """Return True if a hunk says the same things in another way: the same numbers, operators
        and names on both sides, imported modules and its own variables apart. The same nodes with
        names in another order are no tidying."""
        sides = []
        for side, path in (("a", hunk.old), ("b", hunk.new)):
            lines = self.changed_lines(hunk, side)
            nodes = [
                part for node in self.source(side, path).nodes
                if isinstance(node, ast.stmt) and lines & {*header(node)} for part in _own(node)
            ]  # fmt: skip
            own = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            things = Counter(repr(n.value) for n in nodes if isinstance(n, ast.Constant))
            things += Counter(type(n).__name__ for n in nodes if isinstance(n, _Operator))
            sides.append((nodes, own, things, {*_loaded(nodes)}))
        (left, own_a, things_a, names_a), (right, own_b, things_b, names_b) = sides
        other = (names_a ^ names_b) - own_a - own_b - self._modules
        shapes = [[type(node) for node in nodes] for nodes in (left, right)]
        return (
            bool(left and right)
            and things_a == things_b
            and not other
            and len({*map(tuple, shapes)}) > 1
        )

    @cached_property
    def _modules(self) -> set[str]:
        """Return the names of the modules that the changed files import."""
        return {
            (alias.asname or alias.name).split(".")[0]
            for sources in self._sides.values() for source in sources.values()
            for node in source.nodes if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
            if isinstance(node, ast.Import) or (alias.asname or alias.name) == "F"
        }  # fmt: skip

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

    @cached_property
    def _renaming(self) -> set[Hunk]:
        """Return the hunks that differ in nothing but names that one side alone has and binds, each
        for another."""
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


def _other_names(old: str, new: str) -> set[tuple[str, str]]:
    """Return the names that differ between two texts; none where more differs than names."""
    left, right = (re.findall(r"\w+|[^\w\s]", re.sub("#.*", "", text)) for text in (old, new))
    pairs = {(x, y) for x, y in zip(left, right, strict=False) if x != y}
    names = all(text.isidentifier() and not iskeyword(text) for pair in pairs for text in pair)
    return pairs if names and len(left) == len(right) else set()


def _name(node: ast.AST) -> str:
    """Return the name that a node binds or reads; empty if it has none."""
    names = (getattr(node, field, None) for field in ("id", "attr", "name", "arg"))
    return next((name for name in names if isinstance(name, str)), "")


class Slice(NamedTuple):
    """Lines from which something may come, and the names read on the way, each with the number of
    bindings up to there."""

    lines: Mapping[int, int]
    names: Mapping[str, int]


_Opaque = ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def _inlined(definition: ast.stmt) -> ast.stmt:
    """Return a copy of a definition in which a variable that only the next statement reads, before
    it calls anything, is written out there; and constants are bound one by one, by name."""
    definition = copy.deepcopy(definition)
    reads = Counter(
        node.id for node in ast.walk(definition)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    )  # fmt: skip
    for node in [*ast.walk(definition)]:
        for field in ("body", "orelse", "finalbody"):
            if isinstance(body := getattr(node, field, None), list):
                body[:] = _written_out([one for stmt in body for one in _bound_alone(stmt)], reads)
    return definition


def _bound_alone(node: ast.stmt) -> Iterator[ast.stmt]:
    """Yield `a = 0` and `b = []` of `a, b = 0, []`, and of `a = b = 0`; else the statement."""
    if not isinstance(node, ast.Assign):
        yield node
        return
    names: list[ast.expr] = []
    values: list[ast.expr] = []
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            names += target.elts
            values += node.value.elts
        else:
            names.append(target)
            values.append(node.value)
    several = len(names) == len(values) > 1 and all(isinstance(name, ast.Name) for name in names)
    fresh = len(node.targets) == 1  # a list has one name
    if several and all(isinstance(v, ast.Constant) or (fresh and _is_empty(v)) for v in values):
        yield from (ast.Assign([name], value) for name, value in zip(names, values, strict=True))
    else:
        yield node


def _is_empty(node: ast.expr) -> bool:
    return isinstance(node, ast.List) and not node.elts


def _written_out(body: list[ast.stmt], reads: Counter[str]) -> list[ast.stmt]:
    done: list[ast.stmt] = []
    for node in body:
        while done and _takes(node, done[-1], reads):
            variable: Any = done.pop()
            read = next(n for n in ast.walk(node) if _reads(n, variable.targets[0].id))
            for parent in ast.walk(node):
                for field, value in ast.iter_fields(parent):
                    if value is read:
                        setattr(parent, field, variable.value)
                    elif isinstance(value, list):
                        value[:] = [variable.value if one is read else one for one in value]
        done.append(node)
    return done


def _reads(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)


def _takes(node: ast.stmt, before: ast.stmt, reads: Counter[str]) -> bool:
    """Return True if a statement alone reads the variable that the one before binds, and first."""
    value = getattr(node, "value", None)
    if not isinstance(before, ast.Assign) or len(before.targets) != 1 or value is None:
        return False
    target = before.targets[0]
    if not isinstance(target, ast.Name) or not isinstance(node, ast.Assign | ast.Return | ast.Expr):
        return False
    again = isinstance(node, ast.Assign) and any(
        isinstance(one, ast.Name) and one.id == target.id for one in node.targets
    )
    alone = reads[target.id] == 1 and not any(_reads(n, target.id) for n in ast.walk(before))
    order = [*_evaluated(value)]
    at = next((n for n, one in enumerate(order) if _reads(one, target.id)), None)
    count = sum(_reads(one, target.id) for one in ast.walk(node))
    if at is None or count != 1 or not (again or alone or isinstance(node, ast.Return)):
        return False
    return not any(isinstance(one, ast.Call | _Opaque | ast.Await) for one in order[:at])


def _evaluated(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of an expression in the order of their evaluation; nothing within another
    scope, which may run several times."""
    if not isinstance(node, _Opaque):
        for child in ast.iter_child_nodes(node):
            yield from _evaluated(child)
    yield node


def backward_slice(tree: ast.Module, line: int, *, called: bool = False) -> Slice:
    """Return from where the arguments of the calls in a line may come. `called`: the called
    functions, too."""
    scopes = _around(tree, line)
    functions = [node for node in scopes if isinstance(node, _Function)]
    bindings = _bindings(tree, functions, [one for one in scopes if isinstance(one, ast.ClassDef)])
    body = functions[0] if functions else tree
    start = [node for node in _statements(body) if line in header(node)]
    distances: dict[int, int] = {}
    seen: dict[str, int] = {}
    names = {name for node in start for name in (_read(node) if called else _given(node))}
    for distance in range(1, 8):
        fresh = names - seen.keys()
        if not fresh:
            break
        seen |= dict.fromkeys(fresh, distance)
        nodes = [node for name in fresh for node in bindings[name]]
        for node in nodes:
            for number in span(node) if isinstance(node, _Definition) else header(node):
                distances.setdefault(number, distance)
        names = {name for node in nodes for name in _loaded(_own(node))}
    return Slice(distances, seen)


def _around(tree: ast.Module, line: int) -> list[_Definition]:
    """Return the definitions around a line, the innermost first."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, _Definition)]
    return sorted((node for node in nodes if line in span(node)), key=lambda node: len(span(node)))


def setting_slice(tree: ast.Module, key: str) -> Mapping[int, int]:
    """Return the lines that write a setting, as `group["lr"] = rate(step)`, `p.requires_grad = …`,
    `{"lr": …}` or `lr=…` do, and those from which its value may come, each with the number of
    bindings on the way."""
    distances: dict[int, int] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt) or isinstance(node, _Definition):
            continue
        if any(_writes(one, key) for one in _own(node)):
            sources = backward_slice(tree, node.lineno, called=True).lines
            for line, far in {**sources, **dict.fromkeys(header(node), 0)}.items():
                distances[line] = min(far, distances.get(line, far))
    return distances


def _writes(node: ast.AST, key: str) -> bool:
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return isinstance(node.slice, ast.Constant) and node.slice.value == key
    if isinstance(node, ast.Attribute):
        return node.attr == f"{key}_" or (node.attr == key and isinstance(node.ctx, ast.Store))
    if isinstance(node, ast.Dict):
        return any(isinstance(one, ast.Constant) and one.value == key for one in node.keys)
    return isinstance(node, ast.keyword) and node.arg == key


def users(tree: ast.Module, line: int) -> set[int]:
    """Return the lines of calls that are given what a line binds, or changes by a method."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and line in header(node)]
    names = {name for node in nodes for name in _bound(node)} - {"self"}
    return {
        call.lineno for call in ast.walk(tree) if isinstance(call, ast.Call)
        if names & {*_loaded([*call.args, *(word.value for word in call.keywords)])}
    }  # fmt: skip


def _bindings(
    tree: ast.Module, functions: Iterable[_Function], classes: Iterable[ast.ClassDef]
) -> Mapping[str, list[ast.stmt]]:
    """Return, by name, what binds or changes it: in the module, in the functions around the line,
    and attributes (`.name`) in the classes around it."""
    bindings: dict[str, list[ast.stmt]] = defaultdict(list)
    for scope in (tree, *functions):
        for node in _statements(scope):
            for name in _bound(node):
                bindings[name].append(node)
    members = [node for one in classes for node in ast.walk(one) if isinstance(node, ast.stmt)]
    for node in members:
        for name in _bound(node):
            if isinstance(node, _Function):
                bindings[f".{name}"].append(node)
            elif name.startswith("."):
                bindings[name].append(node)
    return bindings


def _statements(scope: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a scope, not those of functions and classes in it."""
    waiting: list[ast.AST] = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, _Definition):
            waiting += ast.iter_child_nodes(node)


def _bound(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds, or whose value a method or function that it calls
    may change."""
    if isinstance(node, _Definition):
        yield node.name
        return
    for one in _own(node):
        if isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store):
            while isinstance(one, ast.Subscript):
                one = one.value
            yield from _loaded([one])
        elif isinstance(one, ast.Name | ast.Attribute) and isinstance(one.ctx, ast.Store):
            yield one.id if isinstance(one, ast.Name) else f".{one.attr}"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        function = node.value.func
        if isinstance(function, ast.Attribute):
            yield from _loaded(ast.walk(function.value))
        yield from (one.id for one in node.value.args if isinstance(one, ast.Name))


def _own(node: ast.AST) -> list[ast.AST]:
    """Return the nodes of a statement; of a loop or condition, without those of its body."""
    if isinstance(node, _Definition) or not isinstance(getattr(node, "body", None), list):
        return list(ast.walk(node))
    parts = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]
    return [one for part in parts for one in ast.walk(part)]


def _read(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement reads; of an assignment, its value does."""
    return _loaded(ast.walk(node.value) if isinstance(node, ast.Assign) else _own(node))


def _given(node: ast.stmt) -> set[str]:
    """Return the names in the arguments of a statement's calls; all it reads where there are none,
    or no call."""
    calls = [one for one in _own(node) if isinstance(one, ast.Call)]
    called = {id(one) for call in calls for one in ast.walk(call.func)}
    arguments = [
        one for call in calls for part in (*call.args, *call.keywords) for one in ast.walk(part)
    ]
    names = set(_loaded(one for one in arguments if id(one) not in called))
    return names or set(_loaded(_own(node)))


def _loaded(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield f".{node.attr}"


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
