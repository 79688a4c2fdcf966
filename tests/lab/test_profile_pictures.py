"""The pictures of `celedger profile`: what the text names is drawn, and seen."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import matrix_after
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from readable import assert_readable
from views.conftest import commits

from celedger.lab.diagnose.stalls import Document
from celedger.lab.views.memory import memory_text
from celedger.lab.views.profile import ProfileTarget, slower_text
from celedger.lab.views.profile_picture import draw as figure
from celedger.views import picture

BEFORE, AFTER = commits(2)
ONE, TWO = ProfileTarget("fit", (AFTER,), 0), ProfileTarget("fit", (BEFORE, AFTER), 0)
MIB = 2**20


def row(name: str, difference: float, **more: Any) -> Document:
    return {
        "name": name, "where": "forward layers.0", "before": 0.01, "after": 0.01 + difference,
        "noise": 1e-4, "beyond_noise": abs(difference) > 1e-3, "calls": None,
        "difference": difference, "change": None, **more,
    }  # fmt: skip


def slower() -> Document:
    operators = [row(f"aten::op{i}", (-1) ** i * 3e-3 / (i + 1)) for i in range(150)]
    phases = [row("forward", 2e-3, where=""), row("backward", 1e-5, where="")]
    return {
        "runs": 4, "verdict": "slower", "decisive": "step",
        "whole": row("step", 2.5e-3), "added": row("added", 0.0), "new_stalls": [], "new_waits": [],
        **{part: [*rows, row("remainder", 0.4, where="")]
           for part, rows in (("phases", phases), ("operators", operators), ("functions", []))},
    }  # fmt: skip


def memory() -> Document:
    peaks = {
        name: {"bytes": size * MIB, "step": step, "held": [], "course": None}
        for name, size, step in (("step", 10, 3), ("evaluation", 13, 5))
    }
    mib = [300 * MIB] * 3 + [302 * MIB] * 3
    steps = {"peak": [8 * MIB, 9 * MIB, 9 * MIB, 10 * MIB, 9 * MIB], "held": [MIB] * 5, "rss": mib}
    return {
        "environment": {"torch": "2", "device": "cpu"}, "peaks": peaks, "peak_rss": 310 * MIB,
        "steps": steps, "leaks": [],
        "outside": 0,
    }  # fmt: skip


def test_a_little_memory_is_no_cliff_and_the_peaks_of_the_text_are_drawn() -> None:
    document = memory()
    document["steps"]["rss"] = document["steps"]["rss"][:5]
    drawn = figure(ONE, document)
    upper, lower = drawn.axes
    assert upper.get_ylim()[0] == lower.get_ylim()[0] == 0
    marks = {line.get_label(): line.get_xydata().tolist() for line in upper.lines}
    assert marks["peak of a training step: 10 MiB, step 3"] == [[3, 10]]
    assert marks["peak of an evaluation: 13 MiB, step 5"] == [[5, 13]]
    assert "the process held 310 MiB at most" in [line.get_label() for line in lower.lines]
    text = memory_text(ONE, document)
    assert "the process held 310 MiB at most" in text
    assert_readable(drawn)


def test_the_course_of_a_step_is_drawn_with_its_phases_and_its_peak() -> None:
    document = memory()
    phases = [(0, "data"), (1, "forward"), (4, "backward"), (7, "tail")]
    held = [at * MIB for at in (1, 2, 5, 8, 9, 10, 6, 2)]
    document["peaks"]["step"]["course"] = {"bytes": held, "phases": phases, "peak": 5}
    drawn = figure(ONE, document)
    *_, within = drawn.axes
    assert [[5, 10]] in [line.get_xydata().tolist() for line in within.lines]
    assert [text.get_text() for text in within.texts] == [
        "between steps", "forward pass", "backward pass", "optimiser tail",
    ]  # fmt: skip
    assert "step 3, at operator 6 of 8" in memory_text(ONE, document)
    assert_readable(drawn)


def bars(axes: Axes, colour: str) -> int:
    return sum(patch.get_facecolor()[:3] == to_rgb(colour) for patch in axes.patches)


def test_the_remainder_and_the_others_do_not_swallow_a_difference() -> None:
    drawn = figure(TWO, slower())
    phases, operators = drawn.axes
    assert [text.get_text() for text in phases.get_yticklabels()] == [
        "forward pass", "backward pass",
    ]  # fmt: skip
    assert (bars(phases, picture.RED), bars(phases, picture.MUTED)) == (1, 1)
    assert len(operators.patches) == 8
    assert bars(operators, picture.GREEN) == 1
    assert max(abs(x) for x in operators.get_xlim()) < 5  # ms, where the remainder has 400
    assert "142 others" in operators.get_xlabel()
    assert operators.get_xlabel().endswith("remainder +400 ms")
    title = phases.get_title("left")
    assert title.splitlines()[0] in slower_text(TWO, slower(), width=200)
    assert AFTER.subject in title
    assert_readable(drawn)


@pytest.mark.parametrize("width", matrix_after(1, [60, 10]))
def test_long_names_of_a_difference_stay_inside(width: int) -> None:
    target = ProfileTarget("t" * width, (BEFORE, AFTER), 0)
    document = slower()
    document["operators"][0] |= {"name": "aten::" + "x" * 90, "where": "backward a.b"}
    assert_readable(figure(target, document))


def test_what_differs_in_memory_is_drawn_part_by_part() -> None:
    parts = [
        {"operator": f"aten::op{i}", "phase": "forward", "module": "body", "place": None,
         "before": MIB, "after": MIB * (i + 2)} for i in range(12)
    ]  # fmt: skip
    peaks = {
        "step": {"before": 12 * MIB, "after": 90 * MIB, "parts": parts[::-1]},
        "evaluation": {"before": 5, "after": 5, "parts": []},
    }
    process = {"before": 300 * MIB, "after": 378 * MIB}
    document = {"verdict": "larger", "peaks": peaks, "new_leaks": [], "process": process}
    drawn = figure(TWO, document)
    (axes,) = drawn.axes
    assert len(axes.patches) == 8
    assert axes.get_xlabel().startswith("peak of a training step (MiB)\nnot drawn: 4 others +10")
    assert_readable(drawn)
    document["peaks"]["step"]["parts"] = []  # type: ignore[index]
    assert_readable(figure(TWO, document))
