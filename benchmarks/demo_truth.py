"""Is the demo's truth true? Every commit of the histories of some seeds is checked out and its
tasks are run by plain Python, without celedger's runner, ledger or statistics. Each planted
regression must move its own metric clearly and no other; every other commit must move none.

    python benchmarks/demo_truth.py --seeds 0 1 2 --trials 3

Commits whose library has the same content share their trials. Exits 1 where the truth is not true.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, variance

from celedger import suite as suites
from celedger.demo.history import DemoHistory, build
from celedger.model import Task
from celedger.repo.fast_import import create

MB = 1e6
QUALITY_PLANTED = 4.0  # deviations of one trial, at least
QUALITY_SAME = 4.0  # standard errors of a difference of means, at most
SPEED_PLANTED = 1.4  # times slower, at least
SPEED_SAME = 1.1
MEMORY_PLANTED = 30.0  # MB, at least
MEMORY_SAME = 10.0
LONGEST = 1.0  # processor seconds of a trial, but for a planted slowness
ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Measured:
    """What a tree's trials gave. A crash leaves the lists empty."""

    losses: list[float] = field(default_factory=list)
    speed: float = 0.0  # samples per second, the best of all
    memory: float = 0.0  # MB, the mean of the trials' peaks
    seconds: float = 0.0  # processor time of the longest task
    crashed: frozenset[str] = frozenset()
    tree: Path = Path()


def run_trial(task: Task, suite: Path, tree: Path, seed: int) -> tuple[list[dict], float, float]:
    """The epochs, the peak in MB and the processor time of one trial; no epochs when it crashed."""
    journal = tree / "journal.jsonl"
    descriptor = os.open(journal, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_APPEND)
    environment = os.environ | {
        "CELEDGER_FD": str(descriptor), "PYTHONPATH": f"{tree}:{ROOT}", "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
    }  # fmt: skip
    (line,) = suites.command_lines(
        task, python=sys.executable, suite_dir=suite, tree=tree, seed=seed, out=tree / "out"
    )
    process = subprocess.Popen(
        line[1], cwd=tree, env=environment, pass_fds=[descriptor], stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = usage.ru_utime + usage.ru_stime
    os.close(descriptor)
    epochs = [json.loads(text) for text in journal.read_text().splitlines()]
    return (epochs if process.returncode == 0 else []), usage.ru_maxrss * 1024 / MB, seconds


def measure(suite: suites.Suite, tree: Path, trials: int) -> Measured:
    found, crashed = Measured(tree=tree), set()
    for task in suite.tasks:
        main = task.name == "mlp"
        for seed in range(trials if main else 1):
            epochs, memory, seconds = run_trial(task, suite.folder, tree, seed)
            if not epochs:
                crashed.add(task.name)
                break
            if main:
                found.losses.append(epochs[-1]["val_loss"])
                speed = max(epoch["samples_per_second"] for epoch in epochs)
                found.speed = max(found.speed, speed)
                found.memory += memory / trials
            if seed == 0:
                found.seconds = max(found.seconds, seconds)
    found.crashed = frozenset(crashed)
    return found


def survey(
    history: DemoHistory, place: Path, trials: int, only: Sequence[str] = ()
) -> tuple[suites.Suite, dict[str, Measured]]:
    """The suite, and every commit's measurements by key (of `only` these, where given)."""
    shas = create(place / "repository", history.commits)
    for name, content in history.suite_files.items():
        (place / "suite").mkdir(exist_ok=True)
        (place / "suite" / name).write_bytes(content)
    suite = suites.load(place / "suite")
    known: dict[str, Measured] = {}
    found = {}
    for commit in history.commits:
        if only and commit.key not in only:
            continue
        tree = place / "trees" / commit.key.replace(" ", "-")
        tree.mkdir(parents=True)
        archive = subprocess.Popen(
            ["git", "-C", place / "repository", "archive", shas[commit.key]], stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "x", "-C", tree], stdin=archive.stdout, check=True)
        assert archive.wait() == 0
        digest = hashlib.sha256()
        for path in sorted(tree.glob("*/**/*.py")):
            name = path.relative_to(tree)
            if name.parts[0] not in ("tests", "suites", "examples"):
                digest.update(f"{name}\n".encode() + path.read_bytes())
        content = digest.hexdigest()
        if content not in known:
            known[content] = measure(suite, tree, trials)
        found[commit.key] = known[content]
    return suite, found


def faults(history: DemoHistory, suite: suites.Suite, found: dict[str, Measured]) -> list[str]:
    """Everything that is not as the truth says."""
    planted = {p.commit: p for p in history.planted}
    groups = {id(m): m.losses for m in found.values() if len(m.losses) > 1}
    deviation = mean(variance(losses) for losses in groups.values()) ** 0.5
    wrong, seen_slow = [], False
    for commit in history.commits:
        here = found[commit.key]
        kind = planted[commit.key].kind if commit.key in planted else ""
        seen_slow = seen_slow or kind == "speed"
        if commit.key in history.broken:
            if here.crashed != {"mlp", "conv", "resume"}:
                wrong.append(f"{commit.key} imports")
            continue
        # a repair is compared with what was before the broken commit
        befores = [p for p in commit.parents or () if p not in history.broken]
        for parent in commit.parents or ():
            if parent in history.broken:
                befores += next(c for c in history.commits if c.key == parent).parents or ()
        if not befores:
            continue
        if "mlp" in here.crashed or any("mlp" in found[b].crashed for b in befores):
            wrong.append(f"{commit.key}: mlp crashed")
            continue
        # a merge has what its worst parent has
        before = {
            "quality": max((found[b] for b in befores), key=lambda m: mean(m.losses)),
            "speed": min((found[b] for b in befores), key=lambda m: m.speed),
            "memory": max((found[b] for b in befores), key=lambda m: m.memory),
        }
        moved = mean(here.losses) - mean(before["quality"].losses)
        if (
            kind != "speed"
            and not 1 / SPEED_SAME <= before["speed"].speed / here.speed <= SPEED_SAME
        ):
            # the machine may have been busy: twice in a row is the library's doing
            for measured in (before["speed"], here):
                measured.speed = max(measured.speed, measure(suite, measured.tree, 3).speed)
        slower = before["speed"].speed / here.speed
        larger = here.memory - before["memory"].memory
        crashes = here.crashed - frozenset().union(*(found[b].crashed for b in befores))
        error = deviation * (2 / len(here.losses)) ** 0.5
        told = f"{commit.key}: {moved / deviation:+.1f} sd, x{slower:.2f}, {larger:+.1f} MB"
        if commit.key in planted:
            print(f"  {kind:<8}{told}{', crashes ' + ', '.join(crashes) if crashes else ''}")
        if kind == "quality":
            right = moved >= QUALITY_PLANTED * deviation
        else:
            right = abs(moved) <= QUALITY_SAME * error
        right &= slower >= SPEED_PLANTED if kind == "speed" else 1 / slower <= SPEED_SAME >= slower
        right &= larger >= MEMORY_PLANTED if kind == "memory" else abs(larger) <= MEMORY_SAME
        right &= crashes == ({planted[commit.key].task} if kind == "crash" else set())
        right &= here.seconds <= LONGEST * (2 if seen_slow else 1)
        if not right:
            wrong.append(f"{told}, crashes {sorted(crashes)}, {here.seconds:.2f} s")
    base = found[history.commits[0].key]
    print(
        f"  first commit: val_loss {mean(base.losses):.3f} sd {deviation:.4f}, "
        f"{base.speed:,.0f} samples/s, {base.memory:.0f} MB; "
        f"longest trial {max(m.seconds for m in found.values()):.2f} s"
    )
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--trials", type=int, default=3, help="of mlp, at each tree")
    options = parser.parse_args()
    bad = 0
    for seed in options.seeds:
        history = build(seed)
        print(f"seed {seed}: {len(history.commits)} commits", flush=True)
        with tempfile.TemporaryDirectory() as place:
            suite, found = survey(history, Path(place), options.trials)
            for fault in faults(history, suite, found):
                bad += 1
                print(f"  NOT AS TOLD {fault}", flush=True)
    print(f"{bad} faults in {len(options.seeds)} histories")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
