"""The metadata fits the schema, its queries answer, and Datasette shows them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from scripted import scripted

from celedger.page.formats import datasette_metadata


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    project = scripted(tmp_path / "project")
    shas = project.history([1.0, 1.0, 1.0, 1.5])
    project.run("run", f"{shas[0]}..{shas[2]}")
    project.run("check", "HEAD")
    project.run("bisect", f"{shas[0]}..{shas[3]}", "--metric", "val_loss")
    return project.root / "ledger.db"


def described(path: Path) -> dict[str, Any]:
    return json.loads(datasette_metadata(path.stem))["databases"][path.stem]


def test_every_table_and_column_is_there_and_every_query_answers(ledger: Path) -> None:
    about = described(ledger)
    with closing(sqlite3.connect(ledger)) as connection:
        kinds = dict(connection.execute("SELECT name, type FROM sqlite_master"))
        assert {n for n, kind in kinds.items() if kind in ("table", "view")} == set(about["tables"])
        for name, table in about["tables"].items():
            assert table.get("hidden", False) == (kinds[name] == "table")
            columns = {row[1] for row in connection.execute(f"PRAGMA table_info({name})")}
            assert set(table.get("columns", ())) <= columns, name
        answers = {
            name: connection.execute(query["sql"]).fetchall()
            for name, query in about["queries"].items()
        }
    assert [name for name, rows in answers.items() if not rows] == ["findings_of_diagnoses"]
    (row,) = answers["what_regressed"]
    assert row[2:7] == ("metric", "open", "tiny", "fit", "val_loss")
    assert row[8].startswith("level 1.5")
    assert row[10] == pytest.approx(0.5, abs=0.05)
    assert answers["first_bad_commits"][0][5].startswith("level 1.5")


@pytest.mark.matrix
def test_datasette_shows_the_views_and_the_queries(ledger: Path) -> None:
    app = pytest.importorskip("datasette.app")
    served = app.Datasette([str(ledger)], metadata=json.loads(datasette_metadata(ledger.stem)))

    async def get(path: str) -> Any:
        response = await served.client.get(path)
        assert response.status_code == 200, response.text
        return response

    async def ask() -> None:
        page = (await get("/ledger.json")).json()
        visible = {t["name"] for t in page["tables"] if not t["hidden"]}
        assert visible == set()
        assert {v["name"] for v in page["views"]} == {
            "incidents", "latest", "drift", "epoch_metrics", "metric_definitions"
        }  # fmt: skip
        for name, query in described(ledger)["queries"].items():
            assert query["title"] in (await get(f"/ledger/{name}")).text
        assert "own unit" in (await get("/ledger/latest")).text

    asyncio.run(ask())
