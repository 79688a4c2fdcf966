"""Opening the file: what it may be, how it is made, migrated, and opened for reading only.

Lives here: the connection's settings, the lock under which a ledger is made or migrated, the copy
kept before a migration, the check of what is opened, one sentence for each thing that can be wrong
with the file, and SQLite's limits for a file that anybody can have made. It must not know what the
tables hold.

The file is opened through SQLite alone: closing another descriptor of it would drop the POSIX locks
that a connection of this process holds (https://sqlite.org/howtocorrupt.html).
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from celedger.base import files
from celedger.base.errors import LedgerDamaged, LedgerError, RepositoryError, explained
from celedger.base.text import plain
from celedger.ledger import checksums, schema, validation

_ENDS = ("", "-wal", "-shm", "-journal")  # of the names of SQLite's files
_OPCODES = 100_000  # of SQLite between two looks at signals: a millisecond
# What a ledger of ours never needs more of.
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 1 << 28, sqlite3.SQLITE_LIMIT_SQL_LENGTH: 1 << 20,
    sqlite3.SQLITE_LIMIT_COLUMN: 100, sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0, sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 1,
}  # fmt: skip


def limit(connection: sqlite3.Connection) -> None:
    """Limit what reading a file of others can cost. Signals are let in meanwhile."""
    for kind, most in _LIMITS.items():
        connection.setlimit(kind, most)
    if sys.version_info >= (3, 12):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_TRIGGER, False)
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_VIEW, False)
    _let_signals_in(connection)


def _let_signals_in(connection: sqlite3.Connection) -> None:
    """Run the handlers of signals while SQLite reads: one that raises interrupts it."""
    connection.set_progress_handler(_go_on, _OPCODES)


def _go_on() -> bool:
    return False


_Structure = tuple[set[tuple[str, str, int]], set[tuple[str, str, str]]]


def foreign_tables(connection: sqlite3.Connection, *, whole: bool) -> Iterator[str]:
    """Yield what of the tables that celedger reads is none: a view in the place of a table would
    run a program of whoever made the file. `whole` yields, too, what today's schema has and the
    file has otherwise."""
    kinds = {
        str(name).lower(): (kind, root)
        for kind, name, root in connection.execute(
            "SELECT type, name, rootpage FROM sqlite_master WHERE type IN ('table', 'view')"
        )
    }
    expected = _expected() if whole else dict.fromkeys(schema.TABLES)
    for table, structure in expected.items():
        kind, root = kinds.get(table, ("", 0))
        if not whole and not kind:
            continue
        if kind != "table" or not root:
            yield f"{table} is not a table"
            continue
        columns, keys = _structure(connection, table)
        if not all(_COLUMN(name) and not hidden for name, _, hidden in columns):
            yield f"{table} has columns that are none of celedger's"
        elif structure is not None and not (structure[0] <= columns and structure[1] == keys):
            yield f"the columns of {table} are not those of its schema"


_COLUMN = re.compile("[a-z_]+").fullmatch


def _structure(connection: sqlite3.Connection, table: str) -> _Structure:
    columns = connection.execute(f"PRAGMA main.table_xinfo({table})").fetchall()
    keys = connection.execute(f"PRAGMA main.foreign_key_list({table})").fetchall()
    return {(c[1], c[2], c[6]) for c in columns}, {k[2:5] for k in keys}


@lru_cache(maxsize=1)
def _expected() -> dict[str, _Structure]:
    """Return the structure of each table of today's schema."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        schema.migrate(connection)
        tables = [name for name in schema.TABLES if not name.startswith("_")]
        return {table: _structure(connection, table) for table in tables}


def foreign_triggers(connection: sqlite3.Connection) -> list[str]:
    """Return the names of the triggers that do anything but refuse a change."""
    triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
    return [name for name, sql in triggers if not schema.APPEND_ONLY.fullmatch(sql)]


# --- our own files

BUSY_TIMEOUT = 60.0  # seconds that a writer waits for the others
CACHE_KIB = 16_384
CHECKPOINT_PAGES = 10_240  # of -wal; SQLite's default of 1000 doubles the mean cost of an epoch
_SMALLEST_SQLITE = 512  # bytes, its smallest page; anything shorter it takes for a new database
_RULES = 1  # of `validation`: grows where a ledger that was sound may not be
# At the end of a journal that names the journal of a transaction over several files; celedger makes
# none (https://sqlite.org/fileformat2.html#the_rollback_journal).
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
ELSEWHERE = "name another; --ledger FILE, or `ledger` in celedger.toml, says which is yours"

_NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "glusterfs",
    "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "fuse.ceph",
}  # fmt: skip


def open_for_writing(path: Path, *, create: bool, check: bool = True) -> sqlite3.Connection:
    """Return a connection to today's schema, made or migrated when it must be. The rows of a file
    that another program wrote to are checked, unless `check` is False."""
    if create and not size(path):
        _make(path)
    _must_be_a_file(path)
    if not writable(path):
        raise _read_only(path)
    connection = _opened(path, "mode=rw", check=check)
    _set_journal(connection, path)
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Return a connection that cannot write; works on a read-only file or folder too."""
    _must_be_a_file(path)
    if writable(path):  # not "mode=ro": so that the last to close tidies up
        connection = _opened(path, "mode=rw")
        connection.execute("PRAGMA query_only = ON")
        return connection
    if size(Path(f"{path}-wal")):  # its newest rows are there, and leaving them out would lie
        raise LedgerError(
            f"{path} is read-only and was not closed properly, or is in use",
            "copy it with its -wal to a folder that can be written to",
        )
    return _opened(path, "mode=ro&immutable=1")


def open_from_elsewhere(path: Path) -> sqlite3.Connection:
    """Return a connection that cannot write, to a ledger that anybody can have made: none of its
    views and triggers runs, and no note beside it is believed."""
    _must_be_a_file(path)
    if size(Path(f"{path}-journal")):  # SQLite would delete files that it names
        raise LedgerError(
            f"{path} was not closed properly, or is in use",
            f"close it first: `celedger --ledger {shlex.quote(str(path))} log`",
        )
    query = "mode=rw" if writable(path) else "mode=ro"
    query += "&immutable=1" * (query == "mode=ro" and not size(Path(f"{path}-wal")))
    connection = _connect(path, query)
    try:
        connection.execute("PRAGMA query_only = ON")
        limit(connection)
        if _version(connection, path) < schema.version():
            raise LedgerError(
                f"{path} has an older schema",
                f"bring it to today's: `celedger --ledger {shlex.quote(str(path))} log`",
            )
        for line in foreign_tables(connection, whole=True):
            raise damaged(path, line)
        if wrong := _wrong(connection):
            rules = validation.described(connection, validation.broken(connection))
            line = next(rules, wrong[0])
            raise LedgerDamaged(f"{path} is refused: {line}", "nothing of it was merged")
    except BaseException:
        connection.close()
        raise
    return connection


def _wrong(connection: sqlite3.Connection) -> list[str]:
    """Return two of the rows that are not as they were written, if there are any."""
    wrong = list(islice(checksums.damage(connection), 2))
    if "interrupted" in wrong:
        raise KeyboardInterrupt
    return wrong


def _opened(path: Path, query: str, *, check: bool = True) -> sqlite3.Connection:
    """Return a connection to a ledger of today's schema that is as celedger wrote it."""
    connection = _connect(path, query)
    try:
        version = _version(connection, path)  # first: a foreign file is not touched
        if version < schema.version():
            if query != "mode=rw":
                raise LedgerError(
                    f"{path} has an older schema ({version}; this celedger reads "
                    f"{schema.version()}) and is read-only, so it cannot be brought to today's",
                    "copy it to a folder that can be written to",
                )
            _migrate(connection, path)
        if check and not is_stamped(path):
            before = _state(path)
            _let_signals_in(connection)
            for line in foreign_tables(connection, whole=False):
                raise damaged(path, line)
            if wrong := _wrong(connection):
                raise damaged(path, wrong[0] + " and more" * (len(wrong) > 1))
            connection.set_progress_handler(None, 0)
            stamp(path, before)
    except BaseException:
        connection.close()
        raise
    return connection


def import_sqlite_utils() -> None:
    """Import sqlite-utils without NumPy and pandas, which take three quarters of its time; no value
    of a ledger has their types. For a program that needs neither, while it has one thread."""
    absent: dict[str, Any] = dict.fromkeys({"numpy", "pandas"} - sys.modules.keys())
    sys.modules.update(absent)  # Python then says that there is no such module
    try:
        import sqlite_utils  # noqa: F401
    finally:
        for name in absent:
            del sys.modules[name]


@contextlib.contextmanager
def writing(connection: sqlite3.Connection) -> Iterator[None]:
    """Write all or nothing of what is written inside. A second writer waits at the beginning:
    SQLite refuses one that read before it asked for the lock."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


def readonly(path: Path) -> sqlite3.Connection:
    """Return a connection to a file that may be damaged; works on a read-only disk too."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    if not writable(path) and not size(Path(f"{path}-wal")):
        uri += "&immutable=1"  # else SQLite asks for a -shm, which cannot be made there
    connection = sqlite3.connect(uri, uri=True, isolation_level=None)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def rows_of(path: Path, sql: str) -> list[tuple[Any, ...]]:
    """Return what a query finds in a file of another program, which may be writing it. Raises
    ValueError for a file that does not answer it."""
    try:
        with closing(readonly(path)) as connection:
            limit(connection)
            return connection.execute(sql).fetchall()
    except sqlite3.Error as error:
        raise ValueError(str(error)) from error


def damaged(path: Path, problem: str) -> LedgerDamaged:
    return LedgerDamaged(f"{path} is damaged: {plain(problem)}", "see `celedger doctor`")


def explain(error: Exception, path: Path) -> LedgerError:
    """Return the one sentence for what SQLite said, or for what it made of a damaged file."""
    if not isinstance(error, sqlite3.Error):
        return damaged(path, str(error))
    name = getattr(error, "sqlite_errorname", None) or ""
    kind = name.split("_")[1] if name.startswith("SQLITE_") else ""
    if kind == "FULL" or (kind == "IOERR" and _disk_is_full(path)):
        return LedgerError(
            f"the disk that holds {path} is full, so the ledger could not be written",
            "nothing is lost: what was reported is in the trial's journal, and is taken in when "
            "celedger runs with space free",
        )
    if kind == "INTERRUPT":
        raise KeyboardInterrupt  # by the handler of a signal: SQLite takes no exception
    if kind in ("BUSY", "LOCKED", "PROTOCOL"):
        return LedgerError(
            f"another process has held {path} for more than {BUSY_TIMEOUT:.0f} s",
            f"see who with: fuser {path}",
        )
    if kind == "READONLY":
        return _read_only(path)
    if kind == "NOTADB":
        return _not_sqlite(path)
    if kind == "CORRUPT":
        return damaged(path, str(error))
    if kind == "CANTOPEN":
        return LedgerError(f"{path} cannot be opened", "check its permissions and its folder's")
    if kind == "IOERR":
        return LedgerError(f"the disk that holds {path} failed ({name}: {error})")
    return LedgerError(f"{path}: {error}")


def on_network(path: Path) -> bool:
    """Return True if `path` lies on a network file system, where WAL's shared memory cannot work
    (https://sqlite.org/wal.html)."""
    import psutil  # not where a ledger is only read

    mounts = [m for m in psutil.disk_partitions(all=True) if path.is_relative_to(m.mountpoint)]
    mounts.sort(key=lambda mount: len(mount.mountpoint))
    return bool(mounts) and mounts[-1].fstype in _NETWORK


# --- the stamp: size and times of the file as celedger last left it. A file that differs is damaged
# or was written by another program, and all its rows are checked.


def is_stamped(path: Path) -> bool:
    """Return True if celedger was the last to write to the file."""
    try:
        return _stamp(path).read_text() == _state(path)
    except (OSError, ValueError):
        return False


def stamp(path: Path, state: str | None = None) -> None:
    """Note the state of the file, by default as it is now. Where that cannot be written, the next
    one to open the ledger checks it."""
    with contextlib.suppress(OSError):
        files.write(_stamp(path), state or _state(path))


def _stamp(path: Path) -> Path:
    return files.beside(path) / f"{path.name}.stamp"


def _state(path: Path) -> str:
    status = path.stat()
    return f"{_RULES} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\n"


# --- files that a merge, or an unpacked archive, can have planted


def refuse_planted(path: Path, *folders: Path, may_be_tracked: bool = False) -> None:
    """Raise where git tracks what celedger keeps beside a ledger, or a name there or in the other
    folders is a link: a merge can replace the one, also a file that is ignored, and celedger would
    write through the other. An example that is only read `may_be_tracked`."""
    from celedger.repo import tracked_in

    names = [f"{path.name}{end}" for end in _ENDS]
    if tracked := tracked_in(path.parent, [*names[may_be_tracked:], files.PRIVATE]):
        where = shlex.quote(str(path.parent))
        raise RepositoryError(
            f"git tracks {tracked[0]}, so that a merge can replace what celedger keeps there",
            f"git -C {where} rm --cached {shlex.join(tracked[:3])}",
        )
    private_folders = [files.beside(path), *folders]
    links = [
        p
        for p in (*private_folders, *(path.with_name(name) for name in names[1:]))
        if p.is_symlink()
    ]
    for folder in private_folders:
        with contextlib.suppress(OSError):
            links += [Path(entry) for entry in os.scandir(folder) if entry.is_symlink()]
    journal = Path(f"{path}-journal")
    if size(journal) and journal.read_bytes().endswith(_JOURNAL_MAGIC):
        raise LedgerError(f"{journal} names another file, which SQLite would delete", "remove it")
    if links:
        raise LedgerError(
            f"{links[0]} is a symbolic link, and celedger writes through none", "remove it"
        )


# --- the file


def _not_sqlite(path: Path) -> LedgerDamaged:
    return LedgerDamaged(f"{path} is not a ledger: it is not an SQLite file", ELSEWHERE)


def _read_only(path: Path) -> LedgerError:
    closed = path if os.access(path.parent, os.W_OK) else path.parent
    return LedgerError(
        f"{closed} is read-only, and the ledger must be written to",
        "make it writable; `log`, `status` and `report -o FILE` work as it is",
    )


def _must_be_a_file(path: Path) -> None:
    try:
        if path.exists() and not path.is_file():
            kind = "a folder" if path.is_dir() else "a special file"
            raise LedgerError(f"{path} is {kind}, not a ledger", ELSEWHERE)
        length = path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        raise LedgerError(f"there is no ledger at {path}", "make one: `celedger run`") from None
    except OSError as error:
        raise LedgerError(f"{path} cannot be read: {error.strerror}") from error
    if not length:
        raise LedgerError(
            f"{path} is empty, not a ledger", "delete it; `celedger run HEAD` makes a new one"
        )
    if length < _SMALLEST_SQLITE:
        raise _not_sqlite(path)
    if not os.access(path, os.R_OK):
        raise LedgerError(f"{path} cannot be read: permission denied")


def writable(path: Path) -> bool:
    """Return True if the file can be written, and its -wal be made beside it."""
    return os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)


def _connect(path: Path, query: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.as_uri()}?{query}", uri=True, timeout=BUSY_TIMEOUT, isolation_level=None
    )
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA recursive_triggers = ON")  # so that REPLACE meets the triggers too
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    return connection


def _set_journal(connection: sqlite3.Connection, path: Path) -> None:
    """Switch a ledger that was copied here in another mode."""
    if connection.execute("PRAGMA journal_mode").fetchone() != (_journal(path),):
        # Others may have it open: it works as it is.
        with alone(path), contextlib.suppress(sqlite3.OperationalError):
            connection.execute(f"PRAGMA journal_mode = {_journal(path)}")


def _journal(path: Path) -> str:
    return "delete" if on_network(path.resolve()) else "wal"


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """Return the schema's version. Raises LedgerError for a foreign file and for a newer schema."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != schema.APPLICATION_ID:
        raise LedgerDamaged(f"{path} is an SQLite file, but not a ledger of celedger", ELSEWHERE)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > schema.version():
        raise LedgerError(
            f"{path} was written by a newer celedger (schema {version}; this one knows "
            f"{schema.version()})",
            "install a newer celedger",
        )
    return int(version)


def _make(path: Path) -> None:
    """Make a ledger aside and rename it into place: nobody ever sees half of one, and nobody races
    for the switch to WAL."""
    if path.exists() and not path.is_file():
        return  # not in the place of a device
    if not path.parent.is_dir():
        raise LedgerError(f"{path.parent} is not a folder, so no ledger can be made in it")
    with alone(path):
        if size(path):
            return  # another process was first
        draft = files.beside(path) / f"{path.name}.draft"
        for end in _ENDS:
            Path(f"{draft}{end}").unlink(missing_ok=True)
        with contextlib.closing(_connect(draft, "mode=rwc")) as connection:
            schema.migrate(connection)
            connection.execute(f"PRAGMA journal_mode = {_journal(path)}")
        install(draft, path)


def install(draft: Path, path: Path) -> None:
    """Rename a ledger into place, so that it is there after a power cut too. A -wal whose ledger
    was deleted would be replayed onto it."""
    for suffix in _ENDS[1:]:
        Path(f"{path}{suffix}").unlink(missing_ok=True)
    draft.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    stamp(path)


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring an older ledger to today's schema, keeping a copy of it as it was. A second attempt
    may replace the copy: rows are only ever added, so the newer one holds all of the older."""
    with alone(path):
        if _version(connection, path) == schema.version():
            return  # another process was first
        (sound,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if sound != "ok":  # what is damaged must not get a checksum
            raise damaged(path, sound)
        for name in foreign_triggers(connection):  # it would run
            raise damaged(path, f"the trigger {name} is none of celedger's")
        copy = Path(f"{path}.before-{schema.version()}")
        copy.unlink(missing_ok=True)
        connection.execute("VACUUM INTO ?", (str(copy),))
        schema.migrate(connection)


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the lock under which a ledger is made, migrated or restored."""
    hidden = files.beside(path)
    with explained(f"{hidden} cannot be written to", kind=LedgerError):
        hidden.mkdir(exist_ok=True)
    with (
        files.hold_lock(hidden / f"{path.name}.lock"),
        explained(f"{path} could not be made", kind=LedgerError),
    ):
        yield


def size(path: Path) -> int:
    """Return the bytes of a file, 0 where there is none."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _disk_is_full(path: Path) -> bool:
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < 1 << 20
