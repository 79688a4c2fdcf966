"""`celedger demo`: make a repository, search its planted regressions, show the answers; or unpack
the ledger that has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celedger.base.errors import Status
from celedger.cli import options, verbs
from celedger.cli.session import Options

if TYPE_CHECKING:
    from celedger.views.demo import DemoAnswer


def demo(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where to make the repository.")
    ] = Path("demo"),
    example: Annotated[
        bool, typer.Option("--example", help="Train nothing: unpack the example ledger.")
    ] = False,
    device: options.Device = None,
) -> int:
    """Make a repository with four planted regressions, and find them.

    The repository holds a small library that trains with torch, and 20 commits. The demo
    bisects a quality, a speed and a memory regression and a crash, and compares each answer
    with the truth. Typed again, it goes on where it was. With --example nothing is trained
    and torch is not needed: all commits are measured in the ledger that comes with it.
    """
    status = (_unpack if example else _play)(folder, device)
    print(f"\nlook around:\n  {Options(folder, None).typed('celedger')} status")
    return status


def _unpack(folder: Path, device: str | None) -> Status:
    from celedger.base import config, files
    from celedger.cli.session import keep_out_of_git
    from celedger.demo import materialise, unpack_ledger
    from celedger.repo import Repository

    with files.as_the_user():
        materialise(folder.absolute())
    repository = Repository.open(folder)
    ledger = config.load(repository.root, {}, device=device).ledger
    unpack_ledger(ledger)
    keep_out_of_git(repository, ledger)
    print(f"repository  {repository.root}\nledger      {ledger}")
    return Status.GOOD


def _play(folder: Path, device: str | None) -> Status:
    from celedger.base import files
    from celedger.cli.demo_play import play, set_stage
    from celedger.cli.progress import Progress
    from celedger.cli.session import keep_out_of_git
    from celedger.ledger import Ledger
    from celedger.views.demo import result_text

    with files.as_the_user():
        repository, settings, planted = set_stage(folder.absolute(), device)
    keep_out_of_git(repository, settings.ledger)
    with Ledger.open(settings.ledger, create=True) as ledger, Progress() as progress:
        answers = play(repository, settings, planted, ledger, progress, progress.say)
    pictures = [*_draw(folder, answers)] if verbs.is_installed("plot") else []
    print(f"{result_text(answers)}\n\nledger    {settings.ledger}")
    for picture in pictures:
        print(f"picture   {picture}")
    return Status.GOOD if all(answer.honest for answer in answers) else Status.CANNOT_JUDGE


def _draw(folder: Path, answers: Sequence[DemoAnswer]) -> Iterator[str]:
    """Draw the history of every metric with a planted change, and each bisect's posterior."""
    command = Options(folder, None)
    for answer in answers:
        if answer.metric:
            words = ["drift", "--task", answer.task, "--metric", answer.metric]
            yield verbs.answer_of("plot", words, command).strip()
        if answer.report is not None and answer.report.posterior:
            yield verbs.answer_of("plot", ["bisect", answer.report.id], command).strip()
