"""Where the time of a training's steps goes: what the probe of `celedger profile` left, read and
summed up. Times are the training's own: seconds in which the machine gave it no core are apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from celedger.diagnose.stalls import CodeLine, Samples, Stalls, find, shown
from celedger.diagnose.trace import EVENTS, processes, records
from celedger.errors import CannotJudge

PHASES = ("data", "other", "forward", "backward", "tail")
MEANING = {
    "data": "waiting for data",
    "other": "between steps",
    "forward": "forward pass",
    "backward": "backward pass",
    "tail": "optimiser tail",
    "evaluation": "evaluation and reports",
}
WAITS = 0.5  # a step: what happens every other step is in the loop
FEWEST_STEPS = 10  # timed, or nothing is said of their times
STATES = ("data", "forward", "backward", "tail")
PYTHON, OPTIMISER = "(Python)", "(optimiser)"  # as celedger.child.probes.operators writes them


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """Seconds of one phase in a timed step, and its share of the time of all."""

    name: str
    median: float
    p90: float
    p99: float
    share: float


@dataclass(frozen=True, slots=True)
class Operator:
    """Self time (s), calls, device time (s), memory kept (bytes) and kernels of one operator, a
    step. `name` "(Python)" is time no operator accounts for; `module` None is outside of all."""

    name: str
    phase: str
    module: str | None
    calls: float
    seconds: float
    device: float
    memory: float
    kernels: float


@dataclass(frozen=True, slots=True)
class HotLine:
    """A line of the user's, and its share of the samples; `phase` most of them fell in."""

    place: CodeLine
    phase: str
    share: float


@dataclass(frozen=True, slots=True)
class Wait:
    """A line that asks a tensor for a plain value, and how often a step."""

    method: str
    place: CodeLine
    times: float


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the training's tree: cores it used on average, and its largest memory."""

    pid: int
    name: str
    cores: float
    rss: int


@dataclass(frozen=True, slots=True)
class Machine:
    """What was seen from outside, over the whole run."""

    processes: tuple[Process, ...] = ()
    gpu_utilisation: float | None = None  # %
    gpu_memory: float | None = None  # bytes


@dataclass(frozen=True, slots=True)
class Profile:
    folder: Path  # of what the probe left
    torch: str
    device: str
    threads: int
    exact: bool  # whether time without a core could be told apart
    steps: np.ndarray  # numbers of the timed steps
    times: Mapping[str, np.ndarray]  # by phase, s, of the timed steps
    wall: np.ndarray
    cpu: np.ndarray
    collected: np.ndarray
    count: int  # of all steps, timed or not
    evaluation: float  # s in all
    evaluations: int
    step: PhaseTime
    phases: tuple[PhaseTime, ...]
    operators: tuple[Operator, ...]
    window: tuple[int, int]  # first and last step under the profiler
    window_seconds: float  # of a step in it: the sum of its operators' medians
    problem: str
    lines: tuple[HotLine, ...]
    waits: tuple[Wait, ...]
    workers: int | None
    stalls: Stalls
    machine: Machine

    @property
    def own(self) -> np.ndarray:
        """Seconds of each timed step, without those that others had the cores."""
        total: np.ndarray = np.sum([self.times[name] for name in PHASES], axis=0)
        return total

    @property
    def delayed(self) -> float:
        """Share of the wall time in which the training could have run and had no core."""
        return float(max(1.0 - self.own.sum() / self.wall.sum(), 0.0))

    @property
    def evaluation_share(self) -> float:
        """Of evaluation and steps together, as if all steps took as long as the timed ones."""
        training = float(self.own.mean()) * self.count
        return self.evaluation / (training + self.evaluation)


def trainings(out: Path, kind: str) -> list[tuple[Path, dict[str, Any]]]:
    """The folders of processes whose probe left an event of this kind, and the event; the one that
    saw the most first."""
    events = [(folder, event) for folder in processes(out) for event in records(folder, kind)]
    return sorted(events, key=lambda one: -(one[0] / EVENTS).stat().st_size)


def load(
    folder: Path, found: Mapping[str, Any], roots: Mapping[str, str], machine: Machine = Machine()
) -> Profile:
    """What the probe wrote into `folder` (the event `found`). `roots`: how prefixes of file
    names are shown. Raises CannotJudge where too few steps were timed."""
    columns = {name: np.asarray(values, float) for name, values in found["steps"].items()}
    warm_up, settled = found["untimed"]
    window = found["window"]
    number = columns["step"].astype(int)
    timed = number >= (settled if len(window["steps"]) or window["problem"] == "" else warm_up)
    if timed.sum() < FEWEST_STEPS:
        raise CannotJudge(
            f"the training has {len(number)} steps, and profiling needs {settled + FEWEST_STEPS}",
            "give the task more steps",
        )
    columns = {name: values[timed] for name, values in columns.items()}
    places = tuple(CodeLine(shown(file, roots), name, line) for file, name, line in found["places"])
    samples = _samples(found["samples"], places)
    times = {name: columns[name] for name in PHASES}
    own = np.sum([times[name] for name in PHASES], axis=0)
    operators = tuple(sorted(map(_operator, window["rows"]), key=lambda row: -row.seconds))
    pauses = {step: places[place] for step, _, _, place in found["pauses"] if place >= 0}
    return Profile(
        folder=folder,
        torch=found["torch"],
        device=found["device"],
        threads=found["threads"],
        exact=found["exact"],
        steps=number[timed],
        times=times,
        wall=columns["wall"],
        cpu=columns["cpu"],
        collected=columns["gc"],
        count=len(number),
        evaluation=float(sum(seconds for _, seconds in found["evaluations"])),
        evaluations=len(found["evaluations"]),
        step=_phase("step", own, own),
        phases=tuple(_phase(name, times[name], own) for name in PHASES if times[name].any()),
        operators=operators,
        window=(window["first"], window["first"] + len(window["steps"]) - 1),
        window_seconds=sum(row.seconds for row in operators),
        problem=window["problem"],
        lines=_lines(samples, set(number[timed].tolist())),
        waits=tuple(
            Wait(method, places[place], times) for method, place, times in found["waits"]
        ),
        workers=found["workers"],
        stalls=find(
            number[timed], own, columns["wall"], times, columns["gc"], columns["cpu"], samples,
            pauses,
        ),
        machine=machine,
    )  # fmt: skip


def by_name(operators: Sequence[Operator]) -> list[Operator]:
    """Operators of all phases and modules together, by name; `module` and `phase` are those of the
    largest part."""
    parts: dict[str, list[Operator]] = defaultdict(list)
    for row in operators:
        parts[row.name].append(row)
    found = []
    for name, rows in parts.items():
        largest = max(rows, key=lambda row: row.seconds)
        sums = {
            field: sum(getattr(row, field) for row in rows)
            for field in ("calls", "seconds", "device", "memory", "kernels")
        }
        found.append(Operator(name, largest.phase, largest.module, **sums))
    return sorted(found, key=lambda row: -row.seconds)


def _phase(name: str, values: np.ndarray, all_steps: np.ndarray) -> PhaseTime:
    median, p90, p99 = np.quantile(values, (0.5, 0.9, 0.99)).tolist()
    return PhaseTime(name, median, p90, p99, float(values.sum() / all_steps.sum()))


def _operator(row: Mapping[str, Any]) -> Operator:
    return Operator(
        row["name"], row["phase"], row["module"], row["calls"], float(np.median(row["seconds"])),
        row["device"], row["memory"], row["kernels"],
    )  # fmt: skip


def _samples(found: Mapping[str, Sequence[float]], places: tuple[CodeLine, ...]) -> Samples:
    return Samples(
        step=np.asarray(found["step"], int),
        phase=np.asarray(STATES)[np.asarray(found["state"], int)],
        place=np.asarray(found["place"], int),
        seconds=np.asarray(found["seconds"], float),
        places=places,
    )


def _lines(samples: Samples, steps: set[int]) -> tuple[HotLine, ...]:
    spent: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    chosen = np.isin(samples.step, list(steps)) & (samples.place >= 0)
    for place, phase, seconds in zip(
        samples.place[chosen], samples.phase[chosen], samples.seconds[chosen], strict=True
    ):
        spent[int(place)][str(phase)] += float(seconds)
    total = sum(sum(parts.values()) for parts in spent.values())
    lines = [
        HotLine(
            samples.places[place],
            max(parts, key=lambda phase: parts[phase]),
            sum(parts.values()) / total,
        )
        for place, parts in spent.items()
    ]
    return tuple(sorted(lines, key=lambda line: -line.share))
