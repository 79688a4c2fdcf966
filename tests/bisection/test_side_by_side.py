"""A bisect with several workers: the use case of `celedger bisect` in simulated time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import numpy as np
import pytest
from conftest import matrix_after

from celedger.base.model import OutcomeKind
from celedger.judge.bisection import Answer, Limits, bisect_many
from celedger.judge.bisection.bisect import lacking_ends
from celedger.ledger import Ledger
from celedger.trial.engine import Need
from celedger.views.bisect import BisectAnswer

COMMITS = 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, battery: ModuleType) -> Path:
    folder: Path = tmp_path_factory.mktemp("ranges")
    for shape in ("line", "merges", "docs"):
        battery.create(folder / shape, battery.commits(shape, COMMITS), checkout=False)
    return folder


class Watched:
    """An engine that checks what it is given. `needs` are those that run."""

    def __init__(self, engine: Any) -> None:
        self.engine, self.workers = engine, engine.workers
        self.needs: dict[Any, Need] = {}
        self.submitted: list[tuple[str, int]] = []
        self.most = 0

    def submit(self, need: Need) -> Any:
        key = need.commit.sha, need.seed
        self.needs = {future: n for future, n in self.needs.items() if not future.done()}
        assert key not in [(n.commit.sha, n.seed) for n in self.needs.values()]
        self.submitted.append(key)
        future = self.engine.submit(need)
        self.needs[future] = need
        self.most = max(self.most, len(self.needs))
        return future

    def wait(self) -> None:
        self.engine.wait()

    def close(self) -> None:
        self.engine.close()


@contextmanager
def bench_of(battery: ModuleType, folder: Path, world: str, number: int = 0) -> Iterator[Any]:
    chosen = battery.WORLDS[world]
    opened = battery.Range.open(folder / chosen.shape)
    case = battery.Case(chosen, opened, np.random.default_rng([number, 15]))
    with (
        tempfile.TemporaryDirectory(dir=folder) as place,
        closing(Ledger.open(Path(place) / "ledger.db", create=True)) as ledger,
        battery.ScriptedBench.of(case, ledger) as bench,
    ):
        yield bench


def bisected(battery: ModuleType, bench: Any, workers: int, **limits: Any) -> tuple[Answer, Any]:
    world, history = bench.case.world, bench.case.range.history
    bench.pool = engine = Watched(battery.Workers(bench, workers, 0))
    bench.searches()
    metrics = (world.metric,) if world.metric else ()
    answer = bisect_many(bench, history, [world.task], metrics, Limits(**limits))
    return answer, engine


@pytest.mark.parametrize(
    "world",
    matrix_after(1, ["n4", "merges-4", "crash-always", "exact", "bits", "docs", "untestable-30"]),
)
def test_workers_find_the_commit_in_less_time(
    battery: ModuleType, folder: Path, world: str
) -> None:
    times = []
    for workers in (1, 4):
        # One in thirty may be wrong (asked 95 %), as case 0 of docs is; of 90 others none was.
        with bench_of(battery, folder, world, number=int(world == "docs")) as bench:
            battery.store_ends(bench)
            answer, engine = bisected(battery, bench, workers)
            (report,), (step,) = answer.reports, bench.case.steps
            assert report.status in ("found", "set")  # a set: of commits that cannot be tested
            assert bench.case.range.history.commits[step] in report.culprits
            assert engine.most == workers
            times.append(engine.engine.now)
    assert times[1] < 0.75 * times[0]


def test_the_ends_are_measured_side_by_side(battery: ModuleType, folder: Path) -> None:
    with bench_of(battery, folder, "n4") as bench:
        good, bad = bench.case.range.history.good.sha, bench.case.range.history.bad.sha
        _, engine = bisected(battery, bench, 4)
        assert engine.submitted[:3] == [(good, 0), (bad, 0), (good, 1)]
        assert engine.submitted[3][0] not in (good, bad)


def test_two_pairs_of_the_ends_are_enough_where_one_metric_is_computed(
    battery: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three trials of each end were run in any case, GOOD's first."""
    world = replace(battery.WORLDS["bits-anew"], steps=(4.0,), metric="")
    monkeypatch.setitem(battery.WORLDS, "alone", world)
    with bench_of(battery, folder, "alone") as bench:
        good, bad = bench.case.range.history.good.sha, bench.case.range.history.bad.sha
        _, engine = bisected(battery, bench, 1)
        assert engine.submitted[:4] == [(good, 0), (bad, 0), (good, 1), (bad, 1)]
        assert engine.submitted[4][0] not in (good, bad)


def test_a_crash_of_an_end_makes_its_other_trials_needless(
    battery: ModuleType, folder: Path
) -> None:
    with bench_of(battery, folder, "crash-always") as bench:
        good, bad = bench.case.range.history.good.sha, bench.case.range.history.bad.sha
        answer, engine = bisected(battery, bench, 1)
        assert answer.reports[0].crash
        assert engine.submitted[:3] == [(good, 0), (bad, 0), (good, 1)]
        assert engine.submitted[3][0] not in (good, bad)


def test_the_budget_bounds_the_trials_that_are_started(battery: ModuleType, folder: Path) -> None:
    with bench_of(battery, folder, "n2") as bench:
        battery.store_ends(bench)
        answer, engine = bisected(battery, bench, 4, budget=6)
        assert answer.reports[0].status == "undecided"
        assert answer.reports[0].trials == len(engine.submitted) == 6


@pytest.mark.matrix
def test_the_same_search_with_one_worker_asks_for_the_same_trials(
    battery: ModuleType, folder: Path
) -> None:
    """In this thread one after the other, or by an engine of one worker."""
    ran = []
    for engine in (False, True):
        with bench_of(battery, folder, "n2") as bench:
            battery.store_ends(bench)
            if engine:
                bisected(battery, bench, 1)
            else:
                bench.searches()
                bisect_many(bench, bench.case.range.history, [battery.TASK], ["val_loss"])
            trials = bench.ledger.trials(recipe=battery.TASK.recipe)
            ran.append([(r.trial.commit, r.trial.seed, r.summaries) for r in trials])
    assert ran[0] == ran[1]


def test_a_slope_is_told_as_an_interval(battery: ModuleType, folder: Path) -> None:
    with bench_of(battery, folder, "slope-8") as bench:
        battery.store_ends(bench)
        answer, _ = bisected(battery, bench, 1)
        (report,), commits = answer.reports, bench.case.range.history.commits
    assert report.status == "gradual" and report.trials < 40 and not answer.named
    assert {commits[p] for p in bench.case.steps} <= set(report.culprits)
    assert report.low < 8 < report.high and report.probability >= 0.9
    document = BisectAnswer(answer, {}, "celedger", "git")
    first, last = (commit.sha[:8] for commit in (report.culprits[0], report.culprits[-1]))
    among = f"somewhere in the {len(report.culprits)} commits {first} to {last}"
    assert f"fit val_loss got worse gradually, {among}" in document.text()
    assert cast(Any, document.json())["bisect"]["status"] == "gradual"
    assert f"moved gradually, by {len(report.culprits)} commits" in report.sentence()


def test_the_middle_of_exact_ends_that_are_alike_is_looked_at(
    battery: ModuleType, folder: Path
) -> None:
    for number, named in ((0, False), (1, True)):  # the hump of the first ends before the middle
        with bench_of(battery, folder, "hump-exact", number) as bench:
            battery.store_ends(bench)
            answer, engine = bisected(battery, bench, 1)
            (report,), commits = answer.reports, bench.case.range.history.commits
            assert engine.submitted[0][0] == commits[len(commits) // 2 - 1].sha
            assert report.named == named
            if named:
                assert report.culprits == (commits[bench.case.steps[0]],)
            else:
                assert (report.status, report.trials) == ("nothing-changed", 1)


def test_the_middle_of_alike_ends_is_compared_by_equal_seeds(
    battery: ModuleType, folder: Path
) -> None:
    """cmaes: the seed of the middle is worse than the mean of all, so every commit that had been
    read was read three times: 35 trials after the answer."""
    battery.WORLDS["rounded"] = battery.World(
        steps=(), redraw=0.0, wander=1e-12, floor=0.1, stored=6
    )
    for number in range(3):
        with bench_of(battery, folder, "rounded", number) as bench:
            battery.store_ends(bench)
            answer, engine = bisected(battery, bench, 1)
            assert (answer.reports[0].status, len(engine.submitted)) == ("nothing-changed", 1)


@pytest.mark.matrix
def test_rounding_at_every_commit_costs_no_trial(battery: ModuleType, folder: Path) -> None:
    """cmaes, micrograd: each commit's bits were a level of its own, and 4 searches took 31."""
    battery.WORLDS["rounding"] = battery.World(redraw=0.0, wander=1e-8, stored=2)
    trials = 0
    for number in range(4):
        with bench_of(battery, folder, "rounding", number) as bench:
            battery.store_ends(bench)
            (report,) = bisected(battery, bench, 1)[0].reports
            commits = bench.case.range.history.commits
            assert report.culprits == tuple(commits[p] for p in bench.case.steps)
            trials += report.trials
    assert trials <= 24


def test_a_commit_that_reads_what_the_good_end_does_is_known_without_a_trial(
    battery: ModuleType, tmp_path: Path
) -> None:
    """Where a branch began, or a revert ended, the tree is an older one. The search asked for its
    known trial, and ran another seed of it each time."""
    contents = ["a", str(battery.OLDER), "b", "c", "d", "e"]
    commits = list(battery.commits("docs", 1))[: battery.OLDER + 1]
    for i, text in enumerate(contents, len(commits)):
        file = {"model.py": f"{text}\n"}
        commits.append(battery.NewCommit(str(i), f"model.py {i}", file, (str(i - 1),)))
    battery.create(tmp_path / "docs", commits, checkout=False)
    battery.WORLDS["reverted"] = battery.World(steps=(6.0,), redraw=0.0, shape="docs", stored=2)
    for number in range(8):
        with bench_of(battery, tmp_path, "reverted", number) as bench:
            battery.store_ends(bench)
            answer, engine = bisected(battery, bench, 1)
            (report,), (step,) = answer.reports, bench.case.steps
            if step > 1:
                assert [commit.sha for commit in report.culprits] == [
                    bench.case.range.history.commits[step].sha
                ]
                ran = {sha for sha, _ in engine.submitted}
                assert ran.isdisjoint(c.sha for c in bench.case.range.history.commits[:2])
                break
    else:
        pytest.fail("no case has its step after the revert")


def test_the_crash_of_one_task_makes_the_trials_of_others_needless(
    battery: ModuleType, folder: Path
) -> None:
    with bench_of(battery, folder, "n4") as bench:
        history = bench.case.range.history
        other = battery.TASK._replace(name="other")
        tasks = [other, battery.TASK]
        bench.station.bases["other"] = bench.station.bases[battery.TASK.name]
        ends = history.good, history.bad

        def lack(**words: bool) -> list[tuple[str, str]]:
            lacking = lacking_ends(bench, history, tasks, None, **words)
            return [(("good", "bad")[ends.index(end)], task.name) for end, task in lacking]

        first = [("good", "other"), ("bad", "other"), ("good", "fit"), ("bad", "fit")]
        assert lack() == first * 2, "pairs of each task in turn"
        bench.store(history.good, OutcomeKind.OK, bench.case.reports(-1, 0))
        bench.store(history.bad, OutcomeKind.FAILED, ())
        assert lack() == [("good", "fit")]
        assert lack(improved=True) == [*first[:2], *first[:3]]
