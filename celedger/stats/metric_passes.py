"""The passes over the nodes of several metrics that were measured alike, and the steps they show.

Lives here: from draws and noise to the posterior of each node's level and of a step before it; then
which neighbouring places are one step, its set of commits and its size. A pass may begin at a later
node, with the message that an earlier pass left there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from celedger.stats import Floats, Ints, level_chain, trial_noise
from celedger.stats.course import CommitNodes, Step
from celedger.stats.level_chain import (
    LevelGrid,
    Messages,
    NodeLikelihood,
    NoiseRows,
    SessionMeans,
    level_grid,
)
from celedger.stats.trial_noise import NoisePoint

LEAST_PROBABILITY = 0.01
"""Steps that are less probable are left out: a third of what makes a doubt."""
LEAST_MASS = 0.004
"""Places with less are not part of a step's set."""
SET = 0.95
MOST_WIDENING = 2.0
"""Where a step is just seen, its size is more often too large. Its variance is widened to that of
the two levels, at most so many times."""
SIDE_BY_SIDE = 1.25  # variance of t with 5 degrees of freedom near its centre, over the normal's
CERTAIN_DIRECTION = 4.0
"""From so many standard errors on, a difference side by side has the direction of the step."""
LEAST_LEVEL_ERROR = 0.05  # in deviations: a quarter of the grid's spacing
LEAST_SIZE_ERROR = 0.07


Contrasts = tuple[Floats, Floats]
"""Of each node: the difference to the node before, measured side by side in a session, and its
precision, 0 where there is none."""


@dataclass(frozen=True, slots=True, eq=False)
class ChainResult:
    """What the passes say of all nodes of one metric in one chain, in deviations of a trial.

    Attributes:
        moments: Of `level_chain.step_moments`, averaged over rows: [nodes, 2, 6]. 0 where no step
            is likely.
        level, variance: Of each node's level.
        unit: A deviation, in the metric's unit.
        origin: The metric's value at level 0.
        steps: In the metric's unit. Their nodes are counted from the chain's first one.
    """

    moments: Floats
    level: Floats
    variance: Floats
    unit: float
    origin: float
    steps: Sequence[Step] = ()


def _clusters(mass: Floats) -> Iterator[tuple[int, int]]:
    """Yield first and last index of each run of places; a gap of one place does not end it."""
    likely = np.flatnonzero(mass >= LEAST_MASS)
    if not len(likely):
        return
    breaks = np.flatnonzero(np.diff(likely) > 2)
    for i, j in zip(np.append(0, breaks + 1), np.append(breaks, len(likely) - 1), strict=True):
        yield int(likely[i]), int(likely[j])


def _parts(mass: Floats) -> list[Floats]:
    """Return the probability that each of the cluster's steps takes, in their order.

    What is left beside whole steps is a step of its own: a doubt beside a certain step is worth a
    trial. It is the oldest or the newest, whichever leaves the others in fewer places.
    """
    total = float(mass.sum())
    count = max(1, math.ceil(total - LEAST_PROBABILITY))
    if count == 1:
        return [mass]
    edges = np.concatenate([[0.0], np.cumsum(mass)])
    ways = []
    for least in (0.0, total - count):
        cuts = [np.clip(edges, least + i, least + i + 1) for i in range(count)]
        parts = [cut[1:] - cut[:-1] for cut in cuts]
        # A neighbour's rest has the neighbour's size.
        ways.append([np.where(own >= LEAST_MASS, own, 0.0) for own in parts])
    return max(ways, key=lambda parts: sum(float(own @ own) for own in parts))


def _step(
    result: ChainResult, contrasts: Contrasts, nodes: CommitNodes, begin: int, own: Floats,
    moments: Floats,
) -> Step:  # fmt: skip
    """Return one step. `own` and `moments` are of the places from node `begin` on."""
    order = np.argsort(-own, kind="stable")
    inside = order[: int(np.searchsorted(np.cumsum(own[order]), SET * own.sum())) + 1]
    first, last = begin + int(inside.min()), begin + int(inside.max())
    at = begin + int(own.argmax())
    scaled = moments[:, 1:] / np.maximum(moments[:, :1], 1e-300) * (own / own.sum())[:, None]
    before, before2, after, after2, product = scaled.sum(0).tolist()
    size = after - before
    variance = max(before2 + after2 - 2 * product - size * size, LEAST_SIZE_ERROR**2)
    marginal = float(result.variance[first - 1] + result.variance[last])
    variance = max(variance, min(marginal, MOST_WIDENING * variance))
    contrast, precision = (float(of_nodes[first]) for of_nodes in contrasts)
    is_clearer = precision > 0 and SIDE_BY_SIDE / precision < variance
    if first == last and is_clearer and (contrast > 0) == (size > 0):
        size, variance = contrast, SIDE_BY_SIDE / precision
    unit, origin = result.unit, result.origin
    return Step(
        first=int(nodes.last[first - 1]) + 1,
        last=int(nodes.first[last]),
        likeliest=int(nodes.first[at]),
        probability=min(1.0, float(own.sum())),
        size=size * unit,
        error=variance**0.5 * unit,
        before=before * unit + origin,
        before_error=max(before2 - before**2, LEAST_LEVEL_ERROR**2) ** 0.5 * unit,
        after=after * unit + origin,
        after_error=max(after2 - after**2, LEAST_LEVEL_ERROR**2) ** 0.5 * unit,
        chain=int(nodes.chain[at]),
        known=int(nodes.last[first - 1]),
        unit=unit,
        is_newest=False,
        node=at,
        posterior=_by_commit(nodes, begin, own, first, last),
    )


def _by_commit(
    nodes: CommitNodes, begin: int, own: Floats, first: int, last: int
) -> tuple[float, ...]:
    """Return the probability of every commit of the nodes `first` to `last`. Those of a gap share
    that of the node after it; the later ones of a node have none."""
    result: list[float] = []
    for node in range(first, last + 1):
        gap = int(nodes.first[node]) - int(nodes.last[node - 1])
        result += [float(own[node - begin]) / gap] * gap
        if node < last:
            result += [0.0] * (int(nodes.last[node]) - int(nodes.first[node]))
    return tuple(result)


def _signed(moments: Floats, contrasts: Contrasts) -> Floats:
    """Return the moments, the direction of a step that was measured side by side being certain.

    Levels are known to the deviation of a session only; a difference within one is known to that of
    a trial. Its direction is the step's.
    """
    moments = moments.copy()
    moments[moments[:, :, 0] <= 0] = 0.0  # a rounding error, by which nothing can be divided
    z = contrasts[0] * np.sqrt(contrasts[1])
    for k in np.flatnonzero((np.abs(z) >= CERTAIN_DIRECTION) & moments[:, :, 0].any(1)).tolist():
        way, other = (0, 1) if z[k] > 0 else (1, 0)
        mass = moments[k, way, 0]
        if mass > 0:
            moments[k, way] *= (mass + moments[k, other, 0]) / mass
            moments[k, other] = 0.0
    return moments


def steps_of(result: ChainResult, contrasts: Contrasts, nodes: CommitNodes) -> list[Step]:
    """Return the steps of some probability, rises and falls apart, in the order of nodes."""
    steps, signed = [], _signed(result.moments, contrasts)
    for way in (0, 1):
        moments = signed[:, way]
        for begin, end in _clusters(moments[:, 0]):
            place = slice(begin, end + 1)
            steps += [
                _step(result, contrasts, nodes, begin, own, moments[place])
                for own in _parts(moments[place, 0])
                if own.sum() >= LEAST_PROBABILITY
            ]
    return sorted(steps, key=lambda step: step.node)


# --- the passes

CERTAIN = 0.1
"""A log deviation that is known better is one row; else it is integrated on three."""
LEAST_MODE_RATE = 1e-4
LEAST_UNIT = 1e-300
"""Share of the largest value: no quotient is infinite then."""
FARTHEST = 1e15
"""Deviations from the first value: a level beyond is as far, and whole numbers have it exactly."""
_FAR = 20.0  # deviations of a session; beyond, a level is another level, not an error of this one
_ONE = ((0.0, 1.0),)
_GAUSS_HERMITE = ((-math.sqrt(3.0), 1 / 6), (0.0, 2 / 3), (math.sqrt(3.0), 1 / 6))


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


@dataclass(frozen=True, slots=True, eq=False)
class Passed:
    """What a pass from node `first` on says of one metric.

    Attributes:
        first: Index of its first node.
        moments, level, variance: As in `ChainResult`, of the nodes from `first` on.
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
        modes=trial_noise.modes_of(np.array(point.modes)) if has_modes else None,
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
    cells = level_chain.session_means(scaled, nodes, rows) if has_sessions else None
    return Prepared(nodes, scaled, unit, origin, rows, grid, cells, hazard)


def node_medians(values: Floats, offset: Ints) -> Floats:
    """Return the median of each node's draws."""
    sizes = np.diff(offset)
    result = np.empty(len(sizes))
    for size in np.unique(sizes).tolist():
        nodes = np.flatnonzero(sizes == size)
        result[nodes] = np.median(values[offset[nodes][:, None] + np.arange(size)], axis=1)
    return result


def _likelihood(metric: Prepared, first: int) -> NodeLikelihood:
    nodes = metric.nodes
    if metric.cells is not None:
        count = len(nodes) - first
        return level_chain.of_sessions(metric.cells, first, count, metric.rows, metric.grid.points)
    offset = nodes.offset[first:]
    draws = metric.values[offset[0] :]
    return level_chain.of_draws(draws, offset - offset[0], metric.rows, metric.grid.points)


def run(block: Sequence[Prepared], first: int, earlier: Sequence[Floats] | None) -> list[Passed]:
    """Pass over the nodes from `first` on, of all metrics at once: the rows of one have as many
    points as those of the widest, of probability 0.

    Args:
        block: Metrics of the same nodes.
        earlier: The forward message before `first` of each metric, None if `first` is 0.
    """
    likelihoods = [_likelihood(metric, first) for metric in block]
    ends = np.cumsum([len(metric.rows.sd) for metric in block]).tolist()
    rows = list(map(slice, [0, *ends[:-1]], ends))
    widths = [len(metric.grid.points) for metric in block]
    hazard = block[0].hazard[first:, None, None]
    anew, stays = np.zeros((2, len(hazard), ends[-1], max(widths)))
    before = np.zeros_like(anew[0])
    for i, (metric, likelihood) in enumerate(zip(block, likelihoods, strict=True)):
        place = slice(None), rows[i], slice(widths[i])
        np.multiply(likelihood.fresh.transpose(1, 0, 2), metric.grid.prior, out=anew[place])
        np.multiply(likelihood.same.transpose(1, 0, 2), 1 - hazard, out=stays[place])
        if earlier is not None:
            before[place[1:]] = earlier[i]
    anew[first == 0 :] *= hazard[first == 0 :]  # a chain's first level is no step
    returns = block[0].nodes.returns[first:] - first
    again = np.flatnonzero(returns >= 0)  # what is settled is not returned to
    for i, likelihood in enumerate(likelihoods):
        anew[again, rows[i], : widths[i]] = likelihood.fresh[:, again].transpose(1, 0, 2)
        stays[again, rows[i], : widths[i]] = likelihood.same[:, again].transpose(1, 0, 2)
    returned = dict(zip(again.tolist(), returns[again].tolist(), strict=True))
    messages = level_chain.passes(anew, stays, before, returned)
    result = []
    for i, metric in enumerate(block):
        place = slice(None), rows[i], slice(widths[i])
        of_levels = messages.forward[place], messages.backward[place]
        sums = messages.evidence[:, rows[i]], messages.step[:, rows[i]]
        left = {k: message[place[1:]] for k, message in messages.left.items()}
        own = Messages(*of_levels, *sums, left)
        own_before = None if earlier is None else earlier[i]
        result.append(_passed(metric, first, likelihoods[i], own, anew[place], own_before))
    return result


def _near_mode(mass: Floats, metric: Prepared) -> Floats:
    """Return the mass, all of it near its largest, where the grid has gaps.

    A probability of a millionth at a level that is a thousand deviations away would be the whole
    of a variance. The sum stays: what is as likely at two far levels is no less likely.

    Args:
        mass: [..., rows, points].
    """
    if not metric.grid.has_gaps:
        return mass
    mode = metric.grid.points[np.tensordot(mass, metric.rows.weight, (-2, 0)).argmax(-1)]
    reach = _FAR * np.hypot(metric.rows.sd, metric.rows.session)[:, None]
    near = np.abs(metric.grid.points - mode[..., None, None]) <= reach
    result: Floats = mass * near
    result *= mass.sum(-1, keepdims=True) / np.maximum(result.sum(-1, keepdims=True), 1e-300)
    return result


def _passed(
    metric: Prepared,
    first: int,
    likelihood: NodeLikelihood,
    messages: Messages,
    anew: Floats,
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
    at = np.flatnonzero(messages.step @ weight >= LEAST_MASS)
    before = messages.forward[at - 1]
    if len(at) and at[0] == 0:
        assert earlier is not None  # a first node has no step before it
        before[0] = earlier
    for i, k in enumerate(at.tolist()):
        before[i] = messages.left.get(k, before[i])
    after = anew[at] * messages.backward[at] / messages.evidence[at][..., None]
    after = _near_mode(after, metric)
    of_rows = level_chain.step_moments(_near_mode(before, metric), after, points)
    for k, own in zip(at.tolist(), of_rows, strict=True):
        moments[k] = np.tensordot(weight, own, 1)
    return Passed(first, moments, level, variance, messages, likelihood)
