"""The small lines of the table: the newest commits of a series as the path of an SVG. A break is a
stretch that nobody measured."""

from __future__ import annotations

import numpy as np

from celedger.page.health import RECENT
from celedger.page.series import ChartSeries

WIDTH, HEIGHT = 100, 22
_FLATTEST = 0.05  # of the level: a range narrower than this is not stretched to the full height


def path(series: ChartSeries, commits: int) -> str:
    """Return the `d` of a path over the last RECENT of so many commits; "" without values there.

    A column of the picture is the mean of the commits in it. Environments break the line.
    """
    first = max(0, commits - RECENT)
    per_column = max(1, -(-(commits - first) // WIDTH))
    columns = [
        (stretch.positions[keep] - first, stretch.means[keep])
        for stretch in series.stretches
        if (keep := (stretch.positions >= first) & np.isfinite(stretch.means)).any()
    ]
    if not columns:
        return ""
    every = np.concatenate([values for _, values in columns])
    low, high = float(every.min()), float(every.max())
    span = max(high - low, _FLATTEST * max(abs(low), abs(high)), 1e-300)
    bottom = (low + high - span) / 2
    scale = WIDTH / max(1, (commits - first) // per_column)
    parts = []
    for positions, values in columns:
        column = positions // per_column
        starts = np.flatnonzero(np.diff(column, prepend=-1))
        gaps = np.diff(positions, prepend=positions[0] - 2)[starts] > 1
        across = np.rint(column[starts] * scale).astype(int)
        down = (
            np.rint((HEIGHT - 2) * (1 - (_means(values, starts) - bottom) / span)).astype(int) + 1
        )
        for gap, x, y in zip(gaps, across, down, strict=True):
            # A commit alone is a dot, by the round caps of its line.
            parts.append(f"M{x} {y}h0" if gap else f"L{x} {y}")
    return "".join(parts)


def _means(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    sizes = np.diff(starts, append=values.size)
    return np.asarray(np.add.reduceat(values, starts) / sizes)
