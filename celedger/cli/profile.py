"""`celedger profile`: where the time and memory of a training go, outside the record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from celedger.cli import options
from celedger.cli.session import diagnosing, note
from celedger.errors import Status, UsageError

if TYPE_CHECKING:
    from celedger.cli.session import Looking
    from celedger.diagnose.profile import Profile
    from celedger.views.export import Json
    from celedger.views.profile import ProfileTarget

    # What was measured, its document, its text, and the exit status.
    _Answer = tuple[Any, dict[str, Json], str, Status]


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
    two = ".." in revision
    if output is not None:
        from celedger.views.picture import check_suffix

        check_suffix(output)
    if memory and output is not None and two:
        raise UsageError("memory is drawn of one commit", "name one revision instead of a range")
    if timeline is not None:
        if memory:
            raise UsageError(
                "a timeline is of time, not of memory", "leave out --memory or --timeline"
            )
        if not timeline.name.endswith((".json", ".json.gz")):
            raise UsageError(f"{timeline.name!r} is no trace", "name it FILE.json or FILE.json.gz")
        if two:
            raise UsageError("a timeline is of one commit", "name one revision instead of a range")
    probe: dict[str, object] = {"kind": "memory" if memory else "profile"}
    if steps is not None:
        probe["steps"] = steps
    if timeline is not None:
        probe["timeline"] = True
    measure = _memory if memory else _two if two else _one
    with diagnosing(context.obj, "profile", suite=suite, tasks=[task], device=device) as looking:
        from celedger.views import export
        from celedger.views.profile import ProfileTarget

        (chosen,) = looking.tasks
        repository = looking.repository
        commits = repository.ends(revision) if two else (repository.resolve(revision),)
        target = ProfileTarget(chosen.name, commits, chosen.seeds[0])
        measured, document, text, status = measure(looking, target, probe, turns)
        if timeline is not None:
            _save_timeline(measured.folder / "trace.json.gz", timeline)
    print(export.dumps(document) if json else text)
    if output is not None:
        from celedger.views.profile_picture import draw

        note(str(draw(target, measured, output)))
    return status


def _one(looking: Looking, target: ProfileTarget, probe: dict[str, object], turns: int) -> _Answer:
    from celedger.diagnose.advice import advise
    from celedger.diagnose.profile import profile as measure
    from celedger.views.profile import profile_json, profile_text

    (task,), (commit,) = looking.tasks, target.commits
    note(f"celedger: {task.name} at {commit.sha[:10]}, seed {target.seed}, outside the record")
    measured = measure(looking.bench, commit, task, target.seed, looking.folder, probe)
    advice = advise(measured)
    text = profile_text(target, measured, advice, width=options.width())
    return measured, profile_json(target, measured, advice), text, Status.GOOD


def _two(looking: Looking, target: ProfileTarget, probe: dict[str, object], turns: int) -> _Answer:
    from celedger.diagnose.profile import profile as measure
    from celedger.diagnose.slower import TURNS, compare
    from celedger.views.profile import slower_json, slower_text

    (task,), order = looking.tasks, TURNS * turns
    sides: tuple[list[Profile], list[Profile]] = ([], [])
    for number, letter in enumerate(order):
        side, folder = "AB".index(letter), looking.folder / str(number)
        commit, left = target.commits[side], len(order) - number
        note(f"celedger: {task.name} at {commit.sha[:10]}, outside the record ({left} to run)")
        sides[side].append(measure(looking.bench, commit, task, target.seed, folder, probe))
    compared = compare(*sides)
    text = slower_text(target, compared, width=options.width())
    status = Status.BAD if compared.verdict == "slower" else Status.GOOD
    return compared, slower_json(target, compared), text, status


def _memory(
    looking: Looking, target: ProfileTarget, probe: dict[str, object], turns: int
) -> _Answer:
    from celedger.diagnose.memory import compare
    from celedger.diagnose.memory import memory as measure
    from celedger.views.export import document
    from celedger.views.memory import difference_text, memory_text

    (task,) = looking.tasks
    sides: list[dict[str, Any]] = []
    for commit in target.commits:
        note(f"celedger: memory of {task.name} at {commit.sha[:10]}, outside the record")
        folder = looking.folder / str(len(sides))
        sides.append(measure(looking.bench, commit, task, target.seed, folder, probe))
    if len(sides) == 1:
        measured, kind, text, status = sides[0], "memory", memory_text, Status.GOOD
    else:
        measured, kind, text = compare(*sides), "memory-difference", difference_text
        status = Status.BAD if measured["verdict"] == "larger" else Status.GOOD
    answer = document(kind=kind, **target.fields(), **measured)
    return measured, answer, text(target, measured, width=options.width()), status


def _save_timeline(trace: Path, at: Path) -> None:
    import gzip

    from celedger.errors import CannotJudge, MachineError
    from celedger.system import umask

    if not trace.exists():
        raise CannotJudge("the training left no trace", "give the task more steps")
    data = trace.read_bytes()
    try:
        with umask.users():
            at.write_bytes(data if at.name.endswith(".gz") else gzip.decompress(data))
    except OSError as error:
        raise MachineError(f"cannot write {at}: {error.strerror}") from error
    note(f"{at}: open it at https://ui.perfetto.dev")
