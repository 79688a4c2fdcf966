"""Ledgers that an enemy made: nothing of them enters, nothing of them runs, and one that is
poisoned already is refused. benchmarks/hostile.py tries the same attacks on the real program."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conftest import load_script, matrix_after

import celedger
from celedger.base.errors import LedgerDamaged, LedgerError
from celedger.base.model import Commit, OutcomeKind
from celedger.ledger import Ledger, opening, schema, validation
from celedger.ledger.archive import Archive, restore

hostile = load_script(Path(__file__).resolve().parents[2] / "benchmarks" / "hostile.py")

SLOW = ("footprint: a bomb of 1 GiB", "derived: a chain of 5000")
ATTACKS = [
    name for name in hostile.ATTACKS if name not in (*hostile.HARMLESS, *hostile.LARGE, *SLOW)
]
ROWS = [name for name in ATTACKS if not name.startswith("schema:")]
# What SQLite's own checks find: such a ledger is refused as damaged, as ever.
FOUND_BY_SQLITE = ("word: an unknown act", "reference: a trial of no commit")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with a row in every table."""
    path = tmp_path_factory.mktemp("honest") / "ledger.db"
    commits = [
        Commit(
            f"{n + 1:040x}", f"{n + 100:040x}", (f"{n:040x}",) * (n > 0), "Ann", n, n, "a change"
        )
        for n in range(6)
    ]
    with Ledger.open(path, create=True) as ledger:
        hostile.fill(ledger, commits, 1)
    return path


@pytest.fixture
def theirs(tmp_path: Path, honest: Path) -> Path:
    (tmp_path / "theirs").mkdir()
    return Path(shutil.copy(honest, tmp_path / "theirs" / "ledger.db"))


def poison(path: Path, name: str) -> None:
    hostile.poison(path, hostile.ATTACKS[name], path.parent)


def merge(path: Path, other: Path) -> dict[str, int]:
    with Ledger.open(path, create=True) as ledger, Ledger.from_elsewhere(other) as source:
        return ledger.merge(source)


def content(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


@pytest.mark.parametrize(
    "name", [*matrix_after(15, ATTACKS), *(pytest.param(n, marks=pytest.mark.matrix) for n in SLOW)]
)
def test_nothing_of_a_hostile_ledger_enters(name: str, ledger: Ledger, theirs: Path) -> None:
    poison(theirs, name)
    before = content(ledger.path)
    with pytest.raises(LedgerError) as refused:
        merge(ledger.path, theirs)
    assert content(ledger.path) == before
    if name in ROWS:
        assert "row " in str(refused.value), refused.value


@pytest.mark.parametrize("name", sorted(hostile.HARMLESS))
def test_an_honest_ledger_with_a_failed_trial_comes(
    name: str, ledger: Ledger, theirs: Path
) -> None:
    poison(theirs, name)
    assert merge(ledger.path, theirs)["trials"] == 38
    with Ledger.open(ledger.path) as ledger:
        assert len(ledger.trials(failed_only=True)) == 3
        assert {m.name for m in ledger.metrics()} == {"val_loss"}
        assert ledger.damage() == []


@pytest.mark.matrix
@pytest.mark.parametrize("name", hostile.LARGE)
def test_a_merge_costs_no_more_than_its_rows(name: str, ledger: Ledger, theirs: Path) -> None:
    poison(theirs, name)
    assert merge(ledger.path, theirs)["trials"] == 3038


@pytest.mark.parametrize(
    "name", matrix_after(12, [name for name in ROWS if name not in FOUND_BY_SQLITE])
)
def test_a_poisoned_ledger_is_refused_with_its_row(name: str, theirs: Path) -> None:
    poison(theirs, name)
    for how in ({"readonly": True}, {}):
        with pytest.raises(LedgerDamaged, match="row ") as raised:
            Ledger.open(theirs, **how)
        assert "celedger doctor" in raised.value.hint
    assert not opening.is_stamped(theirs)


def test_doctor_rebuilds_a_poisoned_ledger_without_the_rows(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "git").mkdir()
    archive = Archive(tmp_path / "git", tmp_path, theirs)
    poison(theirs, "definition: no JSON")
    done = restore(theirs, archive)
    assert done.aside is not None
    with Ledger.open(theirs, archive=archive) as ledger:
        assert ledger.damage() == []
        assert [t.name for t in ledger.tasks()] == ["fit"]
        assert len(ledger.trials()) == 20
        assert not ledger.lacks_trials()


# --- what reading may cost


def test_a_signal_ends_the_reading_of_a_hostile_ledger(
    theirs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_OPCODES", 100)
    looks = iter(range(10))

    def rung() -> bool:
        """As if a signal came while SQLite reads."""
        for _ in looks:
            return False
        raise KeyboardInterrupt

    monkeypatch.setattr(opening, "_go_on", rung)
    with pytest.raises(KeyboardInterrupt), Ledger.from_elsewhere(theirs):
        pass


def test_nothing_is_written_beside_the_other_ledger_or_believed_of_it(
    theirs: Path, tmp_path: Path
) -> None:
    hidden = theirs.parent / ".celedger"
    hidden.mkdir()
    poison(theirs, "definition: no JSON")
    opening.stamp(theirs)  # "celedger wrote this"
    before = sorted(p.name for p in theirs.parent.rglob("*"))
    with pytest.raises(LedgerError, match="row 2 of tasks: its definition is no JSON"):
        merge(tmp_path / "own.db", theirs)
    assert sorted(p.name for p in theirs.parent.rglob("*")) == before


def test_a_journal_beside_another_ledger_is_not_obeyed(theirs: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    hostile.lay("a journal that names a file", theirs, precious)
    with pytest.raises(LedgerError, match="was not closed properly"):
        merge(tmp_path / "own.db", theirs)
    with pytest.raises(LedgerError, match="names another file, which SQLite would delete"):
        Ledger.open(theirs, readonly=True)
    assert precious.read_text() == "precious"


# --- links


@pytest.mark.parametrize("name", ["ledger.db.stamp", "ledger.db.lock", "ledger.db.draft"])
def test_nothing_is_written_through_a_link(name: str, theirs: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (theirs.parent / ".celedger").mkdir()
    (theirs.parent / ".celedger" / name).symlink_to(precious)
    for opened in (celedger.open, Ledger.open):
        with pytest.raises(LedgerError, match="symbolic link, and celedger writes through none"):
            opened(theirs)
    opening.stamp(theirs)
    assert precious.read_text() == "precious"


def test_the_folder_beside_a_ledger_may_be_no_link(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (theirs.parent / ".celedger").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LedgerError, match="symbolic link"):
        Ledger.open(theirs, readonly=True)
    assert list((tmp_path / "elsewhere").iterdir()) == []


# --- the rules


def test_every_column_that_is_no_key_has_a_rule(ledger: Ledger) -> None:
    unread = {("footprints", "code")}
    lacking = set()
    for table in set(schema.TABLES) - {"jobs", "checksums", "_sqlite_migrations"}:
        for _, column, *_ in ledger._rows(f"PRAGMA table_info({table})"):
            known = {"id", *validation.REFERENCES.get(table, ()), *validation.RULES.get(table, ())}
            known |= {"epoch", "value"} if table == "points" else set()  # CONDITIONS
            if column not in known and (table, column) not in unread:
                lacking.add((table, column))
    assert not lacking, "validation.RULES says what these may hold"


def test_json_of_any_depth_is_judged_without_a_crash() -> None:
    rule = validation.RULES["findings"]["document"]
    for depth in matrix_after(3, (10, 100, 100_000)):
        text = '{"a":' + "[" * depth + "]" * depth + "}"  # type: ignore[operator]
        assert rule.allows(text) == (depth == 10)
    assert rule.allows(json.dumps({"a": [{"b": [1, None, "x"]}]}))


def test_a_trial_that_failed_keeps_its_log(ledger: Ledger, facts: Any) -> None:
    facts.finished(ledger, 1.0, OutcomeKind.FAILED)
    assert validation.broken(ledger._connection) == {}


def test_a_trigger_in_a_ledger_of_an_older_schema_does_not_run(theirs: Path) -> None:
    """A migration writes to it."""
    poison(theirs, "schema: an older one, with a trigger")
    with pytest.raises(LedgerDamaged, match="the trigger evil is none of celedger's"):
        Ledger.open(theirs)
