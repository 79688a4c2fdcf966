"""What trials say that were stopped because they repeated others bit by bit. Pure: positions in.

Positions that computed the same so far lie on one side. That is a weight of the candidates beside
the evidence of whole trials, and it is doubted: a change may act only later. So however many
stopped trials agree, they outweigh whole ones by the odds of that doubt only, and a commit is
named after whole trials of it and its parents, as ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from celedger.stats.choice import Choice, Cost, choose
from celedger.stats.firstbad import Evidence, Posterior, Question, State, posterior
from celedger.stats.lineage import Lineage

Floats = NDArray[np.float64]

DOUBT = 0.05
"""Prior probability that equal bits so far do not mean one side: the change acts later."""


@dataclass(frozen=True)
class View:
    """The answer so far, and what to look for next."""

    posterior: Posterior
    """With the doubt: what may be said."""
    question: Question
    trusting: Posterior
    """Without the doubt, under `question`: where to look next."""


@dataclass(frozen=True)
class Pick:
    """The next trial. `whole`: its end is asked, at an end of the range or to confirm."""

    choice: Choice
    whole: bool

    @property
    def position(self) -> int:
        return self.choice.position


def view(question: Question, evidence: Evidence, alike: Sequence[frozenset[int]] = ()) -> View:
    """Return the posterior of all trials, whole and stopped.

    `alike` are sets of positions, GOOD among them, that computed the same as far as they went.
    """
    if not alike:
        plain = posterior(question, evidence)
        return View(plain, question, plain)
    prior = _prior(question)
    likelihood = _agrees(question.lineage, alike)
    doubted = _doubt(prior, likelihood)
    trusted = likelihood if (prior * likelihood).sum() > 0 else doubted  # they may contradict
    asked = replace(question, prior=_weights(prior * trusted))
    whole = posterior(replace(question, prior=_weights(prior * doubted)), evidence)
    return View(whole, asked, posterior(asked, evidence, like=whole))


def pick(
    question: Question, evidence: Evidence, seen: View, cost: Cost | None = None
) -> Pick | None:
    """Return the next trial, by bits a second; None when the answer stands or none tells more."""
    if seen.posterior.state is not State.SEARCHING:
        return None
    cost = cost or Cost()
    best = choose(seen.question, evidence, seen.trusting, cost)
    if best is None:  # only the doubt is left: whole trials settle it
        best = choose(question, evidence, seen.posterior, cost)
    return None if best is None else Pick(best, whole=best.gain == 0)


def _agrees(lineage: Lineage, alike: Sequence[frozenset[int]]) -> Floats:
    """Return (n,) 1 where a candidate leaves all positions that are alike on one side, else 0."""
    agrees = np.ones(len(lineage))
    for positions in alike:
        split = lineage.split(sorted(positions))
        bad = split.bad.sum(axis=1)  # of the positions, made bad by a group
        parted = (bad > 0) & (bad < len(positions))
        agrees[parted[split.group]] = 0.0
    return agrees


def _doubt(prior: Floats, likelihood: Floats) -> Floats:
    """Return (n,) the likelihood mixed with one that says nothing."""
    mean = float(prior @ likelihood)
    if not mean > 0:
        return np.ones(len(prior))
    return (1 - DOUBT) * likelihood / mean + DOUBT


def _prior(question: Question) -> Floats:
    if question.prior is None:
        return np.full(len(question.lineage), 1 / len(question.lineage))
    return _scaled(np.asarray(question.prior, dtype=np.float64))


def _weights(weights: Floats) -> Sequence[float]:
    return list(map(float, _scaled(weights)))


def _scaled(weights: Floats) -> Floats:
    return np.asarray(weights / weights.max() / (weights / weights.max()).sum(), dtype=np.float64)
