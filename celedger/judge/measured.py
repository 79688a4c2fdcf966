"""Read a task's trials along a line as the arrays that the model of histories takes.

A value counts if its trial ended well, was summarised by today's rule and, for speed, was not
disturbed. Trials that a person declared void are left out. Judges nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from celedger.base.model import (
    CLOCKED,
    LEAK,
    SPOILT,
    Direction,
    Kind,
    Mark,
    Metric,
    TaskRecord,
    is_time,
)
from celedger.judge.line import Line
from celedger.ledger.arrays import TaskColumns
from celedger.ledger.read import Reader
from celedger.stats import Floats, Ints
from celedger.stats.course import Measurements, MetricKey

_LARGEST = 1e100
"""A value beyond it is taken for infinite: its square is not, and no training means it."""
_REPEATS = 3
"""Repeats of a seed at a commit that agree to the last digit, from which memory or work counts as
exact: bytes that torch allocated, calls of a function. One that differs makes it noisy again."""
_WITHIN_TRIAL = frozenset({LEAK})
"""What grows from step to step of one trial: no state of the machine or of a session is in it."""
_SHORT = "%.6g"
"""A value that this writes in full may be equal by chance: an accuracy of 0.875, a count."""


@dataclass(frozen=True, slots=True)
class Chain:
    """What values must share to be compared: an environment (or several that a person declared
    equal), and a definition of the task."""

    environment: str
    recipe: str


@dataclass(frozen=True, slots=True, eq=False)
class TaskMeasurements:
    """A task's trials along a line.

    Attributes:
        chains: In the order of first use; a number of a chain is an index.
        metrics: Those that are judged, by key.
        measured: By key; those without a value on the line are left out.
        not_finite: Places with a value that is no number, or infinite, by key.
        ended_well: Id, place, chain, seed and start (µs) of each trial that ended well: a column of
            an array each.
        tried: Places with a trial that ended, however.
        same_code: Place of a commit -> the older place whose results it re-uses.
    """

    suite: str
    name: str
    chains: tuple[Chain, ...]
    metrics: Mapping[MetricKey, Metric]
    measured: Mapping[MetricKey, Measurements]
    not_finite: Mapping[MetricKey, frozenset[int]]
    ended_well: Ints
    tried: frozenset[int]
    same_code: Mapping[int, int]


class _Definition:
    """The trials of one definition of a task, as columns."""

    def __init__(
        self, ledger: Reader, line: Line, recipe: str, equal: Mapping[str, str], void: Ints
    ) -> None:
        self.columns = columns = TaskColumns(ledger, recipe)
        here = np.array([line.places.get(sha, -1) for sha in columns.commits], dtype=np.int64)
        self.place = here[columns.commit] if columns.ids.size else columns.ids
        self.chains = [Chain(equal.get(e, e), recipe) for e in columns.environments]
        self.counts = (self.place >= 0) & ~np.isin(columns.ids, void)
        whole = columns.ok & ~columns.marked(Mark.EARLY_STOPPED) & self.counts
        self.usable = {False: whole, True: whole & ~columns.marked(*SPOILT)}
        self.seed, self.own = columns.seed, ~columns.derived
        self.bits = np.full(columns.ids.size, -1, dtype=np.int64)

    def values(self, metric: Metric) -> tuple[Ints, Floats]:
        """Return the indices of the trials that have a value of the metric, and those values. No
        speed or memory is stored with a re-used result: it is that of the trial that ran."""
        rows, values = self.columns.values(metric)
        if metric.kind not in CLOCKED:
            return rows, values
        derived = np.setdiff1d(np.flatnonzero(self.columns.derived), rows)
        ran, evidence = self.columns.ids[rows], self.columns.evidence[derived]
        found = np.isin(evidence, ran)
        every = np.concatenate([rows, derived[found]])
        values = np.concatenate([values, values[np.searchsorted(ran, evidence[found])]])
        order = np.argsort(every, kind="stable")
        return every[order], values[order]

    def reused(self) -> list[tuple[int, int]]:
        """Return the places of re-used results, each with the older place of the trial that ran."""
        derived = np.flatnonzero(self.counts & self.columns.derived)
        ran = np.searchsorted(self.columns.ids, self.columns.evidence[derived])
        pairs = zip(self.place[derived].tolist(), self.place[ran].tolist(), strict=True)
        return [(there, here) for there, here in pairs if 0 <= here < there]

    def first_used(self) -> list[tuple[int, Chain]]:
        """Return each chain with the id of its first trial that counts."""
        codes, ids = self.columns.environment[self.counts], self.columns.ids[self.counts]
        return [
            (int(ids[codes == code][0]), self.chains[code]) for code in np.unique(codes).tolist()
        ]


def measurements(
    ledger: Reader,
    line: Line,
    records: Sequence[TaskRecord],
    *,
    equal: Mapping[str, str],
    void: Collection[int] = (),
) -> TaskMeasurements:
    """Read a task's trials along a line.

    Args:
        records: All definitions of the task, the oldest first.
        equal: Environments that a person declared equal: each with the one that stands for it.
        void: Ids of trials that are left out.
    """
    newest = records[-1]
    out = np.array(sorted(void), dtype=np.int64)
    parts = [_Definition(ledger, line, record.recipe, equal, out) for record in records]
    used = sorted((pair for part in parts for pair in part.first_used()), key=lambda p: p[0])
    chains = list(dict.fromkeys(chain for _, chain in used))
    every = [m for m in ledger.metrics(newest.recipe) if m.direction is not Direction.INFO]
    _number_bits(parts, [m for m in every if m.kind not in CLOCKED])
    metrics = {(newest.suite, newest.name, m.name): m for m in every}
    measured, not_finite = {}, {}
    for key, metric in metrics.items():
        values, broken = _of_metric(parts, chains, metric)
        if values is not None:
            measured[key] = values
        not_finite[key] = broken
    return TaskMeasurements(
        newest.suite, newest.name, tuple(chains), metrics, measured, not_finite,
        np.concatenate([_ended_well(part, chains) for part in parts], axis=1),
        frozenset(place for part in parts for place in part.place[part.counts].tolist()),
        {there: here for part in parts for there, here in part.reused()},
    )  # fmt: skip


def _ended_well(part: _Definition, chains: Sequence[Chain]) -> Ints:
    numbers = np.array(
        [chains.index(c) if c in chains else -1 for c in part.chains], dtype=np.int64
    )
    rows = np.flatnonzero(part.usable[False])
    columns = part.columns
    chain = numbers[columns.environment[rows]] if rows.size else rows
    return np.array(
        [columns.ids[rows], part.place[rows], chain, part.seed[rows], columns.started[rows]],
        dtype=np.int64,
    )


def _of_metric(
    parts: Sequence[_Definition], chains: Sequence[Chain], metric: Metric
) -> tuple[Measurements | None, frozenset[int]]:
    """Return a metric's usable values in the order of recording, and the places of those that are
    not finite in the newest trial of their seed."""
    numbers = {chain: number for number, chain in enumerate(chains)}
    table: list[Floats] = []
    for part in parts:
        rows, values = part.values(metric)
        keep = part.usable[metric.kind is Kind.SPEED][rows]
        rows, values = rows[keep], values[keep]
        if not rows.size:
            continue
        columns = part.columns
        # Equal bits of quality say nothing of speed or memory, the same trial says it of all.
        bits = columns.evidence_or_own if metric.kind in CLOCKED else part.bits
        chain = np.array([numbers.get(each, -1) for each in part.chains])[columns.environment[rows]]
        table.append(
            np.array(
                [
                    columns.ids[rows], part.place[rows], chain, columns.session[rows],
                    columns.rank[rows], part.seed[rows], part.own[rows], bits[rows],
                    values, part.bits[rows],
                ],
                dtype=np.float64,
            )
        )  # fmt: skip
    if not table:
        return None, frozenset()
    joined = np.concatenate(table, axis=1)
    joined = joined[:, np.argsort(joined[0], kind="stable")]
    finite = np.abs(joined[8]) <= _LARGEST  # False for NaN
    broken = frozenset(
        int(joined[1, row])
        for row in np.flatnonzero(~finite & (joined[6] == 1)).tolist()
        if not _is_repeated(joined, row)
    )
    if not finite.any():
        return None, broken
    _, place, chain, session, rank, seed, own, bits, value, same = joined[:, finite]
    has_sessions = varies_by_session(metric)
    counts = metric.kind in (Kind.WORK, Kind.MEMORY) and not is_time(metric.unit)
    if counts and _is_exact(joined[:, finite & (joined[6] == 1)]):
        has_sessions = False
        _, pairs = np.unique([same, value], axis=1, return_inverse=True)
        bits = np.where(same < 0, -1, pairs)
    whole = [column.astype(np.int64) for column in (place, chain, session, rank, seed)]
    sessions = _in_order_of_time(whole[2])
    return Measurements(
        whole[0], whole[1], sessions, whole[3], whole[4], value * metric.direction.sign,
        own == 1, bits.astype(np.int64), has_sessions,
        has_sessions and metric.kind is not Kind.MEMORY,
    ), broken  # fmt: skip


def varies_by_session(metric: Metric) -> bool:
    """Return True if values of two sessions are of two states of the machine."""
    return metric.kind in CLOCKED and metric.name not in _WITHIN_TRIAL


def _is_exact(own: Floats) -> bool:
    """Return True if a metric repeats to the last digit where a seed was trained at a commit again,
    and is no constant."""
    where, group = np.unique(own[[1, 2, 5]], axis=1, return_inverse=True)
    value, repeats = own[8], own.shape[1] - where.shape[1]
    newest = np.zeros(where.shape[1])
    newest[group] = value
    return repeats >= _REPEATS and bool((newest[group] == value).all()) and np.ptp(value) > 0


def _is_repeated(joined: Floats, row: int) -> bool:
    """Return True if a later trial had the place, the chain and the seed of a row."""
    place, chain, seed = joined[[1, 2, 5], row]
    later = joined[:, row + 1 :]
    return bool(((later[1] == place) & (later[2] == chain) & (later[5] == seed)).any())


def _in_order_of_time(session: Ints) -> Ints:
    """Number sessions in the order in which each has its first row."""
    _, first, inverse = np.unique(session, return_index=True, return_inverse=True)
    ranks = np.empty(first.size, dtype=np.int64)
    ranks[np.argsort(first)] = np.arange(first.size)
    return ranks[inverse]


def _number_bits(parts: Sequence[_Definition], metrics: Sequence[Metric]) -> None:
    """Give trials that computed the same the same number: equal values of all metrics of quality,
    and equal parameters where the trial reported their fingerprint. Values that are short and come
    without a fingerprint may be equal by chance: -1."""
    numbers: dict[tuple[str | None, bytes], int] = {}
    for part in parts:
        values = np.full((part.columns.ids.size, len(metrics)), np.nan)
        for index, metric in enumerate(metrics):
            rows, own = part.columns.values(metric)
            values[rows, index] = own
        prints = part.columns.fingerprints()
        ids = part.columns.evidence_or_own.tolist()
        known = np.isfinite(values).any(axis=1)
        for row in np.flatnonzero(part.usable[False] & known).tolist():
            fingerprint = prints.get(ids[row])
            column = values[row]
            if fingerprint is None and all(
                float(_SHORT % v) == v for v in column.tolist() if v == v
            ):
                continue
            part.bits[row] = numbers.setdefault((fingerprint, column.tobytes()), len(numbers))
