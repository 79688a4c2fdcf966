"""The page itself: the verdict at its top, the table, and all parts put into the template. A file
that asks for nothing: style, script and data are inside, and its policy forbids the rest."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from celedger.base.model import BaselineAct, FindingRecord
from celedger.judge.derivation import Derivation
from celedger.judge.incident import WORK, State
from celedger.page import health, payload
from celedger.page.cards import GLYPHS, Card, CardWriter, CommitLine, Host, view
from celedger.page.health import (
    RECENT,
    Health,
    SeriesHealth,
    TaskHealth,
    improvements,
    of_tasks,
)
from celedger.page.series import ChartSeries, Measured, Scope, read
from celedger.views import incidents as words
from celedger.views.document import count, iso_date, iso_time, measure, short
from celedger.views.drift import offset_texts, pinned_text

MOST_CARDS, MOST_FOLDED = 8, 32
"""Cards that are open, and below them folded; the table has the rest."""
_SCRIPTS = ("page", "address", "chart", "pointer", "commit", "table", "start")
_WAYS = {"lower": "lower is better", "higher": "higher is better", "info": "not judged"}


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
    changed: bool
    cells: Sequence[TableCell | None]


def build(
    derivation: Derivation,
    state: State,
    scope: Scope,
    findings: Sequence[FindingRecord] = (),
) -> str:
    """Return the page as HTML. `state` is that of the derivation, or a part of it."""
    ledger = derivation.ledger
    history = read(ledger, derivation, state, scope)
    tasks = of_tasks(history)
    host = Host.of(scope.remote)
    records = ledger.last_bisects()
    commits = {c.sha: c for c in (*ledger.commits(), *derivation.line.commits)}
    writer = CardWriter(history, records, commits, host, findings)
    attention, over = writer.attention(), writer.over()
    chunks = {
        task.task.title: payload.packed(
            payload.task(ledger, history, task, payload.epoch_commits(history, task), findings)
        )
        for task in tasks
    }
    columns, rows = _table(history, tasks)
    first = next(iter(attention), None)
    index = {
        "tasks": {t.task.title: [x.metric.name for x in t.task.series] for t in tasks},
        "first": _first(tasks, first),
        "commit": host.commit("*"),
    }
    return _render(
        scope=scope, verdict=_headline(history, tasks, first), facts=_facts(history),
        newest=CommitLine.of(scope.axis[-1], host) if scope.axis else None,
        cards=attention[:MOST_CARDS], folded=attention[MOST_CARDS:][:MOST_FOLDED],
        left_out=max(0, len(attention) - MOST_CARDS - MOST_FOLDED), calm=_calm(history),
        over=over[:MOST_FOLDED], notes=_notes(history),
        columns=columns, rows=rows, changed=sum(r.changed for r in rows),
        index=payload.in_script(index), commits=payload.packed(payload.commits(history)),
        chunks=chunks, line_size=(WIDTH, HEIGHT), recent=RECENT,
    )  # fmt: skip


def _notes(history: Measured) -> list[str]:
    """Return a line for each change of environment or suite, each clear distance from a pin, and
    what lies on commits that this history lacks."""
    state = history.state
    pinned = [pinned_text(distance) for distance in state.pinned if distance.is_clear]
    gone = [f"{name}: on commits that this history lacks" for name in state.gone]
    return [*offset_texts(state, history.environments), *pinned, *gone]


def _render(**content: Any) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    folder = files("celedger.page")
    parts = [(folder / "script" / f"{name}.js").read_text("utf-8") for name in _SCRIPTS]
    script = '"use strict";(() => {\n' + "\n".join(parts) + "})();"
    style = (folder / "style.css").read_text("utf-8")
    script, style = (re.sub(r"(?m)^ +", "", text) for text in (script, style))  # a tenth of both
    environment = Environment(
        loader=PackageLoader("celedger.page", "."), autoescape=True,
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


def _headline(history: Measured, tasks: Sequence[TaskHealth], first: Card | None) -> Headline:
    """Return the sentence at the top of the page, which is its title too. It counts causes."""
    state = history.state
    causes = [i for i in state.in_force if i.declared and i.is_measured]
    rest = _rest(history, tasks)
    if not tasks:
        return Headline(Health.UNMEASURED, "Nothing is measured yet", None, "")
    if causes:
        drifts = sum(i.kind == "drift" for i in causes)
        failing = sum(i.is_failing for i in causes)
        worse = len(causes) - failing - drifts
        parts = [f"{count(worse, 'commit')} made something worse"] if worse else []
        parts += [count(drifts, "slow drift")] if drifts else []
        noun = "" if parts else " commit" if failing == 1 else " commits"
        crash = all(i.kind == "crash" for i in causes if i.is_failing)
        verb = "crash" if crash else "fail"
        plural = {"crash": "es", "fail": "s"}[verb] if failing == 1 else ""
        parts += [f"{failing}{noun} {verb}{plural}"] if failing else []
        worst = Health.WORSE if worse or drifts else Health.CRASHED
        return Headline(worst, "; ".join(parts), first, rest)
    live = [t for t in tasks if t.task.is_live]
    if state.doubts:
        sentence = f"{count(len(state.doubts), 'rise')} suspected, not settled"
        return Headline(Health.UNDECIDED, sentence, None, rest)
    if in_force := [i for i in state.in_force if i.kind != WORK]:
        is_declared = any(i.declared for i in in_force)
        sentence = "What is worse is measured no more" if is_declared else "Only telemetry is worse"
        return Headline(Health.UNDECIDED, sentence, None, rest)
    tags = {s.tag for t in live for s in t.series if s.health is Health.UNDECIDED}
    clear = any(t.health in (Health.STEADY, Health.BETTER) for t in live)
    if not clear and tags <= {health.FIRST}:
        return Headline(Health.UNDECIDED, "Nothing can be judged yet", None, rest)
    sentence = "Nothing is worse now" if state.incidents else "Nothing got worse"
    better = {(c.suite, c.task) for c in improvements(history)}
    if better:
        sentence += f", {count(len(better), 'task')} got better"
    return Headline(
        Health.UNDECIDED if not clear else Health.BETTER if better else Health.STEADY,
        sentence, None, rest,
    )  # fmt: skip


def _rest(history: Measured, tasks: Sequence[TaskHealth]) -> str:
    """Say what else there is: what is over, and how the other tasks stand."""
    live = [t for t in tasks if t.task.is_live]
    over = sum(i.state in ("recovered", "accepted") for i in history.state.incidents)
    texts = {
        Health.STEADY: "steady", Health.UNDECIDED: "undecided",
        Health.BETTER: "better",
        Health.UNMEASURED: "not measured",
    }  # fmt: skip
    parts: list[str] = []
    for name, text in texts.items():
        if number := sum(t.health is name for t in live):
            verb = "is" if number == 1 else "are"
            parts.append(f"{count(number, 'task') if not parts else number} {verb} {text}")
    sentences = [", ".join(parts)] if parts else []
    if over:
        sentences.append(f"{over} that {'was' if over == 1 else 'were'} worse "
                         f"{'is' if over == 1 else 'are'} over")  # fmt: skip
    return " ".join(f"{sentence}." for sentence in sentences)


def _calm(history: Measured) -> str:
    """Say what the state knows, where nothing needs attention."""
    over = history.state.incidents
    if over:
        newest = max(over, key=lambda i: history.at(i.mend_seen_at or i.seen_at))
        return f"Last: {newest.title()} {words.by_how_much(newest)}, {words.state(newest)}."
    state = history.state
    return (
        f"No change for the worse in {count(state.metrics, 'metric')} over "
        f"{count(state.commits, 'measured commit')}."
    )


def _facts(history: Measured) -> list[str]:
    scope = history.scope
    measured = len({position for task in history.tasks for position in task.tried})
    facts = [f"{count(len(scope.axis), 'commit')}, {measured} measured"]
    pins = [r for r in history.baselines if r.act is BaselineAct.PIN]
    if pins:
        facts.append(f"pinned at {short(pins[-1].commit)}")
    if history.running:
        facts.append(f"{count(len(history.running), 'trial')} running")
    if aside := history.state.aside:
        facts.append(f"{count(aside, 'measured commit')} outside this line left out")
    return [*facts, f"built {iso_time(scope.built)} UTC"]


def _first(tasks: Sequence[TaskHealth], card: Card | None) -> list[str]:
    """Return the task and metric whose chart is open at first: of the first card, or else the first
    that was measured; "" for a task that reported none."""
    measured = {
        t.task.title: next((s.metric.name for s in t.task.series if s.stretches), "") for t in tasks
    }
    if card is not None and card.key in measured:
        return [card.key, card.metric or measured[card.key]]
    return next(map(list, sorted(measured.items(), key=lambda item: not item[1])), [])


def _table(
    history: Measured, tasks: Sequence[TaskHealth]
) -> tuple[list[tuple[str, str]], list[TableRow]]:
    """Return the columns, each a metric and which way it gets better, and the rows."""
    every = [s for t in tasks for s in t.task.series]
    ordered = sorted(every, key=lambda s: s.is_telemetry)
    ways = {s.metric.name: _WAYS[s.metric.direction.value] for s in reversed(ordered)}
    names = list(dict.fromkeys(s.metric.name for s in ordered))
    one_suite = len({t.task.suite for t in tasks}) == 1
    rows = []
    for card in tasks:
        task = card.task
        cells = {s.series.metric.name: _cell(history, task.title, s) for s in card.series}
        note = words.KINDS.get(card.failing.kind, "") if card.failing is not None else ""
        if not task.is_live:
            note = f"last measured {iso_date(history.commit(task.tried[-1]).commit_time)}"
        rows.append(TableRow(
            task.title, task.name if one_suite else task.title,
            card.health if task.is_live else Health.UNMEASURED, note, task.is_live and card.changed,
            [cells.get(name) for name in names],
        ))  # fmt: skip
    return [(name, ways[name]) for name in names], rows


def _cell(history: Measured, key: str, stands: SeriesHealth) -> TableCell:
    series = stands.series
    metric = series.metric
    line = sparkline(series, len(history.scope.axis))
    return TableCell(
        stands.health, metric.name, view(key, metric.name), line, _value(series), stands.tag
    )


def _value(series: ChartSeries) -> str:
    """Return the newest value, with the digits that its noise leaves; "" without one."""
    stretch = series.latest
    if stretch is None:
        return ""
    mean, unit = float(stretch.means[-1]), series.metric.unit
    if series.metric.direction.sign == 0 or not math.isfinite(stretch.noise):
        return measure(mean, unit=unit)
    return measure(mean, stretch.noise, unit=unit)


# --- the small lines of the table: the newest commits of a series as the path of an SVG. A break is
# a stretch that nobody measured

WIDTH, HEIGHT = 100, 22
_FLATTEST = 0.05  # of the level: a range narrower than this is not stretched to the full height


def sparkline(series: ChartSeries, commits: int) -> str:
    """Return the `d` of a path over the last RECENT of so many commits; "" without values there.

    A column of the picture is the mean of the commits in it. Environments break the line.
    """
    first = max(0, commits - RECENT)
    per_column = max(1, -(-(commits - first) // WIDTH))
    columns = [
        (stretch.positions[keep] - first, stretch.means[keep])
        for stretch in series.stretches
        if (keep := (stretch.positions >= first) & np.isfinite(stretch.means)).any()
    ]
    if not columns:
        return ""
    every = np.concatenate([values for _, values in columns])
    low, high = float(every.min()), float(every.max())
    span = max(high - low, _FLATTEST * max(abs(low), abs(high)), 1e-300)
    bottom = (low + high - span) / 2
    scale = WIDTH / max(1, (commits - first) // per_column)
    parts = []
    for positions, values in columns:
        column = positions // per_column
        starts = np.flatnonzero(np.diff(column, prepend=-1))
        gaps = np.diff(positions, prepend=positions[0] - 2)[starts] > 1
        across = np.rint(column[starts] * scale).astype(int)
        above = (_column_means(values, starts) - bottom) / span
        down = np.rint((HEIGHT - 2) * (1 - above)).astype(int) + 1
        for gap, x, y in zip(gaps, across, down, strict=True):
            # A commit alone is a dot, by the round caps of its line.
            parts.append(f"M{x} {y}h0" if gap else f"L{x} {y}")
    return "".join(parts)


def _column_means(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    sizes = np.diff(starts, append=values.size)
    return np.asarray(np.add.reduceat(values, starts) / sizes)
