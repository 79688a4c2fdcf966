"""`celedger init`: set up a repository."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celedger.base.errors import Status
from celedger.cli.session import Options, find, keep_out_of_git, note, warn

if TYPE_CHECKING:
    from celedger.repo import Repository

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

    Looks for a script that trains something, or else for tests of pytest-benchmark, and writes a
    configuration and a suite that runs it small, in the virtual environment of the repository
    (.venv, venv), or else the active one. Says which packages are missing there. Overwrites
    nothing: type it again to check a suite that you edited.
    """
    from celedger.base import config, files
    from celedger.base.errors import UsageError, explained
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
    if suite not in existing:
        here = options.repository.resolve()  # of many projects, the one that is meant
        inside = [name for name in names if here in (root / name).parents]
        proposal = propose(root, inside) or propose(root, names)
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
            f"trains   {proposal.script}: {proposal.trains_by}; "
            f"watched: {', '.join(watched) or 'duration and memory'}"
        )
        if not proposal.metrics:
            warn(f"no loss was recognised in what {script} prints or logs: `pattern` in suite.toml")
    elif suite not in existing:
        warn(
            f"no script here looks like a training: {folder / 'first.py'} is an example, which "
            "reads nothing of this repository (docs/suites.md says how to write a task)"
        )
    plugins = ["pytest_benchmark"] if proposal is not None and proposal.benchmarks else []
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
    from celedger.base.errors import CeledgerError
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
