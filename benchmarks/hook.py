"""What the hook costs a pull: `git pull | cat` in two clones of one repository that take turns, one
with celedger's hooks and a suite whose trial takes minutes. Prints the medians, their difference
and whether it is within the target of 50 ms. Absolute times are of this machine.

    python benchmarks/hook.py [--rounds 30]
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TARGET = 0.050  # seconds
REST = 1.0  # seconds between two pulls, so that no worker's start falls into the next one
SUITE = """\
[suite]
name = "slow"
[metrics.loss]
direction = "lower"
[[task]]
name = "sleep"
command = "sleep 600"
"""


def git(where: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=where, check=True, capture_output=True)


def pull(clone: Path) -> float:
    """Seconds of a piped pull that brings one commit."""
    git(clone, "reset", "-q", "--hard", "HEAD~1")
    start = time.perf_counter()
    subprocess.run("git pull -q 2>&1 | cat", shell=True, cwd=clone, check=True)
    return time.perf_counter() - start


def prepare(folder: Path) -> tuple[Path, Path]:
    origin = folder / "origin"
    origin.mkdir()
    git(origin, "init", "-q")
    for name in ("first", "second"):
        (origin / f"{name}.txt").write_text(name)
        git(origin, "add", "-A")
        git(origin, "commit", "-q", "-m", name)
    for name in ("plain", "hooked"):
        git(folder, "clone", "-q", str(origin), name)
    suite = folder / "hooked" / "suites" / "slow"
    suite.mkdir(parents=True)
    (suite / "suite.toml").write_text(SUITE)
    subprocess.run(
        [sys.executable, "-m", "celedger", "hook", "install"],
        cwd=folder / "hooked", check=True, capture_output=True,
    )  # fmt: skip
    return folder / "plain", folder / "hooked"


def stop_worker(clone: Path) -> None:
    from celedger.base.model import JobState
    from celedger.ledger import Ledger

    with Ledger.open(clone / "ledger.db", readonly=True) as ledger:
        for job in ledger.jobs(state=JobState.RUNNING):
            os.kill(int(job.owner.split()[-1]), signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    order = random.Random(0)
    people = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER")
              for what in ("NAME", "EMAIL")}  # fmt: skip
    os.environ.update(people)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ["CELEDGER_LOCK_DIR"] = str(Path(folder) / "locks")
        clones = prepare(Path(folder))
        spent: dict[str, list[float]] = {clone.name: [] for clone in clones}
        pull(clones[1])  # the worker that is then busy with its trial for the rest of the time
        time.sleep(5 * REST)
        for _ in range(rounds):
            for clone in order.sample(clones, 2):
                spent[clone.name].append(pull(clone))
                time.sleep(REST)
        stop_worker(clones[1])
        time.sleep(REST)
    for name, seconds in spent.items():
        low, middle, high = statistics.quantiles(seconds, n=4)
        print(
            f"{name:<8} median {middle * 1e3:6.1f} ms, quartiles {low * 1e3:.1f} … {high * 1e3:.1f}"
        )
    cost = statistics.median(spent["hooked"]) - statistics.median(spent["plain"])
    verdict = "met" if cost <= TARGET else "missed"
    print(f"the hook costs {cost * 1e3:+.1f} ms of a piped pull ({rounds} each, interleaved); "
          f"target {TARGET * 1e3:.0f} ms: {verdict}")  # fmt: skip


if __name__ == "__main__":
    main()
