"""A ledger with a history made up through the ledger's own API, for the views to show."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from celedger.base.model import (
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
    Purpose,
    Task,
    Trial,
)  # fmt: skip
from celedger.judge.derivation import Derivation, derive
from celedger.judge.line import Line
from celedger.ledger import Ledger

START = 1_772_000_000  # 2026-02-25

METRICS = (
    Metric("val_loss", "", Direction.LOWER, Kind.QUALITY, Floor(0.005, relative=True)),
    Metric("val_accuracy", "%", Direction.HIGHER, Kind.QUALITY),
    Metric("duration", "s", Direction.LOWER, Kind.SPEED, Floor(0.05, relative=True)),
    Metric("peak_rss", "B", Direction.LOWER, Kind.MEMORY, Floor(0.03, relative=True), "max"),
    Metric("cpu_share", "cores"),
)


def _environment(digit: str, torch: str, host: str) -> Environment:
    packages = {"anyio": "4.1", "numpy": "2.4.6", "torch": torch}
    beside = {"host": host, "memory": 2**35, "gpu_memory": None}
    return Environment(
        digit * 64,
        {"python": "CPython 3.11.2", "packages": packages, "device": "cpu", "cuda": None,
         "beside": beside},
    )  # fmt: skip


OLD = _environment("a", "2.12.0", "box")
NEW = _environment("b", "2.13.0", "other")


def sha(i: int) -> str:
    return hashlib.sha1(f"commit {i}".encode()).hexdigest()


def commits(n: int, *, every: int = 9000) -> list[Commit]:
    subjects = ("Use fused layer norm", "Refactor the loader", "Document $x$ and y_1", "Fix typo")
    return [
        Commit(
            sha(i), sha(-i - 1), (sha(i - 1),) if i else (), "Ada Lovelace",
            START + i * every, START + i * every, f"{subjects[i % 4]} ({i})",
        )
        for i in range(n)
    ]  # fmt: skip


@dataclass
class History:
    """Adds trials to a ledger; the same calls make the same ledger."""

    ledger: Ledger
    task: Task = field(
        default_factory=lambda: Task(
            "core", "mlp_digits", (Command("train", ("{python}", "train.py")),), metrics=METRICS
        )
    )
    tried: int = 0

    def commits(self, made: Sequence[Commit]) -> list[Commit]:
        self.ledger.record_commits(made)
        self.ledger.record_task(self.task)
        for environment in (OLD, NEW):
            self.ledger.record_environment(environment)
        return list(made)

    def trial(
        self,
        commit: Commit,
        values: Mapping[str, float],
        *,
        seed: int = 0,
        environment: Environment = OLD,
        kind: OutcomeKind = OutcomeKind.OK,
        message: str = "",
        marks: tuple[Mark, ...] = (),
        curves: Mapping[str, Sequence[float]] | None = None,
        running: bool = False,
        task: Task | None = None,
    ) -> str:
        self.tried += 1
        ulid = f"01K{self.tried:023d}"
        started = START + self.tried * 60.0
        recipe = (task or self.task).recipe
        self.ledger.start_trial(
            Trial(
                ulid,
                commit.sha,
                recipe,
                environment.fingerprint,
                seed,
                Purpose.RUN,
                started,
                "box",
            )
        )
        reached = max(map(len, (curves or {}).values()), default=0)
        self.ledger.append_epochs(
            ulid,
            [
                EpochReport(e, {name: series[e] for name, series in (curves or {}).items()})
                for e in range(reached)
            ],
        )
        if not running:
            log = f".celedger/logs/{ulid}.log"
            outcome = Outcome(kind, started + 12, message, 0, log, marks)
            self.ledger.finish_trial(ulid, outcome, values)
        return ulid

    def walk(
        self,
        made: Sequence[Commit],
        *,
        step: int,
        seeds: int = 3,
        change: int | None = None,
        failing: Sequence[int] = (),
        untestable: Sequence[int] = (),
        skip: int = 1,
    ) -> None:
        """A plausible history: worse by 10 % from `step` on, a new environment from `change`."""
        draw = random.Random(7)
        for i, commit in enumerate(made):
            if i % skip:
                continue
            environment = NEW if change is not None and i >= change else OLD
            if i in untestable:
                self.trial(commit, {}, environment=environment, kind=OutcomeKind.UNTESTABLE)
                continue
            for seed in range(seeds):
                if i in failing and seed != 1:
                    self.trial(
                        commit, {}, seed=seed, environment=environment, kind=OutcomeKind.FAILED,
                        message="exit status 1: ValueError: shapes (3,) and (4,)",
                    )  # fmt: skip
                    continue
                loss = (0.46 if i >= step else 0.41) - (0.02 if environment is NEW else 0)
                self.trial(
                    commit,
                    {
                        "val_loss": draw.gauss(loss, 0.006),
                        "val_accuracy": draw.gauss(91.0, 0.4),
                        "duration": abs(draw.gauss(12.0, 0.3)),
                        "peak_rss": draw.gauss(3.2e8, 2e6),
                        "cpu_share": 0.98,
                    },
                    seed=seed,
                    environment=environment,
                    curves={
                        "val_loss": [
                            loss + 1.9 * math.exp(-e / 3) * draw.gauss(1, 0.05) for e in range(12)
                        ],
                        "val_accuracy": [91 - 60 * math.exp(-e / 2.5) for e in range(12)],
                    }
                    if len(made) <= 40
                    else None,
                )


class LineWithoutRepository(Line):
    """A line of commits that no repository has: nothing is known of their files."""

    @property
    def reverts(self) -> Mapping[int, int]:
        return {}

    def holding(self, sha: str) -> int | None:
        return self.places.get(sha)

    def touches(self, place: int, other: int) -> bool:
        return False

    def inverses(self, culprits: Iterable[int]) -> dict[int, int]:
        return {}

    def foreign(self) -> float:
        return 0.08


def derivation(ledger: Ledger, commits: Sequence[Commit], **aliases: int) -> Derivation:
    """Return what the ledger says along a line of made-up commits; `aliases` are places of hashes
    that are not on it."""
    return derive(ledger, LineWithoutRepository(None, tuple(commits), aliases, True))  # type: ignore[arg-type]


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        # Hundreds of trials a test: what survives a power cut is tested in tests/ledger.
        ledger._connection.execute("PRAGMA synchronous=OFF")
        yield History(ledger)


@pytest.fixture
def make_commits() -> Callable[..., list[Commit]]:
    return commits
