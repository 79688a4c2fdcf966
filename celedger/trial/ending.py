"""Classify how a command of a trial ended: whether it ran, why not, and whether it must run again.
Reads the end of a log; must not know benches, journals or ledgers."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from pathlib import Path

from celedger.base.config import closest
from celedger.base.model import OutcomeKind, Task, TrialRecord
from celedger.base.text import plain, some
from celedger.system import process

# A disk with less space cannot store another epoch, so failures on it are the machine's.
DISK_FULL = 64 * 1024  # bytes
ALIKE = 2
"""Seeds that fail with one message, after which no other is trained. A failure that comes at half
of the seeds comes at the first two one time in four. The commit counts as failing then as with
more of them; lost are the values of its other seeds."""
_OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError", "CUDA out of memory", "std::bad_alloc")
# Matches a whole name: one with a dot is missing in an existing package.
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)'")
_NO_FILE = re.compile(r"FileNotFoundError: \[Errno 2\] .+: '([^']+)'")
_REFUSAL = re.compile("celedger's journal did not take this report: (.+)")  # of `child.log`
_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'^  File "(.+)", line (\d+)(?:, in (.+))?$', re.MULTILINE)
_STEP = re.compile(r"^in (step \d+ of epoch \d+)$", re.MULTILINE)  # a note of `child.torch`
_HEAD = re.compile(r"^==> [A-Za-z0-9_.-]+ <==$\n?", re.MULTILINE)  # of `begin_log`
_ERROR = re.compile(r"^(?:E {3,}|(?=\S+(?: -m \S+)?: error: ))(\S.*)", re.MULTILINE)
_NUMBER = re.compile(r"\d\.\d|\d{2}")
_SHOWN = 6  # metrics that a message names
_TAIL = 8192  # bytes at the end of a log that are searched for the reason of a failure


def classify(end: process.Exit, log: Path) -> OutcomeKind:
    """Return the kind of outcome. A process that somebody else killed is no evidence about the
    commit."""
    match end.end:
        case process.End.TIMEOUT | process.End.SILENT:
            return OutcomeKind.TIMEOUT
        case process.End.MEMORY:
            return OutcomeKind.OOM
        case process.End.NOT_STARTED:
            return OutcomeKind.FAILED
    if end.returncode == 0:
        return OutcomeKind.OK
    if end.oom_killed or any(word in tail(log) for word in _OUT_OF_MEMORY):
        return OutcomeKind.OOM
    # A training's own faults raise SEGV, ABRT, BUS, FPE or ILL; these signals come from outside.
    # A shell between celedger and the training exits with 128 + signal.
    outside = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    if end.returncode is None or {-end.returncode, end.returncode - 128} & {*outside}:
        return OutcomeKind.KILLED
    return OutcomeKind.FAILED


def explain(end: process.Exit, log: Path) -> str:
    """Return why a command failed, in one line, with the reason from its log."""
    words = tail(log)
    reason = _reason(words)
    if end.end is process.End.EXITED and reason:
        return f"{end.message}: {reason[:200]}{_crash_site(words)}"
    return end.message


def _crash_site(text: str) -> str:
    """Return the innermost frame and the step of the last exception, if the training notes its
    step, and the line of a syntax error; else empty."""
    _, traceback, after = text.rpartition(_TRACEBACK)
    frames, steps = _FRAME.findall(after), _STEP.findall(after)
    file, line, function = frames[-1] if frames else ("", "", "")
    if file and not function:
        return f" ({Path(file).name}, line {line})"
    named = traceback and file and steps
    return f" (in {function} of {Path(file).name}, {steps[-1]})" if named else ""


def traceback_frames(log: Path) -> list[tuple[str, int, str]]:
    """Return file, line and function of each frame of the last traceback in a log, the outermost
    first; a syntax error has no function."""
    after = tail(log).rpartition(_TRACEBACK)[2]
    return [(file, int(line), function) for file, line, function in _FRAME.findall(after)]


def _reason(text: str) -> str:
    """Return the exception of the last traceback, which libraries may write after; else the last
    line."""
    _, traceback, after = text.rpartition(_TRACEBACK)
    if traceback:
        lines = after.splitlines()
        reason = next((line for line in lines if line and not line[0].isspace()), "")
        if plain(reason):
            return plain(reason)
    # As argparse and compilers end, and as pytest shows an exception; more lines may follow.
    errors = _ERROR.findall(text)
    return plain(errors[0]) if errors else last_line(text)


def last_line(text: str) -> str:
    """Return the last line that is not empty; "" for none."""
    return next((line for line in map(plain, reversed(text.splitlines())) if line), "")


def without(absent: Sequence[str], reported: Collection[str], task: Task, log: Path) -> str:
    """Return that a training ended well without these metrics, and what it told instead: other
    names, or the last line with a number that it printed."""
    text = f"ended without reporting {', '.join(absent)}"
    if reported:
        names = sorted(reported)
        hint = closest(absent[0], names[:_SHOWN])
        near = f" ({hint})" if hint.endswith("?") else ""
        return f"{text}; it reported {some(names, _SHOWN)}{near}"
    text += ", or any number" + "; no line matched its pattern" * bool(task.pattern)
    printed = (line for line in map(plain, reversed(tail(log).splitlines())))
    line = next((line for line in printed if _NUMBER.search(line)), "")
    return f"{text}; it printed: {line[:120]}" if line else text


def absent_module(reason: str) -> str:
    """Return the top-level module whose absence ended a command (`explain`), "" for none."""
    return "".join(_NO_MODULE.findall(reason)[:1])


def absent_file(reason: str) -> str:
    """Return the file whose absence ended a command (`explain`), "" for none."""
    return "".join(_NO_FILE.findall(reason)[:1])


def begin_log(log: Path, command: str) -> None:
    """Begin the part of one of several commands in a trial's log, as `tail` heads several files.
    Raises OSError, MachineError."""
    with closing(process.Output(log)) as output:
        head = f"==> {command} <==\n".encode()
        os.write(output.fd, b"\n" + head if output.size() else head)


def tail(log: Path) -> str:
    """Return the end of a log, decoded as well as possible; of several commands, the last one's."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL))
            return _HEAD.split(file.read().decode("utf-8", "replace"))[-1]
    except OSError:
        return ""


def answers(record: TrialRecord, task: Task) -> bool:
    """Return True if a trial need not be repeated. One that was stopped early must be, as must one
    that hit a time-out shorter than the task's present one."""
    outcome = record.outcome
    if outcome is None or not record.is_conclusive:
        return False
    ran = outcome.ended - record.trial.started
    return outcome.kind is not OutcomeKind.TIMEOUT or ran >= min(
        task.timeout, task.silence or task.timeout
    )


def failed_alike(records: Collection[TrialRecord]) -> bool:
    """Return True if the trials of a commit and task, at several seeds, all failed with the same
    message: another seed would, too, and the commit is a failing one already."""
    ends = {record.outcome.message for record in records if record.outcome and not record.ok}
    return (
        len({record.trial.seed for record in records}) >= ALIKE
        and len(ends) == 1
        and not any(record.ok for record in records)
    )


def refusal(log: Path, folder: Path) -> str:
    """Return why a failure may be the machine's: the folder's disk has no space for another epoch,
    or the journal refused the last reports, by the training's log."""
    with suppress(OSError):  # the folder was removed
        if shutil.disk_usage(folder).free < DISK_FULL:
            return "the disk is full"
    return "".join(_REFUSAL.findall(tail(log))[-1:])
