"""The pictures of `celedger profile`: what the text names is drawn, and seen."""

from __future__ import annotations

from readable import assert_readable
from views.conftest import commits

from celedger.lab.diagnose.stalls import Document
from celedger.lab.views.memory import memory_text
from celedger.lab.views.profile import ProfileTarget
from celedger.lab.views.profile_picture import draw as figure

ONE = ProfileTarget("fit", tuple(commits(1)), 0)
MIB = 2**20


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
