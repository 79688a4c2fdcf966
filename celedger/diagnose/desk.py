"""The runs of an explanation: what is asked for, a task's two sides under traces, the answer."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from celedger.diagnose.blame import Blamed
from celedger.diagnose.difference import Growth, Layer
from celedger.diagnose.finding import Finding
from celedger.diagnose.trace import Trace, processes, read
from celedger.diagnose.variants import Side
from celedger.diagnose.watch import WatchReport, watch
from celedger.model import Task
from celedger.system import environment
from celedger.trial.diagnostic import EAGER, Diagnostic, diagnose
from celedger.trial.runner import Bench


@dataclass(frozen=True, slots=True)
class Limits:
    steps: int = 2000  # after so many a training is ended
    operators: bool = False
    seeds: int = 5  # of each side, where the training does not repeat itself


@dataclass(frozen=True, slots=True)
class Explanation:
    task: str
    a: Side
    b: Side
    seed: int
    steps: int  # that both sides have
    verdict: str  # "equal", "rounding", "difference", "noise"
    finding: Finding | None = None
    blamed: tuple[Blamed, ...] = ()
    repeats: bool | None = None  # a, bit by bit; None: it was not needed to know
    growth: Growth | None = None
    amplified: Growth | None = None  # a against a with its weights moved by rounding
    layers: tuple[Layer, ...] = ()
    vanished: int = 0  # differences inside that had no effect
    cut: bool = False
    notes: tuple[str, ...] = ()
    watched: tuple[WatchReport, WatchReport] | None = None  # a and b under watchpoints

    @property
    def grows(self) -> bool | None:
        """Whether the two trainings part further than they did at first; None where there is
        nothing to go by."""
        if self.growth is None:
            return None
        return grows(self.growth)


Say = Callable[[str], None]


class Desk:
    """Runs one task's sides under traces; every run has a folder of its own."""

    def __init__(
        self,
        bench: Bench,
        task: Task,
        folder: Path,
        *,
        seed: int | None = None,
        limits: Limits = Limits(),
        say: Say = lambda text: None,
    ) -> None:
        self.bench, self.task = bench, task
        self.seed = task.seeds[0] if seed is None else seed
        self.folder, self.limits, self.say = folder, limits, say
        self._runs = 0

    def bench_of(self, side: Side) -> Bench:
        """The bench, with the side's interpreter."""
        if not side.python:
            return self.bench
        name, bench = self.task.name, self.bench
        python = environment.resolve_interpreter(side.python, bench.base_env.get("PATH", ""))
        described = environment.describe(
            python, device=bench.device, threads=self.task.threads,
            repo_root=bench.checkouts.repository.root,
            permit=bench.starts.question(self.task, python),
        )  # fmt: skip
        other = replace(
            bench, interpreters={**bench.interpreters, name: python},
            environments={**bench.environments, name: described},
        )  # fmt: skip
        other._checkout = bench.checkout
        return other

    def run(
        self, side: Side, full: Sequence[int], *, seed: int | None = None, **more: object
    ) -> tuple[Diagnostic, list[Trace]]:
        self._runs += 1
        out = self.folder / self.task.name / str(self._runs)
        probe: dict[str, object] = {
            "kind": "trace", "full": sorted(full), "steps": self.limits.steps, **more
        }  # fmt: skip
        if side.autocast:
            probe["autocast"] = side.autocast
        if self.limits.operators:
            probe["operators"] = True
        done = diagnose(
            self.bench_of(side), side.commit, self.task, self.seed if seed is None else seed,
            out, probe,
            params=side.params,
            environment={**EAGER, **side.environment},
        )  # fmt: skip
        return done, [read(folder) for folder in processes(out)]

    def watch(self, side: Side) -> WatchReport:
        """The side under watchpoints. Raises CannotJudge where it does not train."""
        self._runs += 1
        return watch(
            self.bench_of(side), side.commit, self.task, self.seed,
            self.folder / self.task.name / str(self._runs), {},
            params=side.params, environment=side.environment,
        )  # fmt: skip


def grows(growth: Growth) -> bool | None:
    """Whether the difference at the end is larger than where it began."""
    if growth.diverged is not None:
        return True
    values = [x for x in growth.loss if x == x and x > 0]
    if len(values) < 4:
        return None
    quarter = max(1, len(values) // 4)
    return statistics.median(values[-quarter:]) > statistics.median(values[:quarter])
