"""`celedger plot curves` and `plot steps`: series of several commits, a small plot per metric and a
colour per commit. A curve is the mean of a commit's trials, in a band from lowest to highest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from celedger.base.errors import CeledgerError, UsageError
from celedger.base.model import Commit, Metric
from celedger.ledger.read import Reader
from celedger.page.marks import CYCLE, SHAPES, crosses
from celedger.repo.synthetic import is_synthetic
from celedger.views import picture, samples
from celedger.views.document import clip, count, plain, short
from celedger.views.drift import environment_text
from celedger.views.samples import Batch

MOST_COMMITS = len(CYCLE)  # colours that all readers can tell apart
MOST_PANELS = 9
_PER_ROW = 3
_FEW = 30  # positions that are told apart
_STEP_UNITS = {"step_time": "s"}  # as celedger.child.torch reports them


@dataclass(frozen=True, slots=True)
class Curve:
    """One line in the metric's unit, and its band. All three are NaN at a position where a value of
    some trial is not finite."""

    name: str
    trials: int
    positions: NDArray[np.int64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    @classmethod
    def of(cls, name: str, trials: Sequence[Sequence[tuple[int, float]]]) -> Curve:
        """Return the curve of the (position, value) pairs that trials reported."""
        by_position: dict[int, list[float]] = defaultdict(list)
        for series in trials:
            for position, value in series:
                by_position[position].append(value)
        positions = sorted(by_position)
        values = [by_position[position] for position in positions]
        rows = np.array(
            [[sum(v) / len(v) for v in values], list(map(min, values)), list(map(max, values))]
        )
        rows[:, ~np.isfinite(rows[0])] = np.nan
        return cls(name, len(trials), np.array(positions, np.int64), *rows)


@dataclass(frozen=True, slots=True)
class Chart:
    """The panels of a picture, each a metric with its curves; `subject` is its title."""

    title: str
    subject: str
    axis: str  # "epoch" or "step"
    panels: tuple[tuple[Metric, tuple[Curve, ...]], ...]


def read_chart(
    ledger: Reader,
    title: tuple[str, str],
    shas: Sequence[str],
    metrics: Sequence[str] = (),
    axis: str = "epoch",
) -> Chart:
    """Read the epochs or steps of a (suite, task) at up to seven commits, given by full hashes;
    `metrics` default to all that are judged or, by step, all. Raises UsageError for an unknown
    metric or too many commits, CeledgerError if a commit has no trials."""
    batches = _batches(ledger, title, shas)
    curves: dict[str, list[Curve]] = defaultdict(list)
    for (_, batch), label in zip(batches, _names(ledger, batches), strict=True):
        trials = [_series(ledger, ulid, axis) for ulid in _trials(batch)]
        for name in dict.fromkeys(name for series in trials for name in series):
            curves[name].append(Curve.of(label, [s[name] for s in trials if name in s]))
    missing = [name for name in metrics if name not in curves]
    if missing or not curves:
        name = missing[0] if missing else "anything"
        hint = f"known: {', '.join(curves)}"
        if axis == "step" and not curves:
            hint = "ask for them with `steps = true` in the suite, and run it again"
        kind = UsageError if curves else CeledgerError
        raise kind(
            f"no trial of {'/'.join(title)} at these commits reported {name} by {axis}", hint
        )
    recipe = max((b for _, b in batches), key=lambda b: b.newest).recipe
    declared = {m.name: m for m in ledger.metrics(recipe)}
    named = [declared.get(x, Metric(x, _STEP_UNITS.get(x, ""))) for x in metrics or curves]
    if not metrics and axis == "epoch":
        named = samples.in_order([m for m in named if m.direction.sign] or named)
    panels = tuple((metric, tuple(curves[metric.name])) for metric in named[:MOST_PANELS])
    most = max(curve.trials for _, curves in panels for curve in curves)
    bands = f", up to {count(most, 'trial')} each: mean, with the lowest and highest"
    word = "commit" if len(set(shas)) > 1 else "environment"
    subject = count(len(batches), word) + (bands if most > 1 else "") + _differing(ledger, batches)
    return Chart("/".join(title), subject, axis, panels)


def _series(ledger: Reader, ulid: str, axis: str) -> Mapping[str, list[tuple[int, float]]]:
    """Return a trial's reports, as (position on the axis, value)."""
    if axis == "epoch":
        return ledger.series(ulid)
    return {
        name: list(enumerate(np.concatenate([epochs[i] for i in sorted(epochs)]).tolist()))
        for name, epochs in ledger.steps(ulid).items()
    }


def _batches(
    ledger: Reader, title: tuple[str, str], shas: Sequence[str]
) -> list[tuple[Commit, Batch]]:
    shas = list(dict.fromkeys(shas))
    if not 1 <= len(shas) <= MOST_COMMITS:
        problem = f"{len(shas)} commits are too many curves to tell apart"
        raise UsageError(
            problem if shas else "no commit to plot", f"name 1 to {MOST_COMMITS} commits"
        )
    measured = [samples.measured(ledger, sha, *title) for sha in shas]
    if len(measured) > 1:
        return [(commit, batches[0]) for commit, batches in measured]
    ((commit, batches),) = measured  # then its environments, each with its newest trials
    alike = [b for b in batches if b.recipe == batches[0].recipe]
    newest = {batch.environment: batch for batch in reversed(alike)}
    return [(commit, batch) for batch in list(newest.values())[::-1][:MOST_COMMITS]]


def _names(ledger: Reader, batches: Sequence[tuple[Commit, Batch]]) -> list[str]:
    """Name the curves by their commits, or those of one by what its environments differ in."""
    first = ledger.environment(batches[0][1].environment)
    names: list[str] = []
    for commit, batch in batches:
        hash_ = "" if is_synthetic(commit) else f"{short(commit.sha)}  "
        name = f"{hash_}{plain(commit.subject)}"
        if name in names:
            name = environment_text(first, ledger.environment(batch.environment))
        names.append(clip(name, 64))  # two fit per row
    return names


def _trials(batch: Batch) -> list[str]:
    """Return the complete trials that ended well; if there are none, all."""
    well = [r for r in batch.records if r.ok]
    whole = [r for r in well if not r.early_stopped]
    return [r.trial.ulid for r in whole or well or batch.records]


def _differing(ledger: Reader, batches: Sequence[tuple[Commit, Batch]]) -> str:
    """Say which commits are not comparable, and why. An edit of the suite's files is an edit."""
    recipes = {b.recipe for _, b in batches}
    if any(is_synthetic(commit) for commit, _ in batches):
        recipes = {task.without_files for task in ledger.tasks() if task.recipe in recipes}
    parts = {"suites": recipes,
             "environments": {b.environment for _, b in batches}}  # fmt: skip
    differing = [name for name, values in parts.items() if len(values) > 1]
    return f"; not comparable: their {' and '.join(differing)} differ" if differing else ""


def draw(chart: Chart) -> Figure:
    """Draw a small plot for each panel of the chart."""
    across = min(_PER_ROW, len(chart.panels)) if chart.axis == "epoch" else 1
    down = -(-len(chart.panels) // across)
    names = dict.fromkeys(c.name for _, curves in chart.panels for c in curves)
    marks = dict(zip(names, zip(CYCLE, SHAPES, strict=True), strict=False))
    height = 1.2 + (3.4 if down == 1 else 2.6) * down + 0.2 * len(names)
    with picture.style():
        figure = picture.sheet(chart.title, height)
        grid = figure.subplots(down, across, squeeze=False)
        for axes, (metric, curves) in zip(grid.flat, chart.panels, strict=False):
            _draw_panel(axes, metric, curves, marks)
            axes.set_xlabel(chart.axis)
        for axes in grid.flat[len(chart.panels) :]:
            axes.set_visible(False)
        picture.subtitle(grid.flat[0], chart.subject)
        picture.finish(figure, grid.flat[0])
    return figure


def _draw_panel(
    axes: Axes, metric: Metric, curves: Sequence[Curve], marks: dict[str, tuple[str, str]]
) -> None:
    """Draw the curves of a metric. Where there are few positions each has a mark, and its spread a
    line of its own: a band shows nothing of a lone one."""
    every = np.concatenate([x for curve in curves for x in (curve.low, curve.high)])
    divisor = picture.value_axis(axes, metric, every[np.isfinite(every)]).divisor
    axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))
    ends = [end for curve in curves for end in curve.positions[[0, -1]].tolist()]
    few = max(ends) - min(ends) < _FEW
    axes.set_xlim(min(ends) - 0.4, max(ends) + 0.4)
    for number, curve in enumerate(curves):
        positions, (colour, shape) = curve.positions, marks[curve.name]
        mean, low, high = (x / divisor for x in (curve.mean, curve.low, curve.high))
        marker, width = (shape, 1.5) if few else ("", 0.8)
        at = positions.astype(float)
        if max(ends) == min(ends):  # one epoch: beside each other
            at = positions + 0.1 * (number - (len(curves) - 1) / 2)
        axes.plot(
            at, mean, color=colour, linewidth=width, marker=marker, markersize=3, alpha=0.8,
            label=curve.name,
        )  # fmt: skip
        if curve.trials > 1:
            axes.fill_between(at, low, high, color=colour, alpha=0.14, linewidth=0)
            if few:
                axes.vlines(at, low, high, color=colour, alpha=0.4, linewidth=1.5)
        lost = at[np.isnan(mean)].tolist()
        crosses(axes, lost, metric, colour, "not finite")
