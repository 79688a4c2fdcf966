"""Evidence of equal bits about the first bad commit: from stopped trials, and from signatures
(digests of a training's first steps).

A trial that was stopped because it repeats others bit by bit probably lies on their side. A change
may act only later, so all stopped trials together move the odds by no more than that doubt, and a
commit is named only after whole trials of it and its parents. A commit that makes a training worse
mostly changes what its first steps compute: that is a prior, and never proof. Pure: positions and
digests in, numbers out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite

import numpy as np

from celedger.stats import Bools, Floats, Ints
from celedger.stats.choice import ALONE, Choice, Cost, UnderWay, choose
from celedger.stats.firstbad import Evidence, Phase, Posterior, Question, Reading, posterior
from celedger.stats.lineage import GOOD, Lineage, unpack
from celedger.stats.seed_choice import binary, entropy

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


SHOWN, HIDDEN = 6.5, 3.5
"""Beta prior of the chance that a first bad commit shows in its signature. 78 of 94 planted faults
do within five steps, and 91 in two batches an epoch. But where none does, 8 % of the answers are
wrong at .8 and 3 % at .65 (2 sd), and at 4 sd that costs 4 % more seconds where nine of ten do
(benchmarks/bisect_simulator.py, cells `signed`)."""
MOST_SHOWN = 0.95
_CREDIBLE = 0.98
"""Probability of the candidates among which a commit is signed."""
_STRAY = 0.5
"""Expected changes of bits outside them, up to the next signature, from which their ends are signed
first."""
_SAMPLES = 1024
"""Members at most that stand for all where they are halved."""
_RATES = np.geomspace(0.005, 0.9, 24)
_RATE_PRIOR = _RATES * (1 - _RATES) ** 2
"""Shares of commits that change the bits, and their prior: Beta(1, 3) on a grid of logarithms."""


def shows(shown: int, hidden: int) -> float:
    """Return the chance that a first bad commit shows in its signature, where so many of those that
    were found did and did not."""
    return min((SHOWN + shown) / (SHOWN + HIDDEN + shown + hidden), MOST_SHOWN)


@dataclass(frozen=True)
class SignedRange:
    """Candidates with the digests of those that were signed, by position.

    Args:
        weights: (n,) prior weights without signatures; those of weight 0 change nothing.
        shows: The chance that the first bad commit shows.
        closed: Positions that cannot be signed.
    """

    lineage: Lineage
    digests: Mapping[int, str]
    weights: Floats
    shows: float
    closed: Collection[int] = ()

    def prior(self) -> Floats:
        """(n,) weight of each candidate, to be multiplied with `weights`; 1 on average."""
        visible, hidden = self._weights
        mean = self._chance_of_rate @ (visible + hidden)
        average = float(self.weights @ mean / self.weights.sum())
        return np.asarray(mean / average) if average > 0 else np.ones(len(self.lineage))

    def next(self, probability: Floats) -> tuple[int, float] | None:
        """Return the position to sign next, and the bits of the answer that signatures like it are
        expected to tell each; None where none tells anything. `probability`: (n,), by now."""
        q = np.where(self._quiet, 0.0, probability)
        order = np.argsort(-q, kind="stable")
        credible = np.zeros(len(q), dtype=bool)
        credible[order[: int(np.searchsorted(np.cumsum(q[order]), _CREDIBLE * q.sum())) + 1]] = True
        credible &= q > 0
        best: tuple[float, Ints] | None = None
        for group in range(len(self._sizes)):
            members = np.flatnonzero((self._group == group) & credible)
            if len(members) and (len(members) > 1 or not self._closed_group[group]):
                rate = self._bits_each(group, q[members], members)
                if rate > 0 and (best is None or rate > best[0]):
                    best = rate, members
        if best is None:
            return None
        position = self._position(best[1], q)
        return None if position is None else (position, best[0])

    @cached_property
    def _quiet(self) -> Bools:
        """(n,) True for candidates between two commits whose bits are equal."""
        places: dict[str, list[int]] = {}
        for position, digest in self.digests.items():
            places.setdefault(digest, []).append(position)
        return parted(self.lineage, [some for some in places.values() if len(some) > 1])

    @cached_property
    def _group(self) -> Ints:
        """(n,) the group of candidates that the signed positions do not part."""
        return self.lineage.split(sorted(self.digests)).group

    @cached_property
    def _sizes(self) -> Floats:
        """(G,) candidates of each group that may change bits."""
        return np.bincount(self._group, np.minimum(self.weights, 1.0)).astype(float)

    @cached_property
    def _closed_group(self) -> Bools:
        """(G,) True where both sides of a group are signed: there its bits are known to change."""
        bad = self.lineage.split(sorted(self.digests)).bad
        return np.asarray(bad.any(axis=1) & ~bad.all(axis=1))

    @cached_property
    def _quiet_group(self) -> Bools:
        return np.bincount(self._group, self._quiet, len(self._sizes)) > 0

    @cached_property
    def _chance_of_rate(self) -> Floats:
        """(R,) posterior of the share of commits that change the bits."""
        none = (1 - _RATES[:, None]) ** self._sizes
        known = np.where(self._quiet_group, none, np.where(self._closed_group, 1 - none, 1.0))
        weight = _RATE_PRIOR * known.prod(axis=1)
        return np.asarray(weight / weight.sum())

    @cached_property
    def _changes(self) -> Floats:
        """(R, G) chance that a commit of a group changes the bits."""
        rates = np.broadcast_to(_RATES[:, None], (len(_RATES), len(self._sizes)))
        some = 1 - (1 - rates) ** np.maximum(self._sizes, 1.0)
        return np.where(self._quiet_group, 0.0, np.where(self._closed_group, rates / some, rates))

    @cached_property
    def _weights(self) -> tuple[Floats, Floats]:
        """(R, n) each: weight of a candidate that shows, and of one that does not."""
        change = self._changes[:, self._group]
        number = change @ self.weights
        others = (1 - change) @ self.weights
        some, rest = number[:, None] > 0, others[:, None] > 0
        visible = np.where(some, self.shows * change / np.where(some, number[:, None], 1.0), 0.0)
        hidden = (1 - self.shows) * (1 - change) / np.where(rest, others[:, None], 1.0)
        return visible, np.where(some, hidden, (1 - change) / np.where(rest, others[:, None], 1.0))

    def _bits_each(self, group: int, q: Floats, members: Ints) -> float:
        """Return the bits that a signature tells if the members of a group are signed until all
        their changes of bits are found."""
        mass = float(q.sum())
        size = float(np.exp(entropy(q / mass)))
        visible, hidden = (w[:, members].mean(axis=1) for w in self._weights)
        share = visible / np.maximum(visible + hidden, 1e-300)
        changes = np.clip(self._changes[:, group] * size, 1.0, size)
        after = (
            binary(share) + share * np.log2(changes)
            + (1 - share) * np.log2(np.maximum(size - changes, 1.0))
        )  # fmt: skip
        gain = mass * np.maximum(np.log2(size) - after, 0.0)
        ends = 0.0 if self._closed_group[group] else 2.0
        cost = ends + np.minimum(changes * (np.log2(size / changes) + 1), size)
        return float(self._chance_of_rate @ (gain / cost))

    def _position(self, members: Ints, q: Floats) -> int | None:
        """Return which position parts the members: an end of theirs, or what halves them."""
        lineage, rate = self.lineage, float(self._chance_of_rate @ _RATES)
        inside = np.flatnonzero(self._group == self._group[members[0]])
        ends = [GOOD, lineage.bad]
        if lineage.linear:
            strays = rate * (inside < members[0]).sum(), rate * (inside > members[-1]).sum()
            ends = [
                int((members if stray > _STRAY else inside)[at]) - (at == 0)
                for at, stray in zip((0, -1), strays, strict=True)
            ]
        for end in ends:
            if end not in self.digests and end not in self.closed:
                return end
        some = np.unique(np.linspace(0, len(members) - 1, _SAMPLES).astype(int))
        members = members if len(members) <= _SAMPLES else members[some]
        mass = q[members]
        made_bad = unpack(lineage.reach(members.tolist()), len(members)) @ mass
        made_bad[[p for p in {*self.digests, *self.closed} if p != GOOD]] = np.inf
        at = int(np.argmin(np.abs(made_bad - mass.sum() / 2)))
        return at if 0 < made_bad[at] < mass.sum() * (1 - 1e-9) else None
