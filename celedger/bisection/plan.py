"""What a bisect would take, from what the ledger holds, without running anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from celedger.bisection.classes import classify, trials_of
from celedger.bisection.ends import lacking_ends
from celedger.bisection.search import Limits, read
from celedger.bisection.symptom import find_symptom
from celedger.errors import CannotJudge
from celedger.model import Commit, Task
from celedger.repo import History
from celedger.stats import choice, firstbad
from celedger.trial.runner import Bench

# The answer of a search with no noise at all, and the confirmation of both neighbours.
_CONFIRMING = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """`trials` is what the search is expected to run, the ends included; without a symptom
    (`known` false) it is the least a search without noise can take."""

    commits: int
    classes: int  # that could have done it, as far as stored trials prove
    stored: int
    ends: int
    symptom: str
    known: bool
    trials: float
    seconds: float  # nan: no trial of the task has been timed yet
    budget: int


def plan(
    bench: Bench,
    history: History,
    good: Commit,
    tasks: Sequence[Task],
    metric: str | None,
    limits: Limits,
    *,
    improved: bool = False,
    seconds: Callable[[Task], float | None],
) -> Plan:
    """Raises CannotJudge where the stored trials of the ends already say that they are alike."""
    commits = history.commits
    bad = commits[-1]
    bench.hold_environment(bad.sha, tasks, install=False)
    ends = lacking_ends(bench, good, bad, tasks, metric)
    symptom = None
    try:
        symptom = find_symptom(
            bench.ledger,
            tasks,
            good,
            bad,
            bench.environments,
            metric,
            improved=improved,
            at=lambda commit, task: trials_of(bench, commit, task),
        )
    except CannotJudge:
        if not ends:
            raise
    classes = min(classify(bench, history, good, task).left for task in tasks)
    least = math.log2(classes) + _CONFIRMING
    trials, known, name, stored = least + len(ends), False, "", 0
    timed = [seconds(task) for task in tasks]
    if symptom is not None:
        question, evidence = read(bench, history, good, symptom, limits)
        posterior = firstbad.posterior(question, evidence)
        name = f"{symptom.task.name} {symptom.name}"
        timed = [seconds(symptom.task)]
        classes = classify(bench, history, good, symptom.task).left
        stored = len(evidence.readings)
        known = not ends
        if known:
            trials = choice.expected_trials(question, evidence, posterior)
    each = [s for s in timed if s is not None]
    return Plan(
        commits=len(commits),
        classes=classes,
        stored=stored,
        ends=len(ends),
        symptom=name,
        known=known,
        trials=trials,
        seconds=trials * sum(each) / len(each) if each else math.nan,
        budget=limits.budget,
    )
