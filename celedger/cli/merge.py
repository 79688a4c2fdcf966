"""`celedger merge`: take in what another ledger holds. `celedger import`: what another program
recorded."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celedger.base.errors import Status, UnknownRevision, UsageError, command
from celedger.cli import options
from celedger.cli.session import writing
from celedger.service.measure import Session, record_state

if TYPE_CHECKING:
    from celedger.base.model import Commit
    from celedger.ledger import Ledger
    from celedger.repo import Repository
    from celedger.service.imports import Run

_DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be added; change nothing.")
]


def merge(
    context: typer.Context,
    other: Annotated[Path, typer.Argument(metavar="FILE", help="Another ledger.")],
    dry_run: _DryRun = False,
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
    from celedger.ledger import Ledger

    if not other.is_file():
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
                record_state(session, "merge")
    _show_added(other, added, dry_run, json)
    return Status.GOOD


def import_(
    context: typer.Context,
    form: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT",
            help="jsonl, csv, tensorboard, mlflow, wandb, trackio, pytest-benchmark, hyperfine, "
            "asv or google-benchmark.",
        ),
    ],
    source: Annotated[Path, typer.Argument(metavar="PATH", help="A file, or a folder of runs.")],
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT=COLUMN",
            help="For jsonl and csv: the column that holds commit, task, seed, epoch or time, if "
            "it has another name; may be repeated.",
        ),
    ] = None,
    commit_from: Annotated[
        str | None,
        typer.Option(
            metavar="REV|date",
            help="The commit of runs that name none; `date`: HEAD's newest when each started.",
        ),
    ] = None,
    lower: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC", help="Lower is better for this metric; may be repeated."),
    ] = None,
    higher: Annotated[
        list[str] | None,
        typer.Option(metavar="METRIC", help="Higher is better for this metric; may be repeated."),
    ] = None,
    dry_run: _DryRun = False,
    json: options.Json = False,
) -> int:
    """Add runs that another program recorded, each at its commit.

    They are tasks of the suite `imported`, in an environment of their own, "imported from FORMAT":
    nothing that celedger measured is compared with them. Importing twice adds nothing. A run whose
    commit is not known is refused, unless --commit-from names it. Metrics without --lower or
    --higher are shown and not judged, except the times of benchmarks.
    """
    import tempfile

    from celedger.base.config import closest
    from celedger.base.model import Direction
    from celedger.ledger import Ledger
    from celedger.service import imports

    if form not in imports.READERS:
        raise UsageError(f"there is no format {form!r}", closest(form, [*imports.READERS]))
    columns = {what: what for what in imports.COLUMNS}
    for words in column or ():
        what, _, name = words.partition("=")
        if what not in columns or not name:
            raise UsageError(
                f"--column {words!r} is not WHAT=COLUMN", f"WHAT is {', '.join(imports.COLUMNS)}"
            )
        columns[what] = name
    directions = dict.fromkeys(lower or (), Direction.LOWER)
    directions |= dict.fromkeys(higher or (), Direction.HIGHER)
    runs = imports.read(source, form, columns)
    names = {name for run in runs for values in run.epochs.values() for name in values}
    for name in directions.keys() - names:
        raise UsageError(f"no run has a metric {name!r}", closest(name, [*names]))
    with writing(context.obj) as session, tempfile.TemporaryDirectory() as folder:
        placed = [(run, _commit_of(run, session.repository, commit_from)) for run in runs]
        draft = Path(folder, "imported.db")
        imports.write(placed, form, directions, draft)
        with Ledger.from_elsewhere(draft) as ledger:
            added = session.ledger.merge(ledger, dry_run=dry_run)
        if not dry_run:
            record_state(session, "import")
    _show_added(source, added, dry_run, json)
    return Status.GOOD


def _show_added(source: Path, added: Mapping[str, int], dry_run: bool, json: bool) -> None:
    """Show the number of new rows of each table."""
    from celedger.views.document import Listing, count

    parts = [count(n, name[:-1].replace("_", " ")) for name, n in added.items() if n]
    text = f"{'would add' if dry_run else 'added'} {', '.join(parts)} from {source}"
    if not parts:
        text = f"{source} has nothing that this ledger lacks"
    fields = {"other": source, "dry_run": dry_run, "added": added}
    options.answer(Listing(fields, lambda _: text), json)


def _commit_of(run: Run, repository: Repository, commit_from: str | None) -> Commit:
    """Return the commit of an imported run. Raises UsageError where it cannot be known."""
    if run.commit:
        try:
            return repository.resolve(run.commit)
        except UnknownRevision as error:
            cause = f"{run.at} names commit {run.commit[:40]}, which is not in this repository"
            raise UsageError(cause, "fetch it first, or leave the run out") from error
    if commit_from is None:
        raise UsageError(f"{run.at} names no commit", "--commit-from REV, or --commit-from date")
    if commit_from != "date":
        return repository.resolve(commit_from)
    line = repository.commits_before(run.started) if run.started else []
    if not line:
        raise UsageError(f"{run.at} started before the first commit", "--commit-from REV")
    return line[0]


def _related(source: Ledger, session: Session) -> bool:
    """Return True if a ledger has a commit of the repository or of its ledger, or none at all."""
    shas = {commit.sha for commit in source.commits()}
    own_shas = {commit.sha for commit in session.ledger.commits()}
    return not shas or not own_shas.isdisjoint(shas) or session.repository.has_any(shas)
