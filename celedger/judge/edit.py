"""How each metric stands in a synthetic revision beside the commit that it was made from, by equal
seeds. Reads both sides' trials; records nothing, and knows of no history: an edit has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from celedger.base.model import CLOCKED, Metric, Task, TrialRecord
from celedger.judge.incident import MetricNoise, MetricStanding, Standing, State
from celedger.judge.standings import HIDDEN, NO_REPEATS, PAIRED
from celedger.ledger.read import Reader
from celedger.repo.synthetic import is_synthetic
from celedger.stats.tries import evidence, needed


def try_number(ledger: Reader, base: str, edit: str) -> int:
    """Return which of the synthetic revisions of a commit (hashes) that were measured this one is,
    from 1. The ledger has synthetic revisions and what they were compared with."""
    measured = {*ledger.commits_with_trials()}
    tries = [
        commit.sha for commit in ledger.commits()  # of equal times: in the order of recording
        if is_synthetic(commit) and commit.parents == (base,) and commit.sha in measured
    ]  # fmt: skip
    return tries.index(edit) + 1


def standings(
    ledger: Reader,
    state: State,
    sides: tuple[str, str],
    tasks: Sequence[tuple[Task, Task]],
    judged: Collection[tuple[str, str]],
    number: int,
    is_untracked: Callable[[str], bool],
) -> Iterator[MetricStanding]:
    """Yield how the declared metrics stand: first the tasks that fail.

    Args:
        ledger: Has the trials of both sides.
        state: Of the line; the noise is read from it.
        sides: The commit and the synthetic revision (hashes).
        tasks: Each as it is defined on both sides.
        judged: Task and metric that the suite declares; all of them share the bound.
        number: Of the try.
        is_untracked: Returns True if a message says that a file is missing which git ignores.
    """
    for old, new in tasks:
        here = ledger.trials(commit=sides[1], recipe=new.recipe)
        environment = here[-1].trial.environment if here else None
        there = ledger.trials(commit=sides[0], recipe=old.recipe, environment=environment)
        here = [r for r in here if r.trial.environment == environment]
        ended = [r for r in here if r.outcome is not None and not r.ok]
        if ended or not here:
            yield _failed(new, ended, there, is_untracked)
            continue
        for metric in new.metrics:
            if (new.name, metric.name) in judged:
                noise = state.noise_of(new.suite, new.name, metric.name)
                yield _standing(noise, new, metric, there, here, number, len(judged))


def _failed(
    task: Task,
    ended: Sequence[TrialRecord],
    there: Sequence[TrialRecord],
    is_untracked: Callable[[str], bool],
) -> MetricStanding:
    outcome = ended[-1].outcome if ended else None
    if outcome is None:
        return MetricStanding(task.suite, task.name, "", Standing.MISSING, True, note="no trial")
    is_its_own = outcome.kind.crashed and not is_untracked(outcome.message)
    kind = Standing.WORSE if is_its_own and any(r.ok for r in there) else Standing.MISSING
    note = f"{outcome.kind.value}: {outcome.message}"
    return MetricStanding(task.suite, task.name, "", kind, True, note=note)


def _standing(
    noise: MetricNoise | None,
    task: Task,
    metric: Metric,
    there: Sequence[TrialRecord],
    here: Sequence[TrialRecord],
    number: int,
    metrics: int,
) -> MetricStanding:
    """Return how a metric stands by the seeds that both sides have, at a try that looks at so many
    metrics."""

    def plain(kind: Standing, note: str) -> MetricStanding:
        names = (task.suite, task.name, metric.name)
        return MetricStanding(*names, kind, True, unit=metric.unit, note=note)

    if here and all(record.derived for record in here):
        return plain(Standing.SAME, "nothing that it reads has changed")
    a, b = values_by_seed(there, metric), values_by_seed(here, metric)
    pairs = [(a[seed], b[seed]) for seed in sorted(a.keys() & b.keys())]
    if not pairs:
        return plain(Standing.MISSING, "no seed has a value on both sides")
    if not all(math.isfinite(new) for _, new in pairs):
        was_finite = all(math.isfinite(old) for old, _ in pairs)
        return plain(Standing.WORSE if was_finite else Standing.MISSING, "not finite")
    sign, count = metric.direction.sign, len(pairs)
    level = sum(old for old, _ in pairs) / count
    value = sum(new for _, new in pairs) / count
    size = sign * (value - level)  # positive is worse
    floor = metric.visible_at(level)
    width = math.inf if noise is None else noise.reach(count, count)
    smallest = math.inf if noise is None else noise.reach(count, count, 0.95)
    kind, note = _kind(metric, pairs, size, floor, width, smallest)
    if noise is not None and kind is not Standing.TOO_NOISY:
        # One training of the commit that went wrong makes no edit better: the seed that gains
        # most is left out, if there are others. That only weakens a claim.
        gains = sorted(sign * (old - new) for old, new in pairs)[: max(1, count - 1)]
        variance = noise.variance(len(gains), len(gains))
        claim = evidence(sum(gains) / len(gains), variance, noise.sd, noise.freedom)
        if claim >= needed(number, metrics) and -size >= floor:
            kind = Standing.BETTER
        elif -size > max(floor, width):
            note = f"seems better, but chance is not excluded at try {number}"
    low, high = sorted((sign * (size - width), sign * (size + width)))
    return MetricStanding(
        task.suite, task.name, metric.name, kind, True, (), level, value, low, high, smallest,
        floor, count, metric.unit, note,
    )  # fmt: skip


def _kind(
    metric: Metric,
    pairs: Sequence[tuple[float, float]],
    size: float,
    floor: float,
    width: float,
    smallest: float,
) -> tuple[Standing, str]:
    largest = max(abs(new - old) for old, new in pairs)
    if largest <= PAIRED * floor and metric.kind not in CLOCKED:
        return Standing.SAME, "equal at every seed" if largest == 0 else ""
    if math.isinf(width):
        return Standing.TOO_NOISY, NO_REPEATS
    if size >= floor and size > width:
        return Standing.WORSE, ""
    if size + smallest > floor:
        return Standing.TOO_NOISY, HIDDEN
    return Standing.SAME, ""


def values_by_seed(records: Sequence[TrialRecord], metric: Metric) -> Mapping[int, float]:
    """Return the mean of the trials that count, by seed: re-used results where no trial ran."""
    counts = [r for r in records if r.may_be_judged(metric)]
    counts = [r for r in counts if not r.derived] or counts
    by_seed: dict[int, list[float]] = {}
    for record in counts:
        by_seed.setdefault(record.trial.seed, []).append(record.summaries[metric.name])
    return {seed: sum(values) / len(values) for seed, values in by_seed.items()}
