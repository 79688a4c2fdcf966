"""Measure the steps of a training's optimiser, with no help of its script: the time between steps,
and how much memory grows a step. `import_finder.py` attaches it when a traced trial has imported
torch's optimisers (torch 2.0 or later). It only reads clocks and what the allocator counts: the
training computes the same bits. Standard library only, Python 3.8 and later.

Memory is what glibc's `malloc` (2.33 or later) has given out, and torch on the GPU. It is exact to
some hundred bytes a step, where resident memory varies by more than 80 kB. Objects of Python alone
hardly count.

It also hashes the first bytes of the first parameter after every step, on the CPU. Two trainings
with the same hash computed the same bits, however few digits they report.

One line goes into the journal when the process ends, for the optimiser that made most steps:
`{"trial": {"optimiser_steps": N, "step_time": S, "step_cpu_time": S, "memory_growth": BYTES,
"bits": HASH}}`. Steps of forked processes are not measured.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import os
import sys
import time
from array import array

from celedger import child

TYPE_CHECKING = False  # as in `import_finder.py`
if TYPE_CHECKING:
    from typing import Any

LONGEST = 1 << 15  # values of a series; then every other one is dropped
FEWEST = 5  # steps: of fewer, the median says nothing
APART = 100  # times what a reading of the memory takes lie between two of them. It takes 2 us, but
# .1 to .4 ms in a heap of many free blocks, as after scikit-learn's import: with 200, trainings of
# .4 s, those that leak first, had too few for a growth.
_FEWEST_SIZES = 10  # readings of the memory
_HASHED = 64  # bytes of the first parameter
_LEAST = 1 << 20  # bytes: who has less given out is not the allocator of this process


class StepMeter:
    """The steps of one optimiser: when each ended, and the memory in use then."""

    def __init__(self) -> None:
        self.steps = 0
        self._every = 1  # step whose moment is kept
        self._moments = array("d")
        self._cpu = array("d")  # seconds of processors that the process had used then
        self._sizes = array("d")  # bytes
        self._sized_at = array("d")  # the step of each size
        self._bits = hashlib.sha256()
        self._hashes = True

    def step(self, now: float, cpu: float, size: int | None) -> None:
        if self.steps % self._every == 0:
            self._moments.append(now)
            self._cpu.append(cpu)
            if len(self._moments) == LONGEST:
                self._moments, self._cpu = self._moments[::2], self._cpu[::2]
                self._every *= 2
        if size is not None:
            self._sizes.append(size)
            self._sized_at.append(self.steps)
            if len(self._sizes) == LONGEST:
                self._sizes, self._sized_at = self._sizes[::2], self._sized_at[::2]
        self.steps += 1

    def see(self, groups: Any) -> None:
        """Hash the beginning of the first parameter, as long as it is a plain one on the CPU. It
        never raises: the training must not notice."""
        if not self._hashes:
            return
        try:
            first = groups[0]["params"][0]
            plain = type(first).__module__ == "torch.nn.parameter" and first.is_contiguous()
            address = first.data_ptr() if plain and first.is_cpu else 0
            size = first.numel() * first.element_size() if address else 0
        except Exception:  # an empty group, a parameter without storage
            size = 0
        if size:
            self._bits.update(ctypes.string_at(address, min(size, _HASHED)))
        else:
            self._hashes = False

    def figures(self) -> dict[str, object]:
        """Return what the runner keeps of the trial; nothing of too few steps."""
        if self.steps < FEWEST:
            return {}
        figures: dict[str, object] = {"optimiser_steps": self.steps}
        for name, times in (("step_time", self._moments), ("step_cpu_time", self._cpu)):
            between = [(b - a) / self._every for a, b in zip(times, times[1:])]  # noqa: B905, RUF007
            figures[name] = _median(between)
        growth = self._growth()
        if growth is not None:
            figures["memory_growth"] = growth
        if self._hashes:
            figures["bits"] = self._bits.hexdigest()
        return figures

    def _growth(self) -> float | None:
        """Return the bytes that each step adds between the third and the last quarter of the
        training: at its beginning memory grows until allocators and caches are full. Of each
        quarter the lower quartile counts: what a larger batch or an evaluation needs for a while is
        no growth, and what is given back is none either."""
        count = len(self._sizes)
        if count < _FEWEST_SIZES:
            return None
        third, last = slice(count // 2, count // 2 + count // 4), slice(-(count // 4), None)
        steps = _quartile(self._sized_at[last]) - _quartile(self._sized_at[third])
        grown = _quartile(self._sizes[last]) - _quartile(self._sizes[third])
        return max(0.0, grown) / steps


def _quartile(values: Any) -> float:
    """Return the lower one."""
    return float(sorted(values)[(len(values) - 1) // 4])


def _median(values: Any) -> float:
    ranked = sorted(values)
    half = len(ranked) // 2
    return float(ranked[half] if len(ranked) % 2 else (ranked[half - 1] + ranked[half]) / 2)


class _Mallinfo2(ctypes.Structure):
    """What mallinfo(3) returns: ten sizes, of which two count here."""

    _fields_ = [
        ("before", ctypes.c_size_t * 4),
        ("hblkhd", ctypes.c_size_t),  # bytes mapped by themselves
        ("between", ctypes.c_size_t * 2),
        ("uordblks", ctypes.c_size_t),  # bytes given out of arenas
        ("after", ctypes.c_size_t * 2),
    ]


def _allocated() -> Any:
    """Return a function that returns the bytes in use, None where nothing counts them."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return None
    mallinfo2.restype = _Mallinfo2
    cuda = getattr(sys.modules.get("torch"), "cuda", None)

    def allocated() -> int:
        now = mallinfo2()
        in_use = int(now.uordblks + now.hblkhd)
        return in_use + (cuda.memory_allocated() if cuda and cuda.is_initialized() else 0)

    return allocated if allocated() > _LEAST else None


def attach(optimizer: Any) -> None:
    """Measure from now on the steps of all optimisers of `torch.optim.optimizer`."""
    register = getattr(optimizer, "register_optimizer_step_post_hook", None)
    if register is None or "CELEDGER_FD" not in os.environ or "CELEDGER_PROBE" in os.environ:
        return
    pid, clock, cpu_clock = os.getpid(), time.perf_counter, time.process_time
    allocated = _allocated()
    meters: dict[int, StepMeter] = {}
    due = 0.0 if allocated else float("inf")  # when the memory is read again
    takes = float("inf")  # seconds of a reading; the first ones find cold caches
    spent = spent_cpu = 0.0  # in readings: no part of a step
    last = int(os.environ.get("CELEDGER_STOP_AFTER", "0"))

    def stepped(optimiser: Any, *_: object) -> None:
        nonlocal due, takes, spent, spent_cpu
        began, began_cpu = clock(), cpu_clock()
        now, cpu = began - spent, began_cpu - spent_cpu
        meter = meters.get(id(optimiser))
        if meter is None:
            meter = meters[id(optimiser)] = StepMeter()
        size = None
        if now >= due:
            size = allocated()
            took = clock() - began
            spent, spent_cpu = spent + took, spent_cpu + cpu_clock() - began_cpu
            takes = min(takes, took)
            due = now + APART * takes
        meter.step(now, cpu, size)
        meter.see(optimiser.param_groups)
        if meter.steps == last and os.getpid() == pid:
            raise SystemExit(0)  # no `except Exception` takes it, and every `finally` runs

    def report() -> None:
        if not meters or os.getpid() != pid:  # a fork
            return
        figures = max(meters.values(), key=lambda meter: meter.steps).figures()
        fd = child._journal() if figures else None
        if fd is not None:
            child._write(fd, {"trial": figures})

    register(stepped)
    atexit.register(report)
