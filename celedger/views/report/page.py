"""The page itself: the verdict at its top, the table, and all parts put into the template. A file
that asks for nothing: style, script and data are inside, and its policy forbids the rest."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from celedger.base.model import BaselineAct
from celedger.ledger.findings import FindingRecord
from celedger.ledger.read import Reader
from celedger.stats.long_history import Settled
from celedger.views.format import count, iso_date, iso_time, measure, percent, short
from celedger.views.report import payload, sparkline
from celedger.views.report.bisect_section import bisects
from celedger.views.report.cards import GLYPHS, Card, CommitLine, cards
from celedger.views.report.links import Host, view
from celedger.views.report.series import Measured, Scope, Series, read
from celedger.views.report.states import RECENT, Finding, Health, TaskState, judge

MOST_CARDS, MOST_FOLDED = 8, 32
"""Cards that are open, and below them folded; the table has the rest."""
_SCRIPTS = ("page", "address", "chart", "pointer", "commit", "table", "start")
_WAYS = {"lower": "lower is better", "higher": "higher is better", "info": "not judged"}
_TAGS = {
    Health.WORSE: "worse",
    Health.UNDECIDED: "undecided",
    Health.BETTER: "better",
}


@dataclass(frozen=True, slots=True)
class Headline:
    """The first thing to read: its state, a sentence, and what else there is to say."""

    state: Health
    sentence: str
    start: Card | None
    rest: str

    @property
    def glyph(self) -> str:
        return GLYPHS[self.state]


@dataclass(frozen=True, slots=True)
class TableCell:
    """A series in the table; `path` is its sparkline, "" where nothing was measured lately."""

    state: Health
    metric: str
    way: str
    href: str
    path: str
    value: str
    tag: str


@dataclass(frozen=True, slots=True)
class TableRow:
    """`key` is what the address of the page calls the task; a cell is None where the task has no
    such metric."""

    key: str
    name: str
    state: Health
    note: str
    cells: Sequence[TableCell | None]


def build(
    ledger: Reader,
    scope: Scope,
    cache: MutableMapping[str, Settled] | None = None,
    findings: Sequence[FindingRecord] = (),
) -> str:
    """Return the page as HTML. `cache` as in `celedger.judge.drift.courses`."""
    history = read(ledger, scope, cache)
    states = judge(history)
    host = Host.of(scope.remote)
    records = ledger.bisects()
    attention = cards(history, states, records, host)
    known = {c.sha: c for c in ledger.commits()} | {c.sha: c for c in scope.lineage}
    chunks = {
        state.task.title: payload.packed(
            payload.task(ledger, history, state, payload.epoch_commits(history, state), findings)
        )
        for state in states
    }
    columns, rows = _table(history, states)
    first = next(iter(attention), None)
    index = {
        "tasks": {s.task.title: [x.metric.name for x in s.task.series] for s in states},
        "first": _first(states, first),
        "commit": host.commit("*"),
    }
    return _render(
        scope=scope, verdict=_verdict(states, attention), facts=_facts(history),
        newest=CommitLine.of(scope.axis[-1], host) if scope.axis else None,
        cards=attention[:MOST_CARDS], folded=attention[MOST_CARDS:][:MOST_FOLDED],
        left_out=max(0, len(attention) - MOST_CARDS - MOST_FOLDED), calm=_calm(states),
        columns=columns, rows=rows, changed=sum(r.state.rank <= Health.BETTER.rank for r in rows),
        bisects=bisects(records, known, host), every_bisect=len(records),
        index=payload.in_script(index), commits=payload.packed(payload.commits(history)),
        chunks=chunks, sparkline=sparkline, recent=RECENT,
    )  # fmt: skip


def _render(**content: Any) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    folder = files("celedger.views.report")
    parts = [(folder / "script" / f"{name}.js").read_text("utf-8") for name in _SCRIPTS]
    script = '"use strict";(() => {\n' + "\n".join(parts) + "})();"
    style = (folder / "style.css").read_text("utf-8")
    script, style = (re.sub(r"(?m)^ +", "", text) for text in (script, style))  # a tenth of both
    environment = Environment(
        loader=PackageLoader("celedger.views", "report"), autoescape=True,
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["digest"] = _digest
    content["index"] = Markup(content["index"])  # what in_script made
    return environment.get_template("page.html").render(
        script=Markup(script), style=Markup(style), **content
    )


def _digest(text: str) -> str:
    """Return how a content security policy names a script or style: by its content."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _verdict(states: Sequence[TaskState], attention: Sequence[Card]) -> Headline:
    """Return the sentence at the top of the page, which is its title too."""
    live = [state for state in states if state.is_live]
    tasks = {each: [s for s in live if s.state is each] for each in Health}
    crashed, worse, undecided, better = (
        len(tasks[s]) for s in (Health.CRASHED, Health.WORSE, Health.UNDECIDED, Health.BETTER)
    )
    steady = len(tasks[Health.STEADY])
    rest = []
    if steady:
        rest.append(f"{count(steady, 'task')} {'is' if steady == 1 else 'are'} steady")
    if undecided and (crashed or worse):
        rest.append(f"{undecided} {'is' if undecided == 1 else 'are'} undecided")
    if better and (crashed or worse or undecided):
        rest.append(f"{better} got better")
    tail = f"{', '.join(rest)}." if rest else ""
    if not states:
        return Headline(Health.UNMEASURED, "Nothing is measured yet", None, "")
    if crashed or worse:
        parts = [f"{count(worse, 'task')} got worse"] if worse else []
        noun = "" if worse else " task" if crashed == 1 else " tasks"
        parts += [f"{crashed}{noun} crash{'es' if crashed == 1 else ''}"] if crashed else []
        state = Health.WORSE if worse else Health.CRASHED
        return Headline(state, ", ".join(parts), attention[0], tail)
    if undecided and not steady and not better:
        return Headline(Health.UNDECIDED, "Nothing can be judged yet", None, "")
    if undecided:
        sentence = f"Nothing got worse, {count(undecided, 'task')} cannot be judged"
        return Headline(Health.UNDECIDED, sentence, None, tail)
    if better:
        sentence = f"Nothing got worse, {count(better, 'task')} got better"
        return Headline(Health.BETTER, sentence, None, f"{tail} {_checked(live)}".strip())
    if not steady:
        return Headline(Health.UNMEASURED, "Nothing can be judged yet", None, _checked(live))
    return Headline(Health.STEADY, "Nothing got worse", None, _checked(live))


def _checked(states: Sequence[TaskState]) -> str:
    """Say how many series were looked at, and how many were never measured."""
    judged = [f for s in states for f in s.findings if f.series.metric.direction.sign]
    own = [f for f in judged if not f.series.is_telemetry]
    unmeasured = sum(f.state is Health.UNMEASURED for f in own)
    text = f"{len(own) - unmeasured} of {len(own)} series were measured"
    if not unmeasured:
        return f"{text}, and none is worse than before."
    return f"{text}, and none is worse than before; {unmeasured} never were."


def _calm(states: Sequence[TaskState]) -> str:
    """Say what changed last, where nothing needs attention."""
    steps = [
        (step.seen_at.commit_time, state.task.name, finding, step)
        for state in states if state.is_live
        for finding in state.findings
        if finding.course is not None for step in finding.course.steps[-1:]
    ]  # fmt: skip
    if not steps:
        return "No metric ever changed."
    _, task, finding, step = max(steps, key=lambda item: item[0])
    change = percent((step.after - step.before) / abs(step.before)) if step.before else "changed"
    way = "better" if step.better else "worse, which was accepted"
    return f"Last change: {task} {finding.series.metric.name} {change} ({way}) at " + short(
        step.seen_at.sha
    )


def _facts(history: Measured) -> list[str]:
    scope = history.scope
    facts = [f"{count(len(scope.axis), 'commit')}, {len(scope.measured)} measured"]
    pins = [r for r in history.baselines if r.act is BaselineAct.PIN]
    if pins:
        facts.append(f"pinned at {short(pins[-1].commit)}")
    if history.running:
        facts.append(f"{count(len(history.running), 'trial')} running")
    if scope.aside:
        facts.append(f"{scope.aside} measured on merged branches left out")
    return [*facts, f"built {iso_time(scope.built)} UTC"]


def _first(states: Sequence[TaskState], card: Card | None) -> list[str]:
    """Return the task and metric whose chart is open at first: of the worst card, or else the first
    that was measured; "" for a task that reported none."""
    measured = {
        state.task.title: next((s.metric.name for s in state.task.series if s.stretches), "")
        for state in states
    }
    if card is not None:
        return [card.key, card.metric or measured[card.key]]
    return next(map(list, sorted(measured.items(), key=lambda item: not item[1])), [])


def _table(
    history: Measured, states: Sequence[TaskState]
) -> tuple[list[tuple[str, str]], list[TableRow]]:
    """Return the columns, each a metric and which way it gets better, and the rows."""
    every = [s for state in states for s in state.task.series]
    ordered = sorted(every, key=lambda s: s.is_telemetry)
    ways = {s.metric.name: _WAYS[s.metric.direction.value] for s in reversed(ordered)}
    names = list(dict.fromkeys(s.metric.name for s in ordered))
    one_suite = len({state.task.suite for state in states}) == 1
    rows = []
    for state in states:
        own = {f.series.metric.name: _cell(history, state, f) for f in state.findings}
        note = "crashes" if state.crash is not None else ""
        if not state.is_live:
            last = history.commit(state.task.tried[-1]) if state.task.tried else None
            note = f"last measured {iso_date(last.commit_time)}" if last else "never measured"
        rows.append(TableRow(
            state.task.title, state.task.name if one_suite else state.task.title,
            state.state if state.is_live else Health.UNMEASURED, note,
            [own.get(name) for name in names],
        ))  # fmt: skip
    return [(name, ways[name]) for name in names], rows


def _cell(history: Measured, state: TaskState, finding: Finding) -> TableCell:
    series = finding.series
    metric, key = series.metric, state.task.title
    value = _value(series)
    tag = _TAGS.get(finding.state, "")
    if tag and finding.relative:
        tag = f"{percent(finding.relative)} {tag}"
    line = sparkline.path(series, len(history.scope.axis))
    way = _WAYS[metric.direction.value]
    return TableCell(finding.state, metric.name, way, view(key, metric.name), line, value, tag)


def _value(series: Series) -> str:
    """Return the newest value, with the digits that its noise leaves; "" without one."""
    stretch = series.latest
    if stretch is None:
        return ""
    course = stretch.course
    sd = course.sd if course is not None and course.sd > 0 else stretch.noise
    mean = float(stretch.means[-1])
    if series.metric.direction.sign == 0 or not math.isfinite(sd):
        return measure(mean, unit=series.metric.unit)
    return measure(mean, sd, unit=series.metric.unit)
