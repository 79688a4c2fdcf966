"""What a bisect concluded, as one value that can be stored, printed and drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from celedger.bisection.between import Between, worse_between
from celedger.bisection.others import Other, others
from celedger.bisection.symptom import Symptom
from celedger.ledger import Ledger
from celedger.model import BisectRecord, Commit, TrialRecord
from celedger.repo import History
from celedger.stats import choice, firstbad


@dataclass(frozen=True, slots=True)
class Report:
    """`status` is `found`, `set` (only untestable commits separate its members),
    `nothing-changed` or `undecided` (the budget ended first; `still` trials more are expected).

    `culprits` is the credible set, the leader first. Levels and effect are in the metric's own
    unit and direction; for a crash they are shares of crashing trials.
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
    probability: float  # of the leader; of "nothing changed" where that is the answer
    no_change: float  # probability that nothing changed at all; the others are given that it did
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
    readings: tuple[tuple[int, float], ...]  # (position, value), GOOD at -1, metric's own sign
    untestable: tuple[int, ...]
    steps: tuple[tuple[int, tuple[float, ...]], ...]
    others: tuple[Other, ...]  # what else changed in the range, as far as these trials show
    compared: tuple[str, ...]  # commits whose trials tell of the named one's parent and of it
    between: Between | None  # a commit that is worse than both ends, where none is named
    ran: str  # the commit that ran for the named one

    @property
    def named(self) -> bool:
        return self.status == "found"

    @property
    def kind(self) -> str:
        """What the named commit is called."""
        return "better" if self.improved else "bad"

    def sentence(self) -> str:
        """One line for logs and queues."""
        what = f"{self.task} {self.metric or 'crash'}"
        if self.status == "found":
            culprit = self.culprits[0]
            return f"{what}: first {self.kind} commit {culprit.sha[:10]} {culprit.subject}"
        if self.status == "set":
            return f"{what}: one of {len(self.culprits)} commits that cannot be told apart"
        if self.between is not None:
            return f"{what}: {self.between.commit.sha[:10]}, between the ends, is worse than both"
        if self.status == "nothing-changed":
            return f"{what}: nothing changed in the range"
        return f"{what}: undecided among {len(self.culprits)} commits"


_STATUS = {
    firstbad.State.FOUND: "found",
    firstbad.State.SET: "set",
    firstbad.State.NOTHING_CHANGED: "nothing-changed",
    firstbad.State.SEARCHING: "undecided",
}


# Probability that nothing changed from which a commit that is worse than both ends is the answer.
_ALIKE = 0.5


def conclude(
    ledger: Ledger,
    history: History,
    good: Commit,
    symptom: Symptom,
    question: firstbad.Question,
    evidence: firstbad.Evidence,
    posterior: firstbad.Posterior,
    *,
    spent: Sequence[TrialRecord],
    free: int,
    named: Sequence[tuple[str, str]],
    steps: tuple[tuple[int, tuple[float, ...]], ...],
    ulid: str,
    now: float,
) -> Report:
    """Make the report and write it to the ledger."""
    metric = symptom.metric
    sign = metric.direction.sign if metric is not None else 1
    finite = [r for r in evidence.readings if math.isfinite(r.value)]
    on_good = [
        r.value for r in finite if not question.lineage.ancestors(r.position)[posterior.leader]
    ]
    status = _STATUS[posterior.state]
    order = sorted(posterior.candidates, key=lambda i: -posterior.probability[i])
    commits = history.commits
    line = [good.sha, *(c.sha for c in commits)]
    still = choice.expected_trials(question, evidence, posterior) if status == "undecided" else 0.0
    effect = sign * posterior.effect
    low, high = sorted((sign * posterior.effect_low, sign * posterior.effect_high))
    at_bad = [r.value for r in evidence.readings if r.position == question.lineage.bad]
    if metric is not None and 2 * sum(map(math.isfinite, at_bad)) < len(at_bad):
        # The statistics then ask whether a commit is finite, and answer in rates.
        effect = low = high = math.nan
    nothing = status == "nothing-changed"
    between = None
    if status in ("nothing-changed", "undecided") and posterior.no_change >= _ALIKE:
        between = worse_between(history, good, question, evidence, sign)
    report = Report(
        id=ulid,
        ended=now,
        suite=symptom.task.suite,
        task=symptom.task.name,
        metric=metric.name if metric is not None else "",
        crash=symptom.crash,
        improved=symptom.improved,
        good=good,
        bad=commits[-1],
        commits=commits,
        status=status,
        culprits=() if nothing else tuple(commits[i] for i in order),
        probability=float(
            posterior.no_change if nothing else np.asarray(posterior.probability)[posterior.leader]
        ),
        no_change=posterior.no_change,
        confidence=question.confidence,
        level=sign * float(np.mean(on_good)) if on_good else math.nan,
        effect=effect,
        low=low,
        high=high,
        trials=sum(not record.derived for record in spent),
        stopped=sum(record.early_stopped for record in spent),
        stored=free,
        epochs=sum(record.epochs for record in spent),
        tried=len(
            {line[r.position + 1] for r in evidence.readings}
            | {r.trial.commit for r in spent if r.early_stopped}
        ),
        seconds=sum(r.outcome.ended - r.trial.started for r in spent if r.outcome is not None),
        still=still,
        posterior=tuple(np.asarray(posterior.probability).tolist()),
        readings=tuple((r.position, sign * r.value) for r in evidence.readings),
        untestable=tuple(sorted(evidence.untestable)),
        steps=steps,
        others=others(question, evidence, effect, posterior.leader, (good, *commits), sign),
        compared=tuple(commit for commit, _ in named),
        between=between,
        ran=named[-1][1] if named else "",
    )
    said = [b for b in ledger.bisects() if _same(b, report)]
    if said and not spent:
        return replace(report, id=said[-1].ulid, ended=said[-1].ended)  # nothing new to keep
    ledger.record_bisect(record(report))
    return report


def _same(kept: BisectRecord, report: Report) -> bool:
    """Whether a bisect that is kept asked the same question and found the same."""
    return (
        (kept.suite, kept.task, kept.metric) == (report.suite, report.task, report.metric)
        and (kept.good, kept.bad) == (report.good.sha, report.bad.sha)
        and (kept.status, kept.culprits) == (report.status, tuple(c.sha for c in report.culprits))
    )


def record(report: Report) -> BisectRecord:
    """The report as the ledger keeps it; commits by their hashes."""
    kept = asdict(replace(report, steps=(), posterior=()))
    # The doubt after each trial is for the picture; over thousands of commits it would be most
    # of the ledger.
    kept["steps"] = [position for position, _ in report.steps]
    kept["posterior"] = [round(p, 6) for p in report.posterior]
    for other in kept["others"]:
        other["after"], other["by"] = other["after"]["sha"], other["by"]["sha"]
    if report.between is not None:
        kept["between"]["commit"] = report.between.commit.sha
    for name in ("good", "bad"):
        kept[name] = kept[name]["sha"]
    for name in ("commits", "culprits"):
        kept[name] = [commit["sha"] for commit in kept[name]]
    return BisectRecord(
        ulid=report.id,
        suite=report.suite,
        task=report.task,
        metric=report.metric,
        good=report.good.sha,
        bad=report.bad.sha,
        culprits=tuple(c.sha for c in report.culprits),
        probability=report.probability,
        status=report.status,
        ended=report.ended,
        report=kept,
    )
