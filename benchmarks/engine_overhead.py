"""What a trial costs more on a cluster than here: `celedger run HEAD --force` with a training of
0.3 s and several seeds takes turns on this machine, on a Slurm cluster and on a Ray cluster of two
nodes each. Both clusters are processes of this machine, so that all share its cores. Prints the
wall time of each command, and how many seconds a trial it takes more than the local one of its
round.

    python benchmarks/engine_overhead.py [--rounds 3] [--trials 8] [--engine ray] [--engine slurm]

Slurm needs root and Debian's packages (`scripts/slurm_here.sh`), Ray the extra `celedger[ray]`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from celedger.ledger import Ledger

WORKERS = 2  # the nodes of each cluster
ROOT = Path(__file__).resolve().parents[1]
SLURM = ROOT / "scripts" / "slurm_here.sh"
RAY = ROOT / "tests" / "engines" / "ray_cluster.py"
SUITE = """\
[suite]
name = "short"
[metrics.loss]
direction = "lower"
[[task]]
name = "short"
command = "{python} {suite}/train.py"
"""
TRAINING = """\
import time
from celedger.child import log
for epoch in range(3):
    time.sleep(0.1)
    log(epoch=epoch, loss=1 / (epoch + 1))
"""


def git(root: Path, *words: str) -> None:
    name = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    subprocess.run(["git", *name, *words], cwd=root, check=True, capture_output=True)


def make_repository(root: Path) -> None:
    suite = root / "suites" / "short"
    suite.mkdir(parents=True)
    (suite / "suite.toml").write_text(SUITE)
    (suite / "train.py").write_text(TRAINING)
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[str]:
    """Bring up Slurm. Yields the folder that its nodes share."""
    try:
        subprocess.run([SLURM, "up", folder], check=True)
        os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
        yield str(folder / "shared")
    finally:
        subprocess.run([SLURM, "down", folder], check=True)


@contextmanager
def ray_cluster(folder: Path) -> Iterator[str]:
    """Bring up Ray. Yields its address."""
    hidden = folder / "hidden"
    hidden.mkdir(parents=True)
    with subprocess.Popen(
        [sys.executable, RAY, hidden, folder], text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as cluster:  # fmt: skip
        assert cluster.stdout is not None
        address = cluster.stdout.readline().strip()
        if not address:
            raise SystemExit("the Ray cluster did not start: is ray installed?")
        yield address  # leaving the block closes its stdin, which ends it


def run(root: Path, engine: str, address: str, trials: int) -> float:
    """Return the seconds of a command with so many trials, all of which have to succeed."""
    seeds = [word for seed in range(trials) for word in ("--seed", str(seed))]
    words = ["run", "HEAD", "--force", "--workers", str(WORKERS), "--engine", engine, *seeds]
    before = succeeded(root)
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "celedger", *words], cwd=root, check=True, capture_output=True,
        env={**os.environ, "CELEDGER_ENGINE_ADDRESS": address},
    )  # fmt: skip
    seconds = time.perf_counter() - start
    assert succeeded(root) == before + trials, f"a trial by {engine} did not succeed"
    return seconds


def succeeded(root: Path) -> int:
    if not (root / "ledger.db").exists():
        return 0
    with Ledger.open(root / "ledger.db", readonly=True) as ledger:
        return sum(record.ok for record in ledger.trials())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--engine", action="append", choices=("slurm", "ray"))
    options = parser.parse_args()
    engines = options.engine or ["slurm", "ray"]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, ExitStack() as stack:
        folder = Path(name)
        home = folder / "slurm" / "home"  # each node of Slurm has another folder there
        home.mkdir(parents=True)
        os.environ |= {"HOME": str(home), "CELEDGER_LOCK_DIR": str(home / "locks")}
        os.environ.pop("XDG_CACHE_HOME", None)
        root = folder / "repository"
        make_repository(root)
        addresses = {"local": ""}
        for engine in engines:
            cluster = slurm_cluster if engine == "slurm" else ray_cluster
            addresses[engine] = stack.enter_context(cluster(folder / engine))
        seconds: dict[str, list[float]] = {engine: [] for engine in addresses}
        for engine, address in addresses.items():  # untimed: nodes make their clones
            run(root, engine, address, WORKERS)
        print(f"{options.trials} trials by {WORKERS} workers, load {os.getloadavg()[0]:.1f}")
        for number in range(options.rounds):
            first = number % len(addresses)
            for engine in [*addresses][first:] + [*addresses][:first]:
                seconds[engine].append(run(root, engine, addresses[engine], options.trials))
                print(f"  {engine:<6}{seconds[engine][-1]:6.1f} s, load {os.getloadavg()[0]:.1f}",
                      flush=True)  # fmt: skip
    report(seconds, options.trials)


def report(seconds: dict[str, list[float]], trials: int) -> None:
    local = seconds.pop("local")
    print(f"{'local':<6}{median(local):6.1f} s ({min(local):.1f}–{max(local):.1f})")
    for engine, walls in seconds.items():
        more = median(b - a for a, b in zip(local, walls, strict=True)) / trials
        print(
            f"{engine:<6}{median(walls):6.1f} s ({min(walls):.1f}–{max(walls):.1f}), "
            f"{median(walls) / median(local):.1f} × local, {more:.2f} s a trial more"
        )


if __name__ == "__main__":
    main()
