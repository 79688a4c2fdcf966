"""What is bisected: a metric that got worse between the two ends, or a crash that one of them
has. Reads trials into numbers for the statistics, larger being worse; runs nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from celedger.drift import baseline
from celedger.drift.baseline import usable
from celedger.errors import CannotJudge, UsageError, command
from celedger.ledger import Ledger
from celedger.model import (
    Commit,
    Direction,
    Kind,
    Metric,
    OutcomeKind,
    SummaryRow,
    Task,
    TrialRecord,
    VerdictKind,
)
from celedger.stats import verdict as rules
from celedger.trial.runner import Bench
from celedger.trial.seeds import trials_of

# Trials of each end from which a symptom is chosen: what a t-test can begin to work with.
CHOOSING = 3
_ERROR = re.compile(r"\b([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Fault))\b")

_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(frozen=True, slots=True)
class Symptom:
    """The task, and the metric; None where it is the crash that is searched. `crash` is how a
    trial fails at BAD: only a trial that fails alike counts as bad, and `asked` of them had to
    for it to be searched. Where an improvement is searched, `metric` has its direction turned
    round: all that follows takes better for worse.
    """

    task: Task
    metric: Metric | None
    crash: str = ""
    improved: bool = False
    asked: int = 1

    @property
    def name(self) -> str:
        return self.metric.name if self.metric is not None else "crash"

    def reads(self, record: TrialRecord) -> float | None:
        """The trial as a number, larger being worse: 1 and 0 for a crash and none; infinity for
        a value that is not finite; None where the trial says nothing (its build failed, it
        crashed in another way, its speed was disturbed)."""
        outcome = record.outcome
        if outcome is None or record.early_stopped:
            return None
        if self.metric is None:
            if outcome.kind is OutcomeKind.OK:
                return 0.0
            return 1.0 if signature(record) == self.crash else None
        row = _row(record, self.metric)
        if row is None or not usable(row, self.metric):
            return None
        if not math.isfinite(row.value):
            return None if self.improved else math.inf
        return self.metric.direction.sign * row.value

    @property
    def bits_decide(self) -> bool:
        """Whether equal bits prove an equal value: for what is computed, not for what is
        measured by clock or memory."""
        return self.metric is not None and self.metric.kind in (Kind.QUALITY, Kind.COUNT)


class NotWorse(CannotJudge):
    """The ends ran, and BAD is worse in none of what was asked (`symptoms`)."""

    def __init__(self, cause: str, hint: str, symptoms: tuple[Symptom, ...]) -> None:
        super().__init__(cause, hint)
        self.symptoms = symptoms


def signature(record: TrialRecord) -> str:
    """How a trial crashed, coarse enough to survive a moved line: the outcome and the name of
    the exception, or the exit status where there is none. "" for one that did not crash."""
    outcome = record.outcome
    if outcome is None or not outcome.kind.crashed:
        return ""
    names = _ERROR.findall(outcome.message)
    if outcome.kind is not OutcomeKind.FAILED:
        return outcome.kind.value
    return f"failed {names[0] if names else outcome.returncode}"


def must_be_judged(tasks: Sequence[Task], metric: str | None) -> None:
    """Raises UsageError unless a task can be worse in this metric (None: in any)."""
    if metric is None:
        return
    known = [found for task in tasks if (found := task.metric(metric)) is not None]
    if not known:
        have = ", ".join(m.name for m in tasks[0].metrics if m.direction is not Direction.INFO)
        raise UsageError(f"no task has a judged metric {metric!r}", f"there are {have}")
    if all(found.direction is Direction.INFO for found in known):
        raise UsageError(
            f"{metric!r} has no direction, so nothing is worse",
            f'give it one in suite.toml: [metrics.{metric}] direction = "lower"',
        )


def find_symptom(
    bench: Bench,
    tasks: Sequence[Task],
    good: Commit,
    bad: Commit,
    metric: str | None,
    *,
    improved: bool = False,
) -> Symptom:
    """What is worst at BAD against GOOD, among the given tasks and (if named) the one metric.

    Raises CannotJudge where an end is not what it is said to be, with the sentence that says so;
    UsageError for an unknown metric.
    """
    must_be_judged(tasks, metric)
    asked: list[_Asked] = []
    refused: CannotJudge | None = None
    silent = True
    for task in tasks:
        if metric is not None and task.metric(metric) is None:
            continue
        here = bench.environments[task.name].fingerprint
        at_good, at_bad = (_first(trials_of(bench, end, task, here)) for end in (good, bad))
        silent = silent and not (at_good and at_bad)
        try:
            crash = _crash(task, good, bad, at_good, at_bad)
        except CannotJudge as error:
            refused = refused or error  # another task may still tell
            continue
        if crash is not None and not improved:
            return replace(crash, asked=CHOOSING if metric is None else 1)
        for known in task.metrics:
            if known.direction is Direction.INFO or metric not in (None, known.name):
                continue
            if improved:
                known = replace(known, direction=known.direction.opposite)
            question = _question(bench.ledger, task, known, at_good, at_bad)
            if question is not None:
                asked.append(_Asked(Symptom(task, known, improved=improved), question))
    # One budget over all that is compared: of a dozen metrics one always looks worse.
    answers = rules.judge_many([item.question for item in asked])
    found = [
        (weight, item.symptom)
        for item, answer in zip(asked, answers, strict=True)
        if (weight := _weight(item, answer, named=metric is not None)) is not None
    ]
    if found:
        return min(found, key=lambda pair: pair[0])[1]
    if refused is not None:
        raise refused
    if silent:
        raise CannotJudge(
            f"no trial of {good.sha[:10]} or of {bad.sha[:10]} came to its end",
            f"{command('show', good.sha[:12])} or {command('show', bad.sha[:12])} says why",
        )
    changed = "better" if improved else "worse"
    same = [f"{item.symptom.task.name} {item.symptom.name}" for item in asked]
    raise NotWorse(
        f"{bad.sha[:10]} is not {changed} than {good.sha[:10]} in {_list(same)}",
        "name the metric with --metric, or other ends",
        tuple(item.symptom for item in asked),
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    symptom: Symptom
    question: rules.Question


def _first(records: list[TrialRecord]) -> list[TrialRecord]:
    """The first trials of an end: the same ones whenever the same question is asked, however
    many the search itself has added since."""
    final = [r for r in records if r.outcome is not None and r.outcome.kind.final]
    final = [r for r in final if not r.early_stopped]
    return sorted(final, key=lambda r: r.trial.started)[:CHOOSING]


def _crash(
    task: Task, good: Commit, bad: Commit, at_good: list[TrialRecord], at_bad: list[TrialRecord]
) -> Symptom | None:
    """The symptom where every trial of BAD crashes and GOOD's do not."""
    broken_good, broken_bad = _broken(at_good), _broken(at_bad)
    if broken_good and broken_bad and _alike(broken_good, broken_bad):
        raise CannotJudge(
            f"{task.name} fails in the same way at both ends: {_why(broken_bad)}",
            "no commit between them can be the cause: see "
            f"{command('show', broken_good.trial.commit[:12])}",
        )
    for end, broken in ((good, broken_good), (bad, broken_bad)):
        if broken and not signature(broken):
            raise CannotJudge(
                f"{task.name} cannot be tested at {end.sha[:10]}: {_why(broken)}",
                "or choose another end",
            )
    if broken_good:
        raise CannotJudge(
            f"{task.name} does not run at the good end {good.sha[:10]}: {_why(broken_good)}",
            "choose an older good end",
        )
    return Symptom(task, None, signature(broken_bad)) if broken_bad else None


def _broken(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the last trial of an end that fails, None for one of which a trial ran well."""
    return records[-1] if records and not any(r.ok for r in records) else None


def _alike(one: TrialRecord, other: TrialRecord) -> bool:
    """Whether two trials failed for the same reason; addresses and other numbers do not count."""
    first, second = (_NUMBER.sub("", _why(record)) for record in (one, other))
    return signature(one) == signature(other) and first == second


def _why(record: TrialRecord) -> str:
    return record.outcome.message if record.outcome else ""


def _question(
    ledger: Ledger,
    task: Task,
    metric: Metric,
    at_good: list[TrialRecord],
    at_bad: list[TrialRecord],
) -> rules.Question | None:
    """BAD against GOOD in one metric; None where an end has no value of it. The noise is what
    was known of it when the ends had been measured, BAD's own step left out."""
    good, bad = _values(metric, at_good), _values(metric, at_bad)
    if not good or not bad:
        return None
    environment, end = at_good[0].trial.environment, at_bad[0].trial.commit
    then = max(r.trial.started for r in (*at_good, *at_bad))
    rows = [
        r
        for r in ledger.summaries(task.name, metric.name, recipe=task.recipe)
        if r.environment == environment and r.started <= then and usable(r, metric)
    ]
    noise = baseline.noise([r for r in rows if r.commit != end], {})
    if len(bad) > 1 and not noise.between:
        noise = replace(baseline.noise(rows, {}), between=0.0)
    return rules.Question(
        [v for _, v in bad], [[v for _, v in good]],
        sign=metric.direction.sign, floor=metric.floor, noise=noise if noise.known else None,
        seeds=[s for s, _ in bad], baseline_seeds=[[s for s, _ in good]],
    )  # fmt: skip


def _weight(item: _Asked, answer: rules.Judgement, *, named: bool) -> float | None:
    """How surely BAD is worse, as a p-value; None where it is the same or better.

    A metric that the person named is believed to be worse unless the ends prove that it is
    not: the search itself measures them more, and ends with "nothing changed" if that is so.
    """
    p_value = answer.p_value if math.isfinite(answer.p_value) else 0.0
    if answer.kind in (VerdictKind.REGRESSED, VerdictKind.NOT_FINITE):
        return p_value
    noise = item.question.noise
    if answer.kind is VerdictKind.IMPROVED or (noise is not None and noise.exact):
        return None
    seems_worse = answer.effect * item.question.sign > 0
    if named or (answer.kind is VerdictKind.UNDECIDED and seems_worse):
        return 1.0 + p_value
    return None


def _values(metric: Metric, records: list[TrialRecord]) -> list[tuple[int, float]]:
    rows = [(r.trial.seed, _row(r, metric)) for r in records]
    return [(seed, row.value) for seed, row in rows if row is not None and usable(row, metric)]


def _row(record: TrialRecord, metric: Metric) -> SummaryRow | None:
    """The trial's summary of this metric as `usable` wants it."""
    if record.outcome is None or metric.name not in record.summaries:
        return None
    trial = record.trial
    return SummaryRow(
        trial.commit, trial.ulid, trial.seed, trial.environment, trial.recipe,
        record.summaries[metric.name], trial.started, record.outcome.marks, record.outcome.kind,
        record.rules.get(metric.name, "last"),
    )  # fmt: skip


def _list(names: Sequence[str]) -> str:
    if not names:
        return "anything that both ends reported"
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
