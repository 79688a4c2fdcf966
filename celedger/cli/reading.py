"""`celedger log`, `show`, `diff`, `drift` and `table`: what the ledger holds, read."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from celedger.base.errors import CeledgerError, Status, UnknownRevision, UsageError, command
from celedger.cli import options
from celedger.cli.session import note, reading, warn
from celedger.cli.synthetic import reading_apart, two
from celedger.service.measure import Session

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from celedger.base.model import Commit
    from celedger.judge.incident import State
    from celedger.views.drift import DriftDocument


def log(
    context: typer.Context,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, metavar="N", help="At most N.")
    ] = 20,
    bisects: Annotated[
        bool, typer.Option("--bisects", help="List past bisects and their answers instead.")
    ] = False,
    json: options.Json = False,
) -> int:
    """List the measured commits, newest first."""
    from celedger.judge import memory
    from celedger.service import allow
    from celedger.views.log import Log

    with reading(context.obj) as session:
        for line in allow.waiting(session.repository, session.config, session.ledger):
            warn(context.obj.retyped(line))
        if bisects:
            from celedger.views.bisect import past_bisects

            options.answer(past_bisects(session.ledger, limit), json, context.obj.retyped)
        else:
            state = memory.read(session.repository, session.ledger)
            options.answer(Log.of(session.ledger, state, limit), json)
    return Status.GOOD


def show(
    context: typer.Context,
    revision: Annotated[
        str, typer.Argument(metavar="REV | TASK", help="A commit, or a task.")
    ] = "HEAD",
    json: options.Json = False,
) -> int:
    """Show the results of a commit, or the noise of a task.

    For a commit: each value with its spread, what the commit made worse or better, failures and
    their logs, the environment, and the smallest change that its trials can detect. For a task: the
    noise of its metrics, and the smallest change that one, three and ten trials can detect.
    """
    from celedger.judge import memory
    from celedger.views.document import Document
    from celedger.views.noise import TaskNoise, noise_of
    from celedger.views.samples import find_task
    from celedger.views.show import CommitRows

    with reading(context.obj) as session:
        document: Document
        try:
            with reading_apart(session, [revision]) as (own_session, (commit,)):
                state, sha = _state_with(session, commit), commit.sha
                findings = own_session.ledger.findings(sha)
                document = CommitRows.of(own_session.ledger, sha, state, findings)
        except UnknownRevision:
            state = memory.read(session.repository, session.ledger)
            tasks = session.ledger.tasks()
            if not any(revision in (t.name, f"{t.suite}/{t.name}") for t in tasks):
                raise
            title = find_task(session.ledger, revision)
            document = noise_of([TaskNoise.of(session.ledger, *title, state)])
        options.answer(document, json, context.obj.retyped)
    return Status.GOOD


def diff(
    context: typer.Context,
    commits: Annotated[
        list[str],
        typer.Argument(metavar="A..B | A B", help="Two commits; `.` is the working tree."),
    ],
    json: options.Json = False,
) -> int:
    """Compare two commits, metric by metric."""
    from celedger.judge import memory
    from celedger.views.diff import Diff

    with reading(context.obj) as session:
        words = two(session.repository, commits)
        with reading_apart(session, words) as (own_session, (a, b)):
            state = _state_with(session, b)
            line = memory.line_of(session.repository, session.ledger, state.tip)
            document = Diff.of(
                own_session.ledger, a.sha, b.sha, state, line,
                across_files=own_session is not session,
                check=command("check", words[1]) if own_session is not session else "",
            )  # fmt: skip
            options.answer(document, json)
    return Status.GOOD


def _state_with(session: Session, commit: Commit) -> State:
    """Return the state of HEAD's line where that has a commit, or tells of it as of one of a merged
    branch; else of the commit's own line. A synthetic commit has none."""
    from celedger.judge import memory
    from celedger.repo.synthetic import is_synthetic
    from celedger.views.incidents import tells_of

    state = memory.read(session.repository, session.ledger)
    if is_synthetic(commit) or tells_of(state, commit.sha):
        return state
    tip = memory.tip_of(session.repository, commit)
    return state if tip == state.tip else memory.read(session.repository, session.ledger, tip)


def drift(
    context: typer.Context,
    revision: options.History = "HEAD",
    suite: options.Suite = None,
    task: options.TaskName = None,
    metric: options.Metric = None,
    sort: Annotated[
        Literal["time", "change"],
        typer.Option(help="By time, or by how much a commit moved a metric."),
    ] = "time",
    every: options.EveryCommit = False,
    json: options.Json = False,
) -> int:
    """Show where a metric changed or a task failed.

    The history is the main line: the first parents of the commit. Each change has a probability and
    the number of commits that contain it with 95 % probability, unmeasured ones included. If there
    are several, the command that searches them follows. A change of environment is named, and never
    counts as one of code.
    """
    from celedger.views.samples import nothing_yet

    with reading(context.obj) as session:
        ledger = session.ledger
        tasks = ledger.tasks()
        if not tasks:
            raise nothing_yet()
        names = {m.name for t in tasks for m in ledger.metrics(t.recipe)}
        is_measured = any(suite in (None, t.suite) and task in (None, t.name) for t in tasks)
        if not is_measured or (metric is not None and metric not in names):
            raise UsageError(
                "the ledger holds no such task or metric", f"{command('show')} names those it has"
            )
        document = changes_of(
            session, revision, every=every, by_size=sort == "change",
            suite=suite, task=task, metric=metric,
        )  # fmt: skip
        if not document.state.commits:
            raise CeledgerError(
                f"the ledger holds no trial of {revision}", f"type {command('run', revision)}"
            )
        options.answer(document, json, context.obj.retyped)
    return Status.GOOD


def changes_of(
    session: Session,
    revision: str,
    *,
    every: bool = False,
    by_size: bool = False,
    suite: str | None = None,
    task: str | None = None,
    metric: str | None = None,
) -> DriftDocument:
    """Return every change along the line of a commit, or in a range."""
    from celedger.judge import memory
    from celedger.views.drift import DriftDocument, narrowed, within

    repository, ledger = session.repository, session.ledger
    start, dots, end = revision.partition("..")
    tip = repository.resolve((end or "HEAD") if dots else revision).sha
    state = memory.read(repository, ledger, tip, every=every)
    line = memory.line_of(repository, ledger, tip, every=every).commits
    if dots:
        inside = {c.sha for c in repository.commits(revision)} | {repository.resolve(start).sha}
        own = [c.sha for c in line if c.sha in inside]
        aside = inside.intersection(ledger.commits_with_trials()).difference(own)
        state = within(state, own)._replace(aside=len(aside))
    narrow = narrowed(state, suite=suite, task=task, metric=metric)
    named = {c.sha: c for c in line} | memory.commits_of(repository, narrow)
    return DriftDocument(narrow, line, named, ledger.environments(), by_size)


def table(
    context: typer.Context,
    revision: options.Range = "HEAD",
    suite: options.Suite = None,
    task: options.Tasks = None,
    param: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="This parameter; may be repeated."),
    ] = None,
    metric: options.Metrics = None,
    json: options.Json = False,
) -> int:
    """Show metrics over parameters, for a grid.

    A row is a task with its parameters; a value is the mean and standard deviation of its trials.
    By default it shows the parameters that differ between the rows and the metrics that are judged.
    A line below names the best variant of a grid, and says whether equal seeds confirm it at 95 %.
    """
    from celedger.judge import memory
    from celedger.views.ablation import Ablation

    with reading(context.obj) as session:
        state = cache(partial(memory.read, session.repository, session.ledger))
        opened: AbstractContextManager[tuple[Session, Sequence[Commit]]]
        if ".." in revision:
            opened = nullcontext((session, _measured(session, revision)))
        else:
            opened = reading_apart(session, [revision])
        with opened as (own_session, commits):
            document = Ablation.of(
                own_session.ledger, commits, suite=suite, tasks=task or (), params=param or (),
                metrics=metric or (), state=state,
            )  # fmt: skip
        options.answer(document, json)
    return Status.GOOD


def _measured(session: Session, revision: str) -> list[Commit]:
    """Return the measured commits of a range, oldest first: those of the main line, since a series
    that wanders in and out of merged branches has steps that no commit made; where only branches
    were measured, all of them."""
    from celedger.repo.repository import main_line
    from celedger.views.samples import run_command

    trained = set(session.ledger.commits_with_trials())
    repository = session.repository
    old = revision.partition("..")[0]
    whole = [repository.resolve(old or "HEAD"), *repository.commits(revision)]
    main = {commit.sha for commit in main_line(whole)}
    every = [commit for commit in whole if commit.sha in trained]
    series = [commit for commit in every if commit.sha in main] or every
    if aside := len(every) - len(series):
        note(f"{aside} measured commit{'s' * (aside != 1)} of merged branches not shown")
    if not series:
        problem = f"the ledger holds no trial of {revision}"
        raise CeledgerError(problem, f"type {run_command(session.ledger, revision)}")
    return series
