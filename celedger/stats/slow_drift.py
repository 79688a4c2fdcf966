"""Slow drifts: a rise over many commits, weighed against steps.

Lives here: paths of which one stretch is a ramp. The chain's messages are the alternative, so any
number of steps is weighed against one ramp. Falls are no drift.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from celedger.stats import Floats, Ints, level_chain
from celedger.stats.course import CommitNodes, Step, StepKind
from celedger.stats.level_chain import TABLE_REACH, TABLE_STEP
from celedger.stats.metric_passes import Passed, Prepared

FINDS_DRIFTS = True  # a test switches it off

DRIFT = 1 / 2000
"""Prior probability that a drift begins at a commit, for one metric; a budget of the task like
that of steps."""
SHORTEST, LONGEST = 24, 120
"""Commits that a drift lasts, log-uniform. One that goes on has the probability of all longer
ones."""
DOUBTFUL, PROBABLE = 0.03, 0.3
"""Rises of the first probability are part of a drift. One that was not told before is looked for
where some rise has the second: without, none of 551 searches in 360 lives found any."""
TOLD, KEPT = 0.95, 0.5
"""A drift is told from the first on, and kept down to the second."""
SHARP = 0.99
"""From this probability on, a rise at one place is no drift."""
TAIL = 0.01
"""Of the posterior of a drift's ends, what its set leaves out at either side."""
REACH = 60  # commits before the oldest rise at which a drift may begin
LEAST_NODES = 5
LEAST_SIZE, LEAST_REACH, MOST_SIZE = 0.8, 12.0, 60.0
"""Sizes from .8 deviations up to the grid's range, within 12 and 60."""
PRIOR_WIDTH = 40.0  # of a drift's size, in deviations
LEAST_VARIANCE = 0.01
_LOG_SPAN = math.log(LONGEST / SHORTEST)


STRIDE = 2
FINE, COARSE = (1.2, 0.8, 5), (1.44, 1.6, 2)
"""How densely ramps are tried: every second node as beginning, ends in a geometric sequence, sizes
by so many deviations, at most so many levels. The coarse ones cost a tenth."""
HOPELESS, NEGLIGIBLE = -6.0, 40.0
"""Log odds of all coarse ramps below which there is no drift, and by how much those of a beginning
may lie below the best to count: of 505 searches that found log odds of 0 and more in 60 lives,
the coarse ramps had 4.5 less at most. With beginnings within 15 one set came out narrower."""


@dataclass(frozen=True, slots=True, eq=False)
class _SessionTerms:
    """The cells of speed and memory: node, mean less kappa times that beside, kappa, deviation.
    Log densities by the distance in deviations are a table: a row for each number of trials."""

    node: Ints
    mean: Floats
    kappa: Floats
    sd: Floats
    row: Ints
    table: Floats
    total_log_sd: Floats  # up to each cell


@dataclass(frozen=True, slots=True, eq=False)
class _Chain:
    """What ramps are weighed with: one metric's most probable row, one run of the grid, the nodes
    of a pass."""

    first: Ints
    last: Ints
    points: Floats
    spacing: float
    forward: Floats
    log_forward: Floats
    log_backward: Floats
    log_fresh: Floats
    stays: Floats  # log of (no step) / evidence
    terms: _SessionTerms | None
    log_prior: float


@dataclass(frozen=True, slots=True)
class _Ramp:
    """One ramp from node `begin` (the last before it) to node `end` (the first after it), summed
    over levels and sizes. Pairs: mean and mean square."""

    begin: int
    end: int
    log_odds: float
    size: tuple[float, float] = (0.0, 0.0)
    before: tuple[float, float] = (0.0, 0.0)
    after: tuple[float, float] = (0.0, 0.0)


def _log(x: Floats) -> Floats:
    result: Floats = np.log(np.maximum(x, 1e-30))
    return result


def _log_sum(logs: Floats) -> float:
    if not len(logs):
        return -math.inf
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).sum()))


def _session_terms(metric: Prepared, row: int, first: int) -> _SessionTerms | None:
    cells = metric.cells
    if cells is None:
        return None
    kept = np.flatnonzero(cells.node >= first)
    mean = cells.mean[row, kept]
    variance = cells.variance[row, kept] + cells.effect[row]
    kappa, trials = np.zeros(len(kept)), np.ones(len(kept), dtype=np.int64)
    i = cells.beside[kept]
    linked = np.flatnonzero(i >= 0)
    all_kappa, all_variance = level_chain.contrast_terms(cells, i[linked], kept[linked])
    kappa[linked], variance[linked] = all_kappa[row], all_variance[row]
    trials[linked] = np.minimum(cells.trials[i[linked]], cells.trials[kept[linked]])
    mean[linked] -= kappa[linked] * cells.mean[row, i[linked]]
    sd = np.sqrt(variance)
    distinct, at = np.unique(trials, return_inverse=True)
    table = level_chain.density_table(metric.rows.outliers, tuple(distinct.tolist()))
    return _SessionTerms(
        cells.node[kept] - first, mean, kappa, sd, at.ravel() * table.shape[1], table.ravel(),
        np.append(0.0, np.cumsum(np.log(sd))),
    )  # fmt: skip


def _chain(metric: Prepared, passed: Passed, level: float, log_prior: float) -> _Chain:
    """Return the arrays for ramps near a level: those of the run of the grid that holds it."""
    row = int(metric.rows.weight.argmax())
    points = metric.grid.points
    breaks = np.flatnonzero(np.diff(points) > 1.5 * metric.grid.spacing) + 1
    at = int(np.clip(np.searchsorted(points, level), 0, len(points) - 1))
    edges = [0, *breaks.tolist(), len(points)]
    run = next(slice(a, b) for a, b in itertools.pairwise(edges) if a <= at < b)
    first = passed.first
    forward = passed.messages.forward[:, row, run]
    stays = np.log1p(-metric.hazard[first:]) - np.log(passed.messages.evidence[:, row])
    if metric.cells is not None:
        stays = stays - passed.likelihood.scale[row]
    return _Chain(
        first=metric.nodes.first[first:],
        last=metric.nodes.last[first:],
        points=points[run],
        spacing=metric.grid.spacing,
        forward=forward,
        log_forward=_log(forward),
        log_backward=_log(passed.messages.backward[:, row, run]),
        log_fresh=_log(passed.likelihood.fresh[row, :, run]),
        stays=stays,
        terms=_session_terms(metric, row, first),
        log_prior=log_prior,
    )


def _joined(begins: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
    """Return the numbers of ranges one after another, the range of each, and where each begins."""
    stops = np.cumsum(ends - begins)
    offset = stops - (ends - begins)
    which = np.repeat(np.arange(len(begins)), ends - begins)
    return np.arange(stops[-1]) - offset[which] + begins[which], which, offset


def _log_likelihoods(chain: _Chain, begin: int, ends: Ints, levels: Ints, sizes: Floats) -> Floats:
    """Return the log likelihood of the nodes after `begin` up to each end: [levels, sizes, ends].

    Args:
        levels: Indices of the level at `begin`.
    """
    stays = np.append(0.0, np.cumsum(chain.stays[begin + 1 : ends[-1] + 1]))[ends - begin]
    start = chain.last[begin]

    def ramp(node: Ints, which: Ints) -> Floats:
        """Return the share of the drift that nodes have."""
        end = ends[which]
        share = (0.5 * (chain.first[node] + chain.last[node]) - start) / (chain.first[end] - start)
        result: Floats = np.where(node == end, 1.0, np.where(node == begin, 0.0, share))
        return result

    if chain.terms is None:
        node, which, offset = _joined(np.full(len(ends), begin + 1), ends + 1)
        rise = np.rint(sizes[:, None] * ramp(node, which) / chain.spacing).astype(np.int64)
        index = np.minimum(levels[:, None, None] + rise, len(chain.points) - 1)
        width = chain.log_fresh.shape[1]
        logs = chain.log_fresh.ravel().take(node * width + index, mode="clip")  # none lies outside
        likelihood: Floats = np.add.reduceat(logs, offset, axis=-1) + stays
        return likelihood
    terms = chain.terms
    low, *high = np.searchsorted(terms.node, [begin + 1, *(ends + 1)]).tolist()
    cell, which, offset = _joined(np.full(len(ends), low), np.array(high))
    k, kappa, sd = terms.node[cell], terms.kappa[cell], terms.sd[cell]
    level = (1 - kappa) * chain.points[levels][:, None]
    moved = sizes[:, None] * ((ramp(k, which) - kappa * ramp(k - 1, which)) / sd)
    index = np.abs(((terms.mean[cell] - level) / sd)[:, None] - moved)
    index *= 1 / TABLE_STEP
    np.minimum(index, TABLE_REACH / TABLE_STEP, out=index)
    logs = terms.table.take(index.astype(np.int64) + terms.row[cell], mode="clip")
    log_sd = terms.total_log_sd[high] - terms.total_log_sd[low]
    of_cells: Floats = np.add.reduceat(logs, offset, axis=-1) - log_sd + stays
    return of_cells


def _ends(
    chain: _Chain, begin: int, least: int, stop: int, growth: float
) -> Iterator[tuple[int, float]]:
    """Yield the nodes at which a ramp from `begin` may end, with the log prior of each length."""
    done = skipped = 0
    last, first = int(chain.last[begin]), chain.first[begin + 2 : stop].tolist()
    for end, (before, here) in enumerate(itertools.pairwise(first), begin + 3):
        length = here - last
        if length < SHORTEST or here < least:
            continue
        if length > LONGEST:
            return
        is_newest = end == stop - 1
        width = here - before
        if done and length < growth * done and not is_newest:
            skipped += width
            continue
        share = (width + skipped) / length / _LOG_SPAN
        if is_newest:
            share += math.log(LONGEST / length) / _LOG_SPAN
        done, skipped = length, 0
        yield end, math.log(share)


def _summed(
    chain: _Chain, begin: int, ends: Ints, levels: Ints, sizes: Floats, log_prior: Floats,
    with_moments: bool,
) -> list[_Ramp]:  # fmt: skip
    """Sum the ramps of one beginning over levels and sizes, for each end. Their moments take half
    of the time."""
    logs = _log_likelihoods(chain, begin, ends, levels, sizes)
    top = np.rint(sizes / chain.spacing).astype(np.int64)
    index = np.minimum(levels[:, None] + top, len(chain.points) - 1)
    forward = chain.forward[begin]
    thinned = max(float(forward.sum() / max(float(forward[levels].sum()), 1e-300)), 1e-300)
    logs += chain.log_forward[begin, levels][:, None, None]
    logs += chain.log_backward[ends][:, index].transpose(1, 2, 0)
    largest = logs.max((0, 1))
    weight = np.exp(logs - largest)
    total = weight.sum((0, 1))
    log_odds = (largest + np.log(total * thinned) + log_prior).tolist()
    if not with_moments:
        return [_Ramp(begin, *each) for each in zip(ends.tolist(), log_odds, strict=True)]
    weight /= total
    points = chain.points[levels][:, None]
    moments = []
    for x in (sizes[None, :], points, points + sizes):
        every = np.broadcast_to(x, weight.shape[:2]).ravel()
        flat = weight.reshape(-1, len(ends))
        moments.append(zip((every @ flat).tolist(), (every**2 @ flat).tolist(), strict=True))
    columns = zip(ends.tolist(), log_odds, *moments, strict=True)
    return [_Ramp(begin, *each) for each in columns]


def _ramps(
    chain: _Chain, begins: Iterable[int], stop: int, rises: Sequence[int], density: Sequence[float]
) -> list[_Ramp]:
    """Return the ramps that begin at some nodes, end before node `stop` and hold a rise at one of
    some nodes; the coarse ones without moments."""
    growth, size_step, most_levels = density
    places = np.sort(chain.first[list(rises)])
    reach = min(MOST_SIZE, float(chain.points[-1] - chain.points[0]))
    sizes = np.arange(LEAST_SIZE, max(LEAST_REACH, reach), size_step)
    width = math.log(size_step / PRIOR_WIDTH)
    result = []
    for begin in begins:
        last = int(chain.last[begin])
        next_rise = int(np.searchsorted(places, last, side="right"))
        if next_rise == len(places) or places[next_rise] - last > REACH:
            continue
        forward = chain.forward[begin]
        levels = np.flatnonzero(forward > 5e-3 * forward.max())
        levels = levels[:: math.ceil(len(levels) / most_levels)] if len(levels) else levels
        if not len(levels) or forward.max() < 1e-9:
            continue
        ends = dict(_ends(chain, begin, int(places[next_rise]), stop, growth))
        if not ends:
            continue
        gap = math.log(int(chain.first[begin + 1] - last) * STRIDE)
        prior = np.array(list(ends.values())) + (chain.log_prior + gap + width)
        is_fine = density is FINE
        result += _summed(chain, begin, np.array(list(ends)), levels, sizes, prior, is_fine)
    return result


def _quantile(nodes: Ints, weight: Floats, share: float) -> int:
    order = np.argsort(nodes, kind="stable")
    at = min(int(np.searchsorted(np.cumsum(weight[order]), share)), len(order) - 1)
    return int(nodes[order][at])


def _as_step(ramps: Sequence[_Ramp], metric: Prepared, first: int) -> tuple[Step, int, int]:
    """Return the drift with its probability, and the nodes at its ends, counted from `first`."""
    logs = np.array([ramp.log_odds for ramp in ramps])
    odds = math.exp(min(_log_sum(logs), 300.0))
    weight = np.exp(logs - logs.max())
    weight /= weight.sum()
    begin = _quantile(np.array([ramp.begin for ramp in ramps]), weight, TAIL)
    end = _quantile(np.array([ramp.end for ramp in ramps]), weight, 1 - TAIL)
    best = first + max(ramps, key=lambda ramp: ramp.log_odds).begin + 1
    means = []
    for pairs in zip(*((ramp.size, ramp.before, ramp.after) for ramp in ramps), strict=True):
        mean, square = (float(weight @ np.array(column)) for column in zip(*pairs, strict=True))
        means.append((mean, max(square - mean * mean, LEAST_VARIANCE) ** 0.5))
    (size, error), (before, before_error), (after, after_error) = means
    nodes, unit, origin = metric.nodes, metric.unit, metric.origin
    step = Step(
        first=int(nodes.last[first + begin]) + 1,
        last=int(nodes.first[first + end]),
        likeliest=int(nodes.first[best]),
        probability=odds / (1 + odds),
        size=size * unit,
        error=error * unit,
        before=before * unit + origin,
        before_error=before_error * unit,
        after=after * unit + origin,
        after_error=after_error * unit,
        chain=int(nodes.chain[best]),
        known=int(nodes.last[first + begin]),
        unit=unit,
        is_newest=False,
        node=best,
        kind=StepKind.DRIFT,
    )
    return step, begin, end


def _is_rise(step: Step) -> bool:
    return step.kind is StepKind.STEP and step.size > 0 and step.probability >= DOUBTFUL


def replaced(steps: Sequence[Step], drift: Step) -> list[Step]:
    """Return the steps of a chain with the drift in place of the rises that are part of it."""

    def is_part(step: Step) -> bool:
        return _is_rise(step) and step.first <= drift.last and drift.first <= step.last

    rest = [step for step in steps if not is_part(step)]
    return sorted([*rest, drift], key=lambda step: step.node)


def _neighbours(rises: Sequence[Step]) -> Iterator[list[Step]]:
    """Yield the rises in groups that no drift can join."""
    group: list[Step] = []
    for rise in rises:
        if group and rise.first - group[-1].last > LONGEST:
            yield group
            group = []
        group.append(rise)
    if group:
        yield group


def _is_sharp(rise: Step, nodes: CommitNodes) -> bool:
    """Return True if a rise is certain, and at one place between others that were measured within
    half the shortest drift: it is no drift."""
    k, near = rise.node, SHORTEST // 2
    if rise.probability < SHARP or not 2 <= k < len(nodes) - 1:
        return False
    if rise.last != rise.likeliest or rise.known != nodes.last[k - 1]:
        return False
    before = nodes.first[k] - nodes.first[k - 2]
    return bool(before <= near and nodes.first[k + 1] - nodes.last[k - 1] <= near)


def _drift(
    rises: Sequence[Step],
    metric: Prepared,
    passed: Passed,
    between: tuple[int, int],
    log_prior: float,
) -> tuple[Step, int, int] | None:
    """Return the likeliest drift that holds the rises, and the nodes at its ends, counted from the
    pass's first one; None if there is none."""
    level = (min(rises, key=lambda s: s.node).before - metric.origin) / metric.unit
    chain = _chain(metric, passed, level, log_prior)
    (start, stop), places = between, [step.node - passed.first for step in rises]
    coarse = _ramps(chain, range(start, stop - 3, STRIDE), stop, places, COARSE)
    logs = np.array([ramp.log_odds for ramp in coarse])
    if _log_sum(logs) < HOPELESS:
        return None
    likely = {coarse[at].begin for at in np.flatnonzero(logs > logs.max() - NEGLIGIBLE).tolist()}
    ramps = _ramps(chain, sorted(likely), stop, places, FINE)
    best = max(ramps, key=lambda ramp: ramp.log_odds)
    near = [ramp for ramp in ramps if ramp.begin < best.end and ramp.end > best.begin]
    return _as_step(near, metric, passed.first)


def with_drifts(
    steps: Sequence[Step],
    metric: Prepared,
    passed: Passed,
    told: Sequence[tuple[int, int]],
    budget: float,
) -> list[Step]:
    """Return the steps of a chain, rises that are one slow drift replaced by it.

    Args:
        told: First and last place of drifts that were told before.
        budget: The metric's share of the task's prior.
    """
    result, first = list(steps), passed.first
    waiting = [(0, len(metric.nodes) - first)] if FINDS_DRIFTS else []
    while waiting:
        start, stop = waiting.pop()
        rises = [s for s in result if _is_rise(s) and start < s.node - first < stop]
        if stop - start < LEAST_NODES:
            continue
        for near in _neighbours(rises):
            likeliest = max(rise.probability for rise in near)
            if likeliest < (DOUBTFUL if told else PROBABLE):
                continue
            if all(_is_sharp(rise, metric.nodes) for rise in near):
                continue
            drift = _drift(near, metric, passed, (start, stop), math.log(DRIFT * budget))
            if drift is None:
                continue
            step, begin, end = drift
            is_told = any(a <= step.last and step.first <= b for a, b in told)
            if step.probability >= (KEPT if is_told else TOLD):
                result = replaced(result, step)
                waiting += [(start, begin + 1), (end, stop)]
                break
    return result
