"""`celedger allow`: let the worker start what is here."""

from __future__ import annotations

from typing import Annotated

import typer

from celedger.cli.session import Options, find, warn
from celedger.errors import Status


def allow(
    context: typer.Context,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what is new, and allow nothing.")
    ] = False,
) -> int:
    """Let the worker start what is here, and show what is new since this was last typed.

    After a merge the worker runs only what was allowed on this machine: the suite's commands,
    scripts and limits, and the settings. The rest waits, and goes on by itself once allowed.
    What you run yourself is allowed by that.
    """
    from celedger.service import allow as service
    from celedger.system.gate import Gate
    from celedger.views.allow import changes_text

    command: Options = context.obj
    repository, settings = find(command)
    gate = Gate.of(repository, attended=True)
    asked = service.asked(repository, settings, gate)
    new = gate.missing([asked.settings, *asked.starts, *gate.asked()])
    if new:
        print(changes_text(repository, gate, new, asked.texts))
    elif asked.problem is None:
        warn("nothing is new since it was last allowed")
    if not dry_run:
        gate.review(new, texts=asked.texts)
        if service.wake(repository, settings, gate):
            warn(command.retyped("what waited goes on; see `celedger queue`"))
    if asked.problem is not None:
        raise asked.problem
    return Status.GOOD
