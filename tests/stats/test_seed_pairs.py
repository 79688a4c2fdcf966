"""Which steps equal seeds tell, where a trial repeats bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest

from celedger.stats import seed_pairs
from celedger.stats.course import Measurements, Node, Step, TrialNoise
from celedger.stats.seed_histories import BEAM, advanced, started
from celedger.stats.seed_pairs import paired_steps, seed_table
from celedger.stats.settled import Checkpoints, Kept, decode, encode

EXACT = TrialNoise(sd=1.0, freedom=8, is_exact=True)
NOISY = TrialNoise(sd=1.0, freedom=8)
HAZARD = 1 / 400
LEVEL, SD = 0.2534517, 0.00125
Trial = tuple[int, int, float]
"""Place, seed, value."""


def measurements(
    trials: Iterable[Trial], *, chains: Callable[[int], int] = lambda _: 0, sessions: bool = False
) -> tuple[Measurements, list[Node]]:
    """Return the trials, and their nodes: neighbours with equal values of a seed are one."""
    rows = sorted(trials, key=lambda trial: (chains(trial[0]), trial[0]))
    place, seed, value = (np.array(column) for column in zip(*rows, strict=True))
    none = np.zeros(len(rows), dtype=np.int64)
    chain = np.array([chains(at) for at in place.tolist()])
    measured = Measurements(
        place, chain, none, none, seed, value.astype(float), none == 0, none - 1, sessions
    )
    nodes: list[Node] = []
    for at in dict.fromkeys(place.tolist()):
        own = np.flatnonzero(place == at)
        last = nodes[-1] if nodes and nodes[-1].chain == chain[own[0]] else None
        before = {int(seed[r]): value[r] for r in last.rows} if last else {}
        common = [r for r in own if int(seed[r]) in before]
        if last and common and all(value[r] == before[int(seed[r])] for r in common):
            rows_of = (*last.rows, *own.tolist())
            nodes[-1] = Node(last.chain, last.first, at, rows_of, 0.0, 0.0)
        else:
            nodes.append(Node(int(chain[own[0]]), at, at, tuple(own.tolist()), 0.0, 0.0))
    return measured, nodes


def steps_of(trials: Iterable[Trial], noise: TrialNoise = EXACT) -> tuple[Step, ...]:
    steps = paired_steps(*measurements(trials), noise, hazard=HAZARD)
    assert steps is not None
    return steps


def line(
    values: Callable[[int, int], float], seeds: int, places: Iterable[int] = range(12)
) -> list[Trial]:
    return [(place, seed, values(place, seed)) for place in places for seed in range(seeds)]


def draw(seed: int, number: int = 8) -> list[float]:
    return np.random.default_rng(seed).normal(0, SD, number).tolist()


A, B = draw(1), draw(2)


def test_a_new_value_of_one_seed_is_a_doubt() -> None:
    (step,) = steps_of(line(lambda p, s: LEVEL * (1.018 if p >= 6 else 1), 1))
    assert (step.first, step.last, step.known, step.node) == (6, 6, 5, 1)
    assert 0.03 < step.probability < 0.5


@pytest.mark.parametrize("quiet", [100, 1000])
def test_it_is_a_doubt_however_many_commits_changed_no_bit(quiet: int) -> None:
    places = [*range(0, quiet, 10), quiet - 1, quiet, quiet + 1]
    (step,) = steps_of(line(lambda p, s: LEVEL * (1.018 if p >= quiet else 1), 1, places))
    assert step.probability < 0.6


@pytest.mark.parametrize("alike", [True, False])
def test_a_second_seed_tells_a_step_from_a_new_draw(alike: bool) -> None:
    one = line(lambda p, s: LEVEL * (1.018 if p >= 6 else 1), 1)
    other = LEVEL + A[1]
    more = [(5, 1, other), (11, 1, other + (LEVEL * 0.018 if alike else -LEVEL * 0.011))]
    probability = max((s.probability for s in steps_of([*one, *more])), default=0.0)
    assert probability > 0.99 if alike else probability < 0.03


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_a_loss_that_triples_is_open_at_once(seeds: int) -> None:
    (step,) = steps_of(line(lambda p, s: 0.8837 + B[s] if p >= 11 else LEVEL + A[s], seeds), EXACT)
    assert step.probability > 0.95
    assert step.first == step.last == 11
    assert step.size == pytest.approx(0.63, rel=0.02)


@pytest.mark.parametrize("high", [10.0, 1e30, 1e300])
def test_a_diverged_loss_hides_no_other_step(high: float) -> None:
    steps = steps_of(line(lambda p, s: high if p == 8 else LEVEL + A[s] + (p >= 4) * 0.0045, 3))
    sure = [step for step in steps if step.probability > 0.95]
    assert [step.likeliest for step in sure] == [4, 8, 9]
    assert sure[0].size == pytest.approx(0.0045, rel=1e-3)
    assert sure[1].size == pytest.approx(min(high, 1e100), rel=0.1)


@pytest.mark.parametrize("seeds", [1, 3])
def test_an_exact_revert_is_as_sure_as_what_it_reverts(seeds: int) -> None:
    rise, fall = steps_of(line(lambda p, s: LEVEL + A[s] + (6 <= p < 8) * 0.63, seeds))
    assert rise.probability == pytest.approx(fall.probability) and rise.probability > 0.95
    assert rise.size == pytest.approx(-fall.size)
    assert (rise.likeliest, fall.likeliest) == (6, 8)
    assert (rise.is_newest, fall.is_newest) == (False, True)


def test_a_count_that_rises_for_all_seeds_is_a_step() -> None:
    (step,) = steps_of(line(lambda p, s: 11 if p >= 6 else 6, 3))
    assert step.probability > 0.95
    assert (step.before, step.after) == (pytest.approx(6), pytest.approx(11))
    (step,) = steps_of(line(lambda p, s: 11 if p >= 6 else 6, 1))
    assert step.probability < 0.5


@pytest.mark.parametrize("samples", [300, 1000])
def test_shares_of_a_small_data_set_that_move_alike_may_do_so_by_chance(samples: int) -> None:
    def share(place: int, seed: int) -> float:
        return ([255, 252][seed] + (2 if place >= 6 else 0)) / samples

    assert all(step.probability < 0.95 for step in steps_of(line(share, 2)))


def test_a_metric_without_noise_steps_by_its_smallest_change() -> None:
    (step,) = steps_of(line(lambda p, s: 1001.1234567 if p >= 6 else 1000.5234567, 3))
    assert step.probability > 0.99
    assert step.size == pytest.approx(0.6)


def test_unmeasured_commits_before_the_step_are_in_its_set() -> None:
    (step,) = steps_of(line(lambda p, s: LEVEL + A[s] + (p > 20) * 0.0045, 3, [0, 10, 20, 31, 40]))
    assert (step.first, step.last, step.known, step.likeliest) == (21, 31, 20, 31)


def test_chains_are_read_apart_and_share_their_spread() -> None:
    def value(place: int, seed: int) -> float:
        return LEVEL + A[seed] + (place >= 4) * 0.0045 + (place >= 8) * 0.3

    trials = line(value, 3)
    measured, nodes = measurements(trials, chains=lambda place: int(place >= 8))
    steps = paired_steps(measured, nodes, EXACT, hazard=HAZARD)
    assert steps is not None
    assert [(step.chain, step.likeliest, step.node) for step in steps] == [(0, 4, 1)]

    one = [*line(value, 3, range(6)), *((p, 0, LEVEL + 0.3 * (p >= 9)) for p in range(8, 12))]
    measured, nodes = measurements(one, chains=lambda place: int(place >= 8))
    known = paired_steps(measured, nodes, EXACT, hazard=HAZARD)
    alone = steps_of([trial for trial in one if trial[0] >= 8])
    assert known is not None and known[-1].probability > alone[-1].probability


def test_equal_seeds_are_not_read_where_they_tell_nothing() -> None:
    trials = line(lambda p, s: LEVEL + A[s] + (p >= 6) * 0.0045, 3)
    assert paired_steps(*measurements(trials, sessions=True), EXACT, hazard=HAZARD) is None
    once = [trial for trial in trials if trial[0] in (0, 6)]  # no seed repeats
    assert paired_steps(*measurements(once), NOISY, hazard=HAZARD) is None
    fresh = [(place, place, LEVEL + value) for place, value in enumerate(A)]
    assert paired_steps(*measurements(fresh), EXACT, hazard=HAZARD) is None
    assert paired_steps(*measurements(trials[:3]), EXACT, hazard=HAZARD) is None


def test_fresh_seeds_are_better_where_each_commit_draws_anew() -> None:
    draws = [draw(10 + place, 2) for place in range(12)]
    trials = line(lambda p, s: LEVEL + draws[p][s], 2)
    assert paired_steps(*measurements(trials), EXACT, hazard=HAZARD) is None
    few = line(lambda p, s: LEVEL + draws[min(p, 2)][s], 2)
    assert all(step.probability < 0.5 for step in steps_of(few))


@pytest.mark.parametrize("number", range(5))
def test_equal_seeds_are_read_where_they_nearly_repeat(number: int) -> None:
    """As on a device whose sums have no fixed order. By fresh ones a step of one sd was nothing,
    and a commit that drew all seeds anew an incident."""
    random = np.random.default_rng(number)
    spread = [-1.2, -0.3, 0.4, 1.1]

    def nearly(place: int, seed: int, own: Sequence[float]) -> float:
        return LEVEL + SD * (own[seed] + 0.15 * random.normal())

    alike = line(lambda p, s: nearly(p, s, spread) + (p >= 8) * SD, 4)
    steps = [step for step in steps_of(alike, NOISY) if step.probability > 0.75]
    assert [(step.first, step.last) for step in steps] == [(8, 8)]
    assert steps[0].size == pytest.approx(SD, rel=0.3)
    anew = [1.3, -0.2, 0.9, 0.3]
    drawn = line(lambda p, s: nearly(p, s, anew if p >= 8 else spread), 4)
    assert all(step.probability < 0.5 for step in steps_of(drawn, NOISY))
    fresh = line(lambda p, s: LEVEL + SD * random.normal(), 4)
    assert paired_steps(*measurements(fresh), NOISY, hazard=HAZARD) is None


def simulated(random: np.random.Generator, seeds: int, *, draws: float = 0.1) -> list[Trial]:
    """Return a life of 60 commits with a step of two sd, new draws and seeds' own moves."""
    own, trials, level = random.normal(0, SD, seeds), [], LEVEL
    for place in range(60):
        chance = random.random()
        if chance < draws:
            own = random.normal(0, SD, seeds)
        elif chance < draws + 0.2:
            own = own + random.normal(0, 0.3 * SD, seeds)
        level += (place == 30) * 2 * SD
        trials += [(place, seed, level + own[seed]) for seed in range(seeds)]
    return trials


def test_a_wide_beam_changes_no_probability() -> None:
    random = np.random.default_rng(5)
    for seeds in (1, 2, 3):
        measured, nodes = measurements(simulated(random, seeds, draws=0.2))
        table = seed_table(measured, nodes, list(range(len(nodes))))
        assert table is not None
        by_size = []
        for size in (BEAM, 10 * BEAM):
            beam = started(table, ())
            beam = advanced(beam, table, len(nodes), HAZARD, (), size)
            probability = np.zeros(len(nodes))
            for weight, path in zip(beam.weights(), beam.path, strict=True):
                probability[list(beam.paths[path])] += weight
            by_size.append(probability)
        assert by_size[0] == pytest.approx(by_size[1], abs=0.005)


def test_the_unit_of_a_metric_changes_nothing() -> None:
    trials = simulated(np.random.default_rng(6), 3)
    plain = steps_of(trials)
    scaled = steps_of([(place, seed, 1024 * value) for place, seed, value in trials])
    assert [step.first for step in plain] == [step.first for step in scaled]
    for one, other in zip(plain, scaled, strict=True):
        assert one.probability == pytest.approx(other.probability, rel=1e-6)
        assert 1024 * one.size == pytest.approx(other.size)
        assert 1024 * one.error == pytest.approx(other.error, rel=1e-6)


def test_odd_values_raise_nothing() -> None:
    random = np.random.default_rng(7)
    for scale in (0.0, 1e-300, 1e-30, 1e30, 1e300):
        for places in (1, 2, 30):
            noise = random.standard_cauchy((places, 2))
            trials = line(lambda p, s, x=noise, u=scale: u * x[p, s], 2, range(places))
            with np.errstate(all="raise", under="ignore"):
                steps = paired_steps(*measurements(trials), EXACT, hazard=HAZARD)
            for step in steps or ():
                assert np.isfinite([step.probability, step.size, step.error, step.unit]).all()


def life(random: np.random.Generator, own: float, pairs: int, draws: float = 0.0) -> bool:
    """Return True if a step of one sd is open after at most so many pairs at its commit."""
    seeds = 12
    before = random.normal(0, SD, seeds)
    after = before + SD + random.normal(0, own * SD, seeds)
    trials = line(lambda p, s: LEVEL + (after if p >= 20 else before)[s], 2, range(21))
    for seed in range(2, pairs + 3):
        measured, nodes = measurements(trials)
        (step,) = paired_steps(measured, nodes, EXACT, hazard=HAZARD) or (None,)
        if step is None:
            return False
        if step.probability >= 0.95:
            return True
        trials += [(19, seed, LEVEL + before[seed]), (20, seed, LEVEL + after[seed])]
    return False


@pytest.mark.matrix
def test_a_step_of_one_sd_is_open_after_few_pairs() -> None:
    random = np.random.default_rng(8)
    assert sum(life(random, own=0.0, pairs=3) for _ in range(20)) >= 18
    assert sum(life(random, own=0.3, pairs=6) for _ in range(40)) >= 32


WORST = LEVEL * 1.5
"""Of a seed that fell into another optimum."""


@pytest.mark.parametrize(("before", "after"), [(WORST, None), (None, WORST), (WORST, WORST)])
def test_one_seed_that_trained_badly_hides_no_step_of_the_others(
    before: float | None, after: float | None
) -> None:
    own = [0.2 * y for y in draw(3)]
    high = [LEVEL * 1.03 + y + z for y, z in zip(A, own, strict=True)]
    low = [LEVEL + y for y in A]
    low[2], high[2] = before or low[2], after or high[2]
    (step,) = steps_of(line(lambda p, s: high[s] if p >= 6 else low[s], 6))
    assert step.probability > 0.95 and step.first == step.last == 6
    moved = 5 / 6 if before and after else 1.0  # one that repeats is untouched
    assert step.size == pytest.approx(LEVEL * 0.03 * moved, rel=0.1)


@pytest.mark.parametrize("heights", [(1.0, 2.0, 4.0), (1.0, 1.5, 2.2), (1.0, 1.2, 1.4)])
def test_seeds_of_different_heights_may_rise_by_one_factor(heights: Sequence[float]) -> None:
    """As sums their rises differ, and were nothing that all shared."""
    (step,) = steps_of(line(lambda p, s: heights[s] * (1.3 if p >= 8 else 1.0), 3))
    assert (step.first, step.last) == (8, 8) and step.probability > 0.95
    assert step.size == pytest.approx(0.3 * step.before, rel=0.01)
    assert step.before == pytest.approx(np.exp(np.mean(np.log(heights))), rel=0.01)


@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize(("seeds", "moved"), [(3, 2), (4, 2), (5, 3)])
def test_what_moves_some_seeds_and_leaves_the_others_is_a_step(
    seeds: int, moved: int, noise: float
) -> None:
    """Their mean rise is what it does. Of one seed alone it is a doubt: it may have gone its own
    way."""
    random = np.random.default_rng(seeds)

    def value(place: int, seed: int, count: int) -> float:
        risen = 4 * SD if place >= 8 and seed < count else 0.0
        return LEVEL + A[seed] + risen + noise * SD * random.normal()

    known = EXACT if noise == 0 else NOISY
    (step, *_) = steps_of(line(lambda p, s: value(p, s, moved), seeds), known)
    assert (step.first, step.last) == (8, 8) and step.probability > 0.9
    assert step.size == pytest.approx(4 * SD * moved / seeds, rel=0.15)
    one = steps_of(line(lambda p, s: value(p, s, 1), seeds), known)
    assert all(step.probability < 0.5 for step in one)


@pytest.mark.parametrize("seeds", [3, 5])
def test_new_draws_of_which_one_trained_badly_are_no_step(seeds: int) -> None:
    random = np.random.default_rng(4)
    false = 0
    for _ in range(60):
        values = [LEVEL + random.normal(0, SD, seeds)]
        for _ in range(11):
            anew = LEVEL + random.normal(0, SD, seeds)
            anew[random.random(seeds) < 0.1] = WORST
            values.append(anew if random.random() < 0.3 else values[-1])
        trials = [(place, seed, y) for place, ys in enumerate(values) for seed, y in enumerate(ys)]
        steps = paired_steps(*measurements(trials), EXACT, hazard=HAZARD)
        false += sum(step.probability > 0.95 for step in steps or ())
    assert not false


def growing_line() -> list[Trial]:
    """Return 260 commits that each move the seeds by a little; three make a step."""
    random = np.random.default_rng(5)
    at = [LEVEL + own for own in A[:2]]
    trials: list[Trial] = []
    for place in range(260):
        step = 0.2 * (place in (40, 150, 225))
        at = [y + step + random.normal() * SD * 0.03 for y in at]
        trials += [(place, seed, y) for seed, y in enumerate(at)]
    return trials


@pytest.fixture
def nodes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many nodes each pass reads."""
    counts: list[int] = []

    def counting(*args: Any) -> Any:
        counts.append(args[2] - args[0].stop)
        return advanced(*args)

    monkeypatch.setattr(seed_pairs, "advanced", counting)
    return counts


@pytest.mark.matrix
def test_a_chain_goes_on_from_what_was_kept_of_it(nodes_read: list[int]) -> None:
    trials, kept = growing_line(), Kept()
    for end, most in ((60, 60), (131, 131), (200, 80), (258, 68), (259, 2), (260, 20)):
        measured, nodes = measurements(trials[: 2 * end])
        whole = paired_steps(measured, nodes, EXACT, hazard=HAZARD)
        kept = decode(encode(kept))
        nodes_read.clear()
        grown = paired_steps(measured, nodes, EXACT, hazard=HAZARD, checkpoints=Checkpoints(kept))
        assert grown == whole
        assert sum(nodes_read) <= most
    assert [s.likeliest for s in whole or () if s.probability > 0.95] == [40, 150, 225]


@pytest.mark.matrix
def test_a_chain_of_coarse_values_seldom_begins_anew(nodes_read: list[int]) -> None:
    random, kept, began = np.random.default_rng(7), Checkpoints(Kept()), 0

    def shares_of_800(_: int, seed: int) -> float:
        return round((LEVEL + 4 * A[seed] + random.normal() * SD) * 800) / 800

    trials = line(shares_of_800, 3, range(135))
    for end in range(121, 136):
        nodes_read.clear()
        paired_steps(*measurements(trials[: 3 * end]), EXACT, hazard=HAZARD, checkpoints=kept)
        began += sum(nodes_read) > 20
    assert began == 1


def test_what_was_kept_of_a_chain_is_not_used_when_an_old_value_changed() -> None:
    trials, kept = growing_line(), Checkpoints(Kept())
    measured, nodes = measurements(trials)
    paired_steps(measured, nodes, EXACT, hazard=HAZARD, checkpoints=kept)
    trials[60:62] = [(30, seed, y + 0.02) for _, seed, y in trials[60:62]]
    measured, nodes = measurements(trials)
    grown = paired_steps(measured, nodes, EXACT, hazard=HAZARD, checkpoints=kept)
    assert grown == paired_steps(measured, nodes, EXACT, hazard=HAZARD)


def test_a_node_with_the_bits_of_one_long_ago_is_read_with_all_before_it() -> None:
    trials, kept = growing_line(), Checkpoints(Kept())
    measured, nodes = measurements(trials)
    paired_steps(measured, nodes, EXACT, hazard=HAZARD, checkpoints=kept)
    trials += [(260, seed, y) for _, seed, y in trials[200:202]]
    measured, nodes = measurements(trials)
    grown = paired_steps(measured, nodes, EXACT, hazard=HAZARD, checkpoints=kept)
    assert grown == paired_steps(measured, nodes, EXACT, hazard=HAZARD)


def test_steps_are_read_when_bits_of_long_ago_came_back_twice() -> None:
    """A later node returns to one that returned itself and has no value of its own."""
    trials = growing_line()
    for place in (30, 100):
        trials[2 * place : 2 * place + 2] = [(place, seed, y) for _, seed, y in trials[20:22]]
    steps = steps_of(trials)
    assert [s.likeliest for s in steps if s.probability > 0.95] == [40, 100, 101, 150, 225]


@pytest.mark.parametrize("far", [10, 40, -40])
@pytest.mark.parametrize("passing", [0, 9])
def test_a_seed_of_one_commit_alone_that_trained_badly_hides_no_step(
    far: int, passing: int
) -> None:
    """It was never the one apart: ten sd off, it took a step from .92 to .25."""
    own = dict(enumerate(SD * np.random.default_rng(3).normal(0, 1, 6)))
    trials = [
        (place, seed, LEVEL + own[seed] + (place >= 6) * (2 + 0.3 * own[seed] / SD) * SD)
        for place in range(12)
        for seed in range(1, 6)
    ]
    (step,) = steps_of([*trials, (6, passing, LEVEL + (2 + far) * SD)])
    assert (step.first, step.last) == (6, 6) and step.probability > 0.88
    assert step.size == pytest.approx(1.8 * SD, rel=0.1) and step.unit < 2 * SD


def test_one_of_many_seeds_of_one_commit_alone_is_the_one_apart() -> None:
    trials = line(lambda p, s: LEVEL + A[s] + (p >= 6) * (1.8 + 0.2 * A[s] / SD) * SD, 4)
    passing = [(6, 100 + s, LEVEL + y + 1.8 * SD) for s, y in enumerate(draw(5, 20))]
    (step,) = steps_of([*trials, *passing, (6, 200, LEVEL + 40 * SD)])
    (alone,) = steps_of([*trials, *passing])
    assert step.probability == pytest.approx(alone.probability, abs=0.05)
    assert step.size == pytest.approx(alone.size, rel=0.1)
