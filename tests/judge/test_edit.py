"""How often chance makes an edit that changes nothing look worse."""

from __future__ import annotations

from random import Random
from statistics import stdev

import pytest

from celedger.judge.incident import MetricNoise


@pytest.mark.parametrize(("repeats", "seeds"), [(5, 1), (5, 3), (9, 1)])
def test_few_repeats_tell_the_noise_but_roughly(repeats: int, seeds: int) -> None:
    draw = Random(repeats * seeds)
    beyond = 0
    for _ in range(4000):
        sd = stdev(draw.gauss(0, 1) for _ in range(repeats))
        noise = MetricNoise("s", "t", "loss", sd, repeats - 1, False, 0.0)
        a, b = (sum(draw.gauss(0, 1) for _ in range(seeds)) / seeds for _ in "ab")
        beyond += b - a > noise.reach(seeds, seeds)
    assert beyond / 4000 == pytest.approx(0.025, abs=0.0075)
