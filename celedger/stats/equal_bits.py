"""What trials say that were stopped because they repeated others bit by bit. Pure: positions in.

Positions that computed the same so far lie on one side. That is a weight of the candidates beside
the evidence of whole trials, and it is doubted: a change may act only later. So however many
stopped trials agree, they outweigh whole ones by the odds of that doubt only, and a commit is
named after whole trials of it and its parents, as ever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from celedger.stats.arrays import Bools
from celedger.stats.choice import ALONE, Choice, Cost, UnderWay, choose
from celedger.stats.firstbad import Evidence, Phase, Posterior, Question, Reading, posterior
from celedger.stats.lineage import GOOD, Lineage

DOUBT = 0.05
"""Prior probability that equal bits so far do not mean one side: the change acts later."""
NEGLIGIBLE = 1e-5
"""Values of a seed are the same if they differ by less than this part of the most that any seed
differs between the ends: rounding moved cmaes by 2e-6 of that. At .001 noise that seeds share
passes for it, in one search of twenty."""


@dataclass(frozen=True)
class View:
    """The answer so far, and what to look for next."""

    posterior: Posterior
    """With the doubt: what may be said."""
    question: Question
    trusting: Posterior
    """Without the doubt, under `question`: where to look next."""


def view(question: Question, evidence: Evidence, alike: Sequence[frozenset[int]] = ()) -> View:
    """Return the posterior of all trials, whole and stopped.

    `alike` are sets of positions, GOOD among them, that computed the same as far as they went.
    """
    if not alike:
        plain = posterior(question, evidence)
        return View(plain, question, plain)
    n = len(question.lineage)
    prior = np.asarray(np.ones(n) if question.prior is None else question.prior, dtype=np.float64)
    agrees = np.where(parted(question.lineage, alike), 0.0, 1.0)
    mean = float(prior @ agrees / prior.sum())
    trusted = doubted = np.ones(n)  # they may contradict each other
    if mean > 0:
        trusted, doubted = agrees, (1 - DOUBT) * agrees / mean + DOUBT
    asked = replace(question, prior=(prior * trusted).tolist())
    whole = posterior(replace(question, prior=(prior * doubted).tolist()), evidence)
    return View(whole, asked, posterior(asked, evidence, like=whole))


def pick(
    question: Question,
    evidence: Evidence,
    seen: View,
    cost: Cost | None = None,
    beside: UnderWay = ALONE,
) -> Choice | None:
    """Return the next trial beside those under way, by bits a second; None when the answer stands
    or none tells more."""
    if seen.posterior.state is not Phase.SEARCHING:
        return None
    best = choose(seen.question, evidence, seen.trusting, cost, beside)
    if best is None and not beside.positions:  # only the doubt is left: whole trials settle it
        best = choose(question, evidence, seen.posterior, cost)
        return best and replace(best, gain=0.0)
    return best


def joined(readings: Sequence[Reading], bad: int) -> tuple[Reading, ...]:
    """Return the readings with the values and bits of a seed made equal where they differ by next
    to nothing: rounding changes bits, and no level."""
    value = {(r.position, r.seed): r.value for r in readings if isfinite(r.value)}
    seeds = [seed for at, seed in value if at == bad and (GOOD, seed) in value]
    apart = (abs(value[bad, seed] - value[GOOD, seed]) for seed in seeds)
    least = NEGLIGIBLE * max(apart, default=0.0)
    result, first = list(readings), None
    for i in sorted(range(len(result)), key=lambda i: (result[i].seed or 0, result[i].value)):
        reading = result[i]
        if first is None or first.seed != reading.seed or reading.value - first.value > least:
            first = reading
        result[i] = replace(reading, value=first.value, draw=first.draw)
    return tuple(result)


def alike(
    readings: Sequence[Reading], position: int, others: Sequence[frozenset[int]] = ()
) -> frozenset[int]:
    """Return the positions whose bits are known to be those of `position`, itself among them: a
    trial there tells something new only with a seed that none of them had. `others` are further
    sets of positions that computed the same."""
    places: dict[int, set[int]] = {}
    for reading in readings:
        if reading.draw is not None:
            places.setdefault(reading.draw, set()).add(reading.position)
    groups = [some for some in (*places.values(), *others) if len(some) > 1]
    positions = {position}
    while joined := [some for some in groups if some & positions and not some <= positions]:
        positions.update(*joined)
    return frozenset(positions)


def parted(lineage: Lineage, groups: Iterable[Collection[int]]) -> Bools:
    """Return (n,) True where a candidate puts the members of one group on different sides."""
    apart = np.zeros(len(lineage), dtype=bool)
    for places in groups:
        split = lineage.split(sorted(places))
        apart |= np.any(split.bad[:, 1:] != split.bad[:, :1], axis=1)[split.group]
    return apart
