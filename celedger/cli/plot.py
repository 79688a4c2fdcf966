"""`celedger plot drift`, `curves` and `steps`: the ledger as pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from celedger.cli import options
from celedger.cli.reading import measured
from celedger.cli.session import Session, reading
from celedger.errors import Status

plot = typer.Typer(no_args_is_help=True, help="Draw the ledger to PNG or SVG.")


@plot.command()
def drift(
    context: typer.Context,
    revision: options.History = "HEAD",
    task: options.TaskName = None,
    metric: options.Metric = None,
    output: options.Output = None,
) -> int:
    """Draw a metric over commits.

    With every trial, and what was found bad.
    """
    from celedger.views.drift_picture import drift_figure

    with _drawing(context, output, "drift", task, *filter(None, [metric])) as request:
        session, (suite, name), path = request
        commits, lineage = measured(session, revision)
        print(drift_figure(
            session.ledger, name, path, metric=metric, suite=suite, commits=commits,
            lineage=lineage,
        ))  # fmt: skip
    return Status.GOOD


@plot.command()
def curves(
    context: typer.Context,
    revisions: options.Revisions,
    task: options.TaskName = None,
    metric: options.Metrics = None,
    output: options.Output = None,
) -> int:
    """Draw the epoch curves of several commits side by side."""
    from celedger.views.curves import read_chart, save

    with _drawing(context, output, "curves", task, *(metric or ())) as (session, title, path):
        shas = [session.repository.resolve(revision).sha for revision in revisions]
        print(save(read_chart(session.ledger, title, shas, metric or ()), path))
    return Status.GOOD


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
    from celedger.views.curves import read_chart, save

    with _drawing(context, output, "steps", task, *(metric or ())) as (session, title, path):
        shas = [session.repository.resolve(revision).sha for revision in revisions]
        chart = read_chart(session.ledger, title, shas, metric or (), "step")
        print(save(chart, path))
    return Status.GOOD


@contextmanager
def _drawing(
    context: typer.Context, output: Path | None, kind: str, task: str | None, *metrics: str
) -> Iterator[tuple[Session, tuple[str, str], Path]]:
    """Yield a session, the (suite, task), and where to draw, before anything is computed."""
    from celedger.views.picture import check_suffix
    from celedger.views.samples import find_task

    with reading(context.obj) as session:
        title = find_task(session.ledger, task)
        name = "-".join((kind, title[1], *metrics))
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
        path = output or session.ledger.folder / ".celedger" / "plots" / f"{safe}.png"
        check_suffix(path)
        yield session, title, path
