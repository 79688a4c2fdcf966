"""`celedger export`: the ledger for other programs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from celedger.base.errors import Status, UnknownRevision, UsageError, command, explained
from celedger.cli.session import reading
from celedger.page.verb import replacing
from celedger.service.measure import Session


class Format(StrEnum):
    CSV = "csv"
    JSONL = "jsonl"
    OPENMETRICS = "openmetrics"
    BADGE = "badge"


_ROWS = (Format.CSV, Format.JSONL)


def export(
    context: typer.Context,
    revision: Annotated[
        str | None,
        typer.Argument(
            metavar="[REV | A..B]", help="Only these commits [default: all that were measured]."
        ),
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", metavar="FORMAT", help=f"{', '.join(Format)}.")
    ] = Format.CSV,
    summaries: Annotated[
        bool,
        typer.Option("--summaries", help="One row per trial and metric, not per epoch and metric."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="A file [default: stdout]."),
    ] = None,
) -> int:
    """Write the ledger for other programs.

    csv and jsonl have a row for each value. openmetrics (for Prometheus) has the mean of each
    metric at REV, or at each task's newest commit. badge is an SVG picture for a README: how much
    is worse at REV, or HEAD.
    """
    if summaries and form not in _ROWS:
        raise UsageError(f"--summaries is for {' and '.join(_ROWS)}", "leave it out")
    with reading(context.obj) as session:
        try:
            lines = _lines(session, revision, form, summaries)
        except UnknownRevision as error:
            if not Path(revision or "").suffix or ".." in str(revision):
                raise
            hint = f"to write a file, type {command('export', output=revision)}"
            raise UsageError(f"{revision!r} is not a commit", hint) from error
        if output is None:
            sys.stdout.writelines(_for_terminal(lines) if sys.stdout.isatty() else lines)
        else:
            _write(output, lines)
    return Status.GOOD


def _lines(session: Session, revision: str | None, form: Format, summaries: bool) -> Iterator[str]:
    from celedger.judge import memory
    from celedger.page import formats

    if form in _ROWS:
        chosen = revision and {c.sha for c in session.repository.commits(revision)}
        values = session.ledger.values(commits=chosen or None, summaries=summaries)
        return formats.csv_lines(values) if form is Format.CSV else formats.json_lines(values)
    sha = revision and session.repository.resolve(revision).sha
    state = memory.read(session.repository, session.ledger, sha)
    rows = formats.current(session.ledger, state, sha)
    if form is Format.BADGE:
        return iter([formats.badge(len(state.in_force), measured=any(True for _ in rows))])
    return formats.openmetrics_lines(rows)


def _for_terminal(lines: Iterator[str]) -> Iterator[str]:
    """Yield the text with what a terminal would obey written out. Programs get it as it is."""
    from celedger.base.text import escaped

    for text in lines:
        yield "\n".join(map(escaped, text.split("\n")))


def _write(path: Path, lines: Iterator[str]) -> None:
    with explained(f"{path} cannot be written"), replacing(path) as file:
        file.writelines(lines)
