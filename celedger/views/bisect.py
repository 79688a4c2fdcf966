"""The answer of a bisect as text to paste, as JSON, and as what the picture is drawn from."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from celedger.bisection import Plan, Report
from celedger.bisection.between import Between
from celedger.bisection.report import record
from celedger.model import Commit, Metric
from celedger.views import export
from celedger.views.format import count, duration, iso_date, measure, percent, plain, short
from celedger.views.posterior import Search

_SHOWN = 12  # members of a set that are listed


@dataclass(frozen=True, slots=True)
class Typed:
    """How commands are to be typed that a report prints; `options` are those of the bisect itself,
    beyond its ends, task and metrics."""

    celedger: str
    git: str
    options: tuple[str, ...]

    def bisect(self, report: Report, metrics: Sequence[str], bad: str = "") -> str:
        """Return the command that asks the same again, or up to another commit than BAD."""
        words = ["--task", report.task, *(word for m in metrics if m for word in ("--metric", m))]
        words += ["--find", "improved"] if report.improved else []
        ends = f"{report.good.sha[:12]}..{(bad or report.bad.sha)[:12]}"
        return f"{self.celedger} bisect {ends} {shlex.join([*self.options, *words])}"

    def diff(self, report: Report) -> str:
        """Return the command that shows what the named commit changed."""
        parent, commit = report.compared
        return f"{self.celedger} diff {parent[:12]}..{commit[:12]}"


def report_text(report: Report, metric: Metric | None, typed: Typed) -> str:
    """The paste-ready answer."""
    what = f"{report.task} {report.metric}" if report.metric else f"{report.task} crash"
    lines: list[str] = []
    if report.status == "found":
        culprit = report.culprits[0]
        lines += [f"first {report.kind} commit of {what}: {culprit.sha}", *person_lines(culprit)]
        lines += [*stand_in(report), *_effect(report, metric)]
        lines.append(f"  confidence  {sure(report.probability)} (asked {report.confidence:.0%})")
    elif report.status == "set":
        lines.append(
            f"the first {report.kind} commit of {what} is one of {len(report.culprits)}: what "
            "lies between cannot be tested"
        )
        lines += [*_members(report), *_effect(report, metric)]
    elif report.between is not None:
        lines += _between(report, report.between, metric)
    elif report.status == "nothing-changed":
        lines.append(
            f"nothing changed in {what} between {short(report.good.sha)} and "
            f"{short(report.bad.sha)} ({sure(report.probability)} sure)"
        )
    else:
        lines.append(
            f"undecided after {count(report.trials, 'trial')}: where {what} changed is not sure "
            f"yet; {_more(report.still)}"
        )
        nothing = percent(report.no_change, signed=False)
        lines.append(f"  {nothing} that nothing changed; if something did:")
        lines += [*_members(report), *_effect(report, metric)]
    searched = count(len(report.commits), "commit")
    ends = f"{short(report.good.sha)}..{short(report.bad.sha)}"
    spent = f"{count(report.trials, 'trial')}, {count(report.epochs, 'epoch')}"
    spent += f", {duration(report.seconds)}; {report.stored} were in the ledger"
    if report.stopped:
        spent += f"; {report.stopped} stopped early"
    lines.append(f"  searched    {ends}, {searched}, {report.tried} of them measured")
    lines.append(f"  spent       {spent}")
    if any(i >= 0 for i in report.untestable):
        names = ", ".join(
            short(report.commits[i].sha) for i in report.untestable[:_SHOWN] if i >= 0
        )
        lines.append(f"  untestable  {names}")
    for other in report.others:
        change = _change(other.effect, report, metric)
        ends = f"{short(other.after.sha)} and {short(other.by.sha)}"
        lines.append(f"  also        {change} between {ends} ({sure(other.probability)} sure)")
    what_for = "reproduce with" if report.between is None else "search up to it with"
    lines += ["", what_for, *(f"  {line}" for line in _reproduce(report, typed))]
    return "\n".join(lines)


def _between(report: Report, between: Between, metric: Metric | None) -> list[str]:
    unit = metric.unit if metric is not None else ""
    value, good, bad = (measure(v, unit=unit) for v in (between.value, between.good, between.bad))
    than = "better" if report.improved else "worse"
    what = f"{report.task} {report.metric}"
    return [
        f"a commit between is {than} than both ends in {what}: {between.commit.sha}",
        *person_lines(between.commit),
        f"  values      {report.metric} {value}; at the ends {good} and {bad}",
    ]


def _more(trials: float) -> str:
    if not math.isfinite(trials):
        return "the two ends cannot be told apart so far"
    return f"about {count(math.ceil(trials), 'trial')} more, with a larger --budget"


def sure(probability: float) -> str:
    """A probability never shown as a certainty."""
    return "> 99.9 %" if probability > 0.999 else f"{probability * 100:.1f} %"


def person_lines(commit: Commit) -> list[str]:
    """Who wrote it, and what they called it."""
    return [
        f"  author      {plain(commit.author)}, {iso_date(commit.author_time)}",
        f"  subject     {plain(commit.subject)}",
    ]


def stand_in(report: Report) -> list[str]:
    """Say which commit ran in place of the one that is named, where that one did not."""
    if report.ran == report.culprits[0].sha:
        return []
    why = f"they differ in nothing that {report.task} reads"
    return [f"  not run     {short(report.ran)} ran in its place: {why}"]


def _effect(report: Report, metric: Metric | None) -> list[str]:
    if not report.metric:
        return [f"  crash       {report.crash}"]
    said = effect_text(report, metric)
    return [f"  effect      {report.metric} {said}"] if said else []


def effect_text(report: Report, metric: Metric | None) -> str:
    """The levels before and after, and by how much they differ; empty where that is not known."""
    unit = metric.unit if metric is not None else ""
    if not math.isfinite(report.effect):
        if any(not math.isfinite(value) for _, value in report.readings):
            return "is not finite any more"
        return ""
    now = report.level + report.effect
    line = f"{measure(report.level, unit=unit)} → {measure(now, unit=unit)}"
    if report.level:
        scale = abs(report.level)
        line += f" ({percent(report.effect / scale)}"
        if math.isfinite(report.low) and math.isfinite(report.high):
            line += f"; 95 %: {percent(report.low / scale)} … {percent(report.high / scale)}"
        line += ")"
    return line


def _change(effect: float, report: Report, metric: Metric | None) -> str:
    if report.level:
        return percent(effect / abs(report.level))
    return measure(effect, unit=metric.unit if metric is not None else "", signed=True)


def _members(report: Report) -> list[str]:
    chances = dict(zip((c.sha for c in report.commits), report.posterior, strict=True))
    lines = [
        f"  {chances[c.sha]:6.1%}  {short(c.sha)}  {plain(c.subject)}"
        for c in report.culprits[:_SHOWN]
    ]
    more = len(report.culprits) - _SHOWN
    return lines + ([f"          and {more} more"] if more > 0 else [])


def _reproduce(report: Report, typed: Typed) -> list[str]:
    if report.between is not None:
        return [typed.bisect(report, [report.metric], report.between.commit.sha)]
    lines = [typed.bisect(report, [report.metric])]
    if report.named:
        lines += [typed.diff(report), f"{typed.git} show {report.culprits[0].sha[:12]}"]
    return lines


def report_json(report: Report) -> dict[str, export.Json]:
    """The report as the ledger keeps it."""
    return export.document(bisect=dict(record(report).report))


def search_of(report: Report, metric: Metric | None) -> Search:
    """What `posterior_figure` draws; there the good end is position 0."""
    what = report.metric or "crash"
    levels = None
    if report.metric and math.isfinite(report.level) and math.isfinite(report.effect):
        levels = (report.level, report.level + report.effect)
    places = {c.sha: i + 1 for i, c in enumerate(report.commits)}
    return Search(
        title=f"{report.suite}/{report.task} {what}",
        good=report.good,
        commits=report.commits,
        probability=report.posterior,
        trials=tuple((position + 1, value) for position, value in report.readings),
        metric=metric if report.metric else None,
        levels=levels,
        culprits=tuple(places[c.sha] for c in report.culprits) if report.named else (),
        bad=_bad_side(report) if report.named else (),
        untestable=tuple(position + 1 for position in report.untestable),
        narrowing=tuple((position + 1, chances) for position, chances in report.steps),
    )


def _bad_side(report: Report) -> tuple[bool, ...]:
    """The good end and then every candidate: does it hold the named commit in its history?"""
    bad = {report.culprits[0].sha}
    for commit in report.commits:  # parents before children
        if bad.intersection(commit.parents):
            bad.add(commit.sha)
    return (False, *(commit.sha in bad for commit in report.commits))


# What commits have changed that cannot differ.
_NO_DIFFERENCE = "by files not read, comments, docstrings, formatting or code never entered"


def plans_json(plans: Sequence[Plan]) -> dict[str, export.Json]:
    """The same, a plan for each metric."""
    return export.document(plans=[asdict(plan) for plan in plans])


def plans_text(plans: Sequence[Plan]) -> str:
    """What `--dry-run` says; several metrics share their trials."""
    if len(plans) == 1:
        return _plan_text(plans[0])
    most = max(plans, key=lambda plan: plan.trials)
    whole = "one search for all: its trials are shared, and the longest of these decides\n"
    parts = [_plan_text(plan) for plan in plans if plan is not most]
    return whole + "\n\n".join([*parts, _plan_text(most)])


def _plan_text(plan: Plan) -> str:
    others = f": the others cannot differ, {_NO_DIFFERENCE}" * (plan.classes < plan.commits)
    held = count(plan.stored, "trial")
    lines = [
        f"{count(plan.commits, 'commit')} in the range, {held} of it in the ledger",
        f"{plan.classes} left that could have done it{others}",
        f"the ends still need {count(plan.ends, 'trial')}",
    ]
    if plan.symptom:
        lines.append(f"searched would be {plan.symptom}")
    about = "at least " if not plan.known else "about "
    if math.isfinite(plan.trials):
        lines.append(f"expected: {about}{count(math.ceil(plan.trials), 'trial')}")
    else:
        lines.append("expected: unknown, the two ends cannot be told apart so far")
    if math.isfinite(plan.seconds):
        lines[-1] += f", {duration(plan.seconds)}"
    if plan.trials > plan.budget:
        lines.append(f"the budget of {plan.budget} will probably not be enough")
    return "\n".join(lines)
