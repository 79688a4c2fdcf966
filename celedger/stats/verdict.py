"""Is HEAD the same as its baseline? Judges all metrics of a run under one false-alarm budget.
Knows numbers only: which trials belong to the baseline, re-running what is suspect and storing
what was concluded are the caller's.

Three rules, by what is known of a metric:

- *exact*: it repeats exactly, so any difference is real, and told at once.
- *t*: fewer than 20 baseline values. A t-test on the pooled noise, with means that no single
  outlier can move, and the heavy-tailed law for a value that stands alone.
- *rank*: 20 or more. The exact rank-sum test, valid whatever the law of the noise.

Half of the budget is the test's, for the trials of the first look. The other half is an e-value's,
for all trials: that of HEAD's ranks among its baseline and, by *rank*, of a shift over the last
commits. Under "nothing changed" an e-value exceeds 1/alpha with at most the
probability alpha however often and whenever it is looked at. So a suspicion costs no budget:
HEAD's trial may ask for others, all of them count, and more trials can only add. A fixed-sample
test at every look would have to divide its budget by the number of looks instead.

A change told by the first look asks for two trials with fresh seeds, and falls where these alone
contradict it: outliers and skewed noise, which a test of few values cannot see, seldom do it twice.
The floor is applied after the test. A metric is `same` only where a change as large as
the floor would have been seen; otherwise it is too noisy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from celedger.base.model import Floor, VerdictKind
from celedger.stats import evidence
from celedger.stats.grouped_values import Grouped, Layout
from celedger.stats.noise import Noise, collapse, fine, pool, smallest_change, trials_needed
from celedger.stats.tails import t_quantile

ALPHA = 0.05
"""False-discovery rate over the metrics of a run."""
ENOUGH = 20
"""Baseline values from which ranks carry the verdict."""
SUSPECT_E = 3.0
"""E-value of a lasting shift from which HEAD deserves another trial, drift.md 5."""
SUSPECT_P = 0.05
"""The same for the p-value of HEAD itself, a single trial included: a suspicion costs no budget,
only trials."""
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
NO_BASELINE = "no baseline yet"
"""The note of a verdict that has nothing to compare with."""
FRESH = 2
"""Trials with fresh seeds that what the first look told must survive."""
LASTING = 0.4
"""Share of the first look's effect that they must show, or it is withdrawn. Simulated, ten metrics
and 18 baseline values: 16 → 2 false alarms in 1,000 on skewed noise, 26 → 4 where one seed in ten
collapses, for a budget of 5."""
FEWEST = 3
"""Trials of HEAD worth running only to learn the noise of a metric."""
CONFIDENCE = 0.95
RULE = "e-BH/2"
NO_FLOOR = Floor()


@dataclass(frozen=True, slots=True)
class VerdictQuestion:
    """One metric of one task: HEAD's values, and those of the accepted commits since the last
    confirmed change, oldest first. `sign` is +1 where larger is worse, -1 where larger is better.
    Seeds, of the same shapes, let exact repeats be recognised; `noise` is what the ledger knows
    (pooled from these values when None). `first`: how many of HEAD's values, in the order of
    measuring, it had when it was first judged [all]."""

    values: Sequence[float]
    baseline: Sequence[Sequence[float]]
    sign: int
    floor: Floor = NO_FLOOR
    noise: Noise | None = None
    seeds: Sequence[int] | None = None
    baseline_seeds: Sequence[Sequence[int]] | None = None
    first: int | None = None


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
    """A question after its test and before the budget."""

    judgement: Judgement
    noise: Noise
    trials: int
    baseline: int  # values
    commits: int
    gate: float  # p-value of the effect on normal noise: what deserves another trial
    ranked: bool = False
    shift: float = 0.0  # e-value of a shift over the last commits
    first: float = math.nan  # p-value of the first look
    contradicted: bool = False  # by the fresh seeds since then


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
    first: int | None = None,
    seed: int = 0,
) -> Judgement:
    """`judge_many` for a single metric."""
    question = VerdictQuestion(values, baseline, sign, floor, noise, seeds, baseline_seeds, first)
    return judge_many([question], alpha=alpha, seed=seed)[0]


def judge_many(
    questions: Sequence[VerdictQuestion], *, alpha: float = ALPHA, seed: int = 0
) -> list[Judgement]:
    """Return the metrics of one run, judged under one budget: of the changes reported, a share
    `alpha` at most is false in the mean (e-BH: any dependence between the metrics).

    `seed` breaks ties between equal values; take it from the commit's hash. Raises ValueError for
    a metric without a direction.
    """
    answers = [_test(question, seed) for question in questions]
    cases = [(i, t) for i, t in enumerate(answers) if isinstance(t, _Tested)]
    metrics = max(len(cases), 1)
    lasting = np.array([not case.contradicted for _, case in cases], dtype=bool)
    p_values = np.array([case.judgement.p_value for _, case in cases])
    e_values = np.nan_to_num(np.array([case.judgement.e_value for _, case in cases]), nan=0.0)
    e_values *= lasting / 2
    # A p-value below its limit is worth M / alpha: an e-value too, all or nothing.
    seemed = np.array([case.first for _, case in cases]) <= alpha / 2 / metrics
    changed = evidence.e_bh(e_values + np.where(seemed & lasting, metrics / alpha, 0.0), alpha)
    near = alpha * min(1.0, UNSETTLED / metrics)
    almost = (p_values <= near / 2) | (e_values >= 1 / near)
    confidence = 1 - alpha / metrics
    outcomes = zip(cases, changed.tolist(), almost.tolist(), seemed.tolist(), strict=True)
    for (i, case), yes, nearly, early in outcomes:
        answers[i] = _conclude(case, questions[i], yes, nearly, early, confidence)
    return [t.judgement if isinstance(t, _Tested) else t for t in answers]


def _test(question: VerdictQuestion, seed: int) -> Judgement | _Tested:
    sign = question.sign
    if sign not in (1, -1):
        raise ValueError("a metric without a direction is not judged")
    values = np.asarray(question.values, dtype=float)
    if values.size == 0:
        return Judgement(VerdictKind.MISSING, note="nothing was measured")
    bad = int((~np.isfinite(values)).sum())
    if bad:
        value = float(values[0]) if values.size == 1 else math.nan
        note = f"{bad} of {values.size} values not finite"
        return Judgement(VerdictKind.NOT_FINITE, value=value, note=note)
    base = Grouped.of(question.baseline, question.baseline_seeds or None).finite()
    base = base.groups_where(base.sizes > 0).scaled(sign)
    if not len(base):
        return Judgement(VerdictKind.UNDECIDED, value=float(values.mean()), note=NO_BASELINE)
    known_seeds = question.seeds is not None and base.seeds is not None
    if not known_seeds:
        base = Grouped(base.values, Layout(base.sizes))
    seeds = [question.seeds] if known_seeds and question.seeds is not None else None
    head = Grouped.of([values], seeds).scaled(sign)
    noise = question.noise
    if noise is None or not noise.known:
        noise = _own_noise(head, base)
    exact = _exact(head, base, noise, question)
    if exact is not None:
        return exact
    if noise.deterministic:
        if noise.exact:  # its repeats disagree here: it is exact no more
            noise = replace(_own_noise(head, base), deterministic=False)
        else:
            head, base = collapse(head), collapse(base)
    case = _weigh(head, base, noise, sign, seed)
    if question.first in (None, values.size):
        return replace(case, first=case.judgement.p_value)
    first, fresh = np.split(values * sign, [question.first])
    start = _weigh(Grouped.of([first]), base, noise, sign, seed).judgement
    seemed = start.effect * sign
    rest = evidence.robust_mean(fresh, noise.sd, toward=start.level * sign) - start.level * sign
    contradicted = (
        start.p_value <= SUSPECT_P
        and fresh.size >= FRESH
        and rest * math.copysign(1.0, seemed) < LASTING * abs(seemed)
    )
    return replace(case, first=start.p_value, contradicted=contradicted)


def _own_noise(head: Grouped, base: Grouped) -> Noise:
    """Return the noise as these values show it: HEAD's own repeats count, the step to HEAD does
    not."""
    noise = pool(base)
    if head.values.size == 1 or noise.between > 0:
        return noise
    return replace(pool(base.followed_by(head)), between=0.0)


def _exact(
    head: Grouped, base: Grouped, noise: Noise, question: VerdictQuestion
) -> Judgement | None:
    """Return the verdict that needs no statistics: equal seed for seed, or different where any
    difference is real. None where neither holds."""
    if not noise.deterministic and (head.seeds is None or not all(map(fine, head.values.tolist()))):
        return None  # values may agree by chance
    sign, own, last = question.sign, _by_seed(head), _by_seed(base)
    if len(set(zip(_labels(head), head.values.tolist(), strict=True))) > len(own):
        return None  # repeats of a seed differ
    common = sorted(own.keys() & last.keys())
    tolerance = 0.0 if noise.exact else ROUNDING
    equal = bool(common) and all(
        math.isclose(own[s], last[s], rel_tol=tolerance, abs_tol=0.0) for s in common
    )
    if not noise.exact and not (equal and 2 * len(common) >= len(own)):
        return None
    if not common:  # an exact metric does not depend on the seed as far as anyone has seen
        common, last = sorted(own), dict.fromkeys(own, float(base.split()[-1].mean()))
    level = float(np.mean([last[s] for s in common])) * sign
    if equal:
        exactly = all(own[s] == last[s] for s in common)
        note = "equal to the last digit" if exactly else "equal but for rounding"
        return Judgement(
            VerdictKind.SAME, level, level, 0.0, 0.0, 0.0, 1.0, 0.0, note, smallest=0.0
        )
    value = float(np.mean([own[s] for s in common])) * sign
    effect = value - level
    if effect == 0 or abs(effect) < question.floor.at(level):
        kind = VerdictKind.SAME
        note = "repeats exactly; its change is below the floor"
    else:
        kind = VerdictKind.REGRESSED if effect * sign > 0 else VerdictKind.IMPROVED
        note = "repeats exactly, so any difference is real"
    return Judgement(kind, level, value, effect, effect, effect, 0.0, math.inf, note, smallest=0.0)


def _labels(values: Grouped) -> list[int]:
    return [0] * values.values.size if values.seeds is None else values.seeds.tolist()


def _by_seed(values: Grouped) -> dict[int, float]:
    """Return the newest value of each seed."""
    return dict(zip(_labels(values), values.values.tolist(), strict=True))


def _weigh(head: Grouped, base: Grouped, noise: Noise, sign: int, seed: int) -> _Tested:
    """Return the evidence against "nothing changed" in HEAD's values."""
    if not noise.known:
        return _measure(head, base, noise, sign)
    if base.values.size < ENOUGH:
        case = _measure(head, base, noise, sign)
        # One value carries a side by itself.
        alone = min(head.values.size, base.values.size) == 1 or noise.between > 0
        heavy = evidence.HEAVY_DOF if base.values.size > 1 else evidence.LONE_DOF
        dof = min(noise.dof, heavy) if alone else noise.dof
        p_value = evidence.t_test(case.judgement.effect, _error(head, base, noise), dof)
        own, past = head.values, base.values
        if noise.between > 0:  # repeats of a commit share its luck: one value a commit
            own, past = head.means(), base.means()
        e_value = evidence.lehmann_e_value(own, past, seed)
        return replace(case, judgement=replace(case.judgement, p_value=p_value, e_value=e_value))
    every = base.followed_by(head)
    if noise.between > 0:  # repeats of a commit share its luck: one value a commit
        every = Grouped.of(every.means())
    values, sizes, by_commit = every.values, every.sizes, every.layout.group
    # A canonical order within each commit: by seed, or shuffled where there are none, and never
    # that of measurement. Ranks of values in sorted order would not be independent.
    if every.seeds is not None:
        values = values[np.lexsort((values, every.seeds, by_commit))]
    else:
        values = values[np.lexsort((values, by_commit))]
        shuffled = evidence.uniform(0, values.size, seed + 1)
        values = values[np.lexsort((shuffled, by_commit))]
    shift = evidence.rank_e_value(values, sizes, seed)
    past, own = values[: -sizes[-1]][-evidence.HISTORY :], values[-sizes[-1] :]
    since = shift.age if shift.e_value >= SUSPECT_E else 0
    before = base.groups_where(np.arange(len(base)) < max(len(base) - since, 1))
    case = _measure(head, before, noise, sign)
    # An older shift that HEAD itself contradicts is no evidence.
    lasting = 0.0 if shift.sign * case.judgement.effect * sign < 0 else shift.e_value
    judgement = replace(
        case.judgement,
        p_value=evidence.rank_sum(own, past),
        e_value=(lasting + evidence.lehmann_e_value(own, past, seed)) / 2,
        since=since,
    )
    return replace(case, judgement=judgement, ranked=True, shift=lasting)


def _error(head: Grouped, base: Grouped, noise: Noise) -> float:
    """Return the standard error of the effect."""
    of_trials = noise.sd**2 * (1 / head.values.size + 1 / base.values.size)
    return math.sqrt(of_trials + noise.between**2 * (1 + 1 / len(base)))


def _measure(head: Grouped, base: Grouped, noise: Noise, sign: int) -> _Tested:
    """Return level, value, and effect with its interval; no evidence yet."""
    sd = noise.sd if noise.known else math.nan
    level = evidence.robust_mean(base.values, math.hypot(sd, noise.between))
    value = evidence.robust_mean(head.values, sd, toward=level)
    effect = value - level
    half = gate = math.nan
    if noise.known:
        error = _error(head, base, noise)
        half = t_quantile(0.5 + CONFIDENCE / 2, min(noise.dof, 1e6)) * error
        gate = evidence.t_test(effect, error, noise.dof)
    low, high = sorted(((effect - half) * sign, (effect + half) * sign))
    judgement = Judgement(VerdictKind.SAME, level * sign, value * sign, effect * sign, low, high)
    return _Tested(judgement, noise, head.values.size, base.values.size, len(base), gate)


def _conclude(
    case: _Tested,
    question: VerdictQuestion,
    changed: bool,
    almost: bool,
    seemed: bool,
    confidence: float,
) -> Judgement:
    """Return the verdict proper, from the test, the budget and the floor. `almost`: at a budget a
    few times larger the test would have told HEAD from its baseline; `seemed`: the first look did.
    """
    answer = case.judgement
    if not math.isfinite(answer.p_value):
        note = "nothing was repeated yet, so the noise is not known: run it again"
        return replace(answer, kind=VerdictKind.UNDECIDED, suspect=True, trials=2, note=note)
    floor = question.floor.at(answer.level)
    wanted = floor or WITHOUT_FLOOR * abs(answer.level)
    smallest = smallest_change(
        case.noise, case.trials, case.baseline, confidence, baseline_commits=case.commits
    )
    answer = replace(answer, smallest=smallest, wanted=wanted)
    small = abs(answer.effect) < floor
    if changed and small:
        return replace(answer, note="its change is below the floor")
    if changed:
        worse = answer.effect * question.sign > 0
        kind = VerdictKind.REGRESSED if worse else VerdictKind.IMPROVED
        note = f"since {answer.since} commits before" if answer.since else ""
        fresh = case.trials - (question.first or case.trials)
        return replace(answer, kind=kind, note=note, suspect=fresh < FRESH)
    # A rank among few or tied values cannot be extreme, however far the value lies; an interval
    # that excludes every change below the floor by far (twice its half-width, since nothing here
    # was held to the budget) can. Unsettled, so it never passes as the same.
    half = (answer.high - answer.low) / 2
    beyond = abs(answer.effect) - 3 * half > floor
    suspect = (seemed or case.gate <= SUSPECT_P or case.shift >= SUSPECT_E) and not small
    blind = not case.ranked and smallest > BLIND * math.hypot(case.noise.sd, case.noise.between)
    if blind:
        note, wanted = "too few trials to tell anything", max(floor, 4 * case.noise.sd)
        kind, suspect = VerdictKind.UNDECIDED, case.trials < FEWEST
    elif (almost or beyond) and not small:
        note, wanted = "seems changed, but is not settled", abs(answer.effect)
        kind, suspect = VerdictKind.UNDECIDED, True
    elif smallest > wanted:
        note, kind = "", VerdictKind.TOO_NOISY
    else:
        return replace(answer, suspect=suspect)
    answer = replace(answer, kind=kind, note=note, wanted=wanted, suspect=suspect)
    # How many trials would tell the wanted change: of HEAD alone, or far fewer of both.
    alone = trials_needed(
        case.noise, wanted, case.baseline, confidence, baseline_commits=case.commits
    )
    each = trials_needed(case.noise, wanted, None, confidence)
    if alone is None or (each is not None and 4 * each < alone):
        return replace(answer, each=each)
    return replace(answer, trials=alone)
