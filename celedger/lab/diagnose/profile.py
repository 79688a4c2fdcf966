"""Report where the time of a training's steps goes: run a task under the probe of `celedger
profile`, outside the ledger, and sum up the probe's event. Times exclude those in which the machine
gave the training no core. The result is the document that `--json` prints; its fields are in
docs/profile.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from celedger.base.errors import CannotJudge
from celedger.base.model import Commit, Task
from celedger.lab.diagnose import stalls
from celedger.lab.diagnose.probe_records import EVENTS, printed_name, processes, records
from celedger.lab.diagnose.speed_advice import advise
from celedger.lab.diagnose.stalls import CodeLine, Document, StackSamples, TimedSteps, line_fields
from celedger.trial.diagnostic import EAGER, diagnose
from celedger.trial.runner import Bench

FEWEST_STEPS = 10  # timed, or nothing is said of their times
LEAST_SHARE = 0.003  # of the samples: of a line with what it calls
LEAST_STEPS = 18 + FEWEST_STEPS  # of a training: with those that the probe does not time
NO_STEP = ("no step of the training was seen",
           "it ends where an optimiser of torch's steps, or weights change")  # fmt: skip
STATES = ("data", "forward", "backward", "tail", "evaluation")  # as the probe numbers them


def load(event: Mapping[str, Any], roots: Mapping[str, str], rank: str | None = None) -> Document:
    """Sum up the probe's event, of a `rank` of a distributed training. `roots` map prefixes of file
    names to their printed form. Raises CannotJudge if too few steps were timed."""
    steps, evaluation, busy = _steps(event["edges"])
    warm_up, settled = event["untimed"]
    window, count = event["window"], len(steps.number)
    timed = steps.number >= (warm_up if window["problem"] else settled)
    if not count:
        raise CannotJudge(*NO_STEP)
    if timed.sum() < FEWEST_STEPS:
        needed = f"profiling needs {settled + FEWEST_STEPS}"
        raise CannotJudge(f"the training has {count} steps, and {needed}", "give the task more")
    # The profiler's clock does not stop while other processes have the core.
    first, last = window["first"], window["first"] + len(window["steps"])
    rows = [_operator(row, busy[row["phase"]][first:last]) for row in window["rows"]]
    steps = _chosen(steps, timed)
    gap = "data" if steps.times["data"].any() else "other"  # the phase between two steps
    for row in rows:
        row["phase"] = gap if row["phase"] == "data" else row["phase"]
    durations, exact = steps.own, event["exact"]
    lines = [CodeLine(printed_name(file, roots), name, line) for file, name, line in event["lines"]]
    samples = _samples(event["samples"], event["edges"], lines, gap)
    pauses = {step: lines[line] for step, line in event["pauses"] if line >= 0}
    # The share of evaluation and steps together, as if all steps took as long as the timed ones.
    share = sum(evaluation) / (float(durations.mean()) * count + sum(evaluation))
    document = {
        "rank": rank,
        "environment": {name: event[name] for name in ("torch", "device", "threads", "workers")},
        "steps": {
            "count": count, "timed": len(durations), "number": steps.number.tolist(),
            "seconds": durations.tolist(), "wall_seconds": steps.wall.tolist(),
            "phases": {name: t.tolist() for name, t in steps.times.items() if t.any()},
        },
        "delayed_share": max(1.0 - durations.sum() / steps.wall.sum(), 0.0) if exact else None,
        "idle_share": 1.0 - steps.cpu.sum() / durations.sum() if exact else None,
        "collector_share": float(steps.gc.sum() / durations.sum()),
        "phases": _phases(steps),
        "evaluation": {"times": len(evaluation), "seconds": sum(evaluation), "share": share},
        "operators": {
            "first_step": first, "last_step": last - 1,
            "step_seconds": sum(row["seconds"] for row in rows),
            "problem": window["problem"] or None,
            "rows": sorted(rows, key=lambda row: -row["seconds"]),
        },
        "lines": _hot_lines(samples, steps.number),
        "inclusive": _inclusive(samples, steps.number),
        "gpu": _gpu(event, float(np.median(steps.own))),
        "waits": [
            {"method": method, "times": times, **line_fields(lines[line])}
            for method, line, times in event["waits"]
        ],
        "stalls": stalls.find(steps, samples, pauses),
    }  # fmt: skip
    return {**document, "advice": advise(document, event["optimisers"])}


def _gpu(event: Mapping[str, Any], step: float) -> Document | None:
    """Return the device's own work as seconds a step, with the share of a usual `step` (s) in which
    it idles; None without a GPU."""
    work = event["window"].get("device")
    # A kernel takes as long under the profiler as without it; the host does not.
    return work and {**work, "idle_share": max(0.0, 1.0 - work["busy"] / step)}


def _phases(steps: TimedSteps) -> list[Document]:
    """Return the step and its phases: median, 90th and 99th percentile (s), and the share of the
    total time."""
    durations = steps.own
    rows = []
    for name, seconds in {"step": durations, **steps.times}.items():
        if seconds.any():
            median, p90, p99 = np.quantile(seconds, (0.5, 0.9, 0.99)).tolist()
            share = float(seconds.sum() / durations.sum())
            rows.append({"name": name, "median": median, "p90": p90, "p99": p99, "share": share})
    return rows


def steps_of(columns: Mapping[str, Sequence[int]]) -> TimedSteps:
    """Return the complete steps between the edges of a probe's clock."""
    return _steps(columns)[0]


def _steps(
    columns: Mapping[str, Sequence[int]],
) -> tuple[TimedSteps, list[float], dict[str, np.ndarray]]:
    """Return the complete steps between the clock's edges, the evaluations (s), and by phase the
    share of each step's time in which the training had the core."""
    edges = {name: np.asarray(values, dtype=np.int64) for name, values in columns.items()}
    count = int(edges["step"][-1])  # the last step is not complete
    step = edges["step"][:-1]
    state = np.asarray(STATES)[edges["phase"][:-1]]
    spent = {name: np.diff(values) / 1e9 for name, values in edges.items()}
    own = spent.get("device", spent["own"])

    def seconds(values: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        chosen = chosen & (step < count)
        return np.bincount(step[chosen], values[chosen], minlength=count)

    gap = seconds(own, state == "data")
    # What no DataLoader waits for may be anything: data, an average of the weights, a report.
    data = np.minimum(seconds(spent["loader"], state == "data"), gap)
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
    columns = (steps.wall[at], steps.cpu[at], steps.gc[at])
    return TimedSteps(steps.number[at], times, *columns)


def _operator(row: Mapping[str, Any], busy: np.ndarray) -> Document:
    """Return a row of the operators' table: a step's self time (s), calls, time on the device (s),
    memory kept (bytes) and kernels. `busy`: the share of its phase, in each step, in which the
    training had the core."""
    seconds = float(np.median(row["seconds"] * busy))
    names = ("name", "phase", "module", "calls", "memory", "kernels")
    return {**{n: row[n] for n in names}, "seconds": seconds, "device_seconds": row["device"]}


def _samples(
    columns: Mapping[str, Sequence[Any]],
    edges: Mapping[str, Sequence[int]],
    lines: Sequence[CodeLine],
    gap: str,
) -> StackSamples:
    """Return the samples by the final phase of their edges: a `gap` may turn out to be an
    evaluation."""
    edge, line = (np.asarray(columns[name], dtype=int) for name in ("edge", "line"))
    at = np.searchsorted(edges["edge"], edge, side="right") - 1
    phase = np.asarray([gap, *STATES[1:]])[np.asarray(edges["phase"])[at]]
    step, seconds = np.asarray(edges["step"])[at], np.asarray(columns["seconds"], dtype=float)
    named = line >= 0
    callers = [columns["callers"][row] for row in np.flatnonzero(named).tolist()]
    return StackSamples(step[named], phase[named], line[named], seconds[named], lines, callers)


def _hot_lines(samples: StackSamples, steps: np.ndarray) -> list[Document]:
    """Return the user's lines with their shares of the samples, and the phase with most of them."""
    names = ("other", *STATES)
    spent = np.array([samples.spent(steps, phase) for phase in names])
    shares = spent.sum(axis=0) / (spent.sum() or 1.0)
    phases = np.asarray(names)[spent.argmax(axis=0)]
    return [
        {"phase": str(phases[at]), "share": float(shares[at]), **line_fields(samples.lines[at])}
        for at in np.argsort(-shares, kind="stable").tolist()
        if shares[at] > 0
    ]


def _inclusive(samples: StackSamples, steps: np.ndarray) -> list[Document]:
    """Return the user's lines with their shares of the samples, those of what they call included,
    the largest first."""
    chosen = np.isin(samples.step, steps)
    shares = np.zeros(len(samples.lines))
    for at in np.flatnonzero(chosen).tolist():
        shares[[*{int(samples.line[at]), *samples.callers[at]}]] += samples.seconds[at]
    shares /= samples.seconds[chosen].sum() or 1.0
    return [
        {"share": float(shares[at]), **line_fields(samples.lines[at])}
        for at in np.argsort(-shares, kind="stable").tolist() if shares[at] > LEAST_SHARE
    ]  # fmt: skip


def profile(
    bench: Bench, commit: Commit, task: Task, seed: int, out: Path, probe: Mapping[str, object]
) -> Document:
    """Profile one run of the task. Raises CannotJudge if it failed or has too few steps."""
    rows = _observed(bench, commit, task, seed, out, probe)
    ranks = {folder: (0, 1) for folder, _ in rows}  # and the world's size
    ranks |= {one: (r["rank"], r["world"]) for one in ranks for r in records(one, "rank")}
    longest, _ = _longest(rows)
    world = ranks[longest][1]
    # The folders n·world to n·world + world - 1 are of one training: see the observer.
    events = {
        ranks[folder][0]: event
        for folder, event in rows
        if int(folder.name) // world == int(longest.name) // world
    }
    rank = f"rank {min(events)} of {world}" if world > 1 else None
    return load(events[min(events)], roots(bench), rank)


def run(
    bench: Bench, commit: Commit, task: Task, seed: int, out: Path, probe: Mapping[str, object]
) -> dict[str, Any]:
    """Run the task once with a probe, and return the event of its longest training. Raises
    CannotJudge if it failed, or trained nothing that a probe could observe."""
    return _longest(_observed(bench, commit, task, seed, out, probe))[1]


def _longest(rows: Sequence[tuple[Path, dict[str, Any]]]) -> tuple[Path, dict[str, Any]]:
    return max(rows, key=lambda row: (row[0] / EVENTS).stat().st_size)


def _observed(
    bench: Bench, commit: Commit, task: Task, seed: int, out: Path, probe: Mapping[str, object]
) -> list[tuple[Path, dict[str, Any]]]:
    """Run the task once with a probe, and return the folder and event of each training."""
    kind = str(probe["kind"])
    # torch.compile is pointless here: nothing is compiled under a dispatch mode.
    variables = None if kind == "profile" else EAGER
    ended = diagnose(bench, commit, task, seed, out, probe, environment=variables)
    events = [(folder, event) for folder in processes(out) for event in records(folder, kind)]
    # A training that the probe ended may not have written the input of the next command.
    early = any(event.get("ended", "steps" in probe) for _, event in events)
    if not ended.ok and not early:
        raise CannotJudge(f"{task.name} at {commit.sha[:10]}: {ended.message}", f"see {ended.log}")
    if not events:
        raise CannotJudge(
            f"{task.name} at {commit.sha[:10]} trains nothing that a probe can see",
            "profiling follows torch 2.5 or later: "
            "a forward or backward pass and an optimiser's steps",
        )
    return events


def roots(bench: Bench) -> dict[str, str]:
    """Return the printed form of the folders of the tree and the suite."""
    return {str(bench.station.suite_copy): bench.suite.name, str(bench.station.tree): ""}
