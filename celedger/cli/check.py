"""`celedger check`: is this commit worse than its baseline? `celedger baseline`: a person's
word on which level is right."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celedger.base.errors import Status, UsageError, command
from celedger.cli import options
from celedger.cli.session import note, reading, set_bench, warn, writing

if TYPE_CHECKING:
    from celedger.views.verdicts import VerdictList

baseline = typer.Typer(no_args_is_help=True, help="Pin a level, accept a change, show both.")

Reason = Annotated[
    str, typer.Option("--why", metavar="TEXT", help="The reason, kept in the ledger.")
]


def check(
    context: typer.Context,
    revision: Annotated[str, typer.Argument(metavar="REV", help="A commit.")] = "HEAD",
    suite: options.Suite = None,
    task: options.Tasks = None,
    budget: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            help="Extra trials a task may take to settle a suspicion [default: 6].",
        ),
    ] = None,
    lenient: Annotated[
        bool,
        typer.Option("--lenient", help="Pass what is too noisy to tell a change of its floor."),
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why: trials, baseline, rule and evidence.")
    ] = False,
    device: options.Device = None,
    workers: options.Workers = None,
    engine: options.Engine = None,
    json: options.Json = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a table in Markdown, for a comment or a page.")
    ] = False,
) -> int:
    """Judge a commit against its baseline.

    Trials that the ledger lacks are run first; suspicious values are measured again with fresh
    seeds, speed in turns with the baseline. Only what the suite declares decides: exits 1 when
    something is worse, 125 when something cannot be told, also because it is too noisy to tell a
    change of its floor (--lenient passes that) or because a trial was killed, 0 otherwise.
    `git bisect run celedger check` works, and skips what cannot be told.

    In a GitHub workflow the table goes to the job's summary as well ($GITHUB_STEP_SUMMARY), and
    what is worse is annotated.
    """
    from celedger.base.model import Why
    from celedger.cli.plot import draw_bisect
    from celedger.cli.progress import Progress
    from celedger.judge.drift.recorded_verdicts import status
    from celedger.judge.drift.reruns import RERUNS, settle
    from celedger.service.notify import announce
    from celedger.trial.workers import run_all
    from celedger.trial.workplace import lacking
    from celedger.views import ci
    from celedger.views.verdicts import VerdictList

    if json and markdown:
        raise UsageError("--json and --markdown exclude each other", "choose one")
    with writing(
        context.obj, suite=suite, device=device, workers=workers, engine=engine
    ) as session:
        commit = session.repository.resolve(revision)
        with set_bench(session, "check", task, why=Why.CHECK, together=True) as (bench, tasks):
            needs = lacking(bench, [commit], tasks)
            with Progress(bench, needs):
                run_all(bench, needs, in_company=False)
                most = RERUNS if budget is None else budget
                judged = settle(session.repository, bench, commit, tasks, budget=most)
            complete = not lacking(bench, [commit], tasks)
        declared = bench.suite.judged
        verdicts = VerdictList(session.ledger, commit, judged, declared, explain)
        if markdown:
            print(ci.markdown(verdicts), flush=True)
        else:
            options.answer(verdicts, json, context.obj.retyped)
        _tell_github(verdicts)
        announce(session.repository, session.ledger, session.config, commit.sha, warn, draw_bisect)
    return status(judged.verdicts, declared, gate=True, lenient=lenient, complete=complete)


def _tell_github(verdicts: VerdictList) -> None:
    """Show the verdicts where a GitHub workflow looks for them. A summary that cannot be written
    does not change the answer."""
    from celedger.views import ci

    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(ci.markdown(verdicts))
        except OSError as error:
            warn(f"{path} cannot be written: {error.strerror}")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in ci.workflow_commands(verdicts):
            note(line)  # a runner reads them on stderr too, and stdout is the answer's


@baseline.command()
def pin(
    context: typer.Context,
    revision: Annotated[str, typer.Argument(metavar="REV", help="The commit to hold to.")],
    why: Reason,
    suite: options.Suite = None,
    task: options.TaskName = None,
    metric: options.Metric = None,
) -> int:
    """Judge every later commit against this one too, however slowly it drifts away."""
    return _declare(context, "pin", revision, why, suite, task, metric)


@baseline.command()
def accept(
    context: typer.Context,
    revision: Annotated[str, typer.Argument(metavar="REV", help="The commit that changed it.")],
    why: Reason,
    suite: options.Suite = None,
    task: options.TaskName = None,
    metric: options.Metric = None,
    environments: Annotated[
        bool,
        typer.Option(
            "--environments",
            help="The environments that REV was measured in do not matter: compare across them.",
        ),
    ] = False,
) -> int:
    """Accept what this commit changed: later ones are held to its level.

    With --environments, what was measured in one of the environments of REV counts in the others.
    """
    from celedger.base.model import ENVIRONMENTS

    if not environments:
        return _declare(context, "accept", revision, why, suite, task, metric)
    if metric is not None:
        raise UsageError("--environments is about all metrics", "leave out --metric")
    return _declare(context, "accept", revision, why, suite, task, ENVIRONMENTS)


@baseline.command()
def show(context: typer.Context, json: options.Json = False) -> int:
    """Show who pinned and accepted what, and why."""
    from celedger.views.verdicts import BaselineList

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
    from celedger.base.model import ENVIRONMENTS, BaselineAct, BaselineRecord
    from celedger.ledger import ulid
    from celedger.trial.workplace import choose_tasks

    if not why.strip():
        raise UsageError("a baseline needs a reason", "--why 'what changed, and why it is right'")
    with writing(context.obj, suite=suite) as session:
        commit = session.repository.resolve(revision)
        chosen = suites.load(suites.find(None, session.config, session.repository.root))
        tasks = choose_tasks(chosen, (task,) if task else ())
        names = dict.fromkeys(m.name for t in tasks for m in t.metrics)
        measured = session.ledger.trials(commit=commit.sha, suite=chosen.name, task=task)
        if metric == ENVIRONMENTS:
            if len({record.trial.environment for record in measured}) < 2:
                typed = command("run", revision, suite=suite)
                raise UsageError(
                    f"{revision} was not measured in two environments", f"type {typed}"
                )
        elif metric is not None and metric not in names:
            raise UsageError(f"no task has a metric {metric!r}", f"there are {', '.join(names)}")
        now = time.time()
        record = BaselineRecord(
            ulid.new(now, SystemRandom()), BaselineAct(act), commit.sha, chosen.name, task or "",
            metric or "", session.repository.user(), why, now,
        )  # fmt: skip
        session.ledger.record_commits([commit])
        session.ledger.record_baseline(record)
        if act == "pin" and not measured:
            typed = command("run", revision, suite=suite)
            note(context.obj.retyped(f"celedger: {revision} is not measured yet: type {typed}"))
    what = " ".join(filter(None, (chosen.name, task, (metric or "").lstrip("*"))))
    print(f"{'pinned' if act == 'pin' else 'accepted'} {commit.sha} for {what}")
    return Status.GOOD
