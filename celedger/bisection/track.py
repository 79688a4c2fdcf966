"""One metric of a bisect: what is asked of it, what all trials say so far, and the trial it would
run next. Several tracks share the trials of one search; none knows of the others."""

from __future__ import annotations

from celedger.bisection.classes import Classes
from celedger.bisection.curves import Curves, Placed
from celedger.bisection.search import Limits, Reader
from celedger.bisection.symptom import Symptom
from celedger.model import Commit, TrialRecord
from celedger.repo import History
from celedger.stats import choice, draws, equal_bits, firstbad
from celedger.trial.runner import Bench


class Track:
    """The search for the first commit bad in one metric."""

    def __init__(
        self,
        bench: Bench,
        history: History,
        good: Commit,
        symptom: Symptom,
        limits: Limits,
        classes: Classes,
    ) -> None:
        self.symptom = symptom
        self.reader = Reader(bench, symptom, history, good, classes)
        self.steps: list[tuple[int, tuple[float, ...]]] = []
        self.question: firstbad.Question
        self.evidence: firstbad.Evidence
        self.view: equal_bits.View
        self._limits = limits
        self._curves = Curves(bench.ledger, [symptom])
        self._bad = len(history.commits) - 1
        self._placed = Placed(self._bad, ())
        self._alike: tuple[frozenset[int], ...] = ()

    @property
    def posterior(self) -> firstbad.Posterior:
        return self.view.posterior

    @property
    def stored(self) -> int:
        """How many trials tell something, whole or stopped."""
        return len(self.evidence.readings) + len(self._placed.stopped)

    def hear(self, records: list[TrialRecord], classes: Classes) -> None:
        """Take in all trials known so far, and the classes of the range that they prove."""
        self.question, self.evidence = self.reader.ask(records, classes, self._limits)
        placed = tuple((self.reader.position(r), r) for r in records)
        self._placed = Placed(self._bad, placed)
        self._alike = self._curves.alike(self._placed) if self.symptom.bits_decide else ()
        self.view = equal_bits.view(self.question, self.evidence, self._alike)

    def named(self, records: list[TrialRecord]) -> tuple[int, ...]:
        """Return the commit that is named and, before it, its nearest measured parent."""
        if self.posterior.state is not firstbad.State.FOUND:
            return ()
        return self.reader.measured_parent(records, self.posterior.leader), self.posterior.leader

    def unrun(self, records: list[TrialRecord]) -> tuple[int, int] | None:
        """Return which of these two has no trial of its own, and the seed of one that spoke for
        it; None where both have."""
        for position in self.named(records):
            if position not in self.reader.unreachable and not self.reader.rows(position):
                at = self.reader.classes.at(position)
                spoke = (r for r in records if self.reader.position(r) == at)
                return position, next(
                    r.trial.seed for r in spoke if self.symptom.reads(r) is not None
                )
        return None

    def pick(self, cost: choice.Cost) -> equal_bits.Pick | None:
        """The next trial for this metric; None when it is answered, or no trial would tell."""
        return equal_bits.pick(self.question, self.evidence, self.view, cost)

    def fellows(self, position: int) -> set[int]:
        """The positions known to compute the same as this one."""
        if not self.symptom.bits_decide:
            return {position}
        whole = draws.alike(self.evidence.readings, position)
        return set(whole).union(
            *(self._curves.fellows(self._placed, self._alike, at) for at in whole)
        )
