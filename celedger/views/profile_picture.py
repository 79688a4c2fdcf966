"""Pictures of `celedger profile`: the strip of steps with their phases and stalls, the bars of a
difference between two commits, and memory over the steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from celedger.diagnose.memory import Document
from celedger.diagnose.profile import PHASES, Profile
from celedger.diagnose.slower import SpeedComparison, SpeedRow
from celedger.views.format import Scale, clip, percent, plain, short
from celedger.views.picture import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    finish,
    keep_clear,
    save,
    sheet,
    style,
)
from celedger.views.profile import MEANING, ProfileTarget, grouped, largest, verdict

_COLOURS = dict(zip(PHASES, (ORANGE, PURPLE, BLUE, SKY, GREEN), strict=True))
_BARS = 10
_QUIET = "#c3c9d1"  # a bar that noise explains
_NAME = 46  # characters of an operator with its module
_MOST_COLUMNS = 600  # beyond that, neighbouring steps share a column, which shows the slowest


def draw(target: ProfileTarget, measured: Profile | SpeedComparison | Document, path: Path) -> Path:
    with style():
        if isinstance(measured, SpeedComparison):
            figure = _difference(target, measured)
        elif isinstance(measured, Profile):
            figure = _profile(target, measured)
        else:
            figure = _memory(target, measured)
    return save(figure, path)


def _profile(target: ProfileTarget, profile: Profile) -> Figure:
    """Every timed step as a column of its phases; below, the operators by self time."""
    title = f"{target.task} at {short(target.commits[0].sha)}: where each step's time goes"
    figure = sheet(title, 6.4)
    strip, bars = figure.subplots(2, 1, height_ratios=[1.5, 1.0])
    handles = _strip(strip, profile)
    _operators(bars, profile)
    finish(figure, strip, handles)
    _label_stalls(strip, profile)
    return figure


def _difference(target: ProfileTarget, compared: SpeedComparison) -> Figure:
    """What each phase and operator adds to the difference, the whole last."""
    before, after = (short(commit.sha) for commit in target.commits)
    title = f"{target.task}: {before} to {after}, {verdict(compared)}"
    parts = largest(compared.tables["phases"]), largest(grouped(compared.tables["operators"]))
    figure = sheet(clip(title, 88), 1.6 + 0.26 * (sum(map(len, parts)) + 2))
    axes = figure.subplots(2, 1, sharex=True, height_ratios=[len(p) + 1 for p in parts])
    scale = Scale.of("s", max(abs(row.difference) + row.noise for part in parts for row in part))
    for one, part in zip(axes, parts, strict=True):
        _differences(one, [*part, compared.whole], scale)
    axes[1].set_xlabel(f"difference a step ({scale.unit}); the line is the noise")
    labels = {RED: "slower", GREEN: "faster", _QUIET: "within noise"}
    handles = [Patch(color=colour, label=label) for colour, label in labels.items()]
    finish(figure, axes[0], handles)
    return figure


def _memory(target: ProfileTarget, memory: Document) -> Figure:
    """Bytes of tensors at each step's peak and end, and the process beside them."""
    title = f"{target.task} at {short(target.commits[0].sha)}: memory over the steps"
    figure = sheet(title, 5.2)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1.4, 1.0])
    peak, end, rss = (np.asarray(memory["steps"][name]) for name in ("peak", "held", "rss"))
    scale, whole = Scale.of("B", float(peak.max())), Scale.of("B", float(rss.max()))
    x = np.arange(len(end))
    upper.fill_between(x, peak / scale.divisor, color=SKY, alpha=0.5, lw=0)
    upper.plot(x, end / scale.divisor, color=BLUE, lw=1.4)
    upper.set_ylabel(f"tensors ({scale.unit})")
    upper.set_ylim(0, scale.show(float(peak.max())) * 1.1)
    lower.plot(x, rss / whole.divisor, color=INK, lw=1.2)
    lower.set_ylabel(f"process ({whole.unit})")
    lower.set_xlabel("step")
    for epoch in memory["epochs"][:-1]:
        for axes in (upper, lower):
            axes.axvline(epoch["step"], color=MUTED, lw=0.6, ls=":")
    handles = [
        Patch(color=SKY, alpha=0.5, label="at each step's peak"),
        Line2D([], [], color=BLUE, label="held at its end"),
        Line2D([], [], color=INK, label="the process"),
        Line2D([], [], color=MUTED, ls=":", label="end of an epoch"),
    ]
    finish(figure, upper, handles)
    return figure


def _strip(axes: Axes, profile: Profile) -> list[Patch]:
    own, times = profile.steps.own, profile.steps.times
    width = -(-len(own) // _MOST_COLUMNS)
    chosen = np.array([at + int(own[at : at + width].argmax()) for at in range(0, len(own), width)])
    scale = Scale.of("s", float(own.max()))
    x, bottom = profile.steps.number[chosen], np.zeros(len(chosen))
    handles = []
    for name in PHASES:
        values = times[name][chosen] / scale.divisor
        if values.any():
            axes.bar(x, values, bottom=bottom, width=width, color=_COLOURS[name], linewidth=0)
            bottom += values
            handles.append(Patch(color=_COLOURS[name], label=MEANING[name]))
    axes.set_xlim(x[0] - width, x[-1] + width)
    axes.set_ylim(0, bottom.max() * 1.25)
    axes.set_ylabel(f"own time of a step ({scale.unit})")
    axes.set_xlabel("step")
    return handles


def _label_stalls(axes: Axes, profile: Profile) -> None:
    number, own = profile.steps.number, profile.steps.own
    own = own / Scale.of("s", float(own.max())).divisor
    labels = []
    for stall in profile.stalls.caused:
        at = np.flatnonzero(np.isin(number, stall.steps))
        top = at[len(at) // 2]
        often = f"every {stall.every} steps" if stall.every else f"{len(stall.steps)} steps"
        line = "garbage collector" if stall.collector else plain(str(stall.line or "line unknown"))
        axes.plot(number[at], own[at], ls="", marker="v", ms=4, color=RED)
        text = clip(f"stall, {often}: {line}", 60)
        labels.append((float(number[top]), float(own[top]), text, RED))
    keep_clear(axes, labels)


def _operators(axes: Axes, profile: Profile) -> None:
    rows = profile.largest_operators()[:_BARS]
    if not rows:
        axes.set_axis_off()
        return
    device = profile.device == "cuda"
    values = np.array([row.device_seconds if device else row.seconds for row, _ in rows])
    scale = Scale.of("s", float(values.max()))
    values, y = values / scale.divisor, np.arange(len(rows))[::-1]
    axes.barh(y, values, color=BLUE, height=0.7)
    axes.set_yticks(y, [clip(row.name, _NAME) for row, _ in rows])
    for at, value, (_, share) in zip(y, values, rows, strict=True):
        axes.annotate(
            percent(share, signed=False), (value, at), (4, 0), textcoords="offset points",
            va="center", fontsize=8, color=MUTED,
        )  # fmt: skip
    axes.grid(visible=False)
    axes.set_xlim(0, values.max() * 1.1)
    axes.set_xlabel(f"operators: self time of a step under torch.profiler ({scale.unit})")


def _differences(axes: Axes, rows: list[SpeedRow], scale: Scale) -> None:
    y = np.arange(len(rows))[::-1]
    values = [scale.show(row.difference) for row in rows]
    noise = [scale.show(row.noise) for row in rows]
    moved = [(RED if row.difference > 0 else GREEN) for row in rows]
    colours = [c if row.beyond_noise else _QUIET for c, row in zip(moved, rows, strict=True)]
    axes.barh(y, values, color=colours, height=0.7)
    axes.errorbar(values, y, xerr=noise, fmt="none", ecolor=MUTED, elinewidth=0.8)
    axes.set_yticks(y, [_name(row) for row in rows])
    axes.axvline(0, color=INK, lw=0.8)
    axes.axhline(0.5, color=MUTED, lw=0.6)
    axes.grid(visible=False)


def _name(row: SpeedRow) -> str:
    name = f"{row.name}, {row.where}" if row.where else MEANING.get(row.name, row.name)
    return clip(name, _NAME) + (f"  ({row.change})" if row.change in ("added", "removed") else "")
