"""The commits that bisects named. Read from the ledger alone."""

from __future__ import annotations

from dataclasses import dataclass

from celedger.base.model import BisectRecord
from celedger.base.text import probability
from celedger.ledger.read import Reader


@dataclass(frozen=True, slots=True)
class FirstBad:
    """A commit that a bisect named."""

    bisect: BisectRecord

    @property
    def commit(self) -> str:
        return self.bisect.culprits[0]

    @property
    def key(self) -> tuple[str, str, str]:
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


def last_answers(ledger: Reader) -> list[BisectRecord]:
    """Return the bisects, the oldest first: the last answer where several asked the same. (One that
    was proved is recorded again with its proof.)"""
    bisects = ledger.bisects()
    last = {(b.suite, b.task, b.metric, b.good, b.bad): b.ulid for b in bisects}
    final = frozenset(last.values())
    return [bisect for bisect in bisects if bisect.ulid in final]


def first_bad_commits(ledger: Reader) -> list[FirstBad]:
    """Return what bisects named, the oldest first."""
    return [FirstBad(bisect) for bisect in last_answers(ledger) if bisect.status == "found"]
