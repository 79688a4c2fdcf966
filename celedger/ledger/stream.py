"""Every value of a ledger, one after the other: for who wants all of them and has no room for them.

Lives here: one query for the trials and one for the values of each. It must not know what becomes
of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from celedger.ledger import facts
from celedger.ledger.store import Store, from_null


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


_TRIALS = """
SELECT r.id, coalesce(d.evidence, r.id), r.task, t.suite, t.name, c.sha, c.commit_time,
  e.fingerprint, r.seed, r.ulid, r.started, coalesce(o.kind, ''), coalesce(v.ulid, '')
FROM trials r JOIN tasks t ON t.id = r.task JOIN commits c ON c.id = r.revision
JOIN environments e ON e.id = r.environment LEFT JOIN outcomes o ON o.trial = r.id
LEFT JOIN derived d ON d.trial = r.id LEFT JOIN trials v ON v.id = d.evidence
ORDER BY r.id
"""
_EPOCHS = "SELECT epoch, metric, value FROM points WHERE trial = ?1 ORDER BY epoch, metric"
# The key of summaries starts with the metric.
_SUMMARIES = """
SELECT NULL, m.id, s.value FROM metrics m
CROSS JOIN summaries s ON (s.metric, s.task, s.trial) = (m.id, ?2, ?1) ORDER BY m.id
"""


class Stream(Store):
    def values(
        self, *, commits: Collection[str] | None = None, summaries: bool = False
    ) -> Iterator[Value]:
        """Yield the values of these commits (hashes), or of all, in the order in which the trials
        started: by epoch, or with `summaries` one a trial and metric."""
        connection = self._connection
        with facts.snapshot(connection):
            names = dict(self._rows("SELECT id, name FROM metrics"))
            latest = "SELECT task, metric, unit, max(id) FROM definitions GROUP BY task, metric"
            units = {(task, metric): unit for task, metric, unit, _ in self._rows(latest)}
            for row in connection.execute(_TRIALS):
                key, evidence, task, *shown = row
                if commits is not None and shown[2] not in commits:
                    continue
                sql, keys = (_SUMMARIES, (key, task)) if summaries else (_EPOCHS, (evidence,))
                for epoch, metric, value in connection.execute(sql, keys):
                    unit = units.get((task, metric), "")
                    own = (epoch, names[metric], unit, from_null(value))
                    yield Value._make((*shown, *own))
