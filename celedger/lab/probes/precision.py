"""Check the operators inside a step, forward and backward: which of them underflows in half
precision, and which gives the first value that is not finite.

A torch dispatch mode sees every operator as it runs, under autocast in its actual precision. An
autograd node of the backward pass has the sequence number of its operator in the forward pass, and
each module records its first and last number: so every node belongs to a module.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .names import calling_line
from .observe import mode
from .tensors import tensors

# Operators that give zero only for zero inputs: any other zero is an underflow in half precision.
# The second kind is zero if any of two inputs is. (exp, softmax and sigmoid are excluded: their
# zeros are intended.)
ONE = frozenset({
    "_to_copy", "square", "pow", "sqrt", "log1p", "expm1", "tanh", "sin", "asinh", "atan",
})  # fmt: skip
TWO = frozenset({"mul", "div"})
EMPTY = ("empty", "new_empty")  # operators that return uninitialised memory
MASKS = frozenset({"masked_fill", "masked_fill_", "where", "full", "full_like", "fill_", "scatter"})
CAST = "cast to half precision"
MASKED, BROKEN = "masked", "not finite"  # in the order of their names


class OperatorPrecision:
    """The mode, entered at a step's first forward pass and left after its backward pass."""

    def __init__(self, probe: Any) -> None:
        self.probe = probe
        self._mode: Any = None
        self._absorbed: dict[int, tuple[Any, Tensor]] = {}
        self.clear()

    def clear(self) -> None:
        """Begin a step."""
        # Phase, module, operator and line (or ""), the worst that it was given (see `_worst`), and
        # the largest absolute value of what it gave.
        self.broke: tuple[str, str, str, str, str, float] | None = None
        self._lines: dict[int, str] = {}  # of the forward pass, by autograd's number
        self._spans: list[tuple[int, int, str]] = []
        self._lost: dict[tuple[str, str, str, str], list[int]] = defaultdict(lambda: [0, 0])

    @property
    def lost(self) -> list[list[Any]]:
        """Return phase, module, operator and its type, how many values became zero, how many of
        them were not."""
        return [[*where, *counts] for where, counts in self._lost.items() if counts[0]]

    def enter(self) -> None:
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

    def _ran(self, function: Any, args: tuple[Any, ...], _: Any, out: Any) -> None:
        if not isinstance(out, torch.Tensor) or not out.is_floating_point():
            return
        name = function.overloadpacket.__name__
        inputs = [a for _, a in tensors(args) if a.is_floating_point()]
        if self.broke is None and self.probe.step in self.probe.closely:
            self._look_closely(name, inputs, out)
        if out.dtype in (torch.float16, torch.bfloat16) and inputs:
            self._weigh(name.rstrip("_") if name.endswith("_") else name, inputs, args, out)

    def _look_closely(self, name: str, inputs: list[Tensor], out: Tensor) -> None:
        """Note the first operator whose result is not finite, though what it was given is, or came
        so from outside of the step."""
        node: Any = torch._C._current_autograd_node()
        number = 0
        if node is None:
            number = int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
        line = calling_line() if node is None else self._lines.get(node._sequence_nr(), "")
        self._lines[number - 1] = line or self._lines.get(number - 1, "")
        given, made = max(map(_worst, inputs), default=""), _worst(out)
        # Minus infinity is how attention is masked, and goes on from there.
        masks = made == MASKED and (name in MASKS or given == MASKED)
        if made and not masks and not name.startswith(EMPTY):
            self.broke = (*self._where(), name, line, given, float(out.abs().max()))

    def _weigh(self, name: str, inputs: list[Tensor], args: Any, out: Tensor) -> None:
        """Count the values that an operator makes zero, of those that were not zero before it."""
        first = inputs[0]
        whole = first != 0
        number = len(inputs) == 1 and len(args) > 1 and isinstance(args[1], (int, float))
        if name == "add" and number and args[1]:
            # 1 + x with x below half of 1's last place is 1: a logarithm of it will be zero
            self._absorbed[id(out)] = (weakref.ref(out), (out == args[1]) & whole)
        elif name in ("log", "log2", "log10"):
            reference, absorbed = self._absorbed.get(id(first), (None, whole))
            if reference is not None and reference() is first:
                self._count(f"{name}(1 + x)", out, (out == 0) & absorbed, out != 0)
        elif name in ONE and first.shape == out.shape:
            if name != "_to_copy" or first.dtype != out.dtype:
                self._count(CAST if name == "_to_copy" else name, out, (out == 0) & whole, whole)
        elif name in TWO and not (number and not args[1]):
            if len(inputs) > 1:
                second = inputs[1]
                whole = whole & ((second != 0) if name == "mul" else second.isfinite())
            if whole.shape == out.shape:
                self._count(name, out, (out == 0) & whole, whole)

    def _count(self, name: str, out: Tensor, lost: Tensor, whole: Tensor) -> None:
        counts = self._lost[(*self._where(), name, str(out.dtype).rpartition(".")[2])]
        counts[0] += int(lost.sum())
        counts[1] += int((lost | whole).sum())

    def _where(self) -> tuple[str, str]:
        """Return the phase, and the module (`-`: none, as in the loss function)."""
        current: Any = torch._C._current_autograd_node()
        if current is None:
            stack = self.probe.stack
            return "forward", stack[-1][0] if stack else "-"
        number = current._sequence_nr()
        inner = [span for span in self._spans if span[0] <= number < span[1]]
        return "backward", max(inner)[2] if inner else "-"


def _worst(value: Tensor) -> str:
    """Return "" for a tensor of finite values, `MASKED` if others are minus infinity, and `BROKEN`
    for any other."""
    finite = value.isfinite()
    if bool(finite.all()):
        return ""
    return MASKED if bool((finite | (value == -float("inf"))).all()) else BROKEN
