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
from celedger.views.timeline import Drift, Stretch, drift

_LABELS = 12  # more names than this on one sheet are noise
_MANY = 80  # commits from which dots are small
_DASHES = (0, (4, 3))


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
    """Draw `metric` (default: the task's main one) of `task` (or `suite/task`) over `commits`,
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
        for position, _ in drift.changes:
            axes.axvline(position, color=MUTED, linewidth=0.9, linestyle=_DASHES, zorder=1.5)
        for first, last, worse in drift.steps:
            colour = RED if worse else GREEN
            axes.axvspan(first, last, color=colour, alpha=0.1, linewidth=0, zorder=0.5)
        picture.finish(figure, axes, _legend(drift))
        picture.above(axes, drift.changes)
        _label(axes, drift, scale)
    return figure


def _values(axes: Axes, drift: Drift) -> Scale:
    metric, dots = drift.metric, drift.dots
    many = len(drift.commits) > _MANY
    scale = Scale.of(metric.unit, max((abs(x) for _, x in dots), default=0.0))
    axes.set_ylabel(picture.value_label(metric, scale.unit))
    if dots:
        shown = np.array([scale.show(x) for _, x in dots])
        room = 0.15 if drift.failed or drift.untestable else 0.1
        head, foot = (0.1, room) if metric.direction is Direction.HIGHER else (room, 0.1)
        picture.fit_values(axes, shown, head=head, foot=foot)
        axes.scatter(
            [p for p, _ in dots], shown, s=7 if many else 16, color=BLUE,
            alpha=0.3 if many else 0.4, linewidths=0, zorder=2, label="trial",
        )  # fmt: skip
    else:
        axes.set_yticks([])
    for stretch in drift.stretches:
        means = np.array([scale.show(m) for m in stretch.means])
        _spread(axes, stretch, means, scale)
        size = 4.5 if not many else 2.2 if len(drift.commits) <= 250 else 1.4
        axes.plot(
            stretch.positions, means, color=BLUE, linewidth=1.1 if many else 1.5, marker="o",
            markersize=size, zorder=3, label="mean",
        )  # fmt: skip
    size = 4.5 if many else 6
    picture.crosses(axes, sorted(set(drift.failed)), _edge(drift), RED, size=size, label="failed")
    picture.crosses(axes, drift.untestable, _edge(drift), MUTED, size=size, label="untestable")
    return scale


def _spread(axes: Axes, stretch: Stretch, means: np.ndarray, scale: Scale) -> None:
    if not math.isfinite(stretch.sd()):
        return
    edges = np.array(stretch.positions, float)
    if len(edges) == 1:  # a stretch of one commit still has a band to be seen
        edges = np.array([edges[0] - 0.25, edges[0] + 0.25])
    level = np.interp(edges, stretch.positions, means)
    if axes.get_yscale() == "log":
        factor = math.exp(stretch.sd(log=True))
        low, high = level / factor, level * factor
    else:
        sd = scale.show(stretch.sd())
        low, high = level - sd, level + sd
    axes.fill_between(
        edges, low, high, color=BLUE, alpha=0.13, linewidth=0, zorder=1, label="spread"
    )


def _edge(drift: Drift) -> float:
    """Where trials without a value stand: at the worse end of the axis."""
    return 0.045 if drift.metric.direction is Direction.HIGHER else 0.955


def _label(axes: Axes, drift: Drift, scale: Scale) -> None:
    means = {p: m for s in drift.stretches for p, m in zip(s.positions, s.means, strict=True)}
    size = 7 if len(drift.commits) <= _MANY else 4.5
    labels = []
    for mark in drift.marks:
        if mark.position not in means:
            continue  # concluded from trials that no longer count: nowhere to stand
        y, colour = scale.show(means[mark.position]), RED if mark.bad else GREEN
        axes.plot(
            mark.position, y, "o", color=colour, markersize=size, markeredgecolor="white",
            markeredgewidth=0.7, zorder=5, label="mark",
        )  # fmt: skip
        if mark.named:
            labels.append((mark.position, y, mark.text, colour))
    points = [(p, scale.show(x)) for p, x in (*drift.dots, *means.items())]
    points += [(p, picture.height(axes, _edge(drift))) for p in (*drift.failed, *drift.untestable)]
    picture.keep_clear(axes, labels[:_LABELS], avoid=points)


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
    def dot(colour: str, label: str, marker: str = "o", **more: float) -> Artist:
        return Line2D([], [], color=colour, label=label, marker=marker, linestyle="", **more)  # type: ignore[arg-type]

    mean = Line2D([], [], color=BLUE, linewidth=1.5, marker="o", markersize=4.5, label="mean")
    change = Line2D([], [], color=MUTED, linewidth=0.9, linestyle=_DASHES)
    change.set_label("environment changed")
    step = Patch(alpha=0.1, label="changed here (95 %)")
    step.set_color(RED if drift.steps and drift.steps[0][2] else GREEN)
    spread = Patch(color=BLUE, alpha=0.13, linewidth=0, label="± 1 sd of a trial")
    handles: list[tuple[object, Artist]] = [
        (drift.stretches, mean),
        (drift.stretches, dot(BLUE, "trial", alpha=0.4, markersize=4)),
        (any(math.isfinite(s.sd()) for s in drift.stretches), spread),
        (any(m.bad for m in drift.marks), dot(RED, "regressed")),
        (any(not m.bad for m in drift.marks), dot(GREEN, "improved")),
        (drift.failed, dot(RED, "failed or not finite", "x")),
        (drift.untestable, dot(MUTED, "untestable", "x")),
        (drift.steps, step),
        (drift.changes, change),
    ]
    return [handle for present, handle in handles if present]
