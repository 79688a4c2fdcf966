"""Read runs that other programs recorded, and write them as a ledger that `merge` takes in, with
the same checks as any foreign one. One table of readers; each yields runs and knows no git.

An imported run has an environment of its own, "imported from X", so it is compared with other
imported runs only. Its time of start and its place in the file name it: importing twice adds
nothing.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from celedger.base.errors import UsageError
from celedger.base.model import (
    IMPORTED,
    Command,
    Commit,
    Direction,
    Environment,
    EpochReport,
    Kind,
    Metric,
    Outcome,
    OutcomeKind,
    Purpose,
    Task,
    Trial,
)
from celedger.ledger import Ledger, ulid
from celedger.trial import protocol
from celedger.trial.report_sources import UNFIT, EventFiles

_TASK = re.compile(r"[^A-Za-z0-9_.-]+")
_TO_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}

COLUMNS = ("commit", "task", "seed", "epoch", "time")
Columns = Mapping[str, str]  # each of those -> the column that has it


@dataclass(frozen=True)
class Run:
    """A run that another program recorded. `commit` is what it says of it, "" for nothing;
    `started` is in seconds since the epoch, UTC; `at` is its place, for messages."""

    at: str
    task: str
    started: float
    epochs: Mapping[int, Mapping[str, float]]
    commit: str = ""
    seed: int = 0
    where: Mapping[str, str] = field(default_factory=dict)  # of the machine
    clocked: Collection[str] = ()  # metrics that are seconds, better when lower


Reader = Callable[[Path, Columns], Iterator[Run]]


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    values = {}
    for name, value in row.items():
        with suppress(TypeError, ValueError):
            if name and not isinstance(value, bool):
                values[_metric(name)] = float(value)
    return values


def _metric(name: str) -> str:
    name = UNFIT.sub("_", name)[:64]
    return name if name[:1].isalpha() or name[:1] == "_" else f"_{name}"[:64]


def _time(value: Any) -> float:
    """Return seconds since the epoch for a number of seconds or milliseconds, or ISO 8601."""
    with suppress(TypeError, ValueError):
        number = float(value)
        return number / 1000 if number > 1e11 else number
    with suppress(TypeError, ValueError):
        moment = datetime.fromisoformat(str(value))
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return 0.0


def _document(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    return document


def _json_rows(file: TextIO) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(file, 1):
        if line.strip():
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is no JSON object")
            yield number, row


def _csv_rows(file: TextIO) -> Iterator[tuple[int, dict[str, Any]]]:
    return enumerate(csv.DictReader(file), 2)


def _table(
    rows_of: Callable[[TextIO], Iterator[tuple[int, dict[str, Any]]]], path: Path, columns: Columns
) -> Iterator[Run]:
    """Yield the runs of a table: rows of equal commit, task and seed are the epochs of one run, in
    the order of the file where no column has their number."""
    runs: dict[tuple[str, str, str], tuple[int, float, dict[int, dict[str, float]]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for number, row in rows_of(file):
            told = {what: row.pop(column, None) for what, column in columns.items()}
            commit, task, seed, epoch, time = (told[what] for what in COLUMNS)
            key = str(commit or ""), str(task or path.stem), str(seed or 0)
            _, _, epochs = runs.setdefault(key, (number, _time(time), {}))
            at = len(epochs) if epoch in (None, "") else int(float(epoch))
            epochs.setdefault(at, {}).update(_numbers(row))
    for (commit, task, seed), (number, started, epochs) in runs.items():
        yield Run(f"{path.name}:{number}", task, started, epochs, commit, int(float(seed)))


def _pytest_benchmark(path: Path, _: Columns) -> Iterator[Run]:
    document = _document(path)
    git = document.get("commit_info") or {}
    machine = document.get("machine_info") or {}
    if git.get("dirty"):
        git = {}
    for number, one in enumerate(document["benchmarks"], 1):
        values = {"seconds": one["stats"]["median"], "seconds_min": one["stats"]["min"]}
        yield Run(
            f"{path.name}: benchmark {number}", one["fullname"], _time(document.get("datetime")),
            {0: values}, str(git.get("id") or ""),
            where=_machine(machine, "node", "machine", "python_version"), clocked=("seconds",),
        )  # fmt: skip


def _machine(document: Any, *keys: str) -> dict[str, str]:
    known = document if isinstance(document, dict) else {}
    return {key: str(known[key]) for key in keys if key in known}


def _hyperfine(path: Path, _: Columns) -> Iterator[Run]:
    started = path.stat().st_mtime
    for number, one in enumerate(_document(path)["results"], 1):
        values = {"seconds": one["median"], "seconds_min": one["min"]}
        yield Run(f"{path.name}: result {number}", one["command"], started, {0: values},
                  clocked=("seconds",))  # fmt: skip


def _google_benchmark(path: Path, _: Columns) -> Iterator[Run]:
    document = _document(path)
    context = document.get("context")
    started = _time(context.get("date")) if isinstance(context, dict) else 0.0
    for number, one in enumerate(document["benchmarks"], 1):
        if one.get("aggregate_name", "median") == "median":
            scale = _TO_SECONDS[one.get("time_unit", "ns")]
            values = {"seconds": one["real_time"] * scale, "cpu_seconds": one["cpu_time"] * scale}
            yield Run(
                f"{path.name}: benchmark {number}", one["name"], started, {0: values},
                where=_machine(context, "host_name"), clocked=tuple(values),
            )  # fmt: skip


def _asv(path: Path, _: Columns) -> Iterator[Run]:
    """Read a file of `results/MACHINE/` of asv (results of version 2). A benchmark that is timed
    has a name that says so; of parameters each combination is a task."""
    document = _document(path)
    columns = list(document["result_columns"])
    for name, row in document["results"].items():
        told = dict(zip(columns, row, strict=False))
        for number, value in enumerate(told.get("result") or ()):
            if value is not None:
                metric = "seconds" if ".time_" in f".{name}" else "value"
                task = name if len(told["result"]) == 1 else f"{name}-{number}"
                yield Run(f"{path.name}: {name}", task, _time(document.get("date")),
                          {0: {metric: float(value)}}, str(document["commit_hash"]),
                          where=_machine(document.get("params"), "machine", "cpu", "python"),
                          clocked=("seconds",))  # fmt: skip


def _tensorboard(folder: Path, _: Columns) -> Iterator[Run]:
    for place in sorted({path.parent for path in folder.rglob("*tfevents*")}):
        files = sorted(place.glob("*tfevents*"))
        reports = EventFiles(place, folder).read(end=True)
        epochs = {report.epoch: dict(report.values) for report in reports}
        task = "-".join(place.relative_to(folder).parts) or folder.resolve().name
        yield Run(str(place), task, files[0].stat().st_mtime, epochs)


def _mlflow(store: Path, _: Columns) -> Iterator[Run]:
    """Read a file store: EXPERIMENT/RUN/ with a file a metric, tag and parameter."""
    for folder in sorted(path.parent for path in store.glob("*/*/metrics")):
        epochs: dict[int, dict[str, float]] = {}
        times = []
        for file in sorted(p for p in (folder / "metrics").rglob("*") if p.is_file()):
            for line in file.read_text().splitlines():
                when, value, *step = line.split()
                times.append(_time(when))
                name = _metric(file.relative_to(folder / "metrics").as_posix())
                epochs.setdefault(max(0, int(step[0])) if step else 0, {})[name] = float(value)

        def text(*parts: str, folder: Path = folder) -> str:
            path = folder.joinpath(*parts)
            return path.read_text().strip() if path.is_file() else ""

        seed = text("params", "seed")
        yield Run(
            str(folder), text("tags", "mlflow.source.name").rpartition("/")[2] or "run",
            min(times, default=0.0), epochs, text("tags", "mlflow.source.git.commit"),
            int(seed) if seed.isdigit() else 0,
        )  # fmt: skip


def _wandb(store: Path, _: Columns) -> Iterator[Run]:
    """Read the run folders of wandb: the summary and the commit that lie beside the history, which
    only wandb's own program reads; its export as CSV is read as a table."""
    for summary in sorted(store.rglob("files/wandb-summary.json")):
        metadata = _document(summary.with_name("wandb-metadata.json"))
        git = metadata.get("git")
        program = str(metadata.get("program") or "run").rpartition("/")[2]
        yield Run(
            str(summary.parent), program, _time(metadata.get("startedAt")),
            {0: _numbers({k: v for k, v in _document(summary).items() if k[0] != "_"})},
            str(git.get("commit") or "") if isinstance(git, dict) else "",
        )  # fmt: skip


READERS: Mapping[str, Reader] = {
    "jsonl": partial(_table, _json_rows), "csv": partial(_table, _csv_rows),
    "tensorboard": _tensorboard, "mlflow": _mlflow,
    "wandb": _wandb, "pytest-benchmark": _pytest_benchmark, "hyperfine": _hyperfine, "asv": _asv,
    "google-benchmark": _google_benchmark,
}  # fmt: skip


def read(path: Path, form: str, columns: Columns) -> list[Run]:
    """Return the runs of a file or folder. Raises UsageError where it is not of this form, or has
    none."""
    try:
        runs = [run for run in READERS[form](path, columns) if any(run.epochs.values())]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"{path} is not of the form {form}: {what}") from error
    if not runs:
        raise UsageError(f"{path} has no run with a number", f"is it of the form {form}?")
    return runs


def write(
    runs: Collection[tuple[Run, Commit]], form: str, directions: Mapping[str, Direction], to: Path
) -> None:
    """Write runs, each at its commit, as a new ledger. `directions` are of metrics, by name."""
    with Ledger.open(to, create=True) as ledger, ledger.transaction():
        for run, commit in runs:
            names = sorted({name for values in run.epochs.values() for name in values})
            task = Task(
                IMPORTED, _TASK.sub("-", run.task).strip("-.")[:100] or "run",
                (Command("imported", (form,)),),
                metrics=tuple(_judged(name, run, directions) for name in names),
            )  # fmt: skip
            details = {"imported": f"from {form}", **run.where}
            text = json.dumps(details, sort_keys=True).encode()
            environment = Environment(hashlib.sha256(text).hexdigest(), details)
            ledger.record_commits([commit])
            ledger.record_task(task)
            ledger.record_environment(environment)
            started = run.started or float(commit.commit_time)
            name = ulid.named(started, f"{form} {task.recipe} {commit.sha} {run.seed} {run.at}")
            ledger.start_trial(
                Trial(name, commit.sha, task.recipe, environment.fingerprint, run.seed,
                      Purpose.RUN, started, "imported")
            )  # fmt: skip
            ledger.append_epochs(name, [EpochReport(n, v) for n, v in sorted(run.epochs.items())])
            ledger.finish_trial(
                name, Outcome(OutcomeKind.OK, started),
                protocol.summaries(task.metrics, ledger.series(name)),
            )  # fmt: skip


def _judged(name: str, run: Run, directions: Mapping[str, Direction]) -> Metric:
    clocked = name in run.clocked
    usual = Direction.LOWER if clocked else Direction.INFO
    return Metric(
        name, "s" if clocked else "", directions.get(name, usual),
        Kind.SPEED if clocked else Kind.QUALITY,
    )  # fmt: skip
