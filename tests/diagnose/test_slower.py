"""Two sides of profiles, compared: rows add up, and noise is not called a difference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celedger.diagnose.profile import (
    HotLine,
    Machine,
    Operator,
    PhaseTime,
    Profile,
    Wait,
)
from celedger.diagnose.slower import compare
from celedger.diagnose.stalls import CodeLine, Stalls
from celedger.views.slower import grouped, shown, verdict

MS = 1e-3


def run(
    scale: float = 1.0, *, extra: float = 0.0, waits: bool = False, calls: float = 2.0
) -> Profile:
    """A run of 50 steps of 10 ms, times `scale`; `extra` ms of an operator that others lack."""
    forward = (4 * scale + extra) * MS
    times = {"data": 1 * MS, "other": 0.0, "forward": forward, "backward": 4 * MS, "tail": 1 * MS}
    columns = {
        name: np.full(50, value * (scale if name != "forward" else 1.0))
        for name, value in times.items()
    }
    own = np.sum(list(columns.values()), axis=0)
    operators = [
        Operator("aten::mm", "forward", "body", calls, 4 * scale * MS, 0.0, 0.0, 0.0),
        Operator("aten::mm", "backward", "body", 2.0, 4 * scale * MS, 0.0, 0.0, 0.0),
    ]
    if extra:
        operators.append(Operator("aten::bmm", "forward", "head", 1.0, extra * MS, 0.0, 0.0, 0.0))
    place = CodeLine("net.py", "forward", 7)
    return Profile(
        folder=Path(), torch="2", device="cpu", threads=1, exact=True, steps=np.arange(50),
        times=columns, wall=own, cpu=own, collected=np.zeros(50), count=60, evaluation=0.01,
        evaluations=1, step=PhaseTime("step", float(np.median(own)), 0.0, 0.0, 1.0), phases=(),
        operators=tuple(operators), window=(6, 15), window_seconds=10 * MS, problem="",
        lines=(HotLine(place, "forward", 1.0),),
        waits=(Wait("item", place, 1.0),) if waits else (), workers=None,
        stalls=Stalls((), (), ()), machine=Machine(),
    )  # fmt: skip


NOISY = (1.02, 0.97, 1.01, 0.99)


def test_an_operator_more_is_slower_and_named_first() -> None:
    found = compare([run(s) for s in NOISY], [run(s, extra=3.0) for s in NOISY[::-1]])
    assert found.slower
    first = shown(grouped(found.operators))[0]
    assert (first.name, first.where, first.change) == ("aten::bmm", "forward head", "added")
    assert found.phases[0].name == "forward"


def test_equal_runs_give_no_difference_beyond_noise() -> None:
    found = compare([run(s) for s in NOISY], [run(s) for s in NOISY[::-1]])
    assert not found.slower
    assert not found.faster
    assert verdict(found).startswith("no difference beyond noise")


def test_a_noisy_whole_does_not_hide_what_was_added() -> None:
    wild = (1.4, 0.8, 1.2, 0.9)
    found = compare([run(s) for s in wild], [run(s, extra=1.0) for s in wild])
    assert not found.whole.beyond
    assert found.slower


def test_less_of_everything_is_faster() -> None:
    found = compare([run(s) for s in NOISY], [run(0.7 * s) for s in NOISY])
    assert (found.slower, found.faster) == (False, True)


def test_a_new_wait_for_the_device_is_told() -> None:
    sides = [run() for _ in range(2)], [run(waits=True) for _ in range(2)]
    assert [wait.method for wait in compare(*sides).waits] == ["item"]
    assert compare(*reversed(sides)).waits == ()


@settings(max_examples=30)
@given(
    st.lists(st.floats(0.5, 2.0), min_size=2, max_size=4),
    st.lists(st.floats(0.5, 2.0), min_size=2, max_size=4),
    st.floats(0.0, 5.0),
)
def test_every_table_adds_up_to_the_whole(a: list[float], b: list[float], extra: float) -> None:
    found = compare([run(s) for s in a], [run(s, extra=extra) for s in b])
    tables = [found.phases, found.operators, found.functions]
    for rows in (*tables, shown(found.operators, 1), grouped(found.operators)):
        total = sum(row.difference for row in rows)
        assert total == pytest.approx(found.whole.difference, abs=1e-12)
