"""Files that several processes share: written as a whole (a reader has the old content or the new,
also after a kill), private to their owner, and locked by flock(2). The kernel releases a lock when
its holder dies, so none is ever stale. Lock files are never removed: whoever had opened a removed
one would hold a lock on nothing. Must not know what a file means or what a lock is for."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from celedger.base.errors import MachineError, explained

PRIVATE = ".celedger"
"""The name of the folder of celedger's own files beside a ledger."""


def beside(ledger: Path) -> Path:
    """Return the folder of celedger's own files beside a ledger's file."""
    return ledger.parent / PRIVATE


def write(path: Path, text: str, errors: str = "surrogateescape") -> None:
    """Write a file that is there, or make it; not where its name is a link. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o666), "w", encoding="utf-8", errors=errors) as file:
        file.write(text)


def replace(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Give a file this content and mode, and make its folder. Raises OSError."""
    import tempfile  # not where a command only reads

    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(draft).chmod(mode)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


# --- what celedger keeps is its owner's alone: files are made 0600, folders 0700. Files that a
# person names, and trainings, get the person's own umask


_PRIVATE = 0o077
_users = -1  # what subprocess.Popen takes for "as it is"


def make_private() -> None:
    """From here on, let this process make files that nobody else can read."""
    global _users
    _users = os.umask(_PRIVATE)


def users_umask() -> int:
    """Return the umask that the person has set, for a process that runs for them."""
    return _users


@contextmanager
def as_the_user() -> Iterator[None]:
    """Make files as the person does, for as long as this lasts."""
    if _users < 0:
        yield
        return
    before = os.umask(_users)
    try:
        yield
    finally:
        os.umask(before)


class Lock:
    """A lock that is held. Closing it, or the death of the process, releases it."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    @property
    def fd(self) -> int:
        return self._fd

    def write(self, text: str) -> None:
        """Replace the text of the file, for those who wait. A full disk is no reason to fail."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text.encode(), 0)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


def try_flock(
    path: Path, *, mode: int = 0o600, shared: bool = False, wait: bool = False
) -> Lock | None:
    """Take the lock of the file, made with `mode` when it is not there; None when another
    holder has it (also one in this process), unless this is to `wait` for it. A `shared` lock
    excludes only those that are not. Raises MachineError when the file cannot be opened."""
    fd = -1
    try:
        fd = _open(path, mode)
        how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.flock(fd, how if wait else how | fcntl.LOCK_NB)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        if isinstance(error, BlockingIOError):
            return None
        raise MachineError(
            f"the lock file {path} cannot be opened: {error.strerror}",
            "correct its permissions or those of its folder",
        ) from error
    return Lock(path, fd)


def hold_lock(path: Path) -> Lock:
    """Take the lock of the file, and wait for it where another holder has it. Makes its folder.
    Raises MachineError where that cannot be written to."""
    with explained(f"{path.parent} cannot be written to", kind=MachineError):
        path.parent.mkdir(exist_ok=True)
    lock = try_flock(path, wait=True)
    assert lock is not None
    return lock


def is_locked(path: Path) -> bool:
    """Return True if somebody has the lock of the file. Raises MachineError when it is there and
    cannot be opened."""
    if not path.exists():
        return False
    with try_flock(path) or contextlib.nullcontext() as lock:
        return lock is None


def _open(path: Path, mode: int) -> int:
    """Without O_CREAT first: in a sticky folder the kernel refuses O_CREAT on a file that
    belongs to another user, though it exists (fs.protected_regular, proc_sys_fs(5))."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags)
    except FileNotFoundError:
        fd = os.open(path, flags | os.O_CREAT, mode)
    with contextlib.suppress(OSError):
        os.fchmod(fd, mode)  # past the umask
    return fd
