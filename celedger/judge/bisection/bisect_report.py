"""The report of a bisect: one value that can be stored, printed and drawn."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from types import UnionType
from typing import Any, get_args, get_origin

import numpy as np

from celedger.base.model import BisectRecord, Commit, TrialRecord
from celedger.base.text import whole_percent
from celedger.judge.bisection.one_metric import Sparse, Track
from celedger.judge.bisection.other_steps import (
    Between,
    Rest,
    clear_effect,
    effect_between,
    effect_by_seed,
    neighbours,
    rests,
    worse_between,
)
from celedger.ledger import Ledger, store
from celedger.repo import History
from celedger.stats import firstbad


@dataclass(frozen=True, slots=True)
class Other:
    """A further step after `after` and not later than `by`. `effect`, `low` and `high` are in the
    metric's own unit and direction; `share` is its part of the difference between the ends."""

    after: Commit
    by: Commit
    effect: float
    probability: float
    share: float
    low: float
    high: float


RESTORED = 0.5
"""The share of what the named commit moved that has to come back, at least, with 95 %: less than
half means that another commit moved most of it."""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The result of training the revert of a named commit.

    Args:
        culprit, bad: The named commit, and where it was reverted (hashes).
        share, low, high: The part of the named commit's effect that came back, with its 95 %
            interval; of a crash the part of the trainings that run. NaN where nothing is known.
        trials: How many ran.
        why: Why nothing is known, "" where something is.
    """

    culprit: str
    bad: str
    share: float = math.nan
    low: float = math.nan
    high: float = math.nan
    trials: int = 0
    why: str = ""

    def sentence(self, metric: str) -> str:
        """Return `reverting 2d24c2e5 on 77ab01e3 restores 97 % (95 %: 91 … 104) of val_loss`; of a
        crash, whose metric is "", which part of the trainings run then."""
        if self.why:
            return f"reverting it is not rehearsed: {self.why}"
        revert = f"reverting {self.culprit[:8]} on {self.bad[:8]}"
        if not metric:
            part = {0.0: "no training runs", 1.0: "every training runs"}.get(self.share)
            return f"{revert}: {part or f'{whole_percent(self.share)} of the trainings run'}"
        low, high = round(100 * self.low), round(100 * self.high)
        return f"{revert} restores {whole_percent(self.share)} (95 %: {low} … {high}) of {metric}"

    def believed(self, probability: float) -> float:
        """Return how probable the named commit is still, of a search's `probability`: with it all
        would come back, without it nothing, give or take the normal error of the share."""
        error = (self.high - self.low) / (2 * 1.96)
        if not error > 0:  # exact, or not known
            return probability
        odds = probability / max(1 - probability, 1e-9)
        odds *= math.exp(min(0.0, (self.share - 0.5) / error**2))
        return min(probability, odds / (1 + odds))

    @property
    def restores(self) -> bool:
        return self.low >= RESTORED

    @property
    def refutes(self) -> bool:
        """Return True if the named commit cannot be what made it worse, or not alone."""
        return self.high < RESTORED


@dataclass(frozen=True, slots=True)
class Agreement:
    """The probability that the named commit is the first bad one of another task's metric too."""

    task: str
    metric: str
    probability: float


@dataclass(frozen=True, slots=True)
class Report:
    """`status` is `found`, `set` (only untestable commits separate its members), `gradual` (they
    moved the metric together), `refuted` (a commit was named, and reverting it does not mend what
    got worse), `nothing-changed` or `undecided` (the budget ended first; `still` trials more are
    expected).

    `culprits` is the credible set, the leader first; where gradual the oldest first. Levels and
    effect are in the metric's own unit and direction; for a crash they are shares of crashing
    trials.
    """

    id: str
    ended: float
    suite: str
    task: str
    metric: str  # "" for a crash
    crash: str
    improved: bool
    good: Commit
    bad: Commit
    commits: tuple[Commit, ...]
    status: str
    culprits: tuple[Commit, ...]
    probability: float  # of the answer; of a set or undecided, of the leader if anything changed
    no_change: float  # probability that nothing changed at all
    confidence: float
    level: float
    effect: float
    low: float
    high: float
    trials: int  # run by this command
    stopped: int  # of them, as soon as their epochs had told enough
    stored: int  # that the ledger held before
    epochs: int
    tried: int  # different commits with a trial
    seconds: float
    still: float
    posterior: tuple[float, ...]
    # (position of the commit that ran, value): GOOD at -1, in the metric's own direction.
    readings: tuple[tuple[int, float], ...]
    untestable: tuple[int, ...]
    steps: tuple[int, ...]  # positions of its trials, in order
    narrowing: tuple[Sparse, ...]  # the likely candidates before them, and after each
    others: tuple[Other, ...]  # further steps beside the named commit's
    compared: tuple[str, ...]  # commits whose trials tell of the named one's parent and of it
    between: Between | None  # a commit that is worse than both ends, where none is named
    ran: str  # the commit that ran for the named one
    agreements: tuple[Agreement, ...] = ()  # of the other tasks of an incident with the named one
    rehearsal: Rehearsal | None = None  # of the revert of the named commit
    signed: int = 0  # commits whose first steps were looked at, to choose the trials
    untried: int = 0  # commits between untestable ones that all ended alike
    floor: float = 0.0  # the metric's, where what changed is about as large, or surely within it

    @property
    def named(self) -> bool:
        return self.status == "found"

    @property
    def kind(self) -> str:
        """Return what the named commit is called."""
        return "better" if self.improved else "bad"

    def sentence(self) -> str:
        """One line for logs and queues."""
        what = f"{self.task} {self.metric or 'crash'}"
        if self.status == "found":
            culprit = self.culprits[0]
            proof = f"; {self.rehearsal.sentence(self.metric)}" if self.rehearsal else ""
            first = f"first {self.kind} commit {culprit.sha[:10]} {culprit.subject}"
            first += " (by about the metric's floor)" * (self.floor > 0)
            return f"{what}: {first}{proof}"
        if self.status == "refuted" and self.rehearsal is not None:
            return f"{what}: not sure: {self.rehearsal.sentence(self.metric)}"
        if self.status == "set":
            return f"{what}: one of {len(self.culprits)} commits that cannot be told apart"
        if self.status == "gradual":
            return f"{what}: moved gradually, by {len(self.culprits)} commits"
        if self.between is not None:
            return f"{what}: {self.between.commit.sha[:10]}, between the ends, is worse than both"
        if self.status == "nothing-changed":
            by = " by more than its floor" * (self.floor > 0)
            return f"{what}: nothing changed in the range{by}"
        return f"{what}: undecided among {len(self.culprits)} commits"


# Probability that nothing changed from which a commit that is worse than both ends is the answer.
_ALIKE = 0.5


def conclude(ledger: Ledger, report: Report, *, is_new: bool) -> Report:
    """Return the report with what was rehearsed of its answer, and write it to the ledger; one that
    is not new, since it ran no trial, only where it answers otherwise than the last."""
    if report.named:
        report = _as_rehearsed(ledger, report)
    fresh = record(report)
    asked = ("suite", "task", "metric", "good", "bad", "status", "culprits")
    answer = [getattr(fresh, name) for name in asked]
    same = [b for b in ledger.bisects() if [getattr(b, name) for name in asked] == answer]
    if same and not is_new:
        return replace(report, id=same[-1].ulid, ended=same[-1].ended)
    ledger.record_bisect(fresh)
    return report


def _as_rehearsed(ledger: Ledger, report: Report) -> Report:
    """Return the report with what the last search of the same question rehearsed of its answer."""
    question = (report.suite, report.task, report.metric, report.good.sha, report.bad.sha)
    earlier = [
        b for b in ledger.bisects()
        if (b.suite, b.task, b.metric, b.good, b.bad) == question and b.report.get("rehearsal")
    ]  # fmt: skip
    if not earlier or earlier[-1].culprits[0] != report.culprits[0].sha:
        return report
    done: Any = earlier[-1].report["rehearsal"]
    return _with_rehearsal(report, Rehearsal(**done))


def _with_rehearsal(report: Report, done: Rehearsal) -> Report:
    """Return the report with a rehearsal, which may take the name back or leave it less sure."""
    probability = done.believed(report.probability)
    is_refuted = done.refutes or probability < 0.5
    status = "refuted" if is_refuted else report.status
    return replace(report, rehearsal=done, probability=probability, status=status)


def rehearsed(ledger: Ledger, report: Report, done: Rehearsal, ulid: str, now: float) -> Report:
    """Return the report with the rehearsal of its revert, and write it to the ledger: it is the
    last answer to its question. A revert that restores too little takes the name back."""
    report = replace(_with_rehearsal(report, done), id=ulid, ended=now)
    ledger.record_bisect(record(report))
    return report


def report_of(
    history: History,
    track: Track,
    spent: Sequence[TrialRecord],
    *,
    stored: int,
    ulid: str,
    now: float,
    signed: int,
    agreements: tuple[Agreement, ...],
) -> Report:
    """Return the report of one metric. `spent` are the trials that this command ran; `stored` how
    many told something before; `signed` how many commits were signed; `agreements` what other
    tasks say of it."""
    symptom, evidence, posterior = track.symptom, track.evidence, track.posterior
    metric, commits = symptom.metric, history.commits
    sign = metric.direction.sign if metric is not None else 1
    is_open = posterior.state is firstbad.Phase.SEARCHING
    status = "undecided" if is_open else posterior.state.value
    nothing = status == "nothing-changed"
    order = list(posterior.candidates)
    if status != "gradual":
        order.sort(key=lambda i: -posterior.probability[i])
    steps = rests(track.question, evidence, posterior) if status == "found" else ()
    level, effect, low, high = _effect(track, sign, steps)
    between = None
    if status in ("nothing-changed", "undecided") and posterior.no_change >= _ALIKE:
        between = worse_between(history, track.question, evidence, sign)
    leader = posterior.probability[posterior.leader]
    if status == "found":
        leader = leader * (1 - posterior.no_change)
    compared_commits = track.compared_commits()
    stopped = [trial for trial in spent if trial.early_stopped]
    measured = {track.commit(position).sha for position in track.sites if position is not None}
    return Report(
        id=ulid,
        ended=now,
        suite=symptom.task.suite,
        task=symptom.task.name,
        metric=metric.name if metric is not None else "",
        crash=symptom.crash,
        improved=symptom.improved,
        good=history.good,
        bad=history.bad,
        commits=commits,
        status=status,
        culprits=() if nothing else tuple(commits[i] for i in order),
        probability=float(posterior.no_change if nothing else posterior.gradual or leader),
        no_change=posterior.no_change,
        confidence=track.question.confidence,
        level=level,
        effect=effect,
        low=low,
        high=high,
        trials=sum(not record.derived for record in spent),
        stopped=len(stopped),
        stored=stored,
        epochs=sum(record.epochs for record in spent),
        tried=len(measured | {trial.trial.commit for trial in stopped}),
        seconds=sum(r.outcome.ended - r.trial.started for r in spent if r.outcome is not None),
        still=0.0 if status != "undecided" or track.own_seeds_alone else track.expected_trials(),
        posterior=tuple(np.asarray(posterior.probability).tolist()),
        readings=tuple(
            (position, sign * reading.value)
            for position, reading in zip(track.sites, evidence.readings, strict=True)
            if position is not None
        ),
        untestable=tuple(sorted(evidence.untestable - track.presumed)),
        steps=tuple(track.steps),
        narrowing=tuple(track.narrowing),
        others=_others(track, sign, steps),
        compared=tuple(commit for commit, _ in compared_commits),
        between=between,
        ran=compared_commits[-1][1] if compared_commits else "",
        agreements=agreements,
        signed=signed,
        floor=floor_in_doubt(track.floor, effect, low, high) if status == "found" else track.floor,
        untried=len(track.presumed),
    )


def floor_in_doubt(floor: float, effect: float, low: float, high: float) -> float:
    """Return the floor, 0 where the change is clearly larger: by its interval, or without one if it
    is twice as large."""
    least = min(abs(low), abs(high)) if math.isfinite(low) else abs(effect) / 2
    return 0.0 if least > floor and not low * high < 0 else floor


def _effect(track: Track, sign: int, steps: Sequence[Rest]) -> tuple[float, float, float, float]:
    """Return the mean of what is good, the effect and its interval, in the metric's direction.
    Where noise is the seed's, equal seeds tell it side by side; with further steps that are likely
    only the named commit's neighbours tell of it, and of a slope what lies beyond it."""
    posterior, question = track.posterior, track.question
    steps = [step for step in steps if step.probability > 0.5]
    effect = posterior.effect_range
    sides = neighbours(question, track.evidence, posterior.leader, steps)
    if posterior.gradual:
        first, last = posterior.candidates[0], posterior.candidates[-1]
        readings = track.evidence.readings
        sides = (
            [r for r in readings if r.position < first],
            [r for r in readings if r.position >= last],
        )
    paired = None
    if posterior.by_seed:
        confidence = posterior.confidence
        paired = effect_by_seed(*sides, confidence, is_exact=posterior.is_exact)
    if paired is not None:
        effect = paired
    elif clear := clear_effect(*sides, posterior.confidence):
        effect = clear
    elif steps or posterior.gradual:
        effect = effect_between(question, posterior, *sides)
    ancestors = question.lineage.ancestors
    good = [r for r in track.evidence.readings if not ancestors(r.position)[posterior.leader]]
    if steps or posterior.gradual:
        good = sides[0]
    values = [reading.value for reading in good if math.isfinite(reading.value)]
    level = sign * statistics.mean(values) if values else math.nan
    at_bad = [r.value for r in track.evidence.readings if r.position == question.lineage.bad]
    if track.symptom.metric is not None and 2 * sum(map(math.isfinite, at_bad)) < len(at_bad):
        # The statistics then ask whether a commit is finite, and answer in rates.
        return level, math.nan, math.nan, math.nan
    low, high = sorted((sign * effect[1], sign * effect[2]))
    return level, sign * effect[0], low, high


def _others(track: Track, sign: int, steps: Sequence[Rest]) -> tuple[Other, ...]:
    """Return the further steps beside the leader's, in the metric's own direction."""
    return tuple(
        Other(
            track.commit(rest.after), track.commit(rest.by), sign * rest.effect, rest.probability,
            rest.share, *sorted((sign * rest.low, sign * rest.high)),
        )
        for rest in steps
    )  # fmt: skip


def restored(stored: BisectRecord, commits: Mapping[str, Commit]) -> Report:
    """Return the report of which `record` was made. Raises KeyError for a commit that is not among
    these."""

    def built(kind: Any, value: Any) -> Any:
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is tuple:
            return tuple(built(arguments[0], each) for each in value or ())
        if value is None or kind is Commit:
            return value and commits[value]
        if origin is UnionType:
            return built(arguments[0], value)
        if is_dataclass(kind) and isinstance(kind, type):
            types = store.hints(kind)
            return kind(**{name: built(types[name], each) for name, each in value.items()})
        return value

    missing = {"stopped": 0, "ran": "", "between": None, "others": (), "compared": ()}
    report: Report = built(Report, {**missing, **stored.report})
    return report


def record(report: Report) -> BisectRecord:
    """Return the report as the ledger keeps it; commits by their hashes."""

    def plain(value: Any) -> Any:
        if isinstance(value, Commit):
            return value.sha
        if is_dataclass(value):
            return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
        return list(map(plain, value)) if isinstance(value, tuple) else value

    document = plain(report)
    document["posterior"] = [round(p, 6) for p in report.posterior]
    same = ["suite", "task", "metric", "good", "bad", "probability", "status", "ended"]
    return BisectRecord(
        ulid=report.id, culprits=tuple(document["culprits"]), report=document,
        **{name: document[name] for name in same},
    )  # fmt: skip
