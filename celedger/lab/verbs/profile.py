"""`celedger profile`: where the time and memory of a training go, without recording a trial."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from celedger.base.errors import TYPED, Status, UsageError
from celedger.cli import options
from celedger.cli.session import diagnosing, keep, note
from celedger.lab.verbs import apart_for, command_line

if TYPE_CHECKING:
    from celedger.cli.session import Looking
    from celedger.lab.views.profile import ProfileTarget
    from celedger.repo import Repository


def profile(
    context: typer.Context,
    revision: Annotated[
        str,
        typer.Argument(
            metavar="REV | GOOD..BAD", help="A commit (`.`: the working tree), or two to compare."
        ),
    ],
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task.")],
    suite: options.Suite = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Look at memory instead of time.")
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="End each training after N steps [default: all]."),
    ] = None,
    turns: Annotated[
        int, typer.Option(min=1, metavar="N", help="At most N rounds of good, bad, bad, good.")
    ] = 2,
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="SWITCH",
            help="Also run with this switch: workers=0,2,4, amp, compile, channels_last, fused, "
            "pin_memory, cudnn_benchmark, inplace, checkpointing, all.",
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option(metavar="DURATION", help="With --try: start no run that would end later.")
    ] = "10m",
    output: options.Output = None,
    device: options.Device = None,
    json: options.Json = False,
) -> int:
    """Split steps into phases, rank operators, find stalls, advise.

    The training runs once, and `celedger show` lists the answer with its commit. Steps are timed
    without a profiler, operators in a window of ten other steps. GOOD..BAD runs both sides in turns
    and says which phases and operators got slower: 0 no difference beyond noise, 1 slower, 125
    cannot be judged. --try runs the commit with and without a switch of torch, and compares time,
    memory and loss.
    """
    two = ".." in revision
    _check_usage(two, memory, steps, output)
    seconds = options.duration("--budget", budget)
    if tries:
        _check_tries(two, memory, output)
    probe: dict[str, object] = {"kind": "memory" if memory else "profile"}
    if steps is not None:
        probe["steps"] = steps
    around = partial(apart_for, words=[revision])
    with diagnosing(
        context.obj, "profile", suite=suite, tasks=[task], device=device, around=around
    ) as looking:
        from celedger.lab.views.profile import ProfileTarget
        from celedger.views.document import document, dumps

        (chosen,) = looking.tasks
        repository = looking.repository
        name = "..".join(looking.sides.revisions)
        commits = repository.ends(name) if two else (repository.resolve(name),)
        target = ProfileTarget(chosen.name, commits, chosen.seeds[0])
        if tries:
            answered = _try(looking, target, tries, 2 * turns, seconds, steps)
        else:
            sides = _measure(looking, target, probe, turns if two and not memory else 0)
            answered = _answer(repository, target, sides, memory=memory)
        kind, measured, headline, text, status = answered
        answer = document(kind=kind, **target.fields(), **measured)
        line = command_line(context, revision="..".join(commit.sha[:TYPED] for commit in commits))
        keep(looking, chosen, commits, line, headline, answer, started=looking.started)
    print(dumps(answer) if json else text)
    if output is not None:
        from celedger.lab.views import profile_picture
        from celedger.views import picture

        note(str(picture.save(profile_picture.draw(target, measured), output)))
    return status


def _check_usage(two: bool, memory: bool, steps: int | None, output: Path | None) -> None:
    from celedger.lab.diagnose.profile import LEAST_STEPS

    if steps is not None and not memory and steps < LEAST_STEPS:
        reason = f"{steps} steps are too few to profile"
        raise UsageError(reason, f"give --steps {LEAST_STEPS} or more, or leave it out")
    if output is not None:
        from celedger.views.picture import check_suffix

        check_suffix(output)
        if two:
            reason = "a picture shows the steps of one commit"
            raise UsageError(reason, "name one revision, or leave -o out: the tables have all")


def _check_tries(two: bool, memory: bool, output: Path | None) -> None:
    if two:
        raise UsageError("--try is of one commit", "name one revision instead of a range")
    for name, given in {"--memory": memory, "-o": output}.items():
        if given:
            raise UsageError(f"--try cannot go with {name}", "run them one after the other")


def _try(
    looking: Looking,
    target: ProfileTarget,
    texts: list[str],
    rounds: int,
    budget: float,
    steps: int | None,
) -> tuple[str, dict[str, Any], str, str, Status]:
    """Try switches in turns; return what `_answer` returns."""
    import time

    from celedger.lab.diagnose import tries
    from celedger.lab.diagnose.profile import run
    from celedger.lab.views.tries import tries_headline, tries_text

    (task,), (commit,) = looking.tasks, target.commits
    began, lengths = time.monotonic(), [0.0]

    def run_with(switch: tries.Switch, length: Mapping[str, object]) -> dict[str, Any]:
        note(f"celedger: {task.name} at {commit.sha[:10]}, {switch}, not recorded")
        started = time.monotonic()
        probe = {"kind": "profile", "switch": switch.name, "value": switch.value, **length}
        folder = looking.folder / str(len(lengths))
        try:
            return run(looking.bench, commit, task, target.seed, folder, probe)
        finally:
            lengths.append(time.monotonic() - started)

    def time_is_over() -> bool:
        return time.monotonic() - began + max(lengths) > budget

    measured = tries.measure(tries.parse(texts), rounds, run_with, time_is_over, steps)
    text = tries_text(target, measured, width=options.width())
    return "profile-tries", measured, tries_headline(measured), text, Status.GOOD


def _measure(
    looking: Looking, target: ProfileTarget, probe: dict[str, object], turns: int
) -> list[list[dict[str, Any]]]:
    """Measure each commit once, or two of them in up to so many turns; return what was measured of
    either."""
    from celedger.lab.diagnose.memory_growth import memory
    from celedger.lab.diagnose.profile import profile as time
    from celedger.lab.diagnose.slower import in_turns

    measure = memory if probe["kind"] == "memory" else time
    (task,), count = looking.tasks, len(target.commits)

    def run(side: int, left: int) -> dict[str, Any]:
        commit, most = target.commits[side], "at most " if turns else ""
        more = f" ({most}{left} to run)" if left > 1 else ""
        note(f"celedger: {task.name} at {commit.sha[:10]}, not recorded{more}")
        folder = looking.folder / str(left)
        return measure(looking.bench_at(commit), commit, task, target.seed, folder, probe)

    return in_turns(run, turns) if turns else [[run(side, count - side)] for side in range(count)]


def _answer(
    repository: Repository,
    target: ProfileTarget,
    sides: list[list[dict[str, Any]]],
    *,
    memory: bool,
) -> tuple[str, dict[str, Any], str, str, Status]:
    """Return the kind of the document, the document, its headline and text, and the exit status."""
    from celedger.lab.diagnose import memory_growth as memories
    from celedger.lab.diagnose import slower
    from celedger.lab.diagnose.blame import blame_lines
    from celedger.lab.diagnose.explain import code_change
    from celedger.lab.views import memory as of_memory
    from celedger.lab.views import profile as of_time
    from celedger.lab.views.explain import hunk_record

    width = options.width()
    if len(sides) == 1:
        ((measured,),) = sides
        kind = "memory" if memory else "profile"
        text = of_memory.memory_text if memory else of_time.profile_text
        headline = of_memory.memory_headline if memory else of_time.profile_headline
        lines = text(target, measured, width=width)
        return kind, measured, headline(measured), lines, Status.GOOD
    if memory:
        (before,), (after,) = sides
        measured = memories.compare(before, after)
        kind, text = "memory-difference", of_memory.difference_text
        headline = of_memory.difference_headline
    else:
        measured = slower.compare(*sides)
        change = code_change(repository, *(commit.sha for commit in target.commits))
        blamed = blame_lines(slower.inclusive(sides[0]), slower.inclusive(sides[1]), change)
        measured["hunks"] = [hunk_record(one) for one in blamed]
        kind, text = "profile-difference", of_time.slower_text
        headline = of_time.difference_headline
    statuses = {"slower": Status.BAD, "larger": Status.BAD, "undecided": Status.CANNOT_JUDGE}
    status = statuses.get(measured["verdict"], Status.GOOD)
    return kind, measured, headline(measured), text(target, measured, width=width), status
