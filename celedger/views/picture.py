"""The look that all figures share: paper, palette, axis of commits, labels that keep clear of
each other, and how a picture reaches the disk. It knows matplotlib's object API (never pyplot,
no display, the caller's rcParams restored) and nothing of the ledger.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, LogLocator, NullFormatter
from matplotlib.transforms import Bbox

from celedger.errors import MachineError, UsageError
from celedger.model import Commit, Direction, Metric
from celedger.system import umask
from celedger.views.format import clip, iso_date, short

# Okabe & Ito, "Color Universal Design" (2008): told apart by readers of every colour vision.
BLUE, ORANGE, GREEN, RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"
PURPLE, SKY, INK = "#cc79a7", "#56b4e9", "#20262e"
CYCLE = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY, INK)
MUTED, FAINT = "#66707c", "#e7eaee"

SUFFIXES = (".png", ".svg")
WIDTH = 10.0  # inches
_TICK_LABELS = 12  # hashes of 8 characters that fit side by side on WIDTH
_MINOR_TICKS = 80  # beyond that many commits a tick for each is a grey bar
_SHORT_NAME, _LONGEST_NAME = 24, 40
_LOG_RATIO = 30.0  # a range wider than this hides its lower half on a linear axis
_SPARE_RATIO = 500.0  # up to this range a logarithmic axis has room for 2 and 5 beside 1

_STYLE: dict[str, object] = {
    "figure.dpi": 130,
    "savefig.dpi": 130,
    "figure.facecolor": "white",
    "font.family": ["DejaVu Sans"],  # ships with matplotlib: the same picture on every machine
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # a subject with two dollars in it is no formula
    "axes.edgecolor": "#b6bec8",
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "axes.titlecolor": MUTED,
    "axes.formatter.useoffset": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "xtick.color": "#b6bec8",
    "ytick.color": "#b6bec8",
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.labelcolor": INK,
    "svg.hashsalt": "celedger",  # ids in the SVG follow the content, not the clock
    "svg.fonttype": "path",
}


@contextmanager
def style() -> Iterator[None]:
    """matplotlib as celedger draws, whatever the user's matplotlibrc says, and undone after."""
    defaults = {k: v for k, v in matplotlib.rcParamsDefault.items() if k != "backend"}
    with warnings.catch_warnings(), matplotlib.rc_context():
        # A subject in a script the font lacks is drawn as boxes; that is no news to anybody.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", category=matplotlib.MatplotlibDeprecationWarning)
        settings: Any = {**defaults, **_STYLE}
        matplotlib.rcParams.update(settings)
        yield


def check_suffix(path: Path) -> None:
    """Before anything is computed: UsageError unless the name ends in .png or .svg."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"cannot draw {path.name!r}: pictures are PNG or SVG",
            f"name it {path.stem or 'figure'}.png or {path.stem or 'figure'}.svg",
        )


def sheet(title: str, height: float, *, width: float = WIDTH) -> Figure:
    """An empty figure of this size in inches, titled at the top left."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.set(w_pad=0.12, h_pad=0.06, hspace=0.03, wspace=0.05)  # type: ignore[call-arg]
    figure.suptitle(clip(title, 88), x=0.012, ha="left", fontsize=12, fontweight="bold")
    return figure


_ONE_ROW = 7  # entries of a legend that fit side by side on the narrowest sheet


def finish(
    figure: Figure, axes: Axes, handles: Sequence[Artist], *, columns: int | None = None
) -> None:
    """The legend below everything, title and legend flush with the left edge of `axes`. The
    layout is settled here: what is placed afterwards stays where it was measured."""
    legend = figure.legend(
        handles=handles,
        loc="outside lower left",
        ncols=columns or (len(handles) if len(handles) <= _ONE_ROW else -(-len(handles) // 2)),
        handletextpad=0.6,
        columnspacing=1.6,
        borderaxespad=0,
    )
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    left = axes.get_position().x0
    bottom = legend.get_window_extent().y0 / figure.bbox.height
    legend.set_loc("lower left")
    legend.set_bbox_to_anchor((left, bottom), transform=figure.transFigure)
    if (title := figure._suptitle) is not None:  # type: ignore[attr-defined]
        title.set_x(left)


def save(figure: Figure, path: Path) -> Path:
    """The figure at `path`, whole or not at all. The same figure gives the same bytes.
    Raises MachineError where the file cannot be written."""
    check_suffix(path)
    kind = path.suffix.lower()[1:]
    metadata = {"Date": None, "Creator": "celedger"} if kind == "svg" else {"Software": "celedger"}
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with umask.users(), style():
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(partial, format=kind, metadata=metadata)
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise MachineError(
            f"cannot write {path}: {error.strerror or error}", "name another place with --output"
        ) from error
    return path


def value_label(metric: Metric, unit: str) -> str:
    """`← lower is better  ·  val_loss (s)`. The label is turned by 90 degrees, so that the
    arrow points along the axis to where the metric is better."""
    name = clip(metric.name, _LONGEST_NAME) + (f" ({unit})" if unit else "")
    # Side by side where there is room; a small plot is too low for a long name.
    between = "   ·   " if len(name) <= _SHORT_NAME else "\n"
    if metric.direction is Direction.LOWER:
        parts = ("← lower is better", name)
        return between.join(parts if len(name) <= _SHORT_NAME else parts[::-1])
    if metric.direction is Direction.HIGHER:
        return f"{name}{between}higher is better →"
    return name


def commit_axis(axes: Axes, commits: Sequence[Commit], *, first: int = 0) -> None:
    """Ticks of an axis whose position `first + i` is the i-th commit: short hash over date, as
    many as can be read, both ends among them."""
    n = len(commits)
    step = max(1, -(-(n - 1) // (_TICK_LABELS - 1)))
    at = list(range(n - 1, -1, -step))[::-1]
    if at[0] < 0.9 * step:  # the first commit, instead of a neighbour too close to it
        at[0] = 0
    elif len(at) < _TICK_LABELS:
        at.insert(0, 0)
    labels = [f"{short(commits[i].sha)}\n{iso_date(commits[i].commit_time)}" for i in at]
    axes.xaxis.set_major_locator(FixedLocator([first + i for i in at]))
    axes.xaxis.set_major_formatter(FixedFormatter(labels))
    if n <= _MINOR_TICKS:
        axes.xaxis.set_minor_locator(FixedLocator(range(first, first + n)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(axis="x", which="minor", length=2)
    # A single commit, or two, should not fill the sheet from edge to edge.
    margin = max(0.6, 0.015 * n, (4 - n) * 0.5)
    axes.set_xlim(first - margin, first + n - 1 + margin)


def crosses(
    axes: Axes,
    at: Sequence[float] | np.ndarray,
    share: float,
    colour: str,
    *,
    size: float = 5,
    label: str = "",
) -> None:
    """Mark places without a value, at this share of the height."""
    if len(at):
        axes.plot(
            at, [share] * len(at), "x", color=colour, markersize=size, markeredgewidth=1.4,
            zorder=4, label=label, transform=axes.get_xaxis_transform(),
        )  # fmt: skip


def wide_range(values: np.ndarray) -> bool:
    """Whether positive values span so much that only a logarithmic axis shows them all."""
    return bool(values.size and values.min() > 0 and values.max() / values.min() >= _LOG_RATIO)


def fit_values(axes: Axes, values: np.ndarray, *, head: float = 0.06, foot: float = 0.06) -> None:
    """Limits of the value axis: all values (finite, in the axis's unit), with `head` and `foot`
    of the height kept free above and below for marks and labels."""
    if wide_range(values):
        axes.set_yscale("log")
        few = values.max() / values.min() < _SPARE_RATIO
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}".replace("e+0", "e")))
        axes.yaxis.set_minor_formatter(NullFormatter())
        low, high = np.log10(values.min()), np.log10(values.max())
    else:
        low, high = float(values.min()), float(values.max())
    room = high - low
    if room <= 1e-9 * max(abs(high), abs(low)):  # flat: a change of 1 % would fill a tenth
        room = max(abs(high) * 0.1, 1e-9)
        low, high = low - room / 2, high + room / 2
    height = room / (1.0 - head - foot)
    low, high = low - foot * height, high + head * height
    axes.set_ylim(*((10**low, 10**high) if wide_range(values) else (low, high)))


def height(axes: Axes, share: float) -> float:
    """The value at this share of the axis, from the bottom."""
    to_data = (axes.transScale + axes.transLimits).inverted()
    return float(to_data.transform((0.0, share))[1])


_OFFSETS = tuple(
    (dx, dy)
    for reach in (9, 20, 32, 46)
    for dx, dy in ((0, reach), (0, -reach), (reach, reach * 0.6), (-reach, reach * 0.6))
)


def keep_clear(
    axes: Axes,
    labels: Sequence[tuple[float, float, str, str]],
    *,
    avoid: Sequence[tuple[float, float]] = (),
) -> list[Text]:
    """Labels `(x, y, text, colour)` beside their points, in order of importance: each goes where
    it lies inside the axes, over no earlier label, and over the fewest points of `avoid`; one
    that finds no room is left out (its mark stays). Returns the labels drawn."""
    figure = cast(Figure, axes.figure)
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    inside = axes.get_window_extent(renderer)
    points = axes.transData.transform(np.array(avoid, float).reshape(-1, 2))
    boxes: list[Bbox] = []
    leaders = np.empty((0, 2))  # points along the lines from labels to their marks
    drawn: list[Text] = []
    for x, y, text, colour in labels:
        label = _annotation(axes, x, y, text, colour)
        at = axes.transData.transform((x, y))
        best: tuple[int, tuple[float, float], Bbox, np.ndarray] | None = None
        for offset in _OFFSETS:
            _move(label, offset)
            label.update_positions(renderer)
            box = Text.get_window_extent(label, renderer).padded(2)
            fits = inside.x0 <= box.x0 and box.x1 <= inside.x1
            fits = fits and inside.y0 <= box.y0 and box.y1 <= inside.y1
            end = at + np.array(offset) * figure.dpi / 72.0
            leader = at + np.linspace(0.0, 1.0, 20)[:, None] * (end - at)
            fits = fits and not _within(leaders, box).any()
            if fits and not any(box.overlaps(o) or _within(leader, o).any() for o in boxes):
                hidden = int(_within(points, box.padded(2)).sum())
                if best is None or hidden < best[0]:
                    best = hidden, offset, box, leader
        if best is None:
            label.remove()
            continue
        _move(label, best[1])
        boxes.append(best[2])
        leaders = np.concatenate([leaders, best[3]])
        drawn.append(label)
    return drawn


def _move(label: Annotation, offset: tuple[float, float]) -> None:
    dx, dy = offset
    label.set_position(offset)
    label.set_horizontalalignment("center" if dx == 0 else "left" if dx > 0 else "right")
    label.set_verticalalignment("bottom" if dy > 0 else "top")


def _within(points: np.ndarray, box: Bbox) -> np.ndarray:
    x, y = points[:, 0], points[:, 1]
    inside: np.ndarray = (box.x0 <= x) & (x <= box.x1) & (box.y0 <= y) & (y <= box.y1)
    return inside


def above(axes: Axes, labels: Sequence[tuple[float, str]]) -> list[Text]:
    """Small labels `(x, text)` in the strip above the axes, over their places but within its
    width; one that would touch the label before it is left out."""
    figure = cast(Figure, axes.figure)
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    inside = axes.get_window_extent(renderer)
    reached = -np.inf
    drawn: list[Text] = []
    for x, text in labels:
        label = axes.annotate(
            text,
            (x, 1.0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=8,
            color=MUTED,
        )
        label.set_in_layout(False)
        box = label.get_window_extent(renderer)
        shift = max(inside.x0 - box.x0, 0.0) + min(inside.x1 - box.x1, 0.0)
        if box.x0 + shift < reached:
            label.remove()
            continue
        label.set_position((shift * 72.0 / figure.dpi, 4))
        reached = box.x1 + shift + 8
        drawn.append(label)
    return drawn


def _annotation(axes: Axes, x: float, y: float, text: str, colour: str) -> Annotation:
    label = axes.annotate(
        text,
        (x, y),
        textcoords="offset points",
        xytext=(0, 9),
        fontsize=8,
        color=colour,
        fontweight="bold",
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8},
        arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.7, "shrinkA": 0},
        zorder=8,
    )
    label.set_in_layout(False)
    return label
