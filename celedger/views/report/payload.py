"""What the charts of the page are drawn from: compact JSON, compressed, one part a task, so that
the browser unpacks only what is looked at. Numbers keep the digits that their noise leaves.
"""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from celedger.base.model import TrialRecord, Verdict, VerdictKind
from celedger.base.text import escaped, without_sequences
from celedger.judge.drift.level_changes import LevelStep
from celedger.ledger.findings import FindingRecord
from celedger.ledger.read import Reader
from celedger.stats.arrays import Floats
from celedger.views import samples
from celedger.views.format import Scale, iso_date, measure, percent, plain, probability, short
from celedger.views.report import states
from celedger.views.report.series import Measured, Series, Stretch, TaskSeries
from celedger.views.show import effect_text

EPOCHS = 50
"""Newest measured commits whose epochs are on the page, beside those of open changes."""
_DETAILED = 5000
"""Commits of the axis up to which those that nobody measured have author and subject, too."""
_MOST_EPOCHS = 100_000
"""From the first to the last epoch of a curve; a longer one is not on the page."""
_LOGS, _LOG_LINES, _LOG_LETTERS = 20, 12, 1500
_NAMED_VERDICTS = frozenset(VerdictKind) - {VerdictKind.SAME, VerdictKind.TOO_NOISY}


def packed(content: object) -> str:
    """Return JSON as base64 of gzip: letters that mean nothing to HTML."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def in_script(content: object) -> str:
    """Return JSON that may stand in a script element, whatever its strings say."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)  # ASCII: no U+2028
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def commits(history: Measured) -> dict[str, Any]:
    """Return the axis: hash, time, author and subject of each commit; tags, baselines and
    environments by position."""
    axis, scope = history.scope.axis, history.scope
    measured = {c.sha for c in scope.measured}
    shown = [len(axis) <= _DETAILED or c.sha in measured for c in axis]
    names = [plain(c.author) if own else "" for c, own in zip(axis, shown, strict=True)]
    authors = list(dict.fromkeys(names))
    number = {name: i for i, name in enumerate(authors)}
    times = [c.commit_time // 60 for c in axis]
    marks = [
        [history.position[r.commit], r.act.value, "/".join(filter(None, (r.task, r.metric))),
         plain(r.who), plain(r.why)]
        for r in history.baselines if r.commit in history.position
    ]  # fmt: skip
    return {
        "sha": [c.sha[:12] for c in axis],
        "minute": [times[0], *np.diff(times).tolist()] if times else [],
        "authors": authors,
        "author": [number[name] for name in names],
        "subject": [plain(c.subject) if s else "" for c, s in zip(axis, shown, strict=True)],
        "tags": {history.position[sha]: list(names) for sha, names in scope.tags.items()
                 if sha in history.position},
        "baselines": marks,
    }  # fmt: skip


def task(
    ledger: Reader,
    history: Measured,
    state: states.TaskState,
    shas: Sequence[str],
    findings: Sequence[FindingRecord],
) -> dict[str, Any]:
    """Return all that the charts and the commit panel show of a task; `shas` are the commits whose
    epochs are wanted."""
    own = state.task
    environments = list(dict.fromkeys(x.environment for s in own.series for x in s.stretches))
    return {
        "metrics": [_metric(history, s, f, environments)
                    for s, f in zip(own.series, state.findings, strict=True)],
        "environments": _environments(history, environments),
        "crashed": sorted(states.crashes(own)),
        "untestable": sorted(states.untestable(own)),
        "crash": state.crash.since[0] if state.crash is not None else -1,
        "failures": _failures(ledger.folder, state),
        "verdicts": _verdicts(history, own),
        "findings": [
            [history.position[f.commit], f.verb, iso_date(f.started), plain(f.headline), f.command]
            for f in findings if (f.suite, f.task) == (own.suite, own.name)
            and f.commit in history.position
        ],
        "epochs": _epochs(ledger, history, own, shas),
        "replaced": own.replaced,
    }  # fmt: skip


def epoch_commits(history: Measured, state: states.TaskState) -> list[str]:
    """Return the commits whose epochs the page shows of a task: the newest, and both sides of what
    changed and is open."""
    axis = history.scope.axis
    positions = set(state.task.tried[-EPOCHS:])
    for finding in state.findings:
        if finding.step is not None and finding.series.latest is not None:
            at = history.position[finding.step.seen_at.sha]
            before = finding.series.latest.positions
            positions |= {at, *before[before < at][-1:].tolist()}
    if state.crash is not None:
        positions |= {state.crash.since[0], *([state.crash.good] if state.crash.good else [])}
    return [axis[p].sha for p in sorted(positions)]


def _metric(
    history: Measured, series: Series, finding: states.Finding, environments: Sequence[str]
) -> dict[str, Any]:
    metric, latest = series.metric, series.latest
    values = latest.means[np.isfinite(latest.means)] if latest is not None else np.array([])
    scale = Scale.of(metric.unit, float(np.median(values)) if values.size else 0.0)
    return {
        "name": metric.name,
        "unit": scale.unit,
        "divisor": scale.divisor,
        "direction": metric.direction.value,
        "state": finding.state.value,
        "stretches": [_stretch(history, s, metric.unit, environments) for s in series.stretches],
    }


def _stretch(
    history: Measured, stretch: Stretch, unit: str, environments: Sequence[str]
) -> dict[str, Any]:
    course, noise = stretch.course, stretch.noise
    steps = course.steps if course is not None else ()
    exact = course is not None and (course.exact or course.sd == 0)
    return {
        "environment": environments.index(stretch.environment),
        "at": _differences(stretch.positions.tolist()),
        "mean": _rounded(stretch.means, math.nan if exact else noise),
        "sd": _rounded(stretch.sds, 10 * noise),  # two digits of it
        "trials": stretch.counts.tolist(),
        "spread": _significant(course.sd, 3) if course is not None else None,
        "steps": [_step(history, s, course.sd if course else math.nan, unit) for s in steps],
    }  # fmt: skip


def _step(history: Measured, step: LevelStep, sd: float, unit: str) -> dict[str, Any]:
    among = sorted(history.position[c.sha] for c in step.among if c.sha in history.position)
    change = percent((step.after - step.before) / abs(step.before)) if step.before else ""
    if not change:
        change = measure(step.after - step.before, sd, unit=unit, signed=True)
    seen = history.position[step.seen_at.sha]
    return {
        "at": seen,
        "members": _runs(among or [seen]),
        "among": len(step.among),
        "better": step.better,
        "before": step.before,
        "after": step.after,
        "was": measure(step.before, sd, unit=unit),
        "now": measure(step.after, sd, unit=unit),
        "change": change,
        "sure": probability(step.probability),
    }


def _environments(history: Measured, fingerprints: Sequence[str]) -> list[dict[str, Any]]:
    """Return each environment's name, and how it differs from the one before it."""
    known = [history.environments.get(fingerprint) for fingerprint in fingerprints]
    described = []
    for fingerprint, before, environment in zip(fingerprints, [None, *known], known, strict=False):
        text = ""
        if before is not None:
            changes = samples.environment_changes(before, environment)
            text = ", ".join(f"{key} {a or 'none'} → {b or 'none'}" for key, a, b in changes)
        described.append({"name": short(fingerprint), "change": plain(text)})
    return described


def _failures(folder: Path, state: states.TaskState) -> list[dict[str, Any]]:
    """Return the trials that failed, the newest and those of the first crash with the end of their
    logs."""
    own, first = state.task, state.crash.since[0] if state.crash is not None else -1
    records = [(p, r) for p in sorted(own.failures, reverse=True) for r in own.failures[p]]
    return [
        {
            "at": position,
            "kind": record.outcome.kind.value,
            "seed": record.trial.seed,
            "message": plain(record.outcome.message),
            "log": _log_tail(folder, record) if number < _LOGS or position == first else "",
        }
        for number, (position, record) in enumerate(records)
        if record.outcome is not None
    ]


def _log_tail(folder: Path, record: TrialRecord) -> str:
    """Return the last lines of a trial's log; "" where it is not there any more."""
    if record.outcome is None or not record.outcome.log:
        return ""
    try:
        logs = folder.resolve() / ".celedger" / "logs"
        path = (folder / record.outcome.log).resolve()
        if not path.is_relative_to(logs) or not path.is_file():
            return ""
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - 4 * _LOG_LETTERS))
            text = file.read().decode(errors="replace")
    except (OSError, ValueError, RuntimeError):  # no path, or a circle of links
        return ""
    lines = without_sequences(text).splitlines()[-_LOG_LINES:]
    return "\n".join(map(escaped, lines))[-_LOG_LETTERS:]


def _verdicts(history: Measured, own: TaskSeries) -> list[list[Any]]:
    """Return [position, metric, verdict, effect, note] of what is not plainly the same, and of all
    that was judged at the newest commits."""
    recent = own.tried[-EPOCHS] if len(own.tried) > EPOCHS else 0
    units = {series.metric.name: series.metric.unit for series in own.series}

    def row(verdict: Verdict) -> list[Any]:
        effect = effect_text(verdict, units.get(verdict.metric, ""))
        at = history.position[verdict.commit]
        return [at, verdict.metric, verdict.kind.value, effect, plain(verdict.note)]

    return [
        row(verdict)
        for verdict in own.verdicts
        if verdict.kind in _NAMED_VERDICTS or history.position[verdict.commit] >= recent
    ]


def _epochs(
    ledger: Reader, history: Measured, own: TaskSeries, shas: Sequence[str]
) -> dict[str, Any]:
    """Return by metric, then by position: the first epoch and the mean over the trials at each
    epoch. Of trials that ended well; where there are none, of all."""
    well: dict[tuple[str, int], bool] = {}
    curves: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    newest = {s.metric.name: s.latest.environment for s in own.series if s.latest is not None}
    for sha, environment, ok, name, epoch, value in ledger.epoch_means(own.recipe, shas):
        key = name, history.position[sha]
        if (name in newest and environment != newest[name]) or ok < well.get(key, False):
            continue
        if ok > well.get(key, ok):
            curves[key].clear()
        well[key] = ok
        curves[key][epoch] = value
    by_metric: dict[str, Any] = {}
    for (name, position), curve in curves.items():
        first, last = min(curve), max(curve)
        if last - first > _MOST_EPOCHS:  # a gap of any length costs a row nothing
            continue
        points = [_significant(curve.get(e, math.nan), 4) for e in range(first, last + 1)]
        by_metric.setdefault(name, {})[position] = [first, *points]
    return by_metric


def _differences(numbers: Sequence[int]) -> list[int]:
    return [b - a for a, b in zip([0, *numbers], numbers, strict=False)]


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Return the ends of each run of ascending numbers that follow each other."""
    runs = np.split(np.array(numbers), np.flatnonzero(np.diff(numbers) > 1) + 1)
    return [[int(run[0]), int(run[-1])] for run in runs]


def _rounded(values: Floats, noise: float) -> list[float | int | None]:
    """Return values with three digits of their noise; all digits where they have none."""
    if math.isfinite(noise) and noise > 0:
        values = np.round(values, 2 - math.floor(math.log10(noise)))
    return [
        None if not math.isfinite(x) else int(x) if x.is_integer() and abs(x) < 1e15 else x
        for x in values.tolist()
    ]


def _significant(value: float, digits: int) -> float | None:
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
