"""Whatever lies where the ledger should be, there is one clear sentence and nothing is lost."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlite_utils import Database, Migrations

from celedger.base.errors import LedgerError
from celedger.ledger import Ledger, opening, schema

FORK = multiprocessing.get_context("fork")


def files(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def test_a_new_ledger_is_one_file_in_wal_mode_that_says_whose_it_is(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        assert ledger.folder == tmp_path
        assert ledger._rows("PRAGMA journal_mode") == [("wal",)]
        assert ledger._rows("PRAGMA synchronous") == [(2,)]
        assert ledger._rows("PRAGMA foreign_keys") == [(1,)]
        assert ledger._rows("PRAGMA wal_autocheckpoint") == [(opening.CHECKPOINT_PAGES,)]
        assert ledger._rows("PRAGMA user_version") == [(TODAY,)]
        assert ledger._rows("PRAGMA application_id") == [(schema.APPLICATION_ID,)]
        assert ledger._rows("PRAGMA integrity_check") == [("ok",)]
        strict = ledger._rows("SELECT name, strict FROM pragma_table_list WHERE type = 'table'")
        assert all(s for name, s in strict if not name.startswith(("sqlite_", "_sqlite_")))
    assert files(tmp_path) == {"ledger.db", ".celedger"}


def test_opening_again_changes_no_byte(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Ledger.open(path, create=True).close()
    before = path.read_bytes()
    Ledger.open(path, create=True).close()
    Ledger.open(path).close()
    Ledger.open(path, readonly=True).close()
    assert path.read_bytes() == before
    assert files(tmp_path) == {"ledger.db", ".celedger"}


def text(path: Path) -> None:
    path.write_text("epoch,loss\n1,0.5\n" * 100)


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE notes (text)")


def newer(path: Path) -> None:
    Ledger.open(path, create=True).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")


def cut_short(path: Path) -> None:
    Ledger.open(path, create=True).close()
    os.truncate(path, path.stat().st_size // 2)


def overwritten(path: Path) -> None:
    Ledger.open(path, create=True).close()
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 3000)


@pytest.mark.parametrize("how", [{}, {"readonly": True}], ids=["writing", "reading"])
@pytest.mark.parametrize(
    ("put", "sentence"),
    [
        (lambda path: None, "there is no ledger at"),
        (Path.mkdir, "is a folder"),
        (Path.touch, "is empty"),
        (text, "is not an SQLite file"),
        (lambda path: path.write_bytes(b"x"), "is not an SQLite file"),
        (foreign, "not a ledger of celedger"),
        (newer, "newer celedger"),
        (cut_short, "damaged"),
        (overwritten, "damaged"),
    ],
)  # fmt: skip
def test_what_is_no_ledger_is_refused_in_one_sentence_and_left_alone(
    tmp_path: Path, put: Callable[[Path], object], sentence: str, how: dict[str, bool]
) -> None:
    path = tmp_path / "ledger.db"
    put(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(LedgerError, match=sentence) as raised:
        Ledger.open(path, **how)
    assert str(path) in raised.value.cause
    assert "\n" not in str(raised.value)
    assert raised.value.hint
    assert (path.read_bytes() if path.is_file() else None) == before
    if before:
        with pytest.raises(LedgerError, match=sentence):
            Ledger.open(path, create=True)
        assert path.read_bytes() == before


def test_an_empty_file_becomes_a_ledger_when_one_is_to_be_made(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").touch()
    with Ledger.open(tmp_path / "ledger.db", create=True) as ledger:
        assert ledger.trials() == []


def test_a_ledger_cannot_be_made_where_there_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="is not a folder"):
        Ledger.open(tmp_path / "absent" / "ledger.db", create=True)


def test_damage_deep_in_the_file_is_told_when_it_is_opened(tmp_path: Path, facts: Any) -> None:
    path = tmp_path / "ledger.db"
    with Ledger.open(path, create=True) as ledger:
        ledger.record_commits([facts.commit(n, subject="x" * 200) for n in range(500)])
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xff" * (size // 2))
    with pytest.raises(LedgerError, match="damaged") as raised:
        Ledger.open(path)
    assert "celedger doctor" in raised.value.hint


def test_a_wal_left_by_a_deleted_ledger_does_not_reach_the_new_one(
    tmp_path: Path, facts: Any
) -> None:
    path = tmp_path / "ledger.db"
    ledger = Ledger.open(path, create=True)
    ledger.record_commits([facts.commit(1)])
    shutil.copy(tmp_path / "ledger.db-wal", tmp_path / "kept")
    ledger.close()
    path.unlink()
    shutil.copy(tmp_path / "kept", tmp_path / "ledger.db-wal")
    with Ledger.open(path, create=True) as new:  # SQLite removes the -wal of what has no page
        assert new.commits() == []
        assert new._rows("PRAGMA integrity_check") == [("ok",)]


@pytest.mark.parametrize("name", ["a b.db", "-x'\"?#%20.db", "zeile\nzwei.db", "é\udcff.db"])
def test_any_file_name_will_do(tmp_path: Path, facts: Any, name: str) -> None:
    for _ in range(2):
        with Ledger.open(tmp_path / name, create=True) as ledger:
            ledger.record_commits([facts.commit(1)])
            assert len(ledger.commits()) == 1
    assert files(tmp_path) == {name, ".celedger"}


TODAY = schema.version()
LATER = f"{TODAY + 1}_later"


@pytest.fixture
def tomorrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Today's migrations and one to come."""

    def later(db: Database) -> None:
        db.conn.execute("CREATE TABLE later (id INTEGER PRIMARY KEY) STRICT")

    monkeypatch.setattr(schema, "MIGRATIONS", {**schema.MIGRATIONS, LATER: later})


def test_tools_of_sqlite_utils_know_its_migrations(ledger: Ledger) -> None:
    with closing(sqlite3.connect(ledger.path)) as connection:
        applied = Migrations("celedger").applied(Database(connection))
    assert [each.name for each in applied] == list(schema.MIGRATIONS)


@pytest.mark.parametrize("readonly", [False, True])
def test_an_older_ledger_is_migrated_and_a_copy_kept(
    ledger: Ledger, facts: Any, readonly: bool, request: pytest.FixtureRequest
) -> None:
    ledger.record_commits([facts.commit(1)])
    ledger.close()
    request.getfixturevalue("tomorrow")
    with Ledger.open(ledger.path, readonly=readonly) as migrated:
        assert migrated._rows("SELECT count(*) FROM later") == [(0,)]
        assert migrated.commits() == [facts.commit(1)]
        assert migrated._rows("PRAGMA user_version") == [(TODAY + 1,)]
        done = migrated._rows("SELECT name FROM _sqlite_migrations ORDER BY id")
        assert done == [(name,) for name in schema.MIGRATIONS]
    copy = f"ledger.db.before-{TODAY + 1}"
    assert files(ledger.folder) == {"ledger.db", copy, ".celedger"}
    with closing(sqlite3.connect(ledger.folder / copy)) as kept:
        assert kept.execute("PRAGMA user_version").fetchone() == (TODAY,)
        assert kept.execute("SELECT count(*) FROM commits").fetchone() == (1,)


def test_a_migration_that_fails_leaves_the_ledger_as_it_was(
    ledger: Ledger, facts: Any, tomorrow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.record_commits([facts.commit(1)])
    ledger.close()
    whole = schema.migrate

    def killed(connection: sqlite3.Connection) -> None:
        def stop(statement: str) -> None:
            if "later" in statement:
                connection.interrupt()

        connection.set_trace_callback(stop)
        whole(connection)

    monkeypatch.setattr(schema, "migrate", killed)
    with pytest.raises(KeyboardInterrupt):  # what else interrupts SQLite
        Ledger.open(ledger.path)
    monkeypatch.setattr(schema, "migrate", whole)
    monkeypatch.delitem(schema.MIGRATIONS, LATER)
    with Ledger.open(ledger.path) as same:
        assert same.commits() == [facts.commit(1)]


def open_here(path: Path, gate: Any) -> None:
    gate.wait()
    Ledger.open(path).close()


def test_processes_that_start_at_once_migrate_once(ledger: Ledger, tomorrow: None) -> None:
    ledger.close()
    gate = FORK.Barrier(8)
    all_of_them = [FORK.Process(target=open_here, args=(ledger.path, gate)) for _ in range(8)]
    for one in all_of_them:
        one.start()
    for one in all_of_them:
        one.join()
    assert [one.exitcode for one in all_of_them] == [0] * 8
    with Ledger.open(ledger.path) as migrated:
        done = migrated._rows("SELECT count(*) FROM _sqlite_migrations")
        assert done == [(len(schema.MIGRATIONS),)]


def mounted(monkeypatch: pytest.MonkeyPatch, mounts: list[tuple[str, str]]) -> None:
    table = [SimpleNamespace(mountpoint=point, fstype=kind) for point, kind in mounts]
    monkeypatch.setattr("psutil.disk_partitions", lambda **_: table)


def test_a_network_file_system_is_recognised_by_the_deepest_mount(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mounts = [
        ("/", "ext4"), ("/home", "nfs4"), ("/home/me/fast", "tmpfs"), ("/mnt/with space", "cifs"),
        ("/home/me/far", "fuse.sshfs"),
    ]  # fmt: skip
    mounted(monkeypatch, mounts)
    remote = ["/home/me/l.db", "/mnt/with space/l.db", "/home/me/far/l.db", "/home/me/fastest/l.db"]
    local = ["/srv/l.db", "/home/me/fast/l.db", "/homework/l.db", "/mnt/with/l.db"]
    assert all(opening.on_network(Path(path)) for path in remote)
    assert not any(opening.on_network(Path(path)) for path in local)


def test_there_is_no_wal_on_a_network_file_system(
    tmp_path: Path, facts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ledger.open(tmp_path / "moved.db", create=True).close()  # a local ledger that moves there
    mounted(monkeypatch, [("/", "nfs4")])
    for name in ("new.db", "moved.db"):
        with Ledger.open(tmp_path / name, create=True) as ledger:
            assert ledger._rows("PRAGMA journal_mode") == [("delete",)]
            ledger.record_commits([facts.commit(1)])
            assert "new.db-wal" not in files(tmp_path)
    monkeypatch.undo()
    with Ledger.open(tmp_path / "new.db") as ledger:  # and back
        assert ledger._rows("PRAGMA journal_mode") == [("wal",)]
        assert len(ledger.commits()) == 1


def test_a_full_disk_is_said_and_leaves_what_was_there(ledger: Ledger, facts: Any) -> None:
    trial = facts.trial(ledger)
    ledger.append(trial.ulid, 0, {"loss": 1.0})
    ((pages,),) = ledger._rows("PRAGMA page_count")
    ledger._rows(f"PRAGMA max_page_count = {pages}")  # SQLite's own way to a full disk
    with pytest.raises(LedgerError, match=r"disk .* is full") as raised:
        for epoch in range(1, 2000):
            ledger.append(trial.ulid, epoch, {f"m{epoch}": 0.5})
    assert str(ledger.path) in raised.value.cause
    assert "journal" in raised.value.hint
    assert ledger.series(trial.ulid)["loss"] == [(0, 1.0)]
    ledger._rows("PRAGMA max_page_count = 1000000")
    ledger.append(trial.ulid, 5000, {"loss": 2.0})
    assert ledger.series(trial.ulid)["loss"] == [(0, 1.0), (5000, 2.0)]


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """A folder that another user can reach, as pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="celedger-test-"))
    folder.chmod(0o777)
    try:
        yield folder
    finally:
        folder.chmod(0o777)
        shutil.rmtree(folder)


def as_nobody(function: Callable[[], object]) -> str:
    """What a process without privileges, for which modes count, answers."""
    ours, theirs = FORK.Pipe()

    def body() -> None:
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        try:
            theirs.send(str(function()))
        except LedgerError as error:
            theirs.send(str(error))

    process = FORK.Process(target=body)
    process.start()
    answer: str = ours.recv() if ours.poll(20) else "no answer"
    process.join()
    return answer


def count_commits(path: Path) -> str:
    with Ledger.open(path, readonly=True) as ledger:
        return f"{len(ledger.commits())} commits"


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o444, 0o777), (0o444, 0o555),
                                                        (0o666, 0o555)])  # fmt: skip
def test_a_ledger_that_cannot_be_written_can_be_read(
    open_to_all: Path, facts: Any, file_mode: int, folder_mode: int
) -> None:
    path = open_to_all / "ledger.db"
    with Ledger.open(path, create=True) as ledger:
        ledger.record_commits([facts.commit(1)])
    path.chmod(file_mode)
    open_to_all.chmod(folder_mode)
    before = path.read_bytes()
    assert as_nobody(lambda: count_commits(path)) == "1 commits"
    assert "read-only" in as_nobody(lambda: Ledger.open(path))
    assert path.read_bytes() == before
    assert stat.S_IMODE(path.stat().st_mode) == file_mode


def test_a_read_only_folder_with_unfinished_business_is_not_read_wrongly(
    open_to_all: Path, facts: Any
) -> None:
    path = open_to_all / "ledger.db"
    ledger = Ledger.open(path, create=True)
    ledger.record_commits([facts.commit(1)])  # is in the -wal only
    copy = open_to_all / "copy"
    copy.mkdir()
    for name in ("ledger.db", "ledger.db-wal"):
        shutil.copy(open_to_all / name, copy / name)
    ledger.close()
    copy.chmod(0o555)
    assert "not closed properly" in as_nobody(lambda: count_commits(copy / "ledger.db"))


def test_a_ledger_that_may_not_be_read_or_made_is_refused(open_to_all: Path) -> None:
    path = open_to_all / "ledger.db"
    Ledger.open(path, create=True).close()
    path.chmod(0)
    assert "permission denied" in as_nobody(lambda: count_commits(path))
    shutil.rmtree(open_to_all / ".celedger")
    open_to_all.chmod(0o555)
    assert "cannot be written to" in as_nobody(
        lambda: Ledger.open(open_to_all / "other.db", create=True)
    )


def test_a_program_without_numpy_writes_a_ledger(tmp_path: Path) -> None:
    program = f"""
import sys
from pathlib import Path
from celedger.ledger import Ledger, opening
opening.import_sqlite_utils()
Ledger.open(Path({str(tmp_path / "ledger.db")!r}), create=True).close()
assert "sqlite_utils" in sys.modules and not {{"numpy", "pandas"}} & sys.modules.keys()
import numpy
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_nothing_but_a_new_schema_needs_sqlite_utils(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Ledger.open(path, create=True).close()
    program = f"""
import sys
from pathlib import Path
from celedger.base.model import Commit
from celedger.ledger import Ledger
with Ledger.open(Path({str(path)!r})) as ledger:
    ledger.record_commits([Commit("a" * 40, "b" * 40, (), "Ada", 1, 1, "first")])
assert "sqlite_utils" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    with Ledger.open(path) as ledger:
        assert [commit.subject for commit in ledger.commits()] == ["first"]


def test_a_reader_does_not_switch_the_journal(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Ledger.open(path, create=True).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    before = path.read_bytes()
    with Ledger.open(path, readonly=True) as ledger:
        assert ledger.trials() == []
    assert path.read_bytes() == before
    Ledger.open(path).close()
    with Ledger.open(path, readonly=True) as ledger:
        assert ledger._rows("PRAGMA journal_mode") == [("wal",)]


def test_a_reader_cannot_write(ledger: Ledger, facts: Any) -> None:
    with Ledger.open(ledger.path, readonly=True) as reader:
        with pytest.raises(LedgerError, match="read-only"):
            reader.record_commits([facts.commit(1)])
        ledger.record_commits([facts.commit(1)])
        assert len(reader.commits()) == 1  # and sees what others write meanwhile
