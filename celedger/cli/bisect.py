"""`celedger bisect GOOD..BAD`: the first bad commit, with a confidence."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from celedger.base.errors import TYPED, CannotJudge, CeledgerError, Status, UsageError
from celedger.base.text import whole_percent
from celedger.cli import app, options
from celedger.cli.session import Options, no_incident, note, writing
from celedger.service.measure import Session, load_suite, open_bench, record_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from celedger.base.model import Commit, Environment, Metric, Task
    from celedger.cli.progress import Progress
    from celedger.judge.bisection import Answer, Limits, Symptom
    from celedger.judge.incident import Incident
    from celedger.ledger import Ledger
    from celedger.repo import History, Repository
    from celedger.stats.firstbad import Posterior
    from celedger.trial.runner import Bench

_CONFIDENCE = 0.95


def bisect(
    context: typer.Context,
    commits: Annotated[
        str,
        typer.Argument(
            metavar="GOOD..BAD | ID | REV",
            help="A good commit and a later bad one (with --find improved, an old and a new one), "
            "or an incident; with --packages, a commit.",
        ),
    ],
    suite: options.Suite = None,
    task: options.Tasks = None,
    metric: options.Metrics = None,
    find: Annotated[
        Literal["regressed", "improved"],
        typer.Option(help="Search for where it got worse, or better."),
    ] = "regressed",
    confidence: Annotated[
        float,
        typer.Option(
            min=0.5, max=0.9999, metavar="P", help="How sure to be before naming a commit."
        ),
    ] = _CONFIDENCE,
    budget: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Run at most N trials besides the ends' [default: 200]."
        ),
    ] = None,
    first_parent: Annotated[
        bool, typer.Option("--first-parent", help="Search only the main line.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Estimate the cost; run nothing.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Search for further causes.")] = False,
    prove: Annotated[
        bool, typer.Option("--prove", help="Then train the bad end without the named commit.")
    ] = False,
    hunks: Annotated[
        bool, typer.Option("--hunks", help="Then search the hunks of the named commit.")
    ] = False,
    packages: Annotated[
        str | None,
        typer.Option(
            metavar="OLD..NEW",
            help="Search the upgrade between two lock files, or environments of the ledger, at one "
            "commit instead of a range.",
        ),
    ] = None,
    no_signature: Annotated[
        bool, typer.Option("--no-signature", help="Do not run first steps to choose trials.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Then find what makes it worse than its parent.")
    ] = False,
    output: options.Output = None,
    device: options.Device = None,
    workers: options.Workers = None,
    engine: options.Engine = None,
    json: options.Json = False,
) -> int:
    """Find the first commit that made a training worse, or crash.

    Without --task and --metric it searches the metric that got worst between the two ends. Several
    metrics of one task share their trials, and each gets its own commit. Trials in the ledger
    count: type the same command again to continue a killed search. A trial stops once it repeats
    another bit by bit. --packages takes files with exact pins (requirements, the output of `pip
    freeze`, uv.lock), or environments as `status` names them.
    Exits 0 if it named a commit for every metric, 125 if it could not.
    """
    from json import loads

    from celedger.base.model import Purpose
    from celedger.cli.progress import Progress
    from celedger.judge import bisection, memory
    from celedger.judge.bisection.symptom import most_telling
    from celedger.service.notify import announce
    from celedger.views.bisect import BisectAnswer, bisect_plans
    from celedger.views.incidents import next_search
    from celedger.views.picture import check_suffix

    if output is not None:  # before hours of training, not after
        if not app.is_installed("plot"):
            raise UsageError("--output needs the verb `plot`, which is not installed")
        check_suffix(output)
    if explain and not app.is_installed("explain"):
        raise UsageError("--explain needs the verb `explain`, which is not installed")
    if math.isnan(confidence):  # which passes the bounds of the option
        raise UsageError("--confidence is nan, not a number from 0.5 to 0.9999")
    limits = bisection.Limits(confidence, every_cause=every)
    if budget is not None:
        limits = replace(limits, budget=budget)
    with writing(
        context.obj, suite=suite, device=device, workers=workers, engine=engine
    ) as session:
        if packages is not None:
            if prove or hunks or explain or dry_run or every or session.config.engine != "local":
                excluded = "--prove, --hunks, --explain, --dry-run, --all or an engine"
                raise UsageError(f"--packages cannot be combined with {excluded}")
            return _search_packages(
                context.obj, session, commits, packages, task, metric or (), limits,
                improved=find == "improved", json=json,
            )  # fmt: skip
        sign = not no_signature and session.config.engine == "local"
        limits = replace(limits, sign=sign)
        incident = _incident(session, commits)
        if incident is not None:
            if not task:  # those of its tasks that the suite still has
                moved = list(dict.fromkeys(m.task for m in incident.metrics))
                names = {each.name for each in load_suite(session).tasks}
                task = [name for name in moved if name in names] or moved
            commits = f"{incident.known_good}..{incident.first_bad[-1]}"
        history = _range(session.repository, commits, first_parent)
        with open_bench(session, "bisect", task, why=Purpose.BISECT, together=True) as (
            bench,
            tasks,
        ):
            others: list[tuple[Task, str]] = []
            if incident is not None and not metric:
                (first, name), *others = most_telling(bench, incident.metrics, tasks)
                tasks, metric = (first,), [name] if name else None
            improved = find == "improved"
            if dry_run:
                plans = [
                    bisection.plan(bench, history, tasks, name, limits, improved=improved)
                    for name in dict.fromkeys(metric or (None,))
                ]
                options.answer(bisect_plans(plans), json)
                return Status.GOOD
            shas, station = [c.sha for c in (history.good, *history.commits)], bench.station
            if station.requirements_differ(shas[0], shas[-1], tasks):
                note(
                    "celedger: the requirements change in this range; every commit runs with "
                    "those of the bad end, so that it is the code that is compared"
                )
            with Progress(bench) as progress:
                number = len(history.commits)
                station.hold_environment(shas[-1], tasks)
                _note_other_environments(bench, shas, tasks)
                answer = bisection.bisect_many(
                    bench, history, tasks, metric or (), limits,
                    improved=improved, others=others,
                    chosen=lambda symptoms: _introduce(symptoms, number, progress),
                    expected=lambda trials: _warn(trials, limits.budget, progress),
                    on_step=partial(_tell, progress, number),
                )  # fmt: skip
                if prove and any(report.named for report in answer.reports):
                    progress.say("training the bad end without the named commit")
                    noise = memory.read(session.repository, session.ledger)
                    answer = bisection.proved(bench, answer, noise)
                guilty = []
                if hunks and answer.named:
                    progress.say("training parts of the named commit")
                    noise = memory.read(session.repository, session.ledger)
                    guilty = bisection.inside(bench, answer, noise)
        tip = memory.tip_of(session.repository, history.bad)
        state = record_state(session, "bisect", tip)
        draw = app.drawer(context.obj)
        announce(session, state, draw)
        on_device = ["--device", device] if device is not None else []
        words = ["--suite", session.config.suite or bench.suite.folder.name]
        again = [*words, *on_device]
        words += ["--first-parent"] * first_parent
        words += ["--confidence", str(confidence)] * (confidence != _CONFIDENCE) + on_device
        command: Options = context.obj
        celedger, git = command.typed("celedger"), command.typed("git")
        more: dict[str, object] = {}
        metrics = {m.name: m for m in session.ledger.metrics()}
        if explain and json:
            texts = map(loads, _explained(session, metrics, answer, [*again, "--json"], command))
            more = {"explanations": [e for t in texts for e in t.get("explanations", [t])]}
        options.answer(BisectAnswer(answer, metrics, celedger, git, words, more, guilty), json)
        if explain and not json:
            for text in _explained(session, metrics, answer, again, command):
                print(f"\n{text}", end="", flush=True)
        if draw is not None:
            try:
                note(f"plot: {draw(*(report.id for report in answer.reports), output=output)}")
            except (OSError, CeledgerError) as error:  # the answer stands without it
                note(f"celedger: no plot: {error}")
        if search := next_search(state, bench.suite.tasks, session.ledger):
            note(context.obj.retyped(f"Next: {search}"))
    return Status.GOOD if answer.named else Status.CANNOT_JUDGE


def _explained(
    session: Session,
    metrics: Mapping[str, Metric],
    answer: Answer,
    words: Sequence[str],
    command: Options,
) -> Iterator[str]:
    """Yield what a diagnosis answers of each named commit against its first parent, once a task and
    kind of metric. What cannot be explained is said on stderr: the bisect's answer stands without
    it."""
    from celedger.base.model import Kind
    from celedger.judge.incident import uses_torch, verb_of

    asked: dict[tuple[str, ...], None] = {}
    for report in answer.reports:
        for culprit in report.culprits[:1] if report.status == "found" else ():
            if culprit.parents:
                kind = metrics[report.metric].kind if report.metric in metrics else Kind.QUALITY
                ends = f"{culprit.parents[0][:TYPED]}..{culprit.sha[:TYPED]}"
                verb, *options = verb_of(kind)
                asked[verb, ends, report.suite, report.task, *options] = None
    for verb, ends, suite, task, *options in asked:
        try:
            if not uses_torch(session.ledger, suite, task):
                raise CannotJudge("its trainings import no torch")
            yield app.answer_of(verb, [ends, task, *options, *words], command)[1]
        except CeledgerError as error:
            note(f"celedger: {task} is not explained: {error}")


def _incident(session: Session, name: str) -> Incident | None:
    """Return the incident that is meant instead of a range. Raises UsageError for one that leaves
    nothing to be searched."""

    if ".." in name:
        return None
    state = record_state(session, "bisect")
    incident = state.find(name)
    if incident is None and name in state.gone:
        raise no_incident(name, state.gone)
    if incident is None:
        raise UsageError(
            f"{name!r} is not a range or an incident",
            "write GOOD..BAD, or an id that `celedger status` lists",
        )
    if not incident.known_good or len(incident.first_bad) < 2:
        first = incident.likeliest[:12]
        raise UsageError(
            f"{incident.id} has one first bad commit, {first}",
            f"see `celedger status {incident.id}`",
        )
    return incident


def _range(repository: Repository, commits: str, first_parent: bool) -> History:
    """Return the range that GOOD..BAD names."""
    old, dots, new = commits.partition("..")
    if not dots or not old or new.startswith("."):
        raise UsageError(f"{commits!r} is not a range", "write GOOD..BAD")
    return repository.history(old, new or "HEAD", first_parent=first_parent)


def _note_other_environments(bench: Bench, commits: Sequence[str], tasks: Sequence[Task]) -> None:
    """Say which stored trials do not count: those of commits (hashes) that have none in the
    environment of this search."""
    from celedger.views.document import count
    from celedger.views.drift import environment_text

    for task in tasks:
        environment = bench.environments[task.name]
        stored = bench.ledger.trials(commits=commits, recipe=task.recipe)
        elsewhere = [r for r in stored if r.ok and r.trial.environment != environment.fingerprint]
        usable = {r.trial.commit for r in stored if r.trial.environment == environment.fingerprint}
        lost = [r for r in elsewhere if r.trial.commit not in usable]
        if lost:
            old = bench.ledger.environment(lost[-1].trial.environment)
            note(
                f"celedger: {count(len(lost), 'stored trial')} of {task.name} in this range do "
                f"not count: {environment_text(old, environment)} since"
            )


def _introduce(symptoms: Sequence[Symptom], commits: int, progress: Progress) -> None:
    from celedger.views.document import count

    first = symptoms[0]
    subject = f"the crash of {first.task.name} ({first.crash})"
    if first.metric is not None:
        subject = f"{first.task.name} {', '.join(symptom.name for symptom in symptoms)}"
    progress.say(f"bisecting {subject} over {count(commits, 'commit')}")


def _warn(expected: float, budget: int, progress: Progress) -> None:
    if not math.isfinite(expected):
        progress.say("the two ends cannot be told apart so far")
        return
    trials = math.ceil(expected)
    progress.say(f"about {trials} more trial{'s' * (trials != 1)} expected")
    if trials > budget:
        progress.say(f"the budget of {budget} will probably not be enough: --budget {trials * 2}")


def _tell(
    progress: Progress, commits: int, commit: Commit, posterior: Posterior, number: int, metric: str
) -> None:
    leader = float(posterior.probability[posterior.leader])
    left = len(posterior.candidates)
    of = f"{metric}: " if metric else ""
    line = f"{number:3d}  {commit.sha[:10]}  {of}{left} of {commits} commits possible"
    line += f", the likeliest has {whole_percent(leader)}"
    if posterior.no_change > 0.05:
        line += f"; {whole_percent(posterior.no_change)} that nothing changed"
    progress.say(line)


# --- `celedger bisect REV --packages OLD..NEW`: the upgrade that made a training worse


def _search_packages(
    command: Options,
    session: Session,
    revision: str,
    files: str,
    tasks: Sequence[str] | None,
    metrics: Sequence[str],
    limits: Limits,
    *,
    improved: bool,
    json: bool,
) -> Status:
    """Search the differences of two lock files at a commit, and show the answer."""
    from celedger.cli.progress import Progress
    from celedger.judge import bisection
    from celedger.judge.bisection.bisect import package_bench
    from celedger.trial.workplace import choose_tasks
    from celedger.views.bisect import package_answer

    old, dots, new = files.partition("..")
    if not (old and dots and new):
        raise UsageError(f"{files!r} is not two lock files", "write --packages OLD..NEW")
    environments = [_environment(session.ledger, name) for name in (old, new)]
    pythons = [
        ".".join(str(each.details.get("python")).split(".")[:2])  # `CPython 3.11`
        for each in environments if each is not None
    ]  # fmt: skip
    if len({*pythons}) > 1:
        raise UsageError(
            f"these are two Pythons, {' and '.join(pythons)}", "compare packages of one"
        )
    first, second = (
        _read(session.repository, name) if environment is None else (name, _pins(environment))
        for name, environment in zip((old, new), environments, strict=True)
    )
    suite = load_suite(session)
    with (
        package_bench(
            session.repository, session.config, suite, choose_tasks(suite, tasks or ()),
            session.repository.resolve(revision), (first, second), session.gate,
            python=pythons[0] if pythons else "",
        ) as (bench, own_tasks, commits),
        Progress(bench) as progress,
    ):  # fmt: skip
        progress.say(f"searching {len(commits) - 1} upgrades")
        history = bench.repository.history(commits[0].sha, commits[-1].sha)
        answer = bisection.bisect_many(
            bench, history, own_tasks, metrics, limits, improved=improved
        )
        known = {metric.name: metric for metric in bench.ledger.metrics()}
    again = shlex.join(["bisect", revision, "--packages", files, "--suite", suite.folder.name])
    typed = f"{command.typed('celedger')} {again}"
    options.answer(package_answer(answer, known, typed), json)
    return Status.GOOD if answer.named else Status.CANNOT_JUDGE


def _environment(ledger: Ledger, name: str) -> Environment | None:
    """Return the environment that the first digits of its fingerprint name; None for a file."""
    if Path(name).exists() or not re.fullmatch("[0-9a-f]{8,64}", name):
        return None
    named = [each for key, each in ledger.environments().items() if key.startswith(name)]
    if len(named) != 1:
        raise UsageError(
            f"{name} is neither a file nor an environment of the ledger", "see `celedger drift`"
        )
    return named[0]


def _pins(environment: Environment) -> str:
    packages = environment.details.get("packages")
    rows = packages.items() if isinstance(packages, Mapping) else ()
    return "\n".join(f"{name}=={version}" for name, version in rows)


def _read(repository: Repository, name: str) -> tuple[str, str]:
    """Return the name and text of a lock file: a path, or REV:PATH."""
    revision, colon, path = name.partition(":")
    try:
        if colon and not Path(name).exists():
            return name, repository.blob(repository.resolve(revision).sha, path).decode()
        return name, Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{name} cannot be read: {reason}") from None
