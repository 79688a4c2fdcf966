"""What a traced training is set to: its modules, its optimisers, its surroundings. Needs torch."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, Sequence  # noqa: UP035 (Python 3.8)

from celedger.child.trace_tensors import simple

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

__all__ = ["autocast", "code", "groups", "norm", "number", "settings", "torch_version"]

# Of a module's attributes: bookkeeping of torch's own, and what is written as an event.
_NO_SETTING = {"training", "call_super_init", "dump_patches"}


def settings(module: nn.Module) -> dict[str, Any]:
    """The simple attributes of a module, by name, and its own description of itself."""
    found: dict[str, Any] = {}
    for name, value in vars(module).items():
        if name.startswith("_") or name in _NO_SETTING:
            continue
        if (
            value is None
            or isinstance(value, (bool, int, float, str, list, tuple))
            or (callable(value) and not hasattr(value, "forward"))
        ):
            found[name] = simple(value)
    return found


def code(kind: type, method: str) -> list[Any]:
    """File, first and last line of a class's method, where its source can be read."""
    try:
        function = inspect.unwrap(getattr(kind, method))
        lines, first = inspect.getsourcelines(function)
        return [
            str(Path.cwd() / (inspect.getsourcefile(function) or "")),
            first,
            first + len(lines) - 1,
        ]
    except (OSError, TypeError, AttributeError):
        return []


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


def number(tensor: Tensor) -> Any:
    return simple(float(tensor.detach().float().mean())) if tensor.numel() else None


def norm(weights: Sequence[Tensor]) -> Any:
    """The L2 norm of all parameters."""
    total = 0.0
    for weight in weights:
        total += float(weight.detach().float().pow(2).sum())
    return simple(total**0.5)


def autocast() -> str | None:
    import torch

    if torch.is_autocast_enabled():
        return str(torch.get_autocast_gpu_dtype())
    return str(torch.get_autocast_cpu_dtype()) if torch.is_autocast_cpu_enabled() else None


def torch_version() -> str:
    import torch

    return str(torch.__version__)
