"""The picture of drift: one metric of one task over the commits, in the order of history. Every
trial is a dot, so that nothing is hidden behind a mean. It draws a `Drift` and decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from celedger.ledger.read import Reader
from celedger.model import Commit, Direction
from celedger.views import picture
from celedger.views.format import Scale, count
from celedger.views.picture import BLUE, GREEN, MUTED, RED
from celedger.views.timeline import Drift, drift

_LABELS = 12  # more names than this on one sheet are noise


def drift_figure(
    ledger: Reader,
    task: str,
    path: Path,
    *,
    metric: str | None = None,
    suite: str | None = None,
    commits: Sequence[Commit] | None = None,
    lineage: Sequence[Commit] | None = None,
) -> Path:
    """Draws `metric` (default: the task's main one) of `task` (or `suite/task`) over `commits`,
    oldest first (default: all that have trials of it), to a PNG or SVG. `lineage` as in
    `celedger.drift.courses`. Raises UsageError for a suffix, task or metric that is not known,
    CeledgerError where there is nothing to draw."""
    picture.check_suffix(path)
    return picture.save(draw(drift(ledger, task, metric, suite, commits, lineage)), path)


def draw(drift: Drift) -> Figure:
    with picture.style():
        figure = picture.sheet(f"{drift.title} · {drift.metric.name}", 4.8)
        axes = figure.subplots()
        scale = _values(axes, drift)
        picture.commit_axis(axes, drift.commits)
        axes.set_title(_subtitle(drift), loc="left", pad=20 if drift.changes else 8)
        for place, _ in drift.changes:
            axes.axvline(place, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1.5)
        for first, last, worse in drift.steps:
            axes.axvspan(
                first, last, color=RED if worse else GREEN, alpha=0.1, linewidth=0, zorder=0.5
            )
        handles = _legend(drift)
        picture.finish(figure, axes, handles)
        picture.above(axes, drift.changes)
        _label(axes, drift, scale)
    return figure


def _values(axes: Axes, drift: Drift) -> Scale:
    metric, n = drift.metric, len(drift.commits)
    dots = drift.dots
    scale = Scale.of(metric.unit, max((abs(x) for _, x in dots), default=0.0))
    axes.set_ylabel(picture.value_label(metric, scale.unit))
    worse_up = metric.direction is not Direction.HIGHER
    if dots:
        shown = np.array([scale.show(x) for _, x in dots])
        room = 0.15 if drift.failed or drift.untestable else 0.1
        picture.fit_values(
            axes, shown, head=room if worse_up else 0.1, foot=0.1 if worse_up else room
        )
        size, alpha = (16, 0.4) if n <= 80 else (7, 0.3)
        axes.scatter(
            [p for p, _ in dots], shown, s=size, color=BLUE, alpha=alpha, linewidths=0, zorder=2,
            label="trial",
        )  # fmt: skip
    else:
        axes.set_yticks([])
    for stretch in drift.stretches:
        means = np.array([scale.show(m) for m in stretch.means])
        if math.isfinite(stretch.sd):
            edges = _widened(stretch.positions)
            level = np.interp(edges, stretch.positions, means)
            if axes.get_yscale() == "log":
                factor = math.exp(stretch.relative_sd)
                low, high = level / factor, level * factor
            else:
                sd = scale.show(stretch.sd)
                low, high = level - sd, level + sd
            axes.fill_between(
                edges, low, high, color=BLUE, alpha=0.13, linewidth=0, zorder=1, label="spread"
            )
        axes.plot(
            stretch.positions, means, color=BLUE, linewidth=1.5 if n <= 80 else 1.1, marker="o",
            markersize=4.5 if n <= 80 else 2.2 if n <= 250 else 1.4, zorder=3, label="mean",
        )  # fmt: skip
    for places, colour, name in (
        (drift.failed, RED, "failed"),
        (drift.untestable, MUTED, "untestable"),
    ):
        if once := sorted(set(places)):
            axes.plot(
                once, [_edge(drift)] * len(once), "x", color=colour,
                markersize=6 if n <= 80 else 4.5, markeredgewidth=1.4, zorder=4, label=name,
                transform=axes.get_xaxis_transform(),
            )  # fmt: skip
    return scale


def _edge(drift: Drift) -> float:
    """Where trials without a value stand: at the worse end of the axis."""
    return 0.045 if drift.metric.direction is Direction.HIGHER else 0.955


def _widened(positions: Sequence[int]) -> np.ndarray:
    """A stretch of one commit still has a band to be seen."""
    if len(positions) > 1:
        return np.array(positions, float)
    return np.array([positions[0] - 0.25, positions[0] + 0.25])


def _label(axes: Axes, drift: Drift, scale: Scale) -> None:
    means = {p: m for s in drift.stretches for p, m in zip(s.positions, s.means, strict=True)}
    size = 7 if len(drift.commits) <= 80 else 4.5
    wanted = []
    for mark in drift.marks:
        if mark.position not in means:
            continue  # concluded from trials that no longer count: nowhere to stand
        y, colour = scale.show(means[mark.position]), RED if mark.bad else GREEN
        axes.plot(
            mark.position, y, "o", color=colour, markersize=size, markeredgecolor="white",
            markeredgewidth=0.7, zorder=5, label="mark",
        )  # fmt: skip
        if mark.named:
            wanted.append((mark.position, y, mark.text, colour))
    points = [(p, scale.show(x)) for p, x in (*drift.dots, *means.items())]
    points += [(p, picture.height(axes, _edge(drift))) for p in (*drift.failed, *drift.untestable)]
    picture.keep_clear(axes, wanted[:_LABELS], avoid=points)


def _subtitle(drift: Drift) -> str:
    commits = count(drift.measured, "commit")
    if drift.measured < len(drift.commits):
        commits = f"{drift.measured} of {count(len(drift.commits), 'commit')}"
    text = f"{commits}, {count(drift.trials, 'trial')}"
    if lost := len(drift.failed) + len(drift.untestable):
        text += f", {lost} failed or not finite"
    if drift.hidden:
        text += f" ({count(drift.hidden, 'trial')} of an earlier suite left out)"
    return text


def _legend(drift: Drift) -> list[Artist]:
    point = {"linestyle": "", "linewidth": 0}
    handles: list[Artist] = []
    if drift.stretches:
        handles += [
            Line2D([], [], color=BLUE, linewidth=1.5, marker="o", markersize=4.5, label="mean"),
            Line2D([], [], color=BLUE, alpha=0.4, marker="o", markersize=4, label="trial", **point),  # type: ignore[arg-type]
        ]
    if any(math.isfinite(s.sd) for s in drift.stretches):
        handles.append(Patch(color=BLUE, alpha=0.13, linewidth=0, label="± 1 sd of a trial"))
    for bad, colour, name in ((True, RED, "regressed"), (False, GREEN, "improved")):
        if any(m.bad is bad for m in drift.marks):
            handles.append(Line2D([], [], color=colour, marker="o", label=name, **point))  # type: ignore[arg-type]
    for places, colour, name in (
        (drift.failed, RED, "failed or not finite"),
        (drift.untestable, MUTED, "untestable"),
    ):
        if places:
            handles.append(Line2D([], [], color=colour, marker="x", label=name, **point))  # type: ignore[arg-type]
    if drift.steps:
        label = "changed here (95 %)"
        handles.append(Patch(color=RED if drift.steps[0][2] else GREEN, alpha=0.1, label=label))
    if drift.changes:
        dashes = (0, (4, 3))
        label = "environment changed"
        handles.append(Line2D([], [], color=MUTED, linewidth=0.9, linestyle=dashes, label=label))
    return handles
