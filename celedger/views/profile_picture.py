"""Pictures of `celedger profile`: a bar for each step with its phases and stalls, and memory over
the steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from celedger.diagnose.advice import MEANING, largest_operators
from celedger.diagnose.stalls import Document
from celedger.views.format import Scale, clip, plain, short
from celedger.views.picture import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    save,
    sheet,
    style,
)
from celedger.views.profile import ProfileTarget

_BARS = 10
_COLOURS = (ORANGE, PURPLE, BLUE, SKY, GREEN)  # of phases
_NAME = 46  # characters of an operator


def draw(target: ProfileTarget, document: Document, path: Path) -> Path:
    """Draw one commit's profile, of time or memory."""
    with style():
        figure = (_memory if "peaks" in document else _profile)(target, document)
    return save(figure, path)


def _profile(target: ProfileTarget, document: Document) -> Figure:
    """Draw every timed step as a stack of its phases; below, the operators by self time."""
    title = f"{target.task} at {short(target.commits[0].sha)}: where each step's time goes"
    figure = sheet(title, 6.4)
    strip, bars = figure.subplots(2, 1, height_ratios=[1.5, 1.0])
    steps = document["steps"]
    number, own = np.asarray(steps["number"]), np.asarray(steps["seconds"])
    scale = Scale.of("s", float(own.max()))
    parts = [np.asarray(values) / scale.divisor for values in steps["phases"].values()]
    labels = [MEANING[name] for name in steps["phases"]]
    strip.stackplot(number, parts, labels=labels, step="mid", lw=0, colors=_COLOURS)
    for stall in document["stalls"]["found"]:
        at = np.isin(number, stall["steps"])
        often = f"every {stall['every']} steps" if stall["every"] else f"{at.sum()} steps"
        line = "garbage collector" if stall["collector"] else stall["place"] or "line unknown"
        label = clip(f"stall, {often}: {plain(line)}", 60)
        strip.plot(number[at], own[at] / scale.divisor, "v", ms=4, color=RED, label=label)
    strip.set(xlabel="step", ylabel=f"own time of a step ({scale.unit})")
    figure.legend(loc="outside lower left", ncols=4)
    device = document["environment"]["device"] == "cuda"
    rows = [row for row, _ in largest_operators(document)[:_BARS]]
    values = [row["device_seconds" if device else "seconds"] for row in rows]
    scale = Scale.of("s", max(values, default=1.0))
    bars.barh([clip(row["name"], _NAME) for row in rows], [scale.show(v) for v in values])
    bars.invert_yaxis()
    bars.set_xlabel(f"operators: self time of a step under torch.profiler ({scale.unit})")
    return figure


def _memory(target: ProfileTarget, document: Document) -> Figure:
    """Draw the bytes of tensors at each step's peak and end, and the process's memory."""
    title = f"{target.task} at {short(target.commits[0].sha)}: memory over the steps"
    figure = sheet(title, 5.2)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[1.4, 1.0])
    peak, end, rss = (np.asarray(document["steps"][name]) for name in ("peak", "held", "rss"))
    scale, whole = Scale.of("B", float(peak.max())), Scale.of("B", float(rss.max()))
    upper.plot(peak / scale.divisor, color=SKY, label="at each step's peak")
    upper.plot(end / scale.divisor, color=BLUE, label="held at its end")
    lower.plot(rss / whole.divisor, color=INK)
    upper.set(ylabel=f"tensors ({scale.unit})", ylim=(0, None))
    lower.set(ylabel=f"process ({whole.unit})", xlabel="step")
    upper.legend()
    return figure
