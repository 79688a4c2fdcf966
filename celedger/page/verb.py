"""`celedger report`: one page of all that the ledger knows, to open in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from celedger.base.errors import MachineError, Status
from celedger.cli import options
from celedger.cli.reading import line_with_trials
from celedger.cli.session import Session, note, reading, replacing

_POLL = 1.0  # seconds between two looks at the ledger with --watch


def report(
    context: typer.Context,
    revision: options.History = "HEAD",
    every: Annotated[
        bool, typer.Option("--all", help="Include commits of merged branches.")
    ] = False,
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
        bool, typer.Option("--watch", help="Update it after each trial, until Ctrl-C.")
    ] = False,
) -> int:
    """Write one page of what got worse, for a browser.

    What needs attention comes first: with the first bad commit, or the range and the bisect to
    type. Below it are every task and metric, its history, the epochs of each commit, and the
    bisects. The page needs no server and no network.
    """
    import time

    with reading(context.obj) as session:
        path = output or session.ledger.private / "report.html"
        last_facts = session.ledger.facts()
        print(write_page(session, revision, path, every=every), flush=True)
        try:
            while watch:
                time.sleep(_POLL)
                if (facts := session.ledger.facts()) != last_facts:
                    last_facts = facts
                    note(f"written anew: {write_page(session, revision, path, every=every)}")
        except KeyboardInterrupt:
            pass
    return Status.GOOD


def write_page(session: Session, revision: str, path: Path, *, every: bool = False) -> Path:
    """Write the page of a history, whole or not at all. Raises CeledgerError."""
    import time

    from celedger.judge.state import state_of
    from celedger.page.page import build
    from celedger.page.series import Scope
    from celedger.views.drift import within

    repository, ledger = session.repository, session.ledger
    derivation, axis = line_with_trials(session, revision, every=every)
    measured = {sha for sha in ledger.commits_with_trials() if sha in derivation.line.places}
    newest = max(measured, key=derivation.place, default=None)
    state = state_of(derivation, newest)  # of a tip that nobody measured nothing could be told
    if ".." in revision:
        state = within(state, [commit.sha for commit in axis])
    scope = Scope(
        repository.root.name, revision, axis, repository.tags(), repository.remote_url(),
        time.time(),
    )  # fmt: skip
    _replace(path, build(derivation, state, scope, ledger.findings()))
    return path


def _replace(path: Path, html: str) -> None:
    from celedger.base import files

    try:
        with files.as_the_user():
            path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(html)
    except OSError as error:
        problem = f"cannot write {path}: {error.strerror or error}"
        raise MachineError(problem, "name a file that can be written") from error
