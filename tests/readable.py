"""A picture that a person can read: no text leaves it, and none lies over another."""

from __future__ import annotations

import itertools
from typing import Any

from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text


def text_boxes(figure: Figure) -> list[tuple[str, Any]]:
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    drawn: list[Any] = []
    ticks: list[Any] = []
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            drawn += [tick.label1 for tick in axis._update_ticks()]  # type: ignore[attr-defined]
            ticks += axis.get_ticklabels(which="both")
    # Ticks beyond the limits exist but are never drawn.
    beyond = {id(label) for label in ticks} - {id(label) for label in drawn}
    found = []
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and id(text) not in beyond:
            # An annotation's own extent includes its arrow, which may touch its mark.
            if isinstance(text, Annotation):
                text.update_positions(renderer)
            found.append((text.get_text(), Text.get_window_extent(text, renderer)))
    return found


def assert_readable(figure: Figure) -> None:
    boxes = text_boxes(figure)
    assert len(boxes) > 4
    sheet = figure.bbox.padded(1)
    for name, box in boxes:
        assert sheet.x0 <= box.x0 and box.x1 <= sheet.x1, f"{name!r} leaves the sheet"
        assert sheet.y0 <= box.y0 and box.y1 <= sheet.y1, f"{name!r} leaves the sheet"
    for (a, one), (b, other) in itertools.combinations(boxes, 2):
        assert not one.padded(-0.5).overlaps(other.padded(-0.5)), f"{a!r} lies over {b!r}"
