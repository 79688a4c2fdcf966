"""The variation of a task's metrics without a change, and so how small a change one, three and ten
trials can detect: `celedger noise`, `celedger show TASK`, docs/noise.md. Read from every trial in
the ledger of the task's newest definition in its newest environment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from celedger.base.errors import CeledgerError, command
from celedger.base.model import Direction, Environment, Metric, TrialRecord
from celedger.judge.incident import MetricNoise, State
from celedger.judge.two_commits import smallest_change
from celedger.ledger.read import Reader
from celedger.views import samples
from celedger.views.document import (
    NONE,
    Column,
    Listing,
    count,
    measure,
    percent,
    pick,
    short,
    table,
    wrap,
)
from celedger.views.samples import Batch, Sample

TRIALS = (1, 3, 10)  # of each of two commits that are compared
REPEATS = {True: "repeat", False: "differ", None: ""}
_COLUMNS = (
    Column("metric"), Column("level"), Column("spread", right=True), Column("repeats", right=True),
    Column("equal seeds"), *(Column(count(trials, "trial")) for trials in TRIALS),
)  # fmt: skip
_LEGEND = (
    "The smallest change that so many trials at each of two commits detect at 95 % confidence, "
    "in four cases of five."
)


@dataclass(frozen=True, slots=True)
class NoiseRow:
    """A metric's noise. `level`: of the commit measured last, in the metric's unit. `spread`: of
    one trial, from repeats of the same code. `smallest`: for each of TRIALS the smallest detectable
    change, in the metric's unit; 0 if any can be detected, infinity if that is not known.
    `repeats`: whether equal seeds give equal values; None if no seed ran twice."""

    metric: Metric
    level: Sample
    spread: MetricNoise | None
    smallest: tuple[float, ...]
    repeats: bool | None

    @property
    def is_known(self) -> bool:
        spread = self.spread
        return spread is not None and spread.is_known

    @property
    def sd(self) -> float:
        """Return the spread of one trial, NaN where too few repeats tell it."""
        return self.spread.sd if self.spread is not None and self.is_known else math.nan

    def cells(self) -> tuple[str, ...]:
        level, spread = self.level, self.spread
        is_told = self.is_known and spread is not None and level.n > 0
        relative = percent(self.sd / abs(level.mean)) if level.mean else NONE
        return (
            self.metric.name,
            measure(level.mean, self.sd, unit=self.metric.unit) if level.n else NONE,
            relative if is_told else NONE,
            str(spread.freedom if spread else 0),
            REPEATS[self.repeats],
            *map(level.smallest_text, self.smallest),
        )

    def json(self) -> dict[str, object]:
        return {
            **pick(self.metric, "name unit kind"),
            "floor": str(self.metric.floor),
            "level": self.level.mean,
            "spread": self.sd,
            "degrees_of_freedom": self.spread.freedom if self.spread else 0,
            "equal_seeds_repeat": self.repeats,
            "smallest_change": dict(zip(TRIALS, self.smallest, strict=True)),
        }


@dataclass(frozen=True, slots=True)
class TaskNoise:
    """A task's noise. `trials`, `commits` and `seeds` count those with values of their own, as the
    picture of drift does."""

    batch: Batch  # the trials of the commit measured last
    environment: Environment | None
    trials: int
    commits: int
    seeds: int
    metrics: tuple[NoiseRow, ...]

    @classmethod
    def of(cls, ledger: Reader, suite: str, task: str, state: State) -> TaskNoise:
        """Read the noise of a task. Raises CeledgerError if it has no trials."""
        records = ledger.trials(suite=suite, task=task)
        trials = [record.trial for record in records]
        if not trials:
            raise CeledgerError(
                f"the ledger holds no trial of {suite}/{task}",
                f"type {command('noise', task, suite=suite)}",
            )
        last = max(trials, key=lambda t: (t.started, t.ulid))
        recipe, environment = last.recipe, last.environment
        records = [
            r for r in records if (r.trial.recipe, r.trial.environment) == (recipe, environment)
        ]
        trials = [record.trial for record in records]
        order = samples.positions(ledger)
        newest = max(trials, key=lambda t: (order[t.commit], t.started))
        (batch,) = samples.batches(
            ledger.trials(commit=newest.commit, recipe=recipe, environment=environment)
        )
        names = {name for record in records for name in record.summaries}
        metrics = tuple(
            NoiseRow(
                metric, batch.sample(metric), noise,
                tuple(smallest_change(noise, n, n) for n in TRIALS), _repeats(records, metric),
            )
            for metric in samples.in_order(m for m in ledger.metrics(recipe) if m.name in names)
            if metric.direction is not Direction.INFO
            for noise in [state.noise_of(batch.suite, batch.task, metric.name)]
        )  # fmt: skip
        ran = [r.trial for r in records if r.ok and not r.early_stopped and not r.derived]
        return cls(
            batch, ledger.environment(environment), len(ran), len({t.commit for t in ran}),
            len({t.seed for t in ran}), metrics,
        )  # fmt: skip

    def lines(self, width: int) -> list[str]:
        lines = [f"{self.batch.title}  (definition {short(self.batch.recipe)})"]
        counts = f"{count(self.trials, 'trial')}, {count(self.seeds, 'seed')}"
        environment = f"environment {short(self.batch.environment)}"
        lines.append(f"  {counts}, {count(self.commits, 'commit')}, {environment}")
        rows = [metric.cells() for metric in self.metrics]
        return [*lines, *table(_COLUMNS, rows, width=width, indent=2).splitlines()]

    def json(self) -> dict[str, object]:
        batch = pick(self.batch, "suite task recipe environment")
        return batch | pick(self, "trials commits seeds metrics")


def noise_of(tasks: Sequence[TaskNoise]) -> Listing:
    """Return the noise of tasks, and how its columns are to be read."""

    def printed(width: int) -> str:
        lines = [line for task in tasks for line in [*task.lines(width), ""]]
        return "\n".join([*lines, *wrap(_LEGEND, width)])

    return Listing({"tasks": tasks}, printed)


def _repeats(records: Sequence[TrialRecord], metric: Metric) -> bool | None:
    """Return whether equal seeds give equal values at a commit; None if no seed ran twice there."""
    first: dict[tuple[str, int], float] = {}
    equal = []
    for record in records:
        if record.may_be_judged(metric) and not record.derived:
            key, value = (record.trial.commit, record.trial.seed), record.summaries[metric.name]
            if key in first:
                equal.append(value == first[key])
            first.setdefault(key, value)
    return all(equal) if equal else None
