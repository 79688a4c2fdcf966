"""Arguments and options that several verbs share, what Tab offers for them from the ledger, and how
answers are printed. Completion imports no NumPy, prints nothing and never fails: a shell has no
place for a message."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from celedger.ledger import Ledger
    from celedger.views.document import Document

Completer = Callable[[typer.Context, str], list[str]]


def _completer(names: Callable[[Ledger], Iterable[str]]) -> Completer:
    """Return what offers those names of the ledger that begin as the typed word does."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        from celedger.base.errors import CeledgerError
        from celedger.cli.session import Options, find
        from celedger.ledger import Ledger

        typed = context.find_root().params
        with suppress(CeledgerError, OSError):
            # A line that is not complete is not parsed: these are strings.
            given = Path(typed["ledger"]) if typed.get("ledger") else None
            _, settings = find(Options(Path(typed.get("repository") or "."), given))
            with Ledger.open(settings.ledger, readonly=True) as ledger:
                return sorted({n for n in names(ledger) if n.startswith(incomplete)})
        return []

    return complete


_suites = _completer(lambda ledger: (task.suite for task in ledger.tasks()))
_tasks = _completer(lambda ledger: (task.name for task in ledger.tasks()))
_tasks_and_grids = _completer(
    lambda ledger: (n for task in ledger.tasks() for n in (task.name.partition("[")[0], task.name))
)
_metrics = _completer(lambda ledger: (metric.name for metric in ledger.metrics()))
incidents = _completer(lambda ledger: (row.incident for row in ledger.said_last()))

Suite = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="The suite [default: as configured].", autocompletion=_suites
    ),
]
Tasks = Annotated[
    list[str] | None,
    typer.Option(
        "--task",
        metavar="NAME",
        help="Only this task, or every task of this grid; may be repeated.",
        autocompletion=_tasks_and_grids,
    ),
]
TaskName = Annotated[
    str | None,
    typer.Option("--task", metavar="NAME", help="The task.", autocompletion=_tasks),
]
Metric = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The metric.", autocompletion=_metrics),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        metavar="NAME",
        help="This metric; may be repeated.",
        autocompletion=_metrics,
    ),
]
Device = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="auto, cpu or cuda:N [default: as configured, else auto]."),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="N",
        help="Trials that run at once [default: as configured, else one, or one per GPU].",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Where trials run: local, or an engine [default: as configured].",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON with a schema number.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Draw a .png or .svg file.")
]
Range = Annotated[str, typer.Argument(metavar="REV | A..B", help="A commit, or a range of them.")]
History = Annotated[
    str, typer.Argument(metavar="REV | A..B", help="Up to this commit, or this range.")
]
EveryCommit = Annotated[bool, typer.Option("--all", help="Include commits of merged branches.")]
Revisions = Annotated[
    list[str],
    typer.Argument(metavar="REV...", help="The commits to compare; `.` is the working tree."),
]


def duration(option: str, text: str) -> float:
    """Return the seconds that an option gives, such as 2h or 90s. Raises UsageError."""
    from celedger.base.errors import UsageError
    from celedger.suite.toml_table import seconds

    try:
        return seconds(text)
    except ValueError as error:
        raise UsageError(f"{option} {error}") from None


def width() -> int:
    """Return the columns of the terminal, or of a page where there is none."""
    import shutil

    return shutil.get_terminal_size((120, 24)).columns


def answer(
    document: Document, json: bool, retyped: Callable[[str], str] = lambda text: text
) -> None:
    """Print an answer to stdout, as JSON or as text, which may name commands to be retyped."""
    if json:
        from celedger.views import document as documents

        print(
            documents.dumps(documents.document(**{"schema": document.SCHEMA, **document.json()})),
            flush=True,
        )
    else:
        from celedger.views.document import colourless

        text = retyped(document.text(width()))
        print(text if _has_colour() else colourless(text), flush=True)


def _has_colour() -> bool:
    """Return True if stdout shows colours: https://no-color.org, https://force-color.org."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
