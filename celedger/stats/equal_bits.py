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

from celedger.stats import draws
from celedger.stats.choice import ALONE, Choice, Cost, choose
from celedger.stats.firstbad import Evidence, Posterior, Question, State, posterior
from celedger.stats.parallel import UnderWay

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


def view(question: Question, evidence: Evidence, alike: Sequence[frozenset[int]] = ()) -> View:
    """Return the posterior of all trials, whole and stopped.

    `alike` are sets of positions, GOOD among them, that computed the same as far as they went.
    """
    if not alike:
        plain = posterior(question, evidence)
        return View(plain, question, plain)
    n = len(question.lineage)
    prior = np.asarray(np.ones(n) if question.prior is None else question.prior, dtype=np.float64)
    agrees = np.where(draws.parted(question.lineage, alike), 0.0, 1.0)
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
    if seen.posterior.state is not State.SEARCHING:
        return None
    best = choose(seen.question, evidence, seen.trusting, cost, beside)
    if best is None and not beside.positions:  # only the doubt is left: whole trials settle it
        best = choose(question, evidence, seen.posterior, cost)
    return best
