"""The reading of NVML against a double with pynvml's own signatures and habits: errors for what
is not supported, None for memory that is not told."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celedger.errors import MachineError
from celedger.model import Mark
from celedger.system import gpu
from celedger.system.telemetry import Sampler
from celedger.system.tree import Usage

ALIEN = 2**22 + 7  # above the kernel's largest pid: not visible here, as in a container


class NVMLError(Exception):
    pass


class FakeNvml(types.ModuleType):
    """Two GPUs; `values` overrides what a function answers, an exception is raised."""

    NVMLError = NVMLError

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.running: list[tuple[int, int | None]] = []
        self.drawing: list[tuple[int, int | None]] = []
        self.values: dict[str, Any] = {
            "nvmlDeviceGetMemoryInfo": types.SimpleNamespace(total=80 << 30),
            "nvmlDeviceGetUtilizationRates": types.SimpleNamespace(gpu=70, memory=20),
            "nvmlDeviceGetPowerUsage": 300_000,
            "nvmlDeviceGetTotalEnergyConsumption": 5_000_000,
            "nvmlDeviceGetCurrentClocksEventReasons": 0,
            "nvmlSystemGetCudaDriverVersion_v2": 12040,
        }

    def nvmlInit(self) -> None:  # noqa: N802
        if "nvmlInit" in self.values:
            raise self.values["nvmlInit"]

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        if uuid == "MIG-abc":
            return 2
        raise NVMLError("Not Found")

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return ["GPU-aaaa-0", "GPU-bbbb-1", "MIG-abc"][handle]

    def nvmlDeviceGetName(self, handle: int) -> str:  # noqa: N802
        return "NVIDIA H200"

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "550.54"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802
        return [types.SimpleNamespace(pid=p, usedGpuMemory=m) for p, m in self.running]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802
        return [types.SimpleNamespace(pid=p, usedGpuMemory=m) for p, m in self.drawing]

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:  # noqa: N802
        assert kind == 1
        return 1980

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:  # noqa: N802
        assert sensor == 0
        return 61

    def __getattr__(self, name: str) -> Callable[..., Any]:
        try:
            value = self.__dict__["values"][name]
        except KeyError:
            raise AttributeError(name) from None

        def answer(*arguments: object) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

        return answer


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpu._nvml.cache_clear()
    yield fake
    gpu._nvml.cache_clear()


def test_devices_are_described(nvml: FakeNvml) -> None:
    first, second = gpu.gpus()
    assert (first.uuid, second.uuid) == ("GPU-aaaa-0", "GPU-bbbb-1")
    assert (first.name, first.memory) == ("NVIDIA H200", 80 << 30)
    assert (first.driver, first.cuda) == ("550.54", "12.4")


def test_a_sample_has_si_units_and_only_the_trials_own_memory(nvml: FakeNvml) -> None:
    here, other = os.getpid(), os.getppid()
    nvml.running = [(here, 4 << 30), (other, 9 << 30)]
    nvml.drawing = [(here, 1 << 30), (1, 2 << 30)]
    seen = gpu.sample(gpu.gpus()[0], {here})
    assert seen.memory == 4 << 30
    assert seen.others == {other}
    assert (seen.utilisation, seen.power, seen.energy) == (70, 300.0, 5000.0)
    assert (seen.clock, seen.temperature, seen.throttled) == (1980, 61, False)


def test_pids_of_another_namespace_belong_to_whoever_came_first(nvml: FakeNvml) -> None:
    nvml.running = [(ALIEN, 5), (ALIEN + 1, 7)]
    seen = gpu.sample(gpu.gpus()[0], {os.getpid()}, before={ALIEN})
    assert (seen.memory, seen.others) == (7, {ALIEN})


@pytest.mark.parametrize(
    ("reasons", "throttled"),
    [(0x1, False), (0x4, False), (0x102, False), (0x8, True), (0x24, True), (0x40, True),
     (0x80, True)],
)  # fmt: skip
def test_heat_and_brakes_throttle_but_idling_and_the_power_cap_do_not(
    nvml: FakeNvml, reasons: int, throttled: bool
) -> None:
    nvml.values["nvmlDeviceGetCurrentClocksEventReasons"] = reasons
    assert gpu.sample(gpu.gpus()[0], ()).throttled is throttled
    old = nvml.values
    old["nvmlDeviceGetCurrentClocksThrottleReasons"] = old.pop(
        "nvmlDeviceGetCurrentClocksEventReasons"
    )
    assert gpu.sample(gpu.gpus()[0], ()).throttled is throttled


def test_what_is_not_supported_is_none_and_never_raises(nvml: FakeNvml) -> None:
    for name in list(nvml.values):
        nvml.values[name] = NVMLError("Not Supported")
    nvml.running = [(os.getpid(), None)]
    (device, _) = gpu.gpus()
    assert (device.memory, device.cuda) == (None, "")
    seen = gpu.sample(device, {os.getpid()})
    assert (seen.memory, seen.utilisation, seen.power, seen.energy) == (None, None, None, None)
    assert (seen.throttled, seen.others) == (None, frozenset())
    assert seen.clock == 1980


@pytest.mark.parametrize("error", [NVMLError("Driver Not Loaded"), OSError("libnvidia-ml.so")])
def test_without_a_driver_there_are_no_gpus(nvml: FakeNvml, error: Exception) -> None:
    nvml.values["nvmlInit"] = error
    assert gpu.gpus() == []
    assert gpu.resolve("auto", {}) == gpu.CPU


def test_without_the_library_there_are_no_gpus(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu.gpus() == []


def test_devices_are_chosen_as_cuda_counts_them(nvml: FakeNvml) -> None:
    def key(name: str, visible: str | None = None) -> str:
        return gpu.resolve(name, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}).key

    assert key("auto") == key("cuda:0") == key("cuda") == "GPU-aaaa-0"
    assert key("cuda:1") == "GPU-bbbb-1"
    assert key("cuda:0", "1") == key("cuda:0", "GPU-b") == "GPU-bbbb-1"
    assert key("cuda:1", "1, 0") == "GPU-aaaa-0"
    assert key("auto", "MIG-abc") == "MIG-abc"
    assert key("auto", "") == key("auto", "-1") == key("cpu") == "cpu"
    device = gpu.resolve("cuda:1", {})
    assert (device.name, device.visible) == ("cuda:1", "GPU-bbbb-1")
    assert gpu.resolve("cpu", {}).visible == ""


@pytest.mark.parametrize("name", ["cuda:2", "cuda:-1", "gpu", "cuda:x", "", "CPU", "auto:1"])
def test_a_device_that_is_not_there_is_an_error(nvml: FakeNvml, name: str) -> None:
    with pytest.raises(MachineError, match="device") as caught:
        gpu.resolve(name, {})
    assert caught.value.hint


def test_the_figures_of_an_interval_and_of_the_trial(nvml: FakeNvml) -> None:
    now = [0.0]
    here = os.getpid()
    sampler = Sampler(gpu.gpus()[0], lambda: now[0])
    usage = Usage(99, (here,), 1000, 0.0)
    for memory, power, joules in ((10, 100, 5010), (30, 200, 5030), (20, 300, 5060)):
        now[0] += 1.0
        nvml.running = [(here, memory)]
        nvml.values["nvmlDeviceGetPowerUsage"] = power * 1000
        nvml.values["nvmlDeviceGetTotalEnergyConsumption"] = joules * 1000
        sampler.sample(lambda: usage)
    assert sampler.take() == {
        "rss": 1000.0, "cpu_share": 0.0, "gpu_memory": 30.0, "gpu_utilisation": 70.0,
        "gpu_power": 200.0, "gpu_energy": 60.0, "gpu_clock": 1980.0, "gpu_temperature": 61.0,
    }  # fmt: skip
    now[0] += 1.0
    nvml.values["nvmlDeviceGetTotalEnergyConsumption"] = 5_100_000
    second = sampler.take()
    assert (second["gpu_energy"], second["gpu_memory"]) == (40.0, 20.0)
    assert sampler.totals() == {"peak_rss": 1000.0, "gpu_memory": 30.0, "gpu_energy": 100.0}
    assert sampler.marks == set()


def test_a_stranger_disturbs_and_heat_throttles_but_a_dying_trial_is_no_stranger(
    nvml: FakeNvml,
) -> None:
    now = [0.0]
    here = os.getpid()
    sampler = Sampler(gpu.gpus()[0], lambda: now[0])
    nvml.running = [(here, 10)]
    for usage in (Usage(99, (here,), 1000, 0.0), Usage()):
        now[0] += 1.0
        sampler.sample(lambda usage=usage: usage)  # type: ignore[misc]
    assert sampler.marks == set()
    nvml.running.append((os.getppid(), 1))
    nvml.values["nvmlDeviceGetCurrentClocksEventReasons"] = 0x40
    now[0] += 1.0
    sampler.take()
    assert sampler.marks == {Mark.DISTURBED, Mark.THROTTLED}


def test_the_real_library_is_read_without_an_error_whatever_the_machine_has() -> None:
    code = (
        "from celedger.system import gpu; import sys; assert 'pynvml' not in sys.modules\n"
        "for one in gpu.gpus(): print(one, gpu.sample(one, ()))\n"
        "print(gpu.resolve('auto').name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
