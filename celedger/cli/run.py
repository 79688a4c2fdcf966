"""`celedger run` and `celedger noise`: train the suite, and show what came of it."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from celedger.base.errors import Status, UnknownRevision, UsageError, command
from celedger.cli import app, options
from celedger.cli.reading import changes_of
from celedger.cli.session import note, writing
from celedger.cli.synthetic import bench_apart, find, is_unchanged
from celedger.cli.synthetic import status as status_of
from celedger.service.measure import Session, load_suite, measure, open_bench, train

if TYPE_CHECKING:
    from celedger.base.model import Commit
    from celedger.repo.synthetic import Synthetic
    from celedger.trial.engine import Need
    from celedger.trial.runner import Bench


def run(
    context: typer.Context,
    revision: options.Range = "HEAD",
    suite: options.Suite = None,
    task: options.Tasks = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="COMMAND", help="Only this command of a task; may be repeated."),
    ] = None,
    repeat: Annotated[
        int,
        typer.Option(min=1, max=1000, metavar="N", help="Trials of every commit, task and seed."),
    ] = 1,
    seed: Annotated[
        list[int] | None,
        typer.Option(
            min=0,
            max=2**32 - 1,
            metavar="N",
            help="Seed to use; may be repeated [default: the task's own].",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only N commits, spread over the range.")
    ] = None,
    every: options.EveryCommit = False,
    force: Annotated[
        bool, typer.Option("--force", help="Repeat trials that the ledger holds.")
    ] = False,
    device: options.Device = None,
    workers: options.Workers = None,
    engine: options.Engine = None,
    limit: Annotated[
        str | None,
        typer.Option(
            "--for",
            metavar="TIME",
            help="Start no trial that would end after this time, such as 2h. The ends of the range "
            "come first, then its middles; each task gets its share.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the trials that would run; run none.")
    ] = False,
) -> int:
    """Train the suite at a commit, or at every commit of a range.

    `.` is the working tree, as it is; a range is its commits on the main line. What the ledger
    already holds is not run again. With several workers, speed is not judged, because trials
    disturb each other. Exits 1 if the newest commit is worse or fails, 125 if it cannot be tested
    or a trial of this command was killed.
    """
    from celedger.cli.progress import Progress
    from celedger.judge import memory
    from celedger.judge.incident import Standing, status
    from celedger.repo import spread
    from celedger.trial.workplace import ends_first, in_shares, lacking, re_used
    from celedger.views import incidents as words
    from celedger.views.document import short
    from celedger.views.drift import narrowed
    from celedger.views.show import CommitRows

    seconds = options.duration("--for", limit) if limit is not None else math.inf
    with writing(
        context.obj, suite=suite, device=device, workers=workers, engine=engine
    ) as session:
        repository, ledger = session.repository, session.ledger
        if (synthetic := find(repository, revision)) is not None:
            return _run_apart(
                session, synthetic, revision, task, only, seed or (), repeat,
                force=force, dry_run=dry_run,
            )  # fmt: skip
        try:
            commits = repository.commits(revision, first_parent=not every)
        except UnknownRevision:
            if revision not in {each.name for each in load_suite(session).tasks}:
                raise
            hint = f"type {command('run', task=revision)}"
            raise UsageError(f"{revision!r} is a task, not a commit", hint) from None
        if steps is not None:
            commits = spread(commits, steps)
        newest = commits[-1]
        with open_bench(session, "run", task, only=only, together=True) as (bench, tasks):
            is_head = newest == repository.resolve("HEAD")
            if is_head and repository.is_dirty(session.config.suites):
                note("celedger: the working tree has changes; HEAD is measured as committed")
            for warning in bench.suite.warnings:
                note(f"celedger: warning: {warning}")
            if limit is not None:
                commits = ends_first(commits)
            needs = lacking(bench, commits, tasks, seeds=seed or (), repeat=repeat, force=force)
            free = re_used(bench, needs) if limit is not None or dry_run else set()
            budget = _TimeBudget(bench, needs, seconds, free)
            if limit is not None:
                needs = in_shares(needs, budget.costs, _shares(session), free)
            if dry_run:
                return _list(needs, budget)
            _say_if_none(needs, "; --force runs them again")
            state, records = measure(
                session, bench, newest, tasks, needs, job="run", watch=Progress,
                diagnose=lambda words: app.answer_if_installed(words, context.obj),
                leaves_out=budget,
            )  # fmt: skip
            budget.report()
        standings = memory.standings_at(
            repository, ledger, state, newest.sha, tasks, bench.suite.judged
        )
        rows, is_range = CommitRows.of(ledger, newest.sha, state), len(commits) > 1
        if is_range:
            only_task = tasks[0].name if len(tasks) == 1 else None
            options.answer(
                changes_of(session, revision, every=every, suite=bench.suite.name, task=only_task),
                json=False,
            )
            if failed := sum(not record.ok for record in records):
                print(f"{failed} of {len(records)} trials failed")
            narrow = narrowed(state, suite=bench.suite.name, task=only_task)
            summary = words.summary(narrow, memory.commits_of(repository, narrow))
            print(f"{short(newest.sha)}: {summary}")
        else:
            options.answer(rows, json=False)
        for name, silent in rows.without_value(bench.suite.judged).items():
            if bench.station.device.gpu is None:  # a suite may be declared for both
                silent = [metric for metric in silent if not metric.startswith("gpu_")]
            if silent:
                note(
                    f"celedger: warning: {name} {', '.join(silent)}: no trial had a value; a "
                    "training of very few or short steps has none (docs/suites.md)"
                )
        is_first = any(record.ok for record in records) and all(
            each.standing is Standing.FIRST for each in standings
        )
        search = "" if is_range else words.next_search(state, bench.suite.tasks, ledger)
        if search:
            note(context.obj.retyped(f"Next: {search}"))
        is_first |= any(i.is_failing and not i.known_good for i in state.in_force)
        if is_first and not search:
            note(context.obj.retyped(f"celedger: first measurement: {_second(session, newest)}"))
    head_records = [
        record
        for record in records
        if record.trial.commit == newest.sha or (record.outcome and not record.outcome.kind.final)
    ]
    return status(standings, gate=False, complete=all(r.ok for r in head_records))


def _second(session: Session, first: Commit) -> str:
    """Return what to type so that the first measured commit is compared with another."""
    from celedger.views.incidents import OLDER

    head = session.repository.resolve("HEAD")
    if first == head:
        return OLDER
    if session.ledger.trials(commit=head.sha):
        return f"{command('check', 'HEAD')} compares HEAD with it"
    return f"{command('run', 'HEAD')} trains HEAD, to compare with"


def _run_apart(
    session: Session,
    synthetic: Synthetic,
    revision: str,
    task: Sequence[str] | None,
    only: Sequence[str] | None,
    seeds: Sequence[int],
    repeat: int,
    *,
    force: bool,
    dry_run: bool,
) -> int:
    """Train the suite at a synthetic revision."""
    from celedger.cli.progress import Progress
    from celedger.judge import memory
    from celedger.trial.workplace import lacking
    from celedger.views.show import CommitRows

    if is_unchanged(synthetic):
        return Status.GOOD
    commit = synthetic.commit
    with bench_apart(session, synthetic, revision, "run", task, only=only) as (own, bench, tasks):
        needs = lacking(bench, [commit], tasks, seeds=seeds, repeat=repeat, force=force)
        if dry_run:
            return _list(needs, _TimeBudget(bench, needs))
        _say_if_none(needs, "; --force runs them again")
        train(bench, needs, Progress)
        records = [
            record for chosen in tasks
            for record in own.ledger.trials(commit=commit.sha, recipe=chosen.recipe)
        ]  # fmt: skip
        state = memory.read(session.repository, session.ledger)
        options.answer(CommitRows.of(own.ledger, commit.sha, state), json=False)
    return status_of(records)


class _TimeBudget:
    """Says which trials would end after `seconds` from now, by what trials of their task usually
    take. The first one runs in any case, so that each command gets on."""

    def __init__(
        self,
        bench: Bench,
        needs: Sequence[Need],
        seconds: float = math.inf,
        free: Collection[tuple[str, str]] = (),
    ) -> None:
        tasks = {need.task.recipe: need.task for need in needs}
        self._usual = {key: bench.ledger.usual_seconds(task) for key, task in tasks.items()}
        self._workers, self._free = bench.engine.workers, free
        self._end = time.monotonic() + seconds
        self._left_out: list[Need] = []
        self._is_first = True
        if math.isfinite(seconds) and (about := self.about(needs)):
            note(f"celedger: {about}")

    @property
    def costs(self) -> dict[str, float]:
        """Return the seconds of a trial by recipe; of a new task, what the others take."""
        known = [usual for usual in self._usual.values() if usual is not None]
        mean = sum(known) / len(known) if known else 1.0
        return {key: mean if usual is None else usual for key, usual in self._usual.items()}

    def about(self, needs: Sequence[Need]) -> str:
        """Return how long trials will take, "" where that is not known."""
        from celedger.views.document import count, duration

        if not needs or None in [self._usual[need.task.recipe] for need in needs]:
            return ""
        seconds = duration(sum(map(self._seconds, needs)) / self._workers)
        return f"{count(len(needs), 'trial')} should take {seconds}"

    def __call__(self, need: Need, begins: float | None = None) -> bool:
        """Return True, and note it, where a trial that begins now would end too late."""
        ends = (time.monotonic() if begins is None else begins) + self._seconds(need)
        late = ends > self._end and not self._is_first
        self._is_first = False
        if late:
            self._left_out.append(need)
        return late

    def fitting(self, needs: Sequence[Need]) -> list[Need]:
        """Return the trials that would run, if they take what is usual."""
        fit, begins = [], time.monotonic()
        for need in needs:
            if not self(need, begins):
                fit.append(need)
                begins += self._seconds(need) / self._workers
        return fit

    def _seconds(self, need: Need) -> float:
        if (need.task.recipe, need.commit.sha) in self._free:
            return 0.0
        return self._usual[need.task.recipe] or 0.0

    def report(self) -> None:
        from celedger.views.document import count

        if self._left_out:
            commits = {need.commit.sha for need in self._left_out}
            note(
                f"celedger: the time is up: {count(len(self._left_out), 'trial')} at "
                f"{count(len(commits), 'commit')} left out; the same command goes on"
            )


def _shares(session: Session) -> dict[str, float]:
    """Return the shares of the time for tasks: more for one that found more, as it may again."""
    from celedger.judge import memory

    state = memory.read(session.repository, session.ledger)
    caught = Counter(metric.task for each in state.incidents for metric in each.metrics[:1])
    return {task: 1.0 + number for task, number in caught.items()}


def _list(needs: Sequence[Need], budget: _TimeBudget) -> int:
    """Print the trials that would run, a line a task and commit."""
    from celedger.views.document import Column, count, short, table

    rows: dict[tuple[str, str], list[str]] = {}
    fit = budget.fitting(needs)
    for need in fit:
        rows.setdefault((short(need.commit.sha), need.task.name), []).append(str(need.seed))
    lines = [(*key, f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}")
             for key, seeds in rows.items()]  # fmt: skip
    columns = (Column(), Column(), Column(wrap=True))
    print(table(columns, lines, width=options.width()) or "nothing: the ledger holds every trial")
    if about := budget.about(fit):
        print(f"{about}, less where a result can be re-used")
    if late := len(needs) - len(fit):
        print(f"{count(late, 'more trial')} would not end in time")
    return Status.GOOD


def _say_if_none(needs: Sequence[Need], hint: str = "") -> None:
    if not needs:
        note(f"celedger: the ledger holds every trial asked for{hint}")


def noise(
    context: typer.Context,
    task: Annotated[
        list[str] | None, typer.Argument(metavar="[TASK...]", help="Tasks [default: all].")
    ] = None,
    suite: options.Suite = None,
    commit: Annotated[str, typer.Option(metavar="REV", help="The commit to train.")] = "HEAD",
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="Seeds, for the spread of quality.")
    ] = 5,
    repeats: Annotated[
        int,
        typer.Option(
            min=1,
            max=1000,
            metavar="N",
            help="Trials of the first seed, for the spread of speed and memory.",
        ),
    ] = 3,
    device: options.Device = None,
    json: options.Json = False,
) -> int:
    """Measure the noise of a task and what its trials can detect.

    The tasks take turns, with ordinary trials. Results in the ledger are not measured again. Exits
    125 if a trial failed.
    """
    from celedger.base.model import Purpose
    from celedger.cli.progress import Progress
    from celedger.trial.workplace import in_turns
    from celedger.views.noise import TaskNoise, noise_of

    with writing(context.obj, suite=suite, device=device) as session:
        at = session.repository.resolve(commit)
        with open_bench(session, "noise", task, why=Purpose.NOISE) as (bench, tasks):
            needs = in_turns(bench, at, tasks, seeds=seeds, repeats=repeats)
            _say_if_none(needs)
            state, ran = measure(session, bench, at, tasks, needs, job="noise", watch=Progress)
        name, ledger = bench.suite.name, session.ledger
        options.answer(
            noise_of([TaskNoise.of(ledger, name, task.name, state) for task in tasks]), json
        )
    return Status.GOOD if all(record.ok for record in ran) else Status.CANNOT_JUDGE
