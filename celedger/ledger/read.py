"""Read facts: every SELECT, returned as the nouns of `model.py`.

It must not write, judge, sort by history (a ledger does
not know which commit came first; `repo/` does), or print.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from celedger.base.model import (
    SIGNATURE,
    STEP_COUNTS,
    BaselineRecord,
    BisectRecord,
    Commit,
    Direction,
    Environment,
    FindingRecord,
    Floor,
    Footprint,
    JobState,
    Kind,
    Metric,
    Outcome,
    OutcomeKind,
    QueuedJob,
    ReusableTrial,
    SaidIncident,
    SaidMetric,
    SaidRecord,
    SignatureRow,
    SummaryRow,
    Task,
    TaskRecord,
    Trial,
    TrialRecord,
    usual_unit,
)
from celedger.ledger.store import Store, decoded, from_null, unpack

SESSION = "ifnull(s.value, r.host || ' ' || CAST(r.started / 86400 AS INTEGER))"
"""What a run of trials shares beyond the code; of a trial without it, its host's day."""

_TRIALS = """
FROM trials r
JOIN commits c ON c.id = r.revision
JOIN tasks t ON t.id = r.task
JOIN environments e ON e.id = r.environment
LEFT JOIN outcomes o ON o.trial = r.id
LEFT JOIN derived d ON d.trial = r.id
LEFT JOIN trials v ON v.id = d.evidence
LEFT JOIN commits w ON w.id = v.revision
"""
# What an older celedger measured of warm starts; today these are a rule of `duration` and others.
_RENAMED = frozenset({"warm_duration", "warm_cpu_time", "warm_instructions"})
_TRIAL = "r.ulid, c.sha, t.recipe, e.fingerprint, r.seed, r.why, r.started, r.host, r.device"
# Others may re-use a trial that ended by itself and undisturbed: well, without a metric, or by an
# exception (exit statuses of signals, and -9 itself, may be the machine's doing).
_REUSABLE = """
o.marks IN ('', 'early-stopped') AND (o.kind IN ('ok', 'missing')
  OR (o.kind = 'failed' AND o.returncode BETWEEN 1 AND 127))
"""


_SIGNED = ("key", "numerics", "seconds", "work", "growth")  # of the document of a signature
_JOB = "id, kind, sha, suite, created, key, state, owner, attempts, message, ended"
# Trials in the order in which they started; where values are looked up from the trial on, nothing
# has to be sorted. The key of summaries starts with the metric.
_VALUES = """
SELECT t.suite, t.name, c.sha, c.commit_time, e.fingerprint, r.seed, r.ulid, r.started,
  coalesce(o.kind, ''), coalesce(v.ulid, ''), {epoch}, m.name, coalesce(u.unit, ''), s.value
FROM trials r CROSS JOIN tasks t ON t.id = r.task CROSS JOIN commits c ON c.id = r.revision
CROSS JOIN environments e ON e.id = r.environment LEFT JOIN outcomes o ON o.trial = r.id
LEFT JOIN derived d ON d.trial = r.id LEFT JOIN trials v ON v.id = d.evidence {values}
LEFT JOIN definitions u
  ON u.id = (SELECT max(id) FROM definitions WHERE task = r.task AND metric = m.id)
WHERE ?1 IS NULL OR c.sha IN (SELECT value FROM json_each(?1)) ORDER BY r.id, {order}
"""
_EPOCHS = _VALUES.format(
    epoch="s.epoch",
    values="CROSS JOIN points s ON s.trial = coalesce(d.evidence, r.id) "
    "CROSS JOIN metrics m ON m.id = s.metric",
    order="s.epoch, s.metric",
)
_SUMMARIES = _VALUES.format(
    epoch="NULL",
    values="CROSS JOIN metrics m "
    "CROSS JOIN summaries s ON (s.metric, s.task, s.trial) = (m.id, r.task, r.id)",
    order="m.id",
)


class Value(NamedTuple):
    """A metric's value at the end of an epoch; or of a whole trial, where `epoch` is None."""

    suite: str
    task: str
    commit: str
    committed: int
    environment: str
    seed: int
    trial: str
    started: float
    outcome: str  # "" while it runs
    reused: str  # the trial whose values these are, "" where it ran itself
    epoch: int | None
    metric: str
    unit: str
    value: float


class Reader(Store):
    def trials(
        self,
        *,
        commit: str | None = None,
        commits: Iterable[str] | None = None,
        suite: str | None = None,
        task: str | None = None,
        recipe: str | None = None,
        environment: str | None = None,
        seed: int | None = None,
        open_only: bool = False,
        failed_only: bool = False,
    ) -> list[TrialRecord]:
        """Return trials in the order in which they started. Hashes are full ones; `open_only`
        leaves those without an outcome, `failed_only` those that did not end well."""
        where, values = _where(
            {
                "c.sha = ?": commit,
                "c.sha IN (SELECT value FROM json_each(?))": (
                    None if commits is None else json.dumps(list(commits))
                ),
                "t.suite = ?": suite,
                "t.name = ?": task,
                "t.recipe = ?": recipe,
                "e.fingerprint = ?": environment,
                "r.seed = ?": seed,
                "o.trial IS NULL AND ?": 1 if open_only else None,
                "o.kind != ?": OutcomeKind.OK.value if failed_only else None,
            }
        )
        return [*self._trial_records(where, values).values()]

    def trial(self, ulid: str) -> TrialRecord | None:
        """Return a trial by its ULID or the start of it; None when there is none, or several."""
        start = ulid.upper()
        records = self._trial_records("WHERE r.ulid BETWEEN ? AND ? || '~'", (start, start))
        return next(iter(records.values())) if start and len(records) == 1 else None

    def failures(self, suite: str, task: str) -> list[tuple[int, str, str, TrialRecord]]:
        """Return the trials of a task that failed by themselves, or whose build failed: id,
        environment, recipe, record; in the order of recording."""
        where = "WHERE t.suite = ? AND t.name = ? AND o.kind != 'ok'"
        return [
            (key, r.trial.environment, r.trial.recipe, r)
            for key, r in self._trial_records(where, (suite, task)).items()
            if r.is_conclusive
        ]

    def trial_ids(self, ulids: Iterable[str]) -> frozenset[int]:
        """Return the numbers of trials in this ledger."""
        rows = self._rows(
            "SELECT id FROM trials WHERE ulid IN (SELECT value FROM json_each(?))",
            (json.dumps(list(ulids)),),
        )
        return frozenset(key for (key,) in rows)

    def trial_facts(
        self, *, suite: str | None = None, task: str | None = None
    ) -> dict[str, dict[str, str]]:
        """Return the facts of trials beyond their columns, by ulid and name. A trial without any
        has no entry."""
        where, values = _where({"t.suite = ?": suite, "t.name = ?": task})
        facts: dict[str, dict[str, str]] = {}
        for ulid, name, value in self._rows(
            "SELECT r.ulid, f.name, f.value FROM tasks t CROSS JOIN trials r ON r.task = t.id "
            f"CROSS JOIN trial_facts f ON f.trial = r.id {where} ORDER BY f.id",
            values,
        ):
            facts.setdefault(ulid, {})[name] = value
        return facts

    def sessions(self, *, suite: str, task: str) -> dict[str, str]:
        """Return the session of each trial of a task, by ulid. A trial that was recorded without
        one is of its host's day."""
        return dict(
            self._rows(
                f"SELECT r.ulid, {SESSION} FROM tasks t CROSS JOIN trials r ON r.task = t.id "
                "LEFT JOIN trial_facts s ON s.trial = r.id AND s.name = 'session' "
                "WHERE t.suite = ? AND t.name = ?",
                (suite, task),
            )
        )

    def series(self, ulid: str, metric: str | None = None) -> dict[str, list[tuple[int, float]]]:
        """Return each metric's (epoch, value) in the order of epochs: nothing for an unknown trial;
        for a derived one, what its evidence reported."""
        where, values = _where({"r.ulid = ?": ulid, "m.name = ?": metric})
        series: dict[str, list[tuple[int, float]]] = {}
        for name, epoch, value in self._rows(
            "SELECT m.name, p.epoch, p.value FROM trials r LEFT JOIN derived d ON d.trial = r.id "
            "JOIN points p ON p.trial = coalesce(d.evidence, r.id) "
            f"JOIN metrics m ON m.id = p.metric {where} ORDER BY p.epoch, p.metric",
            values,
        ):
            series.setdefault(name, []).append((epoch, from_null(value)))
        return series

    def epoch_means(
        self, recipe: str, commits: Iterable[str]
    ) -> list[tuple[str, str, bool, str, int, float]]:
        """Return (commit, environment, whether the trials ended well, metric, epoch, mean) of a
        task's trials at some commits, by hashes. A mean with a value that is not finite is NaN."""
        rows = self._rows(
            "SELECT c.sha, e.fingerprint, o.kind = 'ok', m.name, p.epoch, "
            "CASE WHEN count(p.value) = count(*) THEN avg(p.value) END "
            "FROM tasks t JOIN trials r ON r.task = t.id JOIN commits c ON c.id = r.revision "
            "JOIN environments e ON e.id = r.environment JOIN outcomes o ON o.trial = r.id "
            "LEFT JOIN derived d ON d.trial = r.id "
            "CROSS JOIN points p ON p.trial = coalesce(d.evidence, r.id) "
            "JOIN metrics m ON m.id = p.metric "
            "WHERE t.recipe = ? AND c.sha IN (SELECT value FROM json_each(?)) "
            "AND o.marks NOT LIKE '%early-stopped%' "
            "GROUP BY c.id, e.id, o.kind = 'ok', m.id, p.epoch ORDER BY p.epoch",
            (recipe, json.dumps(list(commits))),
        )
        return [(*row[:2], bool(row[2]), *row[3:5], from_null(row[5])) for row in rows]

    def facts(self) -> int:
        """Return a number that grows with each fact that is completed."""
        ((number,),) = self._rows("SELECT ifnull(max(id), 0) FROM checksums")
        return int(number)

    def fingerprints(self, ulid: str) -> dict[int, str]:
        """Return the fingerprint of the model's parameters at the end of each epoch."""
        return dict(
            self._rows(
                "SELECT f.epoch, f.value FROM trials r LEFT JOIN derived d ON d.trial = r.id "
                "JOIN fingerprints f ON f.trial = coalesce(d.evidence, r.id) "
                "WHERE r.ulid = ? ORDER BY f.epoch",
                (ulid,),
            )
        )

    def steps(self, ulid: str, metric: str | None = None) -> dict[str, dict[int, list[float]]]:
        """Return each metric's values by epoch, one a step: nothing for a trial that reported no
        series per step. Values that never came (a lost line between two others) are NaN."""
        steps: dict[str, dict[int, list[float]]] = {}
        for name, epoch, first, width, series in self._rows(
            "SELECT m.name, s.epoch, s.first, s.width, s.series FROM steps s "
            "JOIN trials r ON r.id = s.trial JOIN metrics m ON m.id = s.metric "
            "WHERE r.ulid = ? AND (? IS NULL OR m.name = ?) ORDER BY s.epoch, s.metric, s.first",
            (ulid, metric, metric),
        ):
            values = steps.setdefault(name, {}).setdefault(epoch, [])
            values += [float("nan")] * (first - len(values))
            values += unpack(width, series)
        return steps

    def summaries(
        self,
        task: str,
        metric: str,
        *,
        suite: str | None = None,
        recipe: str | None = None,
    ) -> list[SummaryRow]:
        """Return one metric of one task over all that ever ended, in the order in which it started:
        one index range."""
        where, values = _where(
            {
                "m.name = ?": metric, "t.name = ?": task, "t.suite = ?": suite,
                "t.recipe = ?": recipe,
            }
        )  # fmt: skip
        return self._nouns(
            SummaryRow,
            "SELECT c.sha, r.ulid, r.seed, e.fingerprint, t.recipe, s.value, r.started, o.marks, "
            "o.kind, coalesce(n.summary, 'last'), coalesce(v.ulid, '') "
            "FROM tasks t CROSS JOIN metrics m "
            "CROSS JOIN summaries s ON s.metric = m.id AND s.task = t.id "
            "JOIN trials r ON r.id = s.trial JOIN outcomes o ON o.trial = s.trial "
            "JOIN commits c ON c.id = r.revision JOIN environments e ON e.id = r.environment "
            "LEFT JOIN definitions n ON n.id = s.definition "
            "LEFT JOIN derived d ON d.trial = s.trial LEFT JOIN trials v ON v.id = d.evidence "
            f"{where} ORDER BY s.trial",
            values,
        )

    def values(
        self, *, commits: Collection[str] | None = None, summaries: bool = False
    ) -> Iterator[Value]:
        """Yield the values of these commits (hashes), or of all, in the order in which the trials
        started: by epoch, or with `summaries` one a trial and metric. A ledger's values need not
        fit into memory."""
        chosen = None if commits is None else json.dumps(list(commits))
        for row in self._connection.execute(_SUMMARIES if summaries else _EPOCHS, (chosen,)):
            yield Value._make((*row[:-1], from_null(row[-1])))

    def usual_seconds(self, task: Task) -> float | None:
        """Return the median wall time of this definition's trials, where there are any."""
        from statistics import median  # takes longer to import than most questions

        rows = self.summaries(task.name, "duration", recipe=task.recipe)
        rows.sort(key=lambda row: row.started)
        seconds = [row.value for row in rows if row.value == row.value]
        return median(seconds[-20:]) if seconds else None

    def commits(self) -> list[Commit]:
        """Return the commits by commit time, which is not always the order of history."""
        return self._commits("")

    def commit(self, sha: str) -> Commit | None:
        return next(iter(self._commits("WHERE c.sha = ?", sha)), None)

    def commits_with_trials(self) -> list[str]:
        """Return their hashes by commit time."""
        rows = self._rows(
            "SELECT sha FROM commits WHERE id IN (SELECT revision FROM trials) "
            "ORDER BY commit_time, id"
        )
        return [sha for (sha,) in rows]

    def measured_tasks(self) -> list[tuple[str, str, str]]:
        """Return each (suite, task, commit's hash) with a trial that ran well."""
        rows = self._rows(
            "SELECT DISTINCT t.suite, t.name, c.sha FROM trials r "
            "JOIN outcomes o ON o.trial = r.id AND o.kind = 'ok' JOIN tasks t ON t.id = r.task "
            "JOIN commits c ON c.id = r.revision"
        )
        return [(suite, task, sha) for suite, task, sha in rows]

    def tasks(self) -> list[TaskRecord]:
        """Return every recipe ever recorded, the oldest first."""
        return self._nouns(
            TaskRecord, "SELECT suite, name, recipe, definition FROM tasks ORDER BY id"
        )

    def metrics(self, recipe: str | None = None) -> list[Metric]:
        """Return each name once, by its latest definition; one that nobody declared is `info`. With
        a recipe: what that task declares or has measured, as that task judges it."""
        columns = "m.name, d.unit, d.direction, d.kind, d.summary, d.floor, d.floor_is_relative"
        latest = "LEFT JOIN definitions d ON d.id = (SELECT max(id) FROM definitions WHERE metric ="
        if recipe is None:
            rows = self._rows(f"SELECT {columns} FROM metrics m {latest} m.id) ORDER BY m.id")
        else:
            rows = self._rows(
                f"SELECT {columns} FROM tasks t CROSS JOIN metrics m "
                f"{latest} m.id AND task = t.id) "
                "WHERE t.recipe = ? AND (d.id IS NOT NULL OR EXISTS "
                "(SELECT 1 FROM summaries s WHERE s.metric = m.id AND s.task = t.id)) "
                "ORDER BY m.id",
                (recipe,),
            )
        return [
            Metric(name, unit, Direction(way), Kind(kind), Floor(floor, bool(relative)), summary)
            if summary else Metric(name, usual_unit(name))
            for name, unit, way, kind, summary, floor, relative in rows
            if name not in _RENAMED
        ]  # fmt: skip

    def environment(self, fingerprint: str) -> Environment | None:
        return self.environments().get(fingerprint)

    def environments(self) -> dict[str, Environment]:
        """Return the environments by their fingerprints, the oldest first."""
        sql = "SELECT fingerprint, details FROM environments ORDER BY id"
        return {one.fingerprint: one for one in self._nouns(Environment, sql)}

    def baselines(self) -> list[BaselineRecord]:
        """Return the acts of people, the oldest first."""
        return self._nouns(
            BaselineRecord,
            "SELECT b.ulid, b.act, c.sha, b.suite, b.task, b.metric, b.who, b.why, b.at "
            "FROM baselines b JOIN commits c ON c.id = b.revision ORDER BY b.id",
        )

    def bisects(self) -> list[BisectRecord]:
        """Return the bisects, the oldest first."""
        return self._nouns(
            BisectRecord,
            "SELECT ulid, suite, task, metric, good, bad, culprits, probability, status, ended, "
            "report FROM bisects ORDER BY id",
        )

    def last_bisects(self) -> list[BisectRecord]:
        """Return the bisects, the oldest first: the last answer where several asked the same. (One
        that was proved is recorded again with its proof.)"""
        bisects = self.bisects()
        last = {(*b.key, b.good, b.bad): b.ulid for b in bisects}
        final = frozenset(last.values())
        return [bisect for bisect in bisects if bisect.ulid in final]

    def said(self) -> list[SaidRecord]:
        """Return what was said, in the order in which it was recorded."""
        return self._nouns(
            SaidRecord,
            "SELECT ulid, incident, state, event, kind, suite, task, metric, oldest, revision, "
            "job, address, at, details FROM said ORDER BY id",
        )

    def said_last(self) -> list[SaidRecord]:
        """Return the latest record of each incident, the oldest incident first. What was sent to an
        address is none."""
        return list({row.incident: row for row in self.said() if not row.address}.values())

    def incidents(self) -> list[SaidIncident]:
        """Return each incident as it was said last, the oldest first."""
        return [_incident(row) for row in self.said_last()]

    def findings(self, commit: str | None = None) -> list[FindingRecord]:
        """Return what was found of a commit, by its full hash, or of all; the oldest first."""
        return self._nouns(
            FindingRecord,
            "SELECT f.ulid, f.verb, f.suite, f.task, c.sha, coalesce(b.sha, ''), f.command, "
            "f.started, f.headline, f.document FROM findings f JOIN commits c ON c.id = f.revision "
            "LEFT JOIN commits b ON b.id = f.before WHERE ? IS NULL OR c.sha = ? ORDER BY f.id",
            (commit, commit),
        )

    def signatures(
        self, tree: str | None = None, *, suite: str | None = None, task: str | None = None
    ) -> list[SignatureRow]:
        """Return the signatures of a tree, a suite or a task, or all, the oldest first. What is
        none is left out: a document may come from another ledger."""
        rows = self._rows(
            "SELECT f.suite, f.task, c.sha, c.tree, "
            + ", ".join(f"f.document ->> '$.{name}'" for name in _SIGNED)
            + " FROM findings f JOIN commits c ON c.id = f.revision "
            "WHERE f.verb = ? AND c.tree = ifnull(?, c.tree) AND f.suite = ifnull(?, f.suite) "
            "AND f.task = ifnull(?, f.task) AND json_valid(f.document) ORDER BY f.id",
            (SIGNATURE, tree, suite, task),
        )
        signatures = []
        for suite, task, sha, of_tree, key, numerics, seconds, *texts in rows:
            with suppress(TypeError, ValueError, AttributeError):
                work, growth = (
                    {name: float(n) for name, n in json.loads(text).items() if name in STEP_COUNTS}
                    for text in texts
                )
                key = json.dumps(dict(json.loads(key)), sort_keys=True)
                signatures.append(SignatureRow(
                    suite, task, sha, of_tree, key, str(numerics), float(seconds), work, growth
                ))  # fmt: skip
        return signatures

    def jobs(self, *, state: JobState | None = None) -> list[QueuedJob]:
        """Return the jobs, the oldest first."""
        if state is None:
            return self._jobs("ORDER BY id")
        return self._jobs("WHERE state = ? ORDER BY id", state.value)

    def _jobs(self, where: str, *values: object) -> list[QueuedJob]:
        return self._nouns(QueuedJob, f"SELECT {_JOB} FROM jobs {where}", values)

    def reusable_trials(
        self, *, recipe: str, environment: str, seed: int | None = None
    ) -> list[ReusableTrial]:
        """Return the trials that others may re-use, in the order in which they started."""
        return self._nouns(
            ReusableTrial,
            "SELECT r.ulid, c.sha, c.tree, r.seed, x.footprint, x.content, o.marks = '', "
            "o.kind != 'ok' FROM tasks t "
            "JOIN trials r ON r.task = t.id JOIN environments e ON e.id = r.environment "
            "JOIN closures x ON x.trial = r.id JOIN outcomes o ON o.trial = r.id "
            "JOIN commits c ON c.id = r.revision "
            "WHERE t.recipe = ? AND e.fingerprint = ? AND (? IS NULL OR r.seed = ?) "
            f"AND x.footprint IS NOT NULL AND {_REUSABLE} "
            "AND r.id NOT IN (SELECT trial FROM derived) ORDER BY r.id",
            (recipe, environment, seed, seed),
        )

    def environments_of(self, recipe: str) -> list[str]:
        """Return the environments (fingerprints) in which a task ran, the newest first."""
        rows = self._rows(
            "SELECT e.fingerprint FROM tasks t JOIN trials r ON r.task = t.id "
            "JOIN environments e ON e.id = r.environment WHERE t.recipe = ? "
            "GROUP BY e.id ORDER BY max(r.id) DESC",
            (recipe,),
        )
        return [fingerprint for (fingerprint,) in rows]

    def footprint(self, number: int) -> Footprint:
        ((paths, inputs),) = self._rows(
            "SELECT paths, inputs FROM footprints WHERE id = ?", (number,)
        )
        opened, _, looked = zlib.decompress(paths).partition(b"\0\0")
        return Footprint(_unpacked(opened), _unpacked(looked), tuple(json.loads(inputs)))

    def imported(self, *, suite: str, task: str) -> frozenset[str]:
        """Return the distributions that the newest trial of a task with a footprint imported."""
        rows = self._rows(
            "SELECT x.footprint FROM tasks t JOIN trials r ON r.task = t.id "
            "JOIN closures x ON x.trial = r.id WHERE t.suite = ? AND t.name = ? "
            "AND x.footprint IS NOT NULL ORDER BY r.id DESC LIMIT 1",
            (suite, task),
        )
        return next((self.footprint(number).packages for (number,) in rows), frozenset())

    def _trial_records(self, where: str, values: tuple[object, ...]) -> dict[int, TrialRecord]:
        """Return trials by their ids, in the order in which they started."""
        rows = self._rows(
            f"SELECT r.id, {_TRIAL}, o.kind, o.ended, o.message, o.returncode, o.log, o.marks, "
            "t.suite, t.name, coalesce(v.ulid, ''), coalesce(w.sha, ''), "
            "coalesce(o.epochs, (SELECT count(DISTINCT epoch) FROM points WHERE trial = r.id)) "
            f"{_TRIALS} {where} ORDER BY r.id",
            values,
        )
        summaries: dict[int, dict[str, float]] = {}
        rules: dict[int, dict[str, str]] = {}
        for key, name, value, rule in self._rows(
            f"SELECT r.id, m.name, s.value, d.summary {_TRIALS} "
            "CROSS JOIN summaries s ON s.trial = r.id JOIN metrics m ON m.id = s.metric "
            f"LEFT JOIN definitions d ON d.id = s.definition {where} "
            "ORDER BY r.id, m.id",
            values,
        ):
            summaries.setdefault(key, {})[name] = from_null(value)
            rules.setdefault(key, {})[name] = rule or "last"
        return {
            row[0]: _trial_record(row, summaries.get(row[0], {}), rules.get(row[0], {}))
            for row in rows
        }

    def _commits(self, where: str, *values: object) -> list[Commit]:
        return self._nouns(
            Commit,
            "SELECT sha, tree, (SELECT json_group_array(p.sha) FROM (SELECT sha FROM parents "
            "WHERE revision = c.id ORDER BY place) p), author, author_time, commit_time, subject "
            f"FROM commits c {where} ORDER BY commit_time, c.id",
            values,
        )


def _trial_record(
    row: tuple[Any, ...], summaries: Mapping[str, float], rules: Mapping[str, str]
) -> TrialRecord:
    """Return a trial from its row: key, `_TRIAL`, outcome, and the rest."""
    suite, task, derived, source, epochs = row[16:]
    outcome = None if row[10] is None else decoded(Outcome, row[10:16])
    trial = decoded(Trial, row[1:10])
    return TrialRecord(trial, suite, task, outcome, summaries, epochs, rules, derived, source)


def _incident(row: SaidRecord) -> SaidIncident:
    details: Mapping[str, Any] = row.details
    sizes = {tuple(size[:3]): size[3:5] for size in details.get("sizes", ())}
    named = details.get("metrics") or [(row.suite, row.task, row.metric, row.state)]
    metrics = tuple(SaidMetric(*metric, *sizes.get(tuple(metric[:3]), ())) for metric in named)
    return SaidIncident(
        row.incident, row.kind, row.state, metrics, details.get("first", row.oldest),
        details.get("last", row.oldest), details.get("likeliest", ""), details.get("probability"),
        details.get("bisect", ""), details.get("closed", ""), row.revision, row.at,
    )  # fmt: skip


def _where(conditions: Mapping[str, object]) -> tuple[str, tuple[object, ...]]:
    """Return the conditions whose value is not None, as SQL and its values."""
    used = {sql: value for sql, value in conditions.items() if value is not None}
    return ("WHERE " + " AND ".join(used) if used else ""), tuple(used.values())


def _unpacked(paths: bytes) -> tuple[bytes, ...]:
    """Return joined paths. A dot is the tree itself, which has no name."""
    return tuple(b"" if path == b"." else path for path in paths.split(b"\0") if path)
