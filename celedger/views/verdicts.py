"""The verdicts on one commit as text and JSON: what the suite declares, what is only telemetry,
and what to run where the trials at hand cannot tell."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from shlex import quote

from celedger.drift.judge import Judged, counted
from celedger.ledger.read import Reader
from celedger.model import Commit, Metric, Verdict, VerdictKind
from celedger.stats.verdict import WITHOUT_FLOOR, Judgement
from celedger.views import export
from celedger.views.format import change, count, measure, percent, plain, short
from celedger.views.samples import Sample
from celedger.views.show import told_text
from celedger.views.tables import Column, table

_ORDER = {kind: place for place, kind in enumerate((
    VerdictKind.FAILED, VerdictKind.MISSING, VerdictKind.NOT_FINITE, VerdictKind.REGRESSED,
    VerdictKind.UNDECIDED, VerdictKind.ENVIRONMENT_CHANGED, VerdictKind.TOO_NOISY,
    VerdictKind.IMPROVED, VerdictKind.SAME,
))}  # fmt: skip
_COLUMNS = (
    Column("task"),
    Column("metric"),
    Column("verdict"),
    Column("change", right=True),
    Column("", wrap=True),
)
_TELEMETRY = "telemetry, which the suite does not declare: never decides the exit status"
_TYPED = 100  # trials that a person may be asked to run; more need another remedy

Declared = Collection[tuple[str, str]]  # (task, metric)


def verdicts_text(
    ledger: Reader, commit: Commit, judged: Judged, declared: Declared, *, width: int = 100
) -> str:
    """The worst first, one row a task × metric; those of the suite before telemetry."""
    head = f"{short(commit.sha)} {plain(commit.subject)}"
    if not judged.verdicts:
        return f"{head}\nnothing was judged"
    own, telemetry = counted(judged.verdicts, declared)
    lines = [head]
    for title, verdicts in (("", own), (_TELEMETRY, telemetry)):
        if verdicts:
            verdicts = sorted(verdicts, key=lambda v: (_ORDER[v.kind], v.task, v.metric))
            rows = [_cells(ledger, v, judged.answers.get((v.task, v.metric))) for v in verdicts]
            lines += ["", *filter(None, [title]), table(_COLUMNS, rows, width=width)]
    return "\n".join([*lines, *_more_trials(ledger, own, judged)])


def _cells(ledger: Reader, verdict: Verdict, answer: Judgement | None) -> tuple[str, ...]:
    metric = _metric(ledger, verdict)
    moved = ""
    if math.isfinite(verdict.effect):
        moved = change(verdict.effect, unit=metric.unit, like=verdict.value)
        if verdict.level:
            moved = percent(verdict.effect / abs(verdict.level))
    parts = [_levels(verdict, metric), plain(verdict.note), _sight(verdict, metric, answer)]
    return (
        verdict.task, verdict.metric or "(whole task)", verdict.kind.value, moved,
        "; ".join(filter(None, parts)),
    )  # fmt: skip


def _metric(ledger: Reader, verdict: Verdict) -> Metric:
    """The metric as this verdict's task declares it."""
    known = (m for m in ledger.metrics(verdict.recipe) if m.name == verdict.metric)
    return next(known, Metric(verdict.metric or "any"))


def _levels(verdict: Verdict, metric: Metric) -> str:
    """`0.3798 → 0.6230 nats (+57.0 % … +70.9 %)` of what changed; else empty."""
    if verdict.kind not in (VerdictKind.REGRESSED, VerdictKind.IMPROVED):
        return ""
    digits = (verdict.high - verdict.low) / 4  # two standard errors to each side
    levels = [measure(x, digits, unit=metric.unit) for x in (verdict.level, verdict.value)]
    text = " → ".join(levels)
    if verdict.level and verdict.low < verdict.high:
        low, high = (percent(x / abs(verdict.level)) for x in (verdict.low, verdict.high))
        text += f" (95 %: {low} … {high})"
    return text


def _sight(verdict: Verdict, metric: Metric, answer: Judgement | None) -> str:
    """What these trials could have told, and what it takes to tell what should be."""
    if answer is None:
        return ""
    sample = Sample(metric, (verdict.level,))
    seen = told_text(answer.smallest, sample)
    if verdict.kind is VerdictKind.SAME and math.isfinite(answer.smallest) and not verdict.note:
        return f"a change of {seen} would have been seen"
    if verdict.kind is VerdictKind.UNDECIDED and (answer.trials or answer.each):
        return f"to tell {told_text(answer.wanted, sample)} takes {_needed(answer, verdict)}"
    if verdict.kind is not VerdictKind.TOO_NOISY:
        return ""
    return f"cannot tell less than {seen}; {_asked(metric)} takes {_needed(answer, verdict)}"


def _asked(metric: Metric) -> str:
    floor = metric.floor
    if not floor.amount:
        return f"{percent(WITHOUT_FLOOR, signed=False)} (it has no floor)"
    if floor.relative:
        return f"its floor of {percent(floor.amount, signed=False)}"
    unit = "pp" if metric.unit == "%" else metric.unit
    return f"its floor of {measure(floor.amount, unit=unit)}"


def _needed(answer: Judgement, verdict: Verdict) -> str:
    if answer.trials is not None:
        more = max(1, answer.trials - len(verdict.trials))
        return f"about {more:,} more {'trial' if more == 1 else 'trials'}"
    if answer.each is not None:
        return f"about {answer.each:,} trials of this commit and as many of its baseline"
    return "more than trials: its commits differ by more than their repeats"


def _more_trials(ledger: Reader, own: Sequence[Verdict], judged: Judged) -> list[str]:
    """What to type where a metric of the suite is too noisy, and what else helps."""
    noisy = [v for v in own if v.kind is VerdictKind.TOO_NOISY]
    if not noisy:
        return []
    wanted: dict[tuple[str, str, str], int] = {}
    out_of_reach: dict[str, None] = {}
    for verdict in noisy:
        answer = judged.answers[verdict.task, verdict.metric]
        trials = answer.trials or answer.each
        if trials is None or trials > _TYPED:
            out_of_reach[verdict.task] = None
            continue
        last = ledger.trial(verdict.baseline[-1]) if answer.trials is None else None
        for commit in (verdict.commit, *([last.trial.commit] if last else [])):
            key = (verdict.suite, verdict.task, commit)
            wanted[key] = max(wanted.get(key, 0), trials)
    metrics = count(len(noisy), "metric")
    lines = ["", f"{metrics} of the suite too noisy to tell: undecided unless --lenient"]
    if wanted:
        lines.append("more trials:")
    for (suite, task, sha), n in wanted.items():
        words = f"{quote(task)} --suite {suite} --commit {sha[:12]} --seeds {n} --repeats 1"
        lines.append(f"  celedger noise {words}")
    if out_of_reach:
        lines.append("calm the task, or set floors that its trials can tell:")
    return [*lines, *(f"  celedger show {quote(task)}" for task in out_of_reach)]


def explained_text(ledger: Reader, verdicts: Sequence[Verdict]) -> str:
    """Why each verdict is what it is: the trials judged, the baseline, the rule, the evidence."""
    lines = []
    for verdict in verdicts:
        lines.append(f"\n{verdict.task} {verdict.metric or '(whole task)'}: {verdict.kind}")
        if verdict.note:
            lines.append(f"  because   {plain(verdict.note)}")
        if verdict.rule:
            evidence = f", p = {verdict.p_value:.2g}" if verdict.p_value == verdict.p_value else ""
            lines.append(f"  rule      {verdict.rule}{evidence} (docs/statistics.md)")
        for name, ulids in (("trials", verdict.trials), ("baseline", verdict.baseline)):
            if ulids:
                lines.append(f"  {name:<9} {_values(ledger, ulids, verdict.metric)}")
    return "\n".join(lines)


def _values(ledger: Reader, ulids: Sequence[str], metric: str) -> str:
    """The values, commit by commit: `3f2a9c1d 0.41 0.42 (seeds 0 1)`."""
    by_commit: dict[str, list[tuple[int, float]]] = {}
    for ulid in ulids:
        record = ledger.trial(ulid)
        if record is not None:
            value = record.summaries.get(metric, float("nan"))
            by_commit.setdefault(record.trial.commit, []).append((record.trial.seed, value))
    parts = []
    for sha, found in by_commit.items():
        found.sort()
        values = " ".join(f"{value:.6g}" for _, value in found)
        parts.append(f"{short(sha)} {values} (seeds {' '.join(str(s) for s, _ in found)})")
    return "; ".join(parts)


def verdicts_json(commit: Commit, judged: Judged, declared: Declared) -> dict[str, export.Json]:
    """Every field of every verdict, and what its trials could have told."""
    nothing = Judgement(VerdictKind.SAME)
    own, _ = counted(judged.verdicts, declared)
    found = [(v, judged.answers.get((v.task, v.metric), nothing)) for v in judged.verdicts]
    return export.document(
        commit=commit.sha,
        verdicts=[
            {
                "suite": v.suite, "task": v.task, "metric": v.metric, "verdict": v.kind.value,
                "counts": v in own,
                "level": v.level, "value": v.value, "effect": v.effect, "low": v.low,
                "high": v.high, "p_value": v.p_value, "smallest_change": answer.smallest,
                "wanted_change": answer.wanted, "trials_needed": answer.trials,
                "trials_needed_each": answer.each, "trials": list(v.trials),
                "baseline": list(v.baseline), "rule": v.rule, "note": v.note,
            }
            for v, answer in found
        ],
    )  # fmt: skip
