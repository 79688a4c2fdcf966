"""Where the time of a training's steps goes: a task is run under the probe of `celedger profile`,
outside the record, and what the probe left is summed up. Times are the training's own: seconds in
which the machine gave it no core are apart.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from celedger.diagnose.stalls import CodeLine, StackSamples, Stalls, TimedSteps, find
from celedger.diagnose.trace import EVENTS, processes, records
from celedger.errors import CannotJudge
from celedger.model import Commit, Task
from celedger.system.gpu import Gpu
from celedger.system.process import Running
from celedger.system.telemetry import PERIOD, Sampler
from celedger.trial.diagnostic import EAGER, diagnose
from celedger.trial.runner import Bench

PHASES = ("data", "other", "forward", "backward", "tail")
WAITS = 0.5  # a step: what happens every other step is in the loop
FEWEST_STEPS = 10  # timed, or nothing is said of their times
STATES = ("data", "forward", "backward", "tail", "evaluation")  # as the probe numbers them
PYTHON, OPTIMISER = "(Python)", "(optimiser)"  # as celedger.child.probes.operators writes them
_LEAST_CORES = 0.01  # a process that used less in all is not worth a line

Row = dict[str, Any]  # as JSON has it


@dataclass(frozen=True, slots=True)
class Operator:
    """Self time (s), calls, device time (s), memory kept (bytes) and kernels of one operator, a
    step. `name` "(Python)" is time no operator accounts for; `module` None is outside of all."""

    name: str
    phase: str
    module: str | None
    calls: float
    seconds: float
    device_seconds: float
    memory: float
    kernels: float


class HotLine(NamedTuple):
    """A line of the user's, and its share of the samples; `phase` most of them fell in."""

    line: CodeLine
    phase: str
    share: float


class Wait(NamedTuple):
    """A line that asks a tensor for a plain value, and how often a step."""

    method: str
    line: CodeLine
    times: float

    @property
    def cause(self) -> object:
        return self.method, self.line.file, self.line.function


@dataclass(frozen=True, slots=True)
class Profile:
    """`settings`: torch, device, threads and DataLoader workers, and whether time without a core
    could be told apart (`exact`). `count`: of all steps, timed or not. `evaluation`: its parts, s.
    `window`: first and last step under the profiler, else its `problem`. `processes`: pid and name,
    cores used on average, largest memory (`rss`)."""

    folder: Path
    settings: Mapping[str, Any]
    steps: TimedSteps
    count: int
    evaluation: Sequence[float]
    operators: Sequence[Operator]
    window: tuple[int, int]
    problem: str
    lines: Sequence[HotLine]
    waits: Sequence[Wait]
    stalls: Stalls
    processes: Sequence[Row] = ()
    gpu: Mapping[str, float] = field(default_factory=dict)  # utilisation (%), memory (bytes)

    @property
    def device(self) -> str:
        return str(self.settings["device"])

    @property
    def phases(self) -> list[Row]:
        """The phases of a step, and the step itself last: median, 90th and 99th percentile (s), and
        the share of the time of all."""
        own = self.steps.own
        times = {name: t for name, t in self.steps.times.items() if t.any()}
        rows = []
        for name, seconds in {**times, "step": own}.items():
            median, p90, p99 = np.quantile(seconds, (0.5, 0.9, 0.99)).tolist()
            share = float(seconds.sum() / own.sum())
            rows.append({"name": name, "median": median, "p90": p90, "p99": p99, "share": share})
        return rows

    @property
    def window_seconds(self) -> float:
        """Of a step in the window: the sum of its operators' medians."""
        return sum(row.seconds for row in self.operators)

    @property
    def delayed(self) -> float:
        """Share of the wall time in which the training could have run and had no core."""
        return float(max(1.0 - self.steps.own.sum() / self.steps.wall.sum(), 0.0))

    @property
    def evaluation_share(self) -> float:
        """Of evaluation and steps together, as if all steps took as long as the timed ones."""
        evaluation = sum(self.evaluation)
        return evaluation / (float(self.steps.own.mean()) * self.count + evaluation)

    def largest_operators(self) -> list[tuple[Operator, float]]:
        """Operators of all phases and modules together, by name, with their shares of a step, the
        largest first; `module` and `phase` are those of the largest part. On a GPU by the device's
        time, else by self time."""
        rows: dict[str, Operator] = {}
        for row in sorted(self.operators, key=lambda row: -row.seconds):
            rows[row.name] = _sum(rows[row.name], row) if row.name in rows else row
        key = "device_seconds" if self.device == "cuda" else "seconds"
        total = sum(getattr(row, key) for row in rows.values()) or 1.0
        ranked = sorted(rows.values(), key=lambda row: -getattr(row, key))
        return [(row, getattr(row, key) / total) for row in ranked]


def _sum(one: Operator, other: Operator) -> Operator:
    sums = ("calls", "seconds", "device_seconds", "memory", "kernels")
    return replace(one, **{name: getattr(one, name) + getattr(other, name) for name in sums})


def shown(file: str, roots: Mapping[str, str]) -> str:
    """Return a file's name as people know it: from the tree's root, or under the suite's name."""
    for prefix, name in roots.items():
        if file.startswith(prefix.rstrip("/") + "/"):
            rest = file[len(prefix.rstrip("/")) + 1 :]
            return f"{name}/{rest}" if name else rest
    return file


def load(folder: Path, event: Mapping[str, Any], roots: Mapping[str, str]) -> Profile:
    """Read what the probe wrote into `folder` (its event). `roots`: how prefixes of file names are
    shown. Raises CannotJudge where too few steps were timed."""
    steps, evaluation, busy = _steps(event["edges"])
    warm_up, settled = event["untimed"]
    window = event["window"]
    after = settled if len(window["steps"]) or window["problem"] == "" else warm_up
    timed = steps.number >= after
    if timed.sum() < FEWEST_STEPS:
        raise CannotJudge(
            f"the training has {len(timed)} steps, and profiling needs {settled + FEWEST_STEPS}",
            "give the task more steps",
        )
    # The profiler's clock runs on while others have the core.
    seen = slice(window["first"], window["first"] + len(window["steps"]))
    operators = [_operator(row, busy[row["phase"]][seen]) for row in window["rows"]]
    count, steps = len(timed), _chosen(steps, timed)
    lines = [CodeLine(shown(file, roots), name, line) for file, name, line in event["lines"]]
    samples = _samples(event["samples"], event["edges"], lines)
    pauses = {step: lines[line] for step, line in event["pauses"] if line >= 0}
    return Profile(
        folder=folder,
        settings={key: event[key] for key in ("torch", "device", "threads", "exact", "workers")},
        steps=steps,
        count=count,
        evaluation=evaluation,
        operators=sorted(operators, key=lambda row: -row.seconds),
        window=(window["first"], window["first"] + len(window["steps"]) - 1),
        problem=window["problem"],
        lines=_hot_lines(samples, steps.number),
        waits=[Wait(method, lines[line], times) for method, line, times in event["waits"]],
        stalls=find(steps, samples, pauses),
    )


def _steps(
    columns: Mapping[str, Sequence[int]],
) -> tuple[TimedSteps, list[float], dict[str, np.ndarray]]:
    """Return the whole steps between the clock's edges, the evaluations (s), and by phase the share
    of each step's time in which the training had the core."""
    edges = {name: np.asarray(values, dtype=np.int64) for name, values in columns.items()}
    count = int(edges["step"][-1])  # the last is not complete
    step = edges["step"][:-1]
    state = np.asarray(STATES)[edges["phase"][:-1]]
    spent = {name: np.diff(values) / 1e9 for name, values in edges.items()}
    own = spent.get("device", spent["own"])

    def seconds(values: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        chosen = chosen & (step < count)
        return np.bincount(step[chosen], values[chosen], minlength=count)

    gap, waited = seconds(own, state == "data"), seconds(spent["loader"], state == "data")
    data = np.where(waited > 0, np.minimum(waited, gap), gap)
    times = {"data": data, "other": gap - data}
    times |= {name: seconds(own, state == name) for name in STATES[1:4]}
    busy = {"evaluation": np.ones(count)}
    for name in STATES[:4]:
        on_wall = seconds(spent["wall"], state == name)
        busy[name] = np.ones(count)
        if "device" not in spent:
            np.divide(seconds(own, state == name), on_wall, out=busy[name], where=on_wall > 0)
    training = state != "evaluation"
    wall = own if "device" in spent else spent["wall"]
    steps = TimedSteps(
        np.arange(count), times, seconds(wall, training), seconds(spent["cpu"], training),
        seconds(spent["gc"], training),
    )  # fmt: skip
    return steps, own[~training].tolist(), busy


def _chosen(steps: TimedSteps, at: np.ndarray) -> TimedSteps:
    times = {name: values[at] for name, values in steps.times.items()}
    return TimedSteps(steps.number[at], times, steps.wall[at], steps.cpu[at], steps.gc[at])


def _operator(row: Mapping[str, Any], busy: np.ndarray) -> Operator:
    """`busy`: the share of its phase, in each step, in which the training had the core."""
    return Operator(
        row["name"], row["phase"], row["module"], row["calls"],
        float(np.median(row["seconds"] * busy)), row["device"], row["memory"], row["kernels"],
    )  # fmt: skip


def _samples(
    columns: Mapping[str, Sequence[float]],
    edges: Mapping[str, Sequence[int]],
    lines: Sequence[CodeLine],
) -> StackSamples:
    """Return the samples by what their edges turned out to be: a gap, say, an evaluation."""
    edge, line = (np.asarray(columns[name], dtype=int) for name in ("edge", "line"))
    at = np.searchsorted(edges["edge"], edge, side="right") - 1
    phase = np.asarray(STATES)[np.asarray(edges["phase"])[at]]
    step, seconds = np.asarray(edges["step"])[at], np.asarray(columns["seconds"], dtype=float)
    named = line >= 0
    return StackSamples(step[named], phase[named], line[named], seconds[named], lines)


def _hot_lines(samples: StackSamples, steps: np.ndarray) -> list[HotLine]:
    spent = np.array([samples.spent(steps, phase) for phase in STATES])
    shares = spent.sum(axis=0) / (spent.sum() or 1.0)
    phases = np.asarray(STATES)[spent.argmax(axis=0)]
    return [
        HotLine(samples.lines[line], str(phases[line]), float(shares[line]))
        for line in np.argsort(-shares, kind="stable")
        if shares[line] > 0
    ]


def profile(
    bench: Bench, commit: Commit, task: Task, seed: int, out: Path, probe: Mapping[str, object]
) -> Profile:
    """Profile one run of the task. Raises CannotJudge where it failed or has too few steps."""
    watcher = ProcessWatcher(bench.device.gpu)
    folder, event = run(bench, commit, task, seed, out, probe, watcher)
    profiled = load(folder, event, roots(bench))
    return replace(profiled, processes=watcher.processes(), gpu=watcher.gpu_use())


def run(
    bench: Bench,
    commit: Commit,
    task: Task,
    seed: int,
    out: Path,
    probe: Mapping[str, object],
    watcher: ProcessWatcher | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Run the task once with a probe, and return the folder and the event of its longest training.
    Raises CannotJudge where it failed, or trained nothing that a probe could see."""
    kind = str(probe["kind"])
    # Nothing is compiled under a dispatch mode; so torch.compile need not try.
    variables = EAGER if kind == "memory" else None
    ended = diagnose(bench, commit, task, seed, out, probe, environment=variables, on_tick=watcher)
    events = [(folder, event) for folder in processes(out) for event in records(folder, kind)]
    # A training that was ended early may leave the next command without its input.
    if not ended.ok and not (events and "steps" in probe):
        raise CannotJudge(f"{task.name} at {commit.sha[:10]}: {ended.message}", f"see {ended.log}")
    if not events:
        raise CannotJudge(
            f"{task.name} at {commit.sha[:10]} trains nothing that a probe can see",
            "profiling follows torch 2.0 or later: "
            "a forward or backward pass and an optimiser's steps",
        )
    return max(events, key=lambda row: (row[0] / EVENTS).stat().st_size)


def roots(bench: Bench) -> dict[str, str]:
    """How the files of the tree and the suite are shown."""
    return {str(bench.suite_copy): bench.suite.name, str(bench.tree): ""}


class ProcessWatcher:
    """Hears of a running command every tick, and looks at its tree four times a second."""

    def __init__(self, gpu: Gpu | None) -> None:
        self._sampler = Sampler(gpu) if gpu is not None else None
        self._began = self._last = time.monotonic()
        self._seen: dict[int, Any] = {}  # by pid
        self._figures: dict[str, list[float]] = defaultdict(list)

    def __call__(self, running: Running) -> None:
        now = time.monotonic()
        if now - self._last < PERIOD:
            return
        self._last = now
        for one in running.processes():
            before = self._seen.get(one.pid, one)
            self._seen[one.pid] = replace(one, rss=max(one.rss, before.rss))
        if self._sampler is not None:
            self._sampler.sample(running.usage)
            for name, value in self._sampler.take().items():
                self._figures[name].append(value)

    def processes(self) -> list[Row]:
        seconds = max(time.monotonic() - self._began, 1e-9)
        rows = [
            {"pid": p.pid, "name": p.name, "cores": p.cpu / seconds, "rss": p.rss}
            for p in self._seen.values()
        ]
        return sorted((p for p in rows if p["cores"] >= _LEAST_CORES), key=lambda p: -p["cores"])

    def gpu_use(self) -> dict[str, float]:
        use, memory = self._figures["gpu_utilisation"], self._figures["gpu_memory"]
        return {"utilisation": float(np.mean(use)), "memory": max(memory)} if use and memory else {}
