"""What the demo found against the truth, as text, JSON and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from celedger.demo.play import Finding
from celedger.ledger.read import Reader
from celedger.model import Commit
from celedger.views import export
from celedger.views.bisect import search_of
from celedger.views.drift import drift_figure
from celedger.views.format import percent, plain, short
from celedger.views.posterior import posterior_figure
from celedger.views.tables import Column, table


def demo_text(findings: Sequence[Finding]) -> str:
    """A line for each planted regression, and the count of those found."""
    rows = []
    for finding in findings:
        report, planted = finding.report, finding.planted
        found, sure, spent = f"error: {finding.error}", "", ""
        if report is not None:
            found = short(report.culprits[0].sha) if report.named else report.status
            sure = percent(min(report.probability, 0.999), signed=False)
            spent = str(report.trials)
        answer = "right" if finding.right else "undecided" if finding.honest else "WRONG"
        rows.append(
            (planted.kind, f"{planted.task} {planted.metric}".strip(), short(finding.truth.sha),
             found, answer, sure, spent, plain(finding.truth.subject))
        )  # fmt: skip
    columns = [
        Column("planted"), Column("seen in"), Column("truth"), Column("found"), Column(""),
        Column("sure", right=True), Column("trials", right=True), Column("subject", shrink=True),
    ]  # fmt: skip
    right = sum(f.right for f in findings)
    return f"{table(columns, rows, width=120)}\n\n{right} of {len(findings)} found"


def demo_json(findings: Sequence[Finding]) -> dict[str, export.Json]:
    """Truth and answer of each planted regression."""
    return export.document(
        findings=[
            {
                "kind": f.planted.kind,
                "task": f.planted.task,
                "metric": f.planted.metric,
                "truth": f.truth.sha,
                "status": f.report.status if f.report else "error",
                "found": [c.sha for c in f.report.culprits] if f.report else [],
                "probability": f.report.probability if f.report else None,
                "right": f.right,
                "honest": f.honest,
                "trials": f.report.trials if f.report else 0,
                "epochs": f.report.epochs if f.report else 0,
                "error": f.error,
            }
            for f in findings
        ],
    )


def draw(ledger: Reader, commits: Sequence[Commit], findings: Sequence[Finding]) -> list[Path]:
    """The history of every metric with a planted change, and each bisect's posterior."""
    folder = ledger.folder / ".celedger" / "plots"
    folder.mkdir(parents=True, exist_ok=True)
    known = {m.name: m for m in ledger.metrics()}
    pictures = []
    for finding in findings:
        planted, report = finding.planted, finding.report
        if planted.metric:
            path = folder / f"drift-{planted.kind}.png"
            pictures.append(
                drift_figure(ledger, planted.task, path, metric=planted.metric, commits=commits)
            )
        if report is not None and report.posterior:
            path = folder / f"bisect-{planted.kind}.png"
            pictures.append(posterior_figure(search_of(report, known.get(report.metric)), path))
    return pictures
