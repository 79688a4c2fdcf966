"""Figures of a real GPU against known truth: a gigabyte that a process holds, a kernel's length, a
neighbour at rest and at work, the limit that the driver reports."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable

import pytest
from gpu.conftest import GpuProcess

from celedger.base.model import Mark
from celedger.system import devices
from celedger.system.devices import Device, GpuReader
from celedger.system.process import Usage
from celedger.system.telemetry import PERIOD, Sampler

GIB = 1 << 30
CONTEXT = 1.5 * GIB  # more than any CUDA context and torch's own kernels take
PATIENCE = 30.0  # s, after which NVML should have counted anything

Start = Callable[[float], GpuProcess]
Run = Callable[[str], str]


def until(sampler: Sampler, pid: int, condition: Callable[[], bool]) -> bool:
    """Sample a trial of one process until the condition holds, or patience ends."""
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        sampler.sample(lambda: Usage(1, (pid,), 1, 0.0))
        if condition():
            return True
        time.sleep(PERIOD)
    return condition()


def at_rest(device: Device) -> None:
    """Wait until NVML reports no work of what ran before."""
    assert device.gpu is not None
    reader, ends = GpuReader(device.gpu), time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        sample = reader.sample()
        if not sample.active and not sample.utilisation:
            return
        time.sleep(PERIOD)


def memory(sampler: Sampler) -> float | None:
    totals = sampler.totals()
    return totals.get("gpu_memory", totals.get("gpu_memory_grown"))


def test_cuda_and_celedger_mean_the_same_gpu(device: Device, run_on_gpu: Run) -> None:
    seen = run_on_gpu(
        "import torch\np = torch.cuda.get_device_properties(0)\n"
        "print(torch.cuda.device_count(), getattr(p, 'uuid', ''), p.total_memory)"
    ).split()
    assert seen[0] == "1"
    if len(seen) == 3:
        assert device.key.removeprefix("GPU-").removeprefix("MIG-") == seen[1]
    assert device.gpu is not None and device.gpu.memory is not None
    assert abs(int(seen[-1]) / device.gpu.memory - 1) < 0.1  # the driver keeps some for itself


def test_a_known_gigabyte_is_measured(device: Device, start: Start) -> None:
    at_rest(device)
    sampler = Sampler(device.gpu)
    first, more = start(1), 3
    assert until(sampler, first.pid, lambda: memory(sampler) is not None)
    assert GIB <= (memory(sampler) or 0) <= GIB + CONTEXT
    at_rest(device)
    sampler = Sampler(device.gpu)
    second = start(more)
    assert until(sampler, second.pid, lambda: (memory(sampler) or 0) >= more * GIB)
    assert (memory(sampler) or 0) <= more * GIB + CONTEXT
    assert Mark.DISTURBED not in sampler.marks  # the first process only holds memory


def test_a_neighbour_disturbs_when_it_computes(device: Device, start: Start) -> None:
    neighbour = start(0.1)
    at_rest(device)
    assert device.gpu is not None
    shown = GpuReader(device.gpu).sample()
    if not shown.processes or shown.active is None:
        pytest.skip("NVML shows no processes here: a neighbour cannot be told (docs/gpu.md)")
    sampler = Sampler(device.gpu)
    ours = start(0.1)
    ours.work()
    assert until(sampler, ours.pid, lambda: memory(sampler) is not None)
    assert sampler.marks.isdisjoint({Mark.DISTURBED})
    neighbour.work()
    assert until(sampler, ours.pid, lambda: Mark.DISTURBED in sampler.marks)


def test_work_shows_in_utilisation_power_and_energy(device: Device, start: Start) -> None:
    at_rest(device)
    sampler = Sampler(device.gpu)
    process = start(0.1)
    process.work()
    latest: dict[str, float] = {}

    def busy() -> bool:
        latest.update(sampler.take())
        return latest.get("gpu_utilisation", 0.0) >= 90

    if not until(sampler, process.pid, busy):
        assert "gpu_utilisation" not in latest  # a MIG slice has none
        pytest.skip("this device tells no utilisation")
    assert latest.get("gpu_energy", 1.0) > 0
    assert latest.get("gpu_clock", 1.0) > 0


def test_settings_are_those_that_nvidia_smi_prints(device: Device) -> None:
    smi = shutil.which("nvidia-smi")
    if smi is None or not device.key.startswith("GPU-"):
        pytest.skip("nvidia-smi cannot be asked about this device")
    fields = "enforced.power.limit,persistence_mode,ecc.mode.current"
    line = subprocess.run(
        [smi, f"--id={device.key}", f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    limit, persistence, ecc = (word.strip() for word in line.split(","))
    assert device.gpu is not None
    ours = device.gpu.settings
    if ours["power_limit"] is not None:
        assert ours["power_limit"] == pytest.approx(float(limit), abs=1)
    words = {True: "Enabled", False: "Disabled"}
    for name, printed in (("persistence", persistence), ("ecc", ecc)):
        if ours[name] is not None:
            assert words[bool(ours[name])] == printed


def test_a_kernel_of_known_length_takes_as_long_by_events(run_on_gpu: Run) -> None:
    """The truth is the host's clock around a kernel of some tenths of a second."""
    times = json.loads(
        run_on_gpu(
            "import json, time, torch\n"
            "from celedger.child.torch import _durations, _moment\n"
            "where, rows = torch.device('cuda'), []\n"
            "torch.cuda._sleep(1000); torch.cuda.synchronize()\n"
            "for _ in range(5):\n"
            "    begin = time.perf_counter()\n"
            "    moments = [_moment(where)]\n"
            "    torch.cuda._sleep(500_000_000)\n"
            "    moments.append(_moment(where))\n"
            "    torch.cuda.synchronize()\n"
            "    rows.append((_durations(moments)[0], time.perf_counter() - begin))\n"
            "print(json.dumps(rows))"
        )
    )
    for by_events, by_the_host in times:
        assert by_events <= by_the_host
    assert min(host / events for events, host in times) < 1.02


def test_sees_all_processes_agrees_with_nvml(device: Device, start: Start) -> None:
    """Where process numbers are ours, NVML lists a process of ours by its number."""
    process = start(0.1)
    assert device.gpu is not None
    processes = GpuReader(device.gpu).sample().processes
    if devices.sees_all_processes() and processes is not None:
        assert process.pid in processes
    assert devices.contexts([process.pid]) == 1
