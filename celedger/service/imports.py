"""Read runs that other programs recorded, and write them as a ledger that `merge` takes in, with
the same checks as for any foreign one. Each reader of the table yields runs and knows no git.

An imported run has an environment of its own, "imported from X", so it is compared with other
imported runs only. Its start time and its place in the file name it: importing twice adds nothing.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import product
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
from celedger.ledger.opening import rows_of
from celedger.trial import protocol
from celedger.trial.report_sources import UNFIT, EventFiles, protocol_buffer

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
    document = json.loads(path.read_text(encoding="utf-8-sig"))
    if not isinstance(document, dict):
        raise ValueError("it is not a JSON object")
    return document


def _json_rows(file: TextIO) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(file, 1):
        if line.strip():
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"line {number} is not a JSON object")
            yield number, row


def _table(
    rows_of: Callable[[TextIO], Iterator[tuple[int, dict[str, Any]]]], path: Path, columns: Columns
) -> Iterator[Run]:
    """Yield the runs of a table: rows of equal commit, task and seed are the epochs of one run, in
    the order of the file where no column has their number."""
    runs: dict[tuple[str, str, str], tuple[int, float, dict[int, dict[str, float]]]] = {}
    with path.open(encoding="utf-8-sig", newline="") as file:
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
    every = document["benchmarks"]
    single = {one["name"] for one in every if "aggregate_name" not in one}
    for number, one in enumerate(every, 1):
        name = one["name"].removesuffix("_median")
        # Of repetitions that were not written one by one the median counts.
        is_median = one.get("aggregate_name") == "median" and name not in single
        if one["name"] in single or is_median:
            scale = _TO_SECONDS[one.get("time_unit", "ns")]
            values = {"seconds": one["real_time"] * scale, "cpu_seconds": one["cpu_time"] * scale}
            yield Run(
                f"{path.name}: benchmark {number}", name, started, {0: values},
                where=_machine(context, "host_name"), clocked=tuple(values),
            )  # fmt: skip


def _asv(path: Path, _: Columns) -> Iterator[Run]:
    """Read a file of `results/MACHINE/` of asv (results of version 2). A benchmark that is timed
    has a name that says so; of parameters each combination is a task."""
    document = _document(path)
    columns = list(document["result_columns"])
    for name, row in document["results"].items():
        told = dict(zip(columns, row, strict=False))
        points = [*product(*(told.get("params") or ()))]
        for point, value in zip(points, told.get("result") or (), strict=True):
            if value is not None:
                metric = "seconds" if ".time_" in f".{name}" else "value"
                task = "-".join([name, *point])
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
    """Read the database of MLflow 3 (mlflow.db), or a file store (mlruns)."""
    database = store / "mlflow.db" if store.is_dir() else store
    yield from _mlflow_database(database) if database.is_file() else _mlflow_files(store)


def _mlflow_database(database: Path) -> Iterator[Run]:
    facts = rows_of(
        database,
        "SELECT run_uuid, key, value FROM params WHERE key = 'seed' UNION ALL "
        "SELECT run_uuid, key, value FROM tags WHERE key LIKE 'mlflow.source.%'",
    )
    of_run = {(run, key): str(value) for run, key, value in facts}
    epochs: dict[str, dict[int, dict[str, float]]] = {}
    started: dict[str, float] = {}
    for run, start, key, value, is_nan, step in rows_of(
        database,
        "SELECT m.run_uuid, r.start_time, m.key, m.value, m.is_nan, m.step FROM metrics m "
        "JOIN runs r USING (run_uuid) WHERE r.lifecycle_stage = 'active' "
        "ORDER BY r.start_time, m.run_uuid, m.step, m.timestamp",
    ):
        started[run] = _time(start)
        row = epochs.setdefault(run, {}).setdefault(max(0, int(step)), {})
        row[_metric(key)] = math.nan if is_nan else float(value)
    for run, own in epochs.items():
        program = of_run.get((run, "mlflow.source.name"), "").rpartition("/")[2]
        commit = of_run.get((run, "mlflow.source.git.commit"), "")
        yield Run(f"{database.name}: run {run}", program or "run", started[run], own, commit,
                  _seed(of_run.get((run, "seed"))))  # fmt: skip


def _mlflow_files(store: Path) -> Iterator[Run]:
    """Read EXPERIMENT/RUN/ with a file a metric, tag and parameter."""
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

        yield Run(
            str(folder), text("tags", "mlflow.source.name").rpartition("/")[2] or "run",
            min(times, default=0.0), epochs, text("tags", "mlflow.source.git.commit"),
            _seed(text("params", "seed")),
        )  # fmt: skip


def _trackio(store: Path, _: Columns) -> Iterator[Run]:
    """Read a folder of trackio: PROJECT.db a project. It knows no commits."""
    for database in sorted(store.glob("*.db")) if store.is_dir() else [store]:
        seeds = {
            run: _seed(json.loads(config).get("seed"))
            for run, config in rows_of(database, "SELECT run_id, config FROM configs")
        }
        runs: dict[str, tuple[float, dict[int, dict[str, float]]]] = {}
        for run, time, step, metrics in rows_of(
            database, "SELECT run_id, timestamp, step, metrics FROM metrics ORDER BY id"
        ):
            epochs = runs.setdefault(run, (_time(time), {}))[1]
            epochs.setdefault(int(step), {}).update(_numbers(json.loads(metrics)))
        for run, (started, epochs) in runs.items():
            yield Run(f"{database.name}: run {run}", database.stem, started, epochs,
                      seed=seeds.get(run, 0))  # fmt: skip


def _seed(value: object) -> int:
    """Return a seed that a run states as a parameter; 0 for anything else."""
    return int(str(value)) if str(value).isdecimal() else 0


_WANDB = b":W&B"
_BLOCK, _HEAD = 32768, struct.Struct("<IHB")  # bytes; checksum, length and kind of a piece
_ENDS = (1, 4)  # kinds of a piece that ends a record: the only one of it, the last one


def _wandb(store: Path, _: Columns) -> Iterator[Run]:
    """Read the runs of wandb: run-ID.wandb in the folder of each run, online or offline. A file is
    a log of LevelDB (its log_format describes it) of records in protocol buffers
    (wandb/proto/wandb_internal.proto)."""
    files = sorted(store.rglob("run-*.wandb")) if store.is_dir() else [store]
    for file in dict.fromkeys(path.resolve() for path in files):
        project, commit, started, seed = "", "", 0.0, 0
        epochs: dict[int, dict[str, float]] = {}
        for record in map(protocol_buffer, _wandb_records(file.read_bytes())):
            for history in map(protocol_buffer, record.get(2, ())):
                row = _wandb_items(history.get(1, ()))
                at = row.pop("epoch", row.get("_step", len(epochs)))
                numbers = {name: value for name, value in row.items() if name[:1] != "_"}
                epochs.setdefault(int(float(at)), {}).update(_numbers(numbers))
            for run in map(protocol_buffer, record.get(17, ())):
                project = run.get(3, [b"run"])[-1].decode()
                for config in map(protocol_buffer, run.get(4, ())):
                    seed = _seed(_wandb_items(config.get(1, ())).get("seed"))
                for git in map(protocol_buffer, run.get(21, ())):
                    commit = git.get(2, [b""])[-1].decode()
                for moment in map(protocol_buffer, run.get(17, ())):
                    started = float(moment.get(1, [0])[-1])
        yield Run(str(file), project, started, epochs, commit, seed)


def _wandb_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a log. It stores them as pieces, none across two blocks; a killed run
    may have left half of the last one."""
    if not data.startswith(_WANDB):
        raise ValueError("it does not begin with :W&B")
    at, record = 7, b""
    while at + _HEAD.size <= len(data):
        rest = _BLOCK - at % _BLOCK
        if rest < _HEAD.size:
            at += rest
            continue
        _, size, kind = _HEAD.unpack_from(data, at)
        at += _HEAD.size + size
        record += data[at - size : at]
        if kind in _ENDS and at <= len(data):
            yield record
            record = b""


def _wandb_items(items: Iterable[bytes]) -> dict[str, Any]:
    """Return the values of HistoryItem or ConfigItem: a key, or the parts of one, and JSON."""
    row = {}
    for item in map(protocol_buffer, items):
        name = b".".join(item.get(1, item.get(2, [])))
        row[name.decode()] = json.loads(item[16][-1])
    return row


_OF_ASV = ("machine.json", "benchmarks.json")  # what lies beside its results


def _documents(read_one: Reader, path: Path, columns: Columns) -> Iterator[Run]:
    """Yield the runs of a document, or of all documents below a folder."""
    for file in sorted(path.rglob("*.json")) if path.is_dir() else [path]:
        if file.name not in _OF_ASV:
            yield from read_one(file, columns)


READERS: Mapping[str, Reader] = {
    "jsonl": partial(_table, _json_rows),
    "csv": partial(_table, lambda file: enumerate(csv.DictReader(file), 2)),
    "tensorboard": _tensorboard, "mlflow": _mlflow, "wandb": _wandb,
    "trackio": _trackio,
    "pytest-benchmark": partial(_documents, _pytest_benchmark),
    "hyperfine": partial(_documents, _hyperfine), "asv": partial(_documents, _asv),
    "google-benchmark": partial(_documents, _google_benchmark),
}  # fmt: skip


def read(path: Path, form: str, columns: Columns) -> list[Run]:
    """Return the runs of a file or folder. Raises UsageError where it is not of this form, or has
    none."""
    try:
        runs = [run for run in READERS[form](path, columns) if any(run.epochs.values())]
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"{path} is not valid {form}: {what}") from error
    if not runs:
        raise UsageError(f"{path} has no run with a number", f"is it {form}?")
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
        name, "s" if run.clocked and "seconds" in name else "", directions.get(name, usual),
        Kind.SPEED if clocked else Kind.QUALITY,
    )  # fmt: skip
