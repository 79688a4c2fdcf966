"""`celedger noise`: measure how much a task varies when nothing changes."""

from __future__ import annotations

from typing import Annotated

import typer

from celedger.cli import options
from celedger.cli.session import note, warn, writing
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
    from celedger import suite as suites
    from celedger.cli.progress import Progress
    from celedger.model import Why
    from celedger.trial.workplace import choose_tasks, in_turns, run_all, set_bench
    from celedger.views import export
    from celedger.views.noise import noise_json, noise_text, task_noise

    with writing(context.obj, suite=suite, device=device) as session:
        repository, ledger = session.repository, session.ledger
        at = repository.resolve(commit)
        chosen = suites.load(suites.find(None, session.config, repository.root))
        tasks = choose_tasks(chosen, task or ())
        with set_bench(
            repository, ledger, session.config, chosen, tasks, gate=session.gate, tell=warn,
            why=Why.NOISE, label="celedger noise",
        ) as bench:  # fmt: skip
            needs = in_turns(bench, at, tasks, seeds=seeds, repeats=repeats)
            with Progress(needs, guess=lambda t: options.usual_seconds(ledger, t)) as progress:
                bench.listen = progress
                ran = run_all(bench, needs)
        if not needs:
            note("celedger: the ledger holds every trial asked for")
        found = [task_noise(ledger, chosen.name, t.name) for t in tasks]
        if json:
            print(export.dumps(noise_json(found)))
        else:
            print(noise_text(found, width=options.width()))
    return Status.GOOD if all(record.ok for record in ran) else Status.CANNOT_JUDGE
