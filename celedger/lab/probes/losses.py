"""Identify the losses of a training, as preflight judges them: the call of torch's loss functions
that leads to `backward()`, log-probabilities chosen by labels, or the difference in a loss written
by hand; its input, and the loss of an uninformed guess.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .tensors import follow_graph, unwrapped

TWO_CLASSES = ("binary_cross_entropy", "binary_cross_entropy_with_logits")
BROADCASTING = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "poisson_nll_loss",
                "gaussian_nll_loss")  # fmt: skip
LOGARITHMS = ("nll_loss", "kl_div")  # they take log-probabilities
CHOICES = ("gather", "__getitem__")  # of log-probabilities by labels, as by hand
DIFFERENCES = ("sub", "__sub__", "rsub", "__rsub__")  # of output and target, as by hand
_VIEWS = ("Squeeze", "Unsqueeze", "View", "UnsafeView", "Reshape", "Select", "Slice")
ONE = 1e-3  # how far the sum of probabilities may be from it; of coarse types two last places
# Operators that turn numbers into classes: an index from one of them is a code, not a label.
CHOOSERS = {"argmax", "argmin", "topk", "sort", "argsort", "multinomial", "searchsorted",
            "bucketize"}  # fmt: skip
# Functions whose result, given to a loss as it is, is no label: it says where the true output
# stands, first of all, or is noise.
CONSTANTS = {"zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones", "full",
             "full_like", "new_full", "arange", "randn", "randn_like", "rand",
             "rand_like"}  # fmt: skip


@dataclass
class LossCall:
    """One call of a loss function: its arguments by name, and autograd's node of its result.
    `precision` makes the autocast in which it was called."""

    function: Any
    arguments: dict[str, Any]
    node: Any
    precision: Callable[[], AbstractContextManager[Any]]

    @property
    def name(self) -> str:
        return "a difference" if self.is_difference else str(self.function.__name__)

    @property
    def is_difference(self) -> bool:
        return self.function.__name__ in DIFFERENCES

    @property
    def output(self) -> Tensor:
        tensor: Tensor = self.arguments["input"]
        return tensor

    @property
    def labels(self) -> Tensor:
        """Return the target; as integers where a loss of two classes has one a row."""
        target: Tensor = self.arguments["target"]
        if self.function is nll_by_hand and target.dim() == self.output.dim():
            target = target.squeeze(self.axis)
        one = self.name in TWO_CLASSES and target.dim() > 0 and target.numel() == len(target)
        return target.long() if one and bool(((target == 0) | (target == 1)).all()) else target

    @property
    def target(self) -> Tensor:
        """Return the labels without those that the loss ignores."""
        labels = self.labels
        if self.name in ("cross_entropy", "nll_loss") and not labels.is_floating_point():
            return labels[labels != self.arguments.get("ignore_index", -100)]
        return labels

    def mean(self, output: Tensor) -> Tensor:
        """Return the loss of an output, the mean over its terms, for any reduction."""
        with self.precision():
            arguments = {**self.arguments, "input": output, "reduction": "mean"}
            value: Tensor = self.function(**arguments)
        return value

    @torch.no_grad()
    def guess(self) -> float:
        """Return the loss of an uninformed guess: of equal chances, or of zeros."""
        uniform = -math.log(max(self.classes, 1))
        level = {"binary_cross_entropy": 0.5, "nll_loss": uniform, "nll_by_hand": uniform}
        uninformed = torch.full_like(self.output, level.get(self.name, 0.0))
        return float(self.mean(uninformed).double())

    @torch.no_grad()
    def floor(self) -> float | None:
        """Return the least possible loss; None if it is not known."""
        smoothing = float(self.arguments.get("label_smoothing", 0.0))
        perfect = _PERFECT[self.name](self.output, self.arguments["target"], smoothing)
        value = float(self.mean(perfect).double())
        return value if math.isfinite(value) else None

    @property
    def classes(self) -> int:
        if self.name in TWO_CLASSES or not self.output.dim():
            return 2
        return int(self.output.shape[self.axis])

    @property
    def axis(self) -> int:
        """Return the axis of the classes."""
        if self.function is nll_by_hand:
            return int(self.arguments["axis"])
        return 1 if self.output.dim() > 1 else 0

    @torch.no_grad()
    def misfit(self) -> str:
        """Return why the input does not fit the loss; empty if it fits."""
        output, target = self.output, self.arguments["target"]
        shapes = tuple(output.shape), tuple(target.shape)
        # By hand one may broadcast on purpose, but not as many numbers with as many.
        squared = output.numel() == target.numel() and shapes[0][-1:] != shapes[1][-1:]
        squared &= output.dim() != target.dim()
        if squared if self.is_difference else self.name in BROADCASTING and shapes[0] != shapes[1]:
            return f"broadcasts {shapes[0]} with {shapes[1]}"
        if self.name == "poisson_nll_loss" and self.arguments.get("log_input", True):
            exponent = operator_name(output.grad_fn).startswith("Exp")
            return "is given a rate: it takes the rate's logarithm" if exponent else ""
        if not output.numel() or self.is_difference or self.name in BROADCASTING:
            return ""
        low, high = float(output.min()), float(output.max())
        node = node_behind_views(output.grad_fn)
        if operator_name(node) == "LogSoftmax" == "Log" + operator_name(node.next_functions[0][0]):
            return "is given the logarithm of a softmax of probabilities: softmax comes twice"
        if self.name in LOGARITHMS and high > 0:
            return "is given values above 0: log_softmax is missing"
        if self.name == "nll_loss" and not _sum_to_one(output.exp(), self.axis):
            others = [axis for axis in range(output.dim()) if _sum_to_one(output.exp(), axis)]
            return (
                f"needs log_softmax over the classes, not over axis {others[0]}" if others else ""
            )
        several = output.shape[self.axis] > 1
        if self.name == "cross_entropy" and low >= 0 and several and _sum_to_one(output, self.axis):
            return "is given probabilities: softmax comes twice"
        if self.name == "binary_cross_entropy_with_logits" and low >= 0 and high <= 1:
            return "is given values from 0 to 1: sigmoid comes twice"
        return ""


def _sum_to_one(chances: Tensor, axis: int) -> bool:
    room = max(ONE, 2 * torch.finfo(chances.dtype).eps)
    return bool(((chances.detach().double().sum(axis) - 1).abs() < room).all())


def loss_call(function: Any, args: Sequence[Any], kwargs: Any, result: Any) -> LossCall | None:
    """Return a call of torch as a LossCall, None if it is none."""
    name = getattr(function, "__name__", "")
    listed = name in (*_PERFECT, *BROADCASTING, *LOGARITHMS)
    of_torch = listed and function is getattr(nn.functional, name, None)
    if not of_torch and name not in (*DIFFERENCES, *CHOICES):
        return None
    if not isinstance(result, Tensor) or result.grad_fn is None:
        return None
    if name in CHOICES:
        chosen = _chosen(name, args, kwargs)
        return LossCall(nll_by_hand, chosen, result.grad_fn, precision()) if chosen else None
    if name in DIFFERENCES:
        args = sorted(args[:2], key=lambda one: not getattr(one, "requires_grad", False))
        sides = [one for one in args if isinstance(one, Tensor) and one.dim()]
        if len(sides) < 2 or sides[1].requires_grad:
            return None
    names = dict(zip(("input", "target"), args))  # noqa: B905 (Python 3.8)
    return LossCall(function, {**names, **kwargs}, result.grad_fn, precision())


def nll_by_hand(input: Tensor, target: Tensor, reduction: str, axis: int) -> Tensor:  # noqa: A002
    """Return the negative log-probability of labels; the classes are on one axis of the input."""
    target = target.squeeze(axis) if target.dim() == input.dim() else target
    return nn.functional.nll_loss(input.movedim(axis, 1), target, reduction=reduction)


def _chosen(name: str, args: Sequence[Any], kwargs: Any) -> dict[str, Any]:
    """Return the arguments of `nll_by_hand` of `x.gather(-1, labels[:, None])` or `x[rows, labels]`
    where x holds log-probabilities; none if it does not."""
    given = {**dict(zip(("input", "dim", "index"), args)), **kwargs}  # noqa: B905 (Python 3.8)
    if name == "__getitem__":
        *rows, index = args[1] if isinstance(args[1], tuple) and args[1] else ("", "")
        given = {"input": args[0], "dim": -1, "index": index}
        if len(rows) != 1 or not isinstance(rows[0], Tensor) or rows[0].dim() != 1:
            return {}
    x, index, axis = unwrapped(given["input"]), given.get("index"), given.get("dim")
    if not isinstance(index, Tensor) or not isinstance(axis, int) or not x.numel():
        return {}
    index, axis = unwrapped(index), axis % max(x.dim(), 1)
    if x.dim() < 2 or index.is_floating_point() or index.dtype == torch.bool:
        return {}
    labels = list(x.shape[:axis]) + list(x.shape[axis + 1 :])
    row = list(index.shape)
    if row != labels and row != [*x.shape[:axis], 1, *x.shape[axis + 1 :]]:
        return {}
    return (
        {"input": x, "target": index, "axis": axis} if _sum_to_one(x.detach().exp(), axis) else {}
    )


def node_behind_views(node: Any) -> Any:
    while node is not None and node.name().startswith(_VIEWS):
        node = node.next_functions[0][0]
    return node


def operator_name(node: Any) -> str:
    """Return the name of the node behind views, as "LogSoftmax"."""
    node = node_behind_views(node)
    return node.name().partition("Backward")[0] if node is not None else ""


def precision() -> Callable[[], AbstractContextManager[Any]]:
    """Return what makes the autocast that is in force now."""
    kind = "cuda" if torch.is_autocast_enabled("cuda") else "cpu"
    on, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return functools.partial(torch.autocast, kind, dtype=dtype, enabled=on)


def leading(calls: Sequence[LossCall], losses: Sequence[Tensor]) -> list[LossCall]:
    """Return the calls that lead to the minimised value; differences if no loss of torch's does.
    Calls inside a library, for a report or a target, do not count."""
    nodes: set[Any] = set()
    follow_graph((loss.grad_fn for loss in losses), nodes)
    led = [call for call in calls if call.node in nodes]
    return [call for call in led if not call.is_difference] or led


def judged(led: Sequence[LossCall]) -> LossCall | None:
    """Return the call by which the training is judged: the only one, or the only one whose guess
    is known, as of a student that learns from labels and from a teacher."""
    candidates = [call for call in led if graded(call)] or led
    return candidates[0] if len(candidates) == 1 else None


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
    "nll_loss": lambda output, target, smoothing: torch.zeros_like(output),
    "nll_by_hand": lambda output, target, smoothing: torch.zeros_like(output),
    "mse_loss": lambda output, target, smoothing: target,
    "binary_cross_entropy": lambda output, target, smoothing: target,
    "binary_cross_entropy_with_logits": lambda output, target, smoothing: (
        target.double().logit(1e-12).to(output.dtype)
    ),
}


def graded(call: LossCall | None) -> bool:
    """Return True if the loss of a guess, and the least loss, can be computed."""
    return call is not None and call.name in _PERFECT
