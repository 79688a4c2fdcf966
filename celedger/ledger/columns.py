"""The trials of a task and their summaries as arrays: noise and drift look at thousands of trials,
and an object for each value would cost more than all that is computed from it.

Lives here: one query for the trials, one for the values, and a file beside the ledger that spares
both the rows they read before: facts are only added, and the newest checksum at that time says
which are new. It must not know which values may be compared. Only imported where noise or drift is
asked for: numpy costs 0.1 s of a process.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from celedger.ledger.checking import snapshot
from celedger.ledger.store import Store, marks_of
from celedger.model import Mark, Metric, OutcomeKind
from celedger.system import cache_file

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_MARKS = {mark: 1 << number for number, mark in enumerate(Mark)}
_FORMAT = f"2 {' '.join(_MARKS)}"  # of the file
_FRESH = 0.05  # share of the trials that the file lacks from which it is written anew


def first_trial(ledger: Store, commits: Iterable[str]) -> int:
    """Return the lowest id of a trial of these commits (hashes); 0 where they have none."""
    ((first,),) = ledger._rows(
        "SELECT min(r.id) FROM commits c JOIN trials r ON r.revision = c.id "
        "WHERE c.sha IN (SELECT value FROM json_each(?))",
        (json.dumps(list(commits)),),
    )
    return first or 0


class TaskColumns:
    """The trials of one recipe that ended, in the order in which they started, from the one with
    the id `first` on: an array has an item for each of them. `commit` and `environment` are indices
    into `commits` (hashes) and `environments` (fingerprints); `evidence` is the id of the trial
    that one is derived from, 0 of one that ran."""

    def __init__(self, ledger: Store, recipe: str, first: int = 0) -> None:
        rows = ledger._rows("SELECT id FROM tasks WHERE recipe = ?", (recipe,))
        self._ledger, self._task, self._first = ledger, int(rows[0][0]) if rows else 0, first
        self._path = ledger.folder / ".celedger" / "columns" / recipe[:32]
        with snapshot(ledger._connection):
            since, trials, summaries = self._cached()
            fresh, fresh_summaries = self._read_trials(since), self._read_summaries(since)
        self._stale = not first and fresh.shape[1] > _FRESH * (trials.shape[1] + fresh.shape[1])
        # A trial that began before others may end after them.
        self._trials = np.concatenate((trials, fresh), axis=1)
        self._trials = self._trials[:, np.argsort(self._trials[0], kind="stable")]
        self._summaries = np.concatenate((summaries, fresh_summaries), axis=1)
        self.ids, revisions, environments, self.seed, ok, self.evidence, self._marks = self._trials
        self.ok, self.derived = ok == 1, self.evidence != 0
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

    def values(self, metric: Metric) -> tuple[Ints, Floats]:
        """Return the indices of the trials that ended with a value of the metric, ascending, and
        those values. What another rule summarised is left out."""
        metrics, trials, definitions, values = self._summaries
        key = self._metrics.get(metric.name, 0)
        rules = self._rules.get((key, metric.summary), []) + [0] * (metric.summary == "last")
        chosen = np.flatnonzero(metrics == key)
        chosen = chosen[np.isin(definitions[chosen], rules)]
        chosen = chosen[np.isin(trials[chosen], self.ids)]
        rows = np.searchsorted(self.ids, trials[chosen])
        order = np.argsort(rows, kind="stable")
        return rows[order], values[chosen[order]]

    def keep(self) -> None:
        """Write what was read, where the file lacks much of it."""
        if not self._stale:
            return
        file = io.BytesIO()
        np.savez(
            file, format=_FORMAT, newest=json.dumps(self._newest), trials=self._trials,
            summaries=self._summaries,
        )  # fmt: skip
        cache_file.write(self._path, file.getvalue())

    def _cached(self) -> tuple[int, Ints, Floats]:
        """Return what the file has: the id of the checksum up to which it goes, trials, summaries.
        It has nothing unless it is of this ledger."""
        nothing = 0, np.empty((7, 0), dtype=np.int64), np.empty((4, 0))
        sql = "SELECT id, fact, row, value FROM checksums"
        self._newest = self._ledger._rows(f"{sql} ORDER BY id DESC LIMIT 1")
        content = b"" if self._first else cache_file.read(self._path)
        if not content:
            return nothing
        with np.load(io.BytesIO(content)) as arrays:
            newest = [tuple(row) for row in json.loads(str(arrays["newest"]))]
            if str(arrays["format"]) != _FORMAT or not newest:
                return nothing
            if self._ledger._rows(f"{sql} WHERE id = ?", newest[0][:1]) != newest:
                return nothing
            return newest[0][0], arrays["trials"], arrays["summaries"]

    def _read_trials(self, since: int) -> Ints:
        """Return a column a trial: id, commit, environment, seed, whether it is ok, the id of the
        trial that it is derived from or 0, marks."""
        rows = self._ledger._rows(
            "SELECT r.id, r.revision, r.environment, r.seed, o.kind = ?, ifnull(d.evidence, 0), "
            "o.marks FROM trials r JOIN outcomes o ON o.trial = r.id "
            f"LEFT JOIN derived d ON d.trial = r.id WHERE r.task = ? AND {_added('r.id', since)}",
            (OutcomeKind.OK.value, self._task, self._first),
        )
        if not rows:
            return np.empty((7, 0), dtype=np.int64)
        *numbers, texts = zip(*rows, strict=True)
        marks = {text: sum(_MARKS[mark] for mark in marks_of(text)) for text in set(texts)}
        return np.array([*numbers, [marks[text] for text in texts]], dtype=np.int64)

    def _read_summaries(self, since: int) -> Floats:
        """Return a column a value: metric, trial, definition or 0, value; NULL is NaN."""
        rows = self._ledger._rows(
            "SELECT s.metric, s.trial, ifnull(s.definition, 0), s.value FROM metrics m "
            "CROSS JOIN summaries s ON s.metric = m.id "
            f"WHERE s.task = ? AND {_added('s.trial', since)}",
            (self._task, self._first),
        )
        flat = np.fromiter(chain.from_iterable(rows), np.float64, 4 * len(rows))
        return flat.reshape(len(rows), 4).T.copy()

    def _named(self, keys: Ints, table: str, column: str) -> tuple[Ints, tuple[str, ...]]:
        """Return the index of each key among those that occur, and the names of these, in the order
        in which they do."""
        each = keys.tolist()
        indices = {key: index for index, key in enumerate(dict.fromkeys(each))}
        names = dict(self._ledger._rows(f"SELECT id, {column} FROM {table}"))
        return (
            np.fromiter(map(indices.__getitem__, each), np.int64, len(each)),
            tuple(names[key] for key in indices),
        )


def _added(trial: str, since: int) -> str:
    """Return the condition for trials from an id on, and completed since a checksum."""
    if not since:
        return f"{trial} >= ?"
    completed = f"SELECT row FROM checksums WHERE fact = 'trials' AND id > {since}"
    return f"{trial} >= ? AND {trial} IN ({completed})"
