"""The bisects of the page: what each concluded, and its posterior as it narrowed, as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celedger.base.model import BisectRecord, Commit
from celedger.page.cards import CommitLine
from celedger.page.links import Host
from celedger.views.format import count, iso_date, short
from celedger.views.incidents import conclusion

MOST = 20
"""Bisects that the page shows; older ones are counted."""
_COLUMNS = 240  # of a posterior's picture; with more candidates several share one
_FAINTEST = 0.004  # probability that is drawn


@dataclass(frozen=True, slots=True)
class Bisect:
    """A bisect as the page shows it; `bars` and `narrowing` are probabilities of columns."""

    title: str
    answer: str
    facts: str
    culprit: CommitLine | None
    columns: int
    bars: Sequence[tuple[int, float]]  # at its end: column, probability
    rows: int
    trials: str
    narrowing: Sequence[tuple[int, int, float]]  # column, trial, probability
    label: str


def bisects(
    records: Sequence[BisectRecord], commits: Mapping[str, Commit], host: Host
) -> list[Bisect]:
    """Return the newest bisects, the newest first."""
    return [_bisect(record, commits, host) for record in records[::-1][:MOST]]


def _bisect(record: BisectRecord, commits: Mapping[str, Commit], host: Host) -> Bisect:
    report = record.report
    candidates = _sequence(report, "commits")
    final = [float(p) for p in _sequence(report, "posterior")]
    narrowed = [{int(i): float(p) for i, p in row} for row in _sequence(report, "narrowing")]
    if len(narrowed) < 2:  # nothing was run; the bars at the end tell as much
        narrowed = []
    kind = "better" if report.get("improved") else "bad"
    culprit = commits.get(record.culprits[0]) if record.status == "found" else None
    facts = [
        f"{short(record.good)}..{short(record.bad)}", count(len(candidates), "candidate"),
        *_spent(report), iso_date(record.ended),
    ]  # fmt: skip
    columns = min(_COLUMNS, max(1, len(candidates)))
    share = max(1, len(candidates)) / columns
    return Bisect(
        title=f"{record.suite}/{record.task} {record.metric or 'crash'}",
        answer=conclusion(record).capitalize(),
        facts=" · ".join(facts),
        culprit=CommitLine.of(culprit, host) if culprit else None,
        columns=columns,
        bars=_columns(dict(enumerate(final)), share),
        rows=len(narrowed),
        trials=count(max(0, len(narrowed) - 1), "trial"),
        narrowing=[(x, y, p) for y, row in enumerate(narrowed) for x, p in _columns(row, share)],
        label=f"Probability of each of {count(len(candidates), 'candidate')}, "
        f"to be the first {kind} commit",
    )


def _spent(report: Mapping[str, object]) -> list[str]:
    trials, stored = report.get("trials"), report.get("stored")
    if not isinstance(trials, int) or not isinstance(stored, int):
        return []
    return [f"{count(trials, 'trial')} run, {stored} in the ledger before"]


def _sequence(report: Mapping[str, object], name: str) -> Sequence[Any]:
    """Return a list of a stored report, of which older ones may lack some."""
    value = report.get(name)
    return value if isinstance(value, list | tuple) else ()


def _columns(posterior: Mapping[int, float], share: float) -> list[tuple[int, float]]:
    """Return the columns that are drawn, and the probability of the candidates in each."""
    columns: dict[int, float] = {}
    for index, p in posterior.items():
        column = int(index / share)
        columns[column] = columns.get(column, 0.0) + p
    return sorted((column, p) for column, p in columns.items() if p >= _FAINTEST)
