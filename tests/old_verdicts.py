"""Verdicts as celedger wrote them before it kept incidents: it still reads them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from celedger.base.model import Verdict
from celedger.ledger import Ledger
from celedger.ledger.store import columns_of, encoded

_SUBJECT = ("suite", "task", "metric")


def record_verdicts(ledger: Ledger, verdicts: Iterable[Verdict]) -> None:
    """Record verdicts. One that says what the latest on its subject said adds nothing."""
    with ledger.transaction():
        for verdict in verdicts:
            row = columns_of(verdict)
            row["trials"] = _trial_set(ledger, verdict.trials)
            row["baseline"] = _trial_set(ledger, verdict.baseline)
            revision = ledger._id("commits", "sha", row.pop("commit"))
            subject = {"revision": revision, **{name: row.pop(name) for name in _SUBJECT}}
            latest = ledger._rows(
                f"SELECT {', '.join(row)} FROM verdicts "
                f"WHERE ({', '.join(subject)}) = (?, ?, ?, ?) ORDER BY id DESC LIMIT 1",
                tuple(subject.values()),
            )
            if latest != [tuple(row.values())]:
                ledger._record("verdicts", **subject, **row)


def _trial_set(ledger: Ledger, ulids: Sequence[str]) -> int:
    text = encoded(tuple(ulids))
    digest = hashlib.sha256(text.encode()).digest()
    key = ledger._record("trial_sets", digest=digest, ulids=text)
    return key if key is not None else ledger._id("trial_sets", "digest", digest)
