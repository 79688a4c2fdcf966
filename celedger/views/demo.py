"""The demo's answers compared with the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from celedger.base.model import Commit
from celedger.judge.bisection import Report
from celedger.views.format import Column, percent, plain, short, table

_COLUMNS = (
    Column("worse"), Column("metric"), Column("first bad commit"), Column("named"), Column(),
    Column("sure", right=True), Column("trials", right=True), Column("subject", shrink=True),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DemoAnswer:
    """A planted regression, its true commit, and what the bisect reported of it."""

    kind: str
    task: str
    metric: str  # empty for a crash
    truth: Commit
    report: Report | None
    error: str = ""

    @property
    def right(self) -> bool:
        return (
            self.report is not None
            and self.report.named
            and self.report.culprits[0].sha == self.truth.sha
        )

    @property
    def honest(self) -> bool:
        """Return True if it is right, or undecided with the truth still in the credible set."""
        if self.right or self.report is None:
            return self.right
        return not self.report.named and self.truth.sha in {c.sha for c in self.report.culprits}


def result_text(answers: Sequence[DemoAnswer]) -> str:
    """Return a line for each planted regression, and how many were named."""
    rows = []
    for answer in answers:
        report = answer.report
        named, sure, trials = f"error: {answer.error}", "", ""
        if report is not None:
            named = short(report.culprits[0].sha) if report.named else report.status
            sure = percent(min(report.probability, 0.999))
            trials = str(report.trials)
        grade = "right" if answer.right else "undecided" if answer.honest else "WRONG"
        metric = f"{answer.task} {answer.metric}".strip()
        truth, subject = short(answer.truth.sha), plain(answer.truth.subject)
        rows.append((answer.kind, metric, truth, named, grade, sure, trials, subject))
    right = sum(answer.right for answer in answers)
    named = f"{right} of {len(answers)} first bad commits named"
    return f"{table(_COLUMNS, rows, width=120)}\n\n{named}"
