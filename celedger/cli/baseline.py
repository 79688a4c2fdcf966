"""`celedger baseline pin | accept | show`: a person's word on which level is right."""

from __future__ import annotations

from typing import Annotated

import typer

from celedger.cli import options
from celedger.cli.session import note, reading, writing
from celedger.errors import Status

app = typer.Typer(no_args_is_help=True, help="Pin a level, accept a change, show both.")

Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, kept in the ledger.")]


@app.command()
def pin(
    context: typer.Context,
    revision: Annotated[str, typer.Argument(metavar="REV", help="The commit to hold to.")],
    why: Why,
    suite: options.Suite = None,
    task: options.TaskName = None,
    metric: options.Metric = None,
) -> int:
    """Judge every later commit against this one too, however slowly it drifts away."""
    return _declare(context, "pin", revision, why, suite, task, metric)


@app.command()
def accept(
    context: typer.Context,
    revision: Annotated[str, typer.Argument(metavar="REV", help="The commit that changed it.")],
    why: Why,
    suite: options.Suite = None,
    task: options.TaskName = None,
    metric: options.Metric = None,
) -> int:
    """Accept what this commit changed: later ones are held to its level."""
    return _declare(context, "accept", revision, why, suite, task, metric)


@app.command()
def show(context: typer.Context, json: options.Json = False) -> int:
    """Show who pinned and accepted what, and why."""
    from celedger.views.baselines import BaselineList

    with reading(context.obj) as session:
        options.answer(BaselineList(session.ledger.baselines()), json)
    return Status.GOOD


def _declare(
    context: typer.Context,
    act: str,
    revision: str,
    why: str,
    suite: str | None,
    task: str | None,
    metric: str | None,
) -> int:
    import time
    from random import SystemRandom

    from celedger import suite as suites
    from celedger.errors import UsageError, command
    from celedger.ledger import ulid
    from celedger.model import BaselineAct, BaselineRecord
    from celedger.trial.workplace import choose_tasks

    if not why.strip():
        raise UsageError("a baseline needs a reason", "--why 'what changed, and why it is right'")
    with writing(context.obj, suite=suite) as session:
        commit = session.repository.resolve(revision)
        chosen = suites.load(suites.find(None, session.config, session.repository.root))
        tasks = choose_tasks(chosen, (task,) if task else ())
        names = dict.fromkeys(m.name for t in tasks for m in t.metrics)
        if metric is not None and metric not in names:
            raise UsageError(f"no task has a metric {metric!r}", f"there are {', '.join(names)}")
        now = time.time()
        record = BaselineRecord(
            ulid.new(now, SystemRandom()), BaselineAct(act), commit.sha, chosen.name, task or "",
            metric or "", session.repository.user(), why, now,
        )  # fmt: skip
        session.ledger.record_commits([commit])
        session.ledger.record_baseline(record)
        if act == "pin" and not session.ledger.trials(commit=commit.sha, suite=chosen.name):
            typed = command("run", revision, suite=suite)
            note(context.obj.retyped(f"celedger: {revision} is not measured yet: type {typed}"))
    what = " ".join(filter(None, (chosen.name, task, metric)))
    print(f"{'pinned' if act == 'pin' else 'accepted'} {commit.sha} for {what}")
    return Status.GOOD
