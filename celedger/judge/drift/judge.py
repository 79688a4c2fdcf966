"""Judges a commit by what the ledger holds: gathers the values and baselines of every task ×
metric, asks the statistics, and turns their answers into verdicts. Runs nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from celedger.base.errors import command
from celedger.base.model import (
    REUSED,
    Commit,
    Direction,
    Environment,
    Kind,
    Metric,
    OutcomeKind,
    Task,
    TrialRecord,
    Verdict,
    VerdictKind,
)
from celedger.judge.drift.baseline import HISTORY, Baselines, Rows, by_commit, noise_beside
from celedger.ledger import Ledger
from celedger.ledger import ulid as ulids
from celedger.repo import Repository
from celedger.stats import verdict as rules
from celedger.stats.noise import Noise

_CHANGED = (VerdictKind.REGRESSED, VerdictKind.IMPROVED)
_TURNS = ", in turns"  # of the rule of a verdict on interleaved trials


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdicts on one commit. `suspects` maps the tasks of which more trials would tell
    more to whether it is their speed alone that is in question. `answers` are the judgements
    behind those verdicts, by task and metric, that needed statistics."""

    verdicts: tuple[Verdict, ...]
    suspects: Mapping[str, bool] = field(default_factory=dict)
    answers: Mapping[tuple[str, str], rules.Judgement] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Case:
    """One question to the statistics: a metric against one of its baselines."""

    subject: Baselines
    metric: Metric
    head: Rows
    base: Rows
    question: rules.VerdictQuestion
    accepted: str  # who accepted this commit's change, and why
    turns: bool = False  # HEAD and its baseline were run in turns
    pinned: str = ""  # the commit of a pinned baseline; "" for the rolling one


def judge(
    repository: Repository,
    ledger: Ledger,
    commit: Commit,
    tasks: Sequence[Task],
    environments: Mapping[str, Environment],
    *,
    interleaved: Mapping[str, float] | None = None,
) -> Judged:
    """Judge one commit on every task and metric, and store the verdicts in the ledger.

    `interleaved` gives, for tasks of which this commit and its baseline were run in turns, the
    time at which that began: their speed is judged by those trials alone, then and whenever it is
    asked again. Without it a change of speed is a suspicion and no more: a machine drifts more
    than code does.
    """
    ancestors = [c.sha for c in repository.log(commit.sha, limit=HISTORY) if c.sha != commit.sha]
    # Ancestors in the order of history, then what else was measured, by time.
    later = sorted(ledger.commits(), key=lambda c: (c.commit_time, c.author_time))
    line = dict.fromkeys([*reversed(ancestors), commit.sha, *(c.sha for c in later)])
    order = {sha: number for number, sha in enumerate(line)}
    settled: list[Verdict] = []
    cases: list[_Case] = []
    for task in tasks:
        environment = environments[task.name].fingerprint
        subject = Baselines(ledger, task, commit.sha, ancestors, environment)
        for answer in _of_task(subject, (interleaved or {}).get(task.name), order):
            if isinstance(answer, Verdict):
                settled.append(answer)
            else:
                cases.append(answer)
    answers = rules.judge_many([case.question for case in cases], seed=int(commit.sha[:8], 16))
    combined = _combined(cases, answers)
    verdicts = (*settled, *(verdict for verdict, _ in combined))
    ledger.record_verdicts(verdicts)
    suspects: dict[str, bool] = {}
    for case, judgement in zip(cases, answers, strict=True):
        speed, task = case.metric.kind is Kind.SPEED, case.subject.task
        if judgement.suspect or (speed and judgement.kind in _CHANGED and not case.turns):
            suspects[task.name] = suspects.get(task.name, True) and speed
    return Judged(verdicts, suspects, {(v.task, v.metric): answer for v, answer in combined})


def _of_task(
    subject: Baselines, since: float | None, order: Mapping[str, int]
) -> list[Verdict | _Case]:
    """Return what is known of a task without statistics, and the questions to them. HEAD and its
    baseline were run in turns `since` that time."""
    ledger, task = subject.ledger, subject.task
    records = ledger.trials(
        commit=subject.commit, recipe=task.recipe, environment=subject.environment
    )
    if (broken := _broken(subject, records)) is not None:
        return [broken]
    answers: list[Verdict | _Case] = []
    before = ledger.judged_before(
        subject.commit, suite=task.suite, task=task.name, recipe=task.recipe,
        environment=subject.environment,
    )  # fmt: skip
    since = since or _turns(subject)
    for metric in task.metrics:
        if metric.direction is not Direction.INFO:
            answers += _of_metric(subject, metric, since, order, before.get(metric.name, set()))
    reused = {r.derived: r.reused for r in records if r.derived}
    if reused and not answers:
        # A task that is all clock and memory: nothing was measured, nothing can differ.
        answers.append(_verdict(subject, "", VerdictKind.SAME, reused[min(reused)]))
    if subject.was_bad:
        answers.insert(0, _verdict(subject, "", VerdictKind.SAME, "it runs"))
    return answers


def _of_metric(
    subject: Baselines,
    metric: Metric,
    since: float | None,
    order: Mapping[str, int],
    before: Collection[tuple[str, ...]],
) -> list[Verdict] | list[_Case]:
    """Return the questions on one metric; or its verdict, where none is needed. `before`: the sets
    of trials that HEAD was judged from in earlier looks."""
    rows, here = subject.rows(metric)
    head = [r for r in here if r.commit == subject.commit]
    if not head:
        return _without_values(subject, metric, rows)
    head = [r for r in head if not r.derived] or head  # one that is re-used is no repeat
    base = subject.rolling(metric, here)
    if base and all(r.derived for r in head):
        proven = {r.derived for r in head}
        base = [r for r in base if r.ulid not in proven]
        if not base:
            why = f"re-used from its baseline: {REUSED}"
            return [_verdict(subject, metric.name, VerdictKind.SAME, why, head)]
    elsewhere = any(r.environment != subject.environment for r in rows)
    if not base and elsewhere and all(order[r.commit] >= order[subject.commit] for r in here):
        why = "measured before only in another environment; this starts a new baseline"
        return [_verdict(subject, metric.name, VerdictKind.ENVIRONMENT_CHANGED, why, head)]
    turns = False
    if since is not None and metric.kind is Kind.SPEED:
        recent = [[r for r in rows if r.started >= since] for rows in (base, head)]
        if all(recent):
            (base, head), turns = recent, True
    noise = noise_beside(here, subject.commit, order, len(head))
    # The trials of the first look come first; later ones may have been asked for because of them.
    ulids = {r.ulid for r in head}
    first = min(
        (set(trials) for trials in before if ulids.issuperset(trials)), key=len, default=ulids
    )
    values = sorted(head, key=lambda r: r.ulid not in first)
    accepted = subject.accepted(metric)
    question = _question(metric, values, base, noise, len(first))
    cases = [_Case(subject, metric, head, base, question, accepted, turns)]
    pin, base = subject.pinned(metric, here)
    if base:
        question = _question(metric, values, base, noise, len(first))
        cases.append(_Case(subject, metric, head, base, question, accepted, pinned=pin))
    return cases


def _without_values(subject: Baselines, metric: Metric, rows: Rows) -> list[Verdict]:
    """Return the verdict where no value of this commit may be judged; none for a metric of a device
    that is not there."""
    spoilt = [r for r in rows if (r.commit, r.environment) == (subject.commit, subject.environment)]
    if not spoilt:
        return []
    why = "disturbed, throttled or accompanied: measure it again with --force"
    if all(r.summary != metric.summary for r in spoilt):
        why = f"summarised by {spoilt[-1].summary!r} until now: measure it again with --force"
    return [_verdict(subject, metric.name, VerdictKind.UNDECIDED, why)]


def _combined(
    cases: Sequence[_Case], answers: Sequence[rules.Judgement]
) -> list[tuple[Verdict, rules.Judgement]]:
    """Return one verdict a metric, with its judgement: the rolling baseline's, unless only the
    pinned one shows that it got worse: then it drifted, slowly."""
    verdicts: dict[tuple[str, str], tuple[Verdict, rules.Judgement]] = {}
    for case, answer in zip(cases, answers, strict=True):
        task = case.subject.task
        key = (task.name, case.metric.name)
        verdict = replace(
            _verdict(case.subject, case.metric.name, answer.kind, answer.note, case.head),
            level=answer.level, value=answer.value, effect=answer.effect,
            low=answer.low, high=answer.high, p_value=answer.p_value,
            baseline=tuple(r.ulid for r in case.base), rule=answer.rule + _TURNS * case.turns,
        )  # fmt: skip
        if verdict.kind in _CHANGED and case.metric.kind is Kind.SPEED and not case.turns:
            check = command("check", case.subject.commit[:12], suite=task.suite, task=task.name)
            note = f"seems changed, but was not measured in turns with its baseline: {check}"
            verdict = replace(verdict, kind=VerdictKind.UNDECIDED, note=note)
        if case.pinned:
            if verdict.kind is not VerdictKind.REGRESSED or verdicts[key][0].kind.bad:
                continue
            note = f"drifted away from the pinned {case.pinned[:10]}"
            verdict = replace(verdict, note="; ".join(filter(None, (note, verdict.note))))
        if case.accepted and verdict.kind is VerdictKind.REGRESSED:
            verdict = replace(verdict, kind=VerdictKind.SAME, note=case.accepted)
        verdicts[key] = verdict, answer
    return list(verdicts.values())


def _turns(subject: Baselines) -> float | None:
    """Return when this commit and its baseline were first run in turns, by earlier verdicts."""
    task = subject.task
    began = [
        min(map(ulids.time, verdict.trials))
        for verdict in subject.ledger.verdicts(
            commit=subject.commit, suite=task.suite, task=task.name
        )
        if verdict.rule.endswith(_TURNS)
        and (verdict.recipe, verdict.environment) == (task.recipe, subject.environment)
    ]
    return min(began, default=None)


def _question(
    metric: Metric, head: Rows, base: Rows, noise: Noise, first: int
) -> rules.VerdictQuestion:
    groups = by_commit(base).values()
    return rules.VerdictQuestion(
        values=[r.value for r in head],
        baseline=[[r.value for r in group] for group in groups],
        sign=metric.direction.sign,
        floor=metric.floor,
        noise=noise if noise.known else None,
        seeds=[r.seed for r in head],
        baseline_seeds=[[r.seed for r in group] for group in groups],
        first=first,
    )


def _broken(subject: Baselines, records: Sequence[TrialRecord]) -> Verdict | None:
    """Return the verdict where the newest trial of some seed did not run to its end."""
    newest: dict[int, TrialRecord] = {}
    for record in sorted(records, key=lambda r: r.trial.started):
        final = record.outcome is not None and record.outcome.kind.final
        if final and not record.early_stopped:
            newest[record.trial.seed] = record
    outcomes = [r.outcome for r in newest.values() if r.outcome is not None]
    crashed = next((o for o in outcomes if o.kind.crashed), None)
    untestable = next((o for o in outcomes if o.kind is OutcomeKind.UNTESTABLE), None)
    if crashed is not None:
        missing = crashed.kind is OutcomeKind.MISSING
        kind = VerdictKind.MISSING if missing else VerdictKind.FAILED
        note = f"{crashed.kind}: {crashed.message}"
    elif untestable is not None:
        kind, note = VerdictKind.UNDECIDED, f"untestable: {untestable.message}"
    elif not newest:
        kind, note = VerdictKind.UNDECIDED, "no trial of this commit came to its end"
    else:
        return None
    trials = tuple(r.trial.ulid for r in newest.values())
    return replace(_verdict(subject, "", kind, note), trials=trials)


def _verdict(
    subject: Baselines, metric: str, kind: VerdictKind, note: str, trials: Rows = ()
) -> Verdict:
    """Return a verdict that needs no statistics."""
    task = subject.task
    return Verdict(
        subject.commit, task.suite, task.name, metric, kind, note=note,
        trials=tuple(r.ulid for r in trials), recipe=task.recipe, environment=subject.environment,
    )  # fmt: skip
