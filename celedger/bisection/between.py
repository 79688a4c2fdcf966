"""A commit between the ends that is worse than both: what got worse there is good again at BAD, so
a search from end to end finds no change. A test of the trials that there are; runs nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from celedger.model import Commit
from celedger.repo import History
from celedger.stats import firstbad
from celedger.stats.lineage import GOOD, Lineage

_TRIED = 3  # commits, the worst first


@dataclass(frozen=True, slots=True)
class Between:
    """A commit that is worse than both ends, and the mean values there, in the metric's unit."""

    commit: Commit
    value: float
    good: float
    bad: float


def worse_between(
    history: History,
    good: Commit,
    question: firstbad.Question,
    evidence: firstbad.Evidence,
    sign: int,
) -> Between | None:
    """Return a commit after GOOD that is surely worse than both ends, where these are alike.
    `sign` turns a reading, of which larger is worse, into the metric's value.

    Surely: as a bisect from GOOD to it would start from these trials. The ends' are taken
    together, and the chance of an error is shared by all commits that could have been chosen.
    """
    bad = question.lineage.bad
    values: dict[int, list[float]] = {}
    for reading in evidence.readings:
        values.setdefault(reading.position, []).append(reading.value)
    if question.binary or not {GOOD, bad} <= values.keys():
        return None
    means = {position: math.fsum(these) / len(these) for position, these in values.items()}
    after: set[int] = set()
    for position, commit in enumerate(history.commits):
        if good.sha in commit.parents or not after.isdisjoint(history.parents[position]):
            after.add(position)
    inside = sorted(means.keys() & after - {bad}, key=lambda p: (-means[p], p))
    for position in inside[:_TRIED]:
        if means[position] <= max(means[GOOD], means[bad]) + question.floor:
            break
        none = _unchanged(question, evidence, position)
        if none <= (1 - question.confidence) / len(inside):
            at = [sign * means[p] for p in (position, GOOD, bad)]
            return Between(history.commits[position], *at)
    return None


def _unchanged(question: firstbad.Question, evidence: firstbad.Evidence, last: int) -> float:
    """Return the probability that nothing changed up to a position, BAD being as GOOD is."""
    lineage = question.lineage
    inside = [int(p) for p in np.flatnonzero(lineage.ancestors(last))]
    number = {position: i for i, position in enumerate(inside)} | {GOOD: GOOD, lineage.bad: GOOD}
    part = firstbad.Question(
        Lineage(tuple(tuple(number[p] for p in lineage.parents[i]) for i in inside)),
        question.confidence, question.noise, floor=question.floor,
    )  # fmt: skip
    readings = tuple(
        replace(reading, position=number[reading.position])
        for reading in evidence.readings
        if reading.position in number
    )
    return firstbad.posterior(part, firstbad.Evidence(readings)).no_change
