"""`celedger hook install | uninstall | status`."""

from __future__ import annotations

import sys

import typer

from celedger.cli.session import Options, find, keep_out_of_git, note
from celedger.errors import Status

app = typer.Typer(
    no_args_is_help=True,
    help="Train after every merge: install, remove, show the hooks.",
)


@app.command()
def install(context: typer.Context) -> int:
    """Install the post-merge and post-rewrite hooks. A hook that is there runs first."""
    from celedger.service import hooks

    options: Options = context.obj
    repository, settings = find(options)
    done = hooks.install(repository, sys.executable)
    keep_out_of_git(repository, settings.ledger)
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

    repository, _ = find(context.obj)
    touched = hooks.uninstall(repository)
    for path in touched:
        print(f"{path}: " + ("the earlier hook is back" if path.is_file() else "removed"))
    if not touched:
        note("celedger: no hook of celedger's is installed")
    return Status.GOOD


@app.command()
def status(context: typer.Context) -> int:
    """Say which hooks are installed."""
    from celedger.service import hooks

    repository, _ = find(context.obj)
    configured = hooks.elsewhere(repository)
    if configured is not None:
        print(f"core.hooksPath is {configured}: git reads hooks there only")
    for hook in hooks.status(repository, sys.executable):
        print(f"{hook.path}: {hook.state}" + (", the earlier hook runs first" * hook.chains))
    return Status.GOOD
