"""Run a bisect: train both ends, choose what to search by them, search. Estimate beforehand what it
would take. A bisect over the packages of an upgrade runs here too, as if each package were a
commit."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from email.parser import HeaderParser
from pathlib import Path

from celedger.base.config import Config
from celedger.base.errors import CannotJudge, UsageError, command
from celedger.base.model import Commit, Kind, Metric, OutcomeKind, Purpose, Task, TrialRecord
from celedger.judge.bisection.bisect_report import Report, rehearsed
from celedger.judge.bisection.equal_commits import classify
from celedger.judge.bisection.other_steps import worse_between
from celedger.judge.bisection.planner import (
    Limits,
    OnStep,
    Others,
    Proposal,
    Reason,
    Search,
    drive,
)
from celedger.judge.bisection.rehearsal import (
    GuiltyHunks,
    explained_places,
    guilty_hunks,
    rehearse,
)
from celedger.judge.bisection.symptom import (
    CHOOSING,
    NotWorse,
    Symptom,
    final_trials,
    find_symptom,
    must_be_judged,
)
from celedger.judge.incident import State
from celedger.ledger import Ledger
from celedger.repo import History, Repository, synthetic
from celedger.repo.synthetic import FILE, Entry, ObjectStore
from celedger.suite import Suite
from celedger.trial.engine import Engine, Need
from celedger.trial.permissions import Gate
from celedger.trial.runner import Bench, InTurn, next_seed
from celedger.trial.venvs import PINS, Upgrade, normal, pins, prefixes, upgrades
from celedger.trial.workplace import choose_tasks, local_bench

# Trials of GOOD and BAD. Of a symptom that is named, or a crash: as many as the search asks for. Of
# one that is chosen: a pair of seeds more, and another one where none is clearly worse.
_NAMED = (2, 1)
_CHOOSING = ((2, 2), (CHOOSING, CHOOSING))
_PATIENCE = 3  # trials of the ends killed from outside before it is left at that


def lacking_ends(
    bench: Bench,
    history: History,
    tasks: Sequence[Task],
    metric: str | None,
    *,
    improved: bool = False,
) -> list[tuple[Commit, Task]]:
    """Return the commit and task of each trial that the ends still lack, in pairs of equal seeds,
    GOOD first."""
    ends = history.good, history.bad
    trials = {
        (end, task.name): final_trials(bench, end, task, bench.environments[task.name].fingerprint)
        for task in tasks
        for end in ends
    }
    # An end that does not run at all tells so with its first trial.
    broken = {key for key, own in trials.items() if own and not any(r.ok for r in own)}

    def lacking(wanted: tuple[int, int]) -> list[tuple[Commit, Task]]:
        each = itertools.product(range(max(wanted)), tasks, zip(ends, wanted, strict=True))
        lack = [(end, t) for i, t, (end, most) in each if len(trials[end, t.name]) <= i < most]
        return [(end, t) for end, t in lack if (end, t.name) not in broken]

    # A crash is searched, whatever other tasks measure; not where an improvement is.
    good, bad = ends
    at_bad = [t for t in tasks if (bad, t.name) in broken and (good, t.name) not in broken]
    crashed = [] if improved else at_bad
    if crashed or metric is not None:
        tasks = crashed or tasks
        return lacking(_NAMED)
    few, more = map(lacking, _CHOOSING)
    with suppress(CannotJudge):
        if not few and find_symptom(bench, tasks, history, None, improved=improved, clear=True):
            return []
    return few or more


def measure_ends(
    bench: Bench,
    history: History,
    tasks: Sequence[Task],
    metric: str | None,
    engine: Engine,
    *,
    improved: bool,
) -> list[TrialRecord]:
    """Run what the ends lack, asking anew after each trial: a crash makes the rest needless.
    Return the trials."""
    ran: list[TrialRecord] = []
    killed = 0

    def propose(under_way: Sequence[Proposal]) -> Proposal | None:
        if killed >= _PATIENCE:
            return None
        lack = lacking_ends(bench, history, tasks, metric, improved=improved)
        running = [p.need for p in under_way]
        for need in running:
            if (need.commit, need.task) in lack:
                lack.remove((need.commit, need.task))
        if not lack:
            return None
        seeds = [need.seed for need in running if (need.commit, need.task) == lack[0]]
        seed = next_seed(bench, *lack[0], under_way=seeds)
        # What could be re-used would be in the ledger already.
        return Proposal(Need(*lack[0], seed, reuse=False, role="bisect"), Reason.CONFIRM)

    def ended(proposal: Proposal, future: Future[TrialRecord]) -> None:
        nonlocal killed
        record = future.result()
        ran.append(record)
        killed += record.outcome is not None and not record.outcome.kind.final

    def spare(under_way: Sequence[Proposal]) -> list[Proposal]:
        if not under_way:
            return []
        lack = lacking_ends(bench, history, tasks, metric, improved=improved)
        return [p for p in under_way if (p.need.commit, p.need.task) not in lack]

    drive(engine, propose, ended, spare)
    return ran


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a bisect: a report for every metric that is worse at BAD, the reason for each
    requested metric without one, and the reports of further causes."""

    reports: tuple[Report, ...]
    refused: tuple[tuple[str, CannotJudge], ...] = ()
    further: tuple[Report, ...] = ()

    @property
    def named(self) -> bool:
        """Return True if every metric that was asked for has its commit."""
        return not self.refused and all(report.named for report in self.reports)


def proved(bench: Bench, answer: Answer, state: State) -> Answer:
    """Return an answer whose named commits were reverted at the bad end and trained: each is
    proved, or taken back. `state` tells the noise."""
    reports = []
    for report in answer.reports:
        if report.named and report.rehearsal is None:
            (task,) = choose_tasks(bench.suite, [report.task])
            noise = state.noise_of(report.suite, report.task, report.metric)
            done = rehearse(bench, report, task, noise)
            report = rehearsed(bench.ledger, report, done, bench.new_ulid(), bench.setup.now())
        reports.append(report)
    return replace(answer, reports=tuple(reports))


def inside(bench: Bench, answer: Answer, state: State) -> list[GuiltyHunks]:
    """Search inside the commits that an answer names. What an explanation said of one in the ledger
    is asked first."""
    answers = []
    for report in answer.reports:
        if report.named:
            (task,) = choose_tasks(bench.suite, [report.task])
            noise = state.noise_of(report.suite, report.task, report.metric)
            places = explained_places(bench.ledger.findings(report.culprits[0].sha), report.task)
            answers.append(guilty_hunks(bench, report, task, noise, places))
    return answers


def bisect_many(
    bench: Bench,
    history: History,
    tasks: Sequence[Task],
    metrics: Sequence[str] = (),
    limits: Limits = Limits(),  # noqa: B008  frozen
    *,
    improved: bool = False,
    others: Sequence[tuple[Task, str]] = (),
    chosen: Callable[[Sequence[Symptom]], None] = lambda _: None,
    expected: Callable[[float], None] = lambda _: None,
    on_step: OnStep = lambda *_: None,
) -> Answer:
    """Measure both ends, find the symptoms, search the first bad commit of each with the same
    trials; the first better one where what `improved` is searched. Without `metrics` what got
    worst is searched; several must be metrics of one task. `others` are further tasks of the
    incident with their metrics ("" for a crash): they are trained at the answer and its parent.

    Trials run on the engine of the bench, or one by one where speed is searched, which trials at
    once would disturb. Raises CannotJudge where an end is not what it is said to be in any of the
    metrics, UsageError for an unknown metric.
    """
    names: list[str | None] = list(dict.fromkeys(metrics)) or [None]
    for name in names:
        must_be_judged(tasks, name)
    # One environment for all commits, or what changed in it would be taken for the code's doing.
    bench.station.hold_environment(history.bad.sha, [*tasks, *(task for task, _ in others)])
    asked = [metric for task in tasks for name in names if (metric := task.metric(name or ""))]
    engine = _engine(bench, asked)
    ran = measure_ends(bench, history, tasks, names[0], engine, improved=improved)
    symptoms, refused = _symptoms(
        bench, history, tasks, names, limits.confidence, improved=improved
    )
    if not symptoms:
        raise refused[0][1]
    chosen(symptoms)
    beside = Others(bench, history, others, limits.confidence)
    engine = _engine(bench, [symptom.metric for symptom in (*symptoms, *beside.symptoms)])
    search = Search(bench, history, symptoms, limits, ran=ran, engine=engine)
    reports = search.run(beside, expected=expected, on_step=on_step)
    further = search.further(reports, on_step) if limits.every_cause else []
    return Answer(reports, tuple(refused), tuple(further))


def _engine(bench: Bench, metrics: Sequence[Metric | None]) -> Engine:
    """Return what runs the trials of a search of these metrics."""
    if any(metric is not None and metric.kind is Kind.SPEED for metric in metrics):
        return InTurn(bench)
    return bench.engine


def _symptoms(
    bench: Bench,
    history: History,
    tasks: Sequence[Task],
    names: Sequence[str | None],
    confidence: float,
    *,
    improved: bool,
) -> tuple[list[Symptom], list[tuple[str, CannotJudge]]]:
    """Return what is searched, and what is not because it did not get worse."""
    symptoms: list[Symptom] = []
    refused: list[tuple[str, CannotJudge]] = []
    for name in names:
        try:
            symptom = find_symptom(bench, tasks, history, name, improved=improved)
        except CannotJudge as error:
            between = None
            if isinstance(error, NotWorse):
                # A metric that nobody named is not accused by a clock that may have drifted.
                same = [s for s in error.symptoms if name is not None or s.bits_decide]
                between = _between(bench, history, same, confidence)
            refused.append((name or "", between or error))
            continue
        if symptom.metric is None:  # who crashes measures nothing
            return [symptom], []
        symptoms.append(symptom)
        tasks = [symptom.task]  # one training measures them all
    return symptoms, refused


def _between(
    bench: Bench, history: History, symptoms: Sequence[Symptom], confidence: float
) -> CannotJudge | None:
    """Say that a commit between the ends is worse than both, where stored trials show one."""
    for symptom in symptoms:
        task, metric = symptom.task, symptom.metric
        assert metric is not None
        try:
            # One budget over all metrics.
            limits = Limits(1 - (1 - confidence) / len(symptoms), sign=False)
            (track,) = Search(bench, history, [symptom], limits).tracks
        except CannotJudge:
            continue  # nothing that the task reads differs
        sign = metric.direction.sign
        between = worse_between(history, track.question, track.evidence, sign)
        if between is not None:
            sha, than = between.commit.sha, "better" if symptom.improved else "worse"
            values = (between.value, between.good, between.bad)
            value, good_value, bad_value = (f"{v:.4g} {metric.unit}".strip() for v in values)
            line = command(
                "bisect", f"{history.good.sha[:12]}..{sha[:12]}", suite=task.suite, task=task.name,
                metric=metric.name, find="improved" if symptom.improved else None,
            )  # fmt: skip
            return CannotJudge(
                f"a commit between is {than} than both ends in {task.name} {metric.name}: {sha}, "
                f"{value}; at the ends {good_value} and {bad_value}",
                f"search up to it with {line}",
            )
    return None


# The answer of a search with no noise at all, and the confirmation of both neighbours.
_CONFIRMING = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """`trials` is what the search is expected to run, the ends included; without a symptom
    (`known` false) it is the least a search without noise can take."""

    commits: int
    classes: int  # that could have done it, as far as stored trials prove
    stored: int
    ends: int
    symptom: str
    known: bool
    trials: float
    seconds: float  # nan: no trial of the task has been timed yet
    budget: int
    signs: bool = False  # commits may be signed first, which spares some of the trials


def plan(
    bench: Bench,
    history: History,
    tasks: Sequence[Task],
    metric: str | None,
    limits: Limits,
    *,
    improved: bool = False,
) -> Plan:
    """Raises CannotJudge where the stored trials of the ends already say that they are alike."""
    commits = history.commits
    bench.station.hold_environment(history.bad.sha, tasks, install=False)
    ends = lacking_ends(bench, history, tasks, metric, improved=improved)
    try:
        symptom = find_symptom(bench, tasks, history, metric, improved=improved)
    except CannotJudge:
        if not ends:
            raise
        left = min(classify(bench, history, task).left for task in tasks)
        here = {history.good.sha, *(commit.sha for commit in commits)}
        stored = sum(
            record.trial.commit in here
            for task in tasks
            for record in bench.ledger.trials(recipe=task.recipe)
        )
        name, known, signs, trials = "", False, False, math.log2(left) + _CONFIRMING + len(ends)
    else:
        tasks = [symptom.task]
        search = Search(bench, history, [symptom], limits)
        left, known, name = search.classes.left, not ends, f"{symptom.task.name} {symptom.name}"
        signs = search.signing is not None
        stopped = sum(record.early_stopped for record in search.records)
        stored = len(search.tracks[0].evidence.readings) + stopped
        trials = search.expected_trials if known else math.log2(left) + _CONFIRMING + len(ends)
    timed = map(bench.ledger.usual_seconds, tasks)
    each = [seconds for seconds in timed if seconds is not None]
    return Plan(
        commits=len(commits),
        classes=left,
        stored=stored,
        ends=len(ends),
        symptom=name,
        known=known,
        trials=trials,
        seconds=trials * sum(each) / len(each) if each else math.nan,
        budget=limits.budget,
        signs=signs,
    )


_NEEDS = re.compile(r"[A-Za-z0-9][\w.-]*")


@contextmanager
def package_bench(
    repository: Repository,
    config: Config,
    suite: Suite,
    tasks: Sequence[Task],
    base: Commit,
    lock_files: tuple[tuple[str, str], tuple[str, str]],
    gate: Gate,
    python: str = "",
) -> Iterator[tuple[Bench, list[Task], list[Commit]]]:
    """Yield a bench, the tasks as they run there, and a commit for each prefix of the upgrades, the
    one with none first.

    Args:
        base: The commit that all are made from.
        lock_files: Name and text of the old and of the new one.
        python: The one that they are for, `CPython 3.11`; "" for any.

    Raises UsageError for lock files that pin nothing or are alike, CannotJudge where the new
    environment cannot be made.
    """
    if any(task.venv for task in tasks):
        raise UsageError(
            "a task makes its environment from the commit's own requirements",
            "take `venv` out of suite.toml for this search",
        )
    old, new = (pins(text, name) for name, text in lock_files)
    if old == new:
        raise UsageError("both lock files pin the same packages", "name two that differ")
    store = ObjectStore(repository)
    own_tasks = [task._replace(venv=(PINS,)) for task in tasks]
    with Ledger.open(store.folder / synthetic.LEDGER, create=True) as ledger, local_bench(
        store.repository, ledger, config, suite, own_tasks, gate=gate, why=Purpose.BISECT,
        label="celedger bisect",
    ) as bench:  # fmt: skip
        last = _commit(store, base, "".join(f"{new[n]}\n" for n in sorted(new)), "the upgrade")
        place = bench.place(last.sha, own_tasks[0])
        if place.kind is not OutcomeKind.OK:
            raise CannotJudge(f"the new environment cannot be made: {place.problem}")
        here = str(place.environment.details.get("python"))
        if not f"{here}.".startswith(f"{python}." if python else ""):
            raise UsageError(f"the suite uses {here}, and these packages are those of {python}")
        changes = upgrades(old, new, _needs(Path(place.python)))
        yield bench, own_tasks, list(_chain(store, base, old, changes))


def _chain(
    store: ObjectStore, base: Commit, old: dict[str, str], changes: Sequence[Upgrade]
) -> Iterator[Commit]:
    titles = ["none of the upgrades", *(change.title() for change in changes)]
    for text, title in zip(prefixes(old, changes), titles, strict=True):
        base = _commit(store, base, text, title)
        yield base


def _commit(store: ObjectStore, parent: Commit, text: str, title: str) -> Commit:
    blob = Entry(FILE, store.write("blob", text.encode(), parent.sha))
    tree = store.changed(parent.tree, {PINS.encode(): blob})
    return synthetic.synthetic_commit(store, tree, parent, title)


def _needs(python: Path) -> dict[str, list[str]]:
    """Return what each package of an environment depends on, by its metadata."""
    needs: dict[str, list[str]] = {}
    for file in python.parent.parent.glob("lib/*/site-packages/*.dist-info/METADATA"):
        head = HeaderParser().parsestr(file.read_text(encoding="utf-8", errors="replace"))
        rows = [row for row in head.get_all("Requires-Dist", []) if "extra ==" not in row]
        found = (_NEEDS.match(row) for row in rows)
        needs[normal(str(head["Name"]))] = [normal(match[0]) for match in found if match]
    return needs
