"""Draw how the error of one training against another propagates through the network: one panel for
the outputs in the order of the calls, one for the gradients that come back, one for the parameters,
buffers and optimiser's state that differ."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from celedger.lab.diagnose.difference import Layer, StoredTensor
from celedger.lab.diagnose.explain import Explanation
from celedger.lab.diagnose.finding import named
from celedger.views import picture
from celedger.views.document import clip, plain

_POWERS = FuncFormatter(lambda value, _: f"{value:g}".replace("e-0", "e-"))
_TENSORS = 16  # rows: stored tensors that differ most
_MOST = 40  # modules that have a name on the axis
_TINY = 1e-9  # below the precision of any type: drawn for equal values


def draw(answer: Explanation) -> Figure:
    """Draw the layers and the stored tensors of an explanation that has some of either."""
    layers = [layer for layer in answer.layers if not math.isnan(layer.forward)]
    tensors = sorted(answer.stored, key=lambda one: -one.error)[:_TENSORS]
    step = layers[0].step if layers else tensors[0].step
    outputs = ("outputs", [layer.forward for layer in layers])
    gradients = ("gradients", [layer.backward for layer in layers])
    # An evaluation has no gradients.
    shown = [one for one in (outputs, gradients) if not all(map(math.isnan, one[1]))]
    heights = [2.3] * len(shown) + [0.6 + 0.2 * len(tensors)] * bool(tensors)
    with picture.style():
        title = f"{answer.task}: {answer.a.name} against {answer.b.name}, step {step}"
        figure = picture.sheet(title, 1.2 + sum(heights))
        grid = figure.subplots(len(heights), 1, height_ratios=heights)
        panels: list[Axes] = list(np.atleast_1d(grid))
        picture.subtitle(panels[0], _subtitle(answer, layers[0].step if layers else None))
        handles = _layers(answer, layers, dict(shown), panels) if layers else []
        if tensors:
            _stored(panels[-1], tensors, len(answer.stored))
        picture.finish(figure, panels[0], handles)
    return figure


def _layers(
    answer: Explanation,
    layers: Sequence[Layer],
    shown: Mapping[str, Sequence[float]],
    panels: Sequence[Axes],
) -> list[Artist]:
    """Draw what is shown of the layers, a panel each, and return the legend."""
    finding = answer.finding
    at = None
    if finding is not None:
        at = next((i for i, layer in enumerate(layers) if layer.path == finding.module), None)
    ticks = picture.spaced(len(layers), _MOST, [] if at is None else [at])
    names = [clip(layers[i].path or "(model)", 28) for i in ticks]
    for axes, (label, values) in zip(panels, shown.items(), strict=False):
        _panel(axes, values, layers)
        axes.set_ylabel(f"relative error\nof {label}")
        if at is not None:
            axes.axvline(at, color=picture.RED, linewidth=6, alpha=0.18, zorder=0)
        last = axes is panels[len(shown) - 1]
        axes.set_xticks(ticks, names if last else [""] * len(ticks), rotation=90)
    handles: list[Artist] = [
        Line2D([], [], marker="o", linestyle="", color=picture.BLUE, label="differs"),
        Line2D([], [], marker="o", linestyle="", mfc="white", color=picture.MUTED,
               label="equal, bit by bit"),
        Line2D([], [], linestyle=":", color=picture.MUTED, label="rounding of the type"),
    ]  # fmt: skip
    if at is not None:
        label = f"the finding: {clip(named(layers[at].path), 40)}"
        handles.append(Line2D([], [], color=picture.RED, linewidth=6, alpha=0.18, label=label))
    return handles


def _stored(axes: Axes, tensors: Sequence[StoredTensor], count: int) -> None:
    """Draw the largest errors of parameters, buffers and the optimiser's state, a row each."""
    most = max([one.error for one in tensors if math.isfinite(one.error)], default=1.0)
    values = [min(one.error, 10 * most) for one in tensors]
    axes.set_xscale("log")
    axes.plot(values, range(len(tensors)), "o", color=picture.BLUE, markersize=4)
    axes.set_yticks(range(len(tensors)), [clip(one.name, 46) for one in tensors])
    axes.set_ylim(len(tensors) - 0.4, -0.6)
    axes.set_xlim(min(values) / 10, max(values) * 10)
    axes.xaxis.set_major_locator(LogLocator(numticks=8))
    axes.xaxis.set_major_formatter(_POWERS)
    axes.xaxis.set_minor_locator(NullLocator())
    rest = f"; the {len(tensors)} largest of {count}" if count > len(tensors) else ""
    axes.set_xlabel(f"relative error of stored tensors that differ in step {tensors[0].step}{rest}")


def _subtitle(answer: Explanation, step: int | None) -> str:
    """Return the finding as the text has it, and what is drawn of it."""
    finding = answer.finding
    if finding is None:
        return ""
    text = f"step {finding.step}, {finding.phase}: {plain(finding.sentence)}"
    if step not in (None, finding.step):
        text += f"\nstep {step} is the first one after it in which a module differs"
    return text


def _panel(axes: Axes, values: Sequence[float], layers: Sequence[Layer]) -> None:
    axes.set_yscale("log")
    finite = [v for v in values if 0 < v < math.inf]
    low = min([*finite, *(layer.rounding for layer in layers if layer.rounding)], default=_TINY)
    floor = max(_TINY, low) / 30
    top = max([*finite, 1.0]) * 3
    shown = [min(v, top) if v > 0 else math.nan for v in values]
    axes.plot(shown, "o-", color=picture.BLUE, linewidth=0.8, markersize=4)
    equal = [floor if v == 0 else math.nan for v in values]
    axes.plot(equal, "o", mfc="white", color=picture.MUTED, markersize=4)
    rounding = [layer.rounding or math.nan for layer in layers]
    axes.step(range(len(layers)), rounding, where="mid", linestyle=":", color=picture.MUTED)
    axes.set_ylim(floor / 2, top)
    axes.yaxis.set_major_locator(LogLocator(numticks=6))
    axes.yaxis.set_major_formatter(_POWERS)
    axes.yaxis.set_minor_locator(NullLocator())
