"""What a trial used while it ran: memory and CPU of its tree of processes, and its GPU. Takes
samples when it is called and never by itself; must not know of epochs or the ledger.
The names of the figures are those of celedger/trial/protocol.py. Bytes, cores, %, W, J, MHz, °C.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import fmean

from celedger.model import Mark
from celedger.system import gpu as nvml
from celedger.system.gpu import Gpu, GpuSample
from celedger.system.tree import Usage

PERIOD = 0.25  # seconds between two samples: 4 Hz

# The kernel counts CPU time in steps of 10 ms, so a share over less than this says nothing.
_SHORTEST_SHARE = 0.1


@dataclass
class _Interval:
    """What was seen since the last `take`."""

    since: float
    energy: float | None
    rss: list[int] = field(default_factory=list)
    gpu: list[GpuSample] = field(default_factory=list)


class Sampler:
    """Watches one trial, through all of its commands. Make it before the first one starts:
    what is on the GPU then is not the trial's."""

    def __init__(self, gpu: Gpu | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._gpu = gpu
        self._clock = clock
        self._before = frozenset(nvml.computing(gpu)) if gpu else frozenset()
        self._read: Callable[[], Usage] | None = None
        self._sampled: float | None = None
        self._usage = Usage()
        self._ours: set[int] = set()
        self._cpu = 0.0  # seconds, over all commands so far
        self._share_base = (clock(), 0.0)
        first = nvml.sample(gpu, (), self._before) if gpu else GpuSample()
        self._first_energy = self._energy = first.energy
        # DISTURBED when another process computed on the GPU, THROTTLED when it slowed itself.
        self.marks: set[Mark] = set()
        self._peaks: dict[str, float] = {}
        self._interval = _Interval(clock(), self._energy)

    def sample(self, read: Callable[[], Usage]) -> None:
        """Looks, unless it did so less than PERIOD ago. `read` is `Running.usage`."""
        self._read = read
        if self._sampled is None or self._clock() - self._sampled >= PERIOD:
            self._look()

    def take(self) -> dict[str, float]:
        """The figures since the last take: the largest `rss`, `gpu_memory` and
        `gpu_temperature`, the mean of `gpu_utilisation`, `gpu_power` and `gpu_clock`, the
        `gpu_energy` spent, the `cpu_share` in cores. What is not known is left out."""
        if self._sampled is None or self._clock() - self._sampled >= PERIOD / 5:
            self._look()
        interval, now = self._interval, self._clock()
        self._interval = _Interval(now, self._energy)
        figures: dict[str, float] = {}
        rss = interval.rss or ([self._usage.rss] if self._usage.pids else [])
        if rss:
            figures["rss"] = float(max(rss))
        base, cpu = self._share_base
        if self._usage.pids and now - base >= _SHORTEST_SHARE:
            figures["cpu_share"] = (self._cpu - cpu) / (now - base)
            self._share_base = (now, self._cpu)
        for name, attribute, summary in (
            ("gpu_memory", "memory", max),
            ("gpu_utilisation", "utilisation", fmean),
            ("gpu_power", "power", fmean),
            ("gpu_clock", "clock", fmean),
            ("gpu_temperature", "temperature", max),
        ):
            values = [v for s in interval.gpu if (v := getattr(s, attribute)) is not None]
            if values:
                figures[name] = float(summary(values))
        if interval.energy is not None and self._energy is not None:
            figures["gpu_energy"] = self._energy - interval.energy
        return figures

    def totals(self) -> dict[str, float]:
        """Over the whole trial: the peaks of memory (`peak_rss`, `gpu_memory`) and the
        `gpu_energy` spent. A short trial peaks between two samples: the caller takes the larger
        of `peak_rss` and the commands' `Exit.max_rss`."""
        figures = dict(self._peaks)
        if self._first_energy is not None and self._energy is not None:
            figures["gpu_energy"] = self._energy - self._first_energy
        return figures

    def _look(self) -> None:
        self._sampled = self._clock()
        usage = self._read() if self._read is not None else Usage()
        # Else the command has ended, or is just about to: its memory is gone before its number.
        # What was seen last stays.
        if usage.pids and usage.rss:
            cpu_before = self._usage.cpu if usage.root == self._usage.root else 0.0
            cpu = max(usage.cpu, cpu_before)  # time of a process just ending may be missed for once
            self._cpu += cpu - cpu_before
            self._usage = replace(usage, cpu=cpu)
            self._ours.update(usage.pids)  # for NVML a process may outlive its end by a moment
            self._interval.rss.append(usage.rss)
            self._peak("peak_rss", usage.rss)
        if self._gpu is None:
            return
        look = nvml.sample(self._gpu, self._ours, self._before)
        self._interval.gpu.append(look)
        self._peak("gpu_memory", look.memory)
        if look.energy is not None:
            self._energy = look.energy
        if look.others:
            self.marks.add(Mark.DISTURBED)
        if look.throttled:
            self.marks.add(Mark.THROTTLED)

    def _peak(self, name: str, value: float | None) -> None:
        if value is not None:
            self._peaks[name] = max(self._peaks.get(name, 0.0), float(value))
