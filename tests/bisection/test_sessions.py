"""Step times that were measured in several sessions, each with an effect of its own: a machine that
was slower on one of the days is no change of the code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from conftest import load_script

from celedger.judge.bisection import Limits
from celedger.judge.bisection.symptom import find_symptom
from celedger.ledger import Ledger
from celedger.stats.lineage import GOOD
from celedger.system import process

COMMITS = 16
LAST = COMMITS - 1
HISTORY = ((0, range(GOOD, 8)), (1, range(8, COMMITS)))
"""The commits that each session measured, two trials each."""
Opened = Callable[..., Any]


@pytest.fixture(scope="module")
def worlds() -> ModuleType:
    return load_script(Path(__file__).parents[2] / "benchmarks" / "session_worlds.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, worlds: ModuleType) -> Path:
    folder: Path = tmp_path_factory.mktemp("ranges") / "line"
    worlds.battery.create(folder, worlds.battery.commits("line", COMMITS), checkout=False)
    return folder


@pytest.fixture
def opened(worlds: ModuleType, folder: Path, tmp_path: Path) -> Iterator[Opened]:
    """Return what opens a bench on a ledger with a history in two sessions; the bisect runs in a
    third one. `effects` are those of the three."""
    ledger = Ledger.open(tmp_path / "ledger.db", create=True)
    with closing(ledger):

        def bench_of(effects: tuple[float, ...], size: float = 0.0, history: Any = HISTORY) -> Any:
            span, random = worlds.battery.Range.open(folder), np.random.default_rng(1)
            case = worlds.Case(span, random, 8, size, len(effects) - 1, 0.1, 0.02)
            case.effects = np.array(effects)
            bench = worlds.Bench.of(case, ledger)
            for session, positions in history:
                for position in positions:
                    bench.measure(session, position, 2)
            return bench

        yield bench_of


def bisected(worlds: ModuleType, bench: Any) -> Any:
    answer = worlds.search(bench, Limits(budget=60))
    assert answer is not None
    return answer.reports[0]


@pytest.mark.parametrize("now", [1.0, 1.15])
def test_a_slower_session_is_no_change(worlds: ModuleType, opened: Opened, now: float) -> None:
    """A commit that changes a comment was named with 97 %, without a trial."""
    report = bisected(worlds, opened((1.0, 1.15, now)))
    assert report.status == "nothing-changed"
    assert 0 < report.trials <= 25


@pytest.mark.parametrize(
    "effects",
    [
        (1.0, 1.15, 1.0),
        pytest.param((1.15, 1.0, 1.0), marks=pytest.mark.matrix),
        pytest.param((1.0, 0.8, 1.1), marks=pytest.mark.matrix),
    ],
)
def test_a_change_between_sessions_is_named_by_trials_of_one(
    worlds: ModuleType, opened: Opened, effects: tuple[float, ...]
) -> None:
    bench = opened(effects, 0.25)
    report = bisected(worlds, bench)
    commits = bench.case.range.history.commits
    assert report.status == "found" and report.culprits[0].sha == commits[8].sha
    assert 0.15 < report.effect < 0.4
    sessions = bench.ledger.sessions(suite="hard", task="fit")
    ran = {r.trial.commit for r in bench.ledger.trials() if sessions[r.trial.ulid] == "session 2"}
    assert {commits[7].sha, commits[8].sha} <= ran
    assert bisected(worlds, bench).trials == 0  # the question is answered


def test_a_change_within_a_session_needs_only_the_confirmation_of_this_one(
    worlds: ModuleType, opened: Opened
) -> None:
    history = ((0, range(GOOD, COMMITS)), (1, range(GOOD, COMMITS)))
    report = bisected(worlds, opened((1.0, 1.2, 0.9), 0.25, history))
    assert report.status == "found" and report.trials <= 5


def test_what_one_session_measured_is_answered_as_ever(
    worlds: ModuleType, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without the sessions the same trials run."""
    monkeypatch.setattr(process, "session", lambda: "session 0")
    bench = opened((1.0,), 0.25, ((0, (GOOD, LAST)),))
    asked: list[Any] = []
    run = bench.run
    monkeypatch.setattr(bench, "run", lambda need: asked.append(need) or run(need))
    report = bisected(worlds, bench)
    monkeypatch.setattr(Ledger, "sessions", lambda *_, **__: {})
    again = bisected(worlds, bench)
    assert report.status == "found" and len(asked) == report.trials
    assert again.trials == 0 and again.probability == report.probability


def test_an_end_that_a_fast_session_measured_is_not_taken_for_better(
    worlds: ModuleType, opened: Opened
) -> None:
    """BAD seemed surely better, and the bisect of a metric that is named was refused."""
    bench = opened((1.3, 1.0, 1.0), 0.2)
    symptom = find_symptom(bench, [worlds.TASK], bench.case.range.history, worlds.NAME)
    assert symptom.name == worlds.NAME
    report = bisected(worlds, bench)
    assert report.status == "found"


def test_trials_of_nodes_that_are_no_session_end_the_search(
    worlds: ModuleType, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every node is a session of its own, and none can be asked for again."""
    bench = opened((1.0, 1.1, 1.0), 0.4)
    record = worlds.Bench._record

    def on_a_node(self: Any, *arguments: Any) -> Any:
        monkeypatch.setattr(self.case, "session", 2 + len(self.ledger.trials()))
        monkeypatch.setattr(self.case, "effects", np.ones(3 + len(self.ledger.trials())))
        return record(self, *arguments)

    monkeypatch.setattr(worlds.Bench, "_record", on_a_node)
    report = bisected(worlds, bench)
    assert report.status == "found" and report.trials <= 25
