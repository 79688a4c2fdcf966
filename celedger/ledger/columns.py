"""The summaries of a task as arrays: noise and drift look at thousands of trials, and an object
for each value would cost more than all that is computed from it.

Lives here: one query for the trials of a task, one for the values of a metric, and a file beside
the ledger that spares both the rows they read before: facts never change. It must not know which
values may be compared. Only imported where noise or drift is asked for: numpy costs 0.1 s of a
process.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from celedger.ledger.store import Store, marks_of
from celedger.model import Mark, Metric, OutcomeKind
from celedger.system import cache_file

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_MARKS = {mark: 1 << place for place, mark in enumerate(Mark)}
_SHIFT = 1 << 20  # more than there are definitions; exact in a double below 2^33 trials
_FORMAT = f"1 {' '.join(_MARKS)}"  # of the file
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
    the id `first` on: an array has an item for each of them. `commit` and `environment` are places
    in `commits` (hashes) and `environments` (fingerprints); `evidence` is the id of the trial that
    one is derived from, 0 of one that ran."""

    def __init__(self, ledger: Store, recipe: str, first: int = 0) -> None:
        rows = ledger._rows("SELECT id FROM tasks WHERE recipe = ?", (recipe,))
        self._ledger, self._task, self._first = ledger, int(rows[0][0]) if rows else 0, first
        self._path = ledger.folder / ".celedger" / "columns" / recipe[:32]
        self._columns: dict[str, _Column] = {}
        self._definitions: dict[tuple[str, str], list[int]] = {}
        for name, rule, number in ledger._rows(
            "SELECT m.name, d.summary, d.id FROM definitions d JOIN metrics m ON m.id = d.metric "
            "WHERE d.task = ?",
            (self._task,),
        ):
            self._definitions.setdefault((name, rule), []).append(number)
        self._cached = _Columns() if first else _Columns.read(self._path, self._identity)
        fresh = self._read_trials(max(first, self._cached.last + 1))
        self._trials = np.concatenate((self._cached.trials, fresh), axis=1)
        self.ids, revisions, environments, self.seed, ok, self.evidence, self._marks = self._trials
        self.ok, self.derived = ok == 1, self.evidence != 0
        self.commit, self.commits = self._named(revisions, "commits", "sha")
        self.environment, self.environments = self._named(
            environments, "environments", "fingerprint"
        )

    def marked(self, *marks: Mark) -> Bools:
        """Return which trials have one of the marks."""
        chosen: Bools = (self._marks & sum(_MARKS[mark] for mark in marks)) != 0
        return chosen

    def values(self, metric: Metric) -> tuple[Ints, Floats]:
        """Return the places of the trials that ended with a value of the metric, ascending, and
        those values. What another rule summarised is left out."""
        column = self._column(metric.name)
        keep = np.zeros(column.values.size, dtype=bool)
        for definition in self._definitions.get((metric.name, metric.summary), []):
            keep |= column.definitions == definition
        if metric.summary == "last":
            keep |= column.definitions == 0
        places = np.searchsorted(self.ids, column.trials)
        places[places == self.ids.size] = 0
        if self.ids.size:
            keep &= self.ids[places] == column.trials
        return places[keep], column.values[keep]

    def keep(self) -> None:
        """Write what was read, where the file lacks much of it."""
        lacking = self._columns.keys() - self._cached.columns.keys()
        stale = self.ids.size - self._cached.trials.shape[1] > _FRESH * self.ids.size
        if self._first or not (stale or lacking):
            return
        last = int(self.ids[-1]) if stale else self._cached.last
        columns = self._columns if stale else {**self._cached.columns, **self._columns}
        _Columns(
            last,
            self._trials[:, self.ids <= last],
            {name: column.until(last) for name, column in columns.items()},
        ).write(self._path, self._identity(last))

    def _column(self, metric: str) -> _Column:
        """Return all values of a metric."""
        column = self._columns.get(metric)
        if column is None:
            old = self._cached.columns.get(metric)
            first = self._first if old is None else self._cached.last + 1
            rows = self._ledger._rows(
                f"SELECT s.trial * {_SHIFT} + ifnull(s.definition, 0), s.value FROM metrics m "
                "CROSS JOIN summaries s ON s.metric = m.id "
                "WHERE m.name = ? AND s.task = ? AND s.trial >= ? ORDER BY s.trial",
                (metric, self._task, first),
            )
            fresh = _Column.of(rows)
            column = self._columns[metric] = fresh if old is None else old.with_more(fresh)
        return column

    def _read_trials(self, first: int) -> Ints:
        """Return a column a trial: id, commit, environment, seed, whether it is ok, the id of the
        trial that it is derived from or 0, marks."""
        rows = self._ledger._rows(
            "SELECT r.id, r.revision, r.environment, r.seed, o.kind = ?, ifnull(d.evidence, 0), "
            "o.marks FROM trials r JOIN outcomes o ON o.trial = r.id "
            "LEFT JOIN derived d ON d.trial = r.id WHERE r.task = ? AND r.id >= ? ORDER BY r.id",
            (OutcomeKind.OK.value, self._task, first),
        )
        if not rows:
            return np.empty((7, 0), dtype=np.int64)
        *numbers, texts = zip(*rows, strict=True)
        marks = {text: sum(_MARKS[mark] for mark in marks_of(text)) for text in set(texts)}
        return np.array([*numbers, [marks[text] for text in texts]], dtype=np.int64)

    def _identity(self, last: int) -> str:
        """Return a hash of the trials that had ended, of those up to the one with the id `last`,
        and of what the numbers in the file mean. The values of a trial that ended never change."""
        ((trials,),) = self._ledger._rows(
            "SELECT group_concat(r.id || ' ' || r.ulid || ' ' || c.id || ' ' || c.sha || ' ' || "
            "e.id || ' ' || e.fingerprint) FROM (SELECT * FROM trials WHERE task = ? AND id <= ? "
            "ORDER BY id) r JOIN outcomes o ON o.trial = r.id JOIN commits c ON c.id = r.revision "
            "JOIN environments e ON e.id = r.environment",
            (self._task, last),
        )
        text = f"{trials} {sorted(self._definitions.items())}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def _named(self, keys: Ints, table: str, column: str) -> tuple[Ints, tuple[str, ...]]:
        """Return the place of each key among those that occur, and the names of these, in the order
        in which they do."""
        each = keys.tolist()
        places = {key: place for place, key in enumerate(dict.fromkeys(each))}
        names = dict(self._ledger._rows(f"SELECT id, {column} FROM {table}"))
        return (
            np.fromiter(map(places.__getitem__, each), np.int64, len(each)),
            tuple(names[key] for key in places),
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Column:
    """The values of one metric, with the ids of their trials and of the definitions by whose rules
    they were made (0: by none): `keys` are trial * _SHIFT + definition."""

    keys: Ints
    values: Floats

    @classmethod
    def of(cls, rows: Sequence[tuple[int, float | None]]) -> _Column:
        flat = np.fromiter(chain.from_iterable(rows), np.float64, 2 * len(rows))  # NULL is NaN
        return cls(flat[::2].astype(np.int64), flat[1::2].copy())

    @property
    def trials(self) -> Ints:
        return self.keys // _SHIFT

    @property
    def definitions(self) -> Ints:
        return self.keys % _SHIFT

    def with_more(self, other: _Column) -> _Column:
        return _Column(
            np.concatenate((self.keys, other.keys)), np.concatenate((self.values, other.values))
        )

    def until(self, last: int) -> _Column:
        end = int(np.searchsorted(self.keys, (last + 1) * _SHIFT))
        return _Column(self.keys[:end], self.values[:end])


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """What the file holds: the trials up to the one with the id `last`, and their values."""

    last: int = 0
    trials: Ints = field(default_factory=lambda: np.empty((7, 0), dtype=np.int64))
    columns: Mapping[str, _Column] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, identity: Callable[[int], str]) -> _Columns:
        """Return what the file holds: nothing unless it is of this ledger's trials."""
        content = cache_file.read(path)
        if not content:
            return cls()
        with np.load(io.BytesIO(content)) as arrays:
            if str(arrays["format"]) != _FORMAT:
                return cls()
            last = int(arrays["last"])
            if str(arrays["identity"]) != identity(last):
                return cls()
            ends = np.cumsum(arrays["counts"])[:-1]
            parts = zip(
                arrays["names"].tolist(), np.split(arrays["keys"], ends),
                np.split(arrays["values"], ends), strict=True,
            )  # fmt: skip
            columns = {name: _Column(keys, values) for name, keys, values in parts}
            return cls(last, arrays["trials"], columns)

    def write(self, path: Path, identity: str) -> None:
        columns = self.columns.values()
        file = io.BytesIO()
        np.savez(
            file, format=_FORMAT, identity=identity, last=self.last, trials=self.trials,
            names=list(self.columns), counts=[column.values.size for column in columns],
            keys=np.concatenate([column.keys for column in columns]),
            values=np.concatenate([column.values for column in columns]),
        )  # fmt: skip
        cache_file.write(path, file.getvalue())
