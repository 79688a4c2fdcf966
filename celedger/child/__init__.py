"""The module that a training script imports inside the measured environment: `log`, which appends
one JSON line to the trial's journal.

Standard library only, Python 3.8 and later, cheap to import. It must not import the rest of
celedger, because only this folder is copied beside the trainings under test.
"""

from __future__ import annotations

import errno
import json
import os

__all__ = ["log", "wants_steps"]

LONGEST = 1 << 20  # bytes a line; a longer one is a mistake, and readers of the journal refuse it
MOST_STEPS = 32768  # values a line; the longest number, -1.2345678901234567e-100, takes 26 bytes

_torn = False  # a full disk cut our last line: the next one must not continue it
_reopened: dict[str, int] = {}  # path of the journal -> a descriptor opened here, see `_journal`
_REFUSED = "celedger's journal did not take this report"


def wants_steps() -> bool:
    """Return True if the task records series per step (`steps = true` in its suite)."""
    return os.environ.get("CELEDGER_STEPS") == "1"


def log(epoch: int | None = None, *, steps: object = None, **values: object) -> None:
    """Report metrics of one epoch, e.g. `log(epoch=3, val_loss=0.41, fingerprint="9f3c…")`.

    `steps` are series with a value a step of that epoch, `steps={"loss": [0.9, 0.7, …]}`; several
    calls in one epoch continue them. They are ignored unless the task records them.

    Values are numbers or anything with `.item()` or `float()` (numpy and torch scalars); NaN and
    infinity are kept. Once this returns the report outlives any kill of this process. It may be
    called from threads, forked children and processes that the training starts. Outside celedger it
    does nothing.

    Raises OSError when the journal cannot take the line (disk full, supervisor killed), TypeError
    for a value that is no number, ValueError for a line past 1 MiB.
    """
    fd = _journal()
    if fd is None:
        return
    # Types are compared by identity: bool is a subclass of int and no number here.
    report = {
        name: v if type(v) in (int, float) or name == "fingerprint" else _number(v)
        for name, v in values.items()
        if v is not None  # a metric without a value
    }
    when = {} if epoch is None else {"epoch": epoch}
    if isinstance(steps, dict):
        if steps and wants_steps():
            report.update(_steps(fd, when, steps))
    elif steps is not None:  # a number: a metric of that name
        report["steps"] = _number(steps)
    if report or not isinstance(steps, dict):
        _write(fd, {**when, **report})


def _steps(fd: int, when: dict[str, int], steps: dict[str, object]) -> dict[str, object]:
    """Return what belongs in the epoch's own line: all series, or none if they are too long for one
    line and were written here, in several lines before it."""
    lists = {name: _list(series) for name, series in steps.items()}
    if sum(map(len, lists.values())) <= MOST_STEPS:
        return {"steps": lists}
    if not when:
        raise ValueError(f"more than {MOST_STEPS} values of steps need an epoch: log(epoch=…)")
    for name, series in lists.items():
        for first in range(0, len(series), MOST_STEPS):
            _write(fd, {**when, "steps": {name: series[first : first + MOST_STEPS]}})
    return {}


def _list(series: object) -> list[object]:
    """Convert a list, tuple or array of one dimension (numpy's and torch's have `tolist`)."""
    values = series.tolist() if hasattr(series, "tolist") else series
    if not isinstance(values, (list, tuple)):
        raise TypeError(f"steps are lists of numbers, not {type(series).__name__}")
    return [v if type(v) in (int, float) else None if v is None else _number(v) for v in values]


def _write(fd: int, report: dict[str, object]) -> None:
    line = _encode(report).encode() + b"\n"
    if len(line) > LONGEST:
        raise ValueError(f"a report of {len(line)} bytes; celedger takes at most {LONGEST}")
    _append(fd, line)


def _number(value: object) -> float:
    """Convert what `json` cannot write: numpy and torch scalars, Decimal, Fraction."""
    if isinstance(value, str):
        raise TypeError(f"celedger.child.log takes numbers, not the text {value!r:.80}")
    try:
        number = value.item() if hasattr(value, "item") else float(value)  # type: ignore[arg-type]
        if isinstance(number, (bool, int, float)):
            return int(number) if isinstance(number, bool) else number
    except (TypeError, ValueError, RuntimeError):  # torch raises it for more than one element
        pass
    raise TypeError(f"celedger.child.log takes numbers, not {type(value).__name__}: {value!r:.80}")


_encode = json.JSONEncoder(default=_number, check_circular=False).encode  # made once: 2 µs a call


def _journal() -> int | None:
    """Return a descriptor of the journal, or None outside celedger.

    A process that closes inherited descriptors (subprocess, multiprocessing's spawn, torchrun) may
    have another file under the number in `CELEDGER_FD`, and later under that of a descriptor opened
    here. So each is verified before each report, by the inode in `CELEDGER_INODE`. Without that
    variable celedger did not set `CELEDGER_FD`, and the open file is used as it is.

    Raises OSError if no descriptor can be verified. After the supervisor was killed, every call
    raises it: the kernel refuses each recorded system call (seccomp_unotify(2)).
    """
    number = os.environ.get("CELEDGER_FD")
    if not number:
        return None
    inode = os.environ.get("CELEDGER_INODE")
    if not inode:
        return int(number)
    path = os.environ["CELEDGER_JOURNAL"]
    try:
        for fd in (_reopened.get(path), int(number)):
            if fd is not None and _is_open(fd, inode):
                return fd
        fd = os.open(path, os.O_WRONLY | os.O_APPEND)  # never created here
        if not _is_open(fd, inode):
            os.close(fd)
            raise OSError(errno.ESTALE, f"{path} is now another file")
    except OSError as error:
        words = error.strerror
        if error.errno == errno.ENOSYS:
            words = "the supervisor of this trial was killed"
        raise OSError(error.errno, f"{_REFUSED}: {words}") from error
    _reopened[path] = fd
    return fd


def _is_open(fd: int, inode: str) -> bool:
    """Return True if the descriptor is open on this file, `DEVICE:INODE`."""
    try:
        state = os.fstat(fd)
    except OSError as error:
        if error.errno == errno.EBADF:
            return False
        raise
    return f"{state.st_dev}:{state.st_ino}" == inode


def _append(fd: int, line: bytes) -> None:
    """Write once, because O_APPEND makes exactly one write atomic among processes."""
    global _torn
    try:
        if _torn:
            line = b"\n" + line
        written = os.write(fd, line)
        if written < len(line):  # only a full disk or a size limit causes this for a file
            _torn = True
            line = b"\n" + line
            written = os.write(fd, line)
        if written < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        _torn = False
    except OSError as error:
        raise OSError(error.errno, f"{_REFUSED}: {error.strerror}") from error
