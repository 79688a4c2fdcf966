"""The common style of all figures: palette, marks, axes, labels, and how a picture is saved. It
knows matplotlib's object API (never pyplot, no display, the caller's rcParams restored) and nothing
of the ledger.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from operator import itemgetter
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from celedger.base import files
from celedger.base.errors import MachineError, UsageError
from celedger.base.model import Direction, Metric
from celedger.views.document import UnitScale, clip

# Okabe & Ito, "Color Universal Design" (2008): told apart by readers of every colour vision.
BLUE, ORANGE, GREEN, RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"
PURPLE, SKY, INK = "#cc79a7", "#56b4e9", "#20262e"
MUTED, FAINT = "#66707c", "#e7eaee"

SUFFIXES = (".png", ".svg")
WIDTH = 9.0  # inches: a README shows them on about 6
_LETTERS = 108  # of a subtitle's line on WIDTH
_ROWS, _ROW = 6, 13.0  # of a banner: rows at most, and points a row
_EDGE = 1.01  # of the axes: where a banner's labels end at the right
_LONGEST_NAME = 40
_LOG_RATIO = 30.0  # a range wider than this hides its lower half on a linear axis
_LEGEND, _HANDLE = 128, 8  # letters of a legend's row on WIDTH, and those that a mark takes

_STYLE: dict[str, object] = {
    "savefig.dpi": 144,
    "font.family": ["DejaVu Sans"],  # ships with matplotlib: the same picture on every machine
    "font.size": 9,
    "text.parse_math": False,  # a subject with two dollar signs is no formula
    "axes.titlesize": 9,
    "axes.titlecolor": MUTED,
    "axes.titlelocation": "left",
    "axes.formatter.useoffset": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.ymargin": 0.12,
    "grid.color": FAINT,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "celedger",  # ids in the SVG depend on the content, not on the clock
}


@contextmanager
def style() -> Iterator[None]:
    """Apply celedger's style, whatever the user's matplotlibrc has, and restore it after."""
    defaults = {k: v for k, v in matplotlib.rcParamsDefault.items() if k != "backend"}
    settings: Any = {**defaults, **_STYLE}
    with warnings.catch_warnings(), matplotlib.rc_context():
        # A character that the font lacks is drawn as a box.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", category=matplotlib.MatplotlibDeprecationWarning)
        matplotlib.rcParams.update(settings)
        yield


def check_suffix(path: Path) -> None:
    """Raise UsageError unless the name ends in .png or .svg: called before anything is computed."""
    if path.suffix.lower() not in SUFFIXES:
        stem = path.stem or "figure"
        raise UsageError(
            f"cannot draw {path.name!r}: pictures are PNG or SVG",
            f"name it {stem}.png or {stem}.svg",
        )


def sheet(title: str, height: float) -> Figure:
    """Return an empty figure of this height in inches, titled at the top left."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(clip(title, 88), x=0.012, ha="left", fontsize=12, fontweight="bold")
    return figure


def finish(figure: Figure, axes: Axes, handles: Sequence[Artist] | None = None) -> None:
    """Draw the legend below everything; without handles, of the labels on the axes."""
    labels = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    entries = list(labels.values()) if handles is None else list(handles)
    letters = [len(str(entry.get_label())) + _HANDLE for entry in entries]
    for number in range(len(entries), 0, -1):
        if sum(max(column) for column in np.array_split(letters, number)) <= _LEGEND:
            break
    if entries:
        figure.legend(handles=entries, loc="outside lower left", ncols=number)


def subtitle(axes: Axes, text: str) -> None:
    """Write the text above the axes, a line of it in as many lines as it needs."""
    lines = [line for part in text.split("\n") for line in wrap(part, _LETTERS)]
    axes.set_title("\n".join(lines))


def save(figure: Figure, path: Path) -> Path:
    """Write the figure to `path`. The same figure gives the same bytes. Raises MachineError where
    the file cannot be written."""
    check_suffix(path)
    kind = path.suffix.lower()[1:]
    metadata = {"Date": None, "Creator": "celedger"} if kind == "svg" else {"Software": "celedger"}
    try:
        with files.as_the_user(), style():
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink() and files.PRIVATE in path.parts:
                path.unlink()  # what celedger keeps leads nowhere else
            figure.savefig(path, format=kind, metadata=metadata)
    except OSError as error:
        problem = f"cannot write {path}: {error.strerror or error}"
        raise MachineError(problem, "name another place with --output") from error
    return path


def value_axis(axes: Axes, metric: Metric, values: np.ndarray) -> UnitScale:
    """Label the axis for these values, which are finite and in the metric's own unit, and return
    the scale in which to draw them. A wide range of positive values gets a logarithmic axis."""
    scale = UnitScale.of(metric.unit, float(np.abs(values).max()) if values.size else 0.0)
    name = clip(metric.name, _LONGEST_NAME) + (f" ({scale.unit})" if scale.unit else "")
    # The label is turned by 90 degrees, so that the arrow points along the axis.
    better = {Direction.LOWER: "\n← lower is better", Direction.HIGHER: "\nhigher is better →"}
    axes.set_ylabel(name + better.get(metric.direction, ""))
    if values.size and values.min() > 0 and values.max() / values.min() >= _LOG_RATIO:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    return scale


def spaced(n: int, most: int, named: Sequence[int]) -> list[int]:
    """Return at most so many of `n` positions, evenly spaced, but `named` ones before their
    neighbours, and then the ends."""
    stride = max(1, -(-(n - 1) // (most - 1)))
    ticks: list[int] = []
    for tick in (*named, 0, n - 1, *range(0, n, stride)):
        if all(abs(tick - other) >= stride for other in ticks):
            ticks.append(tick)
    return sorted(ticks)


def banner(axes: Axes, labels: Iterable[tuple[float, str, str]]) -> None:
    """Write labels, as (position, text, colour), above the axes, each over a dotted line at its
    position. None lies over another, nor over a line; one without room is left out, but not its
    line. The title is moved above them."""
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()  # how wide a label is beside the axes depends on the layout
    width, across = axes.get_window_extent().width, axes.transData - axes.transAxes
    written = []
    for position, text, colour in labels:
        label = axes.annotate(
            text, (across.transform((position, axes.get_ylim()[0]))[0], 1), (0, 0),
            "axes fraction", textcoords="offset points", color=colour, fontsize=8,
        )  # fmt: skip
        axes.axvline(position, color=colour, linewidth=0.8, linestyle=":")
        written.append((label.xy[0], label.get_window_extent().width / width + 0.01, label))
    # Right of its line each leaves room for those left of it; at the right edge it is the reverse.
    inner = [entry for entry in written if entry[0] + entry[1] <= _EDGE]
    outer = [entry for entry in written if entry[0] + entry[1] > _EDGE]
    boxes: list[tuple[int, float, float]] = []  # row, and both ends
    leaders: list[tuple[int, float]] = []  # row that it leads up to, and where
    for at, size, label in (
        *sorted(outer, key=itemgetter(0)),
        *sorted(inner, key=itemgetter(0))[::-1],
    ):
        starts = (at - size,) if at + size > _EDGE else (at, at - size)
        free = (
            (row, start)
            for start, row in product(starts, range(_ROWS))
            if start >= -0.05
            and not any(r == row and a < start + size and start < b for r, a, b in boxes)
            and not any(r < row and a < at < b for r, a, b in boxes)
            and not any(r > row and start < x < start + size for r, x in leaders)
        )
        row, start = next(free, (-1, 0.0))
        if row < 0:
            label.remove()
            continue
        boxes.append((row, start, start + size))
        leaders.append((row, at))
        label.set(ha="left" if start == at else "right", position=(0, 4 + _ROW * row))
        if row:
            axes.annotate(
                "", (at, 1), (0, 3 + _ROW * row), "axes fraction", textcoords="offset points",
                arrowprops={"arrowstyle": "-", "color": label.get_color(), "lw": 0.8, "ls": ":",
                            "shrinkA": 0, "shrinkB": 0},
            )  # fmt: skip
    rows = 1 + max((row for row, *_ in boxes), default=-1)
    axes.set_title(axes.get_title("left"), pad=6 + _ROW * rows)
