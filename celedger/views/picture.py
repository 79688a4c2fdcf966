"""The common style of all figures: paper, palette, axes of commits and of values, and how a picture
is saved. It knows matplotlib's object API (never pyplot, no display, the caller's rcParams
restored) and nothing of the ledger.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from celedger.errors import MachineError, UsageError
from celedger.model import Commit, Direction, Metric
from celedger.system import umask
from celedger.views.format import Scale, clip, iso_date, short

# Okabe & Ito, "Color Universal Design" (2008): told apart by readers of every colour vision.
BLUE, ORANGE, GREEN, RED = "#0072b2", "#e69f00", "#009e73", "#d55e00"
PURPLE, SKY, INK = "#cc79a7", "#56b4e9", "#20262e"
CYCLE = (BLUE, RED, GREEN, PURPLE, ORANGE, SKY, INK)
MUTED, FAINT = "#66707c", "#e7eaee"

SUFFIXES = (".png", ".svg")
WIDTH = 10.0  # inches
_TICKS = 10  # hashes over dates that fit side by side on WIDTH
_LONGEST_NAME = 40
_LOG_RATIO = 30.0  # a range wider than this hides its lower half on a linear axis
_ONE_ROW = 7  # entries of a legend that fit side by side on the narrowest sheet
_WORSE_END = {Direction.HIGHER: 0.05}  # of the axis of values, as a share of its height

_STYLE: dict[str, object] = {
    "savefig.dpi": 130,
    "font.family": ["DejaVu Sans"],  # ships with matplotlib: the same picture on every machine
    "font.size": 9,
    "text.parse_math": False,  # a subject with two dollar signs is no formula
    "axes.titlesize": 9,
    "axes.titlecolor": MUTED,
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


def sheet(title: str, height: float, *, width: float = WIDTH) -> Figure:
    """Return an empty figure of this size in inches, titled at the top left."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(clip(title, 88), x=0.012, ha="left", fontsize=12, fontweight="bold")
    return figure


def finish(
    figure: Figure,
    axes: Axes,
    handles: Sequence[Artist] | None = None,
    *,
    columns: int | None = None,
) -> None:
    """Draw the legend below everything; without handles, of the labels on the axes."""
    labels = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    entries = list(labels.values()) if handles is None else list(handles)
    columns = columns or max(1, min(len(entries), _ONE_ROW))
    figure.legend(handles=entries, loc="outside lower left", ncols=columns)


def save(figure: Figure, path: Path) -> Path:
    """Write the figure to `path`. The same figure gives the same bytes. Raises MachineError where
    the file cannot be written."""
    check_suffix(path)
    kind = path.suffix.lower()[1:]
    metadata = {"Date": None, "Creator": "celedger"} if kind == "svg" else {"Software": "celedger"}
    try:
        with umask.users(), style():
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, format=kind, metadata=metadata)
    except OSError as error:
        problem = f"cannot write {path}: {error.strerror or error}"
        raise MachineError(problem, "name another place with --output") from error
    return path


def value_axis(axes: Axes, metric: Metric, values: np.ndarray) -> Scale:
    """Label the axis for these values, which are finite and in the metric's own unit, and return
    the scale in which to draw them. A wide range of positive values gets a logarithmic axis."""
    scale = Scale.of(metric.unit, float(np.abs(values).max()) if values.size else 0.0)
    name = clip(metric.name, _LONGEST_NAME) + (f" ({scale.unit})" if scale.unit else "")
    # The label is turned by 90 degrees, so that the arrow points along the axis.
    better = {Direction.LOWER: "\n← lower is better", Direction.HIGHER: "\nhigher is better →"}
    axes.set_ylabel(name + better.get(metric.direction, ""))
    if values.size and values.min() > 0 and values.max() / values.min() >= _LOG_RATIO:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    return scale


def commit_axis(axes: Axes, commits: Sequence[Commit], *, first: int = 0) -> None:
    """Label an axis whose position `first + i` is the i-th commit with short hashes over dates, as
    many as are legible, both ends among them."""
    n = len(commits)
    ticks = np.unique(np.linspace(0, n - 1, min(n, _TICKS)).round().astype(int)).tolist()
    labels = [f"{short(commits[i].sha)}\n{iso_date(commits[i].commit_time)}" for i in ticks]
    axes.set_xticks([first + i for i in ticks], labels)
    margin = max(0.6, 0.015 * n)
    axes.set_xlim(first - margin, first + n - 1 + margin)


def crosses(axes: Axes, at: Sequence[float], metric: Metric, colour: str, label: str) -> None:
    """Mark positions without a value at the worse end of the metric's axis."""
    if len(at):
        share = _WORSE_END.get(metric.direction, 0.95)
        axes.plot(
            at, [share] * len(at), "x", color=colour, markeredgewidth=1.4, label=label,
            transform=axes.get_xaxis_transform(),
        )  # fmt: skip
