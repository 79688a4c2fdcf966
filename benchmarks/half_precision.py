"""The float16 case from end to end: a loss with log(1 + x) of small values under autocast.

    python benchmarks/half_precision.py

Trains tests/cli/half.py in float32 with several seeds, in float16 as it is, under watchpoints, and
in float16 with the loss scale that they recommend; prints the final validation losses.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from celedger.diagnose.watch import judge
from celedger.diagnose.watch_records import read

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "tests" / "cli" / "half.py"
SEEDS = 5


def train(precision: str, scale: float, seed: int, probe: Path | None = None) -> float:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if probe is not None:
        (probe / "sitecustomize.py").write_text(
            (ROOT / "celedger" / "child" / "import_finder.py").read_text()
        )
        env["PYTHONPATH"] = os.pathsep.join([str(probe), str(ROOT)])
        env |= {"CELEDGER_PROBE": '{"kind": "watch"}', "CELEDGER_PROBE_OUT": str(probe)}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), precision, str(scale), str(seed)],
        env=env, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return float(done.stdout.split()[-1])


def main() -> None:
    whole = [train("float32", 1, seed) for seed in range(SEEDS)]
    level, sd = statistics.mean(whole), statistics.stdev(whole)
    print(f"float32: {level:.4f}, sd {sd:.4f} over {SEEDS} seeds")
    with tempfile.TemporaryDirectory() as folder:
        print(f"float16: {train('float16', 1, 0, Path(folder)):.4f}")
        (training,) = read(Path(folder))
    judged = judge(training, {})
    for finding in judged.findings:
        print(f"  {finding.watchpoint.name}: {finding.first.tensor} {finding.first.note}")
    scale = judged.scale.recommended
    assert scale is not None
    found = [train("float16", scale, seed) for seed in range(SEEDS)]
    print(f"float16, loss scale {scale:.0f}: {statistics.mean(found):.4f}, "
          f"{abs(statistics.mean(found) - level) / sd:.2f} sd from float32")  # fmt: skip


if __name__ == "__main__":
    main()
