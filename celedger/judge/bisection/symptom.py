"""The symptom that a bisect searches: a metric that got worse between the two ends, or a crash of
one of them; for an incident, the task whose trial tells most per second. Reads trials as numbers
for the statistics, larger being worse, and learns their noise; runs nothing.

Only bisects learn noise this way. The state learns it from repeats of the same code
(`stats.history`)."""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from celedger.base.config import closest
from celedger.base.errors import CannotJudge, UsageError, command
from celedger.base.model import (
    CLOCKED,
    Commit,
    Direction,
    Kind,
    Metric,
    OutcomeKind,
    Purpose,
    SummaryRow,
    Task,
    TrialRecord,
)
from celedger.base.text import some
from celedger.judge.failures import signature
from celedger.judge.incident import IncidentMetric
from celedger.ledger import Ledger
from celedger.repo import History
from celedger.stats import choice
from celedger.stats import likelihood as noises
from celedger.stats.firstbad import NONE_PRIOR
from celedger.stats.two_sides import EndsQuestion, is_better, not_worse
from celedger.trial.protocol import TELEMETRY
from celedger.trial.runner import Bench, trials_of

Rows = Sequence[SummaryRow]


def noise_of(rows: Rows, sessions: Mapping[str, str]) -> noises.NoisePrior | None:
    """Return the noise of one metric × task × environment, pooled over the commits of the rows;
    None where they do not tell it. A commit counts once in each of its `sessions`, by ulid: these
    are those whose trials share an effect."""
    groups: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    for row in rows:
        if not row.derived:
            groups[row.commit, sessions.get(row.ulid, "")].append((row.seed, row.value))
    return noises.pool(list(groups.values()))


def sessions_of(ledger: Ledger, task: Task, metric: Metric, rows: Rows) -> Mapping[str, str]:
    """Return the session of each trial of a task (ulid) if the trials of one share an effect: not
    on what is computed, nor on what repeats exactly."""
    if metric.kind not in CLOCKED:
        return {}
    noise = noise_of(rows, {})
    is_exact = noise is not None and noise.sd == 0
    return {} if is_exact else ledger.sessions(suite=task.suite, task=task.name)


# --- the symptom

# Trials of each end from which a symptom is chosen: what a t-test can begin to work with.
CHOOSING = 3

_PLACE = re.compile(r"\(in .+, step \d+ of epoch \d+\)(?=;|$)")  # of `trial.ending.explain`
# Crashes that must have come at one place, so that it is evidence that they come always.
_REPEATS = 3

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")
# The top-level module that lacks what a training asks of it; by CPython's messages.
_LACKING = re.compile(r"(?:module|cannot import name .+ from|No module named) '(\w+)[.\w]*'")


@dataclass(frozen=True, slots=True)
class Symptom:
    """The task, and the metric; None where it is the crash that is searched. `crash` is how a
    trial fails at BAD: only a trial that fails alike counts as bad, and `asked` of them had to
    for it to be searched. Where an improvement is searched, `metric` has its direction turned
    round: all that follows takes better for worse. `seen` are the trials (ULIDs) of the ends that
    made somebody ask; they are no fresh evidence that the ends differ.
    """

    task: Task
    metric: Metric | None
    crash: str = ""
    improved: bool = False
    asked: int = 1
    seen: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return self.metric.name if self.metric is not None else "crash"

    def reads(self, record: TrialRecord) -> float | None:
        """Return the trial as a number, larger being worse: 1 and 0 for a crash and none; infinity
        for a value that is not finite; None where the trial says nothing (its build failed, it
        crashed in another way, its speed was disturbed)."""
        outcome = record.outcome
        if outcome is None or record.early_stopped:
            return None
        if self.metric is None:
            if outcome.kind is OutcomeKind.OK:
                return 0.0
            return 1.0 if signature(record) == self.crash else None
        if not record.may_be_judged(self.metric):
            return None
        value = record.summaries[self.metric.name]
        if not math.isfinite(value):
            return None if self.improved else math.inf
        return self.metric.direction.sign * value

    @property
    def bits_decide(self) -> bool:
        """Return True if equal bits prove an equal value: for what is computed, not for what is
        measured by clock or memory."""
        return self.metric is not None and self.metric.kind not in CLOCKED


def at_one_place(crashes: Sequence[TrialRecord]) -> bool:
    """Return True if several trials crashed at the same step in the same frame, and none at
    another."""
    places = [_PLACE.search(record.outcome.message if record.outcome else "") for record in crashes]
    return (
        len(places) >= _REPEATS and len({p and p[0] for p in places}) == 1 and places[0] is not None
    )


class NotWorse(CannotJudge):
    """The ends ran, and BAD is worse in none of what was asked (`symptoms`), or not `clearly` so:
    the noise of one that seems worse hides it."""

    def __init__(
        self,
        good: Commit,
        bad: Commit,
        symptoms: Sequence[Symptom],
        *,
        improved: bool,
        clearly: bool = False,
        named: bool = False,
    ) -> None:
        changed = "clearly " * clearly + ("better" if improved else "worse")
        same = [f"{symptom.task.name} {symptom.name}" for symptom in symptoms]
        super().__init__(
            f"{bad.sha[:10]} is not {changed} than {good.sha[:10]} in "
            + (some(same, 6) if same else "anything that both ends reported"),
            "choose other ends" if named else "name the metric with --metric, or other ends",
        )
        self.symptoms = tuple(symptoms)


def must_be_judged(tasks: Sequence[Task], metric: str | None) -> None:
    """Raise UsageError unless a task can be worse in this metric (None: in any)."""
    if metric is None:
        return
    named = [each for task in tasks if (each := task.metric(metric)) is not None]
    if not named:
        judged = [m.name for m in tasks[0].metrics if m.direction is not Direction.INFO]
        raise UsageError(f"no task has a judged metric {metric!r}", closest(metric, judged))
    if all(each.direction is Direction.INFO for each in named):
        raise UsageError(
            f"{metric!r} has no direction, so nothing is worse",
            f'give it one in suite.toml: [metrics.{metric}] direction = "lower"',
        )


def find_symptom(
    bench: Bench,
    tasks: Sequence[Task],
    history: History,
    metric: str | None,
    *,
    improved: bool = False,
    clear: bool = False,
) -> Symptom:
    """Return what is worst at BAD against GOOD, among the given tasks and (if named) the one
    metric. If it must be `clear`, further trials of the ends would hardly choose another: it is
    surely worse, or all that is computed and rather worse than not.

    Raises CannotJudge where an end is not what it is said to be, with the sentence that says so;
    UsageError for an unknown metric.
    """
    must_be_judged(tasks, metric)
    good, bad = history.good, history.bad
    symptoms: list[Symptom] = []
    questions: list[EndsQuestion] = []
    refused: CannotJudge | None = None
    silent = True
    for task in [t for t in tasks if metric is None or t.metric(metric) is not None]:
        here = bench.environments[task.name].fingerprint
        whole = [final_trials(bench, end, task, here) for end in (good, bad)]
        silent = silent and not all(whole)
        try:
            crash = _crash(bench, task, good, bad, *(trials[:CHOOSING] for trials in whole))
        except CannotJudge as error:
            refused = refused or error  # another task may still tell
            continue
        if crash is not None and not improved:
            return replace(crash, asked=CHOOSING if metric is None else 1)
        for each in task.metrics:
            if each.direction is Direction.INFO or metric not in (None, each.name):
                continue
            if improved:
                each = each._replace(direction=each.direction.opposite)
            asked = _question(bench.ledger, task, each, *whole)
            if asked is not None:
                question, chosen = asked
                seen = _seen(task, chosen if metric is None else [], [*whole[0], *whole[1]])
                symptoms.append(Symptom(task, each, improved=improved, seen=seen))
                questions.append(question)
    # Of a dozen metrics one always looks worse. What a clock or memory tells is asked last.
    computed = sum(symptom.bits_decide for symptom in symptoms)
    numbers = [computed if symptom.bits_decide else len(symptoms) for symptom in symptoms]
    weights = [
        _weight(*each, named=metric is not None)
        for each in zip(symptoms, questions, numbers, strict=True)
    ]
    if questions and (least := min(weights)) < math.inf:
        worst = symptoms[weights.index(least)]
        most = 2.0 + NONE_PRIOR if worst.bits_decide and computed == 1 else WORSE
        if not clear or least <= most:
            return worst
    if silent and refused is None:
        refused = CannotJudge(
            f"no trial of {good.sha[:10]} or of {bad.sha[:10]} came to its end",
            f"{command('show', good.sha[:12])} or {command('show', bad.sha[:12])} says why",
        )
    if metric is not None and not questions:
        refused = refused or CannotJudge(
            f"no {metric} at {good.sha[:10]} and {bad.sha[:10]} that could be compared",
            f"{command('show', bad.sha[:12])} lists what was reported; the speed of disturbed or "
            "throttled trials does not count",
        )
    clearly = any(_apart(question) > question.floor for question in questions)
    raise refused or NotWorse(
        good, bad, symptoms, improved=improved, clearly=clearly, named=metric is not None
    )


def final_trials(bench: Bench, end: Commit, task: Task, environment: str) -> list[TrialRecord]:
    """Return the whole trials of an end that need no repetition, oldest first."""
    return [record for record in trials_of(bench, end, task, environment) if record.is_conclusive]


def _seen(
    task: Task, chosen: Sequence[TrialRecord], stored: Sequence[TrialRecord]
) -> frozenset[str]:
    """Return the trials that made a person ask: those by which the metric was chosen, and older
    ones. Re-runs with fresh seeds are not among them, since they confirmed what the first had
    shown; nor are a bisect's own trials, which count as evidence when it continues."""
    before = [
        record
        for record in stored
        if record.trial.why is Purpose.RUN
        or (record.trial.why is not Purpose.BISECT and record.trial.seed in task.seeds)
    ]
    return frozenset(record.trial.ulid for record in (*chosen, *before))


def _crash(
    bench: Bench,
    task: Task,
    good: Commit,
    bad: Commit,
    at_good: list[TrialRecord],
    at_bad: list[TrialRecord],
) -> Symptom | None:
    """Return the symptom where every trial of BAD crashes and GOOD's do not."""
    broken_good, broken_bad = _broken(at_good), _broken(at_bad)
    if broken_good and broken_bad and ending(broken_good) == ending(broken_bad):
        raise CannotJudge(
            f"{task.name} fails in the same way at both ends: {_why(broken_bad)}",
            "no commit between them can be the cause: see "
            f"{command('show', broken_good.trial.commit[:12])}",
        )
    for end, broken in ((good, broken_good), (bad, broken_bad)):
        if broken and not signature(broken):
            raise CannotJudge(
                f"{task.name} cannot be tested at {end.sha[:10]}: {_why(broken)}",
                "choose another end",
            )
    if broken_good:
        raise CannotJudge(
            f"{task.name} does not run at the good end {good.sha[:10]}: {_why(broken_good)}",
            _other_good_end(bench, good, _why(broken_good)),
        )
    return Symptom(task, None, signature(broken_bad)) if broken_bad else None


def _other_good_end(bench: Bench, good: Commit, why: str) -> str:
    """Return which good end may run where this one fails: no older one does where a package of the
    environment has lost what the code asks of it."""
    lacking = "".join(_LACKING.findall(why)[:1])
    if lacking and not bench.repository.has_module(lacking, good.sha):
        return f"choose a newer good end: this {lacking} lacks what older ones ask for, too"
    return "choose an older good end"


def _broken(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the last trial of an end that fails, None for one of which a trial ran well."""
    return records[-1] if records and not any(r.ok for r in records) else None


def ending(record: TrialRecord) -> str:
    """Return why a trial failed; addresses and other numbers do not count."""
    return f"{signature(record)} {_NUMBER.sub('', _why(record))}"


def _why(record: TrialRecord) -> str:
    return record.outcome.message if record.outcome else ""


def _question(
    ledger: Ledger,
    task: Task,
    metric: Metric,
    at_good: list[TrialRecord],
    at_bad: list[TrialRecord],
) -> tuple[EndsQuestion, list[TrialRecord]] | None:
    """Return BAD against GOOD in one metric, and the trials that say so; None where an end has no
    value of it. They are the first ones that have a value: a re-used result has none of speed or
    memory, and the search itself adds to the last ones. The noise is that of other commits."""
    every = ledger.summaries(task.name, metric.name, recipe=task.recipe)
    rows = {row.ulid: row for row in every if row.may_be_judged(metric)}
    sessions = sessions_of(ledger, task, metric, list(rows.values()))
    ends = [[r for r in end if r.trial.ulid in rows] for end in (at_good, at_bad)]
    session = {r.trial.ulid: sessions.get(r.trial.ulid, "") for end in ends for r in end}
    both = set.intersection(*({session[r.trial.ulid] for r in end} for end in ends))
    # Those of sessions that ran both ends first.
    ends = [sorted(end, key=lambda r: session[r.trial.ulid] not in both) for end in ends]
    ends = [end[:CHOOSING] for end in ends]
    if not all(ends):
        return None
    chosen = [*ends[0], *ends[1]]
    here, commits = chosen[0].trial.environment, {record.trial.commit for record in chosen}
    beside = [r for r in rows.values() if r.environment == here and r.commit not in commits]
    sign = metric.direction.sign
    number = {name: i for i, name in enumerate(sorted({session[r.trial.ulid] for r in chosen}))}
    by_session = len(number) > 1
    good, bad = (
        [
            (number[session[row.ulid]] if by_session else row.seed, sign * row.value)
            for row in (rows[r.trial.ulid] for r in end)
        ]
        for end in ends
    )
    floor = metric.floor_at(statistics.median(value for _, value in good))
    return EndsQuestion(good, bad, floor, noise_of(beside, sessions), by_session), chosen


WORSE, SUSPECTED = 0.05, 0.5
"""Probability that BAD is not worse up to which it surely is, and up to which a search is worth its
trials."""
FAR = 0.5
"""Share of its level by which telemetry that few trials cannot prove to be worse is worth a search.
Durations of trainings of 0.2 s seemed 15 % worse, and took 117 trials."""


def _apart(question: EndsQuestion) -> float:
    """Return by how much BAD seems worse."""
    ends = [[value for _, value in end] for end in (question.good, question.bad)]
    return statistics.fmean(ends[1]) - statistics.fmean(ends[0])


def _weight(symptom: Symptom, question: EndsQuestion, metrics: int, *, named: bool) -> float:
    """Return how surely BAD is worse, as the probability that it is not; 1 more for what a clock or
    memory tells, which a busy machine moves, and 2 more for what is only suspected; inf where it
    is the same or better, and for telemetry that is only suspected of a change that is not `FAR`.

    A metric that the person named is believed to be worse unless the ends prove that it is
    better: the search itself measures them more, looks in the middle, and ends with "nothing
    changed" if that is so.
    """
    weight = not_worse(question, metrics)
    clocked = 0.0 if named or symptom.bits_decide else 1.0
    if weight <= WORSE:
        return weight + clocked
    if named:
        return math.inf if is_better(question, 1 - WORSE) else 2.0 + weight
    far = FAR * abs(statistics.median(value for _, value in question.good))
    if weight <= SUSPECTED and (symptom.metric not in TELEMETRY or _apart(question) > far):
        return 2.0 + clocked + weight
    return math.inf


# --- the task of an incident that is searched


def most_telling(
    bench: Bench, metrics: Sequence[IncidentMetric], tasks: Sequence[Task]
) -> list[tuple[Task, str]]:
    """Return the tasks that an incident moved, each with the metric that tells most ("" for a
    crash): first the one whose trial tells most bits a second. Empty if none is among `tasks`."""
    best: dict[str, tuple[float, Task, str]] = {}
    for metric in metrics:
        task = next((task for task in tasks if task.name == metric.task), None)
        if task is None:
            continue
        rate = _bits(bench, task, metric) / (bench.ledger.usual_seconds(task) or 1.0)
        if task.name not in best or rate > best[task.name][0]:
            best[task.name] = rate, task, metric.name
    return [(task, name) for _, task, name in sorted(best.values(), key=lambda row: -row[0])]


CLOCKED_TELLS = {Kind.SPEED: 0.25, Kind.WORK: 0.5, Kind.MEMORY: 0.5}
"""Of what its noise says, the share that a trial tells of each kind: what else a machine does lasts
longer than a trial, and moves many of them together. A step time that was 90 % longer took 42
trials in an incident of which a loss was 60,000 times larger. Processor time is moved far less: 3 %
at a load where the time between steps trebled."""


def _bits(bench: Bench, task: Task, moved: IncidentMetric) -> float:
    """Return what one trial at the middle of the range tells."""
    metric = task.metric(moved.name)
    if metric is None or not math.isfinite(moved.change):
        return choice.capacity(choice.SURE_SHIFT)
    environment = bench.environments[task.name].fingerprint
    rows = bench.ledger.summaries(task.name, metric.name, recipe=task.recipe)
    rows = [r for r in rows if r.may_be_judged(metric) and r.environment == environment]
    noise, shift = noise_of(rows, {}), choice.ASSUMED_SHIFT
    if noise is not None:
        shift = abs(moved.change) / noise.sd if noise.sd else choice.SURE_SHIFT
    share = CLOCKED_TELLS.get(metric.kind, 1.0)
    return share * choice.capacity(min(shift, choice.SURE_SHIFT))
