"""Writing facts. Each call is one transaction, safe under many writers, and idempotent: said
twice, a fact is recorded once.

Lives here: every INSERT of a fact. It must not know why something ran, nor judge what it means.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from celedger.errors import LedgerError
from celedger.ledger import steps
from celedger.ledger.store import Store
from celedger.model import (
    BaselineRecord,
    BisectRecord,
    Commit,
    Environment,
    EpochReport,
    Metric,
    Outcome,
    Task,
    Trial,
    Verdict,
)
from celedger.text import escaped

_LARGEST = 2**63 - 1  # SQLite's integers


class Writer(Store):
    def record_commits(self, commits: Iterable[Commit]) -> None:
        commits = list(commits)
        with self.transaction() as connection:
            connection.executemany(
                "INSERT INTO commits (sha, tree, author, author_time, commit_time, subject) "
                "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                [
                    (c.sha, c.tree, _text(c.author), c.author_time, c.commit_time, _text(c.subject))
                    for c in commits
                ],
            )
            connection.executemany(
                "INSERT INTO parents SELECT id, ?, ? FROM commits WHERE sha = ? "
                "ON CONFLICT DO NOTHING",
                [(i, sha, c.sha) for c in commits for i, sha in enumerate(c.parents)],
            )

    def record_task(self, task: Task) -> None:
        """The task by its recipe, and how each of its metrics is judged from now on."""
        with self.transaction() as connection:
            connection.execute(
                "INSERT INTO tasks (recipe, suite, name, definition) VALUES (?, ?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                (task.recipe, _text(task.suite), _text(task.name), _json(task.definition())),
            )
            task_id = self._id("tasks", "recipe", task.recipe)
            for metric in task.metrics:
                self._define(task_id, metric)

    def record_environment(self, environment: Environment) -> None:
        with self.transaction() as connection:
            connection.execute(
                "INSERT INTO environments (fingerprint, details) VALUES (?, ?) "
                "ON CONFLICT DO NOTHING",
                (environment.fingerprint, _json(dict(environment.details))),
            )

    def start_trial(self, trial: Trial) -> None:
        """Raises LedgerError when its commit, task or environment was not recorded before."""
        with self.transaction() as connection:
            connection.execute(
                "INSERT INTO trials (ulid, revision, task, environment, seed, why, started, host, "
                "device) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (
                    trial.ulid,
                    self._id("commits", "sha", trial.commit),
                    self._id("tasks", "recipe", trial.recipe),
                    self._id("environments", "fingerprint", trial.environment),
                    trial.seed,
                    trial.why.value,
                    trial.started,
                    _text(trial.host),
                    _text(trial.device),
                ),
            )

    def append(
        self,
        ulid: str,
        epoch: int,
        values: Mapping[str, float],
        fingerprint: str | None = None,
    ) -> tuple[str, ...]:
        """One epoch of one trial; on the disk when this returns. The first value of a metric in an
        epoch is kept; returned are the names that were reported before with another value."""
        return self.append_epochs(ulid, (EpochReport(epoch, values, fingerprint),))

    def append_epochs(self, ulid: str, reports: Iterable[EpochReport]) -> tuple[str, ...]:
        """Several epochs in one transaction, as `append` does one: for taking in a journal."""
        points: list[tuple[int, int, int, float | None]] = []
        fingerprints: list[tuple[int, int, str]] = []
        with self.transaction() as connection:
            trial, known = self._trial_id(ulid), self._metric_ids
            reports = list(reports)
            for report in reports:
                epoch = report.epoch
                if not 0 <= epoch <= _LARGEST:
                    raise LedgerError(f"trial {ulid} reported epoch {epoch}, which is no epoch")
                points += [
                    (
                        trial,
                        epoch,
                        known.get(name) or self._metric_id(name),
                        value if value.__class__ is float and value == value else _real(value),
                    )
                    for name, value in report.values.items()
                ]
                if report.fingerprint is not None:
                    fingerprints.append((trial, epoch, _text(report.fingerprint)))
            reports = [report for report in reports if report.steps]
            if reports:
                names = {name: self._metric_id(name) for r in reports for name in r.steps}
                connection.executemany(
                    "INSERT INTO steps (trial, epoch, metric, first, width, series) "
                    "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                    steps.rows(trial, reports, names),
                )
            before = connection.total_changes
            connection.executemany(
                "INSERT INTO points VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", points
            )
            if fingerprints:
                connection.executemany(
                    "INSERT INTO fingerprints VALUES (?, ?, ?) ON CONFLICT DO NOTHING", fingerprints
                )
            if connection.total_changes - before == len(points) + len(fingerprints):
                return ()
            return self._reported_otherwise(points, fingerprints)

    def finish_trial(self, ulid: str, outcome: Outcome, summaries: Mapping[str, float]) -> bool:
        """How it ended, and its metrics' summaries. False, and nothing is written, when it had
        ended already."""
        with self.transaction() as connection:
            trial = self._trial_id(ulid)
            ended = connection.execute(
                "INSERT INTO outcomes (trial, kind, ended, message, returncode, log, marks, epochs)"
                " SELECT ?, ?, ?, ?, ?, ?, ?, count(DISTINCT epoch) FROM points WHERE trial = ?"
                " ON CONFLICT DO NOTHING",
                (
                    trial,
                    outcome.kind.value,
                    outcome.ended,
                    _text(outcome.message),
                    outcome.returncode,
                    _text(outcome.log),
                    " ".join(mark.value for mark in outcome.marks),
                    trial,
                ),
            )
            if not ended.rowcount:
                return False
            connection.executemany(
                "INSERT INTO summaries (metric, task, trial, value, definition) "
                "SELECT ?1, r.task, r.id, ?2, (SELECT max(d.id) FROM definitions d "
                "WHERE d.task = r.task AND d.metric = ?1) FROM trials r WHERE r.id = ?3",
                [(self._metric_id(name), _real(v), trial) for name, v in summaries.items()],
            )
            return True

    def record_verdicts(self, verdicts: Iterable[Verdict]) -> None:
        """A verdict that says what the latest on its commit, task and metric said adds nothing."""
        with self.transaction() as connection:
            for v in verdicts:
                key = (
                    self._id("commits", "sha", v.commit),
                    _text(v.suite),
                    _text(v.task),
                    _text(v.metric),
                )
                numbers = (v.level, v.value, v.effect, v.low, v.high, v.p_value)
                said = (
                    v.kind.value,
                    *map(_real, numbers),
                    _trial_set(connection, v.trials),
                    _trial_set(connection, v.baseline),
                    _text(v.rule),
                    _text(v.note),
                    v.recipe,
                    v.environment,
                )
                latest = connection.execute(
                    "SELECT kind, level, value, effect, low, high, p_value, trials, baseline, rule,"
                    " note, recipe, environment FROM verdicts "
                    "WHERE (revision, suite, task, metric) = (?, ?, ?, ?) "
                    "ORDER BY id DESC LIMIT 1",
                    key,
                ).fetchone()
                if latest != said:
                    connection.execute(
                        "INSERT INTO verdicts (revision, suite, task, metric, kind, level, value, "
                        "effect, low, high, p_value, trials, baseline, rule, note, recipe, "
                        "environment) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                        key + said,
                    )

    def record_bisect(self, bisect: BisectRecord) -> None:
        with self.transaction() as connection:
            connection.execute(
                "INSERT INTO bisects (ulid, suite, task, metric, good, bad, culprits, probability, "
                "status, ended, report) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                (
                    bisect.ulid,
                    _text(bisect.suite),
                    _text(bisect.task),
                    _text(bisect.metric),
                    bisect.good,
                    bisect.bad,
                    _json(list(bisect.culprits)),
                    _real(bisect.probability),
                    _text(bisect.status),
                    bisect.ended,
                    _json(dict(bisect.report)),
                ),
            )

    def record_baseline(self, baseline: BaselineRecord) -> None:
        with self.transaction() as connection:
            connection.execute(
                "INSERT INTO baselines (ulid, act, revision, suite, task, metric, who, why, at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (
                    baseline.ulid,
                    baseline.act.value,
                    self._id("commits", "sha", baseline.commit),
                    *map(_text, (baseline.suite, baseline.task, baseline.metric)),
                    _text(baseline.who),
                    _text(baseline.why),
                    baseline.at,
                ),
            )

    def _id(self, table: str, column: str, value: str) -> int:
        """The key of a row that must be there."""
        rows = self._rows(f"SELECT id FROM {table} WHERE {column} = ?", (value,))
        if not rows:
            raise LedgerError(f"{self.path} has no {value} among its {table}: record it first")
        return int(rows[0][0])

    def _trial_id(self, ulid: str) -> int:
        known = self._trial_ids.get(ulid)
        if known is None:
            known = self._trial_ids[ulid] = self._id("trials", "ulid", ulid)
        return known

    def _metric_id(self, name: str) -> int:
        """A name nobody declared becomes a metric that is only shown, never judged."""
        known = self._metric_ids.get(name)
        if known is None:
            clean = _text(name)
            self._connection.execute(
                "INSERT INTO metrics (name) VALUES (?) ON CONFLICT DO NOTHING", (clean,)
            )
            known = self._metric_ids[name] = self._id("metrics", "name", clean)
        return known

    def _define(self, task_id: int, metric: Metric) -> None:
        key = (self._metric_id(metric.name), task_id)
        definition = (
            _text(metric.unit),
            metric.direction.value,
            metric.kind.value,
            metric.floor.amount,
            int(metric.floor.relative),
            metric.summary,
        )
        latest = self._rows(
            "SELECT unit, direction, kind, floor, floor_is_relative, summary FROM definitions "
            "WHERE (metric, task) = (?, ?) ORDER BY id DESC LIMIT 1",
            key,
        )
        if latest != [definition]:
            self._connection.execute(
                "INSERT INTO definitions (metric, task, unit, direction, kind, floor, "
                "floor_is_relative, summary) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                key + definition,
            )

    def _reported_otherwise(
        self,
        points: list[tuple[int, int, int, float | None]],
        fingerprints: list[tuple[int, int, str]],
    ) -> tuple[str, ...]:
        names = {
            name
            for trial, epoch, metric, value in points
            for name, first in self._rows(
                "SELECT m.name, p.value FROM points p JOIN metrics m ON m.id = p.metric "
                "WHERE (p.trial, p.epoch, p.metric) = (?, ?, ?)",
                (trial, epoch, metric),
            )
            if first != value
        }
        for trial, epoch, value in fingerprints:
            sql = "SELECT value FROM fingerprints WHERE (trial, epoch) = (?, ?)"
            if self._rows(sql, (trial, epoch)) != [(value,)]:
                names.add("fingerprint")
        return tuple(sorted(names))


def _real(value: float) -> float | None:
    """As the ledger holds it: NaN is NULL; an integer beyond all floats is infinity."""
    if type(value) is not float:
        try:
            value = float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return value if value == value else None


def _text(text: str) -> str:
    """Without what a reader's terminal would obey, and without lone surrogates (git's way to hand
    over bytes that are no UTF-8): SQLite refuses them. A byte that came that way shows as
    U+FFFD."""
    text = escaped(text)
    if text.isascii():
        return text
    raw = text.encode("utf-8", "surrogateescape" if _has_bytes(text) else "replace")
    return raw.decode("utf-8", "replace")


def _has_bytes(text: str) -> bool:
    """Whether its surrogates, if any, all stand for bytes (PEP 383)."""
    return all("\udc80" <= c <= "\udcff" for c in text if "\ud800" <= c <= "\udfff")


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def _trial_set(connection: sqlite3.Connection, ulids: Sequence[str]) -> int:
    """The row of these trials, made where it is not there."""
    text = _json(list(ulids))
    digest = hashlib.sha256(text.encode()).digest()
    found = connection.execute("SELECT id FROM trial_sets WHERE digest = ?", (digest,))
    row = found.fetchone()
    if row is None:
        row = connection.execute(
            "INSERT INTO trial_sets (digest, ulids) VALUES (?, ?) RETURNING id", (digest, text)
        ).fetchone()
    return int(row[0])
