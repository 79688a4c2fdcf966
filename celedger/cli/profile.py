"""`celedger profile`: where the time and memory of a training go, outside the record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celedger.cli import options
from celedger.cli.session import diagnosing, note
from celedger.errors import Status

if TYPE_CHECKING:
    from celedger.cli.session import Looking


def profile(
    context: typer.Context,
    revision: Annotated[
        str, typer.Argument(metavar="REV | GOOD..BAD", help="A commit, or two to compare.")
    ],
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task.")],
    suite: options.Suite = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Look at memory instead of time.")
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="End each training after so many steps [default: all]."),
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a trace for Perfetto: .json or .json.gz."),
    ] = None,
    output: options.Output = None,
    device: options.Device = None,
    json: options.Json = False,
) -> int:
    """Split every step into its phases, rank operators, find stalls, and advise.

    The training runs once, outside the record. Steps are timed without a profiler, operators in a
    window of ten other steps. GOOD..BAD runs both sides in turns and says which phases and
    operators got slower: 0 no difference beyond noise, 1 slower, 125 cannot be judged.
    """
    from celedger.views.picture import check_suffix

    if output is not None:
        check_suffix(output)
    with diagnosing(context.obj, "profile", suite=suite, tasks=[task], device=device) as looking:
        return _one(looking, revision, steps, timeline, output, json)


def _one(
    looking: Looking,
    revision: str,
    steps: int | None,
    timeline: Path | None,
    output: Path | None,
    json: bool,
) -> int:
    from celedger.diagnose.advice import advise
    from celedger.diagnose.profiling import profile as profiled
    from celedger.views import export
    from celedger.views.profile import Header, profile_json, profile_text

    (task,) = looking.tasks
    commit = looking.repository.resolve(revision)
    probe: dict[str, object] = {"kind": "profile"}
    if steps is not None:
        probe["steps"] = steps
    if timeline is not None:
        probe["timeline"] = True
    seed = task.seeds[0]
    note(f"celedger: {task.name} at {commit.sha[:10]}, seed {seed}, outside the record")
    found = profiled(looking.bench, commit, task, seed, looking.folder / "run", probe)
    header, advice = Header(task.name, commit, seed), advise(found)
    if json:
        print(export.dumps(profile_json(header, found, advice)))
    else:
        print(profile_text(header, found, advice, width=options.width()))
    return Status.GOOD
