"""Sign a task at a commit, and compare two signatures: digests of what a training's first steps
compute, and counts of the work that they take (celedger.lab.probes.signature writes them).

Losses, gradients, parameters and buffers decide whether two trainings are equal, and what they
report. Inputs, outputs, settings and random states only name what differs: a module that becomes a
function changes them, and moves no bit. Must not import torch.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from celedger.base.model import STEP_COUNTS, Commit, Kind, Task
from celedger.lab.diagnose.probe_records import printed_name, processes, rank_of, records
from celedger.trial.diagnostic import EAGER, diagnose
from celedger.trial.report_sources import Printed
from celedger.trial.runner import Bench

ROUNDING = 3e-6
"""The largest relative difference of losses and norms that is called another rounding. Measured
with 76 trainings in float32: 7e-7 at most for another order of additions, 1.8e-5 at least for a
fault. It is ten units in the last place, times what a few steps amplify."""

DECIDING = ("loss", "grad", "param", "bufs")
_ORDER = ("init", "load", "batch", "out", "loss", "grad", "settings", "param", "bufs", "random")
_NAMES = {
    "init": "the first weights",
    "load": "what the data loader yields",
    "batch": "what the model is given",
    "out": "what the model returns",
    "loss": "the loss",
    "grad": "a gradient",
    "settings": "the optimiser's settings",
    "param": "the weights after the step",
    "bufs": "the buffers of the model",
    "random": "the random numbers that are drawn",
}
_HALF = ("float16", "bfloat16")
_GROWING = 4  # steps at each of which a count is larger
_SETTLED = 2  # the first step whose work is compared: those before set up what later ones reuse


class Scheme(NamedTuple):
    """How much of a training is signed: its first steps, with `batches` a data loader's epoch (0:
    all of them)."""

    steps: int
    batches: int = 0

    def __str__(self) -> str:
        return f"short:{self.batches}x{self.steps}" if self.batches else f"steps:{self.steps}"


STEPS, SHORT, WIDE = Scheme(5), Scheme(24, 2), Scheme(24, 8)
"""Five steps show 80 of 94 faults; two batches an epoch, with evaluation and what is reported, 93.
Eight are for trainings that accumulate gradients over several batches: Adam's betas, warm-up and
accumulation act within four steps."""

SCHEMES = (SHORT, WIDE, STEPS)


@dataclass(frozen=True, slots=True)
class Signature:
    """What a training's first steps computed.

    Args:
        steps: Of each process that trains, the events of its steps.
        ranks: Of each process, `rank 1 of 2`, or "".
        reports: Epoch, metric and value of what is reported, of metrics of quality alone.
        problem: How the training failed, "" where it did not.
        seconds: Of processor time.
    """

    scheme: str
    steps: tuple[tuple[Mapping[str, Any], ...], ...]
    ranks: tuple[str, ...] = ()
    reports: tuple[tuple[str, str, str], ...] = ()
    problem: str = ""
    evaluates: bool = False
    seconds: float = 0.0

    @property
    def count(self) -> int:
        """Return the number of steps, 0 where no step of torch was seen."""
        return max(map(len, self.steps), default=0)

    def document(self) -> dict[str, Any]:
        """Return what is stored: without modules, and the operators of one step alone."""
        kept = ("t", "d", "z", "work", "settings", "dtypes")
        return {
            "numerics": self.numerics(), "work": work(self), "growth": growth(self),
            "scheme": self.scheme, "ranks": list(self.ranks), "evaluates": self.evaluates,
            "reports": [list(row) for row in self.reports], "seconds": self.seconds,
            "steps": [[{k: step[k] for k in kept} for step in each] for each in self.steps],
        }  # fmt: skip

    def numerics(self) -> str:
        """Return a digest of all that decides: equal for signatures without a difference."""
        decides = [
            [[step["d"].get(part) for part in DECIDING] for step in each] for each in self.steps
        ]
        reports = [[name, repr(float(value))] for _, name, value in self.reports]
        return hashlib.sha256(repr((decides, reports)).encode()).hexdigest()[:16]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Signature:
        """Return the signature of a stored document. Raises KeyError, TypeError for another one."""
        return cls(
            document["scheme"], tuple(tuple(each) for each in document["steps"]),
            tuple(document["ranks"]), tuple((e, n, v) for e, n, v in document["reports"]), "",
            document["evaluates"], document["seconds"],
        )  # fmt: skip


def sign(
    bench: Bench, commit: Commit, task: Task, seed: int, folder: Path, scheme: Scheme
) -> Signature:
    """Train a task's first steps at a commit, and return their signature. Raises CannotJudge if the
    commit cannot be built or the probe failed."""
    probe = {"kind": "signature", "steps": scheme.steps, "batches": scheme.batches}
    done = diagnose(bench, commit, task, seed, folder, probe, environment=EAGER, quick=True)
    quality = {metric.name for metric in task.metrics if metric.kind is Kind.QUALITY}
    steps, ranks, reports, was_ended, evaluates, seconds = [], [], [], False, False, 0.0
    for process in processes(done.out):
        events = list(records(process))
        steps.append(tuple(event for event in events if event["k"] == "step"))
        ranks.append(rank_of(process))
        evaluates |= any("eval" in event.get("d", ()) for event in events)
        ends = [event for event in events if event["k"] == "end"]
        was_ended |= any(event["by"] == "steps" for event in ends)
        seconds += sum(event["cpu"] for event in ends)
        for event in events:
            if event["k"] == "report":
                reports += [(str(event["e"]), *row) for row in sorted(event["v"].items())]
    if task.pattern and done.log.exists():
        for report in Printed(done.log, task.pattern).read(end=True):
            values = sorted(report.values.items())
            reports += [(str(report.epoch), name, repr(value)) for name, value in values]
    chosen = tuple(dict.fromkeys(row for row in reports if row[1] in quality))
    problem = "" if done.ok or was_ended else done.message
    return Signature(str(scheme), tuple(steps), tuple(ranks), chosen, problem, evaluates, seconds)


def signed(sign: Callable[[Scheme], Signature], scheme: Scheme) -> tuple[Scheme, Signature]:
    """Sign by a scheme, or by the first wider one that sees as many steps as `STEPS` has. Return
    which it was."""
    for each in SCHEMES[SCHEMES.index(scheme) :]:
        signature = sign(each)
        if signature.problem or not signature.steps or signature.count >= STEPS.steps:
            break
    return each, signature


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of two signatures.

    Args:
        part: A part of a step ("loss"), "count" for another number of steps, or "report".
        step: From 1; 0 where it is no step's.
        name: The difference in words.
        size: The largest relative difference of losses and norms, or of the values reported.
        is_rounding: True where it is no larger than a rounding.
        precision: A half-precision type of the training, in which `ROUNDING` does not hold.
    """

    part: str
    step: int
    name: str
    size: float = math.inf
    is_rounding: bool = False
    values: tuple[float, float] | None = None  # the losses of the step, or what is reported
    module: tuple[str, str, str, int] | None = None  # path, class, file and line of the first
    rank: str = ""
    precision: str = ""


def first_difference(a: Signature, b: Signature) -> Difference | None:
    """Return the first difference that decides; None for equal signatures."""
    reported = _of_reports(a.reports, b.reports)
    for number, (left, right) in enumerate(zip(a.steps, b.steps, strict=False)):
        rank = a.ranks[number] if number < len(a.ranks) else ""
        for one, other in zip(left, right, strict=False):
            if any(one["d"].get(part) != other["d"].get(part) for part in DECIDING):
                named = _named(left, right, one["t"], rank)
                moved = reported is not None and not reported.is_rounding
                return replace(named, is_rounding=named.is_rounding and not moved)
        if len(left) != len(right):
            name = f"{len(left)} steps, then {len(right)}"
            return Difference("count", min(len(left), len(right)) + 1, name, rank=rank)
    if len(a.steps) != len(b.steps):
        return Difference("count", 0, f"{len(a.steps)} processes train, then {len(b.steps)}")
    return reported


def _named(
    left: Sequence[Mapping[str, Any]], right: Sequence[Mapping[str, Any]], at: int, rank: str
) -> Difference:
    """Name the difference of step `at` (from 0) by the first part of it that differs, or by the
    random numbers and settings of a step before."""
    pairs = list(zip(left, right, strict=False))
    one, other = pairs[at]
    part = next(p for p in _ORDER if one["d"].get(p) != other["d"].get(p))
    before = [p for p in ("settings", "random") if _differs(pairs[:at], p)]
    part = before[0] if before and part not in ("init", "load", "batch") else part
    has_settings = _differs(pairs[: at + 1], "settings")
    size = max(map(_distance, pairs))
    dtypes = {name for step in (*left, *right) for name in step["dtypes"]}
    half = next((name for name in _HALF if any(name in kind for kind in dtypes)), "")
    name = _settings(pairs[: at + 1]) if part == "settings" else _NAMES[part]
    return Difference(
        part, at + 1, name, size, size <= ROUNDING and not has_settings,
        (one["z"]["loss"], other["z"]["loss"]), _module(one, other), rank, half,
    )  # fmt: skip


def _differs(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], part: str) -> bool:
    return any(one["d"].get(part) != other["d"].get(part) for one, other in pairs)


def _distance(pair: tuple[Mapping[str, Any], Mapping[str, Any]]) -> float:
    one, other = pair[0]["z"], pair[1]["z"]
    return max(_relative(one[name], other[name]) for name in one)


def _relative(a: float | None, b: float | None) -> float:
    """Return |a - b| over the larger; 0 for equal ones, infinities and NaN among them."""
    if a == b or (a != a and b != b):
        return 0.0
    if a is None or b is None or not (math.isfinite(a) and math.isfinite(b)):
        return math.inf
    return abs(a - b) / max(abs(a), abs(b))


def _module(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, str, str, int] | None:
    """Return the first call of a module, on side b, whose output differs."""
    for (*_, mark), (path, kind, file, line, there) in zip(
        one.get("modules", ()), other.get("modules", ()), strict=False
    ):
        if mark != there:
            return path, kind, file, line
    return None


def _settings(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    """Name the setting of an optimiser that differs first: `lr 0.1 → 0.01`."""
    for one, other in pairs:
        for a, b in zip(one["settings"], other["settings"], strict=False):
            if a == b:
                continue
            if not isinstance(a, Mapping) or not isinstance(b, Mapping):
                return f"the optimiser: {a} → {b}"
            name = next(k for k in (*a, *b) if a.get(k) != b.get(k))
            return f"the optimiser's {name}: {a.get(name)} → {b.get(name)}"
    return _NAMES["settings"]


def _of_reports(
    a: Sequence[tuple[str, str, str]], b: Sequence[tuple[str, str, str]]
) -> Difference | None:
    for (_, name, value), (_, same, there) in zip(a, b, strict=False):
        if name == same and value != there:
            values = float(value), float(there)
            size = _relative(*values)
            if size == 0:
                continue
            return Difference("report", 0, f"the {name} it reports", size, size <= ROUNDING, values)
    names, others = [row[1] for row in a], [row[1] for row in b]
    if names != others:
        return Difference("report", 0, "which metrics it reports")
    return None


def work(signature: Signature) -> dict[str, float]:
    """Return the work of a step, by count: of the third, or the last where there are fewer."""
    for steps in signature.steps:
        if steps:
            counts: Mapping[str, float] = steps[min(_SETTLED, len(steps) - 1)]["work"]
            return {name: counts[name] for name in STEP_COUNTS if name in counts}
    return {}


def growth(signature: Signature) -> dict[str, float]:
    """Return by how much counts grow from one step to the next, where they do at each of some, and
    go on: steps of equal place in their epochs, after the first. Batches that differ let one count
    in 24 grow by chance at first."""
    scheme = next((s for s in SCHEMES if str(s) == signature.scheme), STEPS)
    for steps in signature.steps:
        counts = [step["work"] for step in steps[1 :: max(scheme.batches, 1)]]
        first, later = counts[:_GROWING], len(counts) - 1
        if len(first) == _GROWING:
            rates = {
                name: (first[-1][name] - first[0][name]) / (_GROWING - 1)
                for name in first[0]
                if all(name in b and b[name] > a[name] for a, b in pairwise(first))
            }
            return {
                name: rate for name, rate in rates.items()
                if counts[-1].get(name, 0) >= first[0][name] + rate * later / 2
            }  # fmt: skip
    return {}


def changed_work(a: Signature, b: Signature) -> Iterator[tuple[str, float, float]]:
    """Yield what a step of b takes more or less of than a step of a: a name of `STEP_COUNTS`, and
    both counts."""
    left, right = work(a), work(b)
    for name in left.keys() & right.keys():
        if left[name] != right[name]:
            yield name, left[name], right[name]


def not_looked_at(signature: Signature, scheme: Scheme) -> list[str]:
    """Return what an answer from these steps says nothing about."""
    parts = [] if signature.count < scheme.steps else [f"steps after the {scheme.steps}th"]
    if scheme.batches:
        parts.append(f"epochs longer than {scheme.batches} batches of a data loader")
    if not signature.evaluates:
        parts.append("evaluation")
    if not signature.reports:
        parts.append("what it reports")
    return [*parts, "compiled code"]


def place_of(difference: Difference, roots: Mapping[str, str]) -> str:
    """Return `fc2 (QLinear), model.py:71` for the first module that differs, "" where none is
    known. `roots` map prefixes of file names to their printed form."""
    if difference.module is None or difference.part not in ("out", "loss", "grad", "bufs"):
        return ""
    path, kind, file, line = difference.module
    place = f", {printed_name(file, roots)}:{line}" if file else ""
    return f"{path or 'the model'} ({kind}){place}"
