"""Private files: files are made 0600, folders 0700. What a person asked
for by name, and the trainings under test, get the person's own umask."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_PRIVATE = 0o077
_users = -1  # what subprocess.Popen takes for "as it is"


def make_private() -> None:
    """From here on, let this process make files that nobody else can read."""
    global _users
    _users = os.umask(_PRIVATE)


def of_user() -> int:
    """Return the umask that the person has set, for a process that runs for them."""
    return _users


@contextmanager
def users() -> Iterator[None]:
    """Make files as the person does, for as long as this lasts."""
    if _users < 0:
        yield
        return
    before = os.umask(_users)
    try:
        yield
    finally:
        os.umask(before)
