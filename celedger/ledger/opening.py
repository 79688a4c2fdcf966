"""Opening the file: what it may be, how it is made, migrated, and opened for reading only.

Lives here: the connection's settings, the lock under which a ledger is made or migrated, the copy
kept before a migration, the check of what is opened, and one sentence for each thing that can be
wrong with the file. It must not know what the tables hold.

The file is opened through SQLite alone: closing another descriptor of it would drop the POSIX locks
that a connection of this process holds (https://sqlite.org/howtocorrupt.html).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from celedger.errors import LedgerDamaged, LedgerError
from celedger.ledger import checking
from celedger.ledger.identity import APPLICATION_ID, VERSION
from celedger.ledger.stamp import Stamp
from celedger.text import plain

BUSY_TIMEOUT = 60.0  # seconds that a writer waits for the others
CACHE_KIB = 16_384
_SMALLEST_SQLITE = 512  # bytes, its smallest page; anything shorter it takes for a new database

_NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "glusterfs",
    "fuse.sshfs", "fuse.glusterfs", "fuse.s3fs", "fuse.rclone", "fuse.ceph",
}  # fmt: skip


def open_for_writing(path: Path, *, create: bool) -> tuple[sqlite3.Connection, Stamp]:
    """Return a connection to today's schema, made or migrated when it must be."""
    if create and not _size(path):
        if path.exists() and not path.is_file():
            raise _no_file(path)  # making one would put it in the place of a device
        _make(path)
    _must_be_a_file(path)
    for needed in (path, path.parent):  # SQLite keeps its -wal beside the ledger
        if not os.access(needed, os.W_OK):
            raise LedgerError(f"{needed} is read-only, and the ledger must be written to")
    return _opened(path, "mode=rw", write=True)


def open_for_reading(path: Path) -> tuple[sqlite3.Connection, Stamp]:
    """Return a connection that cannot write; works on a read-only file or folder too."""
    _must_be_a_file(path)
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        # Not "ro": so that the last to close tidies up.
        connection, stamp = _opened(path, "mode=rw")
        connection.execute("PRAGMA query_only = ON")
        return connection, stamp
    try:
        return _opened(path, "mode=ro")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname.split("_")[1] not in ("CANTOPEN", "READONLY"):
            raise
        # A ledger in WAL mode where no -shm can be made. Without a -wal nothing is missing from
        # the file itself; with one, its newest rows are there, and leaving them out would lie.
        if _size(_beside(path, "-wal")):
            raise LedgerError(
                f"{path} was not closed properly and its folder is read-only",
                "copy it with its -wal to a folder that can be written to",
            ) from error
        return _opened(path, "mode=ro&immutable=1")


def _opened(path: Path, query: str, *, write: bool = False) -> tuple[sqlite3.Connection, Stamp]:
    """Return a connection to a ledger of today's schema that is as celedger wrote it."""
    stamp = Stamp(path)
    connection = _connect(path, query)
    try:
        version = _version(connection, path)  # first: a foreign file is not touched
        if version == VERSION:
            _check(connection, path, stamp)
        elif query.startswith("mode=ro"):
            raise LedgerError(
                f"{path} has an older schema ({version}; this celedger reads {VERSION}) and is "
                "read-only, so it cannot be brought to today's",
                "copy it to a folder that can be written to",
            )
        if write:
            _configure(connection, path, stamp)
        if version < VERSION:
            _migrate(connection, path, stamp)
    except BaseException:
        with stamp.checkpoint():
            connection.close()
        raise
    return connection, stamp


def _check(connection: sqlite3.Connection, path: Path, stamp: Stamp) -> None:
    """Raise LedgerDamaged for a file that is not as celedgers wrote it. Its rows are looked at
    only where another program may have written to it."""
    current = stamp.current()
    if not stamp.matches():
        wrong = list(islice(checking.damage(connection), 2))
        if wrong:
            raise damaged(path, wrong)
        stamp.renew(current)


def damaged(path: Path, wrong: Iterable[str]) -> LedgerDamaged:
    """Return the error for what `checking` yielded."""
    first, *others = wrong
    return LedgerDamaged(
        f"{path} is damaged: {first}{' and more' if others else ''}", "see `celedger doctor`"
    )


def explain(error: Exception, path: Path) -> LedgerError:
    """The one sentence for what SQLite said, or for what it made of a damaged file."""
    if not isinstance(error, sqlite3.Error):
        return damaged(path, [plain(str(error))])
    name = getattr(error, "sqlite_errorname", None) or ""
    kind = name.split("_")[1] if name.startswith("SQLITE_") else ""
    if kind == "FULL" or (kind == "IOERR" and _disk_is_full(path)):
        return LedgerError(
            f"the disk that holds {path} is full, so the ledger could not be written",
            "nothing is lost: what was reported is in the trial's journal, and is taken in when "
            "celedger runs with space free",
        )
    if kind in ("BUSY", "LOCKED", "PROTOCOL"):
        return LedgerError(
            f"another process has held {path} for more than {BUSY_TIMEOUT:.0f} s",
            f"see who with: fuser {path}",
        )
    if kind == "READONLY":
        return LedgerError(f"{path} is read-only, and the ledger must be written to")
    if kind == "NOTADB":
        return _not_sqlite(path)
    if kind == "CORRUPT":
        return damaged(path, [plain(str(error))])
    if kind == "CANTOPEN":
        return LedgerError(f"{path} cannot be opened", "check its permissions and its folder's")
    if kind == "IOERR":
        return LedgerError(f"the disk that holds {path} failed ({name}: {error})")
    return LedgerError(f"{path}: {error}")


def on_network(path: Path, mounts: str) -> bool:
    """Whether `path` lies on a network file system, where WAL's shared memory cannot work
    (https://sqlite.org/wal.html). `mounts` is the text of /proc/self/mounts."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        words = line.split(" ")
        if len(words) < 3:
            continue
        point = words[1].replace(r"\040", " ").replace(r"\011", "\t").replace(r"\134", "\\")
        if path.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), words[2]
    return kind in _NETWORK


_ELSEWHERE = "name another ledger in the configuration, or move this file away"


def _not_sqlite(path: Path) -> LedgerDamaged:
    return LedgerDamaged(f"{path} is not a ledger: it is not an SQLite file", _ELSEWHERE)


def _no_file(path: Path) -> LedgerError:
    kind = "a folder" if path.is_dir() else "no ordinary file"
    return LedgerError(f"{path} is {kind}, not a ledger", _ELSEWHERE)


def _must_be_a_file(path: Path) -> None:
    try:
        if path.exists() and not path.is_file():
            raise _no_file(path)
        size = path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        raise LedgerError(f"there is no ledger at {path}", "make one: `celedger run`") from None
    except OSError as error:
        raise LedgerError(f"{path} cannot be read: {error.strerror}") from error
    if not size:
        raise LedgerError(
            f"{path} is empty, not a ledger", "delete it; `celedger run HEAD` makes a new one"
        )
    if size < _SMALLEST_SQLITE:
        raise _not_sqlite(path)
    if not os.access(path, os.R_OK):
        raise LedgerError(f"{path} cannot be read: permission denied")


def _connect(path: Path, query: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.as_uri()}?{query}", uri=True, timeout=BUSY_TIMEOUT, isolation_level=None
    )
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA recursive_triggers = ON")  # so that REPLACE meets the triggers too
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    return connection


def _configure(connection: sqlite3.Connection, path: Path, stamp: Stamp) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    wanted = "delete" if on_network(path.resolve(), _mounts()) else "wal"
    if mode != wanted:
        with alone(path):
            try:
                connection.execute(f"PRAGMA journal_mode = {wanted}")
            except sqlite3.OperationalError:
                if wanted == "delete":
                    raise
                # Somebody else has a ledger open that was copied here in the other mode: it works
                # as it is, and the next one to open it alone switches it.
        stamp.renew()
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")  # `Store` makes each, see stamp.py
    connection.execute("PRAGMA journal_size_limit = 0")


def _version(connection: sqlite3.Connection, path: Path) -> int:
    """The schema's version. Raises LedgerError for a foreign file and for a newer schema."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise LedgerDamaged(f"{path} is an SQLite file, but not a ledger of celedger", _ELSEWHERE)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        raise LedgerError(
            f"{path} was written by a newer celedger (schema {version}; this one knows {VERSION})",
            "upgrade: pip install --upgrade celedger",
        )
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (page,) = connection.execute("PRAGMA page_size").fetchone()
    if not _size(_beside(path, "-wal")) and _size(path) < pages * page:
        raise LedgerDamaged(
            f"{path} is damaged: it was cut short ({_size(path):,} of {pages * page:,} bytes)",
            "see `celedger doctor`",
        )
    return int(version)


def _make(path: Path) -> None:
    """A new ledger, made aside and renamed into place: nobody ever sees half of one, and nobody
    races for the switch to WAL."""
    if not path.parent.is_dir():
        raise LedgerError(f"{path.parent} is not a folder, so no ledger can be made in it")
    with alone(path):
        if _size(path):
            return  # another process was first
        from celedger.ledger import schema

        draft = _draft(path)
        with contextlib.closing(_connect(draft, "mode=rwc")) as connection:
            schema.migrate(connection)
            if not on_network(path.resolve(), _mounts()):
                connection.execute("PRAGMA journal_mode = WAL")
        install(draft, path)


def _migrate(connection: sqlite3.Connection, path: Path, stamp: Stamp) -> None:
    """Bring an older ledger to today's schema, keeping a copy of it as it was. A second attempt
    may replace the copy: rows are only ever added, so the newer one holds all of the older."""
    with alone(path):
        if _version(connection, path) >= VERSION:
            return  # another process was first
        from celedger.ledger import schema

        # What is damaged must not get a checksum; nor does a version change by itself.
        (sound,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        (applied,) = connection.execute("SELECT count(*) FROM _sqlite_migrations").fetchone()
        if sound != "ok" or applied >= VERSION:
            raise damaged(path, [sound if sound != "ok" else "the version in its header"])
        draft = _draft(path)
        with contextlib.closing(_connect(draft, "mode=rwc")) as copy:
            connection.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")
        _put(draft, _beside(path, f".before-{VERSION}"))
        schema.migrate(connection)
        stamp.renew()


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Hold the lock under which a ledger is made, migrated or switched to another mode."""
    hidden = path.parent / ".celedger"
    try:
        hidden.mkdir(exist_ok=True)
        descriptor = os.open(hidden / f"{path.name}.lock", os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise LedgerError(f"{hidden} cannot be written to: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    except OSError as error:
        raise LedgerError(f"{path} could not be made: {error.strerror}") from error
    finally:
        os.close(descriptor)  # releases the lock; the file stays, or two could hold it at once


def _draft(path: Path) -> Path:
    """Where a file is made before it is renamed into place; without what a kill left there."""
    draft = path.parent / ".celedger" / f"{path.name}.draft"
    for suffix in ("", "-wal", "-shm", "-journal"):
        _beside(draft, suffix).unlink(missing_ok=True)
    return draft


def install(draft: Path, path: Path) -> None:
    """Rename a ledger into place. A -wal whose ledger was deleted would be replayed onto it, so
    that is renamed, too."""
    for suffix in ("-wal", "-shm", "-journal"):
        stale = _beside(path, suffix)
        if stale.exists():
            stale.replace(_beside(stale, ".orphan"))
    _put(draft, path)
    Stamp(path).renew()


def _put(draft: Path, path: Path) -> None:
    """Rename into place, so that it is there after a power cut too (SQLite synced the draft)."""
    draft.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def _mounts() -> str:
    try:
        return Path("/proc/self/mounts").read_text(errors="surrogateescape")
    except OSError:
        return ""  # no Linux: taken for a local disk


def _disk_is_full(path: Path) -> bool:
    try:
        disk = os.statvfs(path.parent)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < 1 << 20
