"""The loop of a bisect: ask the statistics for the next commit, run it, tell them, stop. Several
metrics of one task are searched at once: every trial tells something of each.

Its whole state is the ledger: every question it asks first counts the trials that are stored,
so a killed search goes on where it was when the same command is typed again.

Each metric keeps a posterior of its own. Metrics of one training are correlated, so their
evidence is never multiplied; only what they are expected to learn is added, to choose the commit
whose trial serves those that are not answered yet best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from celedger.bisection.classes import classify
from celedger.bisection.curves import Curves, Placed
from celedger.bisection.pace import Pace
from celedger.bisection.report import Report, conclude
from celedger.bisection.search import Limits, Step, build_seconds
from celedger.bisection.symptom import Symptom
from celedger.bisection.track import Track
from celedger.errors import RepositoryError
from celedger.ledger import ulid as ulids
from celedger.model import Commit, TrialRecord
from celedger.repo import History
from celedger.stats import choice, firstbad
from celedger.stats.lineage import GOOD
from celedger.trial import events
from celedger.trial.runner import Bench
from celedger.trial.seeds import next_seed

# Commits that git cannot check out and that a search steps around: of more it is the clone that is
# broken, or without a network.
UNREACHABLE = 3


def search(
    bench: Bench,
    history: History,
    good: Commit,
    symptoms: Sequence[Symptom],
    limits: Limits,
    *,
    ran: Sequence[TrialRecord] = (),
    seconds: float = 1.0,
    pace: Pace | None = None,
    expected: Callable[[float], None] = lambda _: None,
    seen: Callable[[Step], None] = lambda _: None,
) -> tuple[Report, ...]:
    """Search the first bad commit of `history.commits` (good..bad, oldest first) for every one of
    the `symptoms`, which are of one task. One report each, in their order.

    `ran` are the trials that were just run to measure the ends: they are part of what this search
    took, and not of its budget. `seconds` is the usual time of a trial; `expected` is told how
    many trials it will take, before the first one is spent. Raises CannotJudge, LedgerError or
    MachineError from the trials; a KeyboardInterrupt passes through, and nothing is lost.
    """
    pace = pace or Pace(bench.listen)
    task, commits = symptoms[0].task, history.commits
    classes = classify(bench, history, good, task)
    tracks = [Track(bench, history, good, symptom, limits, classes) for symptom in symptoms]
    reader = tracks[0].reader
    records = reader.stored()
    spent = [r for r in ran if r.trial.recipe == task.recipe]
    budget = limits.budget + len(spent)
    for track in tracks:
        track.hear(records, classes, pace)
    free = [
        len(t.evidence.readings) - sum(t.symptom.reads(r) is not None for r in spent)
        for t in tracks
    ]
    ahead = [
        choice.expected_trials(t.question, t.evidence, t.posterior)
        for t in tracks
        if t.posterior.state is firstbad.State.SEARCHING
    ]
    if ahead:
        expected(max(ahead))
    listen, bench.listen = bench.listen, pace
    try:
        while len(spent) < budget:
            built = frozenset(map(reader.position, records))
            cost = choice.Cost(seconds, build_seconds(records), built)
            found = _next(tracks, cost) or _own(tracks, records)
            if found is None:
                break
            wanting = found.wanting
            at = classes.at(found.position) if found.seed is None else found.position
            commit = good if at == GOOD else commits[at]
            like = set[int]() if found.whole else set.union(*(t.fellows(at) for t in wanting))
            seed = found.seed
            if seed is None:
                shas = [_sha(good, commits, p) for p in like]
                seed = next_seed(bench, commit, task, shas, whole=found.whole)
            placed = Placed(len(commits) - 1, tuple((reader.position(r), r) for r in records))
            try:
                record = bench.run(
                    commit, task, seed,
                    derive=all(t.symptom.metric is None or t.symptom.bits_decide for t in wanting),
                    until=_until(bench, found, placed, seed),
                )  # fmt: skip
            except RepositoryError as error:
                # This clone cannot check it out. That is not kept: asked again, it is tried again.
                reader.unreachable.add(at)
                if at in (GOOD, len(commits) - 1) or len(reader.unreachable) > UNREACHABLE:
                    raise
                pace(events.Unreachable(commit, str(error)))
                for track in tracks:
                    track.reader.unreachable.add(at)
                    track.hear(records, classes, pace)
                continue
            if found.seed is not None and record.derived:
                continue  # it is the trial that spoke for the commit, by another name
            spent.append(record)
            records.append(record)
            classes = classify(bench, history, good, task)
            for track in tracks:
                track.hear(records, classes, pace)
                track.steps.append((at, tuple(np.asarray(track.posterior.probability).tolist())))
            first = wanting[0]
            name = first.symptom.name if len(tracks) > 1 else ""
            seen(Step(at, commit, record, first.posterior, len(spent), name))
    finally:
        bench.listen = listen
    return tuple(
        conclude(
            bench.ledger, history, good, track.symptom, track.question, track.evidence,
            track.posterior, spent=spent, free=stored, steps=tuple(track.steps),
            named=[track.reader.speaker(records, p) for p in track.named(records)],
            ulid=ulids.new(bench.now(), bench.random), now=bench.now(),
        )
        for track, stored in zip(tracks, free, strict=True)
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Next:
    """The next trial, and the metrics that it is for. `rungs`: after how many of its points each
    of them has told enough; none where some metric wants the whole trial. `seed`: of a trial of
    that very commit; None where any of its class tells as much."""

    position: int
    whole: bool
    wanting: Sequence[Track]
    rungs: Mapping[str, int] = field(default_factory=dict)
    seed: int | None = None


def _own(tracks: Sequence[Track], records: list[TrialRecord]) -> _Next | None:
    """A trial of a commit that is named, or of its parent, where only their classes had one: the
    report is about them, and what it prints reads their trials."""
    for track in tracks:
        if lacking := track.unrun(records):
            return _Next(lacking[0], True, [track], seed=lacking[1])
    return None


def _next(tracks: Sequence[Track], cost: choice.Cost) -> _Next | None:
    """None when all metrics are answered, or no trial would tell them more."""
    picks = [(pick, track) for track in tracks if (pick := track.pick(cost)) is not None]
    if not picks:
        return None
    wanting = [track for _, track in picks]
    for pick, _ in picks:
        if pick.whole:  # some metric cannot do without it
            return _Next(pick.position, True, wanting)
    rungs = {t.symptom.name: pick.epochs for pick, t in picks if pick.epochs is not None}
    if len(rungs) < len(picks):
        rungs = {}
    positions = sorted({pick.position for pick, _ in picks})
    bits = np.sum(
        [choice.gains(t.view.question.lineage, t.view.trusting, positions) for t in wanting], axis=0
    )
    best = int(np.argmax(bits / np.array([cost.at(p) for p in positions])))
    return _Next(positions[best], False, wanting, rungs)


def _until(bench: Bench, found: _Next, placed: Placed, seed: int) -> events.Until | None:
    """When the trial may stop; None where its end is wanted."""
    curves = Curves(bench.ledger, [track.symptom for track in found.wanting])
    if found.whole or not curves.decide:
        return None
    enough = curves.enough(placed, seed, found.rungs)
    return lambda ulid: enough(curves.read(ulid))[0]


def _sha(good: Commit, commits: Sequence[Commit], position: int) -> str:
    return good.sha if position == GOOD else commits[position].sha
