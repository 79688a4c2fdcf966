"""The devices: what NVML says of GPUs as plain data, the choice of one, and its lock.

NVML (NVML API Reference Guide) is asked here alone. No library, no driver and no device all read as
an empty list, a value that NVML does not support as None: a measurement that cannot be made must
never fail a trial. A device is chosen from a name: a GPU, a MIG slice or the CPU, within what
CUDA_VISIBLE_DEVICES shows. One that is not there, or that cannot be measured, is an error.

The lock of a device is shared by all users of the machine, so that two trials never measure each
other. A trial on some of the CPU's cores shares the lock of the CPU and holds the locks of its
cores, so that a trial on the whole CPU waits for it, and one on other cores does not.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from celedger.base import files
from celedger.base.errors import MachineError, explained
from celedger.base.files import Lock, is_locked, try_flock

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


# --- the choice of a device

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
    sample = GpuReader(gpu).sample()
    return bool((sample.active or frozenset()) & (sample.processes or {}).keys())


def _visible_gpus(env: Mapping[str, str], *, numbered: bool) -> list[Gpu]:
    """Return the GPUs as CUDA reads its variable: numbers or UUIDs (a beginning is enough), the
    list ending at the first that does not exist. Trials count in the order of the PCI bus; CUDA
    itself does only where CUDA_DEVICE_ORDER says so, else it counts the fastest first (CUDA C++
    Programming Guide, "CUDA Environment Variables"). Raises MachineError where that differs."""
    every, visible = gpus(), env.get("CUDA_VISIBLE_DEVICES")
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
            if not matching and (instance := mig_slice(word)) is not None:
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


_POLL = 0.05  # seconds between two attempts to take a device
_NAMELESS = 20  # attempts after which a holder without a name is reported: its disk is full


@dataclass(frozen=True, slots=True)
class Holder:
    """The holder of a device. `since` in seconds since the epoch; a pid of 0 is one not known."""

    pid: int = 0
    label: str = "another celedger"
    since: float = 0.0

    def __str__(self) -> str:
        since = time.strftime("%H:%M:%S", time.localtime(self.since))
        return f"{self.label} (process {self.pid}, since {since})" if self.pid else self.label


def default_folder() -> Path:
    """Return where the device locks of this machine are: CELEDGER_LOCK_DIR, or in its temporary
    folder."""
    folder = os.environ.get("CELEDGER_LOCK_DIR")
    return Path(folder or Path(tempfile.gettempdir()) / "celedger-locks")


class DeviceLock:
    """The right to measure on one device of this machine, or on some cores of the CPU. `device` is
    its key (`cpu` or a GPU's UUID), `label` what the others are told while they wait."""

    def __init__(self, device: str, *, folder: Path, label: str, cores: Sequence[int] = ()) -> None:
        self.path = folder / (re.sub(r"[^A-Za-z0-9_.-]", "_", device) + ".lock")
        self.label = label
        # Of the last file who holds it is written. All take them in this order, so that no two wait
        # for each other.
        self._paths = [self.path, *(_core(self.path, str(core)) for core in sorted(cores))]
        self._taken = 0  # when, by the clock of that file, in ns

    def free(self) -> bool:
        """Return True if nobody holds it now."""
        return not is_locked(self.path)

    def of(self, device: str, cores: Sequence[int] = ()) -> DeviceLock:
        """Return the lock of another device, or of some cores."""
        return DeviceLock(device, folder=self.path.parent, label=self.label, cores=cores)

    @contextlib.contextmanager
    def hold(
        self, on_wait: Callable[[Holder], None], check: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        """Wait for the device, and hold it for the body. `on_wait` is called once for each process
        waited for; `check` at each poll, and what it raises ends the wait. Raises MachineError when
        the lock's folder or file cannot be used.

        Who wants the device must first hold the turnstile, a second lock, and keeps it until the
        device is free. So one that runs trial after trial lets a waiter in between two of them.
        """
        _make_shared_folder(self.path.parent)
        announced = -1  # the process that `on_wait` was told of

        def taken(path: Path, *, shared: bool = False) -> Lock:
            nonlocal announced
            attempts = 0
            while (lock := try_flock(path, mode=0o666, shared=shared)) is None:
                check()
                files = [path.with_suffix(".lock"), *self.path.parent.glob(_core(path, "*").name)]
                holder = next(filter(None, map(_holder, files)), None)
                attempts += 1
                if holder is None and announced < 0 and attempts >= _NAMELESS:
                    holder = Holder()
                if holder is not None and holder.pid != announced:
                    announced = holder.pid
                    on_wait(holder)
                time.sleep(_POLL)
            return lock

        with contextlib.ExitStack() as locks:
            for path in self._paths:
                with taken(path.with_suffix(".turn")):
                    shared = path == self.path != self._paths[-1]
                    lock = locks.enter_context(taken(path, shared=shared))
            lock.write(json.dumps(asdict(Holder(os.getpid(), self.label, time.time()))))
            self._taken = lock.path.stat().st_mtime_ns
            try:
                yield
            finally:
                lock.write("")

    def was_shared(self) -> bool:
        """Return True if, since this lock was taken, another one was held: of another GPU, or of
        other cores. Who takes or releases one writes its file."""
        for path in set(self.path.parent.glob("*.lock")).difference(self._paths):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime_ns > self._taken or _held(path):
                    return True
        return False


def _core(device: Path, core: str) -> Path:
    return device.with_name(f"{device.stem}-{core}.lock")


def _holder(path: Path) -> Holder | None:
    """Return who the file says holds it; None when it says nothing that can be understood."""
    try:
        facts = json.loads(path.read_text())
        return Holder(int(facts["pid"]), str(facts["label"]), float(facts["since"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _held(path: Path) -> bool:
    """Return True if the process that the file names lives: a dead one left its name."""
    holder = _holder(path)
    return holder is not None and Path(f"/proc/{holder.pid}").exists()


def _make_shared_folder(folder: Path) -> None:
    with explained(
        f"the folder of device locks {folder} cannot be made",
        "set CELEDGER_LOCK_DIR to a folder that all users of this machine can write",
    ):
        with files.as_the_user():
            folder.mkdir(parents=True, exist_ok=True)
        state = folder.stat()
        if state.st_uid == os.geteuid() and stat.S_IMODE(state.st_mode) != 0o1777:
            folder.chmod(0o1777)  # like /tmp: all may add a lock, none may remove another's
