"""A ledger of each shipped schema, as the celedger of that time wrote it, is opened, judged and run
on. `make.py` made the files, and knows the repository that they measured."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conftest import git
from ledgers.make import HERE, LEVELS, SHIPPED, history
from scripted import Executor, typed

from celedger.base.model import BaselineAct, Environment, Footprint
from celedger.ledger import Ledger, schema
from celedger.ledger import checksums as rows
from celedger.system import environment


def epochs(model: Mapping[str, Any], seed: int) -> Iterator[Mapping[str, object]]:
    """Report what the script of `make.py` does."""
    for epoch in range(3):
        yield {"epoch": epoch, "val_loss": model["LEVEL"] + 1 / (epoch + 1)}


@pytest.fixture(params=SHIPPED)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A repository with a ledger of an older schema."""
    history(tmp_path / "r")
    return shutil.copy(HERE / f"schema-{request.param}.db", tmp_path / "r" / "ledger.db")


def test_each_shipped_schema_has_a_file() -> None:
    versions = {name.partition("-")[0] for name in SHIPPED}
    assert versions == {str(n) for n in range(1, schema.version())}
    assert {p.stem for p in HERE.glob("*.db")} == {f"schema-{name}" for name in SHIPPED}


def test_an_old_ledger_has_todays_schema_and_all_its_rows(path: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(path)) as old:
        values = old.execute("SELECT * FROM points ORDER BY 1, 2, 3").fetchall()
    with (
        Ledger.open(path) as ledger,
        Ledger.open(tmp_path / "new.db", create=True) as new,
    ):
        assert ledger.damage() == []
        assert ledger._rows("SELECT * FROM points ORDER BY 1, 2, 3") == values
        for commit, record in zip(ledger.commits(), ledger.trials(), strict=True):
            assert (record.ok, record.trial.commit) == (True, commit.sha)
        assert ledger._rows("SELECT count(DISTINCT revision) FROM verdicts") == [(3,)]
        (pin,) = ledger.baselines()
        assert (pin.act, pin.why) == (BaselineAct.PIN, "the release")
        assert all(
            sorted(c[1:3] for c in one._rows(f"PRAGMA table_info({table})"))
            == sorted(c[1:3] for c in new._rows(f"PRAGMA table_info({table})"))
            for one in (ledger, new)
            for table in schema.TABLES
        )
        names = "SELECT name FROM sqlite_schema WHERE name NOT LIKE 'sqlite%' ORDER BY 1"
        assert ledger._rows(names) == new._rows(names)
        assert new.merge(ledger)["trials"] == 3


def test_an_old_ledger_is_judged_and_run_on_without_running_anything_again(path: Path) -> None:
    """An upgrade of celedger makes no environment another one, whatever it recorded of it then."""
    with closing(sqlite3.connect(path)) as old:
        ((details,),) = old.execute("SELECT details FROM environments").fetchall()
    today = {k: v for k, v in json.loads(details).items() if k != "device_uuid"}
    root, executor = path.parent, Executor(epochs)
    with executor.at(root) as patch:
        patch.setattr(environment, "describe", lambda *_, **__: Environment("today", today))
        assert typed(["run", "HEAD"], root).status == 0
        assert executor.ran == []
        drift = json.loads(typed(["drift", "--json"], root).out)
        assert "val_loss" in json.dumps(drift)
        (root / "model.py").write_text(f"LEVEL = {LEVELS[-1]}\n# later\n")
        git(root, "commit", "-q", "-a", "-m", "later")
        assert typed(["run", "HEAD"], root).status == 0
        assert len(executor.ran) == 1
        assert typed(["doctor"], root).status == 0
    with Ledger.open(path) as ledger:
        assert len({record.trial.environment for record in ledger.trials()}) == 1
        last = ledger.trials()[-1]
        ledger.record_footprint(last.trial.ulid, Footprint((b"a.py",)), "around")
        assert ledger.damage() == []


def test_a_column_that_is_added_later_damages_nothing(path: Path) -> None:
    """A checksum covers the columns of the schema that wrote it, and the next one covers more."""
    with Ledger.open(path) as ledger, pytest.MonkeyPatch.context() as patch:
        ledger._connection.execute("ALTER TABLE trials ADD COLUMN later TEXT NOT NULL DEFAULT ''")
        assert ledger.damage() == []
        own, *parts = rows.COVERED[5]["trials"]
        wider = (own.replace("device", "device, later"), *parts)
        patch.setitem(rows.COVERED, 6, {"trials": wider})
        rows.seal(ledger._connection, "trials", 1)
        assert ledger.damage() == []
        ledger._connection.execute("DROP TRIGGER trials_never_changed")
        ledger._connection.execute("UPDATE trials SET later = 'changed'")
        assert len(ledger.damage()) == 1  # of three trials: the others' checksums are older
