"""`celedger noise`: measure how much a task varies when nothing changes."""

from __future__ import annotations

from typing import Annotated

import typer

from celedger.cli import options
from celedger.cli.session import note, set_bench, writing
from celedger.errors import Status


def noise(
    context: typer.Context,
    task: Annotated[
        list[str] | None, typer.Argument(metavar="[TASK...]", help="Tasks [default: all].")
    ] = None,
    suite: options.Suite = None,
    commit: Annotated[str, typer.Option(metavar="REV", help="The commit to train.")] = "HEAD",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds: the spread of quality.")] = 5,
    repeats: Annotated[
        int, typer.Option(min=1, help="Trials of the first seed: the spread of speed and memory.")
    ] = 3,
    device: options.Device = None,
    json: options.Json = False,
) -> int:
    """Measure how a task varies and what its trials can tell.

    The trials are ordinary ones, taken in turns over the tasks; what the ledger holds is not run
    again. Exits 125 when a trial did not end well.
    """
    from celedger.cli.progress import Progress
    from celedger.model import Why
    from celedger.trial.workplace import in_turns, run_all
    from celedger.views.noise import NoiseList, TaskNoise

    with writing(context.obj, suite=suite, device=device) as session:
        at = session.repository.resolve(commit)
        with set_bench(session, "noise", task, why=Why.NOISE) as (bench, tasks):
            needs = in_turns(bench, at, tasks, seeds=seeds, repeats=repeats)
            with Progress(bench, needs):
                ran = run_all(bench, needs)
        if not needs:
            note("celedger: the ledger holds every trial asked for")
        name = bench.suite.name
        options.answer(NoiseList([TaskNoise.of(session.ledger, name, t.name) for t in tasks]), json)
    return Status.GOOD if all(record.ok for record in ran) else Status.CANNOT_JUDGE
