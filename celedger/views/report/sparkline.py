"""The small lines of the table: the newest commits of a series as the path of an SVG. A break is a
stretch that nobody measured."""

from __future__ import annotations

import numpy as np

from celedger.views.report.series import Series
from celedger.views.report.states import RECENT

WIDTH, HEIGHT = 100, 22
_FLATTEST = 0.05  # of the level: a range narrower than this is not stretched to the full height


def path(series: Series, commits: int) -> str:
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
        gaps = np.diff(positions, prepend=positions[0] - 2) > 1
        column = positions // per_column
        x = y = 0
        starts = np.flatnonzero(np.diff(column, prepend=-1))
        for begin, mean in zip(starts, _means(values, starts), strict=True):
            across = round(int(column[begin]) * scale)
            down = round((HEIGHT - 2) * (1 - (mean - bottom) / span)) + 1
            if gaps[begin]:  # as of the first
                parts += [f"M{across} {down}", "h0"]  # a commit alone is a dot, by its round caps
            elif down != y:
                parts.append(f"l{across - x} {down - y}".replace(" -", "-"))
            elif parts[-1][0] == "h":
                parts[-1] = f"h{int(parts[-1][1:]) + across - x}"
            else:
                parts.append(f"h{across - x}")
            x, y = across, down
    return "".join(parts)


def _means(values: np.ndarray, starts: np.ndarray) -> list[float]:
    sizes = np.diff(starts, append=values.size)
    return list(np.add.reduceat(values, starts) / sizes)
