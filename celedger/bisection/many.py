"""The loop of a bisect: ask the statistics for the next commit, run it, tell them, stop. Several
metrics of one task are searched at once: every trial tells something of each.

Its whole state is the ledger: every question it asks first counts the trials that are stored,
so a killed search goes on where it was when the same command is typed again.

Each metric keeps a posterior of its own. Metrics of one training are correlated, so their
evidence is never multiplied; only what they are expected to learn is added, to choose the commit
whose trial serves those that are not answered yet best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from celedger.bisection.classes import classify
from celedger.bisection.curves import Curves, Placed
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
    seeking = _Search(bench, history, good, symptoms, limits)
    seeking.spent += [r for r in ran if r.trial.recipe == symptoms[0].task.recipe]
    stored = seeking.stored()
    budget = limits.budget + len(seeking.spent)
    if trials := seeking.expected_trials():
        expected(trials)
    while len(seeking.spent) < budget:
        cost = choice.Cost(seconds, build_seconds(seeking.records), seeking.tried())
        request = seeking.next(cost)
        if request is None:
            break
        step = seeking.run(request)
        if step is not None:
            seen(step)
    return seeking.reports(stored)


@dataclass(frozen=True, slots=True)
class _Request:
    """The next trial, and the metrics that it is for. `seed`: of a trial of that very commit;
    None where any of its class tells as much."""

    position: int
    whole: bool
    wanting: Sequence[Track]
    seed: int | None = None


class _Search:
    """All trials known so far, and one track for each metric that hears them."""

    def __init__(
        self,
        bench: Bench,
        history: History,
        good: Commit,
        symptoms: Sequence[Symptom],
        limits: Limits,
    ) -> None:
        self._bench, self._history, self._good = bench, history, good
        self._task = symptoms[0].task
        self._classes = classify(bench, history, good, self._task)
        self._tracks = [Track(bench, history, good, s, limits, self._classes) for s in symptoms]
        self._reader = self._tracks[0].reader
        self.records = self._reader.stored()
        self.spent: list[TrialRecord] = []
        self._hear()

    def stored(self) -> list[int]:
        """Return for each metric how many trials told something before this search ran any."""
        return [
            len(t.evidence.readings) - sum(t.symptom.reads(r) is not None for r in self.spent)
            for t in self._tracks
        ]

    def tried(self) -> frozenset[int]:
        """Return the positions that had a trial."""
        return frozenset(map(self._reader.position, self.records))

    def expected_trials(self) -> float:
        """Return how many trials the longest of the searches will take; 0 where all are done."""
        return max(
            (
                choice.expected_trials(t.question, t.evidence, t.posterior)
                for t in self._tracks
                if t.posterior.state is firstbad.State.SEARCHING
            ),
            default=0.0,
        )

    def next(self, cost: choice.Cost) -> _Request | None:
        """Return the trial to run next; None when all metrics are answered, or no trial would
        tell them more."""
        picks = [(pick, track) for track in self._tracks if (pick := track.pick(cost)) is not None]
        if not picks:
            return self._unrun()
        wanting = [track for _, track in picks]
        for pick, _ in picks:
            if pick.whole:  # some metric cannot do without it
                return _Request(pick.position, True, wanting)
        positions = sorted({pick.position for pick, _ in picks})
        bits = np.sum(
            [choice.gains(t.view.question.lineage, t.view.trusting, positions) for t in wanting],
            axis=0,
        )
        best = int(np.argmax(bits / np.array([cost.at(p) for p in positions])))
        return _Request(positions[best], False, wanting)

    def run(self, request: _Request) -> Step | None:
        """Run a trial and hear it; None where it told nothing new.

        Raises RepositoryError where git can check out neither an end nor too many others.
        """
        wanting, seed = request.wanting, request.seed
        at = request.position if seed is not None else self._classes.at(request.position)
        commit = self._commit(at)
        if seed is None:
            same = set[int]() if request.whole else set.union(*(t.fellows(at) for t in wanting))
            shas = [self._commit(position).sha for position in same]
            seed = next_seed(self._bench, commit, self._task, shas, whole=request.whole)
        try:
            record = self._bench.run(
                commit, self._task, seed,
                reuse=all(t.symptom.metric is None or t.symptom.bits_decide for t in wanting),
                until=self._until(request, seed),
            )  # fmt: skip
        except RepositoryError as error:
            # This clone cannot check it out. That is not kept: asked again, it is tried again.
            unreachable = self._reader.unreachable | {at}
            if at in (GOOD, self._bad) or len(unreachable) > UNREACHABLE:
                raise
            self._bench.listen(events.Unreachable(commit, str(error)))
            for track in self._tracks:
                track.reader.unreachable.add(at)
            self._hear()
            return None
        if request.seed is not None and record.derived:
            return None  # it is the trial that spoke for the commit, by another name
        self.spent.append(record)
        self.records.append(record)
        self._classes = classify(self._bench, self._history, self._good, self._task)
        self._hear()
        for track in self._tracks:
            track.steps.append((at, tuple(np.asarray(track.posterior.probability).tolist())))
        first = wanting[0]
        name = first.symptom.name if len(self._tracks) > 1 else ""
        return Step(at, commit, record, first.posterior, len(self.spent), name)

    def reports(self, stored: Sequence[int]) -> tuple[Report, ...]:
        """Conclude each metric, and write it to the ledger."""
        bench = self._bench
        return tuple(
            conclude(
                bench.ledger, self._history, self._good, track.symptom, track.question,
                track.evidence, track.posterior, spent=self.spent, free=free,
                steps=tuple(track.steps),
                named=[track.reader.speaker(self.records, p) for p in track.named(self.records)],
                ulid=ulids.new(bench.now(), bench.random), now=bench.now(),
            )
            for track, free in zip(self._tracks, stored, strict=True)
        )  # fmt: skip

    @property
    def _bad(self) -> int:
        return len(self._history.commits) - 1

    def _hear(self) -> None:
        for track in self._tracks:
            track.hear(self.records, self._classes)

    def _commit(self, position: int) -> Commit:
        return self._good if position == GOOD else self._history.commits[position]

    def _unrun(self) -> _Request | None:
        """Return a trial of a commit that is named, or of its parent, where only their classes
        had one: the report is about them, and what it prints reads their trials."""
        for track in self._tracks:
            if lacking := track.unrun(self.records):
                return _Request(lacking[0], True, [track], seed=lacking[1])
        return None

    def _until(self, request: _Request, seed: int) -> events.Until | None:
        """Return when the trial may stop; None where its end is wanted."""
        curves = Curves(self._bench.ledger, [track.symptom for track in request.wanting])
        if request.whole or not curves.decide:
            return None
        placed = Placed(self._bad, tuple((self._reader.position(r), r) for r in self.records))
        enough = curves.enough(placed, seed)
        return lambda ulid: enough(curves.read(ulid))
