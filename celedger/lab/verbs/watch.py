"""`celedger watch`: train once with watchpoints."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celedger.base.errors import TYPED, Status, UsageError
from celedger.cli import options
from celedger.cli.session import diagnosing, keep
from celedger.lab.verbs import Seed, apart_for, command_line

if TYPE_CHECKING:
    from celedger.lab.diagnose.watch import WatchReport


def watch(
    context: typer.Context,
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task to train.")],
    revision: Annotated[str, typer.Argument(metavar="REV", help="The commit, or `.`.")] = "HEAD",
    limits: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE",
                     help="Set the threshold of a watchpoint (docs/watch.md); may be repeated."),
    ] = None,
    seed: Seed = None,
    tensor: Annotated[
        str | None,
        typer.Option("--tensor", metavar="NAME[SLICE]",
                     help="Print these values of a parameter or a module's output, and of its "
                     "gradient."),
    ] = None,
    dump: Annotated[
        Path | None,
        typer.Option("--dump", metavar="FOLDER", help="With --tensor: write the values as .npy."),
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

    They cover overflow, underflow, weights, gradients, activations, loss and data of any training
    with torch. `celedger show` lists the answer with its commit. Exits 1 if a watchpoint fired, 125
    if nothing trained.
    """
    from celedger.lab.diagnose.watch import check_tensor
    from celedger.lab.diagnose.watch import watch as watched
    from celedger.lab.views.watch import watch_headline, watch_json, watch_text
    from celedger.views.document import dumps

    if output is not None:
        from celedger.views.picture import check_suffix, save

        check_suffix(output)
    if dump is not None and tensor is None:
        raise UsageError("--dump writes one tensor", "name it with --tensor")
    thresholds = dict(_setting(text) for text in limits or ())
    around = partial(apart_for, words=[revision])
    with diagnosing(
        context.obj, "watch", suite=suite, tasks=[task], device=device, around=around
    ) as session:
        (chosen,) = session.tasks
        commit = session.repository.resolve(*session.sides.revisions)
        at = chosen.seeds[0] if seed is None else seed
        wanted = {"samples": samples, "tensor": tensor, "dump": dump is not None}
        bench, folder = session.bench_at(commit), session.folder
        report = watched(bench, commit, chosen, at, folder, thresholds, options=wanted)
        if tensor is not None:
            check_tensor(report, tensor)
        if dump is not None:
            _dump(report, dump)
        if output is not None:
            from celedger.lab.views.watch_figure import draw

            save(draw(report), output)
        answer = watch_json(report)
        keep(session, chosen, [commit], command_line(context, revision=commit.sha[:TYPED]),
             watch_headline(report), answer, started=session.started)  # fmt: skip
        print(dumps(answer) if json else watch_text(report, width=options.width()))
    if report.fired:
        return Status.BAD
    return Status.CANNOT_JUDGE if report.failed else Status.GOOD


def _dump(report: WatchReport, at: Path) -> None:
    """Write the .npy files; of several processes each into a folder of its number."""
    from celedger.base import files
    from celedger.base.errors import explained

    folders = [j.training.dumped for j in report.trainings if j.training.values]
    with explained(f"cannot write to {at}"), files.as_the_user():
        for number, folder in enumerate(folders):
            into = at / str(number) if len(folders) > 1 else at
            into.mkdir(parents=True, exist_ok=True)
            for path in sorted(folder.glob("*.npy")) if folder else ():
                (into / path.name).write_bytes(path.read_bytes())


def _setting(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise UsageError(f"{text!r} is not a threshold", "write --set overflow=1e4") from None
