"""The loop of a bisect: keep all workers busy with the trials that tell most, and take each in as
soon as it ends. Must not know how a trial is chosen, nor where it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum

from celedger.base.model import TrialRecord
from celedger.judge.bisection.one_metric import Track
from celedger.trial.engine import Engine, Need


class Aim(Enum):
    """Why a trial is run."""

    NARROW = "narrow"
    """It tells which commits are left."""
    CONFIRM = "confirm"
    """Its end is asked: it is of an end of the range, of the leader or of its parent."""
    LOOK = "look"
    """The ends are alike, and it tells whether a commit between them is, too."""
    NAMED = "named"
    """It is of a named commit, of which only others of its class had trials."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The next trial, and the metrics that it is for."""

    need: Need
    aim: Aim
    wanting: Sequence[Track] = ()


def drive(
    engine: Engine,
    propose: Callable[[Sequence[Proposal]], Proposal | None],
    hear: Callable[[Proposal, Future[TrialRecord]], None],
    spare: Callable[[Sequence[Proposal]], Sequence[Proposal]],
) -> None:
    """Run what is proposed until nothing is, and nothing is under way.

    `propose` gets the trials under way and returns the next one, None while there is none. `hear`
    takes in one that ended, and raises its error where that ends the search. `spare` returns which
    of the trials under way are no longer worth their end: these are ended, and their workers get
    others.
    """
    under_way: dict[Future[TrialRecord], Proposal] = {}
    ending: dict[Future[TrialRecord], Proposal] = {}
    try:
        while True:
            needless = {id(proposal) for proposal in spare(list(under_way.values()))}
            for future in [f for f, proposal in under_way.items() if id(proposal) in needless]:
                ending[future] = under_way.pop(future)
                future.cancel()
            while len(under_way) < engine.workers:
                proposal = propose(list(under_way.values()))
                if proposal is None:
                    break
                under_way[engine.submit(proposal.need)] = proposal
            waiting = {**under_way, **ending}
            if not waiting:
                return
            engine.wait()
            for future in filter(Future.done, waiting):
                under_way.pop(future, None)
                ending.pop(future, None)
                if not future.cancelled():
                    hear(waiting[future], future)
    finally:
        for future in under_way:
            future.cancel()
