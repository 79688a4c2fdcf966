"""The choice of a device: from a name to a GPU, a MIG slice or the CPU, within what
CUDA_VISIBLE_DEVICES shows. A device that is not there, or that cannot be measured, is an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from celedger.base.errors import MachineError
from celedger.system import nvml
from celedger.system.nvml import Gpu, GpuSample

_AMD = Path("/dev/kfd")  # the driver that ROCm needs


@dataclass(frozen=True, slots=True)
class Device:
    """The device of a trial. `key` names it on this machine (`cpu` or the GPU's UUID), `name` for
    people (`cpu`, `cuda:0`), `visible` is the trial's CUDA_VISIBLE_DEVICES."""

    key: str
    name: str
    visible: str
    gpu: Gpu | None = None


CPU = Device("cpu", "cpu", "")


def resolve(
    name: str,
    env: Mapping[str, str] = os.environ,
    free: Callable[[str], bool] = lambda uuid: True,
) -> Device:
    """Return the device for `auto`, `cpu`, `cuda` or `cuda:N`. `auto` is the first GPU that is
    `free` (by its UUID) and on which nobody computes, else the first GPU, else the CPU. N counts
    within CUDA_VISIBLE_DEVICES where that is set. Raises MachineError for a device that is not
    there, or that cannot be measured."""
    if name == "cpu":
        return CPU
    kind, _, number = name.partition(":")
    if name != "auto" and (kind != "cuda" or not (number.isdecimal() or name == "cuda")):
        raise MachineError(f"no device is called {name!r}", "use auto, cpu or cuda:N")
    shown = _visible_gpus(env, numbered=bool(number))
    if name == "auto":
        usable = [i for i, gpu in enumerate(shown) if not _problem(gpu)]
        idle = [i for i in usable if free(shown[i].uuid) and not _in_use(shown[i])]
        if not shown:
            return CPU
        index = [*idle, *usable, 0][0]
    else:
        index = int(number or 0)
    if index >= len(shown):
        raise _absent(name, len(shown))
    gpu = shown[index]
    if problem := _problem(gpu):
        raise MachineError(f"{gpu.name} ({gpu.uuid}) {problem[0]}", problem[1])
    return Device(gpu.uuid, f"cuda:{index}", gpu.uuid, gpu)


def _absent(name: str, count: int) -> MachineError:
    if not count and _AMD.exists():
        return MachineError(
            f"there is no device {name}: celedger measures NVIDIA's GPUs, not those of ROCm",
            "use --device cpu",
        )
    range_text = f"cuda:0 to cuda:{count - 1}" if count > 1 else "only cuda:0"
    return MachineError(
        f"there is no device {name}: this machine shows {range_text if count else 'no GPU'}",
        "use --device cpu, or check `nvidia-smi` and CUDA_VISIBLE_DEVICES",
    )


def alike(device: Device, env: Mapping[str, str] = os.environ) -> list[Device]:
    """Return the visible GPUs of the same kind as that of a device, itself first."""
    assert device.gpu is not None
    kind = device.gpu.name, device.gpu.memory
    every = [
        Device(gpu.uuid, f"cuda:{number}", gpu.uuid, gpu)
        for number, gpu in enumerate(_visible_gpus(env, numbered=False))
        if (gpu.name, gpu.memory) == kind and not _problem(gpu)
    ]
    return sorted(every, key=lambda other: other.key != device.key)


def _problem(gpu: Gpu) -> tuple[str, str] | None:
    """Return why a GPU cannot be measured, and what helps."""
    if gpu.slices is not None:
        words = " or ".join(gpu.slices) or "a slice, after `nvidia-smi mig -cgi … -C`"
        return "is split into MIG slices", f"set CUDA_VISIBLE_DEVICES to {words}"
    if gpu.settings.get("compute_mode") == "prohibited":
        return "prohibits computing", "nvidia-smi -c DEFAULT, as root"
    return None


def _in_use(gpu: Gpu) -> bool:
    """Return True if a process that has a context on it computed in the last seconds."""
    sample = nvml.GpuReader(gpu).sample()
    return bool((sample.active or frozenset()) & (sample.processes or {}).keys())


def _visible_gpus(env: Mapping[str, str], *, numbered: bool) -> list[Gpu]:
    """Return the GPUs as CUDA reads its variable: numbers or UUIDs (a beginning is enough), the
    list ending at the first that does not exist. Trials count in the order of the PCI bus; CUDA
    itself does only where CUDA_DEVICE_ORDER says so, else it counts the fastest first (CUDA C++
    Programming Guide, "CUDA Environment Variables"). Raises MachineError where that differs."""
    every, visible = nvml.gpus(), env.get("CUDA_VISIBLE_DEVICES")
    words = [word.strip() for word in (visible or "").split(",") if word.strip()]
    numbered = any(map(str.isdecimal, words)) if words else numbered
    mixed = len({gpu.name for gpu in every}) > 1
    if numbered and mixed and env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        raise MachineError(
            "a number does not name a GPU here: the models differ, and CUDA counts the fastest "
            "first",
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID to count as `nvidia-smi` does, or set "
            "CUDA_VISIBLE_DEVICES to a UUID",
        )
    if visible is None:
        return every
    chosen: list[Gpu] = []
    for word in words:
        if word.isdecimal():
            matching = every[int(word) : int(word) + 1]
        else:
            matching = [gpu for gpu in every if gpu.uuid.startswith(word)]
            if not matching and (instance := nvml.mig_slice(word)) is not None:
                matching = [instance]
        if len(matching) != 1:
            break
        chosen += matching
    return chosen


# --- the trial's processes on a GPU told from others, by NVML's answers. In a container NVML lists
# no processes, or those of the host with the host's numbers. A process that appears there belongs
# to the trial as long as the trial has one with an open GPU that is not yet accounted for; any
# further one is a stranger.


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
            of_trial = arrived.intersection(pids)
        else:
            room = contexts - len(self._ours & listed)
            of_trial = arrived if len(arrived) <= room else set()
            self._unclear |= 0 < room < len(arrived)
        self._ours |= of_trial
        self._strangers |= arrived - of_trial
        present = self._strangers & listed
        if now.active is not None:  # the activity of a trial that just ended may still be reported
            late = self._strangers.difference(self._first.processes or ())
            self.disturbed |= bool(now.active & (present | late)) or self._unclear
        else:  # who arrives makes a context; what was there is idle only if NVML can tell
            quiet = self._first.utilisation == 0
            self.disturbed |= bool(arrived - of_trial) or (bool(present) and not quiet)
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
