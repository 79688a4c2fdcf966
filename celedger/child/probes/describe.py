"""Calls, modules, optimisers and random generators as JSON holds them. Needs torch (2.0 on)."""

from __future__ import annotations

import inspect
import random
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celedger.child.probes.tensors import content

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

# Of a module's attributes: bookkeeping of torch's own, and what is written as an event.
_NO_SETTING = {"training", "call_super_init", "dump_patches"}
_REFLECTED = {
    "add", "sub", "mul", "div", "truediv", "floordiv", "matmul", "pow", "mod", "and", "or",
}  # fmt: skip


def simple(value: Any, depth: int = 2) -> Any:
    """A setting as JSON holds it, equal for equal settings: never an address."""
    if value is None or isinstance(value, (bool, int, str)):
        return value if not isinstance(value, str) else value[:80]
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, (list, tuple)):
        if depth == 0 or len(value) > 16:
            return f"{len(value)} items"
        return [simple(item, depth - 1) for item in value]
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    kind = type(value)
    if kind.__module__ == "torch" and kind.__name__ in ("dtype", "device", "layout", "Size"):
        return str(value)
    return kind.__name__


def function_name(function: Any) -> str:
    """`add` for Tensor.__add__, __radd__ and add alike, `add_` for __iadd__; an operator's whole
    name."""
    if hasattr(function, "overloadpacket"):
        return str(function)
    name = str(getattr(function, "__name__", type(function).__name__))
    if not (name.startswith("__") and name.endswith("__")):
        return name
    bare = name[2:-2]
    if bare in ("getitem", "setitem", "get", "set", "init"):
        return name
    if bare[:1] == "r" and bare[1:] in _REFLECTED:
        return bare[1:]
    if bare[:1] == "i" and bare[1:] in _REFLECTED:
        return bare[1:] + "_"
    return bare


def literals(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What a function was given, tensors shown as `_`: `_, dim=1`."""
    shown = [_literal(item) for item in args]
    shown += [
        f"{name}={_literal(item)}"
        for name, item in kwargs.items()
        if item is not None and name != "_stacklevel"  # what nobody asked for
    ]
    return ", ".join(shown)[:160]


def _literal(item: Any) -> str:
    import torch

    if isinstance(item, torch.Tensor):
        return "_"
    if isinstance(item, (tuple, list)):
        inner = ", ".join(_literal(one) for one in item[:8])
        return f"({inner}{', …' if len(item) > 8 else ''})"
    if isinstance(item, float):
        return f"{item:.9g}"
    if item is None or isinstance(item, (bool, int, str, slice, torch.dtype, torch.device)):
        return repr(item)
    if item is Ellipsis:
        return "..."
    return str(getattr(item, "__name__", type(item).__name__))


def settings(module: nn.Module) -> dict[str, Any]:
    """The simple attributes of a module, by name."""
    return {
        name: simple(value)
        for name, value in vars(module).items()
        if not name.startswith("_") and name not in _NO_SETTING and (
            value is None
            or isinstance(value, (bool, int, float, str, list, tuple))
            or (callable(value) and not hasattr(value, "forward"))
        )
    }  # fmt: skip


def groups(optimiser: Optimizer) -> list[dict[str, Any]]:
    """The settings of an optimiser's groups, without their parameters."""
    import torch

    return [
        {
            key: float(value) if isinstance(value, torch.Tensor) else simple(value)
            for key, value in group.items()
            if key != "params"
        }
        for group in optimiser.param_groups
    ]


def code(kind: type, method: str) -> list[Any]:
    """File, first and last line of a class's method, where its source can be read."""
    try:
        function = inspect.unwrap(getattr(kind, method))
        lines, first = inspect.getsourcelines(function)
        file = Path.cwd() / (inspect.getsourcefile(function) or "")
        return [str(file), first, first + len(lines) - 1]
    except (OSError, TypeError, AttributeError):
        return []


def mean(tensor: Tensor) -> Any:
    return simple(float(tensor.detach().float().mean())) if tensor.numel() else None


def norm(weights: Sequence[Tensor]) -> Any:
    """The L2 norm of all parameters."""
    return simple(sum(float(w.detach().float().pow(2).sum()) for w in weights) ** 0.5)


def autocast() -> str | None:
    """The type that autocast computes in, if it is on for any device."""
    import torch

    if hasattr(torch, "get_autocast_dtype"):  # torch 2.4; its older getters warn
        kinds = [kind for kind in ("cuda", "cpu") if torch.is_autocast_enabled(kind)]
        return str(torch.get_autocast_dtype(kinds[0])) if kinds else None
    if torch.is_autocast_enabled():
        return str(torch.get_autocast_gpu_dtype())
    return str(torch.get_autocast_cpu_dtype()) if torch.is_autocast_cpu_enabled() else None


def torch_generators() -> str:
    """A checksum of the states of torch's default generators."""
    import torch

    mark = zlib.crc32(content(torch.default_generator.get_state()))
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for number in range(torch.cuda.device_count()):
            mark = zlib.crc32(content(torch.cuda.get_rng_state(number)), mark)
    return f"{mark:08x}"


def generators() -> dict[str, str]:
    """Checksums of every default generator a training may draw from."""
    states = {
        "torch": torch_generators(),
        "python": f"{zlib.crc32(repr(random.getstate()).encode()):08x}",
    }
    if "numpy" in sys.modules:
        kind, keys, *rest = sys.modules["numpy"].random.get_state()
        mark = zlib.crc32(keys.tobytes(), zlib.crc32(repr((kind, rest)).encode()))
        states["numpy"] = f"{mark:08x}"
    return states
