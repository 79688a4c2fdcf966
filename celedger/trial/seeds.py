"""Which trials tell of a commit, and which seed would tell something new of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from celedger.model import Commit, Task, TrialRecord
from celedger.trial.runner import Bench


def trials_of(bench: Bench, commit: Commit, task: Task, environment: str) -> list[TrialRecord]:
    """The trials that tell of a commit in an environment (by fingerprint), oldest first: its own,
    and those that ran where the training cannot have met anything else. A derived one tells what
    its evidence does."""
    own = bench.ledger.trials(commit=commit.sha, recipe=task.recipe, environment=environment)
    agreeing = bench.reuse.agreeing([commit], task, environment)[commit.sha]
    own_ulids = {r.trial.ulid for r in own} | {""}
    others = [bench.ledger.trial(t.ulid) for t in agreeing if t.ulid not in own_ulids]
    trials = [*own, *(r for r in others if r is not None)]
    ran = {r.trial.ulid for r in trials if not r.derived}
    return sorted((r for r in trials if r.derived not in ran), key=lambda r: r.trial.started)


def next_seed(
    bench: Bench, commit: Commit, task: Task, like: Iterable[str] = (), *, whole: bool = True
) -> int:
    """The first seed, of the task's own and then upward, not yet tried at this commit. Equal
    seeds at different commits pair their noise. A seed that was tried at commits known to compute
    the same (`like`, hashes) would tell nothing. One that was stopped early counts as tried,
    unless a `whole` trial is asked."""
    environment = bench.place(commit.sha, task).environment.fingerprint
    records = trials_of(bench, commit, task, environment) + bench.ledger.trials(
        commits=list(like), recipe=task.recipe, environment=environment
    )
    tried = {
        r.trial.seed
        for r in records
        if r.outcome is not None and r.outcome.kind.final and not (whole and r.early_stopped)
    }
    later = itertools.count(max(task.seeds) + 1)
    return next(s for s in itertools.chain(task.seeds, later) if s not in tried)
