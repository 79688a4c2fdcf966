"""Open regressions, which nobody has mended or accepted yet, and the commits that bisects named for
them. Read from the ledger alone; judges nothing, asks no git and computes no statistics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from celedger.base.model import BaselineAct, BisectRecord, Commit, Verdict, VerdictKind
from celedger.base.text import probability
from celedger.ledger.read import Reader

Key = tuple[str, str, str]  # suite, task, metric ("": the task as a whole, a crash)
Known = Mapping[Key, tuple[str, str]]  # the commit with the bad verdict, the first bad one or ""
History = Mapping[str, int]  # the position of each commit: ancestors come first
HISTORY = 2000  # commits of a history whose verdicts count
REACH = 100  # judged commits that are asked for a verdict that settles a metric


def title(key: Key) -> str:
    """`mlp val_loss`, or the task alone where it crashed."""
    return " ".join(filter(None, key[1:]))


def positions(log: Sequence[Commit]) -> History:
    """Return the history of a log, which has the newest commit first."""
    return {commit.sha: position for position, commit in enumerate(reversed(log))}


@dataclass(frozen=True, slots=True)
class FirstBad:
    """A commit that a bisect named."""

    bisect: BisectRecord

    @property
    def commit(self) -> str:
        return self.bisect.culprits[0]

    @property
    def key(self) -> Key:
        return (self.bisect.suite, self.bisect.task, self.bisect.metric)

    @property
    def improved(self) -> bool:
        return bool(self.bisect.report.get("improved"))

    def text(self, *, task: bool = True) -> str:
        """`first bad commit of mlp val_loss (99 %)`; without the task where it is named beside."""
        kind = "better" if self.improved else "bad"
        what = f"{self.bisect.task} " * task + (self.bisect.metric or "crash")
        return f"first {kind} commit of {what} ({probability(self.bisect.probability)})"

    def json(self) -> dict[str, object]:
        return {
            "bisect": self.bisect.ulid, "suite": self.bisect.suite, "task": self.bisect.task,
            "metric": self.bisect.metric,
            "direction": "better" if self.improved else "bad",
            "probability": self.bisect.probability,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Regression:
    """A task's newest clear verdict on a metric, which is bad, and the commit that caused it, if
    any."""

    verdict: Verdict
    first_bad: FirstBad | None

    @property
    def relative(self) -> float | None:
        """Return the effect, relative to the level; None where that is not known, or it crashed."""
        verdict = self.verdict
        moved = verdict.kind is VerdictKind.REGRESSED and math.isfinite(verdict.effect)
        return verdict.effect / abs(verdict.level) if moved and verdict.level else None

    @property
    def key(self) -> Key:
        return (self.verdict.suite, self.verdict.task, self.verdict.metric)


def first_bad_commits(ledger: Reader) -> list[FirstBad]:
    """Return what bisects named, the oldest first: the last answer where several asked the same."""
    last = {(b.suite, b.task, b.metric, b.good, b.bad): b for b in ledger.bisects()}
    return [FirstBad(bisect) for bisect in last.values() if bisect.status == "found"]


def open_regressions(ledger: Reader, history: History) -> list[Regression]:
    """Return the bad verdicts of a history that nobody accepted since, and that no newer commit
    settles: one that is too noisy to tell, or not decided, settles nothing."""
    judged: dict[tuple[str, str], list[tuple[str, float]]] = {}
    rows = (row for row in ledger.judged() if row[2] in history)
    for suite, task, sha, at in sorted(rows, key=lambda row: -history[row[2]]):
        judged.setdefault((suite, task), []).append((sha, at))
    accepted = [act for act in ledger.baselines() if act.act is BaselineAct.ACCEPT]
    named = first_bad_commits(ledger)
    regressions = []
    for (suite, task), commits in sorted(judged.items()):
        for verdict, at in _unsettled(ledger, suite, task, commits[:REACH]):
            closed = any(
                act.suite == suite and act.covers(task, verdict.metric) and act.at > at
                for act in accepted
            )
            if not closed:
                key, since = (suite, task, verdict.metric), _last_good(ledger, verdict, history)
                own = [
                    n for n in named if n.key == key and not n.improved
                    and since < history.get(n.commit, -1) <= history[verdict.commit]
                ]  # fmt: skip
                regressions.append(Regression(verdict, own[-1] if own else None))
    return regressions


def _unsettled(
    ledger: Reader, suite: str, task: str, commits: Iterable[tuple[str, float]]
) -> list[tuple[Verdict, float]]:
    """Return the newest clear verdict on each metric of a task, where it is bad, and when its
    commit was judged. `commits` are the judged ones, newest first. Only metrics that the newest
    commit whose trial ran has verdicts on count: others are judged no more."""
    bad: list[tuple[Verdict, float]] = []
    settled, judged = set[str](), set[str]()
    for sha, at in commits:
        verdicts = ledger.verdicts(commit=sha, suite=suite, task=task)
        names = {v.metric for v in verdicts} - {""}
        for verdict in verdicts:
            if verdict.metric in settled or (judged and verdict.metric not in judged):
                continue
            if verdict.kind.bad:
                bad.append((verdict, at))
            if verdict.kind.bad or verdict.kind.good:
                settled.add(verdict.metric)
        judged = judged or names
        if judged and judged <= settled:
            break
    return bad


def _last_good(ledger: Reader, verdict: Verdict, history: History) -> int:
    """Return the position of the newest commit before a bad one on which the verdict was good: what
    was bad before that is mended. -1 where there is none."""
    kinds = ledger.verdict_kinds(
        suite=verdict.suite, task=verdict.task, recipe=verdict.recipe,
        environment=verdict.environment,
    )  # fmt: skip
    commits = [sha for (sha, metric), kind in kinds.items()
               if metric == verdict.metric and kind.good]  # fmt: skip
    before = [history[sha] for sha in commits if sha in history]
    return max((at for at in before if at < history[verdict.commit]), default=-1)


@dataclass(frozen=True, slots=True)
class News:
    """The difference to what was known before. `known` is what is known now."""

    regressed: tuple[Regression, ...] = ()
    named: tuple[Regression, ...] = ()  # known before, and their first bad commit is new
    recovered: tuple[Key, ...] = ()
    known: Known = field(default_factory=dict)


def changes(before: Known, now: Iterable[Regression], history: History) -> News:
    """Compare the open regressions of a history with those known before. What is known of another
    branch stays known."""
    now = list(now)
    today = {r.key: (r.verdict.commit, r.first_bad.commit if r.first_bad else "") for r in now}
    elsewhere = {key: each for key, each in before.items() if each[0] not in history}
    return News(
        tuple(r for r in now if r.key not in before),
        tuple(r for r in now if r.first_bad and before.get(r.key, ("", ""))[1] != today[r.key][1]
              and r.key in before),
        tuple(key for key in before if key not in today and key not in elsewhere),
        {**elsewhere, **today},
    )  # fmt: skip
