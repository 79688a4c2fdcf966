"""Why do two trainings differ? Runs both outside the record under traces, finds the first
difference with an effect, and says what it is and which part of the change made it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from celedger.diagnose.blame import blame
from celedger.diagnose.causes import judge
from celedger.diagnose.desk import Desk, Explanation, Side, coarsest, inexact
from celedger.diagnose.difference import Growth, TraceComparison, depth
from celedger.diagnose.finding import CodePlace, ExplainFinding, FindingPhase, Sureness
from celedger.diagnose.inexact import by_statistics, largest, unexplained
from celedger.diagnose.scene import first_operator
from celedger.diagnose.trace import Trace
from celedger.errors import CannotJudge
from celedger.model import Kind
from celedger.repo.hunks import hunks

FULL = (0, 1, 2)
_SPARSE = tuple(2**k for k in range(2, 12))
# A change at rounding level is benign when it parts the two trainings no faster than a change of
# the weights by one unit in the last place does. Over a few dozen steps the benign reorderings of
# benchmarks/planted.py part no faster at all (ratio 1); a chaotic training that amplifies two small
# causes alike, but a few steps apart, needs the room.
_LIKE_ROUNDING = 30.0
# What names the cause without regard to how far it reaches.
_LITERAL = ("settings", "value", "class", "mode", "dtype", "parameters", "schedule", "labels")


def explain(desk: Desk, a: Side, b: Side) -> Explanation:
    """The first difference between two sides of one task. Raises CannotJudge where side a does not
    train, or nothing was trained with torch."""
    task, seed, bench, say = desk.task, desk.seed, desk.bench, desk.say
    repository = bench.checkouts.repository
    metrics = {m.name for m in task.metrics if m.kind is Kind.QUALITY} or None
    full = {*FULL, *_SPARSE}
    change = hunks(repository, a.commit.sha, b.commit.sha) if a.commit != b.commit else []
    say(f"{task.name}: {a.name}")
    good, left = desk.run(a, sorted(full))
    if not good.ok and not _cut(left):
        raise CannotJudge(f"{task.name} fails at {a.name}: {good.message}")
    if not left:
        raise CannotJudge(
            f"{task.name} at {a.name} trained nothing that was seen",
            "explain follows trainings with torch that step an optimiser of torch.optim",
        )
    say(f"{task.name}: {b.name}")
    bad, right = desk.run(b, sorted(full))
    crashed = not bad.ok and not _cut(right)
    whole = Explanation(task.name, a, b, seed, 0, "equal", cut=_cut(left) or _cut(right))
    c: TraceComparison | None = None
    for _ in range(3):  # each look further names a step that was not looked at in full
        c = _first(left, right, metrics)
        if c is None or inexact(a, b) or (wanted := _unseen(c, full)) is None:
            break
        full |= wanted
        say(f"{task.name}: both again, for a close look at step {max(wanted)}")
        (good, left), (bad, right) = desk.run(a, sorted(full)), desk.run(b, sorted(full))
    if crashed:
        found = _crash(right, bad.message, bench.tree)
        broken, blamed = blame(found, change, bench.tree, _files(left, right))
        return replace(
            whole, verdict="difference", finding=broken, blamed=blamed,
            steps=min((t.steps for t in right), default=0),
        )  # fmt: skip
    steps = min(left[0].steps, right[0].steps) if right else 0
    whole = replace(whole, steps=steps)
    if c is None:
        return whole
    if inexact(a, b) and not crashed:
        told = unexplained(c, coarsest(a, b))
        whole = replace(whole, growth=c.growth(), layers=depth(c))
        if told is None:
            note = f"the largest relative error of a module's output in step 0 is {largest(c):.2g}"
            return replace(whole, verdict="rounding", notes=(note,))
        return replace(whole, verdict="difference", finding=told)
    front = c.front()
    if front is None and c.equal:
        return replace(whole, vanished=_internal(c))
    whole = replace(whole, verdict="difference", growth=c.growth(), layers=depth(c))
    finding = judge(c, front) if front is not None else None
    # Where all agrees bit by bit up to a place at which the code says something else, the training
    # has repeated itself as far as it matters.
    if finding is None or finding.cause not in (*_LITERAL, "argument"):
        say(f"{task.name}: {a.name} again, to see whether it repeats itself")
        _, twin = desk.run(a, sorted(full))
        other = _first(left, twin, metrics)
        repeats = other is None or (other.equal and other.front() is None)
        whole = replace(whole, repeats=repeats)
        if not repeats:
            return by_statistics(desk, whole, change, other.front() if other else None)
    if front is None or finding is None:
        return replace(whole, notes=("the trainings part, at no place that was looked at",))
    if desk.limits.operators and (name := first_operator(c, front)):
        finding = replace(finding, operator=name)
    finding, blamed = blame(finding, change, bench.tree, _files(left, right))
    whole = replace(whole, finding=finding, blamed=blamed, vanished=len(front.vanished))
    if _may_be_rounding(finding):
        say(f"{task.name}: {a.name} with its weights moved by rounding, to compare with")
        _, moved = desk.run(a, sorted(full), perturb=seed)
        shaken = _first(left, moved, metrics)
        if shaken is not None:
            amplified = shaken.growth()
            whole = replace(whole, amplified=amplified)
            if like_rounding(c.growth(), amplified):
                return replace(whole, verdict="rounding")
    return whole


def with_watchpoints(desk: Desk, found: Explanation) -> Explanation:
    """Both sides once more, under watchpoints: what a person would have been warned of."""
    for side in (found.a, found.b):
        if side.autocast:
            return replace(found, notes=(*found.notes, "watchpoints do not put autocast on a side"))
    reports = []
    for side in (found.a, found.b):
        desk.say(f"{found.task}: {side.name}, under watchpoints")
        try:
            reports.append(desk.watch(side))
        except CannotJudge as error:
            return replace(found, notes=(*found.notes, str(error)))
    return replace(found, watched=(reports[0], reports[1]))


def _first(
    left: Sequence[Trace], right: Sequence[Trace], metrics: set[str] | None
) -> TraceComparison | None:
    """The first process whose trainings differ, by the order in which they started; the last where
    none does, None where there is none."""
    comparison = None
    for one, other in zip(left, right, strict=False):
        comparison = TraceComparison(one, other, metrics)
        if not comparison.equal:
            break
    return comparison


def _unseen(c: TraceComparison, full: set[int]) -> set[int] | None:
    """The steps to look at in full, where the trainings part before the first difference seen."""
    parted, front = c.parted, c.front()
    if parted is None or (front is not None and front.pair.step <= parted):
        return None
    wanted = {max(parted - 1, 0), parted}
    return None if wanted <= full else wanted


def _internal(c: TraceComparison) -> int:
    return sum(1 for pair in c.pairs if c.differs(pair))


def _cut(traces: Sequence[Trace]) -> bool:
    return any(trace.cut for trace in traces)


def _files(*sides: Sequence[Trace]) -> set[str]:
    return {name for traces in sides for trace in traces for name in trace.files}


def _crash(traces: Sequence[Trace], message: str, tree: Path) -> ExplainFinding:
    """Side b breaks where side a trains."""
    inside = next((trace.inside for trace in reversed(traces) if trace.inside), ())
    step = traces[-1].steps if traces else 0
    path = inside[-1] if inside else None
    said = f"it fails at step {step}: {message}"
    places: list[CodePlace] = []
    if traces:
        last = [e for e in traces[-1].events if e.site >= 0][-1:]
        places = [CodePlace("b", "last call", traces[-1].frames(e.site)) for e in last]
    module = traces[-1].modules.get(path or "") if traces else None
    return ExplainFinding(
        FindingPhase.CRASH, step, path, module.short if module else "", "", "crash", said,
        places=tuple(places), sureness=Sureness.SURE,
    )  # fmt: skip


def _may_be_rounding(finding: ExplainFinding) -> bool:
    return finding.cause not in _LITERAL and (
        finding.distance is not None and finding.distance.rounding
    )


def like_rounding(found: Growth, amplified: Growth) -> bool:
    """Whether two trainings part no faster than rounding alone makes them part."""
    return rounding_ratio(found, amplified) <= _LIKE_ROUNDING


def rounding_ratio(found: Growth, amplified: Growth) -> float:
    """How many times faster; the ninth decile over the steps, infinite where no loss was seen or
    only the first of them diverges."""
    if found.diverged is not None and amplified.diverged is None:
        return math.inf
    floor = 1e-7  # single precision has no smaller relative difference
    ratios = [
        max(x, floor) / max(y, floor)
        for x, y in zip(found.loss, amplified.loss, strict=False)
        if x == x and y == y
    ]
    if len(ratios) < 2:
        return ratios[0] if ratios else math.inf
    return statistics.quantiles(ratios, n=10)[8]
