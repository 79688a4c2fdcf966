"""What a task's trials become before they are judged."""

from __future__ import annotations

from typing import Any

import pytest
from views.conftest import commits, derivation, history

from celedger.base.model import Direction, Floor, Kind, Metric
from celedger.judge.state import state_of

__all__ = ["history"]
BYTES = Metric("peak", "B", Direction.LOWER, Kind.MEMORY, Floor(0.01, relative=True))


@pytest.mark.parametrize(("repeats", "found"), [(3, True), (1, False)])
def test_memory_that_repeats_to_the_byte_tells_a_change_below_the_spread_of_seeds(
    history: Any,
    repeats: int,
    found: bool,
) -> None:
    """torch counts the bytes that it allocated; batches of a seed are longer than another's."""
    history.task = history.task.__class__(
        "core", "mlp", history.task.commands, metrics=(BYTES, history.task.metrics[0])
    )
    made = history.commits(commits(6))
    peaks = (186e6, 204e6, 222e6)
    for place, commit in enumerate(made):
        for seed, peak in enumerate(peaks):
            grown = 3e6 if place >= 4 else 0.0
            history.trial(
                commit, {"peak": peak + grown, "val_loss": 0.4123456789 + seed}, seed=seed
            )
    for commit in made[:repeats]:
        history.trial(commit, {"peak": peaks[0], "val_loss": 0.4123456789}, seed=0)
    incidents = state_of(derivation(history.ledger, made)).incidents
    assert [i.first_bad for i in incidents] == ([(made[4].sha,)] if found else [])


def test_one_repeat_that_differs_makes_it_noisy_again(history: Any) -> None:
    history.task = history.task.__class__(
        "core", "mlp", history.task.commands, metrics=(BYTES, history.task.metrics[0])
    )
    made = history.commits(commits(4))
    for commit in made:
        for seed in (0, 1, 1):
            history.trial(commit, {"peak": 1e8 + 1e6 * seed, "val_loss": 0.4 + seed}, seed=seed)
    key = ("core", "mlp", "peak")
    measured = derivation(history.ledger, made).tasks[key[:2]].measured[key]
    assert not measured.has_sessions
    history.trial(made[0], {"peak": 1e8 + 4096, "val_loss": 0.4}, seed=0)
    measured = derivation(history.ledger, made).tasks[key[:2]].measured[key]
    assert measured.has_sessions
