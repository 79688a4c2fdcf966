"""What a commit is held against: the rolling baseline of its ancestors, the pinned one, and what
people accepted. Gathers rows of the ledger; judges nothing.

The rolling baseline is the newest ancestors that were measured in the same environment with the
same recipe and were not themselves found bad. It starts anew at a commit that was found better
or whose change a person accepted: so a regression stays one until somebody mends or accepts it,
and an improvement, once reached, is what later commits are held to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from celedger.drift.values import POOLED, SPOILT
from celedger.ledger import Ledger
from celedger.model import (
    BaselineAct,
    BaselineRecord,
    Commit,
    Environment,
    Kind,
    Mark,
    Metric,
    OutcomeKind,
    SummaryRow,
    Task,
    Verdict,
    VerdictKind,
)
from celedger.repo import Repository
from celedger.stats import noise as noises

WINDOW = 30  # commits of a rolling baseline: older start points carry no evidence (drift.md 5)
HISTORY = 2000  # ancestors looked through for one


def usable(row: SummaryRow, metric: Metric) -> bool:
    """Whether a trial's value may be judged: it ran to its end, and, for speed, undisturbed."""
    if row.outcome is not OutcomeKind.OK or row.summary != metric.summary:
        return False
    if Mark.EARLY_STOPPED in row.marks:
        return False
    return metric.kind is not Kind.SPEED or not SPOILT.intersection(row.marks)


def noise(rows: Sequence[SummaryRow], order: Mapping[str, int]) -> noises.Noise:
    """The noise of one metric × task × environment, pooled over the commits given. `order` places
    commits in the history: neighbours there, and not in the order of measuring, may be compared.
    Commits it does not name come last; of a long history the newest POOLED count."""
    groups: dict[str, list[SummaryRow]] = defaultdict(list)
    for row in rows:
        if not row.derived:  # it repeats a value and no measurement
            groups[row.commit].append(row)
    far = len(order)
    line = sorted(groups, key=lambda sha: order.get(sha, far))[-POOLED:]
    return noises.pool(
        [[r.value for r in groups[sha]] for sha in line],
        seeds=[[r.seed for r in groups[sha]] for sha in line],
    )


def noise_beside(
    rows: Sequence[SummaryRow], commit: str, order: Mapping[str, int], trials: int
) -> noises.Noise:
    """Return the noise that a commit with so many trials is tested against: its own step is no
    part of it, its repeats are."""
    known = noise([r for r in rows if r.commit != commit], order)
    if trials > 1 and not known.between and not known.exact:
        known = replace(noise(rows, order), between=0.0)
    return known


class Baselines:
    """The baselines of one task at one commit in one environment. `ancestors` are hashes, the
    newest first."""

    def __init__(
        self,
        ledger: Ledger,
        task: Task,
        commit: str,
        ancestors: Sequence[str],
        environment: str,
    ) -> None:
        self._ancestors = ancestors
        kinds = ledger.verdict_kinds(
            suite=task.suite, task=task.name, recipe=task.recipe, environment=environment
        )
        self.own = {metric: kind for (sha, metric), kind in kinds.items() if sha == commit}
        self._earlier = {key: kind for key, kind in kinds.items() if key[0] != commit}
        self._judged = {metric for _, metric in self._earlier}
        self._acts = [r for r in ledger.baselines(suite=task.suite) if r.task in ("", task.name)]
        self._commit = commit

    def rolling(self, metric: Metric, rows: Sequence[SummaryRow]) -> list[SummaryRow]:
        """The rows of the rolling baseline, the oldest commit first."""
        by_commit: dict[str, list[SummaryRow]] = defaultdict(list)
        for row in rows:
            if not row.derived:
                by_commit[row.commit].append(row)
        accepted = {r.commit for r in self._of(BaselineAct.ACCEPT, metric)}
        chosen: list[list[SummaryRow]] = []
        for sha in self._ancestors:
            verdict = self._earlier.get((sha, metric.name))
            whole = self._earlier.get((sha, ""))
            bad = (verdict is not None and verdict.bad) or (whole is not None and whole.bad)
            # What a bisect measured was never judged: half of it is the regression it found.
            heard = verdict is not None or metric.name not in self._judged
            if sha in by_commit and (sha in accepted or (heard and not bad)):
                chosen.append(by_commit[sha])
            anew = sha in accepted or (chosen and verdict is VerdictKind.IMPROVED)
            if len(chosen) == WINDOW or anew:
                break
        return [row for group in reversed(chosen) for row in group]

    def pinned(
        self, metric: Metric, rows: Sequence[SummaryRow]
    ) -> tuple[BaselineRecord, list[SummaryRow]] | None:
        """The newest pin on this metric that lies behind the commit, with its rows; None where
        there is none, or where it is not measured."""
        behind = set(self._ancestors)
        pins = [r for r in self._of(BaselineAct.PIN, metric) if r.commit in behind]
        if not pins:
            return None
        found = [row for row in rows if row.commit == pins[-1].commit]
        return (pins[-1], found) if found else None

    def accepted(self, metric: Metric) -> BaselineRecord | None:
        """Who accepted what this very commit changed, if anybody did."""
        acts = [r for r in self._of(BaselineAct.ACCEPT, metric) if r.commit == self._commit]
        return acts[-1] if acts else None

    def _of(self, act: BaselineAct, metric: Metric) -> list[BaselineRecord]:
        return [r for r in self._acts if r.act is act and r.metric in ("", metric.name)]


def unjudged(
    ledger: Ledger,
    commits: Sequence[Commit],
    tasks: Sequence[Task],
    environments: Mapping[str, Environment],
) -> set[str]:
    """The commits of which some task has no verdict yet in the environment it would run in."""
    found: set[str] = set()
    for task in tasks:
        kinds = ledger.verdict_kinds(
            suite=task.suite,
            task=task.name,
            recipe=task.recipe,
            environment=environments[task.name].fingerprint,
        )
        judged = {sha for sha, _ in kinds}
        found |= {commit.sha for commit in commits if commit.sha not in judged}
    return found


def last_good(repository: Repository, ledger: Ledger, verdict: Verdict) -> Commit | None:
    """The newest ancestor on the first-parent line, measured in the same environment, whose
    verdict on the same metric (for a failed task: on all of them) was not bad."""
    kinds = ledger.verdict_kinds(
        suite=verdict.suite,
        task=verdict.task,
        recipe=verdict.recipe,
        environment=verdict.environment,
    )
    ancestors = {c.sha: c for c in repository.log(verdict.commit, limit=HISTORY)}
    commit = ancestors[verdict.commit]
    while commit.parents and commit.parents[0] in ancestors:
        commit = ancestors[commit.parents[0]]
        known = {m: k for (sha, m), k in kinds.items() if sha == commit.sha}
        said = [k for m, k in known.items() if verdict.metric in ("", m)]
        if said and not any(k.bad for m, k in known.items() if m in ("", verdict.metric)):
            here = ledger.trials(
                commit=commit.sha, recipe=verdict.recipe, environment=verdict.environment
            )
            if any(r.ok and not r.early_stopped for r in here):
                return commit
    return None
