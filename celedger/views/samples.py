"""The ledger's trials arranged for reading: which belong together, which values count, which
metric stands for a task. Only trials of one recipe in one environment are ever averaged. It
reads the ledger and knows nothing of columns or pictures.
"""

from __future__ import annotations

import difflib
import heapq
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from celedger.errors import CeledgerError, UsageError, command
from celedger.ledger.read import Reader
from celedger.model import (
    Commit,
    Direction,
    Kind,
    Mark,
    Metric,
    OutcomeKind,
    SummaryRow,
    TrialRecord,
    Verdict,
)
from celedger.views.format import short

BESIDE = "beside"  # details of an environment that do not make it another one
_HINDERED = frozenset({Mark.DISTURBED, Mark.THROTTLED})


@dataclass(frozen=True, slots=True)
class Sample:
    """Values of one metric from comparable trials, in its own unit. `left_out` trials ran well
    but were disturbed or throttled, so that their speed says nothing about the code."""

    metric: Metric
    values: tuple[float, ...]
    left_out: int = 0

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        """NaN without values, and where a value is not finite: that never averages away."""
        return sum(self.values) / self.n if self.values else math.nan

    @property
    def sd(self) -> float:
        """Of single trials; NaN with fewer than two, or where a value is not finite."""
        if self.n < 2 or not all(map(math.isfinite, self.values)):
            return math.nan
        return statistics.stdev(self.values)


@dataclass(frozen=True, slots=True)
class Batch:
    """The trials of one task at one commit with one recipe in one environment, oldest first."""

    suite: str
    task: str
    recipe: str
    environment: str
    records: tuple[TrialRecord, ...]

    @property
    def title(self) -> str:
        return f"{self.suite}/{self.task}"

    @property
    def newest(self) -> float:
        return self.records[-1].trial.started

    def outcomes(self) -> Counter[str]:
        """How many trials ended how; `running` are those without an outcome, `early-stopped`
        those that a bisect ended once they had told enough."""
        return Counter(_ended(r) for r in self.records)

    def failures(self) -> list[TrialRecord]:
        return [r for r in self.records if r.outcome and r.outcome.kind is not OutcomeKind.OK]

    def metrics(self, ledger: Reader) -> list[Metric]:
        """Those that a trial of the batch reported, as declared: judged ones first."""
        seen = {name for r in self.records for name in r.summaries}
        return in_order(m for m in ledger.metrics(self.recipe) if m.name in seen)

    def sample(self, metric: Metric) -> Sample:
        """The values of those that ran well and were summarised as the metric is today."""
        ran = [
            r
            for r in self.records
            if r.ok and not r.early_stopped and r.rules.get(metric.name) == metric.summary
        ]
        # A derived one is no repeat. It stands for its commit where nothing else does.
        ran = [r for r in ran if not r.derived] or ran
        kept = [r for r in ran if r.outcome and not hindered(metric, r.outcome.marks)]
        values = tuple(r.summaries[metric.name] for r in kept)
        return Sample(metric, values, len(ran) - len(kept))


def _ended(record: TrialRecord) -> str:
    if record.outcome is None:
        return "running"
    return (Mark.EARLY_STOPPED if record.early_stopped else record.outcome.kind).value


def batches(records: Iterable[TrialRecord]) -> list[Batch]:
    """Comparable trials together; the batch that ran last comes first, tasks in their order."""
    groups: dict[tuple[str, str, str, str], list[TrialRecord]] = defaultdict(list)
    for record in records:
        trial = record.trial
        groups[record.suite, record.task, trial.recipe, trial.environment].append(record)
    made = [
        Batch(*key, tuple(sorted(group, key=lambda r: (r.trial.started, r.trial.ulid))))
        for key, group in groups.items()
    ]
    return sorted(made, key=lambda b: (b.suite, b.task, -b.newest))


def latest(made: Sequence[Batch]) -> dict[tuple[str, str], Batch]:
    """Of each (suite, task) the batch that ran last: what a commit's one line speaks of."""
    first: dict[tuple[str, str], Batch] = {}
    for batch in made:
        first.setdefault((batch.suite, batch.task), batch)
    return first


def hindered(metric: Metric, marks: Iterable[Mark]) -> bool:
    """Whether the trial's marks forbid reading this metric."""
    return metric.kind is Kind.SPEED and not _HINDERED.isdisjoint(marks)


def comparable(row: SummaryRow, metric: Metric) -> bool:
    """Whether the value came of a trial that ran well, by the rule that holds today."""
    whole = row.outcome is OutcomeKind.OK and Mark.EARLY_STOPPED not in row.marks
    return whole and row.summary == metric.summary


def in_order(metrics: Iterable[Metric]) -> list[Metric]:
    """Judged before informative, quality before speed before memory, otherwise as given."""
    kinds = list(Kind)
    return sorted(metrics, key=lambda m: (m.direction is Direction.INFO, kinds.index(m.kind)))


def main_metric(metrics: Iterable[Metric]) -> Metric | None:
    """The one that stands for its task where there is room for one only."""
    return next(iter(in_order(metrics)), None)


def worst_first(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Tasks that failed, other bad ones, improvements, the rest; stable."""
    return sorted(verdicts, key=lambda v: (v.metric != "", not v.kind.bad, v.kind != "improved"))


def history_order(commits: Iterable[Commit]) -> list[Commit]:
    """Oldest first; a parent before its children whatever the clocks said."""
    known = {c.sha: c for c in commits}
    by_time = sorted(known.values(), key=lambda c: (c.commit_time, c.author_time, c.sha))
    place = {c.sha: i for i, c in enumerate(by_time)}
    if all(place.get(p, -1) < place[c.sha] for c in by_time for p in c.parents):
        return by_time
    waiting = {sha: {p for p in c.parents if p in known} for sha, c in known.items()}
    children: Mapping[str, list[str]] = defaultdict(list)
    for sha, parents in waiting.items():
        for parent in parents:
            children[parent].append(sha)
    ready = [(known[s].commit_time, known[s].author_time, s) for s, p in waiting.items() if not p]
    heapq.heapify(ready)
    order = []
    while ready:
        *_, sha = heapq.heappop(ready)
        order.append(known[sha])
        for child in children[sha]:
            waiting[child].discard(sha)
            if not waiting[child]:
                commit = known[child]
                heapq.heappush(ready, (commit.commit_time, commit.author_time, child))
    return order


def measured(ledger: Reader, sha: str) -> tuple[Commit, list[Batch]]:
    """The commit of this full hash and its trials. Raises CeledgerError when it has none."""
    commit = ledger.commit(sha)
    made = batches(ledger.trials(commit=sha))
    if commit is None or not made:
        raise CeledgerError(
            f"no trial of {short(sha)} is in the ledger", f"type {run_command(ledger, sha[:12])}"
        )
    return commit, made


def places(ledger: Reader) -> dict[str, int]:
    """Each recorded commit's place in history."""
    return {c.sha: i for i, c in enumerate(history_order(ledger.commits()))}


def measured_commits(ledger: Reader) -> list[Commit]:
    """The commits that have trials, in history order. Raises CeledgerError when none has."""
    wanted = set(ledger.commits_with_trials())
    found = [c for c in history_order(ledger.commits()) if c.sha in wanted]
    if not found:
        raise nothing_yet()
    return found


def run_command(ledger: Reader, revision: str) -> str:
    """Return the command that measures a revision with the suite that ran here last."""
    tasks = ledger.tasks()
    return command("run", revision, suite=tasks[-1].suite if tasks else None)


def nothing_yet() -> CeledgerError:
    return CeledgerError("the ledger holds no trials yet", "type `celedger run`")


def find_task(ledger: Reader, name: str, suite: str | None = None) -> tuple[str, str]:
    """(suite, task) of `task` or `suite/task`. Raises UsageError for one that is not there or
    that two suites have, CeledgerError where the ledger is empty."""
    known = sorted({(t.suite, t.name) for t in ledger.tasks()})
    if not known:
        raise nothing_yet()
    found = [(s, t) for s, t in known if name in (t, f"{s}/{t}") and (suite is None or s == suite)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"task {name!r} is in {len(found)} suites", f"say {found[0][0]}/{found[0][1]}"
        )
    raise UsageError(
        f"the ledger has no task {name!r}", _suggest(name, [f"{s}/{t}" for s, t in known])
    )


def find_metric(ledger: Reader, recipe: str, name: str | None) -> Metric:
    """The metric of this name, or the task's main one. Raises UsageError for an unknown name."""
    known = in_order(ledger.metrics(recipe))
    found = known[0] if name is None and known else next((m for m in known if m.name == name), None)
    if found is None:
        raise UsageError(
            f"this task has no metric {name!r}", _suggest(name or "", [m.name for m in known])
        )
    return found


def _suggest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, 1, 0.5)
    if close:
        return f"did you mean {close[0]}?"
    return f"known: {', '.join(known[:12])}" + (", …" if len(known) > 12 else "")


def flat(details: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Nested details as `a.b` keys with one line of text each."""
    lines: dict[str, str] = {}
    for key, value in details.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            lines |= flat(value, f"{name}.")
        elif isinstance(value, list | tuple):
            lines[name] = ", ".join(map(str, value))
        elif value is not None:
            lines[name] = str(value)
    return lines


def changed(
    old: Mapping[str, object], new: Mapping[str, object]
) -> list[tuple[str, str | None, str | None]]:
    """(key, old, new) of the details that differ and that the fingerprint holds; packages by
    their names alone, and where it is known which the trials imported only these; None where a
    side lacks the key."""
    beside = [x.get(BESIDE) for x in (old, new)]
    lists = [b["imported"] for b in beside if isinstance(b, Mapping) and "imported" in b]
    imported = {f"packages.{name}" for names in lists for name in names}

    def counts(key: str) -> bool:
        return not imported or not key.startswith("packages.") or key in imported

    a, b = ({k: v for k, v in flat(x).items() if not k.startswith(BESIDE)} for x in (old, new))
    return [
        (key.removeprefix("packages."), a.get(key), b.get(key))
        for key in sorted(a.keys() | b.keys())
        if a.get(key) != b.get(key) and counts(key)
    ]


def none_here() -> CeledgerError:
    return CeledgerError(
        "none of these commits has a trial that fits", "`celedger log` lists what is there"
    )
