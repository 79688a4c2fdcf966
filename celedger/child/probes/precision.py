"""The operators inside a step, forward and backward: which of them loses values in half precision,
and which makes the first that is not finite.

A torch dispatch mode sees every operator as it runs, under autocast in the precision it truly has.
The autograd node that runs in the backward pass has the number of the operator it belongs to, and
so the module: numbers are given in order, and each module notes the first and last of its own.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from celedger.child.probes.figures import numbers
from celedger.child.probes.observe import mode

if TYPE_CHECKING:
    from torch import Tensor

# Operators that give zero only for zero: what they make zero in half precision is lost. The second
# kind is zero where any of two tensors is. (exp, softmax and sigmoid are not among them: that they
# end in zero is what they are used for.)
ONE = frozenset({
    "_to_copy", "square", "pow", "sqrt", "log1p", "expm1", "tanh", "sin", "asinh", "atan",
})  # fmt: skip
TWO = frozenset({"mul", "div"})
MASKS = frozenset({"masked_fill", "masked_fill_", "where", "full", "full_like", "fill_", "scatter"})
CAST = "cast to half precision"


class OperatorPrecision:
    """The mode, entered with a step's first forward pass and left after its backward pass."""

    def __init__(self, probe: Any) -> None:
        self.probe = probe
        self.quiet = False  # what runs now is the probe's own
        self._mode: Any = None
        self._spans: list[tuple[int, int, str]] = []
        self._lost: dict[tuple[str, str, str], list[Tensor]] = {}
        self._ends: list[tuple[str, str, str, Tensor, list[Tensor]]] = []
        self._absorbed: dict[int, tuple[Any, Tensor]] = {}

    def enter(self) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode

        if self._mode is None:
            self._mode = mode(TorchDispatchMode, self._ran)
            self._mode.__enter__()

    def leave(self) -> None:
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode = None
            self._absorbed = {}

    def module_ends(self, name: str, began: int, ended: int) -> None:
        if self._mode is not None:
            self._spans.append((began, ended, name))

    def take(self) -> dict[str, Any]:
        """What the step's operators did, for `said` to put in words; still on the device."""
        taken = {"lost": self._lost, "ends": self._ends}
        self._lost, self._ends, self._spans = {}, [], []
        return taken

    def _ran(self, function: Any, args: tuple[Any, ...], _: Any, out: Any) -> None:
        import torch

        if self.quiet or not isinstance(out, torch.Tensor) or not out.is_floating_point():
            return
        name = function.overloadpacket.__name__
        phase, module = self._where()
        inputs = [a for a in args if isinstance(a, torch.Tensor) and a.is_floating_point()]
        if self.probe.step in self.probe.closely:
            fine = [_fine(value, name) for value in inputs]
            self._ends.append((phase, module, name, _fine(out, name), fine))
        if out.dtype in (torch.float16, torch.bfloat16) and inputs:
            self._weigh(name, phase, module, inputs, args, out)

    def _weigh(
        self, name: str, phase: str, module: str, inputs: list[Any], args: Any, out: Any
    ) -> None:
        first = inputs[0]
        name = name.rstrip("_") if name.endswith("_") else name
        if name == "add" and len(inputs) == 1 and isinstance(args[1], (int, float)) and args[1]:
            # 1 + x with x below half of 1's last place is 1: a logarithm of it will be zero
            self._absorbed[id(out)] = (weakref.ref(out), (out == args[1]) & (first != 0))
            return
        if name in ("log", "log2", "log10"):
            known = self._absorbed.get(id(first))
            if known is not None and known[0]() is first:
                self._add(phase, module, f"{name}(1 + x)", (out == 0) & known[1], out != 0)
            return
        if name in ONE and first.shape == out.shape:
            if name == "_to_copy" and first.dtype == out.dtype:
                return
            whole = first != 0
            label = CAST if name == "_to_copy" else name
            self._add(phase, module, label, (out == 0) & whole, whole)
        elif name in TWO:
            whole = first != 0
            if len(inputs) > 1:
                second = inputs[1]
                whole = whole & ((second != 0) if name == "mul" else second.isfinite())
            elif isinstance(args[1], (int, float)) and not args[1]:
                return
            if whole.shape == out.shape:
                self._add(phase, module, name, (out == 0) & whole, whole)

    def _add(self, phase: str, module: str, name: str, lost: Any, whole: Any) -> None:
        at_risk = (lost | whole).sum()
        known = self._lost.setdefault((phase, module, name), [])
        if known:
            known[0], known[1] = known[0] + lost.sum(), known[1] + at_risk
        else:
            known += [lost.sum(), at_risk]

    def _where(self) -> tuple[str, str]:
        """Phase, and the module (`-`: none, as in the loss function)."""
        import torch

        current = getattr(torch._C, "_current_autograd_node", lambda: None)()
        if current is None:
            stack = self.probe.stack
            return "forward", stack[-1][0] if stack else "-"
        number = current._sequence_nr()
        inner = [span for span in self._spans if span[0] <= number < span[1]]
        return "backward", max(inner)[2] if inner else "-"


def _fine(value: Tensor, operator: str) -> Tensor:
    """Whether all of it is finite, or minus infinity where that is how things are masked."""
    good = value.isfinite()
    return (good | (value == -float("inf")) if operator in MASKS else good).all()


def said(taken: dict[str, Any]) -> dict[str, Any]:
    """As JSON holds it; waits for the device. `lost`: phase, module, operator, values made zero,
    values that were not zero. `broke`: phase, module and name of the first operator whose inputs
    were finite and whose output was not."""
    flat = numbers([scalar for pair in taken["lost"].values() for scalar in pair])
    pairs = zip(flat[::2], flat[1::2])  # noqa: B905 (Python 3.8)
    lost = [
        [*key, int(gone), int(whole)]
        for key, (gone, whole) in zip(taken["lost"], pairs)  # noqa: B905
        if gone
    ]
    good = iter(numbers([g for *_, out, ins in taken["ends"] for g in (out, *ins)]))
    broke = None
    for phase, module, operator, _, inputs in taken["ends"]:
        fine, given = next(good), [next(good) for _ in inputs]
        if not fine and all(given) and broke is None:
            broke = [phase, module, operator]
    return {"lost": lost, "broke": broke}
