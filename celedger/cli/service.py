"""`celedger hook install | uninstall | status`, `worker`, `queue` and `allow`: train after every
merge, show what waits, and let it go on."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import ExitStack, closing, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celedger.base.errors import CeledgerError, Status, UnknownRevision, UsageError
from celedger.cli import app, options
from celedger.cli.session import (
    Options,
    find,
    keep_out_of_git,
    note,
    reading,
    settled,
    warn,
    writing,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from celedger.base.config import Config
    from celedger.ledger import Ledger
    from celedger.repo import Repository
    from celedger.service.allow import Asked
    from celedger.service.hooks import HookStatus
    from celedger.trial.permissions import Gate, Request
    from celedger.views.status import QueueDocument

_QUICK_LIMIT = 60  # seconds that a push or a commit waits at most
_STARTING = 30  # seconds after a merge in which its worker may not have the lock yet
_LOG_LIMIT = 1 << 20  # bytes of worker.log that are kept, about

hook = typer.Typer(
    no_args_is_help=True,
    help="Train after every merge: install, remove, show the hooks.",
)


@hook.command()
def install(
    context: typer.Context,
    pre_push: Annotated[
        bool,
        typer.Option(
            "--pre-push", help="Also report whether a push changes what trainings compute."
        ),
    ] = False,
    pre_commit: Annotated[
        bool, typer.Option("--pre-commit", help="Also report it for a commit.")
    ] = False,
    block: Annotated[
        bool, typer.Option("--block", help="Let these two stop such a push or commit.")
    ] = False,
) -> int:
    """Install the post-merge and post-rewrite hooks. An existing hook runs first.

    The first installation approves the current suite and settings: see `celedger allow`. --pre-push
    compares the pushed commit with the one that the remote has, --pre-commit the index with HEAD,
    as `celedger same` does, for a minute at most.
    """
    from celedger.service import allow, hooks
    from celedger.trial.permissions import Gate

    options: Options = context.obj
    names = ["pre-push"] * pre_push + ["pre-commit"] * pre_commit
    if names and not app.is_installed("same"):
        raise UsageError(f"--{names[0]} needs the verb `same`, which is not installed")
    if block and not names:
        raise UsageError("--block is for --pre-push and --pre-commit", "name one of them")
    repository, settings = find(options)
    lines = hooks.install(repository, sys.executable, names, block=block)
    keep_out_of_git(repository, settings.ledger)
    gate = Gate.of(repository, attended=True)
    requests = allow.asked(repository, settings)
    if gate.empty:
        gate.review([requests.settings, *requests.starts], texts=requests.texts)
    if requests.problem is not None:
        note(f"celedger: no suite is allowed yet: {requests.problem}")
    elif gate.missing([requests.settings, *requests.starts]):
        warn(options.retyped(f"the suite or the settings are new since allowed: {gate.hint}"))
    if lines:
        print(f"core.hooksPath is {lines[0][0].parent}: celedger does not write there.")
        print("Add this line to each of these executable sh scripts there:")
        for path, line in lines:
            print(f"\n{path}:\n    {line}")
        return Status.GOOD
    _print_hooks(options, hooks.status(repository, sys.executable))
    note(options.retyped("celedger: after the next merge, see `celedger queue` and `celedger log`"))
    return Status.GOOD


@hook.command()
def uninstall(context: typer.Context) -> int:
    """Remove the hooks and put back those they replaced."""
    from celedger.service import hooks

    repository, _ = find(context.obj)
    touched = hooks.uninstall(repository)
    for path in touched:
        print(f"{path}: " + ("the earlier hook is back" if path.is_file() else "removed"))
    if not touched:
        note("celedger: no hook of celedger's is installed")
    return Status.GOOD


@hook.command()
def run(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="post-merge, pre-push or pre-commit.")
    ] = "post-merge",
    remote: Annotated[
        str, typer.Argument(metavar="[REMOTE]", help="For a push, the remote's name.")
    ] = "origin",
) -> int:
    """Do what the installed hook does, for pre-commit and other hook managers.

    post-merge records that HEAD moved, starts a worker in the background, and prints the last job's
    answer. It ignores squashed merges and amended commits, which bring in nothing. The other two
    exit 1 if what is pushed or committed changes what trainings compute.
    """
    from celedger.repo import Repository
    from celedger.service import allow, hooks

    if name in hooks.QUICK:
        return _run_quick(context.obj, name, remote)
    if name not in hooks.NAMES:
        known = ", ".join((*hooks.NAMES, *hooks.QUICK))
        raise UsageError(f"{name!r} is not a hook of celedger", f"known: {known}")
    squashed = os.environ.get("PRE_COMMIT_IS_SQUASH_MERGE") == "1"
    if squashed or os.environ.get("PRE_COMMIT_REWRITE_COMMAND") == "amend":
        return Status.GOOD
    repository = Repository.open(context.obj.repository)
    if line := hooks.take_line(repository):
        note(line)
    allow.note_merge(repository)
    return Status.GOOD


class _Late(KeyboardInterrupt):
    """The time limit of a hook is over: what runs is ended as by Ctrl-C."""


def _late(number: int, frame: object) -> None:
    raise _Late


def _run_quick(command: Options, name: str, remote: str) -> int:
    """Compare what is pushed or committed, as `celedger same` does. Whatever hinders it is a line:
    a push or commit goes on."""
    from celedger.repo import Repository
    from celedger.repo.synthetic import INDEX

    if not app.is_installed("same"):
        return Status.GOOD
    worst = Status.GOOD
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(_QUICK_LIMIT)
    try:
        repository = Repository.open(command.repository)
        pairs = [("HEAD", INDEX)]
        if name == "pre-push":
            pairs = list(pushed(repository, sys.stdin, remote))
        given = command._replace(repository=repository.worktree, attended=False)
        for old, new in pairs:
            words = ["--against", old, "--of", new]
            inside = (repository.root, repository.worktree)
            status, answer = app.answer_of("same", words, given, not_in=inside)
            note("\n".join(f"celedger: {line}" for line in answer.splitlines()))
            worst = Status.BAD if status == Status.BAD else worst
    except _Late:
        note(f"celedger: not compared: {_QUICK_LIMIT} s are over; `celedger same` takes its time")
    except CeledgerError as error:
        note(command.retyped(f"celedger: not compared: {error}"))
    finally:
        signal.alarm(0)
    return worst


def pushed(repository: Repository, lines: Iterable[str], remote: str) -> Iterator[tuple[str, str]]:
    """Yield what the remote has and what it will have, from the lines that git gives a pre-push
    hook. A new branch begins where it left those of the remote; a deleted one is left out."""
    pairs = []
    for line in lines:
        words = line.split()
        if len(words) != 4 or not words[1].strip("0"):
            continue
        new, old = words[1], words[3]
        reason = "its old commit is not here"
        if not old.strip("0"):
            named = ("for-each-ref", "--format=%(objectname)", f"refs/remotes/{remote}/")
            old = repository.ask("merge-base", new, *repository.tell(*named).text.split()).text
            reason = "nothing before it is known to be on the remote"
        if not old or not repository.has_any([old]):
            note(f"celedger: {words[2]} is not compared: {reason}")
        elif old != new:
            pairs.append((old, new))
    yield from dict.fromkeys(pairs)


@hook.command()
def status(context: typer.Context) -> int:
    """Show which hooks are installed, and what waits for approval."""
    from celedger.service import allow, hooks

    repository, settings = find(context.obj)
    configured = hooks.elsewhere(repository)
    if configured is not None:
        print(f"core.hooksPath is {configured}: git reads hooks there only")
    _print_hooks(context.obj, hooks.status(repository, sys.executable))
    for line in allow.waiting(repository, settings):
        print(context.obj.retyped(line))
    return Status.GOOD


def _print_hooks(command: Options, hooks: Sequence[HookStatus]) -> None:
    for hook in hooks:
        state = command.retyped(hook.state)
        print(f"{hook.path}: {state}" + (", the earlier hook runs first" * hook.chains))


def allow(
    context: typer.Context,
    shown: Annotated[
        str | None,
        typer.Argument(metavar="[HASH]", help="Approve exactly what was shown with this hash."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what is new; approve nothing.")
    ] = False,
) -> int:
    """Approve this suite and these settings for unattended runs.

    After a merge the worker runs only what you approved on this machine: the suite's commands,
    scripts and limits, and the settings. A job with anything newer waits until you approve it. A
    command that you type needs no approval, and approves what it runs.

    On a terminal you see what is new and are asked. Elsewhere the command prints it with a hash and
    exits 125; `allow HASH` approves it, unless it changed since.
    """
    from celedger.service import allow as service
    from celedger.trial.permissions import Gate

    command: Options = context.obj
    repository, settings = find(command)
    gate = Gate.of(repository, attended=True)
    requests = service.asked(repository, settings)
    new = gate.missing([requests.settings, *requests.starts])
    agreed = not dry_run
    if new:
        agreed = _agreed(command, gate, new, requests, None if dry_run else shown, ask=not dry_run)
    elif requests.problem is None:
        warn("nothing is new since the last approval")
    if agreed:
        gate.review(new, texts=requests.texts)
        if service.wake(repository, settings):
            warn(command.retyped("waiting jobs continue; see `celedger queue`"))
    if requests.problem is not None:
        raise requests.problem
    return Status.GOOD if agreed or dry_run else Status.CANNOT_JUDGE


def _agreed(
    command: Options,
    gate: Gate,
    new: Sequence[Request],
    requests: Asked,
    shown: str | None,
    *,
    ask: bool,
) -> bool:
    """Return True if a person agrees to what is new: where it was `shown` with its hash, or asked
    on a terminal. Raises CannotJudge for another hash."""
    from celedger.base.errors import CannotJudge
    from celedger.views.allow import changes_text

    short = gate.short_hash(new)
    if shown is not None:
        if shown != short:
            raise CannotJudge(
                f"nothing is approved: what is new here differs from what was shown as {shown}",
                "see it: `celedger allow --dry-run`",
            )
        return True
    print(changes_text(gate, new, requests.texts), flush=True)
    streams = (sys.stdin, sys.stdout, sys.stderr)
    if ask and all(stream is not None and stream.isatty() for stream in streams):
        return typer.confirm("Allow this?", err=True)
    warn(command.retyped(f"to approve exactly this, type `celedger allow {short}`"))
    return False


def worker(
    context: typer.Context,
    from_hook: Annotated[
        bool, typer.Option("--from-hook", hidden=True, help="Started by a git hook.")
    ] = False,
    engine: options.Engine = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="HH:MM", help="Stop at this time; unfinished jobs stay queued."),
    ] = None,
) -> int:
    """Run every queued job, then exit.

    The hook starts it in the background; only one runs at a time. Started by the hook, it runs only
    what you approved on this machine, and other jobs wait (see `allow`). Typed by you, it runs
    every job and thereby approves it, as `run` does.
    """
    from celedger.repo import Repository
    from celedger.service.hooks import leave_line
    from celedger.service.worker import detach
    from celedger.trial.permissions import NotAllowed

    if from_hook:
        detach()
    time_is_up = _interrupt_at(until) if until is not None else []
    try:
        _drain(context.obj, engine, from_hook=from_hook)
    except NotAllowed as error:  # the settings: they say which ledger the queue is in
        if not from_hook:
            raise
        _write(context.obj.retyped(f"a merge waits: {error}"))
    except CeledgerError as error:
        if from_hook:  # nobody reads its log before they wonder why nothing is measured
            with suppress(CeledgerError):
                leave_line(
                    Repository.open(context.obj.repository),
                    context.obj.retyped(f"an earlier merge was not measured: {error}"),
                )
        raise
    except KeyboardInterrupt:
        if not time_is_up:
            raise
        note(f"celedger: it is {until}: what is not done stays queued")
    return Status.GOOD


def _interrupt_at(clock: str) -> list[bool]:
    """Let the process be interrupted, as by Ctrl-C, when the clock shows that time next. Returns a
    list that has an item from then on. Raises UsageError."""
    from datetime import timedelta

    now = datetime.now().astimezone()
    try:
        hour, minute = map(int, clock.split(":"))
        end = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    except ValueError:
        raise UsageError(f"--until {clock!r} is not a time of day", "such as 07:00") from None
    end += timedelta(days=end <= now)
    time_is_up: list[bool] = []

    def interrupt(*_: object) -> None:
        time_is_up.append(True)
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, (end - now).total_seconds())
    return time_is_up


def _write(text: str) -> None:
    """Write a line for worker.log."""
    note(f"{datetime.now().astimezone().isoformat(timespec='seconds')} {text}")


def _drain(command: Options, engine: str | None, *, from_hook: bool) -> None:
    from celedger.base.errors import MachineError
    from celedger.cli.progress import Progress
    from celedger.repo import Repository
    from celedger.service.worker import Worker
    from celedger.system.process import Output

    def configure(repository: Repository) -> Config:
        return stack.enter_context(settled(repository, command, engine=engine))[0]

    def run_verb(repository: Repository, settings: Config, words: Sequence[str]) -> str:
        """Return the answer of an installed verb, "" where it is not installed."""
        given = Options(repository.worktree, settings.ledger, attended=not from_hook)
        inside = (repository.root, repository.worktree)
        return app.answer_if_installed(words, given, not_in=inside)

    with (
        writing(command, attended=not from_hook, engine=engine) as session,
        Progress() as progress,
        ExitStack() as stack,
    ):
        # The main work tree: a linked one may be removed while a job runs.
        repository = Repository.open(session.repository.root)
        log: Path = repository.state_dir / "worker.log"

        def say(text: str) -> None:
            text = command.retyped(text)
            if not from_hook:
                progress.say(f"celedger: {text}")
                return
            _write(text)
            with suppress(MachineError), closing(Output(log, _LOG_LIMIT)) as output:
                output.trim()

        worker = Worker(
            repository,
            session.ledger,
            configure,
            say,
            listen=progress,
            attended=not from_hook,
            draw=app.drawer(
                Options(repository.worktree, session.ledger.path, attended=not from_hook),
                not_in=(repository.root, repository.worktree),
            ),
            run_verb=run_verb,
        )
        done = worker.drain()
        if done is None:
            say("another worker is running, and will run the queued jobs")
        elif not from_hook:
            say(f"{done} job{'s' * (done != 1)} run, the queue is empty")


def stop(
    context: typer.Context,
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]", help="Stop only the job of this commit; it is not tried again."
        ),
    ] = None,
) -> int:
    """Stop the worker, and the fork servers of `celedger same`.

    The worker stops as on Ctrl-C: epochs are kept, and its job stays queued. Fork servers end by
    themselves after ten minutes without a request.
    """
    from celedger.base.model import JobState
    from celedger.service.worker import cancel, interrupt
    from celedger.system.warm import LAUNCHERS, end_kept
    from celedger.views.document import count

    repository, settings = find(context.obj)
    if job is not None:
        try:
            sha = repository.resolve(job).sha
        except UnknownRevision as error:
            raise UsageError(
                f"{job} is not a commit; a job is named by its commit", "see `celedger queue`"
            ) from error
        states = cancel(settings.ledger, sha, time.time()) if settings.ledger.exists() else []
        if not states:
            raise UsageError(f"no job of {sha[:10]} waits or runs", "see `celedger queue`")
        worker = " and its worker" * (JobState.RUNNING in states)
        print(f"the job of {sha[:10]}{worker} ended; `celedger worker` runs what else is queued")
        return Status.GOOD
    interrupted = interrupt(settings.ledger)
    for commit in interrupted:
        print(f"the worker ends; its job {commit[:10]} stays queued: `celedger worker` goes on")
    if ended := end_kept(repository.state_dir / LAUNCHERS):
        print(f"{count(ended, 'fork server')} ended")
    elif not interrupted:
        print("no worker and no fork server is running")
    return Status.GOOD


def queue(
    context: typer.Context,
    json: options.Json = False,
) -> int:
    """Show the jobs that wait, the one that runs, and the last ones."""
    from celedger.repo import Repository
    from celedger.service.allow import queue_folder

    command: Options = context.obj
    repository = Repository.open(command.repository)
    settings, _ = context.with_resource(settled(repository, command))
    # The first merge's worker has yet to make the ledger.
    if settings.ledger.exists() or not any(queue_folder(repository).glob("*.moved")):
        with reading(command, repository) as session:
            document = queue_document(repository, settings, session.ledger)
    else:
        document = queue_document(repository, settings, None)
    options.answer(document, json, command.retyped)
    return Status.GOOD


def queue_document(
    repository: Repository, settings: Config, ledger: Ledger | None
) -> QueueDocument:
    """Return the queue with the merges that are not in it yet."""
    from celedger.service.allow import held_back, queue_folder
    from celedger.service.worker import at_work
    from celedger.trial import journal
    from celedger.views.status import QueueDocument

    times = []
    for path in queue_folder(repository).glob("*.moved"):
        with suppress(FileNotFoundError):  # it became a job
            times.append(path.stat().st_mtime)
    waits = held_back(repository, settings) if times else ""
    remote = journal.remote_trials(repository)
    # Asked before and after: a worker may begin or end while the jobs are read.
    lives = at_work(settings.ledger)
    jobs = ledger.jobs() if ledger is not None else ()
    lives = lives or at_work(settings.ledger)
    starts = bool(times) and not waits and time.time() - max(times) < _STARTING
    return QueueDocument(jobs, len(times), lives, waits, remote, starts)
