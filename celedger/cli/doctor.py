"""`celedger doctor`: say how a repository and its ledger stand, mend the ledger, and tidy up."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celedger.cli.session import Options, archive_of, note, reading, refuse_tracked, settled
from celedger.errors import CeledgerError, Status
from celedger.views.format import size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celedger.config import Config
    from celedger.ledger.archive import Archive
    from celedger.model import Task
    from celedger.repo import Repository
    from celedger.service.keeping import Part
    from celedger.system.gpu import Device
    from celedger.trial.starts import Starts

_LISTED = 20  # damaged facts, and rows that no celedger wrote


def doctor(
    context: typer.Context,
    restore: Annotated[
        bool,
        typer.Option("--restore", help="Rebuild a ledger that is gone or damaged."),
    ] = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Remove what can be made again and is not in use."),
    ] = False,
    older_than: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="DAYS",
            help="With --prune: also logs and output folders of trials older than this.",
        ),
    ] = None,
) -> int:  # fmt: skip
    """Say what celedger sees here: versions, device, ledger, hooks.

    Every row of the ledger is checked. One that is gone (by `git clean -xfd`, say) or damaged is
    rebuilt by --restore from what .git/celedger holds of it; a damaged file is kept.
    Kept builds, virtual environments, checkouts and copies of suites can be made again: --prune
    removes those that nobody uses, and says what that freed. Logs and output folders are evidence
    and stay, unless an age is given.
    """
    import platform
    import time

    from celedger import __version__
    from celedger.errors import UsageError
    from celedger.repo import Repository
    from celedger.service import hooks, keeping

    if older_than is not None and not prune:
        raise UsageError("--older-than says what --prune may remove", "add --prune")
    print(f"celedger {__version__}, Python {platform.python_version()}, {platform.platform()}")
    repository = Repository.open(context.obj.repository)
    settings, _ = context.with_resource(settled(repository, context.obj))
    archive = archive_of(repository, settings)
    worst = _surroundings(repository, settings)
    if restore:
        refuse_tracked(repository, settings.ledger)
        worst = max(worst, _restore(settings.ledger, archive))
    status, running = _examine(context.obj, settings.ledger)
    worst = max(worst, status, _archived(archive))
    for hook in hooks.status(repository, sys.executable):
        print(f"hook        {hook.name}: {hook.state}")
    age = None if older_than is None or running is None else older_than * 86400.0
    if older_than is not None and running is None:
        note("celedger: without a ledger no log is known to be old: logs are kept")
    parts = keeping.survey(
        repository, settings.ledger.parent, now=time.time(), running=running or [], older_than=age
    )
    for part in parts:
        reasons = list(dict.fromkeys(item.keep for item in part.items if item.keep))
        staying = len(part.items) - len(part.spare)
        stays = f"; {staying} stay{'s' * (staying == 1)}: {', '.join(reasons)}" if staying else ""
        print(f"kept        {len(part.items)} {part.name}, {size(part.size)}{stays}")
    if prune:
        _prune(parts)
    elif spare := sum(item.size for part in parts for item in part.spare):
        print(context.obj.retyped(f"to free     {size(spare)} by `celedger doctor --prune`"))
    return worst


def _surroundings(repository: Repository, settings: Config) -> Status:
    """Print what celedger would train here, with what and on what."""
    from celedger import config
    from celedger import suite as suites
    from celedger.system import gpu, sandbox
    from celedger.system.gate import Gate
    from celedger.trial.workplace import interpreters_of, starts_of

    print(f"repository  {repository.root}")
    print(f"settings    {config.source(repository.worktree, repository.root) or 'defaults'}")
    try:
        device = gpu.resolve(settings.device)
        print(f"device      {device.key}")
        version = sandbox.version()
        landlock = "not available: this kernel has no Landlock, or it is off"
        if version:
            landlock = f"not available: this kernel has Landlock of version {version}, too old"
        if version >= sandbox.NEEDED:
            landlock = f"available (Landlock, version {version})"
        print(f"sandbox     {landlock}")
        suite = suites.load(suites.find(None, settings, repository.root))
        print(f"suite       {suite.name}: {', '.join(t.name for t in suite.tasks)}")
        starts = starts_of(repository, suite, Gate.of(repository, attended=False))
        interpreters = interpreters_of(repository, suite.tasks)
        for path, task in {interpreters[task.name]: task for task in suite.tasks}.items():
            print(f"python      {path}, {_environment(repository, starts, task, path, device)}")
    except CeledgerError as error:
        print(f"problem     {error}")
        return error.status
    return Status.GOOD


def _environment(
    repository: Repository, starts: Starts, task: Task, python: str, device: Device
) -> str:
    """Return what an interpreter says of itself. One that lies in the repository is not asked, nor
    one that nobody allowed: a merge may have named it."""
    from celedger.system import environment
    from celedger.system.gate import NotAllowed

    if python != sys.executable and Path(python).is_relative_to(repository.root):
        return "in the repository: not asked"
    try:
        described = environment.describe(
            python, device=device, threads=1, repo_root=repository.root,
            permit=starts.question(task, python),
        )  # fmt: skip
    except NotAllowed:
        return "not allowed yet: not asked"
    return f"environment {described.fingerprint[:12]}"


def _restore(path: Path, archive: Archive) -> Status:
    from celedger.errors import UsageError
    from celedger.ledger.restoring import restore

    if not path.exists() and not archive.holds():
        raise UsageError(f"there is nothing to restore {path} from", "make one: `celedger run`")
    done = restore(path, archive)
    print(f"restored    {done.trials} trials of {path}")
    if done.aside is not None:
        print(f"kept        {done.aside}: the damaged ledger")
    if done.lost:
        print(f"lost        {done.lost} facts or stretches of {archive.folder}")
    return Status.FAILED if done.lost else Status.GOOD


def _examine(options: Options, path: Path) -> tuple[Status, list[str] | None]:
    """Check every row of the ledger. Return the status and the ulids of the trials that run; None
    where the ledger cannot be read."""
    from celedger.errors import LedgerDamaged, LedgerGone
    from celedger.ledger import checking

    try:
        with reading(options) as session:
            trials = session.ledger.trials()
            running = [r.trial.ulid for r in trials if r.outcome is None]
            print(f"ledger      {path}: {len(trials)} trials, {len(running)} running")
            return _rows(*session.ledger.examine()), running
    except CeledgerError as error:
        print(options.retyped(f"ledger      {error}"))
        if isinstance(error, LedgerDamaged):
            _rows(*checking.examine_file(path))
        lost = isinstance(error, (LedgerDamaged, LedgerGone))
        return error.status if lost else Status.GOOD, None


def _rows(damage: list[str], foreign: list[str]) -> Status:
    """Print what is wrong with the ledger's rows."""
    for title, lines in (("damaged", damage), ("foreign", foreign)):
        for line in lines[:_LISTED]:
            print(f"{title:11} {line}")
        if len(lines) > _LISTED:
            print(f"{title:11} and {len(lines) - _LISTED} more")
    if damage:
        print("to mend     `celedger doctor --restore`")
        return Status.FAILED
    sentence = "no celedger wrote these rows" if foreign else "every row is as celedger wrote it"
    print(f"            {sentence}")
    return Status.BAD if foreign else Status.GOOD


def _archived(archive: Archive) -> Status:
    """Print what the archive holds, and whether all of it can be read."""
    if not archive.size:
        return Status.GOOD
    unreadable: list[None] = []
    trials = sum("trials" in d for d in archive.documents(lambda: unreadable.append(None)))
    print(f"archive     {archive.folder}: {trials} trials, {size(archive.size)}")
    if unreadable:
        print("damaged     the archive; `celedger doctor --restore` writes it anew")
    return Status.FAILED if unreadable else Status.GOOD


def _prune(parts: Sequence[Part]) -> None:
    """Remove what can be made again and is not in use, and print what that freed."""
    from celedger.service import keeping

    freed = 0
    for part in parts:
        number, bytes_freed = keeping.prune(part)
        freed += bytes_freed
        if number:
            print(f"removed     {number} of {len(part.items)} {part.name}, {size(bytes_freed)}")
        if number < len(part.spare):
            left = len(part.spare) - number
            print(f"not removed {left} {part.name}: read-only, or in use now")
    print(f"freed       {size(freed)}")
