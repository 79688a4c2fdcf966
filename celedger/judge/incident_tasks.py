"""Which task of an incident is searched: the one whose trial tells most per second."""

from __future__ import annotations

import math
from collections.abc import Sequence

from celedger.base.model import Task
from celedger.judge.bisection import usable_rows
from celedger.judge.incident import IncidentMetric
from celedger.stats import choice
from celedger.trial.runner import Bench


def most_telling(
    bench: Bench, metrics: Sequence[IncidentMetric], tasks: Sequence[Task]
) -> list[tuple[Task, str]]:
    """Return the tasks that an incident moved, each with the metric that tells most ("" for a
    crash): first the one whose trial tells most bits a second. Empty if none is among `tasks`."""
    best: dict[str, tuple[float, Task, str]] = {}
    for metric in metrics:
        task = next((task for task in tasks if task.name == metric.task), None)
        if task is None:
            continue
        rate = _bits(bench, task, metric) / (bench.ledger.usual_seconds(task) or 1.0)
        if task.name not in best or rate > best[task.name][0]:
            best[task.name] = rate, task, metric.name
    return [(task, name) for _, task, name in sorted(best.values(), key=lambda row: -row[0])]


def _bits(bench: Bench, task: Task, moved: IncidentMetric) -> float:
    """Return what one trial at the middle of the range tells."""
    metric = task.metric(moved.name)
    if metric is None or not math.isfinite(moved.change):
        return choice.capacity(choice.SURE_SHIFT)
    environment = bench.environments[task.name].fingerprint
    rows = bench.ledger.summaries(task.name, metric.name, recipe=task.recipe)
    rows = [r for r in usable_rows.usable_rows(rows, metric) if r.environment == environment]
    noise = usable_rows.noise(rows, {})
    shift = choice.ASSUMED_SHIFT
    if noise.known:
        shift = abs(moved.change) / noise.sd if noise.sd else choice.SURE_SHIFT
    return choice.capacity(min(shift, choice.SURE_SHIFT))
