"""`celedger check`: how each metric stands at a commit. What the suite declares comes first, then
telemetry, then the incidents behind it and what to type."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from celedger.base.errors import TYPED, command
from celedger.base.model import BY_ID, ENVIRONMENTS, BaselineRecord, Commit
from celedger.judge.incident import Incident, MetricStanding, Standing, State
from celedger.views import incidents as words
from celedger.views.document import (
    GREEN,
    RED,
    YELLOW,
    Column,
    Document,
    Listing,
    amount,
    change,
    count,
    iso_date,
    ordinal,
    percent,
    pick,
    plain,
    short,
    table,
    wrap,
)
from celedger.views.status import state_json

_COLOURS = {"worse": RED, "missing": RED, "undecided": YELLOW, "better": GREEN}
_COLUMNS = (
    Column("task"), Column("metric"), Column("stands", colour=lambda s: _COLOURS.get(s, "")),
    Column("change", right=True), Column("", wrap=True),
)  # fmt: skip
_TELEMETRY = "telemetry, which the suite does not declare: never decides the exit status"
_ORDER = list(Standing)
_SEARCHES = 3  # that are proposed
TINY = 1e-4
"""Share of the level below which a change is none for a person: 0.01 %."""
StandingRows = Sequence[tuple[MetricStanding, tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class CheckDocument(Document):
    """`number` is that of a try, 0 for a commit."""

    SCHEMA = 2

    commit: Commit
    state: State
    commits: Mapping[str, Commit]
    number: int = 0
    upgrades: Sequence[tuple[str, str]] = ()  # a line, and the command that searches it
    searches: Sequence[str] = ()  # a line each: what settles a doubt, and the command
    oldest: str = ""  # the first measured commit of the line, if it is another one
    edited: str = ""  # the file of the suite, where the commit edits it

    def text(self, width: int = 100) -> str:
        """Return the worst first, one row a task × metric; then the incidents."""
        head = f"{short(self.commit.sha)} {plain(self.commit.subject)}"
        if self.number:
            base = short(self.commit.parents[0])
            head = f"{plain(self.commit.subject)}: the {ordinal(self.number)} try against {base}"
        declared, telemetry = self.rows()
        if not declared and not telemetry:
            return f"{head}\nnothing was measured"
        lines = [head, *filter(None, [self.edits()])]
        new = [s for s, _ in (*declared, *telemetry) if s.standing is Standing.FIRST]
        for title, every in (("", declared), (_TELEMETRY, telemetry)):
            if rows := [row for row in every if row[0].standing is not Standing.FIRST]:
                text = table(_COLUMNS, [cells for _, cells in rows], width=width)
                lines += ["", *filter(None, [title]), text]
        if new:
            what = words.of_tasks([(s.task, s.metric) for s in new])
            lines += ["", *wrap(f"{new[0].note}: {what}", width, 4)]
        is_searchable = any(i.is_searchable and i.declared for i in self.incidents())
        noisy = [s for s, _ in declared if s.standing is Standing.TOO_NOISY]
        if noisy and not is_searchable:  # else something is to be done before
            what = f"too noisy: {words.metric_names(noisy)}"
            how = "more `seeds` in suite.toml detect smaller changes, a larger `floor` needs less"
            how += ", and a search runs what tells it:" * bool(self.oldest)
            lines += ["", *wrap(f"{what}; {how}", width, 4)]
            if self.oldest:
                ends = f"{self.oldest[:TYPED]}..{self.commit.sha[:TYPED]}"
                names = {"suite": noisy[0].suite, "task": noisy[0].task, "metric": noisy[0].metric}
                lines.append(f"  {command('bisect', ends, **names).strip('`')}")
        blocks = {True: list[str](), False: list[str]()}
        for incident in self.incidents():
            block = ["", f"{incident.id} {words.sentence(incident, self.commits)}"]
            block += [f"  {typed}" for typed in [incident.next()] if typed]
            if before := words.check_before(incident):
                block.append(f"  what got worse before it: {before}")
            blocks[incident.declared] += block
        lines += blocks[True]
        if self.searches and not is_searchable:
            lines += ["", *self.searches[:_SEARCHES]]
        lines += blocks[False]
        for text, typed in self.upgrades:
            lines += ["", text, *([f"  {typed}"] if typed else [])]
        return "\n".join(lines)

    def json(self) -> dict[str, object]:
        return {
            "commit": self.commit.sha,
            **({"try": self.number, "against": self.commit.parents[0]} if self.number else {}),
            "edited": self.edited or None,
            "standings": [standing._asdict() for standing in self.state.standings],
            **state_json(self.state),
        }

    def edits(self) -> str:
        """Return that the commit edits what it is judged by; "" if it does not."""
        return (
            f"this commit edits {plain(self.edited)}, by which it is judged" if self.edited else ""
        )

    def incidents(self) -> list[Incident]:
        """Return the incidents that made this commit worse."""
        ids = {name for standing in self.state.standings for name in standing.incidents}
        return [i for i in self.state.incidents if i.id in ids]

    def rows(self) -> tuple[StandingRows, StandingRows]:
        """Return what counts and what is telemetry: the worst first, with cells."""
        every = sorted(
            self.state.standings, key=lambda s: (_ORDER.index(s.standing), s.task, s.metric)
        )
        rows = [(standing, self._cells(standing)) for standing in every]
        return [r for r in rows if r[0].declared], [r for r in rows if not r[0].declared]

    def _cells(self, standing: MetricStanding) -> tuple[str, ...]:
        moved = ""
        size = standing.value - standing.level
        is_news = standing.standing in (Standing.BETTER, Standing.WORSE)
        if math.isfinite(size) and is_news:
            moved = amount(size, standing.level, unit=standing.unit)
        incidents = {i.id: i for i in self.state.incidents}
        key = standing.suite, standing.task, standing.metric
        for step in self.state.changes if standing.standing is Standing.BETTER else ():
            if (step.suite, step.task, step.metric, step.seen_at) == (*key, self.commit.sha):
                moved = amount(step.size, step.before, unit=standing.unit)  # as `drift` has it
        for doubt in self.state.doubts if standing.standing is Standing.UNDECIDED else ():
            if (doubt.suite, doubt.task, doubt.metric) == key:  # as equal seeds tell it
                moved = amount(doubt.change, doubt.before, unit=standing.unit)
        shares = [m for name in standing.incidents for m in incidents[name].metrics if m.key == key]
        if shares and standing.metric:
            moved = words.size_and_rest(shares[0])
        why = [
            f"{name} since {words.since(incidents[name], self.commits)}"
            for name in standing.incidents
        ]
        remarks = "; ".join(filter(None, [*why, plain(standing.note), _sensitivity(standing)]))
        return (
            standing.task,
            standing.metric or "(whole task)",
            standing.standing.value,
            moved,
            remarks,
        )


def _sensitivity(standing: MetricStanding) -> str:
    """Return what these trials could see, or what they saw that is too small to count."""
    size = standing.value - standing.level
    is_seen = standing.low > 0 or standing.high < 0
    if standing.standing is Standing.SAME and is_seen:
        moved = amount(size, standing.level, unit=standing.unit)
        if abs(size) >= standing.floor:
            return moved + ", not sure" * (not standing.note)
        if standing.smallest < abs(size):
            return f"{moved}; less than {_amount(standing.floor, standing)} does not count"
    if standing.standing is Standing.SAME and standing.smallest <= TINY * abs(standing.level):
        return "any change would have been detected"
    if standing.standing is Standing.SAME and math.isfinite(standing.smallest):
        return f"a change of {_amount(standing.smallest, standing)} would have been detected"
    if standing.standing is Standing.TOO_NOISY and standing.floor < standing.smallest < math.inf:
        return f"cannot detect less than {_amount(standing.smallest, standing)}"
    return ""


_SHARE = 1.0  # of the level, up to which a change is told as a share of it


def _amount(value: float, standing: MetricStanding) -> str:
    if abs(value) < _SHARE * abs(standing.level):  # of next to nothing a share says nothing
        return percent(value / abs(standing.level))
    return change(value, unit=standing.unit, scale_of=standing.value, signed=False)


# --- where a CI service shows it: a Markdown summary, and GitHub's annotations


_SIGNS = {Standing.SAME: "✅", Standing.BETTER: "✅", Standing.WORSE: "❌", Standing.MISSING: "❌"}
_LEVELS = {Standing.BETTER: "notice", Standing.SAME: "", Standing.WORSE: "error",
           Standing.MISSING: "error"}  # fmt: skip


def markdown(document: CheckDocument) -> str:
    """Return how a commit stands as a GitHub- or GitLab-flavoured table, telemetry folded away."""
    declared, telemetry = document.rows()
    bad = sum(standing.standing is Standing.WORSE for standing, _ in declared)
    head = f"{count(bad, 'metric')} worse" if bad else "nothing is worse"
    if declared and all(standing.standing is Standing.FIRST for standing, _ in declared):
        head = "first measurement, nothing to compare with"  # also where a CI lost its ledger
    commit = document.commit
    lines = [
        f"### celedger: {head}", "",
        f"`{short(commit.sha)}` {_escaped(plain(commit.subject))}", "",
        *([f"⚠️ {_escaped(document.edits())}", ""] if document.edited else []), *_table(declared),
    ]  # fmt: skip
    if telemetry:
        lines += ["<details><summary>telemetry, which never decides</summary>", ""]
        lines += [*_table(telemetry), "</details>", ""]
    return "\n".join(lines)


def _table(rows: StandingRows) -> list[str]:
    if not rows:
        return ["Nothing was measured.", ""]
    lines = ["| | task | metric | stands | change | |", "|---|---|---|---|--:|---|"]
    for standing, cells in rows:
        sign = _SIGNS.get(standing.standing, "❔")
        lines.append(f"| {sign} | {' | '.join(map(_escaped, cells))} |")
    return [*lines, ""]


def _escaped(text: str) -> str:
    """Return a text that Markdown shows as it is, in a cell of a table too."""
    for letter in "\\`*_[]|#~":
        text = text.replace(letter, f"\\{letter}")
    return (
        text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "&#64;")
    )


def workflow_commands(document: CheckDocument) -> Iterator[str]:
    """Yield GitHub's workflow commands for what the suite declares, the worst first."""
    if document.edited:
        yield f"::warning file={_property(document.edited)}::{_data(document.edits())}"
    for standing, (task, metric, kind, size, remarks) in document.rows()[0]:
        if level := _LEVELS.get(standing.standing, "warning"):
            title = _property(f"{task} {metric}: {kind} {size}".strip())
            yield f"::{level} title={title}::{_data(remarks or kind)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


# --- `celedger baseline show`: what people pinned, accepted, dismissed and declared void


_ACTS = (
    Column("act"), Column("commit"), Column("of"), Column("date"),
    Column("who", shrink=True), Column("why", wrap=True),
)  # fmt: skip


def acts(records: Sequence[BaselineRecord]) -> Listing:
    """Return the acts of people, the oldest first."""
    names = "act commit suite task metric who why at"
    rows = [
        (r.act.value, short(r.commit), subject(r), iso_date(r.at), plain(r.who), plain(r.why))
        for r in records
    ]
    return Listing(
        {"baselines": [{"id": r.ulid, **pick(r, names)} for r in records]},
        lambda width: (
            table(_ACTS, rows, width=width) or "nothing is pinned, accepted, dismissed or void"
        ),
    )


def subject(record: BaselineRecord) -> str:
    """Return what an act is about: `core/mlp/val_loss`, an incident, a trial, environments."""
    if record.metric == ENVIRONMENTS:
        return "/".join(filter(None, (record.suite, record.task, "environments")))
    if record.metric.startswith(BY_ID):
        return record.metric.removeprefix(BY_ID)
    return "/".join(filter(None, (record.suite, record.task, record.metric)))
