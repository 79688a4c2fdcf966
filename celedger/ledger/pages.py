"""The checksum of every page of a ledger's file, so that opening it notices damage anywhere.

Lives here: the file `.celedger/NAME.pages` (a CRC-32 a page, little-endian) and when it is renewed.
It says what celedger last wrote. A page that differs is either damaged or was written by another
program; `checking.py` decides which. It must not know a table.

Only a checkpoint writes to the file of a ledger in WAL mode, so every checkpoint happens here: it
renews the sums of the pages that it wrote, and of no other. The leaves of one table may be left
out: those of `points`, which are most of a ledger, and whose trials are checked when they are read.
https://sqlite.org/fileformat2.html describes pages, b-trees and the -wal.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_INTERIOR = (2, 5)  # types of b-tree pages that have children: of indexes, of tables
_SUM = struct.Struct("<I")

# (device, inode) -> a descriptor and its users. Closing any descriptor of a file drops the locks
# that SQLite holds on it in this process, so the last ledger that has it open closes it.
_descriptors: dict[tuple[int, int], list[int]] = {}


class Pages:
    """The open file of a ledger, page by page. Close it after the ledger's connection."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sums = path.parent / ".celedger" / f"{path.name}.pages"
        at = path.stat()
        self._file = (at.st_dev, at.st_ino)
        if self._file not in _descriptors:
            _descriptors[self._file] = [os.open(path, os.O_RDONLY | os.O_CLOEXEC), 0]
        self._users = _descriptors[self._file]
        self._users[1] += 1
        self._descriptor = self._users[0]
        self._size = int.from_bytes(os.pread(self._descriptor, 2, 16), "big")
        self._size = 65536 if self._size == 1 else max(self._size, 512)

    def close(self) -> None:
        users, self._users = self._users, [-1, 0]
        users[1] -= 1
        if not users[1]:
            os.close(users[0])
            del _descriptors[self._file]

    def vanished(self) -> bool:
        """Return True if the path no longer leads to this file: deleted, renamed, replaced."""
        try:
            at = self._path.stat()
        except OSError:
            return True
        return (at.st_dev, at.st_ino) != self._file

    def changed(self, spared: int = 0) -> bool:
        """Return True unless every page is as celedger wrote it last. `spared` is the root page of
        a b-tree whose leaves are not read."""
        try:
            descriptor = os.open(self._sums, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return True
        with os.fdopen(descriptor, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            number, data = self._number(), file.read()
            if len(data) != number * _SUM.size:
                return True
            leaves = self._leaves(spared) if spared else frozenset()
            read, crc32, size, ledger = os.pread, zlib.crc32, self._size, self._descriptor
            differing = {
                page
                for page, (expected,) in enumerate(_SUM.iter_unpack(data), 1)
                if page not in leaves and crc32(read(ledger, size, (page - 1) * size)) != expected
            }
        return bool(differing and differing - self._in_wal())

    def renew(self) -> None:
        """Write the sums of all pages as they are now, where the folder for them exists."""
        descriptor = self._lock(os.O_CREAT)
        if descriptor is not None:
            with suppress(OSError):  # a full disk: the next one to open the ledger checks it
                sums = b"".join(map(self._sum, range(1, self._number() + 1)))
                os.pwrite(descriptor, sums, 0)
                os.ftruncate(descriptor, len(sums))
            os.close(descriptor)

    @contextmanager
    def checkpoint(self) -> Iterator[None]:
        """Renew the sums of what a checkpoint in the body of a `with` writes: SQLite makes one
        when it is told to, and when the last connection closes."""
        descriptor = self._lock()
        written = set[int]() if descriptor is None else self._in_wal()
        try:
            yield
            if descriptor is not None:
                with suppress(OSError):
                    for page in written:
                        os.pwrite(descriptor, self._sum(page), 4 * page - 4)
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _lock(self, flags: int = 0) -> int | None:
        """Open and lock the file of the sums. Returns None where it cannot be written."""
        try:
            descriptor = os.open(self._sums, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError:
            return None
        return descriptor

    def _number(self) -> int:
        return -(-os.fstat(self._descriptor).st_size // self._size)

    def _page(self, page: int) -> bytes:
        return os.pread(self._descriptor, self._size, max(page - 1, 0) * self._size)

    def _sum(self, page: int) -> bytes:
        return _SUM.pack(zlib.crc32(self._page(page)))

    def _in_wal(self) -> set[int]:
        """Return the pages that the -wal holds: they count instead of those in the file."""
        pages: set[int] = set()
        with suppress(OSError), Path(f"{self._path}-wal").open("rb", buffering=0) as wal:
            salts = os.pread(wal.fileno(), 32, 0)[16:24]
            for at in range(32, os.fstat(wal.fileno()).st_size, 24 + self._size):
                frame = os.pread(wal.fileno(), 16, at)
                if frame[8:] != salts:
                    break  # of an older round
                pages.add(int.from_bytes(frame[:4], "big"))
        return pages

    def _leaves(self, root: int) -> Collection[int]:
        """Return the leaves of a b-tree. They all lie equally deep."""
        level = [root]
        while True:
            first = self._page(level[0])
            if not first or first[0] not in _INTERIOR:
                return frozenset(level) - {root}
            children: list[int] = []
            for page in level:
                data = self._page(page)
                number = int.from_bytes(data[3:5], "big")
                if len(data) < 12 + 2 * number or data[0] not in _INTERIOR:
                    return frozenset()  # damaged: leave out nothing
                cells = struct.unpack_from(f">{number}H", data, 12)
                children += [int.from_bytes(data[at : at + 4], "big") for at in cells]
                children.append(int.from_bytes(data[8:12], "big"))  # the right-most one
            if len(children) > self._number():
                return frozenset()
            level = children
