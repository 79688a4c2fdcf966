"""Options that several verbs share, and the small looks into the ledger they need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from celedger.cli.session import Session
    from celedger.ledger import Ledger
    from celedger.model import Commit, Task
    from celedger.repo import Repository

Suite = Annotated[
    str | None, typer.Option(metavar="NAME", help="The suite [default: as configured].")
]
Tasks = Annotated[
    list[str] | None,
    typer.Option("--task", metavar="NAME", help="Only this task; may be repeated."),
]
TaskName = Annotated[str | None, typer.Option("--task", metavar="NAME", help="The task.")]
Metric = Annotated[str | None, typer.Option(metavar="NAME", help="The metric.")]
Metrics = Annotated[
    list[str] | None,
    typer.Option("--metric", metavar="NAME", help="This metric; may be repeated."),
]
Device = Annotated[
    str | None, typer.Option(help="auto, cpu or cuda:N [default: as configured, else auto].")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON with a schema number.")]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="A .png or .svg file.")
]


def width() -> int:
    """Columns of the terminal, or of a page where there is none."""
    import shutil

    return shutil.get_terminal_size((100, 24)).columns


def usual_seconds(ledger: Ledger, task: Task) -> float | None:
    """The median wall time of this recipe's trials, where there are any."""
    import statistics

    rows = [
        row
        for name in ("duration", "warm_duration")
        for row in ledger.summaries(task.name, name, recipe=task.recipe)
    ]
    rows.sort(key=lambda row: row.started)
    seconds = [row.value for row in rows if row.value == row.value]
    return statistics.median(seconds[-20:]) if seconds else None


def places(repository: Repository, *ends: Commit) -> dict[str, int]:
    """Return each commit's place in the history of the ends, the oldest first."""
    line = [c.sha for end in ends for c in reversed(repository.log(end.sha, limit=2000))]
    return {sha: place for place, sha in enumerate(dict.fromkeys(line))}


def measured(session: Session, revision: str) -> tuple[list[Commit], list[Commit]]:
    """Return the measured commits of a range or of a commit's history, and that whole history.

    Both are oldest first. The measured ones are those of the main line, since a series that
    wanders in and out of merged branches has steps that no commit made; where only branches were
    measured, all of them.
    """
    from celedger.cli.session import note
    from celedger.errors import CeledgerError
    from celedger.views.samples import run_command

    trained = set(session.ledger.commits_with_trials())
    repository = session.repository
    if ".." in revision:
        old = revision.partition("..")[0]
        whole = [repository.resolve(old or "HEAD"), *repository.commits(revision)]
    else:
        whole = repository.log(revision, limit=100_000)[::-1]
    every = [commit for commit in whole if commit.sha in trained]
    main = _first_parents(whole)
    found = [commit for commit in every if commit.sha in main] or every
    if len(found) < len(every):
        aside = len(every) - len(found)
        note(f"{aside} measured commit{'s' * (aside != 1)} of merged branches left aside")
    if not found:
        raise CeledgerError(
            f"the ledger holds no trial of {revision}",
            f"type {run_command(session.ledger, revision)}",
        )
    return found, whole


def _first_parents(commits: list[Commit]) -> set[str]:
    """Return the last of the commits and its first ancestors, as far as they are among these."""
    known = {commit.sha: commit for commit in commits}
    line: set[str] = set()
    sha = commits[-1].sha
    while sha in known:
        line.add(sha)
        sha = next(iter(known[sha].parents), "")
    return line
