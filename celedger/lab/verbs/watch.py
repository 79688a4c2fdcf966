"""`celedger watch`: train once with watchpoints."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from celedger.base.errors import Status, UsageError
from celedger.cli import options
from celedger.cli.session import TYPED, command_line, diagnosing, keep
from celedger.cli.synthetic import apart_for


def watch(
    context: typer.Context,
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task to train.")],
    revision: Annotated[str, typer.Argument(metavar="REV", help="The commit, or `.`.")] = "HEAD",
    limits: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE",
                     help="Another threshold for a watchpoint (docs/watch.md); may be repeated."),
    ] = None,
    seed: options.Seed = None,
    record: Annotated[
        Path | None,
        typer.Option("--record", metavar="DIR",
                     help="Keep what is recorded in DIR; judge that again where DIR has it."),
    ] = None,
    tensor: Annotated[
        str | None,
        typer.Option("--tensor", metavar="NAME",
                     help="With -o: draw the distributions of this parameter and its gradient."),
    ] = None,
    samples: Annotated[
        bool, typer.Option("--samples", help="Name the rows of the data with the largest losses.")
    ] = False,
    suite: options.Suite = None,
    device: options.Device = None,
    output: options.Output = None,
    json: options.Json = False,
) -> int:  # fmt: skip
    """Train a task once with watchpoints on its tensors.

    They see overflow, underflow, weights, gradients, activations, loss and data of any training
    with torch. `celedger show` lists the answer with its commit. Exits 1 when a watchpoint
    fired, 125 when nothing trained.
    """
    from celedger.lab.diagnose.watch import watch as watched
    from celedger.lab.views.watch import watch_headline, watch_json, watch_text
    from celedger.views.document import dumps

    if output is not None:
        from celedger.views.picture import check_suffix, save

        check_suffix(output)
    elif tensor is not None:
        raise UsageError("--tensor draws a picture", "name its file with -o")
    thresholds = dict(_setting(text) for text in limits or ())
    around = partial(apart_for, words=[revision])
    with diagnosing(
        context.obj, "watch", suite=suite, tasks=[task], device=device, around=around
    ) as session:
        (chosen,) = session.tasks
        commit = session.repository.resolve(*session.sides.revisions)
        at = chosen.seeds[0] if seed is None else seed
        report = watched(
            session.bench_at(commit),
            commit,
            chosen,
            at,
            record.absolute() if record else session.folder,
            thresholds,
            samples=samples,
        )
        if output is not None:
            from celedger.lab.views import watch_figure

            figure = (
                watch_figure.draw(report)
                if tensor is None
                else watch_figure.draw_tensor(report, tensor)
            )
            save(figure, output)
        answer = watch_json(report)
        keep(session, chosen, [commit], command_line(context, revision=commit.sha[:TYPED]),
             watch_headline(report), answer, started=session.started)  # fmt: skip
        print(dumps(answer) if json else watch_text(report, width=options.width()))
    if report.fired:
        return Status.BAD
    return Status.CANNOT_JUDGE if report.failed else Status.GOOD


def _setting(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise UsageError(f"{text!r} is no threshold", "write --set overflow=1e4") from None
