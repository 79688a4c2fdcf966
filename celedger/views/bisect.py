"""`celedger bisect`: the answer as text to paste and as JSON, for one metric or for several that
shared their trials, or for the packages of an upgrade; and the text of `--dry-run`."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from celedger.base import plugins
from celedger.base.errors import CeledgerError
from celedger.base.model import AGREES, BisectRecord, Commit, Metric
from celedger.base.text import whole_percent
from celedger.judge.bisection import Agreement, Answer, GuiltyHunks, Plan, Report
from celedger.judge.bisection.bisect_report import record
from celedger.ledger.read import Reader
from celedger.repo.hunks import CommitPart
from celedger.stats.lineage import GOOD
from celedger.views.document import (
    Column,
    Document,
    Listing,
    amount,
    amounts,
    count,
    duration,
    iso_date,
    iso_time,
    measure,
    percent,
    pick,
    plain,
    probability,
    short,
    sure,
    table,
    wrap,
)

_LISTED = 12  # members of a set that are listed
_NO_DIFFERENCE = "by files not read, comments, docstrings, formatting or code never entered"


@dataclass(frozen=True, slots=True)
class BisectAnswer(Document):
    """The answer of a bisect. `explanations` are those of `--explain`, if given; `options` those of
    the bisect itself, besides its ends, task and metrics."""

    answer: Answer
    metrics: Mapping[str, Metric]
    celedger: str  # as it is typed here
    git: str
    options: Sequence[str] = ()
    explanations: Mapping[str, object] = field(default_factory=dict)
    hunks: Sequence[GuiltyHunks] = ()  # inside the named commits

    @property
    def several(self) -> bool:
        return len(self.answer.reports) + len(self.answer.refused) > 1

    def text(self, width: int = 100) -> str:
        report = self.answer.reports[0]
        lines = self._table(max(width, 200)) if self.several else self._single(report)
        for further in self.answer.further:
            ends = f"{short(further.good.sha)}..{short(further.bad.sha)}"
            spent = f"  spent       {count(further.trials, 'trial')} on {ends}"
            lines += ["", *self._conclusion(further), spent]
        for guilty in self.hunks:
            lines += ["", plain(guilty.sentence())]
            lines += [line for part in guilty.parts for line in _part(part)]
        return "\n".join(lines)

    def json(self) -> dict[str, object]:
        reports = [record(report).report for report in self.answer.reports]
        further: dict[str, object] = {
            "further": [record(report).report for report in self.answer.further]
        }
        if self.hunks:
            further["hunks"] = [_guilty_json(guilty) for guilty in self.hunks]
        if not self.several:
            return {"bisect": reports[0], **further, **self.explanations}
        culprits = self._culprits()
        return {
            "bisects": reports,
            "culprits": [{"commit": c.sha, "metrics": list(by)} for c, by in culprits],
            "refused": [{"metric": m, "why": str(error)} for m, error in self.answer.refused],
            **further,
            **self.explanations,
        }

    def _again(
        self, report: Report, metrics: Sequence[str], *, good: str = "", bad: str = ""
    ) -> str:
        """Return the command that repeats this bisect, or bisects between other ends."""
        words = ["--task", report.task, *(word for m in metrics if m for word in ("--metric", m))]
        words += ["--find", "improved"] if report.improved else []
        ends = f"{(good or report.good.sha)[:12]}..{(bad or report.bad.sha)[:12]}"
        return f"{self.celedger} bisect {ends} {shlex.join([*self.options, *words])}"

    def _up_to_between(self, report: Report) -> list[str]:
        """Return the command that bisects up to a commit that is worse than both ends."""
        if report.between is None:
            return []
        return [self._again(report, [report.metric], bad=report.between.commit.sha)]

    def _diff(self, report: Report) -> str:
        """Return the command that shows the named commit's change."""
        parent, commit = report.compared
        return f"{self.celedger} diff {parent[:12]}..{commit[:12]}"

    def _single(self, report: Report) -> list[str]:
        lines = self._conclusion(report)
        ends = f"{short(report.good.sha)}..{short(report.bad.sha)}"
        searched = f"{count(len(report.commits), 'commit')}, {report.tried} of them measured"
        spent = f"{count(report.trials, 'trial')}, {count(report.epochs, 'epoch')}"
        spent += f", {duration(report.seconds)}; {report.stored} were in the ledger"
        spent += f"; {report.stopped} stopped early" if report.stopped else ""
        if report.signed:
            spent += f"; the first steps of {count(report.signed, 'commit')} chose them"
        lines += [f"  searched    {ends}, {searched}", f"  spent       {spent}"]
        untestable = [report.commits[i].sha for i in report.untestable[:_LISTED] if i >= 0]
        if untestable:
            lines.append(f"  untestable  {', '.join(map(short, untestable))}")
            if report.untried:
                between = f"{count(report.untried, 'commit')} between them"
                lines.append(f"              {between} not tried: the untestable ones ended alike")
        lines += shares_of(report)
        for typed in self._up_to_between(report):
            return [*lines, "", "search up to it with", f"  {typed}"]
        lines += ["", "reproduce with", f"  {self._again(report, [report.metric])}"]
        if report.named:
            lines.append(f"  {self._diff(report)}")
            lines.append(f"  {self.git} show {report.culprits[0].sha[:12]}")
            if report.rehearsal is not None and report.rehearsal.restores:
                mainline = "-m 1 " * (len(report.culprits[0].parents) > 1)
                lines.append(f"  {self.git} revert {mainline}{report.culprits[0].sha[:12]}")
        for other in report.others:
            if other.probability >= report.confidence:
                good, bad = other.after.sha, other.by.sha
                turned = replace(report, improved=report.improved != (other.share < 0))
                again = self._again(turned, [report.metric], good=good, bad=bad)
                lines.append(f"  {again}")
        return lines

    def _conclusion(self, report: Report) -> list[str]:
        subject = f"{report.task} {report.metric or 'crash'}"
        effect = effect_text(report, self._unit(report))
        if effect:
            effect = f"  effect      {report.metric} {effect}"
        if not report.metric:
            effect = f"  crash       {report.crash}"
        effects = [effect] if effect else []
        floor = measure(report.floor, unit=self._unit(report))
        if report.floor:
            effects.append(f"  floor       {floor}: the change is about as large; to count it,")
            effects.append(f"              give [metrics.{report.metric}] a smaller floor")
        if report.status == "found":
            culprit = report.culprits[0]
            asked = whole_percent(report.confidence)
            return [
                f"first {report.kind} commit of {subject}: {culprit.sha}",
                *_person(culprit),
                *_stand_in(report),
                *effects,
                f"  confidence  {sure(report.probability)} (asked {asked})",
                *map(_agreement, report.agreements),
                *_proof(report),
            ]
        if report.status == "refuted":
            culprit = report.culprits[0]
            return [
                f"not sure of {subject}: its revert does not mend it: {culprit.sha}",
                *_person(culprit),
                *effects,
                *_proof(report),
                "  perhaps     several commits made it worse together: search with --all",
            ]
        if report.status == "set":
            members = f"{len(report.culprits)}: what lies between cannot be tested"
            head = f"the first {report.kind} commit of {subject} is one of {members}"
            return [head, *_members(report), *effects]
        if report.status == "gradual":
            first, last = report.culprits[0], report.culprits[-1]
            return [
                f"{subject} got {_than(report)} gradually, somewhere in {_interval(report)}",
                f"  first       {short(first.sha)}  {plain(first.subject)}",
                f"  last        {short(last.sha)}  {plain(last.subject)}",
                *effects,
                f"  confidence  {sure(report.probability)} that no single commit did it",
            ]
        if report.between is not None:
            return self._between(report)
        if report.status == "nothing-changed":
            ends = f"{short(report.good.sha)} and {short(report.bad.sha)}"
            certainty = f"({sure(report.probability)} sure)"
            by = f"by more than its floor of {floor} " if report.floor else ""
            bad = len(report.commits) - 1
            values = [{v for p, v in report.readings if p == end} for end in (GOOD, bad)]
            if report.metric and values[0] != values[1]:  # what draws bits anew changes these
                head = f"{subject} got no {_than(report)} {by}between {ends} {certainty}"
                return [head, *_only_change(report, effects)]
            return [f"nothing changed {by}in {subject} between {ends} {certainty}"]
        more = "the two ends cannot be told apart so far"
        if not report.still:
            more = "it runs with no other seeds than its suite names: more `seeds` would tell"
        elif math.isfinite(report.still):
            more = f"about {count(math.ceil(report.still), 'trial')} more, with a larger --budget"
        trials = count(report.trials, "trial")
        doubt, unless = f"where {subject} changed", "nothing changed; if something did:"
        if report.probability >= report.confidence:  # what draws bits anew may change no level
            doubt, unless = f"whether {subject} got {_than(report)}", "it did not; if it did, by:"
        return [
            f"undecided after {trials}: {doubt} is not sure yet; {more}",
            f"  {percent(report.no_change)} that {unless}",
            *_members(report),
            *effects,
        ]

    def _between(self, report: Report) -> list[str]:
        between, unit = report.between, self._unit(report)
        assert between is not None
        value, good, bad = (
            measure(v, unit=unit) for v in (between.value, between.good, between.bad)
        )
        subject = f"{_than_both(report)} in {report.task} {report.metric}"
        return [
            f"a commit between is {subject}: {between.commit.sha}",
            *_person(between.commit),
            f"  values      {report.metric} {value}; at the ends {good} and {bad}",
        ]

    def _table(self, width: int) -> list[str]:
        """Return one table of culprits, each with the metrics that it moved, then every culprit
        once."""
        answer, first = self.answer, self.answer.reports[0]
        ends = f"{short(first.good.sha)}..{short(first.bad.sha)}"
        rows = [self._row(report) for report in answer.reports]
        rows += [(name, "-", plain(str(error)), "") for name, error in answer.refused]
        heads = ("metric", f"first {first.kind} commit", "effect", "confidence")
        lines = [f"{first.task}, {ends}, {count(len(first.commits), 'commit')}", ""]
        lines += table([*map(Column, heads)], rows, width=width, indent=2).splitlines()
        by_metric = {report.metric: report for report in answer.reports}
        diffs = []
        for commit, metrics in self._culprits():
            lines += ["", f"{commit.sha}  {', '.join(metrics)}", *_person(commit)]
            lines += _stand_in(by_metric[metrics[0]])
            diffs.append(self._diff(by_metric[metrics[0]]))
        spent = f"{count(first.trials, 'trial')}, {count(first.epochs, 'epoch')}"
        spent += f", {first.stopped} stopped early" if first.stopped else ""
        tried = max(report.tried for report in answer.reports)
        lines += ["", f"  measured    {count(tried, 'commit')} of them"]
        lines.append(f"  spent       {spent}, {duration(first.seconds)}, shared by all metrics")
        names = [*by_metric, *(name for name, _ in answer.refused)]
        up_to = [typed for report in answer.reports for typed in self._up_to_between(report)]
        commands = [self._again(first, names), *up_to, *diffs]
        return [*lines, "", "reproduce with", *(f"  {line}" for line in commands)]

    def _row(self, report: Report) -> tuple[str, ...]:
        effect = effect_text(report, self._unit(report))
        probability = sure(report.probability)
        if report.named:
            return (report.metric, short(report.culprits[0].sha), effect, probability)
        if report.status == "refuted":
            answer = f"not sure: reverting {short(report.culprits[0].sha)} does not mend it"
            return (report.metric, answer, effect, "")
        if report.status == "set":
            answer = f"one of {len(report.culprits)} that cannot be told apart"
            return (report.metric, answer, effect, probability)
        if report.status == "gradual":
            return (report.metric, f"gradually, in {_interval(report)}", effect, probability)
        if report.between is not None:
            answer = f"{_than_both(report)} at {short(report.between.commit.sha)}"
            return (report.metric, answer, "", "")
        if report.status == "nothing-changed":
            return (report.metric, "nothing changed", "", probability)
        leader = short(report.culprits[0].sha) if report.culprits else "-"
        return (report.metric, f"undecided, maybe {leader}", effect, probability)

    def _culprits(self) -> list[tuple[Commit, tuple[str, ...]]]:
        """Return the named commits, and the metrics of each, in order."""
        named = {r.culprits[0].sha: r.culprits[0] for r in self.answer.reports if r.named}
        return [
            (commit, tuple(
                r.metric for r in self.answer.reports if r.named and r.culprits[0].sha == sha
            ))
            for sha, commit in named.items()
        ]  # fmt: skip

    def _unit(self, report: Report) -> str:
        metric = self.metrics.get(report.metric)
        return metric.unit if metric else ""


def _part(part: CommitPart) -> list[str]:
    """Return the lines of a hunk under its place; a path for a file that cannot be parted."""
    more = len(part.lines) - _LISTED
    rest = [f"    … {more} more lines"] if more > 0 else []
    return [f"  {part.title}", *(f"    {plain(line)}" for line in part.lines[:_LISTED]), *rest]


def _guilty_json(guilty: GuiltyHunks) -> dict[str, object]:
    return {
        "commit": guilty.report.culprits[0].sha, "task": guilty.report.task,
        "metric": guilty.report.metric, "of": guilty.count, "trainings": guilty.trainings,
        "parts": [
            {
                "file": part.hunk.new if part.hunk else part.title,
                "line": part.hunk.new_start if part.hunk else None, "lines": list(part.lines),
            }
            for part in guilty.parts
        ],
    }  # fmt: skip


def effect_text(report: Report, unit: str) -> str:
    """Return the levels before and after, and their difference; empty if it is not known."""
    if not math.isfinite(report.effect):
        lost = any(not math.isfinite(value) for _, value in report.readings)
        return "is no longer finite" if lost else ""
    levels = (report.level, report.level + report.effect)
    text = " → ".join(measure(level, unit=unit) for level in levels)
    if not report.level:
        return text
    effect, ends = amount(report.effect, report.level, unit=unit), (report.low, report.high)
    if not all(map(math.isfinite, ends)):
        return f"{text} ({effect})"
    interval = amounts(ends, report.level, unit=unit)
    if set(interval) == {effect}:  # too narrow for these digits
        return f"{text} ({effect})"
    return f"{text} ({effect}; 95 %: {' … '.join(interval)})"


def shares_of(report: Report) -> list[str]:
    """Return how much of the difference the named commit explains, and where the rest is."""
    lines, rest = [], np.zeros(2)
    for other in report.others:
        ends = f"{short(other.after.sha)}..{short(other.by.sha)}"
        whole = other.effect / other.share
        if other.share < 0:
            low, high = sorted((abs(other.low / whole), abs(other.high / whole)))
            chance = f"({sure(other.probability)} sure)"
            if other.probability > 0.5:  # else its size is that of noise
                lines.append(f"  against     {ends} moves {_range(low, high)} of it back {chance}")
            else:
                lines.append(f"  perhaps     {ends} moves a part of it back {chance}")
            continue
        low, high = sorted(np.clip([other.low / whole, other.high / whole], 0.0, 1.0))
        if other.probability >= report.confidence:
            rest += low, high
            lines.append(f"  also        {_range(low, high)} of it lies in {ends}")
        else:  # at most what the named commit surely leaves
            own = np.clip([report.low / whole, report.high / whole], 0.0, 1.0)
            high = min(high, 1 - float(own.min())) if np.isfinite(own).all() else high
            if round(100 * high):
                lines.append(
                    f"  perhaps     up to {whole_percent(high)} of the difference lies in {ends} "
                    f"({sure(other.probability)} sure)"
                )
    if rest.any():
        low, high = np.clip(1 - rest[::-1], 0.0, 1.0)
        lines.insert(0, f"  explains    {_range(low, high)} of the difference")
    return lines


def _range(low: float, high: float) -> str:
    """Return `45 to 55 %` of two shares, `1 %` where both round to that."""
    first, last = whole_percent(low), whole_percent(high)
    return last if first == last else f"{first.removesuffix(' %')} to {last}"


def _than(report: Report) -> str:
    return "better" if report.improved else "worse"


def _than_both(report: Report) -> str:
    return f"{_than(report)} than both ends"


def _interval(report: Report) -> str:
    ends = f"{short(report.culprits[0].sha)} to {short(report.culprits[-1].sha)}"
    return f"the {count(len(report.culprits), 'commit')} {ends}"


def _person(commit: Commit) -> list[str]:
    return [
        f"  author      {plain(commit.author)}, {iso_date(commit.author_time)}",
        f"  subject     {plain(commit.subject)}",
    ]


def _agreement(agreement: Agreement) -> str:
    word = "agrees" if agreement.probability >= AGREES else "disagrees"
    chance = probability(agreement.probability)
    subject = f"{agreement.task} {agreement.metric}"
    return f"  {word:10s}  {subject} ({chance} that it has the same first bad commit)"


def _proof(report: Report) -> list[str]:
    """Return what the rehearsal of the revert says, where there was one."""
    done = report.rehearsal
    return [f"  proof       {plain(done.sentence(report.metric))}"] if done is not None else []


def _stand_in(report: Report) -> list[str]:
    """Say which commit ran in place of the named one, if that one did not run."""
    if report.ran == report.culprits[0].sha:
        return []
    why = f"they differ in nothing that {report.task} reads"
    return [f"  not run     {short(report.ran)} ran in its place: {why}"]


def _members(report: Report) -> list[str]:
    chances = dict(zip((c.sha for c in report.commits), report.posterior, strict=True))
    lines = [
        f"  {chances[c.sha]:6.1%}  {short(c.sha)}  {plain(c.subject)}"
        for c in report.culprits[:_LISTED]
    ]
    more = len(report.culprits) - _LISTED
    return lines + ([f"          and {more} more"] if more > 0 else [])


def _only_change(report: Report, effects: Sequence[str]) -> list[str]:
    """Return which commit alone can have changed the values, where the level stayed, and by how
    much they differ: somebody saw that, and wants to know whose it is."""
    at = int(np.argmax(report.posterior))
    if report.posterior[at] < report.confidence:
        return []
    commit = report.commits[at]
    return [f"  new values  since {short(commit.sha)}  {plain(commit.subject)}", *effects]


def bisect_plans(plans: Sequence[Plan]) -> Listing:
    """Return the plans of `--dry-run`, one for each metric. Several share their trials; the longest
    search is printed last."""
    longest = max(plans, key=lambda plan: plan.trials)
    texts = [_plan_text(plan) for plan in (*(p for p in plans if p is not longest), longest)]
    if len(plans) > 1:
        shared = "one search for all: its trials are shared, and the longest of these decides"
        texts[0] = f"{shared}\n{texts[0]}"
    return Listing({"plans": plans}, lambda _: "\n\n".join(texts))


def _plan_text(plan: Plan) -> str:
    others = f": the others cannot differ, {_NO_DIFFERENCE}" * (plan.classes < plan.commits)
    stored = f"the ledger has {count(plan.stored, 'trial')} of it"
    ends = "both ends are measured"
    if plan.ends:
        ends = f"the two ends need {plan.ends} more trial{'s' * (plan.ends > 1)}"
    lines = [
        f"{count(plan.commits, 'commit')} in the range; {stored}",
        f"{plan.classes} can be the first bad commit{others}",
        ends,
    ]
    if plan.symptom:
        lines.append(f"it would search for {plan.symptom}")
    expected = "unknown, the two ends cannot be told apart so far"
    if math.isfinite(plan.trials):
        trials = count(math.ceil(plan.trials), "trial")
        expected = f"{'about' if plan.known else 'at least'} {trials}"
    if math.isfinite(plan.seconds):
        expected += f", {duration(plan.seconds)}"
    lines.append(f"expected: {expected}")
    if plan.signs:
        lines.append("it may sign commits first, seconds each, and then needs fewer trials")
    if plan.trials > plan.budget:
        lines.append(f"the budget of {plan.budget} will probably not be enough")
    return "\n".join(lines)


# --- `bisect --packages`: the upgrade, or those that it may be

_LIKELY = 0.01  # the share of a candidate that is listed


def package_answer(answer: Answer, metrics: Mapping[str, Metric], command: str) -> Listing:
    """Return the answer of a bisect over packages. Each candidate is a commit whose subject says
    which package it upgrades. `command` asks the same question again."""

    def lines(report: Report) -> Sequence[str]:
        title = f"{report.task} {report.metric or 'crash'}"
        who = " or ".join(plain(commit.subject) for commit in report.culprits)
        if report.named:
            lines = [f"{title}: {who} ({probability(report.probability)})"]
        else:
            lines = [f"{title}: no upgrade is named ({report.status})"]
            lines += [f"  {name}: {probability(share)}" for name, share in _likely_upgrades(report)]
        metric = metrics.get(report.metric)
        if effect := effect_text(report, metric.unit if metric else ""):
            lines.append(f"  effect      {report.metric} {effect}")
        of = f"{count(report.tried, 'environment')} of {len(report.commits) + 1} trained"
        lines.append(f"  searched    {count(len(report.commits), 'upgrade')}, {of}")
        if report.untestable:
            names = [plain(report.commits[i].subject) for i in report.untestable if i >= 0]
            lines.append(
                f"  untestable  after {', '.join(names)}: the packages do not fit together"
            )
        return [*lines, "", "reproduce with", f"  {command}"]

    fields = {
        "bisects": [record(report).report for report in answer.reports],
        "named": [
            {
                "task": report.task, "metric": report.metric or None,
                "upgrades": [commit.subject for commit in report.culprits]
                if report.named else [],
                "likely": dict(_likely_upgrades(report)),
            }
            for report in answer.reports
        ],
    }  # fmt: skip
    return Listing(
        fields, lambda _: "\n\n".join("\n".join(lines(report)) for report in answer.reports)
    )


def _likely_upgrades(report: Report) -> list[tuple[str, float]]:
    """Return the likely upgrades with their probabilities, the likeliest first."""
    shares = zip(report.commits, report.posterior, strict=False)
    likely = [(plain(commit.subject), p) for commit, p in shares if p >= _LIKELY]
    return sorted(likely, key=lambda pair: -pair[1])


# --- `celedger log --bisects`: what was searched before, and what it gave


def past_bisects(ledger: Reader, limit: int) -> Listing:
    """Return the newest bisects, the last one first. Raises CeledgerError where there is none."""
    bisects = ledger.last_bisects()[: -limit - 1 : -1]
    if not bisects:
        raise CeledgerError("nothing was bisected yet", "type `celedger bisect GOOD..BAD`")
    subjects = {commit.sha: plain(commit.subject) for commit in ledger.commits()}

    def printed(width: int) -> str:
        lines = []
        for bisect in bisects:
            subject = f"{bisect.task} {bisect.metric or 'crash'}"
            lines += wrap(f"{bisect.ulid}  {iso_time(bisect.ended)}  {subject}", width, 4)
            named = subjects.get(bisect.culprits[0], "") if bisect.status == "found" else ""
            answer = f"{_conclusion(bisect)}  {named}".rstrip()
            lines += wrap(f"  {short(bisect.good)}..{short(bisect.bad)}: {answer}", width, 4)
        if "plot" in plugins.installed(plugins.VERBS):
            lines += ["", "`celedger plot bisect ID` draws one again"]
        return "\n".join(lines)

    rows = [
        {
            "id": bisect.ulid,
            **pick(bisect, "ended suite task metric good bad status culprits probability"),
            "improved": bool(bisect.report.get("improved")),
            **{name: bisect.report.get(name) for name in ("effect", "trials")},
        }
        for bisect in bisects
    ]
    return Listing({"bisects": rows}, printed)


def _conclusion(bisect: BisectRecord) -> str:
    """Return what a stored bisect concluded: `first bad commit 77ab01e4 (98 %)`."""
    sure = probability(bisect.probability)
    if bisect.status == "found":
        return f"first {bisect.direction} commit {short(bisect.culprits[0])} ({sure})"
    if bisect.status == "nothing-changed":
        return f"nothing changed ({sure})"
    among = count(len(bisect.culprits), "commit")
    if bisect.status == "set":
        return f"one of {among} that cannot be told apart"
    if bisect.status == "gradual":
        return f"gradually, in {among} ({sure})"
    return f"undecided among {among}"
