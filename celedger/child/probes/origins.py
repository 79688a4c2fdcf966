"""Trace the origin of a training's first weights and random numbers. Needs torch (2.0 on)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celedger.child.probes import describe, observe
from celedger.child.probes.names import IdentityMap
from celedger.child.probes.tensors import address

if TYPE_CHECKING:
    from torch import Tensor

_DRAWS = 5000  # calls that are kept: enough for the weights of a thousand layers
_DRAWING = ("rand", "normal", "uniform", "multinomial", "bernoulli")


class Origins:
    """The origins of what exists when a training starts: the lines that constructed a module or
    optimiser, assigned a parameter to its module, and wrote a parameter's values; and the calls
    that drew random numbers before."""

    def __init__(self, probe: Any) -> None:
        from torch import nn
        from torch.nn.modules import module as modules
        from torch.optim import Optimizer

        self.constructed = IdentityMap()  # these are half built
        self.modes = IdentityMap()  # where a module was last told to train or to evaluate
        self._probe = probe
        self._writers: dict[int, dict[str, Any]] = {}  # by address: the last call that wrote there
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
        """Return `v`, where a parameter was made; `o`, `l` and `w`, the last call that wrote it."""
        at = address(tensor)
        return {"v": self._adopters.get(at, -1), **self._writers.get(at, {})}

    def _construct(self, obj: Any, *_: Any, **__: Any) -> None:
        self.constructed[obj] = self._probe.sites.here(without=obj)

    def _mode_set(self, module: Any, *_: Any, **__: Any) -> None:
        self.modes[module] = self._probe.sites.here()

    def _adopted(self, module: Any, name: str, parameter: Any) -> None:
        if parameter is not None and not self._probe.started:
            self._adopters[address(parameter)] = self._probe.sites.here()

    def called(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record a call of a torch function that draws, or writes a tensor in place."""
        import torch

        in_place = name.endswith("_") and not name.startswith(("__", "requires_grad"))
        writes = name == "__setitem__" or in_place
        drawing = any(word in name for word in _DRAWING)
        if not writes and not drawing:
            return
        call = {"o": name, "l": describe.literals(args, kwargs), "w": self._probe.sites.here()}
        written = args[0] if args else kwargs.get("tensor")  # torch.nn.init gives it by name
        if writes and isinstance(written, torch.Tensor):
            self._writers[address(written)] = call
        now = describe.torch_generators()
        drew = now != self._random if self._random else drawing
        if drew and self._draws < _DRAWS:
            self._draws += 1
            self._probe.write("draw", y=now, **call)
        self._random = now
