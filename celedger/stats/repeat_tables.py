"""What repeats of the same code say of a trial's standard deviation and of the shape of its noise.

Lives here: the likelihood of groups of repeats, their common level integrated out, as a table over
standard deviations and shapes. Tables of several groups add up.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from celedger.stats import trial_density as density
from celedger.stats.arrays import Floats, Ints

LOG_SD_STEP = 0.2
LOG_SDS: Floats = np.arange(-16.0, 2.0 + LOG_SD_STEP / 2, LOG_SD_STEP)
"""Logarithm of the standard deviation over the metric's scale. e^-16: a ten-millionth; less is
exact for every purpose. e^2: metrics whose level is near 0."""
PLAIN = len(density.OUTLIER_SHARES)  # the shapes without a second mode
LARGEST_GROUP = 8
"""Larger groups are split: the cost grows with the square, the loss is one freedom a part."""
_AROUND: Floats = np.linspace(-4, 4, 21)  # levels around each value, in standard deviations
_NEAR = 1.5  # width of the share that a value has of the levels around it
_WINDOW_BELOW, _WINDOW = 25, 40
"""Of the table's deviations: those around the group's own spread are integrated. Beyond, the
logarithm is linear: all values are one (above), or all but one are outliers (below)."""
_PAIR_STEP = 0.05
_PAIR_LOW, _PAIR_HIGH = -6.0, 26.0  # log (difference / deviation); constant outside
_CHUNK = 2_000_000  # floats in memory


def _integral(values: Floats, sd: Floats, shapes: int) -> Floats:
    """Return the log likelihood of groups, their level integrated out.

    Args:
        values: A row a group.
        sd: For each group, deviations: [groups, deviations].
    Returns: [groups, deviations, shapes].
    """
    level = values[:, :, None, None] + sd[:, None, :, None] * _AROUND  # [B, n, S, U]
    z = (values[:, None, None, None, :] - level[..., None]) / sd[:, None, :, None, None]
    share = np.exp(-0.5 * (_AROUND / _NEAR) ** 2)
    weight = share / np.exp(-0.5 * (z / _NEAR) ** 2).sum(-1)  # of overlapping neighbourhoods
    core, outlier = density.core(z), density.outlier(z)
    if shapes > PLAIN:
        index = density.table_index(z)
        modes = [table[index] for table in density.mode_tables()]
    result = np.empty((len(values), sd.shape[1], shapes))
    for h, (far, rate, distance) in enumerate(density.SHAPES[:shapes]):
        mixed = (1 - far - rate) * core + far * outlier
        if rate:
            mixed += rate * modes[density.MODE_DISTANCES.index(distance)]
        result[..., h] = np.log((mixed.prod(-1) * weight).sum((1, 3)) + 1e-300)
    spacing = _AROUND[1] - _AROUND[0]
    likelihood: Floats = result + np.log(spacing * sd)[..., None] * 1.0
    likelihood -= values.shape[1] * np.log(sd)[..., None]
    return likelihood


@cache
def _pair_table(shapes: int) -> Floats:
    """Return the log likelihood of two values by log (difference / deviation), deviation 1."""
    differences = np.exp(np.arange(_PAIR_LOW, _PAIR_HIGH + _PAIR_STEP / 2, _PAIR_STEP))
    values = np.stack([np.zeros_like(differences), differences], 1)
    return _integral(values, np.ones((len(values), 1)), shapes)[:, 0]


def _pairs(differences: Floats, shapes: int) -> Floats:
    """Return the table of groups of two: it depends on |difference| / deviation only."""
    with np.errstate(divide="ignore"):
        logs = np.log(np.abs(differences))
    low = LOG_SDS[0] + _PAIR_LOW
    bins = np.rint((np.clip(logs, low, _PAIR_HIGH + LOG_SDS[0]) - low) / _PAIR_STEP)
    counts = np.bincount(bins.astype(np.int64))
    present = np.flatnonzero(counts)
    table = _pair_table(shapes)
    shift = np.rint((LOG_SDS - LOG_SDS[0]) / _PAIR_STEP).astype(np.int64)
    index = np.clip(present[None, :] - shift[:, None], 0, len(table) - 1)
    total: Floats = np.einsum("b,sbh->sh", counts[present].astype(np.float64), table[index])
    return total - len(differences) * LOG_SDS[:, None]


def _groups(values: Floats, shapes: int) -> Floats:
    """Return the table of groups of one size, three or more: [groups, size] -> [S, shapes]."""
    total = np.zeros((len(LOG_SDS), shapes))
    count = values.shape[1]
    chunk = max(1, _CHUNK // (_WINDOW * len(_AROUND) * count * count))
    for at in range(0, len(values), chunk):
        part = values[at : at + chunk]
        spread = np.maximum(part.std(1), math.exp(LOG_SDS[0]))
        middle = np.rint((np.log(spread) - LOG_SDS[0]) / LOG_SD_STEP).astype(np.int64)
        begin = np.clip(middle - _WINDOW_BELOW, 0, len(LOG_SDS) - _WINDOW)
        sd = np.exp(LOG_SDS[begin[:, None] + np.arange(_WINDOW)])
        window = _integral(part, sd, shapes)
        offset = np.arange(len(LOG_SDS)) - begin[:, None]
        inside = np.clip(offset, 0, _WINDOW - 1)
        full = np.take_along_axis(window, inside[..., None], axis=1)
        below = np.minimum(offset, 0)[..., None] * (window[:, 1] - window[:, 0])[:, None]
        above = np.maximum(offset - (_WINDOW - 1), 0) * -(count - 1) * LOG_SD_STEP
        total += (full + below + above[..., None]).sum(0)
    return total


def table(values: Floats, group: Ints, has_modes: bool) -> Floats:
    """Return the log likelihood of all groups by deviation and shape: [LOG_SDS, shapes].

    Args:
        values: Over the metric's scale.
        group: Of each value; equal ones are neighbours.
        has_modes: True to weigh the shapes with a second mode, too.
    """
    shapes = len(density.SHAPES) if has_modes else PLAIN
    total = np.zeros((len(LOG_SDS), shapes))
    if not len(values):
        return total
    starts = np.flatnonzero(np.append(True, np.diff(group) != 0))
    sizes = np.diff(np.append(starts, len(group)))
    parts = [
        (start + at, min(LARGEST_GROUP, size - at))
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
        if size > 1
        for at in range(0, size, LARGEST_GROUP)
    ]
    for count in sorted({n for _, n in parts} - {1}):
        begins = np.array([start for start, n in parts if n == count])
        members = values[begins[:, None] + np.arange(count)]
        if count == 2:
            total += _pairs(members[:, 1] - members[:, 0], shapes)
        else:
            total += _groups(members, shapes)
    return total
