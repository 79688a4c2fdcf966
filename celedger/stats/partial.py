"""What trials that were stopped early say of the first bad commit. Pure: arrays and positions in.

Two kinds of them. Positions that computed the same so far, bit by bit, lie on one side
(`Partial.alike`). And a metric after some of its epochs, at a *rung*, has a good and a bad level
and a noise of its own, learned from the whole trials (`Rung`). Both become weights of the
candidates beside the evidence of whole trials, and both are doubted as a whole: a commit may
change the numbers at first and not in the end, or the other way round. So however many stopped
trials agree, they outweigh whole ones by the odds of that doubt only, and a commit is named after
whole trials of it and its parents, as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil

import numpy as np
from numpy.typing import NDArray

from celedger.stats.choice import SURE_SHIFT, Choice, Cost, capacity, choose
from celedger.stats.firstbad import (
    Evidence,
    Posterior,
    Question,
    Reading,
    State,
    posterior,
)
from celedger.stats.lineage import GOOD, Lineage

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

FRACTIONS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4)
"""Parts of a training after which it may be stopped."""
ALIKE_DOUBT = 0.05
"""Prior probability that equal bits so far do not mean one side: the change acts later."""
RUNG_DOUBT = 0.10
"""The same for levels at a rung: more changes show early and vanish than bits do. Whole trials
overrule it (benchmarks/curve_simulator.py, cells `early`)."""
CLEAR_RUNG = 0.05
"""A rung is used once whole trials leave at most this probability that nothing changed at it."""
ADVANTAGE = 2.0
"""And where it tells so many times more bits a second than the whole trial: the doubt about rungs
and the neighbours' whole trials have to be paid for. At 1.25 and 4 sd a search took 10.8 trials
instead of 7.4 for 10 % fewer epochs (16 cases)."""
LEAST = 0.6
"""And where one trial tells at least this part of what the whole one does. Cheaper and blinder
rungs save epochs, but take trials by the hundred, each with its start and its checkout."""
_TINY = 1e-250

Memory = dict[tuple[Reading, ...], Posterior]


@dataclass(frozen=True)
class Rung:
    """A metric after its first `epochs` epochs; `share` is their part of a whole trial's cost."""

    epochs: int
    share: float
    whole: tuple[Reading, ...]
    """Of trials that went on to their end."""
    stopped: tuple[Reading, ...] = ()
    """Of trials that ended here."""


@dataclass(frozen=True)
class Partial:
    """All that stopped trials say."""

    alike: tuple[frozenset[int], ...] = ()
    """Positions, GOOD among them, that computed the same as far as they went."""
    rungs: tuple[Rung, ...] = ()
    memory: Memory = field(default_factory=dict, repr=False, compare=False)
    """What rungs were found to tell, kept over the steps of one search."""


@dataclass(frozen=True)
class View:
    """The answer so far, and what to look for next."""

    posterior: Posterior
    """With every doubt: what may be said."""
    question: Question
    trusting: Posterior
    """Without the doubts about stopped trials, under `question`: where to look next."""


@dataclass(frozen=True)
class Pick:
    """The next trial: whole, or stopped after `epochs` of its epochs at the latest."""

    choice: Choice
    whole: bool
    """Its end is what is asked: an end of the range, or a confirmation."""
    epochs: int | None = None

    @property
    def position(self) -> int:
        return self.choice.position


def rungs(epochs: int) -> tuple[int, ...]:
    """After how many of its `epochs` a training may be stopped."""
    return tuple(sorted({ceil(part * epochs) for part in FRACTIONS} - {epochs, 0}))


def view(question: Question, evidence: Evidence, partial: Partial) -> View:
    """The posterior of all trials, whole and stopped."""
    told = [_told(question, rung, partial.memory) for rung in partial.rungs if rung.stopped]
    sharp = _agrees(question.lineage, partial.alike)
    if not partial.alike and not told:
        only = posterior(question, evidence)
        return View(only, question, only)
    prior = _prior(question)
    level = np.prod([np.ones(len(prior)), *told], axis=0)
    doubted = _doubt(prior, sharp, ALIKE_DOUBT) * _doubt(prior, level, RUNG_DOUBT)
    trusted = sharp * level
    if not (prior * trusted).sum() > 0:  # they contradict one another
        trusted = doubted
    asked = replace(question, prior=_weights(prior * trusted))
    whole = posterior(replace(question, prior=_weights(prior * doubted)), evidence)
    return View(whole, asked, posterior(asked, evidence, like=whole))


def pick(
    question: Question,
    evidence: Evidence,
    partial: Partial,
    seen: View,
    cost: Cost | None = None,
) -> Pick | None:
    """The next trial, by bits a second over whole trials and rungs; None when the answer stands
    or nothing could tell more."""
    if seen.posterior.state is not State.SEARCHING:
        return None
    cost = cost or Cost()
    best = choose(seen.question, evidence, seen.trusting, cost)
    if best is None:  # only the doubt is left: whole trials settle it
        best = choose(question, evidence, seen.posterior, cost)
    if best is None:
        return None
    if best.gain == 0:
        return Pick(best, whole=True)
    worth = best.gain / cost.at(best.position) * ADVANTAGE
    chosen = Pick(best, whole=False)
    rung = _clearest(question, partial, seen)
    found = None
    if rung is not None:
        found = _at_rung(question, seen, rung, cost, partial.memory, evidence.untestable)
    if rung is None or found is None:
        return chosen
    where, rate = found
    if rate > worth and where.gain >= LEAST * best.gain:
        return Pick(where, whole=False, epochs=rung.epochs)
    return chosen


def _clearest(question: Question, partial: Partial, seen: View) -> Rung | None:
    """The rung that tells most bits a second by its whole trials; None where none is clear."""
    best, chosen = 0.0, None
    last = _shift(seen.trusting)
    if last is None:
        return None
    for rung in sorted(partial.rungs, key=lambda rung: rung.share):
        if best >= 1 / max(rung.share, 1e-9):
            break  # a trial tells one bit at most
        known = _plain(question, rung.whole, partial.memory)
        if known.belief is None or known.no_change > CLEAR_RUNG or not known.effect_low > 0:
            continue
        shift = _shift(known)
        if shift is None or capacity(shift) < LEAST * capacity(last):
            continue
        worth = capacity(shift) / max(rung.share, 1e-9)
        if worth > best:
            best, chosen = worth, rung
    return chosen


def _shift(posterior: Posterior) -> float | None:
    """The shift believed in, in sds of a trial; None where there is none."""
    if posterior.belief is None or not posterior.effect > 0:
        return None
    return min(posterior.effect / max(posterior.noise, _TINY), SURE_SHIFT)


def _at_rung(
    question: Question,
    seen: View,
    rung: Rung,
    cost: Cost,
    memory: Memory,
    untestable: frozenset[int],
) -> tuple[Choice, float] | None:
    """The best trial that ends at this rung, and its bits a second."""
    readings = Evidence((*rung.whole, *rung.stopped), untestable)
    here = _plain(question, readings.readings, memory)
    # The same belief as `seen.trusting`, reached through this rung's own readings.
    prior = _weights(np.asarray(seen.trusting.probability) / np.maximum(here.probability, _TINY))
    asked = replace(question, prior=prior, noise=None, floor=0.0)
    found = posterior(asked, readings, like=here)
    where = choose(asked, readings, found, cost)
    if where is None or where.gain == 0:
        return None
    seconds = cost.at(where.position) - _trial(cost, where.position) * (1 - rung.share)
    return where, (1 - RUNG_DOUBT) * where.gain / seconds


def _trial(cost: Cost, position: int) -> float:
    seconds = cost.seconds
    return float(seconds if isinstance(seconds, (int, float)) else seconds[position])


def _plain(question: Question, readings: tuple[Reading, ...], memory: Memory) -> Posterior:
    """What readings at one rung say by themselves: nothing is known of a rung beforehand."""
    if readings not in memory:
        plain = replace(question, prior=None, noise=None, floor=0.0)
        memory[readings] = posterior(plain, Evidence(readings))
    return memory[readings]


def _told(question: Question, rung: Rung, memory: Memory) -> Floats:
    """(n,) likelihood of the stopped trials at a rung, given the whole ones' values there, of
    every candidate, up to a factor."""
    before = _plain(question, rung.whole, memory)
    after = _plain(question, (*rung.whole, *rung.stopped), memory)
    if before.belief is None or after.belief is None:
        return np.ones(len(question.lineage))
    possible = np.maximum(before.probability, after.probability) > _TINY
    ratio = np.maximum(after.probability, _TINY) / np.maximum(before.probability, _TINY)
    return np.asarray(np.where(possible, ratio / ratio[possible].max(), _TINY), dtype=np.float64)


def _agrees(lineage: Lineage, alike: Sequence[frozenset[int]]) -> Floats:
    """(n,) 1 where a candidate leaves all positions that are alike on one side, else 0."""
    agrees = np.ones(len(lineage))
    for places in alike:
        split = lineage.split(sorted(places))
        here = split.bad.sum(axis=1)  # of the positions, made bad by a group
        parted: Bools = (here > 0) & (here < len(places))
        agrees[parted[split.group]] = 0.0
    return agrees


def _doubt(prior: Floats, likelihood: Floats, doubt: float) -> Floats:
    """(n,) the likelihood mixed with one that says nothing."""
    mean = float(prior @ likelihood)
    if not mean > 0:
        return np.ones(len(prior))
    return (1 - doubt) * likelihood / mean + doubt


def _prior(question: Question) -> Floats:
    if question.prior is None:
        return np.full(len(question.lineage), 1 / len(question.lineage))
    return _scaled(np.asarray(question.prior, dtype=np.float64))


def _weights(weights: Floats) -> Sequence[float]:
    return list(map(float, _scaled(weights)))


def _scaled(weights: Floats) -> Floats:
    return np.asarray(weights / weights.max() / (weights / weights.max()).sum(), dtype=np.float64)


__all__ = [
    "FRACTIONS", "GOOD", "Partial", "Pick", "Rung", "View", "pick", "rungs", "view",
]  # fmt: skip
