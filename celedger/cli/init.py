"""`celedger init` and `celedger doctor`: set up a repository, and say how it stands."""

from __future__ import annotations

from typing import Annotated

import typer

from celedger.cli.session import Options, find, keep_out_of_git, note
from celedger.errors import Status

_CONFIGURATION = """\
# celedger's configuration; `celedger --help` names the verbs. All paths are relative to here.
suite = "{suite}"             # what `celedger run` trains
# ledger = "ledger.db"        # the SQLite file that keeps every trial
# device = "auto"             # auto, cpu or cuda:N
# bisect_on_regression = true # after a merge that made something worse, find the commit
"""


def init(
    context: typer.Context,
    suite: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The suite [default: the one that is there, or first]."),
    ] = None,
) -> int:
    """Set up this repository: a configuration and a first suite to edit. Overwrites nothing."""
    from celedger import config
    from celedger.errors import UsageError
    from celedger.suite import scaffold, suites_in

    options: Options = context.obj
    repository, settings = find(options)
    there = suites_in(settings.suites)
    if suite is None:
        suite = settings.suite or (there[0] if len(there) == 1 else "first")
    if not all(c.isalnum() or c in "_.-" for c in suite) or suite.strip(".") == "":
        raise UsageError(f"{suite!r} cannot name a suite", "use letters, digits, _ . and -")
    root = repository.worktree
    written = []
    configured = config.source(root, repository.root)
    if configured is None:
        path = root / "celedger.toml"
        path.write_text(_CONFIGURATION.format(suite=suite))
        written.append(path)
    else:
        print(f"kept     {configured}")
    folder = settings.suites / suite
    if suite in there:
        print(f"kept     {folder}")
    else:
        written += scaffold(folder, suite)
    for path in written:
        print(f"written  {path}")
    keep_out_of_git(repository, settings.ledger)
    print(f"ledger   {settings.ledger} (kept out of git by .git/info/exclude)")
    print(f"\nNext: edit {folder / 'suite.toml'}, then type `celedger run HEAD`.")
    if configured and settings.suite not in (None, suite):
        note(f"celedger: the configured suite is {settings.suite!r}; use --suite {suite}")
    print("To train after every merge by itself: `celedger hook install`.")
    return Status.GOOD


def doctor(context: typer.Context) -> int:
    """Say what celedger sees here: versions, device, ledger, hooks. For bug reports."""
    import os
    import platform
    import sys

    from celedger import __version__, config
    from celedger import suite as suites
    from celedger.cli.session import reading
    from celedger.errors import CeledgerError
    from celedger.service import hooks
    from celedger.system import environment, gpu

    print(f"celedger {__version__}, Python {platform.python_version()}, {platform.platform()}")
    repository, settings = find(context.obj)
    print(f"repository  {repository.root}")
    print(f"settings    {config.source(repository.worktree, repository.root) or 'defaults'}")
    worst = Status.GOOD
    try:
        device = gpu.resolve(settings.device)
        print(f"device      {device.key}")
        suite = suites.load(suites.find(None, settings, repository.root))
        print(f"suite       {suite.name}: {', '.join(t.name for t in suite.tasks)}")
        for python in sorted({task.python for task in suite.tasks}):
            path = environment.resolve_interpreter(python, os.environ.get("PATH", ""))
            found = environment.describe(path, device=device, threads=1, repo_root=repository.root)
            print(f"python      {path}, environment {found.fingerprint[:12]}")
    except CeledgerError as error:
        print(f"problem     {error}")
        worst = error.status
    try:
        with reading(context.obj) as session:
            trials = session.ledger.trials()
            running = [r for r in trials if r.outcome is None]
            print(f"ledger      {settings.ledger}: {len(trials)} trials, {len(running)} running")
    except CeledgerError as error:
        print(f"ledger      {error}")
    for hook in hooks.status(repository, sys.executable):
        print(f"hook        {hook.name}: {hook.state}")
    return worst
