"""Watch one training of a task, in a run outside the ledger: which of its tensors leave their
range, where that began, and what to try.

A watchpoint has a figure, a recommended threshold beyond which it fires, and the reason for that
threshold beside it. The thresholds were chosen so that no task of the shipped suites fires one
(docs/watch.md has the margins), and can be changed. A value that MindInsight's debugger recommends
(conditionmgr/recommender.py of MindSpore's MindInsight) is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from celedger.base.errors import CannotJudge, UsageError
from celedger.base.model import Commit, Task
from celedger.lab.diagnose import watch_rules
from celedger.lab.diagnose.watch_records import Watched, read
from celedger.lab.diagnose.watch_rules import Beyond, TensorPlace, overflow_step
from celedger.trial.diagnostic import EAGER, Diagnostic, diagnose
from celedger.trial.runner import Bench

# Watchpoints of a training that leaves its range before something is not finite.
_DIVERGENCE = ("weight-change-large", "gradient-exploding", "activation-range")
WatchRule = Callable[[Watched, Beyond], Iterable[TensorPlace]]


@dataclass(frozen=True, slots=True)
class Watchpoint:
    """One watchpoint. `recommended`: the figure beyond which it fires (with `below`, below or at
    which)."""

    name: str
    recommended: float
    measures: str  # the figure, in words
    advice: str
    rule: WatchRule  # every place beyond the threshold
    below: bool = False


@dataclass(frozen=True, slots=True)
class WatchpointFinding:
    watchpoint: Watchpoint
    threshold: float
    first: TensorPlace  # the earliest step, and in it the first in the training's order
    more: int  # number of other modules and tensors where it fired


@dataclass(frozen=True, slots=True)
class JudgedTraining:
    training: Watched
    findings: tuple[WatchpointFinding, ...]
    limits: Mapping[str, float]  # by watchpoint


@dataclass(frozen=True, slots=True)
class WatchReport:
    task: Task
    commit: Commit
    seed: int
    trainings: tuple[JudgedTraining, ...]  # one for each process that trained, by start or rank
    failed: str = ""  # why the run failed, if it did

    @property
    def fired(self) -> bool:
        return any(judged.findings for judged in self.trainings)


def watch(
    bench: Bench,
    commit: Commit,
    task: Task,
    seed: int,
    folder: Path,
    thresholds: Mapping[str, float],
    *,
    options: Mapping[str, object] = MappingProxyType({}),
) -> WatchReport:
    """Train once with watchpoints. `options` are the probe's.

    Raises CannotJudge where nothing trained: no build, no torch, or a failure before any step.
    """
    limits(thresholds)  # what is misspelt is said before a training
    run = partial(diagnose, bench, commit, task, seed, environment=EAGER)
    failed = _record(folder, run, {"kind": "watch", **options})
    judged = tuple(judge(training, thresholds) for training in _trainings(folder))
    report = WatchReport(task, commit, seed, judged, failed)
    if not report.fired and not any(one.training.optimisers for one in judged):
        reason = failed or "no process of it took an optimiser's step with torch"
        raise CannotJudge(f"{task.name} cannot be watched at {commit.sha[:10]}: {reason}")
    return report


def _record(
    folder: Path,
    run: Callable[[Path, Mapping[str, object]], Diagnostic],
    probe: Mapping[str, object],
) -> str:
    """Train under watchpoints and return why it failed, if it did. Where something stopped to be
    finite, train again up to there: an equal seed meets it in the same step, and now every operator
    of it is followed."""
    done = run(folder / "watch", probe)
    broken = [overflow_step(training) for training in read(done.out)]
    # The step before, too: what breaks a gradient shows in the next step's loss.
    steps = sorted({s for step in broken if step is not None for s in (step - 1, step) if s >= 0})
    if steps:
        run(folder / "closer", {"kind": "watch", "closely": steps})
    return "" if done.ok else done.message


def _trainings(folder: Path) -> list[Watched]:
    """Return the trainings of a record, with the steps that were looked at closely."""
    trainings = read(folder / "watch")
    closer = read(folder / "closer") if (folder / "closer").exists() else []
    for i, (training, close) in enumerate(zip(trainings, closer, strict=False)):
        if (step := overflow_step(training)) is not None:
            numbered = {one.number: one for one in training.steps}
            numbered |= {one.number: one for one in close.steps if step - one.number in (0, 1)}
            ordered = [numbered[number] for number in sorted(numbered)]
            trainings[i] = replace(training, steps=ordered)
    return trainings


def check_tensor(report: WatchReport, name: str) -> None:
    """Raise UsageError if no training has the tensor."""
    if not any(judged.training.values for judged in report.trainings):
        parameters = report.trainings[-1].training.parameters
        raise UsageError(f"no tensor {name!r} was seen", f"parameters are {', '.join(parameters)}")


def limits(values: Mapping[str, float]) -> dict[str, float]:
    """Return the recommended thresholds, changed by those of the user. Raises UsageError."""
    recommended = {point.name: point.recommended for point in WATCHPOINTS}
    for name in values:
        if name not in recommended:
            names = ", ".join(recommended)
            raise UsageError(f"there is no watchpoint {name!r}", f"known: {names}")
    return recommended | dict(values)


def judge(training: Watched, thresholds: Mapping[str, float]) -> JudgedTraining:
    """Return the findings, in the order of `WATCHPOINTS`: causes before consequences."""
    bounds = limits(thresholds)
    findings = []
    clean = watch_rules.before_overflow(training)
    for point in WATCHPOINTS:
        limit = bounds[point.name]
        beyond = limit.__ge__ if point.below else partial(_above, limit)
        judged = training if point.name == "overflow" else clean
        if places := list(point.rule(judged, beyond)):
            first = min(places, key=lambda tensor: tensor.step)
            others = {(tensor.module, tensor.tensor) for tensor in places}
            findings.append(WatchpointFinding(point, limit, first, len(others) - 1))
    return JudgedTraining(training, _by_cause(findings), bounds)


def _by_cause(findings: list[WatchpointFinding]) -> tuple[WatchpointFinding, ...]:
    """Return the findings with an overflow behind the divergence that led to it."""
    broken = next((one for one in findings if one.watchpoint.name == "overflow"), None)
    before = [
        one for one in findings
        if broken and one.watchpoint.name in _DIVERGENCE and one.first.step < broken.first.step
    ]  # fmt: skip
    if broken is None or not before:
        return tuple(findings)
    since = min(one.first.step for one in before)
    note = f"the training diverged from step {since} on: {before[0].watchpoint.name}"
    told = replace(broken, first=replace(broken.first, note=note))
    rest = [one for one in findings if one is not broken and one not in before]
    return (*before, told, *rest)


def _above(limit: float, figure: float) -> bool:
    return not figure <= limit or figure == math.inf


WATCHPOINTS = (
    # MindInsight recommends the same: any value that is not finite.
    Watchpoint(
        "overflow", math.inf, "largest absolute value",
        "look at that operator's inputs: a division, logarithm, root or exponential without a"
        " bound; in half precision, compute it in float32 (`.float()`) or lower the loss scale",
        watch_rules.overflow,
    ),
    # With a quarter of its values lost an operator computes something else. A judgement: healthy
    # trainings of the suites in float32 and bfloat16 lose none; float16 was not measured.
    Watchpoint(
        "underflow", 0.25, "share of non-zero values made zero",
        "in the backward pass scale the loss (torch.amp.GradScaler); in the forward pass compute in"
        " float32, and log(1 + x) as log1p(x)",
        watch_rules.underflow,
    ),
    Watchpoint(
        "stale-batch", watch_rules.STUCK - 1.0, "sampled steps with the same batch",
        "draw the next batch inside the loop; look at `next(iter(loader))` and the sampler's seed",
        watch_rules.stale,
    ),
    # He et al. 2015 use std = gain / sqrt(fan-in) with gain sqrt(2); torch's default has 0.58, and
    # the largest gain of torch.nn.init.calculate_gain is 5/3. Three times that: 5. Below 1/50 eight
    # layers shrink a signal beyond float32; a branch scaled by depth (GPT-2: 1/sqrt(2 N)) has 0.05.
    Watchpoint(
        "weight-init-large", 5.0, "std times root of fan-in",
        "draw it with torch.nn.init.kaiming_normal_ or xavier_uniform_: std about 1 / sqrt(fan-in)",
        watch_rules.initial_gain,
    ),
    Watchpoint(
        "weight-init-small", 0.02, "std times root of fan-in",
        "draw it with torch.nn.init.kaiming_normal_ or xavier_uniform_: std about 1 / sqrt(fan-in)",
        watch_rules.initial_gain, below=True,
    ),
    # MindInsight requires 100 % zeros; heads and residual branches start at zero on purpose, and
    # partly.
    Watchpoint(
        "weight-symmetric", 0.0, "largest difference between units that began constant",
        "draw the first weights at random: units that begin alike stay alike",
        watch_rules.alike, below=True,
    ),
    # Statistics that training never updated are those of no data. A look at a first batch may
    # come before the switch to training mode.
    Watchpoint(
        "norm-not-updated", watch_rules.STUCK - 1.0, "steps in eval mode with the first statistics",
        "call train() before the loop: mean 0 and variance 1 normalise nothing",
        watch_rules.idle_norms,
    ),
    # Guidance is |Δw| / |w| near 1e-3 (Karpathy, CS231n, "Ratio of weights:updates"); averaged_cnn,
    # trained at a high rate on purpose, reaches 0.5. A weight that changes by more than its own
    # norm is a new one. MindInsight recommends the same.
    Watchpoint(
        "weight-change-large", 1.0, "|Δw| / |w| of a step",
        "lower the learning rate, tenfold at first; warm it up; clip the gradient's norm",
        watch_rules.large_change,
    ),
    # Gradients of the suites grow 2 times at most.
    Watchpoint(
        "gradient-exploding", 100.0, "RMS of its gradient ÷ that of its first steps",
        "clip the gradient's norm; lower or warm up the learning rate",
        watch_rules.exploding,
    ),
    # A sixth of float16's largest number, 65504. Activations of the suites reach 71.
    Watchpoint(
        "activation-range", 1e4, "largest absolute value",
        "normalise the inputs and the layer; lower the learning rate or the first weights",
        watch_rules.out_of_range,
    ),
    # Half of a gate's 12 units are dead in a healthy mobilenet_digits, so a layer counts as dead
    # only if nearly all units are.
    Watchpoint(
        "dead-units", 0.9, "share of units never positive",
        "lower the learning rate; LeakyReLU or GELU; look at the bias before it",
        watch_rules.dead,
    ),
    Watchpoint(
        "saturated", 0.9, "share of values at the flat ends",
        "smaller first weights, a normalisation layer before it, or another non-linearity",
        watch_rules.saturated,
    ),
    # MindInsight compares with rtol 1e-5; here not one bit of any element changed.
    Watchpoint(
        "weight-unchanged", 0.0, "largest change of an element",
        "look for a detach(), a no_grad() or an unused branch before it, for the learning rate, and"
        " whether the optimiser holds it; freeze on purpose with requires_grad_(False)",
        watch_rules.stuck, below=True,
    ),
    # A ten-thousandth of the guidance: at 1e-7 float32 rounds the step to nothing (2^-24 = 6e-8).
    # MindInsight recommends 1e-4, at which the last steps of a falling schedule would fire.
    Watchpoint(
        "weight-change-small", 1e-6, "|Δw| / |w|, the most of any step",
        "raise the learning rate; look whether the layer is meant to be trained",
        watch_rules.small_change, below=True,
    ),
    # Layers of the suites differ by 50 times at most. MindInsight: mean below 1e-9, for any scale
    # of the loss.
    Watchpoint(
        "gradient-vanishing", 1e-4, "RMS of its gradient ÷ the largest layer's",
        "ReLU or GELU for sigmoid and tanh; normalisation layers; residual connections; He's"
        " initialisation",
        watch_rules.vanishing, below=True,
    ),
    # A judgement: decay outweighs the gradients of a layer whose weights lose nine tenths.
    Watchpoint(
        "weight-shrunk", 0.1, "norm ÷ its first",
        "lower the weight decay; leave norms, biases and embeddings out of it",
        watch_rules.shrunk, below=True,
    ),
    # Five standard errors: of a million trainings that learn nothing, one falls so far by chance.
    Watchpoint(
        "loss-not-decreasing", 5.0, "fall of the loss, in standard errors",
        "overfit one batch first, as preflight does; raise or lower the learning rate tenfold; look"
        " at the labels",
        watch_rules.not_decreasing, below=True,
    ),
)  # fmt: skip
