"""`celedger plot drift`, `curves`, `steps` and `bisect`: the ledger as pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celedger.base.errors import CeledgerError, Status, UnknownRevision, UsageError, command
from celedger.cli import options
from celedger.cli.reading import measured, true_axis
from celedger.cli.session import Session, reading

if TYPE_CHECKING:
    from celedger.base.model import BisectRecord
    from celedger.ledger import Ledger
    from celedger.repo import Repository

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
    from celedger.views import drift_picture, picture

    with _drawing(context, output, "drift", task, *filter(None, [metric])) as request:
        session, (suite, name), path = request
        commits, lineage = measured(session, revision)
        axis = true_axis(commits, lineage)
        figure = drift_picture.draw(session.ledger, name, metric, suite, axis, lineage)
        print(picture.save(figure, path))
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
    from celedger.views import curves, picture

    kind = "curves" if axis == "epoch" else "steps"
    with _drawing(context, output, kind, task, *metrics) as (session, title, path):
        shas = [session.repository.resolve(revision).sha for revision in revisions]
        chart = curves.read_chart(session.ledger, title, shas, metrics, axis)
        print(picture.save(curves.draw(chart), path))
    return Status.GOOD


@plot.command()
def bisect(
    context: typer.Context,
    which: Annotated[
        str, typer.Argument(metavar="[ID]", help="As `log --bisects` prints it, or its beginning.")
    ] = "",
    output: options.Output = None,
) -> int:
    """Draw a bisect again, or the last one."""
    with reading(context.obj) as session:
        stored = _bisect(session, which)
        print(draw_bisect(session.repository, session.ledger, stored, output))
    return Status.GOOD


def draw_bisect(
    repository: Repository, ledger: Ledger, stored: BisectRecord, output: Path | None = None
) -> Path:
    """Draw a stored bisect, by default beside the other pictures. Raises CeledgerError where its
    commits are gone."""
    from celedger.judge.bisection.bisect_report import restored
    from celedger.views import picture, posterior

    path = output or ledger.folder / ".celedger" / "plots" / f"bisect-{stored.ulid}.png"
    picture.check_suffix(path)
    try:
        history = repository.commits(f"{stored.good}..{stored.bad}")
        commits = {c.sha: c for c in (repository.resolve(stored.good), *history)}
        report = restored(stored, commits)
    except (UnknownRevision, LookupError, TypeError, ValueError) as error:
        raise CeledgerError(
            f"the repository lacks commits of the bisect {stored.ulid}",
            f"search again: {command('bisect', 'GOOD..BAD', task=stored.task)}",
        ) from error
    recipes = [t.recipe for t in ledger.tasks() if (t.suite, t.name) == (stored.suite, stored.task)]
    metrics = {m.name: m for recipe in recipes for m in ledger.metrics(recipe)}
    return picture.save(posterior.draw([report], metrics), path)


def _bisect(session: Session, start: str) -> BisectRecord:
    """Return the bisect whose id begins so, or the last one. Raises CeledgerError."""
    bisects = session.ledger.bisects()
    if not bisects:
        raise CeledgerError("nothing was bisected yet", "type `celedger bisect GOOD..BAD`")
    if not start:
        return bisects[-1]
    chosen = [bisect for bisect in bisects if bisect.ulid.startswith(start.upper())]
    if len(chosen) != 1:
        problem = f"{'several bisects begin' if chosen else 'no bisect begins'} with {start!r}"
        raise UsageError(problem, f"{command('log', '--bisects')} lists them")
    return chosen[0]


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
