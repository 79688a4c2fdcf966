"""One metric of a bisect, a `Track`: it reads all trials of the range as evidence, asks the
statistics and says which trial it would run next. Tracks share the trials of one search and do not
know of each other.

Two trials of one seed agree if the metric is equal at every epoch and the values are too fine for
chance, or the fingerprints are equal too. Equal fingerprints alone prove nothing about a metric: a
commit that breaks the evaluation leaves every parameter as it was. A running trial that agrees past
the epoch at which the two ends differ counts as the same trial and is stopped."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, sqrt

import numpy as np

from celedger.base.model import SPOILT, Commit, Direction, Kind, OutcomeKind, TrialRecord
from celedger.judge.bisection.equal_commits import Classes
from celedger.judge.bisection.symptom import (
    Symptom,
    at_one_place,
    ending,
    noise_of,
    sessions_of,
)
from celedger.ledger import Ledger
from celedger.repo import History
from celedger.stats import Floats, choice, equal_bits, firstbad, levels, likelihood
from celedger.stats.choice import UnderWay
from celedger.stats.levels import SURE, SURE_EXACT, SURE_REPEATED, lacking_failures
from celedger.stats.lineage import GOOD, Lineage
from celedger.system import process
from celedger.trial.engine import Until
from celedger.trial.runner import Bench

Sparse = tuple[tuple[int, float], ...]
"""(position, probability) of the candidates that are not unlikely."""
LIKELY = 0.005
_LOOKS = 3  # trials of a commit that seems worse than two alike ends
_SURELY = 3.0
"""Standard errors by which the ends are apart by more than the floor: a t test of two times three
trials is 2 % there."""
ENOUGH_AT_ENDS = 10
"""Trials of each end after which a change that is sure, and neither surely above the floor nor
surely within it, is searched like any other: halving its error takes thirty more of each."""
MAX_KILLED = 2  # a commit whose trial is killed from outside this often is stepped around


class Track:
    """The search for the first commit bad in one metric.

    What it derives is derived anew from all trials after each: what a trial of an end says of the
    others does not depend on which came first, and a second search sees what the first one saw.
    """

    def __init__(
        self,
        bench: Bench,
        history: History,
        symptom: Symptom,
        confidence: float,
        none_prior: float = firstbad.NONE_PRIOR,
    ) -> None:
        self.symptom = symptom
        self.steps: list[int] = []  # positions, in the order of their trials
        self.narrowing: list[Sparse] = []  # what was likely at first, and after each trial
        # Of each reading, the position of the commit that ran; None at others that agree with it.
        self.sites: list[int | None] = []
        self.question: firstbad.Question
        self.evidence: firstbad.Evidence
        self.view: equal_bits.View
        self.presumed = frozenset[int]()  # positions that cannot be tested either
        self.floor = 0.0  # that the change is about as large as, or within; 0 if neither
        self.records: Sequence[TrialRecord]
        self.classes: Classes
        self.others: Floats = np.ones(len(history.commits))  # likelihoods by other tasks' trials
        self.signed: Floats = np.ones(len(history.commits))  # what signatures say beforehand
        self._ledger, self._history = bench.ledger, history
        self._environment = bench.environments[symptom.task.name].fingerprint
        self._confidence, self._none_prior = confidence, none_prior
        self._lineage = Lineage(history.parents)
        self._traces = Traces(bench.ledger, symptom, self._lineage.bad)
        self._alike: tuple[frozenset[int], ...] = ()
        # By trial, where the trials of a session share an effect; and that of the next trial.
        self._sessions: Mapping[str, int] = {}
        self._session: int | None = None

    @property
    def posterior(self) -> firstbad.Posterior:
        return self.view.posterior

    def commit(self, position: int) -> Commit:
        return self._history.at(position)

    def update(
        self,
        records: Sequence[TrialRecord],
        classes: Classes,
        unreachable: Collection[int] = frozenset(),
        ran: Sequence[TrialRecord] = (),
    ) -> None:
        """Take in all trials known so far, the classes of the range that they prove, the positions
        that git cannot check out, and the trials that this search `ran`."""
        self.records, self.classes = records, classes
        placed = [(classes.position(record), record) for record in records]
        metric = self.symptom.metric
        noise, sessions = self._noise()
        self._number_sessions(sessions, ran)
        self.evidence = evidence = self._evidence(placed, unreachable)
        if self._session is None:
            readings = equal_bits.joined(evidence.readings, self._lineage.bad)
            self.evidence = evidence = replace(evidence, readings=readings)
        sure, unproven = self._traces.sure(placed)
        self.question = firstbad.Question(
            lineage=self._lineage,
            confidence=self._confidence,
            noise=noise,
            binary=metric is None,
            asked=self.symptom.asked,
            selected=self._selected(placed),
            sure=sure,
            unproven=unproven,
            none_prior=self._none_prior,
            floor=self._floor(),
            prior=(np.asarray(classes.weights) * self.others * self.signed).tolist(),
            place=classes.place,
            session=self._session,
        )
        self._alike = self._traces.alike(placed) if self.symptom.bits_decide else ()
        self.view = equal_bits.view(self.question, evidence, self._alike)
        self.floor = self.question.floor if self.posterior.within > 0.5 else 0.0
        if firstbad.only_floor_doubted(self.question, self.posterior):
            self._pass_over_floor()
        self.narrowing.append(_likely(self.posterior))

    def _pass_over_floor(self) -> None:
        """Search a change of any size, if that names its commit or the ends were tried enough."""
        question = replace(self.question, floor=0.0)
        view = equal_bits.view(question, self.evidence, self._alike)
        places = Counter(reading.position for reading in self.evidence.readings)
        tried = min(places[GOOD], places[self._lineage.bad]) >= ENOUGH_AT_ENDS
        if tried or view.posterior.state is not firstbad.Phase.SEARCHING:
            self.floor, self.question, self.view = self.question.floor, question, view

    def _floor(self) -> float:
        """Return the smallest change that counts: any change at all where the ends are surely
        apart by more than the floor, since they may be so by steps that are all within it."""
        metric = self.symptom.metric
        readings = [r for r in self.evidence.readings if isfinite(r.value)]
        good = [r.value for r in readings if r.position == GOOD]
        if metric is None or not good:
            return 0.0
        floor = metric.floor_at(statistics.median(good))
        readings = firstbad.comparable(readings, self._session)
        ends = [
            [r.value for r in readings if r.position == end] for end in (GOOD, self._lineage.bad)
        ]
        if min(map(len, ends)) < 2:
            return floor
        error = sqrt(sum(statistics.variance(own) / len(own) for own in ends))
        apart = statistics.mean(ends[1]) - statistics.mean(ends[0])
        return 0.0 if apart > floor + _SURELY * error else floor

    @property
    def own_seeds_alone(self) -> bool:
        """Return True if seeds that the suite does not name tell nothing: a script may have data
        for its own alone."""
        seeds = self.symptom.task.seeds
        others = [r for r in self.records if r.is_conclusive and r.trial.seed not in seeds]
        return len(others) >= MAX_KILLED and not self.count_read(others)

    def count_read(self, records: Sequence[TrialRecord]) -> int:
        """Return how many of these trials tell something."""
        return sum(self.symptom.reads(record) is not None for record in records)

    def expected_trials(self) -> float:
        """Return how many trials the search will still take."""
        return choice.expected_trials(self.question, self.evidence, self.posterior)

    def pick(self, cost: choice.Cost, beside: UnderWay) -> choice.Choice | None:
        """Return the next trial for this metric beside those under way; None when it is answered,
        or no trial would tell."""
        return equal_bits.pick(self.question, self.evidence, self.view, cost, beside)

    def unseen_middle(self) -> int | None:
        """Return where to look before "nothing changed" is said of alike ends: in the middle, and
        where it is worse than both ends again. None where that was done."""
        if self.posterior.state is not firstbad.Phase.NOTHING_CHANGED or not self.symptom.metric:
            return None
        values: dict[int, dict[int | None, float]] = {}
        for reading in self.evidence.readings:
            values.setdefault(reading.position, {})[reading.seed] = reading.value
        ends = {GOOD, self._lineage.bad}
        inside = values.keys() - ends
        if not inside:
            closed = self.question.hidden(self.evidence)
            if len(self.evidence.untestable) >= _LOOKS:
                return None
            places = sorted({*map(self.classes.at, range(len(self._lineage)))} - ends - closed)
            return places[len(places) // 2] if places else None
        if self._session is not None:
            return None  # values of other sessions do not compare as they are

        def above(position: int) -> float:  # both ends, by equal seeds where these tell
            own, apart = values[position], []
            for end in ends:
                same = own.keys() & values[end].keys() if self.posterior.by_seed else ()
                here, there = ([of[s] for s in same or of] for of in (own, values[end]))
                apart.append(statistics.mean(here) - statistics.mean(there))
            return min(apart)

        worst = max(inside, key=above)
        is_worse = above(worst) > self.question.floor
        return worst if is_worse and len(values[worst]) < _LOOKS else None

    def equal_positions(self, position: int) -> frozenset[int]:
        """Return the positions known to compute the same as this one."""
        return equal_bits.alike(self.evidence.readings, position, self._alike)

    def enough(self, seed: int) -> Until:
        """Return a test of a running trial of this seed: why it may stop, or ""."""
        placed = [(self.classes.position(record), record) for record in self.records]
        enough = self._traces.enough(placed, seed)

        def until(ulid: str) -> str:
            part = self._traces.read(ulid)
            if not enough(part):
                return ""
            return f"computed the same as another trial up to epoch {part[-1].number}"

        return until

    def named(self) -> tuple[int, ...]:
        """Return the named commit and, before it, its nearest ancestor with evidence."""
        if self.posterior.state is not firstbad.Phase.FOUND:
            return ()
        tested = {reading.position for reading in self.evidence.readings}
        leader = self.posterior.leader
        ahead = list(self._history.parents[leader]) or [GOOD]
        for at in ahead:  # grows: the nearest first
            if at == GOOD or self.classes.at(at) in tested:
                return at, leader
            ahead += [p for p in self._history.parents[at] or (GOOD,) if p not in ahead]
        return GOOD, leader

    def not_run(self, unreachable: Collection[int]) -> tuple[int, int] | None:
        """Return which commit of `named` has no trial of its own, and the seed of one that counts
        for it; None if both have."""
        for position in self.named():
            if position not in unreachable and not self._own_trials(position):
                return position, self._trials_for(position)[0].trial.seed
        return None

    def compared_commits(self) -> list[tuple[str, str]]:
        """Return for each commit of `named` two hashes: the commit whose trials are its evidence,
        and the one that ran. Both are its own unless its trials are derived, or only equivalent
        commits have trials."""
        compared_commits = []
        for position in self.named():
            own = ran = self.commit(position).sha
            trials = self._own_trials(position)
            if all(trial.derived for trial in trials):
                measured = (r for r in self._trials_for(position) if not r.derived)
                ran = next((r.trial.commit for r in measured), own)
            compared_commits.append((own if trials else ran, ran))
        return compared_commits

    def _own_trials(self, position: int) -> list[TrialRecord]:
        """Return the whole trials of that very commit, those derived from others too."""
        trials = self._ledger.trials(
            commit=self.commit(position).sha, recipe=self.symptom.task.recipe,
            environment=self._environment,
        )  # fmt: skip
        return [trial for trial in trials if not trial.early_stopped]

    def _trials_for(self, position: int) -> list[TrialRecord]:
        """Return the trials that tell something of the commit's class, its own first."""
        at, classes = self.classes.at(position), self.classes
        told = [record for record in self.records if self.symptom.reads(record) is not None]
        own = [record for record in told if classes.position(record) == at]
        return own or [record for record in told if at in classes.copies(record)]

    def _evidence(
        self, placed: Sequence[tuple[int, TrialRecord]], unreachable: Collection[int]
    ) -> firstbad.Evidence:
        readings: list[firstbad.Reading] = []
        self.sites = []
        failed: Counter[int] = Counter()
        endings: dict[int, str] = {}
        # Where both ends are finite, what is not finite failed in another way, as a crash does.
        is_asked = any(
            self.symptom.reads(r) == inf for at, r in placed if at in (GOOD, self._lineage.bad)
        )
        for position, record in placed:
            outcome = record.outcome
            if outcome is None or outcome.kind is OutcomeKind.INTERRUPTED or record.early_stopped:
                continue
            value = self.symptom.reads(record)
            if value is not None and (value < inf or is_asked):
                draw = self._traces.draw(record) if self.symptom.bits_decide else None
                copies = self.classes.copies(record) if self.symptom.bits_decide else []
                seed = self._sessions.get(record.trial.ulid, record.trial.seed)
                reading = firstbad.Reading(position, value, seed, draw)
                readings += [reading, *(replace(reading, position=at) for at in copies)]
                ran = self.classes.positions.get(record.trial.commit, position)
                self.sites += [ran, *(None for _ in copies)]
            elif not record.derived:  # it says nothing of a clock, and one that runs here may
                # A trial that was killed, whose speed was disturbed, or that was too short for a
                # reading of its memory, may be tried again; one that failed will fail again.
                well = outcome.kind in (OutcomeKind.OK, OutcomeKind.KILLED) and value is None
                again = well or SPOILT.intersection(outcome.marks)
                failed[position] += 1 if again else MAX_KILLED
                endings |= {} if again else {position: ending(record)}
        tested = {reading.position for reading in readings}
        silent = {position for position, n in failed.items() if n >= MAX_KILLED}
        untestable = (silent | set(unreachable)) - tested
        alike = {position: endings[position] for position in endings.keys() & untestable - {GOOD}}
        self.presumed = firstbad.presumed(self._lineage, alike, tested)
        tried = {(position, record.trial.seed) for position, record in placed}
        own = self.symptom.task.seeds if self.own_seeds_alone else ()
        spent = frozenset(p for p in tested if own and all((p, seed) in tried for seed in own))
        return firstbad.Evidence(tuple(readings), frozenset(untestable | self.presumed), spent)

    def _selected(self, placed: Sequence[tuple[int, TrialRecord]]) -> tuple[int, int]:
        """Return how many readings of GOOD and BAD made somebody ask, as the question wants it."""
        if self.symptom.metric is None:
            return 0, 0
        ends: dict[int, list[float]] = {GOOD: [], self._lineage.bad: []}
        for position, record in placed:
            value = self.symptom.reads(record) if position in ends else None
            if value is not None and isfinite(value) and record.trial.ulid in self.symptom.seen:
                ends[position].append(value)
        return levels.selected(np.array(ends[GOOD]), np.array(ends[self._lineage.bad]))

    def _noise(self) -> tuple[firstbad.NoisePrior | None, Mapping[str, str]]:
        """Return what the ledger knows of this metric's noise, and the session of each trial whose
        session has an effect. The trials of this range are evidence already and count only where
        they show that the metric repeats exactly."""
        metric, task = self.symptom.metric, self.symptom.task
        if metric is None:
            return None, {}
        rows = self._ledger.summaries(task.name, metric.name, recipe=task.recipe)
        rows = [r for r in rows if r.environment == self._environment]
        rows = [row for row in rows if row.may_be_judged(metric)]
        sessions = sessions_of(self._ledger, task, metric, rows)
        noise = noise_of(rows, sessions)
        if noise is not None and noise.sd == 0:
            return noise, sessions
        beside = [row for row in rows if row.commit not in self.classes.positions]
        return noise_of(beside, sessions), sessions

    def _number_sessions(self, sessions: Mapping[str, str], ran: Sequence[TrialRecord]) -> None:
        """Number the sessions of the range's trials, 0 the one that runs. What this search ran on
        several nodes is taken for one: none of them could be asked for again."""
        ulids = [record.trial.ulid for record in self.records if record.trial.ulid in sessions]
        own = {sessions[r.trial.ulid] for r in ran if r.trial.ulid in sessions}
        own.add(process.session())
        numbers = dict.fromkeys(own, 0)
        for ulid in ulids:
            numbers.setdefault(sessions[ulid], len(numbers))
        is_one = all(numbers[sessions[ulid]] == 0 for ulid in ulids)
        self._sessions = {} if is_one else {ulid: numbers[sessions[ulid]] for ulid in ulids}
        self._session = None if is_one else 0


def _likely(posterior: firstbad.Posterior) -> Sparse:
    probability = np.asarray(posterior.probability)
    chosen = np.flatnonzero(probability >= LIKELY).tolist()
    return tuple((i, round(float(probability[i]), 3)) for i in chosen)


# --- trials that computed the same

# A loss in full precision agrees by chance about never; an accuracy over a few hundred samples
# does. Three fine values suffice: independent trials would agree in all with a probability under
# 10^-18.
_ENOUGH = 3
_PASSING = 2
"""Repeats of passing trials from which failures that come again prove a sure one."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """What was computed in one epoch, to the last bit."""

    number: int
    fingerprint: str | None
    values: Mapping[str, float]

    def continues(self, whole: Epoch) -> bool:
        """Return True if it may be the same epoch, of which not all has been reported yet."""
        return (
            self.number == whole.number
            and self.fingerprint in (None, whole.fingerprint)
            and self.values.items() <= whole.values.items()
        )


Trace = tuple[Epoch, ...]
_Class = tuple[Trace, set[int]]
"""A trace, and the positions that have it."""
Placed = Sequence[tuple[int, TrialRecord]]
"""The trials of a range with their positions."""


def fine(values: Iterable[float]) -> bool:
    """Return True if independent trials would not agree in so many digits by chance."""
    exact = {v for v in values if isfinite(v) and likelihood.fine(v)}
    return len(exact) >= _ENOUGH


def agrees(part: Trace, whole: Trace) -> bool:
    """Return True if `part` is how `whole` began, and that for sure. Its last epoch may be half
    reported."""
    if not part or len(part) > len(whole) or part[:-1] != whole[: len(part) - 1]:
        return False
    if not part[-1].continues(whole[len(part) - 1]):
        return False
    sure = any(epoch.fingerprint for epoch in part)
    return sure or fine(v for epoch in part for v in epoch.values.values())


class Traces:
    """The traces of a task's trials, and what they say of one metric. `bad` is the position of
    the bad end."""

    def __init__(self, ledger: Ledger, symptom: Symptom, bad: int) -> None:
        self._ledger, self._symptom, self._bad = ledger, symptom, bad
        self._metric = symptom.name
        self._names = {symptom.name} | {
            m.name
            for m in symptom.task.metrics
            if m.kind is Kind.QUALITY and m.direction is not Direction.INFO
        }
        self._traces: dict[str, Trace] = {}
        self._draws: dict[tuple[object, ...], int] = {}

    def read(self, ulid: str) -> Trace:
        """Return the trace of a trial as far as it is in the ledger now."""
        prints = self._ledger.fingerprints(ulid)
        values: dict[int, dict[str, float]] = {}
        for name, points in self._ledger.series(ulid).items():
            if name in self._names:
                for number, value in points:
                    values.setdefault(number, {})[name] = value
        numbers = sorted(values.keys() | prints.keys())
        return tuple(Epoch(n, prints.get(n), values.get(n, {})) for n in numbers)

    def trace(self, record: TrialRecord) -> Trace:
        """Return the trace of a trial that has ended."""
        ulid = record.trial.ulid
        if ulid not in self._traces:
            self._traces[ulid] = self.read(ulid)
        return self._traces[ulid]

    def draw(self, record: TrialRecord) -> int | None:
        """Return a number that the trials share which computed the same; None where nothing is
        sure."""
        trace = self.trace(record) if record.ok else ()
        own = tuple((e.number, e.values[self._metric]) for e in trace if self._metric in e.values)
        every = tuple((e.number, *sorted(e.values.items())) for e in trace)
        prints = tuple(e.fingerprint for e in trace)
        key: tuple[object, ...] = (record.trial.seed, own)
        if not own:
            return None
        if not fine(value for _, value in own):
            if fine(value for epoch in trace for value in epoch.values.values()):
                key += every
            elif any(prints):
                key += prints
            else:
                return None
        return self._draws.setdefault(key, len(self._draws))

    def sure(self, placed: Placed) -> tuple[float, int]:
        """Return the prior probability that a bad commit always fails (crashes, or is not finite),
        and how many more failures would prove it; 0 of these where no number does, or no more is
        lacking."""
        symptom = self._symptom
        bad = 1.0 if symptom.metric is None else inf
        told = [(position, symptom.reads(r), r) for position, r in placed if not r.derived]
        failed = [(position, record) for position, value, record in told if value == bad]
        crashes, at = [record for _, record in failed], [position for position, _ in failed]
        passed = [(p, r) for p, value, r in told if value not in (None, bad) or r.early_stopped]
        # Where one fails may depend on its seed, as a loss that grows does; of a seed it does not.
        ends = [(r.trial.seed, r.outcome and r.outcome.message, self._finite(r)) for r in crashes]
        is_again = len({*ends}) == len({seed for seed, *_ in ends}) < len(ends)
        is_one = len({(message, epochs) for _, message, epochs in ends}) == 1
        if (is_one or is_again) and {p for p, _ in passed}.isdisjoint(at):
            repeats = self._repeats([r for _, r in passed], max(n for *_, n in ends) + 1)
            if repeats >= _PASSING:
                lacking = lacking_failures(at, self._bad, symptom.asked)
                return (SURE_REPEATED, lacking) if lacking else (SURE_EXACT, 0)
        return SURE_REPEATED if at_one_place(crashes) else SURE, 0

    def _finite(self, record: TrialRecord) -> int:
        """Return after how many epochs a trial failed."""
        trace = self.trace(record)
        finite = (all(map(isfinite, epoch.values.values())) for epoch in trace)
        return sum(1 for _ in itertools.takewhile(bool, finite))

    def _repeats(self, trials: Sequence[TrialRecord], epochs: int) -> int:
        """Return how many trials repeat the bits of an earlier one of their seed, for so many
        epochs or to their end."""
        earlier: dict[int, list[Trace]] = {}
        number = 0
        for record in trials:
            trace, others = self.trace(record), earlier.setdefault(record.trial.seed, [])
            number += any(agrees(trace, o) or agrees(trace[:epochs], o) for o in others)
            others.append(trace)
        return number

    def enough(self, placed: Placed, seed: int) -> Callable[[Trace], bool]:
        """Return a test of a running trial of this seed: True once it is past the epoch at which
        the ends part and agrees with one ended trial alone, which went on. In its last epoch a
        trial is as good as whole: to stop it spares nothing, and it may be asked for again."""
        classes, past = self._classes(placed, seed)

        def enough(part: Trace) -> bool:
            same = [trace for trace, _ in classes if agrees(part, trace)]
            return past(part) and len(same) == 1 and len(part) < len(same[0])

        return enough

    def alike(self, placed: Placed) -> tuple[frozenset[int], ...]:
        """Return the sets of positions that lie on one side because a trial that was stopped
        early computed the same there as another."""
        groups: list[frozenset[int]] = []
        for seed in sorted({r.trial.seed for _, r in placed if r.early_stopped}):
            wholes, past = self._classes(placed, seed)
            classes: list[_Class] = []
            stopped = [
                (self.trace(r), position)
                for position, r in placed
                if r.early_stopped and r.trial.seed == seed
            ]
            # The longest first: it stands for those that began like it.
            for part, position in sorted(stopped, key=lambda pair: -len(pair[0])):
                for candidates in (wholes, classes):
                    same = [each for each in candidates if agrees(part, each[0])]
                    if len(same) == 1 and past(part):
                        break
                else:
                    same = [(part, set())]
                same[0][1].add(position)
                classes += [each for each in same if each not in classes]
            groups += [frozenset(positions) for _, positions in classes]
        return tuple(group for group in dict.fromkeys(groups) if len(group) > 1)

    def _classes(self, placed: Placed, seed: int) -> tuple[list[_Class], Callable[[Trace], bool]]:
        """Return the different traces of the whole trials of a seed with their positions, and a
        test whether a trace went past the epoch at which the ends part."""
        classes: list[_Class] = []
        ends: dict[int, Trace] = {}
        for position, record in placed:
            if not record.ok or record.early_stopped or record.trial.seed != seed:
                continue
            trace = self.trace(record)
            positions = next((p for other, p in classes if other == trace), None)
            if positions is None:
                positions = set()
                classes.append((trace, positions))
            positions.add(position)
            ends[position] = trace
        good, bad = ends.get(GOOD, ()), ends.get(self._bad, ())
        at_bad = {epoch.number: epoch.values.get(self._metric) for epoch in bad}
        parted = next(
            (
                e.number
                for e in good
                if bad and e.values.get(self._metric, at_bad.get(e.number)) != at_bad.get(e.number)
            ),
            inf,
        )
        return classes, lambda part: any(
            epoch.number >= parted and self._metric in epoch.values for epoch in part
        )
