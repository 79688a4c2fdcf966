"""`celedger status`: what runs, what waits, what got worse, and what to type next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from celedger.base.model import Commit, TrialRecord
from celedger.judge.drift import open_regressions
from celedger.judge.drift.open_regressions import News, Regression
from celedger.ledger.job_record import JobState
from celedger.views.document import Document, pick
from celedger.views.format import count, duration, iso_time, percent, plain, short
from celedger.views.queue import Queue
from celedger.views.samples import verdict_json
from celedger.views.tables import Column, table

_COLUMNS = (Column(), Column(wrap=True))
_LISTED = 12  # of each kind that are printed; JSON has all


@dataclass(frozen=True, slots=True)
class StatusDocument(Document):
    now: float
    running: Sequence[TrialRecord]
    queue: Queue
    regressions: Sequence[Regression]
    changes: News  # since a person looked last
    commits: Mapping[str, Commit]  # those that the regressions name
    next: str  # a command in backquotes, and why; "" where nothing is to be done

    def text(self, width: int = 100) -> str:
        sections = {
            "runs": [self._trial(record) for record in self.running],
            "waits": self._waiting(),
            "last job": self._last_job(),
            "worse": [self._regression(r) for r in self.regressions],
            "recovered": [open_regressions.title(key) for key in self.changes.recovered],
        }
        rows = []
        for title, lines in sections.items():
            more = len(lines) - _LISTED
            shown = lines[:_LISTED] + [f"and {more} more"] * (more > 0)
            if not shown and title in ("runs", "worse"):
                shown = ["nothing"]
            rows += [(title if n == 0 else "", line) for n, line in enumerate(shown)]
        text = table(_COLUMNS, rows, width=width)
        # Not wrapped: it is there to be pasted.
        return f"{text}\n\n{self.next}" if self.next else text

    def json(self) -> dict[str, object]:
        new = {r.key for r in self.changes.regressed}
        return {
            "running": [
                {
                    **pick(record, "suite task epochs"),
                    **pick(record.trial, "ulid commit seed why started host device"),
                }
                for record in self.running
            ],
            "queue": self.queue,
            "regressions": [
                {
                    **pick(r.verdict, "commit suite task"), "new": r.key in new,
                    **verdict_json(r.verdict),
                    "first_bad": r.first_bad
                    and {"commit": r.first_bad.commit, **r.first_bad.json()},
                }
                for r in self.regressions
            ],
            "recovered": [
                dict(zip(("suite", "task", "metric"), key, strict=True))
                for key in self.changes.recovered
            ],
            "next": self.next.partition("`")[2].partition("`")[0] or None,
        }  # fmt: skip

    def _trial(self, record: TrialRecord) -> str:
        trial = record.trial
        spent = duration(max(0.0, self.now - trial.started))
        done = f"{count(record.epochs, 'epoch')} in {spent}"
        return f"{record.task} at {short(trial.commit)}, seed {trial.seed}: {done} ({trial.why})"

    def _waiting(self) -> list[str]:
        lines = []
        for job in self.queue.jobs:
            if job.state in (JobState.QUEUED, JobState.WAITING):
                message = f": {plain(job.message)}" if job.message else ""
                lines.append(f"{short(job.commit)} {job.state.value}{message}")
        if self.queue.notes:
            why = f": {plain(self.queue.waits)}" if self.queue.waits else ""
            lines.append(f"{count(self.queue.notes, 'merge')} noted{why}")
        return lines

    def _last_job(self) -> list[str]:
        ended = [j for j in self.queue.jobs if j.state in (JobState.DONE, JobState.FAILED)]
        if not ended:
            return []
        job = max(ended, key=lambda job: job.ended or 0.0)
        when = iso_time(job.ended or job.created)
        return [f"{short(job.commit)} {job.state.value}, {when} UTC: {plain(job.message)}"]

    def _regression(self, regression: Regression) -> str:
        verdict, first_bad = regression.verdict, regression.first_bad
        moved = "" if regression.relative is None else f" {percent(regression.relative)}"
        name = open_regressions.title(regression.key)
        text = f"{name} {verdict.kind.value}{moved} at {short(verdict.commit)}"
        if first_bad is not None:
            commit = self.commits.get(first_bad.commit)
            subject = f" {plain(commit.subject)}" if commit else ""
            text += f"; {first_bad.text(task=False)}: {short(first_bad.commit)}{subject}"
        is_new = regression.key in {r.key for r in self.changes.regressed}
        return f"new: {text}" if is_new else text
