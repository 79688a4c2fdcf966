"""`celedger doctor`: say how a repository and its ledger stand, mend the ledger, and tidy up."""

from __future__ import annotations

import re
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celedger.base.errors import CeledgerError, Status, explained
from celedger.cli.session import Options, archive_of, reading, settled
from celedger.views.document import count, measure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celedger.base.config import Config
    from celedger.ledger.archive import Archive
    from celedger.repo import Repository
    from celedger.service.kept_files import Item

_LISTED = 20  # damaged facts


def doctor(
    context: typer.Context,
    restore: Annotated[
        bool,
        typer.Option("--restore", help="Rebuild a missing or damaged ledger."),
    ] = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Remove unused files that can be made again."),
    ] = False,
) -> int:
    """Check the installation and the ledger.

    Prints versions, device, settings, hooks and disk use, and checks every row of the ledger.
    --restore rebuilds a missing or damaged ledger from its archive in .git/celedger, and keeps the
    damaged file. Exits 0 if no data was lost.
    --prune removes unused builds, virtual environments, checkouts and copies of suites;
    they can be made again. Logs and output folders are evidence and are kept.
    """
    import platform

    from celedger.base import VERSION, files
    from celedger.repo import Repository
    from celedger.service import hooks, kept_files

    print(f"celedger {VERSION}, Python {platform.python_version()}, {platform.platform()}")
    repository = Repository.open(context.obj.repository)
    settings, _ = context.with_resource(settled(repository, context.obj))
    archive = archive_of(repository, settings)
    worst = _surroundings(repository, settings)
    if restore:
        # What is asked for is the restore: its status alone counts.
        worst = _restore(settings.ledger, archive)
    status, running = _examine(context.obj, settings.ledger, archive)
    worst = max(worst, status, _archived(archive))
    for hook in hooks.status(repository, sys.executable):
        print(context.obj.retyped(f"hook        {hook.name}: {hook.state}"))
    private, folder = files.beside(settings.ledger), repository.state_dir
    with explained(f"cannot list what celedger keeps in {folder} and {private}"):
        parts = kept_files.survey(repository, private, now=time.time(), busy=running > 0)
    print(context.obj.retyped(_kept(parts, prune)))
    return worst


def _surroundings(repository: Repository, settings: Config) -> Status:
    """Print what celedger would train here, with what and on what."""
    from celedger.base import config
    from celedger.system import devices, sandbox
    from celedger.trial.workplace import interpreters_of, suite_of

    print(f"repository  {repository.root}")
    print(f"settings    {config.source(repository.worktree, repository.root) or 'defaults'}")
    try:
        device = devices.resolve(settings.device)
        print(f"device      {device.key}{f', {device.gpu.name}' if device.gpu else ''}")
        version = sandbox.version()
        state = "available" if version >= sandbox.NEEDED else "not available"
        print(f"sandbox     {state} (Landlock, version {version})")
        print(f"recorder    {_recorder()}")
        suite = suite_of(repository, settings)
        print(f"suite       {suite.name}: {', '.join(t.name for t in suite.tasks)}")
        for path in dict.fromkeys(interpreters_of(repository, suite.tasks).values()):
            print(f"python      {path}")
    except CeledgerError as error:
        print(f"problem     {error}")
        return error.status
    return Status.GOOD


def _recorder() -> str:
    """Tell whether the recorder knows every system call of this kernel."""
    import os

    from celedger.system import path_recorder

    if sys.platform != "linux" or os.uname().machine not in path_recorder.ARCHITECTURES:
        return "none on this system: no result is re-used for another tree"
    kernel = path_recorder.KERNEL
    release = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
    state = f"knows the system calls of Linux {kernel[0]}.{kernel[1]}"
    if release <= kernel:
        return state
    newer = f"this kernel is {release[0]}.{release[1]}"
    return f"{state}; {newer}: the result of a trial that makes a newer call is not re-used"


def _restore(path: Path, archive: Archive) -> Status:
    from celedger.base.errors import UsageError
    from celedger.ledger import opening
    from celedger.ledger.archive import restore

    opening.refuse_planted(path)
    if not path.exists() and not archive.size:
        raise UsageError(f"there is nothing to restore {path} from", "make one: `celedger run`")
    whole = _is_whole(path, archive)
    done = restore(path, archive)
    print(f"restored    {count(done.trials, 'trial')} of {path}")
    if done.aside is not None:
        print(f"kept        {done.aside}: the damaged ledger")
    if done.lost and whole:
        print(f"renewed     {archive.folder}: {count(len(done.lost), 'fact')} of it was damaged")
    else:
        _listed("lost", done.lost)
    return Status.FAILED if done.lost and not whole else Status.GOOD


def _is_whole(path: Path, archive: Archive) -> bool:
    """Return True for a ledger that is sound and has every trial of its archive: what is damaged of
    the archive is in it."""
    from celedger.ledger import Ledger

    with suppress(CeledgerError), Ledger.open(path, readonly=True, archive=archive) as ledger:
        return not ledger.damage() and not ledger.lacks_trials()
    return False


def _examine(options: Options, path: Path, archive: Archive) -> tuple[Status, int]:
    """Check every row of the ledger. Return the status and how many trials run, as far as it can
    be read."""
    from celedger.base.errors import LedgerDamaged, LedgerGone
    from celedger.ledger.archive import damage_of

    try:
        with reading(options) as session:
            trials = session.ledger.trials()
            running = sum(record.outcome is None for record in trials)
            print(f"ledger      {path}: {count(len(trials), 'trial')}, {running} running")
            if (more := archive.trials() - len(trials)) > 0:
                text = f"            its archive has {more} more: `celedger doctor --restore`"
                print(options.retyped(text))
            return _damage(session.ledger.damage()), running
    except CeledgerError as error:
        print(options.retyped(f"ledger      {error}"))
        lost = isinstance(error, (LedgerDamaged, LedgerGone))
        if isinstance(error, LedgerDamaged):
            _damage(damage_of(path))
        return error.status if lost else Status.GOOD, 0


def _damage(damage: list[str]) -> Status:
    """Print what is wrong with the rows."""
    _listed("damaged", damage)
    if damage:
        print("to mend     `celedger doctor --restore`")
        return Status.FAILED
    print("            every row is as celedger wrote it")
    return Status.GOOD


def _listed(title: str, names: Sequence[str]) -> None:
    for name in names[:_LISTED]:
        print(f"{title:<12}{name}")
    if len(names) > _LISTED:
        print(f"{title:<12}and {len(names) - _LISTED} more")


def _archived(archive: Archive) -> Status:
    """Print what the archive holds and what of it is damaged."""
    from celedger.ledger.archive import damage_of

    if not archive.size:
        return Status.GOOD
    print(
        f"archive     {archive.folder}: {count(archive.trials(), 'trial')}, {_size(archive.size)}"
    )
    damage = damage_of(archive.path)
    return _damage(damage) if damage else Status.GOOD


def _kept(parts: Mapping[str, Sequence[Item]], prune: bool) -> str:
    """Print what can be made again, remove what of it is not in use if asked, and sum it up."""
    from celedger.service import kept_files

    freed = 0
    for name, items in parts.items():
        print(f"kept        {name}: {len(items)}, {_size(sum(item.size for item in items))}")
        if prune and (gone := kept_files.prune(items)):
            freed += sum(item.size for item in gone)
            print(f"removed     {len(gone)} of {len(items)} {name}")
    if prune:
        return f"freed       {_size(freed)}"
    spare = sum(item.size for items in parts.values() for item in items if not item.stays)
    return f"to free     {_size(spare)} by `celedger doctor --prune`"


def _size(n: int) -> str:
    return measure(n, unit="B", significant=3)
