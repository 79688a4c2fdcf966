"""`celedger log`, `show`, `diff` and `drift`: what the ledger holds, read."""

from __future__ import annotations

from typing import Annotated

import typer

from celedger.cli import options
from celedger.cli.session import reading, warn
from celedger.errors import Status, UsageError, command


def log(
    context: typer.Context,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="At most so many commits.")
    ] = 20,
    json: options.Json = False,
) -> int:
    """List the measured commits, newest first."""
    from celedger.service import allow
    from celedger.views import export
    from celedger.views.log import log_json, log_text

    with reading(context.obj) as session:
        for line in allow.waiting(session.repository, session.config):
            warn(context.obj.retyped(line))
        if json:
            print(export.dumps(log_json(session.ledger, limit=limit)))
        else:
            print(log_text(session.ledger, limit=limit, width=options.width()))
    return Status.GOOD


def show(
    context: typer.Context,
    revision: Annotated[
        str, typer.Argument(metavar="REV | TASK", help="A commit, or a task.")
    ] = "HEAD",
    json: options.Json = False,
) -> int:
    """Show all that is known of a commit, or how a task varies.

    Of a commit: values with their spread, verdicts, failures and their logs, the environment,
    and the smallest change that so many trials can tell. Of a task: the noise of its metrics,
    and the smallest change that one, three and ten trials can tell.
    """
    from celedger.errors import UnknownRevision
    from celedger.views import export
    from celedger.views.show import show_json, show_text

    with reading(context.obj) as session:
        try:
            sha = session.repository.resolve(revision).sha
        except UnknownRevision:
            from celedger.views.noise import named_task, noise_json, noise_text, task_noise

            task = named_task(session.ledger, revision)
            if task is None:
                raise
            noise = [task_noise(session.ledger, task.suite, task.name)]
            if json:
                print(export.dumps(noise_json(noise)))
            else:
                print(noise_text(noise, width=options.width()))
            return Status.GOOD
        if json:
            print(export.dumps(show_json(session.ledger, sha)))
        else:
            print(show_text(session.ledger, sha, width=options.width()))
    return Status.GOOD


def diff(
    context: typer.Context,
    commits: Annotated[str, typer.Argument(metavar="A..B", help="Two commits.")],
    json: options.Json = False,
) -> int:
    """Compare two commits, metric by metric."""
    from celedger.views import export
    from celedger.views.diff import diff_json, diff_text

    with reading(context.obj) as session:
        a, b = session.repository.ends(commits)
        order = options.places(session.repository, a, b)
        if json:
            print(export.dumps(diff_json(session.ledger, a.sha, b.sha, order=order)))
        else:
            width = options.width()
            print(diff_text(session.ledger, a.sha, b.sha, order=order, width=width))
    return Status.GOOD


def drift(
    context: typer.Context,
    revision: Annotated[
        str, typer.Argument(metavar="REV | A..B", help="Up to this commit, or this range.")
    ] = "HEAD",
    suite: options.Suite = None,
    task: options.TaskName = None,
    metric: options.Metric = None,
    json: options.Json = False,
) -> int:
    """Show where in the history a metric changed.

    Every change comes with its probability and the number of commits among which it lies with
    95 %; commits that were not measured count. Where these are several, the command that
    searches them follows. A change of environment starts anew and is never one of code.
    """
    from celedger.drift.history import courses
    from celedger.drift.segment_cache import segment_cache
    from celedger.views import export
    from celedger.views.history import courses_json, courses_text

    with reading(context.obj) as session:
        commits, lineage = options.measured(session, revision)
        with segment_cache(session.repository.state_dir / "drift") as cache:
            found = courses(
                session.ledger, commits, lineage=lineage, suite=suite, task=task, metric=metric,
                cache=cache,
            )  # fmt: skip
        if not found:
            raise UsageError(
                "the ledger holds no such task or metric",
                f"{command('show', commits[-1].sha[:12])} names those it has",
            )
        if json:
            print(export.dumps(courses_json(found)))
        else:
            print(courses_text(found, width=options.width()))
    return Status.GOOD
