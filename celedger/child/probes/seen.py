"""What a preflight sees of a training: the losses that torch names, what modules are called with,
in which mode, and what becomes of gradients and statistics."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from celedger.child.probes.tensors import content, tensors
from celedger.child.torch_steps import dense

MOST_ROWS = 50_000  # of training that are remembered
MOST_NODES = 100_000  # of autograd's graph that are followed


@dataclass
class LossCall:
    """One call of a loss function. `value`: the mean over its terms, whatever the reduction;
    `guess`: that of an output that knows nothing; `floor`: of one that knows all. None: not known.
    `target`: without the labels that the loss ignores."""

    name: str
    value: float
    guess: float | None
    floor: float | None
    target: Tensor
    node: Any = None  # autograd's, where gradients are on


class Losses(TorchFunctionMode):
    """The calls of torch's own loss functions while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[LossCall] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in _PERFECT and isinstance(out, Tensor):
            names = dict(zip(("input", "target"), args))  # noqa: B905 (Python 3.8)
            with torch.no_grad():
                self.calls.append(_loss_call(name, func, out, {**names, **(kwargs or {})}))
        return out


def _loss_call(name: str, func: Any, out: Tensor, arguments: dict[str, Any]) -> LossCall:
    arguments = {key: v.detach() if isinstance(v, Tensor) else v for key, v in arguments.items()}

    def mean(output: Tensor) -> float:
        return float(func(**{**arguments, "input": output, "reduction": "mean"}).double())

    output, target = arguments["input"], arguments["target"]
    perfect = mean(_PERFECT[name](output, target, float(arguments.get("label_smoothing", 0.0))))
    if name == "cross_entropy" and not target.is_floating_point():
        target = target[target != arguments.get("ignore_index", -100)]
    value, guess = mean(output), mean(torch.zeros_like(output))
    floor = perfect if math.isfinite(perfect) else None
    return LossCall(name, value, guess, floor, target, out.grad_fn)


def _true_logits(output: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """Return logits of the classes' true shares."""
    shares, axis = target, 1 if output.dim() > 1 else 0
    classes = output.shape[axis]
    if not target.is_floating_point():
        shares = nn.functional.one_hot(target.clamp(0, classes - 1), classes).movedim(-1, axis)
    shares = shares.to(output.dtype) * (1 - smoothing) + smoothing / classes
    return shares.clamp(min=1e-30).log()


# The output with the least loss.
_PERFECT: dict[str, Any] = {
    "cross_entropy": _true_logits,
    "mse_loss": lambda output, target, smoothing: target,
    "binary_cross_entropy_with_logits": lambda output, target, smoothing: (
        target.double().logit(1e-12).to(output.dtype)
    ),
}


def minimised(calls: Sequence[LossCall], loss: Tensor) -> int | None:
    """Which of the calls leads to the loss that is minimised; None where none or several do. What
    a library computes inside, for a report or a target, counts for nothing."""
    nodes: set[Any] = set()
    waiting: list[Any] = [loss.grad_fn]
    while waiting and len(nodes) < MOST_NODES:
        node = waiting.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            waiting += [after for after, _ in node.next_functions]
    leading = [number for number, call in enumerate(calls) if call.node in nodes]
    return leading[0] if len(leading) == 1 else None


class Seen:
    """What was seen in an epoch and the evaluation after it. Entered, it listens to modules."""

    def __init__(self) -> None:
        self.evaluating = False
        self.minimised: int | None = None  # which of the calls of torch's losses
        self.rows_trained: set[bytes] = set()
        self.rows_evaluated: set[bytes] = set()
        self.same_tensor = False
        self.ranges: list[tuple[float, float, bool]] = []  # least, greatest, whether float
        self.classes: Tensor | None = None  # counts
        self.targets: list[tuple[float, float]] = []
        self.training_in_evaluation: set[str] = set()
        self.norms: set[str] = set()
        self.norms_moved: set[str] = set()
        self.with_gradient: set[str] = set()
        self.metrics: list[dict[str, float]] = []
        self.buffers_changed_in_evaluation: list[str] = []
        self.batches: list[Any] = []
        self.calls: list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = []  # in evaluation
        self.largest: tuple[nn.Module, tuple[Any, ...], dict[str, Any]] | None = None
        self.steps = 0
        self.model: nn.Module
        self.optimiser: Optimizer
        self.initial: dict[str, Tensor] = {}
        self._outer: set[int] = set()  # modules that training calls from outside any other
        self._inputs: list[Tensor] = []  # what they were last given
        self._depth = 0
        self._hooks: list[Any] = []

    def begins(self, model: nn.Module, optimiser: Optimizer) -> None:
        self.model, self.optimiser = model, optimiser
        self.initial = {k: p.detach().clone() for k, p in model.named_parameters()}
        self._paths = {id(m): path or "the model" for path, m in model.named_modules()}
        self._norms = {
            path: m for path, m in model.named_modules()
            if isinstance(m, nn.modules.batchnorm._NormBase) and m.track_running_stats
        }  # fmt: skip
        self._statistics = {path: _statistics(m) for path, m in self._norms.items()}

    def __enter__(self) -> Seen:
        self._hooks = [
            modules.register_module_forward_pre_hook(self._begins),
            modules.register_module_forward_hook(self._ends, with_kwargs=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._depth = 0

    def note_batch(self, batch: Any) -> None:
        self.batches = [*self.batches[-1:], batch]

    def note_step(self, losses: Any) -> None:
        """After a step: gradients, statistics and labels of it."""
        self.steps += 1
        for path, parameter in self.model.named_parameters():
            if path in self.with_gradient or parameter.grad is None:
                continue
            if bool((dense(parameter.grad) != 0).any()):
                self.with_gradient.add(path)
        for path in self.norms - self.norms_moved:
            if not torch.equal(_statistics(self._norms[path]), self._statistics[path]):
                self.norms_moved.add(path)
        for number, loss in enumerate(losses.calls):
            if number == self.minimised or self.minimised is None:
                self._label(loss)
        losses.calls.clear()

    def _label(self, loss: LossCall) -> None:
        if not loss.target.numel():  # all ignored
            return
        if loss.name == "cross_entropy" and not loss.target.is_floating_point():
            labels = loss.target.cpu()
            classes = max(round(math.exp(loss.guess or 0.0)), int(labels.max()) + 1)
            counts = torch.bincount(labels, minlength=classes)
            if self.classes is None:
                self.classes = counts
            elif len(self.classes) == len(counts):
                self.classes = self.classes + counts
        else:
            target = loss.target
            self.targets.append((float(target.min()), float(target.max())))

    def _begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        mode_matters = isinstance(module, (nn.modules.dropout._DropoutNd,
                                           nn.modules.batchnorm._NormBase))  # fmt: skip
        if self.evaluating and mode_matters and module.training:
            self.training_in_evaluation.add(self._paths.get(id(module), type(module).__name__))
        path = self._paths.get(id(module), "")
        if path in self._norms and not self.evaluating and torch.is_grad_enabled():
            self.norms.add(path)
        if self._depth == 0 and not self.evaluating and id(module) in self._paths:
            self._outer.add(id(module))
        self._depth += 1

    def _ends(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        self._depth -= 1
        if id(module) not in self._outer:
            return
        inputs = [
            t for _, t in tensors([args, kwargs])
            if t.dim() > 0 and not t.is_complex() and t.layout == torch.strided
        ]  # fmt: skip
        if not inputs:
            return
        if self.evaluating:
            self.rows_evaluated |= self._rows(inputs)
            self.same_tensor |= inputs[0].data_ptr() in {t.data_ptr() for t in self._inputs}
            self.calls = [*self.calls[-3:], (module, args, kwargs)]
            if self.largest is None or _size(args) > _size(self.largest[1]):
                self.largest = module, args, kwargs
        else:
            if len(self.rows_trained) < MOST_ROWS:
                self.rows_trained |= self._rows(inputs)
            self._inputs = inputs
            first = inputs[0]
            if len(self.ranges) < 100 and first.numel() and first.dtype != torch.bool:
                low, high = torch.aminmax(first.detach())
                self.ranges.append((float(low), float(high), first.is_floating_point()))

    def _rows(self, inputs: list[Tensor]) -> set[bytes]:
        """Return a hash of each row of what a module is given, of all tensors as long as the
        first."""
        count = len(inputs[0])
        parts = [content(t) for t in inputs if len(t) == count]
        return {
            hashlib.blake2b(
                b"".join(p[row * len(p) // count : (row + 1) * len(p) // count] for p in parts),
                digest_size=12,
            ).digest()
            for row in range(min(count, MOST_ROWS))
        }

    @contextmanager
    def blanked(self, blank: bool) -> Iterator[None]:
        """Zeros in place of what the training's outermost modules are given, while it lasts."""

        def zero(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if id(module) not in self._outer:
                return None
            return tree_map_only(Tensor, torch.zeros_like, (args, kwargs))

        hooks = [
            m.register_forward_pre_hook(zero, with_kwargs=True)
            for m in self.model.modules() if blank and id(m) in self._outer
        ]  # fmt: skip
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def _size(args: Any) -> int:
    return sum(t.numel() for _, t in tensors(args))


def _statistics(norm: Any) -> Tensor:
    mean: Tensor = norm.running_mean.detach().clone()
    return mean
