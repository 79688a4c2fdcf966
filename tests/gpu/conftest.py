"""Tests of one real GPU, collected only where torch has CUDA, which a process of its own is asked.
They change no setting of the device."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celedger.system import devices
from celedger.system.devices import Device

ASKS = "import sys, torch; sys.exit(not torch.cuda.is_available())"
DRIVERS = ("/dev/nvidiactl", "/dev/dxg")  # the second is WSL's


def has_cuda() -> bool:
    if not any(map(os.path.exists, DRIVERS)):
        return False
    return subprocess.run([sys.executable, "-c", ASKS], capture_output=True).returncode == 0


collect_ignore_glob = [] if has_cuda() else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session", autouse=True)
def device() -> Iterator[Device]:
    """Hold the device for all tests, and make it the only one that they and their children see.
    Processes of pytest-xdist do not hold it: what they run needs no quiet device."""
    chosen = devices.resolve("auto")
    assert chosen.gpu is not None, "torch has CUDA and NVML shows no GPU"
    waiting = devices.DeviceLock(chosen.key, folder=devices.default_folder(), label="tests/gpu")
    beside_others = "PYTEST_XDIST_WORKER" in os.environ
    with (
        contextlib.nullcontext() if beside_others else waiting.hold(lambda holder: None),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("CUDA_VISIBLE_DEVICES", chosen.visible)
        patch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        yield chosen


class GpuProcess:
    """A process that allocates some GiB and computes when it is told to."""

    PROGRAM = """
import select, sys, torch
kept = torch.empty(int(float(sys.argv[1]) * 2**30), dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print("up", flush=True)
for line in sys.stdin:
    a = torch.ones(4096, 4096, device="cuda")
    print("busy", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        a = a @ a * 1e-4
        torch.cuda.synchronize()
"""

    def __init__(self, gib: float) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", self.PROGRAM, str(gib)],
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.pid = self._process.pid
        self._expect("up")

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == word

    def work(self) -> None:
        """Let it compute until it ends."""
        assert self._process.stdin is not None
        self._process.stdin.write("work\n")
        self._process.stdin.flush()
        self._expect("busy")

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def start() -> Iterator[Callable[[float], GpuProcess]]:
    """Start a process on the GPU that holds so many GiB."""
    started: list[GpuProcess] = []

    def begin(gib: float) -> GpuProcess:
        started.append(GpuProcess(gib))
        return started[-1]

    yield begin
    for process in started:
        process.end()


@pytest.fixture
def run_on_gpu(tmp_path: Path) -> Callable[[str], str]:
    """Run a program on the GPU, and return what it prints."""

    def run(program: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(program)
        done = subprocess.run(
            [sys.executable, str(path)], text=True, capture_output=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
