"""The parameters of a watched training: their first values, how far a step moves them, and which of
them no optimiser holds."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .names import ModuleNames
from .observe import has_no_optimiser
from .tensor_statistics import readable

# Modules whose weights multiply: only these have a fan-in.
MATRICES = ("Linear", "Conv", "Bilinear", "RNN", "LSTM", "GRU", "MultiheadAttention")


class WatchedWeights:
    def __init__(self, names: ModuleNames) -> None:
        self.about: dict[
            str, dict[str, Any]
        ] = {}  # by name, as celedger.lab.diagnose.watch_records reads it
        self.kinds: dict[str, str] = {}  # the class of a parameter's module
        self.optimisers = 0
        self.met: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._names = names
        self._constant: set[str] = set()  # matrices whose elements were all equal at first
        self._before: list[tuple[str, Tensor, Tensor]] = []
        # What stands beside a script's own parameters, and no pass has reached, with its values.
        self._beside: list[tuple[str, Tensor, Tensor]] = []

    def meet(self, optimiser: Optimizer, step: int) -> None:
        """Describe parameters before they are trained, or at their first use: modules have no names
        before a step with hooks."""
        is_new = optimiser not in self.met
        self.optimisers += is_new
        self.met.add(optimiser)
        self._name_all()
        named = self._names.parameters(optimiser)
        if is_new and has_no_optimiser(optimiser):
            for name, parameter in self._names.beside(named):
                self.about[name] = _of_no_module(parameter)
                self._beside.append((name, parameter, parameter.detach().clone()))
        for name, parameter, first in self._beside:
            if not (torch.equal(parameter, first) or self.about[name]["trained"]):
                self.about[name].update(trained=True)  # in a step that was not looked at
        for name, parameter in named:
            if name not in self.about:
                self.about[name] = _of_no_module(parameter)
            about = self.about[name]
            if about["trained"] or not readable(parameter):
                continue
            values = parameter.detach()
            low, high = (float(end) for end in torch.aminmax(values))
            std = float(values.float().std(correction=0))
            met = step if step >= self.optimisers else 0  # else each took its first step
            about.update(trained=True, low=low, high=high, std=std, met=met)
            if low == high and parameter.dim() >= 2 and parameter.shape[0] > 1:
                self._constant.add(name)

    def _name_all(self) -> None:
        """Describe every parameter of every root, by its first name if modules share it."""
        for _, root in self._names.roots():
            for name, parameter, module in self._names.tensors_of(root, "parameter"):
                if name not in self.about:
                    self.kinds[name] = type(module).__name__
                    self.about[name] = _untrained(parameter, _fan_in(module, parameter))

    def orphans(self) -> list[str]:
        """Return the parameters that have a gradient but no optimiser."""
        trained = {id(p) for one in self.met for group in one.param_groups for p in group["params"]}
        return [
            name for name, parameter in self._names.all_parameters()
            if parameter.grad is not None and id(parameter) not in trained
        ]  # fmt: skip

    def before(self, optimiser: Optimizer) -> list[tuple[str, Tensor]]:
        """Copy the parameters that a step may change, and return them."""
        named = self._names.parameters(optimiser)
        trained = [(n, p) for n, p in named if p.requires_grad and readable(p)]
        self._before = [(name, p, p.detach().clone()) for name, p in trained]
        return trained

    def changes(self) -> list[list[Any]]:
        """Return for each copied parameter its L2 norm before, and the L2 norm and the largest
        element of its change."""
        rows = []
        for name, parameter, old in self._before:
            change = parameter.detach() - old
            rows.append([name, float(old.norm()), float(change.norm()), float(change.abs().max())])
        return rows

    def alike(self) -> dict[str, float]:
        """Return for each matrix constant at first the greatest difference of a unit from the first
        one."""
        return {
            name: float((parameter.detach() - parameter.detach()[:1]).abs().max())
            for name, parameter, _ in self._before
            if name in self._constant
        }


def _untrained(parameter: Tensor, fan_in: int) -> dict[str, Any]:
    return {"shape": list(parameter.shape), "trained": False, "fan_in": fan_in}


def _of_no_module(parameter: Tensor) -> dict[str, Any]:
    fan_in = min(parameter.shape) if parameter.dim() == 2 else 0
    return {**_untrained(parameter, fan_in), "in_module": False}


def _fan_in(module: nn.Module, parameter: Tensor) -> int:
    """Return the inputs of one output (0: not a matrix). A transposed convolution has them in its
    first dimension, and adds them up where its strokes overlap: kernel / stride times in each
    direction."""
    kind = type(module).__name__
    if parameter.dim() < 2 or not any(word in kind for word in MATRICES):
        return 0
    if "ConvTranspose" in kind:
        convolution: Any = module
        size = parameter.shape[0] // convolution.groups
        for kernel, stride in zip(convolution.kernel_size, convolution.stride):  # noqa: B905 (3.8)
            size *= max(1, kernel // stride)
        return int(size)
    return int(parameter[0].numel())
