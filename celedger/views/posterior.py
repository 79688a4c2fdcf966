"""The picture of a bisect: the measurements, and the probability of each commit. It draws a report
and computes none of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from celedger.bisection import Report
from celedger.errors import CeledgerError
from celedger.model import Metric
from celedger.views import picture
from celedger.views.format import clip, count, plain, probability, short
from celedger.views.picture import BLUE, FAINT, INK, RED


def posterior_figure(reports: Sequence[Report], metrics: Mapping[str, Metric], path: Path) -> Path:
    """Draw a bisect to a PNG or SVG. Raises UsageError for another suffix, CeledgerError without
    candidates, MachineError where the file cannot be written."""
    picture.check_suffix(path)
    return picture.save(draw(reports, metrics), path)


def draw(reports: Sequence[Report], metrics: Mapping[str, Metric]) -> Figure:
    """Draw the values of each metric over the commits, the posterior below. The good end is
    position -1."""
    if not reports or any(len(r.posterior) != len(r.commits) or not r.commits for r in reports):
        raise CeledgerError(
            "this bisect has no candidates to draw", "run `celedger bisect GOOD..BAD`"
        )
    first, n = reports[0], len(reports)
    names = ", ".join(report.metric or "crash" for report in reports)
    with picture.style():
        title = plain(f"{first.suite}/{first.task} {names}")
        figure = picture.sheet(title, 1.1 + 4.6 * n)
        panels = figure.subplots(2 * n, 1, sharex=True, height_ratios=[3.0, 1.6] * n)
        for upper, lower, report in zip(panels[::2], panels[1::2], reports, strict=True):
            _values(upper, report, metrics.get(report.metric))
            _probability(lower, report)
            for axes in (upper, lower):
                for i in report.untestable:
                    axes.axvspan(i - 0.5, i + 0.5, color=FAINT, zorder=0, label="untestable")
        picture.commit_axis(panels[-1], (first.good, *first.commits), first=-1)
        figure.align_ylabels(panels)
        picture.finish(figure, panels[0])
    return figure


def _bad_side(report: Report) -> np.ndarray:
    """Return for the good end and then for every candidate whether the named commit is in its
    history."""
    bad = {report.culprits[0].sha} if report.named else set()
    for commit in report.commits:  # parents before children
        if bad.intersection(commit.parents):
            bad.add(commit.sha)
    return np.array([False, *(commit.sha in bad for commit in report.commits)])


def _values(axes: Axes, report: Report, metric: Metric | None) -> None:
    """Draw the trials at their commits, and the two levels."""
    axes.set_title(_sentence(report), loc="left")
    sides = _bad_side(report)
    readings = np.array(report.readings, float).reshape(-1, 2)
    finite = np.isfinite(readings[:, 1])
    positions, values = readings[finite, 0].astype(int), readings[finite, 1]
    divisor = 1.0
    if metric is None or not report.metric:
        axes.set_yticks([0, 1], ["runs", "crashes"])
        axes.set_ylim(-0.35, 1.35)
    else:
        levels = np.array([report.level, report.level + report.effect])
        finite_levels = levels if np.isfinite(levels).all() else np.array([])
        divisor = picture.value_axis(axes, metric, np.concatenate([values, finite_levels])).divisor
        picture.crosses(axes, readings[~finite, 0].tolist(), metric, RED, "crashed")
        if finite_levels.size:
            line = np.where(sides, *levels[::-1]) / divisor
            edges = np.arange(-1.5, len(line) - 1)
            axes.stairs(line, edges, baseline=None, color=INK, linewidth=1.2, label="level")
    for name, colour, own in (
        ("good side", BLUE, ~sides[positions + 1]), ("bad side", RED, sides[positions + 1]),
    ):  # fmt: skip
        if own.any():
            axes.plot(
                positions[own], values[own] / divisor, "o", color=colour, alpha=0.6, label=name
            )


def _probability(axes: Axes, report: Report) -> None:
    """Draw a bar for every commit, the named ones red."""
    named = {c.sha for c in report.culprits} if report.named else set()
    colours = [RED if commit.sha in named else BLUE for commit in report.commits]
    n = len(report.commits)
    width = max(0.8, n / 260)  # one bar among a thousand stays visible
    axes.bar(range(n), report.posterior, width=width, color=colours)
    axes.set_ylabel("P(first bad)")
    axes.set_ylim(0, 1.05)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _sentence(report: Report) -> str:
    size = f"{count(len(report.commits), 'candidate')}, {count(len(report.readings), 'trial')}"
    if not report.named:
        return f"{size}: no first bad commit could be named"
    commit = report.culprits[0]
    sure = probability(report.probability)
    return (
        f"{size}: first bad commit {short(commit.sha)} ({sure})  {clip(plain(commit.subject), 64)}"
    )
