"""Continue after a bisect named a commit, by trials of revisions made for it. Must not know who
asks or how the answer is shown.

Rehearse the revert: train the bad end without the commit, with the bad end's seeds. That proves the
name or withdraws it, because a search only shows where a metric moved. Or search inside the commit:
the smallest set of its hunks that moves the metric. Each set is a synthetic revision, the parent
with these hunks."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from celedger.base.errors import CannotJudge
from celedger.base.model import CLOCKED, FindingRecord, Task, TrialRecord
from celedger.judge.bisection.bisect_report import Rehearsal, Report
from celedger.judge.incident import MetricNoise
from celedger.judge.variants import values_by_seed
from celedger.ledger import Ledger
from celedger.repo import synthetic
from celedger.repo.hunks import CommitPart, CommitParts
from celedger.repo.synthetic import ObjectStore
from celedger.stats.tails import t_quantile
from celedger.trial.engine import Need
from celedger.trial.runner import Bench, run_all
from celedger.trial.workplace import local_bench


def smallest_set(
    count: int, has_effect: Callable[[frozenset[int]], bool | None], guesses: Sequence[int] = ()
) -> frozenset[int]:
    """Return a set of parts, by their positions, that has the effect. It loses it without any one
    of them, if no part takes away what others have.

    It asks at most log2(count) + 1 sets, rounded up, for each part of the answer, and two guesses.

    Args:
        count: How many parts there are; all together have the effect, and none has it not.
        has_effect: Returns None for a set that cannot be tested.
        guesses: Positions, the likeliest first: each of the first two is asked alone.
    """
    known: dict[frozenset[int], bool] = {frozenset(range(count)): True, frozenset(): False}

    def asked(parts: frozenset[int]) -> bool:
        if parts not in known:
            known[parts] = bool(has_effect(parts))
        return known[parts]

    for guess in guesses[:2]:
        if asked(frozenset([guess])):
            return frozenset([guess])
    chosen: frozenset[int] = frozenset()
    high = count  # the first `high` parts and those chosen have the effect
    while not asked(chosen):
        low = 0  # and the first `low` parts with them have it not
        while high - low > 1:
            middle = (low + high) // 2
            if asked(chosen.union(range(middle))):
                high = middle
            else:
                low = middle
        high -= 1
        chosen |= {high}
    return chosen


_FEWEST_SEEDS = 3  # for an interval by Student's t; two have a factor of 12.7


def share_restored(
    bad: Mapping[int, float],
    reverted: Mapping[int, float],
    effect: tuple[float, float, float],
    noise: MetricNoise | None,
) -> tuple[float, float, float]:
    """Return the part of an effect that a revert takes back, with its 95 % interval; NaN where no
    seed has both values, or nothing tells how they vary.

    Args:
        bad, reverted: Values by seed, in the metric's unit.
        effect: Of the named commit, with its interval: bad - good, in the same unit.
        noise: Of one trial. Without it three equal seeds are needed.
    """
    size, *bounds = effect
    differences = [bad[seed] - reverted[seed] for seed in sorted(bad.keys() & reverted.keys())]
    nothing = (math.nan, math.nan, math.nan)
    if not differences or not size or not math.isfinite(sum(differences)):
        return nothing
    count, mean = len(differences), statistics.fmean(differences)
    if noise is not None and noise.is_known and not noise.is_exact:
        error = noise.reach(count, count)
    elif count >= _FEWEST_SEEDS:
        spread = statistics.stdev(differences)
        error = t_quantile(0.975, count - 1) * spread / math.sqrt(count)
    elif noise is not None and noise.is_exact:
        error = 0.0
    else:
        return nothing
    share = mean / size
    of_effect = max((abs(bound - size) for bound in bounds if math.isfinite(bound)), default=0.0)
    width = math.hypot(error, share * of_effect) / abs(size)
    return share, share - width, share + width


@contextmanager
def apart(bench: Bench, task: Task, commits: Sequence[str]) -> Iterator[tuple[Ledger, Bench]]:
    """Yield the ledger of synthetic revisions, with the trials of some commits (hashes) whose
    results they may re-use, and a bench on this machine that measures them."""
    store = ObjectStore(bench.repository)
    with Ledger.open(store.folder / synthetic.LEDGER, create=True) as own:
        own.take_trials(bench.ledger, commits)
        setup = bench.setup
        with local_bench(
            store.repository, own, setup.config, setup.suite, [task], gate=setup.gate,
            why=setup.why, label="celedger bisect", listen=bench.station.listen,
        ) as beside:  # fmt: skip
            yield own, beside


def rehearse(bench: Bench, report: Report, task: Task, noise: MetricNoise | None) -> Rehearsal:
    """Train the bad end of a bisect without the commit that its report names, with the seeds that
    the bad end has; for speed and memory the bad end itself beside it, since the machine may have
    changed. Runs on this machine, in a repository and a ledger of synthetic revisions."""
    culprit, bad = report.culprits[0], report.bad
    repository, ledger = bench.repository, bench.ledger
    nothing = Rehearsal(culprit.sha, bad.sha)
    try:
        reverted = synthetic.find(repository, f"{bad.sha}-{culprit.sha}")
    except CannotJudge as error:  # later commits changed the same lines
        return replace(nothing, why=str(error))
    if reverted is None or not reverted.is_changed:
        return replace(nothing, why=f"{culprit.sha[:10]} is undone at {bad.sha[:10]}")
    metric = task.metric(report.metric) if report.metric else None
    is_clocked = metric is not None and metric.kind in CLOCKED
    with apart(bench, task, [bad.sha, *culprit.parents]) as (own, beside):
        beside.station.hold_environment(bad.sha, [task])
        environment = beside.place(bad.sha, task).environment.fingerprint
        there = ledger.trials(commit=bad.sha, recipe=task.recipe, environment=environment)
        seeds = dict.fromkeys(record.trial.seed for record in there if record.is_conclusive)
        commits = [reverted.commit, bad] if is_clocked else [reverted.commit]
        needs = [Need(c, task, seed, role="bisect") for seed in seeds for c in commits]
        ran_now = run_all(beside, needs)
        here = own.trials(commit=reverted.commit.sha, recipe=task.recipe, environment=environment)
    if is_clocked:
        there, here = (
            [record for record in ran_now if record.trial.commit == commit.sha]
            for commit in (bad, reverted.commit)
        )
    ran = replace(nothing, trials=_trained(ran_now))
    if metric is None:
        ended = [record for record in here if record.is_conclusive]
        share = sum(record.ok for record in ended) / len(ended) if ended else math.nan
        return replace(ran, share=share, low=share, high=share)
    reverted_values = values_by_seed(here, metric)
    if not math.isfinite(report.effect) and reverted_values:
        share = sum(map(math.isfinite, reverted_values.values())) / len(reverted_values)
        return replace(ran, share=share, low=share, high=share)
    effect = (report.effect, report.low, report.high)
    share, low, high = share_restored(values_by_seed(there, metric), reverted_values, effect, noise)
    if math.isnan(share):
        return replace(ran, why=_untold(here))
    return replace(ran, share=share, low=low, high=high)


def _untold(records: Sequence[TrialRecord]) -> str:
    ended = [r.outcome for r in records if r.outcome is not None and not r.ok]
    if ended:
        return f"without it the training fails: {ended[-1].message}"
    return "too few seeds tell how much of it comes back"


# --- the smallest set of hunks

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
    with apart(bench, task, [culprit.parents[0], culprit.sha]) as (own, beside):
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
