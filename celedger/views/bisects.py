"""The answer of a bisect of several metrics: one table of culprits, each with the metrics that it
moved, as text to paste, as JSON, and as one picture with a posterior for every metric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from celedger.bisection import Answer, Report
from celedger.bisection.report import record
from celedger.errors import CeledgerError
from celedger.model import Commit, Metric
from celedger.views import export, picture
from celedger.views.bisect import Typed, effect_text, person_lines, search_of, stand_in, sure
from celedger.views.format import count, duration, plain, short
from celedger.views.posterior import (
    Search,
    legend,
    name_culprit,
    panel_of_probability,
    panel_of_values,
    shade_untestable,
)
from celedger.views.tables import Column, table

_COLUMNS = (
    Column("metric"), Column("first bad commit"), Column("effect"), Column("confidence")
)  # fmt: skip


def answer_text(answer: Answer, known: Mapping[str, Metric], typed: Typed, width: int = 100) -> str:
    """The paste-ready answer: the table, then every culprit once."""
    first = answer.reports[0]
    ends = f"{short(first.good.sha)}..{short(first.bad.sha)}"
    lines = [f"{first.task}, {ends}, {count(len(first.commits), 'commit')}", ""]
    rows = [_row(report, known.get(report.metric)) for report in answer.reports]
    rows += [(name, "-", plain(str(error)), "") for name, error in answer.refused]
    columns = (_COLUMNS[0], Column(f"first {first.kind} commit"), *_COLUMNS[2:])
    lines += table(columns, rows, width=max(width, 200), indent=2).splitlines()
    by_metric = {report.metric: report for report in answer.reports}
    for commit, metrics in culprits(answer):
        lines += ["", f"{commit.sha}  {', '.join(metrics)}", *person_lines(commit)]
        lines += stand_in(by_metric[metrics[0]])
    spent = f"{count(first.trials, 'trial')}, {count(first.epochs, 'epoch')}"
    spent += f", {first.stopped} stopped early" if first.stopped else ""
    tried = max(report.tried for report in answer.reports)
    lines += ["", f"  measured    {count(tried, 'commit')} of them"]
    lines.append(f"  spent       {spent}, {duration(first.seconds)}, shared by all metrics")
    lines += ["", "reproduce with", *(f"  {line}" for line in _reproduce(answer, typed))]
    return "\n".join(lines)


def culprits(answer: Answer) -> list[tuple[Commit, tuple[str, ...]]]:
    """The commits that were named, and the metrics of each, in the order of the reports."""
    found: dict[str, tuple[Commit, list[str]]] = {}
    for report in answer.reports:
        if report.named:
            commit = report.culprits[0]
            found.setdefault(commit.sha, (commit, []))[1].append(report.metric)
    return [(commit, tuple(metrics)) for commit, metrics in found.values()]


def answer_json(answer: Answer) -> dict[str, export.Json]:
    """Every report as the ledger keeps it, the culprits, and what was not worse at all."""
    return export.document(
        bisects=[dict(record(report).report) for report in answer.reports],
        culprits=[{"commit": c.sha, "metrics": list(names)} for c, names in culprits(answer)],
        refused=[{"metric": name, "why": str(error)} for name, error in answer.refused],
    )


def searches_of(answer: Answer, known: Mapping[str, Metric]) -> list[Search]:
    """What `posteriors_figure` draws."""
    return [search_of(report, known.get(report.metric)) for report in answer.reports]


def posteriors_figure(searches: Sequence[Search], path: Path) -> Path:
    """Draws the bisect of several metrics to a PNG or SVG: for each its values over the commits
    and the posterior below. Raises UsageError for another suffix, CeledgerError without
    candidates, MachineError where the file cannot be written."""
    picture.check_suffix(path)
    return picture.save(posteriors(searches), path)


def posteriors(searches: Sequence[Search]) -> Figure:
    if not searches or any(len(s.probability) != len(s.commits) for s in searches):
        raise CeledgerError(
            "this bisect has no candidates to draw", "run `celedger bisect GOOD..BAD`"
        )
    heights = [2.7, 1.5] * len(searches)
    with picture.style():
        names = [search.title.rsplit(" ", 1) for search in searches]
        title = f"{names[0][0]}  {', '.join(name for _, name in names)}"
        figure = picture.sheet(plain(title), 1.1 + sum(heights))
        panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)
        for i, search in enumerate(searches):
            panel_of_values(panels[2 * i, 0], search)
            panel_of_probability(panels[2 * i + 1, 0], search)
            for panel in panels[2 * i : 2 * i + 2, 0]:
                shade_untestable(panel, search)
        picture.commit_axis(panels[-1, 0], (searches[0].good, *searches[0].commits))
        figure.align_ylabels(panels[:, 0])
        picture.finish(figure, panels[0, 0], legend(replace(searches[0], narrowing=())))
        for i, search in enumerate(searches):
            name_culprit(panels[2 * i + 1, 0], search)
    return figure


def _row(report: Report, metric: Metric | None) -> tuple[str, ...]:
    said = effect_text(report, metric)
    if report.named:
        return (report.metric, short(report.culprits[0].sha), said, sure(report.probability))
    if report.status == "set":
        what = f"one of {len(report.culprits)} that cannot be told apart"
        return (report.metric, what, said, sure(report.probability))
    if report.between is not None:
        than = "better" if report.improved else "worse"
        what = f"{than} than both ends at {short(report.between.commit.sha)}"
        return (report.metric, what, "", "")
    if report.status == "nothing-changed":
        return (report.metric, "nothing changed", "", sure(report.probability))
    leader = short(report.culprits[0].sha) if report.culprits else "-"
    return (report.metric, f"undecided, maybe {leader}", said, sure(report.probability))


def _reproduce(answer: Answer, typed: Typed) -> list[str]:
    first = answer.reports[0]
    names = [report.metric for report in answer.reports] + [name for name, _ in answer.refused]
    by_metric = {report.metric: report for report in answer.reports}
    up_to = [
        typed.bisect(report, [report.metric], report.between.commit.sha)
        for report in answer.reports
        if report.between is not None
    ]
    diffs = [typed.diff(by_metric[metrics[0]]) for _, metrics in culprits(answer)]
    return [typed.bisect(first, names), *up_to, *diffs]
