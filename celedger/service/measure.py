"""Measure a commit: run what the ledger lacks, settle doubts by extra trials, record the state.
Verbs and the worker do it in this order. Must not know how the answer is shown or sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from celedger.base import shipped
from celedger.base.errors import TYPED, CeledgerError

if TYPE_CHECKING:
    from celedger.base.config import Config
    from celedger.base.model import Commit, Task, TrialRecord
    from celedger.judge.incident import State
    from celedger.ledger import Ledger
    from celedger.repo import Repository
    from celedger.suite import Suite
    from celedger.trial.engine import Need
    from celedger.trial.permissions import Gate
    from celedger.trial.runner import Bench


@dataclass(frozen=True, slots=True)
class Session:
    """What a verb, or a job of the worker, works with. `tell` gets the warnings, a line each."""

    repository: Repository
    config: Config
    ledger: Ledger
    gate: Gate
    tell: Callable[[str], None]


def load_suite(session: Session, name: str | None = None) -> Suite:
    """Return the named suite, else the one of the settings, as the work tree has it."""
    from celedger.trial import workplace

    return workplace.suite_of(session.repository, session.config, name)


@contextmanager
def open_bench(
    session: Session,
    verb: str,
    names: Sequence[str] | None = None,
    *,
    only: Sequence[str] | None = None,
    suite: Suite | None = None,
    **options: Any,
) -> Iterator[tuple[Bench, tuple[Task, ...]]]:
    """Yield a bench for the named tasks of the suite [default: as configured], all when none is
    named, and the tasks (`options`: those of `chosen_bench`). Its trials run one by one, or
    `together` on the workers that the settings ask for."""
    from celedger.trial import workplace

    suite = suite or load_suite(session)
    own = session.config.suites
    if suite.folder.parent == shipped("suites") != own and session.config.suite == suite.name:
        session.tell(f"suite {suite.name} is the one that ships: {own} has none of that name")
    tasks = workplace.choose_tasks(suite, names or (), only or ())
    with workplace.chosen_bench(
        session.repository, session.ledger, session.config, suite, tasks, gate=session.gate,
        tell=session.tell, label=f"celedger {verb}", **options,
    ) as bench:  # fmt: skip
        yield bench, tasks


def record_state(session: Session, job: str, tip: str = "") -> State:
    """Bring the state of a line, HEAD's where no `tip` is named, up to date, and record what was
    not said yet. What an earlier worker left for the next merge to print is out of date where a
    person asks."""
    from celedger.judge import memory
    from celedger.service import hooks

    if session.gate.attended:
        hooks.take_line(session.repository)
    tip = tip or memory.tip_of(session.repository)
    return memory.record(session.repository, session.ledger, tip, job=job, now=time.time())


Watch = Callable[["Bench", "Sequence[Need]"], AbstractContextManager[object]]


def train(
    bench: Bench,
    needs: Sequence[Need],
    watch: Watch | None = None,
    *,
    then: Callable[[list[TrialRecord]], None] | None = None,
    **options: Any,
) -> list[TrialRecord]:
    """Run trials and return them (`options`: those of `run_all`); `then` may run others after them.
    Meanwhile `watch` shows their progress."""
    from celedger.trial.runner import run_all

    if not needs and then is None:
        return []
    with watch(bench, needs) if watch is not None else nullcontext():
        ran = run_all(bench, needs, **options)
        if then is not None:
            then(ran)
    return ran


def measure(
    session: Session,
    bench: Bench,
    commit: Commit,
    tasks: Sequence[Task],
    needs: Sequence[Need],
    *,
    job: str,
    tip: str = "",
    say: Callable[[str], None] | None = None,
    most: int = 0,
    only_noise: bool = False,
    watch: Watch | None = None,
    diagnose: Callable[[Sequence[str]], str] | None = None,
    **options: Any,
) -> tuple[State, list[TrialRecord]]:
    """Run trials of tasks, then up to `most` that settle what is in doubt at a commit, and record
    the state. Return it, and the trials of `needs` that ran.

    Args:
        needs: What the ledger lacks, `workplace.lacking` for one.
        job: What asks, as `memory.record` takes it.
        tip: The commit (a hash) on whose line the commit is judged [default: HEAD, where its line
            has the commit].
        say: Gets a line for each extra trial, which says why [default: as `session.tell`].
        only_noise: Whether no doubt about the line is settled, since another question waits.
        diagnose: Runs a verb and returns its answer. Without it, no task is checked before its
            first trial.
        watch, options: As `train` takes them.
    """
    from celedger.judge import memory

    if diagnose is not None and bench.suite.preflight:
        _preflight(bench, commit, needs, diagnose, session.tell)
    repository, ledger = session.repository, session.ledger
    tip = tip or memory.tip_of(repository, commit)
    question = (repository, ledger, tip, commit.sha, tasks)
    is_settled = most > 0 and not needs and memory.is_settled(*question)
    if most and not is_settled:
        from celedger.judge.extra_trials import ExtraTrials, settle  # and numpy

        line, say = memory.line_of(repository, ledger, tip), say or session.tell
        extra = [ExtraTrials(bench, line, commit, task, say, only_noise) for task in tasks]
        then = partial(settle, extra, most=most)
        ran = train(bench, needs, watch, then=then, **options)
        is_settled = not only_noise and all(each.is_settled for each in extra)
    else:
        ran = train(bench, needs, watch, **options)
    state = record_state(session, job, tip)
    if is_settled:
        memory.note_settled(*question)
    return state, ran


def _preflight(
    bench: Bench,
    commit: Commit,
    needs: Sequence[Need],
    diagnose: Callable[[Sequence[str]], str],
    tell: Callable[[str], None],
) -> None:
    """Check each task before its first trial of a definition. The answer is a finding of the
    commit; the trials run whatever it is."""
    for task in {need.task.recipe: need.task for need in needs}.values():
        if bench.ledger.trials(recipe=task.recipe):
            continue
        words = ["preflight", task.name, commit.sha[:TYPED], "--suite", bench.suite.folder.name]
        try:
            tell(diagnose(words).partition("\n")[0] or f"{task.name} is not checked: no preflight")
        except CeledgerError as error:
            tell(f"{task.name} is not checked: {error}")
