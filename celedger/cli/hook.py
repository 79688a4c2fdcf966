"""`celedger hook install | uninstall | status`."""

from __future__ import annotations

import sys

import typer

from celedger.cli.session import Options, find, keep_out_of_git, note, tell_if_gone, warn
from celedger.errors import Status

app = typer.Typer(
    no_args_is_help=True,
    help="Train after every merge: install, remove, show the hooks.",
)


@app.command()
def install(context: typer.Context) -> int:
    """Install the post-merge and post-rewrite hooks. A hook that is there runs first.

    The first time, the suite and settings that are here are allowed by that: see `celedger allow`.
    """
    from celedger.service import allow, hooks
    from celedger.system.gate import Gate

    options: Options = context.obj
    repository, settings = find(options)
    tell_if_gone(options, repository, settings)
    done = hooks.install(repository, sys.executable)
    keep_out_of_git(repository, settings.ledger)
    gate = Gate.of(repository, attended=True)
    asked = allow.asked(repository, settings, gate)
    if gate.empty:
        gate.review([asked.settings, *asked.starts], texts=asked.texts)
    if asked.problem is not None:
        note(f"celedger: no suite is allowed yet: {asked.problem}")
    elif gate.missing([asked.settings, *asked.starts]):
        warn(options.retyped(f"the suite or the settings are new since allowed: {gate.hint}"))
    if isinstance(done, hooks.Elsewhere):
        print(f"core.hooksPath is {done.configured}: celedger does not write there.")
        print("Add this line to each of these executable sh scripts there:")
        for name, line in done.lines:
            print(f"\n{done.configured / name}:\n    {line}")
        return Status.GOOD
    for hook in done:
        print(f"{hook.path}: {hook.state}" + (", the earlier hook runs first" * hook.chains))
    note(options.retyped("celedger: after the next merge, see `celedger queue` and `celedger log`"))
    return Status.GOOD


@app.command()
def uninstall(context: typer.Context) -> int:
    """Remove the hooks and put back those they replaced."""
    from celedger.service import hooks

    repository, settings = find(context.obj)
    tell_if_gone(context.obj, repository, settings)
    touched = hooks.uninstall(repository)
    for path in touched:
        print(f"{path}: " + ("the earlier hook is back" if path.is_file() else "removed"))
    if not touched:
        note("celedger: no hook of celedger's is installed")
    return Status.GOOD


@app.command()
def status(context: typer.Context) -> int:
    """Say which hooks are installed, and what waits to be allowed."""
    from celedger.service import allow, hooks

    repository, settings = find(context.obj)
    tell_if_gone(context.obj, repository, settings)
    configured = hooks.elsewhere(repository)
    if configured is not None:
        print(f"core.hooksPath is {configured}: git reads hooks there only")
    for hook in hooks.status(repository, sys.executable):
        print(f"{hook.path}: {hook.state}" + (", the earlier hook runs first" * hook.chains))
    for line in allow.waiting(repository, settings):
        print(context.obj.retyped(line))
    return Status.GOOD
