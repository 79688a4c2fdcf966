"""What the tests of the ledger share: a new ledger, and facts to put into it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random

import pytest

from celedger.ledger import Ledger, ulid
from celedger.model import (
    Command,
    Commit,
    Direction,
    Environment,
    Floor,
    Kind,
    Metric,
    Outcome,
    OutcomeKind,
    Task,
    Trial,
    Why,
)

LOSS = Metric("loss", "", Direction.LOWER, Kind.QUALITY, Floor(0.005, relative=True), "last")


class Facts:
    """Makes facts that belong together, each different from the one before."""

    def __init__(self) -> None:
        self.random = Random(20)
        self.clock = 1_700_000_000.0
        self.numbers = count(1000)

    def number(self) -> int:
        """One that no commit of this test has had."""
        return next(self.numbers)

    def commit(self, number: int, *parents: Commit, subject: str = "a change") -> Commit:
        return Commit(
            f"{number:040x}", f"{number + 4096:040x}", tuple(p.sha for p in parents),
            "Ann <ann@example.org>", 1_600_000_000 + number, 1_600_000_100 + number, subject,
        )  # fmt: skip

    def task(self, name: str = "mlp", *metrics: Metric, epochs: int = 3) -> Task:
        command = Command("train", ("{python}", f"{name}.py", "{epochs}"))
        return Task("core", name, (command,), {"epochs": epochs}, metrics=metrics or (LOSS,))

    def environment(self, name: str = "e0") -> Environment:
        return Environment(name, {"python": "3.11", "device": name})

    def trial(
        self,
        ledger: Ledger,
        commit: Commit | None = None,
        task: Task | None = None,
        environment: Environment | None = None,
        seed: int = 0,
    ) -> Trial:
        """A trial that has started, with all it refers to."""
        commit = commit or self.commit(1)
        task = task or self.task()
        environment = environment or self.environment()
        ledger.record_commits([commit])
        ledger.record_task(task)
        ledger.record_environment(environment)
        self.clock += 1
        trial = Trial(
            ulid.new(self.clock, self.random), commit.sha, task.recipe, environment.fingerprint,
            seed, Why.RUN, self.clock, "host", "cpu",
        )  # fmt: skip
        ledger.start_trial(trial)
        return trial

    def finished(
        self, ledger: Ledger, value: float, kind: OutcomeKind = OutcomeKind.OK, **of: object
    ) -> Trial:
        """A trial that has ended, with one epoch and one summary."""
        trial = self.trial(ledger, **of)  # type: ignore[arg-type]
        ledger.append(trial.ulid, 0, {"loss": value})
        assert ledger.finish_trial(trial.ulid, Outcome(kind, self.clock), {"loss": value})
        return trial


@pytest.fixture
def facts() -> Facts:
    return Facts()


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", create=True) as opened:
        yield opened
