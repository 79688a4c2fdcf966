"""Name modules, parameters, and tensors that belong to no module: these by the expression with
which the running script can name them, from the variables of the frames that call, never by an
attribute that the script computes."""

from __future__ import annotations

import dis
import itertools
import math
import re
import sys
import weakref
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import CodeType, FrameType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from .stack import is_library_file

_NO_PARENT = (lambda: None, "")
_LAST_PART = re.compile(r"(\[[^\]]*\]|\.\w+)$")  # of an expression, behind that of its container


class IdentityMap:
    """Map objects to values by identity, while the objects live: an object whose constructor still
    runs may lack what its hash needs. (torch's WeakIdKeyDictionary takes twelve times as long, and
    a module is looked up at each of its calls.)"""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[Any, Any]] = {}

    def get(self, obj: Any, default: Any = None) -> Any:
        entry = self._entries.get(id(obj))
        return entry[1] if entry is not None and entry[0]() is obj else default

    def __setitem__(self, obj: Any, value: Any) -> None:
        key = id(obj)
        self._entries[key] = weakref.ref(obj, lambda _: self._entries.pop(key, None)), value

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Yield the items in the order of insertion."""
        for reference, value in list(self._entries.values()):
            if (obj := reference()) is not None:
                yield obj, value


class ModuleNames:
    """A module's path, as named_modules gives it, for modules met in hooks.

    The first root met that has parameters is the model, its path is "" and its children's need no
    prefix; paths in any other root start with its class name and a colon ("Teacher:head").
    """

    def __init__(self) -> None:
        self._parents = IdentityMap()  # the parent by weak reference, and a name in it
        self._roots = IdentityMap()
        self._classes: Counter[str] = Counter()
        self._bare = IdentityMap()  # names of parameters without a module
        self._optimisers = IdentityMap()
        self._model = False

    def adopted(self, parent: nn.Module, name: str, child: nn.Module | None) -> None:
        """Record that a module became a child. The first parent that still lives counts."""
        if child is not None and child is not parent and self._parent(child) is None:
            self._parents[child] = weakref.ref(parent), name

    def _parent(self, module: nn.Module) -> tuple[nn.Module, str] | None:
        """Return the parent and the module's name in it."""
        reference, name = self._parents.get(module, _NO_PARENT)
        parent = reference()
        if parent is None or parent._modules.get(name) is not module:
            return None
        return parent, name

    def of(self, module: nn.Module) -> str:
        parts: list[str] = []
        for _ in range(1000):  # a cycle of parents is a mistake of the script, not an endless loop
            if (adopted := self._parent(module)) is None:
                break
            module, name = adopted
            parts.append(name)
        return self._root(module) + ".".join(reversed(parts))

    def tensors_of(self, root: nn.Module, role: str) -> Iterator[tuple[str, Tensor, nn.Module]]:
        """Yield each parameter or buffer (`role`) of a root once, with the path and the module that
        hold it: one name, though the module may stand in several others."""
        seen: set[int] = set()
        for module in root.modules():
            owned: Any = getattr(module, f"named_{role}s")
            path = self.of(module)
            path += "." if path and not path.endswith(":") else ""
            for name, tensor in owned(recurse=False):
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield path + name, tensor, module

    def all_parameters(self) -> list[tuple[str, Tensor]]:
        """Name the parameters of all roots."""
        parts = (self.tensors_of(root, "parameter") for _, root in self.roots())
        return [(name, parameter) for part in parts for name, parameter, _ in part]

    def roots(self) -> list[tuple[str, nn.Module]]:
        """Return prefix and module, in the order in which they were met."""
        return [(prefix, root) for root, prefix in self._roots.items()]

    def parameters(self, optimiser: Optimizer) -> list[tuple[str, Tensor]]:
        """Name what an optimiser trains, what belongs to no module by its variable. Called from
        the step: the script's frames are below."""
        self._optimisers[optimiser] = True
        names = {id(parameter): name for name, parameter in self.all_parameters()}
        trained = [
            (f"param_groups[{group}][{number}]", parameter)
            for group, one in enumerate(optimiser.param_groups)
            for number, parameter in enumerate(one["params"])
        ]
        bare = [(position, p) for position, p in trained if id(p) not in names]
        if any(self._bare.get(parameter) is None for _, parameter in bare):
            self._name_bare(bare, {*names.values()})
        return [(names.get(id(p)) or str(self._bare.get(p)), p) for _, p in trained]

    def beside(self, named: Iterable[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
        """Return what stands in one container of the script with parameters of no module and waits
        for gradients, too: `params["w1"]` beside `params["w2"]`."""
        bare = [(name, parameter) for name, parameter in named if self.in_no_module(parameter)]
        known = {id(parameter) for _, parameter in bare}
        holders = {_LAST_PART.sub("", name) for name, _ in bare if _LAST_PART.search(name)}
        return [
            (name, value) for _, name, value in (reachable() if holders else ())
            if isinstance(value, Tensor) and value.is_leaf and value.requires_grad
            and id(value) not in known and _LAST_PART.sub("", name) in holders
        ]  # fmt: skip

    def in_no_module(self, parameter: Tensor) -> bool:
        """Return True for a parameter that `parameters` has named by a variable."""
        return self._bare.get(parameter) is not None

    def _name_bare(self, bare: list[tuple[str, Tensor]], used_names: set[str]) -> None:
        """Name parameters without a module, once: by a variable of the script, else by their
        position in the optimiser and the line that steps it. One that replaces another in its
        variable, as after an update that is not in place, takes the name if none trains that."""
        expression = expressions([parameter for _, parameter in bare])
        replaced = {expression.get(id(parameter)): parameter.shape for _, parameter in bare}
        groups = (group for one, _ in self._optimisers.items() for group in one.param_groups)
        trained = {id(parameter) for group in groups for parameter in group["params"]}
        used_names |= {
            name for parameter, name in self._bare.items()
            if id(parameter) in trained or replaced.get(name) != parameter.shape
        }  # fmt: skip
        for position, parameter in bare:
            if self._bare.get(parameter) is None:
                first = expression.get(id(parameter)) or f"{position} ({calling_line()})"
                numbered = (f"{first}#{number}" for number in itertools.count(2))
                name = next(n for n in itertools.chain([first], numbered) if n not in used_names)
                self._bare[parameter] = name
                used_names.add(name)

    def _root(self, module: nn.Module) -> str:
        prefix: str | None = self._roots.get(module)
        if prefix is None:
            for inner in module.modules():  # copies and unpickled modules were not registered
                for name, child in inner._modules.items():
                    self.adopted(inner, name, child)
            kind, prefix = type(module).__name__, ""
            if self._model or next(module.parameters(), None) is None:
                self._classes[kind] += 1
                number = self._classes[kind]
                prefix = f"{kind}:" if number == 1 else f"{kind}#{number}:"
            self._model = self._model or not prefix
            self._roots[module] = prefix
        return prefix


def constructing() -> bool:
    """Return True inside a module's constructor or parametrisation: a forward pass there asks for a
    shape or a norm, and the module has no parent yet."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "register_parametrization" or (
            code.co_name == "__init__"
            and code.co_argcount
            and isinstance(frame.f_locals.get(code.co_varnames[0]), nn.Module)
        ):
            return True
        frame = frame.f_back
    return False


_DEPTH = 3  # attributes, keys and positions behind a variable: `self.layers[2].scale`
_SEQUENCES = (list, tuple, deque)
_LONGEST = 1000  # items: a list of samples is no list of parameters
_MOST = 20_000  # values of one depth


def expressions(tensors: Collection[Any]) -> dict[int, str]:
    """Return by identity an expression of each tensor that the script's frames, from the innermost
    on, can name, with the fewest positions and then the shortest: `w1`, `self.scale`,
    `params["w1"]`, `layers[2][0]`."""
    wanted = {id(tensor) for tensor in tensors}
    names: dict[int, tuple[int, str]] = {}  # how many positions, and the expression
    for count, text, value in reachable():
        if id(value) in wanted and count < names.get(id(value), (math.inf, ""))[0]:
            names[id(value)] = count, text
    return {key: text for key, (_, text) in names.items()}


def reachable() -> Iterator[tuple[int, str, Any]]:
    """Yield what the script's frames can name: how many positions are in the expression, the
    expression, and the value."""
    level = [(0, name, value) for scope in _scopes() for name, value in list(scope.items())]
    for _ in range(_DEPTH + 1):
        yield from level
        deeper: list[tuple[int, str, Any]] = []
        for count, text, value in level[:_MOST]:
            more = isinstance(value, _SEQUENCES)
            parts = [(count + more, text + part, item) for part, item in _parts(value)]
            deeper += parts[: _MOST - len(deeper)]
        level = deeper


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


def _scopes() -> Iterable[Mapping[str, Any]]:
    """Return the variables of the script's frames, locals before globals, without the tensors that
    a loop has put into its variables: the last of many."""
    frames = [(frame, frame.f_locals) for frame in _frames()]
    scopes: dict[int, Mapping[str, Any]] = {}
    for frame, variables in frames:
        loops = _loop_variables(frame.f_code)
        scopes[id(variables)] = {
            name: value for name, value in list(variables.items())
            if not (name in loops and isinstance(value, Tensor))
        }  # fmt: skip
    for frame, _ in frames:
        scopes.setdefault(id(frame.f_globals), frame.f_globals)
    return scopes.values()


def _loop_variables(code: CodeType) -> set[str]:
    """Return the variables that the loops of a function or script bind."""
    names: set[str] = set()
    left = 0  # to be bound by the loop that begins
    for one in dis.get_instructions(code):
        if one.opname == "FOR_ITER":
            left = 1
        elif left and one.opname == "UNPACK_SEQUENCE":
            left += int(one.arg or 0) - 1
        elif left and one.opname.startswith("STORE_"):
            bound = one.argval if isinstance(one.argval, tuple) else (one.argval,)
            names.update(map(str, bound[:left]))
            left -= len(bound[:left])
        elif one.opname not in ("EXTENDED_ARG", "CACHE"):
            left = 0
    return names


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a value consists of, by how the expression goes on."""
    if isinstance(value, (Tensor, type, ModuleType)):
        return
    if isinstance(value, nn.Module):
        for name, parameter in value.named_parameters():
            yield f".{name}", parameter
    elif isinstance(value, _SEQUENCES):
        items = enumerate(itertools.islice(value, _LONGEST))
        yield from ((f"[{number}]", item) for number, item in items)
    elif isinstance(value, dict):
        for key, item in list(value.items()):
            if isinstance(key, (str, int)):
                yield (f'["{key}"]' if isinstance(key, str) else f"[{key}]"), item
    elif not type(value).__module__.startswith(("builtins", "torch.", "numpy")):
        attributes = getattr(value, "__dict__", None)
        if isinstance(attributes, dict):
            yield from ((f".{name}", item) for name, item in list(attributes.items()))
