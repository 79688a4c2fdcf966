"""What could make a training faster, by explicit rules. Each names its rule and the figure that it
rests on; limits are shares of a usual step, since a part of p can speed it up by 1 / (1 - p) at
most.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from celedger.diagnose.profile import OPTIMISER, PYTHON, WAITS, Operator, Profile

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


class Advice(NamedTuple):
    rule: str
    figure: str
    suggestion: str


def advise(profile: Profile) -> list[Advice]:
    """The cheapest to follow first."""
    steps, rows = profile.steps, profile.operators
    window = sum(row.seconds for row in rows) or 1.0
    idle = 0.0
    if profile.device == "cpu" and profile.settings["exact"]:
        idle = 1.0 - float(steps.cpu.sum() / steps.own.sum())
    python = [row for row in rows if row.name == PYTHON and row.phase != "evaluation"]
    phase = max(python, key=lambda row: row.seconds).phase if python else ""
    top, largest = next(
        ((row, share) for row, share in profile.largest_operators() if row.name != PYTHON),
        (None, 0.0),
    )
    casts = sum(row.calls for row in rows if row.name == "aten::_to_copy")
    return [
        *_loader(profile),
        *_synchronisation(profile),
        *_above(
            COLLECTOR_SHARE, float(steps.gc.sum() / steps.own.sum()), "garbage collector",
            "of the time is Python's garbage collector",
            "gc.freeze() after the set-up, and no gc.collect() in the loop",
        ),
        *_above(
            BLOCKED_SHARE, idle if _usual(profile, "data") < DATA_SHARE else 0.0,
            "idle processor", "of a step no processor was used",
            "look for sleeps, locks, files and sockets in the loop",
        ),
        *_tail(profile),
        *_tiny(profile),
        *_above(
            ONE_OPERATOR, largest, "one operator",
            f"of a step, most of it in {module(top) if top else ''}",
            "look there first: shapes, layout, precision, another algorithm",
            subject=f"{top.name} is " if top else "",
        ),
        *_above(
            CAST_SHARE, sum(row.seconds for row in rows if row.name in CASTS) / window,
            "copies and casts", f"of a step is copying, {casts:.0f} conversions of type a step",
            "keep data in one type and layout; autocast only where it pays",
        ),
        *_above(
            PYTHON_SHARE, sum(row.seconds for row in python) / window, "Python",
            f"of a step is in no operator, most of it in the {phase} phase",
            "vectorise loops over elements, or torch.compile",
        ),
        *_above(
            EVALUATION_SHARE, profile.evaluation_share, "evaluation",
            "of the training is evaluation and reports",
            "evaluate less often, on fewer samples, or in larger batches",
        ),
    ]  # fmt: skip


def module(row: Operator) -> str:
    """Where an operator ran, for people."""
    named = {None: f"the {row.phase} phase", "": "the model", OPTIMISER: "the optimiser"}
    return named.get(row.module, str(row.module))


def _above(
    least: float, share: float, rule: str, figure: str, suggestion: str, subject: str = ""
) -> list[Advice]:
    """Advice where the share reaches the least that is worth it."""
    figure = f"{subject}{share * 100:.0f} % {figure}"
    return [Advice(rule, figure, suggestion)] if share >= least else []


def _usual(profile: Profile, phase: str) -> float:
    """Return the share of a phase in a usual step: stalls do not count."""
    return float(np.median(profile.steps.times[phase]) / np.median(profile.steps.own))


def _loader(profile: Profile) -> list[Advice]:
    workers = profile.settings["workers"]
    at = next((f", most of it at {hot.line}" for hot in profile.lines if hot.phase == "data"), "")
    if workers is None:
        suggestion = "look there: a DataLoader's workers make batches beside the training"
    elif workers == 0:
        suggestion = "give the DataLoader workers (num_workers, persistent_workers)"
    else:
        suggestion = f"more than {workers} workers, or cheaper transforms"
    figure = f"of a step is waiting for data{at}"
    return _above(DATA_SHARE, _usual(profile, "data"), "loader", figure, suggestion)


def _synchronisation(profile: Profile) -> list[Advice]:
    free = "" if profile.device == "cuda" else " (free on a CPU, a wait on a GPU)"
    return [
        Advice(
            "synchronisation",
            f"{wait.times:.3g} × .{wait.method}() a step at {wait.line}{free}",
            "keep the value on the device and read it once an epoch",
        )
        for wait in sorted(profile.waits, key=lambda wait: -wait.times)
        if wait.times >= WAITS
    ]


def _tail(profile: Profile) -> list[Advice]:
    inside = [row for row in profile.operators if row.module == OPTIMISER]
    name = next((row.name for row in inside if row.name.startswith("Optimizer.step#")), "")
    name = name.removeprefix("Optimizer.step#").removesuffix(".step") or "the optimiser"
    seconds = sum(row.seconds for row in profile.operators if row.phase == "tail")
    own, calls = sum(row.seconds for row in inside), sum(row.calls for row in inside)
    figure = f"of a step is {name}, in {calls:.0f} operators"
    suggestion = "fused=True, else foreach=True"
    if seconds and own < 0.5 * seconds:
        outside = f"{(1 - own / seconds) * 100:.0f} % of that outside {name}"
        figure = f"of a step is between backward pass and the step's end, {outside}"
        suggestion = "look at what the loop does there: clipping, logging, schedules"
    return _above(TAIL_SHARE, _usual(profile, "tail"), "optimiser tail", figure, suggestion)


def _tiny(profile: Profile) -> list[Advice]:
    kind, more = "operators", ""
    rows = [row for row in profile.operators if row.name.startswith("aten::") and row.calls]
    calls = sum(row.calls for row in rows)
    tiny = sum(row.calls for row in rows if row.seconds / row.calls < TINY)
    if profile.device == "cuda":
        kind, more = "kernels", ", a CUDA graph"
        calls = sum(row.kernels for row in profile.operators)
        seconds = sum(row.device_seconds for row in profile.operators)
        tiny = calls if calls and seconds / calls < TINY else 0.0
    if calls < MANY or tiny < TINY_SHARE * calls:
        return []
    figure = f"{calls:.0f} {kind} a step, {tiny / calls * 100:.0f} % of them under 10 µs"
    return [Advice("tiny operators", figure, f"a larger batch, torch.compile{more}")]
