"""Arguments and options that several verbs share, and how their answers are printed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celedger.cli import completion

if TYPE_CHECKING:
    from celedger.views.document import Document

Suite = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The suite [default: as configured].",
        autocompletion=completion.suites,
    ),
]
Tasks = Annotated[
    list[str] | None,
    typer.Option(
        "--task",
        metavar="NAME",
        help="Only this task, or all of this grid; may be repeated.",
        autocompletion=completion.tasks,
    ),
]
TaskName = Annotated[
    str | None,
    typer.Option("--task", metavar="NAME", help="The task.", autocompletion=completion.tasks),
]
Metric = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="The metric.", autocompletion=completion.metrics),
]
Metrics = Annotated[
    list[str] | None,
    typer.Option(
        "--metric",
        metavar="NAME",
        help="This metric; may be repeated.",
        autocompletion=completion.metrics,
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
        help="Trials that run at once [default: as configured, else one, or one a GPU].",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Where trials run: local, or an engine [default: as configured].",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(min=0, max=2**32 - 1, metavar="N", help="The seed [default: the task's first]."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON with a schema number.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="A .png or .svg file.")
]
Range = Annotated[str, typer.Argument(metavar="REV | A..B", help="A commit, or a range of them.")]
History = Annotated[
    str, typer.Argument(metavar="REV | A..B", help="Up to this commit, or this range.")
]
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
        from celedger.views.format import colourless

        text = retyped(document.text(width()))
        print(text if _has_colour() else colourless(text), flush=True)


def _has_colour() -> bool:
    """Return True if stdout shows colours: https://no-color.org, https://force-color.org."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
