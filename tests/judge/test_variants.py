"""Which variant of a grid is the best: how often that is claimed of equals, and of what differs."""

from __future__ import annotations

from itertools import product
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import matrix_after

from celedger.base.model import Direction, Kind, Metric
from celedger.judge.incident import MetricNoise
from celedger.judge.variants import ERROR, Lead, lead, shares
from celedger.views.ablation import Ablation, AblationRow

LOSS = Metric("loss", direction=Direction.LOWER)
TIME = Metric("step_time", "s", Direction.LOWER, Kind.SPEED)


def trials(metric: Metric, values: list[float]) -> Any:
    """Return trials with the seeds 0, 1, …"""
    return [
        SimpleNamespace(
            trial=SimpleNamespace(seed=seed), summaries={metric.name: value}, derived=None,
            may_be_judged=lambda _: True,
        )
        for seed, value in enumerate(values)
    ]  # fmt: skip


def grid(draw: Random, levels: list[float], seeds: int) -> list[Any]:
    """Return variants whose seeds share half of their variance."""
    shared = [draw.gauss(0, 0.01) for _ in range(seeds)]
    return [trials(LOSS, [at + s + draw.gauss(0, 0.01) for s in shared]) for at in levels]


@pytest.mark.parametrize(
    ("variants", "seeds"), matrix_after(2, [(2, 2), (4, 3), (2, 5), (8, 3), (20, 2)])
)
def test_equals_are_seldom_told_apart(variants: int, seeds: int) -> None:
    draw = Random(100 * variants + seeds)
    claims = 0
    for _ in range(1000):
        own = lead(LOSS, grid(draw, [1.0] * variants, seeds), [None] * variants)
        assert own is not None
        claims += not own.close
    assert claims <= 1000 * ERROR + 3 * (1000 * ERROR * (1 - ERROR)) ** 0.5


def test_a_variant_that_is_clearly_better_is_named() -> None:
    draw = Random(7)
    leads = [lead(LOSS, grid(draw, [1.0, 0.9, 1.0, 1.1], 3), [None] * 4) for _ in range(200)]
    assert all(own is not None and own.best == 1 for own in leads)
    assert sum(own is not None and not own.close for own in leads) > 150
    two_best = lead(LOSS, grid(draw, [1.0, 0.9, 0.9, 1.1], 5), [None] * 4)
    assert two_best is not None
    assert {two_best.best, *two_best.close} == {1, 2}


def test_two_seeds_tell_variants_that_are_many_times_worse() -> None:
    """Alone, a pair's two differences have one degree of freedom: variants 50 times worse were
    said to be as good, perhaps."""
    draw = Random(11)
    levels = [0.048 * 50 ** (number / 19) for number in range(20)]
    for _ in range(50):
        variants = [trials(LOSS, [at * draw.gauss(1, 0.05) for _ in range(2)]) for at in levels]
        own = lead(LOSS, variants, [None] * 20)
        assert own is not None and own.best < 5
        assert all(levels[other] < 5 * levels[own.best] for other in own.close)


@pytest.mark.parametrize(("variants", "seeds"), matrix_after(1, [(3, 2), (5, 2), (20, 2), (4, 3)]))
@pytest.mark.parametrize("noisy", [0.01, 0.1])
def test_a_variant_as_good_as_any_is_seldom_called_worse(
    variants: int, seeds: int, noisy: float
) -> None:
    """Even where it is much noisier than the others."""
    draw = Random(100 * variants + seeds)
    wrong = 0
    for _ in range(500):
        sds = [noisy, *[0.003 if noisy > 0.01 else 0.01] * (variants - 1)]
        every = [trials(LOSS, [draw.gauss(1, sd) for _ in range(seeds)]) for sd in sds]
        own = lead(LOSS, every, [None] * variants)
        assert own is not None
        wrong += own.best != 0 and 0 not in own.close
    assert wrong <= 500 * (ERROR if noisy == 0.01 else 0.07) + 14


def test_one_seed_or_one_variant_tells_nothing() -> None:
    one_seed = lead(LOSS, [trials(LOSS, [1.0]), trials(LOSS, [0.5])], [None] * 2)
    assert one_seed is not None
    assert (one_seed.best, one_seed.close, one_seed.change) == (1, (0,), -0.5)
    assert lead(LOSS, [trials(LOSS, [1.0]), trials(LOSS, [float("nan")])], [None] * 2) is None


def test_rounded_differences_that_agree_are_no_proof() -> None:
    rounded = [trials(LOSS, [0.93, 0.95]), trials(LOSS, [0.92, 0.94])]
    own = lead(LOSS, rounded, [None] * 2)
    assert own is not None and own.close == (0,)


def test_speed_is_told_by_the_noise_of_sessions() -> None:
    """A variant that ran while the machine was busy is slower at every seed."""
    both = [trials(TIME, [1.20, 1.21, 1.19]), trials(TIME, [1.00, 1.01, 0.99])]
    noisy = MetricNoise("s", "t", "step_time", 0.01, 20, False, 20.0)
    calm = MetricNoise("s", "t", "step_time", 0.01, 20, False, 0.5)
    for noises, close in (([None, None], (0,)), ([noisy, noisy], (0,)), ([calm, calm], ())):
        own = lead(TIME, both, noises)
        assert own is not None and own.close == close


def ablation(draw: Random, seeds: int, effects: dict[str, float], sizes: dict[str, int]) -> Any:
    """Return the variants of a grid; each value of a parameter adds an effect of its own."""
    names = [*sizes]
    combinations = list(product(*(range(size) for size in sizes.values())))
    shared = [draw.gauss(0, 0.01) for _ in range(seeds)]
    variants = []
    for values in combinations:
        at = sum(effects.get(name, 0.0) * value for name, value in zip(names, values, strict=True))
        own = [1 + at + seed + draw.gauss(0, 0.01) for seed in shared]
        variants.append((dict(zip(names, values, strict=True)), trials(LOSS, own)))
    return variants


@pytest.mark.parametrize(
    ("seeds", "sizes"), matrix_after(1, [(3, (2, 2)), (1, (3, 4)), (2, (2, 3, 2))])
)
def test_parameters_that_move_nothing_are_seldom_named(seeds: int, sizes: tuple[int, ...]) -> None:
    draw = Random(10 * seeds + len(sizes))
    grids = [
        ablation(draw, seeds, {}, {f"p{i}": size for i, size in enumerate(sizes)})
        for _ in range(1000)
    ]
    named = sum(bool(shares(LOSS, grid, [None] * len(grid))) for grid in grids)
    assert named <= 1000 * ERROR + 3 * (1000 * ERROR * (1 - ERROR)) ** 0.5


@pytest.mark.parametrize("drawn", [12, 9])
def test_shares_are_those_of_the_variance(drawn: int) -> None:
    """In a sample of the grid, too, on average."""
    draw = Random(drawn)
    effects = {"lr": 0.06, "norm": 0.05}
    found = []
    for _ in range(200):
        grid = ablation(draw, 3, effects, {"lr": 3, "norm": 2, "nothing": 2})
        found.append(shares(LOSS, draw.sample(grid, drawn), [None] * drawn))
    assert all([*own][:2] == ["lr", "norm"] for own in found) or drawn < 12
    lr = [own["lr"] for own in found]
    assert sum(lr) / len(lr) == pytest.approx(expected(effects), abs=0.05 if drawn == 12 else 0.1)
    assert sum("nothing" in own for own in found) < 20


def expected(effects: dict[str, float]) -> float:
    lr, norm = effects["lr"] ** 2 * 2 / 3, effects["norm"] ** 2 / 4
    return lr / (lr + norm)


def test_no_share_where_nothing_tells_parameters_apart() -> None:
    tied = [({"a": n, "b": n}, trials(LOSS, [1.0 + n, 1.1 + n])) for n in range(3)]
    assert shares(LOSS, tied, [None] * 3) == {}
    exact = [({"a": a, "b": b}, trials(LOSS, [1.0 + a, 2.0 + a])) for a in (0, 1) for b in (0, 1)]
    assert shares(LOSS, exact, [None] * 4) == {"a": pytest.approx(1.0)}
    single = [(params, own[:1]) for params, own in exact[:3]]
    assert shares(LOSS, single, [None] * 3) == {}
    slow = [(params, trials(TIME, [1.0 + params["a"], 2.0 + params["a"]])) for params, _ in exact]
    assert shares(TIME, slow, [None] * 4) == {}
    calm = MetricNoise("s", "t", "step_time", 0.01, 20, False, 0.5)
    assert [*shares(TIME, slow, [calm] * 4)] == ["a"]


def test_the_shares_are_told_below_the_best_variant() -> None:
    params = [{"lr": lr, "norm": norm} for lr in (0.1, 0.2) for norm in ("batch", "group")]
    rows = tuple(AblationRow("c", "s", "fit", "e", each, 2, 0, ()) for each in params)
    own = Lead(LOSS, 4, 0, (1,), 1, -0.1, 1.0)
    text = Ablation((), ("lr", "norm"), (), rows, ((rows, own, {"lr": 0.82, "norm": 0.1}),)).text()
    assert text.splitlines()[-2:] == [
        "loss: lr=0.1 norm=batch leads; as good may be lr=0.1 norm=group: more seeds tell",
        "  parameters that explain the differences: lr 82 %, norm 10 %",
    ]
