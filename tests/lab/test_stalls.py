"""Stalls are told by what they do and when, never by being slow alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from celedger.lab.diagnose.stalls import CodeLine, Document, StackSamples, TimedSteps, find, period

USUAL, OWN = CodeLine("loop.py", "fit", 3), CodeLine("loop.py", "save", 9)


def steps(
    stalled: dict[int, float],
    *,
    n: int = 200,
    place: int = 1,
    noise: float = 0.03,
    seed: int = 0,
    collected: bool = False,
    machine: dict[int, float] | None = None,
) -> Document:
    """Stalls of made-up steps of 10 ms, of which some last longer, spent at OWN or (0) as usual."""
    rng = np.random.default_rng(seed)
    own = 0.010 * np.exp(rng.normal(0.0, noise, n))
    wall = own.copy()
    rows = [(i, 0, 0.005) for i in range(n) for _ in range(2)]
    gc = np.zeros(n)
    for at, extra in stalled.items():
        own[at] += extra
        wall[at] += extra
        gc[at] = extra if collected else 0.0
        rows += [(at, place, 0.005)] * round(extra / 0.005)
    for at, extra in (machine or {}).items():
        wall[at] += extra
    step, where, seconds = map(np.array, zip(*rows, strict=True))
    samples = StackSamples(step, np.full(len(step), "forward"), where, seconds, (USUAL, OWN))
    timed = TimedSteps(np.arange(n), {"forward": own, "tail": np.zeros(n)}, wall, own, gc)
    return find(timed, samples, dict.fromkeys(stalled, OWN))


def test_a_regular_stall_is_named_with_its_period_line_and_share() -> None:
    (stall,) = steps(dict.fromkeys(range(20, 200, 50), 0.1))["found"]
    assert (stall["every"], stall["place"], stall["phase"]) == (50, str(OWN), "forward")
    assert len(stall["steps"]) == 4
    assert stall["share"] == pytest.approx(0.4 / 2.4, rel=0.02)


def test_an_irregular_stall_is_named_by_its_line_alone() -> None:
    (stall,) = steps(dict.fromkeys((21, 48, 101, 163, 170), 0.1))["found"]
    assert (stall["every"], stall["place"]) == (None, str(OWN))


def test_the_garbage_collector_is_named() -> None:
    (stall,) = steps(dict.fromkeys((21, 48, 101), 0.1), collected=True)["found"]
    assert (stall["collector"], stall["place"]) == (True, str(OWN))


def test_slow_steps_that_do_what_all_steps_do_are_not_concluded_from() -> None:
    found = steps(dict.fromkeys((21, 48, 101, 163), 0.1), place=0)
    assert (found["found"], found["unexplained"]) == ([], [21, 48, 101, 163])


def test_a_step_without_a_core_is_the_machines() -> None:
    found = steps({}, machine={40: 0.2, 90: 0.1})
    assert (found["found"], found["machine"]) == ([], [40, 90])


@given(st.integers(0, 10_000), st.floats(0.0, 0.2))
def test_noise_alone_is_no_stall(seed: int, noise: float) -> None:
    assert steps({}, seed=seed, noise=noise)["found"] == []


@pytest.mark.parametrize("every", [5, 17, 50])
def test_a_period_is_found_with_a_stranger_among_the_stalls(every: int) -> None:
    stalls = sorted({*range(every - 1, 300, every), 7})
    assert period(stalls) == every


def test_random_stalls_have_no_period() -> None:
    rng = np.random.default_rng(1)
    called = [period(sorted(rng.choice(300, 6, replace=False))) for _ in range(300)]
    assert sum(found is not None for found in called) <= 2
