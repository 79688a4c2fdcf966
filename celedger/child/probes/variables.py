"""By which expression a running script can name a tensor that belongs to no module. Reads the
variables of the frames that call it, and never an attribute that the script computes."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from types import CellType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

from celedger.child.probes.stack import is_library_file

_DEPTH = 3  # attributes, keys and positions behind a variable: `self.layers[2].scale`
_LONGEST = 1000  # items: a list of samples is no list of parameters
_MOST = 20_000  # values that are visited


class Expression(NamedTuple):
    """Ordered by how well it names a tensor: not by a position, then shortly."""

    positions: int
    parts: int
    text: str

    def then(self, part: str, *, position: bool = False) -> Expression:
        return Expression(self.positions + position, self.parts + 1, self.text + part)


def expressions(tensors: Collection[Any]) -> dict[int, str]:
    """Return by identity the best expression of each tensor that the script's frames, from the
    innermost on, can name: `w1`, `self.scale`, `params["w1"]`, `layers[2][0]`."""
    best: dict[int, tuple[Expression, str]] = {}  # and the list that the expression indexes
    wanted = {id(tensor) for tensor in tensors}
    positions: dict[str, list[tuple[int, Expression]]] = {}  # by list
    for expression, reached, sequence in islice(_reachable(), _MOST):
        if id(reached) in wanted:
            if sequence:
                positions.setdefault(sequence, []).append((id(reached), expression))
            known = best.get(id(reached))
            if known is None or expression[:2] < known[0][:2]:
                best[id(reached)] = expression, sequence
    # Those of one list are named alike: a variable that names the last alone is that of a loop.
    for sequence, members in positions.items():
        if any(best[key][1] == sequence for key, _ in members):
            best.update((key, (expression, sequence)) for key, expression in members)
    return {key: expression.text for key, (expression, _) in best.items()}


def calling_line() -> str:
    """Return `train.py:31`, the line of the script that is running; empty where there is none."""
    frame = next(_frames(), None)
    if frame is None:
        return ""
    return f"{frame.f_code.co_filename.replace(chr(92), '/').rpartition('/')[2]}:{frame.f_lineno}"


def _frames() -> Iterator[FrameType]:
    """Yield the frames of the script's own code, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not is_library_file(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def _reachable() -> Iterator[tuple[Expression, Any, str]]:
    """Yield what variables lead to, of locals before globals, as `_within` does."""
    seen: set[int] = set()
    scopes: list[Mapping[str, Any]] = []
    for frame in _frames():
        scopes.append(frame.f_locals)
        if id(frame.f_globals) not in seen and frame.f_locals is not frame.f_globals:
            scopes.append(frame.f_globals)
        seen.add(id(frame.f_globals))
    for scope in scopes:
        for name, value in list(scope.items()):
            yield from _within(value, Expression(0, 0, name), "")


def _within(
    value: Any, expression: Expression, sequence: str
) -> Iterator[tuple[Expression, Any, str]]:
    """Yield a value and what can be reached from it, with the list that each is at a position
    of."""
    yield expression, value, sequence
    if expression.parts == _DEPTH or isinstance(value, (type, ModuleType)):
        return
    for part, item in _parts(value):
        if isinstance(part, int):
            inner = expression.then(f"[{part}]", position=True)
            yield from _within(item, inner, expression.text)
        else:
            yield from _within(item, expression.then(part), sequence)


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what a value consists of, by how the expression goes on."""
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        return
    if isinstance(value, torch.nn.Module):
        for name, parameter in value.named_parameters():
            yield f".{name}", parameter
    elif isinstance(value, tuple) and (names := getattr(type(value), "_fields", None)):
        yield from ((f".{name}", item) for name, item in zip(names, value))  # noqa: B905 (3.8)
    elif isinstance(value, (list, tuple)):
        yield from enumerate(value[:_LONGEST])
    elif isinstance(value, dict):
        for key, item in list(value.items()):
            if isinstance(key, (str, int)):
                yield (f'["{key}"]' if isinstance(key, str) else f"[{key}]"), item
    elif isinstance(value, FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):  # noqa: B905 (3.8)
            yield f".{name}", _content(cell)
    elif not type(value).__module__.startswith(("builtins", "torch.", "numpy")):
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            yield from ((f".{name}", item) for name, item in list(attributes.items()))


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # assigned later
        return None
