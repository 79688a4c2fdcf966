"""`celedger plot drift`, `curves` and `steps`: the ledger as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celedger.cli import options
from celedger.cli.session import Session, reading
from celedger.errors import Status, UsageError

if TYPE_CHECKING:
    from celedger.model import TaskRecord

app = typer.Typer(no_args_is_help=True, help="Draw the ledger to PNG or SVG.")


@app.command()
def drift(
    context: typer.Context,
    revision: Annotated[
        str, typer.Argument(metavar="REV | A..B", help="Up to this commit, or this range.")
    ] = "HEAD",
    task: options.TaskName = None,
    metric: options.Metric = None,
    output: options.Output = None,
) -> int:
    """Draw a metric over commits.

    With the spread over seeds, and what was found bad.
    """
    from celedger.views.drift import drift_figure

    with reading(context.obj) as session:
        chosen = _task(session, task)
        name = _metric(session, chosen, metric)
        commits, lineage = options.measured(session, revision)
        path = output or _place(session, f"drift-{chosen.name}-{name}.png")
        print(drift_figure(
            session.ledger, task=chosen.name, metric=name, commits=commits, lineage=lineage,
            path=path, suite=chosen.suite,
        ))  # fmt: skip
    return Status.GOOD


@app.command()
def curves(
    context: typer.Context,
    revisions: Annotated[
        list[str], typer.Argument(metavar="REV...", help="The commits to compare.")
    ],
    task: options.TaskName = None,
    metric: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="The metric; may be repeated.")
    ] = None,
    output: options.Output = None,
) -> int:
    """Draw the epoch curves of several commits side by side."""
    from celedger.views.curves import curves_figure

    with reading(context.obj) as session:
        chosen = _task(session, task)
        names = metric or [_metric(session, chosen, None)]
        for name in names:
            _metric(session, chosen, name)
        shas = [session.repository.resolve(revision).sha for revision in revisions]
        path = output or _place(session, f"curves-{chosen.name}-{names[0]}.png")
        print(curves_figure(
            session.ledger, task=chosen.name, metrics=names, commits=shas, path=path,
            suite=chosen.suite,
        ))  # fmt: skip
    return Status.GOOD


@app.command()
def steps(
    context: typer.Context,
    revisions: Annotated[
        list[str], typer.Argument(metavar="REV...", help="The commits to compare.")
    ],
    task: options.TaskName = None,
    metric: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="The series; may be repeated.")
    ] = None,
    output: options.Output = None,
) -> int:
    """Draw the series of every step, of tasks with `steps = true`.

    Loss, gradient norm, learning rate and step time.
    """
    from celedger.views.steps import steps_figure

    with reading(context.obj) as session:
        chosen = _task(session, task)
        shas = [session.repository.resolve(revision).sha for revision in revisions]
        path = output or _place(session, f"steps-{chosen.name}.png")
        print(steps_figure(
            session.ledger, task=chosen.name, commits=shas, path=path, metrics=metric or (),
            suite=chosen.suite,
        ))  # fmt: skip
    return Status.GOOD


def _task(session: Session, name: str | None) -> TaskRecord:
    """The named task, or the only one; the newest recipe of that name."""
    tasks = {task.name: task for task in session.ledger.tasks()}
    if name is None and len(tasks) == 1:
        return next(iter(tasks.values()))
    if name is None or name not in tasks:
        what = "there are several tasks" if name is None else f"the ledger has no task {name!r}"
        raise UsageError(what, f"choose with --task: {', '.join(tasks)}" if tasks else "")
    return tasks[name]


def _metric(session: Session, task: TaskRecord, name: str | None) -> str:
    """The named metric, or the first that the task's suite judges."""
    known = session.ledger.metrics(task.recipe)
    judged = [m.name for m in known if m.direction != "info"]
    if name is None and judged:
        return "val_loss" if "val_loss" in judged else judged[0]
    if name is None or name not in {m.name for m in known}:
        raise UsageError(
            f"{task.name} has no metric {name!r}", f"it has {', '.join(m.name for m in known)}"
        )
    return name


def _place(session: Session, name: str) -> Path:
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
    return session.ledger.folder / ".celedger" / "plots" / safe
