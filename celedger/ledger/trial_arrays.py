"""The trials of a task and their summaries as arrays: noise and drift look at thousands of trials,
and an object for each value would cost more than all that is computed from it.

Lives here: one query for the trials and one for the values. It must not know which values may be
compared. Only imported where noise or drift is asked for: numpy costs 0.1 s of a process.
"""

from __future__ import annotations

import zlib
from collections import Counter
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from celedger.base.model import Mark, Metric, OutcomeKind
from celedger.ledger.store import Store, marks_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_MARKS = {mark: 1 << number for number, mark in enumerate(Mark)}


class TaskColumns:
    """The trials of one recipe that ended, in the order in which they started: an array has an item
    for each of them. `commit` and `environment` are indices
    into `commits` (hashes) and `environments` (fingerprints); `evidence` is the id of the trial
    that one is derived from, 0 of one that ran. `session` numbers what a run of trials shares
    beyond the code, in every definition alike; `rank` is a trial's place in it;
    `started` is in microseconds since the epoch; `risen` says that it is a control of a doubted
    rise."""

    def __init__(self, ledger: Store, recipe: str) -> None:
        rows = ledger._rows("SELECT id FROM tasks WHERE recipe = ?", (recipe,))
        self._ledger, self._task = ledger, int(rows[0][0]) if rows else 0
        trials = self._read_trials()
        self.ids, revisions, environments, self.seed, ok, self.evidence, self._marks = trials[:7]
        self.session, self.rank, self.started, risen = trials[7:]
        self.risen = risen == 1
        self.ok, self.derived = ok == 1, self.evidence != 0
        self._summaries = self._read_summaries()
        self.commit, self.commits = self._named(revisions, "commits", "sha")
        self.environment, self.environments = self._named(
            environments, "environments", "fingerprint"
        )
        self._metrics = dict(ledger._rows("SELECT name, id FROM metrics"))
        self._rules: dict[tuple[int, str], list[int]] = {}  # (metric, summary) -> definitions
        sql = "SELECT metric, summary, id FROM definitions WHERE task = ?"
        for metric, rule, definition in ledger._rows(sql, (self._task,)):
            self._rules.setdefault((metric, rule), []).append(definition)

    def marked(self, *marks: Mark) -> Bools:
        """Return which trials have one of the marks."""
        chosen: Bools = (self._marks & sum(_MARKS[mark] for mark in marks)) != 0
        return chosen

    @property
    def evidence_or_own(self) -> Ints:
        """Return the id of the trial whose reports each trial has: its own, or its evidence's."""
        ids: Ints = np.where(self.derived, self.evidence, self.ids)
        return ids

    def fingerprints(self) -> dict[int, str]:
        """Return the fingerprint of the model's parameters at the end of each trial, by the id of
        the trial that ran."""
        rows = self._ledger._rows(
            "SELECT f.trial, f.value, max(f.epoch) FROM trials r CROSS JOIN fingerprints f "
            "ON f.trial = r.id WHERE r.task = ? GROUP BY f.trial",
            (self._task,),
        )
        return {trial: value for trial, value, _ in rows}

    def values(self, metric: Metric) -> tuple[Ints, Floats]:
        """Return the indices of the trials that ended with a value of the metric, ascending, and
        those values. What another rule summarised is left out."""
        metrics, rows, definitions, values = self._summaries
        key = self._metrics.get(metric.name, 0)
        rules = self._rules.get((key, metric.summary), []) + [0] * (metric.summary == "last")
        own = slice(*np.searchsorted(metrics, [key, key + 1]).tolist())
        chosen = np.isin(definitions[own], rules)
        return rows[own][chosen].astype(np.int64), values[own][chosen]

    def _read_trials(self) -> Ints:
        """Return a column a trial: id, commit, environment, seed, whether it is ok, the id of the
        trial that it is derived from or 0, marks, session, rank in it, start in microseconds,
        whether it is a control of a rise. A trial that was recorded without a session is of its
        host's day."""
        rows = self._ledger._rows(
            "SELECT r.id, r.revision, r.environment, r.seed, o.kind = ?, ifnull(d.evidence, 0), "
            "o.marks, ifnull(s.value, r.host || ' ' || CAST(r.started / 86400 AS INTEGER)), "
            "ifnull(p.value, -1), CAST(r.started * 1000000 AS INTEGER), "
            "ifnull(q.value, '') = 'risen' "
            "FROM trials r JOIN outcomes o ON o.trial = r.id "
            "LEFT JOIN derived d ON d.trial = r.id "
            "LEFT JOIN trial_facts s ON s.trial = r.id AND s.name = 'session' "
            "LEFT JOIN trial_facts p ON p.trial = r.id AND p.name = 'rank' "
            "LEFT JOIN trial_facts q ON q.trial = r.id AND q.name = 'role' "
            "WHERE r.task = ? ORDER BY r.id",
            (OutcomeKind.OK.value, self._task),
        )
        if not rows:
            return np.empty((11, 0), dtype=np.int64)
        *numbers, texts, names, ranks, started, risen = zip(*rows, strict=True)
        marks = {text: sum(_MARKS[mark] for mark in marks_of(text)) for text in set(texts)}
        sessions = {name: zlib.crc32(name.encode()) for name in set(names)}
        counts: Counter[str] = Counter()
        places = []
        for name, rank in zip(names, ranks, strict=True):
            places.append(int(rank) if int(rank) >= 0 else counts[name])
            counts[name] += 1
        columns = (
            [marks[t] for t in texts],
            [sessions[name] for name in names],
            places,
            started,
            risen,
        )
        return np.array([*numbers, *columns], dtype=np.int64)

    def _read_summaries(self) -> Floats:
        """Return a column a value, ordered by metric and trial: metric, index of the trial,
        definition or 0, value; NULL is NaN."""
        rows = self._ledger._rows(
            "SELECT s.metric, s.trial, ifnull(s.definition, 0), s.value FROM metrics m "
            "CROSS JOIN summaries s ON s.metric = m.id WHERE s.task = ?",
            (self._task,),
        )
        flat = np.fromiter(chain.from_iterable(rows), np.float64, 4 * len(rows))
        columns = flat.reshape(len(rows), 4).T
        ended = columns[:, np.isin(columns[1], self.ids)]
        ended[1] = np.searchsorted(self.ids, ended[1])
        return ended[:, np.lexsort((ended[1], ended[0]))]

    def _named(self, keys: Ints, table: str, column: str) -> tuple[Ints, tuple[str, ...]]:
        """Return the index of each key among those that occur, and the names of these, in the order
        in which they do."""
        items = keys.tolist()
        indices = {key: index for index, key in enumerate(dict.fromkeys(items))}
        names = dict(self._ledger._rows(f"SELECT id, {column} FROM {table}"))
        return (
            np.fromiter(map(indices.__getitem__, items), np.int64, len(items)),
            tuple(names[key] for key in indices),
        )
