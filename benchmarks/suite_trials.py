"""Trials of the shipped suites for the benchmarks beside this file: runs a task's commands as
celedger does, without its ledger, summarises the declared metrics and asks celedger's statistics.

Trials are kept as JSON under `--cache`, by the content of suite and harness, so that a benchmark
that was stopped goes on where it was.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import re
import runpy
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch

from celedger import suite as suites
from celedger.base.model import Direction, Kind, Metric, Task
from celedger.stats import incidents
from celedger.stats.course import Measurements
from celedger.stats.history import trace
from celedger.trial.protocol import Parser, summarise

ROOT = Path(__file__).resolve().parent.parent
torch.set_num_threads(1)  # before any fork: no pool of threads is lost in one
INJECTED = ROOT / "benchmarks" / "injected"
CACHE = Path(tempfile.gettempdir()) / "celedger-suite-trials"
SEEDS = (0, 1, 2)
# A ledger knows that a metric repeats exactly from commits that left it alone. Their trials
# are those of the first (suite_figures.py shows that they repeat) and count once for the noise.
COMMITS = 3


@dataclass(frozen=True)
class Trial:
    """Summaries of the declared quality metrics; none where it crashed."""

    summaries: Mapping[str, float]
    fingerprints: Sequence[str]  # one an epoch
    seconds: float  # processor time of all commands
    memory: int  # bytes, the largest of the commands
    error: str = ""


def tasks(*names: str) -> dict[str, tuple[suites.Suite, Task]]:
    """The tasks of these suites, by name."""
    found = {}
    for name in names:
        suite = suites.load(ROOT / "suites" / name)
        found |= {task.name: (suite, task) for task in suite.tasks}
    return found


def judged(task: Task) -> list[Metric]:
    """The metrics that tell of quality: these a busy machine cannot move."""
    return [m for m in task.metrics if m.kind is Kind.QUALITY and m.direction is not Direction.INFO]


def run(
    suite: suites.Suite,
    task: Task,
    seed: int,
    *,
    cache: Path = CACHE,
    folder: Path | None = None,
    extra: Mapping[str, str] | None = None,
) -> Trial:
    """One trial, with `folder` for the suite's own and `extra` in its environment."""
    folder, extra = folder or suite.folder, dict(extra or {})
    digest = hashlib.sha256(_content(task, folder))
    digest.update(json.dumps([task.name, seed, sorted(extra.items()), str(task.commands)]).encode())
    digest.update(json.dumps(dict(task.params)).encode())
    if extra:
        digest.update(b"".join(path.read_bytes() for path in sorted(INJECTED.glob("*.py"))))
    kept = cache / f"{digest.hexdigest()[:32]}.json"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        trial = _run(task, folder, seed, extra)
        draft = kept.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps(trial.__dict__))
        draft.rename(kept)
    return Trial(**json.loads(kept.read_text()))


def _content(task: Task, folder: Path) -> bytes:
    """The harness, the task's scripts, and the modules beside them that they import."""
    names = {Path(word).name for command in task.commands for word in command.template}
    scripts = {path for path in folder.glob("*.py") if path.name in names}
    imported = {
        folder / f"{name}.py"
        for script in scripts
        for name in re.findall(r"^(?:from|import) (\w+)", script.read_text(), re.MULTILINE)
    }
    harness = ROOT / "celedger" / "child" / "torch.py"
    files = [harness, *sorted(scripts | {path for path in imported if path.exists()})]
    return b"".join(path.read_bytes() for path in files)


def _run(task: Task, folder: Path, seed: int, extra: Mapping[str, str]) -> Trial:
    with tempfile.TemporaryDirectory() as place:
        journal, said = Path(place, "journal.jsonl"), Path(place, "said")
        journal.touch()
        lines = suites.command_lines(
            task, python=sys.executable, suite_dir=folder, tree=ROOT, seed=seed, out=Path(place)
        )
        seconds, memory, error = 0.0, 0, ""
        for _, line in lines:
            child = os.fork()
            if child == 0:
                _become(line, journal, said, extra)
            _, status, usage = os.wait4(child, 0)
            seconds += usage.ru_utime + usage.ru_stime
            memory = max(memory, usage.ru_maxrss * 1024)
            if status:
                error = (said.read_text().strip().splitlines() or [f"status {status}"])[-1]
                break
        parser = Parser()
        reports = [parser.feed(line) for line in journal.read_bytes().splitlines()]
    found = [report for report in reports if report is not None]
    summaries = {}
    for metric in judged(task):
        series = [(r.epoch, r.values[metric.name]) for r in found if metric.name in r.values]
        value = summarise(metric, series)
        if value is not None:
            summaries[metric.name] = value
    marks = [report.fingerprint or "" for report in found]
    return Trial({} if error else summaries, marks, seconds, memory, error)


def _become(line: Sequence[str], journal: Path, said: Path, extra: Mapping[str, str]) -> NoReturn:
    """Run a command's script in this forked process, which has torch already: a third of the time
    of a short training is its import. Never returns."""
    status = 1
    try:
        out = os.open(said, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        descriptor = os.open(journal, os.O_WRONLY | os.O_APPEND)
        os.environ |= {"CELEDGER_FD": str(descriptor), "OMP_NUM_THREADS": "1", **extra}
        os.environ.pop("CELEDGER_JOURNAL", None)
        sys.argv = list(line[1:])
        sys.dont_write_bytecode = True
        sys.path[:0] = [str(Path(line[1]).parent), str(INJECTED)]
        finish = None
        if extra:
            finish = importlib.import_module("torch_faults").inject(extra["CELEDGER_INJECT"])
        runpy.run_path(line[1], run_name="__main__")
        if finish is not None:
            finish()
        status = 0
    except SystemExit as end:
        print(end.code, file=sys.stderr)
        status = int(end.code not in (0, None))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # not by way of the parent's own clearing up


@dataclass(frozen=True)
class Caught:
    """What the state says of a metric: `how` is regressed, improved, not-finite, or failed."""

    metric: str
    how: str
    base: float = 0.0
    head: float = 0.0


def judge(task: Task, base: Sequence[Trial], head: Sequence[Trial]) -> list[Caught]:
    """Return the declared quality metrics that celedger's state tells apart. A crash is told by
    itself."""
    if any(trial.error for trial in head):
        return [Caught("", "failed")]
    caught, measured, floors, signs = [], {}, {}, {}
    for metric in judged(task):
        name = metric.name
        if name not in base[0].summaries:
            continue
        values = [[trial.summaries[name] for trial in side] for side in (base, head)]
        if not all(map(math.isfinite, values[1])):
            caught.append(Caught(name, "not-finite"))
            continue
        key = ("", "", name)
        signs[key], floors[key] = metric.direction.sign, metric.floor.at
        measured[key] = _measurements([values[0]] * COMMITS + values[1:], metric.direction.sign)
    derived = incidents.derive(trace(measured), (), floors=floors)
    steps = [(k, s.step) for i in derived.incidents for k, s in i.shares.items()]
    for key, step in [*steps, *derived.changes]:
        how = "regressed" if step.size > 0 else "improved"
        sign = signs[key]
        caught.append(Caught(key[2], how, sign * step.before, sign * step.after))
    return caught


def _measurements(values: Sequence[Sequence[float]], sign: int) -> Measurements:
    """Return what neighbouring commits gave, the oldest first, each seed once at each."""
    place = np.repeat(np.arange(len(values)), [len(side) for side in values])
    seed = np.concatenate([SEEDS[: len(side)] for side in values])
    value = np.concatenate(values)
    bits = np.unique(value, return_inverse=True)[1]
    zeros = np.zeros(place.size, dtype=np.int64)
    own = np.ones(place.size, dtype=bool)
    rank = np.arange(place.size)
    return Measurements(place, zeros, place, rank, seed, sign * value, own, bits, False)
