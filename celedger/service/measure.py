"""Measure a commit: run what the ledger lacks, settle what is in doubt by extra trials, record the
state. Verbs and the worker do it in this order. Must not know how the answer is shown or sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from celedger.base.errors import TYPED, CeledgerError
from celedger.base.model import Commit, Task, TrialRecord
from celedger.judge import memory
from celedger.judge.incident import State
from celedger.judge.line import Line

if TYPE_CHECKING:
    from celedger.trial.engine import Need
    from celedger.trial.runner import Bench


def preflight(
    bench: Bench,
    commit: Commit,
    tasks: Iterable[Task],
    diagnose: Callable[[Sequence[str]], str],
    say: Callable[[str], None],
) -> None:
    """Check each task before its first trial of a definition, where the suite asks for it. The
    answer is a finding of the commit; the trials run whatever it is. `diagnose` runs a verb, and
    returns its answer; `say` gets a line a task."""
    for task in tasks if bench.suite.preflight.before_first else ():
        if bench.ledger.trials(recipe=task.recipe):
            continue
        words = ["preflight", task.name, commit.sha[:TYPED], "--suite", bench.suite.folder.name]
        try:
            say(diagnose(words).partition("\n")[0] or f"{task.name} is not checked: no preflight")
        except CeledgerError as error:
            say(f"{task.name} is not checked: {error}")


def measure(
    bench: Bench,
    commit: Commit,
    tasks: Sequence[Task],
    tip: str,
    record: Callable[[], State],
    say: Callable[[str], None],
    *,
    most: int,
    progress: Callable[[Sequence[Need]], AbstractContextManager[object]] = lambda _: nullcontext(),
) -> tuple[State, Line, list[TrialRecord]]:
    """Measure tasks at a commit, which is judged on the line of `tip`. At most `most` extra trials
    run; `say` gets a line that says why for each. `record` records the state and returns it.
    Return the state, the line, and the commit's own trials that ran."""
    from celedger.trial.runner import run_all
    from celedger.trial.workplace import lacking

    repository, ledger = bench.repository, bench.ledger
    needs = lacking(bench, [commit], tasks)
    line = memory.line_of(repository, ledger, tip)
    question = (tip, commit.sha, *(task.recipe for task in tasks))
    ran: list[TrialRecord] = []
    is_settled = not needs and memory.is_settled(repository, ledger, question)
    if not is_settled:
        from celedger.judge.extra_trials import ExtraTrials  # and numpy

        extra = ExtraTrials(bench, line, commit, tasks, say, lacks=bool(needs))
        with progress(needs):
            ran = run_all(bench, needs, speed_too=False)
            extra.run(ran, most=most)
        is_settled = extra.is_settled
    state = record()
    if is_settled:
        memory.note_settled(repository, ledger, question)
    return state, line, ran
