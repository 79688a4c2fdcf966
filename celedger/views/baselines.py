"""Who pinned and accepted what, as text and JSON."""

from __future__ import annotations

from celedger.ledger.read import Reader
from celedger.views import export
from celedger.views.format import iso_date, plain, short
from celedger.views.tables import Column, table

_COLUMNS = (
    Column("act"),
    Column("commit"),
    Column("of"),
    Column("date"),
    Column("who", shrink=True),
    Column("why", shrink=True),
)


def baselines_text(ledger: Reader, *, width: int = 100) -> str:
    """The oldest first."""
    rows = [
        (
            record.act.value,
            short(record.commit),
            "/".join(filter(None, (record.suite, record.task, record.metric))),
            iso_date(record.at),
            plain(record.who),
            plain(record.why),
        )
        for record in ledger.baselines()
    ]
    if not rows:
        return "no baseline is pinned, no change accepted: commits are held to their ancestors"
    return table(_COLUMNS, rows, width=width)


def baselines_json(ledger: Reader) -> dict[str, export.Json]:
    """Every record, with full hashes."""
    return export.document(
        baselines=[
            {
                "id": r.ulid, "act": r.act.value, "commit": r.commit, "suite": r.suite,
                "task": r.task, "metric": r.metric, "who": r.who, "why": r.why, "at": r.at,
            }
            for r in ledger.baselines()
        ],
    )  # fmt: skip
