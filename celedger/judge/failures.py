"""Stretches of a line in which a task fails, or a metric of it is no number.

A commit fails if the newest trial of some seed did, in the environment in which it was tried last.
One that runs in another environment is not to blame. Nothing here is statistics: a failure is
over at the next commit that ran.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from celedger.base.model import OutcomeKind, TrialRecord
from celedger.judge.line import Line
from celedger.judge.measured import Chain, TaskMeasurements
from celedger.ledger.read import Reader
from celedger.stats.course import MetricKey

_KINDS = {
    OutcomeKind.FAILED: "crash",
    OutcomeKind.OOM: "crash",
    OutcomeKind.TIMEOUT: "timeout",
    OutcomeKind.MISSING: "missing",
}
NOT_FINITE = "not-finite"


@dataclass(frozen=True, slots=True)
class Failure:
    """One stretch of failing commits.

    Attributes:
        key: Suite, task and metric; the metric is "" where the whole task fails.
        kind: `crash`, `timeout`, `missing` or `not-finite`.
        first: The oldest place that may be the first bad commit: after the last one that ran.
        last: The first place that failed.
        closed: The first place after it that ran, None where none did.
        message: What the first failing trial said; its `ulid` and `log`, where it has them.
    """

    key: MetricKey
    kind: str
    first: int
    last: int
    closed: int | None
    message: str = ""
    ulid: str = ""
    log: str = ""


def failures(ledger: Reader, line: Line, task: TaskMeasurements) -> list[Failure]:
    """Return a task's failures, the oldest first of each metric."""
    failed, elsewhere = _failed(ledger, line, task)
    ran = set(task.ended_well[1].tolist()) - failed.keys()
    kinds = {place: _KINDS[r.outcome.kind] for place, r in failed.items() if r.outcome}
    whole = (task.suite, task.name, "")
    stretches = []
    for first, last, closed in _stretches(ran | elsewhere, kinds):
        record = failed[last]
        assert record.outcome is not None
        message, log = record.outcome.message, record.outcome.log
        stretches.append(
            Failure(whole, kinds[last], first, last, closed, message, record.trial.ulid, log)
        )
    for key, places in task.not_finite.items():
        if not places:
            continue
        values = task.measured.get(key)
        finite = set() if values is None else set(values.place.tolist())
        bad = dict.fromkeys(places, NOT_FINITE)
        stretches += [
            Failure(key, NOT_FINITE, first, last, closed, "the value is not finite")
            for first, last, closed in _stretches(finite - places, bad)
        ]
    return stretches


def _failed(
    ledger: Reader, line: Line, task: TaskMeasurements
) -> tuple[dict[int, TrialRecord], set[int]]:
    """Return the newest failed trial by place, where no newer one of its seed ran; and the places
    that fail in one environment and run in an earlier one: that is no commit's doing."""
    chains = {chain: number for number, chain in enumerate(task.chains)}
    every = [
        (trial, line.places.get(record.trial.commit, -1), Chain(environment, recipe), record)
        for trial, environment, recipe, record in ledger.failures(task.suite, task.name)
        if record.outcome is not None and record.outcome.kind in _KINDS
    ]
    beside = np.isin(task.ended_well[1], [place for _, place, _, _ in every])
    newest: dict[tuple[int, int, int], int] = {}
    for trial, place, chain, seed, _ in task.ended_well[:, beside].T.tolist():
        newest[place, chain, seed] = trial
    failed: dict[int, dict[int, TrialRecord]] = {}
    for trial, place, where, record in every:
        chain = chains.get(where, len(chains))
        if place >= 0 and newest.get((place, chain, record.trial.seed), -1) < trial:
            failed.setdefault(place, {})[chain] = record
    ran: dict[int, set[int]] = {}
    for place, chain, _ in newest:
        ran.setdefault(place, set()).add(chain)
    chosen, elsewhere = {}, set()
    for place, by_chain in failed.items():
        last = max(by_chain)
        well = ran.get(place, set()) - by_chain.keys()
        if not well:
            chosen[place] = by_chain[last]
        elif last > min(well):
            elsewhere.add(place)
    return chosen, elsewhere


def _stretches(ran: Iterable[int], kinds: Mapping[int, str]) -> list[tuple[int, int, int | None]]:
    """Return each stretch of failing places of one kind: the oldest that may have begun it, the
    first that failed, and the first that ran again or None."""
    stretches: list[tuple[int, int, int | None]] = []
    well = set(ran) - kinds.keys()
    before, kind = -1, ""
    for place in sorted(well | kinds.keys()):
        now = kinds.get(place, "")
        if now and now != kind:
            stretches.append((before + 1, place, None))
        elif not now and kind:
            since = [n for n, (_, _, closed) in enumerate(stretches) if closed is None]
            for number in since:
                stretches[number] = (*stretches[number][:2], place)
        before, kind = place, now
    return stretches
