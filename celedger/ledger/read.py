"""Reading facts: every SELECT that somebody asks for, returned as the nouns of `model.py`.

Lives here: questions and their answers. It must not write, judge, sort by history (a ledger does
not know which commit came first; `repo/` does), or print.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterable, Mapping
from typing import Any

from celedger.errors import LedgerError
from celedger.ledger.facts import Carrier, Document
from celedger.ledger.steps import StepReader
from celedger.ledger.store import marks_of
from celedger.model import (
    BaselineAct,
    BaselineRecord,
    BisectRecord,
    Commit,
    Direction,
    Environment,
    Floor,
    Kind,
    Metric,
    Outcome,
    OutcomeKind,
    SummaryRow,
    TaskRecord,
    Trial,
    TrialRecord,
    Verdict,
    VerdictKind,
    Why,
)

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


class Reader(StepReader):
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
    ) -> list[TrialRecord]:
        """In the order in which they started. Hashes are full ones; `open_only` leaves those
        without an outcome."""
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
            }
        )
        return self._trial_records(where, values)

    def started(self, *, suite: str, task: str) -> list[Trial]:
        """All trials of a task, in the order in which they started, without what became of them."""
        return [
            Trial(ulid, sha, recipe, environment, seed, Why(why), started, host, device)
            for ulid, sha, recipe, environment, seed, why, started, host, device in self._rows(
                "SELECT r.ulid, c.sha, t.recipe, e.fingerprint, r.seed, r.why, r.started, r.host, "
                "r.device FROM tasks t JOIN trials r ON r.task = t.id "
                "JOIN commits c ON c.id = r.revision JOIN environments e ON e.id = r.environment "
                "WHERE t.suite = ? AND t.name = ? ORDER BY r.id",
                (suite, task),
            )
        ]

    def trial(self, ulid: str) -> TrialRecord | None:
        """By its ULID or the start of it; None when there is none, or more than one."""
        start = ulid.upper()
        found = self._trial_records("WHERE r.ulid BETWEEN ? AND ? || '~'", (start, start))
        return found[0] if start and len(found) == 1 else None

    def trial_documents(self, ulid: str) -> list[Document]:
        """Return a trial and all it refers to in portable form, for `Writer.add_documents`."""
        self._must_be_sound(ulid)
        try:
            return Carrier(self._connection).trial(ulid)
        except LookupError as error:
            raise LedgerError(f"{self.path} cannot give trial {ulid}: {error}") from error
        except sqlite3.Error as error:
            raise self._explained(error) from error

    def series(self, ulid: str, metric: str | None = None) -> dict[str, list[tuple[int, float]]]:
        """Metric -> its (epoch, value) in the order of epochs. Empty for an unknown trial; for a
        derived one, what its evidence reported."""
        self._must_be_sound(ulid)
        where, values = _where({"r.ulid = ?": ulid, "m.name = ?": metric})
        found: dict[str, list[tuple[int, float]]] = {}
        for name, epoch, value in self._rows(
            "SELECT m.name, p.epoch, p.value FROM trials r LEFT JOIN derived d ON d.trial = r.id "
            "JOIN points p ON p.trial = coalesce(d.evidence, r.id) "
            f"JOIN metrics m ON m.id = p.metric {where} ORDER BY p.epoch, p.metric",
            values,
        ):
            found.setdefault(name, []).append((epoch, _number(value)))
        return found

    def fingerprints(self, ulid: str) -> dict[int, str]:
        """Epoch -> fingerprint of the model's parameters at its end."""
        return dict(
            self._rows(
                "SELECT f.epoch, f.value FROM trials r LEFT JOIN derived d ON d.trial = r.id "
                "JOIN fingerprints f ON f.trial = coalesce(d.evidence, r.id) "
                "WHERE r.ulid = ? ORDER BY f.epoch",
                (ulid,),
            )
        )

    def summaries(
        self,
        task: str,
        metric: str,
        *,
        suite: str | None = None,
        recipe: str | None = None,
        environment: str | None = None,
    ) -> list[SummaryRow]:
        """One metric of one task over all that ever ended, in the order in which it started.
        One index range; what repeats in every row is looked up aside, once."""
        tasks, of_task = _where({"name = ?": task, "suite = ?": suite, "recipe = ?": recipe})
        recipes = dict(self._rows(f"SELECT id, recipe FROM tasks {tasks}", of_task))
        environments = dict(self._rows("SELECT id, fingerprint FROM environments"))
        rules = dict(self._rows("SELECT id, summary FROM definitions"))
        sources = dict(
            self._rows("SELECT d.trial, r.ulid FROM derived d JOIN trials r ON r.id = d.evidence")
        )
        where, values = _where(
            {
                f"s.task IN ({', '.join(map(str, recipes))}) AND m.name = ?": metric,
                "r.environment = (SELECT id FROM environments WHERE fingerprint = ?)": environment,
            }
        )
        rows = self._rows(
            "SELECT c.sha, r.ulid, r.seed, r.environment, s.task, s.value, r.started, o.marks, "
            "o.kind, s.definition, s.trial "
            "FROM metrics m CROSS JOIN summaries s ON s.metric = m.id "
            "JOIN trials r ON r.id = s.trial JOIN outcomes o ON o.trial = s.trial "
            f"JOIN commits c ON c.id = r.revision {where} ORDER BY s.trial",
            values,
        )
        return [
            SummaryRow(
                sha, ulid, seed, environments[env], recipes[key],
                math.nan if value is None else value, started,
                marks_of(marks) if marks else (), _OUTCOMES[kind], rules.get(rule, "last"),
                sources.get(trial, ""),
            )
            for sha, ulid, seed, env, key, value, started, marks, kind, rule, trial in rows
        ]  # fmt: skip

    def commits(self) -> list[Commit]:
        """By commit time, which is not always the order of history."""
        return self._commits("", ())

    def commit(self, sha: str) -> Commit | None:
        found = self._commits("WHERE c.sha = ?", (sha,))
        return found[0] if found else None

    def commits_with_trials(self) -> list[str]:
        """Hashes by commit time."""
        rows = self._rows(
            "SELECT sha FROM commits WHERE id IN (SELECT revision FROM trials) "
            "ORDER BY commit_time, id"
        )
        return [sha for (sha,) in rows]

    def tasks(self) -> list[TaskRecord]:
        """Every recipe ever recorded, the oldest first."""
        return [
            TaskRecord(suite, name, recipe, json.loads(definition))
            for suite, name, recipe, definition in self._rows(
                "SELECT suite, name, recipe, definition FROM tasks ORDER BY id"
            )
        ]

    def metrics(self, recipe: str | None = None) -> list[Metric]:
        """Each name once, by its latest definition; one that nobody declared is `info`. With a
        recipe: what that task declares or has measured, as that task judges it."""
        if recipe is None:
            rows = self._rows(
                "SELECT m.name, d.* FROM metrics m LEFT JOIN definitions d ON d.id = "
                "(SELECT max(id) FROM definitions WHERE metric = m.id) ORDER BY m.id"
            )
        else:
            rows = self._rows(
                "SELECT m.name, d.* FROM tasks t CROSS JOIN metrics m LEFT JOIN definitions d "
                "ON d.id = (SELECT max(id) FROM definitions WHERE metric = m.id AND task = t.id) "
                "WHERE t.recipe = ? AND (d.id IS NOT NULL OR EXISTS "
                "(SELECT 1 FROM summaries s WHERE s.metric = m.id AND s.task = t.id)) "
                "ORDER BY m.id",
                (recipe,),
            )
        return [
            Metric(name)
            if identity is None
            else Metric(
                name, unit, Direction(direction), Kind(kind), Floor(floor, bool(relative)), summary
            )
            for name, identity, _, _, unit, direction, kind, floor, relative, summary, _ in rows
        ]

    def measured(self, recipe: str, environment: str) -> set[str]:
        """The metrics, by name, of which a trial of this recipe had a value in this environment."""
        rows = self._rows(
            "SELECT m.name FROM metrics m, tasks t WHERE t.recipe = ? AND EXISTS (SELECT 1 "
            "FROM summaries s JOIN trials r ON r.id = s.trial WHERE s.metric = m.id "
            "AND s.task = t.id AND r.environment = "
            "(SELECT id FROM environments WHERE fingerprint = ?))",
            (recipe, environment),
        )
        return {name for (name,) in rows}

    def environment(self, fingerprint: str) -> Environment | None:
        found = self._environments("WHERE fingerprint = ?", (fingerprint,))
        return found[0] if found else None

    def environments(self) -> list[Environment]:
        """The oldest first."""
        return self._environments("", ())

    def verdicts(
        self, *, commit: str | None = None, suite: str | None = None, task: str | None = None
    ) -> list[Verdict]:
        """The latest of each commit, task and metric, in the order in which they were judged."""
        where, values = _where({"c.sha = ?": commit, "v.suite = ?": suite, "v.task = ?": task})
        rows = self._rows(
            "SELECT c.sha, v.suite, v.task, v.metric, v.kind, v.level, v.value, v.effect, v.low, "
            "v.high, v.p_value, own.ulids, base.ulids, v.rule, v.note, v.recipe, v.environment, "
            "max(v.id) AS latest "
            "FROM verdicts v JOIN commits c ON c.id = v.revision "
            "JOIN trial_sets own ON own.id = v.trials "
            f"JOIN trial_sets base ON base.id = v.baseline {where} "
            "GROUP BY v.revision, v.suite, v.task, v.metric ORDER BY latest",
            values,
        )
        return [
            Verdict(
                sha, of_suite, of_task, metric, VerdictKind(kind), _number(level), _number(value),
                _number(effect), _number(low), _number(high), _number(p_value),
                tuple(json.loads(trials)), tuple(json.loads(baseline)), rule, note, recipe,
                environment,
            )
            for sha, of_suite, of_task, metric, kind, level, value, effect, low, high, p_value,
            trials, baseline, rule, note, recipe, environment, _ in rows
        ]  # fmt: skip

    def verdict_kinds(
        self, *, suite: str, task: str, recipe: str, environment: str
    ) -> dict[tuple[str, str], VerdictKind]:
        """What was concluded of each (commit, metric) with this recipe in this environment."""
        rows = self._rows(
            "SELECT c.sha, v.metric, v.kind, max(v.id) "
            "FROM verdicts v JOIN commits c ON c.id = v.revision "
            "WHERE (v.suite, v.task, v.recipe, v.environment) = (?, ?, ?, ?) "
            "GROUP BY v.revision, v.metric",
            (suite, task, recipe, environment),
        )
        return {(sha, metric): VerdictKind(kind) for sha, metric, kind, _ in rows}

    def judged_before(
        self, commit: str, *, suite: str, task: str, recipe: str, environment: str
    ) -> dict[str, set[tuple[str, ...]]]:
        """Metric -> the different sets of this commit's trials that it was ever judged from."""
        found: dict[str, set[tuple[str, ...]]] = {}
        for metric, ulids in self._rows(
            "SELECT DISTINCT v.metric, own.ulids FROM verdicts v "
            "JOIN commits c ON c.id = v.revision JOIN trial_sets own ON own.id = v.trials WHERE "
            "(c.sha, v.suite, v.task, v.recipe, v.environment) = (?, ?, ?, ?, ?)",
            (commit, suite, task, recipe, environment),
        ):
            found.setdefault(metric, set()).add(tuple(json.loads(ulids)))
        return found

    def baselines(self, *, suite: str | None = None) -> list[BaselineRecord]:
        """What people pinned and accepted, the oldest first."""
        where, values = _where({"b.suite = ?": suite})
        return [
            BaselineRecord(ulid, BaselineAct(act), *words)
            for ulid, act, *words in self._rows(
                "SELECT b.ulid, b.act, c.sha, b.suite, b.task, b.metric, b.who, b.why, b.at "
                f"FROM baselines b JOIN commits c ON c.id = b.revision {where} ORDER BY b.id",
                values,
            )
        ]

    def bisects(self) -> list[BisectRecord]:
        """The oldest first."""
        return [
            BisectRecord(
                ulid, suite, task, metric, good, bad, tuple(json.loads(culprits)),
                _number(probability), status, ended, json.loads(report),
            )
            for ulid, suite, task, metric, good, bad, culprits, probability, status, ended, report
            in self._rows(
                "SELECT ulid, suite, task, metric, good, bad, culprits, probability, status, ended,"
                " report FROM bisects ORDER BY id"
            )
        ]  # fmt: skip

    def _trial_records(self, where: str, values: Iterable[object]) -> list[TrialRecord]:
        values = tuple(values)
        rows = self._rows(
            "SELECT r.id, r.ulid, c.sha, t.recipe, e.fingerprint, r.seed, r.why, r.started, r.host,"
            " r.device, t.suite, t.name, o.kind, o.ended, o.message, o.returncode, o.log, o.marks, "
            "coalesce(v.ulid, ''), coalesce(w.sha, ''), "
            "EXISTS (SELECT 1 FROM closures x JOIN closures y ON y.trial = d.evidence "
            "WHERE x.trial = r.id AND x.content != y.content), "
            "coalesce(o.epochs, (SELECT count(DISTINCT epoch) FROM points WHERE trial = r.id)) "
            f"{_TRIALS} {where} ORDER BY r.id",
            values,
        )
        summaries: dict[int, dict[str, float]] = {}
        rules: dict[int, dict[str, str]] = {}
        # Every metric is looked up for every trial: the key starts with the metric, for drift.
        for key, name, value, rule in self._rows(
            f"SELECT r.id, m.name, s.value, d.summary {_TRIALS} CROSS JOIN metrics m "
            "CROSS JOIN summaries s ON s.metric = m.id AND s.task = r.task AND s.trial = r.id "
            f"LEFT JOIN definitions d ON d.id = s.definition {where} "
            "ORDER BY r.id, m.id",
            values,
        ):
            summaries.setdefault(key, {})[name] = _number(value)
            rules.setdefault(key, {})[name] = rule or "last"
        return [
            self._trial_record(row, summaries.get(row[0], {}), rules.get(row[0], {}))
            for row in rows
        ]

    def _trial_record(
        self, row: tuple[Any, ...], summaries: Mapping[str, float], rules: Mapping[str, str]
    ) -> TrialRecord:
        (_, ulid, sha, recipe, environment, seed, why, started, host, device, suite, task,
         kind, ended, message, returncode, log, marks,
         derived, source, finer, epochs) = row  # fmt: skip
        outcome = None
        if kind is not None:
            outcome = Outcome(_OUTCOMES[kind], ended, message, returncode, log, marks_of(marks))
        trial = Trial(ulid, sha, recipe, environment, seed, Why(why), started, host, device)
        return TrialRecord(
            trial, suite, task, outcome, summaries, epochs, rules, derived, source, bool(finer)
        )

    def _commits(self, where: str, values: tuple[object, ...]) -> list[Commit]:
        parents: dict[int, list[str]] = {}
        for key, sha in self._rows(
            f"SELECT c.id, p.sha FROM commits c JOIN parents p ON p.revision = c.id {where} "
            "ORDER BY c.id, p.place",
            values,
        ):
            parents.setdefault(key, []).append(sha)
        return [
            Commit(sha, tree, tuple(parents.get(key, ())), *rest)
            for key, sha, tree, *rest in self._rows(
                "SELECT c.id, sha, tree, author, author_time, commit_time, subject FROM commits c "
                f"{where} ORDER BY commit_time, c.id",
                values,
            )
        ]

    def _environments(self, where: str, values: tuple[object, ...]) -> list[Environment]:
        rows = self._rows(
            f"SELECT fingerprint, details FROM environments {where} ORDER BY id", values
        )
        return [Environment(fingerprint, json.loads(details)) for fingerprint, details in rows]


_OUTCOMES = {kind.value: kind for kind in OutcomeKind}


def _where(conditions: Mapping[str, object]) -> tuple[str, tuple[object, ...]]:
    """The conditions whose value is not None, as SQL and its values."""
    asked = {sql: value for sql, value in conditions.items() if value is not None}
    return ("WHERE " + " AND ".join(asked) if asked else ""), tuple(asked.values())


def _number(value: float | None) -> float:
    return math.nan if value is None else value
