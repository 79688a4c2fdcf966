"""The loop of a bisect: keep all workers busy with the trials that tell most, and take each in as
soon as it ends. Must not know how a trial is chosen, nor where it runs."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from celedger.bisection.track import Track
from celedger.model import TrialRecord
from celedger.trial.runner import Bench
from celedger.trial.workplace import Need


class Aim(Enum):
    """Why a trial is run."""

    NARROW = "narrow"
    """It tells which commits are left."""
    CONFIRM = "confirm"
    """Its end is asked: it is of an end of the range, of the leader or of its parent."""
    NAMED = "named"
    """It is of a named commit, of which only others of its class had trials."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """The next trial, and the metrics that it is for."""

    need: Need
    aim: Aim
    wanting: Sequence[Track] = ()


class Engine(Protocol):
    """Where trials run."""

    @property
    def workers(self) -> int:
        """How many trials run at once."""

    def submit(self, need: Need) -> Future[TrialRecord]:
        """Start a trial once a worker is free. The future's `cancel` ends one that runs, if the
        engine can: it then completes with the record of a trial that was stopped early."""

    def wait(self, futures: Collection[Future[TrialRecord]]) -> None:
        """Return once one of these is done. The thread that opened the ledger calls it: an engine
        may write there, and ask `Need.until`, in the meantime."""


class InTurn:
    """An engine of one worker, which runs each trial before `submit` returns."""

    workers = 1

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def submit(self, need: Need) -> Future[TrialRecord]:
        future: Future[TrialRecord] = Future()
        try:
            record = self._bench.run(
                need.commit, need.task, need.seed,
                enough=need.enough, reuse=need.reuse, until=need.until,
            )  # fmt: skip
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(record)
        return future

    def wait(self, futures: Collection[Future[TrialRecord]]) -> None:
        concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_COMPLETED)


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
            engine.wait(waiting)
            for future in filter(Future.done, waiting):
                under_way.pop(future, None)
                ending.pop(future, None)
                if not future.cancelled():
                    hear(waiting[future], future)
    finally:
        for future in under_way:
            future.cancel()
