"""Is HEAD the same as its baseline? Judges all metrics of a run under one false-alarm budget.
Knows numbers only: which trials belong to the baseline, re-running what is suspect and storing
what was concluded are the caller's.

Three rules, by what is known of a metric:

- *exact*: it repeats exactly, so any difference is real, and told at once.
- *t*: fewer than 20 baseline values. A t-test on the pooled noise, with means that no single
  outlier can move, and the heavy-tailed law for a value that stands alone.
- *rank*: 20 or more. A rank-based e-value over the last commits and the exact rank-sum test of
  HEAD, both valid whatever the law of the noise.

The floor is applied after the test; a suspect metric asks for more trials of HEAD. A metric is
`same` only where a change as large as the floor would have been seen; otherwise it is too noisy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain

import numpy as np
from numpy.typing import NDArray

from celedger.model import Floor, VerdictKind
from celedger.stats import evidence
from celedger.stats.grouped import Grouped
from celedger.stats.noise import COARSE, Noise, collapse, pool, smallest_change, trials_needed
from celedger.stats.tails import t_quantile

ALPHA = 0.05
"""False-discovery rate over the metrics of a run."""
ENOUGH = 20
"""Baseline values from which ranks carry the verdict."""
SUSPECT_E = 3.0
SUSPECT_E_ALONE = 1.0
"""E-values from which HEAD deserves another trial (alone: HEAD has a single one), drift.md 5."""
SUSPECT_P = 0.02
BLIND = 20.0
"""A test that could not tell a change of 20 noise sds tells nothing: undecided, not the same."""
UNSETTLED = 5
"""Not told, but a budget so many times larger (that of one metric at most) would have: this is
`undecided`, in at most one run of eight in which nothing changed."""
ROUNDING = 1e-12
"""Relative difference that another order of additions makes, where a training forgets it. One
that amplifies rounding ends elsewhere: then the difference is noise, and far larger."""
WITHOUT_FLOOR = 0.1
"""Share of the level that must be seen where the suite states no floor: such a metric reports
every change that is told, and a tenth is what nobody would call the same."""
FEWEST = 3
"""Trials of HEAD worth running only to learn the noise of a metric."""
CONFIDENCE = 0.95
RULE = "e-BH/1"
NO_FLOOR = Floor()


@dataclass(frozen=True, slots=True)
class Question:
    """One metric of one task: HEAD's values, and those of the accepted commits since the last
    confirmed change, oldest first. `sign` is +1 where larger is worse, -1 where larger is better.
    Seeds, of the same shapes, let exact repeats be recognised; `noise` is what the ledger knows
    (pooled from these values when None). `look` counts, from 1, how often HEAD was judged in this
    metric with other trials: running suspects again and asking anew spends the fixed-sample
    tests' budget in shares 1/2, 1/6, 1/12 … (the e-values need no such care)."""

    values: Sequence[float]
    baseline: Sequence[Sequence[float]]
    sign: int
    floor: Floor = NO_FLOOR
    noise: Noise | None = None
    seeds: Sequence[int] | None = None
    baseline_seeds: Sequence[Sequence[int]] | None = None
    look: int = 1


@dataclass(frozen=True, slots=True)
class Judgement:
    """`effect` = `value` - `level` in the metric's unit, between `low` and `high` at 95 %.
    `suspect`: more trials of HEAD are worth their time. `since`: commits ago the change seems to
    have begun (0: HEAD). `smallest`: the smallest change these trials could have told; `wanted`:
    the one that they should tell. `trials`: how many of HEAD in all would tell that; where it
    takes far fewer of HEAD and of its baseline, `each`: how many of either (None: not known, or no
    number does)."""

    kind: VerdictKind
    level: float = math.nan
    value: float = math.nan
    effect: float = math.nan
    low: float = math.nan
    high: float = math.nan
    p_value: float = math.nan
    e_value: float = math.nan
    note: str = ""
    suspect: bool = False
    trials: int | None = None
    each: int | None = None
    since: int = 0
    smallest: float = math.inf
    wanted: float = math.nan
    rule: str = RULE


@dataclass(frozen=True, slots=True)
class _Tested:
    """A question after its test and before the budget. `weight`: the p-value's share of the
    budget, the rest being the e-value's. `error` and `dof`: of the effect."""

    judgement: Judgement
    noise: Noise
    trials: int
    baseline: int  # values
    commits: int
    error: float
    alone: bool  # one value carries a side by itself
    weight: float = 1.0


def judge(
    values: Sequence[float],
    baseline: Sequence[Sequence[float]],
    *,
    sign: int,
    floor: Floor = NO_FLOOR,
    noise: Noise | None = None,
    seeds: Sequence[int] | None = None,
    baseline_seeds: Sequence[Sequence[int]] | None = None,
    alpha: float = ALPHA,
    look: int = 1,
    seed: int = 0,
) -> Judgement:
    """`judge_many` for a single metric."""
    question = Question(values, baseline, sign, floor, noise, seeds, baseline_seeds, look)
    return judge_many([question], alpha=alpha, seed=seed)[0]


def judge_many(
    questions: Sequence[Question], *, alpha: float = ALPHA, seed: int = 0
) -> list[Judgement]:
    """The metrics of one run, judged under one budget: of the changes reported, a share `alpha`
    at most is false in the mean (e-BH: any dependence between the metrics).

    `seed` breaks ties between equal values; take it from the commit's hash. Raises ValueError for
    a metric without a direction, and for a look below 1.
    """
    tested = [_test(question, seed) for question in questions]
    open_ones = [i for i, t in enumerate(tested) if isinstance(t, _Tested)]
    answers = [t.judgement if isinstance(t, _Tested) else t for t in tested]
    if not open_ones:
        return answers
    cases = [t for t in tested if isinstance(t, _Tested)]
    metrics = len(cases)
    looks = np.array([questions[i].look for i in open_ones])
    share = 1 / (looks * (looks + 1))
    p_values = np.array([c.judgement.p_value for c in cases])
    weights = np.array([c.weight for c in cases])
    e_values = np.nan_to_num(np.array([c.judgement.e_value for c in cases]), nan=0.0)
    # A p-value below its limit is worth M / alpha: an e-value too, all or nothing.
    spent = np.where(p_values <= alpha * share * weights / metrics, metrics / alpha, 0.0)
    found = evidence.e_bh((1 - weights) * e_values + spent, alpha)
    near = alpha * min(1.0, UNSETTLED / metrics)
    alone = (p_values <= near / 2 * weights) | ((1 - weights) * e_values >= 1 / near)
    answered = zip(open_ones, cases, found.tolist(), alone.tolist(), strict=True)
    for i, case, yes, almost in answered:
        answers[i] = _conclude(case, questions[i], yes, almost, 1 - alpha * case.weight / metrics)
    return answers


def _test(question: Question, seed: int) -> Judgement | _Tested:
    if question.sign not in (1, -1):
        raise ValueError("a metric without a direction is not judged")
    if question.look < 1:
        raise ValueError("looks are counted from 1")
    head = np.asarray(question.values, dtype=float)
    if head.size == 0:
        return Judgement(VerdictKind.MISSING, note="nothing was measured")
    finite = np.isfinite(head)
    if not finite.all():
        bad = int((~finite).sum())
        value = float(head[0]) if head.size == 1 else math.nan
        note = f"{bad} of {head.size} values not finite"
        return Judgement(VerdictKind.NOT_FINITE, value=value, note=note)
    head = head * question.sign
    groups, labels = _baseline(question)
    seeds = None if question.seeds is None or not labels else np.asarray(question.seeds)
    if not groups:
        value = float(head.mean()) * question.sign
        return Judgement(VerdictKind.UNDECIDED, value=value, note="no baseline yet")
    noise = question.noise
    if noise is None or not noise.known:
        noise = _own_noise(head, groups, seeds, labels)
    exact = _exact(head, groups, seeds, labels, noise, question)
    if exact is not None:
        return exact
    if noise.deterministic:
        if noise.exact:  # its repeats disagree here: it is exact no more
            noise = replace(_own_noise(head, groups, seeds, labels), deterministic=False)
        else:
            runs = collapse(Grouped.of(groups, labels if seeds is not None else None))
            groups, labels = runs.split(), runs.split_seeds()
            own = collapse(Grouped.of([head], None if seeds is None else [seeds]))
            head, seeds = own.values, own.seeds
    if sum(g.size for g in groups) < ENOUGH:
        return _small(head, groups, noise, question)
    return _ranked(head, groups, seeds, labels, noise, question, seed)


def _baseline(question: Question) -> tuple[list[NDArray[np.float64]], list[NDArray[np.int64]]]:
    """The baseline's finite values with their seeds (none when they are not known), oriented."""
    flat = np.fromiter(chain.from_iterable(question.baseline), dtype=float) * question.sign
    ends = list(accumulate(len(group) for group in question.baseline))
    slices = [slice(end - len(g), end) for g, end in zip(question.baseline, ends, strict=True)]
    seeds = None
    if question.baseline_seeds:
        seeds = np.fromiter(chain.from_iterable(question.baseline_seeds), dtype=np.int64)
    finite = np.isfinite(flat)
    if not finite.all() or 0 in map(len, question.baseline):
        slices = [s for s in slices if finite[s].any()]
        groups = [flat[s][finite[s]] for s in slices]
        return groups, [] if seeds is None else [seeds[s][finite[s]] for s in slices]
    return [flat[s] for s in slices], [] if seeds is None else [seeds[s] for s in slices]


def _own_noise(
    head: NDArray[np.float64],
    groups: Sequence[NDArray[np.float64]],
    seeds: NDArray[np.int64] | None,
    labels: Sequence[NDArray[np.int64]],
) -> Noise:
    """The noise as these values show it: HEAD's own repeats count, the step to HEAD does not."""
    noise = pool(groups, seeds=None if seeds is None else labels)
    if head.size == 1 or noise.between > 0:
        return noise
    everything = pool([*groups, head], seeds=None if seeds is None else [*labels, seeds])
    return replace(everything, between=0.0)


def _exact(
    head: NDArray[np.float64],
    groups: Sequence[NDArray[np.float64]],
    seeds: NDArray[np.int64] | None,
    labels: Sequence[NDArray[np.int64]],
    noise: Noise,
    question: Question,
) -> Judgement | None:
    """The verdict that needs no statistics: equal seed for seed, or different where any
    difference is real. None where neither holds."""
    if not noise.deterministic and (seeds is None or not all(map(_fine, head.tolist()))):
        return None  # values may agree by chance
    sign = question.sign
    own: dict[int, float] = {}
    for s, v in zip(seeds.tolist() if seeds is not None else [0] * head.size, head, strict=True):
        if own.setdefault(s, float(v)) != float(v):
            return None
    last: dict[int, float] = {}
    for i, group in enumerate(groups):
        names = labels[i].tolist() if seeds is not None else [0] * group.size
        last |= dict(zip(names, group.tolist(), strict=True))
    common = sorted(own.keys() & last.keys())
    tolerance = 0.0 if noise.exact else ROUNDING
    equal = bool(common) and all(
        math.isclose(own[s], last[s], rel_tol=tolerance, abs_tol=0.0) for s in common
    )
    if equal and (noise.exact or 2 * len(common) >= len(own)):
        level = float(np.mean([last[s] for s in common])) * sign
        exactly = all(own[s] == last[s] for s in common)
        note = "equal to the last digit" if exactly else "equal but for rounding"
        return Judgement(
            VerdictKind.SAME, level, level, 0.0, 0.0, 0.0, 1.0, 0.0, note, smallest=0.0
        )
    if not noise.exact:
        return None
    if not common:  # an exact metric does not depend on the seed as far as anyone has seen
        common, last = sorted(own), dict.fromkeys(own, float(groups[-1].mean()))
    level = float(np.mean([last[s] for s in common])) * sign
    value = float(np.mean([own[s] for s in common])) * sign
    effect = value - level
    if effect == 0 or abs(effect) < question.floor.at(level):
        kind = VerdictKind.SAME
        note = "repeats exactly; its change is below the floor"
    else:
        kind = VerdictKind.REGRESSED if effect * sign > 0 else VerdictKind.IMPROVED
        note = "repeats exactly, so any difference is real"
    return Judgement(kind, level, value, effect, effect, effect, 0.0, math.inf, note, smallest=0.0)


def _fine(value: float) -> bool:
    """Return True if different draws of the noise hardly ever agree in so many digits."""
    return float(f"{value:.{COARSE}g}") != value


def _small(
    head: NDArray[np.float64],
    groups: Sequence[NDArray[np.float64]],
    noise: Noise,
    question: Question,
) -> _Tested:
    case = _measure(head, groups, noise, question.sign)
    if not noise.known:
        return case
    effect, dof = case.judgement.effect, noise.dof
    p_value = evidence.t_test(effect, case.error, dof, alone=case.alone)
    e_value = evidence.t_e_value(effect, case.error, min(dof, 3.0) if case.alone else dof)
    return replace(case, judgement=replace(case.judgement, p_value=p_value, e_value=e_value))


def _ranked(
    head: NDArray[np.float64],
    groups: Sequence[NDArray[np.float64]],
    seeds: NDArray[np.int64] | None,
    labels: Sequence[NDArray[np.int64]],
    noise: Noise,
    question: Question,
    seed: int,
) -> _Tested:
    everything = [*groups, head]
    if noise.between > 0:  # repeats of a commit share its luck: one value a commit
        everything = [g.mean(keepdims=True) for g in everything]
    sizes = np.array([g.size for g in everything])
    values = np.concatenate(everything)
    by_commit = np.repeat(np.arange(sizes.size), sizes)
    # A canonical order within each commit: by seed, or shuffled where there are none, and never
    # that of measurement. Ranks of values in sorted order would not be independent.
    if seeds is not None and labels and noise.between == 0:
        values = values[np.lexsort((values, np.concatenate([*labels, seeds]), by_commit))]
    else:
        values = values[np.lexsort((values, by_commit))]
        shuffled = evidence.uniform(0, values.size, seed + 1)
        values = values[np.lexsort((shuffled, by_commit))]
    shift = evidence.rank_e_value(values, sizes, seed)
    past = values[: -sizes[-1]][-evidence.HISTORY :]
    p_value = evidence.rank_sum(values[-sizes[-1] :], past)
    before = groups[: len(groups) - shift.age] if shift.e_value >= SUSPECT_E else groups
    if not before:
        before = groups[:1]
    case = _measure(head, before, noise, question.sign)
    against = shift.sign * case.judgement.effect * question.sign < 0
    judgement = replace(
        case.judgement,
        p_value=p_value,
        e_value=0.0 if against else shift.e_value,  # an older shift that HEAD itself contradicts
        since=shift.age if shift.e_value >= SUSPECT_E else 0,
    )
    return replace(case, judgement=judgement, alone=bool(sizes[-1] == 1), weight=0.5)


def _measure(
    head: NDArray[np.float64], groups: Sequence[NDArray[np.float64]], noise: Noise, sign: int
) -> _Tested:
    """Level, value, and effect with its standard error and interval; not yet any evidence."""
    values = np.concatenate(groups)
    k, n, m = head.size, values.size, len(groups)
    sd = noise.sd if noise.known else math.nan
    level = evidence.robust_mean(values, math.hypot(sd, noise.between))
    value = evidence.robust_mean(head, sd, toward=level)
    effect = value - level
    error = math.sqrt(sd**2 * (1 / k + 1 / n) + noise.between**2 * (1 + 1 / m))
    half = math.nan
    if noise.known:
        half = t_quantile(0.5 + CONFIDENCE / 2, min(noise.dof, 1e6)) * error
    low, high = sorted(((effect - half) * sign, (effect + half) * sign))
    judgement = Judgement(VerdictKind.SAME, level * sign, value * sign, effect * sign, low, high)
    return _Tested(judgement, noise, k, n, m, error, k == 1 or n == 1 or noise.between > 0)


def _beyond(told: Judgement, floor: float) -> bool:
    """Whether the interval of the effect excludes every change that is not worth knowing, by far:
    twice its half-width away, since nothing here was held to the budget."""
    half = (told.high - told.low) / 2
    return math.isfinite(half) and abs(told.effect) - 3 * half > floor


def _conclude(
    case: _Tested,
    question: Question,
    found: bool,
    almost: bool,
    confidence: float,
) -> Judgement:
    """The verdict proper, from the test, the budget and the floor. `almost`: the first look at a
    budget a few times larger would have told HEAD from its baseline."""
    told = case.judgement
    if not math.isfinite(told.p_value):
        note = "nothing was repeated yet, so the noise is not known: run it again"
        return replace(told, kind=VerdictKind.UNDECIDED, suspect=True, trials=2, note=note)
    floor = question.floor.at(told.level)
    wanted = floor or WITHOUT_FLOOR * abs(told.level)
    smallest = smallest_change(
        case.noise, case.trials, case.baseline, confidence, baseline_commits=case.commits
    )
    told = replace(told, smallest=smallest, wanted=wanted)
    small = abs(told.effect) < floor
    if found and small:
        return replace(told, note="its change is below the floor")
    if found:
        worse = told.effect * question.sign > 0
        kind = VerdictKind.REGRESSED if worse else VerdictKind.IMPROVED
        note = f"since {told.since} commits before" if told.since else ""
        # A value on its own may be an outlier, and a test of few values leans on the law of the
        # noise: whoever can, runs it again before believing it. (Simulated, 10 metrics and under
        # 20 baseline values: half the false alarms.)
        doubtful = case.trials == 1 or (case.weight == 1 and question.look == 1)
        return replace(told, kind=kind, note=note, suspect=doubtful)
    limit = SUSPECT_E_ALONE if case.alone else SUSPECT_E
    suspicious = told.e_value >= limit if case.weight < 1 else told.p_value <= SUSPECT_P
    # A rank among few or tied values cannot be extreme, however far the value lies; an interval
    # that excludes every change below the floor can. Unsettled, so it never passes as the same.
    beyond = _beyond(told, floor)
    almost = almost or beyond
    suspect = (suspicious and not small) or beyond
    blind = case.weight == 1 and smallest > BLIND * math.hypot(case.noise.sd, case.noise.between)
    if blind:
        note, wanted = "too few trials to tell anything", max(floor, 4 * case.noise.sd)
        kind, suspect = VerdictKind.UNDECIDED, case.trials < FEWEST
    elif almost and not small:
        note, wanted = "seems changed, but is not settled", abs(told.effect)
        kind, suspect = VerdictKind.UNDECIDED, True
    elif smallest > wanted:
        note, kind = "", VerdictKind.TOO_NOISY
    else:
        return replace(told, suspect=suspect)
    told = replace(told, kind=kind, note=note, wanted=wanted, suspect=suspect)
    return _with_trials(told, case, confidence)


def _with_trials(told: Judgement, case: _Tested, confidence: float) -> Judgement:
    """Add how many trials would tell the wanted change: of HEAD alone, or far fewer of both."""
    alone = trials_needed(
        case.noise, told.wanted, case.baseline, confidence, baseline_commits=case.commits
    )
    each = trials_needed(case.noise, told.wanted, None, confidence)
    if alone is None or (each is not None and 4 * each < alone):
        return replace(told, each=each)
    return replace(told, trials=alone)
