"""Tell the trial's processes on a GPU from others, by NVML's answers. Pure: it knows neither NVML
nor how processes are found.

In a container NVML lists no processes, or those of the host with the host's numbers. There a
process that appears belongs to the trial as long as the trial has a process with an open GPU that
is not yet accounted for; any further one is a stranger.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from celedger.system.nvml import GpuSample

# Linux numbers the first PID namespace PROC_PID_INIT_INO (include/linux/proc_ns.h): only there
# are the driver's process numbers ours. WSL has one of its own, as a container has.
_FIRST_NAMESPACE = 0xEFFFFFFC
_UTILISATION_LAG = 1.0  # s, the longest sampling period of nvmlDeviceGetUtilizationRates
_OPEN = frozenset({"/dev/nvidia-uvm", "/dev/dxg"})  # by a CUDA context: on Linux, under WSL


def sees_all_processes() -> bool:
    """Return True if process numbers mean the same to the driver and to us."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == _FIRST_NAMESPACE
    except OSError:
        return False


def contexts(pids: Collection[int]) -> int:
    """Return how many of these processes have opened a GPU. A data loader's forked worker has its
    parent's descriptors and command line, and no context of its own."""
    lines = set()
    for pid in pids:
        try:
            folder = Path(f"/proc/{pid}")
            if any(str(fd.readlink()) in _OPEN for fd in (folder / "fd").iterdir()):
                lines.add((folder / "cmdline").read_bytes())
        except OSError:
            continue
    return len(lines)


class GpuTenants:
    """The processes on one GPU during one trial. `first` was sampled before the trial began."""

    def __init__(self, first: GpuSample, *, all_processes: bool) -> None:
        self._first, self._all = first, all_processes
        self._ours: set[int] = set()  # as NVML numbers them
        self._strangers = set(first.processes or ())
        self._opened = self._unclear = False
        self.disturbed = False  # another process computed during the trial

    @property
    def wants_contexts(self) -> bool:
        """Return True if it matters how many of the trial's processes have opened the GPU."""
        return not (self._all and self._opened)

    def look(self, now: GpuSample, pids: Collection[int], contexts: int, age: float) -> None:
        """Account for a sample. `pids` are the trial's own processes, of which `contexts` have
        opened the GPU (if `wants_contexts`); `age` is the time since the first sample (s)."""
        listed = set(now.processes or ())
        if self._all:
            self._strangers.difference_update(pids)
        arrived = listed - self._ours - self._strangers
        if self._all:
            ours = arrived.intersection(pids)
        else:
            room = contexts - len(self._ours & listed)
            ours = arrived if len(arrived) <= room else set()
            self._unclear |= 0 < room < len(arrived)
        self._ours |= ours
        self._strangers |= arrived - ours
        present = self._strangers & listed
        if now.active is not None:  # the activity of a trial that just ended may still be reported
            late = self._strangers.difference(self._first.processes or ())
            self.disturbed |= bool(now.active & (present | late)) or self._unclear
        else:  # who arrives makes a context; what was there is idle only if NVML can tell
            quiet = self._first.utilisation == 0
            self.disturbed |= bool(arrived - ours) or (bool(present) and not quiet)
        self._opened |= bool(contexts or self._ours)
        if not self._opened and age > _UTILISATION_LAG and now.utilisation:
            self.disturbed = True

    def memory(self, now: GpuSample) -> dict[str, int]:
        """Return `gpu_memory` (bytes of the trial's processes) or, where NVML does not tell them,
        `gpu_memory_grown`: the device's less what it was at the start and what strangers added."""
        processes = now.processes or {}
        sizes = [size for pid, size in processes.items() if pid in self._ours]
        if self._all and now.processes is not None and None not in sizes:
            return {"gpu_memory": sum(filter(None, sizes))} if sizes else {}
        if now.used is None or self._first.used is None or self._unclear:
            return {}
        before = self._first.processes or {}
        others = 0
        for pid in self._strangers:
            size, earlier = processes.get(pid, 0), before.get(pid, 0)
            if size is None and pid not in before:
                return {}
            others += (size or 0) - (earlier or 0)
        return {"gpu_memory_grown": max(0, now.used - self._first.used - others)}
