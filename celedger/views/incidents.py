"""Words for the rows of the state: what an incident moved, by how much, since which commit, and
what to type. Every view that prints an incident takes them from here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from celedger.base.errors import TYPED, command
from celedger.base.model import FEWEST_REPEATS, IMPORTED, BisectRecord, Commit, FindingRecord, Task
from celedger.base.text import some
from celedger.judge.incident import (
    PER_STEP,
    Incident,
    IncidentMetric,
    MetricNoise,
    MetricStanding,
    Standing,
    State,
    explained,
    explanation,
)
from celedger.ledger.read import Reader
from celedger.views.document import (
    amount,
    amounts,
    count,
    measure,
    pick,
    plain,
    probability,
    short,
)

KINDS = {
    "crash": "fails",
    "timeout": "runs into its time-out",
    "missing": "does not report",
    "not-finite": "is not finite",
    "drift": "drifts",
}
OLDER = "`celedger run REV` trains an older commit, to compare with"
_TOUCHES = 1  # closeness of a hunk: it changes the line or the function of the place
_HUNK_LINES = 6
_LIKELY = 0.1
"""Probability of a rise that is not settled, from which a search is proposed. `check` asked for no
trial of one of .27, since another step was newer: it was undecided for ever."""
_NAMED = 4  # tasks of which one thing is said
_LISTED = 6  # metrics that are named one by one
FINEST = 1e-3
"""Share of a level below which no digit is shown."""


def what(incident: Incident) -> str:
    """Return `mlp val_loss; also train_loss; also task cnn`."""
    return "; ".join([incident.title(), *also(incident)])


def also(incident: Incident) -> list[str]:
    """Return `also train_loss` and `also tasks cnn, rnn`: what moved beside the first metric."""
    main = incident.main
    moved = (*incident.metrics, *incident.work)
    names = dict.fromkeys(m.name for m in moved if m.task == main.task)
    metrics = [name for name in names if name not in ("", main.name)]
    tasks = [name for name in dict.fromkeys(m.task for m in incident.metrics) if name != main.task]
    plural = "s" * (len(tasks) > 1)
    return [
        *([f"also {', '.join(metrics)}"] if metrics else []),
        *([f"also task{plural} {', '.join(tasks)}"] if tasks else []),
    ]


def by_how_much(incident: Incident) -> str:
    """Return `+29.8 %`, `+0.02`, `+29.8 % (+4.1 % left)`, or what a failing task does."""
    return _failure(incident, incident.main) or size_and_rest(incident.main)


def size_and_rest(metric: IncidentMetric) -> str:
    """Return `+29.8 %`, or `+29.8 % (+4.1 % left)` of what is partly mended."""
    text = _amount(metric)
    if metric.left is None or not text:
        return text
    left = amount(metric.left, metric.before, unit=metric.unit)
    return f"{text} ({left if metric.left * metric.change > 0 else 'perhaps none'} left)"


def _failure(incident: Incident, metric: IncidentMetric) -> str:
    """Return what a task or a metric does that fails; "" for a metric that moved."""
    if math.isfinite(metric.change) or not incident.is_failure:
        return ""
    return KINDS["not-finite" if metric.name else incident.kind]


def _amount(metric: IncidentMetric) -> str:
    return levels(metric) if metric.unit == PER_STEP else moved(metric)


def moved(metric: IncidentMetric) -> str:
    """Return the change of a metric: relative where the level before is not zero."""
    if not math.isfinite(metric.change):
        return ""
    return amount(metric.change, metric.before, unit=metric.unit)


def effect(incident: Incident, metric: IncidentMetric) -> str:
    """Return `worse +8.1 %`, or what a metric or a task does that fails."""
    if metric.unit == PER_STEP:
        return levels(metric)
    return _failure(incident, metric) or f"worse {moved(metric)}".rstrip()


def interval(metric: IncidentMetric) -> str:
    """Return `+28.1 % … +31.5 %`: the 95 % interval of the change."""
    if not metric.before or not math.isfinite(metric.low) or metric.unit == PER_STEP:
        return ""
    low, high = amounts((metric.low, metric.high), metric.before, unit=metric.unit)
    return f"{low} … {high}" if low != high else ""


def levels(metric: IncidentMetric) -> str:
    """Return `0.3798 → 0.6230 nats`."""
    if metric.unit == PER_STEP:
        return f"{metric.before:,.0f} → {metric.after:,.0f} {PER_STEP}"
    # Two standard errors to each side; of a metric that repeats exactly, four digits.
    size = max(abs(metric.before), abs(metric.after))
    digits = max((metric.high - metric.low) / 4, FINEST * size)
    return " → ".join(measure(x, digits, unit=metric.unit) for x in (metric.before, metric.after))


def since(incident: Incident, commits: Mapping[str, Commit]) -> str:
    """Return `77ab01e4 subject` for a commit that is known, else the range: `1 of 6 commits up to
    77ab01e4`."""
    if incident.is_named:
        commit = commits.get(incident.likeliest)
        subject = f" {plain(commit.subject)}" if commit else ""
        sure = f" ({probability(incident.probability)})" if incident.bisect else ""
        return f"{short(incident.likeliest)}{subject}{sure}"
    if incident.kind == "drift":
        return f"{short(incident.first_bad[0])} … {short(incident.first_bad[-1])}, slowly"
    return f"one of {len(incident.first_bad)} commits up to {short(incident.first_bad[-1])}"


def whose(incident: Incident, commits: Mapping[str, Commit]) -> str:
    """Return the author of the first bad commit, where it is one."""
    if not incident.is_named:
        return ""
    commit = commits.get(incident.likeliest)
    return plain(commit.author) if commit else ""


def mended_by(incident: Incident, name: Callable[[str], str]) -> str:
    """Return what mended it, by its name: `3f2a9c1d`, or `one of 3 commits up to 3f2a9c1d`."""
    if len(incident.mended_by) > 1:
        return f"one of {len(incident.mended_by)} commits up to {name(incident.mended_by[-1])}"
    return name(incident.closed_at)


def state(incident: Incident) -> str:
    """Return `open`, `recovered by 3f2a9c1d`, or why it is over, or was until newer trials."""
    if incident.state == "withdrawn" and not incident.why:
        return "withdrawn: was a false alarm"
    open_again = "open again" if incident.why else "open"
    text = {"partly": "partly recovered", "open": open_again}.get(incident.state, incident.state)
    if incident.state in ("recovered", "partly") and incident.closed_at:
        text += f" by {mended_by(incident, short)}"
    if not incident.is_measured and incident.in_force:
        text += ", no longer measured"
    if not incident.why:
        return text
    why = plain(incident.why)
    return why if why.startswith(text) else f"{text} ({why})"


def cause(incident: Incident, findings: Sequence[FindingRecord]) -> list[str]:
    """Return what a diagnosis says of the named commit: a sentence, then where its first hunk is
    and the lines of it; nothing where no finding of that commit names a difference."""
    finding = explanation(incident, findings)
    if finding is None:
        return []
    return [plain(finding.headline), *_hunk(explained(finding.document))]


def reason(incident: Incident, cause: Sequence[str]) -> str:
    """Return why the newest trial failed, "" where none does still or the cause says it already."""
    message = plain(incident.message) if incident.is_failing else ""
    return "" if any(message in line for line in cause) else message


def _hunk(explained: Mapping[str, Any]) -> list[str]:
    """Return the place and lines of the first hunk, if the change touches the place."""
    first = next(iter(_list(explained.get("hunks"))), None)
    if first is None or first.get("closeness", 9) > _TOUCHES:
        return []
    lines = [plain(str(line)) for line in _list(first.get("lines"))]
    more = ["…"] * (len(lines) > _HUNK_LINES)
    place = f"{first.get('new') or first.get('old')}:{first.get('new_start')}"
    return [plain(place), *lines[:_HUNK_LINES], *more]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def headline(incident: Incident) -> str:
    """Return `mlp val_loss is worse: +29.8 %`, or `mlp fails`."""
    amount = by_how_much(incident)
    if _failure(incident, incident.main):
        return f"{incident.title()} {amount}"
    return f"{incident.title()} is worse: {amount}" if amount else f"{incident.title()} is worse"


def sentence(incident: Incident, commits: Mapping[str, Commit]) -> str:
    """Return one line on an incident: what is worse, by how much, since which commit."""
    return "; ".join([f"{headline(incident)} since {since(incident, commits)}", *also(incident)])


def check_before(incident: Incident) -> str:
    """Return the command that tells what got worse before a named commit that fails, "" for other
    incidents: a training that fails hides the rest."""
    if not (incident.is_failing and incident.is_named and incident.parent):
        return ""
    return command("check", incident.parent[:TYPED], suite=incident.main.suite)


def next_search(state: State, tasks: Sequence[Task], ledger: Reader) -> str:
    """Return the command that names one more commit, and what for; "" where none is left to be
    found: the worst first, what a suite declares before telemetry, which decides nothing, and last
    what was searched in vain."""
    bisects = ledger.bisects()
    is_old = {i.id: i.was_searched(bisects) for i in state.in_force if i.is_searchable}
    searchable = sorted(
        (i for i in state.in_force if i.is_searchable),
        key=lambda i: (is_old[i.id], not i.declared),
    )
    finds = [f"{command('bisect', i.id)} finds the commit" for i in searchable]
    if finds and searchable[0].declared and not is_old[searchable[0].id]:
        return finds[0]
    for incident in state.in_force:
        before = check_before(incident)
        if before and not _is_trained(incident.parent, incident, tasks, ledger, state.noise):
            return f"{before} tells what got worse before it fails"
    return next(iter([*searches(state, bisects), *finds]), "")


def _is_trained(
    commit: str,
    incident: Incident,
    tasks: Sequence[Task],
    ledger: Reader,
    noise: Sequence[MetricNoise],
) -> bool:
    """Return True if a commit has all seeds of the incident's task, and repeats that tell its
    noise where nothing else does; or the suite has no such task."""
    main = incident.main
    trials = ledger.trials(commit=commit, suite=main.suite, task=main.task)
    seeds = {record.trial.seed for record in trials}
    if len(trials) <= FEWEST_REPEATS and any(
        n.declared and not n.is_known and (n.suite, n.task) == main.key[:2] for n in noise
    ):
        return False
    return all(seeds.issuperset(t.seeds) for t in tasks if (t.suite, t.name) == main.key[:2])


def searches(state: State, bisects: Iterable[BisectRecord]) -> list[str]:
    """Return what settles whether a declared metric got worse that seems so, the likeliest first:
    a line each, with the command. Not what a search answered already."""
    answered = {(b.key, b.bad) for b in bisects}
    named = {(b.key, b.culprits[0]) for b in bisects if b.status == "found"}
    searched = {key for key, _ in named}
    worse = {(s.suite, s.task, s.metric) for s in state.standings if s.standing is Standing.WORSE}
    by_metric: dict[tuple[str, str, str], tuple[str, str]] = {}
    for doubt in sorted(state.doubts, key=lambda d: -d.probability):
        key = doubt.suite, doubt.task, doubt.metric
        is_known = any(
            (i.is_named and i.likeliest == doubt.seen_at)
            or i.explains(key, doubt.kind, doubt.among)
            for i in state.in_force
        )  # fmt: skip
        is_known |= any((key, sha) in named for sha in doubt.among)
        if doubt.declared and doubt.known and doubt.probability >= _LIKELY and not is_known:
            by_metric.setdefault(key, (doubt.search(), doubt.among[-1]))
    for s in state.standings:
        key = s.suite, s.task, s.metric
        if s.declared and s.searched and key not in worse & searched:
            good, bad = s.searched
            ends = f"{good[:TYPED]}..{bad[:TYPED]}"
            typed = command("bisect", ends, suite=s.suite, task=s.task, metric=s.metric)
            by_metric.setdefault(key, (typed, bad))
    return [
        typed
        + (f" tells which commit made {key[2]} worse" if key in worse
           else f" settles whether {key[2]} got worse")
        for key, (typed, bad) in by_metric.items() if (key, bad) not in answered
    ]  # fmt: skip


def metric_names(standings: Sequence[MetricStanding]) -> str:
    """Return `mlp val_loss, mlp rmse and 3 more`."""
    return some([f"{s.task} {s.metric}" for s in standings], _NAMED)


def which_package(upgrades: Sequence[tuple[str, str]]) -> list[str]:
    """Return the commands of upgrades, where there is one, each with what it is for."""
    return [f"{typed}: which package of the upgrade it is" for _, typed in upgrades if typed]


def summary(state: State, commits: Mapping[str, Commit]) -> str:
    """Return in one line what is worse of what the suites declare, and what the tip mended."""
    return "; ".join([_worse(state, commits), *_mended_at_tip(state)])


def _mended_at_tip(known: State) -> list[str]:
    return [
        f"{i.id} {state(i)}"
        for i in known.incidents if i.state == "recovered" and i.mend_seen_at == known.tip
    ]  # fmt: skip


def _worse(state: State, commits: Mapping[str, Commit]) -> str:
    declared = [incident for incident in state.in_force if incident.declared]
    if not declared:
        doubts = [s for s in state.standings if s.declared and s.standing is Standing.UNDECIDED]
        if doubts:
            return f"suspected, not settled: {metric_names(doubts)}"
        telemetry = [f"{i.title()} {by_how_much(i)}" for i in state.in_force]
        if telemetry:
            return f"nothing declared is worse; telemetry: {some(telemetry, 1)}"
        return "nothing is worse"

    age = {sha: -place for place, sha in enumerate(state.trials_at)}
    # An old one was told before. A tip that fails has no trial in that table.
    first, *others = sorted(declared, key=lambda i: (i.seen_at != state.tip, age.get(i.seen_at, 1)))
    why = reason(first, ())
    message = f": {why}" if why else ""
    more = f"; {len(others)} more open" if others else ""
    return f"{sentence(first, commits)}{message}{more}"


def of_tasks(pairs: Sequence[tuple[str, str]]) -> str:
    """Return (task, metric) pairs as `fit loss, step_time; mlp loss`, many as numbers."""
    names: dict[str, list[str]] = {}
    for task, metric in pairs:
        names.setdefault(task, []).append(metric)
    if len(pairs) > _LISTED:
        return f"{count(len(pairs), 'metric')} of {count(len(names), 'task')}"
    return "; ".join(f"{task} {', '.join(own)}" for task, own in names.items())


def unknown_noise(state: State) -> str:
    """Return the declared metrics whose noise is unknown, and what tells it; "" without any."""
    unknown = [noise for noise in state.noise if noise.declared and not noise.is_known]
    text = of_tasks([(noise.task, noise.metric) for noise in unknown])
    by = "`celedger noise` measures it"
    if all(noise.suite == IMPORTED for noise in unknown):
        by = "more imported runs of one commit tell it"
    return f"unknown: {text} ({by})" if text else ""


def _shows(state: State, incident: Incident, sha: str) -> bool:
    """Return True if an incident shows at a commit. The tip has what fails there still."""
    fails_still = sha == state.tip and incident.is_failing and incident.state == "open"
    return sha == incident.shown_at or fails_still


def tells_of(state: State, sha: str) -> bool:
    """Return True if an incident shows at a commit, or is mended there."""
    return any(
        _shows(state, i, sha) or sha in (i.mend_seen_at, *i.partly_at) for i in state.incidents
    )


def at_commit(
    state: State, sha: str, suite: str, task: str, metric: str | None = None
) -> list[str]:
    """Return what the state says of a commit and a task, or one metric of it ("" for a failure):
    `val_loss worse +8.1 % (5e0c91aa)`, `mends 5e0c91aa`."""
    phrases = []
    for incident in state.incidents:
        is_shown = _shows(state, incident, sha)
        is_last = sha == incident.mend_seen_at
        is_mend = is_last or sha in incident.partly_at
        if incident.state == "withdrawn" or not (is_shown or is_mend):
            continue
        metrics = [
            m for m in (*incident.metrics, *incident.work)
            if (m.suite, m.task) == (suite, task) and metric in (None, m.name)
        ]  # fmt: skip
        if not metrics:
            continue
        if is_shown:
            phrases.append(_caused(incident, metrics, named=metric is None))
        if is_mend:
            verb = "partly mends" if incident.state == "partly" or not is_last else "mends"
            is_another = is_last and (sha,) != incident.mended_by
            by = f" (by {mended_by(incident, short)})" if is_another else ""
            phrases.append(f"{verb} {incident.id}{by}")
    for change in state.changes:
        if (change.suite, change.task, change.seen_at) != (suite, task, sha):
            continue
        if change.kind == "improvement" and metric in (None, change.metric):
            name = f"{change.metric} " if metric is None else ""
            moved_by = amount(change.size, change.before, unit=change.unit)
            phrases.append(f"{name}better {moved_by}")
    return phrases


def bits(state: State, sha: str, suite: str, task: str) -> list[str]:
    """Return `bits: new` where the first steps at a commit compute something else than at the
    commit before it that was measured or is the first signed one, `bits: new at 1a2b3c4d` where
    one between does, `bits: =` where none; nothing of a commit that nobody signed."""
    between: list[str] = []  # signed alone: a view of what was measured has no line of them
    for signed in state.signed:
        if (signed.suite, signed.task) != (suite, task):
            continue
        if signed.commit == sha:
            if signed.is_new is None:
                return ["bits: signed"]
            at = f" at {between[-1]}" if between and not signed.is_new else ""
            return [f"bits: new{at}" if signed.is_new or between else "bits: ="]
        if signed.commit in state.trials_at:
            between = []
        elif signed.is_new:
            between.append(short(signed.commit))
    return []


def first_bad(bisect: BisectRecord) -> str:
    """Return `first bad commit of mlp val_loss (99 %)`: what a bisect named its commit for."""
    subject = f"{bisect.task} {bisect.metric or 'crash'}"
    return f"first {bisect.direction} commit of {subject} ({probability(bisect.probability)})"


def first_bad_json(bisect: BisectRecord) -> dict[str, object]:
    return {
        "bisect": bisect.ulid,
        **pick(bisect, "suite task metric direction probability"),
    }


def _caused(incident: Incident, metrics: Sequence[IncidentMetric], *, named: bool) -> str:
    first = next((m for m in metrics if not m.name), metrics[0])  # the task as a whole fails
    text = effect(incident, first)
    if named and first.name:
        text = f"{first.name} {text}"
    more = len(metrics) - 1
    text += f" (+{more} more)" if more else ""
    where = "" if incident.is_named else f", one of {len(incident.first_bad)} commits"
    return f"{text} ({incident.id}{where})"
