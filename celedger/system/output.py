"""The file a command writes both its streams to. Keeps it from filling the disk; must not know what
the lines mean."""

from __future__ import annotations

import os
from pathlib import Path

from celedger.base.errors import explained

LIMIT = 64 << 20  # bytes: a log that grew past this is cut …
HEAD = 1 << 20  # … to its beginning, where a command says what it is about to do,
TAIL = 64 << 10  # … and its end, where the traceback may just have been written


class Output:
    """A log opened for appending. A command inherits `fd`; because of O_APPEND its writes go
    to the end of the file, wherever a cut has moved that. Raises MachineError when the file
    cannot be opened."""

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        self.path = path
        self.limit = limit
        with explained(
            f"the log file {path} cannot be written",
            "free the disk or correct its permissions, then run the same command again",
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            self.fd = os.open(path, flags, 0o666)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def trim(self) -> None:
        """Cut a log that passed its limit to head, a line that says so, and tail."""
        size = self.size()
        if size > self.limit:
            tail = os.pread(self.fd, TAIL, size - TAIL)
            os.ftruncate(self.fd, min(HEAD, self.limit // 4))
            os.write(self.fd, b"\n[celedger: output was dropped here]\n" + tail)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
