"""The picture of a bisect: what was measured where, how sure it is of each commit, and how the
doubt narrowed trial by trial. It draws the numbers it is given and computes none of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from celedger.errors import CeledgerError
from celedger.model import Commit, Direction, Metric
from celedger.views import picture
from celedger.views.format import Scale, clip, count, number, plain, probability, short
from celedger.views.picture import BLUE, FAINT, INK, RED

_GUESS = 0.25  # shade of a commit about which nothing is known yet


@dataclass(frozen=True, slots=True)
class Search:
    """A bisect, ready to draw. A *position* is 0 for the good end and i + 1 for `commits[i]`."""

    title: str  # "core/mlp_digits"
    good: Commit
    commits: tuple[Commit, ...]  # the candidates, oldest first; the last one is the bad end
    probability: tuple[float, ...]  # of being the first bad commit, one a candidate
    trials: tuple[tuple[int, float], ...]  # (position, value) in the order run; nan: it crashed
    metric: Metric | None = None  # None: a crash is bisected, values are 0 (ran) and 1 (crashed)
    levels: tuple[float, float] | None = None  # good and bad, in the metric's unit
    culprits: tuple[int, ...] = ()  # positions of the answer: one, or the set
    bad: tuple[bool, ...] = ()  # per position; default: from the first culprit on
    untestable: tuple[int, ...] = ()  # positions
    narrowing: tuple[tuple[int, tuple[float, ...]], ...] = ()  # (position tried, probability then)


def posterior_figure(search: Search, path: Path) -> Path:
    """Draws the bisect to a PNG or SVG. Raises UsageError for another suffix, CeledgerError
    without candidates, MachineError where the file cannot be written."""
    picture.check_suffix(path)
    return picture.save(posterior(search), path)


def posterior(search: Search) -> Figure:
    if not search.commits or len(search.probability) != len(search.commits):
        raise CeledgerError(
            "this bisect has no candidates to draw", "run `celedger bisect GOOD..BAD`"
        )
    steps = search.narrowing
    heights = [3.0, 1.7] + ([min(3.0, 0.5 + 0.09 * len(steps))] if steps else [])
    with picture.style():
        figure = picture.sheet(plain(search.title), 1.1 + sum(heights))
        panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)
        panel_of_values(panels[0, 0], search)
        panel_of_probability(panels[1, 0], search)
        if steps:
            _narrowing(panels[2, 0], search)
        for panel in panels[:, 0]:
            shade_untestable(panel, search)
        picture.commit_axis(panels[-1, 0], (search.good, *search.commits))
        figure.align_ylabels(panels[:, 0])
        picture.finish(figure, panels[0, 0], legend(search))
        name_culprit(panels[1, 0], search)
    return figure


def panel_of_values(axes: Axes, search: Search) -> None:
    """The trials at their commits, and the two levels."""
    n = len(search.commits)
    axes.set_title(_sentence(search), loc="left")
    metric = search.metric
    finite = [v for _, v in search.trials if math.isfinite(v)]
    levels = [v for v in search.levels or () if math.isfinite(v)]
    known = finite + levels
    scale = Scale.of(metric.unit if metric else "", max((abs(v) for v in known), default=0.0))
    if metric is None:
        axes.set_yticks([0, 1], ["runs", "crashes"])
        axes.set_ylim(-0.35, 1.35)
    else:
        axes.set_ylabel(picture.value_label(metric, scale.unit))
        crashed = [p for p, v in search.trials if not math.isfinite(v)]
        worse_up = metric.direction is not Direction.HIGHER
        if known:
            room = 0.14 if crashed else 0.08
            picture.fit_values(
                axes,
                np.array(known) / scale.divisor,
                head=room if worse_up else 0.08,
                foot=0.08 if worse_up else room,
            )
        if crashed:
            axes.plot(
                crashed,
                [0.95 if worse_up else 0.05] * len(crashed),
                "x",
                transform=axes.get_xaxis_transform(),
                color=RED,
                markersize=6,
                zorder=4,
            )
    if len(levels) == 2:
        bad = search.bad or _from_first(search.culprits, n + 1)
        line = np.where(bad, levels[1], levels[0]) / scale.divisor
        edges = np.arange(-0.5, n + 1)
        axes.stairs(line, edges, baseline=None, color=INK, linewidth=1.2, zorder=2)
        noise = abs(levels[1] - levels[0]) / 20
        for level, name in zip(levels, ("good", "bad"), strict=True):
            text = number(scale.show(level), scale.show(noise))
            axes.annotate(
                f"{name} {text}" if metric else "",
                (1.0, scale.show(level)),
                xycoords=axes.get_yaxis_transform(),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                color=RED if name == "bad" else BLUE,
            )
    bad_side = search.bad or _from_first(search.culprits, n + 1)
    shown = [(p, scale.show(v)) for p, v in search.trials if math.isfinite(v)]
    axes.scatter(
        [p for p, _ in shown],
        [v for _, v in shown],
        s=26,
        c=[RED if bad_side[p] else BLUE for p, _ in shown],
        alpha=0.6,
        linewidths=0,
        zorder=3,
    )


def shade_untestable(axes: Axes, search: Search) -> None:
    """A band behind every commit that could not be tested."""
    for position in search.untestable:
        axes.axvspan(position - 0.5, position + 0.5, color=FAINT, linewidth=0, zorder=0)


def _from_first(culprits: Sequence[int], n: int) -> tuple[bool, ...]:
    first = min(culprits, default=n)
    return tuple(position >= first for position in range(n))


def panel_of_probability(axes: Axes, search: Search) -> None:
    """A bar for every commit."""
    n = len(search.commits)
    positions = np.arange(1, n + 1)
    width = max(0.5 if n < 12 else 0.84, n / 260)  # a lone bar among a thousand stays visible
    colours = [RED if p in search.culprits else BLUE for p in positions]
    axes.bar(positions, search.probability, width=width, color=colours, linewidth=0, zorder=3)
    axes.set_ylabel("P(first bad)")
    axes.set_ylim(0, 1.3)  # room for the name above a bar of 100 %
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_yticks([0, 0.5, 1])


def _narrowing(axes: Axes, search: Search) -> None:
    rows = np.array([np.asarray(p, float) for _, p in search.narrowing])
    n = rows.shape[1]
    # White is ruled out, pale is no better than a guess among all, dark is certain.
    known = np.log(np.maximum(rows * n, 1e-9)) / math.log(max(n, 2))
    shade = np.clip(_GUESS + (1 - _GUESS) * known, 0, 1)
    paper = LinearSegmentedColormap.from_list("doubt", ["#ffffff", "#b9d9ee", BLUE, "#00324f"])
    axes.imshow(
        shade,
        aspect="auto",
        cmap=paper,
        vmin=0,
        vmax=1,
        interpolation="nearest",
        extent=(0.5, n + 0.5, len(rows) + 0.5, 0.5),
        zorder=1,
    )
    tried = [position for position, _ in search.narrowing]
    axes.plot(
        tried,
        range(1, len(rows) + 1),
        "o",
        color=INK,
        markersize=3.2,
        markeredgecolor="white",
        markeredgewidth=0.5,
        zorder=3,
        clip_on=False,
    )
    axes.set_ylim(len(rows) + 0.5, 0.5)
    axes.set_ylabel("trial")
    axes.set_title("how the doubt narrowed: the darker, the likelier", loc="left", fontsize=8)
    axes.grid(False)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.0f}" if y >= 1 else ""))


def name_culprit(axes: Axes, search: Search) -> None:
    """Writes the hash above its bar, once the panel has its final size."""
    labels = []
    likely = sorted(search.culprits, key=lambda p: -search.probability[p - 1])
    for position in likely[:3]:
        commit, share = search.commits[position - 1], search.probability[position - 1]
        labels.append((position, share, f"{short(commit.sha)}  {probability(share)}", RED))
    picture.keep_clear(axes, labels)


def _sentence(search: Search) -> str:
    size = f"{count(len(search.commits), 'candidate')}, {count(len(search.trials), 'trial')}"
    if not search.culprits:
        return f"{size}: no first bad commit could be named"
    if len(search.culprits) > 1:
        total = sum(search.probability[p - 1] for p in search.culprits)
        together = f"{probability(total)} together"
        return f"{size}: the first bad commit is one of {len(search.culprits)} ({together})"
    commit = search.commits[search.culprits[0] - 1]
    return f"{size}: first bad commit {short(commit.sha)}  {clip(plain(commit.subject), 72)}"


def legend(search: Search) -> list[Line2D | Patch]:
    """What the colours and lines mean."""
    dot = {"linestyle": "", "marker": "o", "markersize": 5}
    handles: list[Line2D | Patch] = [Line2D([], [], color=BLUE, label="good side", **dot)]  # type: ignore[arg-type]
    if search.culprits:
        handles.append(Line2D([], [], color=RED, label="bad side", **dot))  # type: ignore[arg-type]
    if search.levels:
        handles.append(Line2D([], [], color=INK, linewidth=1.2, label="level"))
    if search.metric is not None and any(not math.isfinite(v) for _, v in search.trials):
        handles.append(Line2D([], [], color=RED, linestyle="", marker="x", label="crashed"))
    if search.untestable:
        handles.append(Patch(color=FAINT, label="untestable"))
    if search.narrowing:
        handles.append(
            Line2D(
                [], [], color=INK, linestyle="", marker="o", markersize=3.2, label="commit tried"
            )
        )
    return handles


__all__ = ["Search", "posterior", "posterior_figure"]
