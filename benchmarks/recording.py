"""Recording and reading metrics: celedger side by side with raw sqlite3, JSON lines and, where it
is installed, trackio, in one run. Prints times, ratios, sizes, and which targets are met.

    python benchmarks/recording.py [--trackio PYTHON] [--commits 2000] [--quick]

PYTHON is an interpreter that can import trackio (it may live in another virtual environment).
Every measurement is a process of its own; the stores take turns, so that other load on the machine
meets all of them. Absolute times are of this machine; compare the ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EPOCHS, METRICS, TASKS, STEPS = 20, 12, 10, 10_000
NAMES = [f"metric_{i}" for i in range(METRICS)]
PRAGMAS = "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=10000;"
RAW = """
CREATE TABLE trials (id INTEGER PRIMARY KEY, sha TEXT, task INTEGER, seed INTEGER, started REAL);
CREATE TABLE points (trial INTEGER, epoch INTEGER, metric INTEGER, value REAL,
  PRIMARY KEY (trial, epoch, metric)) WITHOUT ROWID;
CREATE TABLE summaries (metric INTEGER, task INTEGER, trial INTEGER, value REAL,
  PRIMARY KEY (metric, task, trial)) WITHOUT ROWID;
"""


def values(run: int, epoch: int, count: int = METRICS) -> dict[str, float]:
    """Reproducible, and with as many digits as a measured one."""
    return {NAMES[i]: ((run * 7919 + epoch * 104729 + i * 1299709) % 999983) / 7e5
            for i in range(count)}  # fmt: skip


def raw(folder: Path):
    import sqlite3

    connection = sqlite3.connect(folder / "raw.db", timeout=60, isolation_level=None)
    connection.executescript(PRAGMAS + ("" if (folder / "made").exists() else RAW))
    (folder / "made").touch()
    return connection


def ledger(folder: Path):
    from celedger.ledger import Ledger

    return Ledger.open(folder / "ledger.db", create=True)


def recorded(opened, sha: str, recipe: str, run: int) -> str:
    """A trial that has started."""
    from random import Random

    from celedger.base.model import Trial, Why
    from celedger.ledger import ulid

    name = ulid.new(1.7e9 + run, Random(run))
    opened.start_trial(Trial(name, sha, recipe, "e", 0, Why.RUN, 1.7e9 + run, "host"))
    return name


def plan(opened, commits: int):
    """What the trials of the benchmark refer to."""
    from celedger.base.model import Command, Commit, Direction, Environment, Metric, Task

    declared = tuple(Metric(name, "", Direction.LOWER) for name in NAMES)
    tasks = [
        Task("core", f"task_{i}", (Command("train", ("train",)),), metrics=declared)
        for i in range(TASKS)
    ]
    shas = [f"{i:040x}" for i in range(commits)]
    opened.record_commits(Commit(sha, sha, (), "A", i, i, "s") for i, sha in enumerate(shas))
    opened.record_environment(Environment("e", {}))
    for task in tasks:
        opened.record_task(task)
    return shas, [task.recipe for task in tasks]


# ---- inside the training process -------------------------------------------------------------


def reporter(store: str, folder: Path, batch: int = 1):
    """(report, close): what a training calls, and what ends it. `batch` is for raw sqlite3."""
    if store == "nothing":
        return (lambda epoch, row: None), (lambda: None)
    if store == "celedger":
        os.environ["CELEDGER_FD"] = str(
            os.open(folder / "journal.jsonl", os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        )
        from celedger.child import log

        return (lambda epoch, row: log(epoch=epoch, **row)), (lambda: None)
    if store == "json lines":
        file = (folder / "lines.jsonl").open("a")

        def write(epoch: int, row: dict[str, float]) -> None:
            file.write(json.dumps({"epoch": epoch, **row}) + "\n")
            file.flush()

        return write, file.close
    if store == "raw sqlite3":
        connection, pending = raw(folder), 0

        def insert(epoch: int, row: dict[str, float]) -> None:
            nonlocal pending
            if not pending:
                connection.execute("BEGIN IMMEDIATE")
            connection.executemany(
                "INSERT INTO points VALUES (1, ?, ?, ?)",
                [(epoch, i, value) for i, value in enumerate(row.values())],
            )
            pending = (pending + 1) % batch
            if not pending:
                connection.execute("COMMIT")

        return insert, connection.close
    os.environ["TRACKIO_DIR"] = str(folder / "trackio")
    import trackio

    trackio.init(project="p", name="run")
    return (lambda epoch, row: trackio.log(row, step=epoch)), trackio.finish


def do_short(store: str, folder: Path, _: int) -> object:
    report, close = reporter(store, folder)
    for epoch in range(EPOCHS):
        report(epoch, values(1, epoch))
    close()
    return None


def do_steps(store: str, folder: Path, steps: int) -> object:
    report, close = reporter(store, folder, batch=200)
    rows = [values(1, step, 4) for step in range(steps)]
    start = time.perf_counter()
    for step, row in enumerate(rows):
        report(step, row)
    close()
    return {"µs": (time.perf_counter() - start) / steps * 1e6}


# ---- the ledger's side -----------------------------------------------------------------------


def do_epochs(store: str, folder: Path, epochs: int) -> object:
    """A transaction an epoch, each on the disk before the next: microseconds, each."""
    if store == "celedger":
        opened = ledger(folder)
        (sha,), recipes = plan(opened, 1)
        name = recorded(opened, sha, recipes[0], 0)
        report = lambda epoch, row: opened.append(name, epoch, row)  # noqa: E731
    else:
        report, _ = reporter(store, folder)
    costs = []
    for epoch in range(epochs):
        row = values(1, epoch)
        start = time.perf_counter()
        report(epoch, row)
        costs.append((time.perf_counter() - start) * 1e6)
    return {"µs": statistics.median(costs)}


def do_fill(store: str, folder: Path, commits: int) -> object:
    """A history: all tasks of a commit in one transaction."""
    rows = [[values(run, epoch) for epoch in range(EPOCHS)] for run in range(50)]
    of = lambda run: rows[run % 50]  # noqa: E731
    tasks = 1 if store == "trackio" else TASKS
    start, cpu = time.perf_counter(), time.process_time()
    if store == "celedger":
        from celedger.base.model import EpochReport, Outcome, OutcomeKind

        with ledger(folder) as opened:
            shas, recipes = plan(opened, commits)
            for number, sha in enumerate(shas):
                with opened.transaction():
                    for i, recipe in enumerate(recipes):
                        run = number * tasks + i
                        name = recorded(opened, sha, recipe, run)
                        reports = [EpochReport(e, row) for e, row in enumerate(of(run))]
                        opened.append_epochs(name, reports)
                        opened.finish_trial(name, Outcome(OutcomeKind.OK, 1.7e9), of(run)[-1])
    elif store == "raw sqlite3":
        connection = raw(folder)
        for number in range(commits):
            connection.execute("BEGIN IMMEDIATE")
            for task in range(tasks):
                run = number * tasks + task
                connection.execute(
                    "INSERT INTO trials VALUES (?, ?, ?, 0, 1.7e9)", (run, f"{number:040x}", task)
                )
                connection.executemany(
                    "INSERT INTO points VALUES (?, ?, ?, ?)",
                    [(run, e, m, v) for e, row in enumerate(of(run))
                     for m, v in enumerate(row.values())],
                )  # fmt: skip
                connection.executemany(
                    "INSERT INTO summaries VALUES (?, ?, ?, ?)",
                    [(m, task, run, v) for m, v in enumerate(of(run)[-1].values())],
                )
            connection.execute("COMMIT")
        connection.close()
    elif store == "json lines":
        (folder / "lines").mkdir()
        for run in range(commits * tasks):
            text = "".join(json.dumps({"epoch": e, **row}) + "\n" for e, row in enumerate(of(run)))
            (folder / "lines" / f"{run % tasks}-{run}.jsonl").write_text(text)
    else:
        os.environ["TRACKIO_DIR"] = str(folder / "trackio")
        from trackio.sqlite_storage import SQLiteStorage

        for run in range(commits):
            SQLiteStorage.bulk_log("p", f"run-{run}", of(run), list(range(EPOCHS)))
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    count = commits * tasks * EPOCHS * METRICS
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    return {"values/s": count / seconds, "values/cpu": count / cpu, "bytes": size / count}


def do_read(store: str, folder: Path, commits: int) -> object:
    """Milliseconds for one metric of one task over all commits (the first time with opening), and
    for the curves of two runs."""
    name = NAMES[4]
    if store == "celedger":
        from celedger.ledger import Ledger

        start = time.perf_counter()
        opened = Ledger.open(folder / "ledger.db", readonly=True)
        last = lambda: opened.summaries("task_3", name)  # noqa: E731
        found = last()
        first = time.perf_counter() - start
        two = [found[0].ulid, found[-1].ulid]
        curves = lambda: [opened.series(run) for run in two]  # noqa: E731
    elif store == "raw sqlite3":
        start = time.perf_counter()
        connection = raw(folder)
        last = lambda: connection.execute(  # noqa: E731
            "SELECT t.sha, t.seed, s.value FROM summaries s JOIN trials t ON t.id = s.trial "
            "WHERE s.metric = 4 AND s.task = 3 ORDER BY s.trial"
        ).fetchall()
        found = last()
        first = time.perf_counter() - start
        curves = lambda: [  # noqa: E731
            connection.execute("SELECT * FROM points WHERE trial = ?", (run,)).fetchall()
            for run in (3, len(found) * TASKS - 7)
        ]
    elif store == "json lines":
        paths = sorted((folder / "lines").glob("3-*.jsonl"))
        load = lambda path: [json.loads(line) for line in path.open()]  # noqa: E731
        last = lambda: [load(path)[-1][name] for path in paths]  # noqa: E731
        start = time.perf_counter()
        found = last()
        first = time.perf_counter() - start
        curves = lambda: [load(path) for path in (paths[0], paths[-1])]  # noqa: E731
    else:
        os.environ["TRACKIO_DIR"] = str(folder / "trackio")
        import trackio
        from trackio.sqlite_storage import SQLiteStorage

        one = lambda run: SQLiteStorage.get_metric_values("p", run, name)[-1]["value"]  # noqa: E731
        last = lambda: [one(run.name) for run in trackio.Api().runs("p")]  # noqa: E731
        start = time.perf_counter()
        found = last()
        first = time.perf_counter() - start
        curves = lambda: [  # noqa: E731
            SQLiteStorage.get_logs("p", run) for run in ("run-0", f"run-{commits - 1}")
        ]
    assert len(found) == commits, (len(found), commits)
    return {"first": first * 1e3, "warm": timed(last), "curves": timed(curves)}


def timed(function) -> float:
    costs = []
    for _ in range(7):
        start = time.perf_counter()
        function()
        costs.append((time.perf_counter() - start) * 1e3)
    return statistics.median(costs)


def do_crowd(store: str, folder: Path, epochs: int) -> object:
    """One of several processes that append at once; the parent counts what arrived."""
    opened = ledger(folder)
    (sha,), recipes = plan(opened, 1)
    name = recorded(opened, sha, recipes[os.getpid() % TASKS], os.getpid())
    for epoch in range(epochs):
        opened.append(name, epoch, values(1, epoch))
    return {"epochs": epochs}


# ---- the parent ------------------------------------------------------------------------------


def start(python: str, what: str, store: str, folder: Path, size: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TRACKIO_LOGO_THEME": "light"}
    return subprocess.Popen(
        [python, __file__, "--do", what, store, str(folder), str(size)], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def measure(python: str, what: str, store: str, folder: Path, size: int) -> tuple[float, dict]:
    """Seconds of the whole process, and what it said."""
    began = time.perf_counter()
    process = start(python, what, store, folder, size)
    said = process.communicate()[0]
    seconds = time.perf_counter() - began
    if process.returncode:
        raise SystemExit(f"{what} of {store} failed: run it without 2>/dev/null to see why")
    return seconds, json.loads(said.splitlines()[-1]) or {}


def table(title: str, unit: str, results: dict[str, float], note: str = "") -> None:
    print(f"\n{title} ({unit}){note}")
    for store, result in results.items():
        ratio = result / results["celedger"]
        print(f"  {store:12} {result:12,.1f}   {ratio:8.2f} x celedger")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trackio", default=sys.executable, metavar="PYTHON")
    parser.add_argument("--commits", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    asked = parser.parse_args()
    commits = asked.commits // 10 if asked.quick else asked.commits
    rounds = 3 if asked.quick else 9
    python = {"trackio": asked.trackio}
    stores = ["celedger", "json lines", "raw sqlite3"]
    probe = subprocess.run([asked.trackio, "-c", "import trackio; print(trackio.__version__)"],
                           capture_output=True, text=True, check=False)  # fmt: skip
    if probe.returncode == 0:
        stores.append("trackio")
    print(f"trackio {probe.stdout.split()[-1] if probe.stdout else 'is not installed: left out'}; "
          f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")  # fmt: skip
    targets: list[tuple[str, float, str, float]] = []

    def target(name: str, value: float, relation: str, limit: float) -> None:
        targets.append((name, value, relation, limit))

    with tempfile.TemporaryDirectory(dir=".", prefix=".celedger-benchmark-") as base:
        count = iter(range(10**6))

        def fresh() -> Path:
            folder = Path(base).resolve() / str(next(count))
            folder.mkdir()
            return folder

        def taking_turns(what: str, of: list[str], size: int) -> dict[str, dict[str, float]]:
            found: dict[str, list[dict[str, float]]] = {store: [] for store in of}
            for _ in range(rounds):
                for store in of:
                    seconds, said = measure(
                        python.get(store, sys.executable), what, store, fresh(), size
                    )
                    found[store].append({"ms": seconds * 1e3, **said})
            # The least, not the median: what other load adds to a process is never negative.
            return {
                store: {key: min(r[key] for r in results) for key in results[0]}
                for store, results in found.items()
            }

        wall = {s: r["ms"] for s, r in taking_turns("short", ["nothing", *stores], 0).items()}
        if "trackio" in stores:  # its interpreter may start more slowly
            python["nothing"] = asked.trackio
            bare = taking_turns("short", ["nothing"], 0)["nothing"]["ms"]
            wall["trackio"] += wall["nothing"] - bare
        beyond = {s: max(wall[s] - wall["nothing"], 0.1) for s in stores}
        table("One short training, 20 epochs x 12 metrics, beyond one that logs nothing", "ms",
              beyond)  # fmt: skip
        target("short run, ms in the training process", beyond["celedger"], "<=", 10)
        if "trackio" in stores:
            target("... of trackio's", beyond["celedger"] / beyond["trackio"], "<=", 1 / 50)

        steps = {s: r["µs"] for s, r in taking_turns("steps", stores, STEPS).items()}
        table("A call a step, 10,000 steps x 4 metrics", "µs a step", steps,
              "; raw sqlite3: 200 steps a transaction, so a kill loses them")  # fmt: skip
        target("a step, µs", steps["celedger"], "<=", 10)

        two = ["celedger", "raw sqlite3"]
        epochs = {s: r["µs"] for s, r in taking_turns("epochs", two, 300).items()}
        table("An epoch of 12 values into the ledger, on the disk when it returns", "µs", epochs)

        fill: dict[str, dict[str, float]] = {}
        read: dict[str, dict[str, float]] = {}
        for turn in range(3):
            for store in stores if not turn else two:
                folder, interpreter = fresh(), python.get(store, sys.executable)
                size = min(commits, 200) if store == "trackio" else commits
                _, filled = measure(interpreter, "fill", store, folder, size)
                if not turn:
                    fill[store] = filled
                    _, read[store] = measure(interpreter, "read", store, folder, size)
                fill[store] = max(fill[store], filled, key=lambda result: result["values/s"])
                shutil.rmtree(folder)
        less = f"; trackio: {min(commits, 200)} commits of one task only"
        title = f"History of {commits:,} commits x 10 tasks x 12 metrics x 20 epochs"
        table(f"{title}: fill", "values/s", {s: r["values/s"] for s, r in fill.items()}, less)
        per_cpu = {s: r["values/cpu"] for s, r in fill.items()}
        table(f"{title}: fill, whatever else runs", "values per second of CPU", per_cpu, less)
        table(f"{title}: size", "bytes a value", {s: r["bytes"] for s, r in fill.items()})
        for key, words in {
            "first": "one metric of one task over all commits, first time",
            "warm": "the same again",
            "curves": "curves of two commits",
        }.items():
            note = less if key != "curves" else ""
            table(f"{title}: {words}", "ms", {s: r[key] for s, r in read.items()}, note)
        target("fill, values/s", fill["celedger"]["values/s"], ">=", 150_000)
        slower = fill["raw sqlite3"]["values/s"] / fill["celedger"]["values/s"]
        target("fill, times raw sqlite3's duration", slower, "<=", 1.5)
        target("size, bytes a value", fill["celedger"]["bytes"], "<=", 25)
        target("last values over all commits, first, ms", read["celedger"]["first"], "<=", 20)
        target("last values over all commits, warm, ms", read["celedger"]["warm"], "<=", 5)

        folder, each = fresh(), 100
        began = time.perf_counter()
        crowd = [start(sys.executable, "crowd", "celedger", folder, each) for _ in range(16)]
        failed = sum(process.wait() != 0 for process in crowd)
        seconds = time.perf_counter() - began
        with ledger(folder) as opened:
            held = sum(record.epochs for record in opened.trials())
        print(f"\n16 processes at once, {each} epochs each, an fsync an epoch: {held} of "
              f"{16 * each} epochs held, {failed} processes failed, {seconds:.1f} s")  # fmt: skip
        target("16 writers, epochs lost", 16 * each - held, "<=", 0)
        target("16 writers, processes told an error", failed, "<=", 0)

    print("\nTargets")
    for name, value, relation, limit in targets:
        met = value <= limit if relation == "<=" else value >= limit
        print(f"  {'met   ' if met else 'MISSED'} {name}: {value:,.4g} ({relation} {limit:,.4g})")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--do"]:
        what, store, place, number = sys.argv[2:]
        print(json.dumps(globals()[f"do_{what}"](store, Path(place), int(number))))
    else:
        main()
