"""The choice of a device: from a name to a GPU, a MIG slice or the CPU, within what
CUDA_VISIBLE_DEVICES shows. A device that is not there, or that cannot be measured, is an error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from celedger.base.errors import MachineError
from celedger.system import nvml
from celedger.system.nvml import Gpu

_AMD = Path("/dev/kfd")  # the driver that ROCm needs


@dataclass(frozen=True, slots=True)
class Device:
    """Where a trial runs. `key` names it on this machine (`cpu` or the GPU's UUID), `name` for
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
    there = f"cuda:0 to cuda:{count - 1}" if count > 1 else "only cuda:0"
    return MachineError(
        f"there is no device {name}: this machine shows {there if count else 'no GPU'}",
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
