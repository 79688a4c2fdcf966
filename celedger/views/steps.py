"""Series per step of several commits: a small plot per series, one under the other, a colour per
commit and a line per trial. Long series are drawn as the mean of neighbours, in a band from the
lowest to the highest of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from celedger.errors import CeledgerError, UsageError, command
from celedger.ledger.read import Reader
from celedger.model import Commit, Metric
from celedger.views import picture, samples
from celedger.views.format import Scale, clip, count, plain, short
from celedger.views.picture import CYCLE, MUTED

MOST_COMMITS = len(CYCLE)
MOST_SERIES = 6
MOST_POINTS = 500  # of a line: more than a sheet has room for
MOST_EPOCHS = 60  # whose ends are marked: beyond it they are a grey bar
_HARNESS = {"step_time": "s"}  # units of what celedger.child.torch reports
_ORDER = ("loss", "gradient_norm", "learning_rate", "step_time")


@dataclass(frozen=True, slots=True)
class Line:
    """One series of one trial, the epochs joined; `ends` are the steps at which epochs end."""

    commit: Commit
    values: NDArray[np.float64]
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    name: str
    metric: Metric
    lines: tuple[Line, ...]


def steps_figure(
    ledger: Reader,
    task: str,
    commits: Sequence[str],
    path: Path,
    *,
    metrics: Sequence[str] = (),
    suite: str | None = None,
) -> Path:
    """Draws the steps of `task` (or `suite/task`) at up to seven commits, given by full hashes,
    to a PNG or SVG; `metrics` default to all series there are. Raises UsageError for a suffix or
    task that is not known or too many commits, CeledgerError where there are no such series."""
    picture.check_suffix(path)
    title, shown = panels(ledger, task, commits, metrics, suite)
    return picture.save(draw(title, shown), path)


def panels(
    ledger: Reader,
    task: str,
    shas: Sequence[str],
    metrics: Sequence[str] = (),
    suite: str | None = None,
) -> tuple[str, list[Panel]]:
    """(title, panels)."""
    shas = list(dict.fromkeys(shas))
    if not 1 <= len(shas) <= MOST_COMMITS:
        raise UsageError(f"{len(shas)} commits cannot be told apart", f"name 1 to {MOST_COMMITS}")
    suite, task = samples.find_task(ledger, task, suite)
    lines: dict[str, list[Line]] = {}
    recipe = ""
    for sha in shas:
        commit = ledger.commit(sha)
        made = samples.batches(ledger.trials(commit=sha, suite=suite, task=task))
        if commit is None or not made:
            raise CeledgerError(
                f"no trial of {suite}/{task} at {short(sha)} is in the ledger",
                f"type {command('run', sha[:12], suite=suite, task=task)}",
            )
        recipe = made[0].recipe
        well = [r for r in made[0].records if r.ok]
        for record in well or made[0].records:
            for name, epochs in ledger.steps(record.trial.ulid).items():
                parts = [epochs[epoch] for epoch in sorted(epochs)]
                ends = tuple(np.cumsum([len(part) for part in parts]).tolist())
                lines.setdefault(name, []).append(Line(commit, np.concatenate(parts), ends))
    if not lines:
        raise CeledgerError(
            f"no trial of {suite}/{task} at these commits reported series per step",
            "ask for them with `steps = true` in the suite, and run it again",
        )
    absent = [name for name in metrics if name not in lines]
    if absent:
        raise UsageError(f"there is no series {absent[0]!r}", f"there are {', '.join(lines)}")
    known = {m.name: m for m in ledger.metrics(recipe)}
    names = list(metrics) or sorted(lines, key=_rank)[:MOST_SERIES]
    return f"{suite}/{task}", [
        Panel(name, known.get(name, Metric(name, _HARNESS.get(name, ""))), tuple(lines[name]))
        for name in names
    ]


def _rank(name: str) -> tuple[int, str]:
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)


def draw(title: str, shown: Sequence[Panel]) -> Figure:
    commits = list({line.commit.sha: line.commit for p in shown for line in p.lines}.values())
    colours = {commit.sha: CYCLE[i] for i, commit in enumerate(commits)}
    with picture.style():
        figure = picture.sheet(title, 1.2 + 1.9 * len(shown) + 0.17 * len(commits))
        grid = figure.subplots(len(shown), 1, squeeze=False, sharex=True)[:, 0]
        for axes, panel in zip(grid, shown, strict=True):
            _panel(axes, panel, colours)
        figure.align_ylabels(grid)
        grid[-1].set_xlabel("step", color=MUTED)
        trials = max(len(panel.lines) for panel in shown)
        steps = max(line.values.size for panel in shown for line in panel.lines)
        text = f"{count(trials, 'trial')} of up to {count(steps, 'step')}"
        if steps > MOST_POINTS:
            text += f": means of {_width(steps)} steps, with the lowest and highest"
        grid[0].set_title(text, loc="left", pad=8)
        handles: list[Artist] = [
            Line2D(
                [], [], color=colours[c.sha], linewidth=1.5,
                label=clip(f"{short(c.sha)}  {plain(c.subject)}", 64),
            )
            for c in commits
        ]  # fmt: skip
        picture.finish(figure, grid[0], handles, columns=2)
    return figure


def _width(steps: int) -> int:
    """Neighbours that become one point."""
    return -(-steps // MOST_POINTS)


def _panel(axes: Axes, panel: Panel, colours: dict[str, str]) -> None:
    finite = np.concatenate([line.values[np.isfinite(line.values)] for line in panel.lines])
    scale = Scale.of(panel.metric.unit, float(np.median(np.abs(finite))) if finite.size else 0.0)
    axes.set_ylabel(panel.name + (f" ({scale.unit})" if scale.unit else ""))
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    if finite.size:
        picture.fit_values(axes, finite / scale.divisor)
    longest = max(panel.lines, key=lambda line: line.values.size)
    if len(longest.ends) <= MOST_EPOCHS:
        for end in longest.ends[:-1]:
            axes.axvline(end - 0.5, color=picture.FAINT, linewidth=0.8, zorder=0.5)
    for line in panel.lines:
        colour = colours[line.commit.sha]
        at, mean, low, high = binned(line.values / scale.divisor)
        if at.size < line.values.size:
            axes.fill_between(at, low, high, color=colour, alpha=0.14, linewidth=0)
        axes.plot(at, mean, color=colour, linewidth=1.0, alpha=0.85)
        lost = np.flatnonzero(~np.isfinite(line.values))
        if lost.size:
            axes.plot(
                lost, np.full(lost.size, 0.96), "x", color=colour, markersize=4,
                transform=axes.get_xaxis_transform(), label="not finite",
            )  # fmt: skip


def binned(
    values: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(steps, means, lowest, highest) of at most MOST_POINTS neighbourhoods of the steps; NaN
    where one of them is not finite, so that the line ends there."""
    width = _width(values.size) or 1
    whole = np.where(np.isfinite(values), values, math.nan)
    padded = np.concatenate([whole, np.repeat(whole[-1:], -values.size % width)])
    rows = padded.reshape(-1, width)
    at = np.minimum(np.arange(rows.shape[0]) * width + (width - 1) / 2, values.size - 1)
    return at, rows.mean(axis=1), rows.min(axis=1), rows.max(axis=1)
