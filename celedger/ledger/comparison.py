"""Whether a ledger and its archive agree.

Lives here: what a fact contains, whatever keys its ledger gave to it. Checksums cannot tell that a
fact was changed by somebody who wrote its checksum anew, or taken away with it; a second ledger
can. It must not know which of both is right.
"""

from __future__ import annotations

import hashlib
import marshal
import sqlite3
from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celedger.ledger import checksums
from celedger.ledger.archive import current
from celedger.ledger.checksums import COLUMNS, NAMES, PARTS, Union


class Contents(Union):
    """The facts of one ledger, by a hash of what each contains."""

    def __init__(self, source: sqlite3.Connection) -> None:
        super().__init__(source, source)

    def carry(self, table: str, row: int) -> int:
        """Return the hash of what names a fact in every ledger: so a reference to it counts."""
        if (table, row) not in self._keys:
            name = self._name(table, row)
            self._keys[table, row] = self.content(table, row) if name is None else _hash(name)
        return self._keys[table, row]

    def content(self, table: str, row: int) -> int:
        """Return the hash of all that a fact holds."""
        queries = {table: f"SELECT {COLUMNS[table]} FROM {table} WHERE rowid = ?"}
        rows = [
            sorted(map(repr, self._rows(part, sql, row)[1]))
            for part, sql in (queries | PARTS.get(table, {})).items()
        ]
        if COLUMNS[table].startswith("id, "):
            rows[0] = [line.partition(", ")[2] for line in rows[0]]
        return _hash(rows)

    def by_name(self, equal: Collection[tuple[str, int]]) -> dict[object, tuple[int, str]]:
        """Return the hash of each complete fact, and its name for a person. Facts without a name
        have their hash for one. Those with a name that are `equal` are left out."""
        facts: dict[object, tuple[int, str]] = {}
        for table, row in checksums.facts(self._source, ()):
            # The archive may lack the epochs of a trial that has not ended, and parents that a
            # shallow clone did not know.
            is_named = len(NAMES.get(table, ())) == 1
            if self._is_complete(table, row) and not (is_named and (table, row) in equal):
                content = self.content(table, row)
                key = self._name(table, row) or (table, content)
                facts[key] = content, checksums.described(self._source, table, row)
        return facts

    def _name(self, table: str, row: int) -> tuple[object, ...] | None:
        names = NAMES.get(table, ())
        if len(names) != 1 or table == "closures":
            return None
        sql = f"SELECT {names[0]} FROM {table} WHERE rowid = ?"
        return (table, *self._source.execute(sql, (row,)).fetchone())


def _hash(value: Any) -> int:
    return int.from_bytes(hashlib.sha256(marshal.dumps(value, 2)).digest()[:8], "big")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Facts of an archive, by their names: those that the ledger has otherwise, and lacks."""

    otherwise: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)


def compare(ledger: Path, archive: Path) -> Comparison:
    """Compare what the archive holds with the ledger. Both must be sound."""
    with closing(current(ledger)) as one, closing(current(archive)) as other:
        # Equal keys and checksums: most facts of an archive, which follows its ledger.
        equal = {
            fact
            for fact, _ in checksums.checksums(one).items() & checksums.checksums(other).items()
        }
        here, there = Contents(one).by_name(equal), Contents(other).by_name(equal)
    result = Comparison()
    for key, (digest, name) in there.items():
        if key not in here:
            result.lacking.append(name)
        elif here[key][0] != digest:
            result.otherwise.append(name)
    return result
