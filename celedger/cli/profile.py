"""`celedger profile`: where the time and memory of a training go, outside the record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celedger.cli import options
from celedger.cli.session import diagnosing, note
from celedger.errors import Status, UsageError

if TYPE_CHECKING:
    from celedger.cli.session import Looking
    from celedger.model import Commit


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
    turns: Annotated[
        int, typer.Option(min=1, metavar="N", help="GOOD..BAD: N times good, bad, bad, good.")
    ] = 2,
    timeline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a trace for Perfetto: .json or .json.gz."),
    ] = None,
    output: options.Output = None,
    device: options.Device = None,
    json: options.Json = False,
) -> int:
    """Split steps into phases, rank operators, find stalls, advise.

    The training runs once, outside the record. Steps are timed without a profiler, operators in a
    window of ten other steps. GOOD..BAD runs both sides in turns and says which phases and
    operators got slower: 0 no difference beyond noise, 1 slower, 125 cannot be judged.
    """
    if output is not None:
        from celedger.views.picture import check_suffix

        check_suffix(output)
    if memory and output is not None and ".." in revision:
        raise UsageError("memory is drawn of one commit", "name one revision instead of a range")
    if timeline is not None:
        _check_timeline(timeline, revision, memory=memory)
    with diagnosing(context.obj, "profile", suite=suite, tasks=[task], device=device) as looking:
        probe: dict[str, object] = {"kind": "memory" if memory else "profile"}
        if steps is not None:
            probe["steps"] = steps
        if memory:
            return _memory(looking, revision, probe, output, json)
        if ".." in revision:
            return _two(looking, revision, probe, turns, output, json)
        return _one(looking, revision, probe, timeline, output, json)


def _check_timeline(path: Path, revision: str, *, memory: bool) -> None:
    if memory:
        raise UsageError("a timeline is of time, not of memory", "leave out --memory or --timeline")
    if not path.name.endswith((".json", ".json.gz")):
        raise UsageError(f"{path.name!r} is no trace", "name it FILE.json or FILE.json.gz")
    if ".." in revision:
        raise UsageError("a timeline is of one commit", "name one revision instead of a range")


def _one(
    looking: Looking,
    revision: str,
    probe: dict[str, object],
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
    seed = task.seeds[0]
    if timeline is not None:
        probe["timeline"] = True
    note(f"celedger: {task.name} at {commit.sha[:10]}, seed {seed}, outside the record")
    found = profiled(looking.bench, commit, task, seed, looking.folder, probe)
    header, advice = Header(task.name, commit, seed), advise(found)
    if timeline is not None:
        _keep(found.folder / "trace.json.gz", timeline)
    if json:
        print(export.dumps(profile_json(header, found, advice)))
    else:
        print(profile_text(header, found, advice, width=options.width()))
    if output is not None:
        from celedger.views.profile_picture import draw_profile

        note(str(draw_profile(header, found, output)))
    return Status.GOOD


def _memory(
    looking: Looking,
    revision: str,
    probe: dict[str, object],
    output: Path | None,
    json: bool,
) -> int:
    from celedger.diagnose import memory
    from celedger.diagnose.profiling import memory as remembered
    from celedger.views import export
    from celedger.views import memory as views
    from celedger.views.profile import Header

    (task,) = looking.tasks
    seed = task.seeds[0]

    def look(commit: Commit, name: str) -> memory.Memory:
        note(f"celedger: memory of {task.name} at {commit.sha[:10]}, outside the record")
        return remembered(looking.bench, commit, task, seed, looking.folder / name, probe)

    if ".." not in revision:
        commit = looking.repository.resolve(revision)
        found, header = look(commit, "one"), Header(task.name, commit, seed)
        if json:
            print(export.dumps(views.memory_json(header, found)))
        else:
            print(views.memory_text(header, found, width=options.width()))
        if output is not None:
            from celedger.views.profile_picture import draw_memory

            note(str(draw_memory(header, found, output)))
        return Status.GOOD
    sides = looking.repository.ends(revision)
    difference = memory.compare(look(sides[0], "before"), look(sides[1], "after"))
    if json:
        print(export.dumps(views.difference_json(task.name, sides, seed, difference)))
    else:
        print(views.difference_text(task.name, sides, seed, difference, width=options.width()))
    return Status.BAD if difference.larger else Status.GOOD


def _keep(trace: Path, at: Path) -> None:
    import gzip
    import shutil

    from celedger.errors import CannotJudge, MachineError
    from celedger.system import umask

    if not trace.exists():
        raise CannotJudge("the training left no trace", "give the task more steps")
    try:
        with umask.users():
            if at.name.endswith(".gz"):
                shutil.copyfile(trace, at)
            else:
                at.write_bytes(gzip.decompress(trace.read_bytes()))
    except OSError as error:
        raise MachineError(f"cannot write {at}: {error.strerror}") from error
    note(f"{at}: open it at https://ui.perfetto.dev")


def _two(
    looking: Looking,
    revision: str,
    probe: dict[str, object],
    turns: int,
    output: Path | None,
    json: bool,
) -> int:
    from celedger.diagnose.profiling import both
    from celedger.diagnose.slower import TURNS, compare
    from celedger.views import export
    from celedger.views.slower import slower_json, slower_text

    (task,) = looking.tasks
    sides = looking.repository.ends(revision)
    seed = task.seeds[0]
    left = len(TURNS) * turns

    def tell(commit: Commit) -> None:
        nonlocal left
        note(f"celedger: {task.name} at {commit.sha[:10]}, outside the record ({left} to run)")
        left -= 1

    found = both(looking.bench, sides, task, seed, looking.folder, probe, TURNS * turns, tell)
    compared = compare(*found)
    if json:
        print(export.dumps(slower_json(task.name, sides, seed, compared)))
    else:
        print(slower_text(task.name, sides, seed, compared, width=options.width()))
    if output is not None:
        from celedger.views.profile_picture import draw_difference

        note(str(draw_difference(task.name, sides, compared, output)))
    return Status.BAD if compared.slower else Status.GOOD
