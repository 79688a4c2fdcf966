"""Pictures of `celedger profile`: a bar for each step with its phases and stalls, memory over the
steps, and what differs between two commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from celedger.lab.diagnose.speed_advice import MEANING, largest_operators
from celedger.lab.diagnose.stalls import Document
from celedger.lab.views.memory import PEAKS, difference_headline
from celedger.lab.views.profile import ProfileTarget, largest, size, slower_sentence
from celedger.views.document import UnitScale, clip, measure, percent, plain, short
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
_DIFFERENCES = 8
_COLOURS = (ORANGE, PURPLE, BLUE, SKY, GREEN)  # of phases
_NAME = 46  # characters of an operator
_ROW = 0.24  # inches of a difference
_LABELLED = 0.1  # share of a step's operators from which a phase is labelled


def draw(target: ProfileTarget, document: Document) -> Figure:
    """Draw a profile of time or memory, of one commit or of two."""
    memory = "peaks" in document
    with style():
        if len(target.commits) == 2:
            return (_larger if memory else _slower)(target, document)
        return (_memory if memory else _profile)(target, document)


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


def _slower(target: ProfileTarget, document: Document) -> Figure:
    """Draw the differences of phases and operators with their noise."""
    tables = {}
    for part in ("phases", "operators"):
        rows = largest(document[part], _DIFFERENCES)  # then the others together, and a remainder
        bars = rows[: min(_DIFFERENCES, len(rows) - 1)]
        tables[f"{part}: difference a step"] = bars, rows[len(bars) :]
    return _differences(target, slower_sentence(document), tables, "s", "time of a step")


def _larger(target: ProfileTarget, document: Document) -> Figure:
    """Draw the differences of what holds the memory at each peak."""
    tables = {}
    for name, peak in document["peaks"].items():
        parts = [
            {"name": part["operator"], "where": f"{part['phase']} {part['module'] or ''}".strip(),
             "difference": part["after"] - part["before"], "noise": 0.0, "beyond_noise": True}
            for part in peak["parts"]
        ]  # fmt: skip
        rest = parts[_DIFFERENCES:]
        others = {"name": f"{len(rest)} others", "difference": sum(p["difference"] for p in rest)}
        if parts:
            tables[f"peak of {PEAKS[name]}"] = parts[:_DIFFERENCES], [others] if rest else []
    tables = tables or {"nothing differs": ([], [])}
    return _differences(target, difference_headline(document), tables, "B", "memory")


def _differences(
    target: ProfileTarget,
    sentence: str,
    tables: Mapping[str, tuple[Sequence[Document], Sequence[Document]]],
    unit: str,
    what: str,
) -> Figure:
    """Draw a bar for each row of the tables. What is left of each, its second part, is told in
    words: it is no place to look at, and would swallow the others."""
    heights = [max(2, len(rows)) * _ROW for rows, _ in tables.values()]
    before, after = (short(commit.sha) for commit in target.commits)
    picture = sheet(f"{target.task}, {before} → {after}: {what}", 2.2 + sum(heights) + len(heights))
    panels = np.atleast_1d(picture.subplots(len(heights), 1, height_ratios=heights))
    every = [abs(row["difference"]) + row["noise"] for rows, _ in tables.values() for row in rows]
    scale = UnitScale.of(unit, max(every, default=1.0))
    subtitle(panels[0], "\n".join([sentence, *(line.strip() for line in target.titles(100))]))
    for axes, (part, (rows, rest)) in zip(panels, tables.items(), strict=True):
        _bars(axes, rows, scale)
        left = [f"{row['name']} {measure(row['difference'], unit=unit, signed=True, significant=3)}"
                for row in rest]  # fmt: skip
        label = f"{part} ({scale.unit})"
        axes.set_xlabel(label + (f"\nnot drawn: {', '.join(left)}" if left else ""))
    picture.legend(handles=[
        Patch(color=RED, label="more"), Patch(color=GREEN, label="less"),
        Patch(color=MUTED, alpha=0.5, label="within noise (the line: its standard error)"),
    ][: 3 if unit == "s" else 2], loc="outside lower left", ncols=3)  # fmt: skip
    return picture


def _bars(axes: Axes, rows: Sequence[Document], scale: UnitScale) -> None:
    names = [
        clip(f"{MEANING.get(r['name'], r['name'])}  {r['where']}".strip(), _NAME) for r in rows
    ]
    at = np.arange(len(rows))
    widths = np.array([row["difference"] for row in rows]) / scale.divisor
    noise = np.array([row["noise"] for row in rows]) / scale.divisor
    certain = [bool(row["beyond_noise"] or row.get("change")) for row in rows]
    for chosen, colour in (
        ([c and w > 0 for c, w in zip(certain, widths, strict=True)], RED),
        ([c and w <= 0 for c, w in zip(certain, widths, strict=True)], GREEN),
        ([not c for c in certain], MUTED),
    ):
        if any(chosen):
            axes.barh(at[chosen], widths[chosen], color=colour, alpha=0.5 if colour == MUTED else 1)
    if noise.any():
        axes.errorbar(widths, at, xerr=noise, fmt="none", ecolor=INK, elinewidth=1)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(at, names)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(visible=False)
    axes.grid(axis="x")
