"""`celedger init`: set up a repository. `celedger doctor`: say how it and its ledger stand, mend
the ledger, and tidy up."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celedger.base.errors import CeledgerError, Status, explained
from celedger.cli.session import (
    Options,
    archive_of,
    find,
    keep_out_of_git,
    note,
    reading,
    settled,
    warn,
)
from celedger.views.document import count, measure

if TYPE_CHECKING:
    from celedger.base.config import Config
    from celedger.ledger.archive import Archive
    from celedger.repo import Repository
    from celedger.system.cache import Item


_CONFIGURATION = """\
# celedger's configuration; `celedger --help` names the verbs. All paths are relative to here.
suite = "{suite}"             # what `celedger run` trains
# ledger = "ledger.db"        # the SQLite file that keeps every trial
# device = "auto"             # auto, cpu or cuda:N
bisect_on_regression = true   # after a merge that made something worse, find the commit
bisect_budget = 50            # with at most so many trials a job
"""


def init(
    context: typer.Context,
    suite: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The suite [default: the existing one, or first]."),
    ] = None,
) -> int:
    """Set up this repository with a first suite to edit.

    Looks for a training script or notebook, or else for pytest-benchmark tests, a script that
    prints a metric, an example, or tests. Writes a configuration and a suite that runs it for a few
    steps, in the repository's virtual environment (.venv, venv) or else the active one. Lists
    packages that are missing there. Overwrites nothing: type it again to check a suite that you
    edited.
    """
    from celedger.base import config, files
    from celedger.base.errors import UsageError
    from celedger.service import allow
    from celedger.suite import suites_in
    from celedger.suite.loading import NAME
    from celedger.suite.propose import propose, scaffold
    from celedger.system import environment
    from celedger.trial.permissions import Gate

    options: Options = context.obj
    repository, settings = find(options)
    existing = suites_in(settings.suites)
    if suite is None:
        suite = settings.suite or (existing[0] if len(existing) == 1 else "first")
    if not NAME.fullmatch(suite) or suite.strip(".") == "":
        raise UsageError(f"{suite!r} cannot name a suite", "use ASCII letters, digits, _ . and -")
    root = repository.worktree
    names = repository.worktree_files() if suite not in existing else []
    written = []
    configured = config.source(root, repository.root)
    if configured is None:
        path = root / "celedger.toml"
        with explained(f"{path} cannot be written"), files.as_the_user():
            path.write_text(_CONFIGURATION.format(suite=suite))
        written.append(path)
    else:
        print(f"kept     {configured}")
    folder = settings.suites / suite
    proposal = None
    unable: dict[str, list[str]] = {}  # script -> modules that its Python lacks
    if suite not in existing:
        here = options.repository.resolve()  # of many projects, the one that is meant
        inside = [name for name in names if here in (root / name).parents]

        def can_import(script: str, modules: set[str]) -> bool:
            python = environment.interpreter_of(repository.root, os.environ, script)
            path = str(repository.root / python) if python else sys.executable
            unable[script] = environment.not_installed(path, modules)
            return not unable[script]

        proposal = propose(root, inside, can_import) or propose(root, names, can_import)
    script = proposal.script if proposal is not None else ""
    python = environment.interpreter_of(repository.root, os.environ, script)
    if suite in existing:
        print(f"kept     {folder}")
    else:
        with files.as_the_user():
            written += scaffold(folder, suite, python, proposal)
    for path in written:
        print(f"written  {path}")
    keep_out_of_git(repository, settings.ledger)
    _, settings = find(options)
    gate = Gate.of(repository, attended=True)
    requests = allow.asked(repository, settings, suite)
    gate.review([requests.settings] if configured is None else [])
    gate.review(requests.starts if suite not in existing else [], texts=requests.texts)
    print(f"ledger   {settings.ledger} (kept out of git by .git/info/exclude)")
    if proposal is not None:
        watched = [*proposal.metrics, *(_OF_STEPS * proposal.has_steps)]
        print(
            f"runs     {proposal.script}: {proposal.trains_by}; "
            f"watched: {', '.join(watched) or 'duration and memory'}"
        )
        for other, lacking in unable.items():
            if lacking and not unable.get(script):
                print(f"not      {other}: {', '.join(lacking)} not installed")
        if not proposal.metrics:
            warn(f"no loss was recognised in what {script} prints or logs: `pattern` in suite.toml")
    elif suite not in existing:
        warn(
            f"no script here looks like a training: {folder / 'first.py'} is an example, which "
            "reads nothing of this repository (docs/suites.md says how to write a task)"
        )
    plugins = ["pytest"] if proposal is not None and "-m pytest" in proposal.command else []
    _check_interpreters(repository, folder, python, [script] if script else [], plugins)
    run = options.retyped("`celedger run HEAD`")
    print(f"\nNext: edit {folder / 'suite.toml'}, then type {run}.")
    if configured and settings.suite not in (None, suite):
        note(f"celedger: the configured suite is {settings.suite!r}; use --suite {suite}")
    print(options.retyped("To train after every merge by itself: `celedger hook install`."))
    return Status.GOOD


_OF_STEPS = ("step_time", "step_cpu_time", "memory_growth")  # as templates/steps.toml has them


def _check_interpreters(
    repository: Repository,
    folder: Path,
    available: str,
    scripts: Sequence[str],
    plugins: Sequence[str],
) -> None:
    """Say which interpreters train the suite, and what they cannot import. `available` is the one
    that a suite which names none could have; `scripts` are run as modules, perhaps; no script
    imports the `plugins` that it needs."""
    from celedger import suite as suites
    from celedger.suite.propose import installed_imports
    from celedger.system import environment
    from celedger.trial.workplace import interpreters_of

    try:
        suite = suites.load(folder)
        tasks = [task for task in suite.tasks if not task.venv]  # those are made for each commit
        pythons = interpreters_of(repository, tasks)
        roots = {repository.worktree / root for task in tasks for root in (".", *task.pythonpath)}
        trained = {
            repository.worktree / word.removeprefix("{tree}/")
            for task in tasks for line in task.commands for word in line.template
            if word.startswith("{tree}/") and word.endswith(".py")
        }.union(repository.worktree / script for script in scripts)  # fmt: skip
        modules = [*installed_imports(folder, sorted(roots), sorted(trained)), *plugins]
        for python in dict.fromkeys(pythons.values()):
            if modules:
                note(f"importing {', '.join(modules)}")
            failed = environment.failed_imports(python, modules)
            works = [name for name in modules if name not in failed]
            print(f"python   {python}" + f" (imports {', '.join(works)})" * bool(works))
            for name, problem in failed.items():
                hint = f"install it there, or set `python =` in {folder / 'suite.toml'}"
                if available and all(task.python == "python" for task in tasks):
                    hint = f'set `python = "{available}"` in {folder / "suite.toml"}'
                warn(f"{python} cannot import {name}: {problem.splitlines()[0]} ({hint})")
    except CeledgerError as error:
        warn(str(error))


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
    damaged file. Exits 0 if the ledger is sound, or not made yet.
    --prune removes unused builds, virtual environments, checkouts and copies of suites;
    they can be made again. Logs and output folders are evidence and are kept.
    """
    import platform

    from celedger.base import VERSION, files
    from celedger.repo import Repository
    from celedger.service import hooks
    from celedger.system import cache

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
        parts = cache.survey(repository, private, now=time.time(), busy=running > 0)
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
        is_damaged = isinstance(error, LedgerDamaged)  # whose hint is this verb
        print(options.retyped(f"ledger      {error.cause if is_damaged else error}"))
        if is_damaged:
            _damage(damage_of(path))
        is_lost = os.path.lexists(path) or isinstance(error, LedgerGone)
        return error.status if is_lost else Status.GOOD, 0


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
    from celedger.system import cache

    freed = 0
    for name, items in parts.items():
        print(f"kept        {name}: {len(items)}, {_size(sum(item.size for item in items))}")
        if prune and (gone := cache.prune(items)):
            freed += sum(item.size for item in gone)
            print(f"removed     {len(gone)} of {len(items)} {name}")
    if prune:
        return f"freed       {_size(freed)}"
    spare = sum(item.size for items in parts.values() for item in items if not item.stays)
    return f"to free     {_size(spare)} by `celedger doctor --prune`"


def _size(n: int) -> str:
    return measure(n, unit="B", significant=3)
