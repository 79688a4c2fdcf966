"""What the picture of drift shows, read from the ledger: stretches of comparable values over the
commits, failures, changes of environment, and what was concluded. No pixels here, and no
judgement: verdicts and culprits are those that were stored.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from celedger.drift.history import Step, courses
from celedger.errors import CeledgerError, command
from celedger.ledger.read import Reader
from celedger.model import Commit, Metric, OutcomeKind, TrialRecord, VerdictKind
from celedger.views import samples
from celedger.views.format import clip, percent, plain, probability, short

_TELLING = ("torch", "cuda", "driver", "gpu", "device", "python", "cpu")  # in a change, said first


@dataclass(frozen=True, slots=True)
class Stretch:
    """Measured commits in a row whose trials ran in one environment."""

    environment: str
    positions: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]  # per position, finite, in the metric's unit

    @property
    def means(self) -> tuple[float, ...]:
        return tuple(sum(v) / len(v) for v in self.values)

    @property
    def sd(self) -> float:
        """Of one trial around its commit's mean, pooled; NaN where nothing was repeated."""
        return _pooled(self.values)

    @property
    def relative_sd(self) -> float:
        """The same of the logarithms, for a logarithmic axis; all values are positive."""
        return _pooled([[math.log(x) for x in v] for v in self.values])


def _pooled(groups: Sequence[Sequence[float]]) -> float:
    freedom = sum(len(g) - 1 for g in groups)
    squares = sum((x - sum(g) / len(g)) ** 2 for g in groups for x in g)
    return math.sqrt(squares / freedom) if freedom else math.nan


@dataclass(frozen=True, slots=True)
class Mark:
    """A commit about which something was concluded, to be drawn on its mean."""

    position: int
    text: str
    bad: bool
    named: bool  # whether its label is wanted, not only its mark


@dataclass(frozen=True, slots=True)
class Drift:
    title: str
    metric: Metric
    commits: tuple[Commit, ...]
    stretches: tuple[Stretch, ...]
    strays: tuple[tuple[int, float], ...]  # values of a commit's other environments
    failed: tuple[int, ...]  # a position for each failed trial or value that is not finite
    untestable: tuple[int, ...]
    marks: tuple[Mark, ...]
    changes: tuple[tuple[float, str], ...]  # (between positions, what changed)
    steps: tuple[tuple[float, float, bool], ...]  # edges of a 95 % set; whether it got worse
    trials: int  # that gave a value: derived ones did not run
    hidden: int  # trials of the task's older recipes

    @property
    def dots(self) -> list[tuple[int, float]]:
        """(position, value) of every trial that counts."""
        own = [
            (position, value)
            for stretch in self.stretches
            for position, found in zip(stretch.positions, stretch.values, strict=True)
            for value in found
        ]
        return own + list(self.strays)

    @property
    def measured(self) -> int:
        """How many commits have a value: the same that `celedger drift` counts."""
        return len({p for s in self.stretches for p in s.positions})


def drift(
    ledger: Reader,
    task: str,
    metric_name: str | None = None,
    suite: str | None = None,
    commits: Sequence[Commit] | None = None,
    lineage: Sequence[Commit] | None = None,
) -> Drift:
    """What the picture shows, read from the ledger. Only the recipe that ran last is shown:
    values of different recipes are not one history. `lineage` as in `celedger.drift.courses`."""
    suite, task = samples.find_task(ledger, task, suite)
    title = f"{suite}/{task}"
    records = ledger.trials(suite=suite, task=task)
    if commits is None:
        tried = {r.trial.commit for r in records}
        commits = [c for c in samples.history_order(ledger.commits()) if c.sha in tried]
    at = {c.sha: i for i, c in enumerate(commits)}
    records = [r for r in records if r.trial.commit in at]
    if not records:
        raise CeledgerError(
            f"no trial of {title} at these commits is in the ledger",
            f"type {command('run', suite=suite, task=task)}",
        )
    recipe = max(records, key=lambda r: (r.trial.started, r.trial.ulid)).trial.recipe
    metric = samples.find_metric(ledger, recipe, metric_name)
    shown = [r for r in records if r.trial.recipe == recipe]
    failed, untestable = _failures(shown, at)
    values: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    trials = 0
    last: dict[int, tuple[float, str]] = {}
    for row in ledger.summaries(task, metric.name, suite=suite, recipe=recipe):
        if row.commit not in at or not samples.comparable(row, metric):
            continue
        position = at[row.commit]
        if not math.isfinite(row.value):
            failed.append(position)
        elif not samples.hindered(metric, row.marks):
            values[position][row.environment].append(row.value)
            trials += not row.derived
            last[position] = max(last.get(position, (0.0, "")), (row.started, row.environment))
    if not values and not failed:
        raise CeledgerError(
            f"no trial of {title} measured {metric.name} at these commits",
            f"type {command('run', suite=suite, task=task)}, or plot another metric",
        )
    own = {position: environment for position, (_, environment) in sorted(last.items())}
    stretches = _stretches(own, values)
    strays = [
        (position, value)
        for position, by_environment in sorted(values.items())
        for environment, found in by_environment.items()
        if environment != own[position]
        for value in found
    ]
    steps = [
        step
        for course in courses(
            ledger, commits, lineage=lineage, suite=suite, task=task, metric=metric.name
        )
        for step in course.steps
    ]
    return Drift(
        title,
        metric,
        tuple(commits),
        stretches,
        tuple(strays),
        tuple(sorted(failed)),
        tuple(untestable),
        _marks(ledger, suite, task, metric, at, own, steps),
        tuple(_changes(ledger, stretches)),
        tuple((*_edges(step, at), not step.better) for step in steps),
        trials,
        len(records) - len(shown),
    )


def _edges(step: Step, at: dict[str, int]) -> tuple[float, float]:
    """Where a 95 % set begins and ends. One with commits that are not measured, and so not on the
    axis, begins at the measured commit before it."""
    places = [at[c.sha] for c in step.among if c.sha in at]
    first = min(places, default=at[step.end.sha]) - 0.5
    if step.unmeasured and step.start is not None and step.start.sha in at:
        first = min(first, at[step.start.sha])
    return first, at[step.end.sha] + 0.5


def _failures(records: Sequence[TrialRecord], at: dict[str, int]) -> tuple[list[int], list[int]]:
    failed, untestable = [], set()
    for record in records:
        if record.outcome is None:
            continue
        if record.outcome.kind is OutcomeKind.UNTESTABLE:
            untestable.add(at[record.trial.commit])
        elif record.outcome.kind.crashed:
            failed.append(at[record.trial.commit])
    return failed, sorted(untestable)


def _stretches(
    own: dict[int, str], values: dict[int, dict[str, list[float]]]
) -> tuple[Stretch, ...]:
    runs: list[tuple[str, list[int]]] = []
    for position, environment in own.items():
        if not runs or runs[-1][0] != environment:
            runs.append((environment, []))
        runs[-1][1].append(position)
    return tuple(
        Stretch(e, tuple(places), tuple(tuple(values[p][e]) for p in places)) for e, places in runs
    )


def _changes(ledger: Reader, stretches: Sequence[Stretch]) -> list[tuple[float, str]]:
    found = []
    for old, new in pairwise(stretches):
        a, b = ledger.environment(old.environment), ledger.environment(new.environment)
        differing = samples.changed(a.details if a else {}, b.details if b else {})
        place = (old.positions[-1] + new.positions[0]) / 2
        found.append((place, change_text(differing)))
    return found


def change_text(differing: Sequence[tuple[str, str | None, str | None]]) -> str:
    """`torch 2.12.0 → 2.13.0, +2`: the most telling difference, and how many more."""
    if not differing:
        return "environment changed"

    def rank(row: tuple[str, str | None, str | None]) -> int:
        return next((i for i, word in enumerate(_TELLING) if word in row[0].lower()), len(_TELLING))

    key, old, new = min(differing, key=rank)
    more = f", +{len(differing) - 1}" if len(differing) > 1 else ""
    text = f"{key.replace('.', ' ')} {plain(old or 'none')} → {plain(new or 'none')}"
    return clip(text, 34) + more


def _marks(
    ledger: Reader,
    suite: str,
    task: str,
    metric: Metric,
    at: dict[str, int],
    own: dict[int, str],
    steps: Sequence[Step],
) -> tuple[Mark, ...]:
    """Culprits of bisects first: they matter most when labels compete for room."""
    marks: dict[int, Mark] = {}
    for bisect in (b for b in ledger.bisects() if b.status == "found"):
        if (bisect.suite, bisect.task, bisect.metric) != (suite, task, metric.name):
            continue
        if bisect.culprits and bisect.culprits[0] in at:
            sha = bisect.culprits[0]
            sure = probability(bisect.probability)
            marks[at[sha]] = Mark(at[sha], f"{short(sha)}  first bad ({sure})", True, True)
    judged = {
        at[v.commit]: v
        for v in ledger.verdicts(suite=suite, task=task)
        if v.metric == metric.name and v.commit in at
    }
    before = None
    for position in sorted(own.keys() | judged.keys()):
        verdict = judged.get(position)
        kind = verdict.kind if verdict else None
        if verdict and kind in (VerdictKind.REGRESSED, VerdictKind.IMPROVED):
            text = short(verdict.commit)
            if math.isfinite(verdict.effect) and verdict.level:
                text += f"  {percent(verdict.effect / abs(verdict.level))}"
            bad = kind is VerdictKind.REGRESSED
            # Of commits in a row that are judged alike, the first one is the news.
            marks.setdefault(position, Mark(position, text, bad, kind is not before))
        before = kind
    for step in steps:
        told = [marks[at[c.sha]] for c in step.among if at.get(c.sha) in marks]
        if any(mark.bad is not step.better for mark in told):
            continue  # a bisect or a verdict has said so already
        share = (step.after - step.before) / abs(step.before) if step.before else math.nan
        size = f"  {percent(share)}" if math.isfinite(share) else ""
        name = short(step.seen_at.sha)
        if len(step.among) > 1:
            name = f"one of {len(step.among)} up to {short(step.end.sha)}"
        text = f"{name}{size} ({probability(step.probability)})"
        place = at[step.seen_at.sha]
        marks[place] = Mark(place, text, not step.better, True)
    return tuple(marks.values())
