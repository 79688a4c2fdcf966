"""`celedger baseline show`: who pinned and accepted what, the oldest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from celedger.model import BaselineRecord
from celedger.views.document import Document, pick
from celedger.views.format import iso_date, plain, short
from celedger.views.tables import Column, table

_COLUMNS = (
    Column("act"), Column("commit"), Column("of"), Column("date"),
    Column("who", shrink=True), Column("why", shrink=True),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BaselineList(Document):
    records: Sequence[BaselineRecord]

    def text(self, width: int = 100) -> str:
        if not self.records:
            return "no baseline is pinned, no change accepted: commits are held to their ancestors"
        rows = [
            (
                r.act.value, short(r.commit), "/".join(filter(None, (r.suite, r.task, r.metric))),
                iso_date(r.at), plain(r.who), plain(r.why),
            )
            for r in self.records
        ]  # fmt: skip
        return table(_COLUMNS, rows, width=width)

    def json(self) -> dict[str, object]:
        names = "act commit suite task metric who why at"
        return {"baselines": [{"id": r.ulid, **pick(r, names)} for r in self.records]}
