"""A trial that is stopped because its epochs have told enough."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from conftest import Project, make_project, matrix_after
from scripted import Report, scripted

from celedger import suite as suites
from celedger.base import config
from celedger.base.model import Mark, Purpose
from celedger.judge import bisection, memory
from celedger.judge.incident import Standing
from celedger.ledger import Ledger
from celedger.repo import Repository
from celedger.trial import permissions as gate_
from celedger.trial.engine import Need, ignore_events
from celedger.trial.runner import Bench
from celedger.trial.workplace import choose_tasks, local_bench

EPOCHS = 6

# Reports three epochs and never ends by itself.
ENDLESS = """\
import time
from celedger.child import log
for epoch in range(3):
    log(epoch=epoch, val_loss=1.0, train_loss=1.0, third=1.0)
time.sleep(600)
"""

SUITE = """\
[suite]
name = "tiny"
[metrics.val_loss]
direction = "lower"
kind = "quality"
floor = "0.1%"
[metrics.train_loss]
direction = "lower"
kind = "quality"
[metrics.third]
direction = "lower"
kind = "quality"
[[task]]
name = "fit"
command = "{python} {suite}/fit.py --seed {seed}"
seeds = [0, 1, 2]
"""


def descend(model: Mapping[str, Any], seed: int) -> Iterator[Report]:
    rng = Random(seed)
    for epoch in range(EPOCHS):
        noise = [rng.gauss(0, 0.01) for _ in range(3)]
        yield {
            "epoch": epoch,
            "val_loss": model["LEVEL"] + noise[0] + 1 / (epoch + 1),
            "train_loss": model["LEVEL"] + noise[1],
            "third": model["LEVEL"] + noise[2],
        }


@contextmanager
def bench_of(project: Project) -> Iterator[tuple[Repository, Bench]]:
    repository = Repository.open(project.root)
    settings = config.load(repository.root, {})
    suite = suites.load(suites.find(None, settings, repository.root))
    tasks = choose_tasks(suite, ())
    with (
        Ledger.open(project.root / "ledger.db", create=True) as ledger,
        local_bench(repository, ledger, settings, suite, tasks,
                  gate=gate_.Gate.of(repository, attended=True),
                  why=Purpose.BISECT, label="test", listen=ignore_events) as bench,
    ):  # fmt: skip
        yield repository, bench


@contextmanager
def workplace(tmp_path: Path, levels: list[float]) -> Iterator[tuple[Repository, Bench]]:
    project = scripted(tmp_path / "project", SUITE, descend)
    project.history(levels)
    with project.executor.at(project.root), bench_of(project) as (repository, bench):
        yield repository, bench


@pytest.mark.parametrize("first_bad", matrix_after(1, [6, 8]))
def test_a_bisect_stops_what_repeats_an_end_and_runs_both_neighbours_whole(
    tmp_path: Path, first_bad: int
) -> None:
    levels = [1.0] * first_bad + [1.5] * (9 - first_bad)
    with workplace(tmp_path, levels) as (repository, bench):
        ledger = bench.ledger
        commits = repository.log("HEAD", limit=100)[::-1]
        history = repository.history(commits[0].sha, commits[-1].sha)
        tasks = choose_tasks(bench.suite, ())
        answer = bisection.bisect_many(bench, history, tasks, ["val_loss"])
        (report,) = answer.reports
        assert report.named
        assert report.culprits[0].sha == commits[first_bad].sha
        stopped = [r for r in ledger.trials() if r.early_stopped]
        assert report.stopped == len(stopped) > 0
        for record in stopped:
            assert record.ok and record.outcome is not None
            assert "same as another trial" in record.outcome.message
            assert record.epochs == 1, "the ends part in the first epoch"
            assert record.summaries == {}
        whole = {r.trial.commit for r in ledger.trials() if r.ok and not r.early_stopped}
        assert {commits[first_bad - 1].sha, commits[first_bad].sha} <= whole
        # What it said stays out of every summary of the metric, and out of the noise.
        rows = ledger.summaries("fit", "val_loss")
        assert not {r.ulid for r in rows} & {r.trial.ulid for r in stopped}

        tried = len(ledger.trials())
        (again,) = bisection.bisect_many(bench, history, tasks, ["val_loss"]).reports
        assert again.culprits == report.culprits
        assert len(ledger.trials()) == tried, "a second bisect trains nothing"
        plan = bisection.plan(bench, history, tasks, "val_loss", bisection.Limits())
        assert plan.trials == 0, "what was stopped counts, before anything is run as well"
        assert plan.stored == tried

        # Who needs the whole trial gets it; until then the commit is not judged by half of one.
        lonely = next(r for r in stopped if r.trial.commit not in whole)
        commit = next(c for c in commits if c.sha == lonely.trial.commit)
        state = memory.read(repository, ledger)
        standings = memory.standings_at(
            repository, ledger, state, commit.sha, tasks, {("fit", "val_loss")}
        )
        (standing,) = [s for s in standings if s.metric == "val_loss"]
        assert (standing.standing, standing.trials) == (Standing.MISSING, 0)
        assert bench.held(commit.sha, tasks[0], lonely.trial.seed) == []
        record = bench.run(Need(commit, tasks[0], lonely.trial.seed))
        assert record.epochs == EPOCHS and not record.early_stopped
        assert record.summaries["val_loss"] > 0


def test_a_stopped_training_is_ended_and_what_it_had_reported_is_kept(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project", SUITE, {"fit.py": ENDLESS})
    project.history([1.0])
    with bench_of(project) as (repository, bench):
        commit = repository.commit("HEAD")
        (task,) = choose_tasks(bench.suite, ())

        def until(ulid: str) -> str:
            return "enough" if len(bench.ledger.series(ulid)["val_loss"]) == 3 else ""

        record = bench.run(Need(commit, task, 0, until=until))
        assert record.outcome is not None
        assert Mark.EARLY_STOPPED in record.outcome.marks
        assert record.outcome.message == "enough"
        assert record.epochs == 3
        assert len(bench.ledger.series(record.trial.ulid)["val_loss"]) == 3
        journals = bench.ledger.folder / ".celedger" / "journals"
        assert not list(journals.iterdir())


def test_a_training_that_ends_by_itself_is_whole(tmp_path: Path) -> None:
    with workplace(tmp_path, [1.0]) as (repository, bench):
        (task,) = choose_tasks(bench.suite, ())
        record = bench.run(Need(repository.commit("HEAD"), task, 0, until=lambda _: ""))
        assert record.ok and not record.early_stopped
        assert record.summaries["val_loss"] > 0
