"""What needs attention, worst first: one card for each change, crash or open question, in words.
Figures are those of `celedger drift`, `check` and `bisect`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from shlex import quote

from celedger.base.model import BisectRecord, Commit, Verdict
from celedger.judge.drift.level_changes import LevelStep
from celedger.views.drift import bisect_command, range_text
from celedger.views.format import (
    count,
    iso_date,
    measure,
    percent,
    plain,
    probability,
    short,
    sure,
)
from celedger.views.report import links
from celedger.views.report.series import Measured
from celedger.views.report.states import Crash, Finding, Health, TaskState
from celedger.views.show import effect_text

GLYPHS = {
    Health.CRASHED: "✕", Health.WORSE: "▲", Health.UNDECIDED: "?", Health.BETTER: "▼",
    Health.STEADY: "✓", Health.UNMEASURED: "–", Health.UNJUDGED: "",
}  # fmt: skip
WORDS = {Health.CRASHED: "Crashes", Health.WORSE: "Worse", Health.UNDECIDED: "Undecided",
         Health.BETTER: "Better"}  # fmt: skip
_NAMED = 3  # metrics that a card names before it counts them
_TYPED = 12  # digits of a hash in a command


@dataclass(frozen=True, slots=True)
class CommitLine:
    """A commit as a card or a list shows it; `url` is "" where no web host is known."""

    sha: str
    subject: str
    author: str
    date: str
    url: str

    @classmethod
    def of(cls, commit: Commit, host: links.Host) -> CommitLine:
        return cls(
            commit.sha, plain(commit.subject), plain(commit.author), iso_date(commit.commit_time),
            host.commit(commit.sha),
        )  # fmt: skip

    @property
    def short(self) -> str:
        return short(self.sha)


@dataclass(frozen=True, slots=True)
class Card:
    """`levels` and `change` are its figures, `remarks` sentences below them. Either `culprit` is
    known, or `among` says in which range it is and `command` what to type."""

    state: Health
    key: str  # of the task, in addresses
    task: str
    metric: str
    href: str
    telemetry: bool = False  # which never decides anything
    levels: str = ""
    change: str = ""
    remarks: Sequence[str] = ()
    label: str = ""
    culprit: CommitLine | None = None
    among: str = ""
    compare: str = ""  # address of the range on the web host
    command: str = ""
    order: tuple[float, ...] = field(default=(), compare=False)

    @property
    def title(self) -> str:
        return f"{self.task} · {self.metric}" if self.metric else self.task

    @property
    def glyph(self) -> str:
        return GLYPHS[self.state]

    @property
    def word(self) -> str:
        return "Telemetry" if self.telemetry else WORDS[self.state]

    @property
    def phrase(self) -> str:
        """`mlp: val_loss +8.4 %`, as the verdict at the top of the page says it."""
        what = self.change or (self.levels[:1].lower() + self.levels[1:])
        return f"{self.task}: {' '.join(filter(None, (self.metric, what)))}"


def cards(
    history: Measured,
    states: Sequence[TaskState],
    bisects: Sequence[BisectRecord],
    host: links.Host,
) -> list[Card]:
    """Return the cards, worst first. Tasks that are not measured any more have none."""
    writer = _Writer(history, bisects, host)
    made = [card for state in states if state.is_live for card in writer.of_task(state)]
    return sorted(made, key=lambda card: (card.telemetry, card.state.rank, card.order))


class _Writer:
    def __init__(
        self, history: Measured, bisects: Sequence[BisectRecord], host: links.Host
    ) -> None:
        self._history, self._host = history, host
        self._named = [b for b in bisects if b.status == "found"]
        suites = {task.suite for task in history.tasks}
        self._one_suite = len(suites) == 1

    def of_task(self, state: TaskState) -> list[Card]:
        made = [self._crash(state, state.crash)] if state.crash is not None else []
        made += [self._whole(state, state.whole)] if state.whole is not None else []
        groups: dict[tuple[object, ...], list[Finding]] = defaultdict(list)
        for finding in state.findings:
            telemetry, step = finding.series.is_telemetry, finding.step
            shown = (
                (Health.WORSE,) if telemetry else (Health.WORSE, Health.UNDECIDED, Health.BETTER)
            )
            if finding.state in shown:
                why = (step.seen_at.sha, step.among) if step else (finding.lost, finding.few)
                groups[finding.state, telemetry, why, bool(finding.away)].append(finding)
        return made + [self._change(group) for group in groups.values()]

    def _whole(self, state: TaskState, verdict: Verdict) -> Card:
        task = state.task
        return Card(
            Health.WORSE if verdict.kind.bad else Health.UNDECIDED, task.title,
            self._name(task.suite, task.name), "",
            links.view(task.title, "", verdict.commit[:_TYPED]),
            levels=verdict.kind.value.capitalize(),
            remarks=tuple(filter(None, [plain(verdict.note), f"At {short(verdict.commit)}."])),
        )  # fmt: skip

    def _change(self, group: Sequence[Finding]) -> Card:
        first = group[0]
        series, step, verdict = first.series, first.step, first.verdict
        telemetry = all(f.series.is_telemetry for f in group)
        remarks = [self._others(group)] if len(group) > 1 else []
        base = {
            "state": first.state,
            "telemetry": telemetry,
            "key": f"{series.suite}/{series.task}",
            "task": self._name(series.suite, series.task),
            "metric": series.metric.name,
            "href": links.view(f"{series.suite}/{series.task}", series.metric.name),
            "order": (-max(abs(f.relative) for f in group),),
        }
        if step is not None:
            levels, change = _figures(first)
            remarks += self._step_remarks(first)
            base |= self._where(group, step)
        else:
            levels, change = _figures(first)
            remarks += self._remarks(first)
        if telemetry:
            remarks.append("Telemetry, which the suite does not declare: it never fails a check.")
        if first.state is Health.UNDECIDED and verdict is not None:
            at = verdict.commit[:_TYPED]
            base["command"] = (
                f"celedger check {at} --suite {quote(series.suite)} --task {quote(series.task)}"
            )
        return Card(levels=levels, change=change, remarks=tuple(remarks), **base)  # type: ignore[arg-type]

    def _others(self, group: Sequence[Finding]) -> str:
        texts = []
        for finding in group[1 : _NAMED + 1]:
            change = _figures(finding)[1]
            texts.append(f"{finding.series.metric.name} {change}".strip())
        more = len(group) - 1 - len(texts)
        tail = f" and {count(more, 'more metric')}" if more else ""
        same = ", from the same commit" if group[0].step else ""
        return f"Also {', '.join(texts)}{tail}{same}."

    def _step_remarks(self, finding: Finding) -> list[str]:
        step, course = finding.step, finding.course
        assert step is not None and course is not None
        remarks = []
        if math.isfinite(course.sd) and course.sd > 0:
            times = abs(step.after - step.before) / course.sd
            remarks.append(f"{times:.1f} times the usual spread of a commit.")
        elif course.exact:
            remarks.append("This metric repeats exactly, so any change is real.")
        if finding.state is Health.UNDECIDED:
            remarks.append(f"Only {probability(step.probability)} sure; more trials would tell.")
        verdict = finding.verdict
        if verdict is not None:
            effect = effect_text(verdict, finding.series.metric.unit)
            where = short(verdict.commit)
            remarks.append(f"{verdict.kind.value.capitalize()} at {where}: {effect}".rstrip(": "))
        return remarks

    def _remarks(self, finding: Finding) -> list[str]:
        """Say what decided, where it is no change of the course."""
        verdict, away = finding.verdict, finding.away
        if finding.lost:
            return ["The newest value is not a finite number."]
        if finding.few:
            return ["Too few commits are measured in this environment to tell a change."]
        if away is not None:
            return [f"Away from {short(away.pinned.sha)}, which is pinned."]
        assert verdict is not None
        effect = effect_text(verdict, finding.series.metric.unit)
        judged = f"Judged {verdict.kind.value} at {short(verdict.commit)}"
        if behind := self._behind(verdict):
            judged += f", {count(behind, 'commit')} ago"
        return [*filter(None, [effect, plain(verdict.note)]), f"{judged}."]

    def _behind(self, verdict: Verdict) -> int:
        """Return how many measured commits are newer than the judged one."""
        position = self._history.position
        judged = position[verdict.commit]
        return sum(position[c.sha] > judged for c in self._history.scope.measured)

    def _where(self, group: Sequence[Finding], step: LevelStep) -> dict[str, object]:
        series = group[0].series
        metrics = [finding.series.metric.name for finding in group]
        noun = "better" if step.better else "bad"
        among = {commit.sha for commit in step.among}
        for record in reversed(self._named):
            same = (record.suite, record.task) == (series.suite, series.task)
            if same and record.metric in metrics and record.culprits[0] in among:
                return {
                    "label": f"First {noun} commit",
                    "culprit": self._line(record.culprits[0]),
                    "among": f"Confirmed by a bisect: {sure(record.probability)} sure"
                    f"{_evidence(record)}.",
                }
        if len(step.among) == 1:
            return {
                "label": f"First {noun} commit", "culprit": self._line(step.among[0].sha),
                "among": f"{probability(step.probability).capitalize()} sure; the commit before it "
                "was measured too.",
            }  # fmt: skip
        compare = self._host.comparison(step.start.sha, step.end.sha) if step.start else ""
        return {
            "label": f"One of {count(len(step.among), 'commit')}",
            "among": range_text(step).capitalize() + ".",
            "compare": compare,
            "command": bisect_command(step, series.suite, series.task, metrics),
        }

    def _crash(self, state: TaskState, crash: Crash) -> Card:
        task, outcome = state.task, crash.last.outcome
        assert outcome is not None
        first = self._history.commit(crash.since[0])
        levels = f"No result for {count(len(crash.since), 'measured commit')}"
        if crash.some:
            levels = "Fails at its newest commit, with some seeds"
        remarks = (plain(outcome.message) or outcome.kind.value,)
        card = Card(
            Health.CRASHED, task.title, self._name(task.suite, task.name), "",
            links.view(task.title, "", first.sha[:_TYPED]), False, levels, "", remarks,
            order=(-len(crash.since),),
        )  # fmt: skip
        where = self._crash_range(state, crash, first)
        return replace(card, **where)  # type: ignore[arg-type]

    def _crash_range(self, state: TaskState, crash: Crash, first: Commit) -> dict[str, object]:
        task = state.task
        for record in reversed(self._named):
            same = (record.suite, record.task, record.metric) == (task.suite, task.name, "")
            if same and self._history.position.get(record.culprits[0], -1) <= crash.since[0]:
                return {
                    "label": "First bad commit", "culprit": self._line(record.culprits[0]),
                    "among": f"Confirmed by a bisect: {sure(record.probability)} sure.",
                }  # fmt: skip
        if crash.some or crash.good is None or crash.since[0] - crash.good == 1:
            known = crash.good is not None and not crash.some
            among = "It ran at the commit before." if known else ""
            return {"label": "First crash", "culprit": self._line(first.sha), "among": among}
        good = self._history.commit(crash.good)
        return {
            "label": f"One of {count(crash.since[0] - crash.good, 'commit')}",
            "among": f"It ran at {short(good.sha)} and fails from {short(first.sha)} on.",
            "compare": self._host.comparison(good.sha, first.sha),
            "command": f"celedger bisect {good.sha[:_TYPED]}..{first.sha[:_TYPED]} "
            f"--suite {quote(task.suite)} --task {quote(task.name)}",
        }

    def _line(self, sha: str) -> CommitLine | None:
        scope = self._history.scope
        commit = next((c for c in scope.lineage if c.sha == sha), None)
        return CommitLine.of(commit, self._host) if commit is not None else None

    def _name(self, suite: str, task: str) -> str:
        return task if self._one_suite else f"{suite}/{task}"


def _evidence(record: BisectRecord) -> str:
    readings = record.report.get("readings")
    return f", from {count(len(readings), 'trial')}" if isinstance(readings, list) else ""


def _figures(finding: Finding) -> tuple[str, str]:
    """Return the levels before and after and their relative change: those that `celedger drift`
    prints of a step, `celedger check` of a verdict."""
    unit, course = finding.series.metric.unit, finding.course
    noise = course.sd if course is not None else math.nan
    if finding.step is not None:
        before, after = finding.step.before, finding.step.after
    elif finding.lost:
        return "Not finite", ""
    elif finding.verdict is not None and math.isfinite(finding.verdict.effect):
        verdict = finding.verdict
        before, after, noise = verdict.level, verdict.value, (verdict.high - verdict.low) / 4
    elif finding.verdict is not None:
        return finding.verdict.kind.value.replace("-", " ").capitalize(), ""
    elif finding.away is not None:
        before, after = finding.away.level, finding.away.level + finding.away.effect
    else:
        return "Nothing to compare with yet", ""
    levels = " → ".join(measure(x, noise, unit=unit) for x in (before, after))
    relative = (after - before) / abs(before) if before else math.nan
    return levels, percent(relative) if math.isfinite(relative) else ""
