"""`celedger watch -o`: the loss, and layer by layer the gradients and the changes of the weights,
over the same steps; thresholds and the steps where watchpoints fired are marked."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

from celedger.base.model import Direction, Metric
from celedger.lab.diagnose.watch import JudgedTraining, WatchReport
from celedger.lab.diagnose.watch_records import Watched, WatchedStep
from celedger.lab.diagnose.watch_rules import IN_A_ROW
from celedger.views.document import clip, number, short
from celedger.views.picture import (
    BLUE,
    INK,
    MUTED,
    RED,
    banner,
    sheet,
    style,
    subtitle,
    value_axis,
)

_ROW = 0.17  # inches a layer
_LOWEST = 0.9  # inches of a strip
_SCALE = 0.9  # inches of the loss scale
_LONGEST = 28  # characters of a layer's name
_LABEL = 70  # characters of a label above the loss
_SPARSE = 4  # steps for each that was looked at, from which on the axis is logarithmic
_TICKS = 24  # steps that are labelled fit side by side
_LOSS = Metric("loss", "", Direction.LOWER)


def draw(report: WatchReport) -> Figure:
    """Draw the last training of the report: the earlier ones prepare it."""
    judged = report.trainings[-1]
    layers = _layers(judged.training)
    names = f"{report.task.suite}/{report.task.name} at {short(report.commit.sha)}"
    height = max(_LOWEST, _ROW * len(layers))
    with style():
        strips = [_gradients(judged, layers), _changes(judged, layers)]
        strips += _subnormal(judged.training, layers)
        scales = [_SCALE] if judged.training.scales else []
        heights = [2.0, *scales, *(height for _ in strips)]
        figure = sheet(f"Watchpoints of {names}, seed {report.seed}", 2.6 + sum(heights))
        panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
        _steps(panels[-1], judged.training)
        for axes, strip in zip(panels[1 + len(scales) :], strips, strict=True):
            _draw_strip(figure, axes, strip, layers)
        if scales:
            _loss_scale(panels[1], judged.training)
        _loss(panels[0], judged)
    return figure


def _layers(training: Watched) -> list[str]:
    """Return the parameters of two axes or more, and those of no module, in the model's order; all
    of them if there are none."""
    trained = [p for p in training.parameters.values() if p.trained]
    large = [p.name for p in trained if len(p.shape) > 1 or not p.in_module]
    return large or [p.name for p in trained]


@dataclass(frozen=True, slots=True)
class Strip:
    """A figure of each layer (a row) at each step looked at (a column); NaN where there is none.

    Attributes:
        beyond: Where a threshold is passed, of the watchpoints that fired.
        limits: The thresholds that are the same for every cell, and what lies beyond them.
    """

    title: str
    steps: Sequence[int]
    values: NDArray[np.float64]
    beyond: NDArray[np.bool_]
    limits: Mapping[float, str]


def _gradients(judged: JudgedTraining, layers: Sequence[str]) -> Strip:
    """Return the gradients' RMS. They explode beside the largest of the first steps, and vanish
    beside the largest of their own step, the very first aside."""
    steps = _taken(judged.training)
    values = _grid(
        [{r.name: r.rms for r in s.rows if r.kind == "parameter"} for s in steps], layers
    )
    ceiling = judged.limits["gradient-exploding"]
    ceiling *= float(np.nanmax(values[:, :IN_A_ROW], initial=0.0))
    share, most = judged.limits["gradient-vanishing"], np.nanmax(values, axis=0, initial=0.0)
    after = np.array([step.number > 0 for step in steps], bool)
    beyond = _fired(judged, "gradient-vanishing") & (values <= share * most) & (most > 0) & after
    beyond |= _fired(judged, "gradient-exploding") & (values > ceiling)
    title = f"gradient, RMS; vanishes at {share:g} of the step's largest layer"
    limits = {}
    if ceiling > 0:
        limits = {ceiling: "explodes"}
        title += f", explodes above {number(ceiling, significant=2)}"
    return Strip(title, [s.number for s in steps], values, beyond, limits)


def _changes(judged: JudgedTraining, layers: Sequence[str]) -> Strip:
    """Return |Δw| / |w|. One is too small if it is so in every step."""
    steps = _taken(judged.training)
    rows = [{c.name: c.change / c.before for c in s.changes if c.before > 0} for s in steps]
    values = _grid(rows, layers)
    large, small = (judged.limits[f"weight-change-{end}"] for end in ("large", "small"))
    never = np.nanmax(values, axis=1, initial=0.0) <= small
    beyond = _fired(judged, "weight-change-large") & (values > large)
    beyond |= _fired(judged, "weight-change-small") & never[:, None] & np.isfinite(values)
    title = f"change of a step, |Δw| / |w|; too large above {large:g}, too small if never above "
    limits = {large: "too large", small: "too small"}
    return Strip(f"{title}{small:g}", [s.number for s in steps], values, beyond, limits)


def _subnormal(training: Watched, layers: Sequence[str]) -> list[Strip]:
    """Return the shares of gradients below the smallest normal number, if there are any."""
    steps = _taken(training)
    rows = [{r.name: r.subnormal for r in s.rows if r.kind == "parameter"} for s in steps]
    values = _grid(rows, layers)
    title = f"share of gradients below the smallest normal number of {training.half or 'its type'}"
    never = np.zeros_like(values, bool)
    strip = Strip(title, [step.number for step in steps], values, never, {})
    return [strip] if np.nanmax(values, initial=0.0) > 0 else []


def _fired(judged: JudgedTraining, name: str) -> bool:
    return any(finding.watchpoint.name == name for finding in judged.findings)


def _taken(training: Watched) -> list[WatchedStep]:
    return [step for step in training.steps if not step.skipped]


def _grid(rows: Sequence[Mapping[str, float]], layers: Sequence[str]) -> NDArray[np.float64]:
    grid = np.array([[row.get(name, np.nan) for row in rows] for name in layers], float)
    return grid.reshape(len(layers), len(rows))


def _steps(axes: Axes, training: Watched) -> None:
    """Label the steps that were looked at. Where they are few, the axis of all panels is
    logarithmic: they lie as close as the steps of the beginning."""
    steps = [step.number for step in training.steps]
    label = "step; a tick marks a sampled one"
    if training.length > _SPARSE * max(1, len(steps)):
        axes.set_xscale("symlog", linthresh=1, linscale=0.5)
        label += ", and stands for those around it"
    axes.set_xlim(-0.5, max(1, training.length) - 0.5)
    places = axes.get_xaxis().get_transform().transform(np.array([-0.5, *steps, training.length]))
    named: list[int] = []
    free = -math.inf
    for step, tensor in zip(steps, places[1:], strict=False):
        if tensor >= free:
            named.append(step)
            free = tensor + np.ptp(places) / _TICKS
    axes.xaxis.set_major_locator(FixedLocator(named))
    axes.xaxis.set_minor_locator(FixedLocator(steps))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_xlabel(label)


def _loss(axes: Axes, judged: JudgedTraining) -> None:
    """Draw the loss of every step, below the names of the watchpoints at their first steps."""
    steps, losses = np.array(judged.training.losses, float).reshape(-1, 2).T
    value_axis(axes, _LOSS, losses[np.isfinite(losses)])
    axes.plot(steps, losses, color=BLUE, linewidth=0.9)
    by_step: dict[int, list[str]] = defaultdict(list)
    for finding in judged.findings:
        by_step[finding.first.step].append(finding.watchpoint.name)
    banner(axes, [
        (step, line, RED) for step, names in by_step.items()
        for line in wrap(", ".join(names), _LABEL)[::-1]
    ])  # fmt: skip


def _loss_scale(axes: Axes, training: Watched) -> None:
    """Draw a gradient scaler's loss scale, and the steps that it skipped."""
    steps, scales, skipped = (np.array(column) for column in zip(*training.scales, strict=True))
    subtitle(axes, "loss scale (× a step that was skipped)")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:.3g}")
    axes.plot(steps, scales, color=BLUE, linewidth=0.9, drawstyle="steps-post")
    axes.plot(steps[skipped], scales[skipped], "x", color=RED, markersize=4, markeredgewidth=1.1)


def _draw_strip(figure: Figure, axes: Axes, strip: Strip, layers: Sequence[str]) -> None:
    zero = bool((strip.values == 0).any())
    title = strip.title + (" (×)" if strip.beyond.any() else "") + ("; black is 0" if zero else "")
    subtitle(axes, title)
    axes.grid(visible=False)
    axes.set_yticks(range(len(layers)), [clip(n.removesuffix(".weight"), _LONGEST) for n in layers],
                    fontsize=7)  # fmt: skip
    axes.set_ylim(len(layers) - 0.5, -0.5)
    positive = strip.values[np.isfinite(strip.values) & (strip.values > 0)]
    if not positive.size:
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color=MUTED)
        return
    every = [*positive, *strip.limits]
    norm = LogNorm(min(every), max(*every, 1.01 * min(every)))
    steps = np.array(strip.steps, float)
    middles = (steps[1:] + steps[:-1]) / 2
    last = 2 * steps[-1] - middles[-1] if middles.size else steps[-1] + 0.5
    edges = np.concatenate([[steps[0] - 0.5], middles, [min(last, axes.get_xlim()[1])]])
    borders, values = np.arange(len(layers) + 1) - 0.5, np.ma.masked_invalid(strip.values)
    image = axes.pcolormesh(
        edges, borders, values, cmap="viridis", norm=norm, edgecolors="white", linewidth=0.3
    )
    if zero:  # which no logarithm shows
        zeros = np.ma.masked_where(strip.values != 0, strip.values)
        axes.pcolormesh(edges, borders, zeros, cmap=ListedColormap(["black"]))
    rows, places = np.nonzero(strip.beyond)
    axes.plot(steps[places], rows, "x", color=RED, markersize=4, markeredgewidth=1.1)
    bar = figure.colorbar(image, ax=axes, pad=0.01, aspect=9 * _LOWEST)
    _label_bar(bar.ax, norm, strip.limits)


def _label_bar(axes: Axes, norm: LogNorm, limits: Mapping[float, str]) -> None:
    """Label the thresholds, and powers of ten between them; at least both ends."""
    low, high = float(norm.vmin or 0.0), float(norm.vmax or 1.0)
    powers = np.arange(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    every = max(1, -(-len(powers) // 4))
    values = [10.0**p for p in powers[::every]] if len(powers) > 1 else [low, high]
    near = 0.12 * math.log10(high / low)
    values = [v for v in values if all(abs(math.log10(v / x)) > near for x in limits)]
    ticks = [*values, *limits]
    labels = [f"{v:.2g}".replace("e-0", "e-") for v in ticks]
    labels = [f"{label} {limits.get(v, '')}" for label, v in zip(labels, ticks, strict=True)]
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_yticks(ticks, labels, fontsize=7)
    for tick, value in zip(axes.get_yticklabels(), ticks, strict=True):
        tick.set_color(RED if value in limits else INK)
    for limit in limits:
        axes.axhline(limit, color=RED, linewidth=1.5)
