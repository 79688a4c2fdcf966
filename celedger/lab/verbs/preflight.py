"""`celedger preflight`: the checks before trusting a training."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from celedger.base.errors import TYPED, Status
from celedger.cli import options
from celedger.cli.session import diagnosing, keep
from celedger.lab.verbs import Seed, apart_for, command_line


def preflight(
    context: typer.Context,
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task to check.")],
    revision: Annotated[str, typer.Argument(metavar="REV", help="The commit, or `.`.")] = "HEAD",
    seed: Seed = None,
    suite: options.Suite = None,
    device: options.Device = None,
    json: options.Json = False,
) -> int:
    """Check a training before trusting it.

    Loss at the start, overfitting one batch, inputs, labels, modes, gradients, repeatability.

    Observes the first 200 steps and an evaluation of any training with torch. `celedger show`
    lists the answer with its commit. Exits 1 when a check failed, 125 when the training fails or
    cannot be observed.
    """
    from celedger.lab.diagnose.preflight import preflight as run_checks
    from celedger.lab.views.preflight import preflight_headline, preflight_json, preflight_text
    from celedger.views import document

    around = partial(apart_for, words=[revision])
    with diagnosing(
        context.obj, "preflight", suite=suite, tasks=[task], device=device, around=around
    ) as session:
        (chosen,) = session.tasks
        commit = session.repository.resolve(*session.sides.revisions)
        at = chosen.seeds[0] if seed is None else seed
        checks = run_checks(session.bench_at(commit), commit, chosen, at, session.folder)
        answer = preflight_json(chosen, commit, at, checks)
        keep(session, chosen, [commit], command_line(context, revision=commit.sha[:TYPED]),
             preflight_headline(checks), answer, started=session.started)  # fmt: skip
    if json:
        print(document.dumps(answer))
    else:
        print(preflight_text(chosen, commit, at, checks, width=options.width()))
    return Status.BAD if any(one["status"] == "fail" for one in checks) else Status.GOOD
