"""`celedger init`: set up a repository."""

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
    """Set up this repository with a first suite to edit.

    Writes a configuration and the suite. Overwrites nothing.
    """
    from celedger import config
    from celedger.errors import UsageError
    from celedger.service import allow
    from celedger.suite import scaffold, suites_in
    from celedger.system import umask
    from celedger.system.gate import Gate

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
        with umask.users():
            path.write_text(_CONFIGURATION.format(suite=suite))
        written.append(path)
    else:
        print(f"kept     {configured}")
    folder = settings.suites / suite
    if suite in there:
        print(f"kept     {folder}")
    else:
        with umask.users():
            written += scaffold(folder, suite)
    for path in written:
        print(f"written  {path}")
    keep_out_of_git(repository, settings.ledger)
    _, settings = find(options)
    gate = Gate.of(repository, attended=True)
    asked = allow.asked(repository, settings, suite)
    gate.review([asked.settings] if configured is None else [])
    gate.review(asked.starts if suite not in there else [], texts=asked.texts)
    print(f"ledger   {settings.ledger} (kept out of git by .git/info/exclude)")
    run = options.retyped("`celedger run HEAD`")
    print(f"\nNext: edit {folder / 'suite.toml'}, then type {run}.")
    if configured and settings.suite not in (None, suite):
        note(f"celedger: the configured suite is {settings.suite!r}; use --suite {suite}")
    print(options.retyped("To train after every merge by itself: `celedger hook install`."))
    return Status.GOOD
