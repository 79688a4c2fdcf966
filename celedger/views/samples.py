"""Arrange the ledger's trials for reading: which belong together, which values count, which metric
is a task's main one. Only trials of one definition in one environment are ever averaged. It reads
the ledger and must not know columns or pictures.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import NamedTuple

from celedger.base.errors import CeledgerError, UsageError, command
from celedger.base.model import (
    Commit,
    Direction,
    Environment,
    Kind,
    Mark,
    Metric,
    OutcomeKind,
    TrialRecord,
)
from celedger.ledger.read import Reader
from celedger.views.document import NONE, change, measure, percent, pick, short

BESIDE = "beside"  # details that do not make an environment another one
_CALM = ("running", "early-stopped", "interrupted", "killed")  # less urgent than a crash

Difference = tuple[str, str | None, str | None]  # (detail, old, new): None for a missing one


class Sample(NamedTuple):
    """Values of one metric from comparable trials, in its own unit. `left_out` trials ran well but
    were disturbed or throttled, so that their speed is no evidence about the code."""

    metric: Metric
    values: tuple[float, ...]
    left_out: int = 0

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        """Return the mean; NaN without values, and if a value is not finite."""
        return sum(self.values) / self.n if self.values else math.nan

    @property
    def sd(self) -> float:
        """Return the standard deviation of one trial; NaN with fewer than two, or if a value is not
        finite."""
        if self.n < 2 or not all(map(math.isfinite, self.values)):
            return math.nan
        first = self.values[0]  # the mean of equal values is exactly that
        mean = first + math.fsum(value - first for value in self.values) / self.n
        return math.dist(self.values, [mean] * self.n) / math.sqrt(self.n - 1)

    def text(self) -> str:
        """Return `0.4132 ± 0.0021`."""
        if not self.n:
            return NONE
        return measure(self.mean, self.sd, unit=self.metric.unit, spread=True)

    def smallest_text(self, smallest: float) -> str:
        """Describe the smallest detectable change: with 0 every one is, infinity is unknown."""
        if math.isnan(smallest):
            return ""
        if smallest == 0.0:
            return "any change"
        if math.isinf(smallest):
            return "unknown"
        unit = self.metric.unit
        text = change(smallest, unit=unit, scale_of=self.mean, signed=False, significant=2)
        if math.isfinite(self.mean) and self.mean:
            text += f" ({percent(smallest / abs(self.mean))})"
        return text

    def json(self) -> dict[str, object]:
        metric = {"metric": self.metric.name, **pick(self.metric, "unit direction")}
        return metric | pick(self, "n mean sd values left_out")


class Batch(NamedTuple):
    """The trials of one task at one commit with one definition in one environment, oldest first."""

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
        """Count how the trials ended; `running` are those without an outcome, `early-stopped` those
        that a bisect ended early."""
        return Counter(
            "running" if record.outcome is None
            else (Mark.EARLY_STOPPED if record.early_stopped else record.outcome.kind).value
            for record in self.records
        )  # fmt: skip

    @property
    def status(self) -> str:
        """Return `ok`, `failed`, `1 of 3 failed` or `2 of 5 running`: the most urgent outcome."""
        others = self.outcomes()
        del others[OutcomeKind.OK.value]
        if not others:
            return "ok"
        worst = min(others, key=lambda kind: (kind in _CALM, -others[kind], kind))
        total = len(self.records)
        return worst if others[worst] == total else f"{others[worst]} of {total} {worst}"

    def metrics(self, declared: Callable[[str], Iterable[Metric]]) -> list[Metric]:
        """Return the metrics that a trial of the batch reported, judged ones first, as its recipe
        `declared` them (`Reader.metrics`)."""
        reported = {name for r in self.records for name in r.summaries}
        return in_order(m for m in declared(self.recipe) if m.name in reported)

    def sample(self, metric: Metric) -> Sample:
        """Return the values of trials that ran well, by the metric's present summary."""
        ran = [r for r in self.records if r.is_whole(metric)]
        # A derived trial is no repeat. It counts only if no other of its seed ran there.
        seeds = {r.trial.seed for r in ran if not r.derived}
        ran = [r for r in ran if not r.derived or r.trial.seed not in seeds]
        valid = [r for r in ran if not r.is_hindered(metric)]
        values = tuple(r.summaries[metric.name] for r in valid)
        return Sample(metric, values, len(ran) - len(valid))


def pair(metric: Metric, a: Batch, b: Batch) -> tuple[Sample, Sample]:
    """Return the values of two batches that are compared. Where seeds repeat bit by bit, they are
    those of common seeds, each once: one more seed at an end, or a repeat, is no difference."""
    ends = [
        {(r.trial.seed, r.summaries[metric.name]) for r in batch.records
         if r.is_whole(metric) and not r.is_hindered(metric)}
        for batch in (a, b)
    ]  # fmt: skip
    common = dict(ends[0]).keys() & dict(ends[1]).keys()
    repeat = all(len(dict(end)) == len(end) for end in ends)
    if metric.kind is Kind.QUALITY and common and repeat:
        old, new = ([value for seed, value in sorted(end) if seed in common] for end in ends)
        return Sample(metric, tuple(old)), Sample(metric, tuple(new))
    return a.sample(metric), b.sample(metric)


def batches(records: Iterable[TrialRecord]) -> list[Batch]:
    """Group comparable trials. The newest batch comes first, tasks in their order."""
    groups: dict[tuple[str, str, str, str], list[TrialRecord]] = defaultdict(list)
    for record in sorted(records, key=lambda r: (r.trial.started, r.trial.ulid)):
        trial = record.trial
        groups[record.suite, record.task, trial.recipe, trial.environment].append(record)
    grouped = [Batch(*key, tuple(group)) for key, group in groups.items()]
    return sorted(grouped, key=lambda b: (b.suite, b.task, -b.newest))


def latest(grouped: Sequence[Batch]) -> dict[tuple[str, str], Batch]:
    """Return the newest batch of each (suite, task): the one that a commit's line describes."""
    return {(batch.suite, batch.task): batch for batch in reversed(grouped)}


def in_order(metrics: Iterable[Metric]) -> list[Metric]:
    """Sort judged before informative, quality before speed before memory, otherwise as given."""
    kinds = list(Kind)
    return sorted(metrics, key=lambda m: (m.direction is Direction.INFO, kinds.index(m.kind)))


def history_order(commits: Iterable[Commit], line: Iterable[str] = ()) -> list[Commit]:
    """Sort by time, but a parent before its children in spite of their clocks, and commits of one
    second as on a line (hashes, the oldest first)."""
    places = {sha: place for place, sha in enumerate(line)}
    by_sha = {c.sha: c for c in commits}
    graph = {sha: [p for p in c.parents if p in by_sha] for sha, c in by_sha.items()}
    ranks: dict[str, tuple[int, int, int]] = {}
    for sha in TopologicalSorter(graph).static_order():
        times = by_sha[sha].commit_time, by_sha[sha].author_time, places.get(sha, 0)
        after = [(time, author, depth + 1) for time, author, depth in map(ranks.get, graph[sha])]  # type: ignore[misc]
        ranks[sha] = max([times, *after])
    return sorted(by_sha.values(), key=lambda c: (ranks[c.sha], c.sha))


def measured(
    ledger: Reader, sha: str, suite: str | None = None, task: str | None = None
) -> tuple[Commit, list[Batch]]:
    """Return the commit of this full hash and its trials, of one task or of all. Raises
    CeledgerError without any."""
    commit = ledger.commit(sha)
    grouped = batches(ledger.trials(commit=sha, suite=suite, task=task))
    if commit is None or not grouped:
        title = f"{suite}/{task} at " if task else ""
        raise CeledgerError(
            f"no trial of {title}{short(sha)} is in the ledger",
            f"type {run_command(ledger, sha[:12], suite, task)}",
        )
    return commit, grouped


def positions(ledger: Reader) -> dict[str, int]:
    """Return each recorded commit's position in history."""
    return {c.sha: i for i, c in enumerate(history_order(ledger.commits()))}


def measured_commits(ledger: Reader, line: Iterable[str]) -> list[Commit]:
    """Return the commits that have trials, in history order. Raises CeledgerError without any."""
    tried = set(ledger.commits_with_trials())
    if not tried:
        raise nothing_yet()
    return [c for c in history_order(ledger.commits(), line) if c.sha in tried]


def run_command(
    ledger: Reader, revision: str, suite: str | None = None, task: str | None = None
) -> str:
    """Return the command that measures a revision, with the suite that ran here last."""
    tasks = ledger.tasks()
    last = tasks[-1].suite if tasks else None
    return command("run", revision, suite=suite or last, task=task)


def nothing_yet() -> CeledgerError:
    return CeledgerError("the ledger holds no trials yet", "type `celedger run`")


def find_task(ledger: Reader, name: str | None) -> tuple[str, str]:
    """Return (suite, task) of `task` or `suite/task`, or the only one. Raises UsageError for an
    unknown or ambiguous one, CeledgerError if the ledger is empty."""
    tasks = sorted({(t.suite, t.name) for t in ledger.tasks()})
    if not tasks:
        raise nothing_yet()
    matches = [(s, t) for s, t in tasks if name in (None, t, f"{s}/{t}")]
    names = [f"{s}/{t}" for s, t in matches or tasks]
    if not matches:
        raise UsageError(f"the ledger has no task {name!r}", f"known: {', '.join(names)}")
    if len(matches) > 1:
        problem = (
            "there are several tasks" if name is None else f"several suites have a task {name!r}"
        )
        raise UsageError(problem, f"choose with --task: {', '.join(names)}")
    return matches[0]


def find_metric(ledger: Reader, recipe: str, name: str | None) -> Metric:
    """Return the metric of this name, or the task's main one. Raises UsageError for an unknown
    name."""
    metrics = in_order(ledger.metrics(recipe))
    for metric in metrics:
        if name in (None, metric.name):
            return metric
    names = ", ".join(metric.name for metric in metrics)
    raise UsageError(f"this task has no metric {name!r}", f"known: {names}")


def flat(details: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Return nested details as `a.b` keys with one line of text each."""
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


def environment_changes(old: Environment | None, new: Environment | None) -> list[Difference]:
    """Return the details that differ and are part of the fingerprint; packages by their names, and
    if the imported ones are known only these."""
    both = [environment.details if environment else {} for environment in (old, new)]
    uncounted = [details.get(BESIDE) for details in both]
    lists = [b["imported"] for b in uncounted if isinstance(b, Mapping) and "imported" in b]
    imported = {f"packages.{name}" for names in lists for name in names}
    a, b = map(flat, both)
    return [
        (key.removeprefix("packages."), a.get(key), b.get(key))
        for key in sorted(a.keys() | b.keys())
        if a.get(key) != b.get(key)
        and not key.startswith(BESIDE)
        and (not imported or not key.startswith("packages.") or key in imported)
    ]
