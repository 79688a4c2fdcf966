"""`celedger log`: the commits that have trials, newest first, a line a task. It says what ran
and what was concluded; the numbers behind it are `celedger show`'s.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from celedger.ledger.read import Reader
from celedger.model import Commit, Metric, OutcomeKind, Verdict, VerdictKind
from celedger.views import samples
from celedger.views.export import Json, document
from celedger.views.format import clip, count, iso_date, measure, percent, plain, short
from celedger.views.samples import Batch, Sample
from celedger.views.tables import Column, table

_COLUMNS = (Column(), Column(), Column(), Column(shrink=True), Column(shrink=True))


@dataclass(frozen=True, slots=True)
class TaskLine:
    batch: Batch
    main: Sample | None
    verdicts: tuple[Verdict, ...]  # bad ones first
    since: str = ""  # what else changed since the commit shown below it

    @property
    def status(self) -> str:
        """`ok` when every trial was; else the outcome most in need of a look, and how many."""
        return status(self.batch.outcomes())


@dataclass(frozen=True, slots=True)
class Entry:
    commit: Commit
    tasks: tuple[TaskLine, ...]


def log_text(
    ledger: Reader,
    commits: Sequence[Commit] | None = None,
    *,
    limit: int | None = 20,
    suite: str | None = None,
    task: str | None = None,
    width: int = 100,
) -> str:
    """The text of `celedger log`. `commits` oldest first (default: all with trials); those
    without trials are passed over. Raises CeledgerError when nothing is left to show."""
    found = entries(ledger, commits, limit=limit, suite=suite, task=task)
    rows = [_cells(line) for entry in found for line in entry.tasks]
    # All tasks in one table, then dealt out: columns line up from commit to commit.
    lines = iter(table(_COLUMNS, rows, width=width, indent=2).splitlines())
    text = []
    for entry in found:
        commit = entry.commit
        head = f"{short(commit.sha)}  {iso_date(commit.commit_time)}  {plain(commit.subject)}"
        text += [clip(head, width), *(next(lines) for _ in entry.tasks)]
    return "\n".join(text)


def log_json(
    ledger: Reader,
    commits: Sequence[Commit] | None = None,
    *,
    limit: int | None = 20,
    suite: str | None = None,
    task: str | None = None,
) -> dict[str, Json]:
    """The same as a document, newest first."""
    found = entries(ledger, commits, limit=limit, suite=suite, task=task)
    return document(commits=[_entry_json(entry) for entry in found])


def entries(
    ledger: Reader,
    commits: Sequence[Commit] | None = None,
    *,
    limit: int | None = 20,
    suite: str | None = None,
    task: str | None = None,
) -> list[Entry]:
    measured = set(ledger.commits_with_trials())
    if commits is None:
        commits = samples.measured_commits(ledger)
    chosen: list[Entry] = []
    for commit in reversed([c for c in commits if c.sha in measured]):
        if limit is not None and len(chosen) >= limit:
            break
        made = samples.batches(ledger.trials(commit=commit.sha, suite=suite, task=task))
        if not made:
            continue
        verdicts = ledger.verdicts(commit=commit.sha)
        lines = (_task_line(ledger, b, verdicts) for b in samples.latest(made).values())
        chosen.append(Entry(commit, tuple(lines)))
    if not chosen:
        raise samples.nothing_yet() if not measured else samples.none_here()
    return _with_changes(chosen)


def _with_changes(chosen: Sequence[Entry]) -> list[Entry]:
    """Numbers on either side of a new suite or environment must not be read as a trend."""
    older: dict[tuple[str, str], Batch] = {}
    marked = []
    for entry in reversed(chosen):
        lines = []
        for line in entry.tasks:
            key = (line.batch.suite, line.batch.task)
            last = older.get(key, line.batch)
            since = "suite changed" if last.recipe != line.batch.recipe else ""
            if last.environment != line.batch.environment:
                since = f"{since}, environment changed".strip(", ")
            lines.append(replace(line, since=since))
            older[key] = line.batch
        marked.append(Entry(entry.commit, tuple(lines)))
    return marked[::-1]


def _task_line(ledger: Reader, batch: Batch, verdicts: Sequence[Verdict]) -> TaskLine:
    metric: Metric | None = samples.main_metric(batch.metrics(ledger))
    own = [v for v in verdicts if (v.suite, v.task) == (batch.suite, batch.task)]
    return TaskLine(
        batch,
        batch.sample(metric) if metric else None,
        tuple(samples.worst_first(own)),
    )


def status(outcomes: Counter[str]) -> str:
    """`ok`, `failed`, `1 of 3 failed`, `2 of 5 running`."""
    total = outcomes.total()
    others = {k: n for k, n in outcomes.items() if k != OutcomeKind.OK}
    if not others:
        return "ok"
    # A crash matters more than a trial that is still running or was stopped by a person.
    calm = ("running", "early-stopped", OutcomeKind.INTERRUPTED.value, OutcomeKind.KILLED.value)
    kind = min(others, key=lambda k: (k in calm, -others[k], k))
    return kind if others[kind] == total else f"{others[kind]} of {total} {kind}"


def concluded(verdicts: Sequence[Verdict]) -> str:
    """One phrase of a task's verdicts, given worst first: `val_loss regressed +8.1 % (+1 more)`,
    `same`, `2 same, 1 too-noisy`; empty when nothing was judged."""
    if not verdicts:
        return ""
    telling = [v for v in verdicts if v.kind.bad or v.kind is VerdictKind.IMPROVED]
    if not telling:
        kinds = Counter(v.kind.value for v in verdicts)
        if len(kinds) == 1:
            return verdicts[0].kind.value
        return ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
    first = telling[0]
    phrase = f"{first.metric} {first.kind.value}".strip()
    if math.isfinite(first.effect) and first.level:
        phrase += f" {percent(first.effect / abs(first.level))}"
    alike = sum(v.kind is first.kind for v in telling[1:])
    return f"{phrase} (+{alike} more)" if alike else phrase


def _cells(line: TaskLine) -> tuple[str, ...]:
    batch, main = line.batch, line.main
    shown = ""
    if main is not None and main.n:
        value = measure(main.mean, main.sd, unit=main.metric.unit, spread=True)
        shown = f"{main.metric.name} {value}"
    elif failures := batch.failures():
        shown = plain(failures[-1].outcome.message) if failures[-1].outcome else ""
    trials = count(len(batch.records), "trial")
    if reused := sum(bool(r.derived) for r in batch.records):
        trials += " re-used" if reused == len(batch.records) else f", {reused} re-used"
    said = [part for part in (concluded(line.verdicts), line.since) if part]
    return (batch.title, line.status, trials, shown, "; ".join(said))


def _entry_json(entry: Entry) -> dict[str, object]:
    commit = entry.commit
    return {
        "commit": commit.sha,
        "author": commit.author,
        "commit_time": commit.commit_time,
        "subject": commit.subject,
        "tasks": [
            {
                "suite": line.batch.suite,
                "task": line.batch.task,
                "recipe": line.batch.recipe,
                "environment": line.batch.environment,
                "status": line.status,
                "since": line.since,
                "outcomes": line.batch.outcomes(),
                "trials": [r.trial.ulid for r in line.batch.records],
                "main": sample_json(line.main) if line.main else None,
                "verdicts": [verdict_json(v) for v in line.verdicts],
            }
            for line in entry.tasks
        ],
    }


def sample_json(sample: Sample) -> dict[str, object]:
    """Values in the metric's own unit."""
    metric = sample.metric
    return {
        "metric": metric.name,
        "unit": metric.unit,
        "direction": metric.direction,
        "n": sample.n,
        "mean": sample.mean,
        "sd": sample.sd,
        "values": sample.values,
        "left_out": sample.left_out,
    }


def verdict_json(verdict: Verdict) -> dict[str, object]:
    return {
        "metric": verdict.metric,
        "kind": verdict.kind,
        "level": verdict.level,
        "value": verdict.value,
        "effect": verdict.effect,
        "low": verdict.low,
        "high": verdict.high,
        "p_value": verdict.p_value,
        "trials": verdict.trials,
        "baseline": verdict.baseline,
        "rule": verdict.rule,
        "note": verdict.note,
    }
