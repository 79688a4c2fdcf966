"""Describe calls, modules, optimisers and random generators as JSON values, and where a training's
first weights and random numbers come from."""

from __future__ import annotations

import functools
import inspect
import random
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.optim import Optimizer

from . import observe
from .names import IdentityMap
from .observe import Args, Kwargs
from .stack import is_library_file
from .tensors import address, content, graph_node, tensors

# Of a module's attributes: bookkeeping of torch's own, and what is written as an event.
_NO_SETTING = {"training", "call_super_init", "dump_patches"}
_OPERATORS = {
    "add", "sub", "mul", "div", "truediv", "floordiv", "matmul", "pow", "mod", "and", "or",
}  # fmt: skip
_COMMUTING = ("__radd__", "__rmul__", "__rand__", "__ror__")
_DIGITS = 14  # of a setting: one that was computed in another order is equal


def simple(value: Any, depth: int = 2) -> Any:
    """Return a setting as a JSON value, equal for equal settings: never an address."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return value[:80]
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, float):
        finite = value == value and abs(value) != float("inf")
        return float(f"{value:.{_DIGITS}g}") if finite else str(value)
    if isinstance(value, (list, tuple)):
        if depth == 0 or len(value) > 16:
            return f"{len(value)} items"
        return [simple(item, depth - 1) for item in value]
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    if isinstance(value, (torch.dtype, torch.device, torch.layout)):
        return str(value)
    return type(value).__name__


def function_name(function: Any) -> str:
    """Return `add` for Tensor.__add__, __radd__ and add, `add_` for __iadd__; for an operator its
    whole name."""
    if hasattr(function, "overloadpacket"):
        return str(function)
    name = str(getattr(function, "__name__", type(function).__name__))
    bare = name[2:-2]
    if name != f"__{bare}__" or bare in ("getitem", "setitem", "get", "set", "init"):
        return name
    if bare[1:] in _OPERATORS and bare[0] in "ri":
        return bare[1:] + ("_" if bare[0] == "i" else "")
    return bare


def operands(function: Any, args: Args) -> Args:
    """Return the arguments as they are written: `1 - x` calls `x.__rsub__(1)`."""
    name = str(getattr(function, "__name__", ""))
    swapped = name[:3] == "__r" and name[3:-2] in _OPERATORS and name not in _COMMUTING
    return args[::-1] if swapped else args


def literals(args: Args, kwargs: Kwargs) -> list[str]:
    """Return the arguments of a call, tensors as `_`: `_` and `dim=1`."""
    return [_literal(item) for item in args] + [
        f"{name}={_literal(item)}"
        for name, item in kwargs.items()
        if item is not None
        and name != "_stacklevel"  # torch adds it itself
        and (name != "inplace" or item)
    ]


def is_made_of_data(name: str, args: Args) -> bool:
    """Return True for a call that makes a tensor of a list or an array, which is its operand."""
    makes = name in ("tensor", "as_tensor", "asarray", "from_numpy")
    return makes and bool(args) and (isinstance(args[0], (list, tuple)) or hasattr(args[0], "ndim"))


def _literal(item: Any) -> str:
    if isinstance(item, torch.Tensor):
        return "_"
    if isinstance(item, slice):
        ends = [item.start, item.stop, *([] if item.step is None else [item.step])]
        return ":".join("" if end is None else _literal(end) for end in ends)
    if isinstance(item, (tuple, list)):
        inner = ", ".join(_literal(one) for one in item[:8])
        return f"({inner}{', …' if len(item) > 8 else ''})"
    if isinstance(item, float):
        return f"{item:.9g}"
    if item is None or isinstance(item, (bool, int, str, torch.dtype, torch.device)):
        return repr(item)
    if item is Ellipsis:
        return "..."
    return str(getattr(item, "__name__", type(item).__name__))


def arguments(module: nn.Module, args: Args) -> dict[str, Any]:
    """Return what a module is called with, by the names and in the order of its signature. Asked
    by a pre-hook: torch's global one is not given the arguments by keyword, so they are read from
    its caller."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_call_impl":
        frame = frame.f_back
    here = frame.f_locals if frame is not None else {}
    kwargs: dict[str, Any] = here.get("kwargs") or {} if here.get("self") is module else {}
    if kwargs:
        try:
            bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        except (TypeError, ValueError):
            pass
        else:
            return {
                name: dict(sorted(value.items())) if isinstance(value, dict) else value
                for name, value in bound.items()
            }
    kind: type = type(module)
    names = _forward_parameters(kind)
    arguments = {names[i] if i < len(names) else f"input {i}": arg for i, arg in enumerate(args)}
    return {**arguments, **dict(sorted(kwargs.items()))}


def settings(module: nn.Module) -> dict[str, Any]:
    """Return the simple attributes of a module, by name."""
    return {
        name: simple(value)
        for name, value in vars(module).items()
        if not name.startswith("_") and name not in _NO_SETTING and (
            value is None
            or isinstance(value, (bool, int, float, str, list, tuple))
            or (callable(value) and not hasattr(value, "forward"))
        )
    }  # fmt: skip


def code(kind: type, method: str) -> list[Any]:
    """Return file, first and last line of a class's method, if its source can be read."""
    try:
        function = inspect.unwrap(getattr(kind, method))
        lines, first = inspect.getsourcelines(function)
        file = Path.cwd() / (inspect.getsourcefile(function) or "")
        return [str(file), first, first + len(lines) - 1]
    except (OSError, TypeError, AttributeError):
        return []


@functools.cache
def backward_code(kind: type) -> list[Any]:
    """Return file, first and last line of the backward pass of an autograd function that the script
    defines, or registers for an operator of its own; empty for one of torch's."""
    backward: Any = kind.backward  # type: ignore[attr-defined]
    cells = [cell.cell_contents for cell in getattr(backward, "__closure__", None) or ()]
    registered = [getattr(one, "_backward_fn", None) for one in cells]
    function = next(filter(None, registered), backward)
    if is_library_file(getattr(getattr(function, "__code__", None), "co_filename", "<")):
        return []
    return code(SimpleNamespace(backward=function), "backward")  # type: ignore[arg-type]


@functools.cache
def _forward_parameters(kind: type) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(kind.forward).parameters.values()  # type: ignore[attr-defined]
    except (AttributeError, TypeError, ValueError):
        return ()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(p.name for p in parameters if p.kind in positional)[1:]


def functional(name: str, arguments: Any, result: Any) -> bool:
    """Return True for a call that goes on from trained tensors: recorded in the graph, or cut off
    from it, or made for a functional gradient."""
    outputs = [tensor for _, tensor in tensors(result)]
    if torch._C._functorch.maybe_current_level() or any(
        graph_node(tensor) is not None for tensor in outputs
    ):
        return True
    return (
        bool(outputs)
        and not name.endswith("_")
        and any(tensor.requires_grad for _, tensor in tensors(arguments))
    )


def backward_name(result: Any) -> str | None:
    """Return the kind of node of autograd's graph that made a tensor, however its call was written;
    None where there is none."""
    node = graph_node(result) if isinstance(result, Tensor) else None
    return None if node is None else str(node.name()).rstrip("0123456789")


def autocast() -> str | None:
    """Return the type in which autocast computes, if it is on for any device."""
    kinds = [kind for kind in ("cuda", "cpu") if torch.is_autocast_enabled(kind)]
    return str(torch.get_autocast_dtype(kinds[0])) if kinds else None


def torch_generators() -> str:
    """Return a checksum of the states of torch's default generators."""
    mark = zlib.crc32(content(torch.default_generator.get_state()))
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for number in range(torch.cuda.device_count()):
            mark = zlib.crc32(content(torch.cuda.get_rng_state(number)), mark)
    return f"{mark:08x}"


def generators() -> dict[str, str]:
    """Return checksums of every default generator from which a training may draw."""
    states = {
        "torch": torch_generators(),
        "python": f"{zlib.crc32(repr(random.getstate()).encode()):08x}",
    }
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        mark = zlib.crc32(keys.tobytes(), zlib.crc32(repr((kind, rest)).encode()))
        states["numpy"] = f"{mark:08x}"
    return states


_EARLY = 20_000  # calls before the first step whose lines are kept
_DRAWS = 5000  # calls that are kept: enough for the weights of a thousand layers
_DRAWING = ("rand", "normal", "uniform", "multinomial", "bernoulli")


class Origins:
    """The origins of what exists when a training starts: the lines that constructed a module or
    optimiser, assigned a parameter to its module, and wrote a parameter's values; and the calls
    that drew random numbers before."""

    def __init__(self, probe: Any) -> None:
        self.constructed = IdentityMap()  # these are half built
        self.modes = IdentityMap()  # where a module was last told to train or to evaluate
        self._probe = probe
        self._writers: dict[int, dict[str, Any]] = {}  # by address: the last call that wrote there
        self._makers: dict[int, int] = {}  # by address: the site of the last call that returned it
        self._calls = 0
        self._adopters: dict[int, int] = {}  # by address: the site that assigned the parameter
        self._random = ""
        self._draws = 0
        for kind in (nn.Module, Optimizer):
            observe.patch(kind, "__init__", before=self._construct)
        observe.patch(nn.Module, "train", before=self._mode_set)  # which `eval` calls
        modules.register_module_parameter_registration_hook(
            lambda *args: observe.guarded(self._adopted, *args)
        )

    def of(self, tensor: Tensor) -> dict[str, Any]:
        """Return `v`, where a parameter was made; `c`, where its values were computed; `o`, `l` and
        `w`, the last call that wrote it."""
        at = address(tensor)
        made = {"v": self._adopters.get(at, -1), "c": self._makers.get(at, -1)}
        return {**made, **self._writers.get(at, {})}

    def _construct(self, obj: Any, *_: Any, **__: Any) -> None:
        self.constructed[obj] = self._probe.sites.here(without=obj)

    def _mode_set(self, module: Any, *_: Any, **__: Any) -> None:
        self.modes[module] = self._probe.sites.here()

    def _adopted(self, module: Any, name: str, parameter: Any) -> None:
        if parameter is not None and not self._probe.started:
            self._adopters[address(parameter)] = self._probe.sites.here()

    def called(self, name: str, args: Args, kwargs: Kwargs, result: Any) -> None:
        """Record where a torch function is called, and a call that draws, or writes in place."""
        self._calls += 1
        if self._calls < _EARLY:
            site = self._probe.sites.here()
            given = {address(tensor) for _, tensor in tensors([args, kwargs])}
            for _, tensor in tensors(result):
                if (at := address(tensor)) not in given:
                    self._makers[at] = site
        in_place = name.endswith("_") and not name.startswith(("__", "requires_grad"))
        writes = name == "__setitem__" or in_place
        drawing = any(word in name for word in _DRAWING)
        if not writes and not drawing:
            return
        call = {"o": name, "l": literals(args, kwargs), "w": self._probe.sites.here()}
        written = args[0] if args else kwargs.get("tensor")  # torch.nn.init gives it by name
        if writes and isinstance(written, torch.Tensor):
            self._writers[address(written)] = call
        now = torch_generators()
        drew = now != self._random if self._random else drawing
        if drew and self._draws < _DRAWS:
            self._draws += 1
            self._probe.write("draw", y=now, **call)
        self._random = now
