"""`celedger watch -o`: the loss, and layer by layer the gradients and the changes of the weights,
over the sampled steps; the steps where watchpoints fired are marked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import wrap

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from celedger.diagnose.watch import JudgedTraining, WatchReport
from celedger.diagnose.watched import Watched, WatchedStep
from celedger.errors import UsageError
from celedger.views.format import clip, short
from celedger.views.picture import BLUE, MUTED, RED, save, sheet, style

_ROW = 0.17  # inches a layer
_LONGEST = 28  # characters of a layer's name


def watch_figure(report: WatchReport, path: Path) -> Path:
    """Draw the last training of the report: the earlier ones prepare it."""
    judged = report.trainings[-1]
    layers = _layers(judged.training)
    names = f"{report.task.suite}/{report.task.name} at {short(report.commit.sha)}"
    with style():
        figure = sheet(f"Watchpoints of {names}, seed {report.seed}", 3.2 + 2 * _ROW * len(layers))
        heights = [2.0, *[max(0.6, _ROW * len(layers))] * 2]
        loss, gradients, changes = figure.subplots(3, 1, height_ratios=heights)
        _loss(loss, judged)
        _strip(figure, gradients, judged, layers, _gradients, "gradient, RMS")
        _strip(figure, changes, judged, layers, _changes, "change of a step, |Δw| / |w|")
        changes.set_xlabel("step (those looked at)")
        return save(figure, path)


def tensor_figure(report: WatchReport, name: str, path: Path) -> Path:
    """Draw how a parameter and its gradient are distributed, over the steps looked at. Raises
    UsageError for a name that no parameter of the last training has."""
    training = report.trainings[-1].training
    steps = [step for step in training.steps if name in step.spread]
    if not steps:
        names = dict.fromkeys(name for step in training.steps for name in step.spread)
        raise UsageError(f"no parameter {name!r} was trained", f"there are {', '.join(names)}")
    task = f"{report.task.suite}/{report.task.name} at {short(report.commit.sha)}"
    with style():
        figure = sheet(f"{clip(name, 60)} of {task}, seed {report.seed}", 5.0)
        for at, (axes, label) in enumerate(
            zip(figure.subplots(2, 1, sharex=True), ("weight", "gradient"), strict=True)
        ):
            rows = [(step.number, *step.spread[name][at])
                    for step in steps if len(step.spread[name]) > at]  # fmt: skip
            if rows:
                number, lowest, low, median, high, highest = np.array(rows).T
                axes.fill_between(number, lowest, highest, color=BLUE, alpha=0.15, linewidth=0)
                axes.fill_between(number, low, high, color=BLUE, alpha=0.3, linewidth=0)
                axes.plot(number, median, color=BLUE, linewidth=1.0, marker=".", markersize=3)
            axes.set_title(f"{label}: median, half and nine tenths of its elements", loc="left")
        axes.set_xlabel("step (those looked at)")
        return save(figure, path)


def _layers(training: Watched) -> list[str]:
    """Return the parameters with a fan-in, in the model's order; all of them if none has one."""
    trained = [p for p in training.parameters.values() if p.trained]
    return [p.name for p in trained if p.fan_in] or [p.name for p in trained]


def _loss(axes: Axes, judged: JudgedTraining) -> None:
    steps, losses = np.array(judged.training.losses).reshape(-1, 2).T
    axes.plot(steps, losses, color=BLUE, linewidth=0.9)
    axes.set_ylabel("loss")
    axes.set_xlim(-0.5, max(1, judged.training.length) - 0.5)
    for finding in judged.findings:
        axes.axvline(finding.first.step, color=RED, linewidth=0.8, linestyle=":")
    fired = [f"{f.watchpoint.name} (step {f.first.step})" for f in judged.findings]
    axes.set_title("\n".join(wrap(", ".join(fired), 120)), loc="left", color=RED)


def _strip(
    figure: Figure, axes: Axes, judged: JudgedTraining, layers: list[str],
    values: Callable[[WatchedStep], Mapping[str, float]], label: str,
) -> None:  # fmt: skip
    steps = [step for step in judged.training.steps if not step.skipped]
    grid = np.array([[values(step).get(name, np.nan) for step in steps] for name in layers])
    grid = np.where(grid > 0, grid, np.nan)
    axes.set_title(label, loc="left")
    axes.grid(visible=False)
    axes.set_yticks(range(len(layers)), [clip(name, _LONGEST) for name in layers], fontsize=7)
    axes.set_xticks(range(len(steps)), [str(s.number) for s in steps], fontsize=7, rotation=90)
    if not np.isfinite(grid).any():
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color=MUTED)
        return
    low, high = np.nanmin(grid), np.nanmax(grid)
    image = axes.imshow(
        grid, aspect="auto", cmap="viridis", norm=LogNorm(low, max(high, low * 1.01)),
        interpolation="nearest",
    )  # fmt: skip
    bar = figure.colorbar(image, ax=axes, pad=0.01, aspect=12)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))
    bar.ax.yaxis.set_minor_formatter(NullFormatter())


def _gradients(step: WatchedStep) -> dict[str, float]:
    return {row.name: row.rms for row in step.rows if row.kind == "parameter"}


def _changes(step: WatchedStep) -> dict[str, float]:
    return {c.name: c.change / c.before for c in step.changes if c.before > 0}
