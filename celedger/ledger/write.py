"""Writing facts. Each call is one transaction, safe under many writers, and idempotent: said
twice, a fact is recorded once.

Lives here: every INSERT of a fact. It must not know why something ran, nor judge what it means.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence

from celedger.errors import LedgerError
from celedger.ledger import steps
from celedger.ledger.facts import Carrier, Document
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
        with self.transaction() as connection:
            for c in commits:
                new = self._insert(
                    "commits", sha=c.sha, tree=c.tree, author=_text(c.author),
                    author_time=c.author_time, commit_time=c.commit_time, subject=_text(c.subject),
                )  # fmt: skip
                key = new or self._id("commits", "sha", c.sha)
                # A shallow clone does not know the parents of every commit: they may come later.
                parents = connection.executemany(
                    "INSERT INTO parents VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
                    [(key, i, sha) for i, sha in enumerate(c.parents)],
                )
                if new or parents.rowcount > 0:
                    self._seal("commits", key)

    def record_task(self, task: Task) -> None:
        """The task by its recipe, and how each of its metrics is judged from now on."""
        with self.transaction():
            self._record(
                "tasks", recipe=task.recipe, suite=_text(task.suite), name=_text(task.name),
                definition=_json(task.definition()),
            )  # fmt: skip
            task_id = self._id("tasks", "recipe", task.recipe)
            for metric in task.metrics:
                self._define(task_id, metric)

    def record_environment(self, environment: Environment) -> None:
        with self.transaction():
            self._record(
                "environments", fingerprint=environment.fingerprint,
                details=_json(dict(environment.details)),
            )  # fmt: skip

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
        if self._pages.vanished():
            raise self._gone()

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
        """Several epochs in one transaction, as `append` does one: for taking in a journal. What
        is said of a trial that has ended comes too late, and is not taken."""
        points: list[tuple[int, int, int, float | None]] = []
        fingerprints: list[tuple[int, int, str]] = []
        with self.transaction() as connection:
            trial, known = self._trial_id(ulid), self._metric_ids
            reports = list(reports)
            if connection.execute("SELECT 1 FROM outcomes WHERE trial = ?", (trial,)).fetchone():
                return ()
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
            self._seal("trials", trial)
            return True

    def record_verdicts(self, verdicts: Iterable[Verdict]) -> None:
        """A verdict that says what the latest on its commit, task and metric said adds nothing."""
        with self.transaction() as connection:
            for v in verdicts:
                subject = {
                    "revision": self._id("commits", "sha", v.commit),
                    "suite": _text(v.suite),
                    "task": _text(v.task),
                    "metric": _text(v.metric),
                }
                judgement = {
                    "kind": v.kind.value,
                    "level": _real(v.level),
                    "value": _real(v.value),
                    "effect": _real(v.effect),
                    "low": _real(v.low),
                    "high": _real(v.high),
                    "p_value": _real(v.p_value),
                    "trials": self._trial_set(v.trials),
                    "baseline": self._trial_set(v.baseline),
                    "rule": _text(v.rule),
                    "note": _text(v.note),
                    "recipe": v.recipe,
                    "environment": v.environment,
                }
                latest = connection.execute(
                    f"SELECT {', '.join(judgement)} FROM verdicts "
                    "WHERE (revision, suite, task, metric) = (?, ?, ?, ?) "
                    "ORDER BY id DESC LIMIT 1",
                    tuple(subject.values()),
                ).fetchone()
                if latest != tuple(judgement.values()):
                    self._record("verdicts", **subject, **judgement)

    def record_bisect(self, bisect: BisectRecord) -> None:
        with self.transaction():
            self._record(
                "bisects",
                ulid=bisect.ulid,
                suite=_text(bisect.suite),
                task=_text(bisect.task),
                metric=_text(bisect.metric),
                good=bisect.good,
                bad=bisect.bad,
                culprits=_json(list(bisect.culprits)),
                probability=_real(bisect.probability),
                status=_text(bisect.status),
                ended=bisect.ended,
                report=_json(dict(bisect.report)),
            )

    def record_baseline(self, baseline: BaselineRecord) -> None:
        with self.transaction():
            self._record(
                "baselines",
                ulid=baseline.ulid,
                act=baseline.act.value,
                revision=self._id("commits", "sha", baseline.commit),
                suite=_text(baseline.suite),
                task=_text(baseline.task),
                metric=_text(baseline.metric),
                who=_text(baseline.who),
                why=_text(baseline.why),
                at=baseline.at,
            )

    def add_documents(self, documents: Iterable[Document]) -> tuple[int, int]:
        """Add the facts that the ledger lacks, in one transaction. Returns how many trials are
        among them, and how many facts were left out: they refer to what neither side has."""
        added = 0
        with self.transaction() as connection:
            carrier = Carrier(connection)
            waiting, before = documents, -1
            while True:
                missing: list[Document] = []  # what they refer to may come later
                for document in waiting:
                    try:
                        if carrier.add(document):
                            self._completed = True
                            added += "trials" in document
                    except LookupError:
                        missing.append(document)
                if len(missing) in (0, before):
                    return added, len(missing)
                waiting, before = missing, len(missing)

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
            self._record("metrics", name=clean)
            known = self._metric_ids[name] = self._id("metrics", "name", clean)
        return known

    def _define(self, task_id: int, metric: Metric) -> None:
        metric_id = self._metric_id(metric.name)
        definition = {
            "unit": _text(metric.unit),
            "direction": metric.direction.value,
            "kind": metric.kind.value,
            "floor": metric.floor.amount,
            "floor_is_relative": int(metric.floor.relative),
            "summary": metric.summary,
        }
        latest = self._rows(
            f"SELECT {', '.join(definition)} FROM definitions "
            "WHERE (metric, task) = (?, ?) ORDER BY id DESC LIMIT 1",
            (metric_id, task_id),
        )
        if latest != [tuple(definition.values())]:
            self._record("definitions", metric=metric_id, task=task_id, **definition)

    def _trial_set(self, ulids: Sequence[str]) -> int:
        """The row of these trials, made where it is not there."""
        text = _json(list(ulids))
        digest = hashlib.sha256(text.encode()).digest()
        rows = self._rows("SELECT id FROM trial_sets WHERE digest = ?", (digest,))
        key = rows[0][0] if rows else self._record("trial_sets", digest=digest, ulids=text)
        assert key is not None
        return int(key)

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
