"""The verdicts on one commit as text and JSON."""

from __future__ import annotations

from collections.abc import Sequence

from celedger.ledger.read import Reader
from celedger.model import Commit, Metric, Verdict, VerdictKind
from celedger.views import export
from celedger.views.format import measure, percent, plain, short
from celedger.views.tables import Column, table

_ORDER = {kind: place for place, kind in enumerate((
    VerdictKind.FAILED, VerdictKind.MISSING, VerdictKind.NOT_FINITE, VerdictKind.REGRESSED,
    VerdictKind.UNDECIDED, VerdictKind.ENVIRONMENT_CHANGED, VerdictKind.IMPROVED, VerdictKind.SAME,
))}  # fmt: skip


def verdicts_text(
    ledger: Reader, commit: Commit, verdicts: Sequence[Verdict], *, width: int = 100
) -> str:
    """The worst first, one line a task × metric."""
    units = {m.name: m for m in ledger.metrics()}
    rows = []
    for verdict in sorted(verdicts, key=lambda v: (_ORDER[v.kind], v.task, v.metric)):
        metric = units.get(verdict.metric, Metric("any"))
        effect = interval = level = ""
        if verdict.effect == verdict.effect:
            share = verdict.effect / abs(verdict.level) if verdict.level else float("nan")
            effect = percent(share) if share == share else f"{verdict.effect:+.3g}"
            level = measure(verdict.level, unit=metric.unit)
            if verdict.level and verdict.low == verdict.low:
                scale = abs(verdict.level)
                interval = f"{percent(verdict.low / scale)} … {percent(verdict.high / scale)}"
        rows.append(
            (verdict.task, verdict.metric or "(whole task)", verdict.kind.value, level, effect,
             interval, plain(verdict.note))
        )  # fmt: skip
    head = f"{short(commit.sha)} {plain(commit.subject)}"
    if not rows:
        return f"{head}\nnothing was judged"
    columns = [
        Column("task"), Column("metric"), Column("verdict"), Column("baseline", right=True),
        Column("change", right=True), Column("95 % interval"), Column("note", shrink=True),
    ]  # fmt: skip
    return f"{head}\n\n{table(columns, rows, width=width)}"


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


def verdicts_json(commit: Commit, verdicts: Sequence[Verdict]) -> dict[str, export.Json]:
    """Every field of every verdict."""
    return export.document(
        commit=commit.sha,
        verdicts=[
            {
                "suite": v.suite, "task": v.task, "metric": v.metric, "verdict": v.kind.value,
                "level": v.level, "value": v.value, "effect": v.effect, "low": v.low,
                "high": v.high, "p_value": v.p_value, "trials": list(v.trials),
                "baseline": list(v.baseline), "rule": v.rule, "note": v.note,
            }
            for v in verdicts
        ],
    )  # fmt: skip
