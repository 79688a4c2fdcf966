"""`celedger table`: metrics over the parameters that vary, as text, TSV or JSON."""

from __future__ import annotations

from typing import Annotated

import typer

from celedger.cli import options
from celedger.cli.session import reading
from celedger.errors import Status, UsageError


def table(
    context: typer.Context,
    revision: Annotated[
        str, typer.Argument(metavar="REV | A..B", help="A commit, or a range of them.")
    ] = "HEAD",
    suite: options.Suite = None,
    task: options.Tasks = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A parameter to show, or seed; may be repeated [default: those that vary].",
        ),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A metric to show; may be repeated [default: those that are judged].",
        ),
    ] = None,
    tsv: Annotated[bool, typer.Option("--tsv", help="Print tab-separated numbers.")] = False,
    json: options.Json = False,
) -> int:
    """Show metrics over parameters: the answer of a grid.

    A row is a task with its parameters, a value the mean over its trials and their standard
    deviation. Only what differs between the rows is shown.
    """
    from celedger.views import export
    from celedger.views.ablation import ablation, ablation_json, ablation_text, ablation_tsv

    if tsv and json:
        raise UsageError("--tsv and --json exclude each other", "choose one")
    with reading(context.obj) as session:
        commits = (
            options.measured(session, revision)[0]
            if ".." in revision
            else [session.repository.resolve(revision)]
        )
        found = ablation(
            session.ledger, commits, suite=suite, tasks=task or (), params=param or (),
            metrics=metric or (),
        )  # fmt: skip
        if json:
            print(export.dumps(ablation_json(found)))
        elif tsv:
            print(ablation_tsv(found))
        else:
            print(ablation_text(found, width=options.width()))
    return Status.GOOD
