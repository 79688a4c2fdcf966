"""`celedger drift`: every change of a level that the state knows, along the line of a commit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import quote

from celedger.base.model import Commit, Environment
from celedger.base.text import some
from celedger.judge.incident import (
    DRIFT,
    Incident,
    IncidentMetric,
    LevelChange,
    PinnedDistance,
    State,
)
from celedger.views import incidents as words
from celedger.views.document import (
    Column,
    Document,
    amount,
    amounts,
    count,
    iso_date,
    measure,
    plain,
    probability,
    short,
    table,
    wrap,
)
from celedger.views.samples import environment_changes
from celedger.views.status import state_json

_COLUMNS = (
    Column("metric"), Column("at"), Column("date"), Column("change", right=True),
    Column("level"), Column("sure", right=True), Column("among", right=True), Column("state"),
    Column("subject", shrink=True),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DriftDocument(Document):
    """`state` holds what was asked for alone; `commits` is the line, oldest first;
    `named` has all commits of it and those of merged branches that are named. `environments`
    are those that the changes name."""

    SCHEMA = 2

    state: State
    commits: Sequence[Commit]
    named: Mapping[str, Commit]
    environments: Mapping[str, Environment]
    by_size: bool = False  # the largest change first, not the newest

    def text(self, width: int = 100) -> str:
        """Return the changes; the ranges to search; then how much was looked at."""
        rows = self._rows()
        rows.sort(key=lambda row: -row[2] if self.by_size else row[1])
        lines = []
        if rows:
            lines += [table(_COLUMNS, [cells for cells, *_ in rows], width=width), ""]
        for range_ in self._ranges():
            lines += [*range_, ""]
        state = self.state
        verb = f"{len(rows)} changed" if rows else "no change seen"
        amount = (
            f"over {count(state.commits, 'commit')}, {count(state.trials, 'trial')}, "
            f"{count(state.metrics, 'metric')}"
        )
        is_blind = state.noise and not any(noise.is_known for noise in state.noise)
        if not rows and (state.aside >= state.commits or is_blind):
            verb = "nothing to report"
        lines.append(f"{verb} {amount}")
        if state.aside:
            aside = count(state.aside, "measured commit")
            lines.append(f"{aside} outside this line: `celedger drift --all` includes them")
        if unknown := words.unknown_noise(state):
            lines += wrap(f"noise {unknown}", width, 4)
        lines += [
            line for distance in state.pinned for line in wrap(pinned_text(distance), width, 4)
        ]
        offsets = offset_texts(self.state, self.environments)
        lines += [line for text in offsets for line in wrap(text, width, 4)]
        lines += words.which_package(upgrade_texts(state, self.environments))
        return "\n".join(lines)

    def json(self) -> dict[str, object]:
        rows = state_json(self.state)
        incidents = [
            {**incident.json(), "among": list(incident.first_bad)}
            for incident in self.state.incidents
        ]
        state = self.state
        return {
            **rows, "incidents": incidents,
            "commits": state.commits, "trials": state.trials, "metrics": state.metrics,
            "aside": state.aside,
        }  # fmt: skip

    def _rows(self) -> list[tuple[tuple[str, ...], int, float]]:
        """Return the cells of each metric that changed, the place of the commit, and the size of
        the change, relative and without its sign."""
        places = {commit.sha: position for position, commit in enumerate(self.commits)}
        rows = []
        for incident in self.state.incidents:
            for metric in (*incident.metrics, *incident.work):
                cells = self._incident_cells(incident, metric)
                size = abs(metric.relative or math.inf)
                rows.append((cells, places.get(incident.seen_at, -1), size))
        for change in self.state.changes:
            if change.kind == "improvement":
                size = abs(change.size / change.before) if change.before else math.inf
                rows.append((self._change_cells(change), places.get(change.seen_at, -1), size))
        return rows

    def _incident_cells(self, incident: Incident, metric: IncidentMetric) -> tuple[str, ...]:
        name = f"{metric.suite}/{metric.task} {metric.name}".rstrip()
        is_number = math.isfinite(metric.change)
        moved = f"{words.moved(metric)} worse" if is_number else words.effect(incident, metric)
        sha = incident.likeliest if incident.is_named else incident.first_bad[-1]
        commit = self.named.get(sha)
        return (
            name, short(sha), iso_date(commit.commit_time) if commit else "",
            moved, words.levels(metric) if is_number else "",
            # None of a drift's commits is the first bad one, nor of a false alarm's.
            "" if incident.kind == DRIFT or incident.state == "withdrawn"
            else probability(incident.probability),
            str(len(incident.first_bad)),
            f"{incident.id} {incident.state}",
            plain(commit.subject) if commit and incident.is_named else "",
        )  # fmt: skip

    def _change_cells(self, change: LevelChange) -> tuple[str, ...]:
        commit = self.named.get(change.seen_at)
        digits = (change.high - change.low) / 4  # two standard errors to each side
        levels = (measure(x, digits, unit=change.unit) for x in (change.before, change.after))
        moved = amount(change.size, change.before, unit=change.unit)
        return (
            f"{change.suite}/{change.task} {change.metric}", short(change.seen_at),
            iso_date(commit.commit_time) if commit else "", f"{moved} better", " → ".join(levels),
            probability(change.probability), str(len(change.among)), "",
            plain(commit.subject) if commit and len(change.among) == 1 else "",
        )  # fmt: skip

    def _ranges(self) -> list[list[str]]:
        """Return the commands that search where a change has no single commit."""
        ranges = []
        for incident in self.state.in_force:
            if incident.is_searchable:
                ends = f"between {short(incident.known_good)} and {short(incident.first_bad[-1])}"
                commits = count(len(incident.first_bad), "commit")
                ranges.append(
                    [f"{words.what(incident)}: {ends}, {commits}", f"  {incident.next()}"]
                )
        for change in self.state.changes:
            if change.kind == "improvement" and (typed := change.search().strip("`")):
                name = f"{change.suite}/{quote(change.task)} {change.metric}"
                where = f"between {short(change.known)} and {short(change.among[-1])}"
                ranges.append(
                    [f"{name}: better {where}, {count(len(change.among), 'commit')}", f"  {typed}"]
                )
        return ranges


def narrowed(
    state: State, *, suite: str | None = None, task: str | None = None, metric: str | None = None
) -> State:
    """Return a state with what concerns some metrics alone. A task that fails concerns each of its
    metrics."""

    def fits(s: str, t: str, m: str) -> bool:
        return suite in (None, s) and task in (None, t) and metric in (None, m)

    incidents = []
    for incident in state.incidents:
        metrics = tuple(
            m for m in incident.metrics
            if fits(*m.key) or (not m.name and fits(m.suite, m.task, metric or ""))
        )  # fmt: skip
        if metrics:
            work = tuple(m for m in incident.work if fits(*m.key))
            incidents.append(incident._replace(metrics=metrics, work=work))
    return state._replace(
        incidents=tuple(incidents),
        changes=tuple(c for c in state.changes if fits(c.suite, c.task, c.metric)),
        doubts=tuple(d for d in state.doubts if fits(d.suite, d.task, d.metric)),
        pinned=tuple(p for p in state.pinned if fits(p.suite, p.task, p.metric)),
        noise=tuple(n for n in state.noise if fits(n.suite, n.task, n.metric)),
    )  # fmt: skip


def within(state: State, commits: Sequence[str]) -> State:
    """Return a state with what may have happened at these commits (hashes) alone. What a bisect
    named in a merged branch was seen at the merge."""
    inside = set(commits)
    return state._replace(
        incidents=tuple(
            i for i in state.incidents if inside & {*i.first_bad, i.likeliest, i.seen_at}
        ),
        changes=tuple(c for c in state.changes if inside & set(c.among)),
        doubts=tuple(d for d in state.doubts if inside & set(d.among)),
        trials_at={sha: trials for sha, trials in state.trials_at.items() if sha in inside},
    )


def offset_texts(state: State, environments: Mapping[str, Environment]) -> list[str]:
    """Return a line for each change of environment or definition: what it moved, at a commit that
    was measured in both. The code is the same there."""
    by_change: dict[tuple[str, str, str, tuple[str, str]], list[LevelChange]] = {}
    for change in state.changes:
        if change.kind != "improvement":
            key = (change.suite, change.task, change.kind, change.environments)
            by_change.setdefault(key, []).append(change)
    lines = []
    for (suite, task, kind, (old, new)), changes in by_change.items():
        clear = [f"{c.metric} {text}" for c in changes if (text := offset(c))]
        moved = ", ".join(clear) or "nothing clear"
        cause = "the edited suite"
        if kind == "environment":
            cause = environment_text(environments.get(old), environments.get(new))
        at = short(changes[0].seen_at)
        lines.append(
            f"{suite}/{task}: {cause}: {moved}; by code since: {by_code(state, changes)} ({at})"
        )
    return lines


def environment_change(
    state: State,
    key: tuple[str, str, str],
    ends: tuple[str, str],
    environments: Mapping[str, Environment],
) -> tuple[str, LevelChange | None]:
    """Return how the environment or definition of a metric (suite, task, name) differs from the one
    before, by the fingerprints of both, and what that moved where a commit was measured in both."""
    old, new = map(environments.get, ends)
    text = "the suite was edited" if ends[0] == ends[1] else environment_text(old, new)
    kind = "definition" if ends[0] == ends[1] else "environment"
    moved = (
        change for change in state.changes
        if (change.suite, change.task, change.metric) == key
        and (change.kind, change.environments) == (kind, ends)
    )  # fmt: skip
    return text, next(moved, None)


def upgrade_texts(state: State, environments: Mapping[str, Environment]) -> list[tuple[str, str]]:
    """Return what upgrades of packages made worse, a line for a task and environment, and the
    command that finds which of the packages it was, "" where only one thing differs."""
    by_change: dict[tuple[str, str, tuple[str, str]], list[LevelChange]] = {}
    for change in state.upgrades:
        by_change.setdefault((change.suite, change.task, change.environments), []).append(change)
    texts = []
    for (suite, task, ends), changes in by_change.items():
        old, new = map(environments.get, ends)
        if old and new and old.details.get("packages") != new.details.get("packages"):
            moved = ", ".join(f"{change.metric} {offset(change)}" for change in changes)
            cause = f"the upgrade ({environment_text(old, new)})"
            search = changes[0].search() if len(environment_changes(old, new)) > 1 else ""
            texts.append((f"{suite}/{task}: {cause}: {moved}", search))
    return texts


def by_code(state: State, changes: Sequence[LevelChange]) -> str:
    """Return `nothing`, or what the commits moved that are measured next after a change of
    environment or definition: an incident's name, a metric that got better."""
    first = changes[0]
    sha, task = first.seen_at, (first.suite, first.task)
    metrics = {change.metric for change in changes}
    moved = [
        incident.id
        for incident in state.incidents
        if incident.known_good == sha
        and incident.state != "withdrawn"
        and any(m.key[:2] == task and m.name in metrics for m in incident.metrics)
    ]
    moved += [
        f"{change.metric} better"
        for change in state.changes
        if change.kind == "improvement" and change.known == sha
        and (change.suite, change.task) == task and change.metric in metrics
    ]  # fmt: skip
    return ", ".join(moved) or "nothing"


def offset(change: LevelChange) -> str:
    """Return `+3.0 %`: how far a change of environment or definition moved a metric; "" where
    that may be nothing."""
    return amount(change.size, change.before, unit=change.unit) if change.is_clear else ""


def environment_text(old: Environment | None, new: Environment | None) -> str:
    """Return `torch 2.12.0 → 2.13.0`: how an environment differs from the one before."""
    differences = environment_changes(old, new)
    named = [f"{key} {a or 'none'} → {b or 'none'}" for key, a, b in differences]
    return plain(some(named, 3)) or "another environment"


def pinned_text(distance: PinnedDistance) -> str:
    """Return how far a metric lies from its pinned commit by now."""
    sizes = (distance.change, distance.low, distance.high)
    by_now, low, high = amounts(sizes, distance.level, unit=distance.unit)
    way = "better" if distance.better else "worse"
    way = way if distance.is_clear else "within noise or the floor"
    name = f"{distance.suite}/{distance.task} {distance.metric}"
    return (
        f"{name}: by now {by_now} ({way}) from the pinned {short(distance.pinned)}, between "
        f"{low} and {high}"
    )
