"""Preflight's checks of speed and memory: the data loader's workers, the latency of inference with
several processes at once, and whether memory stays flat."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from torch.utils.data import DataLoader

from celedger.child.probes.memory import resident
from celedger.child.torch import call_times, quantile, step

if TYPE_CHECKING:
    Result = tuple[str, Any, str]  # status, figure, sentence

WORKERS = (0, 1, 2, 4, 8)
PROCESSES = (1, 2, 4, 8, 16)
LOADER_SECONDS = 2.0
WARM_STEPS, STEPS = 2, 5
CALLS, CALL_SECONDS, WARM = 60, 2.0, 5
SLOW_INPUT = 3.0  # times as long for the worst input: denormals cost some processors 100 times
MEMORY_STEPS = 20  # in each of three parts; the first is for what grows once
GROWTH = 0.25  # tensors a step: a list that keeps one every step grows by one
RSS_GROWTH = 2**18  # bytes a step (0.25 MiB): 20 steps are 5 MiB, beyond an allocator's slack
EXTREMES = {"denormal values": 1e-40, "extreme values": 1e4}


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


def loader(bench: Any, observed: Any) -> Result:
    """Batches a second by number of workers, beside the steps that the training takes."""
    loaders: list[Any] = []
    original = DataLoader.__iter__

    def noted(self: Any) -> Any:
        loaders.append(self)
        return original(self)

    DataLoader.__iter__ = noted  # type: ignore[method-assign]
    try:
        bench.first_batch()
    finally:
        DataLoader.__iter__ = original  # type: ignore[method-assign]
    if not loaders:
        return "n/a", None, "the data are no DataLoader's: nothing waits for workers"
    own = loaders[0]
    rates: dict[int, float] = {}
    failed: dict[int, Exception] = {}
    for workers in (n for n in WORKERS if n <= cores()):
        try:
            rates[workers] = _batches_a_second(own, workers)
        except Exception as error:  # data that cannot be sent to a worker, say
            failed[workers] = error
    if not rates:
        raise next(iter(failed.values()))
    steps = _steps_a_second(bench)
    here = rates.get(own.num_workers, rates[min(rates)])
    best = max(rates, key=lambda n: rates[n])
    parts = [f"{n} workers {rate:.0f}" for n, rate in rates.items()]
    parts += [f"{n} workers fail ({type(error).__name__})" for n, error in failed.items()]
    sentence = f"batches a second: {', '.join(parts)}; steps without loading {steps:.0f}"
    if here < steps and rates[best] > 1.2 * here:
        return "warn", rates, f"{sentence}: num_workers={best} is faster"
    return "pass", rates, sentence


def _steps_a_second(bench: Any) -> float:
    """With one batch."""
    model, optimiser, schedule = bench.fresh()
    batch = bench.first_batch()
    moments = []
    for count in (WARM_STEPS, STEPS):
        for _ in range(count):
            step(bench.training, model, optimiser, schedule, batch)
        if bench.where.type == "cuda":
            torch.cuda.synchronize()
        moments.append(time.perf_counter())
    return STEPS / (moments[1] - moments[0])


def _batches_a_second(own: Any, workers: int) -> float:
    """Of whole passes, the start of workers counted in only once."""
    cut: dict[str, Any] = {"batch_size": own.batch_size, "drop_last": own.drop_last}
    if own.batch_size is None and own.batch_sampler is not None:
        cut = {"batch_sampler": own.batch_sampler}
    loader = DataLoader(own.dataset, num_workers=workers, collate_fn=own.collate_fn, **cut)
    rows = iter(loader)
    next(rows)
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < LOADER_SECONDS and next(rows, None) is not None:
        count += 1
    return max(1, count) / (time.perf_counter() - began)


def latency(bench: Any, observed: Any) -> Result:
    """Of one row, and of the largest batch that evaluation had, usual and with extreme values;
    with several processes at once, as many as the machine has cores."""
    if observed.largest is None:
        return "n/a", None, "evaluation did not call a module that training called"
    module, args, kwargs = observed.largest
    cuda = bench.where.type == "cuda"
    counts = [1] if cuda else [n for n in PROCESSES if n <= cores()]
    figures: dict[str, dict[str, list[float]]] = {}
    observed.model.eval()
    for label in ("one row", "largest batch", *EXTREMES):
        changed = args if label == "largest batch" else _one_row(args, EXTREMES.get(label))
        try:
            figures[label] = {
                str(n): _quantiles(lambda: module(*changed, **kwargs), n)  # noqa: B023
                for n in counts
            }
        except Exception:  # a model on a graph, say, takes no single row
            if label == "largest batch":
                raise
            figures[label] = {}
    observed.model.train()
    usual = figures["one row"] or figures["largest batch"]
    sentence = "; ".join(
        f"{n} process{'es' * (n != '1')}: p50 {p[0] * 1e3:.3g}, p90 {p[1] * 1e3:.3g}, "
        f"p99 {p[2] * 1e3:.3g} ms" for n, p in usual.items()
    )  # fmt: skip
    times, worst = max(
        (figures[label]["1"][0] / usual["1"][0] if figures[label] else 0.0, label)
        for label in EXTREMES
    )
    if times > SLOW_INPUT:
        return "warn", figures, f"{sentence}; {worst}: {times:.1f} times as long"
    return "pass", figures, sentence


def _one_row(args: Any, extreme: float | None) -> Any:
    """The first row of each tensor, with an extreme value everywhere where one is given."""

    def cut(tensor: Tensor) -> Tensor:
        if tensor.layout != torch.strided or not tensor.dim():  # a sparse graph has no rows
            return tensor
        if extreme is not None and tensor.is_floating_point():
            return torch.full_like(tensor[:1], extreme)
        return tensor[:1]

    return tree_map_only(Tensor, cut, args)


def _quantiles(call: Callable[[], object], processes: int) -> list[float]:
    """Quantiles 0.5, 0.9 and 0.99 (s) over the calls of all processes."""

    def measure(pipe: Any) -> None:
        # A fork has none of OpenMP's threads, and would wait for them forever.
        torch.set_num_threads(1)
        pipe.send(_durations(call))

    durations = _durations(call) if processes == 1 else []
    context = multiprocessing.get_context("fork")
    pipes = []
    for _ in range(processes if processes > 1 else 0):
        reader, writer = context.Pipe(duplex=False)
        context.Process(target=measure, args=(writer,)).start()
        writer.close()
        pipes.append(reader)
    for pipe in pipes:
        try:
            durations += pipe.recv()
        except EOFError:  # it died
            continue
    if not durations:
        raise RuntimeError("no process answered")
    return [quantile(durations, share) for share in (0.5, 0.9, 0.99)]


def _durations(call: Callable[[], object]) -> list[float]:
    """Seconds of each call, as many as fit into CALL_SECONDS."""
    with torch.no_grad():
        durations = call_times(call, 2 * WARM)
        more = (CALL_SECONDS - sum(durations)) / max(durations[WARM:])
        durations += call_times(call, min(CALLS - WARM, int(more)))
    return durations[WARM:]


def memory(bench: Any, observed: Any) -> Result:
    """Tensors alive and bytes held, over three equal parts of a short training."""
    model, optimiser, schedule = bench.fresh()
    batch = copy.deepcopy(bench.first_batch())
    counts, sizes = [], []
    for _ in range(3):
        for _ in range(MEMORY_STEPS):
            step(bench.training, model, optimiser, schedule, batch)
        optimiser.zero_grad(set_to_none=True)
        gc.collect()
        # isinstance would ask lazy modules for their class
        counts.append(sum(issubclass(type(thing), Tensor) for thing in gc.get_objects()))
        cuda = bench.where.type == "cuda"
        sizes.append(torch.cuda.memory_allocated(bench.where) if cuda else resident())
    # The smaller of the rises after the first and the second part: what grows once is no leak.
    more, rise = (min(b - a, c - b) / MEMORY_STEPS for a, b, c in (counts, sizes))
    sentence = f"{more:+.2g} tensors and {rise / 1024:+.3g} KiB a step"
    leaks = more > GROWTH or rise > RSS_GROWTH
    return "fail" if leaks else "pass", more, sentence
