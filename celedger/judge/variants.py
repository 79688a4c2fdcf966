"""Compare variants by equal seeds: a synthetic revision with the commit that it was made from, and
the variants of a grid with each other; and say which parameters make the difference. Reads the
trials of both sides and the noise that the state knows; records nothing. An edit has no history."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev

from celedger.base.model import CLOCKED, Metric, Task, TrialRecord
from celedger.judge.incident import MetricNoise, MetricStanding, Standing, State
from celedger.judge.measured import varies_by_session
from celedger.judge.standings import HIDDEN, NO_REPEATS, PAIRED
from celedger.ledger.read import Reader
from celedger.repo.synthetic import is_synthetic
from celedger.stats.two_sides import evidence, needed

APART = "seems otherwise, but was not measured in turns"
BY_SESSION = "noise of sessions hides changes as small as the floor"
OF_SESSIONS = (APART, BY_SESSION)
"""What trials of both sides in turns may settle."""
FEWEST = 3
"""Two values, or pairs, tell nearly nothing of how they vary."""


def try_number(ledger: Reader, base: str, edit: str) -> int:
    """Return the number of a try, from 1: of the measured synthetic revisions of a commit (hashes)
    it is the n-th. The ledger has synthetic revisions and what they were compared with."""
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
        sessions = ledger.sessions(suite=new.suite, task=new.name)
        here = ledger.trials(commit=sides[1], recipe=new.recipe)
        environment = here[-1].trial.environment if here else None
        there = ledger.trials(commit=sides[0], recipe=old.recipe, environment=environment)
        here = [r for r in here if r.trial.environment == environment]
        ended = [r for r in here if r.outcome is not None and not r.ok]
        if ended or not here:
            yield _failed(new, ended, there, is_untracked)
            continue
        own = {sessions[r.trial.ulid] for r in here}
        beside = [r for r in there if sessions[r.trial.ulid] in own]
        for metric in new.metrics:
            if (new.name, metric.name) not in judged:
                continue
            noise = state.noise_of(new.suite, new.name, metric.name)
            others, is_apart = there, False
            if varies_by_session(metric):  # and machines become loaded
                later = [r for r in beside if r.trial.started > here[0].trial.started]
                is_apart = not values_by_seed(later, metric)
                if noise is not None and not is_apart:
                    others, noise = beside, noise._replace(session=0.0)
            stands = _standing(noise, new, metric, others, here, number, len(judged))
            if is_apart and stands.standing in (Standing.WORSE, Standing.BETTER):
                stands = stands._replace(standing=Standing.UNDECIDED, note=APART)
            elif is_apart and stands.note == HIDDEN:
                stands = stands._replace(note=BY_SESSION)
            yield stands


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

    ran = {record.derived or record.trial.ulid for record in there}
    if here and ran.issuperset(record.derived for record in here):
        return plain(Standing.SAME, "nothing that it reads has changed")
    a, b = values_by_seed(there, metric), values_by_seed(here, metric)
    if metric.kind in CLOCKED and a:  # no noise is the seed's
        pairs = [(sum(a.values()) / len(a), value) for value in b.values()]
    else:
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
    width, smallest = _reaches(noise, metric, list(a.values()), pairs)
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


def _reaches(
    noise: MetricNoise | None,
    metric: Metric,
    values: Sequence[float],
    pairs: Sequence[tuple[float, float]],
) -> tuple[float, float]:
    """Return how far a difference of means goes by chance, at 95 %, to both sides and to one, by
    the noise and by the commit's `values` or the pairs. What a clock shows varies as much as either
    says; where seeds repeat bit by bit the narrower of both counts, each at half the error."""
    from celedger.stats.tails import t_quantile

    count, clocked = len(pairs), metric.kind in CLOCKED
    if noise is None:
        return math.inf, math.inf
    few = min(len(values), count) < FEWEST or not math.isfinite(sum(values))
    if few or not (clocked or noise.is_exact):
        return noise.reach(len(values), count), noise.reach(len(values), count, 0.95)
    if clocked:
        choose, chances, freedom = max, (0.975, 0.95), len(values) - 1
        error = stdev(values) * math.sqrt(1 / len(values) + 1 / count)
    else:
        choose, chances, freedom = min, (0.9875, 0.975), count - 1
        error = stdev(new - old for old, new in pairs) / math.sqrt(count)
    both, one = (
        choose(noise.reach(len(values), count, p), t_quantile(p, freedom) * error) for p in chances
    )
    return both, one


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


ERROR = 0.05
"""Probability that a variant is called surely the best of a grid and another one is as good;
and that a parameter is named that moves nothing."""


@dataclass(frozen=True, slots=True)
class Lead:
    """The variant with the best mean of a metric, by its number: of `number` that have values.

    Attributes:
        close: Variants that may be as good: these seeds do not tell.
        second: The variant with the next mean.
        change, level: Of the second's mean to the best's, and the second's mean.
    """

    metric: Metric
    number: int
    best: int
    close: tuple[int, ...]
    second: int
    change: float
    level: float


def lead(
    metric: Metric,
    variants: Sequence[Sequence[TrialRecord]],
    noises: Sequence[MetricNoise | None],
) -> Lead | None:
    """Return the best variant of a metric, each given by its trials and what is known of its noise;
    None where fewer than two have finite values."""
    by_seed = [values_by_seed(records, metric) for records in variants]
    means = {
        number: metric.direction.sign * sum(values.values()) / len(values)
        for number, values in enumerate(by_seed)
        if values and all(map(math.isfinite, values.values()))
    }
    if len(means) < 2:
        return None
    best, second, *_ = sorted(means, key=means.__getitem__)
    pairs = {
        other: _pair(metric, by_seed[best], by_seed[other], (noises[best], noises[other]))
        for other in means if other != best
    }  # fmt: skip
    spreads = [spread for count, _, spread, _ in pairs.values() if count > 1]
    usual = sum(spreads) / len(spreads) if len(spreads) > 1 else None
    # Each variant may be the best by chance: all claims together keep to ERROR.
    limit = ERROR / len(means)
    close = tuple(other for other, pair in pairs.items() if _chance(*pair, usual) > limit)
    level = metric.direction.sign * means[second]
    change = metric.direction.sign * means[best] - level
    return Lead(metric, len(means), best, close, second, change, level)


def _chance(count: int, mean: float, spread: float, session: float, usual: float | None) -> float:
    """Return the probability of such a lead, or a larger one, between equals.

    Differences at equal seeds are Student's t around the true one. Two seeds alone tell nearly
    nothing of their variance, so the mean of all pairs, `usual`, counts as one more observation
    of it. With it a variant as good as the leader is called worse in at most 5 of 100 grids
    where all are equally noisy, and in 7 where one of three is 30 times noisier than the
    others: tests/judge/test_variants.py.
    """
    from celedger.stats.tails import t_tail

    if count < 2 or mean <= 0:
        return 1.0
    variance, freedom = spread, count - 1
    if usual is not None:
        variance, freedom = (freedom * variance + usual) / (freedom + 1), freedom + 1
    error = max(math.sqrt(variance / count), session)
    return t_tail(mean / error, freedom) if error else 0.0


def _pair(
    metric: Metric,
    best: Mapping[int, float],
    other: Mapping[int, float],
    noises: Sequence[MetricNoise | None],
) -> tuple[int, float, float, float]:
    """Compare the leader and another variant. Values above 0 are compared by their logarithms,
    since noise grows with the level; but not values that differ alike at all seeds, of which only
    rounding is known, and not what a clock or a meter of memory shows: its session's noise is known
    in its own unit.

    Returns:
        The number of equal seeds, the mean of their differences and their variance, and the error
        of the mean that no seed tells.
    """
    import numpy as np

    from celedger.stats.trial_noise import written_resolution

    shared = sorted(best.keys() & other.keys())
    count, session = len(shared), 0.0
    if count < 2:
        return count, 0.0, 0.0, 0.0
    values = np.array([(best[seed], other[seed]) for seed in shared])
    # Two rounded values differ by an error of this deviation, however alike the differences are.
    rounding = written_resolution(np.unique(values)) / math.sqrt(6)
    if metric.kind in CLOCKED:
        known = [noise.error(count, count) for noise in noises if noise is not None]
        session = max(known) if len(known) == len(noises) else math.inf
    elif values.min() > 0 and np.ptp(values[:, 1] - values[:, 0]) > rounding:
        rounding /= float(values.min())
        values = np.log(values)
    differences = metric.direction.sign * (values[:, 1] - values[:, 0])
    spread = max(float(differences.var(ddof=1)), rounding**2)
    return count, float(differences.mean()), spread, session


def shares(
    metric: Metric,
    variants: Sequence[tuple[Mapping[str, object], Sequence[TrialRecord]]],
    noises: Sequence[MetricNoise | None],
) -> dict[str, float]:
    """Return the share of the differences between variants that each parameter alone explains, of
    those that surely explain some; the largest first.

    Each variant is given by its parameters and trials. The model adds an effect a value; a
    parameter's share is what the model loses without it, less what it loses by chance. What
    parameters explain only together, belongs to none of them.
    """
    import numpy as np

    from celedger.stats.tails import f_tail

    by_seed = [values_by_seed(records, metric) for _, records in variants]
    seeds = sorted(set.intersection(*(set(values) for values in by_seed)))
    values = np.array([[own[seed] for seed in seeds] for own in by_seed])
    if not values.size or not np.isfinite(values).all():
        return {}
    values -= values.mean(axis=0)  # what a seed does to all variants
    means = values.mean(axis=1)
    total, count = float(means @ means), len(means)
    effects = {}
    for name in dict.fromkeys(name for params, _ in variants for name in params):
        column = [repr(params.get(name)) for params, _ in variants]
        if len(levels := sorted(set(column))) > 1:
            effects[name] = np.array([[each == level for level in levels[1:]] for each in column])

    def fit(names: Sequence[str]) -> tuple[float, int]:
        """Return what these parameters leave unexplained, and the number of free effects."""
        design = np.column_stack([np.ones(count), *(effects[name] for name in names)])
        own, _, rank, _ = np.linalg.lstsq(design, means, rcond=None)
        return float(((means - design @ own) ** 2).sum()), int(rank)

    rest, rank = fit([*effects])
    free, seed_free = count - rank, (count - 1) * (len(seeds) - 1)
    # A mean's variance by chance: by what the model leaves, by how seeds disagree, and by sessions.
    chances = [(rest / free, free)] if free else []
    if seed_free:
        disagree = float(((values - means[:, None]) ** 2).sum())
        chances.append((disagree / seed_free / len(seeds), seed_free))
    if metric.kind in CLOCKED:
        known = [noise.error(len(seeds), len(seeds)) for noise in noises if noise is not None]
        least = max(known) ** 2 / 2 if len(known) == len(noises) else math.inf
        chances = [(max(chance, least), dof) for chance, dof in chances]
    chance, dof = max(chances, default=(math.inf, 1))
    explained = {}
    for name in effects:
        without, others = fit([each for each in effects if each != name])
        lost, own = without - rest, rank - others
        if not own or lost <= 1e-12 * total:
            continue
        if not chance or f_tail(lost / own / chance, own, dof) < ERROR / len(effects):
            explained[name] = (lost - own * chance) / total
    return dict(sorted(explained.items(), key=lambda item: -item[1]))
