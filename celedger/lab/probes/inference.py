"""Measure inference for preflight: how long one row takes, with several processes at once, and what
stays of memory: the bytes of tensors that a batch makes and that outlive it, in eval mode without
gradients, and the line that makes most of them."""

from __future__ import annotations

import copy
import functools
import gc
import multiprocessing
import os
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from celedger.child.torch import call_times, quantile

from .memory import storage_of
from .stack import Lines
from .tensors import tensors

if TYPE_CHECKING:
    from .first_steps import FirstSteps

PROCESSES = (1, 2, 4, 8, 16)
QUANTILES = (0.5, 0.9, 0.99)
WARM, CALLS, CALL_SECONDS = 5, 100, 1.0
PATIENCE = 30.0  # seconds for all processes of one measurement
SLOW_INPUT = 3.0  # times as long for the worst input: denormals cost some processors 100 times
USUAL, RANDOM = "usual values", "random values"
EXTREMES = {"denormal values": 1e-40, "extreme values": 1e4}


def latency(probe: FirstSteps) -> tuple[str, Any, str]:
    """Measure a copy, in eval mode, of the largest module that training called."""
    copied = evaluated_copy(probe)
    if isinstance(copied, str):
        return "n/a", None, copied
    module, args, kwargs = copied
    what, inputs = "one row", _one_row((args, kwargs))
    try:
        _durations(_call(module, inputs), calls=0)
    except Exception:  # a model on a graph, say, takes no single row
        what, inputs = "the batch", (args, kwargs)
        try:
            _durations(_call(module, inputs), calls=0)
        except Exception as error:
            return "n/a", None, f"the module cannot be called alone: {type(error).__name__}"
    figures, refused = {USUAL: _measure(module, inputs)}, ""
    for label, one in variants(inputs).items():
        try:
            figures[label] = _measure(module, one)
        except Exception as error:  # a distribution's check of its parameters, say
            refused += f"; {label} raise {type(error).__name__}"
    usual = figures[USUAL]
    sentence = f"of {what}, p50, p90, p99 in ms: " + "; ".join(
        f"{count} process{'es' * (count != '1')} {', '.join(f'{1e3 * s:.3g}' for s in row)}"
        for count, row in usual.items()
    )
    sentence += refused
    times, worst = max((rows["1"][0] / usual["1"][0], label) for label, rows in figures.items())
    if times > SLOW_INPUT:
        return "warn", figures, f"{sentence}; {worst} take {times:.1f} times as long"
    return "pass", figures, sentence


def evaluated_copy(probe: FirstSteps) -> tuple[nn.Module, Any, Any] | str:
    """Return a copy, in eval mode, of the largest module that training called, with the arguments
    of its last call; or why there is none."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return "the training's processes would wait for each other"
    calls = [call for _, call in probe.last.items()]
    if not calls:
        return "no module was called in training"
    module, args, kwargs, _ = max(calls, key=lambda call: _size(call.module))
    try:
        module = copy.deepcopy(module).eval()
    except Exception as error:
        return f"the module cannot be copied: {type(error).__name__}: {error}"
    return module, *tree_map_only(Tensor, Tensor.detach, (args, kwargs))


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters() if not nn.parameter.is_lazy(p))


def _one_row(inputs: Any) -> Any:
    """Return the first row of each tensor that is as long as the batch."""
    dense = [t for _, t in tensors(inputs) if t.layout == torch.strided and t.dim()]
    batch = len(dense[0]) if dense else 0

    def cut(tensor: Tensor) -> Tensor:
        rows = tensor.layout == torch.strided and tensor.dim() and len(tensor) == batch
        return tensor[:1] if rows else tensor

    return tree_map_only(Tensor, cut, inputs)


def variants(inputs: Any) -> dict[str, Any]:
    """Return random inputs (integers of those that came), and, for floating-point inputs, extreme
    ones."""
    dense = [t for _, t in tensors(inputs) if t.layout == torch.strided and t.numel()]

    def random(tensor: Tensor) -> Tensor:
        if not any(tensor is one for one in dense):
            return tensor
        if tensor.is_floating_point():
            return torch.randn_like(tensor)
        return tensor.flatten()[torch.randint(tensor.numel(), tensor.shape, device=tensor.device)]

    def filled(value: float) -> Callable[[Tensor], Tensor]:
        def fill(tensor: Tensor) -> Tensor:
            usual = not any(tensor is one for one in dense) or not tensor.is_floating_point()
            return tensor if usual else torch.full_like(tensor, value)

        return fill

    changes: dict[str, Callable[[Tensor], Tensor]] = {RANDOM: random}
    if any(tensor.is_floating_point() for tensor in dense):
        changes.update({label: filled(value) for label, value in EXTREMES.items()})
    return {label: tree_map_only(Tensor, change, inputs) for label, change in changes.items()}


def _measure(module: nn.Module, inputs: Any) -> dict[str, list[float]]:
    """Return the quantiles (s) over the calls of all processes, by the number of processes, up to
    the first number at which not all answer."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    cuda = any(p.is_cuda for p in module.parameters())  # a fork cannot use the device
    counts = [count for count in PROCESSES if count <= (1 if cuda else cores)]
    call, rows = _call(module, inputs), {}
    for count in counts:
        try:
            durations = _durations(call) if count == 1 else _of_processes(call, count)
        except (TimeoutError, EOFError):  # too slow, or killed
            break
        rows[str(count)] = [quantile(durations, share) for share in QUANTILES]
    return rows


def _of_processes(call: Callable[[], object], count: int) -> list[float]:
    """Return the seconds of each call of processes that run at the same time, with one thread each:
    a fork has none of OpenMP's threads, and would wait for them for ever."""
    context = multiprocessing.get_context("fork")
    start = context.Barrier(count)

    def measure(pipe: Any) -> None:
        torch.set_num_threads(1)
        start.wait(PATIENCE)
        pipe.send(_durations(call))

    durations, ends, children = [], time.monotonic() + PATIENCE, []
    for _ in range(count):
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(target=measure, args=(writer,))
        process.start()
        writer.close()
        children.append((process, reader))
    try:
        for _, reader in children:
            if not reader.poll(max(0.0, ends - time.monotonic())):
                raise TimeoutError
            durations += reader.recv()
    finally:
        for process, _ in children:
            process.kill()
            process.join()
    return durations


def _call(module: nn.Module, inputs: Any) -> Callable[[], object]:
    args, kwargs = inputs
    return lambda: module(*args, **kwargs)


def _durations(call: Callable[[], object], calls: int = CALLS) -> list[float]:
    """Return the seconds of as many calls as fit into CALL_SECONDS."""
    with torch.no_grad():
        usual = max(call_times(call, WARM)[1:])  # the first may compile
        return call_times(call, min(calls, 1 + int(CALL_SECONDS / usual))) if calls else []


WARM = 2  # batches in which caches fill
PARTS = 3  # growth that ends, as that of a cache, is missing in the last of them
BATCHES, PART_SECONDS = 8, 1.0  # of each part; one batch if it takes longer


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The bytes and the maker's line of each storage that was made inside and lives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines = Lines()
        self._live: dict[int, tuple[Any, int, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for _, tensor in tensors(result):
            storage = storage_of(tensor)
            if storage is not None and storage.nbytes() and storage._cdata not in self._live:
                key, line = storage._cdata, self.lines.of(sys._getframe())
                reference = weakref.ref(storage, functools.partial(self._freed, key))
                self._live[key] = reference, storage.nbytes(), line
        return result

    def _freed(self, key: int, _: object) -> None:
        self._live.pop(key, None)

    def by_line(self) -> Counter[int]:
        gc.collect()  # what it can free is not kept
        sizes: Counter[int] = Counter()
        for _, size, line in list(self._live.values()):
            sizes[line] += size
        return sizes


def inference_memory(probe: FirstSteps) -> tuple[str, Any, str]:
    """Call the largest module with random batches, and compare what lives after equal parts."""
    copied = evaluated_copy(probe)
    if isinstance(copied, str):
        return "n/a", None, copied
    module, *inputs = copied

    def batch() -> None:
        args, kwargs = variants(inputs)[RANDOM]
        module(*args, **kwargs)

    live = LiveStorages()
    with torch.no_grad():
        try:
            usual = max(call_times(batch, WARM))
        except Exception as error:
            return "n/a", None, f"the module cannot be called alone: {type(error).__name__}"
        batches = min(BATCHES, 1 + int(PART_SECONDS / usual))
        marks = []
        with live:
            for _ in range(PARTS):
                call_times(batch, batches)
                marks.append(live.by_line())
    totals = [0, *(sum(mark.values()) for mark in marks)]
    kept = min(totals[at + 1] - totals[at] for at in range(PARTS)) / batches
    ran = f"{PARTS * batches} batches without gradients"
    if kept <= 0:
        return "pass", kept, f"no tensor is kept, in {ran}"
    ((line, _),) = (marks[-1] - marks[0]).most_common(1)
    file, function, number = live.lines.table[line]
    where = f"{Path(file).name}:{number} in {function}"
    return "warn", kept, f"{kept:,.0f} B more after each of {ran}, most of it made at {where}"
