"""The cards of what needs attention: one card for each cause that the state has in force, then what
it suspects and what got better; and a line for each cause that is over. All of it are rows of the
state. And the addresses of commits on the web host of a remote, and of views inside of the page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote, urlencode

from celedger.base.errors import TYPED
from celedger.base.model import BisectRecord, Commit, FindingRecord
from celedger.judge.incident import DRIFT, WORK, Doubt, Incident, LevelChange
from celedger.page import health
from celedger.page.health import RECENT, Health
from celedger.page.series import Measured
from celedger.views import incidents as words
from celedger.views.document import (
    amount,
    count,
    iso_date,
    measure,
    plain,
    probability,
    short,
    sure,
)

GLYPHS = {
    Health.CRASHED: "✕", Health.WORSE: "▲", Health.UNDECIDED: "?", Health.BETTER: "▼",
    Health.STEADY: "✓", Health.UNMEASURED: "–", Health.UNJUDGED: "",
}  # fmt: skip
_WORDS = {"crash": "Crashes", "timeout": "Times out", "missing": "Not reported",
          "not-finite": "Not finite", "drift": "Slow drift", "work": "Work"}  # fmt: skip
_TELEMETRY = "Telemetry, which the suite does not declare: it never fails a check."
_OVER = {"recovered": Health.STEADY, "accepted": Health.STEADY, "withdrawn": Health.UNMEASURED}

# `https://user:token@host/owner/name.git`, `ssh://git@host:22/owner/name`, `git@host:owner/name`.
_URL = re.compile(r"(?:https?|ssh|git)://(?:[^/@]*@)?(?P<host>[\w.-]+)(?::\d+)?/(?P<path>.+)")
_SCP = re.compile(r"(?:[^/@:]+@)?(?P<host>[\w.-]+):(?!/)(?P<path>.+)")
# A part of the host's name, and where it shows a commit and a comparison.
_HOSTS = {
    "github": ("commit/{}", "compare/{}...{}"),
    "gitlab": ("-/commit/{}", "-/compare/{}...{}"),
    "bitbucket": ("commits/{}", "branches/compare/{1}..{0}"),
}


@dataclass(frozen=True, slots=True)
class Host:
    """The addresses of a repository on the web; empty addresses where that is not known."""

    base: str = ""
    commits: str = ""
    comparisons: str = ""

    @classmethod
    def of(cls, remote: str) -> Host:
        """Return the host of a remote's address, never with what a password could be in."""
        match = _URL.fullmatch(remote.strip()) or _SCP.fullmatch(remote.strip())
        if match is None:
            return cls()
        name, path = match["host"].lower(), match["path"].strip("/").removesuffix(".git")
        for host, (commits, comparisons) in _HOSTS.items():
            if host in name.split(".") and path:
                return cls(f"https://{name}/{quote(path)}/", commits, comparisons)
        return cls()

    def commit(self, sha: str) -> str:
        return self.base + self.commits.format(sha) if self.base else ""

    def comparison(self, old: str, new: str) -> str:
        return self.base + self.comparisons.format(old, new) if self.base else ""


def view(task: str, metric: str = "", commit: str = "") -> str:
    """Return the address of a view of the page: its state, as script.js reads it."""
    state = {"t": task, "m": metric, "c": commit}
    return "#" + urlencode({key: value for key, value in state.items() if value}, safe="/")


@dataclass(frozen=True, slots=True)
class CommitLine:
    """A commit as a card or a list shows it; `url` is "" where no web host is known."""

    sha: str
    subject: str
    author: str
    date: str
    url: str

    @classmethod
    def of(cls, commit: Commit, host: Host) -> CommitLine:
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
    known, or `among` says in which range it is and `command` what to type. `counts` says if it is
    an incident that the suite's declared metrics or tasks have."""

    health: Health
    word: str
    key: str  # of the task, in addresses
    task: str
    metric: str
    href: str
    id: str = ""
    status: str = ""
    counts: bool = False
    telemetry: bool = False  # which never decides anything
    levels: str = ""
    change: str = ""
    remarks: Sequence[str] = ()
    label: str = ""
    culprit: CommitLine | None = None
    among: str = ""
    compare: str = ""  # address of the range on the web host
    command: str = ""
    commit: str = ""  # at which it shows

    @property
    def title(self) -> str:
        return f"{self.task} · {self.metric}" if self.metric else self.task

    @property
    def glyph(self) -> str:
        return GLYPHS[self.health]

    @property
    def phrase(self) -> str:
        """`mlp: val_loss +8.4 %`, as the verdict at the top of the page says it."""
        return f"{self.task}: {' '.join(filter(None, (self.metric, self.change)))}"


_Row = TypeVar("_Row", Doubt, LevelChange)


class CardWriter:
    """Writes the cards of a page. `commits` are all that are known, by hash."""

    def __init__(
        self,
        history: Measured,
        bisects: Sequence[BisectRecord],
        commits: Mapping[str, Commit],
        host: Host,
        findings: Sequence[FindingRecord] = (),
    ) -> None:
        self._history, self._commits, self._host = history, commits, host
        self._findings = findings
        self._bisects = {record.ulid: record for record in bisects}
        self._one_suite = len({task.suite for task in history.tasks}) == 1

    def attention(self) -> list[Card]:
        """Return the cards, worst first: incidents in force, as the state sorts them, those of
        telemetry alone after the suspected rises, then improvements."""
        state = self._history.state
        measured = [self._incident(i) for i in state.in_force if i.is_measured]
        counting = [card for card in measured if card.counts]
        telemetry = [card for card in measured if not card.counts]
        doubts = _by_commits(sorted(state.doubts, key=lambda d: -d.probability))
        better = _by_commits(health.improvements(self._history))
        return [
            *counting, *(self._doubt(group) for group in doubts), *telemetry,
            *(self._better(group) for group in better),
        ]  # fmt: skip

    def over(self) -> list[Card]:
        """Return what was worse and is over, or is measured no more, the newest first."""
        first = max(0, len(self._history.scope.axis) - RECENT)
        ended = [
            (self._ended(i), i) for i in self._history.state.incidents
            if not i.in_force or not i.is_measured
        ]  # fmt: skip
        recent = [(at, i) for at, i in ended if at >= first or i.in_force]
        recent.sort(key=lambda pair: -pair[0])
        return [self._incident(incident) for _, incident in recent]

    def _ended(self, incident: Incident) -> int:
        return self._history.at(incident.mend_seen_at or incident.seen_at)

    def _incident(self, incident: Incident) -> Card:
        main = incident.main
        telemetry = not incident.declared
        crashes = incident.is_failing and incident.kind in ("crash", "timeout")
        state = Health.CRASHED if crashes else Health.WORSE
        word = "Telemetry" if telemetry else "Worse"
        if incident.is_failing or incident.kind in (DRIFT, WORK):
            word = _WORDS[incident.kind]
        if not incident.in_force:
            state, word = _OVER[incident.state], incident.state.capitalize()
        also = "; ".join(words.also(incident))
        cause = words.cause(incident, self._findings)[:1]
        remarks = [
            f"{also.capitalize()}." if also else "",
            words.reason(incident, cause),
            *(f"{line.removesuffix('.')}." for line in cause),
            _TELEMETRY if telemetry and incident.kind != WORK else "",
        ]
        label, among, compare = self._where(incident)
        sha = incident.shown_at
        alone = len([i for i in self._history.state.in_force if i.main.key == main.key]) == 1
        commit = "" if main.name and incident.in_force and alone else sha[:TYPED]
        key = f"{main.suite}/{main.task}"
        typed = incident.next()
        metric = "" if incident.kind == WORK else main.name  # there is no chart of a count
        return Card(
            state, word, key, self._name(main.suite, main.task), main.name,
            view(key, metric, commit), incident.id, words.state(incident),
            incident.in_force and not telemetry, telemetry,
            words.levels(main) if metric and math.isfinite(main.change) else "",
            words.by_how_much(incident), tuple(filter(None, remarks)), label,
            self._line(incident.likeliest) if incident.is_named else None, among, compare,
            typed, sha[:TYPED],
        )  # fmt: skip

    def _where(self, incident: Incident) -> tuple[str, str, str]:
        """Return a label, how sure its commits are, and the address of their range."""
        bisect = self._bisects.get(incident.bisect)
        if bisect is not None:
            trials = bisect.report.get("readings")
            source = f", from {count(len(trials), 'trial')}" if isinstance(trials, list) else ""
            text = f"Named by a bisect: {sure(bisect.probability)} sure{source}."
            return "First bad commit", text, ""
        if len(incident.first_bad) == 1:
            is_next = incident.known_good and incident.known_good == incident.parent
            text = "The commit before it was measured too." if is_next else ""
            return "First bad commit", text, ""
        first, last = incident.first_bad[0], incident.first_bad[-1]
        if incident.kind == "drift":
            return f"Over {count(len(incident.first_bad), 'commit')}", (
                f"Slowly, from {short(first)} to {short(last)}."
            ), self._host.comparison(first, last)  # fmt: skip
        label = f"One of {count(len(incident.first_bad), 'commit')}"
        if not incident.known_good:
            return label, f"Up to {short(last)}.", ""
        return label, f"Between {short(incident.known_good)} and {short(last)}.", (
            self._host.comparison(incident.known_good, last)
        )  # fmt: skip

    def _doubt(self, group: Sequence[Doubt]) -> Card:
        first = group[0]
        key = f"{first.suite}/{first.task}"
        return Card(
            Health.UNDECIDED, "Suspected", key, self._name(first.suite, first.task), first.metric,
            view(key, first.metric),
            levels=_levels(first.before, first.before + first.change, math.nan, first.unit),
            change=amount(first.change, first.before, unit=first.unit),
            remarks=tuple(filter(None, [
                _others([(d.metric, d.change, d.before, d.unit) for d in group]),
                f"Only {probability(first.probability)} sure: more trials would tell.",
            ])),
            label=f"Seen at {short(first.seen_at)}",
            culprit=self._line(first.seen_at) if len(first.among) == 1 else None,
            among="" if len(first.among) == 1 else f"One of {count(len(first.among), 'commit')}.",
            command=first.search().strip("`"),
        )  # fmt: skip

    def _better(self, group: Sequence[LevelChange]) -> Card:
        first = group[0]
        key = f"{first.suite}/{first.task}"
        one = len(first.among) == 1
        typed = first.search().strip("`")
        noise = (first.high - first.low) / 4  # two standard errors to each side
        others = _others([(c.metric, c.size, c.before, c.unit) for c in group])
        return Card(
            Health.BETTER, "Better", key, self._name(first.suite, first.task), first.metric,
            view(key, first.metric),
            levels=_levels(first.before, first.after, noise, first.unit),
            change=amount(first.size, first.before, unit=first.unit),
            remarks=(others,) if others else (),
            label="First better commit" if one else f"One of {count(len(first.among), 'commit')}",
            culprit=self._line(first.seen_at) if one else None,
            among=f"Between {short(first.known)} and {short(first.among[-1])}." if typed else "",
            compare=self._host.comparison(first.known, first.among[-1]) if typed else "",
            command=typed,
        )  # fmt: skip

    def _line(self, sha: str) -> CommitLine | None:
        commit = self._commits.get(sha)
        return CommitLine.of(commit, self._host) if commit is not None else None

    def _name(self, suite: str, task: str) -> str:
        return task if self._one_suite else f"{suite}/{task}"


def _by_commits(rows: Sequence[_Row]) -> list[list[_Row]]:
    """Group rows of one task at one commit: one cause, as far as is known."""
    groups: dict[tuple[str, str, str], list[_Row]] = {}
    for row in rows:
        groups.setdefault((row.suite, row.task, row.seen_at), []).append(row)
    return list(groups.values())


def _others(rows: Sequence[tuple[str, float, float, str]]) -> str:
    """Return `Also val_accuracy -4.3 %.`: of all rows (metric, change, before, unit) but the
    first."""
    texts = [f"{name} {amount(size, before, unit=unit)}" for name, size, before, unit in rows[1:]]
    return f"Also {', '.join(texts)}." if texts else ""


def _levels(before: float, after: float, noise: float, unit: str) -> str:
    return " → ".join(measure(x, noise, unit=unit) for x in (before, after))
