"""`celedger status`: one screen of what goes on, and the next command to type."""

from __future__ import annotations

import json as json_format
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from celedger.base.errors import CeledgerError, Status, UsageError, command
from celedger.cli import options
from celedger.cli.service import queue_document
from celedger.cli.session import Options, archive_of, no_incident, reading, settled
from celedger.service.measure import Session, load_suite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celedger.base.config import Config
    from celedger.base.model import Task
    from celedger.judge.incident import Incident, State
    from celedger.ledger import Ledger
    from celedger.repo import Repository
    from celedger.views.status import QueueDocument

_POLL = 0.2  # seconds between readings of a trial that is followed
_SEEN = "status-seen"  # incidents that a person has seen here, each with its state


def status(
    context: typer.Context,
    incident: Annotated[
        str | None,
        typer.Argument(
            metavar="[ID]",
            help="Show one incident with its evidence.",
            autocompletion=options.incidents,
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Print the running trial's epochs as they come."),
    ] = False,
    json: options.Json = False,
) -> int:
    """Show what is running, waiting and worse, and what to type next.

    Incidents since you last typed this are marked as new. --json does not reset that mark.
    --follow shows the task's previous trial in brackets, with the same seed if there is one.
    """
    from celedger.judge import memory
    from celedger.judge.incident import State
    from celedger.repo import Repository
    from celedger.system.warm import LAUNCHERS, kept
    from celedger.views import incidents as words
    from celedger.views.drift import upgrade_texts
    from celedger.views.status import StatusDocument, incident_document

    typed: Options = context.obj
    if follow and (json or incident is not None):
        raise UsageError("--follow takes no ID and no --json", "leave one out")
    repository = Repository.open(typed.repository)
    settings, _ = context.with_resource(settled(repository, typed))
    servers = kept(repository.state_dir / LAUNCHERS)
    # A ledger that is named has to be there.
    is_new = typed.ledger is None and not settings.ledger.exists()
    if is_new and not archive_of(repository, settings).size:
        if incident is not None:
            raise no_incident(incident)
        if follow:
            print("no trial is running")
            return Status.GOOD
        queue = queue_document(repository, settings, None)
        hint = _queue_hint(queue) or _first_command(repository, settings)
        document = StatusDocument(time.time(), (), queue, State(""), {}, {}, hint, servers)
        options.answer(document, json, typed.retyped)
        return Status.GOOD
    with reading(typed, repository) as session:
        ledger = session.ledger
        if follow:
            return _follow(session)
        state = memory.read(repository, ledger)
        tasks: Sequence[Task] = ()
        with suppress(CeledgerError):  # the ledger may be of a suite that is not here
            tasks = (suite := load_suite(session)).tasks
            state = state.as_measured(suite.name, [task.name for task in tasks])
        commits = memory.commits_of(repository, state)
        if incident is not None:
            one = state.find(incident)
            if one is None:
                raise no_incident(incident, state.gone)
            cause = words.cause(one, ledger.findings(one.likeliest))
            evidence = incident_document(one, commits, cause, _proof(ledger, one))
            options.answer(evidence, json, typed.retyped)
            return Status.GOOD
        queue = queue_document(repository, settings, ledger)
        hint = _queue_hint(queue) or (
            _next(session, state, tasks) if ledger.tasks() else _first_command(repository, settings)
        )
        document = StatusDocument(
            time.time(), ledger.trials(open_only=True), queue, state, _seen(repository), commits,
            hint, servers, _causes(ledger, state),
            upgrade_texts(state, ledger.environments() if state.upgrades else {}),
        )  # fmt: skip
        options.answer(document, json, typed.retyped)
    if not json:
        _see(repository, state)
    return Status.GOOD


def _follow(session: Session) -> int:
    """Print the epochs of the trial that began last, until it ends."""
    from celedger.trial import journal
    from celedger.views.status import followed_title, new_epochs

    ledger = session.ledger
    running = ledger.trials(open_only=True)
    if not running:
        print("no trial is running")
        return Status.GOOD
    record = running[-1]
    ulid, seed = record.trial.ulid, record.trial.seed
    ended = [r for r in ledger.trials(suite=record.suite, task=record.task) if r.ok]
    before = max(ended, key=lambda r: (r.trial.seed == seed, r.trial.started), default=None)
    points = ledger.series(before.trial.ulid) if before is not None else {}
    metrics, shown = ledger.metrics(record.trial.recipe), set[tuple[str, int]]()
    print(followed_title(record, before, len(running) - 1), flush=True)
    while True:
        # Asked first: a runner that lives no more has written the outcome before, or never.
        lives = journal.is_attended(session.repository, ledger, ulid)
        for line in new_epochs(metrics, ledger.series(ulid), points, shown):
            print(line, flush=True)
        trial = ledger.trial(ulid)
        outcome = trial.outcome if trial is not None else None
        if outcome is not None or not lives:
            print(f"ended: {outcome.kind.value}" if outcome else "ended: its runner died")
            return Status.GOOD
        time.sleep(_POLL)


def _causes(ledger: Ledger, state: State) -> dict[str, list[str]]:
    """Return what diagnoses say of the commits of incidents in force, by the incident's id."""
    from celedger.views import incidents as words

    causes = {
        incident.id: words.cause(incident, ledger.findings(incident.likeliest))
        for incident in state.in_force if incident.is_explained
    }  # fmt: skip
    return {name: lines for name, lines in causes.items() if lines}


def _proof(ledger: Ledger, incident: Incident) -> str:
    """Return what the revert of an incident's commit gives back, "" where it was not rehearsed."""
    from celedger.judge.bisection.bisect_report import Rehearsal

    bisect = next((b for b in ledger.bisects() if b.ulid == incident.bisect), None)
    fields: Any = bisect.report.get("rehearsal") if bisect is not None else None
    return Rehearsal(**fields).sentence(bisect.metric) if bisect and fields else ""


def _seen(repository: Repository) -> Mapping[str, str]:
    with suppress(OSError, ValueError):
        last_states = json_format.loads((repository.state_dir / _SEEN).read_text())
        if isinstance(last_states, dict):
            return last_states
    return {}


def _see(repository: Repository, state: State) -> None:
    """Keep what a person has seen. A file that cannot be written costs a repetition."""
    from celedger.base import files

    states = {incident.id: incident.state for incident in state.incidents}
    with suppress(OSError):
        files.replace(repository.state_dir / _SEEN, json_format.dumps(states).encode())


def _queue_hint(queue: QueueDocument) -> str:
    """Return what to type for the queue to go on, "" where it does."""
    from celedger.base.model import JobState

    states = {job.state for job in queue.jobs}
    if JobState.WAITING in states or queue.waits:
        return "`celedger allow` lets what waits go on"
    if queue.lacks_worker:
        return "`celedger worker` runs what is queued"
    return ""


def _first_command(repository: Repository, settings: Config) -> str:
    from celedger import suite as suites

    if suites.suites_in(settings.suites) or settings.suite:
        return "`celedger run HEAD` trains the suite for the first time"
    if repository.is_bare:
        return "`celedger init`, typed in a clone, sets it up"
    return "`celedger init` sets this repository up"


def _next(session: Session, state: State, tasks: Sequence[Task]) -> str:
    """Return what to type next of a ledger, and why: first what names one more commit."""
    from celedger.judge.incident import DRIFT
    from celedger.views import incidents as words

    if search := words.next_search(state, tasks, session.ledger):
        return search
    for incident in sorted(state.in_force, key=lambda i: i.is_settled or not i.declared):
        if incident.is_failing and not incident.known_good:
            return words.OLDER
        if typed := incident.next():
            accept = command("baseline", "accept", incident.id, why="TEXT")
            tells = "shows it" if incident.kind == DRIFT else "finds the commit"
            if incident.inseparable:
                tells = "lists its commits, which cannot be told apart"
            if incident.is_named:
                tells = "shows it" if typed.startswith("celedger show ") else "says why"
                tells += f"; {accept} if it is intended"
            return f"`{typed}` {tells}"
    head = session.repository.resolve("HEAD").sha
    if not session.ledger.trials(commit=head) and not any(
        job.commit == head and job.ended is None for job in session.ledger.jobs()
    ):
        return f"{command('run', 'HEAD')} measures HEAD"
    return words.OLDER if state.commits == 1 else ""
