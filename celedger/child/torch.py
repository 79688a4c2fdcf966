"""The torch training loop: it runs a training described by a few callables with fixed seeds and
deterministic kernels, and reports every epoch through `celedger.child.log`. It lives inside the
measured environment, so it knows torch and the standard library (Python 3.8 on) and nothing of
celedger's parent side.

A `Training` is plain data. `train` drives it: `prepare`, then `step` after `step`, without hooks.
Probes of diagnostic runs are attached from outside, as to any training (`celedger.child.attach`).
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import math
import os
import random
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# cuBLAS reads this when CUDA starts: without a fixed workspace its results may differ between runs
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from celedger.child import log, wants_steps
from celedger.child.torch_steps import StepSeries, gradient_norm

__all__ = [
    "Training", "device", "fingerprint", "latency", "parameters", "prepare", "shuffled", "step",
    "train",
]  # fmt: skip

Batch = Any  # any result of `data` that `loss` understands; its first tensor's length counts


def _either_spelling(training: type[Training]) -> type[Training]:
    """Let the field `optimiser` be given as `optimizer`."""
    init: Callable[..., None] = training.__init__

    def either(self: Training, *values: Any, **fields: Any) -> None:
        if "optimizer" in fields and "optimiser" not in fields:
            fields["optimiser"] = fields.pop("optimizer")
        init(self, *values, **fields)

    training.__init__ = either  # type: ignore[method-assign]
    return training


@_either_spelling
@dataclass(frozen=True)
class Training:
    """One training. The callables are called in the order written here, after the seed is set.
    `optimizer` is another spelling of `optimiser`."""

    model: Callable[[], nn.Module]
    optimiser: Callable[[nn.Module], Optimizer]
    data: Callable[[], Iterable[Batch]]  # the batches of one epoch, called once an epoch
    loss: Callable[[nn.Module, Batch], Tensor]  # the mean over the batch
    evaluate: Callable[[nn.Module], Mapping[str, Tensor]]  # in eval mode, without gradients
    epochs: int
    seed: int = 0
    schedule: Callable[[Optimizer], LRScheduler] | None = None  # stepped every step
    clip: float | None = None  # largest L2 norm of the whole gradient
    pieces: int = 1  # parts of a batch whose gradients are accumulated
    scaler: torch.amp.GradScaler | None = None  # for mixed precision; `loss` does the autocast
    threads: int | None = None  # CPU threads; by default OMP_NUM_THREADS, else 1


def parameters(**defaults: Any) -> argparse.Namespace:
    """Return the hyper-parameters, each with its default, which `--name value` on the command line
    changes. A value is read as the type of its default; `--help` lists them under the script's
    docstring.
    """
    parser = argparse.ArgumentParser(
        description=sys.modules["__main__"].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for name, default in defaults.items():
        kind = _truth if isinstance(default, bool) else type(default)
        parser.add_argument(f"--{name}", type=kind, default=default, help=f"default: {default}")
    return parser.parse_args()


def _truth(text: str) -> bool:
    try:
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    except KeyError:
        raise ValueError(text) from None  # argparse reports it as "invalid value"


def device() -> torch.device:
    """Return the first GPU that CUDA_VISIBLE_DEVICES leaves visible, else the CPU. Raises
    RuntimeError if celedger chose a GPU, by its UUID, that this torch cannot use: the trial would
    be recorded as the GPU's."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if chosen.startswith(("GPU-", "MIG-")):
        raise RuntimeError(
            f"torch {torch.__version__} cannot use {chosen}: install a build for its CUDA, or "
            "choose --device cpu"
        )
    return torch.device("cpu")


def shuffled(*tensors: Tensor, size: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield batches of `size` rows (the last may be smaller) of all tensors alike, in a new order.
    The order is drawn on the CPU, so one seed gives one order on every device.
    """
    order = torch.randperm(len(tensors[0]), device="cpu").to(tensors[0].device)
    for rows in order.split(size):  # type: ignore[no-untyped-call]
        yield tuple(tensor[rows] for tensor in tensors)


def train(**description: Any) -> nn.Module:
    """Run a `Training`, given by its fields, report every epoch, and return the model.

    Reports train_loss (mean over the epoch's samples, in training mode) and the results of
    `evaluate`; samples_per_second; step_time_p50, _p90, _p99 (s, from the end of one step to the
    end of the next, so waiting for data counts; without the very first step, which includes
    set-up); evaluation_time (s); least_moved and peak_memory (see these functions); and the
    fingerprint. The same is
    printed to stdout, a line an epoch; a task with `steps = true` gets its series per step, too.
    Metrics stay on the device until the epoch ends: the loop never waits for it.
    """
    training = Training(**description)
    where = device()
    model, optimiser, schedule = prepare(training, where)
    drawn = {name: weight.clone() for name, weight in _weights(model).items()}
    for epoch in range(training.epochs):
        if where.type == "cuda":
            torch.cuda.reset_peak_memory_stats(where)
        model.train()
        total = torch.zeros((), dtype=torch.float64, device=where)
        samples: list[int] = []
        series = StepSeries() if wants_steps() else None
        moments = [_moment(where)]  # the ends of steps
        for batch in training.data():
            try:
                loss = step(training, model, optimiser, schedule, batch, series)
            except Exception as error:
                # A bisect takes a crash that always comes at the same step for a sure one.
                if hasattr(error, "add_note"):
                    error.add_note(f"in step {len(samples)} of epoch {epoch}")
                raise
            samples.append(_length(batch))
            total += loss.detach().double() * samples[-1]
            moments.append(_moment(where))
        metrics: dict[str, float | Tensor] = {"train_loss": total / sum(samples)}  # NaN of none
        model.eval()
        evaluation = [_moment(where)]
        with torch.no_grad():
            metrics.update(training.evaluate(model))
        evaluation.append(_moment(where))
        metrics.update(least_moved(model, drawn))
        values = {name: float(value) for name, value in metrics.items()}  # waits for the device
        durations = _durations(moments)
        values.update(_speed(durations, samples, warm=epoch > 0))
        values["evaluation_time"] = _durations(evaluation)[0]
        values.update(peak_memory(where))
        mark = fingerprint(model)
        steps = series.values(durations) if series is not None else None
        log(epoch=epoch, fingerprint=mark, steps=steps, **values)
        line = "  ".join(f"{name} {value:.4g}" for name, value in values.items())
        print(f"epoch {epoch}  {line}  fingerprint {mark[:8]}", flush=True)
    return model


def prepare(
    training: Training, where: torch.device
) -> tuple[nn.Module, Optimizer, LRScheduler | None]:
    """Fix threads, seeds and kernels for this process, then make the parts of the training."""
    threads = training.threads or int(os.environ.get("OMP_NUM_THREADS") or 1)
    torch.set_num_threads(threads)  # sums in another order have other bits
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False  # it chooses kernels by their measured times
    random.seed(training.seed)
    torch.manual_seed(training.seed)  # every CUDA device too
    if "numpy" in sys.modules:  # torch imports numpy if it is installed
        sys.modules["numpy"].random.seed(training.seed)
    model = training.model().to(where)
    optimiser = training.optimiser(model)
    return model, optimiser, training.schedule(optimiser) if training.schedule else None


def step(
    training: Training,
    model: nn.Module,
    optimiser: Optimizer,
    schedule: LRScheduler | None,
    batch: Batch,
    series: StepSeries | None = None,
) -> Tensor:
    """Make one step of the optimiser, add it to `series`, and return the loss before it, still on
    the device."""
    optimiser.zero_grad(set_to_none=True)
    scaler, total = training.scaler, torch.zeros(())
    for i, piece in enumerate(_pieces(batch, training.pieces)):
        loss = training.loss(model, piece)
        if training.pieces > 1:  # the mean over the batch weights its pieces by length
            loss = loss * (_length(piece) / _length(batch))
        total = total + loss.detach() if i else loss.detach()
        (loss if scaler is None else scaler.scale(loss)).backward()  # type: ignore[no-untyped-call]
    if scaler is not None and not (training.clip is None and series is None):
        scaler.unscale_(optimiser)  # limit and series are of the unscaled gradient
    norm = None  # of the gradient before clipping
    if training.clip is not None:
        norm = nn.utils.clip_grad_norm_(model.parameters(), training.clip)
    if series is not None:
        series.add(total, gradient_norm(model.parameters()) if norm is None else norm, optimiser)
    if scaler is None:
        optimiser.step()
    else:
        scaler.step(optimiser)
        scaler.update()
    if schedule is not None:
        schedule.step()
    return total


def _pieces(batch: Batch, count: int) -> Iterable[Batch]:
    """Yield `count` pieces of a batch, of nearly equal length."""
    if count == 1:
        return (batch,)
    if isinstance(batch, (tuple, list)):
        return zip(*(tensor.chunk(count) for tensor in batch))  # noqa: B905 (Python 3.8)
    pieces: Iterable[Batch] = batch.chunk(count)
    return pieces


def _length(batch: Batch) -> int:
    return len(batch[0]) if isinstance(batch, (tuple, list)) else len(batch)


def latency(call: Callable[[], object], *, warmup: int = 20, calls: int = 100) -> dict[str, float]:
    """Return latency_p50, _p90 and _p99 (s) of one call, until the device has finished it; the
    first `warmup` calls, which fill caches and choose kernels, are left out."""
    return _percentiles("latency", call_times(call, warmup + calls)[warmup:])


def call_times(call: Callable[[], object], calls: int) -> list[float]:
    """Return the seconds of each call, until the device has finished it."""
    where, durations = device(), []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        if where.type == "cuda":
            torch.cuda.synchronize(where)
        durations.append(time.perf_counter() - start)
    return durations


def _moment(where: torch.device) -> Any:
    """Return the time now. On CUDA it is an event in the stream: waiting for the device at every
    step would hide a training's own needless waits, a frequent cause of speed regressions."""
    if where.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _durations(moments: list[Any]) -> list[float]:
    """Return the seconds from each moment to the next; waits for the device."""
    pairs = zip(moments, moments[1:])  # noqa: B905, RUF007 (Python 3.8)
    if isinstance(moments[0], float):
        return [end - start for start, end in pairs]
    moments[-1].synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in pairs]  # CUDA returns ms


def _speed(durations: list[float], samples: list[int], *, warm: bool) -> dict[str, float]:
    if not warm:
        durations, samples = durations[1:], samples[1:]
    if not durations:
        return {}  # the only step was the warm-up: no speed is better than a wrong one
    speed = {"samples_per_second": sum(samples) / sum(durations)}
    return {**speed, **_percentiles("step_time", durations)}


def _percentiles(name: str, durations: list[float]) -> dict[str, float]:
    return {f"{name}_p{p}": quantile(durations, p / 100) for p in (50, 90, 99)}


def quantile(values: list[float], share: float) -> float:
    """Interpolate linearly between the two nearest ranks (Hyndman & Fan's type 7, numpy's
    default)."""
    ranked = sorted(values)
    position = share * (len(ranked) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (position - below) * (ranked[above] - ranked[below])


def peak_memory(where: torch.device) -> dict[str, float]:
    """Return bytes. CUDA, since the epoch began: the peak of tensors (`peak_memory`), of torch's
    allocator (`peak_memory_reserved`) and of what is free in its split blocks
    (`peak_memory_fragmented`), the memory of all processes on the device now
    (`device_memory_used`), and the peak of this process in RAM (`peak_host_memory`). CPU: that peak
    is `peak_memory`."""
    if where.type == "cuda":
        free, total = torch.cuda.mem_get_info(where)
        stats = torch.cuda.memory_stats(where)
        return {
            "peak_memory": torch.cuda.max_memory_allocated(where),
            "peak_memory_reserved": torch.cuda.max_memory_reserved(where),
            "peak_memory_fragmented": stats.get("inactive_split_bytes.all.peak", 0),
            "device_memory_used": total - free,
            "peak_host_memory": peak_rss(),
        }
    return {"peak_memory": peak_rss()}


def peak_rss() -> int:
    """Return bytes. VmHWM, because Linux's ru_maxrss keeps the peak before exec: a trial
    started by a large process would report its parent's size."""
    try:
        status = Path("/proc/self/status").read_bytes()
        return int(status.partition(b"VmHWM:")[2].split()[0]) * 1024
    except (OSError, IndexError):
        pass  # not Linux, or a kernel that hides it (some sandboxes)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Return on the CPU the trained parameters with two dimensions or more."""
    return {
        name: weight.detach().cpu()
        for name, weight in model.named_parameters()
        if weight.requires_grad and weight.dim() > 1
    }


def least_moved(model: nn.Module, drawn: Mapping[str, Tensor]) -> dict[str, float]:
    """Return `least_moved`: the change of the weight that changed least, divided by the larger of
    its norms at the start and now. A layer without gradient is visible here alone, because the
    others compensate for it."""
    shares = []
    for name, weight in _weights(model).items():
        if name in drawn and drawn[name].shape == weight.shape:
            size = float(max(drawn[name].norm(), weight.norm()))
            shares.append(float((weight - drawn[name]).norm()) / size if size else 0.0)
    return {"least_moved": min(shares)} if shares else {}


def fingerprint(model: nn.Module) -> str:
    """Return an exact hash (32 hex digits) of all parameters and buffers: name, dtype, shape,
    bytes. Ordered by name, so a refactor that only registers modules in another order keeps it.
    """
    digest = hashlib.sha256()
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        size = tensor.numel() * tensor.element_size()
        if size:  # read in place: neither numpy nor a copy, and any dtype
            digest.update((ctypes.c_char * size).from_address(tensor.data_ptr()))
    return digest.hexdigest()[:32]
