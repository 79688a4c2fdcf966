"""`celedger show REV`: all that is known of one commit. Every comparable batch of trials is a
table of its metrics, with what was concluded and how small a change its trials could have told.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from celedger.drift.values import PooledNoise
from celedger.ledger.read import Reader
from celedger.model import Commit, Direction, Environment, Verdict
from celedger.stats import noise
from celedger.views import samples
from celedger.views.export import Json, document
from celedger.views.format import (
    NONE,
    Scale,
    change,
    clip,
    count,
    iso_time,
    measure,
    percent,
    plain,
    short,
)  # fmt: skip
from celedger.views.log import sample_json, status, verdict_json
from celedger.views.samples import Batch, Sample
from celedger.views.tables import Column, table

_COLUMNS = (
    Column("metric"),
    Column("value"),
    Column("n", right=True),
    Column("verdict"),
    Column("effect"),
    Column("can tell"),
    Column(""),
)
_TELLING = ("torch", "torchvision", "torchaudio", "lightning", "transformers", "numpy", "scipy")
_ASIDE = "not compared"


@dataclass(frozen=True, slots=True)
class MetricRow:
    """`told`: the smallest change that two commits with this many trials each would tell at
    95 % confidence in four cases of five, in the metric's unit; 0 where it repeats exactly,
    infinity where its noise is not known yet."""

    sample: Sample
    told: float
    verdict: Verdict | None


@dataclass(frozen=True, slots=True)
class BatchRows:
    batch: Batch
    environment: Environment | None
    metrics: tuple[MetricRow, ...]
    failed: Verdict | None  # of the task as a whole


def show_text(ledger: Reader, sha: str, *, width: int = 100) -> str:
    """The text of `celedger show` for a full hash. Raises CeledgerError where it has no trials."""
    commit, found = batch_rows(ledger, sha)
    lines = [
        f"commit {commit.sha}",
        clip(f"{iso_time(commit.commit_time)} UTC  {plain(commit.author)}", width),
        "",
        clip(f"    {plain(commit.subject)}", width),
    ]
    shown = ""
    for rows in found:
        environment = rows.batch.environment
        if environment != shown:
            lines += ["", *_environment_lines(environment, rows.environment, width)]
            shown = environment
        lines += ["", *_batch_lines(rows, width)]
    return "\n".join(lines)


def show_json(ledger: Reader, sha: str) -> dict[str, Json]:
    """The same as a document, with every trial."""
    commit, found = batch_rows(ledger, sha)
    environments = {
        r.environment.fingerprint: r.environment.details for r in found if r.environment
    }
    return document(
        commit={
            "sha": commit.sha,
            "tree": commit.tree,
            "parents": commit.parents,
            "author": commit.author,
            "author_time": commit.author_time,
            "commit_time": commit.commit_time,
            "subject": commit.subject,
        },
        environments=environments,
        tasks=[_batch_json(rows) for rows in found],
    )


def batch_rows(ledger: Reader, sha: str) -> tuple[Commit, list[BatchRows]]:
    commit, made = samples.measured(ledger, sha)
    verdicts = ledger.verdicts(commit=sha)
    latest = samples.latest(made)
    noises = PooledNoise(ledger, samples.places(ledger))
    rows = []
    for batch in made:
        # What was concluded is shown once, with the trials that ran last.
        own = [v for v in verdicts if latest.get((v.suite, v.task)) is batch]
        by_metric = {v.metric: v for v in own}
        metrics = tuple(
            MetricRow(
                sample, smallest_change(noises, batch, sample), by_metric.get(sample.metric.name)
            )
            for sample in map(batch.sample, batch.metrics(ledger))
        )
        environment = ledger.environment(batch.environment)
        rows.append(BatchRows(batch, environment, metrics, by_metric.get("")))
    return commit, rows


def smallest_change(noises: PooledNoise, batch: Batch, sample: Sample) -> float:
    """NaN for a metric that is not judged."""
    metric, n = sample.metric, sample.n
    if metric.direction is Direction.INFO or n == 0:
        return math.nan
    return noise.smallest_change(noises.of(batch.recipe, batch.environment, metric), n, n)


def _environment_lines(fingerprint: str, environment: Environment | None, width: int) -> list[str]:
    lines = [f"environment {short(fingerprint)}"]
    if environment is None:
        return lines
    rows = []
    for key, value in sorted(
        environment.details.items(), key=lambda item: item[0] == samples.BESIDE
    ):
        if isinstance(value, Mapping):
            named = sorted(samples.flat(value).items(), key=lambda item: _rank(item[0]))
            value = " · ".join(f"{name} {_detail(name, text)}" for name, text in named)
        if value is not None:
            rows.append((_ASIDE if key == samples.BESIDE else key, plain(str(value))))
    text = table((Column(), Column(shrink=True)), rows, width=width, indent=2)
    return lines + text.splitlines()


def _rank(name: str) -> int:
    """The packages that training hangs on come before what the width may cut."""
    return _TELLING.index(name) if name in _TELLING else len(_TELLING)


def _detail(name: str, text: str) -> str:
    return measure(float(text), unit="B") if name.endswith("memory") and text.isdigit() else text


def _batch_lines(rows: BatchRows, width: int) -> list[str]:
    batch = rows.batch
    head = f"{batch.title}  {status(batch.outcomes())}, {count(len(batch.records), 'trial')}"
    lines = [f"{head}  (recipe {short(batch.recipe)})"]
    if rows.failed is not None:
        note = f": {plain(rows.failed.note)}" if rows.failed.note else ""
        lines.append(clip(f"  verdict: {rows.failed.kind.value}{note}", width))
    text = table(_COLUMNS, [_metric_cells(row) for row in rows.metrics], width=width, indent=2)
    lines += text.splitlines()
    for record in batch.failures():
        outcome = record.outcome
        if outcome is not None:
            said = f": {plain(outcome.message)}" if outcome.message else ""
            lines.append(clip(f"  seed {record.trial.seed} {outcome.kind.value}{said}", width))
            if outcome.log:  # never cut: it is there to be opened
                lines.append(f"    log {outcome.log}")
    lines += [
        f"  seed {record.trial.seed} {record.reused} (trial {record.derived})"
        for record in batch.records
        if record.derived
    ]
    for record in batch.records:
        if record.outcome and record.outcome.marks:
            marks = ", ".join(record.outcome.marks)
            lines.append(f"  seed {record.trial.seed} marked {marks} ({record.trial.ulid})")
    return lines


def _metric_cells(row: MetricRow) -> tuple[str, ...]:
    sample, verdict, unit = row.sample, row.verdict, row.sample.metric.unit
    left_out = f"{sample.left_out} hindered" if sample.left_out else ""
    value = measure(sample.mean, sample.sd, unit=unit, spread=True) if sample.n else NONE
    kind = verdict.kind.value if verdict else ""
    effect = effect_text(verdict, unit) if verdict else ""
    return (
        sample.metric.name,
        value,
        str(sample.n),
        kind,
        effect,
        told_text(row.told, sample),
        left_out,
    )


def effect_text(verdict: Verdict, unit: str) -> str:
    """`+0.95 MiB (+0.3 %) [-0.95, +2.86]`: the effect, what it is of the level, its interval."""
    if not math.isfinite(verdict.effect):
        return ""
    digits = (verdict.high - verdict.low) / 4  # two standard errors to each side
    text = change(verdict.effect, digits, unit=unit, like=verdict.value)
    if verdict.level:
        text += f" ({percent(verdict.effect / abs(verdict.level))})"
    if math.isfinite(digits):
        scale = Scale.of(unit, verdict.value)
        ends = (scale.show(end) for end in (verdict.low, verdict.high))
        low, high = (measure(end, scale.show(digits), signed=True) for end in ends)
        text += f" [{low}, {high}]"
    return text


def told_text(told: float, sample: Sample) -> str:
    if math.isnan(told):
        return ""
    if told == 0.0:
        return "any"
    if math.isinf(told):
        return "unknown"
    text = change(told, unit=sample.metric.unit, like=sample.mean, significant=2, signed=False)
    if math.isfinite(sample.mean) and sample.mean:
        text += f" ({percent(told / abs(sample.mean), signed=False)})"
    return text


def _batch_json(rows: BatchRows) -> dict[str, object]:
    batch = rows.batch
    return {
        "suite": batch.suite,
        "task": batch.task,
        "recipe": batch.recipe,
        "environment": batch.environment,
        "verdict": verdict_json(rows.failed) if rows.failed else None,
        "metrics": [
            {
                **sample_json(row.sample),
                "smallest_change": row.told,
                "verdict": verdict_json(row.verdict) if row.verdict else None,
            }
            for row in rows.metrics
        ],
        "trials": _trials_json(batch),
    }


def _trials_json(batch: Batch) -> list[dict[str, object]]:
    listed: list[dict[str, object]] = []
    for record in batch.records:
        trial, outcome = record.trial, record.outcome
        listed.append(
            {
                "ulid": trial.ulid,
                "seed": trial.seed,
                "why": trial.why,
                "started": trial.started,
                "host": trial.host,
                "device": trial.device,
                "derived": record.derived or None,
                "epochs": record.epochs,
                "summaries": dict(record.summaries),
                "outcome": None
                if outcome is None
                else {
                    "kind": outcome.kind,
                    "ended": outcome.ended,
                    "message": outcome.message,
                    "returncode": outcome.returncode,
                    "log": outcome.log,
                    "marks": outcome.marks,
                },
            }
        )
    return listed


__all__ = ["BatchRows", "MetricRow", "batch_rows", "show_json", "show_text"]
