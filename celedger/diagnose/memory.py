"""Where the memory of a training goes: who holds it at the peak, what piles up from epoch to epoch,
and what differs between two commits. Reads what the probe of `celedger profile --memory` left.
Bytes are those of tensors, exact and the same in every run of one commit on one machine.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from celedger.diagnose.stalls import CodeLine, shown
from celedger.errors import CannotJudge

# A tensor that outlives the epoch after its own, and whose likes do so in every epoch, piles up;
# three of them at least, since two may be the model kept and the model kept before.
FEWEST = 3
# Objects of one type, more in every epoch, at least one in two steps: a type is counted exactly,
# and does not grow at all in a training that keeps nothing.
OBJECTS = 0.5  # a step
COMPANIONS = 2.0  # objects that may come with a tensor kept: its own, its gradient function's
BYTES = 16.0  # a step, of Python's own objects; a number in a list takes 32
LINE_SHARE = 0.25  # of the line that takes most: tracing adds small growth of its own elsewhere
NODES = 1.0  # of autograd's graph, a step
PEAK_FLOOR = 0.01  # of the peak: a difference worth a verdict


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """Bytes at the peak, and who had made what holds them; `place` None where no line of the
    user's did."""

    size: int
    phase: str
    module: str | None
    operator: str
    place: CodeLine | None


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    size: int
    step: int
    held: tuple[HeldBytes, ...]  # adds up to `size`


@dataclass(frozen=True, slots=True)
class Leak:
    """What piles up: `kind` is tensors, graphs or objects; `what` the operator or type. `number`
    and `size` (bytes) a step; size is 0 where it is not known."""

    kind: str
    what: str
    module: str | None
    place: CodeLine | None
    number: float
    size: float


@dataclass(frozen=True, slots=True)
class MemoryEpoch:
    """`peak`: of its steps and evaluation; `held` and `rss` when it was reported. Bytes."""

    epoch: int | None
    step: int
    peak: int
    held: int
    rss: int


@dataclass(frozen=True, slots=True)
class Memory:
    torch: str
    device: str
    peaks: Mapping[str, MemoryPeak]  # of "step" and "evaluation"
    peak_of_step: np.ndarray
    held: np.ndarray  # at the end of each step
    rss: np.ndarray
    peak_rss: int
    epochs: tuple[MemoryEpoch, ...]
    leaks: tuple[Leak, ...]
    objects_pile_up: bool  # and a run that traces them can say where


@dataclass(frozen=True, slots=True)
class PeakPart:
    """One part of the difference between two peaks, in bytes."""

    phase: str
    module: str | None
    operator: str
    place: CodeLine | None
    before: int
    after: int

    @property
    def difference(self) -> int:
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class Difference:
    """`parts` of each peak add up to its difference. `leaks`: new on the second side."""

    before: Memory
    after: Memory
    parts: Mapping[str, tuple[PeakPart, ...]]
    leaks: tuple[Leak, ...]

    @property
    def larger(self) -> bool:
        return bool(self.leaks) or any(
            self.after.peaks[name].size >= max(peak.size, 1) * (1 + PEAK_FLOOR)
            for name, peak in self.before.peaks.items()
        )


def load(found: Mapping[str, Any], roots: Mapping[str, str]) -> Memory:
    """What the probe wrote (the event `found`); `roots` say how prefixes of file names are shown.
    Raises CannotJudge where no step was seen."""
    steps = {name: np.asarray(values, float) for name, values in found["steps"].items()}
    if not len(steps["peak"]):
        raise CannotJudge("the training ended before its first step did")
    places = [CodeLine(shown(file, roots), name, line) for file, name, line in found["places"]]

    def place(number: int) -> CodeLine | None:
        return places[number] if number >= 0 else None

    peaks = {
        name: MemoryPeak(
            peak["bytes"],
            peak["step"],
            tuple(
                HeldBytes(size, phase, module, operator, place(at))
                for size, phase, module, operator, at in peak["held"]
            ),
        )
        for name, peak in found["peaks"].items()
    }
    marks = found["marks"]
    tensors, graphs = _tensors(marks, place), _graphs(marks, place)
    types = _types(marks, sum(leak.number for leak in tensors))
    objects = _objects(marks, roots) if types else ()
    return Memory(
        torch=found["torch"],
        device=found["device"],
        peaks=peaks,
        peak_of_step=steps["peak"],
        held=steps["end"],
        rss=steps["rss"],
        peak_rss=found["peak_rss"],
        epochs=tuple(_epochs(marks, steps["peak"], found["evaluations"])),
        leaks=(*tensors, *graphs, *(objects or types)),
        objects_pile_up=bool(types),
    )


def compare(before: Memory, after: Memory) -> Difference:
    known = {_kept(leak) for leak in before.leaks}
    return Difference(
        before,
        after,
        {name: _parts(peak, after.peaks[name]) for name, peak in before.peaks.items()},
        tuple(leak for leak in after.leaks if _kept(leak) not in known),
    )


def _epochs(
    marks: Sequence[Mapping[str, Any]], peaks: np.ndarray, evaluations: Sequence[Sequence[int]]
) -> list[MemoryEpoch]:
    rows, start = [], 0
    for mark in marks:
        end = mark["step"]
        inside = [size for step, size in evaluations if start < step <= end]
        inside += peaks[start:end].tolist()
        if inside:
            rows.append(
                MemoryEpoch(mark["epoch"], end, int(max(inside)), mark["held"], mark["rss"])
            )
        start = end
    return rows


def _intervals(marks: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Steps from one mark to the next, the first from the training's beginning."""
    edges = [0, *(mark["step"] for mark in marks)]
    return [(a, b) for a, b in itertools.pairwise(edges) if b > a]


def _tensors(marks: Sequence[Mapping[str, Any]], place: Any) -> tuple[Leak, ...]:
    spans = _intervals(marks)
    if len(spans) < 2:
        return ()
    leaks = []
    for phase, module, operator, at, number, size, births in marks[-1]["tensors"]:
        born = np.asarray(births)
        if phase in ("evaluation", "data"):  # made between a step and the next, whose number it has
            born = born - 1
        each = [np.unique(born[(a <= born) & (born < b)]).size for a, b in spans]
        if all(each) and sum(each) >= FEWEST and (len(each) >= FEWEST or min(each) >= FEWEST):
            steps = spans[-1][1]
            leaks.append(Leak("tensors", operator, module, place(at), number / steps, size / steps))
    return tuple(sorted(leaks, key=lambda leak: -leak.size))


def _graphs(marks: Sequence[Mapping[str, Any]], place: Any) -> tuple[Leak, ...]:
    by_place: list[dict[int, int]] = []
    for mark in marks:
        sums: dict[int, int] = defaultdict(int)
        for nodes, at in mark["graphs"]:
            sums[at] += nodes
        by_place.append(sums)
    leaks = []
    for at in by_place[-1] if by_place else ():
        rates = _rates(marks, [sums.get(at, 0) for sums in by_place])
        if len(rates) >= 2 and min(rates) >= NODES:
            leaks.append(Leak("graphs", "autograd nodes", None, place(at), min(rates), 0.0))
    return tuple(leaks)


def _types(marks: Sequence[Mapping[str, Any]], tensors: float) -> tuple[Leak, ...]:
    """Types that become more in every epoch, beyond what comes with so many tensors a step."""
    counts = [dict(mark["types"]) for mark in marks]
    leaks = []
    for name in counts[-1] if counts else ():
        rates = _rates(marks, [count.get(name, 0) for count in counts])[1:]
        if len(rates) >= 1 and min(rates) >= OBJECTS + COMPANIONS * tensors:
            leaks.append(Leak("objects", name, None, None, min(rates), 0.0))
    return tuple(leaks)


def _objects(marks: Sequence[Mapping[str, Any]], roots: Mapping[str, str]) -> tuple[Leak, ...]:
    """Lines whose objects take more in every epoch, where allocations were traced."""
    sizes = [{(f, line): (size, n) for f, line, size, n in mark["objects"]} for mark in marks]
    leaks = []
    for key in sizes[-1] if sizes else ():
        rates = _rates(marks, [size.get(key, (0, 0))[0] for size in sizes])[1:]
        numbers = _rates(marks, [size.get(key, (0, 0))[1] for size in sizes])[1:]
        if len(rates) >= 1 and min(rates) >= BYTES and min(numbers) >= OBJECTS:
            at = CodeLine(shown(key[0], roots), "", key[1])
            leaks.append(Leak("objects", "Python objects", None, at, min(numbers), min(rates)))
    largest = max((leak.size for leak in leaks), default=0.0)
    told = [leak for leak in leaks if leak.size >= LINE_SHARE * largest]
    return tuple(sorted(told, key=lambda leak: -leak.size))


def _rates(marks: Sequence[Mapping[str, Any]], values: Sequence[float]) -> list[float]:
    """Growth a step from mark to mark, the first from nothing."""
    edges = [0, *(mark["step"] for mark in marks)]
    grown = itertools.pairwise([0.0, *values])
    spans = itertools.pairwise(edges)
    return [
        (b - a) / (end - at) for (a, b), (at, end) in zip(grown, spans, strict=True) if end > at
    ]


def _parts(before: MemoryPeak, after: MemoryPeak) -> tuple[PeakPart, ...]:
    sizes: dict[tuple[str, str | None, str], list[int]] = defaultdict(lambda: [0, 0])
    places: dict[tuple[str, str | None, str], CodeLine | None] = {}
    for side, peak in enumerate((before, after)):
        for held in peak.held:
            key = held.phase, held.module, held.operator
            sizes[key][side] += held.size
            places[key] = held.place
    parts = [PeakPart(*key, places[key], *pair) for key, pair in sizes.items()]
    return tuple(sorted(parts, key=lambda part: -abs(part.difference)))


def _kept(leak: Leak) -> tuple[str, str, str | None, str | None]:
    return leak.kind, leak.what, leak.module, leak.place.file if leak.place else None
