"""`celedger demo`: a made-up repository, its planted regressions, and what celedger finds."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from celedger.cli import options
from celedger.errors import Status


def demo(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Where to make the repository.")
    ] = Path("demo"),
    seed: Annotated[int, typer.Option(min=0, help="Varies the history.")] = 0,
    json: options.Json = False,
) -> int:
    """Make a repository with four planted regressions, and find them.

    Its history of about 60 commits is that of a small deep-learning library, written by the
    demo and varied by the seed. A quality, a speed and a memory regression and a crash are
    searched and compared with the truth. Typed again, it goes on where it was.
    """
    from celedger.cli.progress import Progress
    from celedger.cli.session import keep_out_of_git, note
    from celedger.demo.play import Watch, play, set_stage
    from celedger.ledger import Ledger
    from celedger.system import umask
    from celedger.views import export
    from celedger.views.demo import demo_json, demo_text, draw

    with umask.users():
        stage = set_stage(folder.absolute(), seed)
    keep_out_of_git(stage.repository, stage.settings.ledger)
    with Ledger.open(stage.settings.ledger, create=True) as ledger:
        with Progress() as progress:
            findings = play(stage, ledger, Watch(progress, progress.say))
        pictures = draw(ledger, stage.repository.log("HEAD", limit=10_000)[::-1], findings)
    if json:
        print(export.dumps(demo_json(findings)))
    else:
        print(demo_text(findings))
        print(f"\nledger    {stage.settings.ledger}")
        for picture in pictures:
            print(f"picture   {picture}")
        note(f"look around: cd {shlex.quote(str(folder))} && celedger log")
    return Status.GOOD if all(f.honest for f in findings) else Status.CANNOT_JUDGE
