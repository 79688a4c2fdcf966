"""The picture of drift as text: a Mermaid chart. GitHub and GitLab draw it in a comment, where no
file can be shown. The means of the last measured commits, and a bar where the first bad one is.
"""

from __future__ import annotations

import numpy as np

from celedger.page.drift_picture import Drawn
from celedger.views.format import UnitScale, plain
from celedger.views.picture import BLUE, RED

_MOST, _NAME = 10, 7  # commits whose names fit below the axis, and letters of a name
_BEFORE = 3  # of them those before the first bad one
_MARGIN = 0.08  # of the range of values, above and below

_THEME = '%%%%{init: {"themeVariables": {"xyChart": {"plotColorPalette": "%s"}}}}%%%%'


def chart(drawn: Drawn) -> str:
    """Return the chart in a fence of Markdown; "" where it would have less than two values. It is
    of the environment that was used last."""
    if not drawn.chains:
        return ""
    places, _, means = drawn.chains[-1].by_place()
    finite = np.isfinite(means)
    at, values = (places[finite] - drawn.start).tolist(), means[finite]
    open_ones = [incident for incident in drawn.state.incidents if incident.in_force]
    bad = {drawn.position.get(sha, -1) for i in open_ones[:1] for sha in i.first_bad}
    marked = [position in bad for position in at]
    start = max(0, len(at) - _MOST)
    if True in marked:
        start = min(start, max(0, marked.index(True) - _BEFORE))
    shown = slice(start, start + _MOST)
    at, values, marked = at[shown], values[shown], marked[shown]
    if len(at) < 2:
        return ""
    scale = UnitScale.of(drawn.metric.unit, float(np.abs(values).max()))
    values = values / scale.divisor
    margin = _MARGIN * float(np.ptp(values)) or abs(float(values[0])) / 10 or 1.0
    low, high = float(values.min()) - margin, float(values.max()) + margin
    bars = np.where(marked, values, low)
    names = [drawn.axis[position].sha[:_NAME] for position in at]
    unit = f" ({scale.unit})" if scale.unit else ""
    palette = f"{RED}, {BLUE}" if any(marked) else BLUE
    lines = [
        "```mermaid", _THEME % palette, "xychart-beta",
        f"  title {_quoted(f'{drawn.task.name} {drawn.metric.name}')}",
        f"  x-axis [{', '.join(map(_quoted, names))}]",
        f"  y-axis {_quoted(f'mean of the trials{unit}')} {low:.6g} --> {high:.6g}",
        f"  bar [{', '.join(f'{value:.6g}' for value in bars)}]" if any(marked) else "",
        f"  line [{', '.join(f'{value:.6g}' for value in values)}]",
        "```",
    ]  # fmt: skip
    return "\n".join(filter(None, lines))


def _quoted(text: str) -> str:
    """Return a text of Mermaid, which has no escapes."""
    return '"' + plain(text).replace('"', "'").replace("`", "'") + '"'
