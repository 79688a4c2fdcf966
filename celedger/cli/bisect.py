"""`celedger bisect GOOD..BAD`: the first bad commit, with a confidence."""

from __future__ import annotations

import math
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from celedger.cli import options
from celedger.cli.explain import explained, explained_json
from celedger.cli.session import Options, note, set_bench, writing
from celedger.errors import CeledgerError, Status, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celedger.bisection import SearchStep, Symptom
    from celedger.cli.progress import Progress


_CONFIDENCE = 0.95


class Find(StrEnum):
    REGRESSED = "regressed"
    IMPROVED = "improved"


def bisect(
    context: typer.Context,
    commits: Annotated[
        str,
        typer.Argument(
            metavar="GOOD..BAD",
            help="A good commit and a later bad one; old..new where improvements are searched.",
        ),
    ],
    suite: options.Suite = None,
    task: options.Tasks = None,
    metric: options.Metrics = None,
    find: Annotated[
        Find, typer.Option(help="What to search: where it got worse, or better.")
    ] = Find.REGRESSED,
    confidence: Annotated[
        float, typer.Option(min=0.5, max=0.9999, help="How sure to be before naming a commit.")
    ] = _CONFIDENCE,
    budget: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", show_default="200", help="Run at most N trials beyond the ends'."
        ),
    ] = None,
    first_parent: Annotated[
        bool, typer.Option("--first-parent", help="Only commits of the main line.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it would take, and run nothing.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Then say what differs first from its parent.")
    ] = False,
    output: options.Output = None,
    device: options.Device = None,
    json: options.Json = False,
) -> int:
    """Find the first commit that made a training worse, or crash.

    Without --task and --metric, what got worst between the two ends is searched. Several metrics
    of one task share their trials, and each gets its own commit. Trials in the ledger count; a
    search that was killed goes on when typed again, and a trial stops once it repeats another
    bit by bit. Exits 0 when it named a commit for every metric asked for, 125 when it could not.
    """
    from celedger import bisection
    from celedger.cli.progress import Progress, usual_seconds
    from celedger.model import Why
    from celedger.views.bisect import BisectAnswer, BisectPlans, Typed
    from celedger.views.picture import check_suffix
    from celedger.views.posterior import posterior_figure

    if output is not None:
        check_suffix(output)  # before hours of training, not after
    limits = bisection.Limits(confidence)
    if budget is not None:
        limits = bisection.Limits(confidence, budget)
    old, dots, new = commits.partition("..")
    if not dots or not old or new.startswith("."):
        raise UsageError(f"{commits!r} is not a range", "write GOOD..BAD")
    with writing(context.obj, suite=suite, device=device) as session:
        repository, ledger = session.repository, session.ledger
        good = repository.resolve(old)
        history = repository.history(old, new or "HEAD", first_parent=first_parent)
        improved = find is Find.IMPROVED
        seconds = partial(usual_seconds, ledger)
        with set_bench(session, "bisect", task, why=Why.BISECT) as (bench, tasks):
            if dry_run:
                plans = [
                    bisection.plan(
                        bench, history, good, tasks, name, limits, improved=improved,
                        seconds=seconds,
                    )
                    for name in dict.fromkeys(metric or (None,))
                ]  # fmt: skip
                options.answer(BisectPlans(plans), json)
                return Status.GOOD
            if bench.requirements_differ(good.sha, history.commits[-1].sha, tasks):
                note(
                    "celedger: the requirements change in this range; every commit runs with "
                    "those of the bad end, so that it is the code that is compared"
                )
            with Progress(bench) as progress:
                answer = bisection.bisect_many(
                    bench, history, good, tasks, metric or (), limits, improved=improved,
                    seconds=seconds,
                    chosen=lambda symptoms: _introduce(symptoms, len(history.commits), progress),
                    expected=lambda trials: _warn(trials, limits.budget, progress),
                    on_step=lambda step: _tell(step, len(history.commits), progress),
                )  # fmt: skip
        words = ["--suite", session.config.suite or bench.suite.folder.name]
        words += ["--first-parent"] if first_parent else []
        words += ["--confidence", str(confidence)] if confidence != _CONFIDENCE else []
        words += ["--device", device] if device is not None else []
        command: Options = context.obj
        typed = Typed(command.typed("celedger"), command.typed("git"), tuple(words))
        more = explained_json(session, bench.suite, answer.reports) if explain and json else {}
        metrics = {m.name: m for m in ledger.metrics()}
        options.answer(BisectAnswer(answer, metrics, typed, more), json)
        if explain and not json:
            for text in explained(session, bench.suite, answer.reports):
                print(f"\n{text}", flush=True)
        name = f"bisect-{answer.reports[0].id}.png"
        picture = output or ledger.folder / ".celedger" / "plots" / name
        try:
            note(f"plot: {posterior_figure(answer.reports, metrics, picture)}")
        except (OSError, CeledgerError) as error:
            note(f"celedger: no plot: {error}")  # the answer stands without it
    return Status.GOOD if answer.named else Status.CANNOT_JUDGE


def _introduce(symptoms: Sequence[Symptom], commits: int, progress: Progress) -> None:
    first = symptoms[0]
    what = f"the crash of {first.task.name} ({first.crash})"
    if first.metric is not None:
        what = f"{first.task.name} {', '.join(symptom.name for symptom in symptoms)}"
    progress.say(f"bisecting {what} over {commits} commits")


def _warn(expected: float, budget: int, progress: Progress) -> None:
    if not math.isfinite(expected):
        progress.say("the two ends cannot be told apart so far")
        return
    trials = math.ceil(expected)
    progress.say(f"about {trials} trial{'s' * (trials != 1)} to go")
    if trials > budget:
        progress.say(f"the budget of {budget} will probably end first: --budget {trials * 2}")


def _tell(step: SearchStep, commits: int, progress: Progress) -> None:
    posterior = step.posterior
    leader = float(posterior.probability[posterior.leader])
    left = len(posterior.candidates)
    of = f"{step.metric}: " if step.metric else ""
    line = f"{step.number:3d}  {step.commit.sha[:10]}  {of}{left} of {commits} left"
    line += f", the leader has {leader:.0%}"
    if posterior.no_change > 0.05:
        line += f"; {posterior.no_change:.0%} that nothing changed"
    progress.say(line)
