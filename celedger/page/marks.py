"""The common parts of the pictures of the ledger: an axis of commits, trials, and positions without
a value. Knows nothing of the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from celedger.base.model import Commit, Direction, Metric
from celedger.views.document import iso_date, short
from celedger.views.picture import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, RED, SKY, spaced

CYCLE = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY, INK)
SHAPES = ("o", "s", "D", "^", "v", "P", "X")  # beside CYCLE
# Colour and shape of a mark: a reader who sees no colour tells them apart, too.
STATES = {
    "unchanged": (BLUE, "o"), "worse": (RED, "s"), "better": (GREEN, "D"),
    "undecided": (PURPLE, "v"), "accepted": (SKY, "P"),
}  # fmt: skip
_TICKS = 9  # hashes over dates that fit side by side on WIDTH
_NEAR = 0.02  # of the axis: values nearer than this hide each other
_WORSE_END = {Direction.HIGHER: 0.05}  # of the axis of values, as a share of its height
_CROSS = 6.0  # points


def commit_axis(
    axes: Axes, commits: Sequence[Commit], *, first: int = 0, named: Sequence[int] = ()
) -> None:
    """Label an axis whose position `first + i` is the i-th commit with short hashes over dates, as
    many as are legible, the ends and the `named` positions among them."""
    n = len(commits)
    ticks = spaced(n, _TICKS, [position - first for position in named])
    labels = [f"{short(commits[i].sha)}\n{iso_date(commits[i].commit_time)}" for i in ticks]
    axes.set_xticks([first + i for i in ticks], labels)
    margin = max(0.6, 0.015 * n)
    axes.set_xlim(first - margin, first + n - 1 + margin)


def crosses(
    axes: Axes, at: Sequence[float], metric: Metric | None, colour: str, label: str
) -> None:
    """Mark positions without a value at the worse end of the metric's axis; without a metric, in
    the middle."""
    if len(at):
        share = _WORSE_END.get(metric.direction, 0.95) if metric else 0.5
        axes.plot(
            at, [share] * len(at), "x", color=colour, markersize=_CROSS, markeredgewidth=1.4,
            label=label, transform=axes.get_xaxis_transform(),
        )  # fmt: skip


def side_by_side(axes: Axes, positions: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return where to draw dots of this size, so that each is seen: equal values of one commit
    stand beside each other. Limits of the axis of commits are set."""
    low, high = axes.get_xlim()
    dot = 0.014 * (high - low)  # a mark of 6 points on WIDTH
    near = _NEAR * float(np.ptp(values)) if values.size else 0.0
    shifted = positions.astype(float)
    order = np.lexsort((values, positions))
    apart = (np.diff(positions[order]) != 0) | (np.diff(values[order]) > near)
    for row in np.split(order, np.flatnonzero(apart) + 1):
        step = min(dot, 0.8 / max(1, row.size))
        shifted[row] += (np.arange(row.size) - (row.size - 1) / 2) * step
    return shifted


def shade(
    axes: Axes, positions: Sequence[int], label: str, colour: str = FAINT, alpha: float = 0.7
) -> None:
    """Shade commits over the whole height."""
    at = np.array(positions, dtype=int)
    runs = np.split(at, np.flatnonzero(np.diff(at) > 1) + 1)
    if spans := [(run[0] - 0.5, run.size) for run in runs if run.size]:
        axes.broken_barh(
            spans, (0, 1), transform=axes.get_xaxis_transform(), facecolor=colour, alpha=alpha,
            zorder=0, label=label,
        )  # fmt: skip
