"""The picture of a bisect: the measurements, and the probability of each commit. Draws a report and
computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from celedger.base.errors import CeledgerError
from celedger.base.model import Metric
from celedger.judge.bisection import Report
from celedger.page import marks
from celedger.page.marks import STATES
from celedger.views import picture
from celedger.views.bisect import effect_text
from celedger.views.document import count, plain, short, sure
from celedger.views.picture import BLUE, INK, MUTED, RED

_VALUES, _STATES, _POSTERIOR = 2.6, 1.0, 1.5  # inches of a panel: a crash has but two states


def draw(reports: Sequence[Report], metrics: Mapping[str, Metric]) -> Figure:
    """Draw the values of each metric over the commits, the posterior below. The good end is
    position -1. Raises CeledgerError without candidates."""
    if not reports or any(len(r.posterior) != len(r.commits) or not r.commits for r in reports):
        raise CeledgerError(
            "this bisect has no candidates to draw", "run `celedger bisect GOOD..BAD`"
        )
    first = reports[0]
    names = ", ".join(report.metric or "crash" for report in reports)
    heights = [h for r in reports for h in (_VALUES if r.metric else _STATES, _POSTERIOR)]
    with picture.style():
        title = plain(f"{first.suite}/{first.task} · {names}")
        figure = picture.sheet(title, 1.4 + sum(heights) + 0.4 * len(heights))
        panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
        named = [r.commits.index(r.culprits[0]) for r in reports if r.named]
        marks.commit_axis(panels[-1], (first.good, *first.commits), first=-1, named=named)
        for upper, lower, report in zip(panels[::2], panels[1::2], reports, strict=True):
            _values(upper, report, metrics.get(report.metric))
            _probability(lower, report)
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
    """Draw each trial at the commit that ran, and the two levels."""
    picture.subtitle(axes, _sentence(report, metric))
    sides = _bad_side(report)
    readings = np.array(report.readings, float).reshape(-1, 2)
    finite = np.isfinite(readings[:, 1])
    positions, values = readings[finite, 0].astype(int), readings[finite, 1]
    if metric is None or not report.metric:
        axes.set_yticks([0, 1], ["runs", "crashes"])
        axes.set_ylim(-0.5, 1.5)
    else:
        levels = np.array([report.level, report.level + report.effect])
        finite_levels = levels if np.isfinite(levels).all() else np.array([])
        divisor = picture.value_axis(axes, metric, np.concatenate([values, finite_levels])).divisor
        values = values / divisor
        marks.crosses(axes, readings[~finite, 0].tolist(), metric, RED, "crashed")
        if finite_levels.size:
            line = np.where(sides, *levels[::-1]) / divisor
            edges = np.arange(-1.5, len(line) - 1)
            axes.stairs(line, edges, baseline=None, color=INK, linewidth=1.2, label="level")
    marks.crosses(axes, report.untestable, metric, MUTED, "untestable")
    margin = marks.side_by_side(axes, positions, values)
    bad = "better" if report.improved else "worse"
    for name, state, commits in (
        (f"trial before the first {report.kind} commit", "unchanged", ~sides[positions + 1]),
        ("trial from it on", bad, sides[positions + 1]),
    ):  # fmt: skip
        colour, shape = STATES[state]
        if commits.any():
            axes.plot(
                margin[commits],
                values[commits],
                shape,
                color=colour,
                markersize=5,
                alpha=0.8,
                label=name,
            )


def _probability(axes: Axes, report: Report) -> None:
    """Draw a bar for every commit, the named one in the colour of its trials."""
    named = {c.sha for c in report.culprits[:1]} if report.named else set()
    colour, _ = STATES["better" if report.improved else "worse"]
    colours = [colour if commit.sha in named else BLUE for commit in report.commits]
    n = len(report.commits)
    width = max(0.8, n / 260)  # one bar among a thousand stays visible
    axes.bar(range(n), report.posterior, width=width, color=colours)
    axes.set_ylabel(f"P(first {report.kind})")
    axes.set_ylim(0, 1.05)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))


def _sentence(report: Report, metric: Metric | None) -> str:
    """Return what the bisect's text says, with its numbers."""
    size = f"{count(len(report.commits), 'candidate')}, {count(len(report.readings), 'trial')}"
    size += f" ({report.stored} of them stored before)" if report.stored else ""
    if not report.named:
        return f"{size}: no first {report.kind} commit could be named"
    commit, effect = report.culprits[0], effect_text(report, metric.unit if metric else "")
    text = f"{size}\nfirst {report.kind} commit {short(commit.sha)} ({sure(report.probability)})"
    text += f", {effect}" if effect and report.metric else ""
    return f"{text}\n{plain(commit.subject)}"
