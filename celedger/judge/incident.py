"""The rows of the state: incidents, changes, doubts, and how each metric stands at a commit. Every
view prints them and no view makes them. Hashes are full; numbers are in the metric's own unit.
Annotations are values, as in `base.model`.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from celedger.base import plugins
from celedger.base.errors import TYPED, Status, command
from celedger.base.model import (
    FEWEST_REPEATS,
    IN_FORCE,
    BisectRecord,
    FindingRecord,
    IncidentState,
    Kind,
)

if TYPE_CHECKING:
    from celedger.ledger import Ledger

DRIFT = "drift"  # the kind of a slow one
PER_STEP = "a step"  # the unit of the counts of a signature
WORK = "work"  # the kind of one that only signatures show: a step does more, at any speed
TWO_SIDED_95 = 1.959964
"""Standard errors at each side of a 95 % interval of a normal distribution."""
_EXPLAINING = ("explain", "profile")
_DIFFERENT = ("difference", "slower", "larger")  # verdicts of these verbs
FAILURES = ("crash", "timeout", "missing", "not-finite")  # kinds, the worst first


def interval(sign: int, size: float, error: float) -> tuple[float, float]:
    """Return the 95 % interval of a change in the metric's own direction: `size` and its standard
    error are of the values times `sign`, which are worse when they are higher."""
    low, high = sorted(sign * (size + way * TWO_SIDED_95 * error) for way in (-1, 1))
    return low, high


class IncidentMetric(NamedTuple):
    """What an incident did to one metric: `change` is after - before, between `low` and `high` at
    95 %; `left` of it where it is partly mended, else None. All NaN for a failure, whose `name` is
    "" where the task as a whole fails."""

    suite: str
    task: str
    name: str
    before: float
    after: float
    change: float
    low: float
    high: float
    unit: str = ""
    kind: str = Kind.QUALITY.value
    state: str = IncidentState.OPEN.value
    declared: bool = True
    floors: float = 0.0  # |change| over the metric's floor there; 0 for a metric without one
    left: float | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.suite, self.task, self.name

    @property
    def relative(self) -> float | None:
        """Return the change over the level before; None where there is none."""
        return (
            self.change / abs(self.before) if self.before and self.change == self.change else None
        )


def share_causes(kind: str, other: str) -> bool:
    """Return True if what moves a metric of one kind moves one of the other, too: of the same kind,
    or a time and the work that takes it."""
    return kind == other or {kind, other} == {Kind.SPEED.value, Kind.WORK.value}


class Incident(NamedTuple):
    """One cause that made something worse.

    Attributes:
        first_bad: Every commit that may be the first bad one (95 %), oldest first.
        likeliest: Of them, with its `probability`.
        bisect: The bisect that named it, "" where none did.
        seen_at: The measured commit at which it shows first.
        parent: The first parent of `likeliest`, "" where it has none.
        known_good: The newest measured commit before the set, "" where there is none.
        closed_at: The commit that mended it, "" while it is not: of several the one that says so.
        mend_seen_at: The measured commit at which that shows first.
        mended_by: Every commit that may have mended it, oldest first.
        partly_at: The measured commits at which it was mended in part.
        message: What a failing trial said; its `ulid`.
        is_measured: False if its tasks are measured no more.
        why: What a person wrote who accepted it, or dismissed it, be it in force again.
        also: Its other names, which another ledger gave it; it answers to all.
        work: The counts of a step that rose by the same cause, as signatures show them; `work_ids`
            are the names under which these rises were told alone.
        is_explained: True if a diagnosis of the named commit says why.
        has_torch: False where its first task trains without the torch that diagnoses follow.
        inseparable: True if a bisect ended with these commits: what lies between cannot be tested.
    """

    id: str
    kind: str
    state: str
    metrics: tuple[IncidentMetric, ...]
    first_bad: tuple[str, ...]
    likeliest: str
    probability: float
    seen_at: str
    known_good: str = ""
    parent: str = ""
    closed_at: str = ""
    bisect: str = ""
    message: str = ""
    ulid: str = ""
    log: str = ""
    is_measured: bool = True
    was_sure: bool = False
    why: str = ""
    also: tuple[str, ...] = ()
    work: tuple[IncidentMetric, ...] = ()
    work_ids: tuple[str, ...] = ()
    is_explained: bool = False
    has_torch: bool = True
    inseparable: bool = False
    mend_seen_at: str = ""
    mended_by: tuple[str, ...] = ()
    partly_at: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return self.id, *self.also, *self.work_ids

    @property
    def main(self) -> IncidentMetric:
        return self.metrics[0]

    @property
    def in_force(self) -> bool:
        """Return True if it is not over: open, or partly recovered."""
        return self.state in IN_FORCE

    @property
    def shown_at(self) -> str:
        """The commit that views tie it to: what a bisect found likeliest, else where the step was
        first seen."""
        return self.likeliest if self.bisect else self.seen_at

    @property
    def is_named(self) -> bool:
        """Return True if its first bad commit is known: a bisect named it, or no other can be."""
        return len(self.first_bad) == 1 or bool(self.bisect)

    @property
    def is_settled(self) -> bool:
        """Return True if no bisect can tell more of its first bad commit."""
        return self.is_named or self.inseparable

    @property
    def declared(self) -> bool:
        """Return True if it moved something that the suite declares."""
        return any(metric.declared for metric in self.metrics)

    @property
    def is_failure(self) -> bool:
        return self.kind in FAILURES

    @property
    def is_failing(self) -> bool:
        """Return True if something fails by it still; what else is left of it moved a number."""
        return self.is_failure and not math.isfinite(self.main.change)

    @property
    def is_searchable(self) -> bool:
        """Return True if a bisect can tell more: several commits may be the first bad one."""
        return (
            self.in_force and self.is_measured and not self.is_settled
            and bool(self.known_good) and self.kind not in (DRIFT, WORK)
        )  # fmt: skip

    def explains(self, key: tuple[str, str, str], kind: str, among: Collection[str]) -> bool:
        """Return True if its named commit is among those that may have moved another metric of this
        kind, or the same one of another task: they have one cause, until it is mended."""
        suite, task, name = key
        alike = (m for m in self.metrics if m.suite == suite and (m.task == task or m.name == name))
        return self.in_force and self.is_named and self.likeliest in among and (
            any(share_causes(kind, metric.kind) for metric in alike)
        )  # fmt: skip

    def was_searched(self, bisects: Iterable[BisectRecord]) -> bool:
        """Return True if a bisect searched these commits, and did not name one."""
        ends = self.known_good, self.first_bad[-1]
        keys = {metric.key for metric in self.metrics}
        return any(b.key in keys and (b.good, b.bad) == ends for b in bisects)

    def title(self) -> str:
        """Return `mlp val_loss`, or the task alone where it fails."""
        return " ".join(filter(None, (self.main.task, self.main.name)))

    def diagnosis(self, task: str) -> tuple[str, ...]:
        """Return the verb, with its options, that says why a task of it is worse: by its first
        metric there, whatever telemetry a search used since that tells more."""
        kind = next(metric.kind for metric in self.metrics if metric.task == task)
        return ("explain",) if self.is_failing else verb_of(kind)

    def next(self) -> str:
        """Return the command that tells more of it, "" where nothing is left to be asked."""
        if not self.in_force or not self.is_measured:
            return ""
        if self.is_searchable:
            return command("bisect", self.id).strip("`")
        if self.kind == DRIFT:
            main = self.main
            names = {"suite": main.suite, "task": main.task, "metric": main.name}
            words = ["plot"] * ("plot" in plugins.installed(plugins.VERBS))
            return command(*words, "drift", **names).strip("`")
        if self.is_explained or self.inseparable:
            return command("status", self.id).strip("`")
        if self.is_failing:
            return command("show", self.likeliest[:TYPED]).strip("`")
        if self.kind == WORK and not self.is_named:  # signs those in between
            ends = f"{self.known_good[:TYPED]}..{self.first_bad[-1][:TYPED]}"
            return command("same", ends, self.main.task, suite=self.main.suite).strip("`")
        if not self.parent:
            return ""
        verb, *words = self.diagnosis(self.main.task)
        if not self.has_torch or verb not in plugins.installed(plugins.VERBS):
            return command("show", self.likeliest[:TYPED]).strip("`")
        ends = f"{self.parent[:TYPED]}..{self.likeliest[:TYPED]}"
        return command(verb, ends, self.main.task, *words, suite=self.main.suite).strip("`")

    def json(self) -> dict[str, object]:
        """Return the row of `status --json`, schema 2."""
        names = "suite task name before after change low high"
        metrics, work = (
            [{name: getattr(m, name) for name in names.split()} for m in own]
            for own in (self.metrics, self.work)
        )
        return {
            "id": self.id, "kind": self.kind, "state": self.state,
            "suite": self.main.suite, "task": self.main.task, "metrics": metrics, "work": work,
            "first_bad": list(self.first_bad), "likeliest": self.likeliest,
            "probability": self.probability, "bisect": self.bisect or None,
            "seen_at": self.seen_at, "closed_at": self.closed_at or None,
            "message": self.message or None, "declared": self.declared,
            "next": self.next() or None,
        }  # fmt: skip


def verb_of(kind: str) -> tuple[str, ...]:
    """Return the verb, with its options, that says why a metric of this kind moved."""
    if kind in (Kind.QUALITY, Kind.COUNT):
        return ("explain",)
    return ("profile", "--memory") if kind == Kind.MEMORY else ("profile",)


def uses_torch(ledger: "Ledger", suite: str, task: str) -> bool:
    """Return True if the trials of a task import torch, which diagnoses follow; where no import is
    known, if they may."""
    if names := ledger.imported(suite=suite, task=task):
        return "torch" in names
    packages: list[Any] = [each.details.get("packages") for each in ledger.environments().values()]
    return any(not own or "torch" in own for own in packages)


def explanation(incident: Incident, findings: Sequence[FindingRecord]) -> FindingRecord | None:
    """Return the newest finding that says what the named commit did, None without one."""
    tasks = {metric.task for metric in incident.metrics}
    for finding in reversed(findings) if incident.is_named else ():
        if (
            finding.verb in _EXPLAINING and finding.before and finding.task in tasks
            and finding.commit == incident.likeliest
            and explained(finding.document).get("verdict") in _DIFFERENT
        ):  # fmt: skip
            return finding
    return None


def explained(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first explanation of a diagnosis's document."""
    explanations = document.get("explanations")
    first = next(iter(explanations), None) if isinstance(explanations, list) else None
    return first if isinstance(first, Mapping) else document


SURELY = 1.5
"""Half-widths of a 95 % interval beyond which an offset of telemetry is no noise: a task has ten
such metrics, of which one in twenty lies beyond one by chance, and one in 300 beyond this."""


class LevelChange(NamedTuple):
    """A change of level that is no incident: an `improvement`, or the offset of a changed
    `environment` or `definition`, measured at one commit in both. `size` lies between `low` and
    `high`; `among` are the commits that may have made an improvement, oldest first. `is_current`:
    the metric was not measured in another environment since; `declared`: the suite asks for it."""

    kind: str
    suite: str
    task: str
    metric: str
    before: float
    after: float
    low: float
    high: float
    unit: str
    probability: float
    among: tuple[str, ...]
    seen_at: str
    better: bool
    known: str = ""  # the newest measured commit before `among`
    environments: tuple[str, str] = ("", "")
    floor: float = 0.0
    is_current: bool = True
    declared: bool = True

    @property
    def is_clear(self) -> bool:
        """Return True if it is surely no noise, and as large as the metric's floor."""
        reach = (1.0 if self.declared else SURELY) * (self.high - self.low) / 2
        return abs(self.size) > reach and abs(self.size) >= self.floor

    @property
    def size(self) -> float:
        return self.after - self.before

    def search(self) -> str:
        """Return the command that finds the commit of an improvement, or which upgrade it was; ""
        where the commit is known."""
        names = {"suite": self.suite, "task": self.task, "metric": self.metric}
        if self.kind != "improvement":
            ends = "..".join(environment[:TYPED] for environment in self.environments)
            return command("bisect", self.seen_at[:TYPED], packages=ends, **names)
        if len(self.among) == 1 or not self.known:
            return ""
        ends = f"{self.known[:TYPED]}..{self.among[-1][:TYPED]}"
        return command("bisect", ends, **names, find="improved")


class Doubt(NamedTuple):
    """A rise that is suspected and not settled. `known`: the newest measured commit before it."""

    suite: str
    task: str
    metric: str
    among: tuple[str, ...]
    seen_at: str
    probability: float
    change: float
    unit: str
    before: float
    known: str
    declared: bool = True  # False for telemetry
    kind: str = Kind.QUALITY.value

    def search(self) -> str:
        """Return the command that settles it: a search, or a check where no commit before it is
        known."""
        if not self.known:
            return command("check", self.seen_at[:TYPED], suite=self.suite, task=self.task)
        ends = f"{self.known[:TYPED]}..{self.among[-1][:TYPED]}"
        return command("bisect", ends, suite=self.suite, task=self.task, metric=self.metric)


class SignedCommit(NamedTuple):
    """A commit of the line whose first steps were recorded. `is_new`: other bits than at the signed
    commit before it, None for the first. `work` are the counts of a step by name."""

    suite: str
    task: str
    commit: str
    is_new: bool | None
    work: Mapping[str, float]


class PinnedDistance(NamedTuple):
    """How far a metric lies from its pinned commit by now."""

    suite: str
    task: str
    metric: str
    pinned: str
    level: float
    change: float
    low: float
    high: float
    unit: str
    better: bool
    is_clear: bool  # beyond the floor, with its whole interval


class MetricNoise(NamedTuple):
    """The noise of a metric, from repeats of the same code: see `stats.course.TrialNoise`."""

    suite: str
    task: str
    metric: str
    sd: float
    freedom: int
    is_exact: bool
    session: float
    declared: bool = True  # False for telemetry

    @property
    def is_known(self) -> bool:
        """Return True if repeats of the same code, or equal bits, tell it."""
        return self.is_exact or self.freedom >= FEWEST_REPEATS

    def variance(self, a: int, b: int) -> float:
        """Return the variance of the difference of two means, of `a` and of `b` trials of two
        commits in two sessions, over that of a trial."""
        return 1 / a + 1 / b + 2 * self.session**2

    def error(self, a: int, b: int) -> float:
        """Return the standard error of that difference. Where seeds repeat bit by bit and nothing
        tells how they differ, the difference is the code's: 0. Infinity if noise is not known."""
        if self.freedom < FEWEST_REPEATS:
            return 0.0 if self.is_exact else math.inf
        return self.sd * math.sqrt(self.variance(a, b))

    def reach(self, a: int, b: int, probability: float = 0.975) -> float:
        """Return how far that difference goes by chance, at this probability: by Student's t, as
        few repeats tell the noise but roughly."""
        from celedger.stats.tails import t_quantile

        error = self.error(a, b)
        return t_quantile(probability, self.freedom) * error if 0 < error < math.inf else error


class Standing(StrEnum):
    """How a metric stands at a commit, the worst first."""

    WORSE = "worse"
    MISSING = "missing"
    UNDECIDED = "undecided"
    FIRST = "first"  # nothing to compare with
    TOO_NOISY = "too-noisy"
    BETTER = "better"
    SAME = "same"


class MetricStanding(NamedTuple):
    """How a metric stands at a commit, and why.

    Attributes:
        incidents: Ids of those in force that made it worse.
        level: The level before this commit; `value` the mean of its own trials.
        low, high: The interval of value - level at 95 %.
        smallest: The smallest change for the worse that would have been seen.
        trials: Of this commit.
        note: Why it is not clear.
        searched: GOOD and BAD of the bisect that settles it, where equal seeds seem worse.
    """

    suite: str
    task: str
    metric: str
    standing: Standing
    declared: bool
    incidents: tuple[str, ...] = ()
    level: float = float("nan")
    value: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    smallest: float = float("nan")
    floor: float = float("nan")
    trials: int = 0
    unit: str = ""
    note: str = ""
    searched: tuple[str, ...] = ()


class State(NamedTuple):
    """What is known of a line at one moment.

    Attributes:
        tip: The newest commit of the line.
        incidents: All of the line, those in force first, the worst before the others.
        gone: Incidents on commits that the line has no more.
        begins: The oldest commit of the line where what is older is not known, as in a shallow
            clone; else "".
        standings: At the tip, or at the commit that was asked for.
        metrics: How many are judged.
        trials_at: How many trials each measured commit of the line has, the oldest first.
        aside: Measured commits that are not on the line.
    """

    tip: str
    incidents: tuple[Incident, ...] = ()
    changes: tuple[LevelChange, ...] = ()
    doubts: tuple[Doubt, ...] = ()
    pinned: tuple[PinnedDistance, ...] = ()
    standings: tuple[MetricStanding, ...] = ()
    noise: tuple[MetricNoise, ...] = ()
    gone: tuple[str, ...] = ()
    begins: str = ""
    signed: tuple[SignedCommit, ...] = ()
    metrics: int = 0
    trials_at: Mapping[str, int] = MappingProxyType({})
    aside: int = 0
    environments: int = 0

    @property
    def commits(self) -> int:
        return len(self.trials_at)

    @property
    def trials(self) -> int:
        return sum(self.trials_at.values())

    @property
    def in_force(self) -> tuple[Incident, ...]:
        return tuple(i for i in self.incidents if i.in_force)

    @property
    def upgrades(self) -> list[LevelChange]:
        """Return what the change to the present environment made clearly worse, a metric each."""
        own = (c for c in self.changes if c.kind == "environment" and c.is_current)
        last = {(c.suite, c.task, c.metric): c for c in own}
        return [c for c in last.values() if not c.better and c.is_clear]

    def as_measured(self, suite: str, tasks: Collection[str]) -> "State":
        """Return the state with the incidents of tasks that a suite no longer has as no longer
        measured, and without what is suspected of these tasks: no search can settle it."""
        return self._replace(
            incidents=tuple(
                i if any(
                    m.state != "recovered" and (m.suite != suite or m.task in tasks)
                    for m in i.metrics
                )
                else i._replace(is_measured=False)
                for i in self.incidents
            ),
            doubts=tuple(d for d in self.doubts if d.suite != suite or d.task in tasks),
        )  # fmt: skip

    def of(self, suite: str, task: str, metric: str) -> list[Incident]:
        """Return the incidents of a metric."""
        key = (suite, task, metric)
        return [i for i in self.incidents if any(m.key == key for m in i.metrics)]

    def noise_of(self, suite: str, task: str, metric: str) -> MetricNoise | None:
        key = (suite, task, metric)
        return next((n for n in self.noise if (n.suite, n.task, n.metric) == key), None)

    def find(self, prefix: str) -> Incident | None:
        """Return the incident whose id begins so; None where there is none, or several."""
        chosen = [
            i for i in self.incidents if any(name.startswith(prefix.lower()) for name in i.names)
        ]
        return chosen[0] if prefix and len(chosen) == 1 else None


def status(
    standings: Sequence[MetricStanding],
    *,
    gate: bool,
    lenient: bool = False,
    complete: bool = True,
) -> Status:
    """Return the exit status of a commit that stands so; only what the suite declares counts.

    A `gate` does not pass what it could not decide or did not measure. A `lenient` one passes what
    noise hides, and a first measurement. `complete`: every trial that the command was asked for
    was measured; one that was not never passes, whatever the ledger held before.
    """
    own = [each for each in standings if each.declared]
    if any(each.standing is Standing.WORSE for each in own):
        return Status.BAD
    if not complete:
        return Status.CANNOT_JUDGE
    if (own or gate) and all(each.standing is Standing.MISSING for each in own):
        return Status.CANNOT_JUDGE
    if not gate:
        return Status.GOOD
    passing = {Standing.SAME, Standing.BETTER}
    if lenient:
        passing |= {Standing.TOO_NOISY, Standing.FIRST}
    return Status.GOOD if all(s.standing in passing for s in own) else Status.CANNOT_JUDGE
