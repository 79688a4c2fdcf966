"""Epoch curves of several commits side by side: a small plot per metric, a colour per commit.
The line is the mean over the trials, the band reaches from the lowest to the highest of them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from celedger.errors import CeledgerError, UsageError, command
from celedger.ledger.read import Reader
from celedger.model import Commit, Metric
from celedger.views import picture, samples
from celedger.views.format import Scale, clip, count, plain, short
from celedger.views.picture import CYCLE, MUTED
from celedger.views.samples import Batch

MOST_COMMITS = len(CYCLE)  # colours that all readers can tell apart
MOST_METRICS = 9
_PER_ROW = 3
_LEGEND = 64  # characters of a commit's entry; two fit side by side


@dataclass(frozen=True, slots=True)
class Curve:
    """One metric at one commit: of each epoch the values of the trials that reached it, in the
    metric's unit (NaN where a trial reported none)."""

    commit: Commit
    epochs: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]
    failed: bool  # no trial ended well: what is drawn is how far the others came


@dataclass(frozen=True, slots=True)
class Panel:
    metric: Metric
    curves: tuple[Curve, ...]


def curves_figure(
    ledger: Reader,
    task: str,
    commits: Sequence[str],
    path: Path,
    *,
    metrics: Sequence[str] = (),
    suite: str | None = None,
) -> Path:
    """Draws the epochs of `task` (or `suite/task`) at up to seven commits, given by full hashes,
    to a PNG or SVG; `metrics` default to all that are judged and have epochs. Raises UsageError
    for a suffix, task or metric that is not known or too many commits, CeledgerError where a
    commit has no trials."""
    picture.check_suffix(path)
    title, shown, note = panels(ledger, task, commits, metrics, suite)
    return picture.save(draw(title, shown, note), path)


def panels(
    ledger: Reader,
    task: str,
    shas: Sequence[str],
    metrics: Sequence[str] = (),
    suite: str | None = None,
) -> tuple[str, list[Panel], str]:
    """(title, panels, note on what does not compare)."""
    if not 1 <= len(shas) <= MOST_COMMITS:
        raise UsageError(
            f"{len(shas)} commits are too many curves to tell apart"
            if shas
            else "no commit to plot",
            f"name 1 to {MOST_COMMITS} commits",
        )
    if len(metrics) > MOST_METRICS:
        raise UsageError(f"{len(metrics)} metrics do not fit", f"name at most {MOST_METRICS}")
    suite, task = samples.find_task(ledger, task, suite)
    found = [_batch(ledger, sha, suite, task) for sha in dict.fromkeys(shas)]
    recipe = max((b for _, b in found), key=lambda b: b.newest).recipe
    series = [(commit, batch, _series(ledger, batch)) for commit, batch in found]
    reported = {name for _, _, curves in series for name in curves}
    if metrics:
        chosen = [samples.find_metric(ledger, recipe, name) for name in metrics]
    else:
        chosen = samples.in_order(m for m in ledger.metrics(recipe) if m.name in reported)
        judged = [m for m in chosen if m.direction.sign]
        chosen = (judged or chosen)[:MOST_METRICS]
    missing = [m.name for m in chosen if m.name not in reported]
    if missing or not chosen:
        what = missing[0] if missing else "anything"
        raise CeledgerError(
            f"no trial of {suite}/{task} at these commits reported {what} by epoch",
            f"metrics with epochs: {', '.join(sorted(reported)) or 'none'}",
        )
    made = [
        Panel(
            metric,
            tuple(
                _curve(commit, batch, curves[metric.name])
                for commit, batch, curves in series
                if metric.name in curves
            ),
        )
        for metric in chosen
    ]
    differing = [
        name
        for name, values in (
            ("suites", {b.recipe for _, b in found}),
            ("environments", {b.environment for _, b in found}),
        )
        if len(values) > 1
    ]
    note = f"; not comparable: their {' and '.join(differing)} differ" if differing else ""
    return f"{suite}/{task}", made, note


def _batch(ledger: Reader, sha: str, suite: str, task: str) -> tuple[Commit, Batch]:
    commit = ledger.commit(sha)
    made = samples.batches(ledger.trials(commit=sha, suite=suite, task=task))
    if commit is None or not made:
        raise CeledgerError(
            f"no trial of {suite}/{task} at {short(sha)} is in the ledger",
            f"type {command('run', sha[:12], suite=suite, task=task)}",
        )
    return commit, made[0]


def _series(ledger: Reader, batch: Batch) -> dict[str, list[list[tuple[int, float]]]]:
    """Metric -> one series a trial; of trials that ended well, or of all when none did. Those
    that were stopped early count only where there are no whole ones."""
    well = [r for r in batch.records if r.ok]
    well = [r for r in well if not r.early_stopped] or well
    found: dict[str, list[list[tuple[int, float]]]] = defaultdict(list)
    for record in well or batch.records:
        for name, points in ledger.series(record.trial.ulid).items():
            found[name].append(points)
    return found


def _curve(commit: Commit, batch: Batch, series: Sequence[Sequence[tuple[int, float]]]) -> Curve:
    by_epoch: dict[int, list[float]] = defaultdict(list)
    for points in series:
        for epoch, value in points:
            by_epoch[epoch].append(value)
    epochs = tuple(sorted(by_epoch))
    values = tuple(tuple(by_epoch[epoch]) for epoch in epochs)
    return Curve(commit, epochs, values, not any(r.ok for r in batch.records))


def draw(title: str, shown: Sequence[Panel], note: str = "") -> Figure:
    across = min(_PER_ROW, len(shown))
    down = -(-len(shown) // across)
    height = (3.6 if across == 1 else 2.9) * down + 0.35 * (len(shown[0].curves) + 3) / 2
    commits = list({c.commit.sha: c for panel in shown for c in panel.curves}.values())
    colours = {c.commit.sha: CYCLE[i] for i, c in enumerate(commits)}
    with picture.style():
        figure = picture.sheet(title, 0.9 + height)
        grid = figure.subplots(down, across, squeeze=False, sharex=True)
        for axes, panel in zip(grid.flat, shown, strict=False):
            _panel(axes, panel, colours)
        for place, axes in enumerate(grid.flat):
            if place >= len(shown):
                axes.set_visible(False)
            elif place + across >= len(shown):  # the lowest of its column
                axes.set_xlabel("epoch", color=MUTED)
                axes.tick_params(labelbottom=True)
        trials = max(len(v) for panel in shown for c in panel.curves for v in c.values)
        bands = f", up to {count(trials, 'trial')} each: mean, with the lowest and highest"
        text = count(len(commits), "commit") + (bands if trials > 1 else "")
        grid.flat[0].set_title(text + note, loc="left", pad=8)
        picture.finish(figure, grid.flat[0], _legend(commits, colours), columns=2)
    return figure


def _panel(axes: Axes, panel: Panel, colours: dict[str, str]) -> None:
    finite = [x for c in panel.curves for v in c.values for x in v if math.isfinite(x)]
    scale = Scale.of(panel.metric.unit, max((abs(x) for x in finite), default=0.0))
    axes.set_ylabel(picture.value_label(panel.metric, scale.unit))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if finite:
        picture.fit_values(axes, np.array([scale.show(x) for x in finite]))
    for place, curve in enumerate(panel.curves):
        colour = colours[curve.commit.sha]
        values = [np.array([scale.show(x) for x in v]) for v in curve.values]
        # A mean over trials of which one is not finite is not finite: the line must end there.
        whole = [bool(v.size and np.isfinite(v).all()) for v in values]
        mean = np.array([v.mean() if ok else math.nan for v, ok in zip(values, whole, strict=True)])
        low = np.array([v.min() if ok else math.nan for v, ok in zip(values, whole, strict=True)])
        high = np.array([v.max() if ok else math.nan for v, ok in zip(values, whole, strict=True)])
        if any(v.size > 1 for v in values):
            axes.fill_between(curve.epochs, low, high, color=colour, alpha=0.14, linewidth=0)
        # Equal to the bit is common here: a wider line shows under the one that covers it.
        covered = sum(other.values == curve.values for other in panel.curves[place + 1 :])
        alone = sum(other.values == curve.values for other in panel.curves) == 1
        marker = "o" if len(curve.epochs) <= 30 and alone else ""
        axes.plot(
            curve.epochs, mean, color=colour, linewidth=1.5 + 2.2 * covered, marker=marker,
            markersize=3, linestyle="--" if curve.failed else "-", label="mean",
        )  # fmt: skip
        lost = [e for e, ok in zip(curve.epochs, whole, strict=True) if not ok]
        if lost:
            edge = 0.04 if panel.metric.direction.sign < 0 else 0.96
            axes.plot(
                lost, [edge] * len(lost), "x", color=colour, markersize=5, label="not finite",
                transform=axes.get_xaxis_transform(),
            )  # fmt: skip


def _legend(commits: Sequence[Curve], colours: dict[str, str]) -> list[Artist]:
    handles: list[Artist] = []
    for curve in commits:
        commit = curve.commit
        name = clip(f"{short(commit.sha)}  {plain(commit.subject)}", _LEGEND)
        handles.append(
            Line2D(
                [], [], color=colours[commit.sha], linewidth=1.5, marker="o", markersize=3,
                linestyle="--" if curve.failed else "-",
                label=f"{name} (did not finish)" if curve.failed else name,
            )
        )  # fmt: skip
    return handles
