"""`celedger same`: is the working tree numerically what HEAD is?"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from celedger.base.errors import Status
from celedger.cli import options
from celedger.cli.session import diagnosing
from celedger.lab.verbs import Seed, apart_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from celedger.cli.session import Looking, Sides
    from celedger.lab.diagnose.same import LoggedCommit, Signatures
    from celedger.lab.diagnose.signature import Scheme
    from celedger.ledger import Ledger
    from celedger.repo import Repository
    from celedger.service.measure import Session
    from celedger.trial.runner import Bench


def same(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[A..B] [TASK]...",
            help="The tasks [default: all]. A range prints a line for each commit.",
        ),
    ] = None,
    against: Annotated[
        str, typer.Option(metavar="REV", help="The commit to compare with.")
    ] = "HEAD",
    revision: Annotated[
        str, typer.Option("--of", metavar="REV", help="Compare this instead of the working tree.")
    ] = ".",
    short: Annotated[
        bool | None,
        typer.Option(
            "--short/--steps",
            help="Two batches an epoch, with evaluation, or five whole steps [default: --short, "
            "where that takes less than 3 s].",
        ),
    ] = None,
    work: Annotated[bool, typer.Option("--work", help="Count other work as a difference.")] = False,
    seed: Seed = None,
    suite: options.Suite = None,
    device: options.Device = None,
    json: options.Json = False,
) -> int:
    """Tell in seconds whether your edit changes the numbers.

    Trains the first steps at HEAD and in the working tree with one seed, and compares every loss,
    gradient, weight and buffer bit by bit. Exits 0 if all are equal, 1 if something differs, 125 if
    it cannot be judged. A range exits 0, or 125 if a task has no signature.
    """
    from celedger.lab.diagnose.same import STATUS, answers
    from celedger.lab.diagnose.signature import SHORT, STEPS
    from celedger.lab.views.same import same_json, same_text
    from celedger.repo.synthetic import name_of
    from celedger.views import document

    scheme = None if short is None else SHORT if short else STEPS
    tasks = list(words or ())
    if tasks and ".." in tasks[0]:
        return _log(context, tasks[0], tasks[1:], scheme, seed, suite, device, json=json)
    opened: list[Session] = []

    def around(session: Session) -> AbstractContextManager[Sides]:
        opened.append(session)  # its ledger keeps signatures of commits; no other has a history
        return apart_for(session, [against, revision])

    with diagnosing(
        context.obj, "same", suite=suite, tasks=tasks, device=device, around=around
    ) as session:
        _keep_launchers(session.bench, opened[0].repository)
        a, b = map(session.repository.resolve, session.sides.revisions)
        title = f"{name_of(b)}, beside {name_of(a)}"
        if a.tree == b.tree:
            print(f"{title}: the same files, nothing to compare")
            return Status.GOOD
        if session.ledger is not opened[0].ledger:
            session.ledger.take_trials(opened[0].ledger, [a.sha])
        rows = list(answers(_signatures(session, opened[0].ledger, seed), a, b, scheme))
    if json:
        print(document.dumps(same_json(a.sha, b.sha, rows)), flush=True)
    else:
        print(same_text(title, rows), flush=True)
    statuses = {STATUS[row.kind] for row in rows}
    if work and any(row.work for row in rows):
        statuses.add(Status.BAD)
    return next(s for s in (Status.BAD, Status.CANNOT_JUDGE, Status.GOOD) if s in statuses)


def _keep_launchers(bench: Bench, repository: Repository) -> None:
    from celedger.system.warm import LAUNCHERS

    station = bench.station
    station.launchers = station.launchers.kept(repository.state_dir / LAUNCHERS)


def _signatures(session: Looking, ledger: Ledger, seed: int | None) -> Iterator[Signatures]:
    from celedger.lab.diagnose.same import Signatures

    for task in session.tasks:
        chosen = task.seeds[0] if seed is None else seed
        files = session.sides.suite_files
        yield Signatures(session.bench, ledger, task, chosen, session.folder, files)


def _log(
    context: typer.Context,
    revisions: str,
    tasks: Sequence[str],
    scheme: Scheme | None,
    seed: int | None,
    suite: str | None,
    device: str | None,
    *,
    json: bool,
) -> int:
    """Print the signatures of the main line's commits of a range, the oldest first."""
    from celedger.lab.diagnose.same import log, quick_or_last
    from celedger.lab.views.same import log_json, log_line
    from celedger.views import document

    rows: dict[str, list[LoggedCommit]] = {}
    with diagnosing(context.obj, "same", suite=suite, tasks=tasks, device=device) as session:
        if typed := context.obj.attended:
            _keep_launchers(session.bench, session.repository)
        old, _, new = revisions.partition("..")
        history = session.repository.history(old or "HEAD", new or "HEAD", first_parent=True)
        for each in _signatures(session, session.ledger, seed):
            own = rows.setdefault(each.task.name, [])
            if not json and len(session.tasks) > 1:
                print(f"{each.task.name}:", flush=True)
            every = [history.good, *history.commits]
            commits = (
                every if typed else quick_or_last(every, partial(each.is_quick, len(every) - 2))
            )
            # Nobody waits for an answer that was not asked for: it disturbs no measurement.
            with nullcontext() if typed else session.bench.station.device_held():
                for row in log(each, commits, scheme or each.scheme()):
                    own.append(row)
                    if not json:
                        print(log_line(row), flush=True)
                if len(own) < len(every) and own[-1].is_more_work:  # of which commit?
                    own[:] = log(each, every, scheme or each.scheme())
    if json:
        print(document.dumps(log_json(rows)), flush=True)
    judged = all(any(not row.problem for row in own) for own in rows.values())
    return Status.GOOD if judged else Status.CANNOT_JUDGE
