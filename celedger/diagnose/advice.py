"""What could make a training faster, by explicit rules. Each names its rule and the figure that it
rests on; limits are shares of a step, since a part of p can speed it up by 1 / (1 - p) at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from celedger.diagnose.profile import (
    OPTIMISER,
    PYTHON,
    WAITS,
    HotLine,
    Operator,
    Profile,
    by_name,
)

DATA_SHARE = 0.20  # at most 1.25 times as fast without it
TAIL_SHARE = 0.20
EVALUATION_SHARE = 0.25  # of the whole training
ONE_OPERATOR = 0.40
PYTHON_SHARE = 0.40
COLLECTOR_SHARE = 0.02
CAST_SHARE = 0.10
# Starting a kernel takes the host 5 to 10 µs (CUDA C++ Best Practices Guide; measured on the CPU
# alike): a shorter operator is mostly its own start.
TINY = 10e-6  # s
MANY = 200  # operators a step
TINY_SHARE = 0.5  # of a step's operators' calls
BLOCKED_SHARE = 0.30
CASTS = ("aten::to", "aten::_to_copy", "aten::copy_")


@dataclass(frozen=True, slots=True)
class Advice:
    rule: str
    figure: str
    try_: str


def advise(profile: Profile) -> tuple[Advice, ...]:
    """In the order of the rules below: the cheapest to follow first."""
    return tuple(advice for rule in _RULES for advice in rule(profile))


def _share(value: float) -> str:
    return f"{value * 100:.0f} %"


def _loader(profile: Profile) -> Iterator[Advice]:
    share = _phase(profile, "data")
    if share < DATA_SHARE:
        return
    figure = f"{_share(share)} of a step is waiting for data"
    at = _hottest(profile, "data")
    where = f", most of it at {at.place}" if at else ""
    if profile.workers is None:
        advice = "prepare batches beside the training, or once: a DataLoader with workers"
    elif profile.workers == 0:
        advice = "give the DataLoader workers (num_workers, persistent_workers)"
    else:
        advice = f"more than {profile.workers} workers, or cheaper transforms"
    yield Advice("loader", figure + where, advice)


def _synchronisation(profile: Profile) -> Iterator[Advice]:
    for wait in sorted(profile.waits, key=lambda wait: -wait.times):
        if wait.times >= WAITS:
            yield Advice(
                "synchronisation",
                f"{wait.times:.3g} × .{wait.method}() a step at {wait.place}"
                + ("" if profile.device == "cuda" else " (free on a CPU, a wait on a GPU)"),
                "keep the value on the device and read it once an epoch",
            )


def _tail(profile: Profile) -> Iterator[Advice]:
    share = _phase(profile, "tail")
    inside = [row for row in profile.operators if row.module == OPTIMISER]
    name = next((row.name for row in inside if row.name.startswith("Optimizer.step#")), "")
    name = name.removeprefix("Optimizer.step#").removesuffix(".step") or "the optimiser"
    if share < TAIL_SHARE:
        return
    calls = sum(row.calls for row in inside)
    seconds = sum(row.seconds for row in profile.operators if row.phase == "tail")
    own = sum(row.seconds for row in inside)
    if seconds and own < 0.5 * seconds:
        yield Advice(
            "optimiser tail",
            f"{_share(share)} of a step is between backward pass and the step's end, "
            f"{_share(1 - own / seconds)} of that outside {name}",
            "look at what the loop does there: clipping, logging, schedules",
        )
    else:
        yield Advice(
            "optimiser tail",
            f"{_share(share)} of a step is {name}, in {calls:.0f} operators",
            "fused=True, else foreach=True",
        )


def _tiny(profile: Profile) -> Iterator[Advice]:
    device = profile.device == "cuda"
    if device:
        calls = sum(row.kernels for row in profile.operators)
        seconds = sum(row.device for row in profile.operators)
        tiny = calls if calls and seconds / calls < TINY else 0.0
    else:
        rows = [row for row in profile.operators if row.name.startswith("aten::") and row.calls]
        calls = sum(row.calls for row in rows)
        tiny = sum(row.calls for row in rows if row.seconds / row.calls < TINY)
    if calls >= MANY and tiny >= TINY_SHARE * calls:
        kind = "kernels" if device else "operators"
        yield Advice(
            "tiny operators",
            f"{calls:.0f} {kind} a step, {_share(tiny / calls)} of them under 10 µs",
            "a larger batch, torch.compile" + (", a CUDA graph" if device else ""),
        )


def _dominant(profile: Profile) -> Iterator[Advice]:
    rows = [row for row in by_name(profile.operators) if row.name != PYTHON]
    device = profile.device == "cuda"
    total = sum(row.device for row in rows) if device else profile.window_seconds
    if not rows or not total:
        return
    top = max(rows, key=(lambda r: r.device) if device else (lambda r: r.seconds))
    share = (top.device if device else top.seconds) / total
    if share >= ONE_OPERATOR:
        yield Advice(
            "one operator",
            f"{top.name} is {_share(share)} of a step, most of it in {module(top)}",
            "look there first: shapes, layout, precision, another algorithm",
        )


def _python(profile: Profile) -> Iterator[Advice]:
    rows = [row for row in profile.operators if row.name == PYTHON and row.phase != "evaluation"]
    share = sum(row.seconds for row in rows) / (profile.window_seconds or 1.0)
    if share >= PYTHON_SHARE and rows:
        top = max(rows, key=lambda row: row.seconds)
        yield Advice(
            "Python",
            f"{_share(share)} of a step is in no operator, most of it in the {top.phase} phase",
            "vectorise loops over elements, or torch.compile",
        )


def _casts(profile: Profile) -> Iterator[Advice]:
    seconds = sum(row.seconds for row in profile.operators if row.name in CASTS)
    share = seconds / (profile.window_seconds or 1.0)
    if share >= CAST_SHARE:
        calls = sum(row.calls for row in profile.operators if row.name == "aten::_to_copy")
        yield Advice(
            "copies and casts",
            f"{_share(share)} of a step is copying, {calls:.0f} conversions of type a step",
            "keep data in one type and layout; autocast only where it pays",
        )


def _collector(profile: Profile) -> Iterator[Advice]:
    share = float(profile.collected.sum() / profile.own.sum())
    if share >= COLLECTOR_SHARE:
        yield Advice(
            "garbage collector",
            f"{_share(share)} of the time is Python's garbage collector",
            "gc.freeze() after the set-up, and no gc.collect() in the loop",
        )


def _blocked(profile: Profile) -> Iterator[Advice]:
    if profile.device == "cuda" or not profile.exact:
        return
    share = 1.0 - float(profile.cpu.sum() / profile.own.sum())
    if share >= BLOCKED_SHARE and _phase(profile, "data") < DATA_SHARE:
        yield Advice(
            "idle processor",
            f"{_share(share)} of a step no processor was used",
            "look for sleeps, locks, files and sockets in the loop",
        )


def _evaluation(profile: Profile) -> Iterator[Advice]:
    if profile.evaluation_share >= EVALUATION_SHARE:
        yield Advice(
            "evaluation",
            f"{_share(profile.evaluation_share)} of the training is evaluation and reports",
            "evaluate less often, on fewer samples, or in larger batches",
        )


_RULES: tuple[Callable[[Profile], Iterator[Advice]], ...] = (
    _loader, _synchronisation, _collector, _blocked, _tail, _tiny, _dominant, _casts, _python,
    _evaluation,
)  # fmt: skip


def module(row: Operator) -> str:
    """Where an operator ran, for people."""
    return {None: f"the {row.phase} phase", "": "the model", OPTIMISER: "the optimiser"}.get(
        row.module, row.module or ""
    )


def _phase(profile: Profile, name: str) -> float:
    return next((phase.share for phase in profile.phases if phase.name == name), 0.0)


def _hottest(profile: Profile, phase: str) -> HotLine | None:
    return next((line for line in profile.lines if line.phase == phase), None)
