"""NVML's answers about the GPUs, as plain data (NVML API Reference Guide). The only importer of
pynvml. No library, no driver and no device all read as an empty list, a value that NVML does not
support as None: a measurement that cannot be made must never fail a trial. Must not judge: whose a
process is, and what a reason costs, is decided in `gpu.py` and `telemetry.py`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_CLOCK_SM, _CLOCK_MEMORY = 1, 2  # nvmlClockType_t
_TEMPERATURE_GPU = 0  # nvmlTemperatureSensors_t
_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")  # nvmlComputeMode_t
_NOBODY = (0, 6)  # nvmlReturn_t: NVML_SUCCESS, NVML_ERROR_NOT_FOUND
_LIBRARY = "libnvidia-ml.so.1"  # of the driver; what pynvml loads
_MPS_SERVER = "nvidia-cuda-mps-server"  # runs the kernels of its clients, none of its own


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or a MIG slice of one. `memory` in bytes; `driver` and `cuda` (what the driver
    supports) as versions; `settings` are what an administrator set; `slices` the UUIDs of its MIG
    slices, None without MIG; `fastest` the highest SM clock in MHz."""

    uuid: str
    name: str
    memory: int | None
    driver: str
    cuda: str
    handle: Any = field(repr=False, compare=False)
    settings: Mapping[str, object] = field(default_factory=dict, hash=False)
    slices: tuple[str, ...] | None = None
    fastest: int | None = None


@dataclass(frozen=True, slots=True)
class GpuSample:
    """The answers of one moment; what is not supported is None. Bytes, %, W, J since the driver was
    loaded, MHz of the SM clock, °C.

    `processes`: pid -> bytes of those with a context (no MPS server). `active`: pids that computed
    since the sample before. `used`: bytes of the whole device. `reasons`: the bits of
    nvmlDeviceGetCurrentClocksEventReasons.
    """

    processes: Mapping[int, int | None] | None = None
    active: frozenset[int] | None = None
    used: int | None = None
    utilisation: float | None = None
    power: float | None = None
    energy: float | None = None
    clock: float | None = None
    temperature: float | None = None
    reasons: int | None = None


@functools.cache
def _nvml() -> Any | None:
    try:
        ctypes.CDLL(_LIBRARY)  # where there is none, importing pynvml is for nothing

        import pynvml

        pynvml.nvmlInit()
    except Exception:  # absent, broken or refused: pynvml has an exception type for each
        return None
    return pynvml


def _ask(function: str, *arguments: object) -> Any:
    """Return the answer of an NVML function, or None. Whatever it raises is `None` too: NVMLError
    for what is not supported, AttributeError for what an older pynvml lacks."""
    try:
        return getattr(_nvml(), function)(*arguments)
    except Exception:
        return None


def gpus() -> list[Gpu]:
    """Return all GPUs of the machine, in NVML's order (that of the PCI bus)."""
    if _nvml() is None:
        return []
    handles = [
        _ask("nvmlDeviceGetHandleByIndex", i) for i in range(_ask("nvmlDeviceGetCount") or 0)
    ]
    return [gpu for handle in handles if (gpu := _describe(handle)) is not None]


def mig_slice(uuid: str) -> Gpu | None:
    """Return the MIG slice of this UUID, which is not in the list of whole GPUs."""
    return _describe(_ask("nvmlDeviceGetHandleByUUID", uuid))


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
        _settings(_board(handle)),
        _slices(handle),
        _ask("nvmlDeviceGetMaxClockInfo", _board(handle), _CLOCK_SM),
    )


def _board(handle: Any) -> Any:
    """Return the whole GPU of a MIG slice, whose clock, heat and settings are the slice's."""
    board = _ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
    return handle if board is None else board


def _settings(handle: Any) -> dict[str, object]:
    """Return what an administrator set. NVML has no answer for locked clocks (`nvidia-smi -lgc`):
    they show in the clock of the samples alone."""
    limit = _ask("nvmlDeviceGetEnforcedPowerLimit", handle)
    ecc = _ask("nvmlDeviceGetEccMode", handle)
    mode = _ask("nvmlDeviceGetComputeMode", handle)
    persistence = _ask("nvmlDeviceGetPersistenceMode", handle)
    clocks = [
        _ask("nvmlDeviceGetApplicationsClock", handle, kind) for kind in (_CLOCK_SM, _CLOCK_MEMORY)
    ]
    return {
        "power_limit": None if limit is None else round(limit / 1e3),
        "application_clocks": clocks if None not in clocks else None,
        "ecc": None if ecc is None else bool(ecc[0]),
        "compute_mode": _MODES[mode] if mode in range(len(_MODES)) else None,
        "persistence": None if persistence is None else bool(persistence),
    }


def _slices(handle: Any) -> tuple[str, ...] | None:
    mode = _ask("nvmlDeviceGetMigMode", handle)
    if not mode or not mode[0]:
        return None
    most = _ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0
    handles = [_ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, i) for i in range(most)]
    uuids = [_ask("nvmlDeviceGetUUID", one) for one in handles if one is not None]
    return tuple(filter(None, uuids))


class GpuReader:
    """Take samples of one GPU. The first one's `active` is of the last seconds before it."""

    def __init__(self, gpu: Gpu) -> None:
        self._handle, self._board = gpu.handle, _board(gpu.handle)
        self._since = 0  # µs, the newest activity that was read
        self._servers: dict[int, bool] = {}

    def sample(self) -> GpuSample:
        handle, board = self._handle, self._board
        power = _ask("nvmlDeviceGetPowerUsage", handle)
        energy = _ask("nvmlDeviceGetTotalEnergyConsumption", handle)
        reasons = _ask("nvmlDeviceGetCurrentClocksEventReasons", board)
        if reasons is None:  # its name before driver 535
            reasons = _ask("nvmlDeviceGetCurrentClocksThrottleReasons", board)
        return GpuSample(
            processes=self._processes(),
            active=self._active(),
            used=getattr(_ask("nvmlDeviceGetMemoryInfo", handle), "used", None),
            utilisation=getattr(_ask("nvmlDeviceGetUtilizationRates", handle), "gpu", None),
            power=None if power is None else power / 1e3,
            energy=None if energy is None else energy / 1e3,
            clock=_ask("nvmlDeviceGetClockInfo", board, _CLOCK_SM),
            temperature=_ask("nvmlDeviceGetTemperature", board, _TEMPERATURE_GPU),
            reasons=reasons,
        )

    def _processes(self) -> dict[int, int | None] | None:
        listed = _ask("nvmlDeviceGetComputeRunningProcesses", self._handle)
        if listed is None:
            return None
        clients = _ask("nvmlDeviceGetMPSComputeRunningProcesses", self._handle) or ()
        sizes = {int(one.pid): getattr(one, "usedGpuMemory", None) for one in (*listed, *clients)}
        return {pid: size for pid, size in sizes.items() if not self._is_server(pid)}

    def _is_server(self, pid: int) -> bool:
        if pid not in self._servers:
            name = str(_ask("nvmlSystemGetProcessName", pid) or "")
            self._servers[pid] = name.rpartition("/")[2].startswith(_MPS_SERVER)
        return self._servers[pid]

    def _active(self) -> frozenset[int] | None:
        """Return who computed since the last call; None where NVML does not count it (MIG)."""
        try:
            rows = _nvml().nvmlDeviceGetProcessUtilization(self._handle, self._since)  # type: ignore[union-attr]
        except Exception as error:  # "not found", or "success" without a row: nobody computed
            return frozenset() if getattr(error, "value", None) in _NOBODY else None
        rows = [row for row in rows if row.timeStamp > self._since]
        self._since = max([self._since, *(int(row.timeStamp) for row in rows)])
        return frozenset(int(row.pid) for row in rows if row.smUtil)
