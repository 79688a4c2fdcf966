"""Is the demo's truth true? For the names and numbers of some seeds, the demo's library is trained
with each edit and without it, in turns, by plain Python: without celedger's runner, ledger or
statistics. A planted regression must move its own metric clearly and no other; every
other edit must move none.

    python benchmarks/demo_truth.py --seeds 0 1 2 --trials 3

Exits 1 where the truth is not true.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from statistics import mean, stdev

import torch

import celedger.child.torch  # noqa: F401 (before any fork)
from celedger.demo.made_history import Edit, edits, library, suite, words

QUALITY_PLANTED = 4.0  # deviations of one trial, at least
QUALITY_SAME = 4.0  # deviations of a difference of means, at most
SPEED_PLANTED = 1.5  # times slower, at least
SPEED_SAME = 1.25
MEMORY_PLANTED = 20.0  # MB, at least
MEMORY_SAME = 10.0
torch.set_num_threads(1)


def write(tree: Path, changes: Sequence[Edit], vocabulary: Mapping[str, str]) -> Path:
    """Write the library after the changes, and its suite, to a new folder."""
    for path, text in {**library(changes, vocabulary), **suite(vocabulary)}.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
    return tree


def train(tree: Path, *options: str) -> tuple[list[dict[str, float]], float]:
    """Return the epochs, none after a crash, and the peak memory in MB of a forked training."""
    (script,) = tree.glob("suites/*/mlp.py")
    journal = tree / "journal"
    journal.write_text("")
    if (pid := os.fork()) == 0:
        status = 1
        try:
            os.environ["CELEDGER_FD"] = str(os.open(journal, os.O_WRONLY | os.O_APPEND))
            os.dup2(os.open(tree / "stderr", os.O_CREAT | os.O_WRONLY), 2)
            sys.path.insert(0, str(tree))
            sys.argv = [str(script), *options]
            runpy.run_path(sys.argv[0], run_name="__main__")
            status = 0
        except BaseException:
            traceback.print_exc()
        os._exit(status)
    _, status, usage = os.wait4(pid, 0)
    epochs = [json.loads(line) for line in journal.read_text().splitlines()]
    return ([] if status else epochs), usage.ru_maxrss * 1024 / 1e6


def compare(before: Path, after: Path, trials: int) -> tuple[float, float, float, bool, bool]:
    """Return how many deviations the loss moved, how many times slower the training is and how many
    MB larger, and whether `mlp` and `resume` run."""
    losses: dict[Path, list[float]] = {before: [], after: []}
    speeds: dict[Path, list[float]] = {before: [], after: []}
    peaks: dict[Path, list[float]] = {before: [], after: []}
    for seed in range(trials):
        for tree in (before, after):
            epochs, peak = train(tree, "--seed", str(seed))
            if not epochs:
                return 0.0, 1.0, 0.0, False, False
            losses[tree].append(epochs[-1]["val_loss"])
            speeds[tree] += [epoch["samples_per_second"] for epoch in epochs]
            peaks[tree].append(peak)
    moved = (mean(losses[after]) - mean(losses[before])) / stdev(losses[before])
    resumed, _ = train(after, "--epochs", "2", "--checkpoint", str(after / "last.pt"))
    return (
        moved,
        max(speeds[before]) / max(speeds[after]),
        mean(peaks[after]) - mean(peaks[before]),
        True,
        bool(resumed),
    )


def as_promised(
    kind: str, moved: float, slower: float, larger: float, runs: bool, resumes: bool
) -> bool:
    quality = moved >= QUALITY_PLANTED if kind == "quality" else abs(moved) <= QUALITY_SAME
    # A regression of quality or memory may cost some speed.
    speed = slower >= SPEED_PLANTED if kind == "speed" else slower <= SPEED_SAME
    memory = larger >= MEMORY_PLANTED if kind == "memory" else abs(larger) <= MEMORY_SAME
    return quality and speed and memory and runs and resumes == (kind != "crash")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--trials", type=int, default=3, help="of each library")
    options = parser.parse_args()
    faults = 0
    for seed in options.seeds:
        vocabulary = words(Random(seed))
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            plain = write(root / "plain", [], vocabulary)
            for number, edit in enumerate(edits()):
                tree = write(
                    root / str(number), [edit, edit.repair] if edit.repair else [edit], vocabulary
                )
                figures = compare(plain, tree, options.trials)
                right = as_promised(edit.kind, *figures)
                if edit.repair:
                    right &= not train(write(root / f"{number}-broken", [edit], vocabulary))[0]
                faults += not right
                moved, slower, larger, *_ = figures
                print(
                    f"seed {seed} {edit.kind:9}{edit.subject:40} {moved:+6.1f} sd x{slower:.2f} "
                    f"{larger:+4.0f} MB {'' if right else 'NOT AS PROMISED'}",
                    flush=True,
                )
    print(f"{faults} faults with the words of {len(options.seeds)} seeds")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
