"""Plays `celedger demo` for several seeds and counts the planted regressions that were found.

    python benchmarks/demo_seeds.py [FIRST] [COUNT]

Each seed is a fresh repository in a temporary folder and a fresh ledger. A finding is *right*
when the named commit is the planted one, *honest* when it was flagged undecided with the truth
in its credible set, and *wrong* otherwise. Target of the first loop: 38 of 40 right, none wrong.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main(first: int = 0, count: int = 10) -> None:
    right = honest = wrong = trials = epochs = 0
    for seed in range(first, first + count):
        with tempfile.TemporaryDirectory(prefix="celedger-demo-") as folder:
            started = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-m", "celedger", "demo", str(Path(folder) / "demo"),
                 "--seed", str(seed), "--json"],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            took = time.monotonic() - started
        if not done.stdout:
            print(f"seed {seed}: no answer, status {done.returncode}: {done.stderr[-500:]}")
            wrong += 4
            continue
        for found in json.loads(done.stdout)["findings"]:
            right += found["right"]
            honest += found["honest"] and not found["right"]
            wrong += not found["honest"]
            trials += found["trials"]
            epochs += found["epochs"]
            if not found["right"]:
                print(f"  seed {seed}: {json.dumps(found)}")
        print(f"seed {seed}: {right} right, {honest} undecided, {wrong} wrong so far; {took:.0f} s")
        sys.stdout.flush()
    total = right + honest + wrong
    print(f"{right} of {total} right, {honest} undecided, {wrong} wrong; "
          f"{trials} trials, {epochs} epochs in the bisects")  # fmt: skip


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
