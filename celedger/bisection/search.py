"""The loop of a bisect: ask the statistics for the next commit, run it, tell them, stop. Several
metrics of one task are searched at once: every trial tells something of each.

Its whole state is the ledger: every question it asks first counts the trials that are stored,
so a killed search goes on where it was when the same command is typed again.

Each metric keeps a posterior of its own. Metrics of one training are correlated, so their
evidence is never multiplied; only what they are expected to learn is added, to choose the commit
whose trial serves those that are not answered yet best.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from celedger.bisection.classes import classify
from celedger.bisection.report import Report, conclude
from celedger.bisection.symptom import Symptom
from celedger.bisection.track import Track
from celedger.errors import RepositoryError
from celedger.ledger import ulid as ulids
from celedger.model import Commit, TrialRecord
from celedger.repo import History
from celedger.stats import choice, firstbad
from celedger.stats.lineage import GOOD
from celedger.trial import events
from celedger.trial.runner import Bench, next_seed

# A shift of one sd in 4,096 commits takes about 130 trials (docs/statistics.md); beyond this many
# the shift is far below the noise, or is not there, and a person should decide to go on.
BUDGET = 200
# Commits that git cannot check out and that a search steps around: of more it is the clone that is
# broken, or without a network.
UNREACHABLE = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """`budget` bounds the trials that are run; stored ones are free. With `every_cause` what an
    answer leaves unexplained is searched as well."""

    confidence: float = 0.95
    budget: int = BUDGET
    every_cause: bool = False


@dataclass(frozen=True, slots=True)
class SearchStep:
    """One trial of the search as it looked just after it."""

    position: int
    commit: Commit
    record: TrialRecord
    posterior: firstbad.Posterior
    number: int
    metric: str = ""  # whose posterior it is, where several are searched at once


@dataclass(frozen=True, slots=True)
class _Request:
    """The next trial, and the metrics that it is for. `seed`: of a trial of that very commit;
    None where any of its class tells as much."""

    position: int
    whole: bool
    wanting: Sequence[Track]
    seed: int | None = None


def search(
    bench: Bench,
    history: History,
    good: Commit,
    symptoms: Sequence[Symptom],
    limits: Limits,
    *,
    ran: Sequence[TrialRecord] = (),
    seconds: float = 1.0,
    none_prior: float = firstbad.NONE_PRIOR,
    expected: Callable[[float], None] = lambda _: None,
    on_step: Callable[[SearchStep], None] = lambda _: None,
) -> tuple[Report, ...]:
    """Search the first bad commit of `history.commits` (good..bad, oldest first) for every one of
    the `symptoms`, which are of one task. One report each, in their order.

    `ran` are the trials that were just run to measure the ends: they are part of what this search
    took, and not of its budget. `seconds` is the usual time of a trial; `expected` is told how
    many trials it will take, before the first one is spent; `none_prior` is how likely it is that
    nothing changed, before any trial is read. Raises CannotJudge, LedgerError or
    MachineError from the trials; a KeyboardInterrupt passes through, and nothing is lost.
    """
    seeking = _Search(bench, history, good, symptoms, limits, ran, none_prior)
    stored = [t.told_by(seeking.records) - t.told_by(seeking.spent) for t in seeking.tracks]
    budget = limits.budget + len(seeking.spent)
    searching = [t for t in seeking.tracks if t.posterior.state is firstbad.State.SEARCHING]
    if searching:
        expected(max(track.expected_trials() for track in searching))
    while len(seeking.spent) < budget and (request := seeking.next(seconds)) is not None:
        step = seeking.run(request)
        if step is not None:
            on_step(step)
    return tuple(
        conclude(
            bench.ledger, history, good, track, seeking.spent, stored=number,
            ulid=ulids.new(bench.now(), bench.random), now=bench.now(),
        )
        for track, number in zip(seeking.tracks, stored, strict=True)
    )  # fmt: skip


class _Search:
    """All trials known so far, and one track for each metric that hears them."""

    def __init__(
        self,
        bench: Bench,
        history: History,
        good: Commit,
        symptoms: Sequence[Symptom],
        limits: Limits,
        ran: Sequence[TrialRecord],
        none_prior: float,
    ) -> None:
        self._bench, self._history, self._good = bench, history, good
        self._task = symptoms[0].task
        self._unreachable: set[int] = set()  # forgotten with this command
        self.tracks = [
            Track(bench, history, good, s, limits.confidence, none_prior) for s in symptoms
        ]
        self.spent = [r for r in ran if r.trial.recipe == self._task.recipe]
        self._classes = classify(bench, history, good, self._task)
        self.records = self._classes.stored(bench, self._task)
        self._hear()

    def next(self, seconds: float) -> _Request | None:
        """Return the trial to run next; None when all metrics are answered, or no trial would
        tell them more."""
        tried = frozenset(map(self._classes.position, self.records))
        cost = choice.Cost(seconds, build_seconds(self.records), tried)
        picks = [(pick, track) for track in self.tracks if (pick := track.pick(cost)) is not None]
        wanting = [track for _, track in picks]
        for pick, _ in picks:
            if pick.whole:  # some metric cannot do without it
                return _Request(pick.position, True, wanting)
        if picks:
            positions = sorted({pick.position for pick, _ in picks})
            if len(positions) == 1:
                return _Request(positions[0], False, wanting)
            bits = sum(
                choice.gains(t.view.question.lineage, t.view.trusting, positions) for t in wanting
            )
            best = int(np.argmax(bits / np.array([cost.at(p) for p in positions])))
            return _Request(positions[best], False, wanting)
        # A commit that is named, or its parent, of which only their classes had a trial: the
        # report is about them, and what it prints reads their trials.
        for track in self.tracks:
            if (unrun := track.unrun(self._unreachable)) is not None:
                return _Request(unrun[0], True, [track], seed=unrun[1])
        return None

    def run(self, request: _Request) -> SearchStep | None:
        """Run a trial and hear it; None where it told nothing new.

        Raises RepositoryError where git can check out neither an end nor too many others.
        """
        wanting, seed, first = request.wanting, request.seed, request.wanting[0]
        at = request.position if seed is not None else self._classes.at(request.position)
        commit = first.commit(at)
        if seed is None:
            same = (
                set[int]() if request.whole else set.union(*(set(t.fellows(at)) for t in wanting))
            )
            shas = [first.commit(position).sha for position in same]
            seed = next_seed(self._bench, commit, self._task, shas, whole=request.whole)
        try:
            record = self._bench.run(
                commit, self._task, seed,
                reuse=all(t.symptom.metric is None or t.symptom.bits_decide for t in wanting),
                until=self._until(request, seed),
            )  # fmt: skip
        except RepositoryError as error:
            # This clone cannot check it out. That is not kept: asked again, it is tried again.
            self._unreachable.add(at)
            if at in (GOOD, len(self._history.commits) - 1) or len(self._unreachable) > UNREACHABLE:
                raise
            self._bench.listen(events.Unreachable(commit, str(error)))
            self._hear()
            return None
        if request.seed is not None and record.derived:
            return None  # it is the trial that spoke for the commit, by another name
        self.spent.append(record)
        self.records.append(record)
        self._classes = classify(self._bench, self._history, self._good, self._task)
        self._hear()
        for track in self.tracks:
            track.steps.append(at)
        name = first.symptom.name if len(self.tracks) > 1 else ""
        return SearchStep(at, commit, record, first.posterior, len(self.spent), name)

    def _hear(self) -> None:
        for track in self.tracks:
            track.hear(self.records, self._classes, self._unreachable)

    def _until(self, request: _Request, seed: int) -> events.Until | None:
        """Return when the trial may stop; None where its end is wanted: speed, memory and crashes
        are not told by epochs."""
        if request.whole or not all(track.symptom.bits_decide for track in request.wanting):
            return None
        tests = [track.enough(seed) for track in request.wanting]

        def until(ulid: str) -> str:
            reasons = [test(ulid) for test in tests]
            return reasons[0] if all(reasons) else ""

        return until


def build_seconds(records: Sequence[TrialRecord]) -> float:
    """Return the usual time that a commit's first trial takes beyond its commands: checkout and
    build, which are kept for the later ones. Of trials that ended well; 0 where there is none."""
    first: dict[str, TrialRecord] = {}
    for record in sorted(records, key=lambda r: r.trial.started):
        first.setdefault(record.trial.commit, record)
    beyond = [
        record.outcome.ended - record.trial.started - record.summaries["duration"]
        for record in first.values()
        if record.ok and record.outcome is not None and "duration" in record.summaries
    ]
    return max(statistics.median(beyond), 0.0) if beyond else 0.0
