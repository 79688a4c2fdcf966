"""The checks a person makes before trusting a training, on a `Training` of `celedger.child.torch`.

`drive` runs them instead of the training, one after another, each on a model made anew from the
seed, and writes `preflight.json`: a list of results, of which each has a check's name, its status
(pass, warn, fail, or n/a), its figure, and a sentence, empty for those still to come. The first
batch has to train: an error there is the training's own, and is raised. An error in a later check
is its result, and one in the rest of the epoch that of all checks that look at it.
"""

from __future__ import annotations

import json
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_map

from celedger.child.probes import speed
from celedger.child.probes.seen import Losses, Seen, minimised
from celedger.child.torch import Training, device, fingerprint, prepare, step
from celedger.child.torch_steps import dense

PASS, WARN, FAIL, NONE = "pass", "warn", "fail", "n/a"

EPOCH_STEPS, EPOCH_SECONDS = 200, 60.0  # of processor time, of the epoch looked at, at most
OVERFIT_STEPS, OVERFIT_SECONDS = 301, 30.0
ROWS = 8  # of the batch that is overfitted: few enough to learn by heart
REPEATED_STEPS = 3
# The first loss beside that of a guess without knowledge. Twice is a first layer too large, three
# times a confident mistake; half of it is knowledge that an untrained model cannot have.
START_WARN, START_FAIL, START_LOW = 1.5, 3.0, 0.5
# What is left of the loss above its floor after learning one batch by heart.
LEFT_PASS, LEFT_WARN = 0.1, 0.5
ZEROED = 1e-3  # relative: a loss that changes less without inputs does not look at them
OVERLAP_FAIL = 0.05  # share of validation rows met in training
MAJORITY = 0.9  # share of the commonest class
INPUT_WARN = 100.0  # largest absolute input: unscaled pixels (255) or raw measures

if TYPE_CHECKING:
    Result = tuple[str, Any, str]  # status, figure, sentence


def drive(training: Training, out: Path) -> nn.Module:
    """Run the checks; ends the process, since nothing was trained for what the script does next."""
    bench = PreflightBench(training)
    observed = Seen()
    results = [(FIRST, *start(bench, observed))]
    broken: Exception | None = None
    try:
        epoch(bench, observed)
    except Exception as error:
        if not observed.steps:
            raise
        broken = error
    write(results, out)
    for name, check in CHECKS.items():
        began = time.perf_counter()
        try:
            if broken is not None and name not in ANEW:
                raise broken
            result = check(bench, observed)
        except Exception as error:
            result = NONE, None, f"could not be tried: {type(error).__name__}: {error}"
        results.append((name, *result))
        write(results, out)  # each time: a later check may hang
        spent = time.perf_counter() - began
        print(f"preflight: {name}: {result[0]}, {spent:.1f} s", file=sys.stderr)
    raise SystemExit(0)


def write(results: Sequence[tuple[str, str, Any, str]], out: Path) -> None:
    to_come = [(name, NONE, None, "") for name in list(CHECKS)[len(results) - 1 :]]
    fields = ("check", "status", "figure", "said")
    rows = [dict(zip(fields, row)) for row in (*results, *to_come)]  # noqa: B905 (Python 3.8)
    (out / "preflight.new").write_text(json.dumps(rows))
    (out / "preflight.new").replace(out / "preflight.json")


class PreflightBench:
    """Makes the training anew, as often as is asked."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.where = device()
        self._first: tuple[nn.Module, dict[str, Tensor]] | None = None

    def fresh(self) -> tuple[nn.Module, Optimizer, LRScheduler | None]:
        model, optimiser, schedule = prepare(self.training, self.where)
        if self._first is None:
            state = {k: v.detach().clone() for k, v in model.state_dict().items()}
            self._first = model, state
        elif self._first[0] is model:  # the script made its model once
            model.load_state_dict(self._first[1])
        model.train()
        return model, optimiser, schedule

    def reseed(self, add: int = 0) -> None:
        random.seed(self.training.seed + add)
        torch.manual_seed(self.training.seed + add)

    def first_batch(self) -> Any:
        return next(iter(self.training.data()))

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        model.eval()
        with torch.no_grad():
            metrics = {k: float(v) for k, v in self.training.evaluate(model).items()}
        return {k: v for k, v in metrics.items() if not k.startswith(("latency", "step_time"))}


# --- the loss --------------------------------------------------------------------------------


def start(bench: PreflightBench, observed: Seen) -> Result:
    """Loss of the untrained model beside that of a guess without knowledge."""
    model, _, _ = bench.fresh()
    with Losses() as losses, torch.enable_grad():
        loss = bench.training.loss(model, bench.first_batch())
    observed.minimised = minimised(losses.calls, loss)
    total = float(loss.detach())
    if not math.isfinite(total):
        return FAIL, total, f"the loss is {total} before any training"
    call = losses.calls[observed.minimised] if observed.minimised is not None else None
    if call is None or not call.guess:
        why = "no one loss of torch's own leads to it that would say what to expect"
        return NONE, total, f"{total:.4g}; {why}"
    ratio = call.value / call.guess
    sentence = f"{call.name} {call.value:.4g}, {call.guess:.4g} for a guess without knowledge"
    status = FAIL if ratio < START_LOW else _graded(ratio, START_WARN, START_FAIL)
    return status, ratio, sentence


def overfits(bench: PreflightBench, observed: Seen) -> Result:
    """A few rows learnt by heart, with the same random numbers in every step."""
    model, optimiser, _ = bench.fresh()
    batch, cut = _few(bench, model, bench.first_batch())
    first, floored = math.nan, True
    ends = time.process_time() + OVERFIT_SECONDS
    for number in range(OVERFIT_STEPS):
        bench.reseed()
        with Losses() as losses:
            last, floor = float(step(bench.training, model, optimiser, None, batch)), 0.0
        call = losses.calls[observed.minimised] if observed.minimised is not None else None
        floored = call is not None and call.floor is not None
        if call is not None and call.floor is not None:
            last, floor = call.value, call.floor
        if number == 0:
            first = last
        left = (last - floor) / (first - floor) if first > floor else 0.0
        if time.process_time() > ends or left < LEFT_PASS / 2:
            break
    rows = f"{len(_tensors(batch)[0])} rows" if cut else "the whole batch (it cannot be cut)"
    steps = f"{first:.4g} -> {last:.4g} in {number + 1} steps"
    sentence = f"loss of {rows} {steps}, floor {floor:.4g}"
    if left <= LEFT_PASS:
        return PASS, left, sentence
    if left <= LEFT_WARN or not cut:
        return WARN, left, sentence + ": it learns, but does not learn it by heart"
    if not floored:
        return WARN, left, sentence + ": the floor of this loss is not known"
    return FAIL, left, sentence


def zeroed(bench: PreflightBench, observed: Seen) -> Result:
    """The trained model's loss with and without inputs."""
    values = []
    for blank in (False, True):
        bench.reseed()
        with torch.no_grad(), observed.blanked(blank):
            values.append(float(bench.training.loss(observed.model, observed.batches[-1])))
    real, zero = values
    change = (zero - real) / max(abs(real), 1e-12)
    sentence = f"loss {real:.4g} with inputs, {zero:.4g} with zeros in their place"
    if abs(change) < ZEROED:
        return FAIL, change, sentence
    if change < 0:
        return WARN, change, sentence + ": inputs do not help (yet)"
    return PASS, change, sentence


def repeats(bench: PreflightBench, observed: Seen) -> Result:
    """A few steps twice."""
    ends = []
    for _ in range(2):
        parts = bench.fresh()
        losses = [
            float(step(bench.training, *parts, batch))
            for _, batch in zip(range(REPEATED_STEPS), bench.training.data())  # noqa: B905
        ]
        ends.append((losses, fingerprint(parts[0])))
    (one, first), (other, second) = ends
    if first == second and one == other:
        return PASS, 0.0, f"equal bits after {len(one)} steps"
    gap = max(abs(a - b) for a, b in zip(one, other))  # noqa: B905 (Python 3.8)
    return FAIL, gap, f"losses differ by {gap:.3g} within {len(one)} steps of the same seed"


# --- an epoch, and what was observed in it -------------------------------------------------------


def epoch(bench: PreflightBench, observed: Seen) -> None:
    """Train an epoch with eyes open; the checks that follow read what was observed."""
    model, optimiser, schedule = bench.fresh()
    observed.begins(model, optimiser)
    ends = time.process_time() + EPOCH_SECONDS
    with observed, Losses() as losses:
        for number, batch in enumerate(bench.training.data()):
            observed.note_batch(batch)
            step(bench.training, model, optimiser, schedule, batch)
            observed.note_step(losses)
            if number + 1 >= EPOCH_STEPS or time.process_time() > ends:
                break
    buffers = {k: v.clone() for k, v in model.named_buffers()}
    observed.evaluating = True
    with observed:
        bench.reseed()
        observed.metrics = [bench.evaluate(model)]
    changed = [k for k, v in model.named_buffers() if not torch.equal(v, buffers[k])]
    observed.buffers_changed_in_evaluation = changed
    try:  # some scripts count their evaluations
        for add in (0, 1):
            bench.reseed(add)
            observed.metrics.append(bench.evaluate(model))
    except Exception:
        observed.metrics = observed.metrics[:1]
    model.train()


def labels(bench: PreflightBench, observed: Seen) -> Result:
    if observed.classes is not None:
        counts = observed.classes
        total, kinds = int(counts.sum()), int((counts > 0).sum())
        share = int(counts.max()) / total
        sentence = f"{kinds} of {len(counts)} classes in {total} labels, the commonest {share:.0%}"
        return FAIL if kinds < 2 else _graded(share, MAJORITY), share, sentence
    if observed.targets:
        low, high = min(a for a, _ in observed.targets), max(b for _, b in observed.targets)
        sentence = f"targets from {low:.4g} to {high:.4g}"
        return PASS if high > low else FAIL, high - low, sentence
    return NONE, None, "no labels were seen: the loss has none that torch names"


def inputs(bench: PreflightBench, observed: Seen) -> Result:
    if not observed.ranges:
        return NONE, None, "no module was called with a tensor"
    low, high = min(a for a, _, _ in observed.ranges), max(b for _, b, _ in observed.ranges)
    size = max(abs(low), abs(high))
    sentence = f"from {low:.4g} to {high:.4g}"
    if not math.isfinite(size):
        return FAIL, size, f"{sentence}: not finite"
    if low == high:
        return FAIL, size, f"{sentence}: constant"
    if all(floats for *_, floats in observed.ranges) and size > INPUT_WARN:
        return WARN, size, f"{sentence}: scale them to about -1..1 or unit variance"
    return PASS, size, sentence


def overlap(bench: PreflightBench, observed: Seen) -> Result:
    if not observed.rows_evaluated:
        return NONE, None, "evaluation did not call what training called"
    shared = len(observed.rows_evaluated & observed.rows_trained)
    share = shared / len(observed.rows_evaluated)
    sentence = f"{shared} of {len(observed.rows_evaluated)} validation rows were met in training"
    if share and observed.same_tensor:
        sentence += ": the model is given one and the same tensor in both, as on a graph"
        return WARN, share, sentence
    return _graded(share, 0.0, OVERLAP_FAIL), share, sentence


def modes(bench: PreflightBench, observed: Seen) -> Result:
    drawn: list[str] = []
    if len(observed.metrics) == 3:
        one, again, other = observed.metrics
        drawn = [k for k in one if one[k] == again[k] != other[k]]
    still = sorted(observed.norms - observed.norms_moved)
    for names, status, sentence in (
        (sorted(observed.training_in_evaluation), FAIL, "in training mode during evaluation: {}"),
        (observed.buffers_changed_in_evaluation, FAIL, "evaluation changed {}"),
        (drawn, FAIL, "{} of one model depends on random numbers: dropout is on?"),
        (still, WARN, "statistics never updated in training: {}"),
    ):
        if names:
            return status, len(names), sentence.format(", ".join(names[:3]))
    norms = (
        f"{len(observed.norms)} norms updated in training alone"
        if observed.norms
        else "no batch norm"
    )
    return PASS, 0, f"{norms}; evaluation repeats itself"


def gradients(bench: PreflightBench, observed: Seen) -> Result:
    optimised = _optimised(observed)
    trained = {path: p for path, p in observed.model.named_parameters() if p.requires_grad}
    wrong = []
    for path, parameter in trained.items():
        if path not in observed.with_gradient:
            wrong.append(f"{path} gets no gradient")
        elif id(parameter) not in optimised:
            wrong.append(f"{path} is held by no optimiser")
        elif parameter.dim() > 1 and torch.equal(parameter.detach(), observed.initial[path]):
            # A bias before a norm has no effect, so its gradient is rounding alone.
            wrong.append(f"{path} did not move")
    if wrong:
        return FAIL, len(wrong), f"{len(wrong)} of {len(trained)}: {'; '.join(wrong[:3])}"
    return PASS, 0, f"all {len(trained)} get gradients and moved in {observed.steps} steps"


def cleared(bench: PreflightBench, observed: Seen) -> Result:
    observed.optimiser.zero_grad(set_to_none=True)
    optimised = _optimised(observed)
    left = [
        path for path, p in observed.model.named_parameters()
        if id(p) in optimised and p.grad is not None and bool((dense(p.grad) != 0).any())
    ]  # fmt: skip
    if left:
        names = ", ".join(left[:3])
        return FAIL, len(left), f"zero_grad leaves the gradient of {names}: they add up over steps"
    return PASS, 0, "zero_grad leaves none"


def _optimised(observed: Seen) -> set[int]:
    """Identities of the optimiser's parameters."""
    return {id(p) for group in observed.optimiser.param_groups for p in group["params"]}


def _graded(value: float, warn: float, fail: float = math.inf) -> str:
    return FAIL if value > fail else WARN if value > warn else PASS


def _tensors(batch: Any) -> list[Tensor]:
    return [batch] if isinstance(batch, Tensor) else [t for t in batch if isinstance(t, Tensor)]


def _few(bench: PreflightBench, model: nn.Module, batch: Any) -> tuple[Any, bool]:
    """The first rows of a batch, where the loss can do with them."""
    parts = _tensors(batch)
    plain = isinstance(batch, Tensor) or len(parts) == len(batch)
    if plain and len({len(part) for part in parts}) == 1:
        few = tree_map(lambda part: part[:ROWS], batch)
        try:
            with torch.no_grad():
                if math.isfinite(float(bench.training.loss(model, few))):
                    return few, True
        except Exception:
            pass
    return batch, False


FIRST = "loss at the start"
CHECKS: dict[str, Callable[[PreflightBench, Seen], Result]] = {
    "looks at its inputs": zeroed,
    "labels balanced": labels,
    "inputs in range": inputs,
    "train and validation apart": overlap,
    "train and eval mode": modes,
    "every parameter learns": gradients,
    "gradients cleared": cleared,
    "overfits one batch": overfits,
    "same seed, same result": repeats,
    "loader keeps up": speed.loader,
    "inference latency": speed.latency,
    "memory stays flat": speed.memory,
}
# Those that need nothing of the epoch.
ANEW = {"overfits one batch", "same seed, same result", "loader keeps up", "memory stays flat"}
