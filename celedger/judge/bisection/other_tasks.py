"""What the other tasks of an incident say of the commit that the search of one task named. They are
trained at that commit and its parent only."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from celedger.base.errors import CannotJudge
from celedger.base.model import Commit, TrialRecord
from celedger.judge.bisection.bisect_loop import Aim, Proposal, drive
from celedger.judge.bisection.equal_commits import classify
from celedger.judge.bisection.one_metric import Track
from celedger.judge.bisection.symptom import Symptom, final_trials
from celedger.repo import History
from celedger.stats import firstbad
from celedger.stats.arrays import Floats
from celedger.trial.engine import Engine, Need
from celedger.trial.runner import Bench

ONE_CAUSE = 0.9
"""Prior probability that another task of an incident was moved by the same commit: the state joins
what one commit may have done, and two commits of one range seldom both do harm."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How likely a metric of another task has the named commit as its first bad one."""

    task: str
    metric: str
    probability: float


class Others:
    """The symptoms of the other tasks, and what their trials say of a range."""

    def __init__(
        self,
        bench: Bench,
        history: History,
        symptoms: Sequence[Symptom],
        confidence: float,
    ) -> None:
        self._bench, self._history = bench, history
        self._symptoms, self._confidence = symptoms, confidence
        self._likelihoods: list[tuple[Symptom, Floats]] = []

    def train(self, commits: Sequence[Commit], engine: Engine) -> list[TrialRecord]:
        """Run each task once at each commit where it has no trial; return what ran."""
        needs = [
            Need(commit, s.task, s.task.seeds[0], role="bisect")
            for s in self._symptoms
            for commit in commits
            if not final_trials(
                self._bench, commit, s.task, self._bench.environments[s.task.name].fingerprint
            )
        ]
        ran: list[TrialRecord] = []

        def propose(_: Sequence[Proposal]) -> Proposal | None:
            return Proposal(needs.pop(0), Aim.NAMED) if needs else None

        def hear(_: Proposal, future: Future[TrialRecord]) -> None:
            ran.append(future.result())

        drive(engine, propose, hear, lambda _: ())
        return ran

    def likelihoods(self) -> Floats:
        """(n,) how likely all trials of the other tasks are if a candidate is the first bad commit,
        up to a factor. Each task has another cause with 1 - ONE_CAUSE, and then says nothing."""
        self._likelihoods = []
        for symptom in self._symptoms:
            with suppress(CannotJudge):  # nothing in the range can have changed the task
                classes = classify(self._bench, self._history, symptom.task)
                track = Track(self._bench, self._history, symptom, self._confidence)
                track.hear(classes.stored(self._bench, symptom.task), classes)
                self._likelihoods.append((symptom, _likelihood(track)))
        mixed = [ONE_CAUSE * likelihood + 1 - ONE_CAUSE for _, likelihood in self._likelihoods]
        return np.asarray(np.prod([np.ones(len(self._history.commits)), *mixed], axis=0))

    def agreements(self, position: int) -> tuple[Agreement, ...]:
        """Return how each task agrees with the commit named at this position."""
        return tuple(
            Agreement(symptom.task.name, symptom.name, one / (one + 1 - ONE_CAUSE))
            for symptom, likelihood in self._likelihoods
            for one in [ONE_CAUSE * float(likelihood[position])]
        )


def _likelihood(track: Track) -> Floats:
    """(n,) how likely the trials are if a candidate is the first bad commit, over their mean."""
    prior = np.asarray(track.question.prior, dtype=float)
    prior /= prior.sum()
    change = (1 - track.posterior.no_change) / (1 - firstbad.NONE_PRIOR)
    ratio = np.divide(track.posterior.probability, prior, out=np.zeros_like(prior), where=prior > 0)
    return np.asarray(change * ratio)
