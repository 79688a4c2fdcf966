"""Preflight's checks of speed and memory: the data loader's workers, the latency of inference with
several processes at once, and whether memory stays flat."""

from __future__ import annotations

import copy
import gc
import json
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from celedger.child.probes.memory import resident
from celedger.child.probes.seen import like
from celedger.child.torch import quantile, step

if TYPE_CHECKING:
    Found = tuple[str, Any, str]  # status, figure, sentence

WORKERS = (0, 1, 2, 4, 8)
PROCESSES = (1, 2, 4, 8, 16)
LOADER_SECONDS = 2.0
WARM_STEPS, STEPS = 2, 5
CALLS, CALL_SECONDS, WARM = 60, 2.0, 5
SLOW_INPUT = 3.0  # times as long for the worst input: denormals cost some processors 100 times
MEMORY_STEPS = 20  # in each of three parts; the first is for what grows once
GROWTH = 0.25  # tensors a step: a list that keeps one every step grows by one
RSS_GROWTH = 2**18  # bytes a step (0.25 MiB): 20 steps are 5 MiB, beyond an allocator's slack


def loader(bench: Any, seen: Any) -> Found:
    """Batches a second by number of workers, beside the steps that the training takes."""
    found: list[Any] = []
    original = DataLoader.__iter__

    def noted(self: Any) -> Any:
        found.append(self)
        return original(self)

    DataLoader.__iter__ = noted  # type: ignore[method-assign]
    try:
        next(iter(bench.training.data()))
    finally:
        DataLoader.__iter__ = original  # type: ignore[method-assign]
    if not found:
        return "n/a", None, "the data are no DataLoader's: nothing waits for workers"
    given = found[0]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    rates: dict[int, float] = {}
    failed: dict[int, Exception] = {}
    for workers in (n for n in WORKERS if n <= cores):
        try:
            rates[workers] = _rate(_with_workers(given, workers))
        except Exception as error:  # data that cannot be sent to a worker, say
            failed[workers] = error
    if not rates:
        raise next(iter(failed.values()))
    steps = _steps(bench)
    here = rates.get(given.num_workers, rates[min(rates)])
    best = max(rates, key=lambda n: rates[n])
    parts = [f"{n} workers {rate:.0f}" for n, rate in rates.items()]
    parts += [f"{n} workers fail ({type(error).__name__})" for n, error in failed.items()]
    said = f"batches a second: {', '.join(parts)}; steps without loading {steps:.0f}"
    if here < steps and rates[best] > 1.2 * here:
        return "warn", rates, f"{said}: num_workers={best} is faster"
    return "pass", rates, said


def _steps(bench: Any) -> float:
    """Steps a second with one batch."""
    model, optimiser, schedule = bench.fresh()
    batch = bench.first_batch()
    cuda = any(parameter.is_cuda for parameter in model.parameters())
    moments = []
    for count in (WARM_STEPS, STEPS):
        for _ in range(count):
            step(bench.training, model, optimiser, schedule, batch)
        if cuda:
            torch.cuda.synchronize()
        moments.append(time.perf_counter())
    return STEPS / (moments[1] - moments[0])


def _with_workers(given: Any, workers: int) -> Any:
    if given.batch_size is None and given.batch_sampler is not None:
        cut: dict[str, Any] = {"batch_sampler": given.batch_sampler}
    else:
        cut = {"batch_size": given.batch_size, "shuffle": False, "drop_last": given.drop_last}
    return DataLoader(given.dataset, num_workers=workers, collate_fn=given.collate_fn, **cut)


def _rate(loader: Any) -> float:
    """Batches a second, of whole passes, the start of workers counted in only once."""
    rows = iter(loader)
    next(rows)
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < LOADER_SECONDS:
        if next(rows, None) is None:
            break
        count += 1
    return max(1, count) / (time.perf_counter() - began)


def latency(bench: Any, seen: Any) -> Found:
    """Of one row, and of the largest batch that evaluation had, usual and with extreme values;
    with several processes at once, as many as the machine has cores."""
    if seen.largest is None:
        return "n/a", None, "evaluation did not call a module that training called"
    module, args, kwargs = seen.largest
    model = seen.model.eval()
    cases: dict[str, Callable[[], object]] = {}
    for label, change in (
        ("one row", lambda t: t[:1]), ("largest batch", lambda t: t),
        ("denormal values", lambda t: torch.full_like(t[:1], 1e-40)),
        ("extreme values", lambda t: torch.full_like(t[:1], 1e4)),
    ):  # fmt: skip
        given = _changed(args, change, extreme="values" in label)
        cases[label] = _call(module, given, kwargs)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    cuda = bench.where.type == "cuda"
    counts = [1] if cuda else [n for n in PROCESSES if n <= cores]
    figures: dict[str, dict[str, list[float]]] = {}
    for label, call in cases.items():
        try:
            figures[label] = {str(n): _together(call, n, seen) for n in counts}
        except Exception:  # a model on a graph, say, takes no single row
            if label == "largest batch":
                raise
            figures[label] = {}
    model.train()
    one = figures["one row"] or figures["largest batch"]
    said = "; ".join(
        f"{n} process{'es' * (n != '1')}: p50 {p[0] * 1e3:.3g}, p90 {p[1] * 1e3:.3g}, "
        f"p99 {p[2] * 1e3:.3g} ms" for n, p in one.items()
    )  # fmt: skip
    usual = one["1"][0]
    slow = {
        label: found["1"][0] / usual for label, found in figures.items()
        if "values" in label and found and found["1"][0] > SLOW_INPUT * usual
    }  # fmt: skip
    if slow:
        worst = max(slow, key=lambda label: slow[label])
        return "warn", figures, f"{said}; {worst}: {slow[worst]:.1f} times as long"
    return "pass", figures, said


def _changed(value: Any, change: Callable[[Tensor], Tensor], *, extreme: bool) -> Any:
    if isinstance(value, Tensor):
        if value.layout != torch.strided:  # a sparse graph has no rows of its own
            return value
        if not value.dim() or (extreme and not value.is_floating_point()):
            return value[:1] if value.dim() else value
        return change(value)
    if isinstance(value, (tuple, list)):
        return like(value, (_changed(v, change, extreme=extreme) for v in value))
    return value


def _call(module: nn.Module, args: Any, kwargs: Any) -> Callable[[], object]:
    return lambda: module(*args, **kwargs)


def _together(call: Callable[[], object], processes: int, seen: Any) -> list[float]:
    """Quantiles 0.5, 0.9 and 0.99 (s) over the calls of all processes."""
    if processes == 1:
        durations = _durations(call)
    else:
        durations = []
        pipes = []
        for _ in range(processes):
            read, write = os.pipe()
            child = os.fork()
            if child == 0:  # a child that only computes, and never returns from here
                try:
                    os.close(read)
                    # A fork has none of OpenMP's threads, and would wait for them forever.
                    torch.set_num_threads(1)
                    os.write(write, json.dumps(_durations(call)).encode())
                finally:
                    os._exit(0)
            os.close(write)
            pipes.append((child, read))
        for child, read in pipes:
            with os.fdopen(read) as pipe:
                said = pipe.read()
            os.waitpid(child, 0)
            durations += json.loads(said) if said else []
        if not durations:
            raise RuntimeError("no process answered")
    return [quantile(durations, share) for share in (0.5, 0.9, 0.99)]


def _durations(call: Callable[[], object]) -> list[float]:
    found: list[float] = []
    cuda = torch.cuda.is_available()
    ends = time.perf_counter() + CALL_SECONDS
    with torch.no_grad():
        while len(found) < WARM + CALLS and (time.perf_counter() < ends or len(found) < 2 * WARM):
            began = time.perf_counter()
            call()
            if cuda:
                torch.cuda.synchronize()
            found.append(time.perf_counter() - began)
    return found[WARM:]


def memory(bench: Any, seen: Any) -> Found:
    """Tensors alive and bytes held, over three equal parts of a short training."""
    model, optimiser, schedule = bench.fresh()
    batch = copy.deepcopy(bench.first_batch())
    counts, held = [], []
    for _ in range(3):
        for _ in range(MEMORY_STEPS):
            step(bench.training, model, optimiser, schedule, batch)
        optimiser.zero_grad(set_to_none=True)
        gc.collect()
        counts.append(sum(_is_tensor(thing) for thing in gc.get_objects()))
        held.append(_held(bench.where))
    # The smaller of the rises after the first and the second part: what grows once is no leak.
    more, rise = (
        min(second - first, third - second) / MEMORY_STEPS
        for first, second, third in (counts, held)
    )
    said = f"{more:+.2g} tensors and {rise / 1024:+.3g} KiB a step"
    leaks = more > GROWTH or rise > RSS_GROWTH
    return "fail" if leaks else "pass", more, said


def _is_tensor(thing: object) -> bool:
    return issubclass(type(thing), Tensor)  # isinstance would ask lazy modules for their class


def _held(where: torch.device) -> int:
    """Bytes."""
    if where.type == "cuda":
        return int(torch.cuda.memory_allocated(where))
    return resident()
