"""Write the signature of a training: digests of what its first steps compute, and counts of the
work that they take. Equal code gives an equal signature.

Options: `steps`, after how many the training is ended; `batches`, how many batches a DataLoader
yields an epoch (0: all), so that evaluation, schedules and the second epoch come early. Lengths
stay what they are, and with them schedules. Read by celedger.lab.diagnose.signature.
"""

from __future__ import annotations

import functools
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import dataloader

from celedger.child.torch_steps import dense

from . import describe, observe
from .memory import storage_of
from .names import IdentityMap
from .observe import Args, Kwargs
from .own_code import OwnCode
from .stack import Lines, is_library_file
from .tensors import content, sample, tensors, unwrapped
from .waits import TensorReads

WHOLE = 1 << 20  # elements; of a larger tensor a sample is hashed, and its sum
_SAMPLED = 4096
_MOST_MODULES = 2000  # calls of modules in one step that are told apart
_HOW = ("foreach", "fused", "capturable", "differentiable", "maximize_foreach")
"""Settings of an optimiser that say how a step is computed, and not what."""


class SignatureProbe(observe.Probe):
    """Write an event `step` after each step, and `end`."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.number = 0  # of the step that runs
        self._started = self._ended = False
        self._met = IdentityMap()  # roots
        self._buffers = IdentityMap()  # their first digests
        self._classes: dict[type, list[Any]] = {}
        self._yielded = IdentityMap()  # batches of a loader's epoch
        self._is_loading = self._evaluates = False
        self._own = OwnCode()
        self._reads = TensorReads(Lines())
        self._items = 0
        self._counted = (0, 0, 0, 0)  # what was counted when the step began
        self._begin()
        self._cut_loaders(int(options.get("batches", 0)))
        self.modes.enter_context(observe.mode(TorchDispatchMode, self._ran))
        self._reads.watch()

    def starts(self) -> None:
        observe.choose_repeatable()
        self._started = True
        self._counted = (0, 0, sum(self._reads.counts.values()), 0)
        self._own.start()

    def _begin(self) -> None:
        self._parts: dict[str, list[bytes]] = {}
        self._sizes = {"loss": 0.0, "grad": 0.0, "param": 0.0, "bufs": 0.0}
        self._modules: list[list[Any]] = []
        self._stack: list[nn.Module] = []
        self._operators = self._allocated = 0
        self._settings: list[Any] = []
        self._dtypes: set[str] = set()

    # --- what is computed

    def _add(self, part: str, values: Iterable[Tensor]) -> None:
        self._parts.setdefault(part, []).extend(map(digest, values))

    def forward_begins(self, module: nn.Module, args: Args) -> None:
        if not self._stack:
            self._evaluates = not torch.is_grad_enabled()
            if not self._evaluates:
                self._meet(module)
                values = list(describe.arguments(module, args).values())
                self._add("batch", (tensor for _, tensor in tensors(values)))
        self._stack.append(module)

    def forward_ends(self, module: nn.Module, args: Args, kwargs: Kwargs, output: Any) -> None:
        if module not in self._stack:
            return
        while self._stack.pop() is not module:
            pass  # left over from an exception that the script caught
        results = [tensor for _, tensor in tensors(output)]
        if self._evaluates:
            if not self._stack:
                self._add("eval", results)
            return
        if not self._stack:
            self._add("out", results)
            self._dtypes.update(str(t.dtype) for t in results if t.is_floating_point())
        if len(self._modules) < _MOST_MODULES:
            mark = hashlib.sha1(b"".join(map(digest, results))).hexdigest()[:16]
            self._modules.append([self.names.of(module), *self._class(type(module)), mark])

    def _class(self, kind: type) -> list[Any]:
        """Return the name of a module's class, and the file and line of its forward pass."""
        if kind not in self._classes:
            place = describe.code(kind, "forward")
            own = bool(place) and not is_library_file(place[0])
            self._classes[kind] = [kind.__name__, *(place[:2] if own else ("", 0))]
        return self._classes[kind]

    def _meet(self, root: nn.Module) -> None:
        if not self._met.get(root):
            self._met[root] = True
            self._parts.setdefault("init", []).extend(_sorted(root.parameters()))
            for buffer in root.buffers():
                self._buffers[buffer] = digest(buffer)

    def backward_begins(self, losses: Sequence[Tensor]) -> None:
        self._evaluates = False
        self._add("loss", losses)
        self._sizes["loss"] += sum(float(dense(loss.detach()).double().sum()) for loss in losses)

    def _add_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Add the gradients without those that are zero: a script may clear them to either."""
        given = [p.grad for p in parameters if p.grad is not None]
        given = [gradient for gradient in given if bool(dense(gradient).count_nonzero())]
        self._parts.setdefault("grad", []).extend(_sorted(given))
        self._sizes["grad"] += sum(_square(gradient) for gradient in given)

    def step_begins(self, step: int, optimiser: Optimizer) -> None:
        parameters = [p for group in optimiser.param_groups for p in group["params"]]
        self._add_gradients(parameters)
        if observe.has_no_optimiser(optimiser):
            if self.number == 0:
                self._parts.setdefault("init", []).extend(_sorted(parameters))
            return
        self._settings = [
            {k: describe.simple(v) for k, v in group.items() if k not in ("params", *_HOW)}
            for group in optimiser.param_groups
        ]  # fmt: skip
        kind = type(optimiser).__qualname__
        self._settings.insert(0, kind)
        self._parts.setdefault("settings", []).append(repr(self._settings).encode())

    def step_ends(self, step: int, optimiser: Optimizer, *, skipped: bool) -> None:
        parameters = [p for group in optimiser.param_groups for p in group["params"]]
        self._parts.setdefault("param", []).extend(_sorted(parameters))
        self._sizes["param"] += sum(map(_square, parameters))
        changed = []
        for _, root in self.names.roots():
            for buffer in root.buffers() if self._met.get(root) else ():
                mark = digest(buffer)
                if self._buffers.get(buffer) != mark:
                    changed.append(mark)
                    self._sizes["bufs"] += _square(buffer)
        self._parts.setdefault("bufs", []).extend(sorted(changed))
        self._parts["random"] = [describe.torch_generators().encode()]
        self._write_step()
        self.number += 1
        self._begin()
        if self.number >= int(self.options["steps"]):
            self._end("steps")
            os._exit(0)  # the rest of the training is not needed

    def reported(self, epoch: int | None, values: Mapping[str, object]) -> None:
        numbers = {name: repr(value) for name, value in observe.numbers(values)}
        self.write("report", e=epoch, v=numbers)

    # --- what it costs

    def _ran(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        if self._is_loading or not self._started:
            return  # what a script sets up is no step's, and may be most of what it computes
        self._operators += 1
        results = [s for s in map(storage_of, _direct((result,))) if s is not None]
        if results:
            given = {*map(id, map(storage_of, _direct((*args, *kwargs.values()))))}
            self._allocated += sum(s.nbytes() for s in results if id(s) not in given)

    def _cut_loaders(self, batches: int) -> None:
        """Count what loaders yield, end their epochs after `batches`, and count nothing while one
        waits for its workers: how many batches it unpacks at a time depends on the clock."""
        iterator = dataloader._BaseDataLoaderIter
        original = iterator.__next__

        @functools.wraps(original)
        def following(this: Any) -> Any:
            number = self._yielded.get(this, 0)
            if this._num_yielded == 0:
                number = 0  # a loader that keeps its workers keeps its iterator
            if batches and number >= batches:
                raise StopIteration
            self._is_loading = this._num_workers > 0
            try:
                item = original(this)
            finally:
                self._is_loading = False
            self._yielded[this] = number + 1
            self._items += 1
            observe.guarded(self._add, "load", (tensor for _, tensor in tensors(item)))
            return item

        iterator.__next__ = following  # type: ignore[method-assign, assignment]

    def _write_step(self) -> None:
        counted = (self._own.lines, self._own.calls, sum(self._reads.counts.values()), self._items)
        lines, calls, waits, items = (
            now - before for now, before in zip(counted, self._counted)  # noqa: B905 (Python 3.8)
        )  # fmt: skip
        work = {
            "operators": self._operators, "allocated": self._allocated,
            "waits": waits, "items": items,
        }  # fmt: skip
        if self._own.is_counted:
            work.update(lines=lines, calls=calls)
        self.write(
            "step", t=self.number, z=self._sizes, work=work,
            d={part: hashlib.sha1(b"".join(p)).hexdigest()[:16] for part, p in self._parts.items()},
            modules=self._modules, settings=self._settings, dtypes=sorted(self._dtypes),
        )  # fmt: skip
        self._counted = counted

    # --- the end

    def ends(self) -> None:
        self._end("exit")

    def _end(self, reason: str) -> None:
        if not self._ended:
            self._ended = True
            rest = {k: hashlib.sha1(b"".join(p)).hexdigest()[:16] for k, p in self._parts.items()}
            cpu = time.process_time()
            self.write("end", by=reason, steps=self.number, d=rest, cpu=cpu)
            self.flush()


def digest(tensor: Tensor) -> bytes:
    """Return a hash of type, shape and elements. Of a large tensor those of a sample count, and the
    sum of all."""
    if tensor.is_meta:
        return b"?"
    values = dense(tensor.detach())
    text = f"{tensor.dtype} {tuple(tensor.shape)}".encode()
    if values.numel() > WHOLE:
        total = values.double().sum() if not values.is_complex() else values.sum()
        return hashlib.sha1(text + content(sample(values, _SAMPLED)) + content(total)).digest()
    return hashlib.sha1(text + content(values)).digest()


def _direct(values: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among the arguments or results of an operator: each is one, or a list of
    them. A training calls a million operators in its first steps."""
    for value in values:
        if isinstance(value, Tensor):
            yield unwrapped(value)
        elif isinstance(value, (list, tuple)):
            yield from _direct(value)


def _sorted(values: Iterable[Tensor]) -> list[bytes]:
    """Return the digests in an order of their own: modules may have other names."""
    return sorted(digest(tensor) for tensor in values if not is_lazy(tensor))


def _square(tensor: Tensor) -> float:
    values = dense(tensor.detach())
    return float(values.abs().double().square().sum()) if values.numel() else 0.0


def attach(options: dict[str, Any]) -> None:
    observe.attach(SignatureProbe(options))
