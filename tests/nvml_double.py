"""A double of pynvml that replays recorded answers, and the recordings.

No GPU was at hand: the recordings are written from NVIDIA's documentation (NVML API Reference
Guide R470 to R590; MIG User Guide, "Device Nodes and Capabilities"; Multi-Process Service, 2.3.5
"nvidia-smi"), not taken from a device. Each names what NVML answers in one kind of place.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

GIB = 1 << 30
NOT_SUPPORTED, NOT_FOUND = 3, 6  # nvmlReturn_t


class NVMLError(Exception):
    """As pynvml's: its `value` is an nvmlReturn_t."""

    def __init__(self, value: int) -> None:
        super().__init__({NOT_SUPPORTED: "Not Supported", NOT_FOUND: "Not Found"}.get(value))
        self.value = value


def memory(used: float, total: float = 80) -> SimpleNamespace:
    return SimpleNamespace(used=int(used * GIB), total=int(total * GIB))


def running(*rows: tuple[int, float | None]) -> list[SimpleNamespace]:
    """Return a process list: pid and GiB, None for NVML_VALUE_NOT_AVAILABLE."""
    sizes = [(pid, None if gib is None else int(gib * GIB)) for pid, gib in rows]
    return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in sizes]


def active(stamp: int, *pids: int) -> list[SimpleNamespace]:
    """Return samples of nvmlDeviceGetProcessUtilization at a time (µs)."""
    return [SimpleNamespace(pid=pid, smUtil=40, memUtil=5, timeStamp=stamp) for pid in pids]


RUNNING = "nvmlDeviceGetComputeRunningProcesses"
CLIENTS = "nvmlDeviceGetMPSComputeRunningProcesses"
MEMORY = "nvmlDeviceGetMemoryInfo"
ACTIVE = "nvmlDeviceGetProcessUtilization"
RATES = "nvmlDeviceGetUtilizationRates"
REASONS = "nvmlDeviceGetCurrentClocksEventReasons"
CLOCK = "nvmlDeviceGetClockInfo"

WHOLE: dict[str, Any] = {
    "nvmlDeviceGetUUID": "GPU-aaaa-0",
    "nvmlDeviceGetName": "NVIDIA H200",
    MEMORY: memory(0),
    RUNNING: [],
    CLIENTS: [],
    ACTIVE: NVMLError(NOT_FOUND),
    RATES: SimpleNamespace(gpu=70, memory=20),
    "nvmlDeviceGetPowerUsage": 300_000,
    "nvmlDeviceGetTotalEnergyConsumption": 5_000_000,
    REASONS: 0,
    CLOCK: 1980,
    "nvmlDeviceGetMaxClockInfo": 1980,
    "nvmlDeviceGetTemperature": 61,
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetApplicationsClock": 1980,
    "nvmlDeviceGetEccMode": [1, 1],
    "nvmlDeviceGetComputeMode": 0,
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetMigMode": [0, 0],
}
SECOND = WHOLE | {"nvmlDeviceGetUUID": "GPU-bbbb-1"}
OTHER_MODEL = SECOND | {"nvmlDeviceGetName": "NVIDIA RTX A2000"}
# A GPU in MIG mode, and one of its slices: use, clocks, power and heat are not told by slice.
SPLIT = WHOLE | {
    "nvmlDeviceGetMigMode": [1, 1], "nvmlDeviceGetMaxMigDeviceCount": 7,
    "nvmlDeviceGetMigDeviceHandleByIndex": lambda index: {0: "MIG-abc"}[index],
    RATES: NVMLError(NOT_SUPPORTED), ACTIVE: NVMLError(NOT_SUPPORTED),
}  # fmt: skip
SLICE = {
    "nvmlDeviceGetUUID": "MIG-abc", "nvmlDeviceGetName": "NVIDIA H200 MIG 1g.18gb",
    MEMORY: memory(0, 18), RUNNING: [], "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": 0,
}  # fmt: skip
# R470: no event reasons by that name, no list of MPS clients, process memory as on any other.
R470 = {key: value for key, value in WHOLE.items() if key not in (REASONS, CLIENTS)} | {
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0
}

Steps = list[dict[str, Any]]
HERE, LATER, HOST = 4_000_001, 4_000_002, 4_000_100  # process numbers; HOST's are foreign here

# What NVML answers, moment after moment: before the trial, then while it runs. In a container the
# lists are empty (its own PID namespace hides them) or hold the host's numbers.
HIDDEN: Steps = [{MEMORY: memory(10)}, {MEMORY: memory(12)}]
FOREIGN: Steps = [
    {MEMORY: memory(10), RUNNING: running((HOST, 10))},
    {MEMORY: memory(12), RUNNING: running((HOST, 10), (HOST + 1, 2)), ACTIVE: active(1, HOST + 1)},
]
FOREIGN_STRANGER: Steps = [
    *FOREIGN,
    {
        MEMORY: memory(72), RUNNING: running((HOST, 10), (HOST + 1, 2), (HOST + 2, 60)),
        ACTIVE: active(2, HOST + 1, HOST + 2),
    },
]  # fmt: skip
NOTEBOOK: Steps = [
    {RUNNING: running((LATER, 3)), MEMORY: memory(3)},
    {RUNNING: running((LATER, 3), (HERE, 2)), MEMORY: memory(5), ACTIVE: active(1, HERE)},
]
NOTEBOOK_AT_WORK: Steps = [*NOTEBOOK, NOTEBOOK[1] | {ACTIVE: active(2, HERE, LATER)}]
MPS: Steps = [
    {RUNNING: running((77, 0.03)), MEMORY: memory(0.03)},
    {RUNNING: running((77, 0.03)), CLIENTS: running((HERE, 2)), MEMORY: memory(2),
     ACTIVE: active(1, HERE)},
]  # fmt: skip
MIG_NEIGHBOUR: Steps = [{}, {RUNNING: running((HERE, None), (LATER, None)), MEMORY: memory(5, 18)}]


class NvmlDouble(types.ModuleType):
    """pynvml for the GPUs `devices`: a function's answer for a handle, by its name. An exception is
    raised, a function is called; what is absent raises as what pynvml lacks does."""

    def __init__(self, *devices: Mapping[str, Any], **system: Any) -> None:
        super().__init__("pynvml")
        self.NVMLError = NVMLError
        self.devices = [dict(device) for device in devices]
        self.hidden = [dict(SLICE)]  # known by UUID alone
        self.system = {
            "nvmlInit": None, "nvmlSystemGetCudaDriverVersion_v2": 12040,
            "nvmlSystemGetDriverVersion": "550.54", "nvmlDeviceGetCount": len(devices), **system,
        }  # fmt: skip

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if any(one["nvmlDeviceGetUUID"] == uuid for one in self.hidden):
            return uuid
        raise NVMLError(NOT_FOUND)

    def nvmlSystemGetProcessName(self, pid: int) -> str:  # noqa: N802
        return "/usr/bin/nvidia-cuda-mps-server" if pid == 77 else "python"

    def _answers(self, handle: Any) -> dict[str, Any]:
        if isinstance(handle, int):
            return self.devices[handle]
        return next(one for one in self.hidden if one["nvmlDeviceGetUUID"] == handle)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def answer(*arguments: Any) -> Any:
            if name in self.system:
                value = self.system[name]
            elif name in (answers := self._answers(arguments[0])):
                value, arguments = answers[name], arguments[1:]
            else:
                raise AttributeError(name)
            if isinstance(value, Exception):
                raise value
            return value(*arguments) if callable(value) else value

        return answer
