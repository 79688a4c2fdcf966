"""The size and times of a ledger's file as celedger last left it, so that opening the ledger
notices whatever else wrote to the file.

Lives here: the file `.celedger/NAME.stamp` and when it is renewed. A file that differs from its
stamp is either damaged or was written by another program; `checking.py` decides which. Only a
checkpoint writes to the file of a ledger in WAL mode, so every checkpoint happens here. It must not
read the ledger: closing a descriptor of the file would drop the locks that SQLite holds on it
(https://sqlite.org/howtocorrupt.html).
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Stamp:
    """The stamp of the file that a path leads to now."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = path.parent / ".celedger" / f"{path.name}.stamp"
        status = path.stat()
        self._inode = (status.st_dev, status.st_ino)

    def vanished(self) -> bool:
        """Return True if the path no longer leads to this file: deleted, renamed, replaced."""
        try:
            status = self._path.stat()
        except OSError:
            return True
        return (status.st_dev, status.st_ino) != self._inode

    def current(self) -> bytes:
        """Return the stamp of the file as it is now, always equally long."""
        status = self._path.stat()
        times = f"{status.st_mtime_ns:020} {status.st_ctime_ns:020}"
        return f"{status.st_size:020} {times}\n".encode()

    def matches(self) -> bool:
        """Return True if celedger was the last to write to the file."""
        with self._locked(os.O_RDONLY, fcntl.LOCK_SH) as descriptor:
            return self._is_written(descriptor)

    def renew(self, stamp: bytes | None = None) -> None:
        """Write the stamp, by default of now, where the folder for it exists."""
        with self._locked(os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX) as descriptor:
            self._write(descriptor, stamp or self.current())

    @contextmanager
    def checkpoint(self) -> Iterator[None]:
        """Renew the stamp after a checkpoint in the body of a `with`, unless another program wrote
        before. SQLite makes one when it is told to, and when the last connection closes."""
        with self._locked(os.O_RDWR, fcntl.LOCK_EX) as descriptor:
            matches = self._is_written(descriptor)
            yield
            if matches:
                self._write(descriptor, self.current())

    def _is_written(self, descriptor: int | None) -> bool:
        with suppress(OSError):
            return descriptor is not None and os.pread(descriptor, 100, 0) == self.current()
        return False

    def _write(self, descriptor: int | None, stamp: bytes) -> None:
        if descriptor is not None:
            with suppress(OSError):  # a full disk: the next one to open the ledger checks it
                os.pwrite(descriptor, stamp, 0)

    @contextmanager
    def _locked(self, flags: int, lock: int) -> Iterator[int | None]:
        """Yield the open and locked file of the stamp; None where it cannot be opened so."""
        try:
            descriptor = os.open(self._stamp, flags | os.O_CLOEXEC, 0o600)
        except OSError:
            yield None
            return
        try:
            fcntl.flock(descriptor, lock)
            yield descriptor
        finally:
            os.close(descriptor)
