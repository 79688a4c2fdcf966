"""`celedger doctor`: say how a repository and its ledger stand, mend the ledger, and tidy up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from celedger.cli.session import archive_of, note, refuse_tracked, settled
from celedger.errors import Status

if TYPE_CHECKING:
    from pathlib import Path

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
    import sys
    import time

    from celedger import __version__, config
    from celedger import suite as suites
    from celedger.cli.session import reading
    from celedger.errors import CeledgerError, LedgerDamaged, LedgerGone, UsageError
    from celedger.ledger import checking
    from celedger.repo import Repository
    from celedger.service import hooks, keeping
    from celedger.system import gpu
    from celedger.system.gate import Gate
    from celedger.trial.workplace import interpreters_of, starts_of
    from celedger.views.format import size as shown

    if older_than is not None and not prune:
        raise UsageError("--older-than says what --prune may remove", "add --prune")
    print(f"celedger {__version__}, Python {platform.python_version()}, {platform.platform()}")
    repository = Repository.open(context.obj.repository)
    settings, _ = context.with_resource(settled(repository, context.obj))
    print(f"repository  {repository.root}")
    print(f"settings    {config.source(repository.worktree, repository.root) or 'defaults'}")
    worst = Status.GOOD
    try:
        device = gpu.resolve(settings.device)
        print(f"device      {device.key}")
        print(f"sandbox     {_sandbox()}")
        suite = suites.load(suites.find(None, settings, repository.root))
        print(f"suite       {suite.name}: {', '.join(t.name for t in suite.tasks)}")
        starts = starts_of(repository, suite, Gate.of(repository, attended=False))
        interpreters = interpreters_of(repository, suite.tasks)
        for path, task in {interpreters[task.name]: task for task in suite.tasks}.items():
            print(f"python      {path}{_environment(repository, starts, task, path, device)}")
    except CeledgerError as error:
        print(f"problem     {error}")
        worst = error.status
    archive = archive_of(repository, settings)
    if restore:
        refuse_tracked(repository, settings.ledger)
        worst = max(worst, _restore(settings.ledger, archive))
    running: list[str] = []
    known = False
    try:
        with reading(context.obj) as session:
            trials = session.ledger.trials()
            running = [r.trial.ulid for r in trials if r.outcome is None]
            known = True
            print(f"ledger      {settings.ledger}: {len(trials)} trials, {len(running)} running")
            worst = max(worst, _say_wrong(*session.ledger.examine()))
    except CeledgerError as error:
        print(context.obj.retyped(f"ledger      {error}"))
        if isinstance(error, (LedgerDamaged, LedgerGone)):
            worst = error.status
        if isinstance(error, LedgerDamaged):
            _say_wrong(*checking.examine_file(settings.ledger))
    worst = max(worst, _check(archive))
    for hook in hooks.status(repository, sys.executable):
        print(f"hook        {hook.name}: {hook.state}")
    age = older_than * 86400.0 if older_than is not None and known else None
    if older_than is not None and not known:
        note("celedger: without a ledger no log is known to be old: logs are kept")
    parts = keeping.survey(
        repository, settings.ledger.parent, now=time.time(), running=running, older_than=age
    )
    for part in parts:
        print(f"kept        {_kept(part)}")
    if prune:
        freed = 0
        for part in parts:
            number, size = keeping.prune(part)
            freed += size
            if number:
                print(f"removed     {number} of {len(part.items)} {part.name}, {shown(size)}")
            if number < len(part.spare):
                print(
                    f"not removed {len(part.spare) - number} {part.name}: read-only, or in use now"
                )
        print(f"freed       {shown(freed)}")
    else:
        spare = sum(item.size for part in parts for item in part.spare)
        if spare:
            print(context.obj.retyped(f"to free     {shown(spare)} by `celedger doctor --prune`"))
    return worst


def _sandbox() -> str:
    from celedger.system import sandbox

    version = sandbox.version()
    if not version:
        return "not available: this kernel has no Landlock, or it is off"
    if version < sandbox.NEEDED:
        return f"not available: this kernel has Landlock of version {version}, too old"
    return f"available (Landlock, version {version})"


def _environment(
    repository: Repository, starts: Starts, task: Task, python: str, device: Device
) -> str:
    """What an interpreter says of itself. One that lies in the repository is not asked, nor one
    that nobody allowed: a merge may have named it."""
    import sys
    from pathlib import Path

    from celedger.system import environment
    from celedger.system.gate import NotAllowed

    if python != sys.executable and Path(python).is_relative_to(repository.root):
        return ", in the repository: not asked"
    try:
        found = environment.describe(
            python, device=device, threads=1, repo_root=repository.root,
            permit=starts.question(task, python),
        )  # fmt: skip
    except NotAllowed:
        return ", not allowed yet: not asked"
    return f", environment {found.fingerprint[:12]}"


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


def _say_wrong(damage: list[str], strange: list[str]) -> Status:
    """Say what is wrong with the ledger's rows."""
    for title, lines in (("damaged", damage), ("foreign", strange)):
        for line in lines[:_LISTED]:
            print(f"{title:11} {line}")
        if len(lines) > _LISTED:
            print(f"{title:11} and {len(lines) - _LISTED} more")
    if damage:
        print("to mend     `celedger doctor --restore`")
        return Status.FAILED
    sentence = "no celedger wrote these rows" if strange else "every row is as celedger wrote it"
    print(f"            {sentence}")
    return Status.BAD if strange else Status.GOOD


def _check(archive: Archive) -> Status:
    """Say what the archive holds, and whether all of it can be read."""
    from celedger.views.format import size as shown

    if not archive.size:
        return Status.GOOD
    unreadable: list[None] = []
    trials = sum("trials" in d for d in archive.documents(lambda: unreadable.append(None)))
    print(f"archive     {archive.folder}: {trials} trials, {shown(archive.size)}")
    if unreadable:
        print("damaged     the archive; `celedger doctor --restore` writes it anew")
    return Status.FAILED if unreadable else Status.GOOD


def _kept(part: Part) -> str:
    """`3 builds, 1.2 GB; 1 stays: in use`."""
    from celedger.views.format import size as shown

    reasons = list(dict.fromkeys(item.keep for item in part.items if item.keep))
    held = len(part.items) - len(part.spare)
    stays = f"; {held} stay{'s' * (held == 1)}: {', '.join(reasons)}" if held else ""
    return f"{len(part.items)} {part.name}, {shown(part.size)}{stays}"
