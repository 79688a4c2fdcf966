"""`celedger check`: is this commit worse? `celedger baseline`: a person's word on which level is
right."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from celedger.base.errors import TYPED, CeledgerError, Status, UsageError, command
from celedger.cli import app, options
from celedger.cli.session import no_incident, note, reading, warn, writing
from celedger.cli.synthetic import bench_apart, find, is_unchanged, suite_at
from celedger.service.measure import Session, load_suite, measure, open_bench, record_state, train

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celedger.base.model import Commit, Task
    from celedger.judge.incident import MetricStanding, State
    from celedger.ledger import Ledger
    from celedger.repo import Repository
    from celedger.repo.synthetic import Synthetic
    from celedger.suite import Suite
    from celedger.trial.engine import Need
    from celedger.views.check import CheckDocument

baseline = typer.Typer(
    no_args_is_help=True, help="Pin a level, accept a change, dismiss an incident, void trials."
)

Reason = Annotated[
    str, typer.Option("--why", metavar="TEXT", help="The reason, kept in the ledger.")
]


def check(
    context: typer.Context,
    revision: Annotated[str, typer.Argument(metavar="REV", help="A commit.")] = "HEAD",
    suite: options.Suite = None,
    task: options.Tasks = None,
    budget: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Extra trials that may settle what is in doubt [default: 6].",
        ),
    ] = None,
    lenient: Annotated[
        bool,
        typer.Option("--lenient", help="Pass if noise hides a change, and on a first measurement."),
    ] = False,
    device: options.Device = None,
    workers: options.Workers = None,
    engine: options.Engine = None,
    json: options.Json = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a table in Markdown, for a comment or a page.")
    ] = False,
) -> int:
    """Check whether a commit is worse.

    Missing trials run first. Extra trials settle doubts, each with a line that gives the reason.
    Only metrics that the suite declares decide. Exits 1 if an open incident made something worse at
    this commit or before it; 125 if the answer is unknown, because noise hides changes as small as
    the floor or a trial was killed (--lenient passes noise and a first measurement); 0 otherwise.
    `git bisect run celedger check` works, and skips commits without an answer.

    `.` is the working tree, compared with HEAD by equal seeds. It is called "better" only if all
    such answers since HEAD moved, over all your tries, are wrong in at most 5 %.

    In a GitHub workflow the job's summary gets the table ($GITHUB_STEP_SUMMARY), and regressions
    are annotated.
    """

    from celedger.judge import memory
    from celedger.judge.incident import Standing, status
    from celedger.judge.variants import OF_SESSIONS
    from celedger.repo.repository import UNSHALLOW
    from celedger.service.notify import announce
    from celedger.views import incidents as words
    from celedger.views.check import CheckDocument
    from celedger.views.drift import upgrade_texts

    if json and markdown:
        raise UsageError("--json and --markdown exclude each other", "choose one")
    with writing(
        context.obj, suite=suite, device=device, workers=workers, engine=engine
    ) as session:
        repository, ledger = session.repository, session.ledger
        synthetic = find(repository, revision)
        if synthetic is not None and is_unchanged(synthetic):
            return Status.GOOD
        commit = synthetic.base if synthetic else repository.resolve(revision)
        number, edited = 0, ""
        if synthetic is None:
            state, tasks, own, complete = _measure(session, commit, task, budget)
            edited = _edited(repository, commit, own)
            standings = memory.standings_at(
                repository, ledger, state, commit.sha, tasks, own.judged
            )
        else:
            with suite_at(session, load_suite(session), commit, commit.sha) as at_base:
                state, tasks, own, complete = _measure(session, commit, task, budget, at_base)
                sides = (session, synthetic, revision, state, tasks, own.judged, task)
                standings, number, is_whole = _beside(*sides)
                doubts = [s for s in standings if s.note in OF_SESSIONS] if budget != 0 else []
                if doubts:
                    metrics = {each.task: each.metric for each in reversed(doubts)}
                    _run_again(session, commit, at_base, metrics)
                    standings, number, is_whole = _beside(*sides, again=metrics)
            commit, complete = synthetic.commit, complete and is_whole
        if _is_cut_off(repository, ledger, standings):
            warn(f"this clone is shallow and lacks what was measured before ({UNSHALLOW})")
            complete = False
        state = state._replace(standings=standings)
        commits = memory.commits_of(repository, state)
        upgrades = upgrade_texts(state, ledger.environments() if state.upgrades else {})
        searches = words.searches(state, ledger.bisects())
        is_noisy = any(s.declared and s.standing is Standing.TOO_NOISY for s in standings)
        oldest = _oldest(session, state, commit) if is_noisy and not synthetic else ""
        document = CheckDocument(commit, state, commits, number, upgrades, searches, oldest, edited)
        _answer(context, document, json=json, markdown=markdown)
        question = (repository, ledger, state.tip, commit.sha, tasks)
        if not (synthetic or budget == 0 or memory.is_settled(*question)):
            only = [word for name in task or () for word in ("--task", name)]
            again = command("check", commit.sha[:TYPED], *only, suite=tasks[0].suite)
            note(context.obj.retyped(f"Next: {again} runs further trials for what is in doubt"))
        if repository.is_ancestor(state.tip, "HEAD"):  # else it may never be merged
            announce(session, state, app.drawer(context.obj))
    return status(standings, gate=True, lenient=lenient, complete=complete)


def _oldest(session: Session, state: State, commit: Commit) -> str:
    """Return the first commit of the line before this one that ran; "" for none."""
    from celedger.judge import memory

    ledger = session.ledger
    line = memory.line_of(session.repository, ledger, state.tip)
    measured = {*ledger.commits_with_trials()}
    before = (each.sha for each in line.commits[: max(line.place(commit.sha), 0)])
    ran = (x for x in before if x in measured and any(r.ok for r in ledger.trials(commit=x)))
    return next(ran, "")


def _measure(
    session: Session,
    commit: Commit,
    names: Sequence[str] | None,
    budget: int | None,
    suite: Suite | None = None,
) -> tuple[State, Sequence[Task], Suite, bool]:
    """Measure a commit, with a `suite` as what an edit is compared with. Return the state, the
    tasks, their suite, and whether every trial was measured."""
    from celedger.base.model import Purpose
    from celedger.cli.progress import Progress
    from celedger.trial.workplace import lacking

    most = session.config.max_reruns if budget is None else budget
    with open_bench(
        session, "check", names, why=Purpose.CHECK, together=True, suite=suite
    ) as (bench, tasks):  # fmt: skip
        needs = lacking(bench, [commit], tasks)
        state, _ = measure(
            session, bench, commit, tasks, needs, job="check", say=note, most=most,
            only_noise=suite is not None, watch=Progress, speed_too=False,
        )  # fmt: skip
        complete = not lacking(bench, [commit], tasks)
        state = state.as_measured(bench.suite.name, [task.name for task in bench.suite.tasks])
    for each in state.in_force:
        if not each.is_measured and each.main.suite == bench.suite.name:
            note(f"{each.id} {each.title()} is left out: it is no longer measured")
    return state, tasks, bench.suite, complete


def _is_cut_off(
    repository: Repository, ledger: Ledger, standings: Sequence[MetricStanding]
) -> bool:
    """Return True if a first measurement may be none: a shallow clone lacks measured commits."""
    from celedger.judge.incident import Standing

    if not repository.shallow_boundary():
        return False
    measured = ledger.commits_with_trials()
    is_first = any(each.declared and each.standing is Standing.FIRST for each in standings)
    return is_first and len(repository.known(measured)) < len(measured)


def _edited(repository: Repository, commit: Commit, suite: Suite) -> str:
    """Return the file of the suite, by its path in the repository, if the commit edits it."""
    from celedger.suite.loading import FILE

    file = (suite.folder / FILE).resolve()
    if not commit.parents or not file.is_relative_to(repository.root.resolve()):
        return ""
    path = file.relative_to(repository.root.resolve()).as_posix()
    places = {path, *map(str, PurePosixPath(path).parents)}  # a submodule may have it
    words = ("-r", "-z", "--name-only", "--no-renames", "--ignore-submodules=none")
    ends = ("--diff-filter=MDT", commit.parents[0], commit.sha, "--", path.partition("/")[0])
    edited = repository.tell("--literal-pathspecs", "diff-tree", *words, *ends).out.split(b"\0")
    return path if places & {*map(os.fsdecode, edited)} else ""


def _beside(
    session: Session,
    synthetic: Synthetic,
    revision: str,
    state: State,
    tasks_at_base: Sequence[Task],
    judged: frozenset[tuple[str, str]],
    names: Sequence[str] | None,
    again: Mapping[str, str] | None = None,
) -> tuple[tuple[MetricStanding, ...], int, bool]:
    """Run a synthetic revision, and compare it with the commit that it is made from. Return how its
    metrics stand, the number of the try, and whether every trial of it was measured. `again`: tasks
    of which a trial runs once more for a metric, so that the session ran both in turns."""
    from celedger.base.model import Purpose
    from celedger.cli.progress import Progress
    from celedger.judge import variants
    from celedger.trial.workplace import lacking

    commit, base = synthetic.commit, synthetic.base
    with bench_apart(
        session, synthetic, revision, "check", names, why=Purpose.CHECK
    ) as (own, bench, tasks):  # fmt: skip
        needs = [*lacking(bench, [commit], tasks), *_controls(commit, tasks, again or {}, 1)]
        train(bench, needs, Progress, speed_too=False)
        number = variants.try_number(own.ledger, base.sha, commit.sha)
        standings = tuple(
            variants.standings(
                own.ledger, state, (base.sha, commit.sha),
                list(zip(tasks_at_base, tasks, strict=True)), judged, number,
                bench.station.is_untracked,
            )
        )  # fmt: skip
        return standings, number, not lacking(bench, [commit], tasks)


def _run_again(session: Session, commit: Commit, suite: Suite, metrics: Mapping[str, str]) -> None:
    """Train a commit again, with the seeds of the tasks of which a metric is in doubt: what a clock
    shows is compared within one session."""
    from celedger.base.model import Purpose
    from celedger.cli.progress import Progress

    with open_bench(
        session, "check", [*metrics], why=Purpose.CHECK, together=True, suite=suite
    ) as (bench, tasks):  # fmt: skip
        for name, metric in metrics.items():
            note(f"control {name} at {commit.sha[:7]}, beside the edit: did {metric} change?")
        train(bench, _controls(commit, tasks, metrics), Progress, speed_too=False)


def _controls(
    commit: Commit, tasks: Sequence[Task], metrics: Mapping[str, str], seeds: int | None = None
) -> list[Need]:
    """Return trials of the tasks of which a metric is in doubt, with so many of their seeds
    [default: all]."""
    from celedger.trial.engine import Need

    return [
        Need(commit, task, seed, None, reuse=False, role="control", asked=metrics[task.name])
        for task in tasks if task.name in metrics for seed in task.seeds[:seeds]
    ]  # fmt: skip


def _answer(context: typer.Context, document: CheckDocument, *, json: bool, markdown: bool) -> None:
    summary = os.environ.get("GITHUB_STEP_SUMMARY", "")
    table = _markdown(context, document) if markdown or summary else ""
    if markdown:
        print(table, flush=True)
    else:
        options.answer(document, json, context.obj.retyped)
    _tell_github(document, summary, table)


def _markdown(context: typer.Context, document: CheckDocument) -> str:
    """Return the answer in Markdown, with a chart of the first incident's metric where `plot` is
    installed and has something to draw."""
    from celedger.views import check as answers

    text = answers.markdown(document)
    shown = [each.main for each in document.incidents() if each.main.name]
    if not shown or document.number:
        return text
    metric = shown[0]
    words = ["plot", "drift", document.commit.sha, "--mermaid"]
    words += ["--task", f"{metric.suite}/{metric.task}", "--metric", metric.name]
    try:
        return f"{text}\n{app.answer_if_installed(words, context.obj)}"
    except CeledgerError as error:
        warn(f"no chart: {error}")
        return text


def _tell_github(document: CheckDocument, path: str, table: str) -> None:
    """Show the answer where a GitHub workflow looks for it. A summary that cannot be written does
    not change the answer."""
    from celedger.views import check as answers

    if path:
        try:
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(table)
        except OSError as error:
            warn(f"{path} cannot be written: {error.strerror}")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in answers.workflow_commands(document):
            note(line)  # a runner reads them on stderr too, and stdout is the answer's


@baseline.command()
def pin(
    context: typer.Context,
    revision: Annotated[str, typer.Argument(metavar="REV", help="The commit to compare with.")],
    why: Reason,
    suite: options.Suite = None,
    task: options.TaskName = None,
    metric: options.Metric = None,
) -> int:
    """Pin a commit: `drift` then shows how far each metric has moved from it."""
    return _declare(context, "pin", revision, why, suite, task, metric)


@baseline.command()
def accept(
    context: typer.Context,
    revision: Annotated[
        str, typer.Argument(metavar="REV | ID", help="The commit that changed it, or an incident.")
    ],
    why: Reason,
    suite: options.Suite = None,
    task: options.TaskName = None,
    metric: options.Metric = None,
    environments: Annotated[
        bool,
        typer.Option("--environments", help="Compare results across the environments of REV."),
    ] = False,
) -> int:
    """Accept what this commit changed, or one incident, as the new level.

    A commit accepts every incident that it may have caused. With --environments, results from one
    environment of REV count in its others.
    """
    from celedger.base.model import ENVIRONMENTS

    if environments and metric is not None:
        raise UsageError("--environments is about all metrics", "leave out --metric")
    if environments:
        return _declare(context, "accept", revision, why, suite, task, ENVIRONMENTS)
    if task is None and metric is None and _INCIDENT.fullmatch(revision):
        done = _act_on_incident(context, "accept", revision, why)
        if done is not None:
            return done
    return _declare(context, "accept", revision, why, suite, task, metric)


@baseline.command()
def dismiss(
    context: typer.Context,
    incident: Annotated[
        str, typer.Argument(metavar="ID", help="An incident.", autocompletion=options.incidents)
    ],
    why: Reason,
) -> int:
    """Withdraw an incident: it was noise, or a broken data set.

    It opens again only on newer trials.
    """
    done = _act_on_incident(context, "dismiss", incident, why)
    if done is None:
        raise no_incident(incident)
    return done


@baseline.command()
def void(
    context: typer.Context,
    trials: Annotated[list[str], typer.Argument(metavar="TRIAL...", help="Trials, by their id.")],
    why: Reason,
    undo: Annotated[bool, typer.Option("--undo", help="Let them count again.")] = False,
) -> int:
    """Leave trials out of all judgement, for example those of a broken machine."""
    from celedger.base.model import BY_ID
    from celedger.views.document import count

    _must_have_reason(why)
    with writing(context.obj) as session:
        records = []
        for name in trials:
            record = session.ledger.trial(name)
            if record is None:
                raise UsageError(f"there is no trial {name}", "`celedger show --json` names them")
            records.append(record)
        act = "restore" if undo else "void"
        for record in records:
            trial = record.trial
            _record_act(session, act, trial.commit, record.suite, record.task,
                        BY_ID + trial.ulid, why)  # fmt: skip
        record_state(session, "baseline")
    print(f"{count(len(records), 'trial')} {'count again' if undo else 'void'}")
    return Status.GOOD


@baseline.command()
def show(context: typer.Context, json: options.Json = False) -> int:
    """Show who pinned, accepted, dismissed and declared void what, and why."""
    from celedger.views.check import acts

    with reading(context.obj) as session:
        options.answer(acts(session.ledger.baselines()), json)
    return Status.GOOD


_INCIDENT = re.compile("[0-9a-f]{1,8}")


def _act_on_incident(context: typer.Context, act: str, name: str, why: str) -> int | None:
    """Record an act on an incident; None where the name is that of a commit."""
    from celedger.base.model import BY_ID
    from celedger.judge import memory

    _must_have_reason(why)
    with writing(context.obj) as session:
        state = memory.read(session.repository, session.ledger)
        incident = state.find(name)
        if incident is None:
            if not session.repository.hash_of(name):
                raise no_incident(name)
            return None
        main = incident.main
        _record_act(
            session, act, incident.likeliest, main.suite, main.task, BY_ID + incident.id, why
        )
        record_state(session, "baseline", state.tip)
    print(f"{act}ed {incident.id} {incident.title()}")
    return Status.GOOD


def _must_have_reason(why: str) -> None:
    if not why.strip():
        raise UsageError("the reason is empty", "--why 'what it was, and why'")


def _record_act(
    session: Session, act: str, commit: str, suite: str, task: str, metric: str, why: str
) -> None:
    import time
    from random import SystemRandom

    from celedger.base.model import BaselineAct, BaselineRecord
    from celedger.ledger import ulid

    now = time.time()
    session.ledger.record_commits([session.repository.commit(commit)])
    record = BaselineRecord(
        ulid.new(now, SystemRandom()),
        BaselineAct(act),
        commit,
        suite,
        task,
        metric,
        session.repository.user(),
        why,
        now,
    )
    session.ledger.record_baseline(record)


def _declare(
    context: typer.Context,
    act: str,
    revision: str,
    why: str,
    suite: str | None,
    task: str | None,
    metric: str | None,
) -> int:
    from celedger.base.model import ENVIRONMENTS
    from celedger.judge import memory
    from celedger.trial.workplace import choose_tasks

    _must_have_reason(why)
    with writing(context.obj, suite=suite) as session:
        commit = session.repository.resolve(revision)
        chosen = load_suite(session)
        tasks = choose_tasks(chosen, (task,) if task else ())
        names = dict.fromkeys(m.name for t in tasks for m in t.metrics)
        measured = session.ledger.trials(commit=commit.sha, suite=chosen.name, task=task)
        if metric == ENVIRONMENTS:
            if len({record.trial.environment for record in measured}) < 2:
                typed = command("run", revision, suite=suite)
                raise UsageError(
                    f"{revision} was not measured in two environments", f"type {typed}"
                )
        elif metric is not None and metric not in names:
            raise UsageError(f"no task has a metric {metric!r}", f"known: {', '.join(names)}")
        before = memory.read(session.repository, session.ledger).in_force
        _record_act(session, act, commit.sha, chosen.name, task or "", metric or "", why)
        now = {i.id for i in record_state(session, "baseline").in_force}
        if act == "pin" and not measured:
            typed = command("run", revision, suite=suite)
            note(context.obj.retyped(f"celedger: {revision} is not measured yet: type {typed}"))
    subject = " ".join(filter(None, (chosen.name, task, (metric or "").lstrip("*"))))
    print(f"{'pinned' if act == 'pin' else 'accepted'} {commit.sha} for {subject}")
    accepted = [incident for incident in before if incident.id not in now]
    for incident in accepted:
        print(f"  {incident.id} {incident.title()}")
    if act == "accept" and metric != ENVIRONMENTS and not accepted:
        note(f"celedger: no open incident can begin at {commit.sha[:8]}: none was accepted")
    return Status.GOOD
