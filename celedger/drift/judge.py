"""Judges a commit by what the ledger holds: gathers the values and baselines of every task ×
metric, asks the statistics, and turns their answers into verdicts. Runs nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from celedger.drift.baseline import HISTORY, Baselines, noise_beside, usable
from celedger.errors import Status, command
from celedger.ledger import Ledger
from celedger.ledger import ulid as ulids
from celedger.model import (
    REUSED,
    Commit,
    Direction,
    Environment,
    Kind,
    Metric,
    OutcomeKind,
    SummaryRow,
    Task,
    TrialRecord,
    Verdict,
    VerdictKind,
)
from celedger.repo import Repository
from celedger.stats import verdict as rules
from celedger.stats.noise import Noise

Rows = Sequence[SummaryRow]
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

    task: Task
    metric: Metric
    head: Rows
    base: Rows
    question: rules.Question
    environment: str
    turns: bool = False  # HEAD and its baseline were run in turns
    pinned: str = ""  # the commit of a pinned baseline; "" for the rolling one
    accepted: str = ""  # who accepted this commit's change, and why


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
    order = {sha: place for place, sha in enumerate(line)}
    settled: list[Verdict] = []
    cases: list[_Case] = []
    for task in tasks:
        environment = environments[task.name].fingerprint
        records = ledger.trials(commit=commit.sha, recipe=task.recipe, environment=environment)
        broken = _broken(commit, task, environment, records)
        if broken is not None:
            settled.append(broken)
            continue
        baselines = Baselines(ledger, task, commit.sha, ancestors, environment)
        if baselines.own.get("", VerdictKind.SAME) is not VerdictKind.SAME:
            # The task as a whole had failed here, and now it runs.
            settled.append(_verdict(commit, task, "", environment, VerdictKind.SAME, "it runs"))
        since = (interleaved or {}).get(task.name) or _turns(ledger, commit, task, environment)
        judged = len(settled) + len(cases)
        before = ledger.judged_before(
            commit.sha, suite=task.suite, task=task.name, recipe=task.recipe,
            environment=environment,
        )  # fmt: skip
        for metric in task.metrics:
            if metric.direction is Direction.INFO:
                continue
            earlier = before.get(metric.name, set())
            found = _cases(
                ledger, commit, task, metric, environment, baselines, since, order, earlier
            )
            if isinstance(found, Verdict):
                settled.append(found)
            else:
                cases += found
        reused = {r.derived: r.reused for r in records if r.derived}
        if reused and len(settled) + len(cases) == judged:
            # A task that is all clock and memory: nothing was measured, nothing can differ.
            why = reused[min(reused)]
            settled.append(_verdict(commit, task, "", environment, VerdictKind.SAME, why))
    answers = rules.judge_many([case.question for case in cases], seed=int(commit.sha[:8], 16))
    combined = _combined(commit, cases, answers)
    verdicts = (*settled, *(verdict for verdict, _ in combined))
    ledger.record_verdicts(verdicts)
    suspects: dict[str, bool] = {}
    for case, answer in zip(cases, answers, strict=True):
        speed = case.metric.kind is Kind.SPEED
        if answer.suspect or (speed and answer.kind in _CHANGED and not case.turns):
            suspects[case.task.name] = suspects.get(case.task.name, True) and speed
    return Judged(verdicts, suspects, {(v.task, v.metric): answer for v, answer in combined})


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
) -> Status:
    """Return the exit status of a judged commit; only `declared` metrics and whole tasks count.

    A `gate` does not pass what it could not decide or did not measure. A `lenient` one passes
    what is too noisy.
    """
    own, telemetry = counted(verdicts, declared)
    if any(v.kind.bad for v in own):
        return Status.BAD
    if any(v.metric == "" and v.kind is VerdictKind.UNDECIDED for v in own):
        return Status.CANNOT_JUDGE  # a task that did not run at all, by no fault of its own
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


def _cases(
    ledger: Ledger,
    commit: Commit,
    task: Task,
    metric: Metric,
    environment: str,
    baselines: Baselines,
    since: float | None,
    order: Mapping[str, int],
    before: Collection[tuple[str, ...]],
) -> list[_Case] | Verdict:
    """The questions on one metric; or its verdict, where the environment is new. `before`: the
    sets of trials that HEAD was judged from in earlier looks."""
    rows = ledger.summaries(task.name, metric.name, recipe=task.recipe)
    here = [r for r in rows if r.environment == environment and usable(r, metric)]
    head = [r for r in here if r.commit == commit.sha]
    if not head:
        spoilt = [r for r in rows if r.commit == commit.sha and r.environment == environment]
        if not spoilt:
            return []  # a metric of a device that is not there
        why = "disturbed or throttled: measure it again with --force"
        if all(r.summary != metric.summary for r in spoilt):
            why = f"summarised by {spoilt[-1].summary!r} until now: measure it again with --force"
        return _verdict(commit, task, metric.name, environment, VerdictKind.UNDECIDED, why)
    head = [r for r in head if not r.derived] or head  # one that is re-used is no repeat
    base = baselines.rolling(metric, here)
    if base and all(r.derived for r in head):
        proven = {r.derived for r in head}
        base = [r for r in base if r.ulid not in proven]
        if not base:
            why = f"re-used from its baseline: {REUSED}"
            same = VerdictKind.SAME
            return _verdict(commit, task, metric.name, environment, same, why, head)
    elsewhere = any(r.environment != environment for r in rows)
    if not base and elsewhere and all(order[r.commit] >= order[commit.sha] for r in here):
        why = "measured before only in another environment; this starts a new baseline"
        kind = VerdictKind.ENVIRONMENT_CHANGED
        return _verdict(commit, task, metric.name, environment, kind, why, head)
    turns = False
    if since is not None and metric.kind is Kind.SPEED:
        recent = [[r for r in rows if r.started >= since] for rows in (base, head)]
        if all(recent):
            (base, head), turns = recent, True
    word = baselines.accepted(metric)
    accepted = f"accepted by {word.who}: {word.why}" if word else ""
    known = noise_beside(here, commit.sha, order, len(head))
    look = 1 + len(set(before) - {tuple(r.ulid for r in head)})
    question = _question(metric, head, base, known, look)
    found = [_Case(task, metric, head, base, question, environment, turns, "", accepted)]
    pin = baselines.pinned(metric, here)
    if pin is not None:
        question = _question(metric, head, pin[1], known, look)
        found.append(
            _Case(task, metric, head, pin[1], question, environment, False, pin[0].commit, accepted)
        )
    return found


def _combined(
    commit: Commit, cases: Sequence[_Case], answers: Sequence[rules.Judgement]
) -> list[tuple[Verdict, rules.Judgement]]:
    """One verdict a metric, with its judgement: the rolling baseline's, unless only the pinned
    one shows that it got worse: then it drifted, slowly."""
    verdicts: dict[tuple[str, str], tuple[Verdict, rules.Judgement]] = {}
    for case, answer in zip(cases, answers, strict=True):
        key = (case.task.name, case.metric.name)
        verdict = Verdict(
            commit.sha, case.task.suite, case.task.name, case.metric.name, answer.kind,
            level=answer.level, value=answer.value, effect=answer.effect,
            low=answer.low, high=answer.high, p_value=answer.p_value,
            trials=tuple(r.ulid for r in case.head), baseline=tuple(r.ulid for r in case.base),
            rule=answer.rule + _TURNS * case.turns, note=answer.note,
            recipe=case.task.recipe, environment=case.environment,
        )  # fmt: skip
        if verdict.kind in _CHANGED and case.metric.kind is Kind.SPEED and not case.turns:
            check = command("check", commit.sha[:12], suite=case.task.suite, task=case.task.name)
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


def _turns(ledger: Ledger, commit: Commit, task: Task, environment: str) -> float | None:
    """When this commit and its baseline were first run in turns, as earlier verdicts tell."""
    began = [
        min(map(ulids.time, verdict.trials))
        for verdict in ledger.verdicts(commit=commit.sha, suite=task.suite, task=task.name)
        if verdict.rule.endswith(_TURNS)
        and (verdict.recipe, verdict.environment) == (task.recipe, environment)
    ]
    return min(began, default=None)


def _question(metric: Metric, head: Rows, base: Rows, known: Noise, look: int) -> rules.Question:
    groups: dict[str, list[SummaryRow]] = defaultdict(list)
    for row in base:
        groups[row.commit].append(row)
    return rules.Question(
        values=[r.value for r in head],
        baseline=[[r.value for r in group] for group in groups.values()],
        sign=metric.direction.sign,
        floor=metric.floor,
        noise=known if known.known else None,
        seeds=[r.seed for r in head],
        baseline_seeds=[[r.seed for r in group] for group in groups.values()],
        look=look,
    )


def _broken(
    commit: Commit, task: Task, environment: str, records: Sequence[TrialRecord]
) -> Verdict | None:
    """The verdict where the newest trial of some seed did not run to its end."""
    newest: dict[int, TrialRecord] = {}
    for record in sorted(records, key=lambda r: r.trial.started):
        final = record.outcome is not None and record.outcome.kind.final
        if final and not record.early_stopped:
            newest[record.trial.seed] = record
    ulids = tuple(r.trial.ulid for r in newest.values())

    def say(kind: VerdictKind, note: str) -> Verdict:
        return replace(_verdict(commit, task, "", environment, kind, note), trials=ulids)

    if not newest:
        return say(VerdictKind.UNDECIDED, "no trial of this commit came to its end")
    outcomes = [r.outcome for r in newest.values() if r.outcome is not None]
    crashed = next((o for o in outcomes if o.kind.crashed), None)
    if crashed is not None:
        missing = crashed.kind is OutcomeKind.MISSING
        kind = VerdictKind.MISSING if missing else VerdictKind.FAILED
        return say(kind, f"{crashed.kind}: {crashed.message}")
    untestable = next((o for o in outcomes if o.kind is OutcomeKind.UNTESTABLE), None)
    if untestable is not None:
        return say(VerdictKind.UNDECIDED, f"untestable: {untestable.message}")
    return None


def _verdict(
    commit: Commit,
    task: Task,
    metric: str,
    environment: str,
    kind: VerdictKind,
    note: str,
    trials: Rows = (),
) -> Verdict:
    """A verdict that needs no statistics."""
    return Verdict(
        commit.sha, task.suite, task.name, metric, kind, note=note,
        trials=tuple(r.ulid for r in trials), recipe=task.recipe, environment=environment,
    )  # fmt: skip
