"""Make `ledger.db.example`: a small, plausible history, so that a reader can open a ledger before
having trained anything. Written through Ledger's own API, from a seed: the same seed makes the
same rows. Forty commits, three tasks, three seeds; one planted regression of val_loss, one of
speed, a commit that does not build, a training that diverges, and a change of environment.

    python scripts/make_example_ledger.py [PATH] [--seed N]
"""

from __future__ import annotations

import argparse
import hashlib
import math
import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random

from celedger.base.model import (
    BisectRecord,
    Command,
    Commit,
    Direction,
    Environment,
    EpochReport,
    Floor,
    Kind,
    Mark,
    Metric,
    Outcome,
    OutcomeKind,
    Task,
    Trial,
    Why,
)
from celedger.judge.told import identity
from celedger.ledger import Ledger, ulid
from celedger.ledger.said import SaidRecord

COMMITS, SEEDS, EPOCHS = 40, (0, 1, 2), 6
WORSE_LOSS, SLOWER, BROKEN, DIVERGES, NEW_ENVIRONMENT = 17, 26, 9, 31, 34  # numbers of commits
BEGINNING = 1_767_600_000  # 2026-01-05 08:00 UTC, in seconds since the epoch
DAY = 86_400
AUTHORS = ("Ada Example", "Bo Example", "Chi Example")
SUBJECTS = (
    "Tidy the data loader", "Document the schedule", "Add a test of the sampler",
    "Fuse the bias into the layer", "Rename Trainer.step", "Warm up for one epoch",
    "Clip gradients by norm", "Cache the vocabulary", "Simplify the residual block",
)  # fmt: skip
METRICS = (
    Metric("val_loss", "", Direction.LOWER, Kind.QUALITY, Floor(0.01, relative=True)),
    Metric("val_accuracy", "", Direction.HIGHER, Kind.QUALITY, Floor(0.005)),
    Metric("samples_per_second", "1/s", Direction.HIGHER, Kind.SPEED, Floor(0.05, relative=True),
           "median-after-1"),
    Metric("peak_rss", "B", Direction.LOWER, Kind.MEMORY, Floor(0.03, relative=True), "max"),
)  # fmt: skip


@dataclass(frozen=True)
class Level:
    """Where a task's metrics settle."""

    name: str
    loss: float
    speed: float
    memory: float


LEVELS = (
    Level("digits_mlp", 0.21, 42_000, 3.1e8),
    Level("digits_cnn", 0.09, 6_100, 3.9e8),
    Level("chars_lstm", 1.62, 2_300, 4.6e8),
)


def make(path: Path, seed: int) -> None:
    """Write the example to `path`, in place of what is there: one file, with no -wal beside it."""
    random = Random(seed)
    tasks = [task(level) for level in LEVELS]
    environments = [Environment(digest(f"environment {torch}")[:16], {
        "python": "3.11.9", "torch": torch, "device": "cpu", "cpu": "Example CPU", "threads": 1,
    }) for torch in ("2.6.0", "2.7.0")]  # fmt: skip
    commits = history(random)
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder, "ledger.db")
        with Ledger.open(draft, create=True) as ledger, ledger.transaction():
            ledger.record_commits(commits)
            for one in tasks:
                ledger.record_task(one)
            for environment in environments:
                ledger.record_environment(environment)
            clock = float(BEGINNING)
            for number, commit in enumerate(commits):
                environment = environments[number >= NEW_ENVIRONMENT]
                for level, one in zip(LEVELS, tasks, strict=True):
                    for seed_of_trial in SEEDS:
                        clock = max(clock, commit.commit_time) + 11.0
                        trial = Trial(
                            ulid.new(clock, random), commit.sha, one.recipe,
                            environment.fingerprint, seed_of_trial, Why.HOOK, clock, "example",
                        )  # fmt: skip
                        ledger.start_trial(trial)
                        end(ledger, trial, number, level, random)
            conclude(ledger, commits, clock, random)
        with closing(sqlite3.connect(draft)) as connection:
            # Read-only media and git both want one file that needs nothing beside it.
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("VACUUM")
        shutil.copyfile(draft, path)


def history(random: Random) -> list[Commit]:
    commits: list[Commit] = []
    for number in range(COMMITS):
        subject = random.choice(SUBJECTS)
        subject = {
            WORSE_LOSS: "Refactor the schedule",
            SLOWER: "Validate every batch",
            BROKEN: "Move the layers to a package",
        }.get(number, subject)
        when = BEGINNING + number * DAY // 2 + random.randrange(DAY // 4)
        author = random.choice(AUTHORS)
        commits.append(Commit(
            digest(f"commit {number}"), digest(f"tree {number}"),
            (commits[-1].sha,) if commits else (),
            f"{author} <{author.split()[0].lower()}@example.org>", when, when, subject,
        ))  # fmt: skip
    return commits


def task(level: Level) -> Task:
    words = ("{python}", f"{{suite}}/{level.name}.py", "--epochs", "{epochs}", "--seed", "{seed}")
    return Task(
        "example", level.name, (Command("train", words),), {"epochs": EPOCHS}, SEEDS, METRICS,
        files=digest("suite"),
    )  # fmt: skip


def end(ledger: Ledger, trial: Trial, number: int, level: Level, random: Random) -> None:
    """What a trial reported, and how it ended."""
    if number == BROKEN:
        message = "exit status 1: ModuleNotFoundError: No module named 'layers'"
        outcome = Outcome(OutcomeKind.UNTESTABLE, trial.started + 0.4, message, 1)
        ledger.finish_trial(trial.ulid, outcome, {})
        return
    loss = level.loss * (1.06 if number >= WORSE_LOSS else 1.0) * random.gauss(1, 0.006)
    speed = level.speed * (0.82 if number >= SLOWER else 1.0) * random.gauss(1, 0.01)
    reports = []
    for epoch in range(EPOCHS):
        at = loss * (1 + 2.2 * math.exp(-1.1 * epoch)) if epoch < EPOCHS - 1 else loss
        if number == DIVERGES and level is LEVELS[2] and epoch > 2:
            at = math.nan
        reports.append(EpochReport(epoch, {
            "val_loss": round(at, 6),
            "val_accuracy": round(math.exp(-at) if at == at else 0.0, 4),
            "samples_per_second": round(speed * random.gauss(1, 0.01) * (0.6 if not epoch else 1)),
            "peak_rss": round(level.memory * random.gauss(1, 0.002)),
        }, digest(f"{trial.ulid} {epoch}")[:16]))  # fmt: skip
    ledger.append_epochs(trial.ulid, reports)
    rates = sorted(report.values["samples_per_second"] for report in reports[1:])
    marks = (Mark.DISTURBED,) if random.random() < 0.03 else ()
    ledger.finish_trial(
        trial.ulid,
        Outcome(OutcomeKind.OK, trial.started + 9.5, returncode=0, marks=marks),
        {
            "val_loss": reports[-1].values["val_loss"],
            "val_accuracy": reports[-1].values["val_accuracy"],
            "samples_per_second": rates[len(rates) // 2],
            "peak_rss": max(report.values["peak_rss"] for report in reports),
        },
    )


def conclude(ledger: Ledger, commits: list[Commit], clock: float, random: Random) -> None:
    """The incidents of the planted regressions, and the bisect that one of them started."""
    said = []
    for number, metric in ((WORSE_LOSS, "val_loss"), (SLOWER, "samples_per_second")):
        for level in LEVELS:
            rows = ledger.summaries(level.name, metric)
            here = [row for row in rows if row.commit == commits[number].sha]
            before = [row for row in rows if row.started < here[0].started]
            base = sum(row.value for row in before) / len(before)
            value = sum(row.value for row in here) / len(here)
            said.append(incident(commits, number, level.name, metric, value - base, clock, random))
    ledger.record_said(said)
    ledger.record_bisect(BisectRecord(
        ulid.new(clock + 60, random), "example", "digits_mlp", "val_loss",
        commits[WORSE_LOSS - 5].sha, commits[WORSE_LOSS + 4].sha, (commits[WORSE_LOSS].sha,), 0.98,
        "found", clock + 90, {"note": "planted by scripts/make_example_ledger.py"},
    ))  # fmt: skip


def incident(
    commits: list[Commit], number: int, task: str, metric: str, change: float, clock: float,
    random: Random,
) -> SaidRecord:  # fmt: skip
    """Return what a job said of a regression at a commit."""
    sha, name = commits[number].sha, ("example", task, metric)
    details = {
        "first": sha, "last": sha, "likeliest": sha, "probability": 0.98, "bisect": "",
        "closed": "", "failure": False, "sure": True, "metrics": [[*name, "open"]],
        "sizes": [[*name, change, abs(change) / 10]],
    }  # fmt: skip
    return SaidRecord(
        ulid.new(clock + 50, random), identity(*name, "metric", sha), "open", "state", "metric",
        *name, sha, commits[-1].sha, "example", "", clock + 50, details,
    )  # fmt: skip


def digest(text: str) -> str:
    return hashlib.sha1(f"celedger example {text}".encode()).hexdigest()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = Path(__file__).resolve().parents[1] / "ledger.db.example"
    parser.add_argument("path", nargs="?", type=Path, default=default)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    make(asked.path, asked.seed)
    print(f"{asked.path}: {asked.path.stat().st_size:,} bytes")  # noqa: T201
