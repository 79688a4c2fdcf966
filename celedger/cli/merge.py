"""`celedger merge`: take in what another ledger holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from celedger.base.errors import Status, UsageError
from celedger.cli import options
from celedger.cli.session import writing


def merge(
    context: typer.Context,
    other: Annotated[Path, typer.Argument(metavar="FILE", help="Another ledger.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would come, and change nothing.")
    ] = False,
    json: options.Json = False,
) -> int:
    """Add what another ledger holds to this one.

    It may be a colleague's, CI's, or another machine's. Trials keep their identity, so that
    merging twice adds nothing. Verdicts count by when they were made. A trial that has not ended
    comes with the epochs that it has; merge again for its end. Logs and output folders, which are
    files, stay out.
    """
    from celedger.ledger import Ledger
    from celedger.views.merge import Merged

    if not other.exists():
        raise UsageError(f"there is no file {other}", "name another ledger")
    with Ledger.open(other, readonly=True) as source, writing(context.obj) as session:
        if other.samefile(session.ledger.path):
            raise UsageError(f"{other} is this ledger itself", "name another one")
        added = session.ledger.merge(source, dry_run=dry_run)
    options.answer(Merged(other, added, dry_run), json)
    return Status.GOOD
