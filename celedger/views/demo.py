"""The demo's answers beside the truth, as text, JSON and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from celedger.demo.play import DemoAnswer
from celedger.ledger.read import Reader
from celedger.model import Commit
from celedger.views import export
from celedger.views.bisect import search_of
from celedger.views.drift import drift_figure
from celedger.views.format import percent, plain, short
from celedger.views.posterior import posterior_figure
from celedger.views.tables import Column, table


def demo_text(answers: Sequence[DemoAnswer]) -> str:
    """Return a line for each planted regression, and how many were found."""
    rows = []
    for answer in answers:
        report = answer.report
        named, sure, spent = f"error: {answer.error}", "", ""
        if report is not None:
            named = short(report.culprits[0].sha) if report.named else report.status
            sure = percent(min(report.probability, 0.999), signed=False)
            spent = str(report.trials)
        grade = "right" if answer.right else "undecided" if answer.honest else "WRONG"
        rows.append(
            (answer.kind, f"{answer.task} {answer.metric}".strip(), short(answer.truth.sha),
             named, grade, sure, spent, plain(answer.truth.subject))
        )  # fmt: skip
    columns = [
        Column("planted"), Column("seen in"), Column("truth"), Column("found"), Column(""),
        Column("sure", right=True), Column("trials", right=True), Column("subject", shrink=True),
    ]  # fmt: skip
    right = sum(answer.right for answer in answers)
    return f"{table(columns, rows, width=120)}\n\n{right} of {len(answers)} found"


def demo_json(answers: Sequence[DemoAnswer]) -> dict[str, export.Json]:
    """Return truth and answer of each planted regression."""
    return export.document(
        findings=[
            {
                "kind": answer.kind,
                "task": answer.task,
                "metric": answer.metric,
                "truth": answer.truth.sha,
                "status": report.status if report else "error",
                "found": [c.sha for c in report.culprits] if report else [],
                "probability": report.probability if report else None,
                "right": answer.right,
                "honest": answer.honest,
                "trials": report.trials if report else 0,
                "epochs": report.epochs if report else 0,
                "error": answer.error,
            }
            for answer in answers
            for report in [answer.report]
        ],
    )


def draw(ledger: Reader, commits: Sequence[Commit], answers: Sequence[DemoAnswer]) -> list[Path]:
    """Draw the history of every metric with a planted change, and each bisect's posterior."""
    folder = ledger.folder / ".celedger" / "plots"
    folder.mkdir(parents=True, exist_ok=True)
    metrics = {m.name: m for m in ledger.metrics()}
    pictures = []
    for answer in answers:
        report = answer.report
        if answer.metric:
            path = folder / f"drift-{answer.kind}.png"
            pictures.append(
                drift_figure(ledger, answer.task, path, metric=answer.metric, commits=commits)
            )
        if report is not None and report.posterior:
            path = folder / f"bisect-{answer.kind}.png"
            pictures.append(posterior_figure(search_of(report, metrics.get(report.metric)), path))
    return pictures
