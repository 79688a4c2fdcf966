"""The file a command writes both its streams to. Knows its size and keeps it from filling the
disk; must not know what the lines mean."""

from __future__ import annotations

import os
from pathlib import Path

from celedger.errors import MachineError

LIMIT = 64 << 20  # a log that grew past this is cut …
HEAD = 1 << 20  # … to its beginning, where a command says what it is about to do,
TAIL = 64 << 10  # … and its end, where the traceback may just have been written


class Output:
    """A log opened for appending. A command inherits `fd`; because of O_APPEND its writes go
    to the end of the file, wherever a cut has moved that. Raises MachineError when the file
    cannot be opened."""

    def __init__(self, path: Path, limit: int = LIMIT) -> None:
        self.path = path
        self.limit = limit
        self.grown = 0  # bytes removed by cuts so far
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self.fd = os.open(path, flags, 0o666)
        except OSError as error:
            raise MachineError(
                f"the log file {path} cannot be written: {error.strerror}",
                "free the disk or correct its permissions, then run the same command again",
            ) from error

    def written(self) -> int:
        """Bytes written so far, those that were cut away included."""
        return os.fstat(self.fd).st_size + self.grown

    def trim(self) -> None:
        """Cuts a log that passed its limit to head, a line that says so, and tail."""
        size = os.fstat(self.fd).st_size
        if size <= self.limit:
            return
        head = min(HEAD, self.limit // 4)
        tail = os.pread(self.fd, min(TAIL, self.limit // 4), size - min(TAIL, self.limit // 4))
        removed = size - head - len(tail)
        self.grown += removed
        os.ftruncate(self.fd, head)
        line = f"\n[celedger: {self.grown:,} bytes of output dropped here]\n".encode()
        self.grown -= len(line)
        os.write(self.fd, line + tail)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
