"""The picture of a bisect: what was measured where, how sure it is of each commit, and how the
doubt narrowed trial by trial. It draws what a report says and computes none of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from celedger.bisection import Report
from celedger.errors import CeledgerError
from celedger.model import Direction, Metric
from celedger.views import picture
from celedger.views.format import Scale, clip, count, number, plain, probability, short
from celedger.views.picture import BLUE, FAINT, INK, RED

_GUESS = 0.25  # shade of a commit about which nothing is known yet
_DOT = {"linestyle": "", "marker": "o", "markersize": 5}


def posterior_figure(reports: Sequence[Report], metrics: Mapping[str, Metric], path: Path) -> Path:
    """Draw a bisect to a PNG or SVG. Raises UsageError for another suffix, CeledgerError without
    candidates, MachineError where the file cannot be written."""
    picture.check_suffix(path)
    return picture.save(draw(reports, metrics), path)


def draw(reports: Sequence[Report], metrics: Mapping[str, Metric]) -> Figure:
    """Draw the values of each metric over the commits with the posterior below; of a single one
    also how it narrowed. The good end is position -1."""
    if not reports or any(len(r.posterior) != len(r.commits) or not r.commits for r in reports):
        raise CeledgerError(
            "this bisect has no candidates to draw", "run `celedger bisect GOOD..BAD`"
        )
    first = reports[0]
    narrowing = len(reports) == 1 and bool(first.steps)
    heights = [2.7, 1.5] * len(reports) if len(reports) > 1 else [3.0, 1.7]
    heights += [min(3.0, 0.5 + 0.09 * len(first.steps))] if narrowing else []
    names = ", ".join(report.metric or "crash" for report in reports)
    with picture.style():
        title = f"{first.suite}/{first.task} {names}"
        figure = picture.sheet(plain(title), 1.1 + sum(heights))
        grid = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)
        panels = list(grid[:, 0])
        for i, report in enumerate(reports):
            _values(panels[2 * i], report, metrics.get(report.metric))
            _probability(panels[2 * i + 1], report)
        if narrowing:
            _narrowing(panels[-1], first)
        for i, panel in enumerate(panels):
            for position in reports[min(i // 2, len(reports) - 1)].untestable:
                panel.axvspan(position - 0.5, position + 0.5, color=FAINT, linewidth=0, zorder=0)
        picture.commit_axis(panels[-1], (first.good, *first.commits), first=-1)
        figure.align_ylabels(panels)
        picture.finish(figure, panels[0], _legend(first, narrowing))
        for i, report in enumerate(reports):
            _name_culprits(panels[2 * i + 1], report)
    return figure


def _culprits(report: Report) -> list[int]:
    """Return the positions of the commits that are named."""
    named = {c.sha for c in report.culprits} if report.named else set()
    return [i for i, commit in enumerate(report.commits) if commit.sha in named]


def _bad_side(report: Report) -> list[bool]:
    """Say of the good end and then of every candidate if the named commit is in its history."""
    bad = {report.culprits[0].sha} if report.named else set()
    for commit in report.commits:  # parents before children
        if bad.intersection(commit.parents):
            bad.add(commit.sha)
    return [False, *(commit.sha in bad for commit in report.commits)]


def _levels(report: Report) -> list[float]:
    levels = [report.level, report.level + report.effect]
    return levels if report.metric and all(map(math.isfinite, levels)) else []


def _values(axes: Axes, report: Report, metric: Metric | None) -> None:
    """Draw the trials at their commits, and the two levels."""
    axes.set_title(_sentence(report), loc="left")
    bad_side, levels = _bad_side(report), _levels(report)
    finite = [v for _, v in report.readings if math.isfinite(v)] + levels
    unit = metric.unit if metric and report.metric else ""
    scale = Scale.of(unit, max(map(abs, finite), default=0.0))
    if metric is None or not report.metric:
        axes.set_yticks([0, 1], ["runs", "crashes"])
        axes.set_ylim(-0.35, 1.35)
    else:
        axes.set_ylabel(picture.value_label(metric, scale.unit))
        crashed = [p for p, v in report.readings if not math.isfinite(v)]
        worse_up = metric.direction is not Direction.HIGHER
        if finite:
            head, foot = (0.14 if crashed else 0.08, 0.08)[:: 1 if worse_up else -1]
            picture.fit_values(axes, np.array(finite) / scale.divisor, head=head, foot=foot)
        picture.crosses(axes, crashed, 0.95 if worse_up else 0.05, RED)
    for level, name in zip(levels, ("good", "bad"), strict=False):
        text = number(scale.show(level), scale.show(abs(levels[1] - levels[0]) / 20))
        axes.annotate(
            f"{name} {text}", (1.0, scale.show(level)), xycoords=axes.get_yaxis_transform(),
            xytext=(4, 0), textcoords="offset points", va="center", fontsize=8,
            color=RED if name == "bad" else BLUE,
        )  # fmt: skip
    if levels:
        line = np.where(bad_side, levels[1], levels[0]) / scale.divisor
        edges = np.arange(-1.5, len(line) - 1)
        axes.stairs(line, edges, baseline=None, color=INK, linewidth=1.2, zorder=2)
    dots = [(p, scale.show(v)) for p, v in report.readings if math.isfinite(v)]
    axes.scatter(
        [p for p, _ in dots], [v for _, v in dots], s=26, alpha=0.6, linewidths=0, zorder=3,
        c=[RED if bad_side[p + 1] else BLUE for p, _ in dots],
    )  # fmt: skip


def _probability(axes: Axes, report: Report) -> None:
    """Draw a bar for every commit."""
    n, culprits = len(report.commits), _culprits(report)
    width = max(0.5 if n < 12 else 0.84, n / 260)  # a lone bar among a thousand stays visible
    colours = [RED if p in culprits else BLUE for p in range(n)]
    axes.bar(range(n), report.posterior, width=width, color=colours, linewidth=0, zorder=3)
    axes.set_ylabel("P(first bad)")
    axes.set_ylim(0, 1.3)  # room for the name above a bar of 100 %
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_yticks([0, 0.5, 1])


def _narrowing(axes: Axes, report: Report) -> None:
    rows = np.array([np.asarray(p, float) for _, p in report.steps])
    n = rows.shape[1]
    # White is ruled out, pale is no better than a guess among all, dark is certain.
    certainty = np.log(np.maximum(rows * n, 1e-9)) / math.log(max(n, 2))
    shade = np.clip(_GUESS + (1 - _GUESS) * certainty, 0, 1)
    paper = LinearSegmentedColormap.from_list("doubt", ["#ffffff", "#b9d9ee", BLUE, "#00324f"])
    axes.imshow(
        shade, aspect="auto", cmap=paper, vmin=0, vmax=1, interpolation="nearest", zorder=1,
        extent=(-0.5, n - 0.5, len(rows) + 0.5, 0.5),
    )  # fmt: skip
    axes.plot(
        [position for position, _ in report.steps], range(1, len(rows) + 1), "o", color=INK,
        markersize=3.2, markeredgecolor="white", markeredgewidth=0.5, zorder=3, clip_on=False,
    )  # fmt: skip
    axes.set_ylim(len(rows) + 0.5, 0.5)
    axes.set_ylabel("trial")
    axes.set_title("how the doubt narrowed: the darker, the likelier", loc="left", fontsize=8)
    axes.grid(False)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.0f}" if y >= 1 else ""))


def _name_culprits(axes: Axes, report: Report) -> None:
    """Write the hashes above their bars, once the panel has its final size."""
    likely = sorted(_culprits(report), key=lambda p: -report.posterior[p])
    labels = []
    for p in likely[:3]:
        text = f"{short(report.commits[p].sha)}  {probability(report.posterior[p])}"
        labels.append((p, report.posterior[p], text, RED))
    picture.keep_clear(axes, labels)


def _sentence(report: Report) -> str:
    size = f"{count(len(report.commits), 'candidate')}, {count(len(report.readings), 'trial')}"
    if not report.named:
        return f"{size}: no first bad commit could be named"
    commit = report.culprits[0]
    return f"{size}: first bad commit {short(commit.sha)}  {clip(plain(commit.subject), 72)}"


def _legend(report: Report, narrowing: bool) -> list[Artist]:
    handles: list[Artist] = [Line2D([], [], color=BLUE, label="good side", **_DOT)]  # type: ignore[arg-type]
    if report.named:
        handles.append(Line2D([], [], color=RED, label="bad side", **_DOT))  # type: ignore[arg-type]
    if _levels(report):
        handles.append(Line2D([], [], color=INK, linewidth=1.2, label="level"))
    if report.metric and any(not math.isfinite(v) for _, v in report.readings):
        handles.append(Line2D([], [], color=RED, linestyle="", marker="x", label="crashed"))
    if report.untestable:
        handles.append(Patch(color=FAINT, label="untestable"))
    if narrowing:
        dot = {**_DOT, "markersize": 3.2}
        handles.append(Line2D([], [], color=INK, label="commit tried", **dot))  # type: ignore[arg-type]
    return handles
