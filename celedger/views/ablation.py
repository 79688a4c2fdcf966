"""`celedger table`: what was measured, over the parameters that vary. A row is a task with its
parameters at a commit; trials of different recipes or environments are never averaged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from celedger.errors import CeledgerError, UsageError
from celedger.ledger.read import Reader
from celedger.model import Commit, Direction, Metric
from celedger.views import samples
from celedger.views.export import Json, document
from celedger.views.format import NONE, measure, not_finite, plain, short
from celedger.views.samples import Batch, Sample
from celedger.views.tables import Column, table

SEED = "seed"  # may be named among the parameters: then every seed is a row
_PART = re.compile(r"[\[,]only=")  # a run of some commands is shown where it is asked for by name
_PLACES = ("commit", "suite", "task", "environment")  # what tells rows apart beside parameters


@dataclass(frozen=True, slots=True)
class Row:
    commit: str
    suite: str
    task: str  # without the point of its grid
    environment: str
    params: Mapping[str, object]
    trials: int
    failed: int
    samples: tuple[Sample, ...]  # one a metric of the table

    def place(self, name: str) -> str:
        return str(getattr(self, name))


@dataclass(frozen=True, slots=True)
class Ablation:
    places: tuple[str, ...]  # those of _PLACES that vary, the task where nothing does
    params: tuple[str, ...]
    metrics: tuple[Metric, ...]
    rows: tuple[Row, ...]


def ablation(
    ledger: Reader,
    commits: Sequence[Commit],
    *,
    suite: str | None = None,
    tasks: Collection[str] = (),
    params: Sequence[str] = (),
    metrics: Sequence[str] = (),
) -> Ablation:
    """The newest trials of every task at the commits. `params` default to those that vary,
    `metrics` to those that are judged. Raises UsageError for a name that nothing has,
    CeledgerError where there are no trials."""
    batches = _batches(ledger, commits, suite, tasks)
    definitions = {t.recipe: t.definition for t in ledger.tasks()}
    known = list({m.name: m for b in batches for m in b.metrics(ledger)}.values())
    chosen = [m for m in samples.in_order(known) if m.direction is not Direction.INFO]
    if metrics:
        by_name = {m.name: m for m in known}
        chosen = [by_name[_known("metric", name, by_name)] for name in metrics]
    rows: list[Row] = []
    for batch in batches:
        given = definitions[batch.recipe].get("params")
        own = dict(given) if isinstance(given, Mapping) else {}
        for part, more in _split(batch, SEED in params):
            rows.append(_row(ledger, part, chosen, own | more))
    names = list(dict.fromkeys(name for row in rows for name in row.params))
    shown = [name for name in names if len({repr(row.params.get(name)) for row in rows}) > 1]
    if params:
        shown = [_known("parameter", name, [*names, SEED]) for name in params]
    places = [place for place in _PLACES if len({row.place(place) for row in rows}) > 1]
    if not places and not shown:
        places = ["task"]
    return Ablation(tuple(places), tuple(shown), tuple(chosen), tuple(rows))


def ablation_text(found: Ablation, *, width: int = 100) -> str:
    columns = [Column(name) for name in (*found.places, *found.params)]
    columns += [Column("n", right=True), Column("failed", right=True)]
    columns += [Column(metric.name) for metric in found.metrics]
    rows = [
        (
            *(_short(row, place) for place in found.places),
            *(_text(row.params.get(name)) for name in found.params),
            str(row.trials),
            str(row.failed) if row.failed else "",
            *(
                measure(s.mean, s.sd, unit=s.metric.unit, spread=True) if s.n else NONE
                for s in row.samples
            ),
        )
        for row in found.rows
    ]
    return table(columns, rows, width=width)


def ablation_tsv(found: Ablation) -> str:
    """Numbers in full and in the metric's own unit; an absent one is an empty field."""
    heads = [*found.places, *found.params, "trials", "failed"]
    for metric in found.metrics:
        heads += [metric.name, f"{metric.name}_sd"]
    lines = [heads]
    for row in found.rows:
        fields = [plain(row.place(place)) for place in found.places]
        fields += [plain(str(row.params.get(name, ""))) for name in found.params]
        fields += [str(row.trials), str(row.failed)]
        for sample in row.samples:
            fields += [_number(sample.mean) if sample.n else "", _number(sample.sd, empty=True)]
        lines.append(fields)
    return "\n".join("\t".join(line) for line in lines)


def ablation_json(found: Ablation) -> dict[str, Json]:
    return document(
        parameters=found.params,
        metrics=[{"name": m.name, "unit": m.unit, "direction": m.direction} for m in found.metrics],
        rows=[
            {
                **{place: row.place(place) for place in _PLACES},
                "parameters": {name: row.params.get(name) for name in found.params},
                "trials": row.trials,
                "failed": row.failed,
                "values": {
                    s.metric.name: {"mean": s.mean, "sd": s.sd, "n": s.n}
                    for s in row.samples
                    if s.n
                },
            }
            for row in found.rows
        ],
    )


def _batches(
    ledger: Reader, commits: Sequence[Commit], suite: str | None, tasks: Collection[str]
) -> list[Batch]:
    """Of each commit and task the batch that ran last, in the order of history and suite."""
    order = {(t.suite, t.name): i for i, t in enumerate(ledger.tasks())}
    if suite is not None:
        _known("suite", suite, {s for s, _ in order})
    for name in tasks:
        _known("task", name, {n for _, task in order for n in (task, _base(task))})
    found: list[Batch] = []
    for commit in commits:
        made = samples.latest(samples.batches(ledger.trials(commit=commit.sha, suite=suite)))
        found += [
            batch
            for key, batch in sorted(made.items(), key=lambda item: order[item[0]])
            if batch.task in tasks
            or (not _PART.search(batch.task) and (not tasks or _base(batch.task) in tasks))
        ]
    if not found:
        raise CeledgerError("the ledger holds no such trials", "`celedger log` lists what is there")
    return found


def _row(
    ledger: Reader,
    batch: Batch,
    metrics: Sequence[Metric],
    params: Mapping[str, object],
) -> Row:
    own = {m.name: m for m in ledger.metrics(batch.recipe)}
    ended = [r for r in batch.records if r.outcome is not None and r.outcome.kind.final]
    return Row(
        batch.records[0].trial.commit,
        batch.suite,
        _base(batch.task),
        batch.environment,
        params,
        sum(r.ok for r in ended),
        sum(not r.ok for r in ended),
        tuple(batch.sample(own.get(m.name, m)) for m in metrics),
    )


def _split(batch: Batch, by_seed: bool) -> list[tuple[Batch, dict[str, object]]]:
    if not by_seed:
        return [(batch, {})]
    seeds = sorted({r.trial.seed for r in batch.records})
    return [
        (
            replace(batch, records=tuple(r for r in batch.records if r.trial.seed == seed)),
            {SEED: seed},
        )
        for seed in seeds
    ]


def _base(task: str) -> str:
    return task.partition("[")[0]


def _known(what: str, name: str, known: Collection[str]) -> str:
    if name not in known:
        raise UsageError(f"there is no {what} {name!r}", f"there are {', '.join(sorted(known))}")
    return name


def _short(row: Row, place: str) -> str:
    text = row.place(place)
    return short(text) if place in ("commit", "environment") else text


def _text(value: object) -> str:
    if value is None:
        return NONE
    return str(value).lower() if isinstance(value, bool) else plain(str(value))


def _number(value: float, *, empty: bool = False) -> str:
    """Shortest text that reads back as the same number. `empty`: where it is NaN, there is none."""
    if math.isnan(value) and empty:
        return ""
    return repr(value) if math.isfinite(value) else not_finite(value)
