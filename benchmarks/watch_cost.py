"""What watchpoints at their default sampling add to a step, in one interleaved run.

    python benchmarks/watch_cost.py [--rounds N] [TASK...]

Each round runs a task of suites/core bare and with the probe, in an order that alternates, and sums
the durations of its steps after the first (`samples_per_second` would leave out what lies between
epochs). The ratio is that of the medians over the rounds; the interval, the least and the greatest
ratio of a round. Beside it the cost of a step that is looked at, and how many are.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "celedger" / "child" / "import_finder.py"
TIMER = """
import time
from celedger.child import torch as harness
step, durations = harness.step, []
def timed(*args, **kwargs):
    start = time.thread_time()
    found = step(*args, **kwargs)
    durations.append(time.thread_time() - start)
    return found
harness.step = timed
import atexit, json, os
atexit.register(lambda: open(os.environ["DURATIONS"], "w").write(json.dumps(durations)))
"""


def durations(task: str, epochs: int, *, watched: bool) -> list[float]:
    """Seconds of this thread's processor time in each step: the machine may be shared."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "site").mkdir()
        (home / "site" / "sitecustomize.py").write_text(SITE.read_text())
        script = ROOT / "suites" / "core" / f"{task}.py"
        run = (
            f"{TIMER}\nimport runpy, sys\nsys.path.insert(0, {str(script.parent)!r})\n"
            f"sys.argv = [{str(script)!r}, '--epochs', '{epochs}']\n"
            f"runpy.run_path({str(script)!r}, run_name='__main__')\n"
        )
        env = {
            **os.environ, "OMP_NUM_THREADS": "1", "DURATIONS": str(home / "durations"),
            "PYTHONPATH": os.pathsep.join([str(home / "site"), str(ROOT)]),
        }  # fmt: skip
        if watched:
            env |= {"CELEDGER_PROBE": '{"kind": "watch"}', "CELEDGER_PROBE_OUT": folder}
        subprocess.run([sys.executable, "-c", run], env=env, check=True, stdout=subprocess.DEVNULL)
        found: list[float] = json.loads((home / "durations").read_text())
        return found[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tasks", nargs="*", default=["resnet_digits", "char_transformer"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    from celedger.child.probes.watch import looks

    for task in options.tasks:
        bare, seen, ratios = [], [], []
        for number in range(options.rounds):
            for watched in (False, True) if number % 2 else (True, False):
                (seen if watched else bare).append(durations(task, options.epochs, watched=watched))
            ratios.append(sum(seen[-1]) / sum(bare[-1]))
        steps = range(1, 1 + len(bare[0]))
        looked = [step - 1 for step in islice(looks(), 10_000) if step in steps]
        usual = statistics.median(d for one in bare for d in one)
        look = statistics.median(one[i] for one in seen for i in looked)
        rest = statistics.median(d for one in seen for i, d in enumerate(one) if i not in looked)
        ratio = statistics.median(map(sum, seen)) / statistics.median(map(sum, bare))
        print(
            f"{task}: watched / bare {ratio:.3f} ({min(ratios):.3f} to {max(ratios):.3f}); "
            f"{len(looked)} of {len(steps)} steps looked at, {look / usual:.2f} x a bare step "
            f"({usual * 1e3:.1f} ms), the others {rest / usual:.3f} x; "
            f"load {os.getloadavg()[0]:.1f}"
        )


if __name__ == "__main__":
    main()
