"""The picture of drift: one metric of one task over the commits, measured or not, in the order of
history. Every trial is a dot, so that no mean hides it. Levels, incidents and first bad commits are
those of the state; nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from celedger.base.errors import CeledgerError, command
from celedger.base.model import FEWEST_REPEATS, Commit, Environment, Metric
from celedger.judge.derivation import Derivation
from celedger.judge.incident import DRIFT, Incident, LevelChange, State
from celedger.page import marks
from celedger.page.marks import STATES
from celedger.page.metric_values import ChainValues, TaskOnLine
from celedger.stats.history import UNMEASURED
from celedger.views import incidents as words
from celedger.views import picture, samples
from celedger.views.document import UnitScale, amount, clip, count, plain, probability, short
from celedger.views.drift import environment_change, narrowed, offset
from celedger.views.picture import BLUE, GREEN, INK, MUTED, PURPLE, RED

_MANY = 80  # commits from which on dots are small
_LINES = ("-", "--", "-.", ":")  # of environments that were used in turns
_LABEL = 60  # letters of a change of environment


@dataclass(frozen=True, slots=True)
class Drawn:
    """The content of the picture of a task's metric. Positions are those on `axis`.

    Attributes:
        chains: The values of each environment and definition, the one used first before the others.
        lost: Positions of the trials that failed or whose value is not finite, one for each.
        position: Of each commit (a hash) that is on the axis, or whose place is.
    """

    axis: Sequence[Commit]
    task: TaskOnLine
    metric: Metric
    state: State
    start: int  # place of the axis's first commit
    chains: Sequence[ChainValues]
    lost: Sequence[int]
    untestable: Sequence[int]
    unmeasured: Sequence[int]
    position: Mapping[str, int]
    knows_noise: bool

    @property
    def valued(self) -> list[int]:
        places = {
            int(p) for c in self.chains for p in np.unique(c.place[np.isfinite(c.value)]).tolist()
        }
        return sorted(position - self.start for position in places)

    def at(self, incident: Incident) -> int:
        """Return where an incident shows: at the commit that a bisect named, else at the measured
        commit at which it shows first; -1 where the axis has neither."""
        return self.position.get(incident.shown_at, -1)


def draw(
    derivation: Derivation,
    state: State,
    title: tuple[str, str],
    metric: str | None = None,
    axis: Sequence[Commit] | None = None,
) -> Figure:
    """Draw a metric of a task over commits of a line.

    Args:
        derivation: Of the line; it may be of this task alone.
        state: Of the same line.
        title: Suite and task.
        metric: [default: the task's main one].
        axis: Commits that follow each other on the line, oldest first [default: all of it].

    Raises UsageError for an unknown metric, CeledgerError if there is nothing to draw.
    """
    drawn = read(
        derivation, state, title, metric, derivation.line.commits if axis is None else axis
    )
    environments = drawn.task.ledger.environments()
    with picture.style():
        figure = picture.sheet(f"{'/'.join(title)} · {drawn.metric.name}", 4.6)
        axes = figure.subplots()
        changes, labels = list(_changes(drawn, environments)), list(_labels(drawn))
        marks.commit_axis(axes, drawn.axis, named=[round(at) for at, *_ in labels])
        marks.shade(axes, drawn.unmeasured, "not measured")
        every = np.concatenate([[], *(chain.value for chain in drawn.chains)])
        finite = every[np.isfinite(every)]
        divisor = picture.value_axis(axes, drawn.metric, finite).divisor
        names = ["first environment", *(text for _, text in changes)]
        if not _in_turns(drawn):
            labels += [(at, text, MUTED) for at, text in changes]
            names = []
        _draw_levels(axes, drawn, divisor)
        _draw_values(axes, drawn, divisor, names)
        marks.crosses(axes, sorted(set(drawn.lost)), drawn.metric, RED, "failed or not finite")
        marks.crosses(axes, drawn.untestable, drawn.metric, MUTED, "untestable")
        picture.subtitle(axes, _subtitle(drawn))
        picture.banner(axes, labels)
        picture.finish(figure, axes)
    return figure


def read(
    derivation: Derivation,
    state: State,
    title: tuple[str, str],
    name: str | None,
    axis: Sequence[Commit],
) -> Drawn:
    task = TaskOnLine(derivation, *title)
    metric = samples.find_metric(derivation.ledger, task.recipe, name)
    run = f"type {command('run', suite=title[0], task=title[1])}"
    places = derivation.line.places
    first = places[axis[0].sha] if axis else 0
    tried = [position for position in task.tried() if first <= position < first + len(axis)]
    if not tried:
        raise CeledgerError(f"no trial of {'/'.join(title)} at these commits is in the ledger", run)
    axis, start = axis[tried[0] - first :], tried[0]
    chains, lost, drawn = [], [], range(start, start + len(axis))
    for chain in task.chains(metric):
        values = chain.within(drawn.start, drawn.stop)
        lost += (values.place[~np.isfinite(values.value)] - start).tolist()
        if np.isfinite(values.value).any():
            chains.append(values)
    for place, records in task.failures.items():
        if place in drawn:
            lost += [place - start for r in records if r.outcome and r.outcome.kind.crashed]
    untestable = [place - start for place in task.untestable() if place in drawn]
    if not chains and not lost:
        problem = f"no trial of {'/'.join(title)} measured {metric.name} at these commits"
        raise CeledgerError(problem, f"{run}, or plot another metric")
    state = narrowed(state, suite=title[0], task=title[1], metric=metric.name)
    position = {sha: place - start for sha, place in places.items()}
    named = {i.likeliest: derivation.place(i.likeliest) - start for i in state.incidents}
    inside = {s: p for s, p in (position | named).items() if 0 <= p < len(axis)}
    unmeasured = sorted(set(range(len(axis))) - {place - start for place in tried})
    noise = derivation.histories.get((*title, metric.name), UNMEASURED).noise
    knows = noise.is_exact or noise.freedom >= FEWEST_REPEATS
    return Drawn(
        axis, task, metric, state, start, chains, lost, untestable, unmeasured, inside, knows
    )


def _states(drawn: Drawn) -> dict[int, str]:
    """Return how the metric stands at each position, as the state has it: "undecided" inside of the
    set of an incident, after a doubt, and where the noise is not known."""
    states = dict.fromkeys(
        range(len(drawn.axis)), "unchanged" if drawn.knows_noise else "undecided"
    )
    end = len(drawn.axis)
    steps = [
        (drawn.position[change.seen_at], "better") for change in drawn.state.changes
        if change.kind == "improvement" and change.seen_at in drawn.position
    ]  # fmt: skip
    incidents = [i for i in drawn.state.incidents if i.state != "withdrawn" and i.main.name]
    steps += [(drawn.at(i), "accepted") for i in incidents if i.state == "accepted"]
    steps += [(drawn.position.get(doubt.seen_at, end), "undecided") for doubt in drawn.state.doubts]
    for at, name in sorted(steps):  # the newer of two accepted or better levels counts
        states |= dict.fromkeys(range(max(at, 0), end), name)
    for incident in sorted(incidents, key=lambda i: i.in_force):
        if incident.state == "accepted":
            continue
        at, closed = drawn.at(incident), drawn.position.get(incident.mend_seen_at, end)
        among = [p for sha in incident.first_bad if (p := drawn.position.get(sha, -1)) >= 0]
        states |= dict.fromkeys((p for p in among if p < at), "undecided")
        if at >= 0 or not among:
            states |= dict.fromkeys(
                range(max(at, 0), end if incident.in_force else closed), "worse"
            )
    return states


def _draw_values(axes: Axes, drawn: Drawn, divisor: float, names: Sequence[str]) -> None:
    """Draw each trial, the mean of each commit, adjusted for seeds, and a line through the means of
    each chain, which ends where no commit was measured. With `names` the chains have lines of their
    own."""
    size = 4.5 if len(drawn.axis) <= _MANY else 2.5
    states = _states(drawn)
    breaks = np.array(sorted(set(range(len(drawn.axis))) - set(drawn.valued)))
    for number, chain in enumerate(drawn.chains):
        finite = np.isfinite(chain.value)
        dots, trials = chain.place[finite] - drawn.start, chain.value[finite] / divisor
        at, starts = np.unique(dots, return_index=True)
        sizes = np.diff(starts, append=dots.size)
        means = np.add.reduceat(chain.adjusted()[finite] / divisor, starts) / sizes
        style = _LINES[number % len(_LINES)] if names else "-"
        label = f"mean, {names[number]}" if names else "mean"
        for run in np.split(
            np.arange(at.size), np.flatnonzero(np.diff(breaks.searchsorted(at))) + 1
        ):
            axes.plot(at[run], means[run], style, color=MUTED, linewidth=1.0, label=label)
        margin = marks.side_by_side(axes, dots, trials)
        for name, (colour, shape) in STATES.items():
            in_state = np.array([states[p] == name for p in at.tolist()])
            if in_state.any():
                chosen = np.repeat(in_state, sizes)
                axes.plot(
                    margin[chosen], trials[chosen], "o", color=colour, markersize=size * 0.7,
                    alpha=0.4, markeredgewidth=0, label="one trial",
                )  # fmt: skip
                axes.plot(
                    at[in_state], means[in_state], shape, color=colour, markersize=size, label=name,
                )  # fmt: skip


def _in_turns(drawn: Drawn) -> bool:
    """Return True if a chain was used again after a later one; one commit in both is an anchor."""
    spans = [(chain.place[0], chain.place[-1]) for chain in drawn.chains]
    return any(last > first for (_, last), (first, _) in pairwise(spans))


def _draw_levels(axes: Axes, drawn: Drawn, divisor: float) -> None:
    """Draw the levels of the state, and the 95 % set of each change between them."""
    for chain in drawn.chains:
        x: list[float] = []
        y: list[float] = []
        ends = [first for first, _, _ in chain.levels()[1:]] + [int(chain.place[-1]) + 1]
        errors = [node.error for node in chain.nodes]
        for (first, last, level), end, error in zip(chain.levels(), ends, errors, strict=True):
            if y and abs(level - y[-1] * divisor) > error:  # a step is no slope
                x.append(x[-1])
                y.append(np.nan)
            x += [first - drawn.start - 0.5, max(end, last + 1) - drawn.start - 0.5]
            y += [level / divisor] * 2
        if x:
            axes.plot(
                x, y, color=INK, linewidth=1.6, alpha=0.75, solid_capstyle="butt", label="level"
            )
    for among, label, colour in _sets(drawn):
        inside = sorted({drawn.position[sha] for sha in among if sha in drawn.position})
        marks.shade(axes, inside, label, colour, 0.13)


def _sets(drawn: Drawn) -> Iterator[tuple[Sequence[str], str, str]]:
    for incident in drawn.state.incidents:
        if incident.state != "withdrawn":
            yield incident.first_bad, "got worse here (95 %)", RED
    for doubt in drawn.state.doubts:
        yield doubt.among, "suspected", PURPLE
    for change in drawn.state.changes:
        if change.kind == "improvement":
            yield change.among, "got better here (95 %)", GREEN


def _labels(drawn: Drawn) -> Iterator[tuple[float, str, str]]:
    """Yield what happened where: incidents, those that a bisect named before the others, what
    mended them, and improvements."""
    every = [i for i in drawn.state.incidents if i.state != "withdrawn"]
    for incident in sorted(every, key=lambda i: (not i.bisect, not i.in_force)):
        at, main = drawn.at(incident), incident.main
        colour = RED if incident.is_failure else INK
        if at >= 0 and incident.bisect:
            text = f"{short(incident.likeliest)} first bad ({probability(incident.probability)})"
            merged = all(commit.sha != incident.likeliest for commit in drawn.axis)
            yield at, text + ", of a merged branch" * merged, colour
        elif at >= 0:
            among = len(incident.first_bad)
            several = f"over {among}" if incident.kind == DRIFT else f"one of {among}"
            where = several if among > 1 else short(incident.seen_at)
            moved = words.moved(main) or words.KINDS.get(incident.kind, "")
            yield at, f"{where} {moved} ({incident.id})", colour
        if (closed := drawn.position.get(incident.mend_seen_at, -1)) >= 0:
            partly = "partly " if incident.state == "partly" else ""
            yield closed, f"{partly}mends {incident.id}", GREEN
    for change in drawn.state.changes:
        if change.kind == "improvement" and change.seen_at in drawn.position:
            yield drawn.position[change.seen_at], _better(change), GREEN


def _better(change: LevelChange) -> str:
    text = f"one of {len(change.among)}" if len(change.among) > 1 else short(change.seen_at)
    moved = amount(change.size, change.before, unit=change.unit)
    return f"{text} {moved} ({probability(change.probability)})"


def _changes(drawn: Drawn, environments: Mapping[str, Environment]) -> Iterator[tuple[float, str]]:
    """Yield where each environment or definition was first used, how it differs from the one
    before, and what that moved where a commit was measured in both."""
    key = (drawn.task.suite, drawn.task.name, drawn.metric.name)
    for old, new in pairwise(drawn.chains):
        ends = old.chain.environment, new.chain.environment
        text, change = environment_change(drawn.state, key, ends, environments)
        if change is not None:
            text = f"{clip(text, _LABEL - 30)}: {offset(change) or 'nothing clear'}"
        at = (int(old.place[-1]) + int(new.place[0])) / 2 - drawn.start
        yield at, clip(text, _LABEL)


def _subtitle(drawn: Drawn) -> str:
    trials = sum(chain.trials for chain in drawn.chains)
    text = f"{count(len(drawn.valued), 'commit')}, {count(trials, 'trial')}"
    text += f", {len(drawn.lost)} failed or not finite" if drawn.lost else ""
    if drawn.unmeasured:
        text += f"; {len(drawn.unmeasured)} of {len(drawn.axis)} commits not measured"
    return text


# --- the same as text, a Mermaid chart: GitHub and GitLab draw it in a comment, where no file can
# be shown. The means of the last measured commits, and a bar where the first bad one is

_MOST, _NAME = 10, 7  # commits whose names fit below the axis of a text, and letters of a name
_BEFORE = 3  # of them those before the first bad one
_MARGIN = 0.08  # of the range of values, above and below
_THEME = '%%%%{init: {"themeVariables": {"xyChart": {"plotColorPalette": "%s"}}}}%%%%'


def mermaid(drawn: Drawn) -> str:
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
