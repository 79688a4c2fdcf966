"""`celedger worker` and `celedger queue`: run what the hooks queued, and show it."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from celedger.cli import options
from celedger.cli.session import Options, note, reading, settled, tell_if_gone, writing
from celedger.errors import Status

_LOG_LIMIT = 1 << 20  # bytes of worker.log that are kept, about


def worker(
    context: typer.Context,
    from_hook: Annotated[
        bool, typer.Option("--from-hook", hidden=True, help="Started by a git hook.")
    ] = False,
) -> int:
    """Run every queued job, then end. One worker at a time; the hook starts it by itself.

    One that the hook starts runs only what was allowed on this machine; a job with anything else
    waits (see `allow`). One that you type runs every job, and allows it by that, as `run` does.
    """
    from celedger.service.worker import detach
    from celedger.system.gate import NotAllowed

    if from_hook:
        detach()
    try:
        _drain(context.obj, from_hook=from_hook)
    except NotAllowed as error:  # the settings: they say which ledger the queue is in
        if not from_hook:
            raise
        _write(context.obj.retyped(f"a merge waits: {error}"))
    return Status.GOOD


def _write(text: str) -> None:
    """A line for worker.log."""
    note(f"{datetime.now().astimezone().isoformat(timespec='seconds')} {text}")


def _drain(command: Options, *, from_hook: bool) -> None:
    from celedger.cli.progress import Progress
    from celedger.config import Config
    from celedger.repo import Repository
    from celedger.service.worker import Worker

    def configure(repository: Repository) -> Config:
        return stack.enter_context(settled(repository, command))[0]

    with (
        writing(command, attended=not from_hook) as session,
        Progress() as progress,
        ExitStack() as stack,
    ):
        # The main work tree: a linked one may be removed while a job runs.
        repository = Repository.open(session.repository.root)
        log = repository.state_dir / "worker.log"

        def say(text: str) -> None:
            text = command.retyped(text)
            if not from_hook:
                progress.say(f"celedger: {text}")
                return
            _write(text)
            _trim(log)

        worker = Worker(
            repository, session.ledger, configure, say, listen=progress, attended=not from_hook
        )
        done = worker.drain()
        if done is None:
            say("another worker is at it, and will run what is queued")
        elif not from_hook:
            say(f"{done} job{'s' * (done != 1)} run, the queue is empty")


def _trim(log: Path) -> None:
    from celedger.errors import MachineError
    from celedger.system.output import Output

    with suppress(MachineError), closing(Output(log, _LOG_LIMIT)) as output:
        output.trim()


def queue(
    context: typer.Context,
    all_jobs: Annotated[bool, typer.Option("--all", help="Ended jobs too.")] = False,
    json: options.Json = False,
) -> int:
    """Show the jobs that wait, the one that runs, and the last ones."""
    from celedger.repo import Repository
    from celedger.service.allow import held_back, queue_folder
    from celedger.service.worker import at_work
    from celedger.views.queue import Queue

    command: Options = context.obj
    repository = Repository.open(command.repository)
    settings, _ = context.with_resource(settled(repository, command))
    notes = len(list(queue_folder(repository).glob("*.moved")))
    jobs = []
    if settings.ledger.exists() or not notes:  # the first merge's worker has yet to make it
        with reading(context.obj) as session:
            jobs = session.ledger.jobs()
    else:
        tell_if_gone(command, repository, settings)
    waits = held_back(repository, settings) if notes else ""
    worker = at_work(settings.ledger)
    document = Queue(jobs, notes, worker, waits, time.time(), all_jobs)
    options.answer(document, json, command.retyped)
    return Status.GOOD
