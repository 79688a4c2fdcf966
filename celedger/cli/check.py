"""`celedger check`: is this commit worse than its baseline?"""

from __future__ import annotations

from typing import Annotated

import typer

from celedger.cli import options
from celedger.cli.session import set_bench, writing


def check(
    context: typer.Context,
    revision: Annotated[str, typer.Argument(metavar="REV", help="A commit.")] = "HEAD",
    suite: options.Suite = None,
    task: options.Tasks = None,
    budget: Annotated[
        int | None,
        typer.Option(
            min=0, show_default="6", help="Extra trials a task may take to settle a suspicion."
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
    json: options.Json = False,
) -> int:
    """Judge a commit against its baseline.

    Trials that the ledger lacks are run first; suspicious values are measured again with fresh
    seeds, speed in turns with the baseline. Only what the suite declares decides: exits 1 when
    something is worse, 125 when something cannot be told, also because it is too noisy to tell a
    change of its floor (--lenient passes that), 0 otherwise. `git bisect run celedger check`
    works, and skips what cannot be told.
    """
    from celedger.cli.progress import Progress
    from celedger.drift.judge import status
    from celedger.drift.settle import RERUNS, settle
    from celedger.model import Why
    from celedger.trial.workplace import lacking, run_all
    from celedger.views.verdicts import VerdictList

    with writing(context.obj, suite=suite, device=device) as session:
        commit = session.repository.resolve(revision)
        with set_bench(session, "check", task, why=Why.CHECK) as (bench, tasks):
            needs = lacking(bench, [commit], tasks)
            with Progress(bench, needs):
                run_all(bench, needs)
                most = RERUNS if budget is None else budget
                judged = settle(session.repository, bench, commit, tasks, budget=most)
        declared = bench.suite.judged
        options.answer(VerdictList(session.ledger, commit, judged, declared, explain), json)
    return status(judged.verdicts, declared, gate=True, lenient=lenient)
