"""Every value of a ledger, one after the other: for who wants all of them and has no room for them.

Lives here: the query for them. It must not know what becomes of them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import NamedTuple

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


class Stream(Store):
    def values(
        self, *, commits: Collection[str] | None = None, summaries: bool = False
    ) -> Iterator[Value]:
        """Yield the values of these commits (hashes), or of all, in the order in which the trials
        started: by epoch, or with `summaries` one a trial and metric."""
        chosen = None if commits is None else json.dumps(list(commits))
        for row in self._connection.execute(_SUMMARIES if summaries else _EPOCHS, (chosen,)):
            yield Value._make((*row[:-1], from_null(row[-1])))
