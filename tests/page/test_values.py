"""Values along a line against the rows of the ledger."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from views.conftest import derivation

from celedger.base.model import (
    Command,
    Commit,
    Direction,
    Environment,
    Floor,
    Footprint,
    Kind,
    Mark,
    Metric,
    Outcome,
    OutcomeKind,
    Purpose,
    Task,
    Trial,
)
from celedger.ledger import Ledger
from celedger.page.metric_values import TaskOnLine

LOSS = Metric("val_loss", "nats", Direction.LOWER, Kind.QUALITY, Floor(0.0))
SPEED = Metric("step_ms", "ms", Direction.LOWER, Kind.SPEED, Floor(0.0))
TASK = Task("core", "mlp", (Command("train", ("true",)),), metrics=(LOSS, SPEED))
OLD, NEW = Environment("a" * 64, {}), Environment("b" * 64, {})


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        ledger.record_task(TASK)
        ledger.record_environment(OLD)
        ledger.record_environment(NEW)
        yield ledger


def commits(ledger: Ledger, n: int) -> list[Commit]:
    line = [
        Commit(f"{i:040x}", "0" * 40, (f"{i - 1:040x}",) if i else (), "", i, i, "")
        for i in range(n)
    ]
    ledger.record_commits(line)
    return line


def start(ledger: Ledger, number: int, commit: Commit, seed: int, environment: Environment) -> str:
    ulid = f"01K{number:023d}"
    ledger.start_trial(
        Trial(
            ulid,
            commit.sha,
            TASK.recipe,
            environment.fingerprint,
            seed,
            Purpose.RUN,
            number,
            "",
        )
    )
    return ulid


def end(
    ledger: Ledger,
    ulid: str,
    loss: float,
    *,
    kind: OutcomeKind = OutcomeKind.OK,
    marks: tuple[Mark, ...] = (),
) -> None:
    values = {"val_loss": loss, "step_ms": 10 * loss} if kind is OutcomeKind.OK else {}
    ledger.finish_trial(ulid, Outcome(kind, 1.0, marks=marks), values)


def fill(ledger: Ledger, line: list[Commit], first: int = 0) -> None:
    """Trials of all sorts, in an order that is not that of history."""
    draw = random.Random(first)
    shuffled = list(enumerate(line))
    draw.shuffle(shuffled)
    for number, (place, commit) in enumerate(shuffled):
        for seed in (0, 1):
            environment = OLD if place < len(line) // 4 else NEW
            ulid = start(ledger, first + 2 * number + seed, commit, seed, environment)
            kind = OutcomeKind.FAILED if draw.random() < 0.1 else OutcomeKind.OK
            marks = tuple(m for m in (Mark.DISTURBED, Mark.EARLY_STOPPED) if draw.random() < 0.1)
            end(ledger, ulid, math.nan if draw.random() < 0.05 else draw.random(), kind=kind,
                marks=() if kind is OutcomeKind.FAILED else marks)  # fmt: skip


def expected(ledger: Ledger, line: list[Commit], metric: Metric) -> dict[str, list[object]]:
    """What plain rows say: by environment, (place, value) oldest first."""
    groups: dict[str, list[tuple[int, float]]] = {}
    places = {commit.sha: place for place, commit in enumerate(line)}
    for row in ledger.summaries("mlp", metric.name, recipe=TASK.recipe):
        spoilt = {Mark.EARLY_STOPPED} | ({Mark.DISTURBED} if metric is SPEED else set())
        if row.outcome is OutcomeKind.OK and not row.derived and not spoilt.intersection(row.marks):
            groups.setdefault(row.environment, []).append((places[row.commit], row.value))
    return {
        environment: [(place, repr(value)) for place, value in sorted(rows, key=lambda r: r[0])]
        for environment, rows in groups.items()
    }


@pytest.mark.parametrize("metric", [LOSS, SPEED], ids=lambda m: m.name)
def test_the_values_are_those_of_the_rows(ledger: Ledger, metric: Metric) -> None:
    line = commits(ledger, 60)
    fill(ledger, line)
    chains = TaskOnLine(derivation(ledger, line), "core", "mlp").chains(metric)
    actual = {
        chain.chain.environment: [
            (place, repr(value))
            for place, value in zip(chain.place.tolist(), chain.value.tolist(), strict=True)
        ]
        for chain in chains
    }
    assert actual == expected(ledger, line, metric)
    finite = [[value for _, value in rows if value != repr(math.nan)] for rows in actual.values()]
    assert [chain.trials for chain in chains] == list(map(len, finite))


def test_reused_results_count_as_values_and_not_as_trials(ledger: Ledger) -> None:
    line = commits(ledger, 3)
    ulid = start(ledger, 0, line[0], 0, NEW)
    end(ledger, ulid, 1.0)
    ledger.record_footprint(ulid, Footprint((b"model.py",)), "0" * 64)
    (evidence,) = ledger.reusable_trials(recipe=TASK.recipe, environment=NEW.fingerprint, seed=0)
    again = Trial(
        "01K" + "9" * 23, line[2].sha, TASK.recipe, NEW.fingerprint, 0, Purpose.RUN, 9.0, ""
    )
    ledger.reuse_trial(again, evidence, ())
    task = TaskOnLine(derivation(ledger, line), "core", "mlp")
    (chain,) = task.chains(LOSS)
    assert chain.place.tolist() == [0, 2]
    assert chain.trials == 1
    assert task.tried() == [0, 2]
