"""What does a traced step cost? Runs the suite's CNN and transformer, in one process each, with
three kinds of steps in turn: without any probe, with the pulse that every step of a traced run has,
and with a full trace.

    python benchmarks/trace_cost.py

Prints medians and their ratios; exits 1 where a full trace is dearer than ten bare steps.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TASKS = {"resnet_digits": "core", "char_transformer": "core", "vit_digits": "wide"}
STEPS = 90
LIMIT = 10.0  # bare steps

INSIDE = """
import json, runpy, sys, time
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import torch
from celedger.child.probes import observe, trace
from celedger.child import torch as harness
steps = int(sys.argv[4])
probe = trace.TraceProbe({"full": list(range(2, steps, 3))})
observer = observe.attach(probe)
taken = {"bare": [], "pulse": [], "full": []}
def drive(**description):
    training = harness.Training(**description)
    model, optimiser, schedule = harness.prepare(training, torch.device("cpu"))
    model.train()
    batches = (batch for _ in range(steps) for batch in training.data())
    for number, batch in zip(range(steps), batches):
        kind = ("bare", "pulse", "full")[number % 3]
        observer.off = kind == "bare"
        if kind == "bare":
            observer.unhook()
            probe.functions.__exit__(None, None, None)
        elif observer.started:
            observer.step = probe.step = number
            observer.hook()
        start = time.perf_counter()
        harness.step(training, model, optimiser, schedule, batch)
        taken[kind].append(time.perf_counter() - start)
        if kind == "bare":
            probe.functions.__enter__()
    print(json.dumps(taken))
    sys.exit()
harness.train = drive
sys.argv = [sys.argv[3]]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def main() -> int:
    dear = 0
    for task, suite in TASKS.items():
        script = ROOT / "suites" / suite / f"{task}.py"
        with tempfile.TemporaryDirectory() as out:
            env = {**os.environ, "CELEDGER_PROBE_OUT": out, "OMP_NUM_THREADS": "1"}
            words = [sys.executable, "-c", INSIDE, str(ROOT), str(script.parent), str(script)]
            done = subprocess.run(
                [*words, str(STEPS)], env=env, capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise SystemExit(done.stderr)
            size = sum(file.stat().st_size for file in Path(out).rglob("*") if file.is_file())
        taken = {kind: statistics.median(values[3:]) for kind, values in
                 json.loads(done.stdout.splitlines()[-1]).items()}  # fmt: skip
        full, pulse = (taken[kind] / taken["bare"] for kind in ("full", "pulse"))
        dear += full > LIMIT
        print(
            f"{task:18} bare {taken['bare'] * 1e3:6.1f} ms  pulse {pulse:5.2f} x  "
            f"full {full:5.2f} x  {size / (STEPS / 3) / 1e6:.1f} MB a full step",
            flush=True,
        )
    return int(dear > 0)


if __name__ == "__main__":
    sys.exit(main())
