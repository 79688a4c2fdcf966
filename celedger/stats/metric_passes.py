"""The passes over the nodes of several metrics that were measured alike.

Lives here: from draws and noise to what is known of each node's level and of a step before it. A
pass may begin at a later node, with the message that an earlier pass left there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from celedger.stats import level_chain, level_likelihood, trial_density
from celedger.stats.arrays import Floats, Ints
from celedger.stats.commit_nodes import CommitNodes
from celedger.stats.level_chain import Messages
from celedger.stats.level_grid import LevelGrid, level_grid
from celedger.stats.level_likelihood import NodeLikelihood, NoiseRows, SessionMeans
from celedger.stats.level_steps import LEAST_MASS

MACHINE_DRIFT = 0.2
"""A level of speed or memory drifts from node to node by this share of the session's deviation,
so that a slow machine is no step."""
CERTAIN = 0.1
"""A log deviation that is known better is one row; else it is integrated on three."""
LEAST_MODE_RATE = 1e-4
LEAST_UNIT = 1e-300
"""Share of the largest value: no quotient is infinite then."""
FARTHEST = 1e15
"""Deviations from the first value: a level beyond is as far, and whole numbers have it exactly."""
_FAR = 20.0  # deviations; beyond, a level is another level, not an error of this one
_ONE = ((0.0, 1.0),)
_GAUSS_HERMITE = ((-math.sqrt(3.0), 1 / 6), (0.0, 2 / 3), (math.sqrt(3.0), 1 / 6))


@dataclass(frozen=True, slots=True)
class NoisePoint:
    """A metric's noise as the passes take it. `modes` are the rates of the second mode by shape.
    The logarithms of ratios are of a session's deviation over a trial's; None for quality."""

    log_sd: float
    log_sd_error: float
    outliers: float
    modes: tuple[float, ...]
    log_ratio: float | None = None
    log_ratio_error: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """One metric in one chain, ready for a pass: values in deviations (`unit`) from `origin`."""

    nodes: CommitNodes
    values: Floats
    unit: float
    origin: float
    rows: NoiseRows
    grid: LevelGrid
    cells: SessionMeans | None
    hazard: Floats
    drifts: bool


@dataclass(frozen=True, slots=True, eq=False)
class Passed:
    """What a pass from node `first` on says of one metric.

    Attributes:
        first: Index of its first node.
        moments, level, variance: As in `level_steps.StepEvidence`, of the nodes from `first` on.
        messages: Of the metric's rows: [nodes, rows, points].
        likelihood: [rows, nodes, points].
    """

    first: int
    moments: Floats
    level: Floats
    variance: Floats
    messages: Messages
    likelihood: NodeLikelihood


def noise_rows(point: NoisePoint) -> NoiseRows:
    """Return the assumptions on which what is uncertain of the noise is integrated."""
    sds = _GAUSS_HERMITE if point.log_sd_error > CERTAIN else _ONE
    ratios = _ONE if point.log_ratio is None else _GAUSS_HERMITE
    pairs = [(x, y, w * v) for x, w in sds for y, v in ratios]
    sd = np.exp([x * point.log_sd_error for x, _, _ in pairs])
    session = np.zeros(len(sd))
    if point.log_ratio is not None:
        log_ratio = [point.log_ratio + y * point.log_ratio_error for _, y, _ in pairs]
        session = sd * np.exp(log_ratio)
    has_modes = max(point.modes, default=0.0) > LEAST_MODE_RATE
    return NoiseRows(
        weight=np.array([w for _, _, w in pairs]),
        sd=sd,
        session=session,
        outliers=point.outliers,
        modes=trial_density.modes_of(np.array(point.modes)) if has_modes else None,
        mode_rate=sum(point.modes) if has_modes else 0.0,
    )


def prepare(nodes: CommitNodes, values: Floats, point: NoisePoint, hazard: Floats) -> Prepared:
    """Return the metric ready for a pass."""
    least = float(np.abs(values).max()) * LEAST_UNIT
    unit, origin = max(math.exp(point.log_sd), least), float(values[0])
    scaled = np.clip(values / unit - origin / unit, -FARTHEST, FARTHEST)
    rows = noise_rows(point)
    has_sessions = point.log_ratio is not None
    grid = level_grid(node_medians(scaled, nodes.offset), has_sessions)
    cells = level_likelihood.session_means(scaled, nodes, rows) if has_sessions else None
    return Prepared(nodes, scaled, unit, origin, rows, grid, cells, hazard, has_sessions)


def node_medians(values: Floats, offset: Ints) -> Floats:
    """Return the median of each node's draws."""
    sizes = np.diff(offset)
    result = np.empty(len(sizes))
    for size in np.unique(sizes).tolist():
        nodes = np.flatnonzero(sizes == size)
        result[nodes] = np.median(values[offset[nodes][:, None] + np.arange(size)], axis=1)
    return result


def alike(metric: Prepared) -> tuple[int, int, int]:
    """Return what metrics of one pass must have in common, beside their first node."""
    return id(metric.nodes), len(metric.rows.sd), len(metric.grid.points)


def _likelihood(metric: Prepared, first: int) -> NodeLikelihood:
    nodes = metric.nodes
    if metric.cells is not None:
        count = len(nodes) - first
        return level_likelihood.of_sessions(
            metric.cells, first, count, metric.rows, metric.grid.points
        )
    offset = nodes.offset[first:]
    draws = metric.values[offset[0] :]
    return level_likelihood.of_draws(draws, offset - offset[0], metric.rows, metric.grid.points)


def _by_node(arrays: Sequence[Floats]) -> Floats:
    """Return arrays of [rows, nodes, points] as one of [nodes, rows of all, points]."""
    return np.ascontiguousarray(np.concatenate(arrays).transpose(1, 0, 2))


def run(block: Sequence[Prepared], first: int, earlier: Sequence[Floats] | None) -> list[Passed]:
    """Pass over the nodes from `first` on.

    Args:
        block: Metrics that are `alike`.
        earlier: The forward message before `first` of each metric, None if `first` is 0.
    """
    size = len(block[0].rows.sd)
    likelihoods = [_likelihood(metric, first) for metric in block]
    fresh = _by_node([x.fresh for x in likelihoods])
    same = fresh
    if block[0].cells is not None:
        same = _by_node([x.same for x in likelihoods])
    points = np.repeat([m.grid.points for m in block], size, axis=0)
    drift = None
    if any(metric.drifts for metric in block):
        distance = [MACHINE_DRIFT * m.rows.session * m.drifts for m in block]
        spacing = np.repeat([m.grid.spacing for m in block], size)
        drift = level_chain.drift_of(points, spacing, np.concatenate(distance))
    messages = level_chain.passes(
        fresh,
        same,
        np.repeat([m.grid.prior for m in block], size, axis=0),
        block[0].hazard[first:],
        drift,
        None if earlier is None else np.concatenate(earlier),
    )
    result = []
    for i, metric in enumerate(block):
        rows = slice(i * size, (i + 1) * size)
        own = Messages(
            messages.forward[:, rows],
            messages.backward[:, rows],
            messages.evidence[:, rows],
            messages.step[:, rows],
        )
        before = None if earlier is None else earlier[i]
        result.append(_passed(metric, first, likelihoods[i], own, before))
    return result


def _near_mode(mass: Floats, metric: Prepared) -> Floats:
    """Return the mass without what is far from its largest, where the grid has gaps.

    A probability of a millionth at a level that is a thousand deviations away would be the whole
    of a variance.

    Args:
        mass: [..., rows, points].
    """
    if not metric.grid.has_gaps:
        return mass
    mode = metric.grid.points[np.tensordot(mass, metric.rows.weight, (-2, 0)).argmax(-1)]
    near = np.abs(metric.grid.points - mode[..., None, None]) <= _FAR
    result: Floats = mass * near
    return result


def _passed(
    metric: Prepared,
    first: int,
    likelihood: NodeLikelihood,
    messages: Messages,
    earlier: Floats | None,
) -> Passed:
    """Average one metric's rows."""
    points, weight = metric.grid.points, metric.rows.weight
    posterior = _near_mode(messages.forward * messages.backward, metric)
    total = posterior.sum(2) + 1e-300
    level = ((posterior @ points) / total) @ weight
    square = ((posterior @ points**2) / total) @ weight
    variance = np.maximum(square - level**2, (metric.grid.spacing / 4) ** 2)
    moments = np.zeros((len(level), 2, 6))
    for k in np.flatnonzero(messages.step @ weight >= LEAST_MASS).tolist():
        before = messages.forward[k - 1] if k else earlier
        assert before is not None  # a first node has no step before it
        after = likelihood.fresh[:, k] * messages.backward[k] / messages.evidence[k][:, None]
        after = _near_mode(after * metric.grid.prior * metric.hazard[first + k], metric)
        before = _near_mode(before, metric)
        every = np.broadcast_to(points, after.shape)
        moments[k] = np.tensordot(weight, level_chain.step_moments(before, after, every), 1)
    return Passed(first, moments, level, variance, messages, likelihood)
