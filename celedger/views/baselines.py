"""`celedger baseline show`: what people pinned, accepted, dismissed and declared void."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from celedger.base.model import BY_ID, ENVIRONMENTS, BaselineRecord
from celedger.views.document import Document, pick
from celedger.views.format import iso_date, plain, short
from celedger.views.tables import Column, table

_COLUMNS = (
    Column("act"), Column("commit"), Column("of"), Column("date"),
    Column("who", shrink=True), Column("why", wrap=True),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class BaselineList(Document):
    """What people declared, the oldest first."""

    records: Sequence[BaselineRecord]

    def text(self, width: int = 100) -> str:
        if not self.records:
            return "nothing is pinned, accepted, dismissed or void"
        rows = [
            (r.act.value, short(r.commit), subject(r), iso_date(r.at), plain(r.who), plain(r.why))
            for r in self.records
        ]
        return table(_COLUMNS, rows, width=width)

    def json(self) -> dict[str, object]:
        names = "act commit suite task metric who why at"
        return {"baselines": [{"id": r.ulid, **pick(r, names)} for r in self.records]}


def subject(record: BaselineRecord) -> str:
    """Return what an act is about: `core/mlp/val_loss`, an incident, a trial, environments."""
    if record.metric == ENVIRONMENTS:
        return "/".join(filter(None, (record.suite, record.task, "environments")))
    if record.metric.startswith(BY_ID):
        return record.metric.removeprefix(BY_ID)
    return "/".join(filter(None, (record.suite, record.task, record.metric)))
