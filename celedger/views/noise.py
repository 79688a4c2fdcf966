"""How much a task's metrics vary when nothing changed, and so how small a change one, three and
ten trials can tell: `celedger noise`, `celedger show TASK`, docs/noise.md. Read from every trial
that the ledger holds of the task's newest recipe in the environment it ran in last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from celedger.drift.values import TaskValues
from celedger.errors import CeledgerError, command
from celedger.ledger.read import Reader
from celedger.model import Direction, Environment, Kind, Metric, TaskRecord
from celedger.stats import noise
from celedger.stats.grouped import Grouped
from celedger.views import samples
from celedger.views.export import Json, document
from celedger.views.format import NONE, clip, count, measure, percent, plain, short
from celedger.views.samples import Batch, Sample
from celedger.views.show import told_text
from celedger.views.tables import Column, table

TRIALS = (1, 3, 10)  # of each of two commits that are compared
_COLUMNS = (
    Column("metric"),
    Column("level"),
    Column("spread", right=True),
    Column("n", right=True),
    Column("equal seeds"),
    *(Column(count(trials, "trial")) for trials in TRIALS),
)
_SAID = (
    "The smallest change that so many trials at each of two commits tell at 95 % confidence, in "
    "four cases of five."
)


@dataclass(frozen=True, slots=True)
class MetricNoise:
    """`level`: of the commit measured last, in the metric's unit. `spread`: of one trial, of all
    commits pooled. `told`: for each of TRIALS the smallest change, in the metric's unit; 0 where
    any can be told, infinity where nothing is known. `repeats`: whether equal seeds give equal
    values; None where no seed ran twice."""

    metric: Metric
    level: Sample
    spread: noise.Noise
    told: tuple[float, ...]
    repeats: bool | None


@dataclass(frozen=True, slots=True)
class TaskNoise:
    """`trials`, `commits` and `seeds` count what gave a value of its own, as the picture of drift
    does; `others` are the rest of the trials."""

    batch: Batch  # the trials of the commit measured last
    environment: Environment | None
    definition: Mapping[str, object]
    trials: int
    others: int
    commits: int
    seeds: int
    metrics: tuple[MetricNoise, ...]


def task_noise(ledger: Reader, suite: str, task: str) -> TaskNoise:
    """Raises CeledgerError where the task has no trials."""
    trials = ledger.started(suite=suite, task=task)
    if not trials:
        raise CeledgerError(
            f"the ledger holds no trial of {suite}/{task}",
            f"type {command('noise', task, suite=suite)}",
        )
    last = max(trials, key=lambda t: (t.started, t.ulid))
    recipe, environment = last.recipe, last.environment
    trials = [t for t in trials if (t.recipe, t.environment) == (recipe, environment)]
    order = samples.places(ledger)
    newest = max(trials, key=lambda t: (order[t.commit], t.started))
    (batch,) = samples.batches(
        ledger.trials(commit=newest.commit, recipe=recipe, environment=environment)
    )
    names = ledger.measured(recipe, environment)
    values = TaskValues(ledger, recipe, order)
    metrics = tuple(
        _of_metric(batch, metric, values.of(metric, environment).grouped)
        for metric in samples.in_order(m for m in ledger.metrics(recipe) if m.name in names)
        if metric.direction is not Direction.INFO
    )
    definition = next(t for t in ledger.tasks() if t.recipe == recipe).definition
    ran, commits, seeds = values.counts(environment)
    return TaskNoise(
        batch,
        ledger.environment(environment),
        definition,
        ran,
        len(trials) - ran,
        commits,
        seeds,
        metrics,
    )


def named_task(ledger: Reader, name: str) -> TaskRecord | None:
    """The newest recipe of `task` or `suite/task`; None where no task is called so."""
    if not any(name in (t.name, f"{t.suite}/{t.name}") for t in ledger.tasks()):
        return None
    suite, task = samples.find_task(ledger, name)
    return [t for t in ledger.tasks() if (t.suite, t.name) == (suite, task)][-1]


def noise_text(found: Sequence[TaskNoise], *, width: int = 100) -> str:
    lines: list[str] = []
    for task in found:
        batch = task.batch
        lines += [f"{batch.title}  (recipe {short(batch.recipe)})", *_definition(task, width)]
        told = f"{count(task.trials, 'trial')}, {count(task.seeds, 'seed')}"
        lines += [f"  {told}, {count(task.commits, 'commit')}, {_place(task.environment)}"]
        if task.others:
            lines += [f"  {count(task.others, 'more trial')} gave no value of their own"]
        rows = [_cells(metric) for metric in task.metrics]
        lines += [*table(_COLUMNS, rows, width=width, indent=2).splitlines(), ""]
    return "\n".join([*lines, _SAID])


def noise_json(found: Sequence[TaskNoise]) -> dict[str, Json]:
    return document(
        tasks=[
            {
                "suite": task.batch.suite,
                "task": task.batch.task,
                "recipe": task.batch.recipe,
                "environment": task.batch.environment,
                "trials": task.trials,
                "commits": task.commits,
                "seeds": task.seeds,
                "metrics": [_metric_json(metric) for metric in task.metrics],
            }
            for task in found
        ]
    )


def _of_metric(batch: Batch, metric: Metric, values: Grouped) -> MetricNoise:
    firsts = values.layout.firsts
    again = firsts != np.arange(firsts.size)
    equal = values.values == values.values[firsts]
    repeats = bool(equal[again].all()) if again.any() else None
    if metric.kind in (Kind.QUALITY, Kind.COUNT) and not repeats:
        # The spread of quality is that over seeds: repeats of one seed are not further seeds.
        values = values.where(~again)
    spread = noise.pool(values)
    told = tuple(noise.smallest_change(spread, n, n) for n in TRIALS)
    return MetricNoise(metric, batch.sample(metric), spread, told, repeats)


def _definition(task: TaskNoise, width: int) -> list[str]:
    lines = []
    commands = task.definition.get("commands")
    if isinstance(commands, list):
        lines += [clip(f"  {c[0]}: {plain(' '.join(c[1:]))}", width) for c in commands]
    params = task.definition.get("params")
    if isinstance(params, Mapping) and params:
        said = ", ".join(f"{name} = {value}" for name, value in params.items())
        lines.append(clip(f"  {plain(said)}", width))
    return lines


def _place(environment: Environment | None) -> str:
    if environment is None:
        return "environment unknown"
    details = environment.details
    packages = details.get("packages")
    torch = packages.get("torch") if isinstance(packages, Mapping) else None
    words = [f"environment {short(environment.fingerprint)}", str(details.get("device", ""))]
    return ", ".join(filter(None, [*words, f"torch {torch}" if torch else ""]))


def _cells(row: MetricNoise) -> tuple[str, ...]:
    sample, unit = row.level, row.metric.unit
    known = row.spread.known and sample.n > 0
    relative = percent(row.spread.sd / abs(sample.mean), signed=False) if sample.mean else NONE
    same = {True: "repeat", False: "differ", None: ""}[row.repeats]
    return (
        row.metric.name,
        measure(sample.mean, row.spread.sd, unit=unit) if sample.n else NONE,
        relative if known else NONE,
        str(row.spread.n),
        same,
        *(told_text(told, sample) for told in row.told),
    )


def _metric_json(row: MetricNoise) -> dict[str, object]:
    return {
        "name": row.metric.name,
        "unit": row.metric.unit,
        "kind": row.metric.kind,
        "floor": str(row.metric.floor),
        "level": row.level.mean,
        "spread": row.spread.sd,
        "degrees_of_freedom": row.spread.dof,
        "n": row.spread.n,
        "equal_seeds_repeat": row.repeats,
        "smallest_change": {str(n): told for n, told in zip(TRIALS, row.told, strict=True)},
    }
