"""Plan a bisect: choose the next trial, given the trials that ended and those under way. Several
metrics of one task are searched at once, and each trial is evidence for all of them.

The ledger is the whole state: the planner counts the stored trials before each decision, so a
killed search continues when the same command is typed again.

Each metric has a posterior of its own. Metrics of one training are correlated, so their evidence is
never multiplied. Only the expected gains are added, to choose the commit whose trial best serves
the metrics without an answer."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from celedger.base.errors import CannotJudge, RepositoryError
from celedger.base.model import Commit, Task, TrialRecord
from celedger.judge.bisection.bisect_report import Agreement, Report, conclude, report_of
from celedger.judge.bisection.equal_commits import Signing, classify, signer_of
from celedger.judge.bisection.one_metric import Track
from celedger.judge.bisection.other_steps import NO_STEP_PRIOR, part
from celedger.judge.bisection.symptom import Symptom, final_trials, find_symptom
from celedger.repo import History
from celedger.stats import Floats, choice, firstbad
from celedger.stats.choice import UnderWay
from celedger.stats.lineage import GOOD
from celedger.trial.engine import Engine, Need, Remark, Until
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


OnStep = Callable[[Commit, firstbad.Posterior, int, str], None]
"""Is told each trial of a search just after it: its commit, the posterior, its number, and whose
posterior it is: the metric's where several are searched at once."""


# --- the loop: all workers are busy with the trials that tell most


class Reason(Enum):
    """Why a trial is run."""

    NARROW = "narrow"
    """It tells which commits are left."""
    CONFIRM = "confirm"
    """Its end is asked: it is of an end of the range, of the leader or of its parent."""
    LOOK = "look"
    """The ends are alike, and it tells whether a commit between them is, too."""
    NAMED = "named"
    """It is of a named commit, of which only others of its class had trials."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The next trial, and the metrics that it serves."""

    need: Need
    reason: Reason
    wanting: Sequence[Track] = ()


def drive(
    engine: Engine,
    propose: Callable[[Sequence[Proposal]], Proposal | None],
    ended: Callable[[Proposal, Future[TrialRecord]], None],
    spare: Callable[[Sequence[Proposal]], Sequence[Proposal]],
) -> None:
    """Run what is proposed until nothing is, and nothing is under way.

    `propose` gets the trials under way and returns the next one, None while there is none. `ended`
    takes in one that ended, and raises its error where that ends the search. `spare` returns which
    of the trials under way are no longer worth their end: these are ended, and their workers get
    others.
    """
    under_way: dict[Future[TrialRecord], Proposal] = {}
    ending: dict[Future[TrialRecord], Proposal] = {}
    try:
        while True:
            needless = {id(proposal) for proposal in spare(list(under_way.values()))}
            for future in [f for f, proposal in under_way.items() if id(proposal) in needless]:
                ending[future] = under_way.pop(future)
                future.cancel()
            while len(under_way) < engine.workers:
                proposal = propose(list(under_way.values()))
                if proposal is None:
                    break
                under_way[engine.submit(proposal.need)] = proposal
            waiting = {**under_way, **ending}
            if not waiting:
                return
            engine.wait()
            for future in filter(Future.done, waiting):
                under_way.pop(future, None)
                ending.pop(future, None)
                if not future.cancelled():
                    ended(waiting[future], future)
    finally:
        for future in under_way:
            future.cancel()


# --- the search


class Search:
    """The search of one range for the first bad commit of each of the `symptoms`, which are of one
    task: all trials known so far, and a track for each metric that hears them.

    Args:
        ran: The trials that were just run to measure the ends. They are part of what this search
            took, and not of its budget.
        none_prior: How likely it is that nothing changed, before any trial is read.
        engine: Runs the trials; else that of the bench.

    Raises CannotJudge if stored trials prove that nothing in the range can have changed the task.
    """

    def __init__(
        self,
        bench: Bench,
        history: History,
        symptoms: Sequence[Symptom],
        limits: Limits,
        *,
        ran: Sequence[TrialRecord] = (),
        none_prior: float = firstbad.NONE_PRIOR,
        engine: Engine | None = None,
    ) -> None:
        self._bench, self._history, self._engine = bench, history, engine or bench.engine
        self._task, self._limits = symptoms[0].task, limits
        self._seconds = bench.ledger.usual_seconds(self._task) or 1.0
        self._unreachable: set[int] = set()  # forgotten with this command
        self.tracks = [Track(bench, history, s, limits.confidence, none_prior) for s in symptoms]
        self._spent = [r for r in ran if r.trial.recipe == self._task.recipe]
        self._budget = limits.budget + len(self._spent)
        self._answers: set[tuple[int, ...]] = set()  # that other tasks were asked about
        self.classes = classify(bench, history, self._task)
        self.records = self.classes.stored(bench, self._task)
        self._stored = [t.count_read(self.records) - t.count_read(self._spent) for t in self.tracks]
        told = any(track.symptom.bits_decide for track in self.tracks)
        signer = signer_of(bench, self._task) if limits.sign and told else None
        self.signing: Signing | None = None
        if signer is not None:
            self.signing = Signing(
                signer, bench.ledger, history,
                lambda text: bench.station.listen(Remark(text)),
            )  # fmt: skip
        self._update()

    @property
    def expected_trials(self) -> float:
        """Return how many trials the search will still take; 0 once it is answered."""
        return max(track.expected_trials() for track in self.tracks)

    def run(
        self,
        others: Others | None = None,
        *,
        expected: Callable[[float], None] = lambda _: None,
        on_step: OnStep = lambda *_: None,
    ) -> tuple[Report, ...]:
        """Run trials until every metric is answered; return a report of each, in their order.

        `expected` is called with the expected number of trials before the first one runs. `others`
        are asked about each answer of the first metric until one stands. Raises CannotJudge,
        LedgerError or MachineError from the trials; a KeyboardInterrupt passes through, and nothing
        is lost.
        """
        if self._is_searching:
            expected(self.expected_trials)

        def ended(proposal: Proposal, future: Future[TrialRecord]) -> None:
            if self.trial_ended(proposal, future):
                first = proposal.wanting[0]
                name = first.symptom.name if len(self.tracks) > 1 else ""
                on_step(proposal.need.commit, first.posterior, len(self._spent), name)

        drive(self._engine, self.next, ended, self.spare)
        while others is not None and self._ask(others):
            drive(self._engine, self.next, ended, self.spare)
        bench, reports = self._bench, []
        for track, stored in zip(self.tracks, self._stored, strict=True):
            if self.signing is not None:  # those that an answer is about are signed, too
                self.signing.sign_named(track.named())
            signed = self.signing.signed if self.signing is not None else 0
            agreements = others.agreements(track) if others is not None else ()
            report = report_of(
                self._history, track, self._spent, stored=stored, signed=signed,
                ulid=bench.new_ulid(), now=bench.setup.now(), agreements=agreements,
            )  # fmt: skip
            reports.append(conclude(bench.ledger, report, is_new=bool(self._spent)))
        return tuple(reports)

    def further(self, reports: Sequence[Report], on_step: OnStep) -> list[Report]:
        """Search what the reports leave unexplained, and what those searches leave, within what is
        left of the budget; not what moves the metric back."""
        history, answers = self._history, list[Report]()
        position = {commit.sha: i for i, commit in enumerate(history.commits)}
        limits = replace(self._limits, budget=self._budget - reports[0].trials)
        rows = zip(self.tracks, reports, strict=True)
        left = [(track.symptom, other) for track, report in rows for other in report.others]
        while left and limits.budget > 0:
            symptom, other = left.pop(0)
            if other.share < 0:
                continue
            inside = part(history, position.get(other.after.sha, GOOD), position[other.by.sha])
            (answer,) = Search(
                self._bench, inside, [symptom], limits, none_prior=NO_STEP_PRIOR,
                engine=self._engine,
            ).run(on_step=on_step)  # fmt: skip
            limits = replace(limits, budget=limits.budget - answer.trials)
            answers.append(answer)
            left += [(symptom, each) for each in answer.others]
        return answers

    @property
    def _is_searching(self) -> bool:
        return any(t.posterior.state is firstbad.Phase.SEARCHING for t in self.tracks)

    def next(self, under_way: Sequence[Proposal] = ()) -> Proposal | None:
        """Return the trial to run next, beside those under way; None when all metrics are answered,
        no trial would tell them more, or the budget is spent. Commits are signed first while that
        tells more."""
        if len(self._spent) + len(under_way) >= self._budget:
            return None
        tried = frozenset(map(self.classes.position, self.records))
        cost = choice.Cost(self._seconds, build_seconds(self._task, self.records), tried)
        running = tuple(self.classes.at(self._position(each)) for each in under_way)
        beside = UnderWay(running, self._engine.workers)
        picks = self._picks(cost, beside)
        while self._sign(picks, cost):
            picks = self._picks(cost, beside)
        wanting = [track for _, track in picks]
        for pick, _ in picks:
            if pick.whole:  # some metric cannot do without it
                return self._proposal(pick, Reason.CONFIRM, wanting, under_way)
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
            return self._proposal(by_position[positions[best]], Reason.NARROW, wanting, under_way)
        # A commit that is named, or its parent, of which only their classes had a trial: the
        # report is about them, and what it prints reads their trials.
        own = set(map(self._position, under_way))
        for track in self.tracks:
            if (not_run := track.not_run(self._unreachable | own)) is not None:
                at, seed = not_run
                need = Need(
                    track.commit(at), self._task, seed, reuse=self._reuse([track]), role="bisect"
                )
                return Proposal(need, Reason.NAMED, [track])
            if (middle := track.unseen_middle()) is not None and middle not in own:
                return self._proposal(choice.Choice(middle), Reason.LOOK, [track], under_way)
        return None

    def _picks(self, cost: choice.Cost, beside: UnderWay) -> list[tuple[choice.Choice, Track]]:
        """Return the trial that each metric would run next, of those that want one."""
        picks = ((track.pick(cost, beside), track) for track in self.tracks)
        return [(pick, track) for pick, track in picks if pick is not None]

    def _sign(self, picks: Sequence[tuple[choice.Choice, Track]], cost: choice.Cost) -> bool:
        """Sign a commit if that tells a metric more bits a second than each of these trials. Return
        True if one was."""
        told = [track for _, track in picks if track.symptom.bits_decide]
        if self.signing is None or not told or any(pick.whole for pick, _ in picks):
            return False
        rate = max(pick.gain / cost.at(pick.position) for pick, _ in picks)
        if not self.signing.sign(told[0].posterior.probability, rate, cost.build):
            return False
        for track in self.tracks:
            track.narrowing.pop()  # it is told by trial
        self._update()
        return True

    def spare(self, under_way: Sequence[Proposal]) -> list[Proposal]:
        """Return which trials under way are not worth their end: all metrics are answered."""
        if self._is_searching:
            return []
        return [p for p in under_way if p.reason not in (Reason.NAMED, Reason.LOOK)]

    def _ask(self, others: Others) -> bool:
        """Count what other tasks say of the first metric's answer. Return True if they were not
        asked about it before."""
        track = self.tracks[0]
        named = track.named()
        if not others.symptoms or not named or named in self._answers:
            return False
        self._answers.add(named)
        self._spent += others.train([track.commit(position) for position in named], self._engine)
        track.others = others.likelihoods()
        self._update()
        return True

    def _proposal(
        self,
        pick: choice.Choice,
        reason: Reason,
        wanting: Sequence[Track],
        under_way: Sequence[Proposal],
    ) -> Proposal | None:
        """Return the chosen trial, or one of the commit that stands for its own; with the chosen
        seed, unless that runs there now. None if only a seed is left that tells nothing."""
        at, whole = self.classes.at(pick.position), reason is not Reason.NARROW
        commit = wanting[0].commit(at)
        same, is_end = set[int](), at in (GOOD, len(self._history.commits) - 1)
        if not whole and not (is_end and pick.seed is not None):  # it makes a pair
            same = set.union(*(set(track.equal_positions(at)) for track in wanting))
        running = {
            each.need.seed
            for each in under_way
            if self.classes.at(self._position(each)) in same | {at}
        }
        seed = next_seed(
            self._bench, commit, self._task, [wanting[0].commit(p).sha for p in same], whole=whole,
            under_way=running, first=pick.seed,
        )  # fmt: skip
        if seed not in self._task.seeds and all(track.own_seeds_alone for track in wanting):
            return None
        until = None if whole else self._until(wanting, seed)
        need = Need(
            commit, self._task, seed, reuse=self._reuse(wanting), until=until, role="bisect"
        )
        return Proposal(need, reason, wanting)

    def _position(self, proposal: Proposal) -> int:
        return self.classes.positions[proposal.need.commit.sha]

    def trial_ended(self, proposal: Proposal, future: Future[TrialRecord]) -> bool:
        """Take in a trial that ended; return False if it is no new evidence.

        Raises RepositoryError where git can check out neither an end nor too many others.
        """
        at, commit = self._position(proposal), proposal.need.commit
        try:
            record = future.result()
        except RepositoryError as error:
            # This clone cannot check it out. That is not kept: asked again, it is tried again.
            self._unreachable.add(at)
            if at in (GOOD, len(self._history.commits) - 1) or len(self._unreachable) > UNREACHABLE:
                raise
            remark = Remark(f"{commit.sha[:10]} is skipped: {error}")
            self._bench.station.listen(remark)
            self._update()
            return False
        if proposal.reason is Reason.NAMED and record.derived:
            return False  # it is the trial that spoke for the commit, by another name
        self._spent.append(record)
        self.records.append(record)
        self.classes = classify(self._bench, self._history, self._task)
        self._update()
        for track in self.tracks:
            track.steps.append(at)
        return True

    def _update(self) -> None:
        for track in self.tracks:
            if self.signing is not None and track.symptom.bits_decide:
                track.signed = self.signing.prior(self.classes.weights)
            track.update(self.records, self.classes, self._unreachable, self._spent)

    def _reuse(self, wanting: Sequence[Track]) -> bool:
        """Return True if the result of another trial serves: speed and memory are measured anew."""
        return all(t.symptom.metric is None or t.symptom.bits_decide for t in wanting)

    def _until(self, wanting: Sequence[Track], seed: int) -> Until | None:
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


# --- the other tasks of an incident

ONE_CAUSE = 0.9
"""Prior probability that another task of an incident was moved by the same commit: the state joins
what one commit may have done, and two commits of one range seldom both do harm."""


class Others:
    """The symptoms of the other tasks of an incident, and what their trials say of the commit that
    the search of one task named. They are trained at that commit and its parent only."""

    def __init__(
        self,
        bench: Bench,
        history: History,
        tasks: Sequence[tuple[Task, str]],
        confidence: float,
    ) -> None:
        self._bench, self._history, self._limits = bench, history, Limits(confidence, sign=False)
        self.symptoms: list[Symptom] = []
        for task, metric in tasks:
            with suppress(CannotJudge):  # stored trials of the ends do not show it
                self.symptoms.append(find_symptom(bench, [task], history, metric or None))
        self._likelihoods: list[tuple[Symptom, Floats]] = []

    def train(self, commits: Sequence[Commit], engine: Engine) -> list[TrialRecord]:
        """Run each task once at each commit where it has no trial; return what ran."""
        needs = [
            Need(commit, s.task, s.task.seeds[0], role="bisect")
            for s in self.symptoms
            for commit in commits
            if not final_trials(
                self._bench, commit, s.task, self._bench.environments[s.task.name].fingerprint
            )
        ]
        ran: list[TrialRecord] = []

        def propose(_: Sequence[Proposal]) -> Proposal | None:
            return Proposal(needs.pop(0), Reason.NAMED) if needs else None

        def ended(_: Proposal, future: Future[TrialRecord]) -> None:
            ran.append(future.result())

        drive(engine, propose, ended, lambda _: ())
        return ran

    def likelihoods(self) -> Floats:
        """(n,) how likely all trials of the other tasks are if a candidate is the first bad commit,
        up to a factor. Each task has another cause with 1 - ONE_CAUSE, and then says nothing."""
        self._likelihoods = []
        for symptom in self.symptoms:
            with suppress(CannotJudge):  # nothing in the range can have changed the task
                (track,) = Search(self._bench, self._history, [symptom], self._limits).tracks
                self._likelihoods.append((symptom, _likelihood(track)))
        mixed = [ONE_CAUSE * likelihood + 1 - ONE_CAUSE for _, likelihood in self._likelihoods]
        return np.asarray(np.prod([np.ones(len(self._history.commits)), *mixed], axis=0))

    def agreements(self, track: Track) -> tuple[Agreement, ...]:
        """Return how each task agrees with the commit that a track names; () if it names none."""
        if track.posterior.state is not firstbad.Phase.FOUND:
            return ()
        leader = track.posterior.leader
        shares = ((s, ONE_CAUSE * float(each[leader])) for s, each in self._likelihoods)
        return tuple(
            Agreement(symptom.task.name, symptom.name, share / (share + 1 - ONE_CAUSE))
            for symptom, share in shares
        )


def _likelihood(track: Track) -> Floats:
    """(n,) how likely the trials are if a candidate is the first bad commit, over their mean."""
    prior = np.asarray(track.question.prior, dtype=float)
    prior /= prior.sum()
    change = (1 - track.posterior.no_change) / (1 - firstbad.NONE_PRIOR)
    ratio = np.divide(track.posterior.probability, prior, out=np.zeros_like(prior), where=prior > 0)
    return np.asarray(change * ratio)
