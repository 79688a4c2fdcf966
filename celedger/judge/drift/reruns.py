"""Settles suspicions: judges a commit, and runs it again for as long as more trials would tell
more. Speed is settled in turns with the baseline commit, because a machine drifts more than
code does."""

from __future__ import annotations

from collections.abc import Sequence

from celedger.base.model import Commit, Kind, Task
from celedger.judge.drift.baseline import HISTORY, Baselines
from celedger.judge.drift.judge import Judged, judge
from celedger.repo import Repository
from celedger.trial.engine import Need
from celedger.trial.runner import Bench, next_seed

RERUNS = 6  # extra trials a task may take to settle a suspicion


def settle(
    repository: Repository,
    bench: Bench,
    commit: Commit,
    tasks: Sequence[Task],
    *,
    budget: int = RERUNS,
) -> Judged:
    """Judge, and as long as something is suspect run its task again with a fresh seed: at most
    `budget` more trials of a task at this commit (and as many of its baseline, where speed alone
    is in question)."""
    extra = dict.fromkeys((task.name for task in tasks), 0)
    interleaved: dict[str, float] = {}
    while True:
        judged = judge(
            repository, bench.ledger, commit, tasks,
            bench.environments_at(commit.sha, tasks),
            interleaved=interleaved,
        )  # fmt: skip
        again = [t for t in tasks if t.name in judged.suspects and extra[t.name] < budget]
        if not again:
            return judged
        for task in again:
            base = _speed_baseline(repository, bench, commit, task)
            if judged.suspects[task.name] and base is not None:
                interleaved.setdefault(task.name, bench.now())
                # A drift of the machine that is linear over the four cancels.
                for each in (commit, base, base, commit):
                    seed = next_seed(bench, each, task)
                    bench.run(Need(each, task, seed, reuse=False))
                extra[task.name] += 2
            else:
                bench.run(Need(commit, task, next_seed(bench, commit, task)))
                extra[task.name] += 1


def _speed_baseline(
    repository: Repository, bench: Bench, commit: Commit, task: Task
) -> Commit | None:
    """Return the newest commit of the rolling baseline of the task's first speed metric."""
    ancestors = {c.sha: c for c in repository.log(commit.sha, limit=HISTORY) if c != commit}
    environment = bench.place(commit.sha, task).environment.fingerprint
    baselines = Baselines(bench.ledger, task, commit.sha, list(ancestors), environment)
    for metric in task.metrics:
        if metric.kind is Kind.SPEED and metric.direction.sign:
            base = baselines.rolling(metric, baselines.rows(metric)[1])
            if base:
                return ancestors[base[-1].commit]
    return None
