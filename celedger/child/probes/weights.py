"""The parameters of a watched training: what they were at first, how far a step moves them, and
which of them no optimiser holds."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from celedger.child.probes.figures import numbers, readable

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

    from celedger.child.probes.names import ModuleNames

# Modules whose weights multiply: only these have a fan-in.
MATRICES = ("Linear", "Conv", "Bilinear", "RNN", "LSTM", "GRU", "MultiheadAttention")


class WatchedWeights:
    def __init__(self) -> None:
        self.about: dict[str, dict[str, Any]] = {}  # by name, as JSON holds it
        self.optimisers = 0
        self.met: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._held: dict[int, Any] = {}  # parameters that an optimiser holds, by id
        self._constant: set[str] = set()  # matrices whose elements were all equal at first
        self._before: list[tuple[str, Tensor, Tensor]] = []

    def meet(self, names: ModuleNames, optimiser: Optimizer) -> None:
        """What parameters are before they are trained, or where they are met first: modules have
        no names before a step with hooks."""
        import torch

        held = names.parameters(optimiser)
        if optimiser in self.met and all(name in self.about for name, _ in held):
            return
        self.optimisers += optimiser not in self.met
        self.met.add(optimiser)
        self._name_all(names)
        new, rows = [], []
        for name, parameter in held:
            about = self.about.setdefault(name, {"kind": "", "shape": list(parameter.shape)})
            self._held[id(parameter)] = weakref.ref(parameter)
            if about.get("trained") or not readable(parameter):
                continue
            about["trained"] = True
            new.append((name, parameter))
            values = parameter.detach()
            rows += [*torch.aminmax(values), values.float().std(correction=0)]
        found = numbers(rows)
        for number, (name, parameter) in enumerate(new):
            low, high, std = found[3 * number : 3 * number + 3]
            self.about[name].update({"min": low, "max": high, "std": std})
            if low == high and parameter.dim() >= 2 and parameter.shape[0] > 1:
                self._constant.add(name)

    def orphans(self, names: ModuleNames) -> list[str]:
        """Parameters with a gradient that no optimiser holds."""
        return [
            prefix + name
            for prefix, root in names.roots()
            for name, parameter in root.named_parameters()
            if parameter.grad is not None and not self._is_held(parameter)
        ]

    def before(self, names: ModuleNames, optimiser: Optimizer) -> list[tuple[str, Tensor]]:
        """Keep what a step is going to change; the parameters that it may change."""
        held = names.parameters(optimiser)
        trained = [(n, p) for n, p in held if p.requires_grad and readable(p)]
        self._before = [(name, p, p.detach().clone()) for name, p in trained]
        return trained

    def after(self) -> dict[str, Any]:
        """Of each parameter kept: L2 norm before, and L2 norm and largest element of its change;
        of those constant at first, the greatest difference of a unit from the first one."""
        import torch

        kept, self._before = self._before, []
        if not kept:
            return {}
        old = [before for _, _, before in kept]
        change = torch._foreach_sub([parameter.detach() for _, parameter, _ in kept], old)
        norms = [torch._foreach_norm(tensors, order)
                 for tensors, order in ((old, 2), (change, 2), (change, float("inf")))]  # fmt: skip
        return {
            "names": [name for name, _, _ in kept],
            "norms": [norm for part in norms for norm in part],
            "alike": [
                (name, (parameter.detach() - parameter.detach()[:1]).abs().amax())
                for name, parameter, _ in kept
                if name in self._constant
            ],
        }

    def _name_all(self, names: ModuleNames) -> None:
        """Every parameter of every root met, by its first name where several modules share it."""
        for prefix, root in names.roots():
            shared: set[int] = set()
            for path, module in root.named_modules():
                for own, parameter in module.named_parameters(recurse=False):
                    if id(parameter) not in shared:
                        shared.add(id(parameter))
                        kind = type(module).__name__
                        self.about.setdefault(
                            prefix + (f"{path}.{own}" if path else own),
                            {
                                "kind": kind, "shape": list(parameter.shape), "trained": False,
                                "fan_in": _fan_in(kind, module, parameter),
                            },
                        )  # fmt: skip

    def _is_held(self, parameter: Tensor) -> bool:
        known = self._held.get(id(parameter))
        return known is not None and known() is parameter


def _fan_in(kind: str, module: nn.Module, parameter: Tensor) -> int:
    """Inputs of one output (0: no such thing). A transposed convolution keeps them first, and adds
    them up where its strokes overlap: kernel / stride times in each direction."""
    if parameter.dim() < 2 or not any(word in kind for word in MATRICES):
        return 0
    if "ConvTranspose" in kind:
        given: Any = module
        size = parameter.shape[0] // given.groups
        for kernel, stride in zip(given.kernel_size, given.stride):  # noqa: B905 (Python 3.8)
            size *= max(1, kernel // stride)
        return int(size)
    return int(parameter[0].numel())
