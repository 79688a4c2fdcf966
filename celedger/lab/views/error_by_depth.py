"""Draw how the error of one training against another propagates through the network: one panel for
the outputs in the order of the calls, one for the gradients that come back."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from celedger.lab.diagnose.difference import Layer
from celedger.lab.diagnose.explain import Explanation
from celedger.lab.diagnose.finding import named
from celedger.views import picture
from celedger.views.format import clip, plain

_MOST = 40  # modules that have a name on the axis
_TINY = 1e-9  # below the precision of any type: drawn for equal values


def draw(answer: Explanation) -> Figure:
    """Draw the layers of an explanation that has some."""
    layers = [layer for layer in answer.layers if not math.isnan(layer.forward)]
    finding = answer.finding
    at = None
    if finding is not None:
        at = next((i for i, layer in enumerate(layers) if layer.path == finding.module), None)
    with picture.style():
        title = f"{answer.task}: {answer.a.name} against {answer.b.name}, step {layers[0].step}"
        figure = picture.sheet(title, 5.2)
        upper, lower = figure.subplots(2, 1, sharex=True)
        for axes, label, values in (
            (upper, "outputs", [layer.forward for layer in layers]),
            (lower, "gradients", [layer.backward for layer in layers]),
        ):
            _panel(axes, values, layers)
            axes.set_ylabel(f"relative error\nof {label}")
            if at is not None:
                axes.axvline(at, color=picture.RED, linewidth=6, alpha=0.18, zorder=0)
        picture.subtitle(upper, _subtitle(answer, layers[0].step))
        ticks = picture.spaced(len(layers), _MOST, [] if at is None else [at])
        names = [clip(layers[i].path or "(model)", 28) for i in ticks]
        lower.set_xticks(ticks, names, rotation=90)
        handles = [
            Line2D([], [], marker="o", linestyle="", color=picture.BLUE, label="differs"),
            Line2D([], [], marker="o", linestyle="", mfc="white", color=picture.MUTED,
                   label="equal, bit by bit"),
            Line2D([], [], linestyle=":", color=picture.MUTED, label="rounding of the type"),
        ]  # fmt: skip
        if at is not None:
            label = f"the finding: {clip(named(layers[at].path), 40)}"
            handles.append(Line2D([], [], color=picture.RED, linewidth=6, alpha=0.18, label=label))
        picture.finish(figure, upper, handles)
    return figure


def _subtitle(answer: Explanation, step: int) -> str:
    """Return the finding as the text has it, and what is drawn of it."""
    finding = answer.finding
    if finding is None:
        return ""
    text = f"step {finding.step}, {finding.phase}: {plain(finding.sentence)}"
    if step != finding.step:
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
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}".replace("e-0", "e-")))
    axes.yaxis.set_minor_locator(NullLocator())
