"""Where what a training begins with comes from: which line constructed a module, gave it a
parameter, and wrote a parameter's values; what drew random numbers meanwhile. Needs torch."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Callable, Iterable  # noqa: UP035 (Python 3.8)

from celedger.child.observe import address
from celedger.child.trace_calls import Sites, literals, torch_generators

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Origins", "perturb"]

_DRAWS = 5000  # calls that are kept: the weights of a thousand layers
_DRAWING = ("rand", "normal", "uniform", "multinomial", "bernoulli")


class Origins:
    """Notes of everything until the training starts; sites of modules made later, too. `tell` is
    given every call that drew, as an event."""

    def __init__(self, sites: Sites, tell: Callable[[dict[str, Any]], None]) -> None:
        self.created: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.over = False
        self._sites, self._tell = sites, tell
        self._wrote: dict[int, dict[str, Any]] = {}  # by address: the last call that wrote there
        self._made: dict[int, int] = {}  # by address: where a parameter got its module
        self._random = ""
        self._draws = 0
        self._patch()

    def of(self, tensor: Tensor) -> dict[str, Any]:
        """`v`, where a parameter was made; `o`, `l` and `w`, what wrote it last."""
        place = address(tensor)
        return {"v": self._made.get(place, -1), **self._wrote.get(place, {})}

    def _patch(self) -> None:
        from torch import nn
        from torch.nn.modules.module import register_module_parameter_registration_hook
        from torch.optim import Optimizer

        construct, prepare = nn.Module.__init__, Optimizer.__init__

        def module_init(module: Any, *args: Any, **kwargs: Any) -> None:
            self.created[module] = self._sites.here(without=module)
            construct(module, *args, **kwargs)

        def optimiser_init(optimiser: Any, *args: Any, **kwargs: Any) -> None:
            optimiser._celedger_site = self._sites.here(without=optimiser)
            prepare(optimiser, *args, **kwargs)

        def adopted(module: Any, name: str, parameter: Any) -> None:
            if parameter is not None and not self.over:
                self._made[address(parameter)] = self._sites.here()

        register_module_parameter_registration_hook(adopted)
        nn.Module.__init__ = module_init  # type: ignore
        Optimizer.__init__ = optimiser_init  # type: ignore[assignment]

    def called(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call of a torch function: kept where it draws, or writes a tensor in place."""
        import torch

        writes = name == "__setitem__" or (name.endswith("_") and not name.startswith("__"))
        drawing = any(word in name for word in _DRAWING)
        if not writes and not drawing:
            return
        site = self._sites.here(skip=3)
        said = literals(args, kwargs)
        if writes and args and isinstance(args[0], torch.Tensor):
            self._wrote[address(args[0])] = {"o": name, "l": said, "w": site}
        now = torch_generators()
        drew = now != self._random if self._random else drawing
        if drew and self._draws < _DRAWS:
            self._draws += 1
            self._tell({"k": "draw", "o": name, "l": said, "w": site, "y": now})
        self._random = now


def perturb(weights: Iterable[Tensor], seed: int) -> None:
    """Move every weight by one unit in its last place, up, down or not, by chance."""
    import torch

    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in weights:
            if weight.is_floating_point():
                signs = torch.randint(3, weight.shape, generator=draw, device="cpu")
                signs = signs.sub(1).to(weight)
                weight.mul_(1 + signs * torch.finfo(weight.dtype).eps)
