"""The grids that follow the readings give what a plain sum over a huge fixed grid gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conftest import matrix_after
from scipy import special

from celedger.stats import levels, likelihood
from celedger.stats.firstbad import NONE_PRIOR, Evidence, Question, Reading, posterior
from celedger.stats.likelihood import Background, NoiseKind, Sites, core_density, tail_density
from celedger.stats.lineage import GOOD, Lineage

Readings = dict[int, list[float]]


def plainly(
    values: Readings, n: int, noises: list[NoiseKind], s0: float
) -> tuple[np.ndarray, float]:
    """(n,) posterior given a change, and of no change: an independent, slow sum.

    Both sides have their own level, scale and share of outliers on fixed grids."""
    level = np.linspace(-4, 7, 111)
    scale = np.exp(np.linspace(np.log(0.1), np.log(6), 32))
    step, cell = level[1] - level[0], np.log(scale[1] / scale[0])
    mu, sd = np.meshgrid(level, scale, indexing="ij")
    flat = [x for some in values.values() for x in some]
    positions = [p for p, some in values.items() for _ in some]
    sites = Sites(np.array(flat), np.array([len(v) for v in values.values()]), 0, len(values) - 1)
    back = Background(sites.values, s0)
    ratio = np.exp(-0.5 * (np.log(scale[None] / scale[:, None]) / levels.SCALE_SPREAD) ** 2)
    scales = levels.SAME * np.eye(len(scale)) + (1 - levels.SAME) * ratio / ratio.sum(
        axis=1, keepdims=True
    )
    weights = np.asarray(likelihood.OUTLYING_PRIOR)
    shares = levels.SAME * np.diag(weights) + (1 - levels.SAME) * np.outer(weights, weights)
    evidence, none = np.zeros(n), 0.0
    for noise in noises:
        core = core_density(np.array(flat), mu, sd)
        tail = tail_density(np.array(flat), mu, sd, noise.offset, s0, back.at_readings)
        w = np.array(likelihood.OUTLYING)
        logs = np.log((1 - w) * core[..., None] + w * tail[..., None])
        site: dict[int, np.ndarray] = {}
        for p in values:
            own = logs[[i for i, q in enumerate(positions) if q == p]].sum(axis=0)
            shared = 1 + (len(values[p]) - 1) * noise.share
            best = own.max(axis=0, keepdims=True)
            site[p] = best + (own - best) / shared - 0.5 * np.log(shared)
        for b in range(n):
            good = np.exp(sum(v for p, v in site.items() if p < b))
            bad = np.exp(sum(v for p, v in site.items() if p >= b))
            for i in range(len(scale)):
                shift = (level[None] - level[:, None]) / scale[i]
                log_shift = np.log(np.where(shift > 0, shift, 1.0))
                prior = (
                    np.where(
                        shift > 0,
                        sum(
                            w * np.exp(-0.5 * ((log_shift - np.log(m)) / levels.SHIFT_SPREAD) ** 2)
                            for w, m in levels.SHIFTS
                        )
                        / (np.maximum(shift, 1e-9) * levels.SHIFT_SPREAD * np.sqrt(2 * np.pi)),
                        0.0,
                    )
                    / scale[i]
                )
                other = np.einsum("bjw,j->bw", bad, scales[i])
                evidence[b] += (
                    noise.weight
                    * cell
                    * step**2
                    * float(np.einsum("aw,ab,bv,wv->", good[:, i], prior, other, shares))
                )
        everything = np.exp(sum(site.values()))
        none += noise.weight * cell * step * float((everything * weights).sum())
    total = evidence.mean() * (1 - NONE_PRIOR) + none * NONE_PRIOR
    return evidence / evidence.sum(), none * NONE_PRIOR / total


@pytest.mark.matrix
@pytest.mark.parametrize(
    "values",
    matrix_after(
        1,
        [
            {GOOD: [0.1, -0.4, 0.3, 0.0], 2: [1.0], 3: [2.4, 1.6], 5: [2.2, 1.9, 2.6]},
            {GOOD: [0.1, -0.4, 0.5], 1: [0.5], 4: [0.2], 5: [0.9, 0.4]},
            {GOOD: [0.0, 0.6, -0.5, 0.2], 1: [3.9], 3: [0.1, 0.3], 5: [1.4, 0.8, 1.1]},
        ],
    ),
)
def test_the_moving_grids_agree_with_a_plain_sum(values: Readings) -> None:
    readings = tuple(Reading(p, v) for p, some in values.items() for v in some)
    answer = posterior(Question(Lineage.line(6)), Evidence(readings))
    assert answer.belief is not None and answer.belief.fit.background is not None
    fit = answer.belief.fit
    noises = [replace(noise, offset=noise.offset * fit.unit) for noise in fit.noises]
    expected, none = plainly(values, 6, noises, fit.background.scale * fit.unit)
    assert answer.probability == pytest.approx(expected, abs=0.02)
    assert answer.no_change == pytest.approx(none, abs=0.03)


@pytest.mark.parametrize("stored", [2, 3, 5])
def test_ends_that_made_somebody_ask_count_given_that_they_did(stored: int) -> None:
    """Readings that had to differ by t > 2 to be noticed say less of a change: the odds of none
    rise, by no more than it was improbable that equal ends look so."""
    tail = float(special.stdtr(2 * stored - 2, -levels.SELECTING_T))
    for gap in (1.6, 8.0):
        ends = [Reading(GOOD, 0.3 * (-1) ** i, i) for i in range(stored)]
        ends += [Reading(9, gap + 0.3 * (-1) ** i, stored + i) for i in range(stored)]
        plain, chosen = (
            posterior(Question(Lineage.line(10), selected=seen), Evidence(tuple(ends))).no_change
            for seen in ((0, 0), (stored, stored))
        )
        odds = chosen / (1 - chosen) / (plain / (1 - plain))
        assert 1.1 < odds <= 1.01 / tail


@pytest.mark.parametrize("up", [1, 3, 5, 6])
def test_a_second_mode_is_seen_however_many_seeds_collapse(up: int) -> None:
    good = [-1.2, -0.4, 0.1, 0.3, 0.8, 1.1]
    bad = sorted([8.0 * (i < up) + x for i, x in enumerate([0.9, -1.0, 0.2, -0.5, 0.6, 0.0, 1.3])])
    sites = Sites(np.array([*good, *bad]), np.array([6, 7]), good=0, bad=1)
    assert sites.offsets == pytest.approx([8.0], abs=1.5)
    own, medians = sites.own
    assert (len(own), medians) == (13 - (up in (1, 6)), 3 - (up in (1, 6)))
    assert own.max() < 2


def test_readings_of_one_mode_show_no_second() -> None:
    random = np.random.default_rng(3)
    seen = 0
    for _ in range(200):
        values = np.concatenate([np.sort(random.standard_normal(15)) for _ in range(2)])
        seen += bool(Sites(values, np.array([15, 15]), good=0, bad=1).offsets)
    assert seen <= 2
