"""The state of the machine, from a pinned commit that is run again and again.

Lives here: what a session's effect is, given the runs of one commit whose code never changes. It
corrects speed and memory of every session near. A row is one assumption about one metric's noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from celedger.stats.arrays import Floats, Ints
from celedger.stats.commit_nodes import CommitNodes
from celedger.stats.metric_passes import Prepared

MEMORY = 0.98
"""Correlation of the machine's slow state between neighbouring sessions. Its deviation is that of
sessions; each session has an effect of its own beside it, of the same deviation."""
LEAST_CONTROLS = 3
"""With fewer runs of the pinned commit, the machine is not known."""
KNOWN = 1e-9  # variance of an effect that is known


@dataclass(frozen=True, slots=True, eq=False)
class _Smoothed:
    """The slow state of each session: mean and variance, [sessions, rows]; the pinned commit's
    level and its variance, [rows]."""

    mean: Floats
    variance: Floats
    level: Floats
    level_variance: Floats


def _smooth(
    count: int,
    runs: Mapping[int, int],
    mean: Floats,
    variance: Floats,
    tau2: Floats,
    level: Floats | None,
) -> _Smoothed:
    """Run a Kalman filter over the sessions, and back.

    The pinned commit's level is estimated by generalised least squares: the filter runs over its
    values and over ones at once.

    Args:
        count: Of sessions.
        runs: Session -> column of `mean` and `variance`, of the runs of the pinned commit.
        tau2: Variance of a session's effect.
        level: The pinned commit's level if it is settled.
    """
    rows = len(tau2)
    state, ones, p = np.zeros(rows), np.zeros(rows), tau2
    states, units, filtered, predicted = (np.empty((count, rows)) for _ in range(4))
    numerator, denominator = np.zeros(rows), np.zeros(rows)
    for t in range(count):
        state, ones = state * MEMORY, ones * MEMORY
        p = p * MEMORY**2 + tau2 * (1 - MEMORY**2)
        predicted[t] = p
        column = runs.get(t)
        if column is not None:
            total = p + tau2 + variance[:, column]
            gain, error, unit = p / total, mean[:, column] - state, 1 - ones
            numerator += unit * error / total
            denominator += unit * unit / total
            state, ones, p = state + gain * error, ones + gain * unit, p * (1 - gain)
        states[t], units[t], filtered[t] = state, ones, p
    if level is None:
        level = numerator / denominator
    smooth, spread = states - level * units, filtered.copy()
    for t in range(count - 2, -1, -1):
        back = filtered[t] * MEMORY / predicted[t + 1]
        smooth[t] += back * (smooth[t + 1] - MEMORY * smooth[t])
        spread[t] += back**2 * (spread[t + 1] - predicted[t + 1])
    return _Smoothed(smooth, spread, level, 1 / np.maximum(denominator, 1e-12))


def controls(nodes: CommitNodes, place: int | None) -> Ints:
    """Return the cells of the commit that is pinned in a chain, none if they are too few."""
    if place is None:
        return np.zeros(0, dtype=np.int64)
    begins = np.flatnonzero(np.append(True, np.diff(nodes.cell) != 0))
    node = nodes.node[begins]
    pins = np.flatnonzero((nodes.first[node] <= place) & (place <= nodes.last[node]))
    return pins if len(pins) >= LEAST_CONTROLS else pins[:0]


def corrected(
    metrics: Sequence[Prepared], pins: Ints, settled: Floats | None
) -> tuple[list[Prepared], Floats]:
    """Return metrics that were measured alike in one chain, their sessions' effects corrected, and
    the pinned commit's level: [rows of all metrics]. Their levels drift with the machine no more.

    Args:
        pins: Of `controls`.
        settled: The level that an earlier call returned.
    """
    every = [metric.cells for metric in metrics if metric.cells is not None]
    mean = np.concatenate([c.mean for c in every])
    variance = np.concatenate([c.variance for c in every])
    tau2 = np.concatenate([c.effect[:, 0] for c in every])
    sessions, at = np.unique(every[0].session, return_inverse=True)
    runs = {int(at[j]): int(j) for j in pins}
    state = _smooth(len(sessions), runs, mean, variance, tau2, settled)
    slow, spread = state.mean[at].T, state.variance[at].T
    effect = spread + tau2[:, None]
    run = np.array([runs.get(t, -1) for t in at.tolist()])
    with_run = np.flatnonzero(run >= 0)  # the pinned commit ran in the same session
    noise = variance[:, run[with_run]]
    kappa = tau2[:, None] / (tau2[:, None] + noise)
    own = mean[:, run[with_run]] - state.level[:, None] - slow[:, with_run]
    effect[:, with_run] = kappa * noise + (1 - kappa) ** 2 * spread[:, with_run]
    slow[:, with_run] += kappa * own
    effect = np.maximum(effect, KNOWN)
    least = variance[:, pins].min(1)
    mean = mean - slow
    effect[:, pins] = np.inf  # they told of the machine; the level stands for all of them
    mean[:, pins[0]], effect[:, pins[0]] = state.level, KNOWN
    variance[:, pins[0]] = np.minimum(least, state.level_variance)
    result, begin = [], 0
    for metric, cells in zip(metrics, every, strict=True):
        rows = slice(begin, begin + len(cells.mean))
        begin = rows.stop
        changed = replace(cells, mean=mean[rows], variance=variance[rows], effect=effect[rows])
        result.append(replace(metric, cells=changed, drifts=False))
    return result, state.level
