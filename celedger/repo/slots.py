"""The slots of a repository: which there are, and who holds one. One process does at a time, by a
lock that dies with it.
"""

from __future__ import annotations

import fcntl
import os
from itertools import count
from pathlib import Path

from celedger.errors import RepositoryError
from celedger.repo.checkouts import Checkout
from celedger.repo.leftovers import delete
from celedger.repo.repository import Repository


class Checkouts:
    """The slots of one repository; there are as many as were ever in use at once."""

    def __init__(self, repository: Repository) -> None:
        self.repository = repository
        self.folder = repository.state_dir / "checkouts"

    def slots(self) -> list[tuple[Path, bool]]:
        """The slots there are, each with whether somebody holds it."""
        return [
            (path, _is_locked(path.with_suffix(".lock")))
            for path in sorted(self.folder.glob("[0-9]*"))
            if path.suffix == "" and path.is_dir()
        ]

    def remove(self, path: Path) -> bool:
        """Delete a slot, unless somebody holds it: the next to take it makes it anew."""
        try:
            handle = _try_lock(path.with_suffix(".lock"))
            if handle is None:
                return False
            try:
                delete(path)
            finally:
                os.close(handle)
        except OSError:
            return False
        return True

    def take(self) -> Checkout:
        """A free slot, held until `close` (or the end of `with`, or of the process)."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, number = next(
                (handle, n)
                for n in count()
                if (handle := _try_lock(self.folder / f"{n}.lock")) is not None
            )
        except OSError as error:
            raise RepositoryError(
                f"cannot make a checkout in {self.folder}: {error.strerror}"
            ) from error
        checkout = Checkout(self.repository, self.folder / str(number), handle)
        try:
            checkout.prepare()
        except BaseException:
            checkout.close()
            raise
        return checkout


def _is_locked(path: Path) -> bool:
    """Return True unless nobody holds the lock. Writes nothing: the disk may be read-only."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _try_lock(path: Path) -> int | None:
    """A descriptor that holds the lock until it is closed; None where another one does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
