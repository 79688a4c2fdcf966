"""What reporting costs the training: `celedger.child.log` against its targets (at most 10 µs a
step, 10 ms in a short run, imports included). Run: python benchmarks/child_log.py"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

VALUES = {f"metric_{i}": 1 / (i + 3) for i in range(4)}  # four metrics a step

IMPORT = """
import time
start = time.perf_counter()
import celedger.child
print((time.perf_counter() - start) * 1e3)
"""


def per_call(calls: int) -> list[float]:
    """Microseconds of each call."""
    from celedger.child import log

    clock, costs = time.perf_counter, []
    for epoch in range(calls):
        start = clock()
        log(epoch=epoch, **VALUES)
        costs.append((clock() - start) * 1e6)
    return costs


def show(name: str, costs: list[float]) -> None:
    cuts = statistics.quantiles(costs, n=1000)
    print(
        f"{name:32} p50 {cuts[499]:6.2f}   p90 {cuts[899]:6.2f}   p99.9 {cuts[998]:7.2f}  µs a call"
    )


def main() -> None:
    sys.path.insert(0, str(ROOT))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    imports = [
        float(subprocess.run(
            [sys.executable, "-c", IMPORT], env=environment, check=True, capture_output=True
        ).stdout)
        for _ in range(11)
    ]  # fmt: skip
    print(f"{'import celedger.child':32} median {statistics.median(imports):.1f} ms")
    os.environ.pop("CELEDGER_FD", None)
    show("log without celedger", per_call(20_000))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "journal.jsonl")
        fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        os.environ["CELEDGER_FD"] = str(fd)
        show("log, descriptor only", per_call(20_000))
        os.environ["CELEDGER_JOURNAL"] = str(path)
        state = path.stat()
        os.environ["CELEDGER_INODE"] = f"{state.st_dev}:{state.st_ino}"
        show("log, descriptor verified", per_call(20_000))
        bare = []
        with Path(folder, "bare.jsonl").open("a") as file:
            for epoch in range(20_000):
                start = time.perf_counter()
                file.write(json.dumps({"epoch": epoch, **VALUES}) + "\n")
                file.flush()
                bare.append((time.perf_counter() - start) * 1e6)
        show("bare JSON lines, flushed", bare)


if __name__ == "__main__":
    main()
