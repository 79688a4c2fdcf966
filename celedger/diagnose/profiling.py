"""Runs a task under the profile's probe, outside the record, and watches its processes and GPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from celedger.diagnose.memory import Memory
from celedger.diagnose.memory import load as load_memory
from celedger.diagnose.profile import Machine, Process, Profile, load, trainings
from celedger.errors import CannotJudge
from celedger.model import Commit, Task
from celedger.system.gpu import Gpu
from celedger.system.process import Running
from celedger.system.telemetry import PERIOD, Sampler
from celedger.system.tree import One
from celedger.trial.diagnostic import EAGER, Diagnostic, diagnose
from celedger.trial.runner import Bench

_LEAST_CORES = 0.01  # a process that used less in all is not worth a line


def run(
    bench: Bench, commit: Commit, task: Task, seed: int, out: Path, probe: dict[str, object]
) -> tuple[Path, dict[str, Any], Machine]:
    """One run of the task with a probe; the folder and the event of its longest training. Raises
    CannotJudge where it failed, or trained nothing that a probe could see."""
    watcher = Watcher(bench.device.gpu)
    # Nothing is compiled under a dispatch mode; so torch.compile need not try.
    variables = EAGER if probe["kind"] == "memory" else None
    done = diagnose(bench, commit, task, seed, out, probe, environment=variables, on_tick=watcher)
    found = trainings(out, str(probe["kind"]))
    if not found:
        raise CannotJudge(*_nothing(done, task, commit))
    if not done.ok and "steps" not in probe:  # a training ended early may leave the next command
        raise CannotJudge(f"{task.name} at {commit.sha[:10]}: {done.message}", f"see {done.log}")
    return *found[0], watcher.machine()


def profile(
    bench: Bench, commit: Commit, task: Task, seed: int, out: Path, probe: dict[str, object]
) -> Profile:
    folder, event, machine = run(bench, commit, task, seed, out, probe)
    return load(folder, event, roots(bench), machine)


def memory(
    bench: Bench, commit: Commit, task: Task, seed: int, out: Path, probe: dict[str, object]
) -> Memory:
    """Where objects pile up, a second run traces them to their lines: that takes ten times as
    long, and is not done where nothing grows."""
    _, event, _ = run(bench, commit, task, seed, out / "memory", probe)
    found = load_memory(event, roots(bench))
    if not found.objects_pile_up:
        return found
    _, event, _ = run(bench, commit, task, seed, out / "objects", {**probe, "objects": True})
    traced = load_memory(event, roots(bench))
    return replace(found, leaks=traced.leaks or found.leaks)


def both(
    bench: Bench,
    sides: tuple[Commit, Commit],
    task: Task,
    seed: int,
    out: Path,
    probe: dict[str, object],
    turns: str,
    tell: Callable[[Commit], None],
) -> tuple[list[Profile], list[Profile]]:
    """Profiles of both sides, run in these turns (of A and B)."""
    found: tuple[list[Profile], list[Profile]] = ([], [])
    for number, letter in enumerate(turns):
        side = "AB".index(letter)
        tell(sides[side])
        found[side].append(profile(bench, sides[side], task, seed, out / str(number), probe))
    return found


def roots(bench: Bench) -> dict[str, str]:
    """How the files of the tree and the suite are shown."""
    return {str(bench.suite_copy): bench.suite.name, str(bench.tree): ""}


def _nothing(done: Diagnostic, task: Task, commit: Commit) -> tuple[str, str]:
    if not done.ok:
        return f"{task.name} at {commit.sha[:10]}: {done.message}", f"see {done.log}"
    return (
        f"{task.name} at {commit.sha[:10]} trains nothing that a probe can see",
        "profiling follows torch 2.0 or later: a forward or backward pass and an optimiser's steps",
    )


@dataclass
class Watcher:
    """Hears of a running command every tick, and looks at its tree four times a second."""

    gpu: Gpu | None
    _sampler: Sampler | None = None
    _last: float = 0.0
    _seen: dict[int, One] = field(default_factory=dict)
    _rss: dict[int, int] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)
    _figures: dict[str, list[float]] = field(default_factory=dict)

    def __call__(self, running: Running) -> None:
        now = time.monotonic()
        if now - self._last < PERIOD:
            return
        self._last = now
        for one in running.processes():
            self._seen[one.pid] = one
            self._rss[one.pid] = max(one.rss, self._rss.get(one.pid, 0))
        if self.gpu is not None:
            self._sampler = self._sampler or Sampler(self.gpu)
            self._sampler.sample(running.usage)
            for name, value in self._sampler.take().items():
                self._figures.setdefault(name, []).append(value)

    def machine(self) -> Machine:
        spent = max(time.monotonic() - self._began, 1e-9)
        rows = [
            Process(one.pid, one.name, one.cpu / spent, self._rss[one.pid])
            for one in self._seen.values()
        ]
        utilisation = self._figures.get("gpu_utilisation")
        memory = self._figures.get("gpu_memory")
        return Machine(
            tuple(sorted((r for r in rows if r.cores >= _LEAST_CORES), key=lambda row: -row.cores)),
            sum(utilisation) / len(utilisation) if utilisation else None,
            max(memory) if memory else None,
        )
