"""`celedger show REV`: the trials of one commit. Every comparable batch of trials is a table of its
metrics, with what the state says of the commit and how small a change its trials could detect.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from celedger.base.model import (
    STEP_COUNTS,
    BisectRecord,
    Commit,
    Direction,
    Environment,
    FindingRecord,
    OutcomeKind,
    TrialRecord,
)
from celedger.judge.incident import PER_STEP, State
from celedger.judge.two_commits import smallest_change
from celedger.ledger.read import Reader
from celedger.views import incidents as words
from celedger.views import samples
from celedger.views.document import (
    Column,
    Document,
    clip,
    count,
    iso_time,
    pick,
    plain,
    short,
    table,
    wrap,
)
from celedger.views.samples import Batch, Sample

_PACKAGES = 8  # that are listed if the imported ones are unknown
_COLUMNS = (
    Column("metric"), Column("value"), Column("n", right=True), Column("detects"), Column(),
    Column("state"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MetricRow:
    """A metric's row. `smallest`: the smallest change that two commits with this many trials each
    would detect at 95 % confidence in four cases of five, in the metric's unit; 0 if it repeats
    exactly, infinity if its noise is not known yet, NaN if the metric is not judged."""

    sample: Sample
    smallest: float
    remarks: tuple[str, ...]  # the state at the commit

    def cells(self) -> tuple[str, ...]:
        sample = self.sample
        return (
            sample.metric.name,
            sample.text(),
            str(sample.n),
            sample.smallest_text(self.smallest),
            f"{sample.left_out} hindered" if sample.left_out else "",
            "; ".join(self.remarks),
        )

    def json(self) -> dict[str, object]:
        remarks = list(self.remarks)
        return {**self.sample.json(), "smallest_change": self.smallest, "told": remarks}


@dataclass(frozen=True, slots=True)
class BatchRows:
    batch: Batch
    environment: Environment | None
    metrics: tuple[MetricRow, ...]
    told: tuple[str, ...]  # the state of the task as a whole, and of the work of its steps

    def lines(self, width: int) -> list[str]:
        batch = self.batch
        head = f"{batch.title}  {batch.status}, {count(len(batch.records), 'trial')}"
        lines = [f"{head}  (definition {short(batch.recipe)})"]
        lines += [line for text in self.told for line in wrap(f"  {text}", width, 4)]
        rows = [row.cells() for row in self.metrics]
        if not any(row.sample.n or row.sample.left_out or row.remarks for row in self.metrics):
            rows = []  # nothing was measured
        lines += table(_COLUMNS, rows, width=width, indent=2).splitlines()
        lines += _failures(batch.records, width)
        return [*lines, *(line for record in batch.records for line in _remarks(record))]

    def json(self) -> dict[str, object]:
        return {
            **pick(self.batch, "suite task recipe environment"),
            "told": list(self.told),
            "metrics": self.metrics,
            "trials": [
                {
                    **pick(record.trial, "ulid seed why started host device"),
                    "derived": record.derived or None,
                    **pick(record, "epochs summaries"),
                    "outcome": record.outcome
                    and pick(record.outcome, "kind ended message returncode log marks"),
                }
                for record in self.batch.records
            ],
        }


@dataclass(frozen=True, slots=True)
class CommitRows(Document):
    SCHEMA = 2

    commit: Commit
    batches: tuple[BatchRows, ...]
    first_bad: tuple[BisectRecord, ...]  # those that named it
    findings: tuple[FindingRecord, ...]

    @classmethod
    def of(
        cls, ledger: Reader, sha: str, state: State, findings: Sequence[FindingRecord] = ()
    ) -> CommitRows:
        """Read a commit, by its full hash. Raises CeledgerError if it has neither trials nor
        findings."""
        commit_row = ledger.commit(sha) if findings else None
        if commit_row is not None and not ledger.trials(commit=sha):
            return cls(commit_row, (), (), tuple(findings))
        commit, batches = samples.measured(ledger, sha)
        latest = {(b.suite, b.task): b for b in reversed(batches)}
        rows = []
        for batch in batches:
            # What is known is shown once, with the newest trials.
            is_newest = latest[batch.suite, batch.task] is batch
            metrics = tuple(
                MetricRow(
                    sample, _smallest(state, batch, sample),
                    tuple(words.at_commit(state, sha, batch.suite, batch.task, sample.metric.name))
                    if is_newest else (),
                )
                for sample in map(batch.sample, batch.metrics(ledger.metrics))
            )  # fmt: skip
            environment = ledger.environment(batch.environment)
            told = _of_task(state, sha, batch.suite, batch.task) if is_newest else ()
            rows.append(BatchRows(batch, environment, metrics, tuple(told)))
        found = (bisect for bisect in ledger.last_bisects() if bisect.status == "found")
        first_bad = tuple(bisect for bisect in found if bisect.culprits[0] == sha)
        return cls(commit, tuple(rows), first_bad, tuple(findings))

    def without_value(self, judged: Collection[tuple[str, str]]) -> dict[str, list[str]]:
        """Return which of these metrics, by task, no trial had that ended well. Signatures have the
        counts of a step, and re-used results may lack what was measured elsewhere."""
        seen: dict[str, set[str]] = {}
        for rows in self.batches:
            if any(record.ok and not record.derived for record in rows.batch.records):
                seen.setdefault(rows.batch.task, set(STEP_COUNTS)).update(
                    row.sample.metric.name for row in rows.metrics
                )
        silent = {
            task: sorted(name for of, name in judged if of == task and name not in names)
            for task, names in seen.items()
        }
        return {task: names for task, names in silent.items() if names}

    def text(self, width: int = 100) -> str:
        commit = self.commit
        lines = [
            f"commit {commit.sha}",
            clip(f"{iso_time(commit.commit_time)} UTC  {plain(commit.author)}", width),
            "",
            *wrap(f"    {plain(commit.subject)}", width, 4),
        ]
        if self.first_bad:
            lines += ["", *(f"{words.first_bad(b)}, bisect {b.ulid}" for b in self.first_bad)]
        environment = ""
        for rows in self.batches:
            if rows.batch.environment != environment:
                environment = rows.batch.environment
                lines += ["", _environment_line(environment, rows.environment, width)]
            lines += ["", *rows.lines(width)]
        newest = {(f.verb, f.suite, f.task, f.before, f.command): f for f in self.findings}
        for finding in newest.values():
            lines += ["", *_finding_lines(finding, width)]
        return "\n".join(lines)

    def json(self) -> dict[str, object]:
        environments = [r.environment for r in self.batches if r.environment]
        return {
            "commit": pick(self.commit, "sha tree parents author author_time commit_time subject"),
            "first_bad": list(map(words.first_bad_json, self.first_bad)),
            "environments": {e.fingerprint: e.details for e in environments},
            "tasks": self.batches,
            "findings": [
                pick(f, "ulid verb suite task before command started headline document")
                for f in self.findings
            ],
        }


def _of_task(state: State, sha: str, suite: str, task: str) -> list[str]:
    moved = (m for i in state.incidents for m in (*i.metrics, *i.work) if m.unit == PER_STEP)
    counts = dict.fromkeys(m.name for m in moved)
    return [
        *words.at_commit(state, sha, suite, task, ""),
        *(
            f"{name} {line}" for name in counts
            for line in words.at_commit(state, sha, suite, task, name)
        ),
        *words.bits(state, sha, suite, task),
    ]  # fmt: skip


def _finding_lines(finding: FindingRecord, width: int) -> list[str]:
    head = f"{finding.verb} of {finding.task}, {iso_time(finding.started)} UTC"
    if finding.before:
        head += f", against {short(finding.before)}"
    # The command is not wrapped: it is there to be pasted.
    return [
        head,
        *wrap(f"  {plain(finding.headline)}", width, 2),
        f"  `celedger {finding.command}`",
    ]


def _smallest(state: State, batch: Batch, sample: Sample) -> float:
    metric, n = sample.metric, sample.n
    if metric.direction is Direction.INFO or n == 0:
        return math.nan
    return smallest_change(state.noise_of(batch.suite, batch.task, metric.name), n, n)


def _environment_line(fingerprint: str, environment: Environment | None, width: int) -> str:
    """Return what trainings ran in, in one line: the JSON has all of it."""
    details = environment.details if environment else {}
    versions, uncounted = details.get("packages"), details.get(samples.BESIDE)
    imported = uncounted.get("imported", ()) if isinstance(uncounted, Mapping) else ()
    every = versions if isinstance(versions, Mapping) else {}
    names = [name for name in every if name in imported]
    if not names and len(every) <= _PACKAGES:
        names = [*every]
    packages = [f"{name} {every[name]}" for name in names]
    device = details.get("device")
    if device == "cpu":
        device = details.get("cpu")
    imported_from = f"imported {details['imported']}" if "imported" in details else ""
    facts = [imported_from, details.get("python"), device, *packages]
    text = ", ".join(str(fact) for fact in facts if fact)
    return clip(f"environment {short(fingerprint)}  {plain(text)}".rstrip(), width)


def _failures(records: Sequence[TrialRecord], width: int) -> list[str]:
    """Return how trials ended that did not end well, those that ended alike together. The path of a
    log is never cut, because it is for opening."""
    alike: dict[tuple[str, str], list[TrialRecord]] = {}
    for record in records:
        if record.outcome is not None and record.outcome.kind is not OutcomeKind.OK:
            message = plain(record.outcome.message)
            alike.setdefault((record.outcome.kind.value, message), []).append(record)
    lines = []
    for (kind, message), own in alike.items():
        seeds = ", ".join(dict.fromkeys(str(record.trial.seed) for record in own))
        head = f"  seed{'s' * (len(own) > 1)} {seeds} {kind}"
        lines += wrap(f"{head}: {message}" if message else head, width, 4)
        logs = [record.outcome.log for record in own if record.outcome and record.outcome.log]
        more = f" (and {len(logs) - 1} more)" if len(logs) > 1 else ""
        lines += [f"    log {logs[0]}{more}"] if logs else []
    return lines


def _remarks(record: TrialRecord) -> list[str]:
    """Return the remarks on a trial."""
    outcome, seed, lines = record.outcome, f"  seed {record.trial.seed}", []
    if record.derived:
        lines.append(f"{seed} {record.reused} (trial {record.derived})")
    if outcome is not None and outcome.marks:
        lines.append(f"{seed} marked {', '.join(outcome.marks)} ({record.trial.ulid})")
    return lines
