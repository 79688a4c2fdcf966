"""Draw how the error of one training against another propagates through the network: one panel for
the outputs in the order of the calls, one for the gradients that come back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from celedger.diagnose.difference import Layer
from celedger.diagnose.explain import Explanation
from celedger.views import picture
from celedger.views.format import clip

_MOST = 60  # modules that have a name on the axis
_TINY = 1e-9  # below the precision of any type: drawn for equal values


def depth_figure(answer: Explanation, path: Path) -> Path:
    """Draw the layers. Raises MachineError if the file cannot be written."""
    layers = [layer for layer in answer.layers if not math.isnan(layer.forward)]
    finding = answer.finding
    with picture.style():
        title = f"{answer.task}: {answer.a.name} against {answer.b.name}, step {layers[0].step}"
        sheet = picture.sheet(title, 5.2, width=max(picture.WIDTH, min(18.0, 0.26 * len(layers))))
        upper, lower = sheet.subplots(2, 1, sharex=True)
        positions = list(range(len(layers)))
        for axes, label, values in (
            (upper, "outputs", [layer.forward for layer in layers]),
            (lower, "gradients", [layer.backward for layer in layers]),
        ):
            _panel(axes, positions, values, layers)
            axes.set_ylabel(f"relative error\nof {label}")
            if finding is not None:
                for position, layer in zip(positions, layers, strict=True):
                    if layer.path == finding.module:
                        axes.axvline(position, color=picture.RED, linewidth=6, alpha=0.18, zorder=0)
        every = max(1, -(-len(layers) // _MOST))
        lower.set_xticks(positions[::every])
        names = [clip(layer.path or "(model)", 28) for layer in layers[::every]]
        lower.set_xticklabels(names, rotation=90)
        handles = [
            Line2D([], [], marker="o", linestyle="", color=picture.BLUE, label="differs"),
            Line2D([], [], marker="o", linestyle="", mfc="white", color=picture.MUTED,
                   label="equal, bit by bit"),
            Line2D([], [], linestyle=":", color=picture.MUTED, label="rounding of the type"),
        ]  # fmt: skip
        if finding is not None and any(layer.path == finding.module for layer in layers):
            handles.append(
                Line2D([], [], color=picture.RED, linewidth=6, alpha=0.18, label="named first")
            )
        picture.finish(sheet, upper, handles)
        return picture.save(sheet, path)


def _panel(
    axes: Axes, positions: Sequence[int], values: Sequence[float], layers: Sequence[Layer]
) -> None:
    axes.set_yscale("log")
    finite = [v for v in values if 0 < v < math.inf]
    low = min([*finite, *(layer.rounding for layer in layers if layer.rounding)], default=_TINY)
    floor = max(_TINY, low) / 30
    top = max([*finite, 1.0]) * 3
    differ = [(x, min(v, top)) for x, v in zip(positions, values, strict=True) if v > 0]
    equal = [(x, floor) for x, v in zip(positions, values, strict=True) if v == 0]
    if differ:
        axes.plot(*zip(*differ, strict=True), color=picture.BLUE, linewidth=0.8, alpha=0.5)
        axes.plot(*zip(*differ, strict=True), "o", color=picture.BLUE, markersize=4)
    if equal:
        axes.plot(*zip(*equal, strict=True), "o", mfc="white", color=picture.MUTED, markersize=4)
    rounding = [layer.rounding or math.nan for layer in layers]
    axes.step(positions, rounding, where="mid", linestyle=":", color=picture.MUTED, linewidth=1)
    axes.set_ylim(floor / 2, top)
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}".replace("e-0", "e-")))
    axes.yaxis.set_minor_locator(NullLocator())
