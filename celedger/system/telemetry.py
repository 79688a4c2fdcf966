"""Resource use of a trial: memory and CPU of its tree of processes, and its GPU. Takes
samples when it is called and never by itself; must not know of epochs or the ledger.
The names of the figures are those of celedger/trial/protocol.py. Bytes, cores, %, W, J, MHz, °C.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean

from celedger.base.model import Mark
from celedger.system import devices
from celedger.system.devices import Gpu, GpuReader, GpuSample, GpuTenants
from celedger.system.process import Usage

PERIOD = 0.25  # seconds between two samples: 4 Hz

# Reasons of nvmlDeviceGetCurrentClocksEventReasons (NVML API reference, "Clocks Event Reasons")
# after which a time cannot be compared: hardware slowdown (0x08), software (0x20) and hardware
# (0x40) thermal slowdown, external power brake (0x80). Not so: idle (0x01), chosen clocks
# (0x02, 0x10, 0x100), and the software power cap, which is the normal state of a power-limited
# board under load and equal for all trials: the power limit is part of the environment.
SLOWED, POWER_CAPPED = 0x08 | 0x20 | 0x40 | 0x80, 0x04
COSTLY = 0.01  # of the clock cycles of a trial; half of what a quiet GPU's times vary

# The kernel counts CPU time in steps of 10 ms, so a share over less than this says nothing.
_SHORTEST_SHARE = 0.1


class Sampler:
    """Watches one trial, through all of its commands. Make it before the first one starts:
    what is on the GPU then is not the trial's."""

    def __init__(self, gpu: Gpu | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._gpu = gpu
        self._clock = clock
        self._began = clock()
        self._reader = GpuReader(gpu) if gpu else None
        first = self._reader.sample() if self._reader else GpuSample()
        self._tenants = GpuTenants(first, all_processes=devices.sees_all_processes())
        self._read: Callable[[], Usage] | None = None
        self._sampled: float | None = None
        self._usage = Usage()
        self._ours: set[int] = set()
        self._cpu = 0.0  # seconds, over all commands so far
        self._share_base = (self._began, 0.0)
        self._seen = self._began  # when it was last there
        self._first_energy = self._energy = first.energy
        self._busy = 0  # samples of the GPU at work
        self._lost = dict.fromkeys((SLOWED, POWER_CAPPED), 0.0)  # of them, by reason
        self._peaks: dict[str, float] = {}
        self._own = self._files = 0
        self._begin_interval()

    def _begin_interval(self) -> None:
        """Forget the samples of the last interval."""
        self._energy_before = self._energy
        self._rss: list[int] = []
        self._looks: list[GpuSample] = []  # at the GPU
        self._memory: dict[str, int] = {}  # the largest, by name

    def sample(self, read: Callable[[], Usage]) -> None:
        """Looks, unless it did so less than PERIOD ago. `read` is `Running.usage`."""
        self._read = read
        if self._sampled is None or self._clock() - self._sampled >= PERIOD:
            self._look()

    def see(self, memory: Mapping[str, int]) -> None:
        """Take in `Running.memory`, which is cheap: at each tick."""
        if memory:
            self._own = max(self._own, memory["anonymous"] + memory["shmem"])
            self._files = memory["file"]

    def take(self) -> dict[str, float]:
        """Return the figures since the last take: the largest `rss`, `gpu_memory` (or
        `gpu_memory_grown`, see `GpuTenants.memory`) and `gpu_temperature`, the mean of
        `gpu_utilisation`, `gpu_power` and `gpu_clock`, the `gpu_energy` spent, the `cpu_share` in
        cores. What is not known is left out."""
        if self._sampled is None or self._clock() - self._sampled >= PERIOD / 5:
            self._look()
        figures: dict[str, float] = dict(self._memory)
        rss = self._rss or ([self._usage.rss] if self._usage.pids else [])
        if rss:
            figures["rss"] = float(max(rss))
        base, cpu = self._share_base
        if self._seen - base >= _SHORTEST_SHARE:
            figures["cpu_share"] = (self._cpu - cpu) / (self._seen - base)
            self._share_base = (self._seen, self._cpu)
        for name, attribute, summary in (
            ("gpu_utilisation", "utilisation", fmean),
            ("gpu_power", "power", fmean),
            ("gpu_clock", "clock", fmean),
            ("gpu_temperature", "temperature", max),
        ):
            values = [v for s in self._looks if (v := getattr(s, attribute)) is not None]
            if values:
                figures[name] = float(summary(values))
        if self._energy_before is not None and self._energy is not None:
            figures["gpu_energy"] = self._energy - self._energy_before
        self._begin_interval()
        return figures

    def own_peak(self, max_rss: float, files: int) -> float:
        """Return the largest memory that was no page of a file, given the commands' `Exit.max_rss`
        and `Exit.files`; 0 where that is not known. The kernel keeps the peak of all kinds of
        memory together: less the pages of files at the last `see`, which a process seldom gives
        back."""
        files = self._files or files
        return max(self._own, max_rss - files) if files else 0.0

    def totals(self) -> dict[str, float]:
        """Over the whole trial: the peaks of memory (`peak_rss`, that of the GPU) and the
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
            self._seen = self._sampled
            self._usage = replace(usage, cpu=cpu)
            self._ours.update(usage.pids)  # for NVML a process may outlive its end by a moment
            self._rss.append(usage.rss)
            self._peak("peak_rss", usage.rss)
            self._own = max(self._own, usage.own)
        if self._reader is None:
            return
        look = self._reader.sample()
        contexts = devices.contexts(usage.pids) if self._tenants.wants_contexts else 0
        self._tenants.look(look, self._ours, contexts, self._clock() - self._began)
        memory, largest = self._tenants.memory(look), self._memory
        for name, value in memory.items():
            largest[name] = max(largest.get(name, 0), value)
            self._peak(name, value)
        self._looks.append(look)
        if look.energy is not None:
            self._energy = look.energy
        if look.utilisation == 0 or look.reasons is None:
            return
        self._busy += 1
        for reasons in self._lost:
            if look.reasons & reasons:
                self._lost[reasons] += self._cycles_lost(look)

    def _cycles_lost(self, look: GpuSample) -> float:
        fastest = self._gpu.fastest if self._gpu else None
        if not fastest or look.clock is None:
            return 1.0
        return max(0.0, 1.0 - look.clock / fastest)

    def lost(self, reasons: int) -> float:
        """Return the share of the GPU's clock cycles that these reasons may have cost."""
        return self._lost[reasons] / self._busy if self._busy else 0.0

    @property
    def marks(self) -> set[Mark]:
        """DISTURBED if another process computed on the GPU, THROTTLED if its own slowdown cost
        speed."""
        marks = {Mark.DISTURBED} if self._tenants.disturbed else set()
        return marks | ({Mark.THROTTLED} if self.lost(SLOWED) >= COSTLY else set())

    def _peak(self, name: str, value: float) -> None:
        self._peaks[name] = max(self._peaks.get(name, 0.0), float(value))
