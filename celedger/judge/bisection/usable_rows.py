"""Rows of summaries that may be judged, and the noise that a search learns from them.

Only bisects ask: the state learns its noise from repeats of the same code (`stats.history`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from celedger.base.model import SPOILT, Kind, Mark, Metric, OutcomeKind, SummaryRow
from celedger.stats import noise as noises
from celedger.stats.grouped_values import Grouped

Rows = Sequence[SummaryRow]


def usable(kind: OutcomeKind, marks: Collection[Mark], rule: str, metric: Metric) -> bool:
    """Return True if a value that a trial was summarised to by a rule may be judged: the trial ran
    to its end, and, for speed, undisturbed."""
    if kind is not OutcomeKind.OK or rule != metric.summary or Mark.EARLY_STOPPED in marks:
        return False
    return metric.kind is not Kind.SPEED or not SPOILT.intersection(marks)


def usable_rows(rows: Rows, metric: Metric) -> list[SummaryRow]:
    """Return the rows that may be judged."""
    return [r for r in rows if usable(r.outcome, r.marks, r.summary, metric)]


def by_commit(rows: Rows) -> dict[str, list[SummaryRow]]:
    """Return the rows of each commit, in their order."""
    groups: dict[str, list[SummaryRow]] = defaultdict(list)
    for row in rows:
        groups[row.commit].append(row)
    return groups


def noise(rows: Rows, order: Mapping[str, int]) -> noises.Noise:
    """Return the noise of one metric × task × environment, pooled over the commits given. `order`
    places commits in the history: neighbours there, and not in the order of measuring, may be
    compared. Commits it does not name come last."""
    return noises.pool_newest(_grouped(rows, order)[1])


def noise_beside(rows: Rows, commit: str, order: Mapping[str, int], trials: int) -> noises.Noise:
    """Return the noise that a commit with so many trials is tested against."""
    line, grouped = _grouped(rows, order)
    return noises.pool_beside(grouped, line.index(commit) if commit in line else -1, trials)


def _grouped(rows: Rows, order: Mapping[str, int]) -> tuple[list[str], Grouped]:
    """Return the commits that have values of their own, the oldest first, and those values."""
    groups = by_commit([row for row in rows if not row.derived])
    line = sorted(groups, key=lambda sha: order.get(sha, len(order)))
    values = [[row.value for row in groups[sha]] for sha in line]
    return line, Grouped.of(values, [[row.seed for row in groups[sha]] for sha in line])
