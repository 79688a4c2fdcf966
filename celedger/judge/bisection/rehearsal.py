"""Rehearse the revert of a named commit: the bad end without it, trained with the bad end's seeds.
It proves a name, or takes it back: a search only says where a metric moved. Must not know who asks
or how the answer is shown.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from celedger.base.config import Config
from celedger.base.errors import CannotJudge
from celedger.base.model import Task, TrialRecord
from celedger.judge.bisection.bisect_report import Rehearsal, Report
from celedger.judge.edit import values_by_seed
from celedger.judge.incident import TWO_SIDED_95, MetricNoise
from celedger.ledger import Ledger
from celedger.repo import synthetic
from celedger.repo.object_store import ObjectStore
from celedger.stats.tails import t_quantile
from celedger.trial.engine import Need
from celedger.trial.runner import Bench, run_all
from celedger.trial.workplace import local_bench

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
        error = TWO_SIDED_95 * noise.sd * math.sqrt(2 / count + 2 * noise.session**2)
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
def apart(
    bench: Bench, config: Config, task: Task, commits: Sequence[str]
) -> Iterator[tuple[Ledger, Bench]]:
    """Yield the ledger of synthetic revisions, with the trials of some commits (hashes) whose
    results they may re-use, and a bench on this machine that measures them."""
    store = ObjectStore(bench.repository)
    with Ledger.open(store.folder / synthetic.LEDGER, create=True) as own:
        own.take_trials(bench.ledger, commits)
        with local_bench(
            store.repository, own, config, bench.suite, [task], gate=bench.setup.gate,
            why=bench.setup.why, label="celedger bisect", listen=bench.station.listen,
        ) as beside:  # fmt: skip
            yield own, beside


def rehearse(
    bench: Bench, config: Config, report: Report, task: Task, noise: MetricNoise | None
) -> Rehearsal:
    """Train the bad end of a bisect without the commit that its report names, with the seeds that
    the bad end has. Runs on this machine, in a repository and a ledger of synthetic revisions."""
    culprit, bad = report.culprits[0], report.bad
    repository, ledger = bench.repository, bench.ledger
    nothing = Rehearsal(culprit.sha, bad.sha)
    try:
        reverted = synthetic.find(repository, f"{bad.sha}-{culprit.sha}")
    except CannotJudge as error:  # later commits changed the same lines
        return replace(nothing, why=str(error))
    if reverted is None or not reverted.is_changed:
        return replace(nothing, why=f"{culprit.sha[:10]} is undone at {bad.sha[:10]}")
    with apart(bench, config, task, [bad.sha, *culprit.parents]) as (own, beside):
        beside.station.hold_environment(bad.sha, [task])
        environment = beside.place(bad.sha, task).environment.fingerprint
        there = ledger.trials(commit=bad.sha, recipe=task.recipe, environment=environment)
        seeds = dict.fromkeys(record.trial.seed for record in there if _answers(record))
        run_all(beside, [Need(reverted.commit, task, seed, role="bisect") for seed in seeds])
        here = own.trials(commit=reverted.commit.sha, recipe=task.recipe, environment=environment)
    ran = replace(nothing, trials=sum(1 for record in here if not record.derived))
    metric = task.metric(report.metric) if report.metric else None
    if metric is None:
        ended = [record for record in here if _answers(record)]
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


def _answers(record: TrialRecord) -> bool:
    return record.outcome is not None and record.outcome.kind.final and not record.early_stopped


def _untold(records: Sequence[TrialRecord]) -> str:
    ended = [r.outcome for r in records if r.outcome is not None and not r.ok]
    if ended:
        return f"without it the training fails: {ended[-1].message}"
    return "too few seeds tell how much of it comes back"
