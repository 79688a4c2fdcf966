"""What a commit is held against: the rolling baseline of its ancestors, the pinned one, and what
people accepted. Gathers rows of the ledger; judges nothing.

The rolling baseline is the newest ancestors that were measured in the same environment with the
same recipe and were not themselves found bad. It starts anew at a commit that was found better
or whose change a person accepted: so a regression stays one until somebody mends or accepts it,
and an improvement, once reached, is what later commits are held to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from celedger.base.model import (
    ENVIRONMENTS,
    SPOILT,
    BaselineAct,
    BaselineRecord,
    Commit,
    Kind,
    Mark,
    Metric,
    OutcomeKind,
    SummaryRow,
    Task,
    Verdict,
    VerdictKind,
)
from celedger.ledger import Ledger
from celedger.repo import Repository
from celedger.stats import noise as noises
from celedger.stats.grouped_values import Grouped

Rows = Sequence[SummaryRow]
WINDOW = 30  # commits of a rolling baseline: older start points carry no evidence (drift.md 5)
HISTORY = 2000  # ancestors looked through for one


def usable(kind: OutcomeKind, marks: Collection[Mark], rule: str, metric: Metric) -> bool:
    """Return True if a value that a trial was summarised to by a rule may be judged: the trial ran
    to its end, and, for speed, undisturbed."""
    if kind is not OutcomeKind.OK or rule != metric.summary or Mark.EARLY_STOPPED in marks:
        return False
    return metric.kind is not Kind.SPEED or not SPOILT.intersection(marks)


def usable_rows(rows: Rows, metric: Metric) -> list[SummaryRow]:
    """Return the rows that may be judged."""
    return [r for r in rows if usable(r.outcome, r.marks, r.summary, metric)]


def by_commit(rows: Rows) -> dict[str, list[SummaryRow]]:
    """Return the rows of each commit, in their order."""
    groups: dict[str, list[SummaryRow]] = defaultdict(list)
    for row in rows:
        groups[row.commit].append(row)
    return groups


def noise(rows: Rows, order: Mapping[str, int]) -> noises.Noise:
    """Return the noise of one metric × task × environment, pooled over the commits given. `order`
    places commits in the history: neighbours there, and not in the order of measuring, may be
    compared. Commits it does not name come last."""
    return noises.pool_newest(_grouped(rows, order)[1])


def noise_beside(rows: Rows, commit: str, order: Mapping[str, int], trials: int) -> noises.Noise:
    """Return the noise that a commit with so many trials is tested against."""
    line, grouped = _grouped(rows, order)
    return noises.pool_beside(grouped, line.index(commit) if commit in line else -1, trials)


def _grouped(rows: Rows, order: Mapping[str, int]) -> tuple[list[str], Grouped]:
    """Return the commits that have values of their own, the oldest first, and those values."""
    groups = by_commit([row for row in rows if not row.derived])
    line = sorted(groups, key=lambda sha: order.get(sha, len(order)))
    values = [[row.value for row in groups[sha]] for sha in line]
    return line, Grouped.of(values, [[row.seed for row in groups[sha]] for sha in line])


class Baselines:
    """One task at one commit in one environment, and what it is held against there. `ancestors` are
    hashes, the newest first."""

    def __init__(
        self, ledger: Ledger, task: Task, commit: str, ancestors: Sequence[str], environment: str
    ) -> None:
        self.ledger, self.task, self.commit = ledger, task, commit
        self.environment, self._ancestors = environment, ancestors
        self._acts = [r for r in ledger.baselines(suite=task.suite) if r.task in ("", task.name)]
        self._equal = self._equal_environments()
        self._kinds: dict[tuple[str, str], VerdictKind] = {}
        for each in sorted(self._equal, key=lambda name: name == environment):  # its own count most
            self._kinds |= ledger.verdict_kinds(
                suite=task.suite, task=task.name, recipe=task.recipe, environment=each
            )
        self._judged = {metric for sha, metric in self._kinds if sha != commit}

    @property
    def was_bad(self) -> bool:
        """Return True if the task as a whole was found bad, or not judged, at this commit."""
        return self._kinds.get((self.commit, ""), VerdictKind.SAME) is not VerdictKind.SAME

    def rows(self, metric: Metric) -> tuple[list[SummaryRow], list[SummaryRow]]:
        """Return what was ever measured of a metric, and what of it may be compared here."""
        rows = self.ledger.summaries(self.task.name, metric.name, recipe=self.task.recipe)
        usable = usable_rows(rows, metric)
        return rows, [row for row in usable if row.environment in self._equal]

    def rolling(self, metric: Metric, rows: Rows) -> list[SummaryRow]:
        """Return the rows of the rolling baseline, the oldest commit first."""
        measured = by_commit([row for row in rows if not row.derived])
        accepted = {r.commit for r in self._of(BaselineAct.ACCEPT, metric)}
        chosen: list[list[SummaryRow]] = []
        for sha in self._ancestors:
            verdict = self._kinds.get((sha, metric.name))
            whole = self._kinds.get((sha, ""))
            bad = any(kind is not None and kind.bad for kind in (verdict, whole))
            # What a bisect measured was never judged: half of it is the regression it found.
            judged = verdict is not None or metric.name not in self._judged
            if sha in measured and (sha in accepted or (judged and not bad)):
                chosen.append(measured[sha])
            anew = sha in accepted or (chosen and verdict is VerdictKind.IMPROVED)
            if len(chosen) == WINDOW or anew:
                break
        return [row for group in reversed(chosen) for row in group]

    def pinned(self, metric: Metric, rows: Rows) -> tuple[str, list[SummaryRow]]:
        """Return the newest pin on this metric that lies behind the commit, with its rows; nothing
        where there is none, or where it is not measured."""
        behind = set(self._ancestors)
        pins = [r.commit for r in self._of(BaselineAct.PIN, metric) if r.commit in behind]
        pin = pins[-1] if pins else ""
        return pin, [row for row in rows if row.commit == pin]

    def accepted(self, metric: Metric) -> str:
        """Say who accepted what this very commit changed; "" if nobody did."""
        acts = [r for r in self._of(BaselineAct.ACCEPT, metric) if r.commit == self.commit]
        return f"accepted by {acts[-1].who}: {acts[-1].why}" if acts else ""

    def _equal_environments(self) -> set[str]:
        """Return the environments whose values count as if they were measured in this one: a
        person accepted that a commit measured in both tells no difference."""
        equal = {self.environment}
        for act in self._acts:
            if act.metric == ENVIRONMENTS:
                trials = self.ledger.trials(commit=act.commit, recipe=self.task.recipe)
                measured = {record.trial.environment for record in trials if record.ok}
                if equal & measured:
                    equal |= measured
        return equal

    def _of(self, act: BaselineAct, metric: Metric) -> list[BaselineRecord]:
        return [r for r in self._acts if r.act is act and r.metric in ("", metric.name)]


def last_good(repository: Repository, ledger: Ledger, verdict: Verdict) -> Commit | None:
    """Return the newest ancestor on the first-parent line, measured in the same environment, whose
    verdict on the same metric (for a failed task: on all of them) tells that it is not worse; else
    the oldest one that was not said to be worse: a verdict that is not clear may be of a commit
    that is bad already."""
    kinds = ledger.verdict_kinds(
        suite=verdict.suite,
        task=verdict.task,
        recipe=verdict.recipe,
        environment=verdict.environment,
    )
    ancestors = {c.sha: c for c in repository.log(verdict.commit, limit=HISTORY)}
    commit, unclear = ancestors[verdict.commit], None
    while commit.parents and commit.parents[0] in ancestors:
        commit = ancestors[commit.parents[0]]
        of_commit = {metric: kind for (sha, metric), kind in kinds.items() if sha == commit.sha}
        judged = [kind for m, kind in of_commit.items() if verdict.metric in ("", m)]
        if not judged or any(k.bad for m, k in of_commit.items() if m in ("", verdict.metric)):
            continue
        trials = ledger.trials(
            commit=commit.sha, recipe=verdict.recipe, environment=verdict.environment
        )
        if any(r.ok and not r.early_stopped for r in trials):
            if not verdict.metric or all(kind.good for kind in judged):
                return commit
            unclear = commit
    return unclear
