"""Watchpoints inside a training: figures of its activations, gradients and weights at sampled
steps, its loss at every step. `celedger.lab.diagnose.watch` judges them.

Sampled are the first steps, and the first after an optimiser's first one, thinning out, and then
every 53rd or, late in a long training, each that makes it a 64th longer (`looks`). Every sampled
step is an event. Any other step only stores its loss, which stays on the device until the script
reports an epoch, or ends. Nothing here draws a random number or changes a tensor, so the training
computes the same as without it.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from celedger.child.torch_steps import dense

from . import observe
from .named_tensor import NamedTensor
from .names import reachable
from .observe import Args, Kwargs
from .precision import OperatorPrecision
from .samples import SampleLosses
from .tensor_statistics import SAMPLE, TensorBatch, has_first_statistics, holds_rows, readable
from .tensors import address, graph_node, sample, tensors, version
from .weights import WatchedWeights

# Sampled steps: Fibonacci's numbers, odd and even (two optimisers may take turns), then every 53rd,
# a prime, so that no period of the training hides its other steps.
EARLY, EVERY, SHARE = (0, 1, 2, 3, 5, 8, 13, 21, 34), 53, 64
STAGES = 4  # optimisers whose first steps are sampled; some scripts make one for every epoch
CALLS = 4  # of one module in a step that are sampled: a cell unrolled in time is called often
WINDOW = 6  # sampled steps before a unit that was never positive counts as dead
HALVES = ("float16", "bfloat16")
# Autograd's names of the operators whose output is meant to be zero for many inputs.
RECTIFIERS = ("ReluBackward", "ThresholdBackward", "HardtanhBackward", "ClampMinBackward")


def looks(start: int = 0) -> Iterator[int]:
    """Yield the steps to sample from `start` on, without end."""
    yield from (start + early for early in EARLY)
    step = start + EVERY
    while True:
        yield step
        step += max(EVERY, step // SHARE | 1)


class WatchProbe(observe.Probe):
    """Observe a training for watchpoints. `options`: `closely`, steps to trace operator by
    operator, after the last of which the training ends; `samples`: whether the loss of each row of
    the data is followed; `tensor` and `dump`: see `NamedTensor`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.closely = frozenset(options.get("closely", ()))
        self.step = self._ended = 0
        self.looking = False
        self._looks, self._next = looks(), -1
        self._passing_back = False
        self._half = ""  # the precision that autocast, or the modules, use
        self._units: dict[str, list[Any]] = {}  # greatest value of each unit, and the steps
        # A step, its loss, a gradient scaler's scale of it, and whether the step was skipped.
        self._losses: list[tuple[int, Tensor, Tensor | None, bool]] = []
        self._loss: Tensor | None = None
        self._unscaled: Tensor | None = None  # the loss before a gradient scaler multiplied it
        self._scale: Tensor | None = None
        self._weights = WatchedWeights(self.names)
        self._last_batch: tuple[Any, int] = (lambda: None, 0)  # its storage's tensor, and address
        self._is_excerpt: bool | None = None  # of the last batch, once it came again
        self._loader_rows = 0  # of the data loaders that the script uses
        self._samples = SampleLosses() if options.get("samples") else None
        if self._samples is not None:
            self.modes.enter_context(self._samples.mode)
        self._operators = OperatorPrecision(self)
        self._named = NamedTensor(self) if options.get("tensor") else None
        self._clear()
        observe.patch(torch.utils.data.DataLoader, "__iter__", before=self._loader_iterated)
        if 0 in self.closely:
            self._operators.enter()  # in functional code, step 0 starts with its backward pass

    def _clear(self) -> None:
        self.batch = TensorBatch()
        self.stack: list[tuple[str, int]] = []  # running modules, autograd's number at their start
        self._recorded: dict[int, tuple[Any, int]] = {}
        self._calls: Counter[str] = Counter()
        self._fields: dict[str, Any] = {}  # of the sampled step
        self._operators.clear()

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Compute without gradient and without autocast."""
        where = "cuda" if torch.cuda.is_available() else "cpu"
        with torch.no_grad(), torch.autocast(where, enabled=False):
            yield

    # --- calls of the observer

    def starts(self) -> None:
        observe.patch(torch.amp.GradScaler, "scale", after=self._scaled)
        if self.names.roots():  # before the first module's call no step began
            self._operators.leave()
            self._operators.clear()

    def wants(self, step: int) -> bool:
        while self._next < step:
            self._next = next(self._looks)
        self.step, self.looking = step, step in self.closely or step == self._next
        if step in self.closely and not self.names.roots():
            self._operators.enter()  # functional code: no module's call begins the forward pass
        return self.looking

    def forward_begins(self, module: nn.Module, args: Args) -> None:
        if not self.looking or self._passing_back or not torch.is_grad_enabled():
            return
        name = self.names.of(module)
        if not self.stack and (self.step in self.closely or self._half):
            self._operators.enter()
        self.stack.append((name, _sequence()))
        self._calls[name] += 1
        if not module.training and has_first_statistics(module):
            self._fields.setdefault("idle_norms", []).append(name)
        self._tensors("in", name, module, args)

    def forward_ends(self, module: nn.Module, args: Args, kwargs: Kwargs, output: Any) -> None:
        if not self.looking or not self.stack or not torch.is_grad_enabled():
            return
        name, began = self.stack[-1]
        if self._passing_back or name != self.names.of(module):
            return
        self.stack.pop()
        self._operators.module_ends(name, began, _sequence())
        if not self.stack and "batch" not in self._fields:
            self._meet_batch(name, args, kwargs)
        if not self._half:
            dtypes = [_dtype(tensor) for _, tensor in tensors(output)]
            self._half = next((dtype for dtype in dtypes if dtype in HALVES), "")
        self._tensors("out", name, module, output)
        if self._named is not None:
            self._named.returned(name, output)

    def backward_begins(self, losses: Sequence[Tensor]) -> None:
        self._passing_back = True
        self.stack = []
        if self._samples is not None:
            self._samples.backward(losses, self.step)
        loss = self._unscaled if self._unscaled is not None else next(iter(losses), None)
        if loss is None or loss.numel() != 1 or not loss.is_floating_point():
            return
        value = loss.detach().clone().reshape(())  # a script may add to its loss in place
        self._loss = value if self._loss is None else self._loss + value
        self._unscaled = None
        self._fields["loss_dtype"] = _dtype(loss)

    def backward_ends(self) -> None:
        self._passing_back = False
        self._operators.leave()

    def step_begins(self, step: int, optimiser: Optimizer) -> None:
        self._operators.leave()
        with self._aside():
            is_new = optimiser not in self._weights.met
            if is_new and len(self._weights.met) < STAGES:
                self._looks, self._next = looks(step), -1
            if self.looking or is_new:
                self._weights.meet(optimiser, step)
            if self.looking:
                self._look_at_gradients(optimiser)

    def step_ends(self, step: int, optimiser: Optimizer, *, skipped: bool) -> None:
        self._end_look(step, skipped=skipped)
        if self.closely and step >= max(self.closely):
            self._flush()
            raise SystemExit(0)

    def reported(self, epoch: int | None, values: Mapping[str, object]) -> None:
        self._flush()

    def ends(self) -> None:
        if self.looking and (self.batch.about or self._loss is not None):  # it died in a step
            self._operators.leave()
            self._end_look(self.step, skipped=True)
        self._flush()

    def gives_up(self) -> None:
        self.looking = False
        self._operators.leave()
        super().gives_up()

    # --- activations and their gradients

    def _tensors(self, what: str, name: str, module: nn.Module, value: Any) -> None:
        if self._calls[name] > CALLS and self.step not in self.closely:
            return
        kind = type(module).__name__
        parent = self.stack[-2][0] if len(self.stack) > 1 else None
        for position, tensor in tensors(value):
            if not tensor.is_floating_point() or not readable(tensor):
                continue
            reference, written = self._recorded.get(id(tensor), (None, 0))
            if reference is not None and reference() is tensor and written == version(tensor):
                continue
            self._recorded[id(tensor)] = (weakref.ref(tensor), version(tensor))
            about = ["activation", what, name, kind, position, tensor.requires_grad, parent]
            with self._aside():
                self.batch.add(tensor, [*about, _operator(tensor)])
                self._follow_units(what, name, kind, tensor)
            if what == "out" and tensor.requires_grad:
                hook: Any = tensor.register_hook
                hook(self._gradient_hook(name, kind, position))

    def _gradient_hook(self, name: str, kind: str, position: str) -> Callable[..., None]:
        step = self.step

        def hook(gradient: Tensor | None) -> None:  # None: a scripted function did not reach it
            if gradient is not None and self.looking and self.step == step and readable(gradient):
                with self._aside():
                    about = ["gradient", "grad", name, kind, position, False, None, ""]
                    self.batch.add(gradient, about, torch.finfo(gradient.dtype).tiny)

        return lambda gradient: observe.guarded(hook, gradient)

    def _follow_units(self, what: str, name: str, kind: str, tensor: Tensor) -> None:
        """Keep the greatest value of each unit of a rectifier: of a module, or of a function whose
        output is the input of a module."""
        rectified = "ReLU" in kind if what == "out" else _operator(tensor).startswith(RECTIFIERS)
        if not rectified or tensor.dim() < 2:
            return
        unit = 1 if tensor.dim() == 4 or (tensor.dim() == 3 and "Conv" in kind) else -1
        unit %= tensor.dim()
        most = tensor.detach().amax([d for d in range(tensor.dim()) if d != unit])
        window = self._units.get(f"{what} {name}")
        if window is None or window[0].shape != most.shape:
            self._units[f"{what} {name}"] = [most, self.step, {self.step}]
        else:
            window[0] = window[0].maximum(most)
            window[2].add(self.step)

    def _dead_units(self) -> list[list[Any]]:
        """Return for each complete window the rectifier, the step its window began, its units and
        how many of them are dead."""
        full = {key: window for key, window in self._units.items() if len(window[2]) >= WINDOW}
        for key in full:
            del self._units[key]
        return [
            [key, since, most.numel(), int((most <= 0).sum())]
            for key, (most, since, _) in full.items()
        ]

    # --- data and loss

    def _meet_batch(self, name: str, args: Args, kwargs: Kwargs) -> None:
        batch = [
            t for _, t in tensors([args, kwargs]) if t.dtype != torch.bool and readable(t)
        ]  # fmt: skip
        if not batch:
            return
        mark, varies = 0.0, False  # the mark is what two equal batches share
        with self._aside():
            for tensor in batch:
                row = sample(tensor, SAMPLE).double().nan_to_num()
                mark += float(row.sum() + (row * row.roll(1)).sum())
                varies |= bool(row.min() < row.max())
        if not varies:  # zeros, as a first state
            return
        first = batch[0]
        # The same tensor again, or its slice, is a training on all its data, unless there are more.
        whole, at = first if first._base is None else first._base, address(first)
        same = self._last_batch[0]() is whole and self._last_batch[1] == at
        self._last_batch = weakref.ref(whole), at
        if not same:
            self._is_excerpt = None
        elif self._is_excerpt is None:  # once: all variables are looked at
            self._is_excerpt = _is_excerpt(first)
        part = same and (self._loader_rows > len(first) or bool(self._is_excerpt))
        self._fields["batch"] = {
            "module": name, "shape": list(first.shape), "mark": mark, "same_object": same,
            "part": part,
        }  # fmt: skip

    def _loader_iterated(self, loader: Any) -> None:
        try:
            self._loader_rows = max(self._loader_rows, len(loader.dataset))
        except TypeError:  # an iterable without length
            pass

    def _scaled(self, _: Any, scaler: Any, outputs: Any) -> None:
        if isinstance(outputs, torch.Tensor):
            self._unscaled = outputs.detach()
            scale = getattr(scaler, "_scale", None)  # none of a scaler that is switched off
            self._scale = scale.clone() if isinstance(scale, torch.Tensor) else None

    # --- weights, and the end of a sampled step

    def _look_at_gradients(self, optimiser: Optimizer) -> None:
        rates = [group["lr"] for group in optimiser.param_groups if "lr" in group]
        self._fields["rates"] = [float(rate) for rate in rates]
        self._fields["orphans"] = self._weights.orphans()
        scale = getattr(optimiser, "grad_scale", None)  # a fused one divides by it itself
        trained = self._weights.before(optimiser)
        for name, parameter in trained:
            if self._named is not None:
                self._named.met(name, "weight", parameter)
                self._named.met(name, "gradient", parameter.grad)
            if parameter.grad is None:
                continue
            values = dense(parameter.grad)
            if values.numel():
                what = "sparse" if parameter.grad.is_sparse else "dense"
                kind = self._weights.kinds.get(name, "")
                about = ["parameter", what, name, kind, "", False, None, ""]
                # Under autocast it was computed in half precision, and scaled.
                half = values.dtype == torch.float32 and self._half
                normal = torch.finfo(getattr(torch, self._half) if half else values.dtype).tiny
                normal /= float(self._scale) if self._scale is not None else 1.0
                self.batch.add(values if scale is None else values / scale, about, normal)

    def _end_look(self, step: int, *, skipped: bool) -> None:
        """End a step; if it is sampled, write its figures."""
        if self._loss is not None:
            self._losses.append((step, self._loss, self._scale, skipped))
        self._loss = self._unscaled = None
        if self.looking:
            with self._aside():
                self.write(
                    "look", number=step, skipped=skipped, half=self._half,
                    scale=float(self._scale) if self._scale is not None else 1.0,
                    rows=self.batch.rows(), broke=self._operators.broke,
                    lost=self._operators.lost, units=self._dead_units(),
                    changes=[] if skipped else self._weights.changes(),
                    alike={} if skipped else self._weights.alike(), **self._fields,
                )  # fmt: skip
        self._clear()
        self._ended = step + 1

    def _flush(self) -> None:
        """Write the figures of the whole training until now."""
        self.write(
            "watch", steps=self._ended, parameters=self._weights.about,
            optimisers=self._weights.optimisers,
            losses=[
                [step, float(loss), None if scale is None else float(scale), skipped]
                for step, loss, scale, skipped in self._losses
            ],
            samples=self._samples.worst() if self._samples is not None else [],
        )  # fmt: skip
        self._losses = []
        self.flush()


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).rpartition(".")[2]


def _operator(tensor: Tensor) -> str:
    node = graph_node(tensor)
    return "" if node is None else str(node.name())


def _sequence() -> int:
    """Return autograd's number for the next operator: nodes between two numbers were made in
    between."""
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]


def _is_excerpt(batch: Tensor) -> bool:
    """Return True for less than half of another tensor: one that a batch is a view of, or a
    variable of the script that holds its rows."""
    if batch._base is not None and batch._base.numel() > 2 * batch.numel():
        return True
    return any(
        isinstance(other, Tensor) and other.numel() > 2 * batch.numel() and holds_rows(other, batch)
        for _, _, other in reachable()
    )


def attach(options: dict[str, Any]) -> None:
    observe.attach(WatchProbe(options))
