"""The data of the page's charts: compact JSON, compressed, one part a task, so that
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

from celedger.base import files
from celedger.base.model import BY_ID, IN_FORCE, BaselineAct, FindingRecord, TrialRecord
from celedger.base.text import escaped, without_sequences
from celedger.judge.incident import WORK, Incident, IncidentMetric
from celedger.ledger.read import Reader
from celedger.page.health import SeriesHealth, TaskHealth
from celedger.page.series import ChartSeries, ChartStretch, Measured, TaskSeries
from celedger.stats import Floats
from celedger.views import incidents as words
from celedger.views.document import UnitScale, amount, iso_date, plain, probability
from celedger.views.drift import by_code, environment_change, offset

_ACTS = {
    BaselineAct.PIN: "pinned", BaselineAct.ACCEPT: "accepted", BaselineAct.DISMISS: "dismissed",
}  # fmt: skip
EPOCHS = 50
"""Newest measured commits whose epochs are on the page, beside those of open changes."""
_DETAILED = 5000
"""Commits of the axis up to which those that nobody measured have author and subject, too."""
_MOST_EPOCHS = 100_000
"""From the first to the last epoch of a curve; a longer one is not on the page."""
_LOGS, _LOG_LINES, _LOG_LETTERS = 20, 12, 1500


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
    measured = {position for series_of_task in history.tasks for position in series_of_task.tried}
    shown = [len(axis) <= _DETAILED or position in measured for position in range(len(axis))]
    names = [plain(c.author) if is_shown else "" for c, is_shown in zip(axis, shown, strict=True)]
    authors = list(dict.fromkeys(names))
    number = {name: i for i, name in enumerate(authors)}
    times = [c.commit_time // 60 for c in axis]
    marks = [
        [history.position[r.commit], _ACTS[r.act],
         "/".join(filter(None, (r.task, r.metric.removeprefix(BY_ID)))), plain(r.who), plain(r.why)]
        for r in history.baselines if r.commit in history.position and r.act in _ACTS
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
    stands: TaskHealth,
    shas: Sequence[str],
    findings: Sequence[FindingRecord],
) -> dict[str, Any]:
    """Return all that the charts and the commit panel show of a task; `shas` are the commits whose
    epochs are wanted."""
    task = stands.task
    return {
        "metrics": [_metric(history, series) for series in stands.series],
        "crashed": task.crashed,
        "untestable": task.untestable,
        "marks": marks(history, (task.suite, task.name, "")),
        "failures": _failures(ledger.folder, stands, history),
        "news": _news(history, task),
        "signed": _signed(history, task),
        "findings": [
            [history.position[f.commit], f.verb, iso_date(f.started), plain(f.headline), f.command]
            for f in findings if (f.suite, f.task) == (task.suite, task.name)
            and f.commit in history.position
        ],
        "epochs": _epochs(ledger, history, task, shas),
    }  # fmt: skip


def epoch_commits(history: Measured, stands: TaskHealth) -> list[str]:
    """Return the commits whose epochs the page shows of a task: the newest, and both sides of every
    incident in force."""
    task = stands.task
    positions = set(task.tried[-EPOCHS:])
    for incident in history.state.in_force:
        if any((m.suite, m.task) == (task.suite, task.name) for m in incident.metrics):
            ends = (incident.seen_at, incident.likeliest, incident.known_good)
            positions |= {at for sha in ends if (at := history.at(sha)) in task.tried}
    return [history.scope.axis[p].sha for p in sorted(positions)]


def _metric(history: Measured, stands: SeriesHealth) -> dict[str, Any]:
    series = stands.series
    metric, latest = series.metric, series.latest
    values = latest.means[np.isfinite(latest.means)] if latest is not None else np.array([])
    scale = UnitScale.of(metric.unit, float(np.median(values)) if values.size else 0.0)
    stretches = series.stretches
    return {
        "name": metric.name,
        "unit": scale.unit,
        "divisor": scale.divisor,
        "direction": metric.direction.value,
        "state": stands.health.value,
        "marks": marks(history, series.key),
        "stretches": [
            _stretch(series, s, _change(history, series, before, s))
            for before, s in zip([None, *stretches], stretches, strict=False)
        ],
    }


def _stretch(series: ChartSeries, stretch: ChartStretch, change: str) -> dict[str, Any]:
    noise = stretch.noise
    levels: list[list[float | int | None]] = []
    values = np.array([level for _, level in stretch.levels])
    for (at, _), level in zip(stretch.levels, _rounded(values, 10 * noise), strict=True):
        if not levels or level != levels[-1][1]:
            levels.append([at, level])
    return {
        "change": change,
        "at": _differences(stretch.positions.tolist()),
        "mean": _rounded(stretch.means, math.nan if series.is_exact else noise),
        "sd": _rounded(stretch.sds, 10 * noise),  # two digits of it
        "trials": stretch.counts.tolist(),
        "levels": levels,
    }


def marks(history: Measured, key: tuple[str, str, str]) -> list[dict[str, Any]]:
    """Return what the state says happened to a metric (suite, task, metric), or to a task as a
    whole (metric ""), oldest first; nothing of what was withdrawn."""
    made = [
        _incident(history, incident, metric)
        for incident in history.state.incidents if incident.state != "withdrawn"
        for metric in incident.metrics if metric.key == key
    ]  # fmt: skip
    for doubt in history.state.doubts:
        if (doubt.suite, doubt.task, doubt.metric) == key:
            text = amount(doubt.change, doubt.before, unit=doubt.unit)
            sure = probability(doubt.probability)
            made.append(_mark(history, doubt.seen_at, doubt.among, "doubt", f"? {text}", sure))
    for change in history.state.changes:
        if change.kind == "improvement" and (change.suite, change.task, change.metric) == key:
            text = f"▼ {amount(change.size, change.before, unit=change.unit)}"
            sure = probability(change.probability)
            made.append(_mark(history, change.seen_at, change.among, "good", text, sure))
    return sorted((m for m in made if m["at"] >= 0), key=lambda m: int(m["at"]))


def _incident(history: Measured, incident: Incident, metric: IncidentMetric) -> dict[str, Any]:
    sha = incident.shown_at
    glyph = "▲" if metric.name else "✕"
    moved = words.moved(metric) or words.KINDS.get(incident.kind, "")
    sure = probability(incident.probability)
    return {
        **_mark(history, sha, incident.first_bad, "bad", f"{glyph} {moved}", sure),
        "id": incident.id,
        "open": metric.state in IN_FORCE,
        "named": incident.likeliest[:8] if incident.bisect else "",
        "levels": words.levels(metric) if math.isfinite(metric.change) else "",
        "state": words.state(incident),
        "accepted": incident.state == "accepted",
        "closed": history.at(incident.mend_seen_at) if incident.mend_seen_at else -1,
    }


def _mark(
    history: Measured, seen: str, among: Sequence[str], way: str, text: str, sure: str
) -> dict[str, Any]:
    at = history.at(seen)
    members = sorted(p for sha in among if (p := history.at(sha)) >= 0)
    return {
        "at": at, "members": _runs(members or [at]), "among": len(among), "way": way,
        "text": text, "sure": sure,
    }  # fmt: skip


def _change(
    history: Measured, series: ChartSeries, old: ChartStretch | None, new: ChartStretch
) -> str:
    """Return how a stretch's environment or definition differs from the one before, and what that
    moved where a commit was measured in both: `torch 2.12.0 → 2.13.0: +3 %; by code since:
    nothing`."""
    if old is None:
        return ""
    ends = old.environment, new.environment
    text, change = environment_change(history.state, series.key, ends, history.environments)
    if change is None:
        return text
    code = by_code(history.state, [change])
    return f"{text}: {offset(change) or 'nothing clear'}; by code since: {code}"


def _signed(history: Measured, task: TaskSeries) -> list[list[Any]]:
    """Return [position, "new", "same" or "first", how the work of a step rose there] of the signed
    commits."""
    name = (task.suite, task.name)
    rose = {
        history.at(incident.seen_at): f"{metric.name} {words.levels(metric)}"
        for incident in reversed(history.state.incidents)
        if incident.kind == WORK and incident.state != "withdrawn"
        for metric in reversed(incident.metrics) if metric.key[:2] == name
    }  # fmt: skip
    bits = {None: "first", True: "new", False: "same"}
    return [
        [at, bits[commit.is_new], rose.get(at, "")]
        for commit in history.state.signed if (commit.suite, commit.task) == name
        and (at := history.at(commit.commit)) >= 0
    ]  # fmt: skip


def _failures(folder: Path, stands: TaskHealth, history: Measured) -> list[dict[str, Any]]:
    """Return the trials that failed, the newest and those of the first bad commit with the end of
    their logs."""
    task, first = stands.task, history.at(stands.failing.seen_at) if stands.failing else -1
    records = [(p, r) for p in sorted(task.failures, reverse=True) for r in task.failures[p]]
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
        logs = folder.resolve() / files.PRIVATE / "logs"
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


def _news(history: Measured, task: TaskSeries) -> list[list[Any]]:
    """Return [position, metric, what the state says of it there, whether that is bad]; the metric
    is "" of a task as a whole. A merge and the commit of its branch may share a position."""
    state = history.state
    in_force = [i for i in state.incidents
            if any((m.suite, m.task) == (task.suite, task.name) for m in i.metrics)]  # fmt: skip
    shas = {s for i in in_force for s in (i.likeliest, i.seen_at, i.mend_seen_at)}
    shas |= {c.seen_at for c in state.changes if (c.suite, c.task) == (task.suite, task.name)}
    rows: set[tuple[Any, ...]] = set()
    for sha in shas & history.position.keys():
        for metric in ("", *(series.metric.name for series in task.series)):
            for text in words.at_commit(state, sha, task.suite, task.name, metric):
                bad = not text.startswith(("mends", "partly mends", "better"))
                rows.add((history.position[sha], metric, text, bad))
    return [list(row) for row in sorted(rows)]


def _epochs(
    ledger: Reader, history: Measured, task: TaskSeries, shas: Sequence[str]
) -> dict[str, Any]:
    """Return by metric, then by position: the first epoch and the mean over the trials at each
    epoch. Of trials that ended well; where there are none, of all."""
    well: dict[tuple[str, int], bool] = {}
    curves: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)
    newest = {s.metric.name: s.latest.environment for s in task.series if s.latest is not None}
    for recipe in reversed(task.recipes):  # of a commit only what its newest definition reported
        earlier = set(curves)
        for sha, environment, ok, name, epoch, value in ledger.epoch_means(recipe, shas):
            key = name, history.position[sha]
            other = name in newest and environment != newest[name]
            if other or key in earlier or ok < well.get(key, False):
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
