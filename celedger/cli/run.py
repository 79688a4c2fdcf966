"""`celedger run`: train the suite at one commit or over a range."""

from __future__ import annotations

from typing import Annotated

import typer

from celedger.cli import options
from celedger.cli.session import note, set_bench, writing


def run(
    context: typer.Context,
    revision: options.Range = "HEAD",
    suite: options.Suite = None,
    task: options.Tasks = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="COMMAND", help="Only this command of a task; may be repeated."),
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Trials of every commit, task and seed.")] = 1,
    seed: Annotated[
        list[int] | None,
        typer.Option(
            min=0, max=2**32 - 1, help="Instead of the task's own seeds; may be repeated."
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only N commits, spread over the range.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Run what the ledger holds too.")] = False,
    device: options.Device = None,
) -> int:
    """Train the suite at a commit, or at every commit of a range.

    What the ledger already holds is not run again. Exits 1 when the newest commit is worse
    than its baseline or fails, 125 when it cannot be tested.
    """
    from celedger.cli.progress import Progress
    from celedger.drift.baseline import unjudged
    from celedger.drift.judge import judge, status
    from celedger.trial.workplace import by_environment, lacking, run_all
    from celedger.views.show import CommitRows

    with writing(context.obj, suite=suite, device=device) as session:
        repository, ledger = session.repository, session.ledger
        commits = repository.commits(revision)
        if steps is not None:
            commits = repository.spread(commits, steps)
        newest = commits[-1]
        if repository.is_dirty() and newest == repository.resolve("HEAD"):
            note("celedger: the working tree has changes; HEAD is measured as committed")
        with set_bench(session, "run", task, only=only) as (bench, tasks):
            for warning in bench.suite.warnings:
                note(f"celedger: warning: {warning}")
            needs = lacking(bench, commits, tasks, seeds=seed or (), repeat=repeat, force=force)
            with Progress(bench, needs):
                run_all(bench, needs)
            if not needs:
                note("celedger: the ledger holds every trial asked for; --force runs them again")
            ran = {newest.sha, *(need.commit.sha for need in needs)}
            for environments, alike in by_environment(bench, commits, tasks):
                ran |= unjudged(ledger, alike, tasks, environments)
            for commit in commits:
                if commit.sha in ran:
                    environments = bench.environments_at(commit.sha, tasks)
                    judged = judge(repository, ledger, commit, tasks, environments)
        options.answer(CommitRows.of(ledger, newest.sha), json=False)
    return status(judged.verdicts, bench.suite.judged, gate=False)
