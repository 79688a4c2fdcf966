"""`celedger merge`: what came from another ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from celedger.views.document import Document
from celedger.views.format import count


@dataclass(frozen=True, slots=True)
class Merged(Document):
    """`added` is the number of new rows of each table."""

    other: Path
    added: Mapping[str, int]
    dry_run: bool

    def text(self, width: int = 100) -> str:
        parts = [count(n, name[:-1].replace("_", " ")) for name, n in self.added.items() if n]
        if not parts:
            return f"{self.other} has nothing that this ledger lacks"
        return f"{'would add' if self.dry_run else 'added'} {', '.join(parts)} from {self.other}"

    def json(self) -> dict[str, object]:
        return {"other": self.other, "dry_run": self.dry_run, "added": self.added}
