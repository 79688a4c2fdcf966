"""A ledger that is gone, damaged or older than its archive is rebuilt from it, row by row."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from celedger.base.errors import LedgerError, LedgerGone
from celedger.base.model import BaselineAct, BaselineRecord
from celedger.ledger import Ledger, archive, checksums, opening
from celedger.ledger.archive import Archive, restore
from celedger.ledger.checksums import Union


@pytest.fixture
def backup(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "celedger", tmp_path, tmp_path / "ledger.db")


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [line for line in connection.iterdump() if "_sqlite_migrations" not in line]


def lose(path: Path) -> None:
    """As `git clean -xfd` does."""
    for file in path.parent.glob("ledger.db*"):
        file.unlink()
    shutil.rmtree(path.parent / ".celedger")


@pytest.fixture
def filled(tmp_path: Path, backup: Archive, facts: Any) -> Path:
    path = tmp_path / "ledger.db"
    with Ledger.open(path, create=True, archive=backup) as ledger:
        facts.fill(ledger)
    return path


def test_a_ledger_that_is_gone_comes_back_row_by_row(filled: Path, backup: Archive) -> None:
    before = dump(filled)
    lose(filled)
    done = restore(filled, backup)
    assert (done.trials, done.aside, done.lost) == (10, None, ())
    assert dump(filled) == before
    with Ledger.open(filled, archive=backup) as ledger:
        assert ledger.damage() == []
        assert not ledger.lacks_trials()


def test_a_wal_that_a_deleted_ledger_left_does_not_reach_the_restored_one(
    filled: Path, backup: Archive, facts: Any, tmp_path: Path
) -> None:
    before = dump(filled)
    wal, stale = filled.with_name("ledger.db-wal"), tmp_path / "stale"
    with Ledger.open(filled) as ledger:
        facts.finished(ledger, 0.25, commit=facts.commit(60))
        shutil.copy(wal, stale)
    filled.unlink()
    stale.replace(wal)
    assert restore(filled, backup).trials == 10
    assert dump(filled) == before
    with Ledger.open(filled, archive=backup) as ledger:
        assert ledger.damage() == []


def test_a_ledger_that_is_gone_is_not_made_anew(filled: Path, backup: Archive) -> None:
    lose(filled)
    for how in ({"create": True}, {"readonly": True}, {}):
        with pytest.raises(LedgerGone, match="has 10 of its trials") as raised:
            Ledger.open(filled, archive=backup, **how)
        assert "celedger doctor --restore" in raised.value.hint
    assert not filled.exists()
    filled.touch()
    with pytest.raises(LedgerGone):
        Ledger.open(filled, create=True, archive=backup)


def test_a_damaged_ledger_is_put_aside_and_what_the_archive_lacks_is_saved_from_it(
    filled: Path, backup: Archive, facts: Any
) -> None:
    with Ledger.open(filled) as ledger:  # by a celedger that was killed before it archived
        late = facts.finished(ledger, 0.25, commit=facts.commit(60))
        expected = facts.answers(ledger)
    with closing(sqlite3.connect(filled, isolation_level=None)) as person:
        person.execute("DROP TRIGGER points_never_changed")
        person.execute("UPDATE points SET value = 9 WHERE trial = 3 AND epoch = 1 AND metric = 1")
    bad = filled.read_bytes()
    done = restore(filled, backup)
    assert (done.trials, done.lost) == (11, ())
    assert done.aside is not None and done.aside.read_bytes() == bad
    with Ledger.open(filled, archive=backup) as ledger:
        assert facts.answers(ledger) == expected
        assert ledger.trial(late.ulid) is not None
    lose(filled)
    assert restore(filled, backup).trials == 11


def test_an_older_copy_in_its_place_is_told_and_made_whole(
    filled: Path, backup: Archive, facts: Any
) -> None:
    copy = filled.read_bytes()
    with Ledger.open(filled, archive=backup) as ledger:
        facts.finished(ledger, 0.25, commit=facts.commit(60))
        expected = facts.answers(ledger)
    filled.write_bytes(copy)
    for how in ({"readonly": True}, {}, {"readonly": True}, {}):
        with Ledger.open(filled, archive=backup, **how) as ledger:
            assert ledger.lacks_trials()
            assert len(ledger.trials()) == 10
    assert restore(filled, backup).trials == 1
    with Ledger.open(filled, archive=backup) as ledger:
        assert facts.answers(ledger) == expected
        assert not ledger.lacks_trials()


@pytest.mark.parametrize("moment", ["before", "half"])
def test_a_kill_while_a_fact_is_archived_loses_nothing(
    filled: Path, backup: Archive, facts: Any, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    class Killed(BaseException):
        pass

    whole = Union.add

    def add(self: Union, table: str, row: int) -> int:
        if moment == "half" and table != "trials":
            return whole(self, table, row)
        raise Killed

    with Ledger.open(filled, archive=backup) as ledger, monkeypatch.context() as patch:
        trial = facts.trial(ledger, commit=facts.commit(60))
        ledger.append(trial.ulid, 0, {"loss": 0.25})
        patch.setattr(Union, "add", add)
        with suppress(Killed):
            ledger.finish_trial(trial.ulid, facts.outcome(), {"loss": 0.25})
        expected = facts.answers(ledger)
    with Ledger.open(filled, archive=backup):
        pass  # whoever comes next adds what lacks
    lose(filled)
    assert restore(filled, backup).lost == ()
    with Ledger.open(filled, archive=backup) as ledger:
        assert facts.answers(ledger) == expected


def test_a_damaged_archive_gives_the_rest_and_is_written_anew(
    filled: Path, backup: Archive, facts: Any
) -> None:
    with Ledger.open(filled, archive=backup) as ledger:
        facts.finished(ledger, 0.25, commit=facts.commit(60))
        expected = facts.answers(ledger)
    with closing(sqlite3.connect(backup.path, isolation_level=None)) as person:
        person.execute("DROP TRIGGER points_never_changed")
        person.execute("UPDATE points SET value = 9 WHERE trial = 3")
    (line,) = archive.damage_of(backup.path)
    assert line.startswith("trial 01")
    assert restore(filled, backup).lost == ()  # the ledger has it
    assert archive.damage_of(backup.path) == []
    lose(filled)
    assert restore(filled, backup).lost == ()
    with Ledger.open(filled, archive=backup) as ledger:
        assert facts.answers(ledger) == expected


def test_a_full_disk_stops_the_writer_and_the_next_one_archives(
    filled: Path, backup: Archive, facts: Any
) -> None:
    with Ledger.open(filled, archive=backup) as ledger:
        facts.finished(ledger, 0.5, commit=facts.commit(59))
        copy = backup._connection
        assert copy is not None
        ((pages,),) = copy.execute("PRAGMA page_count").fetchall()
        copy.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own way to a full disk
        with pytest.raises(LedgerError, match=r"archive.db is full"):
            for number in range(60, 200):
                facts.finished(ledger, 0.25, commit=facts.commit(number, subject="x" * 5000))
        trials = sum(r.outcome is not None for r in ledger.trials())
    Ledger.open(filled, archive=backup).close()
    assert backup.trials() == trials


@pytest.mark.parametrize("way", ["deleted", "renamed", "replaced", "folder renamed"])
def test_a_trial_that_ends_in_a_ledger_that_went_away_is_archived(
    tmp_path: Path, facts: Any, way: str
) -> None:
    home = tmp_path / "data"
    home.mkdir()
    path = home / "ledger.db"
    backup = Archive(tmp_path / "celedger", tmp_path, path)
    other = tmp_path / "other.db"
    Ledger.open(other, create=True).close()
    ledger = Ledger.open(path, create=True, archive=backup)
    trial = facts.trial(ledger)
    ledger.append(trial.ulid, 0, {"loss": 1.0})
    if way == "deleted":
        path.unlink()
    elif way == "folder renamed":
        home.rename(tmp_path / "elsewhere")
    elif way == "renamed":
        path.rename(home / "mine.db")
    else:
        other.replace(path)
    ledger.append(trial.ulid, 1, {"loss": 0.5})  # a training is not stopped for it
    with pytest.raises(LedgerGone, match="disappeared during a write"):
        ledger.finish_trial(trial.ulid, facts.outcome(), {"loss": 0.5})
    with pytest.raises(LedgerGone):
        facts.trial(ledger, commit=facts.commit(2))  # nor is another one begun
    ledger.close()
    for file in home.glob("ledger.db-*"):  # what SQLite left of the one that went
        file.unlink()
    home.mkdir(exist_ok=True)
    assert restore(path, backup).trials == 1
    with Ledger.open(path, archive=backup) as ledger:
        assert ledger.series(trial.ulid) == {"loss": [(0, 1.0), (1, 0.5)]}
        assert [r.ok for r in ledger.trials()] == [True]


def test_two_ledgers_become_one(tmp_path: Path, facts: Any) -> None:
    """What a merge of ledgers needs."""
    one, two = (Ledger.open(tmp_path / n, create=True) for n in ("one.db", "two.db"))
    facts.finished(one, 9.0, commit=facts.commit(50))  # so that keys differ
    trials = facts.fill(two)
    ulids = [r.trial.ulid for r in two.trials()]
    for _ in range(2):
        with one.transaction() as connection:
            assert Union(two._connection, connection).add_all() == []
    assert len(one.trials()) == 1 + len(ulids)
    for ulid in ulids:
        assert repr(one.trial(ulid)) == repr(two.trial(ulid))
        assert repr(one.series(ulid)) == repr(two.series(ulid))
        assert one.fingerprints(ulid) == two.fingerprints(ulid)
        assert one.steps(ulid) == two.steps(ulid)
    asked = {"recipe": trials[0].recipe, "environment": trials[0].environment}
    assert len(one.reusable_trials(**asked)) == len(two.reusable_trials(**asked))
    assert one.damage() == []


def test_what_refers_to_a_damaged_fact_is_left_out(ledger: Ledger, facts: Any) -> None:
    facts.finished(ledger, 1.0)
    with ledger.transaction() as connection:
        connection.execute("DROP TRIGGER environments_never_changed")
        connection.execute("UPDATE environments SET details = '[]'")
    with Ledger.open(ledger.folder / "other.db", create=True) as other:
        with other.transaction() as connection:
            written = checksums.checksums(ledger._connection)
            left_out = Union(ledger._connection, connection, written).add_all()
        assert (left_out, other.trials()) == ([("environments", 1), ("trials", 1)], [])
        assert other.damage() == []


def test_the_cost_of_a_trial_does_not_grow_with_the_ledger(
    filled: Path, backup: Archive, facts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    added: list[str] = []
    whole = Union.add

    def count(self: Union, table: str, row: int) -> int:
        added.append(table)
        return whole(self, table, row)

    monkeypatch.setattr(Union, "add", count)
    with Ledger.open(filled, archive=backup) as ledger:
        assert added == []
        facts.finished(ledger, 0.25, commit=facts.commit(60))
    assert len(added) < 12, "a trial, when it starts and ends, and what it refers to"


@pytest.mark.parametrize("way", ["a baseline", "a trial that runs"])
def test_a_ledger_without_any_trial_that_ended_comes_back_too(
    tmp_path: Path, backup: Archive, facts: Any, way: str
) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(path, create=True, archive=backup) as ledger:
        commit = facts.commit(1)
        ledger.record_commits([commit])
        if way == "a baseline":
            ledger.record_baseline(
                BaselineRecord(
                    f"{3:026}", BaselineAct.PIN, commit.sha, "core", "", "", "A", "", 1.0
                )
            )
        else:
            facts.trial(ledger)
    lose(path)
    with pytest.raises(LedgerGone):
        Ledger.open(path, archive=backup)
    trials = int(way != "a baseline")
    assert restore(path, backup).trials == trials
    with Ledger.open(path, archive=backup) as ledger:
        assert len(ledger.baselines()) == 1 - trials
        assert len(ledger.trials(open_only=True)) == trials


def test_a_damaged_ledger_without_anything_sound_stays_where_it_is(
    tmp_path: Path, backup: Archive
) -> None:
    path = tmp_path / "ledger.db"
    Ledger.open(path, create=True).close()
    path.write_bytes(bytes(path.stat().st_size))
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="nothing can be restored") as raised:
        restore(path, backup)
    assert ".recover" in raised.value.hint
    assert path.read_bytes() == before


def test_two_ledgers_of_one_repository_have_archives_of_their_own(tmp_path: Path) -> None:
    folders = {
        Archive(tmp_path, tmp_path, tmp_path / name).folder.name
        for name in ("ledger.db", "data/ledger.db", "../ledger.db", "x" * 300, "x" * 301)
    }
    assert len(folders) == 5
    assert all("/" not in name and len(name) < 256 for name in folders)


def test_what_the_archive_holds_is_its_owners_alone(filled: Path, backup: Archive) -> None:
    lose(filled)
    restore(filled, backup)
    for path in (backup.folder.parent, backup.folder):
        assert path.stat().st_mode & 0o77 == 0, path


def test_a_kill_while_a_ledger_is_restored_loses_nothing(
    filled: Path, backup: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    before = dump(filled)
    for place, name in ((Union, "add_all"), (opening, "stamp"), (Archive, "copy")):
        lose(filled)
        with monkeypatch.context() as patch:
            patch.setattr(place, name, killed)
            with pytest.raises(Killed):
                restore(filled, backup)
        assert restore(filled, backup).lost == ()
        assert dump(filled) == before
