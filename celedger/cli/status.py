"""`celedger status`: one screen of what goes on, and the next command to type."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from celedger.base.errors import Status, command
from celedger.cli import options
from celedger.cli.service import queue_document
from celedger.cli.session import Options, Session, archive_of, reading, settled

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celedger.base.config import Config
    from celedger.base.model import Commit
    from celedger.judge.drift.open_regressions import Regression
    from celedger.repo import Repository
    from celedger.views.queue import Queue

_SHOWN = "status-shown"  # regressions that a person has seen here


def status(context: typer.Context, json: options.Json = False) -> int:
    """Show what runs, waits and got worse, and what to type next.

    What got worse since this was last typed is called new. JSON does not count as looking.
    """
    from celedger.judge.drift import open_regressions
    from celedger.repo import Repository
    from celedger.service import reported_regressions
    from celedger.views.status import StatusDocument

    typed: Options = context.obj
    repository = Repository.open(typed.repository)
    settings, _ = context.with_resource(settled(repository, typed))
    if not settings.ledger.exists() and not archive_of(repository, settings).size:
        queue = queue_document(repository, settings, ())
        hint = _queue_hint(queue) or _first_command(repository, settings)
        document = StatusDocument(time.time(), (), queue, (), open_regressions.News(), {}, hint)
        options.answer(document, json, typed.retyped)
        return Status.GOOD
    with reading(typed) as session:
        ledger = session.ledger
        queue = queue_document(repository, settings, ledger.jobs())
        log = repository.log("HEAD", limit=open_regressions.HISTORY)
        history = open_regressions.positions(log)
        regressions = open_regressions.open_regressions(ledger, history)
        changes = open_regressions.changes(
            reported_regressions.read_known(repository, _SHOWN), regressions, history
        )
        commits = {commit.sha: commit for commit in log}
        hint = _queue_hint(queue) or _next(session, regressions, commits)
        document = StatusDocument(
            time.time(), ledger.trials(open_only=True), queue, regressions, changes, commits, hint
        )
        options.answer(document, json, typed.retyped)
    if not json:
        reported_regressions.write_known(repository, _SHOWN, changes.known)
    return Status.GOOD


def _queue_hint(queue: Queue) -> str:
    """Return what to type for the queue to go on, "" where it does."""
    from celedger.ledger.job_record import JobState

    states = {job.state for job in queue.jobs}
    if JobState.WAITING in states or queue.waits:
        return "`celedger allow` lets what waits go on"
    if not queue.worker and (queue.notes or states & {JobState.QUEUED, JobState.RUNNING}):
        return "`celedger worker` runs what is queued"
    return ""


def _first_command(repository: Repository, settings: Config) -> str:
    from celedger import suite as suites

    if suites.suites_in(settings.suites) or settings.suite:
        return "`celedger run HEAD` trains the suite for the first time"
    return "`celedger init` sets this repository up"


def _next(
    session: Session, regressions: Sequence[Regression], commits: Mapping[str, Commit]
) -> str:
    """Return what to type next of a ledger, and why: first what has no first bad commit yet."""
    for regression in sorted(regressions, key=lambda r: r.first_bad is not None):
        if hint := _hint(session, regression, commits):
            return hint
    if regressions:
        return f"{command('show', regressions[0].verdict.commit[:12])} shows values and logs"
    head = session.repository.resolve("HEAD").sha
    if not session.ledger.trials(commit=head):
        return f"{command('run', 'HEAD')} measures HEAD"
    if not session.ledger.verdicts(commit=head):
        return f"{command('check', 'HEAD')} judges HEAD"
    return ""


def _hint(session: Session, regression: Regression, commits: Mapping[str, Commit]) -> str:
    from celedger.base.model import Kind
    from celedger.judge.drift.baseline import last_good  # numpy

    verdict, first_bad = regression.verdict, regression.first_bad
    suite, task, metric = regression.key
    if first_bad is None:
        good = last_good(session.repository, session.ledger, verdict)
        if good is None:
            return ""
        ends = f"{good.sha[:12]}..{verdict.commit[:12]}"
        return f"{command('bisect', ends, suite=suite, task=task, metric=metric)} finds the commit"
    commit = commits.get(first_bad.commit)
    if commit is None or not commit.parents:
        return ""
    ends = f"{commit.parents[0][:12]}..{commit.sha[:12]}"
    kinds = {m.name: m.kind for m in session.ledger.metrics(verdict.recipe)}
    kind = kinds.get(metric, Kind.QUALITY)
    verb = "profile" if kind in (Kind.SPEED, Kind.WORK, Kind.MEMORY) else "explain"
    words = ["--memory"] if kind is Kind.MEMORY else []
    why = command(verb, ends, task, *words, suite=suite)
    accept = command(
        "baseline", "accept", commit.sha[:12], suite=suite, task=task, metric=metric, why="TEXT"
    )
    return f"{why} says why; {accept} where it is wanted"
