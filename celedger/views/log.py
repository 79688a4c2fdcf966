"""`celedger log`: the commits that have trials, newest first, a line a task. It shows trials and
what the state says of the commit; `celedger show` has the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from celedger.base.model import BisectRecord, Commit
from celedger.judge.incident import State
from celedger.ledger.read import Reader
from celedger.views import incidents as words
from celedger.views import samples
from celedger.views.document import (
    GREEN,
    RED,
    YELLOW,
    Column,
    Document,
    clip,
    count,
    iso_date,
    painted,
    pick,
    plain,
    short,
    table,
)
from celedger.views.samples import Batch, Sample


def _colour(remarks: str) -> str:
    if any(word in remarks for word in ("worse", "fails", "failed")):
        return RED
    return GREEN if any(word in remarks for word in ("better", "mends")) else ""


_COLUMNS = (
    Column(), Column(colour=lambda status: "" if status == "ok" else RED), Column(),
    Column(), Column(wrap=True, colour=_colour),
)  # fmt: skip
_MESSAGE = 120  # letters of a failure's message; `show` has all of it


class TaskLine(NamedTuple):
    batch: Batch
    main: Sample | None
    remarks: tuple[str, ...]  # the state at the commit
    since: str  # what else changed since the commit shown below it
    first_bad: tuple[BisectRecord, ...]  # those that named the commit

    def cells(self) -> tuple[str, ...]:
        batch, main = self.batch, self.main
        value, problem = "", ""
        if main is not None and main.n:
            value = f"{main.metric.name} {main.text()}"
        elif ends := [r.outcome for r in batch.records if r.outcome and not r.ok]:
            problem = clip(plain(ends[-1].message), _MESSAGE)
        trials = count(len(batch.records), "trial")
        if reused := sum(bool(r.derived) for r in batch.records):
            trials += " re-used" if reused == len(batch.records) else f", {reused} re-used"
        remarks = "; ".join(filter(None, (problem, *self.remarks, self.since)))
        return (batch.title, batch.status, trials, value, remarks)

    def json(self) -> dict[str, object]:
        return {
            **pick(self.batch, "suite task recipe environment status"),
            "since": self.since,
            "outcomes": self.batch.outcomes(),
            "trials": [r.trial.ulid for r in self.batch.records],
            "main": self.main,
            "first_bad": list(map(words.first_bad_json, self.first_bad)),
            "told": list(self.remarks),
        }


@dataclass(frozen=True)
class Log(Document):
    """The commits, newest first, each with its tasks."""

    SCHEMA = 2

    entries: tuple[tuple[Commit, tuple[TaskLine, ...]], ...]

    @classmethod
    def of(cls, ledger: Reader, state: State, limit: int = 20) -> Log:
        """Read the newest commits. Raises CeledgerError where none has trials."""
        found = [bisect for bisect in ledger.last_bisects() if bisect.status == "found"]
        older: dict[tuple[str, str], Batch] = {}
        entries, declared = [], cache(ledger.metrics)
        for commit in samples.measured_commits(ledger, state.trials_at)[-limit:]:
            lines = []
            batches = samples.batches(ledger.trials(commit=commit.sha))
            for key, batch in sorted(samples.latest(batches).items()):
                remarks = (
                    *words.at_commit(state, commit.sha, *key),
                    *words.bits(state, commit.sha, *key),
                )
                metrics = batch.metrics(declared)
                main = batch.sample(metrics[0]) if metrics else None
                since = _changes(older.get(key, batch), batch)
                bad = tuple(b for b in found if (b.culprits[0], *b.key[:2]) == (commit.sha, *key))
                lines.append(TaskLine(batch, main, remarks, since, bad))
                older[key] = batch
            entries.append((commit, tuple(lines)))
        return cls(tuple(reversed(entries)))

    def text(self, width: int = 100) -> str:
        rows = [line.cells() for _, tasks in self.entries for line in tasks]
        # All tasks in one table, then dealt out: columns line up from commit to commit.
        lines = table(_COLUMNS, rows, width=width, indent=2).splitlines()[::-1]
        text = []
        for commit, tasks in self.entries:
            head = f"{short(commit.sha)}  {iso_date(commit.commit_time)}  {plain(commit.subject)}"
            sha, rest = short(commit.sha), clip(head, width)
            text.append(painted(sha, YELLOW) + rest[len(sha) :])
            for task in tasks:
                text.append(lines.pop())
                while lines and lines[-1].startswith("   "):  # the remarks go on
                    text.append(lines.pop())
                text += [f"    {words.first_bad(bisect)}" for bisect in task.first_bad]
        return "\n".join(text)

    def json(self) -> dict[str, object]:
        return {
            "commits": [
                {"commit": commit.sha, **pick(commit, "author commit_time subject"), "tasks": tasks}
                for commit, tasks in self.entries
            ]
        }


def _changes(old: Batch, new: Batch) -> str:
    """Return the changes of suite and environment, across which numbers are not a trend."""
    parts = {"suite changed": old.recipe != new.recipe,
             "environment changed": old.environment != new.environment}  # fmt: skip
    return ", ".join(text for text, differs in parts.items() if differs)
