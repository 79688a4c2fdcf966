"""The ledger as NumPy arrays and plain objects: what noise and drift look at, and
`import celedger; ledger = celedger.open("ledger.db")` for your own Python.

Lives here: one query for the trials of a task and one for the values of a metric, since an object
for each would cost more than all that is computed from it; and what a notebook asks for, read-only.
It must not know which values may be compared, nor git: a ledger that was copied anywhere can be
opened. Only imported where it is asked for: numpy costs 0.1 s of a process.
"""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass, fields
from html import escape
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from celedger.base.errors import LedgerError
from celedger.base.model import (
    BisectRecord,
    Commit,
    Mark,
    Metric,
    OutcomeKind,
    SaidIncident,
    TrialRecord,
)
from celedger.ledger.read import SESSION, Reader
from celedger.ledger.store import Store, marks_of

if TYPE_CHECKING:
    import pandas
    import polars

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
    `started` is in microseconds since the epoch."""

    def __init__(self, ledger: Store, recipe: str) -> None:
        rows = ledger._rows("SELECT id FROM tasks WHERE recipe = ?", (recipe,))
        self._ledger, self._task = ledger, int(rows[0][0]) if rows else 0
        trials = self._read_trials()
        self.ids, revisions, environments, self.seed, ok, self.evidence, self._marks = trials[:7]
        self.session, self.rank, self.started = trials[7:]
        self.ok, self.derived = ok == 1, self.evidence != 0
        self._summaries: dict[int, tuple[Ints, Floats, Floats]] = {}  # by metric
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
        key = self._metrics.get(metric.name, 0)
        if key not in self._summaries:
            self._summaries[key] = self._read_summaries(key)
        rows, definitions, values = self._summaries[key]
        rules = self._rules.get((key, metric.summary), []) + [0] * (metric.summary == "last")
        chosen = np.isin(definitions, rules)
        return rows[chosen], values[chosen]

    def _read_trials(self) -> Ints:
        """Return a column a trial: id, commit, environment, seed, whether it is ok, the id of the
        trial that it is derived from or 0, marks, session, rank in it, start in microseconds. A
        trial that was recorded without a session is of its host's day."""
        rows = self._ledger._rows(
            "SELECT r.id, r.revision, r.environment, r.seed, o.kind = ?, ifnull(d.evidence, 0), "
            f"o.marks, {SESSION}, ifnull(p.value, -1), CAST(r.started * 1000000 AS INTEGER) "
            "FROM trials r JOIN outcomes o ON o.trial = r.id "
            "LEFT JOIN derived d ON d.trial = r.id "
            "LEFT JOIN trial_facts s ON s.trial = r.id AND s.name = 'session' "
            "LEFT JOIN trial_facts p ON p.trial = r.id AND p.name = 'rank' "
            "WHERE r.task = ? ORDER BY r.id",
            (OutcomeKind.OK.value, self._task),
        )
        if not rows:
            return np.empty((10, 0), dtype=np.int64)
        *numbers, texts, names, ranks, started = zip(*rows, strict=True)
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
        )
        return np.array([*numbers, *columns], dtype=np.int64)

    def _read_summaries(self, metric: int) -> tuple[Ints, Floats, Floats]:
        """Return of each value of a metric, by trial: the index of that, its definition or 0, and
        itself; NULL is NaN."""
        rows = self._ledger._rows(
            "SELECT trial, ifnull(definition, 0), value FROM summaries "
            "WHERE metric = ? AND task = ? ORDER BY trial",
            (metric, self._task),
        )
        columns = np.fromiter(chain.from_iterable(rows), np.float64, 3 * len(rows)).reshape(-1, 3)
        trial = columns[:, 0].astype(np.int64)
        ended = np.isin(trial, self.ids)
        return np.searchsorted(self.ids, trial[ended]), *columns[ended, 1:].T

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


# --- `celedger.open`


class _Arrays:
    """A table: a dataclass whose fields are its columns."""

    def to_pandas(self) -> pandas.DataFrame:
        """Return the columns as a DataFrame. Needs pandas."""
        import pandas

        return pandas.DataFrame(self._columns())

    def to_polars(self) -> polars.DataFrame:
        """Return the columns as a DataFrame. Needs polars."""
        import polars

        return polars.DataFrame(self._columns())

    def _columns(self) -> dict[str, NDArray[Any]]:
        columns: Any = fields(self)  # type: ignore[arg-type]
        return {column.name: getattr(self, column.name) for column in columns}


@dataclass(frozen=True, slots=True)
class SeriesArrays(_Arrays):
    """One metric of one trial over its epochs; NaN and infinities as they were reported."""

    epoch: NDArray[np.int64]
    value: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SummaryArrays(_Arrays):
    """One metric of one task over trials, in the order in which they started: a row a trial."""

    commit: NDArray[np.str_]  # 40 hexadecimal digits
    trial: NDArray[np.str_]  # ULIDs
    seed: NDArray[np.int64]
    environment: NDArray[np.str_]  # fingerprints: only values of one are comparable
    definition: NDArray[np.str_]  # content hashes of the task: likewise
    outcome: NDArray[np.str_]
    reused_from: NDArray[np.str_]  # the trial whose value this is, "" where it ran itself
    started: NDArray[np.float64]  # seconds since the epoch
    value: NDArray[np.float64]  # in the metric's own unit


class OpenLedger:
    """A ledger opened for reading. Close it, or use it in a `with` statement. Hashes are whole."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._reader.close()

    def __repr__(self) -> str:
        try:
            tasks, metrics, trials = self._contents()
        except LedgerError:
            return f"<ledger {self._reader.path}: closed>"
        lines = [f"<ledger {self._reader.path}: {trials} trials; metrics {', '.join(metrics)}"]
        lines += [f"  {suite}/{task}: {commits} commits" for (suite, task), commits in tasks]
        return "\n".join(lines) + ">"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a table of the tasks."""
        try:
            tasks, metrics, trials = self._contents()
        except LedgerError:
            return escape(repr(self))
        rows = "".join(
            f"<tr><td>{escape(suite)}</td><td>{escape(task)}</td><td>{commits}</td></tr>"
            for (suite, task), commits in tasks
        )
        return (
            f"<p>{escape(str(self._reader.path))}: {trials} trials; "
            f"metrics {escape(', '.join(metrics))}</p><table><tr><th>suite</th><th>task</th>"
            f"<th>commits</th></tr>{rows}</table>"
        )

    def _contents(self) -> tuple[list[tuple[tuple[str, str], int]], list[str], int]:
        """Return the commits that each (suite, task) was measured at, the metrics, the trials."""
        measured = Counter((suite, task) for suite, task, _ in self._reader.measured_tasks())
        names = sorted({metric.name for metric in self.metrics()})
        return sorted(measured.items()), names, len(self._reader.trials())

    def trials(
        self,
        *,
        task: str | None = None,
        suite: str | None = None,
        commit: str | None = None,
        seed: int | None = None,
    ) -> list[TrialRecord]:
        """Return the trials in the order in which they started, with outcome and summaries."""
        return self._reader.trials(commit=commit, suite=suite, task=task, seed=seed)

    def series(self, trial: TrialRecord | str, metric: str) -> SeriesArrays:
        """Return a metric over the epochs of a trial (or its ULID): empty where it has none."""
        points = self._reader.series(_ulid(trial), metric).get(metric, [])
        epochs, values = zip(*points, strict=True) if points else ((), ())
        return SeriesArrays(np.array(epochs, np.int64), np.array(values, np.float64))

    def steps(self, trial: TrialRecord | str, metric: str) -> dict[int, NDArray[np.float64]]:
        """Return by epoch a metric's value of every step, of tasks with `steps = true`."""
        epochs = self._reader.steps(_ulid(trial), metric).get(metric, {})
        return {epoch: np.array(values, np.float64) for epoch, values in epochs.items()}

    def summaries(self, task: str, metric: str, *, suite: str | None = None) -> SummaryArrays:
        """Return one number a trial, over all trials of a task that ended with one."""
        rows = self._reader.summaries(task, metric, suite=suite)

        def text(name: str) -> NDArray[np.str_]:
            return np.array([str(getattr(row, name)) for row in rows], np.str_)

        return SummaryArrays(
            commit=text("commit"),
            trial=text("ulid"),
            seed=np.array([row.seed for row in rows], np.int64),
            environment=text("environment"),
            definition=text("recipe"),
            outcome=text("outcome"),
            reused_from=text("derived"),
            started=np.array([row.started for row in rows], np.float64),
            value=np.array([row.value for row in rows], np.float64),
        )

    def commits(self) -> list[Commit]:
        """Return the commits by commit time."""
        return self._reader.commits()

    def metrics(self) -> list[Metric]:
        """Return each metric with unit and direction, as it was defined last."""
        return self._reader.metrics()

    def incidents(self) -> list[SaidIncident]:
        """Return each incident as it was said last, the oldest first."""
        return self._reader.incidents()

    def bisects(self) -> list[BisectRecord]:
        """Return what was searched, the oldest first."""
        return self._reader.bisects()


def open(path: str | Path = "ledger.db") -> OpenLedger:  # noqa: A001 -- `celedger.open`
    """Open a ledger for reading. Raises LedgerError with one sentence where it cannot be."""
    return OpenLedger(Reader.open(Path(path), readonly=True))


def _ulid(trial: TrialRecord | str) -> str:
    return trial if isinstance(trial, str) else trial.trial.ulid
