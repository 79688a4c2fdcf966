"""Go on inside the commit that a bisect named: the smallest set of its hunks that moves the metric.
Each set is a synthetic revision, the parent with these hunks, trained and told by its value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from celedger.base.config import Config
from celedger.base.errors import CannotJudge
from celedger.base.model import FindingRecord, Task, TrialRecord
from celedger.judge.bisection.bisect_report import Report
from celedger.judge.bisection.rehearsal import apart
from celedger.judge.edit import values_by_seed
from celedger.judge.incident import MetricNoise
from celedger.repo.hunks import CommitPart, CommitParts
from celedger.stats.smallest_set import smallest_set
from celedger.trial.engine import Need
from celedger.trial.runner import Bench, run_all

_SURE = 2.33
"""Standard errors between a value and the middle of the two levels: one in a hundred is wrong."""
_MOST_SEEDS = 5


@dataclass(frozen=True, slots=True)
class GuiltyHunks:
    """`parts` of `count` move the metric of a report; `trainings` were run to find them."""

    report: Report
    parts: tuple[CommitPart, ...]
    count: int
    trainings: int

    def sentence(self) -> str:
        """Return `net.py:12 alone moves fit val_loss (1 of 7 parts of 2d24c2e5; 3 trainings)`."""
        names = ", ".join(part.title for part in self.parts)
        what = f"{self.report.task} {self.report.metric or 'crash'}"
        verb = "alone moves" if len(self.parts) == 1 else "together move"
        sha = self.report.culprits[0].sha[:8]
        runs = f"{self.trainings} training{'s' * (self.trainings != 1)}"
        return f"{names} {verb} {what} ({len(self.parts)} of {self.count} parts of {sha}; {runs})"


def guilty_hunks(
    bench: Bench,
    config: Config,
    report: Report,
    task: Task,
    noise: MetricNoise | None,
    places: Sequence[tuple[str, int]] = (),
) -> GuiltyHunks:
    """Search the parts of the commit that a report names. `places` are the likeliest: file and
    first new line. Raises CannotJudge for a commit without a parent."""
    culprit = report.culprits[0]
    if not culprit.parents:
        raise CannotJudge(f"{culprit.sha[:10]} has no parent to compare with")
    parts = CommitParts(bench.repository, culprit)
    number = _seeds(report, noise)
    with apart(bench, config, task, [culprit.parents[0], culprit.sha]) as (own, beside):
        beside.station.hold_environment(report.bad.sha, [task])

        def has_effect(chosen: frozenset[int]) -> bool | None:
            commit = parts.with_only(chosen)
            needs = [Need(commit, task, seed, role="bisect") for seed in _first(task, number)]
            return _moved(report, task, run_all(beside, needs))

        before = _trained(own.trials(recipe=task.recipe))
        guesses = _positions(parts.parts, places)
        chosen = smallest_set(len(parts.parts), has_effect, guesses)
        trainings = _trained(own.trials(recipe=task.recipe)) - before
    return GuiltyHunks(
        report, tuple(parts.parts[i] for i in sorted(chosen)), len(parts.parts), trainings
    )


def _trained(records: Sequence[TrialRecord]) -> int:
    return sum(1 for record in records if not record.derived)


def _first(task: Task, number: int) -> list[int]:
    """Return the first seeds of a task, and those after them."""
    later = range(max(task.seeds) + 1, max(task.seeds) + 1 + number)
    return [*task.seeds, *later][:number]


def _seeds(report: Report, noise: MetricNoise | None) -> int:
    """Return how many seeds tell on which side of the middle a value lies."""
    if not report.metric or noise is None or noise.is_exact or not math.isfinite(report.effect):
        return 1
    needed = math.ceil((2 * _SURE * noise.sd / abs(report.effect)) ** 2) if report.effect else 1
    return min(max(needed, 1), _MOST_SEEDS)


def _moved(report: Report, task: Task, records: Sequence[TrialRecord]) -> bool | None:
    """Return True if these trainings are on the bad side; None where they cannot be compared."""
    kinds = [record.outcome.kind for record in records if record.outcome is not None]
    crashed = any(kind.crashed for kind in kinds)
    if not report.metric:
        return crashed
    metric = task.metric(report.metric)
    values = list(values_by_seed(records, metric).values()) if metric is not None else []
    if crashed or not values:
        return None
    if not math.isfinite(report.effect):
        return not all(map(math.isfinite, values))
    middle = report.level + report.effect / 2
    return (sum(values) / len(values) - middle) * report.effect > 0


def _positions(parts: Sequence[CommitPart], places: Sequence[tuple[str, int]]) -> list[int]:
    at = {(part.hunk.new, part.hunk.new_start): i for i, part in enumerate(parts) if part.hunk}
    return [at[place] for place in places if place in at]


def explained_places(findings: Sequence[FindingRecord], task: str) -> list[tuple[str, int]]:
    """Return where an explanation of a commit saw the cause, the likeliest first."""
    for finding in reversed(findings):
        explanations: Any = finding.document.get("explanations")
        if finding.verb == "explain" and finding.task == task and explanations:
            return [(hunk["new"], hunk["new_start"]) for hunk in explanations[0]["hunks"]]
    return []
