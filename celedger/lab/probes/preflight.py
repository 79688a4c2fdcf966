"""The probe of `celedger preflight`: the checks a person makes before trusting a training, judged
on its observed first steps. Each returns a status (pass, warn, fail, or n/a if it cannot be
judged), a figure and a sentence; CHECKS names them. An exception in one becomes its result.
"""

from __future__ import annotations

import math
import runpy
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from . import observe
from .fed_rows import FEWEST, FedRows, agreement
from .first_steps import REPEATED, FirstSteps, OuterCall
from .losses import graded
from .tensors import tensors

if TYPE_CHECKING:
    Result = tuple[str, Any, str]  # status, figure, sentence

PASS, WARN, FAIL, NONE = "pass", "warn", "fail", "n/a"

# The first loss divided by that of an uninformed guess. Twice means a first layer too large, three
# times a confident mistake; half means knowledge that an untrained model cannot have.
START_WARN, START_FAIL, START_LOW = 1.5, 3.0, 0.5
OVERFIT_STEPS, OVERFIT_SECONDS = 301, 30.0  # of processor time
ROWS = 8  # of the batch that is overfitted: few enough to be learnt exactly
# The share of the loss above its floor that remains after overfitting one batch.
LEFT_PASS, LEFT_WARN = 0.1, 0.5
ZEROED = 1e-6  # relative: an output that changes less without an input does not depend on it
OVERLAP_FAIL = 0.05  # share of validation rows that are also in training
TWINS = 2.0  # times as often as validation rows equal each other
MAJORITY = 0.9  # share of the commonest class
EACH = 100  # labels for a class on average: one a tenth as common is missing once in e^10
INPUT_WARN = 100.0  # largest absolute input: unscaled pixels (255) or raw measures
APART = 0.5  # of the deviation: the largest distance between the means of training and validation
OUTLYING, MANY = 10.0, 0.05  # times a usual row's largest value; in more rows it is usual
NEAREST = 5  # rows whose labels are compared
FOLLOWING = 3.0  # deviations of permuted labels: 1 permutation in 700 agrees so well
# Rows that judge a label; how many of them have to agree; how many labels they have to be right
# about to judge at all; the share of contradicted labels that no data set lacks; and the share of
# such ones among those that the near rows do not tell.
JUDGES, UNITED, TELLING, CONTRADICTED, AGREED = 10, 9, 0.8, 0.005, 0.8
GROWTH = 0.25  # tensors a step: a list that keeps one every step grows by one
LIVING = 3  # steps whose graphs may be alive at once: with several optimisers, the last of each
USUAL = 0.4  # of steps: passes without gradients in more of them are part of the training


class PreflightProbe(FirstSteps):
    """Write one event, `preflight`. If only as many steps run as are repeated, no check runs."""

    def ends(self) -> None:
        self.gives_up()
        rows = []
        if self.options["steps"] > REPEATED:
            if observe._observer is not None:
                observe._observer.silence()  # the runs of the checks are no training
            own = {
                name: own_check(name, file) for name, file in self.options.get("own", {}).items()
            }
            rows = [self._result(name, check) for name, check in {**own, **CHECKS}.items()]
        about = {"fingerprint": self.fingerprint, "steps": self.steps, "ended": self.ended}
        self.write("preflight", checks=rows, **about)
        self.flush()

    def _result(self, name: str, check: Callable[[FirstSteps], Result]) -> dict[str, Any]:
        try:
            status, figure, sentence = check(self)
        except Exception as error:
            message = str(error).partition("\n")[0][:100]
            status, figure = NONE, None
            sentence = f"could not be tried: {type(error).__name__}: {message}"
        return {"check": name, "status": status, "figure": figure, "said": sentence}


class Seen(NamedTuple):
    """What a check of the suite's own is given: the model that was trained, what it was last called
    with, the steps that ran, and the loss before the first of them (None: no backward pass)."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    steps: int
    first_loss: float | None


def own_check(name: str, file: str) -> Callable[[FirstSteps], Result]:
    """Return a check that a file of the suite defines: a function of `Seen` that raises where it
    fails, and may return a sentence."""

    def check(probe: FirstSteps) -> Result:
        loss = probe.start[0] if probe.start is not None else None
        model, call = next(iter(probe.last.items()), (None, None))
        if model is None or call is None:
            return NONE, None, "no module was called in training"
        try:
            function = runpy.run_path(file)[name.partition(":")[2]]
            said = function(Seen(model, call.args, call.kwargs, probe.steps, loss))
        except Exception as error:
            kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            return FAIL, None, f"{kind}{error}" or "its assertion does not hold"
        return PASS, None, str(said or "holds")

    return check


# --- the loss --------------------------------------------------------------------------------


def start(probe: FirstSteps) -> Result:
    """Compare the loss of the untrained model with that of an uninformed guess."""
    if probe.start is None:
        return NONE, None, "no backward pass was seen"
    total, call = probe.start
    if not math.isfinite(total):
        return FAIL, total, f"the loss is {total} before any training"
    if call is None or not graded(call) or not call.guess():
        why = "no single torch loss leads to it, so what to expect is unknown"
        return NONE, total, f"{total:.4g}; {why}"
    value, guess = float(call.mean(call.output)), call.guess()
    sentence = f"{call.name} {value:.4g}, {guess:.4g} for a guess without knowledge"
    ratio = value / guess
    status = FAIL if ratio < START_LOW else _graded(ratio, START_WARN, START_FAIL)
    return status, ratio, sentence


def finite(probe: FirstSteps) -> Result:
    if not probe.passes:
        return NONE, None, "no backward pass was seen"
    if probe.broken_loss is not None:
        return FAIL, probe.broken_loss, f"the loss of step {probe.broken_loss} is not finite"
    return PASS, None, f"in {probe.steps} steps"


def fits(probe: FirstSteps) -> Result:
    """Compare the input of the loss with what the loss expects."""
    if not probe.fitted:
        return NONE, None, "no torch loss leads to what is minimised"
    for (name, misfit), count in probe.misfits.items():
        if count == probe.fitted[name]:  # in every pass, so not by chance
            return WARN if "twice" in misfit else FAIL, count, f"{name} {misfit}"
    if probe.targets:
        (low, high), (least, most) = _span(probe.targets), _span(probe.outputs)
        sentence = f"targets from {low:.4g} to {high:.4g}, output from {least:.4g} to {most:.4g}"
        if low < 0 and least == 0:  # of a ReLU, say
            return WARN, least, f"{sentence}: never below 0"
        return PASS, most - least, sentence
    return PASS, 0, "shapes and values are those that the loss takes"


def overfits(probe: FirstSteps) -> Result:
    """Overfit a few rows, with the same random numbers in every step."""
    for name in probe.ascending():
        return WARN, None, f"the training makes {name} larger: its sign is wrong"
    replay = probe.replay
    if isinstance(replay, str):
        return NONE, None, replay
    floor = replay.loss.floor() if replay.loss is not None else None
    torch.manual_seed(0)
    try:
        rows: int | None = ROWS
        first = float(replay.run(rows).detach())
    except Exception:
        rows, first = None, float(replay.run(None).detach())
    least, remaining, number, last = floor or 0.0, 1.0, 0, first
    if not first > least:
        return NONE, None, f"the loss of the batch is {first:.4g}: no fall of it can be judged"
    ends = time.process_time() + OVERFIT_SECONDS
    while number < OVERFIT_STEPS and remaining >= LEFT_PASS / 2 and time.process_time() < ends:
        torch.manual_seed(0)
        loss = replay.run(rows)
        replay.step(loss)
        last, number = float(loss.detach()), number + 1
        remaining = (last - least) / (first - least)
    what = f"{ROWS} rows" if rows else "the whole batch (it cannot be cut)"
    known = f", floor {least:.4g}" if floor is not None else ""
    sentence = f"loss of {what} {first:.4g} -> {last:.4g} in {number} steps{known}"
    if remaining <= LEFT_PASS:
        return PASS, remaining, sentence
    falls = float(f"{last:.4g}") < float(f"{first:.4g}")
    if floor is None:
        why = "it falls" if falls else "it does not fall"
        return WARN, remaining, f"{sentence}: {why}, and the floor of this loss is not known"
    why = "it learns, but does not overfit it" if falls else "it does not fall"
    trained = {id(p) for one in replay.optimisers for g in one.param_groups for p in g["params"]}
    copies = (replay.copied.get(id(parameter)) for parameter, _ in probe.initial.items())
    if any(copy is not None and id(copy) not in trained for copy in copies):
        return NONE, remaining, f"{sentence}, but another optimiser trains a part of it"
    warns = remaining <= LEFT_WARN or (falls and not rows)
    return WARN if warns else FAIL, remaining, f"{sentence}: {why}"


def zeroed(probe: FirstSteps) -> Result:
    """Compare the trained modules' output with that for zeros in place of each input."""
    without, tried = [], False
    for module, call in probe.last.items():
        name, usual = probe.names.of(module) or "the model", _outputs(call, None)
        dense = [row for row in tensors([call.args, call.kwargs]) if row[1].layout == torch.strided]
        inputs = [(path, tensor) for path, tensor in dense if bool((tensor != 0).any())]
        blind = [path for path, t in inputs if _same(usual, _outputs(call, t))]
        if not inputs or not usual:  # the output may be no tensor: a distribution, say
            continue
        tried = True
        if len(blind) == len(inputs):
            return FAIL, len(blind), f"{name} gives the same output for zeros"
        without += [f"input {path.partition('.')[2]} of {name}" for path in blind]
    if not tried:
        return NONE, None, "no module was called with tensors and returned one"
    if without:
        return WARN, len(without), f"no effect on the output: {', '.join(without[:3])}"
    return PASS, 0, "zeros in place of any input change the output"


@torch.no_grad()
def _outputs(call: OuterCall, blank: Tensor | None) -> list[Tensor]:
    """Return a module's outputs with zeros in place of one of its inputs."""

    def one(tensor: Tensor) -> Tensor:
        return torch.zeros_like(tensor) if tensor is blank else tensor

    args, kwargs = tree_map_only(Tensor, one, (call.args, call.kwargs))
    torch.manual_seed(0)
    return [t.double() for _, t in tensors(call.module(*args, **kwargs)) if t.is_floating_point()]


def _same(usual: list[Tensor], other: list[Tensor]) -> bool:
    return len(usual) == len(other) and all(
        a.shape == b.shape and bool(((a - b).abs() <= ZEROED * a.abs().max()).all())
        for a, b in zip(usual, other)  # noqa: B905 (Python 3.8)
        if a.numel()
    )


# --- data --------------------------------------------------------------------------------------


def labels(probe: FirstSteps) -> Result:
    if probe.classes is not None:
        counts = probe.classes
        total, kinds = int(counts.sum()), int((counts > 0).sum())
        share = int(counts.max()) / total
        most = f"the commonest {100 * share:.0f} %"
        sentence = f"{kinds} of {len(counts)} classes in {total} labels, {most}"
        if kinds < 2 and probe.losses_seen < probe.passes:
            return NONE, share, f"{sentence}; others are not seen"
        missing = (counts == 0).nonzero().flatten().tolist()
        if (
            kinds > 1
            and missing
            and any(f.places for f in probe.labelled.values())
            and total >= EACH * len(counts)
        ):
            return WARN, share, f"{sentence}; none is {', '.join(map(str, missing[:3]))}"
        return FAIL if kinds < 2 else _graded(share, MAJORITY), share, sentence
    if probe.losses_seen < probe.passes:
        return NONE, None, "no single torch loss leads to what is minimised"
    if probe.targets:
        low, high = _span(probe.targets)
        sentence = f"targets from {low:.4g} to {high:.4g}"
        count, sums = probe.columns or (0, torch.empty(0))
        idle = ((sums == 0) | (sums == count)).nonzero().flatten().tolist()
        if high > low and idle and count >= EACH:
            which = ", ".join(map(str, idle[:3]))
            return WARN, len(idle), f"column {which} of the target never changes in {count} rows"
        return PASS if high > low else FAIL, high - low, sentence
    if probe.codes:
        return NONE, None, "the training computes its targets itself, so they are not labels"
    return NONE, None, "no labels were seen: the loss has none that torch names"


def inputs(probe: FirstSteps) -> Result:
    rows = probe.ranges[False]
    if not rows:
        return NONE, None, "no module was called with a tensor"
    if probe.broken_input:
        return FAIL, math.nan, probe.broken_input
    low, high = _span([(row.low, row.high) for row in rows])
    size = max(abs(low), abs(high))
    sentence = f"from {low:.4g} to {high:.4g}"
    if not math.isfinite(size):
        return FAIL, size, f"{sentence}: not finite"
    if low == high:
        return FAIL, size, f"{sentence}: constant"
    spans = (_span(list(ends)) for ends in zip(*(row.channels for row in rows)))  # noqa: B905 (3.8)
    if idle := [str(number) for number, (least, most) in enumerate(spans) if least == most]:
        return WARN, len(idle), f"{sentence}; channel {', '.join(idle)} of the images is constant"
    if all(row.floats for row in rows) and size > INPUT_WARN:
        return WARN, size, f"{sentence}: scale them to about -1..1 or unit variance"
    return PASS, size, sentence


def outlying(probe: FirstSteps) -> Result:
    """Find rows with far larger values than the others have."""
    rows = probe.fed.largest
    if len(rows) < FEWEST:
        return NONE, None, f"fewer than {FEWEST} rows of floating-point numbers were seen"
    usual = sorted(value for value, _ in rows)[len(rows) // 2]
    far = [(value, row) for value, row in rows if value > OUTLYING * usual > 0]
    share = len(far) / len(rows)
    if not far or share > MANY:
        return PASS, share, f"{len(rows)} rows, values to {usual:.3g} in a usual one"
    value, row = max(far)
    sentence = (
        f"{len(far)} of {len(rows)} rows have values over {OUTLYING:g} times those of a usual"
    )
    return WARN, share, f"{sentence} one ({usual:.3g}): {value:.3g} of {row}"


def follow(probe: FirstSteps) -> Result:
    """Compare how far neighbours have near labels with how far they would by chance."""
    if probe.copies and probe.copies == probe.losses_seen:
        return WARN, probe.copies, "every target equals the input in its place: shift one of them"
    return _of_labels(probe, _follow)


def _follow(fed: FedRows) -> Result:
    if (at := fed.telltale()) is not None:
        which, column = at
        where = f"column {column} of input {which}"
        return WARN, None, f"{where} alone tells every label: it is the target"
    labels, near = fed.neighbours(NEAREST)
    found, chance, deviation = agreement(labels, near)
    beyond = (found - chance) / max(deviation, 1e-12)
    if labels.is_floating_point():
        words = "labels of near rows differ by {:.3g} on average, permuted ones by {:.3g}"
        sentence = words.format(-found, -chance)
    else:
        words = "near rows have equal labels in {:.0f} % of {} rows, permuted ones in {:.0f} %"
        sentence = words.format(100 * found, len(labels), 100 * chance)
    return PASS if beyond > FOLLOWING else WARN, beyond, sentence


def contradicted(probe: FirstSteps) -> Result:
    """Find rows whose label nearly all of the nearest rows contradict, as a model that knows them
    by heart would."""
    return _of_labels(probe, _contradicted)


def _contradicted(fed: FedRows) -> Result:
    labels, near = fed.neighbours(JUDGES)
    if labels.is_floating_point() or labels.dim() > 1:
        return NONE, None, "the labels are not classes"
    votes = near.mode(1).values
    telling = float((votes == labels).double().mean())
    commonest = float((labels == labels.mode().values).double().mean())
    if telling <= max(TELLING, commonest):  # a rare label has few near ones of its kind
        percent = f"{100 * telling:.0f} %"
        return NONE, None, f"near rows tell the label of no more than {percent} of the rows"
    wrong = votes != labels
    united = wrong & ((near == votes[:, None]).sum(1) >= UNITED)
    rows = united.nonzero()[:, 0].tolist()
    share = len(rows) / len(labels)
    sentence = f"{len(rows)} of {len(labels)} labels are contradicted by the {JUDGES} nearest rows"
    # Where classes meet the near rows are divided; about a wrong label they agree.
    if share <= CONTRADICTED or len(rows) < AGREED * int(wrong.sum()):
        return PASS, share, sentence
    named = (f"{fed.places[row]} ({labels[row]}, near ones {votes[row]})" for row in rows[:3])
    return WARN, share, f"{sentence}: {', '.join(named)}"


def _of_labels(probe: FirstSteps, check: Callable[[FedRows], Result]) -> Result:
    """Return the worst result of a check on the labels of each loss; n/a if none can be compared
    with its inputs."""
    results: list[Result] = []
    why = f"fewer than {FEWEST} different rows with one label each were seen"
    for name, fed in probe.labelled.items():
        if len(fed.places) >= FEWEST and not fed.constant:
            status, figure, sentence = check(fed)
            whose = f"{name}: " if len(probe.labelled) > 1 else ""
            results.append((status, figure, whose + sentence))
        elif fed.places:
            why = "all labels are equal" if fed.constant else why
    return min(results, key=lambda one: (WARN, PASS, NONE).index(one[0]), default=(NONE, None, why))


def shuffled(probe: FirstSteps) -> Result:
    """Judge whether whole batches repeat, as they do if each epoch has the same order."""
    batches = probe.batches
    again = len(batches) - len(set(batches))
    sentence = f"{again} of {len(batches)} batches had come before"
    if (different := len(set(batches))) <= 1:
        return NONE, again, "every step has the same input, or none"
    if again >= 2 and batches[different:] == batches[:again]:
        return WARN, again, f"{sentence}: every epoch has the same order"
    if again == 1 or len(probe.rows[False]) >= probe.row_count:
        return NONE, again, f"{sentence}, and no row: no epoch ended, or the data are new each time"
    return PASS, again, f"{sentence}, {'and rows of others' if again else 'but their rows'} had"


def overlap(probe: FirstSteps) -> Result:
    if why := _no_validation(probe):
        return NONE, None, why
    rows = probe.rows[True]
    # What is trained on later only, as the rows of a rollout, was no validation of it.
    shared = len(probe.known_rows)
    share = shared / max(len(rows), 1)
    count, equal = (sum(column) for column in zip(*probe.evaluations))  # noqa: B905 (Python 3.8)
    # Where rows of a call equal each other, as many do for each row of training.
    usual = equal / count * max(len(probe.rows[False]) * len(probe.evaluations) / count, 1)
    sentence = f"{shared} of {len(rows)} validation rows were met in training before"
    if 0 < shared < len(rows) and not probe.mixed:
        return WARN, share, f"{sentence}, in calls of their own: a score of training, or a gallery?"
    if share and probe.same_tensor:
        sentence += ": the model is given one and the same tensor in both, as on a graph"
        return WARN, share, sentence
    if 0 < share <= TWINS * usual:
        return NONE, share, f"{sentence}, but they equal each other as often"
    return _graded(share, 0.0, OVERLAP_FAIL), share, sentence


def alike(probe: FirstSteps) -> Result:
    """Compare mean and spread of the inputs in training and validation."""
    sides = [[row for row in probe.ranges[at] if row.floats] for at in (False, True)]
    if (why := _no_validation(probe)) or not all(sides):
        return NONE, None, why or "the inputs are not floating-point numbers"
    (one, spread), (other, second) = (
        (sum(r.mean for r in rows) / len(rows), sum(r.deviation for r in rows) / len(rows))
        for rows in sides
    )
    sentence = f"{one:.3g} ± {spread:.3g} in training, {other:.3g} ± {second:.3g} in validation"
    small, large = sorted((spread, second))
    gap = abs(one - other) / max(large, 1e-12)
    return WARN if gap > APART or small < APART * large else PASS, gap, sentence


# --- the model -----------------------------------------------------------------------------------


def modes(probe: FirstSteps) -> Result:
    why = _not_evaluated(probe)
    if probe.bad_modes and not why:
        return FAIL, len(probe.bad_modes), "; ".join(sorted(probe.bad_modes)[:3])
    still = [
        name for name, (norm, mean) in probe.norms.items() if torch.equal(norm.running_mean, mean)
    ]
    if still:
        names = ", ".join(still[:3])
        return WARN, len(still), f"statistics never updated in training: {names}"
    if probe.still_steps:
        text = f"{probe.still_steps} of {probe.steps} steps run in eval mode, unlike those before"
        return WARN, probe.still_steps, f"{text}: train() is missing after an evaluation"
    if probe.still_norms:
        names = ", ".join(sorted(probe.still_norms)[:3])
        count = len(probe.still_norms)
        return WARN, count, f"{count} runs in eval mode while its model trains: {names}"
    if why:
        return NONE, None, why
    if any(probe.evaluated.values()):
        return WARN, 1, "evaluation records a graph: torch.no_grad() saves its time and memory"
    norms = len(probe.norms)
    return PASS, 0, f"{norms} norms updated in training alone" if norms else "no batch norm"


def gradients(probe: FirstSteps) -> Result:
    initial = {id(parameter): value for parameter, value in probe.initial.items()}
    owners = {
        id(p): id(m) for _, root in probe.names.roots() for m in root.modules()
        for p in m._parameters.values()
    }  # fmt: skip
    trained = [(path, p) for path, p in probe.names.all_parameters() if p.requires_grad]
    wrong: list[str] = []
    idle: list[str] = []
    for path, parameter in trained:
        before = initial.get(id(parameter))
        if id(parameter) in probe.with_gradient:
            if before is None:
                wrong.append(f"{path} is held by no optimiser")
            # A bias before a norm has no effect, so its gradient is only rounding.
            elif parameter.dim() > 1 and torch.equal(parameter.detach(), before):
                wrong.append(f"{path} did not move")
        elif before is not None:
            called = owners.get(id(parameter)) in probe.called
            (wrong if called else idle).append(f"{path} gets no gradient")
    if wrong:
        return FAIL, len(wrong), f"{len(wrong)} of {len(trained)}: {'; '.join(wrong[:3])}"
    if idle:
        return WARN, len(idle), f"modules that were never called: {'; '.join(idle[:3])}"
    if not trained:
        return NONE, None, "no module has parameters"
    return PASS, 0, f"all {len(trained)} get gradients and moved in {probe.steps} steps"


def cleared(probe: FirstSteps) -> Result:
    for name, count in probe.uncleared.items():
        sentence = f"the gradient of {name} and others is still there in the next backward pass"
        return FAIL, count, f"{sentence}, {count} times: they add up over steps"
    return PASS, 0, "no step begins with the gradients of another"


def flat(probe: FirstSteps) -> Result:
    """Judge the growth of the tensors, and the number of graphs, that are alive after steps."""
    pairs = zip(probe.alive, probe.alive[1:])  # noqa: B905 (Python 3.8)
    rises = [(now - last) / probe.spacing for last, now in pairs]
    if len(rises) < 2:
        return NONE, None, "too few steps"
    # Growth that happens once, or ends with an epoch, is no leak: the smallest rise counts.
    more, steps = min(rises), probe.graph_steps
    sentence = f"{more:+.2g} tensors a step; the graphs of at most {steps} steps are alive at once"
    return WARN if more > GROWTH or steps > LIVING else PASS, max(more, steps - LIVING), sentence


def _not_evaluated(probe: FirstSteps) -> str:
    """Return why evaluation cannot be judged; empty if it can."""
    if not probe.evaluated:
        return "no evaluation of what training calls was seen"
    if len(probe.evaluated) > USUAL * probe.steps:
        return "passes without gradients come with nearly every step: evaluation is not told apart"
    return ""


def _no_validation(probe: FirstSteps) -> str:
    """Return why validation rows cannot be judged; empty if they can."""
    if probe.evaluates_names and not probe.rows[True]:
        return "a validation row is one whole number: what it names comes in training, too"
    parts = "" if probe.rows[True] else "of the model only a part was evaluated"
    return _not_evaluated(probe) or parts


def _span(rows: list[tuple[float, float]]) -> tuple[float, float]:
    return min(low for low, _ in rows), max(high for _, high in rows)


def _graded(value: float, warn: float, fail: float = math.inf) -> str:
    return FAIL if value > fail else WARN if value > warn else PASS


CHECKS: dict[str, Callable[[FirstSteps], Result]] = {
    "loss at the start": start,
    "loss stays finite": finite,
    "output fits the loss": fits,
    "labels balanced": labels,
    "labels follow inputs": follow,
    "labels agree with near rows": contradicted,
    "inputs in range": inputs,
    "no outlying rows": outlying,
    "training data shuffled": shuffled,
    "train and validation apart": overlap,
    "train and validation alike": alike,
    "train and eval mode": modes,
    "every parameter learns": gradients,
    "gradients cleared": cleared,
    "overfits one batch": overfits,
    "looks at its inputs": zeroed,
    "memory stays flat": flat,
}


def attach(options: dict[str, Any]) -> None:
    observe.attach(PreflightProbe(options))
