"""One metric's history: levels that step, noise from repeats of the same code only.

Lives here: `trace`, which joins noise, chain, steps and drifts for the metrics of one task. It
knows places on a line, not commits; it has no clock, no file, no process. `seed_pairs.py` replaces
the steps of metrics whose seeds repeat bit by bit.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from celedger.stats import Floats, begins_run, level_chain, metric_passes, settled, trial_noise
from celedger.stats.course import (
    CommitNodes,
    Measurements,
    MetricHistory,
    MetricKey,
    Node,
    Step,
    StepKind,
    TrialNoise,
    ValueScale,
    commit_nodes,
)
from celedger.stats.metric_passes import ChainResult, Passed, Prepared, steps_of
from celedger.stats.seed_pairs import paired_steps
from celedger.stats.settled import Cache, Checkpoints, Kept, Stretch
from celedger.stats.slow_drift import KEPT, replaced, with_drifts
from celedger.stats.trial_noise import NoisePoint

HAZARD = 1 / 400
"""Prior probability that a commit changes a metric, for one metric. A false step of probability
.95 then comes at most .13 times in 1,000 commits (docs/statistics.md, "The bound")."""
METRICS_OF_HAZARD = 10.0
"""The hazard is a budget of the task: of M metrics, each has 1 / (1 + M / 10) of it."""
WARM_UP_STEP = 0.1  # deviations by which the warm-up moves before values are corrected anew
LEAST_WARM_UP = 1e-9  # of the level; less is rounding
UNMEASURED = MetricHistory(TrialNoise(sd=0.0, freedom=0), (), ())
BLOCK = 10  # metrics in memory at once
_FLOATS = 6_000_000  # in one array of the passes

_NOTHING: Mapping[Any, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One metric's draws: values less the effect of their place in a session.

    Attributes:
        scale: That of the values, and of all that follows.
        grows: Noise grows with the level on this scale.
        least: The least deviation that is believed.
        level: The typical size of a value; 1 of a logarithm, whose deviations are shares.
        unit: Of the tables of noise: a power of two near `level`.
    """

    key: MetricKey
    has_sessions: bool
    nodes: CommitNodes
    values: Floats
    scale: ValueScale
    grows: bool
    least: float
    level: float
    unit: float
    kept: Kept


@dataclass(frozen=True, slots=True, eq=False)
class _Task:
    """What holds for all metrics of a task; `chains` are those of each metric's nodes, by the
    identity of the nodes."""

    told_drifts: Mapping[MetricKey, Sequence[tuple[int, int]]]
    budget: float
    chains: dict[int, list[CommitNodes]]


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """One metric in one chain that must be passed.

    Attributes:
        told: Drifts that were told.
        content: The digest of what the result rests on.
        before: Return the digest of what the nodes before a given one rest on, which are settled.
        stretch: What is settled, None if nothing is.
    """

    series: Series
    metric: Prepared
    told: Sequence[tuple[int, int]]
    content: str
    before: Callable[[int], str]
    stretch: Stretch | None

    @property
    def chain(self) -> int:
        return int(self.metric.nodes.chain[0])


def budget_of(metrics: int) -> float:
    """Return each metric's share of the prior, of a task with so many metrics."""
    return 1 / (1 + metrics / METRICS_OF_HAZARD)


def hazard_of(nodes: CommitNodes, budget: float) -> Floats:
    """Return P(step before each node) of the prior: any commit of a gap may have made it."""
    gap = np.append(1, np.maximum(1, nodes.first[1:] - nodes.last[:-1]))
    result: Floats = 1 - (1 - HAZARD * budget) ** gap[: len(nodes)]
    return result


def _nodes(measured: Measurements, known: dict[Any, CommitNodes]) -> CommitNodes:
    """Return a metric's nodes. Metrics that were measured alike share them."""
    columns = (measured.place, measured.chain, measured.session, measured.rank, measured.seed)
    arrays: list[NDArray[Any]] = [*columns, measured.own, measured.bits]
    if not measured.has_sessions and (measured.bits < 0).any():
        arrays.append(measured.value)  # it tells repeats of a seed whose bits are not known
    alike = (measured.has_sessions, *(array.tobytes() for array in arrays))
    if alike not in known:
        known[alike] = commit_nodes(measured)
    return known[alike]


def _series(key: MetricKey, measured: Measurements, nodes: CommitNodes, kept: Kept) -> Series:
    """Return a metric's draws."""
    values = nodes.means(measured.value)
    largest = float(np.abs(values).max())
    level = max(trial_noise.scale_of(values), largest * metric_passes.LEAST_UNIT)
    least = trial_noise.least_sd(nodes, values)
    scale = ValueScale.of(values, grows=measured.grows)
    if kept.facts.setdefault("sign", scale.sign) != scale.sign:
        kept.facts = {"sign": scale.sign}
    if scale.sign:
        values, least, level = scale.values(values), least / level, 1.0
    unit = 2.0 ** round(math.log2(level))
    if measured.has_sessions:
        amplitude = trial_noise.warm_up(nodes, values)
        sd = math.exp(kept.facts["noise"]["log_sd"]) if "noise" in kept.facts else 0.0
        old = kept.facts.get("warm_up", math.inf)
        if abs(amplitude - old) <= WARM_UP_STEP * sd:
            amplitude = old
        if abs(amplitude) < LEAST_WARM_UP * level:
            amplitude = 0.0
        kept.facts["warm_up"] = amplitude
        values = values - trial_noise.warmth(nodes) * amplitude
    grows = measured.grows and not scale.sign
    return Series(key, measured.has_sessions, nodes, values, scale, grows, least, level, unit, kept)


def _table(series: Series) -> Floats:
    """Return what the metric's repeats say, as `trial_noise.repeat_table` has it."""
    nodes = series.nodes
    has_modes = trial_noise.HAS_SECOND_MODE and not series.has_sessions

    def of(begin: int, end: int) -> slice:
        return slice(int(nodes.offset[begin]), int(nodes.offset[end]))

    def name(begin: int, end: int) -> str:
        draws = of(begin, end)
        cell = nodes.cell[draws] - nodes.cell[draws][0]
        return settled.digest(
            series.unit, has_modes, series.values[draws], cell, nodes.counts[draws]
        )

    def compute(begin: int, end: int) -> Floats:
        draws = of(begin, end)
        counts = nodes.counts[draws]
        values = series.values[draws][counts] / series.unit
        return trial_noise.repeat_table(values, nodes.cell[draws][counts], has_modes)

    return settled.summed_table(len(nodes), compute, name, series.kept)


def _freedom(nodes: CommitNodes) -> int:
    counted = nodes.cell[nodes.counts]
    return len(counted) - int(begins_run(counted).sum())  # cells ascend


def _points(kind: Sequence[Series]) -> list[NoisePoint]:
    """Return the noise of all metrics of one kind: those with sessions, or those without."""
    differences = None
    if kind[0].has_sessions:
        differences = [trial_noise.session_differences(s.nodes, s.values) for s in kind]
    unit = np.array([s.unit for s in kind])
    return trial_noise.posterior(
        tables=np.array([_table(s) for s in kind]),
        log_level=np.log(np.array([s.level for s in kind]) / unit),
        log_scale=np.log(unit),
        least=np.array([s.least for s in kind]),
        has_repeats=np.array([_freedom(s.nodes) > 0 for s in kind]),
        is_share=np.array([s.scale.sign != 0 for s in kind]),
        differences=differences,
    )


def _noise(series: Series, point: NoisePoint) -> TrialNoise:
    """Return a metric's noise as views show it."""
    return TrialNoise(
        sd=math.exp(point.log_sd),
        freedom=_freedom(series.nodes),
        session=math.exp(point.log_ratio) if point.log_ratio is not None else 0.0,
        is_exact=series.nodes.is_exact,
        is_share=series.scale.sign != 0,
    )


def _result(job: _Job, passed: Passed, budget: float) -> ChainResult:
    """Return what a pass and the settled stretch before it say together."""
    metric, stretch = job.metric, job.stretch
    moments, level, variance = passed.moments, passed.level, passed.variance
    if stretch is not None:
        old = settled.result(job.series.kept, job.chain)  # it is kept with every stretch
        moments = np.concatenate([old.moments[: stretch.first], moments])
        level = np.concatenate([old.level[: stretch.first], level])
        variance = np.concatenate([old.variance[: stretch.first], variance])
    contrasts = np.zeros(len(level)), np.zeros(len(level))
    if metric.cells is not None:
        zero = -metric.origin / metric.unit if job.series.grows else None
        contrasts = level_chain.contrasts(metric.cells, len(level), metric.rows.weight, zero)
    result = ChainResult(moments, level, variance, metric.unit, metric.origin)
    steps = steps_of(result, contrasts, metric.nodes)
    for drift in stretch.drifts if stretch is not None else ():
        steps = replaced(steps, drift)
    return replace(result, steps=with_drifts(steps, metric, passed, job.told, budget))


def _keep(job: _Job, passed: Passed, result: ChainResult) -> None:
    """Keep a chain's result, and settle what is old enough."""
    nodes, stretch = job.metric.nodes, job.stretch
    first = settled.first_unsettled(nodes, result.steps, passed.first)
    if first > passed.first:
        message = passed.messages.forward[first - 1 - passed.first]
        drifts = [
            step
            for step in result.steps
            if step.kind is StepKind.DRIFT and step.last < nodes.first[first]
        ]
        stretch = Stretch(first, job.before(first), message, drifts)
    settled.keep(job.series.kept, job.chain, result, job.content, stretch)


def _content(nodes: CommitNodes, values: Floats, *parts: object) -> Callable[[int], str]:
    """Return the function that names what the nodes of a chain before a given one rest on.

    Args:
        parts: What all nodes rest on, beside places, sessions and values.
    """

    def content(end: int) -> str:
        return settled.digest(*parts, _where(nodes, end), values[: int(nodes.offset[end])])

    return content


@lru_cache(maxsize=32)
def _where(nodes: CommitNodes, end: int) -> str:
    """Return the digest of the nodes before a given one, which many metrics share."""
    draws = (column[: int(nodes.offset[end])] for column in (nodes.node, nodes.session, nodes.cell))
    places = (column[:end] for column in (nodes.first, nodes.last, nodes.returns))
    return settled.digest(*places, *draws)


def _job(
    series: Series, nodes: CommitNodes, values: Floats, point: NoisePoint, task: _Task
) -> _Job | None:
    """Return one metric in one chain, ready for its pass; None if what was kept is current."""
    chain, told = int(nodes.chain[0]), tuple(task.told_drifts.get(series.key, ()))
    parts = (chain, point, task.budget)
    content = _content(nodes, values, "result", *parts, told)(len(nodes))
    if settled.is_current(series.kept, chain, content):
        return None
    metric = metric_passes.prepare(nodes, values, point, hazard_of(nodes, task.budget))
    before = _content(nodes, values, "stretch", *parts, metric.grid.points)
    stretch = settled.stretch(series.kept, chain, before)
    return _Job(series, metric, told, content, before, stretch)


def _blocks(jobs: Sequence[_Job]) -> Iterator[tuple[int, Sequence[_Job]]]:
    """Yield first node and metrics of each pass: few enough to be in memory at once."""
    waiting: dict[tuple[int, ...], list[_Job]] = {}
    for job in jobs:
        first = job.stretch.first if job.stretch is not None else 0
        waiting.setdefault((first, id(job.metric.nodes)), []).append(job)
    for (first, _), group in waiting.items():
        metrics = [job.metric for job in group]
        rows, points = (
            max(len(m.rows.sd) for m in metrics),
            max(len(m.grid.points) for m in metrics),
        )
        each = rows * points * (len(metrics[0].nodes) - first)
        size = max(1, min(BLOCK, _FLOATS // each))
        for at in range(0, len(group), size):
            yield first, group[at : at + size]


def _pass_all(kind: Sequence[Series], points: Sequence[NoisePoint], task: _Task) -> None:
    """Bring what is kept of all chains of all metrics of one kind up to date."""
    jobs = []
    for series, learned in zip(kind, points, strict=True):
        begin, point = 0, settled.on_lattice(learned, series.kept)
        for nodes in task.chains[id(series.nodes)]:
            values = series.values[begin : begin + len(nodes.node)]
            begin += len(values)
            job = _job(series, nodes, values, point, task)
            if job is not None:
                jobs.append(job)
    for first, block in _blocks(jobs):
        earlier = [job.stretch.message for job in block if job.stretch is not None]
        metrics = [job.metric for job in block]
        for job, passed in zip(
            block, metric_passes.run(metrics, first, earlier or None), strict=True
        ):
            _keep(job, passed, _result(job, passed, task.budget))


def _history(series: Series, noise: TrialNoise, chains: Sequence[CommitNodes]) -> MetricHistory:
    """Join what is kept of a metric's chains, in the metric's unit."""
    nodes: list[Node] = []
    steps: list[Step] = []
    for chain in chains:  # each was just passed, or is current
        result = settled.result(series.kept, int(chain.chain[0]))
        newest = max(((s.last, s.node) for s in result.steps), default=None)
        for step in result.steps:
            is_newest = (step.last, step.node) == newest
            same = not nodes and is_newest == step.is_newest
            node = step.node + len(nodes)
            moved = step if same else step._replace(node=node, is_newest=is_newest)
            steps.append(series.scale.step_in_unit(moved))
        level, error = result.level * result.unit, np.sqrt(result.variance) * result.unit
        level, error = series.scale.in_unit(level + result.origin, error)
        ends = (column.tolist() for column in (chain.chain, chain.first, chain.last))
        nodes += Node.of(*ends, chain.rows, level.tolist(), error.tolist())
    steps.sort(key=lambda step: (step.likeliest, step.node))
    return MetricHistory(noise, tuple(nodes), tuple(steps))


def _by_seeds(
    history: MetricHistory, measured: Measurements, budget: float, kept: Kept
) -> MetricHistory:
    """Return the history with the steps that equal seeds tell, where they tell more than fresh
    ones. A slow drift stays: they know none."""
    paired = paired_steps(
        measured, history.nodes, history.noise,
        hazard=HAZARD * budget, checkpoints=Checkpoints(kept),
    )  # fmt: skip
    if paired is None:
        return history
    steps = list(paired)
    for drift in history.steps:
        if drift.kind is StepKind.DRIFT:
            steps = replaced(steps, drift)
    nodes = tuple(_at_levels(history.nodes, steps))
    return replace(history, nodes=nodes, steps=tuple(steps), by_seeds=True)


def _at_levels(nodes: Sequence[Node], steps: Sequence[Step]) -> Iterator[Node]:
    """Yield the nodes at the levels between the probable steps of their chain; their own levels
    know no seeds."""
    by_chain: dict[int, list[Step]] = {}
    for step in sorted(steps, key=lambda s: s.node):
        if step.probability >= KEPT:
            by_chain.setdefault(step.chain, []).append(step)
    for i, node in enumerate(nodes):
        if beside := by_chain.get(node.chain):
            at = bisect_right(beside, i, key=lambda s: s.node)
            step = beside[max(at, 1) - 1]
            own = (step.after, step.after_error) if at else (step.before, step.before_error)
            node = Node(*node[:4], *own)
        yield node


def trace(
    measured: Mapping[MetricKey, Measurements],
    *,
    told_drifts: Mapping[MetricKey, Sequence[tuple[int, int]]] = _NOTHING,
    cache: Cache | None = None,
) -> dict[MetricKey, MetricHistory]:
    """Return the history of every metric of one task.

    Args:
        measured: What was measured along one line of commits.
        told_drifts: First and last place of slow drifts that were told: one is kept down to a
            probability of one half.
        cache: Kept from call to call, one item a metric. What an item rests on is checked by its
            content.
    """
    if cache is None:
        return _traced(measured, told_drifts, {key: Kept() for key in measured})
    items = {key: cache.get(settled.item_name(key)) for key in measured}
    kept = {key: settled.decode(item) for key, item in items.items()}
    content = _inputs(measured, told_drifts)
    known = {key: settled.history(one, content) for key, one in kept.items()}
    if None not in known.values():
        return {key: history for key, history in known.items() if history is not None}
    result = _traced(measured, told_drifts, kept)
    for key, history in result.items():
        settled.keep_history(kept[key], content, history)
        cache[settled.item_name(key)] = settled.encode(kept[key])
    return result


def _inputs(
    measured: Mapping[MetricKey, Measurements],
    told_drifts: Mapping[MetricKey, Sequence[tuple[int, int]]],
) -> str:
    """Return the digest of all that the histories of a task rest on."""
    columns = [
        part
        for key, one in measured.items()
        for part in (key, told_drifts.get(key, ()), *map(one.__getattribute__, one.__slots__))
    ]
    return settled.digest(*columns)


def _traced(
    measured: Mapping[MetricKey, Measurements],
    told_drifts: Mapping[MetricKey, Sequence[tuple[int, int]]],
    kept: Mapping[MetricKey, Kept],
) -> dict[MetricKey, MetricHistory]:
    task = _Task(told_drifts, budget_of(len(measured)), {})
    known: dict[Any, CommitNodes] = {}
    every = []
    for key, one in measured.items():
        nodes = _nodes(one, known)
        if len(nodes):
            task.chains.setdefault(id(nodes), nodes.by_chain())
            every.append(_series(key, one, nodes, kept[key]))
    result = dict.fromkeys(measured, UNMEASURED)
    for has_sessions in (False, True):
        kind = [series for series in every if series.has_sessions == has_sessions]
        if not kind:
            continue
        points = _points(kind)
        _pass_all(kind, points, task)
        for series, point in zip(kind, points, strict=True):
            own = _history(series, _noise(series, point), task.chains[id(series.nodes)])
            result[series.key] = _by_seeds(own, measured[series.key], task.budget, series.kept)
    return result
