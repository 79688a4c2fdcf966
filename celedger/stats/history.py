"""One metric's history: levels that step, noise from repeats of the same code only.

Lives here: `trace`, which joins noise, chain, steps and drifts for the metrics of one task. It
knows places on a line, not commits; it has no clock, no file, no process.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from celedger.stats import level_likelihood, metric_passes, repeat_tables, trial_noise
from celedger.stats.arrays import Floats, Ints
from celedger.stats.commit_nodes import CommitNodes, commit_nodes, repeats_exactly
from celedger.stats.course import Measurements, MetricHistory, MetricKey, Node, TrialNoise
from celedger.stats.level_steps import StepEvidence, steps_of
from celedger.stats.metric_passes import NoisePoint, Passed, Prepared, alike, prepare

HAZARD = 1 / 400
"""Prior probability that a commit changes a metric, for one metric. A false step of probability
.95 then comes at most .13 times in 1,000 commits (`research/lives.md`, section 4)."""
METRICS_OF_HAZARD = 10.0
"""The hazard is a budget of the task: of M metrics, each has 1 / (1 + M / 10) of it."""
UNMEASURED = MetricHistory(
    TrialNoise(sd=0.0, log_sd_error=trial_noise.LOG_SD_PRIOR, freedom=0, outliers=0.0), (), ()
)
BLOCK = 10  # metrics in memory at once
_FLOATS = 6_000_000  # in one array of the passes


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One metric's draws: values less the effect of their place in a session."""

    key: MetricKey
    has_sessions: bool
    is_exact: bool
    nodes: CommitNodes
    values: Floats
    group: Ints
    scale: float


def hazard_of(nodes: CommitNodes, metrics: int) -> Floats:
    """Return P(step before each node) of the prior: any commit of a gap may have made it."""
    each = HAZARD / (1 + metrics / METRICS_OF_HAZARD)
    gap = np.append(1, np.maximum(1, nodes.first[1:] - nodes.last[:-1]))
    result: Floats = 1 - (1 - each) ** gap[: len(nodes)]
    return result


def _series(key: MetricKey, measured: Measurements, known: dict[Any, CommitNodes]) -> Series:
    """Return a metric's draws. Metrics that were measured alike share their nodes."""
    columns = (measured.place, measured.chain, measured.session, measured.rank, measured.seed)
    arrays: list[NDArray[Any]] = [*columns, measured.own, measured.bits]
    if not measured.has_sessions and (measured.bits < 0).any():
        arrays.append(measured.value)  # it tells repeats of a seed whose bits are not known
    alike = (measured.has_sessions, *(array.tobytes() for array in arrays))
    nodes = known.setdefault(alike, commit_nodes(measured)) if alike not in known else known[alike]
    values = measured.value[np.array([draw[0] for draw in nodes.draws], dtype=np.int64)]
    for i, draw in enumerate(nodes.draws):
        if len(draw) > 1:
            values[i] = measured.value[list(draw)].mean()
    group = trial_noise.groups(nodes, measured.has_sessions)
    if measured.has_sessions and len(values):
        values = trial_noise.without_warm_up(nodes, values, group)
    return Series(
        key=key,
        has_sessions=measured.has_sessions,
        is_exact=repeats_exactly(measured),
        nodes=nodes,
        values=values,
        group=group,
        scale=2.0 ** round(math.log2(trial_noise.scale_of(values))),
    )


def _tables(series: Series) -> Floats:
    """Return what the metric's repeats say, as `repeat_tables.table` has it."""
    counts = series.nodes.counts
    has_modes = trial_noise.HAS_SECOND_MODE and not series.has_sessions
    values = series.values[counts] / series.scale
    return repeat_tables.table(values, series.group[counts], has_modes)


def _freedom(series: Series) -> int:
    counted = series.group[series.nodes.counts]
    return len(counted) - len(np.unique(counted))


def _noise(kind: Sequence[Series]) -> list[tuple[TrialNoise, NoisePoint]]:
    """Return the noise of all metrics of one kind: those with sessions, or those without."""
    has_sessions = kind[0].has_sessions
    level = np.array([trial_noise.scale_of(s.values) for s in kind])
    scale = np.array([s.scale for s in kind])
    known = trial_noise.posterior(
        tables=np.array([_tables(s) for s in kind]),
        log_level=np.log(level / scale),
        log_scale=np.log(scale),
        least=np.array([trial_noise.least_sd(s.values, s.group) for s in kind]),
        freedom=np.array([_freedom(s) for s in kind]),
        differences=[trial_noise.session_differences(s.nodes, s.values, s.group) for s in kind]
        if has_sessions
        else None,
    )
    result = []
    for i, series in enumerate(kind):
        point = NoisePoint(
            log_sd=float(known.log_sd[i]),
            log_sd_error=float(known.log_sd_error[i]),
            outliers=float(known.outliers[i]),
            modes=tuple(known.modes[i].tolist()),
            log_ratio=float(known.log_ratio[i]) if has_sessions else None,
            log_ratio_error=float(known.log_ratio_error[i]),
        )
        noise = TrialNoise(
            sd=math.exp(point.log_sd),
            log_sd_error=point.log_sd_error,
            freedom=int(known.freedom[i]),
            outliers=point.outliers,
            session=math.exp(known.log_ratio[i]) if has_sessions else 0.0,
            is_exact=series.is_exact,
        )
        result.append((noise, point))
    return result


def _history(series: Series, metric: Prepared, passed: Passed, noise: TrialNoise) -> MetricHistory:
    """Return nodes and steps from one metric's pass."""
    nodes = series.nodes
    contrast = precision = np.zeros(len(nodes))
    if metric.cells is not None:
        contrast, precision = level_likelihood.contrasts(
            metric.cells, len(nodes), metric.rows.weight
        )
    evidence = StepEvidence(
        moments=passed.moments,
        level=passed.level,
        variance=passed.variance,
        contrast=contrast,
        contrast_precision=precision,
        unit=metric.unit,
        origin=metric.origin,
    )
    steps = steps_of(evidence, nodes)
    newest = {step.chain: step.node for step in steps}
    return MetricHistory(
        noise=noise,
        nodes=tuple(
            Node(
                chain=int(nodes.chain[k]),
                first=int(nodes.first[k]),
                last=int(nodes.last[k]),
                rows=nodes.rows[k],
                level=float(passed.level[k]) * metric.unit + metric.origin,
                error=float(passed.variance[k]) ** 0.5 * metric.unit,
            )
            for k in range(len(nodes))
        ),
        steps=tuple(replace(s, is_newest=s.node == newest[s.chain]) for s in steps),
    )


def trace(
    measured: Mapping[MetricKey, Measurements],
    *,
    told_drifts: Mapping[MetricKey, Sequence[tuple[int, int]]] = MappingProxyType({}),
    pinned: Mapping[int, int] = MappingProxyType({}),
    cache: MutableMapping[str, Any] | None = None,
) -> dict[MetricKey, MetricHistory]:
    """Return the history of every metric of one task.

    Args:
        measured: What was measured along one line of commits.
        told_drifts: First and last place of slow drifts that were told: one is kept down to a
            probability of one half.
        pinned: Chain -> place of the commit that is run again and again to know the machine.
        cache: Kept from call to call. Items are checked by content before they are used; they may
            vanish at any time.
    """
    known: dict[Any, CommitNodes] = {}
    every = [_series(key, m, known) for key, m in measured.items()]
    result: dict[MetricKey, MetricHistory] = {}
    for has_sessions in (False, True):
        kind = [s for s in every if s.has_sessions == has_sessions and len(s.nodes)]
        if not kind:
            continue
        hazards = {id(s.nodes): hazard_of(s.nodes, len(measured)) for s in kind}
        waiting: dict[tuple[int, int, int], list[tuple[Series, TrialNoise, Prepared]]] = {}
        for series, (noise, point) in zip(kind, _noise(kind), strict=True):
            metric = prepare(
                series.nodes, series.values, series.group, point, hazards[id(series.nodes)]
            )
            waiting.setdefault(alike(metric), []).append((series, noise, metric))
        for group in waiting.values():
            each = len(group[0][2].rows.sd) * len(group[0][0].nodes) * len(group[0][2].grid.points)
            size = max(1, min(BLOCK, _FLOATS // each))
            for at in range(0, len(group), size):
                block = group[at : at + size]
                passed = metric_passes.run([metric for _, _, metric in block], 0, None)
                for (series, noise, metric), one in zip(block, passed, strict=True):
                    result[series.key] = _history(series, metric, one, noise)
    return {key: result.get(key, UNMEASURED) for key in measured}
