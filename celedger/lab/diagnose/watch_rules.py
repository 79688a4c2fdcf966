"""Find where in a training each watchpoint's figure is beyond its threshold: one rule for each."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from celedger.lab.diagnose.watch_records import (
    FUNCTION,
    Parameter,
    TensorFigures,
    Watched,
    WatchedStep,
    WeightChange,
)

IN_A_ROW = 3  # sampled steps with the same figure: once is chance, twice a coincidence
STUCK = 4  # sampled steps with a stuck weight or the same batch before it fires
LOSSES = 5  # least number of losses compared with the first ones
SEEN, MISSED = 5.0, 0.1  # standard errors, and the share of a loss whose fall has to be so many
ENOUGH = 100  # values, below which a share of them is no evidence
_DATA = "look at what makes the batch; `celedger preflight` names the row"
UNSEEN = "no module was called: the forward pass was not looked at"


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """The tensor whose figure is beyond its threshold."""

    step: int
    module: str  # its path; "" is the model itself
    tensor: str
    figure: float
    note: str = ""  # what else to report
    advice: str = ""  # instead of the watchpoint's


Beyond = Callable[[float], bool]  # is a figure beyond the threshold?


# --- overflow


def overflow_step(training: Watched) -> int | None:
    """Return the first step whose loss, activations or gradients were not finite."""
    steps = [step for step, loss in training.losses if not math.isfinite(loss)]
    steps += [
        s.number for s in training.steps
        if not s.skipped and _first_broken(s, lambda figure: not math.isfinite(figure))
    ]  # fmt: skip
    return min(steps, default=None)


def before_overflow(training: Watched) -> Watched:
    """Return the training before the first infinity: later values are its consequence."""
    end = overflow_step(training)
    if end is None:
        return training
    return replace(
        training,
        losses=[pair for pair in training.losses if pair[0] < end],
        steps=[step for step in training.steps if step.number < end],
    )


def overflow(training: Watched, beyond: Beyond) -> Iterator[TensorPlace]:
    for step in training.steps:
        if step.skipped and step.scale > 1.0:
            continue  # a gradient scaler causes infinite gradients by design, to find its scale
        row = _first_broken(step, beyond)
        if row is not None:
            operator = None if _is_data(row) else _broken_operator(step, row.size)
            yield operator or _broken_tensor(training, step, row)
            return
    for number, loss in training.losses:
        if not math.isfinite(loss):
            step_seen = next((step for step in training.steps if step.number == number), None)
            note = "its modules were not looked at"
            if step_seen is not None:
                note = "every module's output was finite: the loss function made it"
                note = note if _called_modules(step_seen) else UNSEEN
            operator = _broken_operator(step_seen, loss) if step_seen is not None else None
            yield operator or TensorPlace(number, FUNCTION, "loss", loss, note)
            return


def _first_broken(step: WatchedStep, beyond: Beyond) -> TensorFigures | None:
    """Return the first tensor of a step with a NaN or a value beyond the limit. Minus infinity
    alone is how attention is masked: it counts only if another value is broken too.
    """
    broken = [row for row in step.rows if beyond(row.size)]
    masks = [row for row in broken if row.low == -math.inf and row.high < math.inf]
    if len(masks) == len(broken):
        return None
    return next((row for row in broken if row.trainable or row not in masks), None)


# By what the first operator with a value that is not finite was given.
_GIVEN = {
    "": "the first operator to produce it: what it was given is finite",
    "masked": "the first operator to produce it: it was given minus infinity, as a mask makes it",
    "not finite": "it was given so from before the forward pass: the data, a target, or a weight",
}


def _is_data(row: TensorFigures) -> bool:
    return row.what == "in" and row.parent is None and not row.trainable


def _broken_operator(step: WatchedStep, figure: float) -> TensorPlace | None:
    if step.broke is None or math.isfinite(figure):
        return None
    phase, module, operator, line, given, size = step.broke
    note = _GIVEN[given]
    if line:
        note += f"; {'made by' if phase == 'backward' else 'at'} {line}"
    return TensorPlace(step.number, module, f"{operator}, {phase}", size, note)


def _broken_tensor(training: Watched, step: WatchedStep, row: TensorFigures) -> TensorPlace:
    module, tensor = row.name, row.tensor
    if row.kind == "parameter":
        module, tensor = training.place_of(row.name, "gradient")
    note = "the first module to produce it: what it was given is finite"
    if _is_data(row):
        tensor, note = f"{row.tensor} (the data)", "the batch itself is not finite"
        return TensorPlace(step.number, module, tensor, row.size, note, _DATA)
    if row.what == "in":  # computed by no module, so by the code around the call
        module = FUNCTION if row.parent is None else row.parent
        tensor = f"what is given to {row.name or 'the model'}"
    elif row.kind != "activation":
        note = "the forward pass was finite: the backward pass made it"
        note = note if _called_modules(step) else UNSEEN
    return TensorPlace(step.number, module, tensor, row.size, note)


def _called_modules(step: WatchedStep) -> bool:
    return any(row.kind == "activation" for row in step.rows)


# --- half precision


def underflow(training: Watched, beyond: Beyond) -> Iterator[TensorPlace]:
    for step in training.steps:
        for lost in step.lost:
            share = lost.lost / max(1, lost.at_risk)
            if lost.at_risk >= ENOUGH and beyond(share):
                note = (
                    f"{lost.operator} gave zero for {lost.lost} of {lost.at_risk} values that are "
                    f"not zero, in {lost.dtype}"
                )
                tensor = f"{lost.operator}, {lost.phase}"
                yield TensorPlace(step.number, lost.module, tensor, share, note)


# --- weights


def stuck(training: Watched, beyond: Beyond) -> Iterator[TensorPlace]:
    series: dict[str, list[tuple[WatchedStep, WeightChange]]] = defaultdict(list)
    for step in training.steps:
        for change in step.changes:
            series[change.name].append((step, change))
    stuck = {}
    for name, changes in series.items():
        runs = groupby(changes, key=lambda pair: beyond(pair[1].largest))
        still = (run for standing, group in runs if standing and len(run := list(group)) >= STUCK)
        if first := next(still, None):
            stuck[name] = first
    for name, run in stuck.items():
        module = training.place_of(name)[0]
        moves = any(
            training.place_of(other)[0] == module and other not in stuck for other in series
        )
        reason = _reason_stuck(name, [step for step, _ in run])
        # A bias before a norm, or of attention's keys, has no effect: its gradient is only
        # rounding.
        if not (moves and len(training.parameters[name].shape) < 2 and "gradient is" in reason):
            step, change = run[0]
            yield TensorPlace(step.number, *training.place_of(name), change.largest, reason)
    steps = [step for step in training.steps if not step.skipped]
    last = steps[-STUCK:]
    for name in last[0].orphans if len(steps) >= STUCK else ():
        about = training.parameters.get(name)
        if all(name in step.orphans for step in last) and not (about and about.trained):
            since = next(step.number for step in steps if name in step.orphans)
            note = "it gets gradients, and no optimiser holds it"
            yield TensorPlace(since, *training.place_of(name), 0.0, note)
    for about in training.parameters.values() if len(steps) >= STUCK else ():
        if not (about.trained or about.in_module):  # beside others that a script trains itself
            yield TensorPlace(0, *training.place_of(about.name), 0.0, "no gradient reaches it")


def _reason_stuck(name: str, steps: list[WatchedStep]) -> str:
    rows = [
        row for step in steps for row in step.gradients()
        if row.kind == "parameter" and row.name == name
    ]  # fmt: skip
    if not rows:
        return "no gradient reaches it"
    if all(row.size == 0 for row in rows):
        return "its gradient is zero"
    if all(rate == 0 for step in steps for rate in step.rates):
        return "the learning rate is 0"
    return "its gradient is not zero, but the step is smaller than its last place"


def _ratios(training: Watched) -> Iterator[tuple[int, WeightChange, float]]:
    """Yield |Δw| / |w| of matrices whose first elements differ (those that start at zero change by
    more than themselves at first), if their gradients are dense."""
    sparse = {r.name for s in training.steps for r in s.rows if r.what == "sparse"}
    for step in training.steps:
        for change in step.changes:
            about = training.parameters[change.name]
            varied = about.fan_in and about.low != about.high and change.name not in sparse
            if varied and change.before > 0:
                yield step.number, change, change.change / change.before


def large_change(training: Watched, beyond: Beyond) -> Iterator[TensorPlace]:
    for step, change, ratio in _ratios(training):
        if beyond(ratio):
            yield TensorPlace(step, *training.place_of(change.name), ratio)


def small_change(training: Watched, beyond: Beyond) -> Iterator[TensorPlace]:
    """Yield weights whose ratio never exceeds the limit, in a training long enough to tell."""
    series: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for step, change, ratio in _ratios(training):
        series[change.name].append((step, ratio, change.largest))
    for name, changes in series.items():
        most = max(ratio for _, ratio, _ in changes)
        moves = any(largest > 0 for *_, largest in changes)
        if len(changes) >= 2 * IN_A_ROW and beyond(most) and moves:
            note = "the most in any sampled step"
            yield TensorPlace(changes[0][0], *training.place_of(name), most, note)


def initial_gain(training: Watched, beyond: Beyond) -> Iterator[TensorPlace]:
    """Compare std * sqrt(fan-in) of every matrix with 16 elements or more that is trained from the
    first step on. A small one counts if another of its parent's takes what it gives: the last one
    is a head, or ends a branch."""
    for about in training.parameters.values():
        varied = about.trained and about.fan_in and about.low < about.high and not about.met
        gain = about.std * math.sqrt(about.fan_in)
        if not (varied and math.prod(about.shape) >= 16 and beyond(gain)):
            continue
        if gain >= 1 or _passed_on(training, about, about.name.split(".")[:-2]):
            note = f"std {about.std:.3g}, fan-in {about.fan_in}"
            yield TensorPlace(0, *training.place_of(about.name), gain, note)


def _passed_on(training: Watched, about: Parameter, parent: list[str] | None = None) -> bool:
    """Return True if a later matrix, of `parent` if given, takes as many inputs as this gives."""
    parameters = list(training.parameters.values())
    later = parameters[parameters.index(about) + 1 :]
    return any(
        one.fan_in and one.shape[1] == about.shape[0]
        and (parent is None or one.name.split(".")[:-2] == parent)
        for one in later
    )  # fmt: skip


def alike(training: Watched, beyond: Beyond) -> Iterator[TensorPlace]:
    """Yield matrices that started constant. Those of zeros only if their units are equal after
    `IN_A_ROW` real steps, so that nothing will separate them: the last matrix of a residual branch,
    or a head, is not one of them. All units of another see one sum of their inputs."""
    for about in training.parameters.values():
        constant = about.trained and about.fan_in > 1 and about.low == about.high != 0
        if constant and not about.met and beyond(0.0) and _passed_on(training, about):
            note = f"it begins as {about.low:.3g} everywhere: {about.shape[0]} units see one sum"
            yield TensorPlace(0, *training.place_of(about.name), 0.0, note)
    steps = [step for step in training.steps if not step.skipped and step.number >= IN_A_ROW]
    for step in steps[:1]:
        reached = {row.name for row in step.gradients() if row.kind == "parameter"}
        for name, gap in step.alike.items():
            about = training.parameters[name]
            if beyond(gap) and about.fan_in and name in reached:
                note = f"it began as {about.low:.3g} everywhere, and {about.shape[0]} units are one"
                yield TensorPlace(step.number, *training.place_of(name), gap, note)


def shrunk(training: Watched, beyond: Beyond) -> Iterator[TensorPlace]:
    """Compare with its first the norm of a matrix, or of what began constant, as a norm's scale. A
    bias before a norm has no effect, so it may decay."""
    first: dict[str, float] = {}
    for step in training.steps:
        for name, before, *_ in step.changes:
            about, began = training.parameters[name], first.setdefault(name, before)
            scales = about.fan_in > 0 or about.low == about.high
            if scales and math.prod(about.shape) >= 16 and began > 0 and beyond(before / began):
                note = f"norm {before:.3g}, {began:.3g} at first"
                yield TensorPlace(step.number, *training.place_of(name), before / began, note)


# --- gradients, activations


def idle_norms(training: Watched, beyond: Beyond) -> Iterator[TensorPlace]:
    counts: Counter[str] = Counter()
    for step in training.steps:
        counts.update(step.idle_norms)
        for name in step.idle_norms:
            if beyond(counts[name]):
                yield TensorPlace(step.number, name, "statistics", counts[name])


def _lasting(places: Iterable[TensorPlace], beyond: Beyond) -> Iterator[TensorPlace]:
    """Yield for each tensor the first of its first `IN_A_ROW` sampled steps in a row beyond the
    limit."""
    runs: dict[tuple[str, str], list[TensorPlace]] = defaultdict(list)
    for tensor in places:
        run = runs[tensor.module, tensor.tensor]
        if len(run) < IN_A_ROW:
            run[:] = [*run, tensor] if beyond(tensor.figure) else []
            if len(run) == IN_A_ROW:
                yield run[0]


def _layers(step: WatchedStep, training: Watched) -> list[TensorFigures]:
    return [
        row for row in step.gradients()
        if row.what == "dense" and training.parameters[row.name].fan_in
    ]  # fmt: skip


def vanishing(training: Watched, beyond: Beyond) -> Iterator[TensorPlace]:
    """Compare a matrix's gradient (RMS) with the largest layer's. The first step does not count: a
    branch that starts at zero sends no gradient back. If an earlier layer gets a gradient, nothing
    vanishes on the way: queries and keys of a young BERT hardly matter yet."""

    def places() -> Iterator[TensorPlace]:
        for step in training.steps:
            rows = _layers(step, training)
            most = max(rows, key=lambda row: row.rms, default=None)
            if step.number == 0 or most is None or not most.rms > 0:
                continue
            outputs = list(dict.fromkeys(row.name for row in step.rows if row.what == "out"))
            flow = {row.name: row.rms for row in step.rows if row.kind == "gradient"}
            top = max(flow.values(), default=0.0)
            reached = {name for name, rms in flow.items() if top > 0 and not beyond(rms / top)}
            for row in rows:
                module = training.place_of(row.name)[0]
                if module in outputs and reached & {*outputs[: outputs.index(module)]}:
                    continue
                note = f"RMS {row.rms:.2g}, that of {most.name} {most.rms:.2g}"
                tensor = training.place_of(row.name, "gradient")
                yield TensorPlace(step.number, *tensor, row.rms / most.rms, note)

    return _lasting(places(), beyond)


def exploding(training: Watched, beyond: Beyond) -> Iterator[TensorPlace]:
    """Compare a layer's gradient (RMS) with the largest of any layer, embeddings too, in the first
    sampled steps: a layer behind a branch that starts at zero has none at first."""
    steps = [step for step in training.steps if not step.skipped and _layers(step, training)]
    first = [row for step in steps[:IN_A_ROW] for row in step.gradients() if row.what != "grad"]
    wide = (row.rms for row in first if len(training.parameters[row.name].shape) > 1)
    most = max(wide, default=0.0)
    for step in steps[IN_A_ROW:] if most > 0 else ():
        for row in _layers(step, training):
            if beyond(row.rms / most):
                note = f"RMS {row.rms:.2g}, at first no layer's above {most:.2g}"
                tensor = training.place_of(row.name, "gradient")
                yield TensorPlace(step.number, *tensor, row.rms / most, note)


def out_of_range(training: Watched, beyond: Beyond) -> Iterator[TensorPlace]:
    for step in training.steps:
        for row in step.rows:
            finite = row.kind == "activation" and row.trainable and row.size < math.inf
            if finite and beyond(row.size):
                yield TensorPlace(step.number, row.name, row.tensor, row.size)


def dead(training: Watched, beyond: Beyond) -> Iterator[TensorPlace]:
    for step in training.steps:
        for key, since, units, dead in step.units:
            what, _, name = key.partition(" ")
            tensor = "output" if what == "out" else "input (a rectifier's output)"
            if beyond(dead / units):
                note = f"{dead} of {units} units never positive, steps {since} to {step.number}"
                yield TensorPlace(since, name, tensor, dead / units, note)
    yield from _lasting(_closed(training), beyond)


def _closed(training: Watched) -> Iterator[TensorPlace]:
    """Yield in each step, as 1, a layer whose output is nowhere positive and gets no gradient,
    though other layers do: a rectifier that is no module's lets nothing through."""
    layers = {training.place_of(p.name)[0] for p in training.parameters.values() if p.fan_in}
    for step in training.steps:
        highest: dict[str, float] = defaultdict(lambda: -math.inf)
        gradient: dict[str, float] = defaultdict(float)
        for row in step.rows:
            if row.what == "out":
                highest[row.name] = max(highest[row.name], row.high)
            elif row.what == "grad":
                gradient[row.name] = max(gradient[row.name], row.size)
        is_alive = any(gradient.values())
        for name in (name for name in highest if name in layers and is_alive):
            is_closed = name in gradient and highest[name] <= 0 == gradient[name]
            note = "nowhere positive, and no gradient comes back: a rectifier after it is closed"
            yield TensorPlace(step.number, name, "output", float(is_closed), note)


def saturated(training: Watched, beyond: Beyond) -> Iterator[TensorPlace]:
    """Compare the share of a tanh beyond ±0.99, or of a sigmoid outside 0.01 to 0.99: the slope
    there is at most 2 % and 4 % of its largest. A sigmoid that a function computes at the end of a
    module may be a probability, and sure."""

    def places() -> Iterator[TensorPlace]:
        for step in training.steps:
            for row in step.rows:
                by_operator = row.what == "in" or row.operator.startswith("Tanh")
                maker = row.operator if by_operator else row.type
                if row.kind == "activation" and maker.startswith(("Tanh", "Sigmoid")):
                    share = row.above + (row.below if maker.startswith("Sigmoid") else 0.0)
                    yield TensorPlace(step.number, row.name, row.tensor, share)

    return _lasting(places(), beyond)


# --- loss and data


def not_decreasing(training: Watched, beyond: Beyond) -> Iterator[TensorPlace]:
    """Compare the fall of the loss, from its first stretch to its best, with its standard error.
    Two optimisers oppose each other, so their losses need not fall. Losses so noisy, or so few,
    that a fall by a tenth could be missed say nothing."""
    losses = [loss for _, loss in training.losses]
    size = max(LOSSES, len(losses) // 10)
    if len(losses) < 4 * size or training.optimisers != 1:
        return
    stretches = [losses[at : at + size] for at in range(0, len(losses) - size + 1, size)]
    first, *rest = [(sum(part) / size, _variance(part)) for part in stretches]
    best = min(rest)
    error = math.sqrt((first[1] + best[1]) / size)
    if SEEN * error > MISSED * abs(first[0]):
        return
    fall = first[0] - best[0]
    gain = fall / error if error > 0 else math.inf if fall > 0 else 0.0
    if beyond(gain):
        note = f"{first[0]:.4g} over the first {size} steps, {best[0]:.4g} in the best {size}"
        yield TensorPlace(training.losses[0][0], FUNCTION, "loss", gain, note)


def _variance(values: list[float]) -> float:
    """Return the variance about the line between neighbours: a falling loss is no noise."""
    steps = [b - a for a, b in pairwise(values)]
    return sum(step * step for step in steps) / (2 * len(steps)) if steps else 0.0


def stale(training: Watched, beyond: Beyond) -> Iterator[TensorPlace]:
    run: list[tuple[int, Mapping[str, object]]] = []
    for step in training.steps:
        if step.batch is None:
            continue
        same = run and run[-1][1]["mark"] == step.batch["mark"]
        run = [*run, (step.number, step.batch)] if same else [(step.number, step.batch)]
        # The same tensor object and no other data: a training on all its data at once.
        whole = all(b["same_object"] and not b["part"] for _, b in run[1:])
        if beyond(len(run)) and not whole:
            at, batch = run[0]
            note = f"the same {batch['shape']} in steps {at} to {step.number}, each time looked at"
            yield TensorPlace(at, str(batch["module"]), "input", float(len(run)), note)
            return
