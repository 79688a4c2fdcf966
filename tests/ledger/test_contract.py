"""docs/ledger.md is a contract: it names what the schema has, no more and no less."""

from __future__ import annotations

import re
from pathlib import Path

from celedger.ledger import Ledger, schema

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "ledger.md").read_text()


def section(title: str) -> dict[str, list[str]]:
    """First cell (without its backquotes) -> all cells, of the table below a heading."""
    lines = PAGE.split(f"\n## {title}")[1].split("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines
            if line.startswith("| ")]  # fmt: skip
    return {row[0].strip("`"): row for row in rows[1:]}


def test_the_page_names_every_table(ledger: Ledger) -> None:
    tables = ledger._rows(
        r"SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE '%sqlite\_%' "
        r"ESCAPE '\'"
    )
    assert set(section("Tables")) == {name for (name,) in tables}


def test_the_page_names_every_column_of_every_view(ledger: Ledger) -> None:
    views = section("Views")
    found = {name for (name,) in ledger._rows("SELECT name FROM sqlite_schema WHERE type='view'")}
    assert set(views) == found
    for name, cells in views.items():
        columns = [c for (c,) in ledger._rows(f"SELECT name FROM pragma_table_info('{name}')")]
        said = re.sub(r"\([^)]*\)", "", cells[2]).replace(" ", "").split(",")
        assert said == [column for column in columns if not column.endswith("_id")]


def test_the_page_tells_the_history_up_to_today() -> None:
    assert list(section("Versions")) == [str(n) for n in range(1, schema.version() + 1)]
    assert f"0x{schema.APPLICATION_ID:X}" in PAGE
