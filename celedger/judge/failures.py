"""Stretches of a line in which a task fails, or a metric of it is not finite.

A commit fails if the newest trial of some seed did, in the environment in which it was tried last.
A commit that runs in another environment is not to blame. There are no statistics here: a failure
is over at the next commit that ran."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

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
_ERROR = re.compile(r"\b([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Fault))\b")


@dataclass(frozen=True, slots=True)
class Failure:
    """One stretch of commits that fail alike.

    Attributes:
        key: Suite, task and metric; the metric is "" where the whole task fails.
        kind: `crash`, `timeout`, `missing` or `not-finite`.
        first: The oldest place that may be the first bad commit: after the last one that ran, or
            failed in another way.
        last: The first place that failed.
        closed: The first place after it that ran, None where none did.
        known: The last place before it that ran, -1 where none did.
        lasted: The last place that failed so. What fails in another way since may hide it.
        message: What the first failing trial said; its `ulid` and `log`, where it has them.
    """

    key: MetricKey
    kind: str
    first: int
    last: int
    closed: int | None
    known: int = -1
    lasted: int = -1
    message: str = ""
    ulid: str = ""
    log: str = ""


def failures(ledger: Reader, line: Line, task: TaskMeasurements) -> list[Failure]:
    """Return a task's failures, the oldest first of each metric."""
    failed, elsewhere = _failed(ledger, line, task)
    ran = set(task.ended_well[1].tolist()) - failed.keys()
    ways = {p: (_KINDS[r.outcome.kind], signature(r)) for p, r in failed.items() if r.outcome}
    stretches = []
    for stretch in _stretches((task.suite, task.name, ""), ran | elsewhere, ways):
        record = failed[stretch.last]
        assert record.outcome is not None
        message, log = record.outcome.message, record.outcome.log
        stretches.append(replace(stretch, message=message, ulid=record.trial.ulid, log=log))
    for key, places in task.not_finite.items():
        values = task.measured.get(key) if places else None
        finite = set() if values is None else set(values.place.tolist())
        stretches += [
            replace(stretch, message="the value is not finite")
            for stretch in _stretches(key, finite, dict.fromkeys(places, (NOT_FINITE, "")))
        ]
    return stretches


def signature(record: TrialRecord) -> str:
    """Return how a trial crashed, coarse enough to survive a moved line: the outcome and the name
    of the exception, or the exit status where there is none. "" for one that did not crash."""
    outcome = record.outcome
    if outcome is None or not outcome.kind.crashed:
        return ""
    names = _ERROR.findall(outcome.message)
    if outcome.kind is not OutcomeKind.FAILED:
        return outcome.kind.value
    return f"failed {names[0] if names else outcome.returncode}"


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


def _stretches(
    key: MetricKey, ran: Iterable[int], ways: Mapping[int, tuple[str, str]]
) -> list[Failure]:
    """Return the stretches of places that fail in one way: a kind and a signature. One that fails
    in another way does not end them: it may hide the first."""
    stretches: list[Failure] = []
    before = known = -1
    lasting: dict[tuple[str, str], int] = {}
    for place in sorted({*ran, *ways}):
        way = ways.get(place)
        if way is None:
            known = place
            for number in lasting.values():
                stretches[number] = replace(stretches[number], closed=place)
            lasting = {}
        elif way in lasting:
            stretches[lasting[way]] = replace(stretches[lasting[way]], lasted=place)
        else:
            lasting[way] = len(stretches)
            stretches.append(Failure(key, way[0], before + 1, place, None, known, place))
        before = place
    return stretches
