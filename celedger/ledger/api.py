"""The ledger for your own Python: `import celedger; ledger = celedger.open("ledger.db")`.

Lives here: what a notebook asks for, read-only, as the plain objects of `celedger.base.model` and
as NumPy arrays. It must not know git: a ledger that was copied anywhere can be opened.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from celedger.base.errors import LedgerError
from celedger.base.model import BisectRecord, Commit, Metric, SaidIncident, TrialRecord
from celedger.ledger.read import Reader

if TYPE_CHECKING:
    import pandas
    import polars

__all__ = ["OpenLedger", "SeriesArrays", "SummaryArrays", "open"]


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
