"""The planner of a bisect: the next trial, given the trials that ended and those under way. Several
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
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from celedger.base.errors import RepositoryError
from celedger.base.model import Commit, Task, TrialRecord
from celedger.judge.bisection.bisect_loop import Aim, Proposal, drive
from celedger.judge.bisection.bisect_report import Report, conclude
from celedger.judge.bisection.equal_commits import classify
from celedger.judge.bisection.one_metric import Track
from celedger.judge.bisection.other_tasks import Others
from celedger.judge.bisection.signing import Signing, signer_of
from celedger.judge.bisection.symptom import Symptom
from celedger.repo import History
from celedger.stats import choice, firstbad
from celedger.stats.choice import UnderWay
from celedger.stats.lineage import GOOD
from celedger.trial import events
from celedger.trial.engine import Engine, Need
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
    answer leaves unexplained is searched as well. `sign`: commits may be signed, too."""

    confidence: float = 0.95
    budget: int = BUDGET
    every_cause: bool = False
    sign: bool = True


@dataclass(frozen=True, slots=True)
class SearchStep:
    """One trial of the search as it looked just after it."""

    position: int
    commit: Commit
    record: TrialRecord
    posterior: firstbad.Posterior
    number: int
    metric: str = ""  # whose posterior it is, where several are searched at once


def search(
    bench: Bench,
    history: History,
    symptoms: Sequence[Symptom],
    limits: Limits,
    *,
    ran: Sequence[TrialRecord] = (),
    seconds: float = 1.0,
    none_prior: float = firstbad.NONE_PRIOR,
    engine: Engine | None = None,
    others: Sequence[Symptom] = (),
    expected: Callable[[float], None] = lambda _: None,
    on_step: Callable[[SearchStep], None] = lambda _: None,
) -> tuple[Report, ...]:
    """Search the first bad commit of `history.commits` (oldest first) for every one of
    the `symptoms`, which are of one task. One report each, in their order.

    `ran` are the trials that were just run to measure the ends: they are part of what this search
    took, and not of its budget. `seconds` is the usual time of a trial; `expected` is told how
    many trials it will take, before the first one is spent; `none_prior` is how likely it is that
    nothing changed, before any trial is read. Trials run on the `engine`, else on that of
    the bench. `others` are symptoms of other tasks that may have the cause of the first of the
    `symptoms`: they are asked about each answer until one stands. Raises CannotJudge, LedgerError
    or MachineError from the trials; a KeyboardInterrupt passes through, and nothing is lost.
    """
    engine = engine or bench.engine
    seeking = _Search(
        bench, history, symptoms, limits, ran, none_prior, seconds, engine.workers
    )  # fmt: skip
    stored = [t.told_by(seeking.records) - t.told_by(seeking.spent) for t in seeking.tracks]
    budget = limits.budget + len(seeking.spent)
    searching = [t for t in seeking.tracks if t.posterior.state is firstbad.Phase.SEARCHING]
    if searching:
        expected(max(track.expected_trials() for track in searching))

    def propose(under_way: Sequence[Proposal]) -> Proposal | None:
        if len(seeking.spent) + len(under_way) >= budget:
            return None
        return seeking.next(under_way)

    def hear(proposal: Proposal, future: Future[TrialRecord]) -> None:
        step = seeking.hear(proposal, future)
        if step is not None:
            on_step(step)

    drive(engine, propose, hear, seeking.spare)
    beside = Others(bench, history, others, limits.confidence)
    while others and seeking.ask(beside, engine):
        drive(engine, propose, hear, seeking.spare)
    return tuple(
        conclude(
            bench.ledger, history, track, seeking.spent, stored=number,
            ulid=bench.new_ulid(), now=bench.setup.now(), others=beside,
            signed=seeking.sign_named(track),
        )
        for track, number in zip(seeking.tracks, stored, strict=True)
    )  # fmt: skip


class _Search:
    """All trials known so far, and one track for each metric that hears them."""

    def __init__(
        self,
        bench: Bench,
        history: History,
        symptoms: Sequence[Symptom],
        limits: Limits,
        ran: Sequence[TrialRecord],
        none_prior: float,
        seconds: float,
        workers: int,
    ) -> None:
        self._seconds, self._workers = seconds, workers
        self._bench, self._history = bench, history
        self._task = symptoms[0].task
        self._unreachable: set[int] = set()  # forgotten with this command
        self.tracks = [Track(bench, history, s, limits.confidence, none_prior) for s in symptoms]
        self.spent = [r for r in ran if r.trial.recipe == self._task.recipe]
        self._answers: set[tuple[int, ...]] = set()  # that other tasks were asked about
        self._classes = classify(bench, history, self._task)
        self.records = self._classes.stored(bench, self._task)
        self._signing: Signing | None = None
        told = any(track.symptom.bits_decide for track in self.tracks)
        signer = signer_of(bench, self._task) if limits.sign and told else None
        if signer is not None:
            self._signing = Signing(
                signer, bench.ledger, history,
                lambda text: bench.station.listen(events.Remark(text)),
            )  # fmt: skip
        self._update()

    def next(self, under_way: Sequence[Proposal] = ()) -> Proposal | None:
        """Return the trial to run next, beside those under way; None when all metrics are answered,
        or no trial would tell them more. Commits are signed first while that tells more."""
        cost, beside = self._cost(), self._beside(under_way)
        picks = self._picks(cost, beside)
        while self._sign(picks, cost):
            picks = self._picks(cost, beside)
        wanting = [track for _, track in picks]
        for pick, _ in picks:
            if pick.whole:  # some metric cannot do without it
                return self._proposal(pick, Aim.CONFIRM, wanting, under_way)
        if picks:
            by_position = {pick.position: pick for pick, _ in reversed(picks)}
            positions = sorted(by_position)
            best = 0
            if len(positions) > 1:
                bits = sum(
                    choice.gains(t.view.question, t.view.trusting, positions, beside)
                    for t in wanting
                )
                best = int(np.argmax(bits / np.array([cost.at(p) for p in positions])))
            return self._proposal(by_position[positions[best]], Aim.NARROW, wanting, under_way)
        # A commit that is named, or its parent, of which only their classes had a trial: the
        # report is about them, and what it prints reads their trials.
        running = set(map(self._position, under_way))
        for track in self.tracks:
            if (unrun := track.unrun(self._unreachable | running)) is not None:
                at, seed = unrun
                need = Need(
                    track.commit(at), self._task, seed, reuse=self._reuse([track]), role="bisect"
                )
                return Proposal(need, Aim.NAMED, [track])
            if (middle := track.unseen_middle()) is not None and middle not in running:
                return self._proposal(choice.Choice(middle), Aim.LOOK, [track], under_way)
        return None

    def _picks(self, cost: choice.Cost, beside: UnderWay) -> list[tuple[choice.Choice, Track]]:
        """Return the trial that each metric would run next, of those that want one."""
        picks = ((track.pick(cost, beside), track) for track in self.tracks)
        return [(pick, track) for pick, track in picks if pick is not None]

    def _sign(self, picks: Sequence[tuple[choice.Choice, Track]], cost: choice.Cost) -> bool:
        """Sign a commit if that tells a metric more bits a second than each of these trials. Return
        True if one was."""
        told = [track for _, track in picks if track.symptom.bits_decide]
        if self._signing is None or not told or any(pick.whole for pick, _ in picks):
            return False
        rate = max(pick.gain / cost.at(pick.position) for pick, _ in picks)
        if not self._signing.sign(told[0].posterior.probability, rate, cost.build):
            return False
        for track in self.tracks:
            track.narrowing.pop()  # it is told by trial
        self._update()
        return True

    def sign_named(self, track: Track) -> int:
        """Return how many commits were signed; those that an answer is about are, where any was."""
        if self._signing is None:
            return 0
        self._signing.sign_named(track.named())
        return self._signing.signed

    def spare(self, under_way: Sequence[Proposal]) -> list[Proposal]:
        """Return which trials under way are not worth their end: all metrics are answered."""
        if any(t.posterior.state is firstbad.Phase.SEARCHING for t in self.tracks):
            return []
        return [p for p in under_way if p.aim not in (Aim.NAMED, Aim.LOOK)]

    def ask(self, others: Others, engine: Engine) -> bool:
        """Count what other tasks say of the first metric's answer. Return True if they were not
        asked about it before."""
        track = self.tracks[0]
        named = track.named()
        if not named or named in self._answers:
            return False
        self._answers.add(named)
        self.spent += others.train([track.commit(position) for position in named], engine)
        track.others = others.likelihoods()
        self._update()
        return True

    def _cost(self) -> choice.Cost:
        tried = frozenset(map(self._classes.position, self.records))
        return choice.Cost(self._seconds, build_seconds(self._task, self.records), tried)

    def _beside(self, under_way: Sequence[Proposal]) -> UnderWay:
        positions = (self._classes.at(self._position(each)) for each in under_way)
        return UnderWay(tuple(positions), self._workers)

    def _proposal(
        self, pick: choice.Choice, aim: Aim, wanting: Sequence[Track], under_way: Sequence[Proposal]
    ) -> Proposal:
        """Return the chosen trial, or one of the commit that stands for its own; with the chosen
        seed, unless that runs there now."""
        at, whole = self._classes.at(pick.position), aim is not Aim.NARROW
        commit = wanting[0].commit(at)
        same, is_end = set[int](), at in (GOOD, len(self._history.commits) - 1)
        if not whole and not (is_end and pick.seed is not None):  # it makes a pair
            same = set.union(*(set(track.fellows(at)) for track in wanting))
        running = {
            each.need.seed
            for each in under_way
            if self._classes.at(self._position(each)) in same | {at}
        }
        seed = next_seed(
            self._bench, commit, self._task, [wanting[0].commit(p).sha for p in same], whole=whole,
            under_way=running, first=pick.seed,
        )  # fmt: skip
        until = None if whole else self._until(wanting, seed)
        need = Need(
            commit, self._task, seed, reuse=self._reuse(wanting), until=until, role="bisect"
        )
        return Proposal(need, aim, wanting)

    def _position(self, proposal: Proposal) -> int:
        return self._classes.positions[proposal.need.commit.sha]

    def hear(self, proposal: Proposal, future: Future[TrialRecord]) -> SearchStep | None:
        """Take in a trial that ended; return None where it told nothing new.

        Raises RepositoryError where git can check out neither an end nor too many others.
        """
        at, commit, first = self._position(proposal), proposal.need.commit, proposal.wanting[0]
        try:
            record = future.result()
        except RepositoryError as error:
            # This clone cannot check it out. That is not kept: asked again, it is tried again.
            self._unreachable.add(at)
            if at in (GOOD, len(self._history.commits) - 1) or len(self._unreachable) > UNREACHABLE:
                raise
            remark = events.Remark(f"{commit.sha[:10]} is skipped: {error}")
            self._bench.station.listen(remark)
            self._update()
            return None
        if proposal.aim is Aim.NAMED and record.derived:
            return None  # it is the trial that spoke for the commit, by another name
        self.spent.append(record)
        self.records.append(record)
        self._classes = classify(self._bench, self._history, self._task)
        self._update()
        for track in self.tracks:
            track.steps.append(at)
        name = first.symptom.name if len(self.tracks) > 1 else ""
        return SearchStep(at, commit, record, first.posterior, len(self.spent), name)

    def _update(self) -> None:
        for track in self.tracks:
            if self._signing is not None and track.symptom.bits_decide:
                track.signed = self._signing.prior(self._classes.weights)
            track.hear(self.records, self._classes, self._unreachable)

    def _reuse(self, wanting: Sequence[Track]) -> bool:
        """Return True if the result of another trial serves: speed and memory are measured anew."""
        return all(t.symptom.metric is None or t.symptom.bits_decide for t in wanting)

    def _until(self, wanting: Sequence[Track], seed: int) -> events.Until | None:
        """Return when the trial may stop; None where its end is wanted: speed, memory and crashes
        are not told by epochs."""
        if not all(track.symptom.bits_decide for track in wanting):
            return None
        tests = [track.enough(seed) for track in wanting]

        def until(ulid: str) -> str:
            reasons = [test(ulid) for test in tests]
            return reasons[0] if all(reasons) else ""

        return until


def build_seconds(task: Task, records: Sequence[TrialRecord]) -> float:
    """Return the usual time that a commit's first trial takes beyond its commands: the build, which
    is kept for the later ones. Of trials that ended well; 0 where there is none, or no build: what
    the first trial waits for then is the import of `preload`, which no commit makes cheaper."""
    if not task.build and not task.venv:
        return 0.0
    first: dict[str, TrialRecord] = {}
    for record in sorted(records, key=lambda r: r.trial.started):
        first.setdefault(record.trial.commit, record)
    beyond = [
        record.outcome.ended - record.trial.started - record.summaries["duration"]
        for record in first.values()
        if record.ok and record.outcome is not None and "duration" in record.summaries
    ]
    return max(statistics.median(beyond), 0.0) if beyond else 0.0
