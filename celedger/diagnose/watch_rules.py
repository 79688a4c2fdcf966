"""Where in a training each watchpoint's figure is beyond a threshold: one generator for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from celedger.diagnose.watched import (
    ENOUGH,
    FUNCTION,
    TensorFigures,
    Watched,
    WatchedStep,
    WeightChange,
)


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a figure was met."""

    step: int
    module: str  # its path; "" is the model itself
    tensor: str
    figure: float
    note: str = ""  # what else there is to say of it


# A step that is looked at a few times in a row: once is chance, twice a coincidence.
IN_A_ROW = 3
# Samples with a stuck weight or the same batch before it is said: looks at steps 0, 1, 2, 3.
STUCK = 4
UNSEEN = "no module was called: the forward pass was not looked at"
# Losses that are compared with the first ones, at least.
LOSSES = 5


def overflow_step(training: Watched) -> int | None:
    """The first step whose loss, activations or gradients were not finite."""
    steps = [step for step, loss in training.losses if not math.isfinite(loss)]
    steps += [s.number for s in training.steps if not s.skipped and _first_broken(s) is not None]
    return min(steps, default=None)


def sound(training: Watched) -> Watched:
    """What came before the first infinity: what follows is its consequence."""
    end = overflow_step(training)
    if end is None:
        return training
    return replace(
        training,
        losses=tuple(pair for pair in training.losses if pair[0] < end),
        steps=tuple(step for step in training.steps if step.number < end),
    )


# --- overflow --------------------------------------------------------------------------------


def overflow(training: Watched, limit: float) -> Iterator[TensorPlace]:
    for step in training.steps:
        if step.skipped and step.scale > 1.0:
            continue  # a gradient scaler that finds its scale meets infinite gradients by design
        row = _first_broken(step, limit)
        if row is None:
            continue
        if step.broke and not math.isfinite(row.size):
            yield _broken_operator(step, row.size)
        else:
            yield TensorPlace(step.number, *_maker(row), row.size, _overflow_note(step, row))
        return
    for number, loss in training.losses:
        if not math.isfinite(loss):
            seen = next((step for step in training.steps if step.number == number), None)
            if seen is None:
                yield TensorPlace(number, FUNCTION, "loss", loss, "its modules were not looked at")
            elif seen.broke:
                yield _broken_operator(seen, loss)
            else:
                note = "every module's output was finite: the loss function made it"
                note = note if _called_modules(seen) else UNSEEN
                yield TensorPlace(number, FUNCTION, "loss", loss, note)
            return


def _broken_operator(step: WatchedStep, figure: float) -> TensorPlace:
    assert step.broke is not None
    phase, module, operator = step.broke
    note = "the first operator to produce it: what it was given is finite"
    return TensorPlace(step.number, module, f"{operator}, {phase}", figure, note)


def _first_broken(step: WatchedStep, limit: float = math.inf) -> TensorFigures | None:
    """The first tensor of a step with a NaN or a value of `limit` or more.

    Minus infinity alone is how attention is masked: it counts only if something else breaks, too.
    """
    hurt = [row for row in step.rows if not row.size < limit]
    masks = [row for row in hurt if row.low == -math.inf and row.high < math.inf]
    if len(masks) == len(hurt) and limit == math.inf:
        return None
    return next((row for row in hurt if row.trainable or row not in masks), None)


def _maker(row: TensorFigures) -> tuple[str, str]:
    """The module that made the tensor, and the tensor's name."""
    if row.what == "in":  # made by no module, so by the code around the call, or the data
        if row.parent is None:
            return (row.name, f"{row.tensor} (the data)")
        return (row.parent, f"what it gives to {row.name}")
    if row.kind == "parameter":
        return (row.name, "gradient")
    return (row.name, row.tensor)


def _overflow_note(step: WatchedStep, row: TensorFigures) -> str:
    if row.what == "in" and row.parent is None:
        return "the batch itself is not finite"
    if row.kind == "activation":
        return "the first module to produce it: what it was given is finite"
    if not _called_modules(step):
        return UNSEEN
    return "the forward pass was finite: the backward pass made it"


def _called_modules(step: WatchedStep) -> bool:
    return any(row.kind == "activation" for row in step.rows)


# --- half precision --------------------------------------------------------------------------


def underflow(training: Watched, limit: float) -> Iterator[TensorPlace]:
    for step in training.steps:
        for lost in step.lost:
            share = lost.lost / max(1, lost.at_risk)
            if lost.at_risk >= ENOUGH and share > limit:
                tensor = f"{lost.operator}, {lost.phase}"
                note = (
                    f"{lost.operator} gave zero for {lost.lost} of {lost.at_risk} values that are "
                    f"not zero, in {step.half}"
                )
                yield TensorPlace(step.number, lost.module, tensor, share, note)


# --- weights ---------------------------------------------------------------------------------


def stuck(training: Watched, limit: float) -> Iterator[TensorPlace]:
    series: dict[str, list[tuple[WatchedStep, WeightChange]]] = {}
    for step in training.steps:
        for change in step.changes:
            series.setdefault(change.name, []).append((step, change))
    stuck = {}
    for name, seen in series.items():
        for still, run in groupby(seen, key=lambda pair: pair[1].largest <= limit):
            found = list(run)
            if still and len(found) >= STUCK:
                stuck[name] = found
                break
    for name, found in stuck.items():
        module = _owner(name)[0]
        moves = any(_owner(other)[0] == module and other not in stuck for other in series)
        why = _why_stuck(name, found)
        # A bias before a norm, or of attention's keys, has no effect: its gradient is rounding.
        if not (moves and len(training.parameters[name].shape) < 2 and "gradient is" in why):
            step, change = found[0]
            yield TensorPlace(step.number, *_owner(name), change.largest, why)
    steps = [step for step in training.steps if not step.skipped]
    for name in steps[0].orphans if len(steps) >= STUCK else ():
        known = training.parameters.get(name)
        if all(name in step.orphans for step in steps) and not (known and known.trained):
            note = "it gets gradients, and no optimiser holds it"
            yield TensorPlace(steps[0].number, *_owner(name), 0.0, note)


def _why_stuck(name: str, found: list[tuple[WatchedStep, WeightChange]]) -> str:
    rows = [row for step, _ in found for row in step.gradients()
            if row.kind == "parameter" and row.name == name]  # fmt: skip
    if not rows:
        return "no gradient reaches it"
    if all(row.size == 0 for row in rows):
        return "its gradient is zero"
    if all(rate == 0 for step, _ in found for rate in step.rates):
        return "the learning rate is 0"
    return "its gradient is not zero, but the step is smaller than its last place"


def _changes(training: Watched) -> Iterator[tuple[WatchedStep, WeightChange, float]]:
    """|Δw| / |w| of matrices that began with different elements (those that began at zero change
    by more than themselves at first), where gradients are dense."""
    sparse = {r.name for s in training.steps for r in s.rows if r.what == "sparse"}
    for step in training.steps:
        for change in step.changes:
            about = training.parameters[change.name]
            varied = about.fan_in and about.low != about.high and change.name not in sparse
            if varied and change.before > 0:
                yield step, change, change.change / change.before


def large_change(training: Watched, limit: float) -> Iterator[TensorPlace]:
    for step, change, ratio in _changes(training):
        if not ratio <= limit:
            yield TensorPlace(step.number, *_owner(change.name), ratio)


def small_change(training: Watched, limit: float) -> Iterator[TensorPlace]:
    """A weight whose ratio never was above the limit, in a training long enough to tell."""
    series: dict[str, list[tuple[int, float, float]]] = {}
    for step, change, ratio in _changes(training):
        series.setdefault(change.name, []).append((step.number, ratio, change.largest))
    for name, seen in series.items():
        most = max(ratio for _, ratio, _ in seen)
        if len(seen) >= 2 * IN_A_ROW and most < limit and any(largest > 0 for *_, largest in seen):
            yield TensorPlace(seen[0][0], *_owner(name), most, "the most in any step looked at")


def _gains(training: Watched) -> Iterator[tuple[str, float]]:
    """std * sqrt(fan-in) of every matrix that is trained; at least 16 elements, to have a std."""
    for about in training.parameters.values():
        if (
            about.trained
            and about.fan_in
            and math.prod(about.shape) >= 16
            and about.low < about.high
        ):
            yield about.name, about.std * math.sqrt(about.fan_in)


def large_init(training: Watched, limit: float) -> Iterator[TensorPlace]:
    for name, gain in _gains(training):
        if gain > limit:
            fan = training.parameters[name].fan_in
            yield TensorPlace(
                0, *_owner(name), gain, f"std {gain / math.sqrt(fan):.3g}, fan-in {fan}"
            )


def small_init(training: Watched, limit: float) -> Iterator[TensorPlace]:
    for name, gain in _gains(training):
        if gain < limit:
            fan = training.parameters[name].fan_in
            yield TensorPlace(
                0, *_owner(name), gain, f"std {gain / math.sqrt(fan):.3g}, fan-in {fan}"
            )


def alike(training: Watched, limit: float) -> Iterator[TensorPlace]:
    """Matrices that began constant and whose units are alike after `IN_A_ROW` real steps: nothing
    will ever tell them apart. (One that ends a residual branch, or a head, is not after one.)"""
    steps = [step for step in training.steps if not step.skipped]
    for step in [s for s in steps if s.number >= IN_A_ROW][:1]:
        for name, gap in step.alike.items():
            about = training.parameters[name]
            if gap <= limit and about.fan_in:
                said = f"it began as {about.low:.3g} everywhere, and {about.shape[0]} units are one"
                yield TensorPlace(step.number, *_owner(name), gap, said)


# --- gradients -------------------------------------------------------------------------------


def _layers(step: WatchedStep, training: Watched) -> list[TensorFigures]:
    return [
        row for row in step.gradients()
        if row.what == "dense" and training.parameters[row.name].fan_in
    ]  # fmt: skip


def vanishing(training: Watched, limit: float) -> Iterator[TensorPlace]:
    """A matrix whose gradient (RMS) is this much smaller than the largest layer's, `IN_A_ROW` times
    running. The first step does not count: a branch that begins at zero sends nothing back."""
    running: dict[str, list[TensorPlace]] = {}
    fired: set[str] = set()
    for step in training.steps:
        rows = _layers(step, training)
        most = max(rows, key=lambda row: row.rms, default=None)
        if step.number == 0 or most is None or not most.rms > 0:
            continue
        for row in rows:
            ratio = row.rms / most.rms
            if not ratio < limit:
                running[row.name] = []
                continue
            note = f"RMS {row.rms:.2g}, that of {most.name} {most.rms:.2g}"
            run = running.setdefault(row.name, [])
            run.append(TensorPlace(step.number, *_owner(row.name, "gradient"), ratio, note))
            if len(run) == IN_A_ROW and row.name not in fired:
                fired.add(row.name)
                yield run[0]


def exploding(training: Watched, limit: float) -> Iterator[TensorPlace]:
    """A layer's gradient (RMS) beside the largest of any layer in the first steps looked at: a
    layer behind a branch that begins at zero has none at first."""
    steps = [step for step in training.steps if not step.skipped and _layers(step, training)]
    first = [row.rms for step in steps[:IN_A_ROW] for row in _layers(step, training)]
    most = max(first, default=0.0)
    for step in steps[IN_A_ROW:] if most > 0 else ():
        for row in _layers(step, training):
            if not row.rms / most <= limit:
                note = f"RMS {row.rms:.2g}, at first no layer's above {most:.2g}"
                yield TensorPlace(step.number, *_owner(row.name, "gradient"), row.rms / most, note)


# --- activations -----------------------------------------------------------------------------


def out_of_range(training: Watched, limit: float) -> Iterator[TensorPlace]:
    for step in training.steps:
        for row in step.rows:
            if row.kind == "activation" and row.trainable and limit < row.size < math.inf:
                yield TensorPlace(step.number, row.name, row.tensor, row.size)


def dead(training: Watched, limit: float) -> Iterator[TensorPlace]:
    for step in training.steps:
        for key, since, units, dead in step.units:
            what, _, name = key.partition(" ")
            tensor = "output" if what == "out" else "input (a rectifier's output)"
            if dead / units > limit:
                note = f"{dead} of {units} units never positive, steps {since} to {step.number}"
                yield TensorPlace(since, name, tensor, dead / units, note)


def saturated(training: Watched, limit: float) -> Iterator[TensorPlace]:
    """The share of a tanh beyond ±0.99, of a sigmoid outside 0.01 to 0.99: the slope there is 2 %
    and 4 % of its largest."""
    runs: dict[tuple[str, str], list[TensorPlace]] = {}
    fired: set[tuple[str, str]] = set()
    for step in training.steps:
        for row in step.rows:
            made = row.type if row.what == "out" else row.operator
            if row.kind != "activation" or not made.startswith(("Tanh", "Sigmoid")):
                continue
            share = row.above + (row.below if made.startswith("Sigmoid") else 0.0)
            key = row.name, row.tensor
            if not share > limit:
                runs[key] = []
                continue
            run = runs.setdefault(key, [])
            run.append(TensorPlace(step.number, row.name, row.tensor, share))
            if len(run) == IN_A_ROW and key not in fired:
                fired.add(key)
                yield run[0]


# --- loss and data ---------------------------------------------------------------------------


def not_decreasing(training: Watched, limit: float) -> Iterator[TensorPlace]:
    """How far the best stretch of the loss is below its first one, in standard errors of the two.
    Two optimisers play against each other: their losses need not fall."""
    losses = [loss for _, loss in training.losses]
    size = max(LOSSES, len(losses) // 10)
    if len(losses) < 4 * size or training.optimisers != 1:
        return
    stretches = [losses[at : at + size] for at in range(0, len(losses) - size + 1, size)]
    first, *rest = [(sum(part) / size, _variance(part)) for part in stretches]
    best = min(rest)
    error = math.sqrt((first[1] + best[1]) / size)
    gain = (first[0] - best[0]) / error if error > 0 else math.inf * (first[0] - best[0] > 0)
    if not gain > limit:
        note = f"{first[0]:.4g} over the first {size} steps, {best[0]:.4g} in the best {size}"
        yield TensorPlace(
            training.losses[0][0], FUNCTION, "loss", 0.0 if math.isnan(gain) else gain, note
        )


def _variance(values: list[float]) -> float:
    """Of the values about the line between neighbours: a falling loss is not noise."""
    steps = [b - a for a, b in pairwise(values)]
    return sum(step * step for step in steps) / (2 * len(steps)) if steps else 0.0


def stale(training: Watched, limit: float) -> Iterator[TensorPlace]:
    run: list[tuple[int, Mapping[str, object]]] = []
    for step in training.steps:
        if step.batch is None:
            continue
        same = run and run[-1][1]["mark"] == step.batch["mark"]
        run = [*run, (step.number, step.batch)] if same else [(step.number, step.batch)]
        # The same tensor object, and no more data in sight: a training on all its data at once.
        whole = all(b["same_object"] and not b["part"] for _, b in run[1:])
        if len(run) > limit and not whole:
            at, batch = run[0]
            note = f"the same {batch['shape']} in steps {at} to {step.number}, each time looked at"
            yield TensorPlace(at, str(batch["module"]), "input", float(len(run)), note)
            return


def _owner(parameter: str, tensor: str = "") -> tuple[str, str]:
    """A parameter's module, and the name of the tensor within it."""
    module, _, own = parameter.rpartition(".")
    return module, f"{tensor} of {own}" if tensor else own
