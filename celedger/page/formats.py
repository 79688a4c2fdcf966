"""`celedger export`: the ledger as other programs read it, line after line. Each format is a
function that yields text; none of them keeps what it has written."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator

from celedger.base.model import Commit, Direction
from celedger.judge.incident import State
from celedger.ledger.read import Reader, Value
from celedger.views import samples
from celedger.views.document import not_finite
from celedger.views.samples import Batch, Sample

_FAMILIES = {
    "value": "Mean of a metric over the trials of the newest measured commit, in its own unit.",
    "trials": "Trials behind that mean.",
    "regressed": "1 while an incident that made the metric worse is open, else 0.",
}
_SPECIAL = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}  # numbers of OpenMetrics


def csv_lines(values: Iterable[Value]) -> Iterator[str]:
    """Yield a line of heads and one for each value. What is not finite is nan, inf or -inf."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(Value._fields)
    for value in values:
        writer.writerow(value)
        if buffer.tell() > 1 << 16:
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()


def json_lines(values: Iterable[Value]) -> Iterator[str]:
    """Yield an object for each value. One that is not finite is null, and `not_finite` names it."""
    for value in values:
        row: dict[str, object] = value._asdict()
        if not math.isfinite(value.value):
            row |= {"value": None, "not_finite": not_finite(value.value)}
        yield json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"


Row = tuple[Commit, Batch, Sample, bool]
"""A metric's values at a commit, and whether it is worse there than it was."""


def current(ledger: Reader, state: State, sha: str | None = None) -> Iterator[Row]:
    """Yield each metric of a commit, by its full hash; without one, of each task's newest measured
    commit. `state` is that of the line that ends there."""
    worse = {metric.key for incident in state.in_force for metric in incident.metrics}
    newest = _newest_measured(ledger)
    for commit in [sha] if sha else sorted(set(newest.values())):
        commit_row, batches = samples.measured(ledger, commit)
        for key, batch in sorted(samples.latest(batches).items()):
            for metric in batch.metrics(ledger.metrics) if sha or newest.get(key) == commit else ():
                sample = batch.sample(metric)
                if sample.n:
                    # A task that fails has "" for a metric: it concerns each of them.
                    keys = {(*key, metric.name), (*key, "")}
                    yield commit_row, batch, sample, not worse.isdisjoint(keys)


def _newest_measured(ledger: Reader) -> dict[tuple[str, str], str]:
    """Return the newest commit in history (its hash) with a trial that ran well, by (suite,
    task)."""
    order = samples.positions(ledger)
    by_age = sorted(ledger.measured_tasks(), key=lambda row: order[row[2]])
    return {(suite, task): sha for suite, task, sha in by_age}


def openmetrics_lines(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the exposition that Prometheus reads (OpenMetrics 1.0), a family of values for each
    unit. The commit is a series of its own: as a label of each value it would make every commit a
    new series."""
    rows = list(rows)
    readings: dict[str, Callable[[Sample, bool], float | None]] = {
        "value": lambda sample, _: sample.mean,
        "trials": lambda sample, _: float(sample.n),
        "regressed": lambda sample, is_worse: (
            None if sample.metric.direction is Direction.INFO else float(is_worse)
        ),
    }
    families = [("value", unit) for unit in sorted({_unit(row[2].metric.unit) for row in rows})]
    for kind, unit in (*families, ("trials", ""), ("regressed", "")):
        name = f"{kind}_{unit}" if unit else kind
        yield f"# TYPE celedger_{name} gauge\n"
        if unit:
            yield f"# UNIT celedger_{name} {unit}\n"
        yield f"# HELP celedger_{name} {_FAMILIES[kind]}\n"
        for _, batch, sample, is_worse in rows:
            value, metric = readings[kind](sample, is_worse), sample.metric
            if value is not None and (kind != "value" or _unit(metric.unit) == unit):
                labels = _labels(
                    suite=batch.suite, task=batch.task, metric=metric.name, unit=metric.unit,
                    direction=metric.direction.value,
                )  # fmt: skip
                yield f"celedger_{name}{labels} {_SPECIAL.get(str(value), repr(value))}\n"
    yield "# TYPE celedger_commit info\n# HELP celedger_commit What was measured, and where.\n"
    for commit, batch in {(b.suite, b.task): (c, b) for c, b, _, _ in rows}.values():
        labels = _labels(
            suite=batch.suite, task=batch.task, commit=commit.sha, environment=batch.environment
        )
        yield f"celedger_commit_info{labels} 1\n"
    yield "# EOF\n"


def _unit(unit: str) -> str:
    """Return a unit as part of a name: `seconds`, `bytes`, `samples_per_s`."""
    known = {"s": "seconds", "B": "bytes", "%": "percent"}
    return known.get(unit) or re.sub(r"[^A-Za-z0-9]+", "_", unit.replace("/", "_per_")).strip("_")


def _labels(**pairs: str) -> str:
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in pairs.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def badge(worse: int, *, measured: bool) -> str:
    """Return the picture of a README, which says how many incidents are in force."""
    text, colour = ("ok", "#2e7d32") if measured else ("not measured", "#6b6b6b")
    if worse:
        text, colour = f"{worse} worse", "#b3261e"
    # `textLength` makes the letters fit, whatever the font of the reader.
    left, right = 62, 7 * len(text) + 14
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" \
aria-label="training: {text}">
<title>training: {text}</title>
<rect width="{left + right}" height="20" rx="3" fill="#444"/>
<path d="M{left} 0h{right - 3}a3 3 0 0 1 3 3v14a3 3 0 0 1-3 3h-{right - 3}z" fill="{colour}"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">
<text x="7" y="14" textLength="{left - 14}">training</text>
<text x="{left + 7}" y="14" textLength="{right - 14}">{text}</text>
</g>
</svg>
"""
