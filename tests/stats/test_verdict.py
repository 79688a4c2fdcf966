"""Verdicts: right answers on simulated runs, one budget, and no change of answer under a change
of unit, of direction or of the order of measurement."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from conftest import matrix_after
from hypothesis import given
from hypothesis import strategies as st

from celedger.base.model import Floor, VerdictKind
from celedger.judge.drift.reruns import RERUNS
from celedger.stats import evidence
from celedger.stats.noise import Noise, pool
from celedger.stats.verdict import Judgement, VerdictQuestion, judge, judge_many

RNG_SEED = 20241
CHANGED = (VerdictKind.REGRESSED, VerdictKind.IMPROVED)
SEEDS = (0, 1, 2)


def history(commits: int, seeds: int = 3, *, shift: float = 0.0, seed: int = RNG_SEED):
    """(values of HEAD, baseline) of a noisy metric."""
    random = np.random.default_rng(seed)
    baseline = [[*random.normal(size=seeds)] for _ in range(commits)]
    return [*(random.normal(size=seeds) + shift)], baseline


@pytest.mark.parametrize("commits", [3, 6, 40])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_large_shift_is_told_in_its_direction(commits: int, sign: int) -> None:
    head, baseline = history(commits, shift=10.0)
    verdict = judge(head, baseline, sign=sign)
    assert verdict.kind is (VerdictKind.REGRESSED if sign > 0 else VerdictKind.IMPROVED)
    assert verdict.low < verdict.effect < verdict.high
    assert verdict.effect == pytest.approx(verdict.value - verdict.level)


@pytest.mark.parametrize("commits", matrix_after(2, [1, 5, 40]))
def test_the_interval_holds_the_true_effect_in_95_of_100_cases(commits: int) -> None:
    verdicts = [judge(*history(commits, shift=3.0, seed=i), sign=1) for i in range(300)]
    held = np.mean([v.low < 3 < v.high for v in verdicts])
    assert 0.92 <= held <= 0.99


def test_a_single_commit_of_three_seeds_is_baseline_enough() -> None:
    head, baseline = history(1, shift=25.0)
    assert judge(head, baseline, sign=1).kind is VerdictKind.REGRESSED
    head, baseline = history(1, shift=0.0)
    assert judge(head, baseline, sign=1, floor=Floor(2.0)).kind is VerdictKind.SAME


@pytest.mark.parametrize("law", ["normal", "t3", "outliers"])
@pytest.mark.parametrize("commits", matrix_after(2, [1, 4, 30]))
def test_a_run_without_a_change_seldom_alarms(law: str, commits: int) -> None:
    random = np.random.default_rng(RNG_SEED)

    def draw(*size: int) -> np.ndarray:
        if law == "t3":
            return random.standard_t(3, size=size)
        values = random.normal(size=size)
        return values + (random.random(size) < 0.03) * 10 if law == "outliers" else values

    runs = 60
    alarms = 0
    for _ in range(runs):
        run = [VerdictQuestion(draw(3).tolist(), draw(commits, 3).tolist(), 1) for _ in range(8)]
        alarms += any(v.kind in CHANGED for v in judge_many(run))
    assert alarms <= 6 if law == "normal" else alarms <= 9


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("commits", [0, 2, 30])
def test_what_is_not_finite_never_passes(value: float, commits: int) -> None:
    head, baseline = history(commits)
    assert judge([*head, value], baseline, sign=1).kind is VerdictKind.NOT_FINITE
    assert judge([value], [[value]], sign=-1).kind is VerdictKind.NOT_FINITE


def test_nothing_measured_does_not_pass() -> None:
    assert judge([], [[1.0]], sign=1).kind is VerdictKind.MISSING


def test_no_baseline_is_undecided() -> None:
    verdict = judge([1.0, 2.0], [], sign=1)
    assert verdict.kind is VerdictKind.UNDECIDED
    assert verdict.note == "no baseline yet"
    assert judge([1.0], [[math.nan]], sign=1).kind is VerdictKind.UNDECIDED


def test_one_trial_against_one_tells_nothing_unless_the_noise_is_known() -> None:
    verdict = judge([2.0], [[1.0]], sign=1)
    assert verdict.kind is VerdictKind.UNDECIDED
    assert verdict.suspect
    known = Noise(0.02, 12.0, False, 18)
    assert judge([2.0], [[1.0]], sign=1, noise=known).kind is VerdictKind.REGRESSED
    assert judge([1.01], [[1.0]], sign=1, noise=known).kind is VerdictKind.SAME


def test_a_lone_outlier_convicts_nobody() -> None:
    head, baseline = history(5)
    head[1] = 200.0
    assert judge(head, baseline, sign=1, floor=Floor(3.0)).kind is VerdictKind.SAME


def test_an_exact_metric_alarms_at_once_and_at_the_smallest_difference() -> None:
    baseline = [[0.5, 0.5], [0.5, 0.5]]
    assert judge([0.5], baseline, sign=1).kind is VerdictKind.SAME
    assert judge([0.5000001], baseline, sign=1).kind is VerdictKind.REGRESSED
    assert judge([0.4999999], baseline, sign=1).kind is VerdictKind.IMPROVED
    floored = judge([0.5000001], baseline, sign=1, floor=Floor(0.01, relative=True))
    assert floored.kind is VerdictKind.SAME


def test_equal_values_seed_for_seed_are_the_same_however_few() -> None:
    one = judge(
        [1.0, 2.0, 3.0], [[1.0, 2.0, 3.0]] * 4, sign=1, seeds=SEEDS, baseline_seeds=[SEEDS] * 4
    )
    assert (one.kind, one.effect, one.p_value) == (VerdictKind.SAME, 0.0, 1.0)


def test_values_that_differ_by_rounding_are_equal_whatever_the_noise() -> None:
    """Values that come back after others hide from the pooled noise that the metric repeats."""
    noise = Noise(0.02, 20.0, False, 30)
    head = [0.38879879282541546, 0.37086487493754344]
    baseline = [[0.3887987928254153, 0.3708648749375435]]

    def ask(values: list[float], before: list[list[float]]) -> Judgement:
        seeds = SEEDS[:2]
        return judge(values, before, sign=1, noise=noise, seeds=seeds, baseline_seeds=[seeds])

    assert ask(head, baseline).note == "equal but for rounding"
    assert ask(head, [[0.3887, 0.3708]]).kind is VerdictKind.TOO_NOISY
    assert ask([0.875, 0.75], [[0.875, 0.75]]).kind is VerdictKind.SAME, "it has few digits"
    assert ask([0.875, 0.75], [[0.875, 0.75]]).smallest > 0


def test_pinned_seeds_redrawn_by_a_refactoring_are_judged_by_their_spread() -> None:
    """The same code path with another order of additions gives other values, no regression;
    and ten commits that repeat three values are three observations, not thirty."""
    baseline, seeds = [[1.0, 2.0, 3.0]] * 10, [SEEDS] * 10
    drawn = judge([1.9, 2.9, 2.2], baseline, sign=1, seeds=SEEDS, baseline_seeds=seeds)
    assert drawn.kind is VerdictKind.TOO_NOISY
    worse = judge([12.0, 13.0, 14.1], baseline, sign=1, seeds=SEEDS, baseline_seeds=seeds)
    assert worse.kind is VerdictKind.REGRESSED


def test_the_floor_is_applied_after_the_test() -> None:
    head, baseline = history(30, shift=8.0)
    assert judge(head, baseline, sign=1, floor=Floor(20.0)).kind is VerdictKind.SAME
    assert judge(head, baseline, sign=1, floor=Floor(5.0)).kind is VerdictKind.REGRESSED


@pytest.mark.parametrize("commits", [1, 4, 30])
def test_a_change_that_could_not_be_seen_is_not_said_to_be_none(commits: int) -> None:
    """The same values: enough for a floor of 6 sd, not for one of a twentieth."""
    head, baseline = history(commits, seed=2)
    calm = judge(head, baseline, sign=1, floor=Floor(6.0))
    assert (calm.kind, calm.wanted, calm.trials) == (VerdictKind.SAME, 6.0, None)
    assert calm.smallest < 6
    noisy = judge(head, baseline, sign=1, floor=Floor(0.05))
    assert (noisy.kind, noisy.wanted) == (VerdictKind.TOO_NOISY, 0.05)
    assert noisy.smallest == calm.smallest
    assert noisy.trials is None, "its baseline is too small for any number of trials of HEAD"
    assert noisy.each is not None
    assert noisy.each > 1000


def test_the_trials_that_are_named_do_tell_the_floor() -> None:
    random, noise = np.random.default_rng(RNG_SEED), Noise(1.0, 1e6, False, 100)

    def ask(trials: int, *baseline: int) -> Judgement:
        groups = [random.normal(10, 1, n).tolist() for n in baseline]
        head = random.normal(10, 1, trials).tolist()
        return judge(head, groups, sign=1, floor=Floor(1.2), noise=noise)

    old = ask(3, *[3] * 6)
    assert (old.kind, old.each) == (VerdictKind.TOO_NOISY, None)
    assert old.trials is not None
    assert [ask(old.trials - 1, *[3] * 6).kind, ask(old.trials, *[3] * 6).kind] == [
        VerdictKind.TOO_NOISY, VerdictKind.SAME
    ]  # fmt: skip
    young = ask(3, 3)
    assert (young.kind, young.trials) == (VerdictKind.TOO_NOISY, None)
    assert young.each is not None
    assert ask(young.each - 1, young.each - 1).kind is VerdictKind.TOO_NOISY
    assert ask(young.each, young.each).kind is VerdictKind.SAME
    scattered = replace(noise, between=0.5)  # commits differ: no trials of one will tell
    never = judge([10.1] * 3, [[10.0] * 3] * 5, sign=1, floor=Floor(1.0), noise=scattered)
    assert (never.kind, never.trials, never.each) == (VerdictKind.TOO_NOISY, None, None)


def test_without_a_floor_a_tenth_of_the_level_must_be_seen() -> None:
    for level, kind in ((10.0, VerdictKind.TOO_NOISY), (100.0, VerdictKind.SAME)):
        head, baseline = history(10)
        verdict = judge(np.add(head, level), np.add(baseline, level).tolist(), sign=1)
        assert (verdict.kind, verdict.wanted) == (kind, pytest.approx(level / 10, rel=0.1))


def test_the_budget_is_shared_by_the_metrics_of_a_run() -> None:
    head, baseline = history(4, shift=1.8)  # p = 0.0013
    question = VerdictQuestion(head, baseline, 1)
    quiet = [VerdictQuestion(*history(4, seed=i), 1) for i in range(40)]
    assert judge_many([question])[0].kind is VerdictKind.REGRESSED
    crowded = judge_many([question, *quiet])[0]
    assert crowded.kind is VerdictKind.UNDECIDED
    assert crowded.suspect
    assert crowded.trials is not None
    assert crowded.trials > 3


def settled(
    commits: int, seeds: int, shift: float, *, cases: int, metrics: int = 10
) -> tuple[float, float, float]:
    """Return the share of changes told by the first look and with re-runs, and trials a commit."""
    first = last = trials = 0
    for case in range(cases):
        random = np.random.default_rng([RNG_SEED, case])
        head, baseline = random.normal(size=seeds) + shift, random.normal(size=(commits, seeds))
        fresh = random.normal(size=RERUNS) + shift
        noise = pool(baseline)
        for more in range(RERUNS + 1):
            values = [*head, *fresh[:more]]
            verdict = judge(
                values, baseline, sign=1, noise=noise, first=seeds, alpha=0.05 / metrics
            )
            first += more == 0 and verdict.kind in CHANGED
            if not verdict.suspect:
                break
        last += verdict.kind in CHANGED
        trials += len(values)
    return first / cases, last / cases, trials / cases


@pytest.mark.parametrize(("commits", "power"), [(2, 0.15), (5, 0.4), (10, 0.6)])
def test_re_runs_raise_the_power(commits: int, power: float) -> None:
    first, last, _ = settled(commits, 3, 2.0, cases=60)
    assert last >= max(first, power)


def test_a_single_trial_raises_a_suspicion_that_fresh_seeds_settle() -> None:
    _, power, _ = settled(20, 1, 3.0, cases=60, metrics=1)
    assert power >= 0.6
    _, alarms, trials = settled(20, 1, 0.0, cases=300, metrics=1)
    assert alarms <= 0.05
    assert trials <= 1.2


def test_a_change_that_fresh_seeds_contradict_is_withdrawn() -> None:
    random = np.random.default_rng(RNG_SEED)
    baseline = random.normal(size=(12, 1)).tolist()
    outlier = judge([20.0], baseline, sign=1)
    assert (outlier.kind, outlier.suspect) == (VerdictKind.REGRESSED, True)
    assert judge([20.0, 0.1, -0.2], baseline, sign=1, first=1).kind not in CHANGED
    real = judge([20.0, 19.0, 21.0], baseline, sign=1, first=1)
    assert (real.kind, real.suspect) == (VerdictKind.REGRESSED, False)


def test_a_shift_of_a_few_commits_ago_is_told_with_its_start() -> None:
    random = np.random.default_rng(RNG_SEED)
    baseline = [random.normal(size=3).tolist() for _ in range(40)]
    baseline += [(random.normal(size=3) + 2).tolist() for _ in range(6)]
    verdict = judge((random.normal(size=3) + 2).tolist(), baseline, sign=1)
    assert verdict.kind is VerdictKind.REGRESSED
    assert 5 <= verdict.since <= 7


def test_a_metric_without_a_direction_is_refused() -> None:
    with pytest.raises(ValueError, match="direction"):
        judge([1.0], [[1.0]], sign=0)


# Properties ---------------------------------------------------------------------------------

value = st.integers(-1000, 1000).map(lambda i: i / 8)  # exact in binary: so are its multiples
group = st.lists(value, min_size=1, max_size=4)
baselines = st.lists(group, min_size=1, max_size=14)


def same(a: Judgement, b: Judgement) -> None:
    assert (a.kind, a.suspect, a.trials, a.since) == (b.kind, b.suspect, b.trials, b.since)
    assert a.p_value == pytest.approx(b.p_value, rel=1e-6, nan_ok=True)


@given(head=group, baseline=baselines, power=st.integers(-6, 6))
def test_the_unit_does_not_matter(
    head: list[float], baseline: list[list[float]], power: int
) -> None:
    factor = 2.0**power
    scaled = [[v * factor for v in g] for g in baseline]
    for relative in (False, True):
        floor = Floor(0.5, relative)
        other = floor if relative else Floor(0.5 * factor)
        before = judge(head, baseline, sign=1, floor=floor)
        same(before, judge([v * factor for v in head], scaled, sign=1, floor=other))


@given(head=group, baseline=baselines, shift=value)
def test_the_zero_does_not_matter_where_the_floor_is_absolute(
    head: list[float], baseline: list[list[float]], shift: float
) -> None:
    moved = [[v + shift for v in g] for g in baseline]
    before = judge(head, baseline, sign=1, floor=Floor(1.3))
    same(before, judge([v + shift for v in head], moved, sign=1, floor=Floor(1.3)))


@given(head=group, baseline=baselines)
def test_a_flip_of_sign_and_direction_changes_nothing(
    head: list[float], baseline: list[list[float]]
) -> None:
    flipped = [[-v for v in g] for g in baseline]
    before = judge(head, baseline, sign=1)
    after = judge([-v for v in head], flipped, sign=-1)
    same(before, after)
    assert before.effect == pytest.approx(-after.effect, nan_ok=True)


@given(head=group, baseline=baselines, random=st.randoms(use_true_random=False))
def test_the_order_of_measurement_within_a_commit_does_not_matter(
    head: list[float], baseline: list[list[float]], random
) -> None:
    shuffled = [random.sample(g, len(g)) for g in baseline]
    same(judge(head, baseline, sign=1), judge(random.sample(head, len(head)), shuffled, sign=1))


@given(head=group, baseline=baselines, place=st.integers(0, 4))
def test_nan_never_passes(head: list[float], baseline: list[list[float]], place: int) -> None:
    head.insert(place, math.nan)
    assert judge(head, baseline, sign=1).kind.bad


# Evidence -----------------------------------------------------------------------------------


def test_the_rank_e_value_is_one_in_the_mean_whatever_the_noise() -> None:
    random = np.random.default_rng(RNG_SEED)
    sizes = np.full(30, 3)
    for law in (random.standard_normal, random.standard_cauchy, lambda n: random.integers(0, 3, n)):
        found = [evidence.rank_e_value(np.asarray(law(90), float), sizes, i) for i in range(1500)]
        values = np.array([shift.e_value for shift in found])
        assert np.mean(np.minimum(values, 100)) < 1.1
        assert np.mean(values >= 20) < 0.005


def test_the_rank_sum_is_the_exact_mann_whitney_test() -> None:
    from scipy.stats import mannwhitneyu

    random = np.random.default_rng(RNG_SEED)
    for k, n in ((1, 20), (3, 20), (5, 60), (12, 30)):
        head, before = random.normal(size=k) + 1.5, random.normal(size=n)
        exact = mannwhitneyu(head, before, method="exact").pvalue
        assert evidence.rank_sum(head, before) == pytest.approx(exact, rel=1e-9)


def test_the_ranks_of_head_are_worth_one_in_the_mean_at_any_look() -> None:
    random = np.random.default_rng(RNG_SEED)
    looks = []
    for i in range(1500):
        before, head = random.integers(0, 30, 12) * 1.0, random.integers(0, 30, 7) * 1.0
        looks.append([evidence.lehmann_e_value(head[:n], before, i) for n in (1, 3, 7)])
    assert np.mean(looks, axis=0) == pytest.approx(1.0, abs=0.15)
    assert np.mean(np.max(looks, axis=1) >= 20) <= 0.05
    apart = evidence.lehmann_e_value(np.arange(7.0) + 99, np.arange(20.0))
    assert apart == pytest.approx(evidence.lehmann_e_value(-np.arange(7.0) - 99, np.arange(20.0)))
    assert apart > 80_000


def test_e_bh_finds_the_largest_set_that_its_budget_bears() -> None:
    found = evidence.e_bh(np.array([45.0, 1.0, 41.0, 0.1]), 0.05)
    assert found.tolist() == [True, False, True, False]  # 80 needed alone, 40 for two
    assert not evidence.e_bh(np.array([45.0, 1.0, 31.0, 0.1]), 0.05).any()
