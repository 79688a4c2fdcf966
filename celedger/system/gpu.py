"""What NVML knows of the GPUs, and the choice of a device. The only importer of pynvml.
No library, no driver and no device all read as an empty list, a value that NVML does not
support as None: a measurement that cannot be made must never fail a trial.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celedger.errors import MachineError

# Reasons of nvmlDeviceGetCurrentClocksEventReasons (NVML API reference, "Clocks Event Reasons")
# after which a time cannot be compared: hardware slowdown (0x08), software (0x20) and hardware
# (0x40) thermal slowdown, external power brake (0x80). Not so: idle (0x01), chosen clocks
# (0x02, 0x10, 0x100), and the software power cap (0x04), which is the normal state of a
# power-limited board under load and equal for all trials.
THROTTLED = 0x08 | 0x20 | 0x40 | 0x80

_CLOCK_SM = 1  # nvmlClockType_t
_TEMPERATURE_GPU = 0  # nvmlTemperatureSensors_t


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. `memory` in bytes; `driver` and `cuda` (what the driver supports) as versions."""

    uuid: str
    name: str
    memory: int | None
    driver: str
    cuda: str
    handle: Any = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One look at a GPU; what is not supported is None. Bytes, %, W, J since the driver was
    loaded, MHz of the SM clock, °C. `others`: pids of other computing processes on it."""

    memory: int | None = None
    others: frozenset[int] = frozenset()
    utilisation: float | None = None
    power: float | None = None
    energy: float | None = None
    clock: float | None = None
    temperature: float | None = None
    throttled: bool | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """Where a trial runs. `key` names it on this machine (`cpu` or the GPU's UUID), `name` for
    people (`cpu`, `cuda:0`), `visible` is the trial's CUDA_VISIBLE_DEVICES."""

    key: str
    name: str
    visible: str
    gpu: Gpu | None = None


CPU = Device("cpu", "cpu", "")


@functools.cache
def _nvml() -> Any | None:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # absent, broken or refused: pynvml has an exception type for each
        return None
    return pynvml


def _ask(function: str, *arguments: object) -> Any:
    """What the function of NVML says, or None. Whatever it raises is `None` too: NVMLError for
    what is not supported, AttributeError for what an older pynvml lacks."""
    try:
        return getattr(_nvml(), function)(*arguments)
    except Exception:
        return None


def gpus() -> list[Gpu]:
    """All GPUs of the machine, in NVML's order (that of the PCI bus)."""
    if _nvml() is None:
        return []
    handles = [
        _ask("nvmlDeviceGetHandleByIndex", i) for i in range(_ask("nvmlDeviceGetCount") or 0)
    ]
    return [gpu for handle in handles if (gpu := _describe(handle)) is not None]


def _describe(handle: Any) -> Gpu | None:
    uuid = _ask("nvmlDeviceGetUUID", handle) if handle is not None else ""
    if not uuid:  # fallen off the bus
        return None
    version = _ask("nvmlSystemGetCudaDriverVersion_v2") or 0  # 12040 is 12.4
    return Gpu(
        uuid,
        _ask("nvmlDeviceGetName", handle) or "",
        getattr(_ask("nvmlDeviceGetMemoryInfo", handle), "total", None),
        _ask("nvmlSystemGetDriverVersion") or "",
        f"{version // 1000}.{version % 1000 // 10}" if version else "",
        handle,
    )


def computing(gpu: Gpu) -> dict[int, int | None]:
    """pid -> bytes (None: not told) of the processes that compute on it."""
    return _processes("nvmlDeviceGetComputeRunningProcesses", gpu)


def _processes(function: str, gpu: Gpu) -> dict[int, int | None]:
    return {
        int(process.pid): getattr(process, "usedGpuMemory", None)
        for process in _ask(function, gpu.handle) or ()
    }


def sample(gpu: Gpu, pids: Collection[int], before: Collection[int] = ()) -> GpuSample:
    """Looks at a GPU. `pids` are the trial's own processes, `before` those that computed on it
    before the trial began. Inside a container NVML tells the host's pids, which nobody here
    has: such a one is the trial's if it came after the trial began (the device lock keeps
    other trials away), and another's if it was there before."""
    running = computing(gpu)
    ours = {
        pid
        for pid in running
        if pid in pids or not (pid in before or Path(f"/proc/{pid}").exists())
    }
    drawing = _processes("nvmlDeviceGetGraphicsRunningProcesses", gpu)
    all_sizes = {p: size for p, size in (drawing | running).items() if p in ours or p in pids}
    sizes = [size for size in all_sizes.values() if size is not None]
    power = _ask("nvmlDeviceGetPowerUsage", gpu.handle)
    energy = _ask("nvmlDeviceGetTotalEnergyConsumption", gpu.handle)
    reasons = _ask("nvmlDeviceGetCurrentClocksEventReasons", gpu.handle)
    if reasons is None:  # its name before driver 535
        reasons = _ask("nvmlDeviceGetCurrentClocksThrottleReasons", gpu.handle)
    return GpuSample(
        memory=sum(sizes) if sizes else None,
        others=frozenset(running) - ours,
        utilisation=getattr(_ask("nvmlDeviceGetUtilizationRates", gpu.handle), "gpu", None),
        power=None if power is None else power / 1e3,
        energy=None if energy is None else energy / 1e3,
        clock=_ask("nvmlDeviceGetClockInfo", gpu.handle, _CLOCK_SM),
        temperature=_ask("nvmlDeviceGetTemperature", gpu.handle, _TEMPERATURE_GPU),
        throttled=None if reasons is None else bool(reasons & THROTTLED),
    )


def resolve(name: str, env: Mapping[str, str] = os.environ) -> Device:
    """The device for `auto` (the first GPU, else the CPU), `cpu`, `cuda` or `cuda:N`. N counts
    as CUDA itself would: within CUDA_VISIBLE_DEVICES where that is set. Raises MachineError for
    a device that is not there."""
    if name == "cpu":
        return CPU
    kind, _, number = name.partition(":")
    if name != "auto" and (kind != "cuda" or not (number.isdecimal() or name == "cuda")):
        raise MachineError(f"no device is called {name!r}", "use auto, cpu or cuda:N")
    shown = _visible_gpus(env.get("CUDA_VISIBLE_DEVICES"))
    index = int(number or 0)
    if index < len(shown):
        gpu = shown[index]
        return Device(gpu.uuid, f"cuda:{index}", gpu.uuid, gpu)
    if name == "auto":
        return CPU
    there = f"cuda:0 to cuda:{len(shown) - 1}" if len(shown) > 1 else "only cuda:0"
    raise MachineError(
        f"there is no device {name}: this machine shows {there if shown else 'no GPU'}",
        "use --device cpu, or check `nvidia-smi` and CUDA_VISIBLE_DEVICES",
    )


def alike(device: Device, env: Mapping[str, str] = os.environ) -> list[Device]:
    """Return the visible GPUs of the same kind as that of a device, itself first."""
    every = [
        Device(gpu.uuid, f"cuda:{number}", gpu.uuid, gpu)
        for number, gpu in enumerate(_visible_gpus(env.get("CUDA_VISIBLE_DEVICES")))
    ]
    assert device.gpu is not None
    kind = device.gpu.name, device.gpu.memory
    others = [d for d in every if d.gpu and (d.gpu.name, d.gpu.memory) == kind]
    return sorted(others, key=lambda other: other.key != device.key)


def _visible_gpus(visible: str | None) -> list[Gpu]:
    """As CUDA reads the variable: numbers or UUIDs (a beginning is enough), the list ending at
    the first that does not exist."""
    everything = gpus()
    if visible is None:
        return everything
    chosen: list[Gpu] = []
    for word in filter(None, map(str.strip, visible.split(","))):
        if word.isdecimal():
            matching = everything[int(word) : int(word) + 1]
        else:
            matching = [gpu for gpu in everything if gpu.uuid.startswith(word)]
            if not matching:  # a MIG instance is not in the list of whole GPUs
                instance = _describe(_ask("nvmlDeviceGetHandleByUUID", word))
                matching = [instance] if instance else []
        if len(matching) != 1:
            break
        chosen += matching
    return chosen
