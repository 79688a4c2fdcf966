"""A backward slice of a Python file: the lines that what a call is given may come from. By names
alone, without regard to the order of statements: it ranks hunks and proves nothing."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Block = _Function | ast.ClassDef


def backward_slice(tree: ast.Module, line: int, *, called: bool = False) -> Mapping[int, int]:
    """Return the lines from which the arguments of the calls in a line may come, each with the
    number of bindings on the way. `called`: the called functions, too."""
    scopes = [node for node in ast.walk(tree) if isinstance(node, _Block) and line in span(node)]
    scopes.sort(key=lambda node: len(span(node)))
    functions = [node for node in scopes if isinstance(node, _Function)]
    bindings = _bindings(tree, functions, [one for one in scopes if isinstance(one, ast.ClassDef)])
    body = functions[0] if functions else tree
    start = [node for node in _statements(body) if line in header(node)]
    distances: dict[int, int] = {}
    seen: set[str] = set()
    names = {name for node in start for name in (_loaded(_own(node)) if called else _given(node))}
    for distance in range(1, 8):
        fresh = names - seen
        if not fresh:
            break
        seen |= fresh
        nodes = [node for name in fresh for node in bindings[name]]
        for node in nodes:
            for number in span(node) if isinstance(node, _Block) else header(node):
                distances.setdefault(number, distance)
        names = {name for node in nodes for name in _loaded(_own(node))}
    return distances


def setting_slice(tree: ast.Module, key: str) -> Mapping[int, int]:
    """Return the lines that write a setting, as `group["lr"] = rate(step)` does, and those from
    which its value may come, each with the number of bindings on the way."""
    distances: dict[int, int] = {}
    for node in ast.walk(tree):
        targets = getattr(node, "targets", None) or [getattr(node, "target", None)]
        if isinstance(node, ast.Assign | ast.AugAssign) and any(
            isinstance(target, ast.Subscript)
            and isinstance(target.slice, ast.Constant)
            and target.slice.value == key
            for target in targets
        ):
            sources = backward_slice(tree, node.lineno, called=True)
            for line, far in {**sources, **dict.fromkeys(header(node), 0)}.items():
                distances[line] = min(far, distances.get(line, far))
    return distances


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
        if not isinstance(node, _Block):
            waiting += ast.iter_child_nodes(node)


def _bound(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement binds, or whose value it may change by a method."""
    if isinstance(node, _Block):
        yield node.name
        return
    for one in _own(node):
        if isinstance(one, ast.Name | ast.Attribute) and isinstance(one.ctx, ast.Store):
            yield one.id if isinstance(one, ast.Name) else f".{one.attr}"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        function = node.value.func
        if isinstance(function, ast.Attribute):
            yield from _loaded(ast.walk(function.value))


def _own(node: ast.AST) -> list[ast.AST]:
    """Return the nodes of a statement; of a loop or condition, without those of its body."""
    if isinstance(node, _Block) or not isinstance(getattr(node, "body", None), list):
        return list(ast.walk(node))
    parts = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]
    return [one for part in parts for one in ast.walk(part)]


def _given(node: ast.stmt) -> set[str]:
    """Return the names in the arguments of a statement's calls; all it reads where there are none,
    or no call."""
    calls = [one for one in _own(node) if isinstance(one, ast.Call)]
    called = {id(one) for call in calls for one in ast.walk(call.func)}
    given = [
        one for call in calls for part in (*call.args, *call.keywords) for one in ast.walk(part)
    ]
    names = set(_loaded(one for one in given if id(one) not in called))
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
