"""`celedger report`: one page of all that the ledger knows, to open in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celedger.base.errors import MachineError, Status
from celedger.cli import options
from celedger.cli.reading import measured, true_axis
from celedger.cli.session import Session, note, reading, replacing

if TYPE_CHECKING:
    from celedger.base.model import Commit
    from celedger.views.report.series import Scope

_POLL = 1.0  # seconds between two looks at the ledger with --watch


def report(
    context: typer.Context,
    revision: options.History = "HEAD",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE.html",
            help="The file to write [default: .celedger/report.html beside the ledger].",
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Write it anew after each trial, until Ctrl-C.")
    ] = False,
) -> int:
    """Write one page of what got worse, for a browser.

    What needs attention comes first: with the first bad commit, or the range and the bisect to
    type. Below it are every task and metric, its history, the epochs of each commit, and the
    bisects. The page needs no server and no network.
    """
    import time

    with reading(context.obj) as session:
        path = output or session.ledger.folder / ".celedger" / "report.html"
        seen = session.ledger.facts()
        print(write_page(session, revision, path), flush=True)
        try:
            while watch:
                time.sleep(_POLL)
                if (facts := session.ledger.facts()) != seen:
                    seen = facts
                    note(f"written anew: {write_page(session, revision, path)}")
        except KeyboardInterrupt:
            pass
    return Status.GOOD


def write_page(session: Session, revision: str, path: Path) -> Path:
    """Write the page of a history, whole or not at all. Raises CeledgerError."""
    from celedger.judge.drift.level_changes import segment_cache
    from celedger.views.report.page import build

    scope = _scope(session, revision)
    with segment_cache(session.repository.state_dir / "drift") as cache:
        html = build(session.ledger, scope, cache, session.ledger.findings())
    _replace(path, html)
    return path


def _scope(session: Session, revision: str) -> Scope:
    """Return what the page is of: the main line of a history or range, from its first measured
    commit on."""
    import time

    from celedger.views.report.series import Scope

    repository, aside = session.repository, 0
    commits: list[Commit] = []
    whole, axis = commits, commits
    trained = set(session.ledger.commits_with_trials())
    if trained:  # else the page says what to type first
        commits, whole = measured(session, revision)
        aside = sum(c.sha in trained for c in whole) - len(commits)
        axis = true_axis(commits, whole)
    return Scope(
        repository.root.name, revision, axis, commits, whole, repository.tags(),
        repository.remote_url(), aside, time.time(),
    )  # fmt: skip


def _replace(path: Path, html: str) -> None:
    from celedger.base import umask

    try:
        with umask.users():
            path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(html)
    except OSError as error:
        problem = f"cannot write {path}: {error.strerror or error}"
        raise MachineError(problem, "name a file that can be written") from error
