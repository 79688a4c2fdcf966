"""The picture of drift: one metric of one task over the commits, in the order of history. Every
trial is a dot, so that no mean hides it. Verdicts and culprits are read from the ledger; nothing is
judged here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from celedger.drift.history import LevelStep, courses
from celedger.errors import CeledgerError, command
from celedger.ledger.read import Reader
from celedger.model import Commit, Metric, OutcomeKind, TrialRecord, VerdictKind
from celedger.views import picture, samples
from celedger.views.format import clip, count, percent, plain, probability, short
from celedger.views.picture import BLUE, GREEN, INK, MUTED, RED
from celedger.views.samples import Batch

_MANY = 80  # commits from which on dots are small
_VERDICTS = {VerdictKind.REGRESSED: RED, VerdictKind.IMPROVED: GREEN}

Key = tuple[str, str, str]  # suite, task, metric


def drift_figure(
    ledger: Reader,
    task: str,
    path: Path,
    *,
    metric: str | None = None,
    suite: str | None = None,
    commits: Sequence[Commit] | None = None,
    lineage: Sequence[Commit] | None = None,
) -> Path:
    """Draw `metric` (default: the task's main one) of `task` (or `suite/task`) over `commits`,
    oldest first (default: all with trials of it), to a PNG or SVG. `lineage` as in
    `celedger.drift.courses`. Raises UsageError for an unknown suffix, task or metric, CeledgerError
    if there is nothing to draw."""
    picture.check_suffix(path)
    return picture.save(draw(ledger, task, metric, suite, commits, lineage), path)


def draw(
    ledger: Reader,
    task: str,
    metric_name: str | None = None,
    suite: str | None = None,
    commits: Sequence[Commit] | None = None,
    lineage: Sequence[Commit] | None = None,
) -> Figure:
    """Draw only the newest definition: values of different ones are not one history."""
    suite, task = samples.find_task(ledger, task, suite)
    by_commit: dict[str, list[TrialRecord]] = defaultdict(list)
    for record in ledger.trials(suite=suite, task=task):
        by_commit[record.trial.commit].append(record)
    if commits is None:
        commits = [c for c in samples.history_order(ledger.commits()) if c.sha in by_commit]
    every = [samples.batches(by_commit.get(c.sha, ())) for c in commits]
    run = f"type {command('run', suite=suite, task=task)}"
    if not any(every):
        raise CeledgerError(f"no trial of {suite}/{task} at these commits is in the ledger", run)
    recipe = max((b for own in every for b in own), key=lambda b: b.newest).recipe
    metric = samples.find_metric(ledger, recipe, metric_name)
    batches = {i: b for i, own in enumerate(every) for b in own[::-1] if b.recipe == recipe}
    hidden = sum(len(b.records) for own in every for b in own if b.recipe != recipe)
    values, failed = {}, []
    for position, batch in batches.items():
        own = batch.sample(metric).values
        if finite := [x for x in own if math.isfinite(x)]:
            values[position] = finite
        crashed = sum(bool(r.outcome and r.outcome.kind.crashed) for r in batch.records)
        failed += [position] * (crashed + len(own) - len(finite))
    if not values and not failed:
        problem = f"no trial of {suite}/{task} measured {metric.name} at these commits"
        raise CeledgerError(problem, f"{run}, or plot another metric")
    key = (suite, task, metric.name)
    segments = courses(ledger, commits, lineage=lineage, suite=suite, task=task, metric=metric.name)
    steps = [step for course in segments for step in course.steps]
    positions = {c.sha: i for i, c in enumerate(commits)}
    with picture.style():
        figure = picture.sheet(f"{suite}/{task} · {metric.name}", 4.8)
        axes = figure.subplots()
        picture.commit_axis(axes, commits)
        _draw_values(axes, metric, values, batches, _verdicts(ledger, key, positions))
        picture.crosses(axes, sorted(set(failed)), metric, RED, "failed or not finite")
        untestable = [i for i, b in batches.items() if b.outcomes()[OutcomeKind.UNTESTABLE.value]]
        picture.crosses(axes, untestable, metric, MUTED, "untestable")
        _draw_changes(ledger, axes, {position: batches[position] for position in values})
        for step in steps:
            colour = GREEN if step.better else RED
            edges = _edges(step, positions)
            axes.axvspan(*edges, color=colour, alpha=0.1, label="changed here (95 %)")
        names = _names(ledger, key, positions, steps)
        _draw_names(axes, names)
        subtitle = _subtitle(values, batches, len(failed), hidden)
        axes.set_title(subtitle, loc="left", pad=6 + 14 * min(2, len(names)))
        picture.finish(figure, axes)
    return figure


def _draw_values(
    axes: Axes,
    metric: Metric,
    values: Mapping[int, Sequence[float]],
    batches: Mapping[int, Batch],
    verdicts: Mapping[int, VerdictKind],
) -> None:
    """Draw a dot for each trial, and a line through the means of each environment."""
    dots = np.array([(position, x) for position, own in values.items() for x in own]).reshape(-1, 2)
    divisor = picture.value_axis(axes, metric, dots[:, 1]).divisor
    size = 4 if axes.get_xlim()[1] <= _MANY else 2
    axes.plot(
        dots[:, 0], dots[:, 1] / divisor, "o", color=BLUE, markersize=size, alpha=0.4,
        markeredgewidth=0, label="trial",
    )  # fmt: skip
    means = {position: sum(own) / len(own) / divisor for position, own in values.items()}
    for _, stretch in groupby(means, key=lambda position: batches[position].environment):
        at = list(stretch)
        axes.plot(at, [means[p] for p in at], "o-", color=BLUE, markersize=size, label="mean")
    for kind, colour in _VERDICTS.items():
        at = [position for position, own in verdicts.items() if own is kind and position in means]
        if at:
            levels = [means[position] for position in at]
            axes.plot(at, levels, "o", color=colour, markersize=size + 3, label=kind.value)


def _draw_changes(ledger: Reader, axes: Axes, measured: Mapping[int, Batch]) -> None:
    """Draw a line where the environment changed, and name the change."""
    for (old, before), (new, after) in pairwise(measured.items()):
        if before.environment != after.environment:
            ends = (ledger.environment(batch.environment) for batch in (before, after))
            differences = samples.environment_changes(*ends)
            text = ", ".join(f"{key} {a or 'none'} → {b or 'none'}" for key, a, b in differences)
            axes.axvline((old + new) / 2, color=MUTED, linewidth=0.9, linestyle="--")
            axes.text(
                (old + new) / 2, 0.02, clip(plain(text), 48) or "environment changed", rotation=90,
                ha="right", va="bottom", fontsize=7, color=MUTED,
                transform=axes.get_xaxis_transform(),
            )  # fmt: skip


def _draw_names(axes: Axes, names: Mapping[int, str]) -> None:
    """Write names above the axes, alternating between two lines."""
    for i, (position, text) in enumerate(sorted(names.items())):
        axes.axvline(position, color=INK, linewidth=0.7, linestyle=":")
        axes.text(
            position, 1.01 + 0.05 * (i % 2), text, ha="center", fontsize=8,
            transform=axes.get_xaxis_transform(),
        )  # fmt: skip


def _verdicts(ledger: Reader, key: Key, positions: Mapping[str, int]) -> dict[int, VerdictKind]:
    suite, task, metric = key
    return {
        positions[v.commit]: v.kind
        for v in ledger.verdicts(suite=suite, task=task)
        if v.metric == metric and v.commit in positions
    }


def _names(
    ledger: Reader, key: Key, positions: Mapping[str, int], steps: Sequence[LevelStep]
) -> dict[int, str]:
    """Return the commits named by bisects, and the change points that none explains."""
    named = {
        bisect.culprits[0]: bisect.probability
        for bisect in ledger.bisects()
        if bisect.status == "found" and (bisect.suite, bisect.task, bisect.metric) == key
    }
    names = {
        positions[sha]: f"{short(sha)} first bad ({probability(p)})"
        for sha, p in named.items()
        if sha in positions
    }
    for step in steps:
        if not named.keys() & {commit.sha for commit in step.among}:
            text = f"one of {len(step.among)}" if len(step.among) > 1 else short(step.end.sha)
            if step.before:
                text += f" {percent((step.after - step.before) / abs(step.before))}"
            names[positions[step.seen_at.sha]] = f"{text} ({probability(step.probability)})"
    return names


def _edges(step: LevelStep, positions: Mapping[str, int]) -> tuple[float, float]:
    """Return the two ends of a 95 % set. If its first commits are not measured, and so not on the
    axis, it begins at the measured commit before them."""
    among = [positions[c.sha] for c in step.among if c.sha in positions]
    first = min(among, default=positions[step.end.sha]) - 0.5
    if step.unmeasured and step.start is not None and step.start.sha in positions:
        first = min(first, positions[step.start.sha])
    return first, positions[step.end.sha] + 0.5


def _subtitle(
    values: Mapping[int, Sequence[float]], batches: Mapping[int, Batch], failed: int, hidden: int
) -> str:
    # A re-used result of another commit is drawn, but does not count as a trial.
    ran = [own for p, own in values.items() if not all(r.derived for r in batches[p].records)]
    text = f"{count(len(values), 'commit')}, {count(sum(map(len, ran)), 'trial')}"
    text += f", {failed} failed or not finite" if failed else ""
    return text + (f" ({count(hidden, 'trial')} of an earlier suite left out)" if hidden else "")
