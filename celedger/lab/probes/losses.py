"""Identify the losses of a training, as preflight judges them: the call of torch's loss functions
that leads to `backward()`, its input, and the loss of an uninformed guess.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .tensors import follow_graph

BROADCASTING = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
ONE = 1e-3  # how far the sum of probabilities may be from it
# Operators that turn numbers into classes: an index from one of them is a code, not a label.
CHOOSERS = {"argmax", "argmin", "topk", "sort", "argsort", "multinomial", "searchsorted",
            "bucketize"}  # fmt: skip


@dataclass
class LossCall:
    """One call of a loss function: its arguments by name, and autograd's node of its result."""

    function: Any
    arguments: dict[str, Any]
    node: Any

    @property
    def name(self) -> str:
        return str(self.function.__name__)

    @property
    def output(self) -> Tensor:
        tensor: Tensor = self.arguments["input"]
        return tensor

    @property
    def target(self) -> Tensor:
        """Return the target without the labels that the loss ignores."""
        target: Tensor = self.arguments["target"]
        if self.name == "cross_entropy" and not target.is_floating_point():
            return target[target != self.arguments.get("ignore_index", -100)]
        return target

    def mean(self, output: Tensor) -> Tensor:
        """Return the loss of an output, the mean over its terms, for any reduction."""
        value: Tensor = self.function(**{**self.arguments, "input": output, "reduction": "mean"})
        return value

    @torch.no_grad()
    def guess(self) -> float:
        """Return the loss of an uninformed guess."""
        return float(self.mean(torch.zeros_like(self.output)).double())

    @torch.no_grad()
    def floor(self) -> float | None:
        """Return the least possible loss; None if it is not known."""
        smoothing = float(self.arguments.get("label_smoothing", 0.0))
        perfect = _PERFECT[self.name](self.output, self.arguments["target"], smoothing)
        value = float(self.mean(perfect).double())
        return value if math.isfinite(value) else None

    @property
    def axis(self) -> int:
        """Return the axis of the classes."""
        return 1 if self.output.dim() > 1 else 0

    @torch.no_grad()
    def misfit(self) -> str:
        """Return why the input does not fit the loss; empty if it fits."""
        output, target = self.output, self.arguments["target"]
        if self.name in BROADCASTING and output.shape != target.shape:
            return f"broadcasts {tuple(output.shape)} with {tuple(target.shape)}"
        if not output.numel() or self.name in BROADCASTING:
            return ""
        low, high = float(output.min()), float(output.max())
        if self.name == "nll_loss":
            return "is given values above 0: log_softmax is missing" if high > 0 else ""
        if self.name == "cross_entropy" and low >= 0 and output.shape[self.axis] > 1:
            sums = output.double().sum(self.axis)
            if bool(((sums - 1).abs() < ONE).all()):
                return "is given probabilities: softmax comes twice"
        if self.name == "binary_cross_entropy_with_logits" and low >= 0 and high <= 1:
            return "is given values from 0 to 1: sigmoid comes twice"
        return ""


def loss_call(function: Any, args: Sequence[Any], kwargs: Any, result: Any) -> LossCall | None:
    """Return a call of torch as a LossCall, None if it is none."""
    name = getattr(function, "__name__", "")
    listed = name in (*_PERFECT, *BROADCASTING, "nll_loss", "binary_cross_entropy")
    if not listed or not isinstance(result, Tensor) or result.grad_fn is None:
        return None
    names = dict(zip(("input", "target"), args))  # noqa: B905 (Python 3.8)
    return LossCall(function, {**names, **kwargs}, result.grad_fn)


def leading(calls: Sequence[LossCall], losses: Sequence[Tensor]) -> LossCall | None:
    """Return the only call that leads to the minimised value; None if there is none or several.
    Calls inside a library, for a report or a target, do not count."""
    nodes: set[Any] = set()
    follow_graph((loss.grad_fn for loss in losses), nodes)
    chosen = [call for call in calls if call.node in nodes]
    return chosen[0] if len(chosen) == 1 else None


def _true_logits(output: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """Return logits of the classes' true shares."""
    shares, axis = target, 1 if output.dim() > 1 else 0
    classes = output.shape[axis]
    if not target.is_floating_point():
        shares = nn.functional.one_hot(target.clamp(0, classes - 1), classes).movedim(-1, axis)
    shares = shares.to(output.dtype) * (1 - smoothing) + smoothing / classes
    return shares.clamp(min=1e-30).log()


# The output with the least loss, for losses whose guess and floor are known.
_PERFECT: dict[str, Any] = {
    "cross_entropy": _true_logits,
    "mse_loss": lambda output, target, smoothing: target,
    "binary_cross_entropy_with_logits": lambda output, target, smoothing: (
        target.double().logit(1e-12).to(output.dtype)
    ),
}


def graded(call: LossCall | None) -> bool:
    """Return True if the loss of a guess, and the least loss, can be computed."""
    return call is not None and call.name in _PERFECT
