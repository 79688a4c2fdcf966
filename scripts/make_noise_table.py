"""Measure the noise of the shipped suites and write docs/noise.md: `make noise`, on a quiet
machine. What the ledger beside it holds already is not measured again.

    python scripts/make_noise_table.py [--suite NAME]... [--seeds N] [--repeats M] [--commit REV]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from celedger import base
from celedger import suite as suites
from celedger.judge import memory
from celedger.ledger import Ledger
from celedger.repo import Repository
from celedger.views.document import count, measure, percent, short
from celedger.views.noise import REPEATS, TRIALS, NoiseRow, TaskNoise

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "noise.md"
LEDGER = ROOT / ".celedger-noise" / "ledger.db"

HEAD = """\
# Known noise

Made by `make noise`, which runs `celedger noise` on the shipped suites; your machine's own figures
are `celedger noise` and then `celedger show TASK` away. **Spread** is the standard deviation of one
trial: of quality over seeds, of speed and memory over all trials. **Equal seeds** says whether they
give the same value to the last bit. The last columns are the smallest change that so many trials at
each of two commits detect at 95 % confidence, in four cases of five; what is smaller than the
**floor** is not worth knowing and never a regression.
"""


def measured(name: str, asked: argparse.Namespace) -> None:
    words = ["--suite", name, "--seeds", str(asked.seeds), "--repeats", str(asked.repeats)]
    done = subprocess.run(
        [sys.executable, "-m", "celedger", "--ledger", str(asked.ledger), "noise", *words,
         "--commit", asked.commit, "--device", asked.device],
        cwd=ROOT, stdout=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"celedger noise --suite {name} ended with status {done.returncode}")


def place(task: TaskNoise) -> str:
    """Where it was measured."""
    details = task.environment.details if task.environment else {}
    packages = details.get("packages")
    torch = packages.get("torch", "?") if isinstance(packages, dict) else "?"
    device = details.get("device")
    where = f"{details.get('cpu')}, {details.get('cores')} cores" if device == "cpu" else device
    return f"{where}, {details.get('python')}, torch {torch}"


def row(metric: NoiseRow) -> str:
    level, known = metric.level, metric.is_known
    relative = percent(metric.sd / abs(level.mean)) if level.mean else "–"
    cells = [
        f"`{metric.metric.name}`",
        measure(level.mean, metric.sd, unit=metric.metric.unit) if level.n else "–",
        relative if known else "–",
        REPEATS[metric.repeats] or "–",
        *map(level.smallest_text, metric.smallest),
        str(metric.metric.floor),
    ]
    return f"| {' | '.join(cells)} |"


def section(task: TaskNoise) -> str:
    heads = ["metric", "level", "spread", "equal seeds", *(count(n, "trial") for n in TRIALS)]
    lines = [
        f"### {task.batch.task}",
        "",
        f"{count(task.trials, 'trial')}, {count(task.seeds, 'seed')}.",
        "",
        f"| {' | '.join([*heads, 'floor'])} |",
        f"|{'---|' * (len(heads) + 1)}",
        *map(row, task.metrics),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    shipped = suites.suites_in(base.shipped("suites"))
    parser.add_argument("--suite", action="append", choices=shipped)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--ledger", type=Path, default=LEDGER)
    asked = parser.parse_args()
    asked.ledger.parent.mkdir(exist_ok=True)
    parts = [HEAD]
    for name in asked.suite or shipped:
        measured(name, asked)
        tasks = suites.load(base.shipped("suites") / name).tasks
        with Ledger.open(asked.ledger, readonly=True) as ledger:
            state = memory.read(Repository.open(ROOT), ledger)
            found = [TaskNoise.of(ledger, name, task.name, state) for task in tasks]
        commit = short(found[0].batch.records[0].trial.commit)
        parts += [f"## {name}\n", f"Measured at {commit} on {place(found[0])}.\n"]
        parts += [section(task) + "\n" for task in found]
    TARGET.write_text("\n".join(parts))


if __name__ == "__main__":
    main()
