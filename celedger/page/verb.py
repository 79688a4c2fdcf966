"""`celedger report`: one page of all that the ledger knows, to open in a browser."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from celedger.base.errors import CeledgerError, MachineError, Status, command
from celedger.cli import options
from celedger.cli.session import reading
from celedger.service.measure import Session

if TYPE_CHECKING:
    from celedger.base.model import Commit
    from celedger.judge.derivation import Derivation


def report(
    context: typer.Context,
    revision: options.History = "HEAD",
    every: options.EveryCommit = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE.html",
            help="The file to write, - to print the page [default: .celedger/report.html beside"
            " the ledger].",
        ),
    ] = None,
) -> int:
    """Write one page of what got worse, for a browser.

    What needs attention comes first: with the first bad commit, or the range and the bisect to
    type. Below it are every task and metric, its history, and the epochs of each commit. The page
    needs no server and no network.
    """
    with reading(context.obj) as session:
        if output == Path("-"):
            print(_page(session, revision, every=every), end="")
        else:
            path = output or session.ledger.private / "report.html"
            print(write_page(session, revision, path, every=every))
    return Status.GOOD


def write_page(session: Session, revision: str, path: Path, *, every: bool = False) -> Path:
    """Write the page of a history, whole or not at all. Raises CeledgerError."""
    _replace(path, _page(session, revision, every=every))
    return path


def _page(session: Session, revision: str, *, every: bool) -> str:
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
    return build(derivation, state, scope, ledger.findings())


def line_with_trials(
    session: Session,
    revision: str,
    *,
    every: bool = False,
    suite: str | None = None,
    task: str | None = None,
) -> tuple[Derivation, list[Commit]]:
    """Return what is known along the line of a revision, or of the end of a range, and the commits
    of that line that are asked for: from the first measured one on, oldest first. Raises
    CeledgerError where the ledger has trials, but none of these commits."""
    from celedger.judge import memory
    from celedger.judge.derivation import derive

    repository, ledger = session.repository, session.ledger
    start, dots, end = revision.partition("..")
    tip = repository.resolve((end or "HEAD") if dots else revision).sha
    line = memory.line_of(repository, ledger, tip, every=every)
    derivation = derive(ledger, line, suite=suite, task=task, cache=memory.cache_of(repository))
    measured = [
        p for sha in ledger.commits_with_trials() if (p := line.places.get(sha)) is not None
    ]
    first = min(measured, default=len(line.commits))
    axis = list(line.commits[first:])
    if dots:
        inside = {c.sha for c in repository.commits(revision)} | {repository.resolve(start).sha}
        axis = [commit for commit in axis if commit.sha in inside]
    places = {line.places[commit.sha] for commit in axis}
    if not places.intersection(measured) and ledger.commits_with_trials():
        raise CeledgerError(
            f"the ledger holds no trial of {revision}", f"type {command('run', revision)}"
        )
    return derivation, axis


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Write a text file that a person asked for, whole or not at all: no reader sees half of it.
    A device or a pipe is written to. Raises OSError."""
    from celedger.base import files

    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if files.PRIVATE not in path.parts:  # what celedger keeps leads nowhere else
        path = path.resolve()
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8") as stream:
            yield stream
        return
    draft = path.with_name(f".{path.name}.new")
    try:
        draft.unlink(missing_ok=True)  # of a killed command, or a link to follow
        with files.as_the_user(), draft.open("x", encoding="utf-8") as stream:
            yield stream
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


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
