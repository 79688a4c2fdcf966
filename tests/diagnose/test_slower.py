"""Two sides of profiles, compared: rows add up, and noise is not called a difference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celedger.diagnose.profile import HotLine, Operator, Profile, Wait
from celedger.diagnose.slower import compare
from celedger.diagnose.stalls import CodeLine, Stalls, TimedSteps
from celedger.views.profile import grouped, largest, verdict

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
    line = CodeLine("net.py", "forward", 7)
    return Profile(
        folder=Path(), settings={}, steps=TimedSteps(np.arange(50), columns, own, own, 0 * own),
        count=60, evaluation=[0.01], operators=operators, window=(6, 15), problem="",
        lines=[HotLine(line, "forward", 1.0)], waits=[Wait("item", line, 1.0)] if waits else [],
        stalls=Stalls(),
    )  # fmt: skip


NOISY = (1.02, 0.97, 1.01, 0.99)


def test_an_operator_more_is_slower_and_named_first() -> None:
    found = compare([run(s) for s in NOISY], [run(s, extra=3.0) for s in NOISY[::-1]])
    assert found.verdict == "slower"
    first = largest(grouped(found.tables["operators"]))[0]
    assert (first.name, first.where, first.change) == ("aten::bmm", "forward head", "added")
    assert found.tables["phases"][0].name == "forward"


def test_equal_runs_give_no_difference_beyond_noise() -> None:
    found = compare([run(s) for s in NOISY], [run(s) for s in NOISY[::-1]])
    assert found.verdict == "same"
    assert verdict(found).startswith("no difference beyond noise")


def test_a_noisy_whole_does_not_hide_what_was_added() -> None:
    wild = (1.4, 0.8, 1.2, 0.9)
    found = compare([run(s) for s in wild], [run(s, extra=1.0) for s in wild])
    assert not found.whole.beyond_noise
    assert found.verdict == "slower"


def test_less_of_everything_is_faster() -> None:
    found = compare([run(s) for s in NOISY], [run(0.7 * s) for s in NOISY])
    assert found.verdict == "faster"


def test_a_new_wait_for_the_device_is_told() -> None:
    sides = [run() for _ in range(2)], [run(waits=True) for _ in range(2)]
    assert [wait.method for wait in compare(*sides).waits] == ["item"]
    assert compare(*reversed(sides)).waits == []


@settings(max_examples=30)
@given(
    st.lists(st.floats(0.5, 2.0), min_size=2, max_size=4),
    st.lists(st.floats(0.5, 2.0), min_size=2, max_size=4),
    st.floats(0.0, 5.0),
)
def test_every_table_adds_up_to_the_whole(a: list[float], b: list[float], extra: float) -> None:
    found = compare([run(s) for s in a], [run(s, extra=extra) for s in b])
    operators = found.tables["operators"]
    for rows in (*found.tables.values(), largest(operators, 1), grouped(operators)):
        total = sum(row.difference for row in rows)
        assert total == pytest.approx(found.whole.difference, abs=1e-12)
