"""The ledger: one SQLite file that keeps every attempt, and the only state celedger has.

Lives here: the one class that other rooms hold. They must not know that it is SQL.
"""

from __future__ import annotations

from celedger.ledger.write import Ledger

__all__ = ["Ledger"]
