"""`celedger demo`: make a repository, search its planted regressions, show the answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from celedger.base.errors import Status
from celedger.cli import options


def demo(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where to make the repository.")
    ] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Varies the history.")] = 0,
    device: options.Device = None,
    json: options.Json = False,
) -> int:
    """Make a repository with four planted regressions, and find them.

    The repository holds a small made-up library that trains with torch. Its history of some
    20 commits is varied by the seed. The demo bisects a quality, a speed and a memory
    regression and a crash, and compares each answer with the truth. Typed again, it goes on
    where it was.
    """
    from celedger.base import umask
    from celedger.cli.demo_play import play, set_stage
    from celedger.cli.progress import Progress
    from celedger.cli.session import Options, keep_out_of_git, note
    from celedger.judge import memory
    from celedger.judge.derivation import derive
    from celedger.ledger import Ledger
    from celedger.views.demo import DemoResult, draw

    with umask.users():
        stage = set_stage(folder.absolute(), seed, device)
    keep_out_of_git(stage.repository, stage.settings.ledger)
    with Ledger.open(stage.settings.ledger, create=True) as ledger:
        with Progress() as progress:
            answers = play(stage, ledger, progress, progress.say)
        line = memory.line_of(stage.repository, ledger, stage.repository.resolve("HEAD").sha)
        pictures = draw(derive(ledger, line), answers)
    options.answer(DemoResult(answers), json)
    if not json:
        print(f"\nledger    {stage.settings.ledger}")
        for picture in pictures:
            print(f"picture   {picture}")
        note(f"look around: {Options(folder, None).typed('celedger')} log")
    return Status.GOOD if all(answer.honest for answer in answers) else Status.CANNOT_JUDGE
