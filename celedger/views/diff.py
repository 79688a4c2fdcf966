"""`celedger diff A..B`: two commits side by side. It compares trials of one recipe in one
environment; where two commits share none, it shows both and judges nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from celedger.drift.values import PooledNoise
from celedger.ledger.read import Reader
from celedger.model import BisectRecord, Commit, Direction, Metric
from celedger.stats import noise
from celedger.views import samples
from celedger.views.export import Json, document
from celedger.views.format import (
    NONE,
    clip,
    count,
    iso_date,
    measure,
    percent,
    plain,
    probability,
    short,
)  # fmt: skip
from celedger.views.format import change as difference
from celedger.views.log import sample_json, status
from celedger.views.samples import Batch, Sample
from celedger.views.show import told_text
from celedger.views.tables import Column, table

_COLUMNS = (
    Column("metric"),
    Column("A"),
    Column("B"),
    Column("B - A", right=True),
    Column("", right=True),
    Column("", wrap=True),
)
_AT_THE_LIMIT = 0.5  # a change that is told in half the cases is the critical one of the test


@dataclass(frozen=True, slots=True)
class Change:
    """`said` is `better`, `worse`, `same` (equal to the bit), `within noise` (a two-sided test
    at 95 % does not tell them apart), `small` (told, but below the metric's floor), `unknown`
    (no repeats to judge by), `not finite`, or empty where nothing may be said. `told` is the
    smallest change that these trials tell in four cases of five; `bisect` the search, with more
    trials than these, that named B."""

    metric: Metric
    a: Sample
    b: Sample
    said: str
    told: float = math.nan
    bisect: BisectRecord | None = None

    @property
    def delta(self) -> float:
        return self.b.mean - self.a.mean if self.a.n and self.b.n else math.nan

    @property
    def relative(self) -> float:
        """The change over |A|; NaN where A is zero."""
        return self.delta / abs(self.a.mean) if self.a.n and self.a.mean else math.nan


@dataclass(frozen=True, slots=True)
class TaskDiff:
    suite: str
    task: str
    a: Batch | None
    b: Batch | None
    changes: tuple[Change, ...]

    @property
    def same_recipe(self) -> bool:
        return self.a is not None and self.b is not None and self.a.recipe == self.b.recipe

    @property
    def same_environment(self) -> bool:
        both = self.a is not None and self.b is not None
        return both and self.a.environment == self.b.environment  # type: ignore[union-attr]

    @property
    def comparable(self) -> bool:
        return self.same_recipe and self.same_environment


def diff_text(
    ledger: Reader,
    a: str,
    b: str,
    *,
    order: Mapping[str, int] | None = None,
    width: int = 100,
) -> str:
    """The text of `celedger diff A..B`, by full hashes; `order` places commits in history. Raises
    CeledgerError where one end has no trials."""
    commits, found = task_diffs(ledger, a, b, order)
    lines = [
        clip(f"{letter} {short(c.sha)}  {iso_date(c.commit_time)}  {plain(c.subject)}", width)
        for letter, c in zip("AB", commits, strict=True)
    ]
    told: set[tuple[str, str]] = set()
    for task in found:
        lines += ["", *_task_lines(task, width)]
        if task.a and task.b and not task.same_environment:
            pair = task.a.environment, task.b.environment
            if pair not in told:
                lines += _environment_lines(ledger, *pair, width)
            told.add(pair)
    return "\n".join(lines)


def diff_json(
    ledger: Reader, a: str, b: str, *, order: Mapping[str, int] | None = None
) -> dict[str, Json]:
    """The same as a document."""
    _, found = task_diffs(ledger, a, b, order)
    pairs = {
        (t.a.environment, t.b.environment) for t in found if t.a and t.b and not t.same_environment
    }
    return document(
        a=a,
        b=b,
        tasks=[_task_json(task) for task in found],
        environments=[
            {
                "a": old,
                "b": new,
                "changed": [
                    {"key": key, "a": before, "b": after}
                    for key, before, after in environment_changes(ledger, old, new)
                ],
            }
            for old, new in sorted(pairs)
        ],
    )


def task_diffs(
    ledger: Reader, a: str, b: str, order: Mapping[str, int] | None = None
) -> tuple[tuple[Commit, Commit], list[TaskDiff]]:
    (old, of_a), (new, of_b) = samples.measured(ledger, a), samples.measured(ledger, b)
    measured = samples.places(ledger)
    line = dict.fromkeys([*(sha for sha in order or () if sha in measured), *measured])
    noises = PooledNoise(ledger, {sha: place for place, sha in enumerate(line)})
    pairs = [(parent, new.sha) for parent in new.parents]
    named = [
        x for x in ledger.bisects()
        if x.status == "found" and (a, b) in _compared(x, pairs if x.culprits[0] == b else [])
    ]  # fmt: skip
    tasks = sorted({(x.suite, x.task) for x in (*of_a, *of_b)})
    return (old, new), [_task_diff(ledger, noises, key, of_a, of_b, named) for key in tasks]


def _compared(bisect: BisectRecord, pairs: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """The named commit after each parent, and the pair of trials that stands for them."""
    ran = bisect.report.get("compared")
    return [*pairs, tuple(ran)] if isinstance(ran, list) and len(ran) == 2 else pairs


def _task_diff(
    ledger: Reader,
    noises: PooledNoise,
    key: tuple[str, str],
    of_a: Sequence[Batch],
    of_b: Sequence[Batch],
    named: Sequence[BisectRecord],
) -> TaskDiff:
    ours = [x for x in of_a if (x.suite, x.task) == key]
    theirs = [x for x in of_b if (x.suite, x.task) == key]
    a, b = _pair(ours, theirs)
    if a is None or b is None:
        return TaskDiff(*key, a, b, ())
    comparable = a.recipe == b.recipe and a.environment == b.environment
    names = {m.name for side in (a, b) for m in side.metrics(ledger)}
    changes = []
    for metric in samples.in_order(m for m in ledger.metrics(b.recipe) if m.name in names):
        change = Change(metric, a.sample(metric), b.sample(metric), "")
        changes.append(_judged(change, b, noises, named) if comparable else change)
    return TaskDiff(*key, a, b, tuple(changes))


def _pair(ours: Sequence[Batch], theirs: Sequence[Batch]) -> tuple[Batch | None, Batch | None]:
    """The two that ran last among those that can be compared: same recipe and environment,
    else same recipe, else whatever there is."""
    for alike in (
        lambda a, b: (a.recipe, a.environment) == (b.recipe, b.environment),
        lambda a, b: a.recipe == b.recipe,
    ):
        for b in theirs:
            for a in ours:
                if alike(a, b):
                    return a, b
    return next(iter(ours), None), next(iter(theirs), None)


def _judged(
    change: Change, batch: Batch, noises: PooledNoise, named: Sequence[BisectRecord]
) -> Change:
    """Say of a change what these trials tell, or else a bisect that named B in this metric."""
    metric, a, b = change.metric, change.a, change.b
    if metric.direction is Direction.INFO or not a.n or not b.n:
        return change
    commit = batch.records[0].trial.commit
    known = noises.beside(batch.recipe, batch.environment, metric, commit, b.n)
    change = replace(change, told=noise.smallest_change(known, a.n, b.n))
    change = replace(change, said=_said(change, known))
    began = batch.records[0].trial.started  # a bisect that ended earlier asked something else
    key = (batch.suite, batch.task, metric.name)
    known_of = [x for x in named if (x.suite, x.task, x.metric) == key and x.ended >= began]
    if change.said not in ("within noise", "unknown") or not known_of:
        return change
    said = "better" if known_of[-1].report.get("improved") else "worse"
    return replace(change, said=said, bisect=known_of[-1])


def _said(change: Change, known: noise.Noise) -> str:
    if not math.isfinite(change.delta):
        return "not finite"
    if change.delta == 0:
        return "same"
    limit = noise.smallest_change(known, change.a.n, change.b.n, power=_AT_THE_LIMIT)
    if math.isinf(limit):
        return "unknown"
    if abs(change.delta) < limit:
        return "within noise"
    if abs(change.delta) < change.metric.floor.at(change.a.mean):
        return "small"
    return "worse" if change.delta * change.metric.direction.sign > 0 else "better"


def environment_changes(
    ledger: Reader, old: str, new: str
) -> list[tuple[str, str | None, str | None]]:
    """(key, in A, in B) of what differs between two recorded environments."""
    a, b = ledger.environment(old), ledger.environment(new)
    return samples.changed(a.details if a else {}, b.details if b else {})


def _task_lines(task: TaskDiff, width: int) -> list[str]:
    head = f"{task.suite}/{task.task}"
    ends = []
    for letter, batch in (("A", task.a), ("B", task.b)):
        what = "no trials"
        if batch is not None:
            what = f"{count(len(batch.records), 'trial')} {status(batch.outcomes())}"
        ends.append(f"{letter} {what}")
    lines = [f"{head}  {', '.join(ends)}"]
    if task.a and task.b and not task.comparable:
        why = "the suite" if not task.same_recipe else "the environment"
        lines.append(f"  not comparable: {why} changed between them")
    text = table(_COLUMNS, [_cells(change) for change in task.changes], width=width, indent=2)
    return lines + text.splitlines()


def _cells(change: Change) -> tuple[str, ...]:
    unit = change.metric.unit
    a, b = (
        measure(s.mean, s.sd, unit=unit, spread=True) if s.n else NONE for s in (change.a, change.b)
    )
    delta = relative = ""
    if math.isfinite(change.delta):
        spread = [s.sd for s in (change.a, change.b) if math.isfinite(s.sd)]
        digits = max(spread, default=math.nan)
        delta = difference(change.delta, digits, unit=unit, like=change.b.mean)
        if math.isfinite(change.relative):
            relative = percent(change.relative)
    said = change.said
    if said == "within noise":
        said += f", can tell {told_text(change.told, change.a)}"
    if change.bisect is not None:
        said += f", says a bisect ({probability(change.bisect.probability)})"
    return (change.metric.name, a, b, delta, relative, said)


def _environment_lines(ledger: Reader, old: str, new: str, width: int) -> list[str]:
    rows = [
        (key, plain(a or NONE), plain(b or NONE))
        for key, a, b in environment_changes(ledger, old, new)
    ]
    columns = (Column("environment"), Column("A", shrink=True), Column("B", shrink=True))
    return table(columns, rows, width=width, indent=2).splitlines()


def _task_json(task: TaskDiff) -> dict[str, object]:
    return {
        "suite": task.suite,
        "task": task.task,
        "comparable": task.comparable,
        "same_recipe": task.same_recipe,
        "same_environment": task.same_environment,
        "outcomes": {
            "a": task.a.outcomes() if task.a else {},
            "b": task.b.outcomes() if task.b else {},
        },
        "metrics": [
            {
                "metric": change.metric.name,
                "unit": change.metric.unit,
                "direction": change.metric.direction,
                "a": sample_json(change.a),
                "b": sample_json(change.b),
                "delta": change.delta,
                "relative": change.relative,
                "said": change.said,
                "smallest_change": change.told,
                "bisect": change.bisect and change.bisect.ulid,
            }
            for change in task.changes
        ],
    }
