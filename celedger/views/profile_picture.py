"""Pictures of `celedger profile`: the strip of steps with their phases and stalls, the bars of a
difference between two commits, and memory over the steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from celedger.diagnose.memory import Memory
from celedger.diagnose.profile import MEANING, PHASES, Profile, by_name
from celedger.diagnose.slower import SpeedComparison, SpeedRow
from celedger.model import Commit
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
from celedger.views.profile import Header
from celedger.views.slower import grouped, shown, verdict

_COLOURS = dict(zip(PHASES, (ORANGE, PURPLE, BLUE, SKY, GREEN), strict=True))
_BARS = 10
_QUIET = "#c3c9d1"  # a bar that noise explains
_NAME = 46  # characters of an operator with its module
_MOST_COLUMNS = 600  # beyond that, neighbouring steps share a column, which shows the slowest


def draw_profile(header: Header, profile: Profile, path: Path) -> Path:
    """Every timed step as a column of its phases; below, the operators by self time."""
    with style():
        title = f"{header.task} at {short(header.commit.sha)}: where each step's time goes"
        figure = sheet(title, 6.4)
        strip, bars = figure.subplots(2, 1, height_ratios=[1.5, 1.0])
        handles = _strip(strip, profile)
        _operators(bars, profile)
        finish(figure, strip, handles)
        _label_stalls(strip, profile)
    return save(figure, path)


def draw_difference(
    task: str, sides: tuple[Commit, Commit], compared: SpeedComparison, path: Path
) -> Path:
    """What each phase and operator adds to the difference, the whole last."""
    with style():
        title = f"{task}: {short(sides[0].sha)} to {short(sides[1].sha)}, {verdict(compared)}"
        parts = (shown(compared.phases), shown(grouped(compared.operators)))
        figure = sheet(clip(title, 88), 1.6 + 0.26 * (sum(map(len, parts)) + 2))
        axes = figure.subplots(2, 1, sharex=True, height_ratios=[len(p) + 1 for p in parts])
        largest = max(abs(row.difference) + row.noise for part in parts for row in part)
        scale = Scale.of("s", largest)
        for one, part in zip(axes, parts, strict=True):
            _differences(one, [*part, compared.whole], scale)
        axes[1].set_xlabel(f"difference a step ({scale.unit}); the line is the noise")
        handles = [
            Patch(color=RED, label="slower"),
            Patch(color=GREEN, label="faster"),
            Patch(color=_QUIET, label="within noise"),
        ]
        finish(figure, axes[0], handles)
    return save(figure, path)


def draw_memory(header: Header, memory: Memory, path: Path) -> Path:
    """Bytes of tensors at each step's peak and end, and the process beside them."""
    with style():
        title = f"{header.task} at {short(header.commit.sha)}: memory over the steps"
        figure = sheet(title, 5.2)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1.4, 1.0])
        x = np.arange(len(memory.held))
        scale = Scale.of("B", float(memory.peak_of_step.max()))
        upper.fill_between(x, scale.show(1.0) * memory.peak_of_step, color=SKY, alpha=0.5, lw=0)
        upper.plot(x, scale.show(1.0) * memory.held, color=BLUE, lw=1.4)
        upper.set_ylabel(f"tensors ({scale.unit})")
        upper.set_ylim(0, scale.show(float(memory.peak_of_step.max())) * 1.1)
        whole = Scale.of("B", float(memory.rss.max()))
        lower.plot(x, whole.show(1.0) * memory.rss, color=INK, lw=1.2)
        lower.set_ylabel(f"process ({whole.unit})")
        lower.set_xlabel("step")
        for epoch in memory.epochs[:-1]:
            for axes in (upper, lower):
                axes.axvline(epoch.step, color=MUTED, lw=0.6, ls=":")
        handles = [
            Patch(color=SKY, alpha=0.5, label="at each step's peak"),
            Line2D([], [], color=BLUE, label="held at its end"),
            Line2D([], [], color=INK, label="the process"),
            Line2D([], [], color=MUTED, ls=":", label="end of an epoch"),
        ]
        finish(figure, upper, handles)
    return save(figure, path)


def _strip(axes: Axes, profile: Profile) -> list[Patch]:
    own = profile.own
    width = -(-len(own) // _MOST_COLUMNS)
    chosen = np.array([at + int(own[at : at + width].argmax()) for at in range(0, len(own), width)])
    scale = Scale.of("s", float(own.max()))
    x, bottom = profile.steps[chosen], np.zeros(len(chosen))
    handles = []
    for name in PHASES:
        values = scale.show(1.0) * profile.times[name][chosen]
        if not values.any():
            continue
        axes.bar(x, values, bottom=bottom, width=width, color=_COLOURS[name], linewidth=0)
        bottom += values
        handles.append(Patch(color=_COLOURS[name], label=MEANING[name]))
    axes.set_xlim(x[0] - width, x[-1] + width)
    axes.set_ylim(0, bottom.max() * 1.25)
    axes.set_ylabel(f"own time of a step ({scale.unit})")
    axes.set_xlabel("step")
    return handles


def _label_stalls(axes: Axes, profile: Profile) -> None:
    scale = Scale.of("s", float(profile.own.max()))
    labels = []
    for stall in profile.stalls.found:
        at = np.flatnonzero(np.isin(profile.steps, stall.steps))
        top = at[len(at) // 2]
        often = f"every {stall.every} steps" if stall.every else f"{len(stall.steps)} steps"
        where = (
            "garbage collector" if stall.collector else plain(str(stall.place or "line unknown"))
        )
        axes.plot(
            profile.steps[at], scale.show(1.0) * profile.own[at], ls="", marker="v", ms=4, color=RED
        )
        labels.append(
            (
                float(profile.steps[top]),
                scale.show(float(profile.own[top])),
                clip(f"stall, {often}: {where}", 60),
                RED,
            )
        )
    keep_clear(axes, labels)


def _operators(axes: Axes, profile: Profile) -> None:
    device = profile.device == "cuda"
    rows = by_name(profile.operators)
    rows.sort(key=lambda row: -(row.device if device else row.seconds))
    rows = rows[:_BARS]
    if not rows:
        axes.set_axis_off()
        return
    values = [row.device if device else row.seconds for row in rows]
    scale = Scale.of("s", max(values))
    total = sum(row.device for row in profile.operators) if device else profile.window_seconds
    y = np.arange(len(rows))[::-1]
    axes.barh(y, [scale.show(value) for value in values], color=BLUE, height=0.7)
    axes.set_yticks(y, [clip(row.name, _NAME) for row in rows])
    for at, value in zip(y, values, strict=True):
        share = percent(value / total, signed=False)
        axes.annotate(
            share, (scale.show(value), at), (4, 0), textcoords="offset points", va="center",
            fontsize=8, color=MUTED,
        )  # fmt: skip
    axes.grid(visible=False)
    axes.set_xlim(0, scale.show(max(values)) * 1.1)
    axes.set_xlabel(f"operators: self time of a step under torch.profiler ({scale.unit})")


def _differences(axes: Axes, rows: list[SpeedRow], scale: Scale) -> None:
    y = np.arange(len(rows))[::-1]
    values = [scale.show(row.difference) for row in rows]
    noise = [scale.show(row.noise) for row in rows]
    colours = [(RED if row.difference > 0 else GREEN) if row.beyond else _QUIET for row in rows]
    axes.barh(y, values, color=colours, height=0.7)
    axes.errorbar(values, y, xerr=noise, fmt="none", ecolor=MUTED, elinewidth=0.8)
    names = [MEANING.get(row.name, row.name) if not row.where else row.name for row in rows]
    names = [
        clip(f"{name}, {row.where}" if row.where else name, _NAME)
        + (f"  ({row.change})" if row.change in ("added", "removed") else "")
        for name, row in zip(names, rows, strict=True)
    ]
    axes.set_yticks(y, names)
    axes.axvline(0, color=INK, lw=0.8)
    axes.axhline(0.5, color=MUTED, lw=0.6)
    axes.grid(visible=False)
