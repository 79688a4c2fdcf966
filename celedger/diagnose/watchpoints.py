"""Watchpoints: what in a training is out of its range, where it began, and what to try.

Each watchpoint has a figure, a recommended threshold beyond which it fires, and the reason for it
beside it. The thresholds were set so that no task of the shipped suites fires one (docs/watch.md
has the distance of each), and can be changed. Where MindInsight's debugger recommends a value
(conditionmgr/recommender.py of MindSpore's MindInsight), it is named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from celedger.diagnose import watch_rules
from celedger.diagnose.watch_rules import TensorPlace
from celedger.diagnose.watched import Watched
from celedger.errors import UsageError


@dataclass(frozen=True, slots=True)
class Watchpoint:
    """`recommended`: the figure beyond which it fires (below which, with `below`)."""

    name: str
    recommended: float
    measures: str  # the figure, in words
    advice: str
    find: Callable[[Watched, float], Iterable[TensorPlace]]  # every place beyond a threshold
    below: bool = False


@dataclass(frozen=True, slots=True)
class WatchpointFinding:
    watchpoint: Watchpoint
    threshold: float
    first: TensorPlace  # the earliest step, and in it what the training made first
    more: int  # other modules and tensors where it fired, too


def limits(values: Mapping[str, float]) -> dict[str, float]:
    """The thresholds: the recommended ones, with those given changed. Raises UsageError."""
    known = {point.name: point.recommended for point in WATCHPOINTS}
    for name in values:
        if name not in known:
            raise UsageError(f"there is no watchpoint {name!r}", f"there are {', '.join(known)}")
    return known | dict(values)


def judge(
    training: Watched, thresholds: Mapping[str, float] | None = None
) -> list[WatchpointFinding]:
    """What fired, in the order of `WATCHPOINTS`: causes before consequences."""
    bounds = limits(thresholds or {})
    found = []
    clean = watch_rules.sound(training)
    for point in WATCHPOINTS:
        seen = training if point.name == "overflow" else clean
        places = list(point.find(seen, bounds[point.name]))
        if places:
            first = min(places, key=lambda place: place.step)
            others = {(place.module, place.tensor) for place in places}
            found.append(WatchpointFinding(point, bounds[point.name], first, len(others) - 1))
    return found


WATCHPOINTS = (
    # MindInsight recommends the same: any value that is not finite.
    Watchpoint(
        "overflow", math.inf, "largest absolute value",
        "look at that operator's inputs: a division, logarithm, root or exponential without a"
        " bound; in half precision, compute it in float32 (`.float()`) or lower the loss scale",
        watch_rules.overflow,
    ),
    # With a quarter of its values gone an operator computes something else. A judgement: healthy
    # trainings of the suites in float32 and bfloat16 lose none, float16 ones were not measured.
    Watchpoint(
        "underflow", 0.25, "share of non-zero values made zero",
        "in the backward pass scale the loss (see below); in the forward pass compute in float32,"
        " and log(1 + x) as log1p(x)",
        watch_rules.underflow,
    ),
    Watchpoint(
        "stale-batch", watch_rules.STUCK - 1.0, "looks with the same batch",
        "draw the next batch inside the loop; look at `next(iter(loader))` and the sampler's seed",
        watch_rules.stale,
    ),
    # He et al. 2015 want std = gain / sqrt(fan-in) with gain sqrt(2); torch's default has 0.58, and
    # the largest gain of torch.nn.init.calculate_gain is 5/3. Three times that: 5. Below 1/50 eight
    # layers shrink a signal beyond float32; a branch scaled by depth (GPT-2: 1/sqrt(2 N)) has 0.05.
    Watchpoint(
        "weight-init-large", 5.0, "std times root of fan-in",
        "draw it with torch.nn.init.kaiming_normal_ or xavier_uniform_: std about 1 / sqrt(fan-in)",
        watch_rules.large_init,
    ),
    Watchpoint(
        "weight-init-small", 0.02, "std times root of fan-in",
        "draw it with torch.nn.init.kaiming_normal_ or xavier_uniform_: std about 1 / sqrt(fan-in)",
        watch_rules.small_init, below=True,
    ),
    # MindInsight asks for 100 % zeros; heads and residual branches begin so on purpose, and part.
    Watchpoint(
        "weight-symmetric", 0.0, "largest difference between units, after 3 steps",
        "draw the first weights at random: units that begin alike stay alike",
        watch_rules.alike, below=True,
    ),
    # MindInsight compares with rtol 1e-5; here not one bit of any element moved.
    Watchpoint(
        "weight-unchanged", 0.0, "largest change of an element",
        "look for a detach(), a no_grad() or an unused branch before it, for the learning rate, and"
        " whether the optimiser holds it; freeze on purpose with requires_grad_(False)",
        watch_rules.stuck, below=True,
    ),
    # Guidance is |Δw| / |w| near 1e-3 (Karpathy, CS231n, "Ratio of weights:updates"); averaged_cnn,
    # trained at a high rate on purpose, reaches 0.5. Nothing is left of a weight that moves by more
    # than itself. MindInsight recommends the same.
    Watchpoint(
        "weight-change-large", 1.0, "|Δw| / |w| of a step",
        "lower the learning rate, tenfold at first; warm it up; clip the gradient's norm",
        watch_rules.large_change,
    ),
    # A ten-thousandth of the guidance: at 1e-7 float32 rounds the step away (2^-24 = 6e-8).
    # MindInsight recommends 1e-4, where the last steps of a falling schedule would fire.
    Watchpoint(
        "weight-change-small", 1e-6, "|Δw| / |w|, the most of any step",
        "raise the learning rate; look whether the layer is meant to be trained",
        watch_rules.small_change, below=True,
    ),
    # Layers of the suites differ by 50 times at most. MindInsight: mean below 1e-9, whatever the
    # scale of the loss.
    Watchpoint(
        "gradient-vanishing", 1e-4, "RMS of its gradient beside the largest layer's",
        "ReLU or GELU for sigmoid and tanh; normalisation layers; residual connections; He's"
        " initialisation",
        watch_rules.vanishing, below=True,
    ),
    # Gradients of the suites grow 2 times at most.
    Watchpoint(
        "gradient-exploding", 100.0, "RMS of its gradient beside its first steps'",
        "clip the gradient's norm; lower or warm up the learning rate",
        watch_rules.exploding,
    ),
    # A sixth of float16's largest number, 65504. Activations of the suites reach 71.
    Watchpoint(
        "activation-range", 1e4, "largest absolute value",
        "normalise the inputs and the layer; lower the learning rate or the first weights",
        watch_rules.out_of_range,
    ),
    # Half of a gate's 12 units are dead in a healthy mobilenet_digits: a layer is dead when nearly
    # all are.
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
    # Five standard errors: of a million trainings that learn nothing, one falls that far by chance.
    Watchpoint(
        "loss-not-decreasing", 5.0, "fall of the loss, in standard errors",
        "overfit one batch first, as preflight does; raise or lower the learning rate tenfold; look"
        " at the labels",
        watch_rules.not_decreasing, below=True,
    ),
)  # fmt: skip
