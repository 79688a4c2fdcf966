"""Find stalls, steps far slower than their neighbours: how often, how regular, what share of the
time, and which code ran in them but not in other steps. Pure: takes arrays and returns the field
`stalls` of the document that `celedger profile --json` prints.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

# A stall lasts at least twice the median of its neighbours, and exceeds it by more than 8 of their
# median deviations: 5.4 standard deviations of a normal distribution, 1 step in 30 million. An
# interrupt or a cold cache costs less than 2 ms.
FACTOR = 2.0
DEVIATIONS = 8.0
LEAST = 2e-3  # s
NEIGHBOURS = 15  # on each side: follows a level that drifts over the training

FEWEST = 3  # stalls of one cause; two may have any reason
LEAST_SHARE = 0.01  # of the time of all steps; a smaller gain does not matter
REGULAR = 0.8  # share of the gaps between stalls that have one length, three at least

# A line explains a stall if at least half of the excess time was spent there, and its share of that
# is twice its share of the other steps: a step slowed as a whole by the machine spends its time
# where every step does.
EXPLAINED = 0.5
LIFT = 2.0

Document = dict[str, Any]  # as in JSON


class CodeLine(NamedTuple):
    file: str
    function: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" in {self.function}" if self.function else "")


def line_fields(line: CodeLine | None) -> Document:
    """Return a line's fields in a document, `place` being its text; all None for no line."""
    fields = line._asdict() if line else dict.fromkeys(CodeLine._fields)
    return {**fields, "place": str(line) if line else None}


@dataclass(frozen=True, slots=True)
class TimedSteps:
    """Steps that were timed, a value (s) each but for `number`. `times` are those of the phases and
    the training's own; `wall` is the wall's clock, `cpu` the processor's, `gc` the time in Python's
    garbage collector."""

    number: np.ndarray
    times: Mapping[str, np.ndarray]
    wall: np.ndarray
    cpu: np.ndarray
    gc: np.ndarray

    @property
    def own(self) -> np.ndarray:
        """Return the seconds of each step, without those in which other processes had the cores."""
        total: np.ndarray = np.sum(list(self.times.values()), axis=0)
        return total


@dataclass(frozen=True, slots=True)
class StackSamples:
    """Stack samples: for each its step, phase and line (an index of `lines`), its callers' lines,
    and the seconds for which it counts."""

    step: np.ndarray
    phase: np.ndarray  # of str
    line: np.ndarray
    seconds: np.ndarray
    lines: Sequence[CodeLine]
    callers: Sequence[Sequence[int]] = ()

    def spent(self, steps: Sequence[int] | np.ndarray, phase: str = "") -> np.ndarray:
        """Return the seconds at each line in these steps, in one phase or in all but the
        evaluations."""
        chosen = np.isin(self.step, steps)
        chosen &= self.phase == phase if phase else self.phase != "evaluation"
        total: np.ndarray = np.bincount(
            self.line[chosen], self.seconds[chosen], minlength=len(self.lines)
        )
        return total


def find(steps: TimedSteps, samples: StackSamples, pauses: Mapping[int, CodeLine]) -> Document:
    """Return the stalls among timed steps. `pauses`: where the garbage collector struck, by step.

    Returns:
        `found`: stalls of one cause or period, the longest first (see `_stall`). `unexplained`:
        steps slow for neither. `machine`: steps slow only because others had the cores. Few steps
        have none.
    """
    durations = steps.own
    if len(durations) < 2 * NEIGHBOURS:
        return {"found": [], "unexplained": [], "machine": []}
    level, slow = _beyond(durations)
    excess = durations - level
    usual = samples.spent(steps.number[~slow])
    usual = usual / (usual.sum() or 1.0)
    groups: dict[tuple[bool, CodeLine | None], list[int]] = defaultdict(list)
    for at in np.flatnonzero(slow).tolist():
        number = int(steps.number[at])
        if steps.gc[at] >= EXPLAINED * excess[at]:
            groups[True, pauses.get(number)].append(at)
        else:
            groups[False, _line(samples, number, excess[at], usual)].append(at)
    stalls = [_stall(steps, np.asarray(at), excess, *cause) for cause, at in groups.items()]
    caused = [stall for stall in stalls if _caused(stall)]
    return {
        "found": sorted(caused, key=lambda stall: -stall["seconds"]),
        "unexplained": sorted(n for s in stalls if not _caused(s) for n in s["steps"]),
        "machine": steps.number[_beyond(steps.wall)[1] & ~slow].tolist(),
    }


def period(stalled: Sequence[int]) -> int | None:
    """Return the period of stalls in steps: the length of most of the gaps between them."""
    gaps = np.diff(stalled).tolist()
    length, count = Counter(gaps).most_common(1)[0] if gaps else (0, 0)
    return length if count >= FEWEST and count >= REGULAR * len(gaps) and length > 1 else None


def cause(stall: Document) -> object:
    """Return the key by which stalls of one cause are equal."""
    return stall["collector"], stall["phase"], stall["file"], stall["function"]


def _beyond(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the running median of each value's neighbours, and which values are far beyond it."""
    width = min(2 * NEIGHBOURS + 1, len(values))
    starts = np.clip(np.arange(len(values)) - NEIGHBOURS, 0, len(values) - width)
    windows = values[starts[:, None] + np.arange(width)]
    level = np.median(windows, axis=1)
    spread = np.median(np.abs(windows - level[:, None]), axis=1)
    excess = values - level
    beyond = (excess > DEVIATIONS * spread) & (values >= FACTOR * level) & (excess >= LEAST)
    return level, beyond


def _line(samples: StackSamples, step: int, excess: float, usual: np.ndarray) -> CodeLine | None:
    """Return the line at which the excess time was spent. `usual`: shares of the other steps."""
    spent = samples.spent([step])
    if not spent.any():
        return None
    best = int(np.argmax(spent - usual * spent.sum()))
    least = max(EXPLAINED * excess, LIFT * usual[best] * spent.sum())
    return samples.lines[best] if spent[best] >= least else None


def _caused(stall: Document) -> bool:
    explained = (stall["line"] is not None or stall["collector"]) and len(stall["steps"]) >= FEWEST
    return stall["every"] is not None or (explained and stall["share"] >= LEAST_SHARE)


def _stall(
    steps: TimedSteps, at: np.ndarray, excess: np.ndarray, collector: bool, line: CodeLine | None
) -> Document:
    """Return stalls of one cause. `seconds` is their total time beyond their neighbours; `share`
    its part of the time of all steps; `every` a period in steps; `computing` the share of the
    excess in which the process used the processor."""
    beyond = {name: float((t[at] - np.median(t)).sum()) for name, t in steps.times.items()}
    total = float(excess[at].sum())
    extra_cpu = float((steps.cpu[at] - np.median(steps.cpu)).sum())
    return {
        "steps": steps.number[at].tolist(),
        "every": period(steps.number[at].tolist()),
        "seconds": total,
        "share": total / float(steps.own.sum()),
        "phase": max(beyond, key=lambda name: beyond[name]),
        "collector": collector,
        "computing": min(max(extra_cpu / total, 0.0), 1.0),
        **line_fields(line),
    }
