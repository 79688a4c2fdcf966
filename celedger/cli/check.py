"""`celedger check`: is this commit worse than its baseline?"""

from __future__ import annotations

from typing import Annotated

import typer

from celedger.cli import options
from celedger.cli.session import warn, writing


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
    from celedger import suite as suites
    from celedger.cli.progress import Progress
    from celedger.drift.judge import status
    from celedger.drift.settle import RERUNS, settle
    from celedger.model import Why
    from celedger.trial.workplace import choose_tasks, lacking, run_all, set_bench
    from celedger.views import export
    from celedger.views.verdicts import explained_text, verdicts_json, verdicts_text

    with writing(context.obj, suite=suite, device=device) as session:
        repository, ledger = session.repository, session.ledger
        commit = repository.resolve(revision)
        chosen = suites.load(suites.find(None, session.config, repository.root))
        tasks = choose_tasks(chosen, task or ())
        with set_bench(
            repository, ledger, session.config, chosen, tasks,
            gate=session.gate, tell=warn, why=Why.CHECK, label="celedger check",
        ) as bench:  # fmt: skip
            needs = lacking(bench, [commit], tasks)
            with Progress(needs, guess=lambda t: options.usual_seconds(ledger, t)) as progress:
                bench.listen = progress
                run_all(bench, needs)
                most = RERUNS if budget is None else budget
                judged = settle(repository, bench, commit, tasks, budget=most)
        if json:
            print(export.dumps(verdicts_json(commit, judged, chosen.judged)))
        else:
            print(verdicts_text(ledger, commit, judged, chosen.judged, width=options.width()))
            if explain:
                print(explained_text(ledger, judged.verdicts))
    return status(judged.verdicts, chosen.judged, gate=True, lenient=lenient)
