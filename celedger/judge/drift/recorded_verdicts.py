"""What the verdicts in the ledger say: which commits lack one, and the exit status of a commit.
Computes no statistics, so that a command with nothing to judge imports none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from celedger.base.errors import Status
from celedger.base.model import Commit, Environment, Task, Verdict, VerdictKind
from celedger.ledger import Ledger


def unjudged(
    ledger: Ledger,
    commits: Sequence[Commit],
    tasks: Sequence[Task],
    environments: Mapping[str, Environment],
) -> set[str]:
    """Return the commits of which some task has no verdict yet in the environment it would run in;
    the newest one, too, if its verdicts are older than the newest of what they rest on."""
    lacking: set[str] = set()
    newest = commits[-1].sha
    for task in tasks:
        environment = environments[task.name].fingerprint
        kinds = ledger.verdict_kinds(
            suite=task.suite, task=task.name, recipe=task.recipe, environment=environment
        )
        lacking |= {commit.sha for commit in commits} - {sha for sha, _ in kinds}
        if not ledger.judged_last(
            newest, suite=task.suite, task=task.name, recipe=task.recipe, environment=environment
        ):
            lacking.add(newest)
    return lacking


def latest(
    ledger: Ledger,
    commit: Commit,
    tasks: Sequence[Task],
    environments: Mapping[str, Environment],
) -> list[Verdict]:
    """Return the latest verdicts on a commit of these tasks as they are, each in its environment
    (by task name)."""
    current = {(task.name, task.recipe, environments[task.name].fingerprint) for task in tasks}
    return [
        verdict
        for verdict in ledger.verdicts(commit=commit.sha, suite=tasks[0].suite)
        if (verdict.task, verdict.recipe, verdict.environment) in current
    ]


def counted(
    verdicts: Sequence[Verdict], declared: Collection[tuple[str, str]]
) -> tuple[list[Verdict], list[Verdict]]:
    """Return the verdicts that decide the exit status and those on telemetry, which never do.

    `declared` are the (task, metric) that the suite names and judges.
    """
    own = [v for v in verdicts if v.metric == "" or (v.task, v.metric) in declared]
    return own, [v for v in verdicts if v not in own]


def status(
    verdicts: Sequence[Verdict],
    declared: Collection[tuple[str, str]],
    *,
    gate: bool,
    lenient: bool = False,
    complete: bool = True,
) -> Status:
    """Return the exit status of a judged commit; only `declared` metrics and whole tasks count.

    A `gate` does not pass what it could not decide or did not measure. A `lenient` one passes
    what is too noisy. `complete`: every trial that the command was asked for was measured; one
    that was not never passes, whatever the ledger held before.
    """
    own, telemetry = counted(verdicts, declared)
    if any(v.kind.bad for v in own):
        return Status.BAD
    if any(v.metric == "" and v.kind is VerdictKind.UNDECIDED for v in own):
        return Status.CANNOT_JUDGE  # a task that did not run at all, by no fault of its own
    if not complete:
        return Status.CANNOT_JUDGE
    if not gate:
        return Status.GOOD
    undecided = {VerdictKind.UNDECIDED, VerdictKind.ENVIRONMENT_CHANGED}
    if not lenient:
        undecided.add(VerdictKind.TOO_NOISY)
    unmeasured = {v.task for v in telemetry} - {v.task for v in own}
    if not verdicts or unmeasured & {task for task, _ in declared}:
        return Status.CANNOT_JUDGE
    if any(v.kind in undecided for v in own):
        return Status.CANNOT_JUDGE
    return Status.GOOD
