"""What the verbs that read cost on a long history: processor time beside plain SQL that fetches the
same rows, in the same run. And what the state costs: the first pass over the ledger, a job after
one more commit, and the verbs that print rows of it.

    python benchmarks/reading.py [--commits 2000] [--rounds 3] [--celedger PROGRAM] [--in FOLDER]
    python benchmarks/reading.py --start-up [--rounds 10] --in FOLDER

Makes the ledger of large_ledger.py in a temporary folder, or uses the one in FOLDER, which must
have been made with `--here`. PROGRAM may be another version's `celedger`, to compare. The verbs and
the SQL take turns; the least of the rounds counts, because what other load adds is never negative.
`--start-up` compares `log` and `run HEAD`, which must have nothing to do in FOLDER, with a bare
typer program that opens SQLite.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SQL = """
import sqlite3, sys
connection = sqlite3.connect(f"file:{sys.argv[1]}?mode=ro", uri=True)
for sql in ("SELECT * FROM commits", "SELECT * FROM trials", "SELECT * FROM outcomes",
            "SELECT metric, task, trial, value, definition FROM summaries"):
    connection.execute(sql).fetchall()
"""
BARE = """
import sqlite3, typer
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
@app.command()
def log(limit: int = 20) -> None:
    print(sqlite3.connect(":memory:").execute("SELECT 1").fetchone())
app()
"""
OF_STATE = {
    "status": ("status",),
    "drift of a metric": ("drift", "--task", "task_3", "--metric", "val_loss"),
    "check without trials": ("check", "--budget", "0"),
}
VERBS = {
    "log": ("log",),
    "show": ("show",),
    "show TASK": ("show", "task_3"),
    "diff": ("diff", "HEAD~1..HEAD"),
    "noise": ("noise", "--seeds", "2", "--repeats", "1"),
}


def processor_seconds(command: list[str], folder: Path) -> float:
    """Run a command, whose exit status says what it found, and return user and system time."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode not in (0, 1, 125):
        raise SystemExit(f"{' '.join(command)}: {process.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commits", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--celedger", default=str(Path(sys.executable).with_name("celedger")))
    parser.add_argument("--in", dest="folder", type=Path)
    parser.add_argument("--start-up", action="store_true")
    asked = parser.parse_args()
    if asked.start_up:
        start_up(asked.folder, asked.celedger, asked.rounds)
        return
    with tempfile.TemporaryDirectory(prefix="celedger-reading-") as temporary:
        place = Path(temporary) / "project"
        if asked.folder:
            shutil.copytree(asked.folder, place, symlinks=True)
        else:
            generate(place, "--commits", str(asked.commits), "--here")
        report(measure(place, asked.celedger, asked.rounds))


def start_up(folder: Path, program: str, rounds: int) -> None:
    """Print the least processor time of `log` and of `run HEAD` with nothing to do."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # compiling is no part of a start
    with tempfile.TemporaryDirectory() as cache:
        os.environ["PYTHONPYCACHEPREFIX"] = cache
        commands = {
            "bare": [sys.executable, "-c", BARE],
            "log": [program, "log"],
            "run HEAD": [program, "run", "HEAD"],
        }
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds + 1):  # the first one compiles
            for name, command in commands.items():
                seconds[name].append(processor_seconds(command, folder))
    least = {name: min(each) for name, each in seconds.items()}
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; processor time", least)
    print(f"  log      {least['log'] / least['bare']:.2f} x bare")
    print(f"  run HEAD {least['run HEAD'] / least['log']:.2f} x log")


def generate(place: Path, *words: str) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "large_ledger.py"), str(place), *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def measure(place: Path, program: str, rounds: int) -> dict[str, float]:
    """Return the least processor time of each verb, and of plain SQL."""
    seconds: dict[str, list[float]] = {}

    def note(name: str, *words: str) -> None:
        seconds.setdefault(name, []).append(processor_seconds([program, *words], place))

    for cache in ("state", "histories"):
        shutil.rmtree(place / ".git" / "celedger" / cache, ignore_errors=True)
    note("first pass", "status")
    for _ in range(rounds):
        sql = [sys.executable, "-c", SQL, str(place / "ledger.db")]
        seconds.setdefault("plain SQL", []).append(processor_seconds(sql, place))
        note("--help", "--help")
        for name, words in VERBS.items():
            note(name, *words)
        processor_seconds([program, *OF_STATE["check without trials"]], place)  # records the state
        for name, words in OF_STATE.items():
            note(name, *words)
        generate(place, "--grow")
        note("a job, a commit later", "status")
    return {name: min(each) for name, each in seconds.items()}


def report(seconds: dict[str, float]) -> None:
    plain = seconds["plain SQL"]
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; processor time")
    for name, value in seconds.items():
        print(f"  {name:24}{value:8.2f} s{value / plain:10.2f} x plain SQL")


if __name__ == "__main__":
    main()
