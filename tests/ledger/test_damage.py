"""What is not as celedger wrote it is told when the ledger is opened, or when it is read."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conftest import matrix_after

from celedger.base.errors import LedgerDamaged, LedgerError
from celedger.ledger import Ledger, opening
from celedger.ledger import checksums as ledger_facts

PAGE = 4096
OLD_LEDGERS = Path(__file__).parents[1] / "ledgers"


@pytest.fixture
def filled(ledger: Ledger, facts: Any) -> Ledger:
    facts.fill(ledger)
    ledger.close()
    return ledger


def test_nothing_is_wrong_with_what_celedger_wrote(filled: Ledger) -> None:
    with Ledger.open(filled.path, readonly=True) as ledger:
        assert ledger.damage() == []


def flip(data: bytearray, chance: random.Random) -> None:
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def flip_in_head(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data) // PAGE) * PAGE + chance.randrange(24)
    data[at] ^= 1 << chance.randrange(8)


def garbage(data: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(data) - 16)
    data[at : at + 16] = chance.randbytes(16)


def zeros(data: bytearray, chance: random.Random) -> None:
    page = chance.randrange(len(data) // PAGE) * PAGE
    data[page : page + PAGE] = bytes(PAGE)


def cut_short(data: bytearray, chance: random.Random) -> None:
    del data[chance.randrange(len(data)) :]


@pytest.mark.parametrize("stamped", [True, False], ids=["with its stamp", "copied without it"])
@pytest.mark.parametrize("damage", matrix_after(2, [flip, cut_short, flip_in_head, garbage, zeros]))
def test_a_damaged_ledger_is_refused_or_answers_as_before(
    filled: Ledger, facts: Any, damage: Callable[[bytearray, random.Random], None], stamped: bool
) -> None:
    path, chance = filled.path, random.Random(f"{damage.__name__} 7")
    good, stamp = path.read_bytes(), path.parent / ".celedger" / "ledger.db.stamp"
    good_stamp = stamp.read_bytes()
    with Ledger.open(path, readonly=True) as ledger:
        expected = facts.answers(ledger)
    refused = 0
    for _ in range(6):
        data = bytearray(good)
        damage(data, chance)
        path.write_bytes(data)
        stamp.write_bytes(good_stamp)
        if not stamped:
            stamp.unlink()
        try:
            with Ledger.open(path, readonly=True) as ledger:
                assert facts.answers(ledger) == expected
        except LedgerError as error:
            refused += 1
            assert str(error).isprintable()
    assert refused


@pytest.mark.parametrize(
    ("table", "change", "name"),
    [
        ("points", "value = 0.75 WHERE trial = 1 AND epoch = 3 AND metric = 1", "trial 01"),
        ("summaries", "value = 0.75 WHERE trial = 1", "trial 01"),
        ("outcomes", "kind = 'oom' WHERE trial = 1", "trial 01"),
        ("steps", "series = x'0000000000000000' WHERE trial = 1 AND epoch = 3", "trial 01"),
        ("commits", "subject = 'no' WHERE id = 2", "commit 0000000000"),
        ("parents", "place = 1 WHERE revision = 2", "commit 0000000000"),
        ("environments", "details = '{}'", "row 1 of environments"),
        ("definitions", "floor = 0.5", "row 1 of definitions"),
        ("verdicts", "kind = 'regressed' WHERE id = 1", "row 1 of verdicts"),
        ("baselines", "why = ''", "row 1 of baselines"),
    ],
)
def test_a_row_that_another_program_changed_is_named(
    filled: Ledger, table: str, change: str, name: str
) -> None:
    with closing(sqlite3.connect(filled.path, isolation_level=None)) as person:
        person.execute(f"DROP TRIGGER {table}_never_changed")
        person.execute(f"UPDATE {table} SET {change}")
    for how in ({}, {"readonly": True}):
        with pytest.raises(LedgerDamaged, match=name) as raised:
            Ledger.open(filled.path, **how)
        assert "celedger doctor" in raised.value.hint


def test_a_row_that_another_program_deleted_is_missed(filled: Ledger) -> None:
    with closing(sqlite3.connect(filled.path, isolation_level=None)) as person:
        person.execute("DROP TRIGGER points_never_deleted")
        person.execute("DELETE FROM points WHERE trial = 2 AND epoch = 59")
    with pytest.raises(LedgerDamaged, match="trial 01"):
        Ledger.open(filled.path)


def test_replace_of_a_client_without_recursive_triggers_is_noticed(filled: Ledger) -> None:
    with closing(sqlite3.connect(filled.path, isolation_level=None)) as person:
        person.execute("INSERT OR REPLACE INTO summaries VALUES (1, 1, 1, 9.5, 1)")  # none fires
    with pytest.raises(LedgerDamaged, match="trial 01"):
        Ledger.open(filled.path)


def test_the_version_in_the_header_does_not_change_by_itself(filled: Ledger) -> None:
    for version in (0, 1, 2):
        with closing(sqlite3.connect(filled.path)) as connection:
            connection.execute(f"PRAGMA user_version = {version}")
        for how in ({}, {"readonly": True}):
            with pytest.raises(LedgerDamaged, match="damaged: the version in its header"):
                Ledger.open(filled.path, **how)


def test_another_program_may_checkpoint_and_vacuum(filled: Ledger, facts: Any) -> None:
    expected = facts.answers(Ledger.open(filled.path, readonly=True))
    with closing(sqlite3.connect(filled.path, isolation_level=None)) as person:
        person.execute("CREATE INDEX mine ON points (value)")
        person.execute("VACUUM")
    for _ in range(2):
        with Ledger.open(filled.path, readonly=True) as ledger:
            assert facts.answers(ledger) == expected


def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_facts, "damage", lambda _: pytest.fail("its rows were checked"))


@pytest.mark.parametrize("network", [False, True])
def test_rows_are_not_checked_after_celedger_wrote_last(
    tmp_path: Path, facts: Any, monkeypatch: pytest.MonkeyPatch, network: bool
) -> None:
    monkeypatch.setattr(opening, "on_network", lambda *_: network)
    path = tmp_path / "ledger.db"
    with Ledger.open(path, create=True) as ledger:
        facts.fill(ledger)
        assert ledger._rows("PRAGMA journal_mode") == [("delete" if network else "wal",)]
    unchecked(monkeypatch)
    Ledger.open(path, readonly=True).close()


def test_the_last_to_close_may_be_a_reader(
    ledger: Ledger, facts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts.fill(ledger)
    reader = Ledger.open(ledger.path, readonly=True)
    ledger.close()
    reader.close()
    unchecked(monkeypatch)
    Ledger.open(ledger.path, readonly=True).close()


def test_a_checkpoint_without_its_stamp_costs_one_check_of_the_rows(
    filled: Ledger, facts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = filled.path
    stamp = path.parent / ".celedger" / "ledger.db.stamp"
    before = stamp.read_bytes()
    with Ledger.open(path) as ledger:
        facts.finished(ledger, 1.0, commit=facts.commit(50))
    stamp.write_bytes(before)
    with Ledger.open(path, readonly=True) as ledger:
        assert ledger.damage() == []
    unchecked(monkeypatch)
    Ledger.open(path, readonly=True).close()


def test_what_is_damaged_gets_no_checksum(tmp_path: Path) -> None:
    path = shutil.copy(OLD_LEDGERS / "schema-2.db", tmp_path / "old.db")
    with closing(sqlite3.connect(path)) as then:
        then.executemany(
            "INSERT INTO commits VALUES (?, ?, 't', 'a', 1, 1, 's')",
            [(i, f"{i:040}") for i in range(100, 600)],
        )
        then.commit()
        (root,) = then.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'sqlite_autoindex_commits_1'"
        ).fetchone()
    data = bytearray(path.read_bytes())
    at = (root - 1) * PAGE + 3
    data[at + 1] ^= 1  # one child more or less
    path.write_bytes(data)
    shutil.copy(path, tmp_path / "kept")
    with pytest.raises(LedgerDamaged):
        Ledger.open(path)
    assert path.read_bytes() == (tmp_path / "kept").read_bytes()


def test_the_parents_of_a_commit_may_come_later(ledger: Ledger, facts: Any) -> None:
    """A shallow clone does not know them."""
    parent = facts.commit(1)
    whole, shallow = facts.commit(2, parent), facts.commit(2)
    ledger.record_commits([shallow])
    ledger.record_commits([whole])
    ledger.record_commits([shallow])
    assert ledger.commits() == [whole]
    assert ledger.damage() == []


def test_an_epoch_after_the_outcome_comes_too_late(ledger: Ledger, facts: Any) -> None:
    trial = facts.finished(ledger, 1.0)
    assert ledger.append(trial.ulid, 7, {"loss": 2.0}) == ()
    assert ledger.series(trial.ulid) == {"loss": [(0, 1.0)]}
    assert ledger.damage() == []


def test_a_check_of_the_rows_sees_one_state_while_others_write(
    ledger: Ledger, facts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = facts.commit(1)
    ledger.record_commits([facts.commit(2)])
    whole = ledger_facts.checksum

    def meanwhile(connection: sqlite3.Connection, table: str, row: int, version: int) -> int:
        monkeypatch.setattr(ledger_facts, "checksum", whole)
        with Ledger.open(ledger.path) as writer:
            writer.record_commits([facts.commit(2, parent)])  # the commit gets another checksum
        return whole(connection, table, row, version)

    monkeypatch.setattr(ledger_facts, "checksum", meanwhile)
    assert list(ledger_facts.damage(ledger._connection)) == []
