"""What a damaged ledger still holds comes back row by row, and what is lost is named."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from conftest import matrix_after

from celedger.ledger import Ledger, checksums, salvage, schema
from celedger.ledger.archive import Archive, compare, damage_of, restore

PAGE = 4096


@pytest.fixture
def backup(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "celedger", tmp_path, tmp_path / "ledger.db")


@pytest.fixture
def filled(tmp_path: Path, backup: Archive, facts: Any) -> Path:
    path = tmp_path / "ledger.db"
    with Ledger.open(path, create=True, archive=backup) as ledger:
        facts.fill(ledger, commits=7)
    return path


def overwrite(path: Path, pages: list[int], rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for page in pages:
        data[(page - 1) * PAGE : page * PAGE] = rng.randbytes(PAGE)
    path.write_bytes(data)


def pages_of(path: Path, *names: str) -> list[int]:
    """Return the pages of tables and indexes; of the schema, for `sqlite_schema`."""
    pages = salvage._pages(path)
    with closing(sqlite3.connect(path)) as connection:
        roots = dict(connection.execute("SELECT name, rootpage FROM sqlite_schema"))
    numbers = [(roots | {"sqlite_schema": 1})[name] for name in names]
    for number in numbers:  # it grows
        numbers += pages[number].children
    return numbers


def trials_in(path: Path) -> dict[str, str]:
    """Return all that each trial holds, by its ulid."""
    with Ledger.open(path, readonly=True) as ledger:
        return {
            r.trial.ulid: repr((r, ledger.series(r.trial.ulid), ledger.steps(r.trial.ulid)))
            for r in ledger.trials()
        }


def test_every_row_of_a_sound_file_is_read_page_by_page(filled: Path) -> None:
    with closing(sqlite3.connect(filled)) as sound, closing(salvage.readable(filled)) as other:
        for table in schema.TABLES:
            if table not in ("jobs", "_sqlite_migrations"):
                rows = f"SELECT * FROM {table} ORDER BY 1, 2"
                assert other.execute(rows).fetchall() == sound.execute(rows).fetchall(), table
        assert other.execute("SELECT count(*) FROM stand_ins").fetchone() == (0,)


def test_what_a_killed_writer_left_beside_the_file_is_read_too(
    filled: Path, facts: Any, tmp_path: Path
) -> None:
    with Ledger.open(filled) as ledger:
        facts.finished(ledger, 0.25, commit=facts.commit(60))
        for suffix in ("", "-wal"):
            shutil.copy(f"{filled}{suffix}", f"{tmp_path / 'copy.db'}{suffix}")
    overwrite(tmp_path / "copy.db", pages_of(filled, "checksums"), random.Random(1))
    with closing(salvage.readable(tmp_path / "copy.db")) as connection:
        assert connection.execute("SELECT count(*) FROM outcomes").fetchone() == (17,)


@pytest.mark.parametrize(
    "tables",
    [
        ("checksums",), ("sqlite_schema",), ("checksums", "sqlite_schema"),
        ("commits", "tasks", "environments", "metrics", "definitions"),
        ("trials_by_task", "sqlite_autoindex_trials_1"),
    ],
)  # fmt: skip
def test_a_lost_page_takes_no_trial_whose_rows_are_elsewhere(
    filled: Path, backup: Archive, tables: tuple[str, ...]
) -> None:
    """Without an archive. A lost row that trials refer to is stood in for, and named."""
    before = trials_in(filled)
    shutil.rmtree(backup.folder)
    overwrite(filled, pages_of(filled, *tables), random.Random(2))
    done = restore(filled, backup)
    after = trials_in(filled)
    assert after.keys() == before.keys()
    assert damage_of(filled) == []
    if "tasks" in tables:
        assert any("row 1 of tasks" in name for name in done.lost)
    else:
        assert after == before


def test_points_without_their_page_take_only_their_trials_with_them_and_these_are_named(
    filled: Path, backup: Archive
) -> None:
    before = trials_in(filled)
    shutil.rmtree(backup.folder)
    overwrite(filled, pages_of(filled, "points")[-2:], random.Random(3))
    done = restore(filled, backup)
    after = trials_in(filled)
    lost = before.keys() - after.keys()
    assert 0 < len(lost) < len(before)
    assert {f"trial {ulid}" for ulid in lost} == {n for n in done.lost if n.startswith("trial")}
    assert all(after[ulid] == before[ulid] for ulid in after)


@pytest.mark.parametrize("seed", matrix_after(3, range(30)))
def test_a_damaged_ledger_and_a_damaged_archive_give_what_either_holds(
    filled: Path, backup: Archive, seed: int
) -> None:
    rng, before = random.Random(seed), trials_in(filled)
    hit = [1, *pages_of(filled, "sqlite_schema", "checksums")]
    overwrite(filled, rng.sample(hit, 2) + pages_of(filled, "tasks"), rng)
    pages = backup.size // PAGE
    overwrite(backup.path, rng.sample(range(1, pages + 1), 5), rng)
    restore(filled, backup)
    after = trials_in(filled)
    assert after.keys() == before.keys()  # no page that the ledger lost has rows of trials
    assert damage_of(filled) == damage_of(backup.path) == []


@pytest.mark.parametrize("which", ["all", "the newest"])
def test_a_fact_without_its_checksum_is_damage(filled: Path, which: str) -> None:
    with closing(sqlite3.connect(filled, isolation_level=None)) as person:
        for name in ("checksums_never_deleted", "points_never_changed"):
            person.execute(f"DROP TRIGGER {name}")
        person.execute("UPDATE points SET value = 9 WHERE trial = 16 AND metric = 1")
        last = "WHERE id >= (SELECT max(id) FROM checksums WHERE fact = 'trials' AND row = 16)"
        person.execute(f"DELETE FROM checksums {'' if which == 'all' else last}")
    damage = damage_of(filled)
    assert any(line.startswith("trial ") and "no checksum" in line for line in damage)


def test_a_change_with_a_right_checksum_is_seen_beside_the_archive(
    filled: Path, backup: Archive
) -> None:
    assert compare(filled, backup.path) == compare(backup.path, filled)
    with closing(sqlite3.connect(filled, isolation_level=None)) as person:
        person.execute("DROP TRIGGER points_never_changed")
        person.execute("UPDATE points SET value = 9 WHERE trial = 2 AND metric = 1")
        checksums.seal(person, "trials", 2)
        (ulid,) = person.execute("SELECT ulid FROM trials WHERE id = 2").fetchone()
    assert damage_of(filled) == []
    result = compare(filled, backup.path)
    assert f"trial {ulid}" in result.otherwise
    assert result.lacking == []
