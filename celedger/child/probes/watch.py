"""Watchpoints inside a training: figures of its activations, gradients and weights at some steps,
its loss at every one. What they mean is judged outside, by `celedger.diagnose.watch`.

Looked at are the first steps, thinning out, and then every 53rd or, late in a long training, each
that makes it a 64th longer (`looks`). A step that is not looked at pays for keeping its loss.
Figures stay on the device until the script reports an epoch, or ends. Nothing here draws a random
number or changes a tensor, so the training goes on as without it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celedger.child.probes import observe
from celedger.child.probes.figures import TensorBatch, numbers, readable, sample
from celedger.child.probes.precision import OperatorPrecision, said
from celedger.child.probes.tensors import tensors, version
from celedger.child.probes.weights import WatchedWeights
from celedger.child.torch_steps import dense

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

# Steps looked at: Fibonacci's numbers, of both parities (two optimisers may take turns), then every
# 53rd, a prime, so that no rhythm of the training hides its other beats.
EARLY, EVERY, SHARE = (0, 1, 2, 3, 5, 8, 13, 21, 34), 53, 64
CALLS = 4  # of one module in a step that are looked at: a cell unrolled in time is called often
WINDOW = 6  # steps looked at before a unit that was never positive counts as dead
HALVES = ("torch.float16", "torch.bfloat16")
# What autograd calls the operators whose output is to be zero for many inputs.
RECTIFIERS = ("ReluBackward", "ThresholdBackward", "HardtanhBackward", "ClampMinBackward")


def looks() -> Iterator[int]:
    """The steps to look at, without end."""
    yield from EARLY
    step = EVERY
    while True:
        yield step
        step += max(EVERY, step // SHARE | 1)


class Probe(observe.Probe):
    """`options`: `closely`, steps to look at operator by operator, after the last of which the
    training is ended."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.closely = frozenset(options.get("closely", ()))
        self.step = 0
        self._looks, self._next = looks(), -1
        self.looking = False
        self._passing_back = False
        self._half = ""  # the precision that autocast, or the modules, were seen to use
        self._units: dict[str, list[Any]] = {}  # most seen of each unit, and over how many steps
        self._counts: dict[str, Tensor] = {}
        self._losses: list[tuple[int, Tensor]] = []
        self._loss: Tensor | None = None
        self._raw: Tensor | None = None  # the loss before a gradient scaler multiplied it
        self._scale: Tensor | None = None
        self._told: list[dict[str, Any]] = []  # of the steps looked at since the last flush
        self._weights = WatchedWeights()
        self._last_batch: Any = None
        self._operators = OperatorPrecision(self)
        self._clear()
        self._follow_loaders()

    def _clear(self) -> None:
        self.batch = TensorBatch()
        self.stack: list[tuple[str, int]] = []  # modules being called, and autograd's number then
        self._seen: dict[int, tuple[Any, int]] = {}
        self._calls: dict[str, int] = {}
        self._steps: dict[str, Any] = {}
        self._met_batch = False

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """For sums of our own: no gradient, no autocast, not among the operators followed."""
        import torch

        where = "cuda" if torch.cuda.is_available() else "cpu"
        self._operators.quiet = True
        try:
            with torch.no_grad(), torch.autocast(where, enabled=False):
                yield
        finally:
            self._operators.quiet = False

    # --- what the observer calls -------------------------------------------------------------

    def starts(self) -> None:
        observe.patch(observe.scaler_class(), "scale", after=self._scaled)

    def wants(self, step: int) -> bool:
        while self._next < step:
            self._next = next(self._looks)
        self.step, self.looking = step, step in self.closely or step == self._next
        self._clear()
        if step in self.closely and not self.names.roots():
            self._operators.enter()  # functional code: no module's call will begin the forward pass
        return self.looking

    def forward_begins(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        import torch

        if not self.looking or self._passing_back or not torch.is_grad_enabled():
            return
        name = self.names.of(module)
        if not self.stack and (self.step in self.closely or self._half):
            self._operators.enter()
        self.stack.append((name, _sequence()))
        self._calls[name] = self._calls.get(name, 0) + 1
        self._tensors("in", name, module, args)

    def forward_ends(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        import torch

        if not self.looking or not self.stack or not torch.is_grad_enabled():
            return
        name, began = self.stack[-1]
        if self._passing_back or name != self.names.of(module):
            return
        self.stack.pop()
        self._operators.module_ends(name, began, _sequence())
        if not self.stack and not self._met_batch:
            self._meet_batch(name, args, kwargs)
        if not self._half:
            self._half = _precision(module, output)
        self._tensors("out", name, module, output)

    def backward_begins(self, losses: Sequence[Tensor]) -> None:
        self._passing_back = True
        self.stack = []
        loss = self._raw if self._raw is not None else next(iter(losses), None)
        if loss is None or loss.numel() != 1 or not loss.is_floating_point():
            return
        value = loss.detach().clone().reshape(())  # a script may add to its loss in place
        self._loss = value if self._loss is None else self._loss + value
        self._raw = None
        if self.looking:
            self._steps["loss_dtype"] = str(loss.dtype)

    def backward_ends(self) -> None:
        self._passing_back = False
        self._operators.leave()

    def step_begins(self, step: int, optimiser: Optimizer) -> None:
        self._operators.leave()
        with self._aside():
            if self.looking or optimiser not in self._weights.met:
                self._weights.meet(self.names, optimiser)
            if self.looking:
                self._before_step(optimiser)

    def step_ends(self, step: int, optimiser: Optimizer, *, skipped: bool) -> None:
        if self._loss is not None:
            self._losses.append((step, self._loss))
        if self.looking:
            with self._aside():
                self._tell(step, {"skipped": skipped, **({} if skipped else self._weights.after())})
        self._loss = self._raw = None
        if self.closely and step >= max(self.closely):
            self._flush()
            raise SystemExit(0)

    def reported(self, epoch: int | None, values: Mapping[str, object]) -> None:
        self._flush()

    def ends(self) -> None:
        if self.looking and (self.batch.about or self._loss is not None):  # it died in a step
            if self._loss is not None:
                self._losses.append((self.step, self._loss))
            self._operators.leave()
            with self._aside():
                self._tell(self.step, {"skipped": True, "died": True})
        self._flush()

    def gives_up(self) -> None:
        self.looking = False
        self._operators.leave()

    # --- activations and their gradients -----------------------------------------------------

    def _tensors(self, what: str, name: str, module: nn.Module, value: Any) -> None:
        if self._calls[name] > CALLS and self.step not in self.closely:
            return
        kind = type(module).__name__
        for place, tensor in tensors(value):
            if not tensor.is_floating_point() or not readable(tensor):
                continue
            known, written = self._seen.get(id(tensor)), version(tensor)
            if known is not None and known[0]() is tensor and known[1] == written:
                continue
            self._seen[id(tensor)] = (weakref.ref(tensor), written)
            parent = self.stack[-2][0] if len(self.stack) > 1 else None
            with self._aside():
                self.batch.add(
                    tensor,
                    ["activation", what, name, kind, place, _dtype(tensor), tensor.requires_grad,
                     parent, _operator(tensor)],
                )  # fmt: skip
                self._follow_units(what, name, module, tensor)
            if what == "out" and tensor.requires_grad:
                hook: Any = tensor.register_hook
                hook(self._gradient_hook(name, kind, place))

    def _gradient_hook(self, name: str, kind: str, place: str) -> Callable[[Tensor], None]:
        step = self.step

        def hook(gradient: Tensor) -> None:
            if not (self.looking and self.step == step and readable(gradient)):
                return
            about = ["gradient", "grad", name, kind, place, _dtype(gradient), False, None, ""]
            with self._aside():
                self.batch.add(gradient, about)

        return lambda gradient: observe.guarded(hook, gradient)

    def _follow_units(self, what: str, name: str, module: nn.Module, tensor: Tensor) -> None:
        """The greatest value of each unit of a rectifier: of a module, or of a function whose
        output is the input of a module."""
        kind = type(module).__name__
        rectified = "ReLU" in kind if what == "out" else _operator(tensor).startswith(RECTIFIERS)
        if not rectified or tensor.dim() < 2:
            return
        unit = 1 if tensor.dim() == 4 or (tensor.dim() == 3 and "Conv" in kind) else -1
        unit %= tensor.dim()
        most = tensor.detach().amax([d for d in range(tensor.dim()) if d != unit])
        key = f"{what} {name}"
        known = self._units.get(key)
        if known is None or known[0].shape != most.shape:
            self._units[key] = [most, self.step, {self.step}]
        else:
            known[0] = known[0].maximum(most)
            known[2].add(self.step)

    def _meet_batch(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        import torch

        found = [t for _, t in tensors([args, kwargs]) if t.dtype != torch.bool]
        found = [t for t in found if readable(t)]
        if not found:
            return
        self._met_batch = True
        with self._aside():
            rows = [sample(tensor) for tensor in found]
            marks = [r.nan_to_num().sum() + (r * r.roll(1)).nan_to_num().sum() for r in rows]
            mark = torch.stack([mark.to(rows[0].device) for mark in marks]).sum()
        first = found[0]
        before = self._last_batch() if self._last_batch is not None else None
        # The same tensor again is a training on all its data, unless more of them are at hand.
        part = first._base is not None and first._base.numel() > first.numel()
        self._last_batch = weakref.ref(first)
        self._steps["batch"] = {
            "module": name, "shape": list(first.shape), "mark": mark,
            "same_object": before is first, "part": part or self._loader_rows > len(first),
        }  # fmt: skip

    def _follow_loaders(self) -> None:
        """How many rows the data loaders have that the script draws from."""
        from torch.utils.data import DataLoader

        self._loader_rows = 0

        def iterated(loader: Any) -> None:
            try:
                self._loader_rows = max(self._loader_rows, len(loader.dataset))
            except TypeError:  # a stream
                pass

        observe.patch(DataLoader, "__iter__", before=iterated)

    def _scaled(self, _: Any, scaler: Any, outputs: Any) -> None:
        import torch

        if isinstance(outputs, torch.Tensor):
            self._raw = outputs.detach()
            scale = getattr(scaler, "_scale", None)  # None: a scaler that is switched off
            if self.looking and scale is not None:
                self._scale = scale.detach().clone()

    # --- weights -----------------------------------------------------------------------------

    def _before_step(self, optimiser: Optimizer) -> None:
        rates = [group["lr"] for group in optimiser.param_groups if "lr" in group]
        self._steps["rates"] = [float(rate) for rate in rates]
        self._steps["orphans"] = self._weights.orphans(self.names)
        scale = getattr(optimiser, "grad_scale", None)  # a fused one divides by it itself
        for name, parameter in self._weights.before(self.names, optimiser):
            gradient = parameter.grad
            if gradient is None:
                continue
            values = dense(gradient)
            if values.numel():
                if scale is not None:
                    values = values / scale
                what = "sparse" if gradient.is_sparse else "dense"
                kind = self._weights.about[name]["kind"]
                self.batch.add(
                    values, ["parameter", what, name, kind, "", _dtype(values), False, None, ""]
                )

    # --- telling -----------------------------------------------------------------------------

    def _tell(self, step: int, told: dict[str, Any]) -> None:
        told |= {"step": step, "half": self._half, **self._steps, "about": self.batch.about}
        told["figures"] = self.batch.settle(self._counts)
        told["scale"] = self._scale
        told["operators"] = self._operators.take()
        told["units"] = self._dead_units()
        self._told.append(told)
        self._clear()

    def _dead_units(self) -> list[Any]:
        """Of each window that is full: the rectifier, the step its window began, units, dead."""
        full = {key: v for key, v in self._units.items() if len(v[2]) >= WINDOW}
        for key in full:
            del self._units[key]
        return [
            [key, since, most.numel(), (most <= 0).sum()] for key, (most, since, _) in full.items()
        ]

    def _flush(self) -> None:
        """Write what was gathered: the one place that waits for the device."""
        losses = numbers([loss for _, loss in self._losses])
        self.write(
            "watch",
            parameters=self._weights.about,
            optimisers=self._weights.optimisers,
            losses=[[step, value] for (step, _), value in zip(self._losses, losses)],  # noqa: B905
            counts={kind: counts.tolist() for kind, counts in self._counts.items()},
            steps=[_plain_step(told) for told in self._told],
        )
        self._losses, self._told = [], []
        self.flush()


def _plain_step(told: dict[str, Any]) -> dict[str, Any]:
    """A step as JSON holds it."""
    about, figures = told.pop("about"), told.pop("figures").tolist()
    told["rows"] = [[*known, *row] for known, row in zip(about, figures)]  # noqa: B905
    if told["scale"] is not None:
        told["scale"] = float(told["scale"])
    if "batch" in told:
        told["batch"]["mark"] = float(told["batch"]["mark"])
    told["operators"] = said(told["operators"])
    names, norms = told.pop("names", []), numbers(told.pop("norms", []))
    count = len(names)
    told["weights"] = [
        [name, norms[i], norms[count + i], norms[2 * count + i]] for i, name in enumerate(names)
    ]
    told["alike"] = [[name, float(gap)] for name, gap in told.get("alike", [])]
    told["units"] = [[*known, int(dead)] for *known, dead in told["units"]]
    return told


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).rpartition(".")[2]


def _operator(tensor: Tensor) -> str:
    return "" if tensor.grad_fn is None else str(tensor.grad_fn.name())


def _sequence() -> int:
    """Autograd's number for the next operator: what lies between two of them was made between."""
    import torch

    number = getattr(torch._C._autograd, "_get_sequence_nr", None)
    return int(number()) if number is not None else 0


def _precision(module: nn.Module, output: Any) -> str:
    for _, tensor in tensors(output):
        if str(tensor.dtype) in HALVES:
            return _dtype(tensor)
    return ""
