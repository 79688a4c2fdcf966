"""The archive of a ledger: what `git clean` cannot reach and the ledger can be rebuilt from.

Lives here: the folder below `.git/celedger/ledgers/` that one repository keeps for one ledger. It
holds every fact as a document (one gzip member a batch, a line of JSON a document: `zcat` shows
them), a watermark that says up to which fact, and the journals of trials that run. It must not know
what a fact means, nor how a journal is read.

Facts are added in the order of their checksums, after the transaction that completed them. A kill
in between, or while a batch is written, loses nothing: the next writer finds the watermark behind
the ledger and adds what lacks.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

from celedger.errors import LedgerError
from celedger.ledger.facts import Carrier, Document, dumps, loads

LOG_TAIL = 8192  # bytes of a trial's log that are kept with it
_BATCH = 256  # facts a gzip member at most
_LARGEST = 1 << 22  # bytes of documents a member, about
_MAGIC = b"\x1f\x8b\x08\x04"  # gzip, deflate, with an extra field
_GZIP = 16 + zlib.MAX_WBITS
_HEAD = struct.Struct("<4sIBBH2sHI")
_LONGEST = 200  # bytes of a folder's name
Checksum = tuple[int, str, int, int]  # a row of `checksums`: id, table, row, value


@dataclass(frozen=True, slots=True)
class Watermark:
    """Up to where the archive has the facts of the ledger. `checksum` is the row of the last one,
    `size` the bytes of documents with it, `trials` how many of them are trials. `diverged`: the
    archive has facts that the ledger lacks."""

    checksum: Checksum | None = None
    size: int = 0
    trials: int = 0
    diverged: bool = False


class Archive:
    """The archive that the repository with this root and folder of state keeps for a ledger."""

    def __init__(self, state: Path, root: Path, ledger: Path) -> None:
        name = os.path.relpath(ledger, root).replace("%", "%25").replace("/", "%2F")
        if len(os.fsencode(name)) > _LONGEST:
            name = f"{zlib.crc32(os.fsencode(name)):08x}"
        self._git = state.parent
        self.folder = state / "ledgers" / name
        self.journals = self.folder / "journals"
        self._documents = self.folder / "facts.jsonl.gz"
        self._watermark = self.folder / "watermark"

    @property
    def size(self) -> int:
        """Return the bytes of its documents."""
        try:
            return self._documents.stat().st_size
        except OSError:
            return 0

    def holds(self) -> str:
        """Return what can be rebuilt from it, in words; "" for nothing."""
        contents = [f"{self.watermark().trials} trials"] if self.size else []
        if journals := len(list(self.journals.glob("*.jsonl"))):
            contents.append(f"{journals} journal{'s' * (journals != 1)}")
        return " and ".join(contents)

    def watermark(self) -> Watermark:
        try:
            checksum, size, trials, diverged = json.loads(self._watermark.read_bytes())
            return Watermark(tuple(checksum), size, trials, diverged)
        except (OSError, ValueError, TypeError):
            return Watermark()

    def lacks(self, connection: sqlite3.Connection) -> bool:
        """Return True if the ledger lacks what the archive has: an older copy is in its place, or
        its -wal was lost."""
        mark = self.watermark()
        return mark.checksum is not None and (mark.diverged or not _has(connection, mark.checksum))

    def catch_up(self, connection: sqlite3.Connection, home: Path) -> None:
        """Add the facts that the ledger in the folder `home` has and the archive has not. Raises
        LedgerError where they cannot be written: the next call will."""
        newest = _newest(connection)
        if newest is None or newest == self.watermark().checksum:
            return
        try:
            with self._locked() as descriptor:
                mark = self.watermark()
                size = os.fstat(descriptor).st_size
                if mark.checksum is None or not _has(connection, mark.checksum):
                    # The facts of another ledger stay.
                    mark = Watermark(None, size, mark.trials, diverged=mark.checksum is not None)
                elif size > mark.size:
                    os.ftruncate(descriptor, mark.size)  # what a kill left is in the ledger
                elif size < mark.size:
                    mark = Watermark(None, size, diverged=mark.diverged)
                self._write_watermark(self._extend(descriptor, connection, mark, home))
        except OSError as error:
            raise LedgerError(
                f"{self.folder} cannot be written ({error.strerror}), and the ledger could not be "
                "rebuilt without it",
                "free some room or correct its permissions; the next celedger adds what lacks",
            ) from error

    def documents(self, damaged: Callable[[], None] = lambda: None) -> Iterator[Document]:
        """Yield every document; `damaged` is called for each stretch that cannot be read."""
        if self.size:
            with (
                self._documents.open("rb") as file,
                mmap(file.fileno(), 0, access=ACCESS_READ) as data,
            ):
                yield from _documents(data, damaged)

    def write_anew(self, connection: sqlite3.Connection, home: Path) -> None:
        """Archive all facts of the ledger in the folder `home`, which has all that the archive
        has, and nothing else. A kill leaves the former archive, or the new one."""
        draft = self._documents.with_suffix(".new")
        with self._locked():
            self._watermark.unlink(missing_ok=True)  # else it would be one of another file
            with open(draft, "wb", buffering=0, opener=private) as file:
                mark = self._extend(file.fileno(), connection, Watermark(), home)
            draft.replace(self._documents)
            self._write_watermark(mark)

    def _extend(
        self, descriptor: int, connection: sqlite3.Connection, mark: Watermark, home: Path
    ) -> Watermark:
        """Append the facts that the ledger has beyond the watermark. Returns the new one."""
        carrier = Carrier(connection)
        while batch := _after(connection, mark.checksum):
            mark = self._add(descriptor, carrier, batch, mark, home)
        return mark

    def _add(
        self, descriptor: int, carrier: Carrier, facts: list[Checksum],
        mark: Watermark, home: Path,
    ) -> Watermark:  # fmt: skip
        """Append a batch of facts, as many as memory is meant for. Returns the new watermark."""
        lines: list[str] = []
        trials, length = mark.trials, 0
        for fact in facts:
            _, table, row, _ = fact
            document = carrier.document(table, row)
            if table == "trials":
                trials += 1
                if tail := _log_tail(home, document):
                    document["log"] = [["tail"], [tail]]
            lines.append(dumps(document) + "\n")
            length += len(lines[-1])
            if length > _LARGEST:
                break
        data = _member("".join(lines).encode())
        written = 0
        while written < len(data):
            written += os.write(descriptor, data[written:])
        os.fdatasync(descriptor)
        return Watermark(fact, mark.size + len(data), trials, mark.diverged)

    def _write_watermark(self, mark: Watermark) -> None:
        draft = self._watermark.with_suffix(".new")
        with open(draft, "w", opener=private) as file:
            file.write(json.dumps(astuple(mark)))
        draft.replace(self._watermark)

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Yield the file of documents, made where it is not there, to one process at a time."""
        if not self._git.is_dir():  # the repository was moved: nothing belongs where it was
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        private_folder(self.folder)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = private(self._documents, flags)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)


def _documents(data: mmap, damaged: Callable[[], None]) -> Iterator[Document]:
    at = 0
    while 0 <= at < len(data):
        head = data[at : at + _HEAD.size]
        end = at + (_HEAD.unpack(head)[-1] if len(head) == _HEAD.size else 0)
        try:
            lines = zlib.decompress(data[at:end], _GZIP) if end > at else b""
        except zlib.error:
            lines = b""
        if lines:
            yield from map(loads, lines.splitlines())
            at = end
        else:
            damaged()
            at = data.find(_MAGIC, at + 1)


def private_folder(path: Path) -> None:
    """Make a folder, and those above it that are not there, for their owner alone."""
    if not path.is_dir():
        private_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def private(path: str | Path, flags: int) -> int:
    """Open a file that, when it is made, is its owner's alone: an `opener` of `open`."""
    return os.open(path, flags, 0o600)


def _member(data: bytes) -> bytes:
    """Return a gzip member (RFC 1952) that says in an extra field how long it is, so that what
    follows one that is damaged can be read."""
    deflate = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
    body = deflate.compress(data) + deflate.flush()
    tail = struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)
    length = _HEAD.size + len(body) + len(tail)
    return _HEAD.pack(_MAGIC, 0, 0, 255, 8, b"CE", 4, length) + body + tail


def _newest(connection: sqlite3.Connection) -> Checksum | None:
    return next(iter(_checksums(connection, "ORDER BY id DESC LIMIT 1")), None)


def _has(connection: sqlite3.Connection, checksum: Checksum) -> bool:
    return _checksums(connection, "WHERE id = ?", checksum[0]) == [checksum]


def _after(connection: sqlite3.Connection, checksum: Checksum | None) -> list[Checksum]:
    last = checksum[0] if checksum else 0
    return _checksums(connection, f"WHERE id > ? ORDER BY id LIMIT {_BATCH}", last)


def _checksums(connection: sqlite3.Connection, which: str, *values: int) -> list[Checksum]:
    return connection.execute(
        f"SELECT id, fact, row, value FROM checksums {which}", values
    ).fetchall()


def _log_tail(home: Path, trial: Document) -> str:
    """Return the end of a trial's log."""
    columns, row = trial["trials"]
    try:
        with Path(home, ".celedger", "logs", f"{row[columns.index('ulid')]}.log").open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - LOG_TAIL))
            return log.read().decode("utf-8", "replace")
    except OSError:
        return ""
