"""Pictures of `celedger profile`: a bar for each step with its phases and stalls, and memory over
the steps."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from celedger.lab.diagnose.speed_advice import MEANING, largest_operators
from celedger.lab.diagnose.stalls import Document
from celedger.lab.views.memory import PEAKS
from celedger.lab.views.profile import ProfileTarget, size
from celedger.views.document import UnitScale, clip, percent, plain, short
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
    sheet,
    style,
    subtitle,
)

_BARS = 10
_COLOURS = (ORANGE, PURPLE, BLUE, SKY, GREEN)  # of phases
_NAME = 46  # characters of an operator
_LABELLED = 0.1  # share of a step's operators from which a phase is labelled


def draw(target: ProfileTarget, document: Document) -> Figure:
    """Draw a profile of time or memory of one commit."""
    with style():
        return (_memory if "peaks" in document else _profile)(target, document)


def _profile(target: ProfileTarget, document: Document) -> Figure:
    """Draw every timed step as a stack of its phases; below, the operators by self time."""
    title = f"{target.task} at {short(target.commits[0].sha)}: where each step's time goes"
    picture = sheet(title, 6.4)
    strip, bars = picture.subplots(2, 1, height_ratios=[1.5, 1.0])
    steps = document["steps"]
    number, seconds = np.asarray(steps["number"]), np.asarray(steps["seconds"])
    scale = UnitScale.of("s", float(seconds.max()))
    shares = {row["name"]: percent(row["share"]) for row in document["phases"]}
    bottom = np.zeros(number.size)
    for (name, values), colour in zip(steps["phases"].items(), _COLOURS, strict=False):
        # On a crowded machine the kernel may count a delay in the phase after it.
        height = np.maximum(values, 0.0) / scale.divisor
        label = f"{MEANING[name]} {shares.get(name)}"
        strip.bar(number, height, 1.0, bottom, color=colour, label=label)
        bottom += height
    for stall in document["stalls"]["found"]:
        at = np.isin(number, stall["steps"])
        often = f"every {stall['every']} steps" if stall["every"] else f"{at.sum()} steps"
        line = "garbage collector" if stall["collector"] else stall["place"] or "line unknown"
        label = clip(f"stall, {often}: {plain(line)}", 60)
        strip.plot(number[at], seconds[at] / scale.divisor, "v", ms=4, color=RED, label=label)
    subtitle(strip, "steps that were timed; the others warmed up or ran under a profiler")
    strip.set(xlabel="step", ylabel=f"own time of a step ({scale.unit})")
    finish(picture, strip)
    device = document["environment"]["device"] == "cuda"
    rows = [row for row, _ in largest_operators(document)[:_BARS]]
    values = [row["device_seconds" if device else "seconds"] for row in rows]
    scale = UnitScale.of("s", max(values, default=1.0))
    names = [clip(row["name"], _NAME) for row in rows]
    bars.barh(names, [scale.show(v) for v in values], color=MUTED)
    bars.grid(visible=False)
    bars.grid(axis="x")
    bars.invert_yaxis()
    bars.set_xlabel(f"operators: self time of a step under torch.profiler ({scale.unit})")
    return picture


def _memory(target: ProfileTarget, document: Document) -> Figure:
    """Draw the bytes of tensors at each step's peak and end, and the process's memory, from 0 on,
    with the peaks that the text names."""
    title = f"{target.task} at {short(target.commits[0].sha)}: memory over the steps"
    course = document["peaks"]["step"]["course"]
    picture = sheet(title, 7.2 if course else 5.4)
    upper, lower, *within = picture.subplots(
        3 if course else 2, 1, height_ratios=[1.4, 1.0, 1.0][: 3 if course else 2]
    )
    lower.sharex(upper)
    peak, end, rss = (np.asarray(document["steps"][name]) for name in ("peak", "held", "rss"))
    peaks = {name: row for name, row in document["peaks"].items() if row["bytes"]}
    most = max(float(peak.max()), *(row["bytes"] for row in peaks.values()))
    scale, whole = UnitScale.of("B", most), UnitScale.of("B", float(document["peak_rss"]))
    upper.plot(peak / scale.divisor, color=SKY, label="tensors at each step's peak")
    upper.plot(end / scale.divisor, color=BLUE, label="held at its end")
    for (name, row), (colour, shape) in zip(peaks.items(), ((RED, "^"), (INK, "s")), strict=False):
        label = f"peak of {PEAKS[name]}: {size(row['bytes'])}, step {row['step']}"
        upper.plot(row["step"], row["bytes"] / scale.divisor, shape, color=colour, label=label)
    lower.plot(rss / whole.divisor, color=MUTED, label="process at each step's end")
    label = f"the process held {size(document['peak_rss'])} at most"
    lower.axhline(document["peak_rss"] / whole.divisor, color=RED, ls="--", lw=1, label=label)
    upper.set(ylabel=f"tensors ({scale.unit})", ylim=(0, 1.1 * most / scale.divisor))
    lower.set(ylabel=f"process ({whole.unit})", xlabel="step")
    lower.set_ylim(0, 1.1 * document["peak_rss"] / whole.divisor)
    handles = [handle for axes in (upper, lower) for handle in axes.lines]
    for axes in within:
        _within_step(axes, course, document["peaks"]["step"], scale)
    finish(picture, upper, handles)
    return picture


def _within_step(axes: Axes, course: Document, peak: Document, scale: UnitScale) -> None:
    """Draw the bytes held after each operator of the step with the largest peak."""
    held = np.asarray(course["bytes"]) / scale.divisor
    starts = [*course["phases"], (len(held), "")]
    for (start, name), (end, _), colour in zip(starts, starts[1:], _COLOURS, strict=False):
        part = slice(start, end + 1)
        axes.fill_between(np.arange(len(held))[part], held[part], color=colour, alpha=0.5, lw=0)
        name = MEANING["other" if name == "data" else name]
        if end - start > _LABELLED * len(held):
            axes.text((start + end) / 2, 0.02, name, transform=axes.get_xaxis_transform(),
                      ha="center", fontsize=7)  # fmt: skip
    axes.plot(held, color=BLUE)
    axes.plot(course["peak"], peak["bytes"] / scale.divisor, "^", color=RED)
    axes.set(ylabel=f"tensors ({scale.unit})", xlabel=f"operator of step {peak['step']}")
    axes.set_ylim(0, 1.15 * peak["bytes"] / scale.divisor)
