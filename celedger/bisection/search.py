"""What a bisect asks the statistics of one metric: every trial of the range that the ledger holds
read as evidence, and what the ledger knows of the noise.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from celedger.bisection.bits import Bits
from celedger.bisection.classes import Classes
from celedger.bisection.symptom import Symptom
from celedger.drift.baseline import noise, usable
from celedger.model import Commit, Mark, OutcomeKind, SummaryRow, TrialRecord
from celedger.repo import History
from celedger.stats import firstbad
from celedger.stats.lineage import GOOD, Lineage
from celedger.trial.runner import Bench

# A shift of one sd in 4,096 commits takes about 130 trials (docs/statistics.md); beyond this many
# the shift is far below the noise, or is not there, and a person should decide to go on.
BUDGET = 200
MAX_KILLED = 2  # a commit whose trial is killed from outside this often is stepped around


@dataclass(frozen=True, slots=True)
class Limits:
    """`budget` bounds the trials that are run; stored ones are free."""

    confidence: float = 0.95
    budget: int = BUDGET


@dataclass(frozen=True, slots=True)
class Step:
    """One trial of the search as it looked just after it."""

    position: int
    commit: Commit
    record: TrialRecord
    posterior: firstbad.Posterior
    number: int
    metric: str = ""  # whose posterior it is, where several are searched at once


def build_seconds(records: Sequence[TrialRecord]) -> float:
    """The usual time that a commit's first trial takes beyond its commands: checkout and build,
    which are kept for the later ones. Of trials that ended well; 0 where there is none."""
    first: dict[str, TrialRecord] = {}
    for record in sorted(records, key=lambda r: r.trial.started):
        first.setdefault(record.trial.commit, record)
    beyond = [
        record.outcome.ended - record.trial.started - record.summaries["duration"]
        for record in first.values()
        if record.ok and record.outcome is not None and "duration" in record.summaries
    ]
    return max(statistics.median(beyond), 0.0) if beyond else 0.0


class Reader:
    """Turns all trials known so far into evidence, afresh each time: what an end's trial says
    of the others does not depend on which came first."""

    def __init__(
        self, bench: Bench, symptom: Symptom, history: History, good: Commit, classes: Classes
    ) -> None:
        self._bench, self._ledger, self._symptom = bench, bench.ledger, symptom
        self._history = history
        self._environment = bench.environments[symptom.task.name].fingerprint
        self.shas = {i: c.sha for i, c in enumerate(history.commits)} | {GOOD: good.sha}
        self.places = {c.sha: i for i, c in enumerate(history.commits)} | {good.sha: GOOD}
        self._bits = Bits(bench.ledger, symptom)
        self.classes = classes
        # Positions that git cannot check out now: of no trial, and forgotten with this command.
        self.unreachable: set[int] = set()

    def stored(self) -> list[TrialRecord]:
        """The trials that the ledger already holds: of the range, and of commits elsewhere that
        cannot differ from one in it. What is derived is left to its evidence."""
        found = self._ledger.trials(
            commits=list(self.places), recipe=self._symptom.task.recipe,
            environment=self._environment,
        )  # fmt: skip
        found += filter(None, map(self._ledger.trial, self.classes.trials))
        ran = {(r.trial.ulid, self.position(r)) for r in found if not r.derived}
        return [r for r in found if (r.derived, self.position(r)) not in ran]

    def position(self, record: TrialRecord) -> int:
        """Where a trial counts."""
        elsewhere = self.classes.trials.get(record.trial.ulid)
        at = self.places[record.trial.commit] if elsewhere is None else elsewhere
        return self.classes.at(at)

    def rows(self, position: int) -> list[TrialRecord]:
        """Return the whole trials of that very commit, those derived from others too."""
        rows = self._ledger.trials(
            commit=self.shas[position], recipe=self._symptom.task.recipe,
            environment=self._environment,
        )  # fmt: skip
        return [row for row in rows if not row.early_stopped]

    def speaker(self, records: Sequence[TrialRecord], position: int) -> tuple[str, str]:
        """Return the commits (hashes) whose trials tell of this one, and that ran for it: itself,
        unless all that it has is derived, or only others of its class have any."""
        own, rows = self.shas[position], self.rows(position)
        if any(not row.derived for row in rows):
            return own, own
        at = self.classes.at(position)
        ran = next(
            (
                record.trial.commit
                for record in records
                if self.position(record) == at
                and self._symptom.reads(record) is not None
                and not record.derived
            ),
            own,
        )
        return own if rows else ran, ran

    def measured_parent(self, records: Sequence[TrialRecord], position: int) -> int:
        """Return the nearest ancestor of a candidate for which a trial speaks."""
        heard = {self.position(r) for r in records if self._symptom.reads(r) is not None}
        ahead = list(self._history.parents[position]) or [GOOD]
        for at in ahead:  # grows: the nearest first
            if at == GOOD or self.classes.at(at) in heard:
                return at
            parents = self._history.parents[at] or (GOOD,)
            ahead += [parent for parent in parents if parent not in ahead]
        return GOOD

    def ask(
        self, records: list[TrialRecord], classes: Classes, limits: Limits
    ) -> tuple[firstbad.Question, firstbad.Evidence]:
        """What the statistics are asked, by all that the ledger knows now: the noise, too, is
        what a second asking of the same question would find. `classes` are those of the range,
        as far as its trials prove them by now."""
        self.classes = classes
        evidence = self.evidence(records)
        question = firstbad.Question(
            lineage=Lineage(self._history.parents),
            confidence=limits.confidence,
            noise=_noise(self._bench, self._symptom, self._environment, self.places),
            binary=self._symptom.metric is None,
            asked=self._symptom.asked,
            floor=_floor(self._symptom, evidence),
            prior=self.classes.weights,
            place=self.classes.place,
        )
        return question, evidence

    def evidence(self, records: list[TrialRecord]) -> firstbad.Evidence:
        readings, mute = [], dict[int, int]()
        for record in records:
            position = self.position(record)
            if record.outcome is None or record.outcome.kind is OutcomeKind.INTERRUPTED:
                continue
            if record.early_stopped:  # it has no summary; its epochs are heard elsewhere
                continue
            value = self._symptom.reads(record)
            if value is not None:
                draw = self._bits.draw(record) if self._symptom.bits_decide else None
                readings.append(firstbad.Reading(position, value, record.trial.seed, draw))
                continue
            if record.derived:  # it says nothing of a clock, and one that runs here may
                continue
            # A trial that was killed, or whose speed was disturbed, may be tried again; one
            # that ended without a value will not give one the next time either.
            spoilt = {Mark.DISTURBED, Mark.THROTTLED}.intersection(record.outcome.marks)
            once = 1 if spoilt or record.outcome.kind is OutcomeKind.KILLED else MAX_KILLED
            mute[position] = mute.get(position, 0) + once
        heard = {reading.position for reading in readings}
        silent = {p for p, n in mute.items() if n >= MAX_KILLED} | self.unreachable
        untestable = frozenset(silent - heard)
        sides: dict[int, str] = {}
        if self._symptom.bits_decide:
            placed = [(self.position(r), r) for r in records]
            sides = self._bits.sides(placed, GOOD, len(self._history.commits) - 1)
        return firstbad.Evidence(tuple(readings), untestable, sides)


def _noise(
    bench: Bench, symptom: Symptom, environment: str, places: dict[str, int]
) -> firstbad.NoisePrior | None:
    """What the whole ledger knows of this metric's noise, not only this range."""
    if symptom.metric is None:
        return None
    rows: list[SummaryRow] = [
        row
        for row in bench.ledger.summaries(
            symptom.task.name, symptom.metric.name, recipe=symptom.task.recipe
        )
        if row.environment == environment and usable(row, symptom.metric)
    ]
    found = noise(rows, places)
    # Not `between`: by how much commits of the ledger differ, those of this range among them, is
    # what is searched. Taken for jitter, no change would ever be beyond it.
    return firstbad.NoisePrior(found.sd, found.dof) if found.known else None


def _floor(symptom: Symptom, evidence: firstbad.Evidence) -> float:
    if symptom.metric is None:
        return 0.0
    at_good = [r.value for r in evidence.readings if r.position == GOOD and np.isfinite(r.value)]
    return symptom.metric.floor.at(float(np.median(at_good))) if at_good else 0.0
