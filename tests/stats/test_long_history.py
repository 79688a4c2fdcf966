"""Long histories: the answer is the same whether parts of it were cached or not, and a cached part
serves until the next hundredth value."""

from __future__ import annotations

import numpy as np

from celedger.stats import long_history
from celedger.stats.changepoints import detect
from celedger.stats.long_history import STRIDE, Settled


def series(n: int, seed: int = 3) -> np.ndarray:
    random = np.random.default_rng(seed)
    x = random.standard_t(5, (n, 2))
    x[150:] += 3
    x[n - 20 :] -= 4
    return x


def test_what_was_cached_gives_the_answer_that_nothing_cached_gives() -> None:
    cache: dict[str, Settled] = {}
    whole = series(260)
    for n in range(240, 260):
        with_cache = detect(whole[:n], cache)
        assert with_cache == detect(whole[:n])
    assert len(cache) == 1, "between two hundredths nothing old is derived again"
    assert 150 in with_cache.points[0].commits
    assert 240 in with_cache.points[-1].commits, "a change after the last hundredth is seen"


def test_another_value_or_another_method_is_derived_anew(monkeypatch: object) -> None:
    cache: dict[str, Settled] = {}
    x = series(2 * STRIDE + 10)
    detect(x, cache)
    changed = x.copy()
    changed[7, 0] += 1e-12
    detect(changed, cache)
    assert len(cache) == 2
    method = long_history._method
    try:
        long_history._method = lambda: b"of tomorrow"  # type: ignore[assignment]
        detect(x, cache)
    finally:
        long_history._method = method
    assert len(cache) == 3


def test_a_commit_with_more_trials_has_less_noise() -> None:
    random = np.random.default_rng(5)
    counts = np.tile([1, 8], 60)
    x = random.normal(0, np.sqrt(0.1 + 1 / counts))
    _, uneven, _ = long_history._scales(x, counts, 1.0)
    assert np.all(uneven[counts == 8] < 0.7 * uneven[counts == 1])
    _, even, _ = long_history._scales(x, np.full(120, 2), 1.0)
    _, without, _ = long_history._scales(x, counts, 0.0)
    assert np.array_equal(even, without)
