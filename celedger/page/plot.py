"""`celedger plot drift`, `curves`, `steps` and `bisect`: the ledger as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celedger.base.errors import CeledgerError, Status, UnknownRevision, UsageError, command
from celedger.cli import options
from celedger.cli.session import reading
from celedger.cli.synthetic import reading_apart
from celedger.page.verb import line_with_trials
from celedger.service.measure import Session

if TYPE_CHECKING:
    from celedger.base.model import BisectRecord
    from celedger.judge.bisection import Report
    from celedger.judge.incident import State
    from celedger.ledger.read import Reader
    from celedger.repo import Repository

plot = typer.Typer(no_args_is_help=True, help="Draw the ledger to PNG or SVG.")


@plot.command()
def drift(
    context: typer.Context,
    revision: options.History = "HEAD",
    task: options.TaskName = None,
    metric: options.Metric = None,
    every: options.EveryCommit = False,
    output: options.Output = None,
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="Print a chart in Markdown, for a comment or a page.")
    ] = False,
) -> int:
    """Draw a metric over commits.

    Shows every trial, the levels, and the commits that made it worse or better. Without --task it
    draws the metric of the first incident of `celedger status`. GitHub and GitLab draw what
    --mermaid prints: the means of the last measured commits, with a bar where the first bad one is.
    """
    from celedger.judge import memory
    from celedger.page import drift_picture
    from celedger.views import picture

    if mermaid and output is not None:
        raise UsageError("--mermaid and --output exclude each other", "choose one")
    with reading(context.obj) as session:
        tip = session.repository.resolve(revision.rpartition("..")[2] or "HEAD").sha
        state = memory.read(session.repository, session.ledger, tip, every=every)
        title, chosen = _subject(session.ledger, state, task, metric)
        path = _path(session, output, "drift", title[1], *filter(None, [metric]))
        derivation, axis = line_with_trials(
            session, revision, every=every, suite=title[0], task=title[1]
        )
        if mermaid:
            drawn = drift_picture.read(derivation, state, title, chosen, axis)
            print(drift_picture.mermaid(drawn))
        else:
            print(picture.save(drift_picture.draw(derivation, state, title, chosen, axis), path))
    return Status.GOOD


def _subject(
    ledger: Reader, state: State, task: str | None, metric: str | None
) -> tuple[tuple[str, str], str | None]:
    """Return (suite, task) and the metric to draw, None for the task's main one: those of the first
    incident, unless a task is named."""
    from celedger.views.samples import find_task

    moved = () if task is not None else (m for i in state.incidents for m in i.metrics)
    for metric_change in moved:
        if metric in (None, metric_change.name):
            return (metric_change.suite, metric_change.task), metric_change.name or None
    return find_task(ledger, task), metric


@plot.command()
def curves(
    context: typer.Context,
    revisions: options.Revisions,
    task: options.TaskName = None,
    metric: options.Metrics = None,
    output: options.Output = None,
) -> int:
    """Draw epoch curves of commits, or of the environments of one."""
    return _draw_series(context, "epoch", revisions, task, metric or (), output)


@plot.command()
def steps(
    context: typer.Context,
    revisions: options.Revisions,
    task: options.TaskName = None,
    metric: options.Metrics = None,
    output: options.Output = None,
) -> int:
    """Draw the series of every step, of tasks with `steps = true`.

    Loss, gradient norm, learning rate and step time.
    """
    return _draw_series(context, "step", revisions, task, metric or (), output)


def _draw_series(
    context: typer.Context,
    axis: str,
    revisions: Sequence[str],
    task: str | None,
    metrics: Sequence[str],
    output: Path | None,
) -> int:
    """Draw series over epochs or steps."""
    from celedger.page import curves
    from celedger.views import picture
    from celedger.views.samples import find_task

    with reading(context.obj) as session:
        title = find_task(session.ledger, task)
        kind = "curves" if axis == "epoch" else "steps"
        path = _path(session, output, kind, title[1], *metrics)  # before anything is computed
        with reading_apart(session, revisions) as (own_session, commits):
            shas = [commit.sha for commit in commits]
            chart = curves.read_chart(own_session.ledger, title, shas, metrics, axis)
        print(picture.save(curves.draw(chart), path))
    return Status.GOOD


@plot.command()
def bisect(
    context: typer.Context,
    which: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID...]", help="As `log --bisects` prints them, or beginnings."),
    ] = None,
    output: options.Output = None,
) -> int:
    """Draw a bisect again, or the last one. Several of one range share a picture."""
    from celedger.page import bisect_picture
    from celedger.views import picture

    with reading(context.obj) as session:
        ledger = session.ledger
        bisects = [_bisect(ledger, start) for start in which or [""]]
        path = output or ledger.private / "plots" / f"bisect-{bisects[0].ulid}.png"
        picture.check_suffix(path)
        tasks = {(stored.suite, stored.task) for stored in bisects}
        recipes = [t.recipe for t in ledger.tasks() if (t.suite, t.name) in tasks]
        metrics = {m.name: m for recipe in recipes for m in ledger.metrics(recipe)}
        reports = [_report(session.repository, stored) for stored in bisects]
        print(picture.save(bisect_picture.draw(reports, metrics), path))
    return Status.GOOD


def _report(repository: Repository, stored: BisectRecord) -> Report:
    """Return the report of a stored bisect. Raises CeledgerError where its commits are gone."""
    from celedger.judge.bisection.bisect_report import restored

    try:
        history = repository.commits(f"{stored.good}..{stored.bad}")
        commits = {c.sha: c for c in (repository.resolve(stored.good), *history)}
        return restored(stored, commits)
    except (UnknownRevision, LookupError, TypeError, ValueError) as error:
        raise CeledgerError(
            f"the repository lacks commits of the bisect {stored.ulid}",
            f"search again: {command('bisect', 'GOOD..BAD', task=stored.task)}",
        ) from error


def _bisect(ledger: Reader, start: str) -> BisectRecord:
    """Return the bisect whose id begins so, or the last one. Raises CeledgerError."""
    bisects = ledger.bisects()
    if not bisects:
        raise CeledgerError("nothing was bisected yet", "type `celedger bisect GOOD..BAD`")
    if not start:
        return bisects[-1]
    chosen = [bisect for bisect in bisects if bisect.ulid.startswith(start.upper())]
    if len(chosen) != 1:
        problem = f"{'several bisects begin' if chosen else 'no bisect begins'} with {start!r}"
        raise UsageError(problem, f"{command('log', '--bisects')} lists them")
    return chosen[0]


def _path(session: Session, output: Path | None, kind: str, *names: str) -> Path:
    """Return where to draw."""
    from celedger.views.picture import check_suffix

    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in "-".join((kind, *names)))
    path = output or session.ledger.private / "plots" / f"{safe}.png"
    check_suffix(path)
    return path
