"""`celedger merge`: take in what another ledger holds."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celedger.base.errors import Status, UnknownRevision, UsageError, command
from celedger.cli import options
from celedger.cli.session import Session, record_state, writing

if TYPE_CHECKING:
    from celedger.ledger import Ledger


def merge(
    context: typer.Context,
    other: Annotated[Path, typer.Argument(metavar="FILE", help="Another ledger.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be added; change nothing.")
    ] = False,
    unrelated: Annotated[
        bool,
        typer.Option("--unrelated", help="Also if it has no commit of this repository."),
    ] = False,
    json: options.Json = False,
) -> int:
    """Add the trials and other facts of another ledger to this one.

    The other ledger may be a colleague's, CI's, or another machine's. Merging twice adds nothing. A
    running trial comes with its epochs so far; merge again for its end. Logs and output folders are
    files and are not copied. A ledger is refused if it has a row that celedger never writes, or no
    commit of this repository.
    """
    from celedger.judge import memory
    from celedger.ledger import Ledger
    from celedger.views.merge import Merged

    if not other.exists():
        raise UsageError(f"there is no file {other}", "name another ledger")
    with Ledger.from_elsewhere(other) as source, writing(context.obj) as session:
        if other.samefile(session.ledger.path):
            raise UsageError(f"{other} is this ledger itself", "name another one")
        if not unrelated and not _related(source, session):
            raise UsageError(
                f"{other} has no commit of this repository",
                f"is it another repository's? {command('merge', str(other))} "
                "takes it with --unrelated",
            )
        added = session.ledger.merge(source, dry_run=dry_run)
        with suppress(UnknownRevision):  # of a repository without a commit
            if not dry_run:
                record_state(session, memory.tip_of(session.repository), "merge")
    options.answer(Merged(other, added, dry_run), json)
    return Status.GOOD


def _related(source: Ledger, session: Session) -> bool:
    """Return True if a ledger has a commit of the repository or of its ledger, or none at all."""
    shas = {commit.sha for commit in source.commits()}
    own_shas = {commit.sha for commit in session.ledger.commits()}
    return not shas or not own_shas.isdisjoint(shas) or session.repository.has_any(shas)
