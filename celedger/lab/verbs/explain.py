"""`celedger explain GOOD..BAD`: what differs first, and where in the code."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from celedger.base.errors import TYPED, CannotJudge, Status, UsageError
from celedger.cli import options
from celedger.cli.session import diagnosing, keep, note
from celedger.lab.verbs import Seed, apart_for, command_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celedger.base.model import Commit, Task
    from celedger.cli.session import Looking
    from celedger.lab.diagnose.explain import Explanation, Side

_DTYPES = ("float64", "float32", "bfloat16", "float16")


def explain(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="A..B [TASK] | A B [TASK] | REV [TASK]",
            help="Two commits (`.` is the working tree), or one, with --a and --b; and the task "
            "[default: all of the suite].",
        ),
    ],
    a: Annotated[
        list[str] | None,
        typer.Option(
            "--a",
            metavar="KEY=VALUE",
            help="Side a: device, autocast, python, or a parameter of the task; may be repeated.",
        ),
    ] = None,
    b: Annotated[
        list[str] | None, typer.Option("--b", metavar="KEY=VALUE", help="The same for side b.")
    ] = None,
    suite: options.Suite = None,
    seed: Seed = None,
    steps: Annotated[
        int, typer.Option(min=1, metavar="N", help="End a training after N steps.")
    ] = 2000,
    replay: Annotated[
        str | None,
        typer.Option(
            "--replay",
            metavar="KEY=VALUE",
            help="Run each operator of REV's step 0 again, from the inputs it had, with "
            "device=NAME or dtype=NAME, and compare.",
        ),
    ] = None,
    output: options.Output = None,
    device: options.Device = None,
    json: options.Json = False,
) -> int:
    """Find the first difference between two runs, and where it arises.

    Both sides run with one seed under traces of every module, gradient and parameter. `celedger
    show` lists the answer with its commit. Differences that vanish again, and those of rounding,
    are told apart from ones that matter. Exits 0 if nothing differs, 1 if something does, 125 if it
    cannot be judged.
    """
    from celedger.lab.views.explain import explanations_json, explanations_text, headline
    from celedger.views import document

    if output is not None:
        from celedger.views.picture import check_suffix

        check_suffix(output)
    how = _how(replay, words, b or [], output) if replay is not None else {}
    revisions, names = _parsed(words, is_one=bool(a or b or how))
    around = partial(apart_for, words=revisions)
    with diagnosing(
        context.obj, "explain", suite=suite, tasks=names, device=device, around=around
    ) as session:
        if how:
            return _replay(context, session, a or [], seed, how, json)
        if session.sides.suite_files and len(set(session.sides.revisions)) == 1:
            print(f"{' and '.join(revisions)} have the same files: nothing differs")
            return Status.GOOD
        revision = "..".join(session.sides.revisions)
        answers, refused = _explain_all(session, revision, a or [], b or [], seed, steps)
        by_name, tree = {task.name: task for task in session.tasks}, session.bench.station.tree
        for answer in answers:
            shas = dict.fromkeys(side.commit.sha[:TYPED] for side in (answer.a, answer.b))
            line = command_line(context, words=["..".join(shas), answer.task])
            keep(session, by_name[answer.task], [answer.a.commit, answer.b.commit], line,
                 headline(answer), explanations_json([answer], tree),
                 started=session.started)  # fmt: skip
        if json:
            print(document.dumps(explanations_json(answers, tree)), flush=True)
        elif answers:
            print(explanations_text(answers, tree, options.width()))
        if output is not None:
            _draw(answers, output)
    return _status(answers, refused)


def _parsed(words: Sequence[str], *, is_one: bool) -> tuple[list[str], list[str]]:
    """Return the revisions and the tasks among the words. `is_one`: both sides are of one commit.
    Raises UsageError for too many words."""
    number = 1 if is_one or ".." in words[0] else 2
    revisions, tasks = list(words[:number]), list(words[number:])
    if len(tasks) > 1:
        raise UsageError(f"{' '.join(tasks)} are several tasks", "name one, or none for all")
    return revisions, tasks


def _status(answers: Sequence[Explanation], refused: int) -> int:
    if any(one.verdict == "difference" for one in answers):
        return Status.BAD
    refused += sum(one.verdict == "noise" for one in answers)
    return Status.CANNOT_JUDGE if refused or not answers else Status.GOOD


def _how(replay: str, words: Sequence[str], b: list[str], output: Path | None) -> dict[str, str]:
    """Return the device or type of a replay. Raises UsageError."""
    key, _, value = replay.partition("=")
    if key not in ("device", "dtype") or not value:
        raise UsageError(f"{replay!r} is not a replay setting", "write device=cpu or dtype=float64")
    if key == "dtype" and value not in _DTYPES:
        raise UsageError(f"cannot replay in the type {value!r}", f"known: {', '.join(_DTYPES)}")
    if b or output is not None or ".." in words[0]:
        raise UsageError("--replay is of one commit alone", "leave out --b, -o and the range")
    return {key: value}


def _replay(
    context: typer.Context,
    session: Looking,
    a: list[str],
    seed: int | None,
    how: dict[str, str],
    json: bool,
) -> int:
    from celedger.lab.diagnose import explain as diagnose
    from celedger.lab.views import explain as views
    from celedger.views.document import document, dumps

    beyond, records = False, []
    (revision,), tree = session.sides.revisions, session.bench.station.tree
    for task in session.tasks:
        commit = session.repository.resolve(revision)
        side = diagnose.variant(_side(session, commit), task, a)
        if "device" in how:
            diagnose.variant(side, task, [f"device={how['device']}"])  # it is there
        runner = diagnose.SideRunner(session.bench, task, session.folder, seed=seed, say=note)
        rows, lacking = diagnose.replay(runner, side, how)
        (name,) = how.values()
        about = {"task": task.name, "commit": commit.sha, "seed": runner.seed, "replayed": name}
        title = f"{task.name} at {side.name}, seed {runner.seed}: step 0 again, {name}"
        records.append(views.replay_record(about, rows, lacking, tree))
        line = command_line(context, words=[commit.sha[:TYPED], task.name])
        answer = document(replays=records[-1:])
        keep(session, task, [commit], line, views.replay_headline(rows), answer,
             started=session.started)  # fmt: skip
        if not json:
            print(views.replay_text(title, rows, lacking, tree, options.width()))
        beyond |= any(row.beyond for row in rows)
    if json:
        print(dumps(document(replays=records)))
    return Status.BAD if beyond else Status.GOOD


def _draw(answers: Sequence[Explanation], output: Path) -> None:
    from celedger.lab.views import error_by_depth
    from celedger.views import picture

    drawn = next((one for one in answers if one.layers or one.stored), None)
    if drawn is None:
        note("celedger: no plot: no module's output, parameter or state differs")
    else:
        note(f"plot: {picture.save(error_by_depth.draw(drawn), output)}")


def _explain_all(
    session: Looking, revision: str, a: list[str], b: list[str], seed: int | None, steps: int
) -> tuple[list[Explanation], int]:
    """Explain each task; return the answers, and how many tasks could not be judged."""
    from celedger.lab.diagnose.explain import SideRunner
    from celedger.lab.diagnose.explain import explain as ask
    from celedger.views.drift import environment_text
    from celedger.views.samples import environment_changes

    answers, refused = [], 0
    for task in session.tasks:
        runner = SideRunner(session.bench, task, session.folder, seed=seed, steps=steps, say=note)
        try:
            answer = ask(runner, *sides(session, task, revision, a, b))
            old, new = (runner.environment(side) for side in (answer.a, answer.b))
            if environment_changes(old, new):
                text = f"the environments differ: {environment_text(old, new)}"
                answer = replace(answer, notes=(text, *answer.notes))
            answers.append(answer)
        except CannotJudge as error:
            if len(session.tasks) == 1:
                raise
            note(f"celedger: {error}")
            refused += 1
    return answers, refused


def sides(
    session: Looking, task: Task, revision: str, a: Sequence[str], b: Sequence[str]
) -> tuple[Side, Side]:
    """Return what is compared. Raises UsageError where that makes no sense."""
    from celedger.lab.diagnose.explain import Side, variant

    repository = session.repository
    first, dots, second = revision.partition("..")
    if dots and (second not in {t.name for t in session.tasks} or repository.hash_of(second)):
        good, bad = repository.ends(revision)
        if good.sha == bad.sha and not (a or b):
            raise UsageError(f"both ends of {revision} are the same commit, {good.sha[:10]}")
        left, right = _side(session, good), _side(session, bad)
    else:  # `HEAD mlp` is no pair of revisions
        commit = repository.resolve(first)
        if not (a or b):
            raise UsageError(
                f"{first} is one commit: nothing to compare it with",
                f"write GOOD..{first}, or --a KEY=VALUE --b KEY=VALUE",
            )
        left = right = Side(commit.sha[:10], commit)
    return variant(left, task, a), variant(right, task, b)


def _side(session: Looking, commit: Commit) -> Side:
    from celedger.lab.diagnose.explain import Side
    from celedger.repo.synthetic import name_of

    return Side(name_of(commit), commit, suite_files=session.sides.suite_files.get(commit.sha))
