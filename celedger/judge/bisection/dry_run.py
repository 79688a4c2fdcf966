"""What a bisect would take, from what the ledger holds, without running anything."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from celedger.base.errors import CannotJudge
from celedger.base.model import Commit, Task
from celedger.judge.bisection.bisect import lacking_ends
from celedger.judge.bisection.equal_commits import classify
from celedger.judge.bisection.one_metric import Track
from celedger.judge.bisection.planner import Limits
from celedger.judge.bisection.symptom import find_symptom
from celedger.repo import History
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
    bench.station.hold_environment(bad.sha, tasks, install=False)
    ends = lacking_ends(bench, good, bad, tasks, metric)
    symptom = None
    try:
        symptom = find_symptom(bench, tasks, good, bad, metric, improved=improved)
    except CannotJudge:
        if not ends:
            raise
    classes = {task.name: classify(bench, history, good, task) for task in tasks}
    left = min(each.left for each in classes.values())
    least = math.log2(left) + _CONFIRMING
    trials, known, name = least + len(ends), False, ""
    here = {good.sha, *(commit.sha for commit in commits)}
    stored = sum(
        record.trial.commit in here
        for task in tasks
        for record in bench.ledger.trials(recipe=task.recipe)
    )
    timed = [seconds(task) for task in tasks]
    if symptom is not None:
        of_task = classes[symptom.task.name]
        track = Track(bench, history, good, symptom, limits.confidence)
        track.hear(of_task.stored(bench, symptom.task), of_task)
        name = f"{symptom.task.name} {symptom.name}"
        timed = [seconds(symptom.task)]
        left, known = of_task.left, not ends
        stopped = sum(record.early_stopped for record in track.records)
        stored = len(track.evidence.readings) + stopped
        if known:
            trials = track.expected_trials()
    each = [s for s in timed if s is not None]
    return Plan(
        commits=len(commits),
        classes=left,
        stored=stored,
        ends=len(ends),
        symptom=name,
        known=known,
        trials=trials,
        seconds=trials * sum(each) / len(each) if each else math.nan,
        budget=limits.budget,
    )
