"""Write a small file as a whole: a reader has the old content or the new, also after a kill. And
the umask under which files are made. Must not know what a file means.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
