"""Where the memory of a training goes: who holds it at the peak, what piles up from epoch to epoch,
and what differs between two commits. Reads what the probe of `celedger profile --memory` left.
Bytes are those of tensors, exact and the same in every run of one commit on one machine.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from celedger.diagnose.profile import roots, run, shown
from celedger.diagnose.stalls import CodeLine
from celedger.errors import CannotJudge
from celedger.model import Commit, Task
from celedger.trial.runner import Bench

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

Marks = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """Bytes at the peak, and who had made what holds them; `place` None where no line of the
    user's did."""

    bytes: int
    phase: str
    module: str | None
    operator: str
    place: CodeLine | None


@dataclass(frozen=True, slots=True)
class MemoryPeak:
    bytes: int
    step: int
    held: Sequence[HeldBytes]  # adds up to `bytes`


@dataclass(frozen=True, slots=True)
class Leak:
    """What piles up: `kind` is tensors, graphs or objects; `what` the operator or type. `number`
    and `bytes` a step; bytes are 0 where they are not known."""

    kind: str
    what: str
    module: str | None
    number: float
    bytes: float
    line: CodeLine | None

    @property
    def cause(self) -> object:
        return self.kind, self.what, self.module, self.line and self.line.file


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
    """`peaks`: of "step" and "evaluation". `steps`: for each its "peak", what tensors "held" at its
    end, and the process's "rss"; `peak_rss` is the largest."""

    torch: str
    device: str
    peaks: Mapping[str, MemoryPeak]
    steps: Mapping[str, np.ndarray]
    peak_rss: int
    epochs: Sequence[MemoryEpoch]
    leaks: Sequence[Leak]
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
class MemoryDifference:
    """`parts` of each peak add up to its difference. `leaks`: new on the second side."""

    before: Memory
    after: Memory
    parts: Mapping[str, Sequence[PeakPart]]
    leaks: Sequence[Leak]

    @property
    def larger(self) -> bool:
        return bool(self.leaks) or any(
            self.after.peaks[name].bytes >= max(peak.bytes, 1) * (1 + PEAK_FLOOR)
            for name, peak in self.before.peaks.items()
        )


def memory(
    bench: Bench, commit: Commit, task: Task, seed: int, out: Path, probe: Mapping[str, object]
) -> Memory:
    """Look at the memory of one run. Where objects pile up, a second run traces them to their
    lines: that takes ten times as long, and is not done where nothing grows."""
    _, event = run(bench, commit, task, seed, out / "memory", probe)
    seen = load(event, roots(bench))
    if not seen.objects_pile_up:
        return seen
    _, event = run(bench, commit, task, seed, out / "objects", {**probe, "objects": True})
    return replace(seen, leaks=load(event, roots(bench)).leaks or seen.leaks)


def load(event: Mapping[str, Any], roots: Mapping[str, str]) -> Memory:
    """Read what the probe wrote (its event); `roots` say how prefixes of file names are shown.
    Raises CannotJudge where no step was seen."""
    steps = {name: np.asarray(values, float) for name, values in event["steps"].items()}
    if not len(steps["peak"]):
        raise CannotJudge("the training ended before its first step did")
    # The last is for number -1: no line of the user's.
    lines = [CodeLine(shown(file, roots), name, line) for file, name, line in event["lines"]]
    places = [*lines, None]
    peaks = {
        name: MemoryPeak(
            peak["bytes"], peak["step"],
            [
                HeldBytes(size, phase, module, operator, places[line])
                for size, phase, module, operator, line in peak["held"]
            ],
        )
        for name, peak in event["peaks"].items()
    }  # fmt: skip
    marks = event["marks"]
    tensors = _tensors(marks, places)
    types = _types(marks, sum(leak.number for leak in tensors))
    objects = _objects(marks, roots) if types else []
    return Memory(
        torch=event["torch"],
        device=event["device"],
        peaks=peaks,
        steps=steps,
        peak_rss=event["peak_rss"],
        epochs=_epochs(marks, steps["peak"], event["evaluations"]),
        leaks=[*tensors, *_graphs(marks, places), *(objects or types)],
        objects_pile_up=bool(types),
    )


def compare(before: Memory, after: Memory) -> MemoryDifference:
    causes = {leak.cause for leak in before.leaks}
    return MemoryDifference(
        before,
        after,
        {name: _parts(peak, after.peaks[name]) for name, peak in before.peaks.items()},
        [leak for leak in after.leaks if leak.cause not in causes],
    )


def _parts(*peaks: MemoryPeak) -> list[PeakPart]:
    sizes: dict[tuple[str, str | None, str], list[int]] = defaultdict(lambda: [0, 0])
    places: dict[tuple[str, str | None, str], CodeLine | None] = {}
    for side, peak in enumerate(peaks):
        for held in peak.held:
            key = held.phase, held.module, held.operator
            sizes[key][side] += held.bytes
            places[key] = held.place
    parts = [PeakPart(*key, places[key], *pair) for key, pair in sizes.items()]
    return sorted(parts, key=lambda part: -abs(part.difference))


def _epochs(
    marks: Marks, peaks: np.ndarray, evaluations: Sequence[Sequence[int]]
) -> list[MemoryEpoch]:
    rows, start = [], 0
    for mark in marks:
        end = mark["step"]
        inside = [size for step, size in evaluations if start < step <= end]
        inside += peaks[start:end].tolist()
        if inside:
            largest = int(max(inside))
            rows.append(MemoryEpoch(mark["epoch"], end, largest, mark["held"], mark["rss"]))
        start = end
    return rows


def _tensors(marks: Marks, places: Sequence[CodeLine | None]) -> list[Leak]:
    edges = [0, *(mark["step"] for mark in marks)]
    spans = [(a, b) for a, b in itertools.pairwise(edges) if b > a]
    if len(spans) < 2:
        return []
    leaks = []
    for phase, module, operator, line, number, size, births in marks[-1]["tensors"]:
        born = np.asarray(births)
        if phase in ("evaluation", "data"):  # made between a step and the next, whose number it has
            born = born - 1
        each = [np.unique(born[(a <= born) & (born < b)]).size for a, b in spans]
        if all(each) and sum(each) >= FEWEST and (len(each) >= FEWEST or min(each) >= FEWEST):
            steps = edges[-1]
            rates = number / steps, size / steps
            leaks.append(Leak("tensors", operator, module, *rates, places[line]))
    return sorted(leaks, key=lambda leak: -leak.bytes)


def _graphs(marks: Marks, places: Sequence[CodeLine | None]) -> list[Leak]:
    counts: list[Counter[int]] = [Counter() for _ in marks]
    for count, mark in zip(counts, marks, strict=True):
        for nodes, line in mark["graphs"]:
            count[line] += nodes
    return [
        Leak("graphs", "autograd nodes", None, rate, 0.0, places[line])
        for line, rate in _growth(marks, counts, skip=0).items()
        if rate >= NODES
    ]


def _types(marks: Marks, tensors: float) -> list[Leak]:
    """Types that become more in every epoch, beyond what comes with so many tensors a step."""
    rates = _growth(marks, [dict(mark["types"]) for mark in marks])
    least = OBJECTS + COMPANIONS * tensors
    return [
        Leak("objects", name, None, rate, 0.0, None)
        for name, rate in rates.items()
        if rate >= least
    ]


def _objects(marks: Marks, roots: Mapping[str, str]) -> list[Leak]:
    """Lines whose objects take more in every epoch, where allocations were traced."""
    sizes = _growth(marks, [{(f, at): size for f, at, size, _ in m["objects"]} for m in marks])
    numbers = _growth(marks, [{(f, at): n for f, at, _, n in m["objects"]} for m in marks])
    least = max(BYTES, LINE_SHARE * max(sizes.values(), default=0.0))
    leaks = [
        Leak(
            "objects", "Python objects", None, numbers[file, at], size,
            CodeLine(shown(file, roots), "", at),
        )
        for (file, at), size in sizes.items()
        if size >= least and numbers[file, at] >= OBJECTS
    ]  # fmt: skip
    return sorted(leaks, key=lambda leak: -leak.bytes)


def _growth(marks: Marks, counts: Sequence[Mapping[Any, float]], skip: int = 1) -> dict[Any, float]:
    """Return the least growth a step from mark to mark of everything counted at the last of them,
    the first from nothing. `skip`: leave out as many marks; less than two spans say nothing."""
    spans = np.diff([0, *(mark["step"] for mark in marks)])
    chosen = spans > 0
    if chosen.sum() < 2:
        return {}
    growth = {}
    for key in counts[-1]:
        values = np.diff([0, *(count.get(key, 0) for count in counts)])
        growth[key] = float((values[chosen] / spans[chosen])[skip:].min())
    return growth
