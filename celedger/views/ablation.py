"""`celedger table`: the measured values, over the parameters that vary. A row is a task with its
parameters at a commit; trials of different definitions or environments are never averaged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from celedger.base.errors import CeledgerError, UsageError
from celedger.base.model import CLOCKED, Commit, Direction, Metric
from celedger.base.text import some
from celedger.judge.incident import MetricNoise, State
from celedger.judge.variants import Lead, lead, shares
from celedger.ledger.read import Reader
from celedger.trial.protocol import TELEMETRY
from celedger.views import samples
from celedger.views.document import NONE, Column, Document, amount, pick, plain, short, table
from celedger.views.samples import Batch, Sample

_PART = re.compile(r"[\[,]only=")  # a partial trial is shown only if it is named
_PLACES = ("commit", "suite", "task", "environment")  # tell rows apart, besides parameters
_NAMED = 3  # variants that may be as good, by name


@dataclass(frozen=True, slots=True)
class AblationRow:
    commit: str
    suite: str
    task: str  # without its grid's values
    environment: str
    params: Mapping[str, object]
    trials: int
    failed: int
    samples: tuple[Sample, ...]  # one a metric of the table

    @classmethod
    def of(
        cls, batch: Batch, metrics: Sequence[Metric], params: Mapping[str, object]
    ) -> AblationRow:
        ended = [r for r in batch.records if r.is_final]
        good = sum(r.ok for r in ended)
        commit = batch.records[0].trial.commit
        values = tuple(map(batch.sample, metrics))
        return cls(
            commit, batch.suite, _base(batch.task), batch.environment, params, good,
            len(ended) - good, values,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ablation(Document):
    places: tuple[str, ...]  # those of _PLACES that vary, or the task if none does
    params: tuple[str, ...]
    metrics: tuple[Metric, ...]
    rows: tuple[AblationRow, ...]
    # Of the variants of a grid: the best, and the share of the differences a parameter explains.
    leads: tuple[tuple[tuple[AblationRow, ...], Lead, Mapping[str, float]], ...] = ()

    @classmethod
    def of(
        cls,
        ledger: Reader,
        commits: Sequence[Commit],
        *,
        suite: str | None = None,
        tasks: Collection[str] = (),
        params: Sequence[str] = (),
        metrics: Sequence[str] = (),
        state: Callable[[], State],
    ) -> Ablation:
        """Read the newest trials of every task at the commits. `params` default to those that vary,
        `metrics` to those that are judged. `state` is asked for the noise of what is measured by
        clock or memory in a grid. Raises UsageError for an unknown name, CeledgerError if there are
        no trials."""
        batches = _batches(ledger, commits, suite, tasks)
        definitions = {t.recipe: t.definition for t in ledger.tasks()}
        reported = {m.name: m for b in batches for m in b.metrics(ledger.metrics)}
        judged = (m for m in reported.values() if m.direction is not Direction.INFO)
        columns = samples.in_order(judged)
        if metrics:
            columns = [reported[_checked("metric", name, reported)] for name in metrics]
        rows = []
        variants: dict[tuple[str, ...], list[tuple[AblationRow, Batch]]] = {}
        for batch in batches:
            declared = {m.name: m for m in ledger.metrics(batch.recipe)}
            metrics_of_row = [declared.get(metric.name, metric) for metric in columns]
            values = definitions[batch.recipe].get("params")
            settings = dict(values) if isinstance(values, Mapping) else {}
            rows.append(row := AblationRow.of(batch, metrics_of_row, settings))
            place = tuple(getattr(row, name) for name in _PLACES)
            variants.setdefault(place, []).append((row, batch))
        names = list(dict.fromkeys(name for row in rows for name in row.params))
        varied = _varied(names, rows)
        if params:
            varied = [_checked("parameter", name, names) for name in params]
        varying = [column for column in _PLACES if len({getattr(row, column) for row in rows}) > 1]
        if not varying and not varied:
            varying = ["task"]
        leads = tuple(_leads(variants.values(), columns, state))
        return cls(tuple(varying), tuple(varied), tuple(columns), tuple(rows), leads)

    def text(self, width: int = 100) -> str:
        columns = [Column(name) for name in (*self.places, *self.params)]
        columns += [Column("n", right=True), Column("failed", right=True)]
        columns += [Column(metric.name) for metric in self.metrics]
        rows = [
            (
                *(_name(row, column) for column in self.places),
                *(_text(row.params.get(name)) for name in self.params),
                str(row.trials), str(row.failed or ""), *(s.text() for s in row.samples),
            )
            for row in self.rows
        ]  # fmt: skip
        lines = [self._lead(*each) for each in self.leads]
        return "\n".join([table(columns, rows, width=width), *([""] if lines else []), *lines])

    def _lead(self, rows: Sequence[AblationRow], lead: Lead, shares: Mapping[str, float]) -> str:
        best, *close = (self._variant(rows, number) for number in (lead.best, *lead.close))
        place = [_name(rows[0], column) for column in self.places]
        what = f"{' '.join([*place, lead.metric.name])}: {best}"
        if not close:
            by = amount(lead.change, lead.level, unit=lead.metric.unit)
            second = self._variant(rows, lead.second)
            text = f"{what} is surely the best of {lead.number}, {by} from {second}"
        else:
            text = f"{what} leads; as good may be {some(close, _NAMED)}: more seeds tell"
        parts = ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items())
        return f"{text}\n  parameters that explain the differences: {parts}" if parts else text

    def _variant(self, rows: Sequence[AblationRow], number: int) -> str:
        """Return `norm=group`, with the parameters that vary among the rows."""
        params = rows[number].params
        return " ".join(f"{name}={_text(params[name])}" for name in _varied(params, rows))

    def json(self) -> dict[str, object]:
        return {
            "parameters": self.params,
            "metrics": [pick(m, "name unit direction") for m in self.metrics],
            "rows": [
                {
                    **pick(row, "commit suite task environment"),
                    "parameters": {name: row.params.get(name) for name in self.params},
                    **pick(row, "trials failed"),
                    "values": {s.metric.name: pick(s, "mean sd n") for s in row.samples if s.n},
                }
                for row in self.rows
            ],
            "leads": [
                {
                    "metric": lead.metric.name, **pick(rows[0], "commit suite task environment"),
                    "best": rows[lead.best].params, "sure": not lead.close,
                    "close": [rows[number].params for number in lead.close], "shares": own,
                }
                for rows, lead, own in self.leads
            ],
        }  # fmt: skip


def _varied(names: Iterable[str], rows: Sequence[AblationRow]) -> list[str]:
    """Return the parameters that have several values in these rows."""
    return [name for name in names if len({repr(row.params.get(name)) for row in rows}) > 1]


def _leads(
    grids: Iterable[Sequence[tuple[AblationRow, Batch]]],
    metrics: Sequence[Metric],
    state: Callable[[], State],
) -> Iterator[tuple[tuple[AblationRow, ...], Lead, Mapping[str, float]]]:
    """Yield the best variant of each grid and metric that a suite declares, and what explains the
    differences where several parameters vary."""
    for grid in grids:
        for metric in metrics:
            if len(grid) < 2 or metric in TELEMETRY or metric.direction is Direction.INFO:
                continue
            noises: list[MetricNoise | None] = [None] * len(grid)
            if metric.kind in CLOCKED:  # of all else equal seeds tell it
                noises = [state().noise_of(b.suite, b.task, metric.name) for _, b in grid]
            variants = [(row.params, batch.records) for row, batch in grid]
            own = lead(metric, [records for _, records in variants], noises)
            if own is not None:
                rows = tuple(row for row, _ in grid)
                several = len(_varied(rows[0].params, rows)) > 1
                yield rows, own, shares(metric, variants, noises) if several else {}


def _batches(
    ledger: Reader, commits: Sequence[Commit], suite: str | None, tasks: Collection[str]
) -> list[Batch]:
    """Return the newest batch of each commit and task, in the order of history and suite."""
    order = {(t.suite, t.name): i for i, t in enumerate(ledger.tasks())}
    if suite is not None:
        _checked("suite", suite, {s for s, _ in order})
    for name in tasks:
        _checked("task", name, {n for _, task in order for n in (task, _base(task))})
    batches: list[Batch] = []
    for commit in commits:
        trials = ledger.trials(commit=commit.sha, suite=suite)
        newest = samples.latest(samples.batches(trials))
        batches += [
            batch
            for _, batch in sorted(newest.items(), key=lambda item: order[item[0]])
            if batch.task in tasks
            or (not _PART.search(batch.task) and (not tasks or _base(batch.task) in tasks))
        ]
    if not batches:
        raise CeledgerError("the ledger holds no such trials", "`celedger log` lists what is there")
    return batches


def _base(task: str) -> str:
    return task.partition("[")[0]


def _checked(kind: str, name: str, names: Collection[str]) -> str:
    if name not in names:
        hint = f"known: {', '.join(sorted(names))}" if names else "there are none"
        raise UsageError(f"there is no {kind} {name!r}", hint)
    return name


def _name(row: AblationRow, column: str) -> str:
    text = str(getattr(row, column))
    return short(text) if column in ("commit", "environment") else text


def _text(value: object) -> str:
    if value is None:
        return NONE
    return str(value).lower() if isinstance(value, bool) else plain(str(value))
