"""The ledger: one SQLite file that keeps every attempt, and the only state celedger has.

Lives here: the one class that other rooms hold. They must not know that it is SQL.
"""

from __future__ import annotations

from celedger.ledger.all_values import Stream
from celedger.ledger.findings import Findings
from celedger.ledger.jobs import Jobs
from celedger.ledger.merge import Merger
from celedger.ledger.read import Reader
from celedger.ledger.said import Said

__all__ = ["Ledger"]


class Ledger(Reader, Findings, Said, Jobs, Merger, Stream):
    """Facts are added and read, never changed. Open it with `Ledger.open`. A view asks for a
    `Reader`, which has nothing to write with."""
