"""What a Unix program owes to its surroundings: an end when a signal asks for one, and standard
streams that may be closed, full or unreadable. Must not know what the program does.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time
from contextlib import suppress

from celedger.errors import Status
from celedger.system import umask

# A wrapper (make, uv run) passes on the Ctrl-C of a terminal that we have had already.
_ECHO = 1.0  # seconds
_SHOW_CURSOR = b"\x1b[?25h"

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_unwinding = False


def prepare() -> None:
    """Once, before anything else: signals raise KeyboardInterrupt, no stream is missing, and what
    is written is nobody else's to read."""
    umask.make_private()
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup(1), or `&` in a script
            signal.signal(number, _interrupt)
    _open_missing_streams()
    # Buffered even where PYTHONUNBUFFERED is set, so that `finish` sees what could not be
    # written; and able to say a subject in any locale.
    encoding = sys.stdout.encoding if sys.stdout is not None else "utf-8"
    sys.stdout = open(1, "w", encoding=encoding, errors="backslashreplace", closefd=False)  # noqa: SIM115
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _thread.start_new_thread(_listen, (reader,))


def _interrupt(number: int, frame: object) -> None:
    """The first signal unwinds: the trial is killed and recorded, locks go."""
    global _unwinding
    if not _unwinding:
        _unwinding = True
        raise KeyboardInterrupt


def deaf() -> None:
    """Nothing is left to unwind: an end is under way, and its status stands."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _listen(reader: int) -> None:
    """Whoever asks again is not kept waiting: what is left then, the supervisor and the next
    command clean up. In a thread, because Python runs handlers only between two steps of its
    own, and one of them may be SQLite waiting for a minute."""
    first: float | None = None
    while True:
        for number in os.read(reader, 1):
            now = time.monotonic()
            first = first or now
            if number not in _SIGNALS or now - first < _ECHO:
                continue
            with suppress(OSError):
                line = b"celedger: ended at once; the next command takes in what is left\n"
                os.write(2, _SHOW_CURSOR + line if os.isatty(2) else line)
            os._exit(Status.INTERRUPTED)


def _open_missing_streams() -> None:
    """A file opened later would get the number of a closed stream, and its lines."""
    for fd in (0, 1, 2):
        with suppress(OSError):
            os.fstat(fd)
            continue
        if fd == 1:  # a closed stdout is a pipe that nobody reads
            reader, writer = os.pipe()
            os.close(reader)
            if writer != fd:
                os.dup2(writer, fd)
                os.close(writer)
        else:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            if fd == 2:
                sys.stderr = open(fd, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def complain(text: str) -> None:
    """One line on stderr, whatever the text contains, if anybody still reads there."""
    line = " ".join(text.split("\n")).strip()
    try:
        print(f"celedger: {line}", file=sys.stderr, flush=True)
    except OSError:
        _silence(2)


def finish(status: int) -> int:
    """The exit status, when all that was said has been delivered."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _silence(1)
        return Status.CLOSED_PIPE
    except OSError as error:
        _silence(1)
        complain(f"the answer cannot be written to stdout: {error.strerror}")
        return Status.FAILED
    return status


def broken_pipe() -> int:
    """Nobody reads any more, on one stream or the other."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _silence(stream.fileno())
    return Status.CLOSED_PIPE


def stdout_failed() -> bool:
    """Whether what was to be written there is stuck; if so, it is said, and dropped."""
    return finish(Status.GOOD) != Status.GOOD


def _silence(fd: int) -> None:
    """What is still in a buffer goes nowhere: Python would complain again when it ends."""
    with suppress(OSError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, fd)
        os.close(null)
