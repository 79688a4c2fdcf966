"""Write facts, and the queue of the worker, whose rows are the only ones that change.

Lives here: every INSERT of a fact; enqueue, claim and finish of a job. Each call is one
transaction, safe under many writers, and idempotent: a fact that comes twice is recorded once. It
must not know why something ran or what a job means, and has no clock: times are arguments, in
seconds since the epoch. The claimant of jobs holds the lock of the one worker.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from celedger.base.errors import LedgerError
from celedger.base.model import (
    BaselineRecord,
    BisectRecord,
    Commit,
    Environment,
    EpochReport,
    FindingRecord,
    Footprint,
    JobState,
    Mark,
    Metric,
    Outcome,
    QueuedJob,
    ReusableTrial,
    SaidRecord,
    Task,
    Trial,
    usual_unit,
)
from celedger.ledger import checksums
from celedger.ledger.checksums import Union
from celedger.ledger.read import Reader
from celedger.ledger.store import Store, columns_of, encoded, number, pack

_OPEN = (JobState.QUEUED, JobState.WAITING)


class Queue:
    """The queue of an open ledger."""

    def __init__(self, ledger: Reader) -> None:
        self._ledger = ledger

    def enqueue(
        self, kind: str, commit: str, suite: str, created: float, key: str = ""
    ) -> QueuedJob:
        """Queue a job. Queued and waiting jobs of the same kind, suite and (non-empty) key (a
        branch, say) are superseded; the same commit queued twice is one job."""
        with self._ledger.transaction() as connection:
            if key:
                same = "state IN ('queued', 'waiting') AND (kind, suite, key) = (?, ?, ?)"
                queue = (kind, suite, key)
                queued = self._ledger._jobs(f"WHERE {same} ORDER BY id DESC", *queue)
                if queued and queued[0].commit == commit:
                    return queued[0]
                connection.execute(
                    f"UPDATE jobs SET state = 'superseded', ended = ?, message = ? WHERE {same}",
                    (created, f"superseded by {commit[:10]}", *queue),
                )
            cursor = connection.execute(
                "INSERT INTO jobs (kind, sha, suite, created, key, state, owner, attempts, "
                "message) VALUES (?, ?, ?, ?, ?, 'queued', '', 0, '')",
                (kind, commit, suite, created, key),
            )
            return self._ledger._jobs("WHERE id = ?", cursor.lastrowid)[0]

    def claim(self, owner: str) -> QueuedJob | None:
        """Return the oldest job that is queued: it is `owner`'s now."""
        with self._ledger.transaction() as connection:
            queued = self._ledger._jobs("WHERE state = 'queued' ORDER BY id LIMIT 1")
            if not queued:
                return None
            connection.execute(
                "UPDATE jobs SET state = 'running', owner = ?, attempts = attempts + 1, "
                "message = '' WHERE id = ?",
                (owner, queued[0].id),
            )
            return self._ledger._jobs("WHERE id = ?", queued[0].id)[0]

    def finish(self, job: int, owner: str, state: JobState, now: float, message: str = "") -> bool:
        """Record how a job ended; `queued` hands it back, `waiting` keeps it until `wake`. Returns
        False when it was no longer `owner`'s."""
        with self._ledger.transaction() as connection:
            ended = connection.execute(
                "UPDATE jobs SET state = ?, message = ?, ended = ? "
                "WHERE id = ? AND owner = ? AND state = 'running'",
                (state.value, encoded(message), None if state in _OPEN else now, job, owner),
            )
            return ended.rowcount > 0

    def cancel(self, job: int, now: float) -> None:
        """End a job that a person does not want, whoever runs it."""
        with self._ledger.transaction() as connection:
            connection.execute(
                "UPDATE jobs SET state = 'failed', message = 'stopped', ended = ? "
                "WHERE id = ? AND state IN ('queued', 'waiting', 'running')",
                (now, job),
            )

    def wake(self) -> None:
        """Queue all waiting jobs again, as if nobody had tried them."""
        with self._ledger.transaction() as connection:
            connection.execute(
                "UPDATE jobs SET state = 'queued', attempts = 0, ended = NULL "
                "WHERE state = 'waiting'"
            )


# --- facts

_LARGEST = 2**63 - 1  # SQLite's integers
LONGEST_HEADLINE = 500  # letters; a message in it may have any length
LARGEST_DOCUMENT = 2**20  # letters of JSON; a profile of 8,000 steps has about as many
# What a person counts, and its table. A trial without an outcome is counted by itself.
_COUNTED = {
    "trials": "outcomes", "commits": "commits", "tasks": "tasks", "environments": "environments",
    "verdicts": "verdicts", "bisects": "bisects", "baselines": "baselines",
    "findings": "findings",
}  # fmt: skip


class _DryRun(Exception):
    """End a transaction without keeping it."""


class Ledger(Reader):
    """Facts are added and read, never changed. Open it with `Ledger.open`. A view asks for a
    `Reader`, which has nothing to write with."""

    @property
    def queue(self) -> Queue:
        return Queue(self)

    def record_commits(self, commits: Iterable[Commit]) -> None:
        with self.transaction() as connection:
            for commit in commits:
                row = columns_of(commit)
                del row["parents"]
                new = self._insert("commits", **row)
                key = new or self._id("commits", "sha", commit.sha)
                # A shallow clone does not know the parents of every commit: they may come later.
                parents = connection.executemany(
                    "INSERT INTO parents VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                    [(key, i, sha) for i, sha in enumerate(commit.parents)],
                )
                if new or parents.rowcount > 0:
                    self._seal("commits", key)

    def record_task(self, task: Task, *, is_whole: bool = False) -> None:
        """Record the task by its recipe, and how each of its metrics is judged from now on.
        `is_whole`: it is judged by these alone; a metric that was declared before is so no more."""
        with self.transaction():
            definition = encoded(task.definition())
            self._record(
                "tasks", recipe=task.recipe, suite=encoded(task.suite), name=encoded(task.name),
                definition=definition,
            )  # fmt: skip
            key = self._id("tasks", "recipe", task.recipe)
            dropped = self._judged(key) - {m.name for m in task.metrics} if is_whole else ()
            for metric in (*task.metrics, *(Metric(n, usual_unit(n)) for n in sorted(dropped))):
                self._define(key, metric)

    def record_environment(self, environment: Environment) -> None:
        with self.transaction():
            self._record("environments", **columns_of(environment))

    def start_trial(self, trial: Trial) -> None:
        """Raises LedgerError when its commit, task or environment was not recorded before."""
        row = columns_of(trial)
        if self._vanished():
            raise self._gone()
        with self.transaction():
            row["revision"] = self._id("commits", "sha", row.pop("commit"))
            row["task"] = self._id("tasks", "recipe", row.pop("recipe"))
            row["environment"] = self._id("environments", "fingerprint", row["environment"])
            if key := self._insert("trials", **row):
                self._started.append(key)

    def record_trial_facts(self, ulid: str, facts: Mapping[str, str]) -> None:
        """Record what is known of a trial beyond its columns, by name. The first value stays."""
        with self.transaction():
            trial = self._trial_id(ulid)
            for name, value in facts.items():
                self._record("trial_facts", trial=trial, name=name, value=encoded(value))

    def append(
        self,
        ulid: str,
        epoch: int,
        values: Mapping[str, float],
        fingerprint: str | None = None,
    ) -> tuple[str, ...]:
        """Record one epoch of one trial; it is on the disk when this returns. The first value of a
        metric in an epoch stays. Returns the names that were reported before with another value."""
        return self.append_epochs(ulid, (EpochReport(epoch, values, fingerprint),))

    def append_epochs(self, ulid: str, reports: Iterable[EpochReport]) -> tuple[str, ...]:
        """Record several epochs in one transaction, as `append` does one. What comes after the
        trial's outcome comes too late, and is left out."""
        with self.transaction() as connection:
            trial, reports = self._trial_id(ulid), list(reports)
            if self._rows("SELECT 1 FROM outcomes WHERE trial = ?", (trial,)):
                return ()
            for report in reports:
                if not 0 <= report.epoch <= _LARGEST:
                    raise LedgerError(
                        f"trial {ulid} reported epoch {report.epoch}, which is not an epoch"
                    )
            connection.executemany(
                "INSERT INTO steps (trial, epoch, metric, first, width, series) "
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                [
                    (trial, r.epoch, self._metric_id(name), part.first, *pack(part.values))
                    for r in reports
                    for name, part in r.steps.items()
                ],
            )
            points = [
                (trial, r.epoch, self._metric_id(name), number(value))
                for r in reports
                for name, value in r.values.items()
            ]
            hashes = [
                (trial, r.epoch, encoded(r.fingerprint))
                for r in reports
                if r.fingerprint is not None
            ]
            before = connection.total_changes
            connection.executemany(
                "INSERT INTO points VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", points
            )
            connection.executemany(
                "INSERT INTO fingerprints VALUES (?, ?, ?) ON CONFLICT DO NOTHING", hashes
            )
            if connection.total_changes - before == len(points) + len(hashes):
                return ()
            return self._reported_otherwise(trial, points, hashes)

    def _reported_otherwise(
        self, trial: int, points: list[tuple[Any, ...]], hashes: list[tuple[Any, ...]]
    ) -> tuple[str, ...]:
        """Return the names of what the ledger has otherwise."""
        stored = set(self._rows("SELECT * FROM points WHERE trial = ?", (trial,)))
        metrics = {metric for _, _, metric, _ in set(points) - stored}
        names = {name for name, key in self._metric_ids.items() if key in metrics}
        if set(hashes) - set(self._rows("SELECT * FROM fingerprints WHERE trial = ?", (trial,))):
            names.add("fingerprint")
        return tuple(sorted(names))

    def finish_trial(self, ulid: str, outcome: Outcome, summaries: Mapping[str, float]) -> bool:
        """Record how a trial ended, and its metrics' summaries. Returns False, and writes nothing,
        when it had ended already."""
        with self.transaction() as connection:
            trial = self._trial_id(ulid)
            ((epochs,),) = self._rows(
                "SELECT count(DISTINCT epoch) FROM points WHERE trial = ?", (trial,)
            )
            row = columns_of(outcome) | {"marks": " ".join(outcome.marks)}
            if self._insert("outcomes", trial=trial, epochs=epochs, **row) is None:
                return False
            self._summarise(connection, trial, summaries)
            self._seal("trials", trial)
            return True

    def complete_trials(
        self, task: Task, names: Collection[str], summarise: Callable[[str], Mapping[str, float]]
    ) -> None:
        """Give the task's trials that ended well the summaries of these metrics that they lack.
        They were declared later, and are computed from the stored epochs: `summarise` gets the
        trial's ulid. A trial that is damaged is left as it is."""
        lacks = (
            "SELECT r.id, r.ulid FROM tasks t JOIN trials r ON r.task = t.id "
            "JOIN outcomes o ON o.trial = r.id AND o.kind = 'ok' AND o.marks NOT LIKE ? "
            "WHERE t.recipe = ? AND NOT EXISTS (SELECT 1 FROM summaries s JOIN metrics m "
            "ON m.id = s.metric WHERE s.trial = r.id AND m.name = ?)"
        )
        early = f"%{Mark.EARLY_STOPPED}%"
        trials = {row for name in names for row in self._rows(lacks, (early, task.recipe, name))}
        if not trials:
            return
        with self.transaction() as connection:
            self.record_task(task)
            for trial, ulid in sorted(trials):
                values = {n: v for n, v in summarise(ulid).items() if n in names}
                if values and checksums.is_sound(connection, "trials", trial):
                    self._summarise(connection, trial, values)
                    self._seal("trials", trial)

    def _summarise(
        self, connection: sqlite3.Connection, trial: int, summaries: Mapping[str, float]
    ) -> None:
        connection.executemany(
            "INSERT INTO summaries (metric, task, trial, value, definition) "
            "SELECT ?1, r.task, r.id, ?2, (SELECT max(d.id) FROM definitions d "
            "WHERE d.task = r.task AND d.metric = ?1) FROM trials r WHERE r.id = ?3 "
            "ON CONFLICT DO NOTHING",
            [(self._metric_id(name), number(v), trial) for name, v in summaries.items()],
        )

    def record_bisect(self, bisect: BisectRecord) -> None:
        with self.transaction():
            self._record("bisects", **columns_of(bisect))

    def record_baseline(self, baseline: BaselineRecord) -> None:
        with self.transaction():
            row = columns_of(baseline)
            row["revision"] = self._id("commits", "sha", row.pop("commit"))
            self._record("baselines", **row)

    def record_finding(self, finding: FindingRecord) -> None:
        """Record the finding; its commits must be recorded. Of a document that is too large, only
        the size is kept. Raises LedgerError."""
        row = columns_of(finding)
        row["headline"] = row["headline"][:LONGEST_HEADLINE]
        if (size := len(row["document"])) > LARGEST_DOCUMENT:
            row["document"] = encoded({"left_out": size})
        with self.transaction():
            row["revision"] = self._id("commits", "sha", row.pop("commit"))
            before = row["before"]
            row["before"] = self._id("commits", "sha", before) if before else None
            self._record("findings", **row)

    def record_said(self, rows: Iterable[SaidRecord]) -> None:
        """Record rows; one that is there already (by its ulid) adds nothing."""
        with self.transaction():
            for row in rows:
                self._record("said", **columns_of(row))

    # --- trials that others may re-use, and those that did

    def record_footprint(self, ulid: str, footprint: Footprint, surroundings: str) -> None:
        """Record what a trial read. `surroundings` is what beside the tree decides what a training
        reads."""
        paths = b"\0\0".join(map(_packed, (footprint.opened, footprint.looked)))
        inputs = json.dumps(footprint.inputs)
        digest = hashlib.sha256(paths + b"\n\0" + inputs.encode()).hexdigest()
        with self.transaction():
            self._record("footprints", digest=digest, paths=zlib.compress(paths), inputs=inputs)
            key = self._id("footprints", "digest", digest)
            self._record(
                "closures", trial=self._trial_id(ulid), footprint=key, content=surroundings,
                unknown="",
            )  # fmt: skip

    def record_unknown_footprint(self, ulid: str, why: str) -> None:
        """Record that a trial cannot be re-used."""
        unknown = why.encode("utf-8", "replace").decode()
        with self.transaction():
            self._record("closures", trial=self._trial_id(ulid), content="", unknown=unknown)

    def reuse_trial(self, trial: Trial, evidence: ReusableTrial, without: Iterable[str]) -> None:
        """Record a trial that need not run: it ends as its evidence did, with the summaries of all
        metrics but those `without`. Raises LedgerError for an evidence that did not run itself."""
        with self.transaction() as connection:
            self.start_trial(trial)
            new, old = self._trial_id(trial.ulid), self._trial_id(evidence.ulid)
            connection.execute(
                "INSERT INTO derived SELECT ?, ? WHERE NOT EXISTS "
                "(SELECT 1 FROM derived WHERE trial = ?)",
                (new, old, old),
            )
            connection.execute(
                "INSERT INTO outcomes SELECT ?, kind, ?, message, returncode, log, marks, epochs "
                "FROM outcomes WHERE trial = ?",
                (new, trial.started, old),
            )
            connection.execute(
                "INSERT INTO summaries SELECT metric, task, ?, value, definition FROM summaries "
                "WHERE trial = ? AND metric NOT IN "
                "(SELECT id FROM metrics WHERE name IN (SELECT value FROM json_each(?))) "
                "AND task = (SELECT task FROM trials WHERE id = ?)",
                (new, old, json.dumps(list(without)), old),
            )
            self._seal("trials", new)

    # --- the facts of another ledger: a colleague's, CI's, another machine's

    def merge(self, other: Store, *, dry_run: bool = False) -> dict[str, int]:
        """Add every fact of another ledger that this one lacks; its queue stays out. A trial that
        has not ended comes with its epochs, and with its end when it is merged again. Return how
        many rows of each kind are new; a dry run keeps none."""
        added: dict[str, int] = {}
        try:
            with self.transaction() as target, checksums.snapshot(other._connection):
                before, changes = _counts(target), target.total_changes
                written = checksums.checksums(other._connection)
                union = Union(other._connection, target, written)
                for table, row in checksums.facts(other._connection, written):
                    key = union.carry(table, row)
                    if not checksums.has_ended(target, table, key):
                        self._started.append(key)
                # A trial that was unfinished here may have ended there.
                added = {name: max(0, n - before[name]) for name, n in _counts(target).items()}
                if dry_run:
                    raise _DryRun
                if target.total_changes > changes:
                    _repeat_latest_definitions(target)
                    self._completed = True
        except _DryRun:
            pass
        except LookupError as error:
            raise self._explained(ValueError(str(error))) from error
        return added

    def take_trials(self, other: Store, commits: Collection[str]) -> None:
        """Add the trials of some commits (hashes) of another ledger of this machine, with what
        tells whether their results may be re-used."""
        chosen = (
            "SELECT r.id FROM trials r JOIN commits c ON c.id = r.revision "
            "WHERE c.sha IN (SELECT value FROM json_each(?))"
        )
        parameters = (json.dumps(list(commits)),)
        source = other._connection
        with self.transaction() as target, checksums.snapshot(source):
            union = Union(source, target)
            for (row,) in source.execute(chosen, parameters).fetchall():
                union.carry("trials", row)
            for table in ("trial_facts", "closures"):
                sql = f"SELECT rowid FROM {table} WHERE trial IN ({chosen})"
                for (row,) in source.execute(sql, parameters).fetchall():
                    union.carry(table, row)
            sql = f"SELECT evidence FROM derived WHERE trial IN ({chosen})"
            for (evidence,) in source.execute(sql, parameters).fetchall():
                union.carry("closures", evidence)

    # --- rows

    def _insert(self, table: str, **row: object) -> int | None:
        """Insert a row unless one of its name is there. Returns the key of a new one."""
        added = self._connection.execute(
            f"INSERT INTO {table} ({', '.join(row)}) VALUES ({', '.join('?' * len(row))}) "
            "ON CONFLICT DO NOTHING",
            tuple(row.values()),
        )
        return added.lastrowid if added.rowcount else None

    def _record(self, table: str, **row: object) -> int | None:
        """Insert a fact that is one row, with its checksum."""
        key = self._insert(table, **row)
        if key is not None:
            self._seal(table, key)
        return key

    def _judged(self, task: int) -> set[str]:
        """Return the names of the metrics that a task is judged by."""
        sql = (
            "SELECT m.name FROM definitions d JOIN metrics m ON m.id = d.metric "
            "WHERE d.direction != 'info' AND d.id IN "
            "(SELECT max(id) FROM definitions WHERE task = ? GROUP BY metric)"
        )
        return {name for (name,) in self._rows(sql, (task,))}

    def _define(self, task: int, metric: Metric) -> None:
        """Record how a metric is judged in a task, unless it was judged so last."""
        row = columns_of(metric)
        key = self._metric_id(row.pop("name"))
        row["floor"] = metric.floor.amount
        row["floor_is_relative"] = int(metric.floor.relative)
        latest = self._rows(
            f"SELECT {', '.join(row)} FROM definitions WHERE (metric, task) = (?, ?) "
            "ORDER BY id DESC LIMIT 1",
            (key, task),
        )
        if latest != [tuple(row.values())]:
            self._record("definitions", metric=key, task=task, **row)

    def _id(self, table: str, column: str, value: object) -> int:
        """Return the key of a row that must be there."""
        rows = self._rows(f"SELECT id FROM {table} WHERE {column} = ?", (value,))
        if not rows:
            raise LedgerError(f"{self.path} has no {value} among its {table}: record it first")
        return int(rows[0][0])

    def _trial_id(self, ulid: str) -> int:
        if ulid not in self._trial_ids:
            self._trial_ids[ulid] = self._id("trials", "ulid", ulid)
        return self._trial_ids[ulid]

    def _metric_id(self, name: str) -> int:
        """Return the key of a metric. An undeclared one is only shown, never judged."""
        if name not in self._metric_ids:
            clean = encoded(name)
            self._record("metrics", name=clean)
            self._metric_ids[name] = self._id("metrics", "name", clean)
        return self._metric_ids[name]


def _packed(paths: Iterable[bytes]) -> bytes:
    """Join paths. The tree itself, which has no name, is a dot."""
    return b"\0".join(path or b"." for path in paths)


def _counts(connection: sqlite3.Connection) -> dict[str, int]:
    number = {
        name: int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
        for name, table in _COUNTED.items()
    }
    ((begun,),) = connection.execute("SELECT count(*) FROM trials").fetchall()
    return {**number, "unfinished_trials": begun - number["trials"]}


def _repeat_latest_definitions(connection: sqlite3.Connection) -> None:
    """Repeat the latest definition of each task's metric after those that were recorded earlier and
    came later: the last row counts, whichever ledger it comes from."""
    partition = "PARTITION BY metric, task"
    stale = connection.execute(
        f"SELECT id FROM (SELECT id, max(id) OVER ({partition}) AS last, row_number() OVER "
        f"({partition} ORDER BY recorded DESC, id DESC) AS number FROM definitions) "
        "WHERE number = 1 AND id != last"
    ).fetchall()
    names = checksums.COLUMNS["definitions"].removeprefix("id, ")
    for (row,) in stale:
        key = connection.execute(
            f"INSERT INTO definitions ({names}) SELECT {names} FROM definitions WHERE id = ?",
            (row,),
        ).lastrowid
        checksums.seal(connection, "definitions", key or 0)
