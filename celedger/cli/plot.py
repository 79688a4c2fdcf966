"""`celedger plot drift`, `curves` and `steps`: the ledger as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from celedger.cli import options
from celedger.cli.reading import measured
from celedger.cli.session import Session, reading
from celedger.errors import Status, UsageError

if TYPE_CHECKING:
    from celedger.model import TaskRecord

app = typer.Typer(no_args_is_help=True, help="Draw the ledger to PNG or SVG.")


@app.command()
def drift(
    context: typer.Context,
    revision: options.History = "HEAD",
    task: options.TaskName = None,
    metric: options.Metric = None,
    output: options.Output = None,
) -> int:
    """Draw a metric over commits.

    With the spread over seeds, and what was found bad.
    """
    from celedger.views.drift import drift_figure

    with reading(context.obj) as session:
        record = _task(session, task)
        name = _metric(session, record, metric)
        commits, lineage = measured(session, revision)
        path = _path(session, output, f"drift-{record.name}-{name}.png")
        print(drift_figure(
            session.ledger, record.name, path, metric=name, suite=record.suite, commits=commits,
            lineage=lineage,
        ))  # fmt: skip
    return Status.GOOD


@app.command()
def curves(
    context: typer.Context,
    revisions: options.Revisions,
    task: options.TaskName = None,
    metric: options.Metrics = None,
    output: options.Output = None,
) -> int:
    """Draw the epoch curves of several commits side by side."""
    from celedger.views.curves import epochs_chart, save

    with reading(context.obj) as session:
        record = _task(session, task)
        names = [_metric(session, record, name) for name in (metric or (None,))]
        shas = [session.repository.resolve(revision).sha for revision in revisions]
        path = _path(session, output, f"curves-{record.name}-{names[0]}.png")
        print(save(epochs_chart(session.ledger, (record.suite, record.name), shas, names), path))
    return Status.GOOD


@app.command()
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
    from celedger.views.curves import save, steps_chart

    with reading(context.obj) as session:
        record = _task(session, task)
        shas = [session.repository.resolve(revision).sha for revision in revisions]
        path = _path(session, output, f"steps-{record.name}.png")
        print(
            save(steps_chart(session.ledger, (record.suite, record.name), shas, metric or ()), path)
        )
    return Status.GOOD


def _task(session: Session, name: str | None) -> TaskRecord:
    """Return the named task, or the only one; the newest definition of that name."""
    tasks = {task.name: task for task in session.ledger.tasks()}
    if name is None and len(tasks) == 1:
        return next(iter(tasks.values()))
    if name is None or name not in tasks:
        what = "there are several tasks" if name is None else f"the ledger has no task {name!r}"
        raise UsageError(what, f"choose with --task: {', '.join(tasks)}" if tasks else "")
    return tasks[name]


def _metric(session: Session, task: TaskRecord, name: str | None) -> str:
    """Return the named metric, or the first that the task's suite judges."""
    metrics = session.ledger.metrics(task.recipe)
    judged = [m.name for m in metrics if m.direction != "info"]
    if name is None and judged:
        return "val_loss" if "val_loss" in judged else judged[0]
    if name is None or name not in {m.name for m in metrics}:
        names = ", ".join(m.name for m in metrics)
        raise UsageError(f"{task.name} has no metric {name!r}", f"it has {names}")
    return name


def _path(session: Session, output: Path | None, name: str) -> Path:
    """Return where to draw, before anything is computed."""
    from celedger.views.picture import check_suffix

    if output is not None:
        check_suffix(output)
        return output
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
    return session.ledger.folder / ".celedger" / "plots" / safe
