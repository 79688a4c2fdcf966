"""Try what could make a training faster or smaller: run it for some steps plainly and with each
switch (celedger.lab.probes.switches), in turns, and compare. The document is that of `celedger
profile --try`; its fields are in docs/profile.md."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from celedger.base.errors import CannotJudge, UsageError
from celedger.lab.diagnose.profile import FEWEST_STEPS, steps_of
from celedger.lab.diagnose.slower import ASSUMED_FREEDOM, ASSUMED_SPREAD
from celedger.lab.diagnose.stalls import Document
from celedger.stats.tails import t_quantile

CONFIDENCE = 0.95  # of the intervals
SECONDS = 5.0  # of timed steps of the plain run, which says how many steps the others make
# A switch that only rounds differently changes the first loss that differs by no more than this
# share: sums of float32 and of bfloat16 (8 bits) over a few thousand terms.
ROUNDING, ROUNDING_AMP = 1e-4, 0.03
WORKERS = ("0", "2", "4")  # of `all`
NAMES = ("workers", "amp", "compile", "channels_last", "fused", "pin_memory", "cudnn_benchmark",
         "inplace", "checkpointing")  # fmt: skip
EVERY = "all"


@dataclass(frozen=True, slots=True)
class Switch:
    """One switch; `value` is the number of workers, else empty. The plain run has no name."""

    name: str = ""
    value: str = ""

    def __str__(self) -> str:
        return f"{self.name}={self.value}" if self.value else self.name or "plain"


@dataclass(slots=True)
class Runs:
    """The runs of one switch: events of the probe by round, and why there are no more."""

    events: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    refused: str = ""


def parse(texts: Iterable[str]) -> tuple[Switch, ...]:
    """Return the switches that `--try` names, each once. Raises UsageError."""
    switches: list[Switch] = []
    for text in texts:
        name, equals, values = text.partition("=")
        if name == "workers" and all(one.isdecimal() for one in values.split(",")):
            switches += [Switch(name, str(int(one))) for one in values.split(",")]
        elif name in NAMES[1:] and not equals:
            switches.append(Switch(name))
        elif text == EVERY:
            fitting = [one for one in WORKERS if int(one) <= (os.cpu_count() or 1)]
            switches += parse([f"workers={','.join(fitting)}", *NAMES[1:]])
        else:
            raise UsageError(
                f"--try {text}: no switch of that name",
                f"the switches are workers=0,2,4, {', '.join(NAMES[1:])} and {EVERY}",
            )
    return tuple(dict.fromkeys(switches))


def measure(
    switches: Sequence[Switch],
    rounds: int,
    run: Callable[[Switch, Mapping[str, object]], Mapping[str, Any]],
    time_is_over: Callable[[], bool],
    steps: int | None = None,
) -> Document:
    """Run the plain training and each switch once a round, every other round backwards, until the
    time is over. `run` runs the training with options of the probe and returns its event, or raises
    CannotJudge. Raises CannotJudge if the plain training cannot be timed."""
    plain = Runs({0: run(Switch(), {"steps": steps} if steps else {"seconds": SECONDS})})
    length = {"steps": len(_durations(plain.events[0], timed=False))}
    _durations(plain.events[0])
    runs = {switch: Runs(refused=refusal(switch, plain.events[0])) for switch in switches}
    order = [Switch(), *runs]
    for number in range(rounds):
        for switch in order if number % 2 == 0 else order[::-1]:
            of = runs.get(switch, plain)
            if number in of.events or of.refused:
                continue
            if time_is_over():
                of.refused = "" if of.events else "not tried: the time was over"
                continue
            try:
                event = run(switch, length)
                _durations(event)
            except CannotJudge as error:
                if of is plain:
                    raise
                of.refused = error.cause
            else:
                of.events[number] = event
                of.refused = _no_effect(switch, event)
    return compare(plain, runs)


def refusal(switch: Switch, plain: Mapping[str, Any]) -> str:
    """Return why a switch would change nothing in this training; empty if it would."""
    facts, device = plain["facts"], "a CUDA device"
    workers, optimisers = facts["workers"], facts["optimisers"]
    without = ", ".join(sorted(optimisers)) or "none of torch.optim"
    reasons: Mapping[str, tuple[tuple[bool, str], ...]] = {
        "workers": (
            (workers is None, "the training has no DataLoader"),
            (str(workers) == switch.value, f"the training has {workers} workers already"),
        ),
        "pin_memory": (
            (workers is None, "the training has no DataLoader"),
            (not facts["cuda"], f"it needs {device}"),
        ),
        "cudnn_benchmark": (
            (not facts["cuda"], f"it needs {device}"),
            (not facts["convolutions"], "the model has no convolution of images"),
        ),
        "amp": ((facts["autocast"], "the training uses autocast already"),),
        "compile": (
            (facts["compiled"], "the training is compiled already"),
            (not facts["modules"], "the training calls no module"),
        ),
        "channels_last": (
            (not facts["convolutions"], "no convolution of images, or channels-last already"),
        ),
        "fused": (
            (not any(one is False for one in optimisers.values()),
             "the optimiser is fused already" if any(optimisers.values())
             else f"the optimiser has no fused form ({without})"),
        ),
        "inplace": ((not facts["inplace"], "no module has an in-place form that is off"),),
        "checkpointing": (
            (not facts["blocks"], "no list or sequence of blocks of one class"),
        ),
    }  # fmt: skip
    return next((reason for applies, reason in reasons[switch.name] if applies), "")


def _no_effect(switch: Switch, event: Mapping[str, Any]) -> str:
    if switch.name == "compile" and not event["facts"]["compiled"]:
        return "torch.compile compiled no graph"
    return ""


def compare(plain: Runs, runs: Mapping[Switch, Runs]) -> Document:
    """Return the document of what was run."""
    tried = {switch: of for switch, of in runs.items() if of.events and not of.refused}
    seconds = {
        Switch(): step_seconds(plain),
        **{switch: step_seconds(of) for switch, of in tried.items()},
    }
    half_width = _half_width(seconds)
    first = next(iter(plain.events.values()))
    repeatable = len({tuple(event["losses"]) for event in plain.events.values()}) == 1
    rows = []
    for switch, of in tried.items():
        event = next(iter(of.events.values()))
        common = [number for number in seconds[switch] if number in seconds[Switch()]]
        log = [math.log(seconds[switch][n] / seconds[Switch()][n]) for n in common]
        ratio, width = float(np.mean(log)), half_width(len(common))
        differs, loss = _losses(first, event, switch) if repeatable else ("unknown", None)
        rows.append({
            "switch": str(switch), "runs": len(of.events),
            "step_seconds": _mean(seconds[switch]),
            "change": math.expm1(ratio),
            "low": math.expm1(ratio - width), "high": math.expm1(ratio + width),
            "peak_bytes": _peak(of), "loss": _last(event), "losses": differs,
            "first_difference": loss, "compile_seconds": _compile_seconds(of),
        })  # fmt: skip
    return {
        "environment": {name: first[name] for name in ("torch", "device", "threads")},
        "steps": len(_durations(first, timed=False)),
        "timed": len(_durations(first)),
        "repeatable": repeatable,
        "plain": {
            "runs": len(plain.events), "step_seconds": _mean(seconds[Switch()]),
            "peak_bytes": _peak(plain), "loss": _last(first),
        },
        "tried": sorted(rows, key=lambda row: row["change"]),
        "refused": [
            {"switch": str(switch), "reason": of.refused}
            for switch, of in runs.items() if of.refused
        ],
    }  # fmt: skip


def _durations(event: Mapping[str, Any], *, timed: bool = True) -> np.ndarray:
    """Return the seconds of steps; `timed`: without the warm-up and those that compiled. Raises
    CannotJudge if too few are left."""
    steps = steps_of(event["edges"])
    if not timed:
        return steps.own
    left = (steps.number >= event["warm_up"]) & ~np.isin(steps.number, event["compiled"])
    if left.sum() < FEWEST_STEPS:
        raise CannotJudge(
            f"{left.sum()} of {len(left)} steps can be timed, and {FEWEST_STEPS} are needed",
            "give the task more steps",
        )
    own: np.ndarray = steps.own[left]
    return own


def step_seconds(of: Runs) -> dict[int, float]:
    """Return the mean seconds of a step, by round."""
    return {number: float(_durations(event).mean()) for number, event in of.events.items()}


def _mean(seconds: Mapping[int, float]) -> float:
    return math.exp(float(np.mean(np.log(list(seconds.values())))))


def _half_width(seconds: Mapping[Switch, Mapping[int, float]]) -> Callable[[int], float]:
    """Return the half width of the interval of a mean logarithm of ratios by its number of rounds.
    The noise of one run is pooled over all switches, without what a round has in common, and with
    what is assumed of it before any was seen."""
    rounds = sorted(set.intersection(*(set(of) for of in seconds.values())))
    logs = np.log([[of[number] for number in rounds] for of in seconds.values()])
    residual = logs - logs.mean(0) - logs.mean(1, keepdims=True) + logs.mean()
    freedom = (len(logs) - 1) * max(len(rounds) - 1, 0)
    total = ASSUMED_FREEDOM * ASSUMED_SPREAD**2 + float((residual**2).sum())
    variance = total / (ASSUMED_FREEDOM + freedom)
    errors = t_quantile(0.5 + CONFIDENCE / 2, ASSUMED_FREEDOM + freedom)
    return lambda number: errors * math.sqrt(2 * variance / number)


def _peak(of: Runs) -> int:
    return int(np.median([event["peak"] for event in of.events.values()]))


def _last(event: Mapping[str, Any]) -> float | None:
    """Return the last loss, None if there is none or it is not finite."""
    loss = float(event["losses"][-1]) if event["losses"] else math.nan
    return loss if math.isfinite(loss) else None


def _compile_seconds(of: Runs) -> float | None:
    """Return what compiling took in the first run, which finds nothing in torch's cache."""
    event = next(iter(of.events.values()))
    if not event["compiled"]:
        return None
    every, usual = steps_of(event["edges"]).own, float(np.median(_durations(event)))
    return float(sum(every[one] - usual for one in event["compiled"] if one < len(every)))


def _losses(
    plain: Mapping[str, Any], event: Mapping[str, Any], switch: Switch
) -> tuple[str, Document | None]:
    """Return "equal", "rounding" or "changed", and the first loss that differs, by which that is
    judged: what comes after it is its consequence."""
    pairs = zip(plain["losses"], event["losses"], strict=False)
    number, (a, b) = next(
        ((number, pair) for number, pair in enumerate(pairs) if pair[0] != pair[1]), (-1, ("", ""))
    )
    if number < 0:
        return ("equal" if len(plain["losses"]) == len(event["losses"]) else "changed"), None
    before, after = float(a), float(b)
    share = abs(after - before) / (max(abs(before), abs(after)) or 1.0)
    most = ROUNDING_AMP if switch.name == "amp" else ROUNDING
    first = {"backward_pass": number, "share": share if math.isfinite(share) else None}
    return ("rounding" if share <= most else "changed"), first
