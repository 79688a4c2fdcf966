"""The runs of an explanation: what is asked for, a task's two sides (commits, or another device,
precision, interpreter or parameter) under traces, the answer."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from celedger.diagnose.blame import Blamed
from celedger.diagnose.difference import Growth, Layer
from celedger.diagnose.finding import ExplainFinding
from celedger.diagnose.trace import Trace, processes, read
from celedger.diagnose.watch import WatchReport, watch
from celedger.errors import UsageError
from celedger.model import Commit, Task
from celedger.system import environment
from celedger.trial.diagnostic import EAGER, Diagnostic, diagnose
from celedger.trial.runner import Bench


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two trainings that are compared."""

    name: str  # as a person would say it
    commit: Commit
    params: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    python: str = ""  # another interpreter
    autocast: str = ""


AUTOCASTS = {"fp32": None, "bf16": "bfloat16", "fp16": "float16"}


def variant(side: Side, task: Task, settings: Sequence[str]) -> Side:
    """The side with these `KEY=VALUE` applied. Raises UsageError for what is no setting."""
    for text in settings:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise UsageError(f"{text!r} is no setting", "write KEY=VALUE")
        if key == "device":
            side = replace(side, environment={**side.environment, **_visible(value)})
        elif key == "autocast":
            if value not in AUTOCASTS:
                raise UsageError(f"no autocast {value!r}", f"there are {', '.join(AUTOCASTS)}")
            side = replace(side, autocast=value)
        elif key == "python":
            side = replace(side, python=value)
        elif key in task.params:
            side = replace(side, params={**side.params, key: _value(value)})
        else:
            known = ", ".join(["device", "autocast", "python", *task.params])
            raise UsageError(f"{task.name} has no setting {key!r}", f"it has {known}")
    if settings:
        side = replace(side, name=f"{side.name} with {' '.join(settings)}")
    return side


def _visible(device: str) -> dict[str, str]:
    """What makes a training see this device alone."""
    if device == "cpu":
        return {"CUDA_VISIBLE_DEVICES": ""}
    kind, _, number = device.partition(":")
    if kind != "cuda" or not (number or "0").isdigit():
        raise UsageError(f"no device {device!r}", "write cpu, cuda or cuda:N")
    return {"CUDA_VISIBLE_DEVICES": number or "0"}


def _value(text: str) -> object:
    """A number or truth value where it reads as one, as in the suite's file."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text


def inexact(a: Side, b: Side) -> bool:
    """Whether the two sides cannot be expected to agree bit by bit, whatever their code."""
    return (a.environment, a.python, a.autocast) != (b.environment, b.python, b.autocast)


def coarsest(a: Side, b: Side) -> str | None:
    """The type of an autocast on either side."""
    kinds = [kind for side in (a, b) if (kind := AUTOCASTS.get(side.autocast))]
    return "bfloat16" if "bfloat16" in kinds else kinds[0] if kinds else None


@dataclass(frozen=True, slots=True)
class ExplainLimits:
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
    finding: ExplainFinding | None = None
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
        limits: ExplainLimits = ExplainLimits(),
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
