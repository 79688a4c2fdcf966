"""Two sides of profiles, compared: rows add up, and noise is not called a difference."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celedger.lab.diagnose.slower import compare, in_turns
from celedger.lab.diagnose.stalls import CodeLine, Document, line_fields
from celedger.lab.views import memory
from celedger.lab.views import profile as profile_views
from celedger.lab.views.profile import difference_headline, largest, verdict

MS = 1e-3


def run(
    scale: float = 1.0,
    *,
    extra: float = 0.0,
    waits: bool = False,
    calls: float = 2.0,
    device: str = "cuda",
    phases: Mapping[str, float] = MappingProxyType({}),
) -> Document:
    """A run of 50 steps of 10 ms, times `scale`; `extra` ms of an operator that others lack;
    `phases` that take other ms."""
    usual = {
        "data": scale, "forward": 4 * scale + extra, "backward": 4 * scale, "tail": scale, **phases,
    }  # fmt: skip
    seconds = {name: ms * MS for name, ms in usual.items()}
    step = sum(seconds.values())
    operators = [
        ("aten::mm", phase, "body", 2.0, 4 * scale * MS) for phase in ("forward", "backward")
    ]
    operators[0] = (*operators[0][:3], calls, 4 * scale * MS)
    if extra:
        operators.append(("aten::bmm", "forward", "head", 1.0, extra * MS))
    names = ("name", "phase", "module", "calls", "seconds")
    line = line_fields(CodeLine("net.py", "forward", 7))
    return {
        "environment": {"device": device},
        "steps": {"count": 60, "timed": 50, "seconds": [step] * 50},
        "phases": [{"name": n, "median": s} for n, s in {"step": step, **seconds}.items()],
        "evaluation": {"seconds": 0.01},
        "operators": {"rows": [dict(zip(names, row, strict=True)) for row in operators]},
        "lines": [{**line, "phase": "forward", "share": 1.0}],
        "waits": [{**line, "method": "item", "times": 1.0}] if waits else [],
        "stalls": {"found": []},
    }


NOISY = (1.02, 0.97, 1.01, 0.99)


def test_an_operator_more_is_slower_and_named_first() -> None:
    found = compare([run(s) for s in NOISY], [run(s, extra=3.0) for s in NOISY[::-1]])
    assert found["verdict"] == "slower"
    first = largest(found["operators"])[0]
    assert (first["name"], first["where"], first["change"]) == (
        "aten::bmm",
        "forward head",
        "added",
    )
    assert found["phases"][0]["name"] == "forward"
    assert difference_headline(found).endswith(
        ", most of it in `forward` (net.py); added: 1 × aten::bmm a step"
    )


def test_equal_runs_give_no_difference_beyond_noise() -> None:
    found = compare([run(s) for s in NOISY], [run(s) for s in NOISY[::-1]])
    assert found["verdict"] == "same"
    assert verdict(found).startswith("no difference beyond noise")


def test_a_noisy_whole_does_not_hide_what_was_added() -> None:
    wild = (1.4, 0.8, 1.2, 0.9)
    found = compare([run(s) for s in wild], [run(s, extra=1.0) for s in wild])
    assert not found["whole"]["beyond_noise"]
    assert found["verdict"] == "slower"


def test_one_phase_beyond_noise_decides_where_the_whole_is_within_it() -> None:
    """A quiet forward pass of 2 ms more, beside loading that others slow."""
    sides = [
        [run(phases={"data": data, "forward": forward}) for data in (1.0, 9.0, 2.0, 8.0)]
        for forward in (4.0, 8.0)
    ]
    found = compare(*sides)
    assert not found["whole"]["beyond_noise"]
    assert (found["verdict"], found["decisive"]) == ("slower", "forward")
    assert verdict(found).startswith("slower: one phase, forward pass, makes +")
    assert compare(sides[1], sides[0])["verdict"] == "faster"
    assert compare(sides[0], sides[0])["decisive"] is None


def test_two_runs_a_side_tell_what_is_plain_and_nothing_else() -> None:
    before = [run(1.0), run(1.03)]
    assert compare(before, [run(5.7), run(6.0)])["verdict"] == "slower"
    assert compare(before, [run(1.03), run(1.0)])["verdict"] == "same"
    assert compare([run(1.0), run(1.4)], [run(1.5), run(1.0)])["verdict"] == "same"


def test_six_times_as_long_counts_after_one_turn_on_a_busy_machine() -> None:
    """One turn is two runs a side. What others take from the machine slows each by a factor."""
    found = compare([run(1.0), run(1.4)], [run(5.0), run(8.5)])
    assert found["verdict"] == "slower"
    assert found["operators"][-1]["difference"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("after", "ran"), [(2.0, "ABBA"), (0.4, "ABBA"), (1.1, "ABBAABBA")])
def test_what_is_plain_after_one_turn_runs_no_other(after: float, ran: str) -> None:
    order: list[int] = []

    def one(side: int, left: int) -> Document:
        assert left == 8 - len(order)
        order.append(side)
        return run((1.0, after)[side] * NOISY[len(order) % 4])

    sides = in_turns(one, 2)
    assert ["AB"[side] for side in order] == [*ran]
    assert [len(side) for side in sides] == [len(ran) // 2] * 2


def test_a_large_difference_within_noise_is_undecided() -> None:
    found = compare([run(1.0), run(1.5)], [run(1.2), run(2.2)])
    assert found["verdict"] == "undecided"
    assert verdict(found).startswith("undecided: a step takes +")


def test_less_of_everything_is_faster() -> None:
    found = compare([run(s) for s in NOISY], [run(0.7 * s) for s in NOISY])
    assert found["verdict"] == "faster"


def test_a_read_of_a_value_on_a_cpu_is_no_wait() -> None:
    sides = [run(device="cpu") for _ in range(2)], [run(waits=True, device="cpu") for _ in range(2)]
    assert compare(*sides)["new_waits"] == []


def test_a_new_wait_for_the_device_is_told() -> None:
    sides = [run() for _ in range(2)], [run(waits=True) for _ in range(2)]
    assert [wait["method"] for wait in compare(*sides)["new_waits"]] == ["item"]
    assert compare(*reversed(sides))["new_waits"] == []


@given(
    st.lists(st.floats(0.5, 2.0), min_size=2, max_size=4),
    st.lists(st.floats(0.5, 2.0), min_size=2, max_size=4),
    st.floats(0.0, 5.0),
)
def test_every_table_adds_up_to_the_whole(a: list[float], b: list[float], extra: float) -> None:
    found = compare([run(s) for s in a], [run(s, extra=extra) for s in b])
    tables = [found[name] for name in ("phases", "operators", "functions")]
    with patch.object(profile_views, "DIFFERENCES", 1):
        tables.append(largest(found["operators"]))
    for rows in tables:
        total = sum(row["difference"] for row in rows)
        assert total == pytest.approx(found["whole"]["difference"], abs=1e-12)


def test_a_leak_is_told_before_the_peaks_and_no_peak_that_fell_is_called_larger() -> None:
    """An alert said "larger: the peak of a training step is -15.0 KiB; tensors … pile up"."""
    leak = {
        "kind": "tensors", "what": "aten::norm", "module": None, "number": 16.0, "bytes": 64.0,
        "place": "prodigy.py:144", "keeper": "optimizer.trace",
    }  # fmt: skip
    found = {
        "verdict": "larger",
        "peaks": {
            "training": {"before": 1_000_000, "after": 985_000, "parts": []},
            "evaluation": {"before": 1_000_000, "after": 1_200_000, "parts": []},
        },
        "process": {"before": 50_000_000, "after": 50_000_000},
        "new_leaks": [leak],
    }
    text = memory.difference_headline(found)
    assert text.startswith("larger: tensors of aten::norm pile up: 16 a step, 64 B a step made at ")
    assert (
        "kept in optimizer.trace; the peak of an evaluation is +" in text and "training" not in text
    )
