"""The picture of drift: one metric of one task over the commits, measured or not, in the order of
history. Every trial is a dot, so that no mean hides it. Levels, verdicts and first bad commits are
read; nothing is judged here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from celedger.base.errors import CeledgerError, command
from celedger.base.model import BaselineAct, Commit, Metric, OutcomeKind, VerdictKind
from celedger.judge.drift.level_changes import Course, courses
from celedger.judge.values import TaskValues
from celedger.ledger.read import Reader
from celedger.views import picture, samples
from celedger.views.format import clip, count, percent, plain, probability, short
from celedger.views.picture import GREEN, INK, MUTED, RED, STATES

_MANY = 80  # commits from which on dots are small
_VERDICTS = {VerdictKind.REGRESSED: "worse", VerdictKind.IMPROVED: "better"}
_LASTING = 0.5  # of the smallest step: a level that differs by less from another is the same
_LINES = ("-", "--", "-.", ":")  # of environments that were used in turns


@dataclass(frozen=True, slots=True)
class Drawn:
    """What the picture shows of a task's metric.

    Attributes:
        values: The finite values of each environment, by position on the axis; the environment
            that was used first comes first.
        lost: Positions of the trials that failed or whose value is not finite, one for each.
    """

    axis: Sequence[Commit]
    suite: str
    task: str
    recipe: str
    metric: Metric
    values: Mapping[str, Mapping[int, NDArray[np.float64]]]
    courses: Sequence[Course]
    lost: Sequence[int]
    untestable: Sequence[int]
    unmeasured: Sequence[int]
    trials: int  # that measured a value
    hidden: int  # trials of earlier definitions

    @property
    def position(self) -> dict[str, int]:
        return {commit.sha: position for position, commit in enumerate(self.axis)}

    @property
    def valued(self) -> list[int]:
        return sorted({position for own in self.values.values() for position in own})


def draw(
    ledger: Reader,
    task: str,
    metric: str | None = None,
    suite: str | None = None,
    commits: Sequence[Commit] | None = None,
    lineage: Sequence[Commit] | None = None,
) -> Figure:
    """Draw `metric` (default: the task's main one) of `task` (or `suite/task`) over `commits`,
    measured or not, oldest first (default: all that the ledger knows). Only the newest definition
    is drawn: values of different ones are not one history. `lineage` as in
    `celedger.judge.drift.courses`. Raises UsageError for an unknown task or metric, CeledgerError
    if there is nothing to draw."""
    suite, task = samples.find_task(ledger, task, suite)
    axis = samples.history_order(ledger.commits()) if commits is None else commits
    drawn = _read(ledger, (suite, task), metric, axis, lineage)
    with picture.style():
        figure = picture.sheet(f"{suite}/{task} · {drawn.metric.name}", 4.6)
        axes = figure.subplots()
        changes, labels = list(_changes(ledger, drawn)), list(_named(ledger, drawn))
        picture.commit_axis(axes, drawn.axis, named=[round(at) for at, *_ in labels])
        picture.shade(axes, drawn.unmeasured, "not measured")
        every = [own for values in drawn.values.values() for own in values.values()]
        divisor = picture.value_axis(axes, drawn.metric, np.concatenate([[], *every])).divisor
        names = ["first environment", *(text for _, text in changes)]
        if not _in_turns(drawn):
            labels += [(at, text, MUTED) for at, text in changes]
            names = []
        _draw_levels(axes, drawn, divisor)
        _draw_values(axes, drawn, divisor, _states(ledger, drawn), names)
        picture.crosses(axes, sorted(set(drawn.lost)), drawn.metric, RED, "failed or not finite")
        picture.crosses(axes, drawn.untestable, drawn.metric, MUTED, "untestable")
        picture.subtitle(axes, _subtitle(drawn))
        picture.banner(axes, labels)
        picture.finish(figure, axes)
    return figure


def _read(
    ledger: Reader,
    title: tuple[str, str],
    metric_name: str | None,
    axis: Sequence[Commit],
    lineage: Sequence[Commit] | None,
) -> Drawn:
    (suite, task), read = title, dict[str, TaskValues]()
    *earlier, recipe = [t.recipe for t in ledger.tasks() if (t.suite, t.name) == title]
    metric = samples.find_metric(ledger, recipe, metric_name)
    segments = courses(
        ledger, axis, lineage=lineage, suite=suite, task=task, metric=metric.name, read=read
    )
    run = f"type {command('run', suite=suite, task=task)}"
    tried = read[recipe].tried
    first = next((i for i, commit in enumerate(axis) if commit.sha in tried), None)
    if first is None:
        raise CeledgerError(f"no trial of {suite}/{task} at these commits is in the ledger", run)
    axis = axis[first:]
    position = {commit.sha: i for i, commit in enumerate(axis)}
    values: dict[str, dict[int, NDArray[np.float64]]] = {}
    lost, trials = [], set[int]()
    for environment, own in read[recipe].by_environment(metric, reused=True).items():
        trials |= read[recipe].coverage(own).trials
        for sha, group in zip(own.commits, own.grouped.split(), strict=True):
            finite = group[np.isfinite(group)]
            lost += [position[sha]] * (group.size - finite.size)
            if finite.size:
                values.setdefault(environment, {})[position[sha]] = finite
    unbuilt = []
    for record in ledger.trials(recipe=recipe, failed_only=True):
        at, outcome = position.get(record.trial.commit), record.outcome
        if at is not None and outcome is not None:
            lost += [at] * outcome.kind.crashed
            unbuilt += [at] * (outcome.kind is OutcomeKind.UNTESTABLE)
    if not values and not lost:
        problem = f"no trial of {suite}/{task} measured {metric.name} at these commits"
        raise CeledgerError(problem, f"{run}, or plot another metric")
    hidden = [r for old in earlier for r in ledger.trials(recipe=old) if r.trial.commit in position]
    return Drawn(
        axis, suite, task, recipe, metric, values, segments, lost, sorted({*unbuilt}),
        [i for i, commit in enumerate(axis) if commit.sha not in tried], len(trials), len(hidden),
    )  # fmt: skip


def _levels(drawn: Drawn, course: Course) -> Iterator[tuple[int, int, float]]:
    """Yield the first and last position of each level between the steps of a course, if any."""
    position = drawn.position
    if not course.steps:
        return
    valued = [position[commit.sha] for commit in course.commits]
    starts = [valued[0], *(position[step.seen_at.sha] for step in course.steps)]
    levels = [course.steps[0].before, *(step.after for step in course.steps)]
    ends = [*(max(p for p in valued if p < start) for start in starts[1:]), valued[-1]]
    yield from zip(starts, ends, levels, strict=True)


def _states(ledger: Reader, drawn: Drawn) -> dict[tuple[str, int], str]:
    """Return where a value is worse or better, by environment and position: what `celedger check`
    concluded of it, else how its level compares with the first one, or with the last one that a
    person accepted."""
    position, states = drawn.position, dict[tuple[str, int], str]()
    sign = drawn.metric.direction.sign
    accepted = max(
        (position[r.commit] for r in ledger.baselines()
         if r.act is BaselineAct.ACCEPT and r.commit in position
         and r.suite == drawn.suite and r.covers(drawn.task, drawn.metric.name)), default=-1,
    )  # fmt: skip
    for course in drawn.courses:
        reference, smallest = math.nan, math.inf
        steps = [None, *course.steps]
        for (start, end, level), step in zip(_levels(drawn, course), steps, strict=False):
            if step is not None:
                smallest = min(smallest, abs(step.after - step.before))
            if step is None or start <= accepted:
                reference = level
            effect = sign * (level - reference)
            if abs(effect) >= smallest * _LASTING:
                name = "worse" if effect > 0 else "better"
                here = (at for at in drawn.values[course.environment] if start <= at <= end)
                states |= {(course.environment, at): name for at in here}
    for verdict in ledger.verdicts(suite=drawn.suite, task=drawn.task):
        of_metric = verdict.metric == drawn.metric.name and verdict.recipe in ("", drawn.recipe)
        if of_metric and verdict.kind in _VERDICTS and verdict.commit in position:
            for environment in drawn.values:
                if verdict.environment in ("", environment):
                    states[environment, position[verdict.commit]] = _VERDICTS[verdict.kind]
    return states


def _draw_values(
    axes: Axes,
    drawn: Drawn,
    divisor: float,
    states: Mapping[tuple[str, int], str],
    names: Sequence[str],
) -> None:
    """Draw each trial, the mean of each commit, and a line through the means of each environment,
    which ends where nobody measured. With `names` the environments have lines of their own."""
    size = 4.5 if len(drawn.axis) <= _MANY else 2.5
    breaks = np.array(sorted(set(range(len(drawn.axis))) - set(drawn.valued)))
    for number, (environment, own) in enumerate(drawn.values.items()):
        at = np.array(list(own))
        means = np.array([values.mean() for values in own.values()]) / divisor
        style = _LINES[number % len(_LINES)] if names else "-"
        label = f"mean, {names[number]}" if names else "mean"
        for run in np.split(
            np.arange(at.size), np.flatnonzero(np.diff(breaks.searchsorted(at))) + 1
        ):
            axes.plot(at[run], means[run], style, color=MUTED, linewidth=1.0, label=label)
        dots = np.repeat(at, [values.size for values in own.values()])
        trials = np.concatenate(list(own.values())) / divisor
        beside = picture.side_by_side(axes, dots, trials)
        for name, (colour, shape) in STATES.items():
            here = [states.get((environment, p), "unchanged") == name for p in at.tolist()]
            if any(here):
                chosen = np.repeat(here, [values.size for values in own.values()])
                axes.plot(
                    beside[chosen], trials[chosen], "o", color=colour, markersize=size * 0.7,
                    alpha=0.4, markeredgewidth=0, label="one trial",
                )  # fmt: skip
                axes.plot(
                    at[here], means[here], shape, color=colour, markersize=size, label=name,
                )  # fmt: skip


def _in_turns(drawn: Drawn) -> bool:
    """Return True if an environment was used again after a later one."""
    spans = [(min(own), max(own)) for own in drawn.values.values()]
    return any(last > first for (_, last), (first, _) in pairwise(spans))


def _draw_levels(axes: Axes, drawn: Drawn, divisor: float) -> None:
    """Draw the levels that `celedger drift` prints, and the 95 % set of each step between them."""
    position = drawn.position
    for course in drawn.courses:
        for start, end, level in _levels(drawn, course):
            axes.plot(
                (start - 0.5, end + 0.5), (level / divisor,) * 2, color=INK, linewidth=1.6,
                alpha=0.75, solid_capstyle="butt", label="level",
            )  # fmt: skip
        for step in course.steps:
            # What lies on a merged branch came with the merge, which is on the axis.
            among = {position[c.sha] for c in (*step.among, step.end) if c.sha in position}
            label = "got better here (95 %)" if step.better else "got worse here (95 %)"
            picture.shade(axes, sorted(among), label, GREEN if step.better else RED, 0.13)


def _named(ledger: Reader, drawn: Drawn) -> Iterator[tuple[float, str, str]]:
    """Yield the commits that bisects named, then the steps that none explains."""
    position, title = drawn.position, (drawn.suite, drawn.task, drawn.metric.name)
    named = {
        bisect.culprits[0]: bisect
        for bisect in ledger.bisects()
        if bisect.status == "found" and (bisect.suite, bisect.task, bisect.metric) == title
    }
    steps = [step for course in drawn.courses for step in course.steps]
    for sha, bisect in named.items():
        kind = "better" if bisect.report.get("improved") else "bad"
        text = f"{short(sha)} first {kind} ({probability(bisect.probability)})"
        seen = (step.seen_at.sha for step in steps if sha in {commit.sha for commit in step.among})
        if sha in position:
            yield position[sha], text, INK
        elif at := next(seen, ""):
            yield position[at], f"{text}, of a merged branch", INK
    for step in sorted(steps, key=lambda step: -step.probability):
        if not named.keys() & {commit.sha for commit in step.among}:
            text = f"one of {len(step.among)}" if len(step.among) > 1 else short(step.end.sha)
            if step.before:
                text += f" {percent((step.after - step.before) / abs(step.before))}"
            text += f" ({probability(step.probability)})"
            yield position[step.seen_at.sha], text, INK


def _changes(ledger: Reader, drawn: Drawn) -> Iterator[tuple[float, str]]:
    """Yield where each environment was first used, and how it differs from the one before."""
    for (old, before), (new, after) in pairwise(drawn.values.items()):
        differences = samples.environment_changes(ledger.environment(old), ledger.environment(new))
        text = ", ".join(f"{key} {a or 'none'} → {b or 'none'}" for key, a, b in differences)
        yield (max(before) + min(after)) / 2, clip(plain(text), 48) or "environment changed"


def _subtitle(drawn: Drawn) -> str:
    text = f"{count(len(drawn.valued), 'commit')}, {count(drawn.trials, 'trial')}"
    text += f", {len(drawn.lost)} failed or not finite" if drawn.lost else ""
    if drawn.unmeasured:
        text += f"; {len(drawn.unmeasured)} of {len(drawn.axis)} commits not measured"
    return text + (f" ({count(drawn.hidden, 'trial')} of an earlier suite left out)"
                   if drawn.hidden else "")  # fmt: skip
