"""Which task gets a job's extra trials."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from celedger.judge.extra_trials import ExtraTrials, settle


def test_the_task_that_waits_longest_for_extra_trials_comes_first() -> None:
    """Five jobs in turn spent all six trials on the suite's first task, while a metric of the
    second one was 94 % sure to be worse."""
    facts: dict[str, dict[str, dict[str, str]]] = {
        "first": {"02": {"asked": "step_time", "role": "beside"}, "09": {"session": "a"}},
        "second": {"01": {"asked": "step_time", "role": "again"}, "03": {"role": "bisect"}},
    }
    ran = []

    class Double(ExtraTrials):
        def __post_init__(self) -> None: ...

        def clock(self) -> None: ...

        def repeat_failed(self, most: int) -> int:
            return 0

        def run(self, most: int) -> int:
            ran.append((self.task.name, most))
            return most

    ledger = SimpleNamespace(trial_facts=lambda *, suite, task: facts[task])
    bench: Any = SimpleNamespace(ledger=ledger)
    unused: Any = None
    tasks: list[Any] = [SimpleNamespace(name=name, suite="core") for name in facts]
    extra = [Double(bench, unused, unused, task, lambda line: None) for task in tasks]
    settle(extra, [], most=6)
    assert ran == [("second", 6), ("first", 0)]
