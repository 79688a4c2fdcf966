"""The loop of a bisect: workers are kept busy, and each trial counts as soon as it ends."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from celedger.base.errors import LedgerError
from celedger.judge.bisection.planner import Proposal, Reason, drive
from celedger.trial.engine import Need

Ended = Future[Any]


class ScriptedEngine:
    """Ends the trial of seed S after S others have been waited for; errors come from a script."""

    def __init__(self, workers: int, errors: dict[int, Exception] | None = None) -> None:
        self.workers = workers
        self.running: dict[int, Ended] = {}
        self.errors = errors or {}
        self.ended: list[int] = []
        self.most = 0

    def submit(self, need: Need) -> Ended:
        engine, future = self, Ended()

        def cancel() -> bool:
            engine.ended.append(need.seed)
            return False  # it runs: it will complete as a trial that was stopped early

        future.cancel = cancel  # type: ignore[method-assign]
        self.running[need.seed] = future
        self.most = max(self.most, len(self.running))
        return future

    def close(self) -> None:
        assert not self.running

    def wait(self) -> None:
        seed = min(self.running)
        future = self.running.pop(seed)
        if seed in self.errors:
            future.set_exception(self.errors[seed])
        else:
            future.set_result(seed)


class Script:
    """Proposes trials of these seeds, in their order."""

    def __init__(self, seeds: Sequence[int], needless: Collection[int] = ()) -> None:
        self.seeds, self.needless = list(seeds), needless
        self.heard: list[int] = []
        self.beside: list[list[int]] = []

    def propose(self, under_way: Sequence[Proposal]) -> Proposal | None:
        if not self.seeds:
            return None
        self.beside.append([p.need.seed for p in under_way])
        need = Need("commit", "task", self.seeds.pop(0))  # type: ignore[arg-type]
        return Proposal(need, Reason.NARROW)

    def ended(self, proposal: Proposal, future: Ended) -> None:
        self.heard.append(future.result())

    def spare(self, under_way: Sequence[Proposal]) -> list[Proposal]:
        return [p for p in under_way if self.heard and p.need.seed in self.needless]

    def run(self, engine: ScriptedEngine) -> None:
        drive(engine, self.propose, self.ended, self.spare)


def test_a_free_worker_gets_a_trial_as_soon_as_another_ends() -> None:
    script, engine = Script([5, 1, 2, 3, 4]), ScriptedEngine(2)
    script.run(engine)
    assert script.heard == [1, 2, 3, 4, 5]
    assert script.beside == [[], [5], [5], [5], [5]]
    assert engine.most == 2


def test_one_worker_runs_the_trials_in_their_order() -> None:
    script = Script([3, 1, 2])
    script.run(ScriptedEngine(1))
    assert script.heard == [3, 1, 2] and script.beside == [[], [], []]


def test_the_worker_of_a_needless_trial_gets_another_one_and_its_record_is_heard() -> None:
    script, engine = Script([9, 1, 2, 3], needless=[9]), ScriptedEngine(2)
    script.run(engine)
    assert script.beside == [[], [9], [], [2]]
    assert engine.ended == [9] and script.heard == [1, 2, 3, 9]


def test_an_error_ends_the_trials_under_way() -> None:
    script, engine = Script([9, 1]), ScriptedEngine(2, {1: LedgerError("gone")})
    with pytest.raises(LedgerError, match="gone"):
        script.run(engine)
    assert engine.ended == [9] and script.heard == []


def test_a_trial_that_never_started_is_not_heard() -> None:
    class Waiting(ScriptedEngine):
        def submit(self, need: Need) -> Ended:
            future = super().submit(need)
            if need.seed == 9:
                del future.cancel  # type: ignore[method-assign]
            return future

        def wait(self) -> None:
            cancelled = [seed for seed, future in self.running.items() if future.cancelled()]
            for seed in cancelled:
                del self.running[seed]
            if not cancelled:
                super().wait()

    script = Script([9, 1, 2], needless=[9])
    script.run(Waiting(2))
    assert script.heard == [1, 2]
