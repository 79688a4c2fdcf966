"""What the picture of drift shows, read from the ledger: stretches of comparable values over the
commits, failures, changes of environment, and what was concluded. No pixels here, and no
judgement: verdicts and culprits are those that were stored.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from celedger.drift.history import LevelStep, courses
from celedger.errors import CeledgerError, command
from celedger.ledger.read import Reader
from celedger.model import Commit, Metric, OutcomeKind, VerdictKind
from celedger.views import samples
from celedger.views.format import clip, percent, plain, probability, short
from celedger.views.samples import Difference

_URGENT = ("torch", "cuda", "driver", "gpu", "device", "python", "cpu")  # in a change, said first


@dataclass(frozen=True, slots=True)
class Stretch:
    """Measured commits in a row whose trials ran in one environment."""

    environment: str
    positions: tuple[int, ...]
    values: tuple[tuple[float, ...], ...]  # per position, finite, in the metric's unit

    @property
    def means(self) -> tuple[float, ...]:
        return tuple(sum(v) / len(v) for v in self.values)

    def sd(self, *, log: bool = False) -> float:
        """Return that of one trial around its commit's mean, pooled; NaN where nothing was
        repeated. `log`: of the logarithms, for a logarithmic axis; all values are positive."""
        groups = [[math.log(x) for x in v] if log else v for v in self.values]
        freedom = sum(len(g) - 1 for g in groups)
        squares = sum((x - sum(g) / len(g)) ** 2 for g in groups for x in g)
        return math.sqrt(squares / freedom) if freedom else math.nan


@dataclass(frozen=True, slots=True)
class Conclusion:
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
    marks: tuple[Conclusion, ...]
    changes: tuple[tuple[float, str], ...]  # (between positions, what changed)
    steps: tuple[tuple[float, float, bool], ...]  # edges of a 95 % set; whether it got worse
    trials: int  # that gave a value: derived ones did not run
    hidden: int  # trials of the task's older definitions

    @property
    def dots(self) -> list[tuple[int, float]]:
        """(position, value) of every trial that counts."""
        own = [
            (position, value)
            for stretch in self.stretches
            for position, values in zip(stretch.positions, stretch.values, strict=True)
            for value in values
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
    """Read what the picture shows. Only the definition that ran last is shown: values of different
    ones are not one history. `lineage` as in `celedger.drift.courses`."""
    suite, task = samples.find_task(ledger, task, suite)
    records = ledger.trials(suite=suite, task=task)
    if commits is None:
        tried = {r.trial.commit for r in records}
        commits = [c for c in samples.history_order(ledger.commits()) if c.sha in tried]
    at = {c.sha: i for i, c in enumerate(commits)}
    records = [r for r in records if r.trial.commit in at]
    run = f"type {command('run', suite=suite, task=task)}"
    if not records:
        raise CeledgerError(f"no trial of {suite}/{task} at these commits is in the ledger", run)
    recipe = max(records, key=lambda r: (r.trial.started, r.trial.ulid)).trial.recipe
    metric = samples.find_metric(ledger, recipe, metric_name)
    shown = [r for r in records if r.trial.recipe == recipe]
    ended = [(r.outcome.kind, at[r.trial.commit]) for r in shown if r.outcome]
    failed = [position for kind, position in ended if kind.crashed]
    untestable = {position for kind, position in ended if kind is OutcomeKind.UNTESTABLE}
    values: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    trials = 0
    own: dict[int, str] = {}  # the environment that ran last at each position
    rows = ledger.summaries(task, metric.name, suite=suite, recipe=recipe)
    for row in sorted(rows, key=lambda row: (row.started, row.environment)):
        if row.commit not in at or not samples.comparable(row, metric):
            continue
        position = at[row.commit]
        if not math.isfinite(row.value):
            failed.append(position)
        elif not samples.hindered(metric, row.marks):
            values[position][row.environment].append(row.value)
            trials += not row.derived
            own[position] = row.environment
    if not values and not failed:
        problem = f"no trial of {suite}/{task} measured {metric.name} at these commits"
        raise CeledgerError(problem, f"{run}, or plot another metric")
    stretches = tuple(_stretches(own, values))
    segments = courses(ledger, commits, lineage=lineage, suite=suite, task=task, metric=metric.name)
    steps = [step for course in segments for step in course.steps]
    key = (suite, task, metric.name)
    marks = _culprits(ledger, key, at)  # first: they matter most when labels compete for room
    for position, mark in _verdicts(ledger, key, at, own).items():
        marks.setdefault(position, mark)
    marks |= _steps(steps, at, marks)
    return Drift(
        f"{suite}/{task}",
        metric,
        tuple(commits),
        stretches,
        _strays(own, values),
        tuple(sorted(failed)),
        tuple(sorted(untestable)),
        tuple(marks.values()),
        tuple(_changes(ledger, stretches)),
        tuple((*_edges(step, at), not step.better) for step in steps),
        trials,
        len(records) - len(shown),
    )


def _strays(
    own: Mapping[int, str], values: Mapping[int, Mapping[str, list[float]]]
) -> tuple[tuple[int, float], ...]:
    return tuple(
        (position, value)
        for position, by_environment in sorted(values.items())
        for environment, others in by_environment.items()
        if environment != own[position]
        for value in others
    )


def _stretches(
    own: Mapping[int, str], values: Mapping[int, Mapping[str, list[float]]]
) -> Iterator[Stretch]:
    for environment, group in groupby(sorted(own), key=lambda position: own[position]):
        positions = tuple(group)
        yield Stretch(
            environment, positions, tuple(tuple(values[p][environment]) for p in positions)
        )


def _edges(step: LevelStep, at: Mapping[str, int]) -> tuple[float, float]:
    """Return where a 95 % set begins and ends. One with commits that are not measured, and so not
    on the axis, begins at the measured commit before it."""
    positions = [at[c.sha] for c in step.among if c.sha in at]
    first = min(positions, default=at[step.end.sha]) - 0.5
    if step.unmeasured and step.start is not None and step.start.sha in at:
        first = min(first, at[step.start.sha])
    return first, at[step.end.sha] + 0.5


def _changes(ledger: Reader, stretches: Sequence[Stretch]) -> Iterator[tuple[float, str]]:
    for old, new in pairwise(stretches):
        a, b = ledger.environment(old.environment), ledger.environment(new.environment)
        text = change_text(samples.environment_changes(a, b))
        yield (old.positions[-1] + new.positions[0]) / 2, text


def change_text(differences: Sequence[Difference]) -> str:
    """`torch 2.12.0 → 2.13.0, +2`: the most telling difference, and how many more."""
    if not differences:
        return "environment changed"

    def rank(row: Difference) -> int:
        return next((i for i, word in enumerate(_URGENT) if word in row[0].lower()), len(_URGENT))

    key, old, new = min(differences, key=rank)
    more = f", +{len(differences) - 1}" if len(differences) > 1 else ""
    text = f"{key.replace('.', ' ')} {plain(old or 'none')} → {plain(new or 'none')}"
    return clip(text, 34) + more


def _culprits(
    ledger: Reader, key: tuple[str, str, str], at: Mapping[str, int]
) -> dict[int, Conclusion]:
    """Return what bisects named, by position."""
    marks = {}
    for bisect in ledger.bisects():
        sha = bisect.culprits[0] if bisect.status == "found" and bisect.culprits else ""
        if (bisect.suite, bisect.task, bisect.metric) == key and sha in at:
            text = f"{short(sha)}  first bad ({probability(bisect.probability)})"
            marks[at[sha]] = Conclusion(at[sha], text, True, True)
    return marks


def _verdicts(
    ledger: Reader, key: tuple[str, str, str], at: Mapping[str, int], own: Mapping[int, str]
) -> dict[int, Conclusion]:
    """Return the verdicts, by position. Of commits in a row that are judged alike, the first one is
    the news."""
    suite, task, metric = key
    judged = {
        at[v.commit]: v
        for v in ledger.verdicts(suite=suite, task=task)
        if v.metric == metric and v.commit in at
    }
    marks = {}
    before = None
    for position in sorted(own.keys() | judged.keys()):
        verdict = judged.get(position)
        kind = verdict.kind if verdict else None
        if verdict and kind in (VerdictKind.REGRESSED, VerdictKind.IMPROVED):
            text = short(verdict.commit)
            if math.isfinite(verdict.effect) and verdict.level:
                text += f"  {percent(verdict.effect / abs(verdict.level))}"
            bad = kind is VerdictKind.REGRESSED
            marks[position] = Conclusion(position, text, bad, kind is not before)
        before = kind
    return marks


def _steps(
    steps: Sequence[LevelStep], at: Mapping[str, int], marks: dict[int, Conclusion]
) -> dict[int, Conclusion]:
    """Return the change points that no bisect and no verdict has told already, by position."""
    more: dict[int, Conclusion] = {}
    for step in steps:
        earlier = [(marks | more).get(at.get(c.sha, -1)) for c in step.among]
        if any(mark and mark.bad is not step.better for mark in earlier):
            continue
        name = short(step.seen_at.sha)
        if len(step.among) > 1:
            name = f"one of {len(step.among)} up to {short(step.end.sha)}"
        if step.before:
            name += f"  {percent((step.after - step.before) / abs(step.before))}"
        position = at[step.seen_at.sha]
        text = f"{name} ({probability(step.probability)})"
        more[position] = Conclusion(position, text, not step.better, True)
    return more
