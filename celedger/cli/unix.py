"""The duties of a Unix program: an end when a signal asks for one, and standard
streams that may be closed, full or unreadable. Must not know what the program does.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from contextlib import suppress

from celedger.base import files
from celedger.base.errors import Status

_LONG = re.compile(r"(\S{200})\S{100,}")  # a word that no screen needs; a long path passes
_ECHO = 1.0  # seconds in which a wrapper (make, uv run) passes on the Ctrl-C that we have had
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_interrupted: float | None = None


def prepare() -> None:
    """Prepare the process, before anything else: signals raise KeyboardInterrupt, no stream is
    missing, and files are private."""
    files.make_private()
    if "OPENBLAS_NUM_THREADS" not in os.environ:
        # NumPy would start a thread a core when imported, half of what that takes, for arrays that
        # are too small to share. Behind the back of `os.environ`: trials get what the user set.
        os.putenv("OPENBLAS_NUM_THREADS", "1")
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup(1), or `&` in a script
            signal.signal(number, _interrupt)
    for fd in (0, 1, 2):  # a file opened later would get the number of a closed one, and its lines
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
    # Buffered even where PYTHONUNBUFFERED is set, so that `finish` sees what could not be
    # written; and able to say a subject in any locale.
    encoding = sys.stdout.encoding if sys.stdout is not None else "utf-8"
    sys.stdout = open(1, "w", encoding=encoding, errors="backslashreplace", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def _interrupt(number: int, frame: object) -> None:
    """The first signal unwinds: the trial is killed and recorded, locks go. Whoever asks again is
    not kept waiting: what is left then, the supervisor and the next command clean up."""
    global _interrupted
    now = time.monotonic()
    if _interrupted is None:
        _interrupted = now
        raise KeyboardInterrupt
    if now - _interrupted >= _ECHO:
        os._exit(Status.INTERRUPTED)


def deaf() -> None:
    """Nothing is left to unwind: an end is under way, and its status stands."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def complain(text: str) -> None:
    """Print one line on stderr, whatever the text contains, if anybody still reads there."""
    text = _LONG.sub(lambda word: f"{word[1]}…", " ".join(text.splitlines()))
    try:
        print(f"celedger: {text}", file=sys.stderr, flush=True)
    except OSError:
        _silence(2)


def finish(status: int) -> int:
    """Return the exit status, when all that was said has been delivered."""
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
    """Return the status after stdout or stderr was closed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _silence(stream.fileno())
    return Status.CLOSED_PIPE


def _silence(fd: int) -> None:
    """Drop what is still in a buffer: Python would complain again when it ends."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), fd)
