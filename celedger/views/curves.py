"""`celedger plot curves` and `plot steps`: series of several commits side by side, a small plot per
metric and a colour per commit. A curve over epochs is the mean of a commit's trials in a band from
the lowest to the highest; one over steps is a trial's, thinned where it is long.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from celedger.errors import CeledgerError, UsageError
from celedger.ledger.read import Reader
from celedger.model import Commit, Metric
from celedger.views import picture, samples
from celedger.views.format import Scale, clip, count, plain, short
from celedger.views.picture import CYCLE, FAINT, MUTED
from celedger.views.samples import Batch

MOST_COMMITS = len(CYCLE)  # colours that all readers can tell apart
MOST_METRICS = 9
MOST_SERIES = 6
MOST_POINTS = 500  # of a line: more than a sheet has room for
_MOST_EPOCHS = 60  # whose ends are marked: beyond it they are a grey bar
_PER_ROW = 3
_STEP_SERIES = ("loss", "gradient_norm", "learning_rate", "step_time")  # in this order
_STEP_UNITS = {"step_time": "s"}  # of what celedger.child.torch reports


@dataclass(frozen=True, slots=True)
class Curve:
    """One line in the metric's unit. A mean, low or high is NaN where a value is not finite, so
    that the line ends there; `lost` are those places. `scattered`: the curve stands for several
    trials or steps, and has a band."""

    commit: Commit
    at: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    lost: NDArray[np.float64]
    scattered: bool
    failed: bool = False  # no trial ended well: what is drawn is how far the others came
    ends: tuple[int, ...] = ()  # the steps at which epochs end


@dataclass(frozen=True, slots=True)
class Panel:
    metric: Metric
    curves: tuple[Curve, ...]
    finite: NDArray[np.float64]  # all values, which decide the limits of the axis


@dataclass(frozen=True, slots=True)
class Chart:
    """The panels of a picture, `across` in a row; `subject` says what is drawn."""

    title: str
    subject: str
    axis: str  # "epoch" or "step"
    panels: tuple[Panel, ...]
    across: int


def save(chart: Chart, path: Path) -> Path:
    """Draw the chart to a PNG or SVG. Raises UsageError for another suffix."""
    picture.check_suffix(path)
    return picture.save(draw(chart), path)


def epochs_chart(
    ledger: Reader, title: tuple[str, str], shas: Sequence[str], metrics: Sequence[str] = ()
) -> Chart:
    """Read the epochs of a (suite, task) at up to seven commits, given by full hashes; `metrics`
    default to all that are judged and have epochs. Raises UsageError for a metric that is not
    known or too many commits, CeledgerError where a commit has no trials."""
    batches = _batches(ledger, title, shas)
    if len(metrics) > MOST_METRICS:
        raise UsageError(f"{len(metrics)} metrics do not fit", f"name at most {MOST_METRICS}")
    recipe = max((b for _, b in batches), key=lambda b: b.newest).recipe
    series = [(commit, batch, _epochs(ledger, batch)) for commit, batch in batches]
    reported = {name for _, _, by_metric in series for name in by_metric}
    named = [samples.find_metric(ledger, recipe, name) for name in metrics]
    if not named:
        every = samples.in_order(m for m in ledger.metrics(recipe) if m.name in reported)
        named = ([m for m in every if m.direction.sign] or every)[:MOST_METRICS]
    missing = [m.name for m in named if m.name not in reported]
    if missing or not named:
        what = missing[0] if missing else "anything"
        raise CeledgerError(
            f"no trial of {'/'.join(title)} at these commits reported {what} by epoch",
            f"metrics with epochs: {', '.join(sorted(reported)) or 'none'}",
        )
    panels = []
    for metric in named:
        trials = [(c, b, s[metric.name]) for c, b, s in series if metric.name in s]
        values = np.array([x for _, _, s in trials for points in s for _, x in points])
        curves = tuple(_epoch_curve(*each) for each in trials)
        panels.append(Panel(metric, curves, values[np.isfinite(values)]))
    most = max(len(s) for _, _, by_metric in series for s in by_metric.values())
    bands = f", up to {count(most, 'trial')} each: mean, with the lowest and highest"
    subject = count(len(batches), "commit") + (bands if most > 1 else "") + _differing(batches)
    across = min(_PER_ROW, len(panels))
    return Chart("/".join(title), subject, "epoch", tuple(panels), across)


def steps_chart(
    ledger: Reader, title: tuple[str, str], shas: Sequence[str], metrics: Sequence[str] = ()
) -> Chart:
    """Read the steps of a (suite, task), as `epochs_chart`; `metrics` default to all series."""
    batches = _batches(ledger, title, shas)
    trials: dict[str, list[tuple[Commit, Mapping[int, Sequence[float]]]]] = defaultdict(list)
    for commit, batch in batches:
        for record in [r for r in batch.records if r.ok] or batch.records:
            for name, epochs in ledger.steps(record.trial.ulid).items():
                trials[name].append((commit, epochs))
    if not trials:
        raise CeledgerError(
            f"no trial of {'/'.join(title)} at these commits reported series per step",
            "ask for them with `steps = true` in the suite, and run it again",
        )
    absent = [name for name in metrics if name not in trials]
    if absent:
        raise UsageError(f"there is no series {absent[0]!r}", f"there are {', '.join(trials)}")
    declared = {m.name: m for m in ledger.metrics(batches[-1][1].recipe)}
    panels, longest = [], 0
    for name in list(metrics) or sorted(trials, key=_rank)[:MOST_SERIES]:
        values = [np.concatenate([e[i] for i in sorted(e)]) for _, e in trials[name]]
        curves = tuple(
            _step_curve(commit, joined, [len(epochs[i]) for i in sorted(epochs)])
            for (commit, epochs), joined in zip(trials[name], values, strict=True)
        )
        metric = declared.get(name, Metric(name, _STEP_UNITS.get(name, "")))
        every = np.concatenate(values)
        panels.append(Panel(metric, curves, every[np.isfinite(every)]))
        longest = max([longest, *(joined.size for joined in values)])
    most = max(len(panel.curves) for panel in panels)
    subject = f"{count(most, 'trial')} of up to {count(longest, 'step')}"
    if longest > MOST_POINTS:
        subject += f": means of {_width(longest)} steps, with the lowest and highest"
    return Chart("/".join(title), subject, "step", tuple(panels), 1)


def _batches(
    ledger: Reader, title: tuple[str, str], shas: Sequence[str]
) -> list[tuple[Commit, Batch]]:
    shas = list(dict.fromkeys(shas))
    if not 1 <= len(shas) <= MOST_COMMITS:
        problem = f"{len(shas)} commits are too many curves to tell apart"
        raise UsageError(
            problem if shas else "no commit to plot", f"name 1 to {MOST_COMMITS} commits"
        )
    return [samples.batch_at(ledger, sha, *title) for sha in shas]


def _rank(name: str) -> tuple[int, str]:
    return (_STEP_SERIES.index(name) if name in _STEP_SERIES else len(_STEP_SERIES), name)


def _differing(batches: Sequence[tuple[Commit, Batch]]) -> str:
    """Say what does not compare."""
    parts = {"suites": {b.recipe for _, b in batches},
             "environments": {b.environment for _, b in batches}}  # fmt: skip
    differing = [name for name, values in parts.items() if len(values) > 1]
    return f"; not comparable: their {' and '.join(differing)} differ" if differing else ""


def _epochs(ledger: Reader, batch: Batch) -> dict[str, list[list[tuple[int, float]]]]:
    """Return a series a trial for each metric; of trials that ended well, or of all when none did.
    Those that were stopped early count only where there are no whole ones."""
    well = [r for r in batch.records if r.ok]
    well = [r for r in well if not r.early_stopped] or well
    series: dict[str, list[list[tuple[int, float]]]] = defaultdict(list)
    for record in well or batch.records:
        for name, points in ledger.series(record.trial.ulid).items():
            series[name].append(points)
    return series


def _epoch_curve(
    commit: Commit, batch: Batch, series: Sequence[Sequence[tuple[int, float]]]
) -> Curve:
    by_epoch: dict[int, list[float]] = defaultdict(list)
    for points in series:
        for epoch, value in points:
            by_epoch[epoch].append(value)
    epochs = np.array(sorted(by_epoch), float)
    values = [np.array(by_epoch[epoch]) for epoch in sorted(by_epoch)]
    # A mean over trials of which one is not finite is not finite: the line must end there.
    whole = np.array([bool(np.isfinite(v).all()) for v in values], bool)
    mean, low, high = (
        np.array([f(v) if ok else math.nan for v, ok in zip(values, whole, strict=True)])
        for f in (np.mean, np.min, np.max)
    )
    scattered = any(v.size > 1 for v in values)
    failed = not any(r.ok for r in batch.records)
    return Curve(commit, epochs, mean, low, high, epochs[~whole], scattered, failed)


def _step_curve(commit: Commit, values: NDArray[np.float64], lengths: Sequence[int]) -> Curve:
    """Return a curve of at most MOST_POINTS neighbourhoods of the steps."""
    width = _width(values.size) or 1
    finite = np.isfinite(values)
    whole = np.where(finite, values, math.nan)
    rows = np.concatenate([whole, np.repeat(whole[-1:], -values.size % width)]).reshape(-1, width)
    at = np.minimum(np.arange(rows.shape[0]) * width + (width - 1) / 2, values.size - 1)
    mean, low, high = rows.mean(axis=1), rows.min(axis=1), rows.max(axis=1)
    lost = np.flatnonzero(~finite).astype(float)
    ends = tuple(np.cumsum(lengths).tolist())
    return Curve(commit, at, mean, low, high, lost, width > 1, ends=ends)


def _width(steps: int) -> int:
    """Return how many neighbours become one point."""
    return -(-steps // MOST_POINTS)


def draw(chart: Chart) -> Figure:
    panels, across = chart.panels, chart.across
    down = -(-len(panels) // across)
    curves = {c.commit.sha: c for panel in panels for c in panel.curves}
    colours = dict(zip(curves, CYCLE, strict=False))
    height = 0.9 + (3.6 if across == 1 else 2.9) * down + 0.35 * (len(curves) + 3) / 2
    if chart.axis == "step":
        height = 1.2 + 1.9 * down + 0.17 * len(curves)
    with picture.style():
        figure = picture.sheet(chart.title, height)
        grid = figure.subplots(down, across, squeeze=False, sharex=True)
        for i, axes in enumerate(grid.flat):
            if i >= len(panels):
                axes.set_visible(False)
                continue
            _draw_panel(axes, panels[i], colours, steps=chart.axis == "step")
            if i + across >= len(panels):  # the lowest of its column
                axes.set_xlabel(chart.axis, color=MUTED)
                axes.tick_params(labelbottom=True)
        if across == 1:
            figure.align_ylabels(grid[:, 0])
        grid.flat[0].set_title(chart.subject, loc="left", pad=8)
        handles = [_handle(curve, colours[sha]) for sha, curve in curves.items()]
        picture.finish(figure, grid.flat[0], handles, columns=2)
    return figure


def _draw_panel(axes: Axes, panel: Panel, colours: Mapping[str, str], *, steps: bool) -> None:
    metric, finite = panel.metric, panel.finite
    size = np.abs(finite)
    magnitude = float(np.median(size) if steps else size.max()) if size.size else 0.0
    scale = Scale.of(metric.unit, magnitude)
    label = metric.name + (f" ({scale.unit})" if scale.unit else "")
    axes.set_ylabel(label if steps else picture.value_label(metric, scale.unit))
    axes.xaxis.set_major_locator(MaxNLocator(10 if steps else 6, integer=True))
    if finite.size:
        picture.fit_values(axes, finite / scale.divisor)
    epochs = max((curve.ends for curve in panel.curves), key=len)
    for end in epochs[:-1] if len(epochs) <= _MOST_EPOCHS else ():
        axes.axvline(end - 0.5, color=FAINT, linewidth=0.8, zorder=0.5)
    for i, curve in enumerate(panel.curves):
        colour = colours[curve.commit.sha]
        mean, low, high = (x / scale.divisor for x in (curve.mean, curve.low, curve.high))
        if curve.scattered:
            axes.fill_between(curve.at, low, high, color=colour, alpha=0.14, linewidth=0)
        # Equal to the bit is common here: a wider line shows under the one that covers it.
        equal = [c is not curve and _equal(c, curve) for c in panel.curves]
        width = 1.0 if steps else 1.5 + 2.2 * sum(equal[i + 1 :])
        marker = "" if steps or any(equal) or curve.at.size > 30 else "o"
        axes.plot(
            curve.at, mean, color=colour, linewidth=width, alpha=0.85 if steps else 1.0,
            marker=marker, markersize=3, linestyle="--" if curve.failed else "-", label="mean",
        )  # fmt: skip
        edge = 0.04 if metric.direction.sign < 0 else 0.96
        picture.crosses(axes, curve.lost, edge, colour, label="not finite")


def _equal(one: Curve, other: Curve) -> bool:
    pairs = ((one.at, other.at), (one.low, other.low), (one.high, other.high))
    return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def _handle(curve: Curve, colour: str) -> Artist:
    commit = curve.commit
    name = clip(f"{short(commit.sha)}  {plain(commit.subject)}", 64)  # two fit side by side
    return Line2D(
        [], [], color=colour, linewidth=1.5, marker="o" if not curve.ends else "", markersize=3,
        linestyle="--" if curve.failed else "-",
        label=f"{name} (did not finish)" if curve.failed else name,
    )  # fmt: skip
