"""The whole of a bisect: both ends first, then what is wrong with them, then the search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from celedger.bisection.report import Report
from celedger.bisection.search import Limits, Step, next_seed, search
from celedger.bisection.symptom import CHOOSING, Symptom, find_symptom, must_be_judged
from celedger.model import Commit, Task, TrialRecord
from celedger.repo import History
from celedger.trial.runner import Bench

# A named symptom needs only as many trials as the search asks for anyway: two at GOOD and one
# at BAD.
_NAMED = (2, 1)
_CHOOSING = (CHOOSING, CHOOSING)
_PATIENCE = 3  # trials of the ends killed from outside before it is left at that


@dataclass(frozen=True, slots=True)
class EndTrial:
    """A trial that an end still needs."""

    commit: Commit
    task: Task


def lacking_ends(
    bench: Bench, good: Commit, bad: Commit, tasks: Sequence[Task], metric: str | None
) -> list[EndTrial]:
    """The trials of the two ends that the ledger lacks, GOOD first, seed by seed."""
    wanted = _NAMED if metric is not None else _CHOOSING
    lack = []
    for task in tasks:
        for end, number in zip((good, bad), wanted, strict=True):
            held = bench.ledger.trials(
                commit=end.sha, recipe=task.recipe,
                environment=bench.environments[task.name].fingerprint,
            )  # fmt: skip
            final = [r for r in held if r.outcome is not None and r.outcome.kind.final]
            # An end that does not run at all tells so with its first trial.
            if final and not any(r.ok for r in final):
                continue
            lack += [EndTrial(end, task)] * max(0, number - len(final))
    return lack


def measure_ends(
    bench: Bench, good: Commit, bad: Commit, tasks: Sequence[Task], metric: str | None
) -> list[TrialRecord]:
    """Run what the ends lack, asking anew after each trial: a crash makes the rest needless.
    Returns the trials it ran."""
    ran: list[TrialRecord] = []
    killed = 0
    while lack := lacking_ends(bench, good, bad, tasks, metric):
        end = lack[0]
        record = bench.run(end.commit, end.task, next_seed(bench, [end.commit.sha], end.task))
        ran.append(record)
        if record.outcome is not None and not record.outcome.kind.final:
            killed += 1
            if killed >= _PATIENCE:
                break
    return ran


def bisect(
    bench: Bench,
    history: History,
    good: Commit,
    tasks: Sequence[Task],
    metric: str | None,
    limits: Limits = Limits(),  # noqa: B008  frozen
    *,
    improved: bool = False,
    seconds: Callable[[Task], float | None] = lambda _: None,
    chosen: Callable[[Symptom], None] = lambda _: None,
    expected: Callable[[float], None] = lambda _: None,
    seen: Callable[[Step], None] = lambda _: None,
) -> Report:
    """Measure both ends, find the symptom, search the first bad commit; the first better one
    where what `improved` is searched.

    `seconds` is what a task's trial usually takes. Raises CannotJudge where an end is not what
    it is said to be, UsageError for an unknown metric.
    """
    bad = history.commits[-1]
    must_be_judged(tasks, metric)
    # One environment for all commits, or what changed in it would be taken for the code's doing.
    bench.hold_environment(bad.sha, tasks)
    ran = measure_ends(bench, good, bad, tasks, metric)
    symptom = find_symptom(
        bench.ledger, tasks, good, bad, bench.environments, metric, improved=improved
    )
    chosen(symptom)
    return search(
        bench, history, good, symptom, limits,
        ran=ran, seconds=seconds(symptom.task) or 1.0, expected=expected, seen=seen,
    )  # fmt: skip
