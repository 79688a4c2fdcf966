"""Write one page about this machine's GPU: `make gpu-report`, on a quiet device, ten minutes. The
device and driver, which tests of tests/gpu passed, figures beside the CPU's. Without a GPU it says
so and writes nothing.

    python scripts/make_gpu_report.py [--output docs/gpu-report.md]
"""

from __future__ import annotations

import argparse
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import celedger
from celedger.system import devices
from celedger.system.devices import Device, GpuReader
from celedger.system.process import Usage
from celedger.system.telemetry import Sampler
from celedger.views.document import measure, percent

ROOT = Path(__file__).resolve().parents[1]
METRICS = {"step_time_p50": "s", "samples_per_second": "1/s", "peak_memory": "B"}
REPEATS, ROUNDS, SECONDS = 5, 6, 2.0
# For each line of stdin: matrix products for some seconds, then how many.
LOAD = """
import sys, time, torch
a = torch.ones(2048, 2048, device="cuda")
torch.cuda.synchronize()
print("up", flush=True)
for line in sys.stdin:
    ends, steps = time.monotonic() + float(line), 0
    while time.monotonic() < ends:
        a = a @ a * 1e-4
        torch.cuda.synchronize()
        steps += 1
    print(steps, flush=True)
"""


def table(*rows: tuple[object, ...]) -> str:
    """Return a Markdown table; the first row is its head."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def about(device: Device) -> str:
    assert device.gpu is not None
    sample = GpuReader(device.gpu).sample()
    facts: dict[str, object] = {
        "device": f"{device.gpu.name}, {device.key}",
        "memory": measure(device.gpu.memory or 0, unit="B"),
        "driver": f"{device.gpu.driver}, CUDA {device.gpu.cuda}",
        **device.gpu.settings,
        "process numbers": "the driver's" if devices.sees_all_processes() else "a container's",
        "processes listed": "not supported" if sample.processes is None else len(sample.processes),
        "use by process": "not supported" if sample.active is None else "counted",
    }
    return table(("fact", "value"), *facts.items())


def tests(folder: Path) -> str:
    """Run tests/gpu; return a table of what failed or was skipped, below the sums."""
    rows, passed = [], 0
    for name, *words in (("test_known_truth",), ("test_trainings_on_gpu", "-n", "4")):
        report = folder / f"{name}.xml"
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-m", "gpu", f"tests/gpu/{name}.py", *words,
             f"--junitxml={report}"],
            cwd=ROOT, check=False,
        )  # fmt: skip
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            ends = [part for part in case if part.tag in ("failure", "error", "skipped")]
            passed += not ends
            rows += [(case.get("name"), part.tag, _line(part.get("message"))) for part in ends]
    return f"{passed} passed.\n\n" + (table(("test", "end", "reason"), *rows) if rows else "")


def _line(text: str | None) -> str:
    return (text or "").partition("\n")[0].replace("|", "\\|")[:120]


def trained(folder: Path, device: str, *words: str) -> list[Any]:
    """Run the core suite on a device, and return the trials."""
    if not folder.exists():
        folder.mkdir()
        for line in ("init -q", "-c user.name=a -c user.email=a@b commit -qm a --allow-empty"):
            subprocess.run(["git", *line.split()], cwd=folder, check=True)
    command = (sys.executable, "-m", "celedger", "--ledger", str(folder / f"{device}.db"))
    subprocess.run(
        [*command, "run", "--suite", "core", "--device", device, *words],
        cwd=folder, stdout=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    with celedger.open(folder / f"{device}.db") as ledger:
        return list(ledger.trials())


def beside_the_cpu(folder: Path) -> str:
    sides = {device: trained(folder, device, "--seed", "0") for device in ("cpu", "cuda:0")}
    rows = [("task", "figure", *sides)]
    for task in dict.fromkeys(trial.task for trial in sides["cpu"]):
        for name, unit in METRICS.items():
            values = [
                next((t.summaries[name] for t in side if t.task == task and name in t.summaries), 0)
                for side in sides.values()
            ]
            rows.append((task, name, *(measure(value, unit=unit) for value in values)))
    return table(*rows)


def spread(folder: Path) -> str:
    words = ("--task", "resnet_digits", "--seed", "0", "--repeat", str(REPEATS))
    trials = [t for t in trained(folder, "cuda:0", *words) if t.task == "resnet_digits"]
    times = [trial.summaries["step_time_p50"] for trial in trials]
    wide = (max(times) - min(times)) / statistics.median(times)
    word = "within" if wide <= 0.02 else "not within"
    share = percent(wide)
    return f"{len(times)} repeats of `resnet_digits` differ by {share}: {word} 2 %."


class LoadProcess:
    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LOAD], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._stdout().readline()

    def _stdout(self) -> Any:
        return self.process.stdout

    def work(self, meanwhile: Callable[[float], object]) -> int:
        """Compute for SECONDS, and return the steps; `meanwhile` gets the seconds since."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{SECONDS}\n")
        self.process.stdin.flush()
        began = time.monotonic()
        while not select.select([self._stdout()], [], [], 0.05)[0]:
            meanwhile(time.monotonic() - began)
        return int(self._stdout().readline())


def load(device: Device) -> str:
    """Measure the clock from rest on, and what sampling costs."""
    assert device.gpu is not None
    running, reader, clocks = LoadProcess(), GpuReader(device.gpu), []
    time.sleep(10)  # the clocks fall to those at rest
    clocks.append(("at rest", reader.sample().clock))
    running.work(lambda age: clocks.append((f"after {age:.2f} s", reader.sample().clock)))
    sampler = Sampler(device.gpu)
    usage = Usage(1, (running.process.pid,), 1, 0.0)
    ratios = []
    for _ in range(ROUNDS):
        alone = running.work(lambda age: None)
        ratios.append(running.work(lambda age: sampler.sample(lambda: usage)) / alone)
    running.process.kill()
    running.process.communicate()
    cost = 1 - statistics.median(ratios)
    ramp = table(("load", "SM clock (MHz)"), *clocks[:1], *clocks[1::5])
    return f"{ramp}\n\nTelemetry at 4 Hz costs {percent(cost)} of the steps."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "gpu-report.md")
    asked = parser.parse_args()
    if not devices.gpus():
        sys.stdout.write("no GPU: NVML shows none, so nothing of CUDA ran; no page is written\n")
        return
    device = devices.resolve("cuda:0")
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        parts = {
            "The device": about(device), "Tests": tests(Path(folder)),
            "Beside the CPU": beside_the_cpu(project), "Repeats": spread(project),
            "Clocks and telemetry": load(device),
        }  # fmt: skip
    text = "\n\n".join(f"## {title}\n\n{part}" for title, part in parts.items())
    asked.output.write_text(f"# This GPU\n\nMade by `make gpu-report`.\n\n{text}\n")
    sys.stdout.write(f"wrote {asked.output}\n")


if __name__ == "__main__":
    main()
