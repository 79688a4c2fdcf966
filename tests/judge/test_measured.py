"""What a task's trials become before they are judged."""

from __future__ import annotations

import math
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from views.conftest import commits, derivation, history

from celedger.base.model import Direction, Floor, Kind, Metric
from celedger.judge.derivation import _is_trained_since
from celedger.judge.state import state_of
from celedger.trial.protocol import TELEMETRY

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


def test_a_leak_is_sure_after_the_three_trials_of_a_commit(history: Any) -> None:
    """× 23 in three trials was "92 %, not settled": a session could have done it."""
    growth = Metric("memory_growth", "B", Direction.LOWER, Kind.MEMORY, Floor(1024.0))
    history.task = history.task.__class__("core", "mlp", history.task.commands, metrics=(growth,))
    made = history.commits(commits(5))
    for commit, bytes_of in zip(
        made,
        [
            (162, 146, 362),
            (199, 166, 383, 144, 239),
            (357, 0, 220, 148),
            (172, 222),
            (4759, 4610, 4737),
        ],
        strict=True,
    ):
        for seed, value in enumerate(bytes_of):
            history.trial(commit, {"memory_growth": float(value)}, seed=seed)
    derived = derivation(history.ledger, made)
    key = ("core", "mlp", "memory_growth")
    assert not derived.tasks[key[:2]].measured[key].has_sessions
    (incident,) = state_of(derived).incidents
    assert incident.first_bad == (made[4].sha,)


def test_a_leak_that_varies_is_no_second_leak(history: Any) -> None:
    """+2.9 % of 409 KiB, of one trial each, was an incident beside that of the leak: the noise was
    that of the levels without one."""
    growth = Metric("memory_growth", "B", Direction.LOWER, Kind.MEMORY, Floor(1024.0))
    history.task = history.task.__class__("core", "mlp", history.task.commands, metrics=(growth,))
    made = history.commits(commits(4))
    of_commits = (184.5, 142.8, 170.7, 214.2, 216.8), (243.8,), (418_696.7,), (430_783.7,)
    for commit, bytes_of in zip(made, of_commits, strict=True):
        for seed, value in enumerate(bytes_of):
            history.trial(commit, {"memory_growth": value}, seed=seed)
    (incident,) = state_of(derivation(history.ledger, made)).incidents
    assert incident.first_bad == (made[2].sha,)


@pytest.mark.parametrize("direction", [Direction.LOWER, Direction.HIGHER])
def test_a_time_of_many_times_the_level_is_told_with_levels_and_noise_in_its_unit(
    history: Any, direction: Direction
) -> None:
    """A step of .5 ms became 7 ms, 25 times as noisy: "seems worse, not settled" (.89)."""
    power = direction.sign
    time = Metric("rate", "", direction, Kind.SPEED, Floor(0.05, relative=True))
    history.task = history.task.__class__("core", "mlp", history.task.commands, metrics=(time,))
    made, random = history.commits(commits(4)), Random(5)
    for place, commit in enumerate(made):
        for seed in range(3):
            level, sd = (0.5, 0.04) if place < 2 else (7.0, 0.07)
            history.trial(commit, {"rate": (level * random.gauss(1, sd)) ** power}, seed=seed)
    derived = derivation(history.ledger, made)
    assert derived.tasks["core", "mlp"].measured["core", "mlp", "rate"].grows
    state = state_of(derived)
    (incident,) = state.incidents
    (metric,) = incident.metrics
    assert incident.first_bad == (made[2].sha,)
    assert [metric.before, metric.after] == pytest.approx([0.5**power, 7.0**power], rel=0.2)
    assert metric.low < metric.change < metric.high < metric.low + 0.5 * abs(metric.change)
    assert state.noise[0].sd == pytest.approx(0.055 * 7.0**power, rel=0.4)


@pytest.mark.parametrize("declared", [False, True])
def test_undeclared_memory_that_each_commit_draws_anew_is_told_where_it_moves_unusually(
    history: Any, declared: bool
) -> None:
    """The heap of a small process lay otherwise after every change of the code: 54 false incidents
    in 180 commits, though each commit repeats to the byte."""
    (peak,) = (m for m in TELEMETRY if m.name == "peak_rss" and m.summary == "max")
    if declared:
        peak = peak._replace(floor=Floor(0.03 + 1e-9, relative=True))
    history.task = history.task.__class__("core", "mlp", history.task.commands, metrics=(peak,))
    made, random = history.commits(commits(16)), Random(3)
    for place, commit in enumerate(made):
        peaks = 70e6 * (1 + random.uniform(-0.08, 0.08)) + 30e6 * (place >= 13)
        for seed in range(2):
            history.trial(commit, {"peak_rss": float(round(peaks))}, seed=seed)
    incidents = state_of(derivation(history.ledger, made)).incidents
    assert (made[13].sha,) in [i.first_bad for i in incidents]
    assert (len(incidents) == 1) != declared


def test_a_reused_result_is_no_newer_trial() -> None:
    """A change of the documentation opened what was dismissed the day before."""
    ended_well = np.array([[1, 2], [3, 4], [0, 0], [0, 0], [10_000_000, 20_000_000]])
    for same_code, is_trained in (({}, True), ({4: 3}, False)):
        task: Any = SimpleNamespace(ended_well=ended_well, same_code=same_code)
        tasks = {("core", "mlp"): task}
        key = ("core", "mlp", "val_loss")
        assert _is_trained_since(15, 3, math.inf, [key], tasks) is is_trained


def test_a_commit_that_repeats_another_bit_by_bit_stands_as_that_does(history: Any) -> None:
    """`check` could not judge a merge that noise hid; after the next one, of documentation, which
    re-used all its results, it passed."""
    random, drawn = Random(5), list[list[float]]()
    made = history.commits(commits(6))
    for commit in made[:5]:
        drawn.append([0.4 * (1 + random.gauss(0, 0.05)) for _ in range(3)])
        for seed, loss in enumerate(drawn[-1]):
            history.trial(commit, {"val_loss": loss}, seed=seed)
    for commit in made[4:]:
        for seed, loss in enumerate(drawn[-1]):
            history.trial(commit, {"val_loss": loss}, seed=seed)
    lived = derivation(history.ledger, made)
    told = [
        (own.standing, own.note, own.level, own.smallest)
        for place in (4, 5)
        for own in state_of(lived, made[place].sha).standings
        if own.metric == "val_loss"
    ]
    assert told[0][0] == "too-noisy"
    assert told[0] == told[1]
