"""Stalls: steps far beyond their neighbours. How often, how regular, what share of the time, and
what the process was doing then that it does not do otherwise. Pure: arrays in, dataclasses out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

# A stall lasts at least twice the median of its neighbours, and exceeds it by more than 8 of their
# median deviations: 5.4 standard deviations of a normal distribution, 1 step in 30 million. Less
# than 2 ms above it is what an interrupt or a cold cache costs.
FACTOR = 2.0
DEVIATIONS = 8.0
LEAST = 2e-3  # s
NEIGHBOURS = 15  # on each side: a level that drifts over the training is followed

# What is told of stalls is told at this confidence, after correcting for all periods tried.
CONFIDENCE = 0.999
FEWEST = 3  # stalls of one cause; two may have any reason
LEAST_SHARE = 0.01  # of the time of all steps; below it nobody gains by knowing
FILLED = 0.8  # share of a period's moments at which a stall was seen

# A place explains a stall when at least half of what it lasted too long was spent there, and its
# share of that is twice its share of the other steps: a step slowed as a whole by the machine
# spends its time where every step does.
EXPLAINED = 0.5
LIFT = 2.0


@dataclass(frozen=True, slots=True)
class CodeLine:
    file: str
    function: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f" in {self.function}" if self.function else "")


@dataclass(frozen=True, slots=True)
class Samples:
    """The stack's samples: the step, the phase and the place of each, and seconds it stands for."""

    step: np.ndarray
    phase: np.ndarray  # of str
    place: np.ndarray  # numbers of `places`
    seconds: np.ndarray
    places: tuple[CodeLine, ...]


@dataclass(frozen=True, slots=True)
class Stall:
    """Stalls of one cause. `excess` is what they lasted beyond their neighbours, s in all; `share`
    its part of the time of all steps; `every` a period in steps; `computing` the share of the
    excess in which the process used the processor. `place` is None where no line is their own."""

    steps: tuple[int, ...]
    excess: float
    share: float
    phase: str
    place: CodeLine | None
    collector: bool
    computing: float
    every: int | None
    confidence: float  # of the period


@dataclass(frozen=True, slots=True)
class Stalls:
    """`found`: those with a cause or a period of their own. `unexplained`: steps slow for neither,
    which nothing is concluded from. `machine`: steps slow only because others had the cores."""

    found: tuple[Stall, ...]
    unexplained: tuple[int, ...]
    machine: tuple[int, ...]


def shown(file: str, roots: Mapping[str, str]) -> str:
    """A file's name as people know it: from the tree's root, or under the suite's name."""
    for prefix, name in roots.items():
        if file.startswith(prefix.rstrip("/") + "/"):
            rest = file[len(prefix.rstrip("/")) + 1 :]
            return f"{name}/{rest}" if name else rest
    return file


def find(
    steps: np.ndarray,
    own: np.ndarray,
    wall: np.ndarray,
    phases: Mapping[str, np.ndarray],
    collected: np.ndarray,
    cpu: np.ndarray,
    samples: Samples,
    pauses: Mapping[int, CodeLine],
) -> Stalls:
    """Stalls among timed steps, all arrays one value a step: their numbers, the seconds that are
    their own (`phases` adds up to them), those on the wall's clock, those in the garbage collector
    and those of the processor. `pauses`: where the collector struck, by step."""
    if len(steps) < 2 * NEIGHBOURS:
        return Stalls((), (), ())
    level, slow = _beyond(own)
    wall_slow = _beyond(wall)[1] & ~slow
    excess = own - level
    usual = {name: np.median(values) for name, values in phases.items()}
    groups: dict[tuple[bool, CodeLine | None], list[int]] = defaultdict(list)
    normal = _shares(samples, set(steps[~slow].tolist()))
    for at in np.flatnonzero(slow).tolist():
        groups[_cause(at, steps, excess, collected, samples, normal, pauses)].append(at)
    found: list[Stall] = []
    unexplained: list[int] = []
    for (collector, place), members in groups.items():
        stall = _stall(members, steps, own, excess, phases, usual, cpu, place, collector)
        explained = (place is not None or collector) and len(members) >= FEWEST
        if stall.every is not None or (explained and stall.share >= LEAST_SHARE):
            found.append(stall)
        else:
            unexplained += stall.steps
    found.sort(key=lambda stall: -stall.excess)
    return Stalls(
        tuple(found), tuple(sorted(unexplained)), tuple(map(int, steps[wall_slow].tolist()))
    )


def period(stalled: Sequence[int], watched: Sequence[int]) -> tuple[int | None, float]:
    """The period in steps of stalls among the steps that were watched, and its confidence.

    If stalls fell anywhere with equal chance, each would lie on one lattice of period k with
    probability 1/k: the tail of a binomial, times the k lattices and the periods that were tried
    (Bonferroni).
    """
    if len(stalled) < FEWEST:
        return None, 0.0
    seen = np.asarray(watched)
    at = np.asarray(stalled)
    best, chance = None, 1.0
    longest = (max(stalled) - min(stalled)) // 2
    tried = max(longest - 1, 1)
    for k in range(2, longest + 1):
        phase, hits = Counter((at % k).tolist()).most_common(1)[0]
        moments = seen[(seen % k) == phase]
        moments = moments[(moments >= at.min()) & (moments <= at.max())]
        if hits < FILLED * len(moments) or hits < FEWEST:
            continue
        p = float(binom.sf(hits - 1, len(stalled), 1 / k)) * k * tried
        if p < chance:
            best, chance = k, p
    return (best, 1.0 - chance) if chance <= 1.0 - CONFIDENCE else (None, 0.0)


def _beyond(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The running median of each value's neighbours, and which values are far beyond it."""
    n, width = len(values), 2 * NEIGHBOURS + 1
    starts = np.clip(np.arange(n) - NEIGHBOURS, 0, max(n - width, 0))
    windows = values[starts[:, None] + np.arange(min(width, n))]
    level = np.median(windows, axis=1)
    spread = np.median(np.abs(windows - level[:, None]), axis=1)
    excess = values - level
    beyond = (excess > DEVIATIONS * spread) & (values >= FACTOR * level) & (excess >= LEAST)
    return level, beyond


def _shares(samples: Samples, steps: set[int]) -> dict[int, float]:
    """The share of these steps' samples at each place."""
    chosen = np.isin(samples.step, list(steps)) & (samples.place >= 0)
    total = float(samples.seconds[chosen].sum())
    found: dict[int, float] = defaultdict(float)
    if total > 0:
        for place, seconds in zip(samples.place[chosen], samples.seconds[chosen], strict=True):
            found[int(place)] += float(seconds) / total
    return found


def _cause(
    at: int,
    steps: np.ndarray,
    excess: np.ndarray,
    collected: np.ndarray,
    samples: Samples,
    normal: Mapping[int, float],
    pauses: Mapping[int, CodeLine],
) -> tuple[bool, CodeLine | None]:
    """Whether it was the garbage collector, and the line that the time beyond was spent at."""
    step = int(steps[at])
    if collected[at] >= EXPLAINED * excess[at]:
        return True, pauses.get(step)
    mine = (samples.step == step) & (samples.place >= 0)
    spent: dict[int, float] = defaultdict(float)
    for place, seconds in zip(samples.place[mine], samples.seconds[mine], strict=True):
        spent[int(place)] += float(seconds)
    if not spent:
        return False, None
    total = sum(spent.values())
    best = max(spent, key=lambda place: spent[place] - normal.get(place, 0.0) * total)
    share = spent[best] / total
    if spent[best] < EXPLAINED * excess[at] or share < LIFT * normal.get(best, 0.0):
        return False, None
    return False, samples.places[best]


def _stall(
    members: Sequence[int],
    steps: np.ndarray,
    own: np.ndarray,
    excess: np.ndarray,
    phases: Mapping[str, np.ndarray],
    usual: Mapping[str, float],
    cpu: np.ndarray,
    place: CodeLine | None,
    collector: bool,
) -> Stall:
    at = np.asarray(members)
    beyond = {name: float((values[at] - usual[name]).sum()) for name, values in phases.items()}
    total = float(excess[at].sum())
    every, confidence = period(steps[at].tolist(), steps.tolist())
    extra_cpu = float((cpu[at] - np.median(cpu)).sum())
    return Stall(
        steps=tuple(map(int, steps[at].tolist())),
        excess=total,
        share=total / float(own.sum()),
        phase=max(beyond, key=lambda name: beyond[name]),
        place=place,
        collector=collector,
        computing=min(max(extra_cpu / total, 0.0), 1.0),
        every=every,
        confidence=confidence,
    )
