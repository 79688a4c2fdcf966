"""`celedger same`: is the working tree numerically what HEAD is?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from celedger.base.errors import Status
from celedger.cli import options, synthetic
from celedger.cli.session import diagnosing

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from celedger.cli.session import Session, Sides


def same(
    context: typer.Context,
    tasks: Annotated[
        list[str] | None, typer.Argument(metavar="[TASK]...", help="The tasks [default: all].")
    ] = None,
    against: Annotated[
        str, typer.Option(metavar="REV", help="The commit to compare with.")
    ] = "HEAD",
    revision: Annotated[
        str, typer.Option("--of", metavar="REV", help="Compare this, not the working tree.")
    ] = ".",
    short: Annotated[
        bool | None,
        typer.Option(
            "--short/--steps",
            help="Two batches an epoch, with evaluation, or five whole steps [default: --short, "
            "where that takes less than 3 s].",
        ),
    ] = None,
    work: Annotated[bool, typer.Option("--work", help="Other work is a difference, too.")] = False,
    seed: options.Seed = None,
    suite: options.Suite = None,
    device: options.Device = None,
    json: options.Json = False,
) -> int:
    """Tell in seconds whether your edit changes the numbers.

    Trains the first steps at HEAD and in the working tree with one seed, and compares every loss,
    gradient, weight and buffer bit by bit. Exits 0 when all are equal, 1 when something differs,
    125 when it cannot be told.
    """
    from celedger.lab.diagnose.same import STATUS, Signatures, answers
    from celedger.lab.diagnose.signature import SHORT, STEPS
    from celedger.lab.views.same import same_json, same_text
    from celedger.system.warm import LAUNCHERS
    from celedger.views import document

    opened: list[Session] = []

    def around(session: Session) -> AbstractContextManager[Sides]:
        opened.append(session)  # its ledger keeps signatures of commits; no other has a history
        return synthetic.apart_for(session, [against, revision])

    with diagnosing(
        context.obj, "same", suite=suite, tasks=tasks or (), device=device, around=around
    ) as session:
        station = session.bench.station
        station.launchers = station.launchers.kept(opened[0].repository.state_dir / LAUNCHERS)
        a, b = map(session.repository.resolve, session.sides.revisions)
        title = f"{synthetic.name_of(b)}, beside {synthetic.name_of(a)}"
        if a.tree == b.tree:
            print(f"{title}: the same files, nothing to compare")
            return Status.GOOD
        if session.ledger is not opened[0].ledger:
            session.ledger.take_trials(opened[0].ledger, [a.sha])
        signatures = (
            Signatures(
                session.bench, opened[0].ledger, task, task.seeds[0] if seed is None else seed,
                session.folder, session.sides.suite_files,
            )
            for task in session.tasks
        )  # fmt: skip
        scheme = None if short is None else SHORT if short else STEPS
        rows = list(answers(signatures, a, b, scheme))
    if json:
        print(document.dumps(same_json(a.sha, b.sha, rows)), flush=True)
    else:
        print(same_text(title, rows), flush=True)
    statuses = {STATUS[row.kind] for row in rows}
    if work and any(row.work for row in rows):
        statuses.add(Status.BAD)
    return next(s for s in (Status.BAD, Status.CANNOT_JUDGE, Status.GOOD) if s in statuses)
