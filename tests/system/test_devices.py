"""Devices and figures of the GPU, against a double that replays NVML's answers (nvml_double.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nvml_double as double
import pytest
from nvml_double import GIB, HERE, HOST, LATER, NvmlDouble, NVMLError

from celedger.base.errors import MachineError
from celedger.base.model import Mark
from celedger.system import devices
from celedger.system.process import Usage
from celedger.system.telemetry import POWER_CAPPED, Sampler

Install = Callable[..., NvmlDouble]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Return what puts a double in pynvml's place, for two GPUs of one model by default."""

    def installed(*shown: dict[str, Any], **system: Any) -> NvmlDouble:
        made = NvmlDouble(*(shown or (double.WHOLE, double.SECOND)), **system)
        monkeypatch.setitem(sys.modules, "pynvml", made)
        monkeypatch.setattr(devices, "_nvml", lambda: made)
        return made

    return installed


# --- devices


def key(name: str, visible: str | None = None, **more: str) -> str:
    env = more if visible is None else {"CUDA_VISIBLE_DEVICES": visible, **more}
    return devices.resolve(name, env).key


def test_devices_are_described_with_what_an_administrator_set(install: Install) -> None:
    install()
    first, second = devices.gpus()
    assert (first.uuid, second.uuid) == ("GPU-aaaa-0", "GPU-bbbb-1")
    assert (first.name, first.memory, first.fastest) == ("NVIDIA H200", 80 << 30, 1980)
    assert (first.driver, first.cuda, first.slices) == ("550.54", "12.4", None)
    assert first.settings == {
        "power_limit": 700, "application_clocks": [1980, 1980], "ecc": True,
        "compute_mode": "default", "persistence": True,
    }  # fmt: skip


@pytest.mark.parametrize("broken", [NVMLError(9), OSError("libnvidia-ml.so"), None])
def test_without_a_driver_or_library_there_are_no_gpus(
    monkeypatch: pytest.MonkeyPatch, broken: Exception | None
) -> None:
    library = broken and NvmlDouble(double.WHOLE, nvmlInit=broken)
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.setattr(devices, "_LIBRARY", "libc.so.6")
    devices._nvml.cache_clear()
    assert devices.gpus() == []
    assert devices.resolve("auto", {}) == devices.CPU
    devices._nvml.cache_clear()


def test_devices_are_chosen_as_cuda_counts_them(install: Install) -> None:
    install()
    assert key("auto") == key("cuda:0") == key("cuda") == "GPU-aaaa-0"
    assert key("cuda:1") == "GPU-bbbb-1"
    assert key("cuda:0", "1") == key("cuda:0", "GPU-b") == "GPU-bbbb-1"
    assert key("cuda:1", "1, 0") == "GPU-aaaa-0"
    assert key("auto", "MIG-abc") == "MIG-abc"
    assert key("auto", "") == key("auto", "-1") == key("cpu") == "cpu"
    device = devices.resolve("cuda:1", {})
    assert (device.name, device.visible) == ("cuda:1", "GPU-bbbb-1")
    assert devices.resolve("cpu", {}).visible == ""


@pytest.mark.parametrize("name", ["cuda:2", "cuda:-1", "gpu", "cuda:x", "", "CPU", "auto:1"])
def test_a_device_that_is_not_there_is_an_error(install: Install, name: str) -> None:
    install()
    with pytest.raises(MachineError, match="device") as caught:
        devices.resolve(name, {})
    assert caught.value.hint


def test_auto_takes_a_gpu_that_is_locked_by_nobody_and_idle(install: Install) -> None:
    made = install()
    second = devices.resolve("auto", {}, lambda uuid: uuid != "GPU-aaaa-0")
    assert (second.key, second.name) == ("GPU-bbbb-1", "cuda:1")
    made.devices[0] |= double.NOTEBOOK[0]
    assert devices.resolve("auto", {}).key == "GPU-aaaa-0"  # a notebook that rests
    made.devices[0][double.ACTIVE] = double.active(5, LATER)
    assert devices.resolve("auto", {}).key == "GPU-bbbb-1"
    assert devices.resolve("auto", {}, lambda uuid: False).key == "GPU-aaaa-0"  # waits for it


def test_a_number_is_refused_where_cuda_would_count_otherwise(install: Install) -> None:
    """CUDA counts the fastest first unless CUDA_DEVICE_ORDER says otherwise."""
    install(double.WHOLE, double.OTHER_MODEL)
    for name, visible in (("cuda:1", None), ("auto", "1"), ("cuda", "0")):
        with pytest.raises(MachineError, match="a number does not name a GPU here"):
            key(name, visible)
        key(name, visible, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert key("auto") == key("cuda:0", "GPU-aaaa-0") == "GPU-aaaa-0"


def test_a_gpu_in_mig_mode_is_refused_and_its_slice_works(install: Install) -> None:
    install(double.SPLIT)
    for name in ("auto", "cuda:0"):
        with pytest.raises(MachineError, match="split into MIG slices") as caught:
            key(name)
        assert caught.value.hint == "set CUDA_VISIBLE_DEVICES to MIG-abc"
    assert key("cuda:0", "MIG-abc") == "MIG-abc"
    install(double.SPLIT, double.SECOND)
    assert key("auto") == "GPU-bbbb-1"


def test_a_gpu_that_prohibits_computing_is_refused(install: Install) -> None:
    install(double.WHOLE | {"nvmlDeviceGetComputeMode": 2})
    with pytest.raises(MachineError, match="prohibits computing"):
        key("auto")


def test_rocm_is_named(install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(nvmlDeviceGetCount=0)
    monkeypatch.setattr(devices, "_AMD", tmp_path)
    with pytest.raises(MachineError, match="ROCm"):
        key("cuda:0")
    assert key("auto") == "cpu"


# --- whose memory, whose work


def watched(
    made: NvmlDouble, monkeypatch: pytest.MonkeyPatch, steps: Sequence[dict[str, Any]], *,
    here: bool, device: int = 0, period: float = 2.0,
) -> Sampler:  # fmt: skip
    """Replay a recording around a trial of one process, which has the GPU open from the second
    step on. `here`: process numbers are those of this PID namespace."""
    now = [0.0]
    monkeypatch.setattr(devices, "sees_all_processes", lambda: here)
    monkeypatch.setattr(devices, "contexts", len)
    shown = (made.devices if device == 0 else made.hidden)[0]
    sampler: Sampler | None = None
    for step in steps:
        shown |= step
        if sampler is None:
            chosen = devices.gpus()[0] if device == 0 else devices.mig_slice("MIG-abc")
            sampler = Sampler(chosen, lambda: now[0])
            continue
        now[0] += period
        sampler.sample(lambda: Usage(99, (HERE,), 1000, 0.0))
    assert sampler is not None
    return sampler


@pytest.mark.parametrize(
    ("steps", "here", "memory", "disturbed"),
    [
        (double.HIDDEN, False, {"gpu_memory_grown": 2 * GIB}, False),
        (double.FOREIGN, False, {"gpu_memory_grown": 2 * GIB}, False),
        (double.FOREIGN_STRANGER, False, {"gpu_memory_grown": 2 * GIB}, True),
        (double.NOTEBOOK, True, {"gpu_memory": 2 * GIB}, False),
        (double.NOTEBOOK_AT_WORK, True, {"gpu_memory": 2 * GIB}, True),
        (double.MPS, True, {"gpu_memory": 2 * GIB}, False),
    ],
    ids=["lists hidden", "foreign numbers", "a stranger", "notebook", "notebook at work", "mps"],
)
def test_memory_is_the_trials_and_only_work_of_others_disturbs(
    install: Install, monkeypatch: pytest.MonkeyPatch, steps: double.Steps, here: bool,
    memory: dict[str, float], disturbed: bool,
) -> None:  # fmt: skip
    sampler = watched(install(), monkeypatch, steps, here=here)
    totals = sampler.totals()
    assert {name: value for name, value in totals.items() if name.startswith("gpu_m")} == memory
    assert sampler.marks == ({Mark.DISTURBED} if disturbed else set())


def test_equal_numbers_in_two_name_spaces_are_not_one_process(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's process HERE is another's; the trial's own is HOST there."""
    before = {double.MEMORY: double.memory(9), double.RUNNING: double.running((HERE, 9))}
    after = {
        double.MEMORY: double.memory(10), double.RUNNING: double.running((HERE, 9), (HOST, 1)),
        double.ACTIVE: double.active(1, HOST),
    }  # fmt: skip
    sampler = watched(install(), monkeypatch, [before, after], here=False)
    assert sampler.totals()["gpu_memory_grown"] == GIB
    assert sampler.marks == set()


def test_in_a_mig_slice_the_memory_is_the_slices_and_any_neighbour_disturbs(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML tells neither a process's memory nor its use there."""
    made = install(double.SPLIT)
    alone = [{}, {double.RUNNING: double.running((HERE, None)), double.MEMORY: double.memory(2)}]
    sampler = watched(made, monkeypatch, alone, here=True, device=1)
    assert (sampler.totals()["gpu_memory_grown"], sampler.marks) == (2 * GIB, set())
    figures = sampler.take()  # the board's clock and heat, not its power and use
    assert (figures["gpu_clock"], figures["gpu_temperature"]) == (1980, 61)
    assert {"gpu_power", "gpu_energy", "gpu_utilisation"}.isdisjoint(figures)
    slice_ = devices.mig_slice("MIG-abc")
    assert slice_ is not None and slice_.settings["power_limit"] == 700
    made = install(double.SPLIT)
    sampler = watched(made, monkeypatch, double.MIG_NEIGHBOUR, here=True, device=1)
    assert "gpu_memory_grown" not in sampler.totals()
    assert sampler.marks == {Mark.DISTURBED}


def test_use_before_the_trial_opened_the_gpu_is_anothers() -> None:
    quiet = devices.GpuTenants(devices.GpuSample(), all_processes=False)
    quiet.look(devices.GpuSample(active=frozenset(), utilisation=30), (), 0, 0.5)
    assert not quiet.disturbed  # may be what ran before
    quiet.look(devices.GpuSample(active=frozenset(), utilisation=30), (), 0, 2.0)
    assert quiet.disturbed


def test_a_process_that_nvml_lists_before_it_is_known_as_the_trials_is_no_stranger() -> None:
    tenants = devices.GpuTenants(devices.GpuSample(), all_processes=True)
    sample = devices.GpuSample(processes={HERE: 5}, active=frozenset())
    tenants.look(sample, (), 0, 1.0)
    sample = devices.GpuSample(processes={HERE: 5}, active=frozenset({HERE}))
    tenants.look(sample, (HERE,), 1, 2.0)
    assert (tenants.disturbed, tenants.memory(sample)) == (False, {"gpu_memory": 5})


def test_two_that_come_at_once_where_one_may_be_the_trials_are_not_told_apart(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [double.FOREIGN[0], double.FOREIGN_STRANGER[-1]]
    sampler = watched(install(), monkeypatch, steps, here=False)
    assert "gpu_memory_grown" not in sampler.totals()
    assert sampler.marks == {Mark.DISTURBED}


# --- figures


@pytest.mark.parametrize(
    ("reasons", "clock", "slowed"),
    [(0x1, 345, False), (0x4, 1500, False), (0x102, 1500, False), (0x8, 1500, True),
     (0x24, 1500, True), (0x40, 1500, True), (0x80, 1500, True), (0x40, 1980, False)],
)  # fmt: skip
@pytest.mark.parametrize("driver", [double.WHOLE, double.R470], ids=["R550", "R470"])
def test_a_slowdown_counts_if_it_costs_speed(
    install: Install, monkeypatch: pytest.MonkeyPatch, driver: dict[str, Any], reasons: int,
    clock: int, slowed: bool,
) -> None:  # fmt: skip
    old = "nvmlDeviceGetCurrentClocksThrottleReasons"
    name = double.REASONS if double.REASONS in driver else old
    steps = [{}, {name: reasons, double.CLOCK: clock}]
    sampler = watched(install(driver), monkeypatch, steps, here=True)
    assert sampler.marks == ({Mark.THROTTLED} if slowed else set())
    assert (sampler.lost(POWER_CAPPED) > 0) == bool(reasons & 4)


def test_a_slowdown_of_an_idle_gpu_costs_nothing(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = {double.RATES: double.SimpleNamespace(gpu=0, memory=0), double.REASONS: 0x48}
    steps = [{}, idle | {double.CLOCK: 345}]
    assert watched(install(), monkeypatch, steps, here=True).marks == set()


def test_what_is_not_supported_is_left_out_and_never_raises(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: dict[str, Any] = dict.fromkeys(double.WHOLE, NVMLError(double.NOT_SUPPORTED))
    made = install(broken | {"nvmlDeviceGetUUID": "GPU-1"}, nvmlSystemGetCudaDriverVersion_v2=None)
    assert (devices.gpus()[0].memory, devices.gpus()[0].cuda) == (None, "")
    sampler = watched(made, monkeypatch, [{}, {}], here=True)
    assert set(sampler.take()) == {"rss", "cpu_share"}
    assert sampler.marks == set()


def test_the_figures_of_an_interval_and_of_the_trial(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, now = install(), [0.0]
    monkeypatch.setattr(devices, "sees_all_processes", lambda: True)
    sampler = Sampler(devices.gpus()[0], lambda: now[0])
    here, shown = os.getpid(), made.devices[0]
    usage = Usage(99, (here,), 1000, 0.0)
    for gib, watts, joules in ((10, 100, 5010), (30, 200, 5030), (20, 300, 5060)):
        now[0] += 1.0
        shown[double.RUNNING] = double.running((here, gib))
        shown["nvmlDeviceGetPowerUsage"] = watts * 1000
        shown["nvmlDeviceGetTotalEnergyConsumption"] = joules * 1000
        sampler.sample(lambda: usage)
    assert sampler.take() == {
        "rss": 1000.0, "cpu_share": 0.0, "gpu_memory": 30.0 * GIB, "gpu_utilisation": 70.0,
        "gpu_power": 200.0, "gpu_energy": 60.0, "gpu_clock": 1980.0, "gpu_temperature": 61.0,
    }  # fmt: skip
    now[0] += 1.0
    shown["nvmlDeviceGetTotalEnergyConsumption"] = 5_100_000
    second = sampler.take()
    assert (second["gpu_energy"], second["gpu_memory"]) == (40.0, 20 * GIB)
    assert sampler.totals() == {"peak_rss": 1000.0, "gpu_memory": 30 * GIB, "gpu_energy": 100.0}
    assert sampler.marks == set()


def test_a_dying_trial_is_no_stranger(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [{}, {double.RUNNING: double.running((HERE, 2)), double.ACTIVE: double.active(1, HERE)}]
    sampler = watched(install(), monkeypatch, steps, here=True)
    sampler.sample(Usage)
    assert sampler.marks == set()


def test_a_forked_worker_counts_as_its_parent(tmp_path: Path) -> None:
    script = (
        "import os, sys, time\nfile = open(sys.argv[1])\n"
        "os.fork()\nos.write(1, b'up\\n')\ntime.sleep(100)\n"
    )
    path = tmp_path / "nvidia-uvm"
    path.touch()
    with pytest.MonkeyPatch.context() as patch, subprocess.Popen(
        [sys.executable, "-S", "-c", script, str(path)],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["up\n"] * 2
        patch.setattr(devices, "_OPEN", {str(path)})
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert devices.contexts([process.pid, *map(int, children), 2**22 + 1]) == 1
        os.killpg(process.pid, 9)


def test_the_real_library_is_read_without_an_error_whatever_the_machine_has() -> None:
    code = (
        "from celedger.system import devices; import sys; assert 'pynvml' not in sys.modules\n"
        "for one in devices.gpus(): print(one, devices.GpuReader(one).sample())\n"
        "try: print(devices.resolve('auto').name)\n"
        "except devices.MachineError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
