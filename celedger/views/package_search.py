"""The answer of `bisect --packages`: the upgrade, or those that it may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from celedger.base.model import Metric
from celedger.judge.bisection import Answer
from celedger.judge.bisection.bisect_report import Report, record
from celedger.views.bisect import effect_text
from celedger.views.document import Document
from celedger.views.format import count, plain, probability

_LIKELY = 0.01  # the share of a candidate that is listed


@dataclass(frozen=True, slots=True)
class PackageAnswer(Document):
    """Each candidate is a commit whose subject says which package it upgrades. `command` asks the
    same question again."""

    answer: Answer
    metrics: Mapping[str, Metric]
    command: str

    def text(self, width: int = 100) -> str:
        return "\n\n".join("\n".join(self._lines(report)) for report in self.answer.reports)

    def _lines(self, report: Report) -> Sequence[str]:
        title = f"{report.task} {report.metric or 'crash'}"
        who = " or ".join(plain(commit.subject) for commit in report.culprits)
        if report.named:
            lines = [f"{title}: {who} ({probability(report.probability)})"]
        else:
            lines = [f"{title}: no upgrade is named ({report.status})"]
            lines += [f"  {name}: {probability(share)}" for name, share in _shares(report)]
        metric = self.metrics.get(report.metric)
        if effect := effect_text(report, metric.unit if metric else ""):
            lines.append(f"  effect      {report.metric} {effect}")
        of = f"{count(report.tried, 'environment')} of {len(report.commits) + 1} trained"
        lines.append(f"  searched    {count(len(report.commits), 'upgrade')}, {of}")
        if report.untestable:
            names = [plain(report.commits[i].subject) for i in report.untestable if i >= 0]
            lines.append(
                f"  untestable  after {', '.join(names)}: the packages do not fit together"
            )
        return [*lines, "", "reproduce with", f"  {self.command}"]

    def json(self) -> dict[str, object]:
        return {
            "bisects": [record(report).report for report in self.answer.reports],
            "named": [
                {
                    "task": report.task, "metric": report.metric or None,
                    "upgrades": [commit.subject for commit in report.culprits]
                    if report.named else [],
                    "likely": dict(_shares(report)),
                }
                for report in self.answer.reports
            ],
        }  # fmt: skip


def _shares(report: Report) -> list[tuple[str, float]]:
    """Return the likely upgrades with their probabilities, the likeliest first."""
    shares = zip(report.commits, report.posterior, strict=False)
    likely = [(plain(commit.subject), p) for commit, p in shares if p >= _LIKELY]
    return sorted(likely, key=lambda pair: -pair[1])
