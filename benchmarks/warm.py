"""Warm starts beside cold ones and beside the bare script, interleaved in random order.

    python benchmarks/warm.py [EPOCHS] [TRIALS] [COLD]

Every task of suite core, of EPOCHS epochs each: TRIALS warm and COLD cold trials, through the
bench that `celedger run` uses, and COLD bare runs of the script by hand. The *overhead* of a
trial is its whole time on the bench (checkout, journal, start, imports, data, end, ledger) less
that of the training loop, as the script itself timed it. The launcher's own start is paid once
and given apart. On a busy machine the wall time says most about the others, so the processor
time of the same (celedger, git, the trial's processes, less the loop's) is given too.
Fingerprints of every epoch must be those of the cold start with that seed. Targets: overhead of
a warm trial at most 150 ms, at least 15 times less than a cold one's; no other fingerprint.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from celedger import suite as suites
from celedger.base.config import load
from celedger.base.model import Task
from celedger.ledger import Ledger
from celedger.repo import Repository
from celedger.suite import command_lines
from celedger.system import process
from celedger.trial.engine import Need
from celedger.trial.permissions import Gate
from celedger.trial.runner import Bench
from celedger.trial.workplace import choose_tasks, set_bench

LIMIT, RATIO = 0.150, 15.0
SEEDS = 3
CLOCK = """\
import time

from celedger.child.torch import train as _train


def train(**description):
    start, cpu = time.perf_counter(), time.process_time()
    _train(**description)
    wall = time.perf_counter() - start
    print(f"loop {wall:.6f} {time.process_time() - cpu:.6f}", flush=True)
"""


def suite_of(folder: Path, epochs: int) -> suites.Suite:
    """Suite core with a clock around the loop."""
    home = folder / "suites" / "core"
    shutil.copytree(suites.find("core", load(folder, {}), folder), home)
    shared = home / "shared" / "loop.py"
    text = shared.read_text()
    imported = "from celedger.child.torch import shuffled, train\n"
    if imported not in text:
        raise SystemExit(f"{shared} does not import the training loop as before")
    clock = "from celedger.child.torch import shuffled\n\nfrom clock import train\n"
    shared.write_text(text.replace(imported, clock))
    (home / "clock.py").write_text(CLOCK)
    text = (home / "suite.toml").read_text()
    (home / "suite.toml").write_text(re.sub(r"epochs = \d+", f"epochs = {epochs}", text))
    return suites.load(home)


@dataclass(frozen=True)
class Run:
    """Seconds of wall and processor time: the whole, and the loop in it."""

    whole: float
    whole_cpu: float
    loop: float
    loop_cpu: float

    @property
    def over(self) -> float:
        return self.whole - self.loop

    @property
    def over_cpu(self) -> float:
        return self.whole_cpu - self.loop_cpu


class Meter:
    """Processor time of this process and of all it ran. What a launcher forked is not ours; the
    supervisor's report has it."""

    def __init__(self) -> None:
        self.forked = 0.0
        plain = process.run

        def run(*words: Any, **named: Any) -> process.Exit:
            end = plain(*words, **named)
            self.forked += end.cpu if end.warm else 0.0
            return end

        process.run = run

    def read(self) -> float:
        times = os.times()
        return sum(times[:4]) + self.forked


def bare(bench: Bench, task: Task, seed: int, meter: Meter) -> Run:
    """The script by hand."""
    tree = bench.tree
    ((_, argv),) = command_lines(
        task, python=bench.interpreters[task.name], suite_dir=bench.suite_copy, tree=tree,
        seed=seed, out=tree,
    )  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(bench.child), "OMP_NUM_THREADS": str(task.threads)}
    start, cpu = time.perf_counter(), meter.read()
    out = subprocess.run(argv, cwd=tree, env=env, capture_output=True, text=True, check=True).stdout
    return Run(time.perf_counter() - start, meter.read() - cpu, *loop_in(out))


def loop_in(text: str) -> tuple[float, float]:
    ((wall, cpu),) = re.findall(r"^loop ([\d.]+) ([\d.]+)$", text, re.MULTILINE)
    return float(wall), float(cpu)


def main(epochs: int = 1, trials: int = 20, cold: int = 4) -> None:
    chance, seeds, meter = random.Random(0), min(SEEDS, cold), Meter()
    runs: dict[tuple[str, str], list[Run]] = defaultdict(list)
    memory: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    prints: dict[tuple[str, str, int], list[dict[int, str]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="celedger-warm-") as name:
        folder = Path(name)
        for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"]):
            subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words],
                           cwd=folder, check=True)  # fmt: skip
        os.environ["CELEDGER_LOCK_DIR"] = str(folder / "locks")
        suite = suite_of(folder, epochs)
        repository, config = Repository.open(folder), load(folder, {})
        tasks = choose_tasks(suite, ())
        commit = repository.resolve("HEAD")
        todo = [("warm", task, k % seeds) for task in tasks for k in range(trials)]
        todo += [(kind, t, k % seeds) for kind in ("cold", "bare") for t in tasks
                 for k in range(cold)]  # fmt: skip
        chance.shuffle(todo)
        with (
            Ledger.open(config.ledger, create=True) as ledger,
            set_bench(
                repository,
                ledger,
                config,
                suite,
                tasks,
                gate=Gate.of(repository, attended=True),
            ) as bench,
        ):
            start = time.perf_counter()
            bench.run(Need(commit, tasks[0], 0, None))
            print(f"the launcher's first trial: {time.perf_counter() - start:.2f} s, "
                  f"load {os.getloadavg()[0]:.1f}", flush=True)  # fmt: skip
            for kind, task, seed in todo:
                if kind == "bare":
                    runs[kind, task.name].append(bare(bench, task, seed, meter))
                    continue
                asked = task if kind == "warm" else replace(task, preload=())
                start, cpu = time.perf_counter(), meter.read()
                record = bench.run(Need(commit, asked, seed, None))
                wall, cpu = time.perf_counter() - start, meter.read() - cpu
                assert record.ok and record.outcome, record
                assert ("warm_duration" in record.summaries) == (kind == "warm"), record
                log = (ledger.folder / record.outcome.log).read_text()
                runs[kind, task.name].append(Run(wall, cpu, *loop_in(log)))
                prints[kind, task.name, seed].append(ledger.fingerprints(record.trial.ulid))
                for metric in ("peak_memory", "peak_rss"):
                    memory[kind, task.name, metric].append(record.summaries[metric])
    report(epochs, [task.name for task in tasks], seeds, runs, memory, prints)


def report(
    epochs: int,
    tasks: list[str],
    seeds: int,
    runs: dict[tuple[str, str], list[Run]],
    memory: dict[tuple[str, str, str], list[float]],
    prints: dict[tuple[str, str, int], list[dict[int, str]]],
) -> None:
    print(f"load {os.getloadavg()[0]:.1f}; overheads in ms, medians; the rest as ratios")
    print(f"{'task':18}{'warm':>7}{'least':>7}{'cpu':>7}{'cold':>7}{'least':>7}{'cpu':>7}"
          f"{'cold/warm':>11}{'by cpu':>8}{'loop w/b':>10}{'loop c/b':>10}{'memory':>8}{'rss':>8}"
          )  # fmt: skip
    total: dict[str, list[Run]] = {"warm": [], "cold": []}
    for task in tasks:
        middle = {}
        for kind in ("warm", "cold", "bare"):
            some = runs[kind, task]
            middle[kind] = [median(getattr(r, what) for r in some)
                            for what in ("over", "over_cpu", "loop_cpu")]  # fmt: skip
            middle[kind].append(min(r.over for r in some))
            total.setdefault(kind, []).extend(some)
        warm, cold, by_hand = (middle[kind] for kind in ("warm", "cold", "bare"))
        sizes = [median(memory["warm", task, m]) / median(memory["cold", task, m])
                 for m in ("peak_memory", "peak_rss")]  # fmt: skip
        print(f"{task:18}{warm[0] * 1e3:7.0f}{warm[3] * 1e3:7.0f}{warm[1] * 1e3:7.0f}"
              f"{cold[0] * 1e3:7.0f}{cold[3] * 1e3:7.0f}{cold[1] * 1e3:7.0f}"
              f"{cold[0] / warm[0]:11.1f}{cold[1] / warm[1]:8.1f}{warm[2] / by_hand[2]:10.3f}"
              f"{cold[2] / by_hand[2]:10.3f}{sizes[0]:8.4f}{sizes[1]:8.4f}")  # fmt: skip
    warm_wall, cold_wall = (median(r.over for r in total[k]) for k in ("warm", "cold"))
    warm_cpu, cold_cpu = (median(r.over_cpu for r in total[k]) for k in ("warm", "cold"))
    compared = different = 0
    for task in tasks:
        for seed in range(seeds):
            truth = prints["cold", task, seed][0]
            found = [*prints["cold", task, seed], *prints["warm", task, seed]]
            different += sum(one != truth or len(one) != epochs for one in found)
            compared += len(prints["warm", task, seed])
    print(f"all: warm {warm_wall * 1e3:.0f} ms (cpu {warm_cpu * 1e3:.0f}), cold "
          f"{cold_wall * 1e3:.0f} ms (cpu {cold_cpu * 1e3:.0f}), {cold_wall / warm_wall:.1f} times "
          f"(by cpu {cold_cpu / warm_cpu:.1f}); {different} of {compared} warm trials with other "
          "fingerprints")  # fmt: skip
    good = warm_wall <= LIMIT and cold_wall / warm_wall >= RATIO and not different
    print("met" if good else "MISSED")
    sys.exit(not good)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
