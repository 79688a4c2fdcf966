"""Explain why two trainings differ. Runs both with traces, outside the ledger (two commits, or
another device, precision, interpreter or parameter), finds the first difference with an effect, and
names it and the hunk of the change that caused it."""

from __future__ import annotations

import contextlib
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from celedger.base.errors import CannotJudge, RepositoryError, UsageError
from celedger.base.model import Commit, Environment, Kind, Task
from celedger.judge.work import repeating
from celedger.lab.diagnose.blame import Blamed, blame
from celedger.lab.diagnose.causes import judge
from celedger.lab.diagnose.changed_values import (
    Verdict,
    hunk_values,
    recorded_values,
    unsteady_values,
)
from celedger.lab.diagnose.code_change import CodeChange
from celedger.lab.diagnose.difference import (
    Front,
    Growth,
    Layer,
    StoredTensor,
    TraceComparison,
    depth,
    stored,
)
from celedger.lab.diagnose.finding import CodePlace, ExplainFinding, FindingPhase, Sureness, named
from celedger.lab.diagnose.inexact_trainings import (
    ReplayedOperator,
    largest_error,
    replayed,
    unexplained,
)
from celedger.lab.diagnose.probe_records import processes
from celedger.lab.diagnose.trace import Frame, Trace, read, with_printed
from celedger.repo import Repository
from celedger.repo.hunks import Hunk, hunks
from celedger.system import devices, environment
from celedger.system.devices import Device
from celedger.trial import training_variables
from celedger.trial.diagnostic import EAGER, Diagnostic, diagnose
from celedger.trial.ending import traceback_frames
from celedger.trial.report_sources import Printed
from celedger.trial.runner import Bench
from celedger.trial.venvs import Installation

_FULL = (0, 1, 2)  # steps that are recorded in full, and then each power of two
_SPARSE = tuple(2**k for k in range(2, 12))
AUTOCASTS = {"fp32": None, "bf16": "bfloat16", "fp16": "float16"}
# A change at rounding level is benign if the two trainings part no faster than after a change of
# the weights by one unit in the last place. Over a few dozen steps, planted benign reorderings part
# no faster at all (ratio 1). The margin is for chaotic trainings, which amplify two equally small
# causes at slightly different steps.
_LIKE_ROUNDING = 30.0
# Causes that are named regardless of the size of their effect.
_LITERAL = ("settings", "value", "class", "mode", "dtype", "parameters", "schedule", "labels")


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two trainings that are compared."""

    name: str  # as printed
    commit: Commit
    params: Mapping[str, object] = field(default_factory=dict)
    device: Device | None = None  # another than the bench's
    float32: bool = False  # without TF32, which the other side's device lacks
    python: str = ""  # another interpreter
    autocast: str = ""
    suite_files: Path | None = None  # the suite's, where this side has others than the bench


def variant(side: Side, task: Task, settings: Sequence[str]) -> Side:
    """Return the side with these `KEY=VALUE` settings. Raises UsageError for an unknown key,
    MachineError for a device that is not there."""
    for text in settings:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise UsageError(f"{text!r} is not a setting", "write KEY=VALUE")
        if key == "device":
            kind, _, number = value.partition(":")
            if value != "cpu" and (kind != "cuda" or not (number or "0").isdigit()):
                raise UsageError(f"no device {value!r}", "write cpu, cuda or cuda:N")
            side = replace(side, device=devices.resolve(value))
        elif key == "autocast":
            if value not in AUTOCASTS:
                raise UsageError(f"cannot autocast to {value!r}", f"known: {', '.join(AUTOCASTS)}")
            side = replace(side, autocast=value)
        elif key == "python":
            side = replace(side, python=value)
        elif key in task.params:
            side = replace(side, params={**side.params, key: _parameter(value)})
        else:
            keys = ", ".join(["device", "autocast", "python", *task.params])
            raise UsageError(f"{task.name} has no setting {key!r}", f"it has {keys}")
    if settings:
        side = replace(side, name=f"{side.name} with {' '.join(settings)}")
    return side


def _parameter(text: str) -> object:
    """Return the number or truth value that the text spells, as in the suite's file, else the
    text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text


@dataclass(frozen=True, slots=True)
class Explanation:
    task: str
    a: Side
    b: Side
    seed: int
    steps: int  # that both sides ran
    verdict: str  # "equal", "rounding", "difference", "noise"
    finding: ExplainFinding | None = None
    blamed: tuple[Blamed, ...] = ()
    repeats: bool | None = None  # whether a repeats bit by bit; None: not measured
    growth: Growth | None = None
    layers: tuple[Layer, ...] = ()
    stored: tuple[StoredTensor, ...] = ()
    vanished: int = 0  # differences inside that had no effect
    notes: tuple[str, ...] = ()


class SideRunner:
    """Run one task's sides with traces, each run in its own folder."""

    def __init__(
        self,
        bench: Bench,
        task: Task,
        folder: Path,
        *,
        seed: int | None = None,
        steps: int = 2000,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.bench, self.task = bench, task
        self.seed = task.seeds[0] if seed is None else seed
        self.folder, self.steps, self.say = folder, steps, say
        self._runs = 0

    @property
    def is_signed(self) -> bool:
        """Return True if the task has a signature: what does not repeat its bits has none."""
        task = self.task
        rows = self.bench.ledger.signatures(suite=task.suite, task=task.name)
        return bool(repeating(rows))

    def _bench_of(self, side: Side) -> Bench:
        """Return the bench with the side's device and interpreter."""
        name, station = self.task.name, self.bench.station
        if side.device is not None and side.device != station.device:
            station = station.on(side.device)
        if side.suite_files is not None:
            station = station.changed(setup=replace(station.setup, suite_files=side.suite_files))
        if side.python:
            path = station.setup.base_env.get("PATH", "")
            python = environment.resolve_interpreter(side.python, path)
            described = environment.describe(
                python, device=station.device, threads=self.task.threads,
                repo_root=station.setup.repository.root,
                variables=training_variables.settings(station.setup.base_env, self.task),
            )  # fmt: skip
            bases = {**station.bases, name: Installation(described, python)}
            station = station.changed(bases=bases)
        return self.bench if station is self.bench.station else Bench(station)

    def environment(self, side: Side) -> Environment:
        return self._bench_of(side).place(side.commit.sha, self.task).environment

    def run(self, side: Side, full: Sequence[int], **more: Any) -> tuple[Diagnostic, list[Trace]]:
        self._runs += 1
        folder = self.folder / self.task.name / str(self._runs)
        probe: dict[str, object] = {
            "kind": "trace", "full": sorted(full), "steps": self.steps,
            "autocast": side.autocast, **more,
        }  # fmt: skip
        done = diagnose(
            self._bench_of(side), side.commit, self.task, self.seed, folder, probe,
            params=side.params,
            environment={**EAGER, **({"NVIDIA_TF32_OVERRIDE": "0"} if side.float32 else {})},
        )  # fmt: skip
        traces = [read(folder) for folder in processes(done.out)]
        if traces and self.task.pattern:
            printed = Printed(done.log, self.task.pattern).read(end=True)
            traces[0] = with_printed(traces[0], printed)
        return done, traces


def explain(runner: SideRunner, a: Side, b: Side) -> Explanation:
    """Find the first difference between two sides of one task. Raises CannotJudge if side a does
    not train, or if nothing was trained with torch."""
    devices = {(side.device or runner.bench.station.device).key for side in (a, b)}
    if len(devices) > 1:
        a, b = (replace(side, float32=True) for side in (a, b))
    exact = len(devices) == 1 and (a.python, a.autocast) == (b.python, b.autocast)
    change = CodeChange()
    if a.commit != b.commit:
        change = code_change(runner.bench.repository, a.commit.sha, b.commit.sha)
    runs = _train_both(runner, a, b, change, exact=exact)
    left, right, c = runs.left, runs.right, runs.comparison
    steps = min(left[0].steps, right[0].steps) if right else 0
    notes = (f"compared is {c.a.rank}",) if c is not None and c.a.rank else ()
    whole = Explanation(runner.task.name, a, b, runner.seed, steps, "equal", notes=notes)
    if runs.crash:
        crash, blamed = _explain_crash(runs, change, runner.bench.station.tree, exact=exact)
        steps = min((trace.steps for trace in right), default=0)
        return replace(whole, verdict="difference", finding=crash, blamed=blamed, steps=steps)
    if c is None:
        return whole
    if exact:
        return _bit_by_bit(runner, whole, runs, c, change)
    kinds = {kind for side in (a, b) if (kind := AUTOCASTS.get(side.autocast))}
    finding = unexplained(c, min(kinds, default=None))  # the coarser, bfloat16, comes first
    first = finding.step if finding else 0
    whole = replace(whole, growth=c.growth(), layers=depth(c, first), stored=stored(c, first))
    if finding is None:
        error = largest_error(c)
        note = f"the largest relative error of a module's output in step 0 is {error:.2g}"
        return replace(whole, verdict="rounding", notes=(*notes, note))
    return replace(whole, verdict="difference", finding=finding)


def code_change(repository: Repository, old: str, new: str) -> CodeChange:
    """Return what changed from one commit (a hash) to another, with the texts of its files."""
    changes = hunks(repository, old, new)

    def text(sha: str, name: str) -> str:
        with contextlib.suppress(RepositoryError):  # a name that git quotes, or not in git
            return repository.blob(sha, name).decode(errors="replace")
        return ""

    before, after = {one.old for one in changes} - {""}, {one.new for one in changes} - {""}
    texts = ({name: text(old, name) for name in before}, {name: text(new, name) for name in after})
    return CodeChange(changes, texts)


class TracedRuns(NamedTuple):
    """The traces of both sides. `crash`: how side b failed, if it did."""

    left: list[Trace]
    right: list[Trace]
    full: list[int]  # the steps recorded in full
    comparison: TraceComparison | None  # of the first process that differs
    crash: str
    raised: tuple[Frame, ...] = ()  # where, the innermost frame first

    @property
    def files(self) -> set[str]:
        return {name for trace in (*self.left, *self.right) for name in trace.files}


def _train_both(
    runner: SideRunner, a: Side, b: Side, change: CodeChange, *, exact: bool
) -> TracedRuns:
    """Train both sides, and again if they part at a step that was not recorded in full."""
    task = runner.task
    of_a, of_b = (recorded_values(change, side) for side in "ab")
    full = {*_FULL, *_SPARSE}
    runner.say(f"{task.name}: {a.name}")
    good, left = runner.run(a, sorted(full), **of_a)
    if not good.ok and not any(trace.cut for trace in left):
        raise CannotJudge(f"{task.name} fails at {a.name}: {good.message}")
    if not left:
        raise CannotJudge(
            f"{task.name} at {a.name} trained nothing that was seen",
            "explain follows trainings with torch that step an optimiser of torch.optim",
        )
    runner.say(f"{task.name}: {b.name}")
    bad, right = runner.run(b, sorted(full), **of_b)
    crashed = not bad.ok and not any(trace.cut for trace in right)
    for _ in range(3):  # each pass names a step that was not recorded in full
        c = _first_process(runner, left, right)
        if c is None or not exact or (wanted := _unseen(c, full, values=bool(of_b))) is None:
            break
        full |= wanted
        runner.say(f"{task.name}: both again, to record step {max(wanted)}")
        good, left = runner.run(a, sorted(full), **of_a)
        bad, right = runner.run(b, sorted(full), **of_b)
    if not crashed:
        return TracedRuns(left, right, sorted(full), c, "")
    lines = reversed(traceback_frames(bad.log))
    raised = tuple(Frame(file, line, name or "<module>") for file, line, name in lines)
    return TracedRuns(left, right, sorted(full), c, bad.message, raised)


def _bit_by_bit(
    runner: SideRunner, whole: Explanation, runs: TracedRuns, c: TraceComparison, change: CodeChange
) -> Explanation:
    """Explain the first bit that differs, unless it is rounding or noise."""
    name = f"{whole.task}: {whole.a.name}"

    def is_alike(repeat: TraceComparison | None) -> TypeGuard[TraceComparison]:
        return repeat is not None and repeat.a.rank == c.a.rank

    front = c.front()
    if front is None and c.equal:
        if (beyond := _beyond_the_suite(runner, whole.a, runs, c, change)) is None:
            return replace(whole, vanished=sum(1 for pair in c.pairs if c.differs(pair)))
        c, front = beyond, beyond.front()
    finding = judge(c, front) if front is not None else None
    first = finding.step if finding else 0
    whole = replace(whole, growth=c.growth(), layers=depth(c, first), stored=stored(c, first))
    whole = replace(whole, verdict="difference")
    # If every bit agrees up to a place where the code itself differs, the training has repeated
    # itself far enough. Where only reports differ, signatures tell that these repeat, too.
    repeat, literal = None, finding is not None and finding.cause in (*_LITERAL, "argument")
    if not literal and not (finding and finding.cause == "metric" and runner.is_signed):
        repeat = _again(runner, whole.a, runs, change)
        parted = repeat.front() if repeat is not None else None
        repeats = repeat is None or (repeat.equal and parted is None)
        whole = replace(whole, repeats=repeats)
        far = finding.distance if finding is not None else None
        small = far is not None and far.rounding  # it may be the same noise, met earlier
        if not repeats and (small or not (is_alike(repeat) and _comes_before(front, parted))):
            return _unrepeatable(whole, parted)
    if front is None or finding is None:
        if (length := _other_length(c)) is not None:
            values = _values_in_common(c, change)
            length, blamed = blame(length, change, runner.bench.station.tree, runs.files, values)
            return replace(whole, finding=length, blamed=blamed)
        note = "the trainings diverge, but not at a recorded step"
        return replace(whole, notes=(*whole.notes, note))

    named_cause = finding

    def judged(repeat: TraceComparison | None) -> tuple[ExplainFinding, tuple[Blamed, ...]]:
        unsteady = unsteady_values(repeat.a, repeat.b) if is_alike(repeat) else ()
        values = hunk_values(c, front, change, unsteady)
        return blame(named_cause, change, runner.bench.station.tree, runs.files, values)

    finding, blamed = judged(repeat)
    if repeat is None and len(blamed) > 1 and blamed[0].closeness:
        finding, blamed = judged(_again(runner, whole.a, runs, change))  # is it of each run?
    whole = replace(whole, finding=finding, blamed=blamed, vanished=len(front.vanished))
    far = finding.distance
    # Where none of the elements that are kept differs, those that do are too few for rounding.
    if finding.cause not in _LITERAL and far is not None and far.rounding and far.share:
        runner.say(f"{name} with its weights moved by rounding, to compare with")
        moved = runner.run(whole.a, runs.full, perturb=runner.seed)[1]
        shaken = _first_process(runner, runs.left, moved)
        if shaken and rounding_ratio(c.growth(), shaken.growth()) <= _LIKE_ROUNDING:
            return replace(whole, verdict="rounding")
    return whole


def _again(
    runner: SideRunner, a: Side, runs: TracedRuns, change: CodeChange
) -> TraceComparison | None:
    """Run side a a second time, and compare the two runs."""
    runner.say(f"{runner.task.name}: {a.name} again, to see whether it repeats itself")
    again = runner.run(a, runs.full, **recorded_values(change, "a"))[1]
    return _first_process(runner, runs.left, again)


def _beyond_the_suite(
    runner: SideRunner, a: Side, runs: TracedRuns, c: TraceComparison, change: CodeChange
) -> TraceComparison | None:
    """Compare the values that are reported and are no metrics of the suite, as far as side a
    repeats them: a clock does not. None if they agree."""
    names = _reported(c) - {metric.name for metric in runner.task.metrics}
    repeat = _again(runner, a, runs, change) if names else None
    names -= _reported(repeat) if repeat is not None else set()
    return TraceComparison(c.a, c.b, names) if names else None


def _reported(c: TraceComparison) -> set[str]:
    """Return the names of all reported values that differ."""
    every = TraceComparison(c.a, c.b)
    return {name for pair in every.pairs_of("report") for name, _, _ in every.reported(*pair)}


def _other_length(c: TraceComparison) -> ExplainFinding | None:
    """Describe that one training ends earlier, equal until then; None where both are as long."""
    old, new = c.a.steps, c.b.steps
    if old == new or c.a.cut or c.b.cut:
        return None
    return ExplainFinding(
        FindingPhase.UPDATE, min(old, new), None, "", "", "length",
        f"equal until then, it trains for {new} steps where it trained for {old}",
        places=[*_last_call(c.a, "a"), *_last_call(c.b, "b")], sureness=Sureness.SURE,
    )  # fmt: skip


def _last_call(trace: Trace, side: str) -> list[CodePlace]:
    sites = [event.site for event in trace.events if event.site >= 0][-1:]
    return [CodePlace(side, "last call", trace.frames(site)) for site in sites]


def _comes_before(front: Front | None, parted: Front | None) -> bool:
    """Return True if side a repeats itself, to the last bit, up to where b differs from it."""
    if front is None or parted is None:
        return False
    one, other = front.pair.a, [*parted.vanished, parted.pair][0].a
    return one is not None and other is not None and one.order < other.order


def _unrepeatable(whole: Explanation, parted: Front | None) -> Explanation:
    """Say where two runs of side a with one seed part: `parted` is their first difference."""
    where = ""
    if parted is not None:
        event = parted.pair.one
        parts = {"enter": "input", "leave": "output", "init": "weights"}
        part = parts.get(event.kind, event.kind)
        where = f" (from step {event.step} on: {part} of {named(event.path)})"
    notes = (
        f"{whole.a.name} does not repeat itself bit by bit with one seed{where}",
        "try: seed every generator, torch.use_deterministic_algorithms(True)",
    )
    return replace(whole, verdict="noise", notes=(*whole.notes, *notes), growth=None, layers=())


def replay(
    runner: SideRunner, side: Side, how: Mapping[str, str]
) -> tuple[list[ReplayedOperator], list[str]]:
    """Train one step of a side, and run each operator of it again with another `device` or `dtype`.
    Return what `replayed` does. Raises CannotJudge if it does not train."""
    runner.say(f"{runner.task.name}: {side.name}, each operator again")
    done, traces = runner.run(side, [0], replay=how, steps=1)
    if not traces:
        raise CannotJudge(f"{runner.task.name} trained nothing at {side.name}: {done.message}")
    return replayed(traces[0])


def _first_process(
    runner: SideRunner, left: Sequence[Trace], right: Sequence[Trace]
) -> TraceComparison | None:
    """Compare the process whose trainings differ first (the ranks of one training hand on what
    differs), by start or rank where several do; the last where none does, None where there is
    none."""
    metrics = {m.name for m in runner.task.metrics if m.kind is Kind.QUALITY} or None
    pairs = zip(left, right, strict=False)
    comparisons = [TraceComparison(one, other, metrics) for one, other in pairs]
    unequal = [comparison for comparison in comparisons if not comparison.equal]
    if len(unequal) > 1:
        return min(unequal, key=_parting)
    return next(iter(unequal or comparisons[-1:]), None)


def _parting(c: TraceComparison) -> tuple[float, int]:
    """Return the step in which two trainings part, and how late in it."""
    front = c.front()
    return (front.pair.step, front.pair.one.order) if front is not None else (math.inf, 0)


def _unseen(c: TraceComparison, full: set[int], *, values: bool) -> set[int] | None:
    """Return the steps to record in full, if the trainings part before the first recorded
    difference, or `values` are compared and it is in a step of which none were recorded."""
    at, front = c.parted, c.front()
    if front is not None and (at is None or front.pair.step <= at):
        at = front.pair.step if values and front.pair.step not in full else None
    wanted = {max(at - 1, 0), at} if at is not None else full
    return None if wanted <= full else wanted


def _crash(traces: Sequence[Trace], runs: TracedRuns) -> ExplainFinding:
    """Describe where side b crashes, given that side a trains."""
    step, path, kind = 0, None, ""
    places = [CodePlace("b", "raised", runs.raised)] if runs.raised else []
    if traces:
        last = traces[-1]
        step = last.steps
        inside = next((trace.inside for trace in reversed(traces) if trace.inside), ())
        path = inside[-1] if inside else None
        module = last.modules.get(path or "")
        kind = module.short if module else ""
        places += _last_call(last, "b")
    return ExplainFinding(
        FindingPhase.CRASH, step, path, kind, "", "crash", f"it fails at step {step}: {runs.crash}",
        places=places, sureness=Sureness.SURE,
    )  # fmt: skip


def _explain_crash(
    runs: TracedRuns, change: CodeChange, tree: Path, *, exact: bool
) -> tuple[ExplainFinding, tuple[Blamed, ...]]:
    """Blame the lines that raise; where no hunk has them, what parted the trainings before."""
    c = runs.comparison
    values = _values_in_common(c, change) if c is not None else {}
    crash, blamed = blame(_crash(runs.right, runs), change, tree, runs.files, values)
    front = c.front() if c is not None and exact else None
    if c is None or front is None or front.pair.step >= crash.step:
        return crash, blamed
    earlier = judge(c, front)
    _, causes = blame(earlier, change, tree, runs.files, hunk_values(c, front, change))
    rounding = earlier.distance is not None and earlier.distance.rounding
    if rounding or not causes or causes[0].closeness > 1 or (blamed and not blamed[0].closeness):
        return crash, blamed
    fact = f"the trainings diverge earlier, in step {front.pair.step}: {earlier.sentence}"
    return replace(crash, facts=[*crash.facts, fact]), causes


def _values_in_common(c: TraceComparison, change: CodeChange) -> dict[Hunk, Verdict]:
    """Compare the values of hunks up to the last event that both sides have."""
    both = [pair for pair in c.pairs if pair.a and pair.b and pair.one.kind != "report"]
    if not both:
        return {}
    last = max(both, key=lambda pair: pair.b.order if pair.b else 0)
    values = hunk_values(c, Front(last, "crash", ()), change)
    # What ran later ran nearer to the crash.
    ran = [change.hunks[number] for number in {event.raw["h"] for event in c.b.of("value")}]
    return {h: v for h, v in values.items() if v is not Verdict.LATER or h not in ran}


def rounding_ratio(growth: Growth, amplified: Growth) -> float:
    """Return how many times faster two trainings part than by rounding alone: the ninth decile over
    the steps. It is infinite if there are no losses, or if only the first pair diverges."""
    if growth.diverged is not None and amplified.diverged is None:
        return math.inf
    floor = 1e-7  # single precision has no smaller relative difference
    ratios = [
        max(x, floor) / max(y, floor)
        for x, y in zip(growth.loss, amplified.loss, strict=False)
        if x == x and y == y
    ]
    if len(ratios) < 2:
        return ratios[0] if ratios else math.inf
    return statistics.quantiles(ratios, n=10)[8]
